"""``berth trace``: one pod's messages in order, those that the bus still has and, with ``-f``, those that come."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Annotated, Final

import typer

from berth.bus.interface import Session, StoredMessage
from berth.bus.streams import MESSAGE_ID
from berth.bus.topology import DEAD, DECISIONS, PENDING, RANKED
from berth.cli.exits import finish
from berth.cli.journey import Step, as_json, by_stage, row, with_recalled
from berth.cli.lookup import NatsUrl, NoSuchThingError, Output, OutputFormat, PodName, asking, parse_pod
from berth.cli.rendering import page, say_json, show
from berth.process.exits import Exit

STREAMS: Final = {PENDING: "pending", RANKED: "ranked", DECISIONS: "decision", DEAD: "dead"}
"""Where a pod's messages lie, and under which stage."""

Pod = Annotated[str, typer.Argument(metavar="NAMESPACE/POD", help="Which pod.", show_default=False)]
Follow = Annotated[bool, typer.Option("-f", "--follow", help="Go on with what comes, until Ctrl-C.")]


def trace(pod: Pod, *, follow: Follow = False, output: Output = OutputFormat.TABLE, nats: NatsUrl = None) -> None:
    """Show a pod's messages in order, with the times between them."""
    finish(_trace(pod, nats, output, follow=follow), interrupted=Exit.DONE)


async def _trace(pod: str, nats: str | None, form: OutputFormat, *, follow: bool) -> None:
    name = parse_pod(pod)
    async with asking(nats, name="trace") as session:
        if follow:
            await _follow(session, name, form)
            return
        steps = with_recalled([step for step, _ in await past(session, name)])
    if not steps:
        raise NoSuchThingError(
            f"looking for pod {str(name)!r}: no message of it is on the bus (Decisions are kept for an hour)"
        )
    if form is OutputFormat.JSON:
        messages = [as_json(step, before) for step, before in zip(steps, (None, *steps), strict=False)]
        say_json({"pod": str(name), "messages": messages})
    else:
        show(by_stage(steps))


async def past(session: Session, pod: PodName) -> list[tuple[Step, str]]:
    """What the streams hold of a pod in the order of time, each with its message id."""
    found = [stored for stream, stage in STREAMS.items() async for stored in session.scan(stream, pod.filter(stage))]
    found.sort(key=lambda stored: stored.time)
    return [(_step(stored), stored.headers.get(MESSAGE_ID, "")) for stored in found]


def _step(stored: StoredMessage) -> Step:
    return Step(at=stored.time.timestamp(), subject=stored.subject, data=stored.data)


async def _follow(session: Session, pod: PodName, form: OutputFormat) -> None:
    """The past, then what comes: heard from before the past is read, so that nothing falls between."""
    ahead = (await session.state(DECISIONS)).now.timestamp() - time.time()
    heard: asyncio.Queue[tuple[Step, str]] = asyncio.Queue()

    def hear(subject: str, data: bytes, headers: Mapping[str, str]) -> None:
        step = Step(at=time.time() + ahead, subject=subject, data=data)
        heard.put_nowait((step, headers.get(MESSAGE_ID, "")))

    await session.subscribe(pod.filter("*"), hear)
    known = await past(session, pod)
    telling = Telling(form)
    for step in with_recalled([step for step, _ in known]):
        telling.tell(step)
    seen = {(step.subject, message_id) for step, message_id in known}
    lost = asyncio.ensure_future(session.lost.wait())
    while True:
        coming = asyncio.ensure_future(heard.get())
        await asyncio.wait([coming, lost], return_when=asyncio.FIRST_COMPLETED)
        if not coming.done():
            coming.cancel()
            await session.state(DECISIONS)  # raises what the connection was lost by
        step, message_id = await coming
        if (step.subject, message_id) not in seen:
            telling.tell(step)
        seen.add((step.subject, message_id))


class Telling:
    """Tells messages one by one, as they come."""

    def __init__(self, form: OutputFormat) -> None:
        self._form = form
        self._page = page()
        self._before: Step | None = None

    def tell(self, step: Step) -> None:
        """One more message: a line, or a JSON document on a line."""
        if self._form is OutputFormat.JSON:
            say_json(as_json(step, self._before), indent=0)
        else:
            at, since, stage, words = row(step, self._before)
            line = at.append(f"  {since.plain:>11}  {stage.plain:8}  ").append_text(words)
            self._page.print(line)
        self._before = step
