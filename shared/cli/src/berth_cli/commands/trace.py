"""``berth trace``: one pod's messages in order, stored ones and, with ``-f``, new ones."""

from __future__ import annotations

import asyncio
from typing import Annotated, Final

import typer

from berth.bus.interface import MESSAGE_ID, Session, StoredMessage
from berth.bus.topology import DEAD, DECISIONS, PENDING, RANKED
from berth.exits import Exit
from berth_cli.bus import NatsContext, NatsServer, NatsUrl, open_session
from berth_cli.options import (
    NotFoundError,
    Output,
    OutputFormat,
    PodArgument,
    PodName,
    PodNamespace,
    parse_pod,
    print_document,
    run_command,
)
from berth_cli.pods.timeline import TracedMessage, as_json, stage_row, stage_table, trace_json, with_recalled
from berth_cli.rendering import open_console, print_rich

app = typer.Typer()

STREAMS: Final = {PENDING: "pending", RANKED: "ranked", DECISIONS: "decision", DEAD: "dead"}  # stages by stream

Follow = Annotated[bool, typer.Option("-f", "--follow", help="Print new messages too, until Ctrl-C.")]


@app.command()
def trace(  # noqa: PLR0913 - one parameter a flag, given by name
    pod: PodArgument,
    *,
    namespace: PodNamespace = None,
    follow: Follow = False,
    output: Output = OutputFormat.TABLE,
    nats: NatsUrl = None,
    nats_context: NatsContext = None,
) -> None:
    """Print a pod's messages in order, with the times between them."""
    server = NatsServer(nats, nats_context)
    run_command(_trace(pod, namespace, server, output, follow=follow), interrupted=Exit.DONE)


async def _trace(pod: str, namespace: str | None, server: NatsServer, output: OutputFormat, *, follow: bool) -> None:
    name = parse_pod(pod, namespace)
    async with open_session(server, name="trace", is_named=not output.is_document) as session:
        if follow:
            await _follow(session, name, output)
            return
        messages = with_recalled([message for message, _ in await stored_messages(session, name)])
    if not messages:
        raise NotFoundError(
            f"looking for pod {str(name)!r}: no message of it is on the bus (Decisions are kept for an hour): "
            f"`berth why {name}` shows where it is"
        )
    if output.is_document:
        print_document(trace_json(name, messages), output)
    else:
        print_rich(stage_table(messages))


async def stored_messages(session: Session, pod: PodName) -> list[tuple[TracedMessage, str]]:
    """The stored messages of a pod in order of time, each with its message id."""
    found = [stored for stream, stage in STREAMS.items() async for stored in session.scan(stream, pod.filter(stage))]
    found.sort(key=lambda stored: stored.time)
    return [(_traced(stored), stored.headers.get(MESSAGE_ID, "")) for stored in found]


def _traced(stored: StoredMessage) -> TracedMessage:
    return TracedMessage(at=stored.time.timestamp(), subject=stored.subject, data=stored.data)


async def _follow(session: Session, pod: PodName, output: OutputFormat) -> None:
    """Print stored messages, then new ones. Subscribes before reading the streams, so that no message is missed."""
    received: asyncio.Queue[tuple[TracedMessage, str]] = asyncio.Queue()

    def receive(copy: StoredMessage) -> None:
        received.put_nowait((_traced(copy), copy.headers.get(MESSAGE_ID, "")))

    await session.subscribe_stored(pod.filter("*"), receive)
    stored = await stored_messages(session, pod)
    printer = TracePrinter(output)
    for message in with_recalled([message for message, _ in stored]):
        printer.print(message)
    seen = {(message.subject, message_id) for message, message_id in stored}
    lost = asyncio.ensure_future(session.lost.wait())
    while True:
        upcoming = asyncio.ensure_future(received.get())
        await asyncio.wait([upcoming, lost], return_when=asyncio.FIRST_COMPLETED)
        if not upcoming.done():
            upcoming.cancel()
            await session.state(DECISIONS)  # raises the error of the lost connection
        message, message_id = await upcoming
        if (message.subject, message_id) not in seen:
            printer.print(message)
        seen.add((message.subject, message_id))


class TracePrinter:
    def __init__(self, output: OutputFormat) -> None:
        self._output = output
        self._console = open_console()
        self._before: TracedMessage | None = None

    def print(self, message: TracedMessage) -> None:
        if self._output.is_document:
            print_document(as_json(message, self._before), self._output, one_of_many=True)
        else:
            at, since, stage, description = stage_row(message, self._before)
            line = at.append(f"  {since.plain:>11}  {stage.plain:8}  ").append_text(description)
            self._console.print(line)
        self._before = message
