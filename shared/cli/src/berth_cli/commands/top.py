"""``berth top``: queues, lag, services and nodes; live on a terminal, else printed once."""

from __future__ import annotations

import asyncio
import os
import sys
import termios
import tty
from collections import Counter, deque
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated, Final

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from berth.api.resources import CPU, MEMORY
from berth.bus.interface import ServiceInstance, Session, StoredMessage, StreamReader, StreamState
from berth.bus.stages import OUTCOME
from berth.bus.topology import BANDWIDTH, DECISIONS
from berth.cluster.nodes import node_info
from berth.errors import TemporaryError, first_error
from berth.exits import Exit
from berth.settings.settings import process_label, short_identity
from berth_cli.bus import NatsContext, NatsServer, NatsUrl, open_session
from berth_cli.commands.devices import device_numbers
from berth_cli.mirror import MirrorReader, newest_traffic, newest_usage, open_mirror
from berth_cli.options import (
    ANSWERED_BY,
    EveryRow,
    Output,
    OutputFormat,
    countable_seconds,
    print_document,
    run_command,
)
from berth_cli.pods.timeline import with_meaning
from berth_cli.rendering import (
    MOST_ROWS,
    amount_of_bytes,
    and_more,
    duration,
    is_current,
    natural,
    new_table,
    open_console,
    per_second,
    plain,
    print_rich,
)
from berth_cli.services import STREAMS, activity, attention, figures, gone, is_slow, oldest_age, queue_lines, seen

app = typer.Typer()

# Period over which Decisions are counted: long enough for a steady rate, short enough to fill soon after the start.
WINDOW: Final = timedelta(seconds=10)

FEWEST_NODES: Final = 3  # nodes on the smallest terminal

Watch = Annotated[
    bool | None,
    typer.Option(
        "--watch/--once",
        help="Refresh until q or Ctrl-C, or print once; by default --watch on a terminal.",
        show_default=False,
    ),
]

Interval = Annotated[
    float,
    typer.Option(
        "--interval",
        metavar="SECONDS",
        help="Seconds between two refreshes.",
        min=0.2,
        callback=countable_seconds,
    ),
]


@app.command()
def top(  # noqa: PLR0913 - one parameter a flag, given by name
    *,
    watch: Watch = None,
    interval: Interval = 2.0,
    every_row: EveryRow = False,
    output: Output = OutputFormat.TABLE,
    nats: NatsUrl = None,
    nats_context: NatsContext = None,
) -> None:
    """Print queues, services, nodes, and problems.

    With lag, leaders, digests of configurations, and of each node the pods, their requests (REQ), and what is measured.
    """
    watches = open_console().is_terminal and output is OutputFormat.TABLE if watch is None else watch
    server = NatsServer(nats, nats_context)
    rows = None if every_row else MOST_ROWS
    work = _watch(server, output, timedelta(seconds=interval), rows) if watches else _once(server, output, rows)
    run_command(work, interrupted=Exit.DONE)


async def _once(server: NatsServer, output: OutputFormat, rows: int | None) -> None:
    async with _overview_reader(server) as reader:
        overview = await reader.read()
    if output.is_document:
        print_document(as_json(overview), output)
    else:
        print_rich(*overview_lines(overview, rows=rows))


async def _watch(server: NatsServer, output: OutputFormat, interval: timedelta, rows: int | None) -> None:
    console = open_console()
    if output.is_document or not console.is_terminal:
        async with _overview_reader(server) as reader:
            while True:
                _print(await reader.read(), output, rows)
                await asyncio.sleep(interval.total_seconds())
    screen = _Screen(console)
    with Live(console=console, screen=True, auto_refresh=False) as live, _pressed(b"q") as quitting:
        while not quitting.is_set():
            try:
                async with _overview_reader(server) as reader:
                    while not quitting.is_set():
                        live.update(screen.show(await reader.read()), refresh=True)
                        await _wait_for(quitting, interval)
            except* TemporaryError as gone:
                if screen.is_empty:  # nothing was ever read: the command ends with the reason
                    raise
                live.update(screen.show_again(gone), refresh=True)
                await _wait_for(quitting, interval)


async def _wait_for(event: asyncio.Event, most: timedelta) -> None:
    with suppress(TimeoutError):
        await asyncio.wait_for(event.wait(), most.total_seconds())


