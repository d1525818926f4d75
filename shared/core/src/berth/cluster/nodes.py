"""Nodes as plugins read them: one by one (NodeInfo), or rows of the Snapshot by column (Nodes).

A view of all rows does not copy columns. NodesWithoutPods shows sums as if some pods were removed; NodesWithAnother and
NodeInfoWithAnother show a node as if one or several more pods like the incoming one were on it.
RejectedNodes are those that one filter rejects.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from berth.api.node import Node, first_untolerated
from berth.api.pod import Pod, Toleration
from berth.api.resources import CPU, LARGE, MEMORY, counted
from berth.cluster.columns import ALLOCATABLE, NONZERO, REQUESTED, AmountColumns, FeatureSet, LabelColumn, TaintSet
from berth.cluster.pods import PlacedPod
from berth.cluster.snapshot import Snapshot
from berth.cluster.topologycounts import LabelGroup

Scalar = TypeVar("Scalar", bound=np.generic)

RowIndex = npt.NDArray[np.intp]

Mask = npt.NDArray[np.bool_]

Amount = npt.NDArray[np.float64]


_NOWHERE: Final[RowIndex] = np.zeros(0, dtype=np.intp)


class NodeInfo:
    """One node: a row of the Snapshot. Shows the present state while the node exists; do not keep it."""

    __slots__ = ("_columns", "node", "row", "snapshot")

    def __init__(self, snapshot: Snapshot, row: int, node: Node) -> None:
        self.snapshot = snapshot
        self.row = row
        self.node = node
        self._columns = snapshot.columns

    @property
    def name(self) -> str:
        return self.node.metadata.name

    @property
    def others(self) -> int:
        """How many pods like the incoming one it shows beside those that are there."""
        return 0

    @property
    def labels(self) -> Mapping[str, str]:
        return self.node.metadata.labels or {}

    @property
    def taints(self) -> TaintSet:
        return tuple(self.node.spec.taints or ())

    @property
    def unschedulable(self) -> bool:
        return self.node.spec.unschedulable

    @property
    def pods(self) -> int:
        return int(self._columns.pods[self.row])

    @property
    def allowed_pods(self) -> int:
        return int(self._columns.allowed_pods[self.row])

    @property
    def nonzero_cpu(self) -> int:
        """Requested millicores, with the defaults that scores use."""
        return self._exact(NONZERO, CPU, self._columns.nonzero_cpu.item(self.row))

    @property
    def nonzero_memory(self) -> int:
        """Requested bytes, with the defaults that scores use."""
        return self._exact(NONZERO, MEMORY, self._columns.nonzero_memory.item(self.row))

    def allocatable(self, resource: str) -> int:
        """The allocatable amount: millicores for cpu, base units otherwise, 0 for a resource that the node lacks."""
        return self._amount(ALLOCATABLE, resource, self._columns.allocatable)

    def requested(self, resource: str) -> int:
        """The requests of its pods, in the same units."""
        return self._amount(REQUESTED, resource, self._columns.requested)

    def _amount(self, table: str, resource: str, amounts: AmountColumns) -> int:
        column = amounts.always.get(resource)  # as `item`, without calling it: plugins read cpu and memory of each node
        rounded = amounts.item(resource, self.row) if column is None else column.item(self.row)
        return self._exact(table, resource, rounded)

    def _exact(self, table: str, resource: str, rounded: float) -> int:
        """The amount of the resource in a table, whose column has it ``rounded``."""
        amount = int(rounded)
        return amount if amount < LARGE else self._columns.large[self.row][table, resource]

    def placed(self) -> Collection[PlacedPod]:
        return self.snapshot.placed_on_row(self.row)


def node_info(snapshot: Snapshot, name: str) -> NodeInfo | None:
    row = snapshot.rows.of(name)
    return None if row is None else info_of_row(snapshot, row)


def info_of_row(snapshot: Snapshot, row: int) -> NodeInfo | None:
    """The node of a row, or None for a row without a node."""
    node = snapshot.node_at(row)
    return None if node is None else NodeInfo(snapshot, row, node)


class Nodes:
    """A read-only view over columns for a set of rows. Every array has ``size`` elements, ``len(nodes)``, in one order.

    The rows may include rows without a node; results for these are ignored but must not raise.
    """

    __slots__ = ("_columns", "_index", "size", "snapshot")

    def __init__(self, snapshot: Snapshot, rows: RowIndex | None = None) -> None:
        self.snapshot = snapshot
        self._columns = snapshot.columns
        self._index: RowIndex | slice = slice(0, snapshot.size) if rows is None else rows
        self.size = snapshot.size if rows is None else len(rows)

    def __len__(self) -> int:
        return self.size

    @property
    def others(self) -> Amount | int:
        """How many pods like the incoming one it shows beside those that are there: a number, or float64[nodes]."""
        return 0

    @property
    def rows(self) -> RowIndex:
        return np.arange(self.size) if isinstance(self._index, slice) else self._index

    def rows_at(self, positions: RowIndex) -> RowIndex:
        return positions if isinstance(self._index, slice) else self._index[positions]

    def position_of(self, row: int) -> int | None:
        """The position of a row in the view, whose rows ascend; None without one."""
        if isinstance(self._index, slice):
            return row if row < self.size else None
        position = int(np.searchsorted(self._index, row))
        return position if position < self.size and self._index[position] == row else None

    def are_same_rows(self, other: Nodes) -> bool:
        """Whether both views have the same rows in the same order."""
        if isinstance(self._index, slice) or isinstance(other._index, slice):
            both = isinstance(self._index, slice) and isinstance(other._index, slice)
            return both and self.size == other.size
        return np.array_equal(self._index, other._index)

    @property
    def names(self) -> list[str]:
        """Node names by row; empty text for a row without a node."""
        names = self.snapshot.rows.names
        return list(names) if isinstance(self._index, slice) else [names[row] for row in self._index.tolist()]

    def infos(self) -> Iterator[NodeInfo | None]:
        """One NodeInfo per row, None for a row without a node: slow, for data without columns."""
        return self.infos_at(np.arange(self.size))

    def infos_at(self, positions: RowIndex) -> Iterator[NodeInfo | None]:
        """The same for some positions of the view."""
        return (info_of_row(self.snapshot, row) for row in self.rows_at(positions).tolist())

    def with_large_amounts(self) -> RowIndex:
        """The positions where columns are not exact.

        Elsewhere they are for every pod: one that requests a LARGE amount exceeds any other, however it is rounded.
        """
        large = self._columns.large
        return np.flatnonzero(np.isin(self.rows, list(large))) if large else _NOWHERE

    def take(self, column: npt.NDArray[Scalar]) -> npt.NDArray[Scalar]:
        """The view's part of an array with one element per row of the Snapshot."""
        return column[self._index]

    def allocatable(self, resource: str) -> Amount:
        """Allocatable amounts: millicores for cpu, base units otherwise, 0 for a resource that a node lacks."""
        return self._amounts(self._columns.allocatable, resource)

    def requested(self, resource: str) -> Amount:
        """The requests of the pods on each node, in the same units."""
        return self._amounts(self._columns.requested, resource)

    def _amounts(self, amounts: AmountColumns, resource: str) -> Amount:
        column = amounts.always.get(resource)
        return (amounts.of(resource) if column is None else column)[self._index]

    @property
    def nonzero_cpu(self) -> Amount:
        """Requested millicores, with the defaults that scores use."""
        return self.take(self._columns.nonzero_cpu)

    @property
    def nonzero_memory(self) -> Amount:
        """Requested bytes, with the defaults that scores use."""
        return self.take(self._columns.nonzero_memory)

    @property
    def pods(self) -> Amount:
        return self.take(self._columns.pods)

    @property
    def allowed_pods(self) -> Amount:
        return self.take(self._columns.allowed_pods)

    @property
    def unschedulable(self) -> Mask:
        return self.take(self._columns.unschedulable)

    @property
    def ready(self) -> Mask:
        """Nodes whose condition Ready is True or absent."""
        return self.take(self._columns.ready)

    @property
    def exists(self) -> Mask:
        return self.take(self._columns.exists)

    @property
    def taints(self) -> npt.NDArray[np.int32]:
        """Each node's list of taints, as an index into ``taint_sets``."""
        return self.take(self._columns.taints)

    @property
    def taint_sets(self) -> list[TaintSet]:
        """Every distinct list of taints, by index."""
        return self._columns.taint_sets.values

    def by_taints(self, value_of: Callable[[TaintSet], int]) -> npt.NDArray[np.int64]:
        """int64[nodes]: ``value_of`` each node's taints, 0 without taints; called once per distinct list of taints."""
        numbers, sets = self.taints, self.taint_sets
        if len(numbers) < len(sets):
            sets, numbers = [sets[number] for number in numbers.tolist()], np.arange(len(numbers), dtype=np.int32)
        return np.array([value_of(taints) if taints else 0 for taints in sets], dtype=np.int64)[numbers]

    def untolerated(self, tolerations: Sequence[Toleration]) -> Mask:
        """Nodes with a NoSchedule or NoExecute taint that no toleration matches."""
        return self.by_taints(lambda taints: first_untolerated(taints, tolerations) is not None).astype(np.bool_)

    @property
    def declared_features(self) -> npt.NDArray[np.int32]:
        """Each node's declared features, as an index into ``feature_sets``."""
        return self.take(self._columns.declared_features)

    @property
    def feature_sets(self) -> list[FeatureSet]:
        """Every distinct set of declared features, by index."""
        return self._columns.feature_sets.values

    def label(self, key: str) -> tuple[npt.NDArray[np.int32], LabelColumn]:
        """The label's codes (ABSENT for nodes without it) and the column that decodes them."""
        column = self.snapshot.label_column(key)
        return self.take(column.codes), column

    def named(self, name: str) -> Mask:
        row = self.snapshot.rows.of(name)
        if row is None:
            return np.zeros(self.size, dtype=np.bool_)
        return np.equal(self.rows, row)


