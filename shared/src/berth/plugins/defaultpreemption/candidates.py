"""Which nodes are worth a dry run, the most promising first: what each could be worth at best, of all nodes at once.

A dry run of thousands of nodes takes seconds. What evictions can give back at most is a sum over the pods of each node:
so it is known of every node what no dry run of it can beat, and the search ends when nothing better is left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np
import numpy.typing as npt

from berth.cluster.nodes import Amount, Gone, Mask, RowIndex
from berth.cluster.pods import PlacedPods
from berth.cluster.topologycounts import PodGroup
from berth.framework.preemption import DryRun
from berth.plugins.defaultpreemption.victims import ABOVE_ALL, DisruptionBudgets, Worth

Numbers = npt.NDArray[np.int64]
_MAX_LEVELS: Final = 16
"""So many priorities are told apart; with more, a node's highest victim is only known to be in a range."""
_MAX_COUNT: Final = 32
"""So many victims are counted; a node that needs more is known to need more than that."""


@dataclass(frozen=True, slots=True)
class Prospect:
    """A row, and what evictions there are worth at best."""

    row: int
    best: Worth


class LessImportant:
    """The pods with a lower priority on some rows, as columns with one element a pod.

    Attributes:
        places: int64[pods], index into ``rows``.
        priorities, since, groups: as in :class:`PlacedPods`.
    """

    def __init__(self, pods: PlacedPods, rows: RowIndex, size: int, priority: int) -> None:
        place_of = np.full(size + 1, -1, dtype=np.int64)  # the last element is that of pods that are nowhere
        place_of[rows] = np.arange(len(rows))
        chosen = np.flatnonzero((place_of[pods.rows] >= 0) & (pods.priorities < priority))
        self.count = len(rows)
        self.places: Numbers = place_of[pods.rows[chosen]]
        self.priorities: Numbers = pods.priorities[chosen]
        self.since = pods.since[chosen]
        self.groups = pods.groups[chosen]
        self._pod_groups = pods.pod_groups
        resources = {name for pod_class in pods.pod_classes for name in pod_class.requests.amounts}
        self._amounts = {name: pods.amounts(name)[chosen] for name in sorted(resources)}

    @property
    def has_any(self) -> Mask:
        """bool[rows]: which rows have such pods."""
        return np.bincount(self.places, minlength=self.count) > 0

    def gone(self, mask: Mask | None = None) -> Gone:
        """What is gone from each row when these pods are."""
        places = self.places if mask is None else self.places[mask]
        amounts = self._amounts if mask is None else {name: each[mask] for name, each in self._amounts.items()}
        return Gone(
            np.bincount(places, minlength=self.count).astype(np.float64),
            {name: _added_up(each, places, self.count) for name, each in amounts.items()},
            self._counted if mask is None else partial(self._counted, among=mask),
        )

    def most_gone(self, every: Gone, victims: int) -> Gone:
        """More than what is gone when any so many of them are, as little more as is quickly known."""
        largest = {name: np.zeros(self.count) for name in self._amounts}
        for name, column in largest.items():
            np.maximum.at(column, self.places, self._amounts[name])
        return Gone(
            np.minimum(every.pods, victims),
            {name: np.minimum(every.requested[name], victims * column) for name, column in largest.items()},
            every.count,
        )

    def _counted(self, times: Callable[[PodGroup], int], among: Mask | None = None) -> Amount:
        """float64[rows]: how many of the pods count by what a question says of their group."""
        of_group = np.array([times(group) for group in self._pod_groups], dtype=np.float64)
        weights = of_group[self.groups] if among is None else of_group[self.groups] * among
        return _added_up(weights, self.places, self.count)

    def least(self) -> Numbers:
        """int64[rows]: the lowest priority among each row's pods."""
        found = np.full(self.count, np.iinfo(np.int64).max, dtype=np.int64)
        np.minimum.at(found, self.places, self.priorities)
        return found

    def ranks(self, column: npt.NDArray[np.generic]) -> Numbers:
        """int64[pods]: how many pods of the same row come before each, the smaller of the column first."""
        order = np.lexsort((column, self.places))
        first = np.concatenate(([0], np.cumsum(np.bincount(self.places, minlength=self.count))))
        ranks = np.empty(len(order), dtype=np.int64)
        ranks[order] = np.arange(len(order)) - first[self.places[order]]
        return ranks


