"""What nodes use of CPU and memory: samples, an estimate for pods that they do not show, the mean for unknown nodes.

A pod counts with ``estimate x min(1, max(0, 1 - (t - hold - bound_at) / range))``, where ``t`` is the sample's time:
the mean over ``range`` up to ``t`` has the rest of it. The factor is rounded down to a multiple of 1/1024. A proposed
or assumed pod counts as placed now. A node is unknown without a sample, or with one above the maximum age; it counts as
using the mean share of the known nodes, and ``t`` is when the present step began, a twelfth of the range, for all
processes at the same time. If fewer than half of the nodes are known, nothing is known (``is_enough``).

Sums by row are kept up to date: a change of a row's pods costs these pods, a sample costs nothing where all estimates
have faded. Rows of unknown nodes are summed again at each step, because there the estimate fades with the clock.
Readers that keep results by row ask which loads have changed (``RowLog``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Final, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from berth.api.config.nodeload.queries import MEASURED, LoadReading, MeasuredResource, Statistic
from berth.api.pod import Pod
from berth.cluster.columns import grown
from berth.cluster.pods import PlacedPod
from berth.cluster.snapshot import ChangedRows, Snapshot
from berth.framework.interface import RowChanges
from berth.plugins.nodeload.estimates import Estimate

Amount = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

# Share of the range after which estimates on unknown nodes are computed again.
_STEP: Final = 1 / 12
# By so much an estimate counts as not faded yet, because sums of times are rounded.
_ROUNDING_SECONDS: Final = 1.0
# Share of the nodes from which on all count as changed: naming rows then costs more than to evaluate all of them.
_MANY: Final = 1 / 8

# Missing shares are multiples of this, and estimates whole numbers, so that a sum is the same in any order.
_SHARE: Final = 1 / 1024
# Up to here sums of such amounts are exact: 8 TiB.
_EXACT: Final = 2.0**53 * _SHARE

# The estimate of a placed pod, in whole numbers; None for one that does not count.
PodEstimate = Callable[[PlacedPod], Estimate | None]


class SharesOfPods(Protocol):
    def __call__(
        self, row: int, pods: Collection[PlacedPod], *, are_all: bool
    ) -> tuple[Sequence[tuple[float, ...]], bool]:
        """What pods of a row add to its sums, as far as they count, and whether each counts like a proposed one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One resource by samples alone. Arrays have an element for each row; only those of nodes count.

    Attributes:
        known: bool[capacity], nodes with a recent sample.
        amount: float64[capacity], millicores or bytes; of unknown nodes the mean share of what they have.
        allocatable: float64[capacity], in the same unit, at least 1.
        nodes: the number of nodes, of which ``count`` are known.
    """

    known: Mask
    amount: Amount
    allocatable: Amount
    nodes: int
    count: int

    @property
    def is_enough(self) -> bool:
        """Whether at least half of the nodes are known."""
        return 0 < self.nodes <= 2 * self.count


class RowLog:
    """Which rows have changed at which version."""

    def __init__(self) -> None:
        self.version = 0  # increases with each change
        self._changed: dict[int, int] = {}  # row to the version that changed it last, in that order
        self._last_changed: Collection[int] = ()  # by the last version
        self._all_changed = 0  # the last version that may have changed every row

    def note(self, rows: Collection[int]) -> None:
        self.version += 1
        self._last_changed = rows
        for row in rows:
            self._changed.pop(row, None)
            self._changed[row] = self.version

    def note_all(self) -> None:
        self.version += 1
        self._all_changed = self.version
        self._changed.clear()

    def since(self, version: int) -> RowChanges:
        """The rows that have changed after a version; None if every row may have."""
        rows: Collection[int] | None
        if version < self._all_changed:
            rows = None
        elif version == self.version:
            rows = ()
        elif version == self.version - 1:
            rows = self._last_changed
        else:
            rows = [row for row, _ in takewhile(lambda item: item[1] > version, reversed(self._changed.items()))]
        return RowChanges(self.version, rows)


class Term(NamedTuple):
    """A resource of which enough nodes are known: as in :class:`Measured`, and its place in an estimate."""

    resource: MeasuredResource
    place: int
    measured: Amount
    newcomers: Amount
    allocatable: Amount
    known: Mask


class NodeLoads:
    """The load of all nodes by one reading; up to date after :meth:`refresh`."""

    of_whom = ""  # for people: the pods whose part of each node's load this is
    _moves_with_pods = False  # what is measured

    def __init__(
        self,
        snapshot: Snapshot,
        reading: LoadReading,
        estimate: PodEstimate,
        *,
        hold_seconds: Callable[[Pod], float] | None = None,
        log: RowLog | None = None,
    ) -> None:
        """``hold_seconds``: for how long the estimate of a pod does not fade; without it, 0.

        ``log``: of the rows whose load has changed, for all loads that a reader reads.
        """
        self._snapshot = snapshot
        self.statistic = reading.statistic
        self._samples = snapshot.live.samples(reading.query.token)
        self._maximum_age = reading.maximum_age.total_seconds()
        self._range = reading.query.time_range.total_seconds()
        self._hold = hold_seconds
        self._estimate = estimate
        self._newcomers = RowSums(snapshot, len(MEASURED), self._missing)
        self._sums = [self._newcomers]
        self._as_of: Amount = np.zeros(0)  # by row, the time up to which estimates have faded
        # By row, when the estimate of the last of its pods begins to fade: infinite with an unbound pod. A range later
        # a sample changes none of its estimates.
        self._whole_until: Amount = np.zeros(0)
        self._measured: dict[tuple[MeasuredResource, Statistic], Measured] = {}
        self._terms: dict[Sequence[MeasuredResource], Sequence[Term]] = {}
        self._seen = self._sampled = self._step = -1
        self._step_began = -math.inf
        self.now = self._expires = -math.inf
        self.log = RowLog() if log is None else log
        # The lines of explanations by row, the part about samples and the whole. A line is kept until the row's load
        # changes, or the age in one of the lines.
        self.measured_lines: dict[int, str] = {}
        self.lines: dict[int, str] = {}
        self.lines_until = math.inf

    def refresh(self) -> None:
        """Call before anything is read, in each cycle."""
        samples, version, now, is_due = self._samples, self._snapshot.version, self._snapshot.live.now, False
        if now != self.now:
            if now >= self.lines_until:
                self._forget_all_lines()
            step = math.floor(now / (self._range * _STEP))
            is_due = step != self._step or now > self._expires
            self.now, self._step, self._step_began = now, step, step * self._range * _STEP
        if version != self._seen:
            samples.refresh()
        elif samples.version == self._sampled and not is_due:
            return
        changed = self._snapshot.changed_since(self._seen) if self._seen >= 0 else None
        self._seen = -1  # after an exception all rows are summed again: pods may have been added already
        has_grown = len(self._as_of) != len(samples.sampled_at)
        if changed is None or changed.nodes or is_due or has_grown or samples.version != self._sampled:
            self._follow(changed, is_due=is_due, has_grown=has_grown)
        else:
            self._follow_pods(changed)
        self._seen, self._sampled = version, samples.version

    def _follow(self, changed: ChangedRows | None, *, is_due: bool, has_grown: bool) -> None:
        """``is_due``: the clock has changed estimates on unknown nodes, or which nodes are known."""
        samples = self._samples
        is_stale = changed is None or changed.nodes or has_grown or self.now > self._expires
        sampled = samples.changed_since(self._sampled) if samples.version != self._sampled else ()
        self._forget_lines(sampled)
        faded = self._fade() if is_due or changed is None else self._fade_sampled(sampled)
        moved = self._sum_again(changed, faded)
        measured = None if is_stale else self._measure_rows(sampled)
        if measured is None or self._moves_with_pods:
            self._terms.clear()
        if measured is None:
            measured = self._measure_again()
        if changed is None or measured is None:
            self._note(None)
        else:
            moved.update(measured)
            self._forget_lines(moved | changed.nodes)
            self._note(moved)

    def _follow_pods(self, changed: ChangedRows) -> None:
        """Follow a change of pods alone, which most cycles find."""
        moved = self._sum_again(changed, ())
        if self._moves_with_pods:
            self._terms.clear()
            self._forget_lines(moved)
        if moved:
            self._note(moved)
            for row in moved:
                self.lines.pop(row, None)

    def _sum_again(self, changed: ChangedRows | None, faded: Collection[int]) -> set[int]:
        """Sum rows whose pods or estimates have changed; returns those where not only whole estimates came."""
        if changed is None:
            return self._refresh(range(self._snapshot.size))
        otherwise = set[int]()
        for row, count in changed.came.items():
            self.lines.pop(row, None)
            for sums in self._sums:
                if not sums.add(row, count):
                    otherwise.add(row)
        if otherwise or faded or changed.nodes or changed.pods_updated or len(changed.pods) > len(changed.came):
            left = changed.pods.difference(changed.came)
            otherwise |= self._refresh({*otherwise, *changed.nodes, *changed.pods_updated, *faded, *left})
        return otherwise

    def _refresh(self, rows: Collection[int]) -> set[int]:
        return {row for sums in self._sums for row in sums.refresh(rows)}

    def _forget_lines(self, rows: Iterable[int]) -> None:
        for row in rows:
            self.lines.pop(row, None)
            self.measured_lines.pop(row, None)

    def _forget_all_lines(self) -> None:
        self.lines.clear()
        self.measured_lines.clear()
        self.lines_until = math.inf

    def _note(self, rows: Collection[int] | None) -> None:
        if rows is None or len(rows) > self._snapshot.size * _MANY:
            self.log.note_all()
            self._forget_all_lines()
        elif rows:
            self.log.note(rows)

    def _fade(self) -> list[int]:
        """Estimates fade up to each sample, on unknown nodes up to this step. The rows whose estimates changed."""
        sampled_at, before = self._samples.sampled_at, self._as_of
        recent = self.now - sampled_at <= self._maximum_age
        self._as_of = np.where(recent, sampled_at, self._step_began)
        self._expires = float(np.min(sampled_at, where=recent, initial=math.inf)) + self._maximum_age
        if len(before) != len(sampled_at):
            before = grown(before, len(sampled_at), self._step_began)
            self._whole_until = grown(self._whole_until, len(sampled_at), -math.inf)
        moved = (before != self._as_of) & self._may_have_newcomers(np.minimum(before, self._as_of), self._whole_until)
        found: list[int] = np.flatnonzero(moved & self._snapshot.columns.exists).tolist()
        return found

    def _fade_sampled(self, sampled: Sequence[int]) -> list[int]:
        """The same on nodes with a new sample."""
        size = len(self._samples.sampled_at)
        if len(self._as_of) != size:
            self._as_of = grown(self._as_of, size, self._step_began)
            self._whole_until = grown(self._whole_until, size, -math.inf)
        if not sampled:
            return []
        rows = np.array(sampled, dtype=np.intp)
        sampled_at, before = self._samples.sampled_at[rows], self._as_of[rows]
        recent = self.now - sampled_at <= self._maximum_age
        after = self._as_of[rows] = np.where(recent, sampled_at, self._step_began)
        oldest = float(np.min(sampled_at, where=recent, initial=math.inf))
        self._expires = min(self._expires, oldest + self._maximum_age)
        found: list[int] = rows[self._may_have_newcomers(np.minimum(before, after), self._whole_until[rows])].tolist()
        return found

    def _may_have_newcomers(self, as_of: Amount, whole_until: Amount) -> Mask:
        return whole_until > as_of - self._range - _ROUNDING_SECONDS

    def _measure_rows(self, rows: Sequence[int]) -> Collection[int] | None:
        """Read these rows' samples; returns those whose load has changed. None if others change too, by the mean."""
        if not rows:
            return ()
        index = np.array(rows, dtype=np.intp)
        recent = self.now - self._samples.sampled_at[index] <= self._maximum_age
        amounts = [(each, self._samples.usage(*asked)[index]) for asked, each in self._measured.items()]
        for each, amount in amounts:
            if each.count < each.nodes or not np.all(recent & each.known[index] & ~np.isnan(amount)):
                return None
        moved: list[int] = []
        for each, amount in amounts:
            moved += index[each.amount[index] != amount].tolist()
            each.amount[index] = amount
        return moved

    def _measure_again(self) -> Collection[int] | None:
        """The rows whose measured load has changed, of unknown nodes by the mean; None if it may be all."""
        before, self._measured = self._measured, {}
        rows: list[int] = []
        for (resource, statistic), then in before.items():
            now = NodeLoads.measured(self, resource, statistic)
            if len(then.known) != len(now.known) or then.is_enough != now.is_enough:
                return None
            differs = (then.amount != now.amount) | (then.known != now.known) | (then.allocatable != now.allocatable)
            rows += np.flatnonzero(differs & self._snapshot.columns.exists).tolist()
        return rows

    def _missing(self, row: int, pods: Collection[PlacedPod], *, are_all: bool) -> tuple[list[Estimate], bool]:
        """The estimates of pods of the row, as far as its sample lacks them; whether it lacks all of each."""
        found, are_whole, last = [], True, -math.inf
        as_of, hold = self._as_of.item(row), self._hold
        faded = as_of - self._range - _ROUNDING_SECONDS
        for placed in pods:
            share = 1.0
            if (bound_at := placed.bound_at) is None:
                last = math.inf
            else:
                whole_until = bound_at if hold is None else bound_at + hold(placed.pod)
                if whole_until > last:  # noqa: PLR1730 - max takes twice as long, and a row may have a hundred pods
                    last = whole_until
                if whole_until < as_of:
                    are_whole = False
                    share = 0.0 if whole_until < faded else self.missing_share(placed)
                    if share <= 0:
                        continue
            if (amounts := self._estimate(placed)) is not None:
                found.append(amounts if share == 1 else tuple([share * amount for amount in amounts]))
        if are_all or last > self._whole_until.item(row):
            self._whole_until[row] = last
        return found, are_whole

    def missing_share(self, placed: PlacedPod) -> float:
        """The share (0..1) of the pod's use that its node's sample lacks."""
        if placed.bound_at is None:
            return 1.0
        hold = 0.0 if self._hold is None else self._hold(placed.pod)
        since = self._as_of.item(placed.row) - hold - placed.bound_at
        return math.floor(min(1.0, max(0.0, 1 - since / self._range)) / _SHARE) * _SHARE

    def measured(self, resource: MeasuredResource, statistic: Statistic | None = None) -> Measured:
        """By the reading's statistic, or another one of its query."""
        asked = resource, statistic or self.statistic
        known = self._measured.get(asked)
        if known is None:
            known = self._measured[asked] = self._measure(*asked)
        return known

    def _measure(self, resource: MeasuredResource, statistic: Statistic) -> Measured:
        columns, samples = self._snapshot.columns, self._samples
        amount = samples.usage(resource, statistic)
        allocatable = np.maximum(columns.allocatable.of(resource), 1.0)
        known = columns.exists & (self._snapshot.live.now - samples.sampled_at <= self._maximum_age) & ~np.isnan(amount)
        count = int(np.count_nonzero(known))
        if count < self._snapshot.node_count:
            shares = np.minimum(
                amount / allocatable, 1.0
            )  # one impossible sample must not decide for all unknown nodes
            mean = float(np.sum(shares, where=known)) / count if count else 0.0
        else:
            mean = 0.0  # of rows without a node
        return Measured(
            known=known,
            amount=np.where(known, amount, mean * allocatable),
            allocatable=allocatable,
            nodes=self._snapshot.node_count,
            count=count,
        )

    def newcomers(self, resource: MeasuredResource) -> Amount:
        """float64[capacity]: the estimate for pods that no sample shows yet."""
        return self._newcomers.columns[MEASURED.index(resource)]

    def terms(self, resources: Sequence[MeasuredResource]) -> Sequence[Term]:
        """These resources, without those of which too few nodes are known."""
        found = self._terms.get(resources)
        if found is None:
            measured = ((each, self.measured(each)) for each in resources)
            found = self._terms[resources] = [
                Term(each, MEASURED.index(each), known.amount, self.newcomers(each), known.allocatable, known.known)
                for each, known in measured
                if known.is_enough
            ]
        return found

    def sampled_at(self, row: int) -> float:
        """The time of the row's sample, in Unix seconds; NaN without one."""
        return self._samples.sampled_at.item(row)

    def newcomers_on(self, row: int) -> int:
        """How many pods of the row count with an estimate."""
        for column in self._newcomers.columns:
            if column.item(row):
                count: int = self._newcomers.counts.item(row)
                return count
        return 0


