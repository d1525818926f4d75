"""A cluster in a few comparable numbers: spread, fragmentation, bandwidth."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec
import numpy as np

from berth.api.config.networktraffic import EGRESS_ANNOTATION, INGRESS_ANNOTATION, annotated_rate
from berth.api.pod import Pod
from berth.api.resources import CPU, MEMORY
from berth.cluster.nodes import Amount, RowIndex
from berth.cluster.snapshot import Snapshot
from berth.messages.livedata import NodeSample


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    least: float
    mean: float
    most: float
    deviation: float  # standard deviation: 0 if all nodes are alike


class Measures(msgspec.Struct, frozen=True, kw_only=True):
    """A cluster in numbers. Percentages are relative to the node.

    ``room_for``: number of further pods like the largest placed one; ``stranded_cpu_percent``: share of all free CPU on
    nodes without room for it (fragmentation). ``receive`` and ``transmit``: bytes per second of the busiest node;
    ``None`` without samples and annotations.
    """

    nodes: int
    nodes_used: int
    pods: int
    pods_per_node: Spread
    cpu_percent: Spread
    memory_percent: Spread
    room_for: int
    stranded_cpu_percent: float
    receive: float | None
    transmit: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BusiestNodes:
    """Bytes per second of the busiest receiving and transmitting node; ``None`` if unknown."""

    receive: float | None
    transmit: float | None


class Traffic:
    """Traffic of nodes, measured in one cluster, corrected by annotations of pods that are elsewhere in another.

    Without any sample the annotations alone count.
    """

    def __init__(self, measured: Snapshot, samples: Mapping[str, NodeSample]) -> None:
        self._samples = samples
        self._annotated = {name: _annotated(measured, name) for name in (INGRESS_ANNOTATION, EGRESS_ANNOTATION)}

    def of(self, snapshot: Snapshot) -> BusiestNodes:
        received = {node: sample.receive for node, sample in self._samples.items()}
        transmitted = {node: sample.transmit for node, sample in self._samples.items()}
        return BusiestNodes(
            receive=self._most(snapshot, INGRESS_ANNOTATION, received),
            transmit=self._most(snapshot, EGRESS_ANNOTATION, transmitted),
        )

    def _most(self, snapshot: Snapshot, annotation: str, measured: Mapping[str, float | None]) -> float | None:
        here, there = _annotated(snapshot, annotation), self._annotated[annotation]
        if not measured:
            return max(here.values(), default=None)
        known = {node: amount for node, amount in measured.items() if amount is not None and snapshot.has_node(node)}
        moved = (max(0.0, amount + here.get(node, 0.0) - there.get(node, 0.0)) for node, amount in known.items())
        return max(moved, default=None)


def _annotated(snapshot: Snapshot, annotation: str) -> dict[str, float]:
    sums: dict[str, float] = {}
    for row in range(snapshot.size):
        for placed in snapshot.placed_on_row(row):
            rate = annotated_rate(placed.pod, annotation)
            if rate is not None:
                sums[snapshot.rows.names[row]] = sums.get(snapshot.rows.names[row], 0.0) + rate
    return sums


def measures_of(snapshot: Snapshot, largest: Pod | None, busiest: BusiestNodes) -> Measures:
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
        receive=busiest.receive,
        transmit=busiest.transmit,
    )


def _of(snapshot: Snapshot, rows: RowIndex, resource: str) -> Amount:
    return snapshot.columns.allocatable.of(resource)[rows]


def _requested(snapshot: Snapshot, rows: RowIndex, resource: str) -> Amount:
    return snapshot.columns.requested.of(resource)[rows]


def _share(snapshot: Snapshot, rows: RowIndex, resource: str) -> Amount:
    there = _of(snapshot, rows, resource)
    shares: Amount = np.zeros(len(rows))
    np.divide(100 * _requested(snapshot, rows, resource), there, out=shares, where=there > 0)
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
