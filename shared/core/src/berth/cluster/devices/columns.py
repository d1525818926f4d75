"""What expressions and constraints read of all devices: a column per path, with a number for each different value."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from itertools import chain
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from berth.cluster.devices.ledger import DeviceLedger
from berth.cluster.devices.pools import DevicePools, PooledDevice

Path = tuple[str, ...]  # such as ("attributes", "gpu.example.com", "model")
Column = npt.NDArray[np.int32]  # int32[devices], by their numbers
Reader = Callable[[Sequence[PooledDevice]], list[Hashable]]  # the value of each of the devices

# Columns that are kept; each has four bytes for a device.
_MOST_COLUMNS: Final = 128
# Devices that are read between two looks at the time: a few milliseconds.
_AT_ONCE: Final = 4096
# Possible values for each row up to which kinds of rows are found by a table.
_MOST_SPARSE: Final = 8


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
        read = [self.numbers]
        begin = len(self.numbers)
        while begin < pools.numbers:
            devices = pools.by_number[begin : begin + _AT_ONCE]
            numbers = np.zeros(len(devices), dtype=np.int32)
            present = [device for device in devices if device is not None]
            is_present = slice(None) if len(present) == len(devices) else [each is not None for each in devices]
            numbers[is_present] = self._numbers_of(self._read(present))
            read.append(numbers)
            begin += len(devices)
            if not may_continue():
                break
        self.numbers = np.concatenate(read)
        return len(self.numbers) == pools.numbers

    def _numbers_of(self, values: list[Hashable]) -> list[int]:
        identities = list(map(id, values))
        known = self._by_identity
        for identity, value in dict(zip(identities, values, strict=True)).items():
            if identity not in known:
                known[identity] = self._by_value.setdefault(value, len(self._by_value))
                self._kept.append(value)
        return list(map(known.__getitem__, identities))


class UsedDevices:
    """Which devices other claims have, or share."""

    def __init__(self, pools: DevicePools, ledger: DeviceLedger) -> None:
        self._pools = pools
        self._ledger = ledger
        self._version = -1
        self._numbering = pools.numbering
        self._used: npt.NDArray[np.bool_] = np.zeros(0, dtype=np.bool_)

    def column(self) -> npt.NDArray[np.bool_]:
        """By number, with every device of now."""
        pools, ledger = self._pools, self._ledger
        changed = ledger.changes.since(self._version)
        if changed is None or self._numbering != pools.numbering:
            changed, self._used = [], self._used[:0]
        known, self._version, self._numbering = len(self._used), ledger.changes.version, pools.numbering
        is_used, new = ledger.is_used, np.zeros(pools.numbers - known, dtype=np.bool_)
        self._used = np.concatenate((self._used, new))
        changed_pools = set(changed)
        if known:
            changed_pools |= {device.part.pool for device in pools.by_number[known:] if device is not None}
        else:
            changed_pools.update(ledger.pools_in_use)
        for device in chain.from_iterable(map(pools.devices_in, changed_pools)):
            self._used[device.number] = is_used(device.key)
        return self._used


def distinct(columns: Sequence[npt.NDArray[Any]]) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """Of rows with numbers from 0 in each column: the first of each kind of row, and the kind of each row."""
    first, kinds = _numbered(columns[0].astype(np.intp))
    for column in columns[1:]:
        first, kinds = _numbered(kinds * (int(column.max(initial=0)) + 1) + column)
    return first, kinds


def _numbered(values: npt.NDArray[np.intp]) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    most = int(values.max(initial=0)) + 1
    if most > _MOST_SPARSE * len(values):
        _, first, kinds = np.unique(values, return_index=True, return_inverse=True)
        return first, kinds
    # A table of all possible values, in a fifth of the time of sorting.
    first = np.full(most, len(values), dtype=np.intp)
    np.minimum.at(first, values, np.arange(len(values), dtype=np.intp))
    present = first < len(values)
    return first[present], (np.cumsum(present) - 1)[values]
