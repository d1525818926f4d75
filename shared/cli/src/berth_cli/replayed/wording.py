"""The differences of a run from its recording, and the measures of both, as text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Iterator, Sequence
from typing import Final

from berth_cli.recording.history import Fate, PodFate
from berth_cli.recording.measures import Measures, Spread
from berth_cli.recording.whatif import ComparedPod
from berth_cli.rendering import per_second
from berth_cli.simulate.inputs import counted

MEASURES: Final = (
    "pods on nodes",
    "nodes with pods",
    "pods a node: least, mean, most",
    "deviation of pods",
    "CPU requested: least, mean, most",
    "memory requested: least, mean, most",
    "CPU used: least, mean, most",
    "memory used: least, mean, most",
    "room for more pods like the largest",
    "free CPU where it does not fit",
    "busiest node receives",
    "busiest node transmits",
)


def measure_cells(measures: Measures) -> tuple[str, ...]:
    return (
        f"{measures.pods}",
        f"{measures.nodes_used} of {measures.nodes}",
        _three(measures.pods_per_node),
        f"{measures.pods_per_node.deviation:g}",
        _three(measures.cpu_percent, " %"),
        _three(measures.memory_percent, " %"),
        _three(measures.cpu_used_percent, " %"),
        _three(measures.memory_used_percent, " %"),
        f"{measures.room_for}",
        f"{measures.stranded_cpu_percent:g} %",
        per_second(measures.receive) or "unknown",
        per_second(measures.transmit) or "unknown",
    )


def _three(spread: Spread | None, unit: str = "") -> str:
    if spread is None:
        return "unknown"
    return f"{spread.least:g}, {spread.mean:g}, {spread.most:g}{unit}"


def not_placed_again(left_out: int, recorded: Iterable[str], other: Container[str], groups: int) -> Iterator[str]:
    """Which pods a run with the profiles ``other`` leaves where they were. ``left_out``: those without a profile."""
    if left_out:
        missing = ", ".join(name for name in recorded if name not in other) or "other schedulers"
        pods = counted(left_out, "pod")
        yield f"the configuration has no profile for {pods} of {missing}: what was recorded of them stays"
    if groups:
        yield f"groups are not planned again: the pods of {counted(groups, 'group')} stay where they were recorded"


def fate_text(fate: PodFate) -> str:
    if fate.fate is Fate.PLACED:
        return fate.node
    return f"evicted from {fate.node}" if fate.fate is Fate.EVICTED and fate.node else str(fate.fate)


def kind_of(each: ComparedPod) -> str:
    if each.is_equal:
        return "as recorded"
    if each.recorded.fate == each.other.fate:
        return "elsewhere" if each.other.fate is Fate.PLACED else f"{each.other.fate} elsewhere"
    return f"{_BECAME[each.other.fate]} instead of {_BECAME[each.recorded.fate]}"


_BECAME: Final = {Fate.PLACED: "placed", Fate.WAITS: "waiting", Fate.EVICTED: "evicted"}


def counts_by_kind(pods: Sequence[ComparedPod]) -> Counter[str]:
    return Counter(map(kind_of, pods))


def summary_of(pods: Sequence[ComparedPod]) -> str:
    return ", ".join(f"{number} {kind}" for kind, number in counts_by_kind(pods).most_common()) or "no pods"
