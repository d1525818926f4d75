"""What nodes use of CPU and memory: samples, an estimate for pods that they do not show, the mean for unknown nodes.

A pod counts with ``estimate x min(1, max(0, 1 - (t - hold - bound_at) / range))``, where ``t`` is the sample's time:
the mean over ``range`` up to ``t`` has the rest of it. A proposed or assumed pod counts as placed now. A node is
unknown without a sample, or with one above the maximum age; it counts as using the mean share of the known nodes, and
``t`` is now. If fewer than half of the nodes are known, nothing is known (``is_enough``).

Sums by row are kept up to date, a change of a row costs its pods. Rows of unknown nodes are summed again in steps of
the range, because there the estimate fades with the clock.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from berth.api.config.nodeload.queries import MEASURED, LoadReading, MeasuredResource
from berth.api.pod import Pod
from berth.cluster.columns import grown
from berth.cluster.livedata import SampleColumns
from berth.cluster.pods import PlacedPod
from berth.cluster.snapshot import Snapshot
from berth.plugins.nodeload.estimates import Estimate

Amount = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

# Share of the range after which estimates on unknown nodes are computed again.
_STEP: Final = 1 / 12

# The estimate of a placed pod; None for one that does not count.
PodEstimate = Callable[[PlacedPod], Estimate | None]


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


class NodeLoads:
    """The load of all nodes by one reading; up to date after :meth:`refresh`."""

    def __init__(
        self,
        snapshot: Snapshot,
        reading: LoadReading,
        estimate: PodEstimate,
        *,
        hold_seconds: Callable[[Pod], float] = lambda _: 0.0,
    ) -> None:
        """``hold_seconds``: for how long the estimate of a pod does not fade."""
        self._snapshot = snapshot
        self._statistic = reading.statistic
        self._token = reading.query.token  # computed by each call
        self._maximum_age = reading.maximum_age.total_seconds()
        self._range = reading.query.time_range.total_seconds()
        self._hold = hold_seconds
        self._estimate = estimate
        self._newcomers = RowSums(snapshot, len(MEASURED), self._missing)
        self._sums = [self._newcomers]
        self._as_of: Amount = np.zeros(0)  # by row, the time up to which estimates have faded
        self._measured: dict[MeasuredResource, Measured] = {}
        self._seen = self._sampled = self._step = -1
        self._expires = -math.inf

    def refresh(self) -> None:
        """Call before anything is read, in each cycle."""
        samples, version, now = self._samples, self._snapshot.version, self._snapshot.live.now
        step = math.floor(now / (self._range * _STEP))
        if (version, samples.version, step) == (self._seen, self._sampled, self._step) and now <= self._expires:
            return
        changed = self._snapshot.changed_since(self._seen) if self._seen >= 0 else None
        if changed is None or changed.nodes or samples.version != self._sampled or now > self._expires:
            self._measured = {}
        also: Collection[int] = samples.changed_since(self._sampled)
        if changed is None or step != self._step or now > self._expires:
            also = self._fade(samples, now, also)
        else:
            self._set_as_of(samples, also)
        for sums in self._sums:
            sums.refresh(also)
        self._seen, self._sampled, self._step = version, samples.version, step

    def _fade(self, samples: SampleColumns, now: float, also: Iterable[int]) -> set[int]:
        """Rows whose estimates changed with the clock, and ``also``."""
        sampled_at = samples.sampled_at
        recent = now - sampled_at <= self._maximum_age
        self._as_of = np.where(recent, sampled_at, now)
        self._expires = float(np.min(sampled_at, where=recent, initial=math.inf)) + self._maximum_age
        unknown = np.flatnonzero(self._snapshot.columns.exists & ~recent)
        return {*unknown.tolist(), *also}

    def _set_as_of(self, samples: SampleColumns, rows: Iterable[int]) -> None:
        now = self._snapshot.live.now
        if len(self._as_of) != len(samples.sampled_at):
            self._as_of = grown(self._as_of, len(samples.sampled_at), now)
        for row in rows:
            sampled_at = float(samples.sampled_at[row])
            is_recent = now - sampled_at <= self._maximum_age
            self._as_of[row] = sampled_at if is_recent else now
            if is_recent:
                self._expires = min(self._expires, sampled_at + self._maximum_age)

    @property
    def _samples(self) -> SampleColumns:
        return self._snapshot.live.samples(self._token)

    def _missing(self, placed: PlacedPod) -> Estimate | None:
        share = self.missing_share(placed)
        if share <= 0 or (amounts := self._estimate(placed)) is None:
            return None
        return tuple(share * amount for amount in amounts)

    def missing_share(self, placed: PlacedPod) -> float:
        """The share (0..1) of the pod's use that its node's sample lacks."""
        if placed.bound_at is None:
            return 1.0
        since = float(self._as_of[placed.row]) - self._hold(placed.pod) - placed.bound_at
        return min(1.0, max(0.0, 1 - since / self._range))

    def measured(self, resource: MeasuredResource) -> Measured:
        known = self._measured.get(resource)
        if known is None:
            known = self._measured[resource] = self._measure(resource)
        return known

    def _measure(self, resource: MeasuredResource) -> Measured:
        columns, samples = self._snapshot.columns, self._samples
        amount = samples.usage(resource, self._statistic)
        allocatable = np.maximum(columns.allocatable.of(resource), 1.0)
        known = columns.exists & (self._snapshot.live.now - samples.sampled_at <= self._maximum_age) & ~np.isnan(amount)
        count = int(np.count_nonzero(known))
        mean = float(np.sum(amount / allocatable, where=known)) / count if count else 0.0
        return Measured(
            known=known,
            amount=np.where(known, amount, mean * allocatable),
            allocatable=allocatable,
            nodes=self._snapshot.node_count,
            count=count,
        )

    def newcomers(self, resource: MeasuredResource) -> Amount:
        """float64[capacity]: the estimate for pods that no sample shows yet."""
        column: Amount = self._newcomers.columns[MEASURED.index(resource)]
        return column

    def age_seconds(self, row: int) -> float:
        """The age of the row's sample; NaN without one."""
        age: float = self._snapshot.live.now - self._samples.sampled_at.item(row)
        return 0.0 if age < 0 else age

    def newcomers_on(self, row: int) -> int:
        """How many pods of the row count with an estimate."""
        if not any(self._newcomers.columns[:, row].tolist()):
            return 0
        return sum(self._missing(placed) is not None for placed in self._snapshot.placed_on_row(row))


