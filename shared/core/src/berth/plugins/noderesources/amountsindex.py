"""Finds the pending pods that a node has enough for, by allocatable or by free amounts, among thousands at once.

One array per resource, a row per set of requests: an event costs one comparison per array. 3,000 different sets of
requests take 13 us per event; asking the hint for each takes 10 ms (``bench.requeue``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Hashable, Iterable, Mapping
from typing import Final

import numpy as np
import numpy.typing as npt

from berth.api.node import Node
from berth.api.pod import Pod, priority_of
from berth.api.resources import PODS, Amounts, may_be_served
from berth.framework.events import RoomIndex

CountedAmounts = tuple[tuple[str, int], ...]  # (resource, amount), amounts above 0, in the order of the reasons

# Resources with an array. Bounded, because pods name extended resources as they like: requests of others are left to
# the hint.
MAX_COLUMNS: Final = 32
_FIRST_ROWS: Final = 64


class AmountsIndex:
    """Sets of requests, found by a change of a node's allocatable."""

    def __init__(self, wanted: Callable[[Pod], CountedAmounts], allocatable: Callable[[Node], Amounts]) -> None:
        self._wanted = wanted
        self._allocatable = allocatable
        self._clear()

    def _clear(self) -> None:
        self._keys: list[Hashable] = []
        self._rows: dict[Hashable, int] = {}
        self._free_rows: list[int] = []
        self._columns: dict[str, npt.NDArray[np.float64]] = {}
        self._is_used = np.zeros(_FIRST_ROWS, dtype=np.bool_)
        self._has_more = np.zeros(_FIRST_ROWS, dtype=np.bool_)

    def add(self, key: Hashable, pod: Pod) -> None:
        row = self._new_row(key)
        self._is_used[row], self._has_more[row] = True, False
        for column in self._columns.values():
            column[row] = 0
        for resource, amount in self._wanted(pod):
            if resource not in self._columns and len(self._columns) < MAX_COLUMNS:
                self._columns[resource] = np.zeros(len(self._is_used), dtype=np.float64)
            if resource in self._columns:
                self._columns[resource][row] = amount
            else:
                self._has_more[row] = True

    def remove(self, key: Hashable) -> None:
        row = self._rows.pop(key)
        self._keys[row], self._is_used[row] = None, False
        self._free_rows.append(row)
        if not self._rows:
            self._clear()  # so that resources without requests lose their array

    def find(self, old: object, new: object) -> Iterable[Hashable]:
        """The sets that fit the empty node and request a resource of which the node now has more."""
        if not isinstance(new, Node) or not self._rows:
            return ()
        now = self._allocatable(new)
        if now.get(PODS, 0) < 1:
            return ()
        fits = self._is_used.copy()
        for resource, column in self._columns.items():
            if now.get(resource) or not may_be_served(resource):  # else a DeviceClass may serve it there
                fits &= column <= now.get(resource, 0)
        before = self._allocatable(old) if isinstance(old, Node) else {}
        if now[PODS] <= before.get(PODS, 0):
            fits &= self._requests_more(before, now)
        return [self._keys[row] for row in np.flatnonzero(fits).tolist()]

    def _requests_more(self, before: Amounts, now: Amounts) -> npt.NDArray[np.bool_]:
        requests = self._has_more.copy()
        for resource, column in self._columns.items():
            if now.get(resource, 0) > before.get(resource, 0):
                requests |= column > 0
        return requests

    def _new_row(self, key: Hashable) -> int:
        if self._free_rows:
            row = self._free_rows.pop()
            self._keys[row] = key
        else:
            row = len(self._keys)
            self._keys.append(key)
            if row == len(self._is_used):
                self._grow()
        self._rows[key] = row
        return row

    def _grow(self) -> None:
        self._is_used = np.concatenate((self._is_used, np.zeros_like(self._is_used)))
        self._has_more = np.concatenate((self._has_more, np.zeros_like(self._has_more)))
        for resource, column in self._columns.items():
            self._columns[resource] = np.concatenate((column, np.zeros_like(column)))


class FreedIndex(AmountsIndex, RoomIndex):
    """Sets of requests, found by a pod that leaves a node or requests less there, if they fit its free amounts.

    Pods of lower priority count as free, because they may be evicted: ``add`` gets pods of one priority per key.
    Assumed and nominated pods are not counted, because a vain attempt is better than a missed one.
    """

    def __init__(self, wanted: Callable[[Pod], CountedAmounts]) -> None:
        RoomIndex.__init__(self)
        AmountsIndex.__init__(self, wanted, lambda _: {})

    def _clear(self) -> None:
        super()._clear()
        self._priorities = np.zeros(_FIRST_ROWS, dtype=np.int64)

    def _grow(self) -> None:
        super()._grow()
        self._priorities = np.concatenate((self._priorities, np.zeros_like(self._priorities)))

    def add(self, key: Hashable, pod: Pod) -> None:
        super().add(key, pod)
        self._priorities[self._rows[key]] = priority_of(pod)

    def find(self, old: object, new: object) -> Iterable[Hashable]:
        if not self._rows:
            return ()
        room = self.room_of(old.spec.node_name) if isinstance(old, Pod) else None
        if room is None:
            return list(self._rows)
        fits = self._that_fit(room.free, room.free)
        free = Counter(room.free)
        for priority, taken in room.taken:
            above = self._is_used & (self._priorities > priority)
            if not above.any():
                break
            free.update(taken)
            fits |= above & self._that_fit(free, room.free)
        return [self._keys[row] for row in np.flatnonzero(fits).tolist()]

    def _that_fit(self, free: Mapping[str, int], of_node: Container[str]) -> npt.NDArray[np.bool_]:
        """``of_node``: the resources of the node itself; others a DeviceClass may serve there."""
        if free.get(PODS, 0) < 1:
            return np.zeros(len(self._is_used), dtype=np.bool_)
        fits = self._is_used.copy()
        for resource, column in self._columns.items():
            if resource in of_node or not may_be_served(resource):
                fits &= (column == 0) | (column <= free.get(resource, 0))
        return fits
