"""Columns of placed pods, one element per pod, for preemption, which compares all pods of the cluster at once.

Refreshed on request, only for rows that changed since.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np

from berth.api.pod import Pod, priority_of, unix_seconds
from berth.cluster.columns import grown
from berth.cluster.pods import EquivalenceClass, PlacedPod
from berth.cluster.snapshot import Snapshot
from berth.cluster.topologycounts import LabelGroup

# The row of an unused element.
NOWHERE: Final = -1

# The start of a pod without a start time in its status: it counts as the youngest.
UNKNOWN_START: Final = float("inf")

_FIRST_CAPACITY: Final = 256

# Classes and groups without a pod stay too. Above this number of both together, all rows are read again.
_MAX_NUMBERS: Final = 20_000


class PlacedPods:
    """The placed pods of one Snapshot.

    Attributes:
        rows: int64[capacity], NOWHERE for an unused element.
        priorities: int64[capacity].
        since: float64[capacity], Unix seconds of the start, or UNKNOWN_START.
        classes: int64[capacity], index into ``pod_classes``.
        groups: int64[capacity], index into ``pod_groups``.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._seen = -1
        self._forget()

    def refresh(self) -> None:
        """Read the rows that changed since the last call."""
        has_too_many = len(self.pod_classes) + len(self.pod_groups) > _MAX_NUMBERS
        changed = None if has_too_many or self._seen < 0 else self._snapshot.changed_since(self._seen)
        rows: Iterable[int]
        if changed is None:
            self._forget()
            rows = range(self._snapshot.size)
        else:
            rows = changed.nodes | changed.pods | changed.pods_updated
        for row in rows:
            self._read(row)
        self._seen = self._snapshot.version

    def _forget(self) -> None:
        self.rows = np.full(_FIRST_CAPACITY, NOWHERE, dtype=np.int64)
        self.priorities = np.zeros(_FIRST_CAPACITY, dtype=np.int64)
        self.since = np.zeros(_FIRST_CAPACITY, dtype=np.float64)
        self.classes = np.zeros(_FIRST_CAPACITY, dtype=np.int64)
        self.groups = np.zeros(_FIRST_CAPACITY, dtype=np.int64)
        self.pod_classes: list[EquivalenceClass] = []
        self.pod_groups: list[LabelGroup] = []
        self._class_numbers: dict[EquivalenceClass, int] = {}
        self._group_numbers: dict[LabelGroup, int] = {}
        self._free = list(range(_FIRST_CAPACITY))
        self._of_row: dict[int, list[int]] = {}

    def _read(self, row: int) -> None:
        for index in self._of_row.pop(row, ()):
            self.rows[index] = NOWHERE
            self._free.append(index)
        placed = self._snapshot.placed_on_row(row)
        if placed:
            self._of_row[row] = [self._write(row, each) for each in placed]

    def _write(self, row: int, placed: PlacedPod) -> int:
        if not self._free:
            self._grow()
        index = self._free.pop()
        self.rows[index] = row
        self.priorities[index] = priority_of(placed.pod)
        self.since[index] = started_at(placed.pod)
        self.classes[index] = self._number_of_class(placed.pod_class)
        self.groups[index] = self._number_of_group(placed.group)
        return index

    def _number_of_class(self, pod_class: EquivalenceClass) -> int:
        number = self._class_numbers.get(pod_class)
        if number is None:
            number = self._class_numbers[pod_class] = len(self.pod_classes)
            self.pod_classes.append(pod_class)
        return number

    def _number_of_group(self, group: LabelGroup) -> int:
        number = self._group_numbers.get(group)
        if number is None:
            number = self._group_numbers[group] = len(self.pod_groups)
            self.pod_groups.append(group)
        return number

    def _grow(self) -> None:
        before, capacity = len(self.rows), 2 * len(self.rows)
        self.rows = grown(self.rows, capacity, NOWHERE)
        self.priorities, self.since = grown(self.priorities, capacity), grown(self.since, capacity)
        self.classes, self.groups = grown(self.classes, capacity), grown(self.groups, capacity)
        self._free = list(range(before, capacity))


def started_at(pod: Pod) -> float:
    """Unix seconds of the start in the pod's status, or UNKNOWN_START."""
    return unix_seconds(pod.status.start_time) if pod.status.start_time else UNKNOWN_START
