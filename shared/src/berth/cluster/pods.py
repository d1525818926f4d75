"""A pod on a node: counted there, or nominated to it.

Columns of placed pods, one element a pod: what is asked of all pods at once when room is to be made for another.

Brought up to date when it is asked for, and only for rows that changed since.


The placed pods that have volumes: where they are, and which claims they use.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from berth.api.pod import Pod, priority_of, unix_seconds
from berth.cluster.equivalence import EquivalenceClass, Placed
from berth.cluster.rows import grown
from berth.cluster.topologycounts import PodGroup

if TYPE_CHECKING:
    from berth.cluster.snapshot import Snapshot


NOWHERE: Final = -1
"""The row of an element that no pod has."""


NOT_YET: Final = float("inf")
"""Since when a pod runs of which nobody has said so: it counts as the youngest."""


_FIRST_CAPACITY: Final = 256


_MAX_NUMBERS: Final = 20_000
"""How many classes and groups are kept, those of which no pod is left included, before all is read anew."""


class PlacedPods:
    """The placed pods of one Snapshot.

    Attributes:
        rows: int64[capacity], NOWHERE where there is no pod.
        priorities: int64[capacity].
        since: float64[capacity], Unix seconds of the start, NOT_YET where it is unknown.
        classes: int64[capacity], index into ``pod_classes``.
        groups: int64[capacity], index into ``pod_groups``.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._seen = -1
        self._forget()

    def refresh(self) -> None:
        """Take in what has changed."""
        is_worn = len(self.pod_classes) + len(self.pod_groups) > _MAX_NUMBERS
        changed = None if is_worn or self._seen < 0 else self._snapshot.changed_since(self._seen)
        rows: Iterable[int]
        if changed is None:
            self._forget()
            rows = range(self._snapshot.size)
        else:
            rows = changed.nodes | changed.pods | changed.retold
        for row in rows:
            self._read(row)
        self._seen = self._snapshot.version

    def amounts(self, resource: str) -> npt.NDArray[np.float64]:
        """float64[capacity]: what each pod asks for."""
        amounts = [each.requests.amounts.get(resource, 0) for each in self.pod_classes] or [0]
        by_class = np.array(amounts, dtype=np.float64)
        asked: npt.NDArray[np.float64] = by_class[self.classes]
        return asked

    def _forget(self) -> None:
        self.rows = np.full(_FIRST_CAPACITY, NOWHERE, dtype=np.int64)
        self.priorities = np.zeros(_FIRST_CAPACITY, dtype=np.int64)
        self.since = np.zeros(_FIRST_CAPACITY, dtype=np.float64)
        self.classes = np.zeros(_FIRST_CAPACITY, dtype=np.int64)
        self.groups = np.zeros(_FIRST_CAPACITY, dtype=np.int64)
        self.pod_classes: list[EquivalenceClass] = []
        self.pod_groups: list[PodGroup] = []
        self._class_numbers: dict[EquivalenceClass, int] = {}
        self._group_numbers: dict[PodGroup, int] = {}
        self._free = list(range(_FIRST_CAPACITY))
        self._of_row: dict[int, list[int]] = {}

    def _read(self, row: int) -> None:
        for place in self._of_row.pop(row, ()):
            self.rows[place] = NOWHERE
            self._free.append(place)
        placed = self._snapshot.placed_on_row(row)
        if placed:
            self._of_row[row] = [self._write(row, each) for each in placed]

    def _write(self, row: int, placed: Placed) -> int:
        if not self._free:
            self._grow()
        place = self._free.pop()
        self.rows[place] = row
        self.priorities[place] = priority_of(placed.pod)
        self.since[place] = started_at(placed.pod)
        self.classes[place] = self._number_of_class(placed.pod_class)
        self.groups[place] = self._number_of_group(placed.group)
        return place

    def _number_of_class(self, pod_class: EquivalenceClass) -> int:
        number = self._class_numbers.get(pod_class)
        if number is None:
            number = self._class_numbers[pod_class] = len(self.pod_classes)
            self.pod_classes.append(pod_class)
        return number

    def _number_of_group(self, group: PodGroup) -> int:
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
    """Unix seconds since when the pod runs on its node, as its status says; NOT_YET when it does not."""
    return unix_seconds(pod.status.start_time) if pod.status.start_time else NOT_YET


class PodVolumes:
    """Kept up as pods come and go; pods without volumes cost nothing."""

    def __init__(self) -> None:
        self._on_row: dict[int, dict[str, Pod]] = {}
        self._counts: Counter[int] = Counter()
        self._users: Counter[tuple[str, str]] = Counter()

    def count(self, pod: Pod, row: int, by: int) -> None:
        """A pod comes to a row (1) or leaves it (-1)."""
        if not pod.spec.volumes:
            return
        self._counts[row] += by * len(pod.spec.volumes)
        if by > 0:
            self._on_row.setdefault(row, {})[pod.uid] = pod
        else:
            self._leave(pod.uid, row)
        for volume in pod.spec.volumes:
            if volume.persistent_volume_claim is not None:
                self._use((pod.metadata.namespace, volume.persistent_volume_claim.claim_name), by)

    def on_row(self, row: int) -> Collection[Pod]:
        """The pods with volumes on a row."""
        return self._on_row.get(row, {}).values()

    def count_on(self, row: int) -> int:
        """How many volumes they have together, each as often as it is named."""
        return self._counts[row]

    @property
    def rows(self) -> Collection[int]:
        """The rows that have such pods."""
        return self._on_row.keys()

    def is_used(self, namespace: str, claim: str) -> bool:
        """Whether a placed pod uses the claim; claims that were made for a pod are its own and not looked at."""
        return (namespace, claim) in self._users

    def _leave(self, uid: str, row: int) -> None:
        there = self._on_row.get(row, {})
        there.pop(uid, None)
        if not there:
            self._on_row.pop(row, None)
            del self._counts[row]

    def _use(self, claim: tuple[str, str], by: int) -> None:
        self._users[claim] += by
        if self._users[claim] <= 0:
            del self._users[claim]
