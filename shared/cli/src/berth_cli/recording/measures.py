"""A cluster in a few comparable numbers: spread, fragmentation, measured load."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import msgspec
import numpy as np

from berth.api.config.networktraffic import EGRESS_ANNOTATION, INGRESS_ANNOTATION, annotated_rate
from berth.api.config.nodeload.args import DEFAULT_SCALING_FACTORS
from berth.api.config.nodeload.queries import MEASURED, MeasuredResource, by_resource
from berth.api.pod import Pod
from berth.api.resources import CPU, MEMORY
from berth.cluster.nodes import Amount, RowIndex
from berth.cluster.pods import PlacedPod
from berth.cluster.snapshot import Snapshot
from berth.messages.livedata import NodeSample
from berth.plugins.nodeload.estimates import ClassEstimates, scaled


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    least: float
    mean: float
    most: float
    deviation: float  # standard deviation: 0 if all nodes are alike


class Measures(msgspec.Struct, frozen=True, kw_only=True):
    """A cluster in numbers. Percentages are relative to the node.

    ``room_for``: number of further pods like the largest placed one; ``stranded_cpu_percent``: share of all free CPU on
    nodes without room for it (fragmentation). ``cpu_used_percent``, ``memory_used_percent``: means that were measured
    on the nodes with samples, ``None`` without any. ``receive`` and ``transmit``: bytes per second of the busiest node;
    ``None`` without samples and annotations.
    """

    nodes: int
    nodes_used: int
    pods: int
    pods_per_node: Spread
    cpu_percent: Spread
    memory_percent: Spread
    cpu_used_percent: Spread | None
    memory_used_percent: Spread | None
    room_for: int
    stranded_cpu_percent: float
    receive: float | None
    transmit: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LastSamples:
    """By node, the last samples of its traffic and of its use of CPU and memory, each of one query."""

    traffic: Mapping[str, NodeSample] = field(default_factory=dict)
    usage: Mapping[str, NodeSample] = field(default_factory=dict)


class MeasuredLoad:
    """Load of nodes, measured in one cluster, corrected by pods that are elsewhere in another.

    They count by their bandwidth annotations, which alone count without any sample, and NodeLoad's default estimates.
    """

    def __init__(self, measured: Snapshot, samples: LastSamples) -> None:
        self._measured = measured
        self._samples = samples
        self._estimates = ClassEstimates(scaled(by_resource(DEFAULT_SCALING_FACTORS)))

    def received(self, snapshot: Snapshot) -> float | None:
        """Bytes per second of the busiest node; ``None`` if unknown."""
        return self._most(snapshot, INGRESS_ANNOTATION, {n: each.receive for n, each in self._samples.traffic.items()})

    def transmitted(self, snapshot: Snapshot) -> float | None:
        return self._most(snapshot, EGRESS_ANNOTATION, {n: each.transmit for n, each in self._samples.traffic.items()})

    def used(self, snapshot: Snapshot, resource: MeasuredResource) -> dict[str, float]:
        """By node with a sample, millicores or bytes."""
        usages = {node: getattr(sample, resource) for node, sample in self._samples.usage.items()}
        means = {node: None if usage is None else usage.average for node, usage in usages.items()}
        place = MEASURED.index(resource)
        return self._corrected(snapshot, means, lambda placed: self._estimates.of_placed(placed)[place])

    def _most(self, snapshot: Snapshot, annotation: str, measured: Mapping[str, float | None]) -> float | None:
        def rate(placed: PlacedPod) -> float | None:
            return annotated_rate(placed.pod, annotation)

        amounts = self._corrected(snapshot, measured, rate) if measured else _sums(snapshot, rate)
        return max(amounts.values(), default=None)

    def _corrected(
        self,
        snapshot: Snapshot,
        measured: Mapping[str, float | None],
        amount_of: Callable[[PlacedPod], float | None],
    ) -> dict[str, float]:
        here, there = _sums(snapshot, amount_of), _sums(self._measured, amount_of)
        known = {node: amount for node, amount in measured.items() if amount is not None and snapshot.has_node(node)}
        return {node: max(0.0, at + here.get(node, 0.0) - there.get(node, 0.0)) for node, at in known.items()}


def _sums(snapshot: Snapshot, amount_of: Callable[[PlacedPod], float | None]) -> dict[str, float]:
    sums: dict[str, float] = {}
    for row in range(snapshot.size):
        for placed in snapshot.placed_on_row(row):
            if (amount := amount_of(placed)) is not None:
                sums[snapshot.rows.names[row]] = sums.get(snapshot.rows.names[row], 0.0) + amount
    return sums


def measures_of(snapshot: Snapshot, largest: Pod | None, load: MeasuredLoad) -> Measures:
    rows = np.flatnonzero(snapshot.columns.exists[: snapshot.size])
    pods = snapshot.columns.pods[rows]
    free = {name: _of(snapshot, rows, name) - _requested(snapshot, rows, name) for name in (CPU, MEMORY)}
    room = _room(snapshot, rows, largest)
    free_cpu = np.maximum(free[CPU], 0)
    return Measures(
        nodes=len(rows),
        nodes_used=int(np.count_nonzero(pods)),
        pods=int(pods.sum()),
        pods_per_node=_spread(pods),
        cpu_percent=_spread(_share(snapshot, rows, CPU)),
        memory_percent=_spread(_share(snapshot, rows, MEMORY)),
        room_for=int(room.sum()),
        stranded_cpu_percent=_rounded(100 * free_cpu[room < 1].sum() / max(1.0, free_cpu.sum())),
        cpu_used_percent=_used(snapshot, load, CPU),
        memory_used_percent=_used(snapshot, load, MEMORY),
        receive=load.received(snapshot),
        transmit=load.transmitted(snapshot),
    )


def _used(snapshot: Snapshot, load: MeasuredLoad, resource: MeasuredResource) -> Spread | None:
    used = load.used(snapshot, resource)
    rows = np.fromiter((row for node in used if (row := snapshot.rows.of(node)) is not None), dtype=np.intp)
    return _spread(_percent(np.array(list(used.values())), _of(snapshot, rows, resource))) if used else None


def _of(snapshot: Snapshot, rows: RowIndex, resource: str) -> Amount:
    return snapshot.columns.allocatable.of(resource)[rows]


def _requested(snapshot: Snapshot, rows: RowIndex, resource: str) -> Amount:
    return snapshot.columns.requested.of(resource)[rows]


def _share(snapshot: Snapshot, rows: RowIndex, resource: str) -> Amount:
    return _percent(_requested(snapshot, rows, resource), _of(snapshot, rows, resource))


def _percent(amounts: Amount, there: Amount) -> Amount:
    shares: Amount = np.zeros(len(there))
    np.divide(100 * amounts, there, out=shares, where=there > 0)
    return shares


def _room(snapshot: Snapshot, rows: RowIndex, pod: Pod | None) -> Amount:
    """How many pods with these requests fit on each node, by its sums alone."""
    columns = snapshot.columns
    room: Amount = np.maximum(columns.allowed_pods[rows] - columns.pods[rows], 0)
    room[columns.unschedulable[rows]] = 0
    for name, amount in (snapshot.class_of(pod).requests.amounts if pod is not None else {}).items():
        if amount > 0:
            free = np.maximum(_of(snapshot, rows, name) - _requested(snapshot, rows, name), 0)
            room = np.minimum(room, free // amount)
    return room


def _spread(amounts: Amount) -> Spread:
    if not len(amounts):
        return Spread(least=0, mean=0, most=0, deviation=0)
    return Spread(
        least=_rounded(amounts.min()),
        mean=_rounded(amounts.mean()),
        most=_rounded(amounts.max()),
        deviation=_rounded(amounts.std()),
    )


def _rounded(amount: float) -> float:
    return round(float(amount), 2)