def _added_up(column: Amount, places: Numbers, count: int) -> Amount:
    """float64[count]; without any element bincount would answer with integers."""
    return np.bincount(places, weights=column, minlength=count).astype(np.float64, copy=False)


class Prospects:
    """What is known of the rows on which evictions may help at all; each row has some less important pod."""

    def __init__(self, pods: LessImportant, rows: RowIndex, dry_run: DryRun, budgets: DisruptionBudgets) -> None:
        self._pods = pods
        self._rows = rows
        self._dry_run = dry_run
        self._budgets = budgets

    def best_first(self, groups: PlacedPods, hashes: npt.NDArray[np.uint64]) -> Iterator[Prospect]:
        """All rows; among equals the smaller of ``hashes`` first."""
        counts = self._counts()
        violations = self._violations(groups, counts)
        highest = np.maximum(self._highest(), self._pods.least())
        others = self._pods.ranks(self._pods.priorities) < (counts - 1)[self._pods.places]
        sums = highest + ABOVE_ALL + self._sums(others)
        youngest = self._latest_start(highest, others)
        order = np.lexsort((hashes, -youngest, counts, sums, highest, violations))
        for place in order.tolist():
            best = (
                int(violations[place]),
                int(highest[place]),
                int(sums[place]),
                int(counts[place]),
                -float(youngest[place]),
            )
            yield Prospect(int(self._rows[place]), best)

    def _violations(self, groups: PlacedPods, counts: Numbers) -> Numbers:
        """How many have to go whom a budget protects, where the pod does not fit unless some of them go."""
        forbidden = np.array([self._budgets.forbid(group) for group in groups.pod_groups], dtype=np.bool_)
        if not forbidden.any():
            return np.zeros(len(self._rows), dtype=np.int64)
        may_go = ~forbidden[self._pods.groups]
        free = self._pods.gone(may_go)
        return np.where(self._fit(free), 0, np.maximum(1, counts - free.pods.astype(np.int64)))

    def _sums(self, pods: Mask) -> Numbers:
        """The sum of these pods' priorities on each row."""
        weights = self._pods.priorities[pods] + ABOVE_ALL
        return _added_up(weights.astype(np.float64), self._pods.places[pods], len(self._rows)).astype(np.int64)

    def _highest(self) -> Numbers:
        """The lowest priority up to which all have to go for the sums to fit."""
        found = np.full(len(self._rows), np.iinfo(np.int64).max, dtype=np.int64)
        for lowest, highest in _levels(self._pods.priorities):
            fits = self._fit(self._pods.gone(self._pods.priorities <= highest))
            found = np.where(fits, np.minimum(found, lowest), found)
            if fits.all():
                break
        return found

    def _counts(self) -> Numbers:
        """How many have to go at least for the sums to fit."""
        every = self._pods.gone()
        counts = np.ones(len(self._rows), dtype=np.int64)
        for victims in range(1, _MAX_COUNT + 1):
            fits = self._fit(self._pods.most_gone(every, victims))
            if fits.all():
                break
            counts = np.where(fits, counts, victims + 1)
        return counts

    def _latest_start(self, highest: Numbers, others: Mask) -> npt.NDArray[np.float64]:
        """When the first of the most important victims started at the latest, if no more of them go than must.

        Those beside the most important one are the least important ``others`` then: as many as are among these have
        the highest priority too. Where more have to go, or more important ones, that alone makes the node worse.
        """
        pods = self._pods
        is_highest = pods.priorities == highest[pods.places]
        going = 1 + np.bincount(pods.places[is_highest & others], minlength=len(self._rows))
        is_first = pods.ranks(np.where(is_highest, -pods.since, np.inf)) == going[pods.places] - 1
        found = np.full(len(self._rows), -np.inf)
        found[pods.places[is_first & is_highest]] = pods.since[is_first & is_highest]
        return found

    def _fit(self, gone: Gone) -> Mask:
        return self._dry_run.sums_fit(self._rows, gone)


def _levels(priorities: Numbers) -> list[tuple[int, int]]:
    """Ranges of priorities, (lowest, highest), rising; of one priority each as long as they are few."""
    different = np.unique(priorities)
    parts = np.array_split(different, min(_MAX_LEVELS, len(different)))
    return [(int(part[0]), int(part[-1])) for part in parts]