@dataclass(frozen=True, slots=True)
class RemovedPods:
    """Pods removed from each node in a dry run: float64[nodes], their number and the sums of their requests.

    ``requested``: by resource, computed on call. ``count``: how many of them count; its argument gives how often each
    pod of a group counts.
    """

    pods: Amount
    requested: Callable[[str], Amount]
    count: Callable[[Callable[[LabelGroup], int]], Amount]


class NodesWithoutPods(Nodes):
    """Nodes whose sums exclude removed pods; all other data about pods still includes them."""

    __slots__ = ("_removed",)

    def __init__(self, snapshot: Snapshot, rows: RowIndex, removed: RemovedPods) -> None:
        super().__init__(snapshot, rows)
        self._removed = removed

    def infos_at(self, positions: RowIndex) -> Iterator[NodeInfo | None]:
        """``None`` for each: the remaining pods are known as sums only."""
        return (None for _ in positions)

    @property
    def pods(self) -> Amount:
        return super().pods - self._removed.pods

    def requested(self, resource: str) -> Amount:
        return super().requested(resource) - self._removed.requested(resource)


class RejectedNodes(Nodes):
    """The nodes that one filter rejects, in the order of their names."""

    __slots__ = ("_others",)

    def __init__(self, snapshot: Snapshot, rows: RowIndex, others: Mapping[str, Mask]) -> None:
        super().__init__(snapshot, rows)
        self._others = others

    @property
    def alone(self) -> Mask:
        """Which of them no other filter rejects."""
        alone: Mask = np.ones(self.size, dtype=np.bool_)
        for mask in self._others.values():
            alone &= ~mask
        return alone

    def rejected_by(self, plugin: str) -> Mask:
        """Which of them another filter rejects too."""
        return self._others.get(plugin, np.zeros(self.size, dtype=np.bool_))