class RowSums:
    """Sums over the pods of each row: ``columns`` float64[width, capacity], up to date after :meth:`refresh`."""

    def __init__(self, snapshot: Snapshot, width: int, of_pod: PodEstimate) -> None:
        self._snapshot = snapshot
        self._of_pod = of_pod
        self.columns: npt.NDArray[np.float64] = np.zeros((width, 0))
        self._seen = -1

    def refresh(self, also: Iterable[int] = ()) -> None:
        """``also``: rows to sum again though their pods have not changed."""
        capacity = self._snapshot.columns.capacity
        if (missing := capacity - self.columns.shape[1]) > 0:
            self.columns = np.pad(self.columns, ((0, 0), (0, missing)))
        for row in self._changed(also):
            self.columns[:, row] = self._sums(row)
        self._seen = self._snapshot.version

    def _changed(self, also: Iterable[int]) -> Iterable[int]:
        if self._seen == self._snapshot.version:
            return also
        changed = self._snapshot.changed_since(self._seen) if self._seen >= 0 else None
        if changed is None:
            return range(self._snapshot.size)
        return {*changed.nodes, *changed.pods, *changed.pods_updated, *also}

    def _sums(self, row: int) -> list[float]:
        found = [
            amounts for placed in self._snapshot.placed_on_row(row) if (amounts := self._of_pod(placed)) is not None
        ]
        return [math.fsum(column) for column in zip(*found, strict=True)] if found else [0.0] * len(self.columns)
