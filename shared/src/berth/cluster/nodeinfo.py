"""One node as a plugin sees it that looks at nodes one by one."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from berth.api.node import Node
from berth.cluster.placement import Placed
from berth.cluster.taintsets import TaintSet

if TYPE_CHECKING:
    from berth.cluster.snapshot import Snapshot


class NodeInfo:
    """A row of the Snapshot. It shows the present state as long as the node is there; it is not to be kept."""

    __slots__ = ("_columns", "node", "row", "snapshot")

    def __init__(self, snapshot: Snapshot, row: int, node: Node) -> None:
        self.snapshot = snapshot
        self.row = row
        self.node = node
        self._columns = snapshot.columns

    @property
    def name(self) -> str:
        """The node's name."""
        return self.node.metadata.name

    @property
    def labels(self) -> Mapping[str, str]:
        """The node's labels."""
        return self.node.metadata.labels or {}

    @property
    def taints(self) -> TaintSet:
        """The node's taints."""
        return tuple(self.node.spec.taints or ())

    @property
    def unschedulable(self) -> bool:
        """Whether the node is cordoned."""
        return self.node.spec.unschedulable

    @property
    def pods(self) -> int:
        """How many pods are placed on it."""
        return int(self._columns.pods[self.row])

    @property
    def allowed_pods(self) -> int:
        """How many pods it may have."""
        return int(self._columns.allowed_pods[self.row])

    @property
    def nonzero_cpu(self) -> int:
        """Millicores requested as scores count them."""
        return int(self._columns.nonzero_cpu[self.row])

    @property
    def nonzero_memory(self) -> int:
        """Bytes requested as scores count them."""
        return int(self._columns.nonzero_memory[self.row])

    def allocatable(self, resource: str) -> int:
        """What it has to give: millicores for cpu, base units for the rest, 0 for what it lacks."""
        column = self._columns.allocatable.get(resource)
        return int(column[self.row]) if column is not None else 0

    def requested(self, resource: str) -> int:
        """What the pods on it ask for, in the same units."""
        column = self._columns.requested.get(resource)
        return int(column[self.row]) if column is not None else 0

    def placed(self) -> Collection[Placed]:
        """The pods on it."""
        return self.snapshot.placed_on_row(self.row)
