"""The nodes on which preemption may help, cheapest first, each with a lower bound of its cost.

A dry run of thousands of nodes takes seconds. Sums over the pods of each node give a lower bound of its cost for all
nodes at once. So dry runs start with the cheapest node, and end when no node can be cheaper than the best.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Final

import numpy as np
import numpy.typing as npt

from berth.cluster.nodes import Amount, Mask, RemovedPods, RowIndex
from berth.cluster.placedpods import PlacedPods
from berth.cluster.topologycounts import LabelGroup
from berth.framework.disruptionbudgets import DisruptionBudgets
from berth.framework.interface import DryRun
from berth.plugins.defaultpreemption.victims import PRIORITY_OFFSET, Cost

Numbers = npt.NDArray[np.int64]
# Priorities that are distinguished. With more, a node's highest victim priority is known only as a range.
_MAX_LEVELS: Final = 16
_MAX_RESOURCES: Final = 16  # resources whose amounts are kept during a dry run: more than pods request
_MAX_COUNT: Final = 32  # victims that are counted exactly; other nodes need more


@dataclass(frozen=True, slots=True)
class PotentialNode:
    """A row with a lower bound of its cost."""

    row: int
    least_cost: Cost


class PotentialNodes:
    """Lower bounds of the cost on the rows where preemption may help; each row has a pod of lower priority."""

    def __init__(self, pods: LowerPriorityPods, rows: RowIndex, dry_run: DryRun, budgets: DisruptionBudgets) -> None:
        self._pods = pods
        self._rows = rows
        self._dry_run = dry_run
        self._budgets = budgets

    def cheapest_first(self, groups: PlacedPods, hashes: npt.NDArray[np.uint64]) -> Iterator[PotentialNode]:
        counts = self._counts()
        violations = self._violations(groups, counts)
        highest = np.maximum(self._highest(), self._pods.least())
        others = self._pods.ranks(self._pods.priorities) < (counts - 1)[self._pods.positions]
        sums = highest + PRIORITY_OFFSET + self._sums(others)
        youngest = self._latest_start(highest, others)
        order = np.lexsort((hashes, -youngest, counts, sums, highest, violations))
        for position in order.tolist():
            least_cost = (
                int(violations[position]),
                int(highest[position]),
                int(sums[position]),
                int(counts[position]),
                -float(youngest[position]),
            )
            yield PotentialNode(int(self._rows[position]), least_cost)

    def _violations(self, groups: PlacedPods, counts: Numbers) -> Numbers:
        """The least number of violating victims, where the pod does not fit unless some are evicted."""
        forbidden = np.array([self._budgets.forbids(group) for group in groups.pod_groups], dtype=np.bool_)
        if not forbidden.any():
            return np.zeros(len(self._rows), dtype=np.int64)
        allowed = ~forbidden[self._pods.groups]
        freed = self._pods.removed(allowed)
        return np.where(self._fit(freed), 0, np.maximum(1, counts - freed.pods.astype(np.int64)))

    def _sums(self, pods: Mask) -> Numbers:
        weights = self._pods.priorities[pods] + PRIORITY_OFFSET
        return _sum_by_row(weights.astype(np.float64), self._pods.positions[pods], len(self._rows)).astype(np.int64)

    def _highest(self) -> Numbers:
        """The lowest priority such that the sums fit when all pods up to it are removed."""
        found = np.full(len(self._rows), np.iinfo(np.int64).max, dtype=np.int64)
        for lowest, highest in _levels(self._pods.priorities):
            fits = self._fit(self._pods.removed(self._pods.priorities <= highest))
            found = np.where(fits, np.minimum(found, lowest), found)
            if fits.all():
                break
        return found

    def _counts(self) -> Numbers:
        """The least number of victims for the sums to fit."""
        every = self._pods.removed()
        counts = np.ones(len(self._rows), dtype=np.int64)
        for victims in range(1, _MAX_COUNT + 1):
            fits = self._fit(self._pods.most_removed(every, victims))
            if fits.all():
                break
            counts = np.where(fits, counts, victims + 1)
        return counts

    def _latest_start(self, highest: Numbers, others: Mask) -> npt.NDArray[np.float64]:
        """The latest possible start of the earliest-started victim of the highest priority, with the fewest victims.

        The other victims are then the least important ``others``, so as many victims have the highest priority as among
        these.
        """
        pods = self._pods
        is_highest = pods.priorities == highest[pods.positions]
        number = 1 + np.bincount(pods.positions[is_highest & others], minlength=len(self._rows))
        is_first = pods.ranks(np.where(is_highest, -pods.since, np.inf)) == number[pods.positions] - 1
        found = np.full(len(self._rows), -np.inf)
        found[pods.positions[is_first & is_highest]] = pods.since[is_first & is_highest]
        return found

    def _fit(self, removed: RemovedPods) -> Mask:
        return self._dry_run.sums_fit(self._rows, removed)


def _levels(priorities: Numbers) -> list[tuple[int, int]]:
    """Ranges of priorities (lowest, highest), rising; single priorities up to _MAX_LEVELS."""
    different = np.unique(priorities)
    parts = np.array_split(different, min(_MAX_LEVELS, len(different)))
    return [(int(part[0]), int(part[-1])) for part in parts]


class LowerPriorityPods:
    """The pods of lower priority on some rows, as columns with one element per pod.

    Attributes:
        positions: int64[pods], index into ``rows``.
        priorities, since, groups: as in :class:`PlacedPods`.
    """

    def __init__(self, pods: PlacedPods, rows: RowIndex, size: int, priority: int) -> None:
        position_of = np.full(size + 1, -1, dtype=np.int64)  # the last element is for pods without a row
        position_of[rows] = np.arange(len(rows))
        chosen = np.flatnonzero((position_of[pods.rows] >= 0) & (pods.priorities < priority))
        self.count = len(rows)
        self.positions: Numbers = position_of[pods.rows[chosen]]
        self.priorities: Numbers = pods.priorities[chosen]
        self.since = pods.since[chosen]
        self.groups = pods.groups[chosen]
        self._pod_groups = pods.pod_groups
        self._requests = [pod_class.requests for pod_class in pods.pod_classes]
        self._classes = pods.classes[chosen]
        self._amounts_of = lru_cache(_MAX_RESOURCES)(self._read_amounts)
        self._largest_of = lru_cache(_MAX_RESOURCES)(self._read_largest)

    @property
    def has_any(self) -> Mask:
        """bool[rows]: rows with such pods."""
        return np.bincount(self.positions, minlength=self.count) > 0

    def removed(self, mask: Mask | None = None) -> RemovedPods:
        """Amounts freed on each row by removing these pods; ``mask``: only some of them."""
        positions = self.positions if mask is None else self.positions[mask]

        def requested(resource: str) -> Amount:
            amounts = self._amounts_of(resource)
            return _sum_by_row(amounts if mask is None else amounts[mask], positions, self.count)

        return RemovedPods(
            np.bincount(positions, minlength=self.count).astype(np.float64),
            lru_cache(_MAX_RESOURCES)(requested),
            self._counted if mask is None else partial(self._counted, among=mask),
        )

    def most_removed(self, every: RemovedPods, victims: int) -> RemovedPods:
        """An upper bound of the amounts freed on each row by removing any ``victims`` of the pods."""
        return RemovedPods(
            np.minimum(every.pods, victims),
            lambda resource: np.minimum(every.requested(resource), victims * self._largest_of(resource)),
            every.count,
        )

    def _read_amounts(self, resource: str) -> Amount:
        by_class = np.array([each.amounts.get(resource, 0) for each in self._requests] or [0], dtype=np.float64)
        amounts: Amount = by_class[self._classes]
        return amounts

    def _read_largest(self, resource: str) -> Amount:
        largest = np.zeros(self.count)
        np.maximum.at(largest, self.positions, self._amounts_of(resource))
        return largest

    def _counted(self, times: Callable[[LabelGroup], int], among: Mask | None = None) -> Amount:
        """float64[rows]: the pods, each counted ``times`` of its group."""
        of_group = np.array([times(group) for group in self._pod_groups], dtype=np.float64)
        weights = of_group[self.groups] if among is None else of_group[self.groups] * among
        return _sum_by_row(weights, self.positions, self.count)

    def least(self) -> Numbers:
        """int64[rows]: the lowest priority among each row's pods."""
        found = np.full(self.count, np.iinfo(np.int64).max, dtype=np.int64)
        np.minimum.at(found, self.positions, self.priorities)
        return found

    def ranks(self, column: npt.NDArray[np.generic]) -> Numbers:
        """int64[pods]: the number of earlier pods of the same row, in the column's order."""
        order = np.lexsort((column, self.positions))
        first = np.concatenate(([0], np.cumsum(np.bincount(self.positions, minlength=self.count))))
        ranks = np.empty(len(order), dtype=np.int64)
        ranks[order] = np.arange(len(order)) - first[self.positions[order]]
        return ranks


def _sum_by_row(column: Amount, positions: Numbers, count: int) -> Amount:
    """float64[count]; without elements bincount would return integers."""
    return np.bincount(positions, weights=column, minlength=count).astype(np.float64, copy=False)
