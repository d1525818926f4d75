"""``berth trace``: the messages of a pod or a PodGroup in order, stored ones and, with ``-f``, new ones.

A pod of a group has those of the group too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Annotated, Final

import typer

from berth.api.podgroups import Dialect, GroupKey
from berth.bus.interface import MESSAGE_ID, Session, StoredMessage
from berth.bus.topology import DEAD, DECISIONS, PENDING, RANKED
from berth.errors import BerthError
from berth.exits import Exit
from berth.messages.attempts import Decision
from berth.messages.encoding import decode
from berth.messages.groupattempts import subject_name
from berth_cli.bus import NatsContext, NatsServer, NatsUrl, open_session
from berth_cli.options import (
    IsGroup,
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
from berth_cli.pods.lookup import group_of_placed
from berth_cli.pods.timeline import TracedMessage, as_json, stage_row, stage_table, trace_json, with_recalled
from berth_cli.pods.waiting import queued_pod
from berth_cli.rendering import open_console, plain, print_rich

app = typer.Typer()

STREAMS: Final = {PENDING: "pending", RANKED: "ranked", DECISIONS: "decision", DEAD: "dead"}  # stages by stream

Follow = Annotated[bool, typer.Option("-f", "--follow", help="Print new messages too, until Ctrl-C.")]


@app.command()
def trace(  # noqa: PLR0913 - one parameter a flag, given by name
    pod: PodArgument,
    *,
    namespace: PodNamespace = None,
    group: IsGroup = False,
    follow: Follow = False,
    output: Output = OutputFormat.TABLE,
    nats: NatsUrl = None,
    nats_context: NatsContext = None,
) -> None:
    """Print a pod's messages in order, with the times between them.

    Those of its PodGroup are among them. With --group: those of a PodGroup alone, or if each dialect has one of
    this name, of one after the other.
    """
    server = NatsServer(nats, nats_context)

    async def run() -> None:  # a wrong name is an error of the command
        name = parse_pod(pod, namespace, is_group=group)
        await _trace(name, server, output, is_group=group, follow=follow)

    run_command(run(), interrupted=Exit.DONE)


async def _trace(name: PodName, server: NatsServer, output: OutputFormat, *, is_group: bool, follow: bool) -> None:
    async with open_session(server, name="trace", is_named=not output.is_document) as session:
        if follow:
            names = groups_named(name) if is_group else [name, *await _group_of(session, name)]
            await _follow(session, names, TracePrinter(output, is_group=is_group))
            return
        traces = await traces_of(session, name, is_group=is_group)
        if not traces:
            raise await without_messages(session, name, is_group=is_group)
    for at, messages in enumerate(traces):
        if output.is_document:
            print_document(trace_json(name, messages), output, one_of_many=len(traces) > 1)
        else:
            title = [messages[0].group] if len(traces) > 1 else []
            print_rich(*[""] * bool(at), *map(plain, title), stage_table(messages))


async def traces_of(session: Session, name: PodName, *, is_group: bool) -> list[list[TracedMessage]]:
    """The messages of a pod and its group, or of each PodGroup of the name. Traces without messages are left out."""
    each_names = [[each] for each in groups_named(name)] if is_group else [[name, *await _group_of(session, name)]]
    each_stored = [await stored_messages(session, names) for names in each_names]
    return [with_recalled([message for message, _ in stored]) for stored in each_stored if stored]


async def without_messages(session: Session, name: PodName, *, is_group: bool) -> NotFoundError:
    """The error about a pod or PodGroup without messages.

    Raises:
        NotFoundError: there is no such PodGroup.
    """
    from berth_cli.pods.podgroups import explain_groups, or_group  # noqa: PLC0415 - see the module

    nothing = f"looking for {'PodGroup' if is_group else 'pod'} {str(name)!r}: no message of it is on the bus"
    expired = f"{nothing} (Decisions are kept for an hour)"
    if not is_group:
        return await or_group(session, name, expired, f": `berth why {name}` shows where it is", command="trace")
    groups = [each.summary for each in await explain_groups(session, name.namespace, name.name)]
    if all(each.is_ordinary for each in groups):
        pod = next((f"{name.namespace}/{member.pod}" for each in groups for member in each.members()), "POD")
        return NotFoundError(f"{nothing}: its pods are placed one by one, see `berth trace {pod}`")
    return NotFoundError(f"{expired}: `berth why --group {name}` shows where it is")


def groups_named(name: PodName) -> list[PodName]:
    """The PodGroups of this name, as subjects have them."""
    return [
        PodName(namespace=name.namespace, name=subject_name(GroupKey(dialect, name.namespace, name.name)))
        for dialect in Dialect
    ]


async def _group_of(session: Session, name: PodName) -> list[PodName]:
    """The PodGroup of a pod, by the watcher that has it in its queue, or by the mirror that has it on its node."""
    with suppress(BerthError):  # the pod has messages of its own without it
        detail = (await queued_pod(session, name)).detail
        if detail is not None:
            return [PodName(namespace=name.namespace, name=detail.pod.group)] if detail.pod.group else []
    stored = await session.last(DECISIONS, name.filter("decision"))
    with suppress(BerthError):
        group = None if stored is None else await group_of_placed(session, decode(stored.data, Decision).uid)
        return [] if group is None else [PodName(namespace=name.namespace, name=subject_name(group))]
    return []


async def stored_messages(session: Session, names: Sequence[PodName]) -> list[tuple[TracedMessage, str]]:
    """The stored messages under these names in order of time, each with its message id."""
    found = [
        stored
        for name in names
        for stream, stage in STREAMS.items()
        async for stored in session.scan(stream, name.filter(stage))
    ]
    found.sort(key=lambda stored: stored.time)
    return [(_traced(stored), stored.headers.get(MESSAGE_ID, "")) for stored in found]


def _traced(stored: StoredMessage) -> TracedMessage:
    return TracedMessage(at=stored.time.timestamp(), subject=stored.subject, data=stored.data)


async def _follow(session: Session, names: Sequence[PodName], printer: TracePrinter) -> None:
    """Print stored messages, then new ones. Subscribes before reading the streams, so that no message is missed."""
    received: asyncio.Queue[tuple[TracedMessage, str]] = asyncio.Queue()

    def receive(copy: StoredMessage) -> None:
        received.put_nowait((_traced(copy), copy.headers.get(MESSAGE_ID, "")))

    for name in names:
        await session.subscribe_stored(name.filter("*"), receive)
    stored = await stored_messages(session, names)
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
    """Prints messages as they come. ``is_group``: of PodGroups, each after its own one before, below its name."""

    def __init__(self, output: OutputFormat, *, is_group: bool = False) -> None:
        self._output = output
        self._console = open_console()
        self._is_group = is_group
        self._before: dict[str, TracedMessage] = {}
        self._title = ""

    def print(self, message: TracedMessage) -> None:
        title = message.group if self._is_group else ""
        before = self._before.get(title)
        if self._output.is_document:
            print_document(as_json(message, before), self._output, one_of_many=True)
        else:
            if title != self._title:
                self._console.print(plain(title))
            at, since, stage, description = stage_row(message, before)
            line = at.append(f"  {since.plain:>11}  {stage.plain:8}  ").append_text(description)
            self._console.print(line)
        self._before[title], self._title = message, title