class _Screen:
    """The last overview, as many nodes as fit, and why the overview is old."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._last: Overview | None = None

    @property
    def is_empty(self) -> bool:
        return self._last is None

    def show(self, overview: Overview) -> RenderableType:
        self._last = overview
        return self._fitting(overview)

    def show_again(self, gone: BaseExceptionGroup[TemporaryError]) -> RenderableType:
        reason = " ".join(str(first_error(gone)).split())
        line = plain(f"not refreshed: {reason}; trying again", "red")
        return line if self._last is None else Group(line, self._fitting(self._last, lines=2))

    def _fitting(self, overview: Overview, *, lines: int = 0) -> RenderableType:
        others = len(self._console.render_lines(Group(*overview_lines(overview, rows=0)))) + lines
        rows = max(FEWEST_NODES, self._console.height - others)
        return Group(*overview_lines(overview, rows=rows))


@contextmanager
def _pressed(key: bytes) -> Iterator[asyncio.Event]:
    """An event, set when the key is pressed; typed characters are not shown meanwhile."""
    event, terminal = asyncio.Event(), sys.stdin
    if not terminal.isatty():
        yield event
        return

    def read() -> None:
        typed = os.read(terminal.fileno(), 1024)
        if key in typed:
            event.set()
        if not typed:  # the terminal has gone
            loop.remove_reader(terminal)

    loop, before = asyncio.get_running_loop(), termios.tcgetattr(terminal)
    tty.setcbreak(terminal)
    loop.add_reader(terminal, read)
    try:
        yield event
    finally:
        loop.remove_reader(terminal)
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)


def _print(overview: Overview, output: OutputFormat, rows: int | None) -> None:
    if output.is_document:
        print_document(as_json(overview), output, one_of_many=True)
    else:
        print_rich(*overview_lines(overview, rows=rows), "")


@asynccontextmanager
async def _overview_reader(server: NatsServer) -> AsyncIterator[OverviewReader]:
    async with (
        open_session(server, name="top", is_named=False) as session,
        open_mirror(session, also=(BANDWIDTH,)) as mirror,
        session.read_stream(DECISIONS, since=WINDOW) as decisions,
    ):
        reader = OverviewReader(session, mirror)
        counting = asyncio.create_task(reader.count(decisions))
        await decisions.caught_up.wait()
        try:
            yield reader
        finally:
            counting.cancel()
            await asyncio.gather(counting, return_exceptions=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLine:
    """A node: pods, requested and allocatable millicores and bytes, bytes per second and when they were measured.

    ``devices``: those of its own pools that are in use, and all. ``cpu_used`` and ``memory_used``: measured means.
    """

    name: str
    pods: int
    cpu: tuple[float, float]
    memory: tuple[float, float]
    devices: tuple[int, int] = (0, 0)
    receive: float | None = None
    transmit: float | None = None
    sampled_at: datetime | None = None
    cpu_used: float | None = None
    memory_used: float | None = None
    usage_sampled_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """The state at a time on NATS's clock. ``outcomes`` counts the Decisions of the last ``window``."""

    now: datetime
    source: str
    streams: Sequence[StreamState]
    services: Sequence[ServiceInstance]
    watermarks: Mapping[str, datetime]
    outcomes: Mapping[str, int]
    window: timedelta
    nodes: Sequence[NodeLine]

    def age(self, then: datetime | None) -> float | None:
        """Seconds since a time; ``None`` for never."""
        return None if then is None else max(0.0, (self.now - then).total_seconds())


class OverviewReader:
    def __init__(self, session: Session, mirror: MirrorReader) -> None:
        self._session = session
        self._mirror = mirror
        self._decided: deque[tuple[datetime, str]] = deque()

    async def count(self, decisions: StreamReader) -> None:
        async for batch in decisions.batches():
            self._decided.extend((stored.time, outcome_of(stored)) for stored in batch)
            self._forget(self._decided[-1][0] if self._decided else None)

    def _forget(self, now: datetime | None) -> None:
        while now is not None and self._decided and now - self._decided[0][0] > WINDOW:
            self._decided.popleft()

    async def read(self) -> Overview:
        """The present state. Raises as :meth:`Session.state`."""
        streams = [await self._session.state(stream) for stream in STREAMS]
        now = streams[-1].now
        self._forget(now)
        return Overview(
            now=now,
            source=str(ANSWERED_BY.get()),
            streams=streams,
            services=await self._session.services(),
            watermarks=dict(self._mirror.watermarks),
            outcomes=Counter(outcome for _, outcome in self._decided),
            window=WINDOW,
            nodes=list(node_lines(self._mirror)),
        )


