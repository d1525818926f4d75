"""The pools that each node sees, and a table of the devices in them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from berth.cluster.devices.pools import DevicePools, NodePool
from berth.cluster.nodes import RowIndex
from berth.cluster.snapshot import Snapshot

# In place of devices: at the end of a row of the table, and alone in the row of a node that is not in it.
NO_DEVICE: Final = -1
NOT_PLAIN: Final = -2
_AT_ONCE: Final = 256  # nodes read between two looks at the time: two milliseconds
_MOST_DEVICES: Final = 64  # of a node in the table, which has four bytes for each device of the largest node


class NodeViews:
    """What the nodes of a Snapshot see, by row; read again where nodes or slices changed."""

    def __init__(self, snapshot: Snapshot, pools: DevicePools) -> None:
        self._snapshot = snapshot
        self._pools = pools
        self._versions = (-1, -1, -1, -1)
        self._of_rows: dict[int, tuple[object, tuple[NodePool, ...]]] = {}  # with the node as it was read
        self._numbers: npt.NDArray[np.int32] = np.zeros((0, 0), dtype=np.int32)
        self._is_read: npt.NDArray[np.bool_] = np.zeros(0, dtype=np.bool_)  # whether the row of the table is known

    def of(self, row: int) -> tuple[NodePool, ...]:
        """The pools of a node in the order of search."""
        self._forget_changed()
        return self._views_of(row)

    def read(self, rows: RowIndex, may_continue: Callable[[], bool]) -> bool:
        """Read nodes into the table while it may continue; returns whether all of these are in it."""
        self._forget_changed()
        unread = rows[~self._is_read[rows]]
        for begin in range(0, len(unread), _AT_ONCE):
            if begin and not may_continue():
                return False
            self._read(unread[begin : begin + _AT_ONCE])
        return True

    def numbers(self, rows: RowIndex) -> npt.NDArray[np.int32]:
        """int32[rows, most devices]: each node's devices by number, in the order of search, or NOT_PLAIN."""
        self.read(rows, lambda: True)
        return self._numbers[rows]

    def _views_of(self, row: int) -> tuple[NodePool, ...]:
        known = self._of_rows.get(row)
        if known is None:
            node = self._snapshot.node_at(row)
            known = self._of_rows[row] = node, () if node is None else tuple(self._pools.seen_from(node))
        return known[1]

    def _read(self, rows: RowIndex) -> None:
        read = [_numbers_of(self._views_of(row)) for row in rows.tolist()]
        width = max(self._numbers.shape[1], *map(len, read))
        missing = width - self._numbers.shape[1]
        if missing:
            self._numbers = np.pad(self._numbers, ((0, 0), (0, missing)), constant_values=NO_DEVICE)
        self._numbers[rows] = [[*numbers, *[NO_DEVICE] * (width - len(numbers))] for numbers in read]
        self._is_read[rows] = True

    def _forget_changed(self) -> None:
        snapshot, pools = self._snapshot, self._pools
        versions = snapshot.version, pools.changes.version, pools.numbering, snapshot.columns.capacity
        if versions == self._versions:
            return
        known, self._versions = self._versions, versions
        slices = pools.changes.since(known[1])
        if slices is None or None in slices or versions[2:] != known[2:]:
            self._of_rows.clear()
            self._numbers = np.zeros((versions[3], 0), dtype=np.int32)
            self._is_read = np.zeros(versions[3], dtype=np.bool_)
            return
        changed = snapshot.changed_since(known[0])
        if changed is None:  # compared one by one, because other pods change rows all the time
            rows = {row for row, (node, _) in self._of_rows.items() if snapshot.node_at(row) is not node}
        else:
            rows = set(changed.nodes)
        rows |= {row for nodes in slices for name in nodes or () if (row := snapshot.rows.of(name)) is not None}
        for row in rows:
            self._of_rows.pop(row, None)
            self._is_read[row] = False


def _numbers_of(views: tuple[NodePool, ...]) -> Sequence[int]:
    if not all(view.is_plain for view in views):
        return (NOT_PLAIN,)
    numbers = views[0].numbers if len(views) == 1 else [number for view in views for number in view.numbers]
    return numbers if len(numbers) <= _MOST_DEVICES else (NOT_PLAIN,)
