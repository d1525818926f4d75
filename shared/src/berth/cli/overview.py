"""How the whole pipeline stands, for ``berth top``: told to people and to programs. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from berth.bus.port import Present, StreamState
from berth.cli.console import columns, plain
from berth.cli.shown import amount_of_bytes, duration, is_current, per_second, short_identity

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
    services: Sequence[Present]
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