def outcome_of(stored: StoredMessage) -> str:
    """The outcome from the header, so that the payload need not be decoded."""
    return stored.headers.get(OUTCOME, "unknown")


def node_lines(mirror: MirrorReader) -> list[NodeLine]:
    return [line for name in mirror.snapshot.node_names() if (line := _node_line(mirror, name)) is not None]


def _node_line(mirror: MirrorReader, name: str) -> NodeLine | None:
    info = node_info(mirror.snapshot, name)
    if info is None:
        return None
    samples = mirror.bandwidth.get(name, {}).values()
    sample, usage = newest_traffic(samples), newest_usage(samples)
    return NodeLine(
        name=name,
        pods=info.pods,
        cpu=(info.requested(CPU), info.allocatable(CPU)),
        memory=(info.requested(MEMORY), info.allocatable(MEMORY)),
        devices=device_numbers(mirror.snapshot, info.node),
        receive=sample.receive if sample else None,
        transmit=sample.transmit if sample else None,
        sampled_at=sample.sampled_at if sample else None,
        cpu_used=usage.cpu.average if usage and usage.cpu else None,
        memory_used=usage.memory.average if usage and usage.memory else None,
        usage_sampled_at=usage.sampled_at if usage else None,
    )


def overview_lines(overview: Overview, *, rows: int | None) -> Iterator[RenderableType]:
    """The overview as text. ``rows``: the number of nodes that are shown; ``None`` is all."""
    yield plain(overview.source)
    yield queues(overview)
    yield _flow(overview)
    processes = seen(overview.services)
    yield from map(plain, queue_lines(processes))
    yield ""
    yield services(overview)
    yield ""
    sentences = attention(processes)
    yield from (plain(sentence, "yellow") for sentence in sentences)
    if sentences:
        yield ""
    yield from _nodes(overview, rows)


def queues(overview: Overview) -> Table:
    """A line a stream: its messages, its consumer's state, the age of the oldest message."""
    numbers = ("MSGS", "PENDING", "UNACKED", "REDELIVERED", "OLDEST", "SIZE")
    table = new_table("STREAM", "CONSUMER", *numbers, numbers=numbers)
    for state in overview.streams:
        size = amount_of_bytes(state.bytes)
        for consumer in state.consumers or (None,):
            consumer_cells = (
                ("", "", "", "")
                if consumer is None
                else (consumer.name, str(consumer.undelivered), str(consumer.unacknowledged), str(consumer.redelivered))
            )
            cells = (state.stream, consumer_cells[0], str(state.messages), *consumer_cells[1:])
            table.add_row(*map(plain, cells), _oldest(state), plain(size))
    return table


def _oldest(state: StreamState) -> Text:
    age = oldest_age(state)
    return plain("" if age is None else duration(age), "yellow" if is_slow(state) else "")


def _flow(overview: Overview) -> Text:
    seconds = overview.window.total_seconds()
    numbers = sorted(overview.outcomes.items())
    outcomes = ", ".join(with_meaning(outcome, f"{outcome} {number}") for outcome, number in numbers) or "none"
    bound = overview.outcomes.get("bound", 0)
    line = plain(f"decisions of the last {seconds:g} s: {outcomes}; {bound / seconds:.0f} pods/s bound; mirror ")
    age = overview.age(min(overview.watermarks.values(), default=None))
    if age is None:
        return line.append("without a watermark: no watcher has written yet", style="yellow")
    if is_current(age):
        return line.append(f"current (confirmed {duration(age)} ago)")
    return line.append(f"{duration(age)} behind", style="yellow")


