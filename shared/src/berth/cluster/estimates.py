"""What pods that were placed a short while ago will carry and no average shows yet (DESIGN 3.10).

An average over a range takes a new pod in linearly: after a tenth of the range it shows a tenth of the pod. The rest is
added as an estimate: ``estimate x max(0, 1 - (sampled_at - bound_at) / range)``, at most the whole of it; a pod that is
proposed or reserved counts as placed now. One sum a row, computed again for rows whose sample or pods changed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import numpy as np
import numpy.typing as npt

from berth.api.pod import Pod
from berth.cluster.live import BandwidthColumns
from berth.cluster.placement import Placed
from berth.cluster.rows import grown
from berth.cluster.snapshot import Snapshot


class Estimates:
    """The sums for one kind of traffic on one Snapshot; ``amount`` is what one pod is estimated to carry."""

    def __init__(
        self, snapshot: Snapshot, samples: BandwidthColumns, *, range_seconds: float, amount: Callable[[Pod], float]
    ) -> None:
        self._snapshot = snapshot
        self._samples = samples
        self._range = range_seconds
        self._amount = amount
        self._sums: npt.NDArray[np.float64] = np.zeros(0, dtype=np.float64)
        self._seen = -1
        self._sampled = -1

    def column(self) -> npt.NDArray[np.float64]:
        """float64[capacity], in the unit of ``amount``; 0 for rows without a sample. To be read only."""
        if len(self._sums) != self._snapshot.columns.capacity:
            self._sums = grown(self._sums, self._snapshot.columns.capacity)
        for row in self._changed():
            self._sums[row] = self._sum(row)
        self._seen, self._sampled = self._snapshot.version, self._samples.version
        return self._sums

    def pods(self, row: int) -> int:
        """How many pods of a row count with some estimate."""
        return sum(self._share_of(placed) > 0 for placed in self._snapshot.placed_on_row(row))

    def _changed(self) -> Iterable[int]:
        changed = self._snapshot.changed_since(self._seen) if self._seen >= 0 else None
        if changed is None:
            return range(self._snapshot.size)
        told = changed.nodes | changed.pods | changed.retold
        return {*told, *self._samples.changed_since(self._sampled)}

    def _sum(self, row: int) -> float:
        return math.fsum(
            share * self._amount(placed.pod)
            for placed in self._snapshot.placed_on_row(row)
            if (share := self._share_of(placed)) > 0
        )

    def _share_of(self, placed: Placed) -> float:
        return missing_share(placed.bound_at, float(self._samples.sampled_at[placed.row]), self._range)


def missing_share(bound_at: float | None, sampled_at: float, range_seconds: float) -> float:
    """Which part (0..1) of a pod the average up to ``sampled_at`` does not show; 0 when there is no sample."""
    if math.isnan(sampled_at):
        return 0.0
    if bound_at is None:
        return 1.0
    return min(1.0, max(0.0, 1 - (sampled_at - bound_at) / range_seconds))
