"""The differences of a run from its recording, and the measures of both, as text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from berth_cli.recording.history import Fate, PodFate
from berth_cli.recording.measures import Measures, Spread
from berth_cli.recording.whatif import ComparedPod
from berth_cli.rendering import per_second

MEASURES: Final = (
    "pods on nodes",
    "nodes with pods",
    "pods a node: least, mean, most",
    "deviation of pods",
    "CPU requested: least, mean, most",
    "memory requested: least, mean, most",
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
        f"{measures.room_for}",
        f"{measures.stranded_cpu_percent:g} %",
        per_second(measures.receive) or "unknown",
        per_second(measures.transmit) or "unknown",
    )


def _three(spread: Spread, unit: str = "") -> str:
    return f"{spread.least:g}, {spread.mean:g}, {spread.most:g}{unit}"


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