class RowSums:
    """Sums over the pods of each row.

    Attributes:
        columns: a float64[capacity] for each amount.
        counts: int64[capacity], how many pods each sum has.
    """

    def __init__(self, snapshot: Snapshot, width: int, of_pods: SharesOfPods) -> None:
        self._snapshot = snapshot
        self._of_pods = of_pods
        self.columns: list[Amount] = [np.zeros(0) for _ in range(width)]
        self.counts: npt.NDArray[np.int64] = np.zeros(0, dtype=np.int64)

    def refresh(self, rows: Iterable[int]) -> list[int]:
        """Sum these rows again; returns those that have changed."""
        capacity = self._snapshot.columns.capacity
        if len(self.counts) < capacity:
            self.columns = [grown(column, capacity) for column in self.columns]
            self.counts = grown(self.counts, capacity)
        return [row for row in rows if self._sum(row)]

    def add(self, row: int, count: int) -> bool:
        """Add so many pods that came to a row last. False if one counts in part or a sum is inexact: sum again."""
        if row >= len(self.counts):
            return False
        found, are_whole = self._of_pods(row, self._snapshot.newest_on_row(row, count), are_all=False)
        for amounts in found:
            for column, amount in zip(self.columns, amounts, strict=True):
                total = column[row] = column.item(row) + amount
                are_whole = are_whole and total < _EXACT
        self.counts[row] += len(found)
        return are_whole

    def _sum(self, row: int) -> bool:
        found, _ = self._of_pods(row, self._snapshot.placed_on_row(row), are_all=True)
        sums = list(map(math.fsum, zip(*found, strict=True))) if found else [0.0] * len(self.columns)
        if len(found) == self.counts.item(row) and sums == [column.item(row) for column in self.columns]:
            return False
        for column, amount in zip(self.columns, sums, strict=True):
            column[row] = amount
        self.counts[row] = len(found)
        return True
