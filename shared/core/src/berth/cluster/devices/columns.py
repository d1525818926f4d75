"""What expressions and constraints read of all devices: a column per path, with a number for each different value."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from berth.cluster.devices.pools import DevicePools, PooledDevice

Path = tuple[str, ...]  # such as ("attributes", "gpu.example.com", "model")
Column = npt.NDArray[np.int32]  # int32[devices], by their numbers
Reader = Callable[[PooledDevice], Hashable]

# Columns that are kept; each has four bytes for a device.
_MOST_COLUMNS: Final = 128
# Devices that are read between two looks at the time: a few milliseconds.
_AT_ONCE: Final = 4096


class DeviceColumns:
    """The columns read last."""

    def __init__(self, pools: DevicePools) -> None:
        self._pools = pools
        self._numbering = pools.numbering
        self._columns: OrderedDict[Path, _Column] = OrderedDict()

    def of(self, path: Path, read: Reader) -> Column:
        """The column, with every device of now. A device that is gone has any number."""
        column = self._column(path, read)
        column.extend(self._pools, _always)
        return column.numbers

    def read(self, path: Path, read: Reader, may_continue: Callable[[], bool]) -> bool:
        """Read devices while it may continue; returns whether the column has every device of now."""
        return self._column(path, read).extend(self._pools, may_continue)

    def _column(self, path: Path, read: Reader) -> _Column:
        if self._numbering != self._pools.numbering:
            self._columns.clear()
            self._numbering = self._pools.numbering
        column = self._columns.get(path)
        if column is None:
            column = self._columns[path] = _Column(read)
            if len(self._columns) > _MOST_COLUMNS:
                self._columns.popitem(last=False)
        else:
            self._columns.move_to_end(path)
        return column


def _always() -> bool:
    return True


class _Column:
    def __init__(self, read: Reader) -> None:
        self._read = read
        self.numbers: Column = np.zeros(0, dtype=np.int32)
        self._by_value: dict[Hashable, int] = {}
        # Attributes of devices are shared, and finding one by its identity takes a third of hashing it.
        self._by_identity: dict[int, int] = {}
        self._kept: list[object] = []  # so that no identity is used again

    def extend(self, pools: DevicePools, may_continue: Callable[[], bool]) -> bool:
        begin = len(self.numbers)
        new: list[int] = []
        while begin + len(new) < pools.numbers:
            at = begin + len(new)
            devices = pools.by_number[at : at + _AT_ONCE]
            new += [0 if device is None else self._number(self._read(device)) for device in devices]
            if not may_continue():
                break
        if new:
            self.numbers = np.concatenate((self.numbers, np.array(new, dtype=np.int32)))
        return len(self.numbers) == pools.numbers

    def _number(self, value: Hashable) -> int:
        number = self._by_identity.get(id(value))
        if number is None:
            number = self._by_identity[id(value)] = self._by_value.setdefault(value, len(self._by_value))
            self._kept.append(value)
        return number


def distinct(columns: Sequence[npt.NDArray[Any]]) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """Of rows with a value in each column: the first of each kind of row, and the kind of each row."""
    combined = columns[0].astype(np.int64)
    for column in columns[1:]:
        # Numbers of kinds, so that the product of many columns stays small.
        _, combined = np.unique(combined, return_inverse=True)
        combined = combined * (int(column.max(initial=0)) + 1) + column
    _, first, kinds = np.unique(combined, return_index=True, return_inverse=True)
    return first, kinds
