"""How the whole pipeline stands, for ``berth top``: told to people and to programs. Pure.

``berth top``: queues, lag, services and nodes; live on a terminal, once elsewhere.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter, deque
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated, Final

import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from berth.api.livedata import Bandwidth
from berth.api.resources import CPU, MEMORY
from berth.bus.interface import ServiceInstance, Session, StoredMessage, StreamReader, StreamState
from berth.bus.stages import OUTCOME
from berth.bus.topology import BANDWIDTH, DEAD, DECISIONS, PENDING, RANKED
from berth.cli.exits import finish
from berth.cli.lookup import NatsUrl, Output, OutputFormat, asking
from berth.cli.mirrored import MirrorReader, mirror
from berth.cli.rendering import (
    amount_of_bytes,
    columns,
    duration,
    is_current,
    page,
    per_second,
    plain,
    say_json,
    short_identity,
    show,
)
from berth.cluster.nodes import node_info
from berth.process.exits import Exit

SLOW = timedelta(seconds=5)
"""A message that waits for longer than this is shown in another colour: a pod's way takes milliseconds."""

_DIGITS = re.compile(r"(\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLine:
    """A node: pods, requested and allocatable millicores and bytes, bytes per second and since when they are known."""

    name: str
    pods: int
    cpu: tuple[float, float]
    memory: tuple[float, float]
    receive: float | None = None
    transmit: float | None = None
    sampled_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """Everything at one moment of NATS's clock. ``outcomes`` are those of the last ``window``."""

    now: datetime
    streams: Sequence[StreamState]
    services: Sequence[ServiceInstance]
    watermarks: Mapping[str, datetime]
    outcomes: Mapping[str, int]
    window: timedelta
    nodes: Sequence[NodeLine]

    def age(self, then: datetime | None) -> float | None:
        """Seconds since then; ``None`` for never."""
        return None if then is None else max(0.0, (self.now - then).total_seconds())


def told(overview: Overview, *, rows: int | None) -> Iterator[RenderableType]:
    """For people; ``rows`` is how many nodes there is room for, ``None``: all."""
    yield queues(overview)
    yield _flow(overview)
    yield ""
    yield services(overview)
    yield ""
    yield from _nodes(overview, rows)


def queues(overview: Overview) -> Table:
    """A line a stream: what lies in it, what its consumer has of it, how long the oldest waits."""
    numbers = ("MSGS", "PENDING", "UNACKED", "REDELIVERED", "OLDEST", "SIZE")
    table = columns("STREAM", "CONSUMER", *numbers, numbers=numbers)
    for state in overview.streams:
        size = amount_of_bytes(state.bytes)
        for consumer in state.consumers or (None,):
            held = (
                ("", "", "", "")
                if consumer is None
                else (consumer.name, str(consumer.undelivered), str(consumer.unacknowledged), str(consumer.redelivered))
            )
            cells = (state.stream, held[0], str(state.messages), *held[1:])
            table.add_row(*map(plain, cells), _oldest(overview, state), plain(size))
    return table


def _oldest(overview: Overview, state: StreamState) -> Text:
    age = overview.age(state.first_time)
    if age is None:
        return plain("")
    slow = state.consumers and age > SLOW.total_seconds()
    return plain(duration(age), "yellow" if slow or state.stream == "dead" else "")


def _flow(overview: Overview) -> Text:
    """What was decided lately, and how far the mirror is behind."""
    seconds = overview.window.total_seconds()
    made = ", ".join(f"{outcome} {number}" for outcome, number in sorted(overview.outcomes.items())) or "none"
    bound = overview.outcomes.get("bound", 0)
    line = plain(f"decisions of the last {seconds:g} s: {made} ({bound / seconds:.0f} pods/s); mirror ")
    age = overview.age(min(overview.watermarks.values(), default=None))
    if age is None:
        return line.append("without a watermark: no watcher has written yet", style="yellow")
    if is_current(age):
        return line.append(f"current (confirmed {duration(age)} ago)")
    return line.append(f"{duration(age)} behind", style="yellow")


def services(overview: Overview) -> Table:
    """A line a process that answers, with what it says of itself."""
    table = columns("SERVICE", "WHO", "VERSION", "SAYS")
    for one in overview.services:
        said = ", ".join(f"{name.replace('_', ' ')} {_short(value)}" for name, value in one.stats.items())
        table.add_row(*map(plain, (one.service, short_identity(one.identity), one.version, said)))
    if not overview.services:
        table.add_row(plain("nobody answers", "yellow"))
    return table


def _short(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.1f}"
    return f"{len(value)}" if isinstance(value, Mapping) else str(value)


def _nodes(overview: Overview, rows: int | None) -> Iterator[RenderableType]:
    chosen = sorted(overview.nodes, key=lambda node: (-node.pods, natural(node.name)))
    shown = chosen if rows is None else chosen[:rows]
    yield nodes_table(overview, shown)
    if len(shown) < len(chosen):
        yield plain(f"and {len(chosen) - len(shown)} nodes more, with {shown[-1].pods if shown else 0} pods or fewer")


def nodes_table(overview: Overview, nodes: Sequence[NodeLine]) -> Table:
    """A line a node, those with the most pods first; traffic only where somebody measures it."""
    measured = any(node.sampled_at for node in overview.nodes)
    traffic = ("RECEIVE", "TRANSMIT", "AGE") if measured else ()
    numbers = ("PODS", "CPU", "MEMORY", *traffic)
    table = columns("NODE", *numbers, numbers=numbers)
    for node in nodes:
        age = overview.age(node.sampled_at)
        seen = (per_second(node.receive), per_second(node.transmit), "" if age is None else duration(age))
        cells = (node.name, str(node.pods), _share(*node.cpu), _share(*node.memory), *(seen if measured else ()))
        table.add_row(*map(plain, cells))
    return table


def _share(requested: float, allocatable: float) -> str:
    return f"{100 * requested / allocatable:.0f} %" if allocatable else "-"


def natural(name: str) -> list[tuple[int, str]]:
    """A key by which ``node-9`` comes before ``node-10``."""
    return [(int(part), "") if part.isdigit() else (0, part) for part in _DIGITS.split(name)]


def as_json(overview: Overview) -> dict[str, object]:
    """For programs: every node, ages in seconds."""
    return {
        "now": overview.now,
        "streams": [_stream_json(overview, state) for state in overview.streams],
        "decisions": {"window_seconds": overview.window.total_seconds(), "outcomes": overview.outcomes},
        "mirror_age_seconds": overview.age(min(overview.watermarks.values(), default=None)),
        "services": overview.services,
        "nodes": [_node_json(overview, node) for node in sorted(overview.nodes, key=lambda node: natural(node.name))],
    }


def _stream_json(overview: Overview, state: StreamState) -> dict[str, object]:
    return {
        "stream": state.stream,
        "messages": state.messages,
        "bytes": state.bytes,
        "last_sequence": state.last_sequence,
        "oldest_age_seconds": overview.age(state.first_time),
        "consumers": state.consumers,
    }


def _node_json(overview: Overview, node: NodeLine) -> dict[str, object]:
    return {
        "node": node.name,
        "pods": node.pods,
        "cpu_millicores": {"requested": node.cpu[0], "allocatable": node.cpu[1]},
        "memory_bytes": {"requested": node.memory[0], "allocatable": node.memory[1]},
        "bandwidth": {
            "receive_bytes_per_second": node.receive,
            "transmit_bytes_per_second": node.transmit,
            "age_seconds": overview.age(node.sampled_at),
        },
    }


WINDOW: Final = timedelta(seconds=10)
"""Over which Decisions are counted: long enough for a steady rate, short enough to be read at the start."""

STREAMS: Final = (PENDING, RANKED, DECISIONS, DEAD)

FEWEST_NODES: Final = 3
"""Shown on the smallest terminal too."""


Watch = Annotated[
    bool | None,
    typer.Option("--watch/--once", help="Go on until Ctrl-C, or not; by default on a terminal.", show_default=False),
]

Interval = Annotated[float, typer.Option("--interval", help="Seconds between two looks.", min=0.2)]


def top(
    *, watch: Watch = None, interval: Interval = 2.0, output: Output = OutputFormat.TABLE, nats: NatsUrl = None
) -> None:
    """Show queues, lag, services, nodes with their pods and bandwidth, and dead letters."""
    goes_on = page().is_terminal and output is OutputFormat.TABLE if watch is None else watch
    work = _watch(nats, output, timedelta(seconds=interval)) if goes_on else _once(nats, output)
    finish(work, interrupted=Exit.DONE)


async def _once(nats: str | None, form: OutputFormat) -> None:
    async with _looking(nats) as look:
        overview = await look.look()
    if form is OutputFormat.JSON:
        say_json(as_json(overview))
    else:
        show(*told(overview, rows=None))


async def _watch(nats: str | None, form: OutputFormat, interval: timedelta) -> None:
    async with _looking(nats) as look:
        if form is OutputFormat.JSON or not page().is_terminal:
            while True:
                _print(await look.look(), form)
                await asyncio.sleep(interval.total_seconds())
        console = page()
        with Live(console=console, screen=True, auto_refresh=False) as live:
            while True:
                overview = await look.look()
                beside = len(console.render_lines(Group(*told(overview, rows=0))))
                rows = max(FEWEST_NODES, console.height - beside)
                live.update(Group(*told(overview, rows=rows)), refresh=True)
                await asyncio.sleep(interval.total_seconds())


def _print(overview: Overview, form: OutputFormat) -> None:
    if form is OutputFormat.JSON:
        say_json(as_json(overview), indent=0)
    else:
        show(*told(overview, rows=None), "")


@asynccontextmanager
async def _looking(nats: str | None) -> AsyncIterator[Look]:
    async with (
        asking(nats, name="top") as session,
        mirror(session, also=(BANDWIDTH,)) as kept,
        session.read_stream(DECISIONS, since=WINDOW) as following,
    ):
        look = Look(session, kept)
        counting = asyncio.create_task(look.count(following))
        await following.caught_up.wait()
        try:
            yield look
        finally:
            counting.cancel()
            await asyncio.gather(counting, return_exceptions=True)


class Look:
    """Looks at everything, again and again, on one session."""

    def __init__(self, session: Session, kept: MirrorReader) -> None:
        self._session = session
        self._mirror = kept
        self._decided: deque[tuple[datetime, str]] = deque()

    async def count(self, following: StreamReader) -> None:
        """Remember what was decided lately."""
        async for batch in following.batches():
            self._decided.extend((stored.time, outcome_of(stored)) for stored in batch)
            self._forget(self._decided[-1][0] if self._decided else None)

    def _forget(self, now: datetime | None) -> None:
        while now is not None and self._decided and now - self._decided[0][0] > WINDOW:
            self._decided.popleft()

    async def look(self) -> Overview:
        """How things stand now. Raises as :meth:`Session.state`."""
        streams = [await self._session.state(stream) for stream in STREAMS]
        now = streams[-1].now
        self._forget(now)
        return Overview(
            now=now,
            streams=streams,
            services=await self._session.services(),
            watermarks=dict(self._mirror.watermarks),
            outcomes=Counter(outcome for _, outcome in self._decided),
            window=WINDOW,
            nodes=list(node_lines(self._mirror)),
        )


def outcome_of(stored: StoredMessage) -> str:
    """What a Decision's header says, so that its payload need not be read."""
    return stored.headers.get(OUTCOME, "unknown")


def node_lines(kept: MirrorReader) -> list[NodeLine]:
    """Every node of the mirror with what is known of it."""
    return [line for name in kept.snapshot.node_names() if (line := _node_line(kept, name)) is not None]


def _node_line(kept: MirrorReader, name: str) -> NodeLine | None:
    info = node_info(kept.snapshot, name)
    if info is None:
        return None
    sample = newest(kept.bandwidth.get(name, {}).values())
    return NodeLine(
        name=name,
        pods=info.pods,
        cpu=(info.requested(CPU), info.allocatable(CPU)),
        memory=(info.requested(MEMORY), info.allocatable(MEMORY)),
        receive=sample.receive if sample else None,
        transmit=sample.transmit if sample else None,
        sampled_at=sample.sampled_at if sample else None,
    )


def newest(samples: Iterable[Bandwidth]) -> Bandwidth | None:
    """Of several questions about a node, the answer that was measured last."""
    return max(samples, key=lambda sample: sample.sampled_at, default=None)
