"""Rows of a Snapshot as plugins see them: all nodes or some, by column, without copying when it is all."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import numpy.typing as npt

from berth.cluster.labels import LabelColumn
from berth.cluster.taintsets import TaintSet

if TYPE_CHECKING:
    from berth.cluster.nodeinfo import NodeInfo
    from berth.cluster.snapshot import Snapshot

Scalar = TypeVar("Scalar", bound=np.generic)
RowIndex = npt.NDArray[np.intp]
Mask = npt.NDArray[np.bool_]
Amount = npt.NDArray[np.float64]


class Nodes:
    """A view over columns for a set of rows. Every array has ``len(nodes)`` elements in one order, to be read only.

    Rows without a node may be among all rows; what is answered for them is not looked at, but must not be an error.
    """

    __slots__ = ("_columns", "_index", "_length", "snapshot")

    def __init__(self, snapshot: Snapshot, rows: RowIndex | None = None) -> None:
        self.snapshot = snapshot
        self._columns = snapshot.columns
        self._index: RowIndex | slice = slice(0, snapshot.size) if rows is None else rows
        self._length = snapshot.size if rows is None else len(rows)

    def __len__(self) -> int:
        return self._length

    @property
    def rows(self) -> RowIndex:
        """The rows of the view in the Snapshot."""
        return np.arange(self._length) if isinstance(self._index, slice) else self._index

    def rows_at(self, positions: RowIndex) -> RowIndex:
        """The rows of some positions in the view."""
        return positions if isinstance(self._index, slice) else self._index[positions]

    @property
    def names(self) -> list[str]:
        """Node names; empty text for a row without a node."""
        names = self.snapshot.rows.names
        return list(names) if isinstance(self._index, slice) else [names[row] for row in self._index.tolist()]

    def infos(self) -> Iterator[NodeInfo | None]:
        """One NodeInfo after another, None for a row without a node: the slow way, for what has no columns."""
        return (self.snapshot.info_of_row(row) for row in self.rows.tolist())

    def take(self, column: npt.NDArray[Scalar]) -> npt.NDArray[Scalar]:
        """The view's part of an array with one element a row of the Snapshot."""
        return column[self._index]

    def allocatable(self, resource: str) -> Amount:
        """What the nodes have to give: millicores for cpu, base units for the rest, 0 for what they lack."""
        return self.take(self._columns.allocatable.get(resource, self._columns.nothing))

    def requested(self, resource: str) -> Amount:
        """What the pods on the nodes ask for, in the same units."""
        return self.take(self._columns.requested.get(resource, self._columns.nothing))

    @property
    def nonzero_cpu(self) -> Amount:
        """Millicores requested as scores count them."""
        return self.take(self._columns.nonzero_cpu)

    @property
    def nonzero_memory(self) -> Amount:
        """Bytes requested as scores count them."""
        return self.take(self._columns.nonzero_memory)

    @property
    def pods(self) -> Amount:
        """How many pods are placed on each node."""
        return self.take(self._columns.pods)

    @property
    def allowed_pods(self) -> Amount:
        """How many pods each node may have."""
        return self.take(self._columns.allowed_pods)

    @property
    def unschedulable(self) -> Mask:
        """Which nodes are cordoned."""
        return self.take(self._columns.unschedulable)

    @property
    def ready(self) -> Mask:
        """Which nodes say that they are ready, or do not say."""
        return self.take(self._columns.ready)

    @property
    def exists(self) -> Mask:
        """Which rows have a node."""
        return self.take(self._columns.exists)

    @property
    def taints(self) -> npt.NDArray[np.int32]:
        """The number of each node's list of taints in ``taint_sets``."""
        return self.take(self._columns.taints)

    @property
    def taint_sets(self) -> list[TaintSet]:
        """Every different list of taints, by number."""
        return self._columns.taint_sets.sets

    def label(self, key: str) -> tuple[npt.NDArray[np.int32], LabelColumn]:
        """The codes of a label on the nodes (ABSENT where they lack it) and the column that explains them."""
        column = self.snapshot.label_column(key)
        return self.take(column.codes), column

    def named(self, name: str) -> Mask:
        """Where the node of this name is."""
        row = self.snapshot.rows.of(name)
        if row is None:
            return np.zeros(self._length, dtype=np.bool_)
        return np.equal(self.rows, row)