def services(overview: Overview) -> Table:
    """A line for each process that answers; then the processes that are gone.

    Versions are shown if they differ, so that the table fits into 80 columns.
    """
    processes = seen(overview.services)
    versions = ("VERSION",) if len({instance.version for instance in overview.services}) > 1 else ()
    table = new_table("WHO", *versions, "CONFIG", "STATE", "SAYS")
    for one, instance in zip(processes, overview.services, strict=True):
        version = (instance.version,) if versions else ()
        says = figures(instance.stats)
        cells = (process_label(one.service, one.name), *version, one.statistics.configuration, activity(one), says)
        table.add_row(*map(plain, cells))
    for each in gone(processes):
        silent = f"gone: silent for {duration(each.seconds)}"
        who = plain(process_label(each.service, short_identity(each.identity)))
        table.add_row(who, *("" for _ in versions), "", plain(silent, "yellow"))
    if not overview.services:
        table.add_row(plain("no service answers", "yellow"))
    return table


def _nodes(overview: Overview, rows: int | None) -> Iterator[RenderableType]:
    chosen = sorted(overview.nodes, key=lambda node: (-node.pods, natural(node.name)))
    shown = chosen if rows is None else chosen[:rows]
    yield nodes_table(overview, shown)
    yield from and_more(len(chosen) - len(shown))


def nodes_table(overview: Overview, nodes: Sequence[NodeLine]) -> Table:
    """A line a node, most pods first; with devices if there are any, with load and with traffic if it is measured."""
    has_usage = any(node.usage_sampled_at for node in overview.nodes)
    has_devices = any(node.devices[1] for node in overview.nodes)
    has_traffic = any(node.sampled_at for node in overview.nodes)
    usage = ("CPU USED", "MEM USED", "AGE") if has_usage else ()
    traffic = ("RECEIVE", "TRANSMIT", "AGE") if has_traffic else ()
    numbers = ("PODS", "CPU REQ", "MEM REQ", *usage, *(["DEVICES"] * has_devices), *traffic)
    table = new_table("NODE", *numbers, numbers=numbers)
    for node in nodes:
        cells = [node.name, str(node.pods), _share(*node.cpu), _share(*node.memory)]
        if has_usage:
            used = _share(node.cpu_used, node.cpu[1]), _share(node.memory_used, node.memory[1])
            cells += [*used, _age(overview, node.usage_sampled_at)]
        if has_devices:
            cells.append(f"{node.devices[0]} of {node.devices[1]}" if node.devices[1] else "")
        if has_traffic:
            cells += [per_second(node.receive), per_second(node.transmit), _age(overview, node.sampled_at)]
        table.add_row(*map(plain, cells))
    return table


def _age(overview: Overview, sampled_at: datetime | None) -> str:
    age = overview.age(sampled_at)
    return "" if age is None else duration(age)


def _share(amount: float | None, allocatable: float) -> str:
    if amount is None:
        return ""
    return f"{100 * amount / allocatable:.0f} %" if allocatable else "-"


def as_json(overview: Overview) -> dict[str, object]:
    """All nodes; ages are in seconds."""
    return {
        "now": overview.now,
        "streams": [_stream_json(state) for state in overview.streams],
        "decisions": {"window_seconds": overview.window.total_seconds(), "outcomes": overview.outcomes},
        "mirror_age_seconds": overview.age(min(overview.watermarks.values(), default=None)),
        "services": overview.services,
        "attention": attention(seen(overview.services)),
        "nodes": [_node_json(overview, node) for node in sorted(overview.nodes, key=lambda node: natural(node.name))],
    }


def _stream_json(state: StreamState) -> dict[str, object]:
    return {
        "stream": state.stream,
        "messages": state.messages,
        "bytes": state.bytes,
        "last_sequence": state.last_sequence,
        "oldest_age_seconds": oldest_age(state),
        "consumers": state.consumers,
    }


def _node_json(overview: Overview, node: NodeLine) -> dict[str, object]:
    return {
        "node": node.name,
        "pods": node.pods,
        "cpu_millicores": {"requested": node.cpu[0], "allocatable": node.cpu[1]},
        "memory_bytes": {"requested": node.memory[0], "allocatable": node.memory[1]},
        "devices": {"in_use": node.devices[0], "number": node.devices[1]},
        "bandwidth": {
            "receive_bytes_per_second": node.receive,
            "transmit_bytes_per_second": node.transmit,
            "age_seconds": overview.age(node.sampled_at),
        },
        "usage": {
            "cpu_millicores": node.cpu_used,
            "memory_bytes": node.memory_used,
            "age_seconds": overview.age(node.usage_sampled_at),
        },
    }