class AnotherPod:
    """One more pod like the incoming one: same class and labels, its own uid."""

    def __init__(self, pod: Pod, snapshot: Snapshot) -> None:
        self._like = pod
        self._snapshot = snapshot
        self.pod_class = snapshot.class_of(pod)
        self.requests = self.pod_class.requests
        self._counted = counted(self.requests.amounts)

    @cached_property
    def pod(self) -> Pod:
        metadata = msgspec.structs.replace(self._like.metadata, uid=ANOTHER_UID)
        return msgspec.structs.replace(self._like, metadata=metadata)

    def requested(self, resource: str) -> int:
        """The pod's requests, including the effect on ``requested``."""
        return self._counted.get(resource, 0)

    def room_on(self, info: NodeInfo) -> int:
        """How many of them fit the free resources of a node, with requests as scores count them."""
        requests = self.requests
        room = [(info.allocatable(name) - info.requested(name)) // amount for name, amount in self._other_amounts]
        if requests.nonzero_cpu > 0:
            room.append((info.allocatable(CPU) - info.nonzero_cpu) // requests.nonzero_cpu)
        if requests.nonzero_memory > 0:
            room.append((info.allocatable(MEMORY) - info.nonzero_memory) // requests.nonzero_memory)
        return min(room, default=0)

    def room_on_each(self, nodes: Nodes) -> Amount:
        """The same per node: float64[nodes], whole numbers."""
        requests = self.requests
        room = [(nodes.allocatable(name) - nodes.requested(name)) // amount for name, amount in self._other_amounts]
        if requests.nonzero_cpu > 0:
            room.append((nodes.allocatable(CPU) - nodes.nonzero_cpu) // requests.nonzero_cpu)
        if requests.nonzero_memory > 0:
            room.append((nodes.allocatable(MEMORY) - nodes.nonzero_memory) // requests.nonzero_memory)
        return np.minimum.reduce(room) if room else np.zeros(nodes.size)

    @cached_property
    def _other_amounts(self) -> list[tuple[str, int]]:
        # Its requests without cpu and memory, which scores never count lower than requested.
        return [(name, amount) for name, amount in self._counted.items() if name not in (CPU, MEMORY) and amount > 0]

    def on_row(self, row: int) -> PlacedPod:
        """The pod as if assumed on this row."""
        return PlacedPod(pod=self.pod, row=row, pod_class=self.pod_class, group=self._snapshot.groups.of(self.pod))


# Cannot be a uid of the API server.
ANOTHER_UID: Final = "another"


class NodeInfoWithAnother(NodeInfo):
    __slots__ = ("_another", "_count")

    def __init__(self, snapshot: Snapshot, row: int, node: Node, another: AnotherPod, count: int = 1) -> None:
        super().__init__(snapshot, row, node)
        self._another = another
        self._count = count

    @property
    def others(self) -> int:
        return self._count

    @property
    def pods(self) -> int:
        return super().pods + self._count

    @property
    def nonzero_cpu(self) -> int:
        return super().nonzero_cpu + self._count * self._another.requests.nonzero_cpu

    @property
    def nonzero_memory(self) -> int:
        return super().nonzero_memory + self._count * self._another.requests.nonzero_memory

    def requested(self, resource: str) -> int:
        return super().requested(resource) + self._count * self._another.requested(resource)

    def placed(self) -> Collection[PlacedPod]:
        return [*super().placed(), *[self._another.on_row(self.row)] * self._count]


class NodesWithAnother(Nodes):
    """Nodes as if ``counts`` more pods were on each: their sums, and each node of ``infos``."""

    __slots__ = ("_another", "_counts")

    def __init__(
        self, snapshot: Snapshot, rows: RowIndex | None, another: AnotherPod, counts: Amount | None = None
    ) -> None:
        super().__init__(snapshot, rows)
        self._another = another
        self._counts: Amount | int = 1 if counts is None else counts

    @property
    def others(self) -> Amount | int:
        return self._counts

    def infos_at(self, positions: RowIndex) -> Iterator[NodeInfo | None]:
        counts = [1] * len(positions) if isinstance(self._counts, int) else self._counts[positions].tolist()
        return (
            None
            if (node := self.snapshot.node_at(row)) is None
            else NodeInfoWithAnother(self.snapshot, row, node, self._another, int(count))
            for row, count in zip(self.rows_at(positions).tolist(), counts, strict=True)
        )

    def requested(self, resource: str) -> Amount:
        return super().requested(resource) + self._counts * self._another.requested(resource)

    @property
    def nonzero_cpu(self) -> Amount:
        return super().nonzero_cpu + self._counts * self._another.requests.nonzero_cpu

    @property
    def nonzero_memory(self) -> Amount:
        return super().nonzero_memory + self._counts * self._another.requests.nonzero_memory

    @property
    def pods(self) -> Amount:
        return super().pods + self._counts
