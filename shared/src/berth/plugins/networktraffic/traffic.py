"""What pods that were placed a short while ago will carry and no average shows yet (DESIGN 3.10).

An average over a range takes a new pod in linearly: after a tenth of the range it shows a tenth of the pod. The rest is
added as an estimate: ``estimate x max(0, 1 - (sampled_at - bound_at) / range)``, at most the whole of it; a pod that is
proposed or reserved counts as placed now. One sum a row, computed again for rows whose sample or pods changed.


The traffic of nodes as NetworkTraffic sees it: the last sample, unless it is too old, and what pods will add to it.

Both forms of every question are here: for one node, and for all of them. Amounts are bytes per second.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np
import numpy.typing as npt

from berth.api.livedata import EGRESS_ANNOTATION, INGRESS_ANNOTATION, Bandwidth, annotated_rate, bytes_per_second
from berth.api.pod import Pod
from berth.cluster.equivalence import Placed
from berth.cluster.livedata import BandwidthColumns
from berth.cluster.rows import grown
from berth.cluster.snapshot import Snapshot
from berth.plugins.networktraffic.args import (
    BOTH,
    RECEIVE,
    TRANSMIT,
    NetworkTrafficArgs,
    maximum_age_of,
    query_of,
    time_range_of,
)


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


Amount = npt.NDArray[np.float64]

ANNOTATIONS: Final = {RECEIVE: INGRESS_ANNOTATION, TRANSMIT: EGRESS_ANNOTATION}


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One node: what was measured (NaN: unknown, or too old), the sample's age and what pods are estimated to add."""

    measured: float
    estimated: float
    capacity: float
    age_seconds: float
    pods: int


class NodeTraffic:
    """The traffic on one Snapshot, by one set of arguments. Nothing is kept that the Snapshot does not show."""

    def __init__(self, args: NetworkTrafficArgs, snapshot: Snapshot) -> None:
        self._live = snapshot.live
        self._query = query_of(args).token
        self._maximum_age = maximum_age_of(args).total_seconds()
        self._capacity = bytes_per_second(args.capacity) if args.capacity else math.nan
        self._directions = (RECEIVE, TRANSMIT) if args.direction == BOTH else (args.direction,)
        default = bytes_per_second(args.pod_bandwidth)
        seconds, samples = time_range_of(args).total_seconds(), self._live.bandwidth(self._query)
        self._estimates = {
            direction: Estimates(
                snapshot,
                samples,
                range_seconds=seconds,
                amount=partial(_of_pod, annotation=ANNOTATIONS[direction], default=default),
            )
            for direction in self._directions
        }

    # One node.

    def used(self, row: int) -> float:
        """The directions that count, together, estimates included; NaN when it is not known."""
        return math.fsum(self._loads_of(row)) if self._is_usable(row) else math.nan

    def used_share(self, row: int) -> float:
        """Of the link's capacity, the direction that uses more of it; NaN when that or the capacity is not known."""
        capacity = self.capacity(row)
        return max(self._loads_of(row)) / capacity if self._is_usable(row) and capacity > 0 else math.nan

    def capacity(self, row: int) -> float:
        """Of the node's link in each direction; NaN when it is not known."""
        told = float(self._live.bandwidth(self._query).capacity[row])
        return self._capacity if math.isnan(told) else told

    def seen(self, row: int) -> Seen:
        """What there is to say about a node, also when its sample is too old to be believed."""
        estimated = math.fsum(self._estimates[direction].column()[row] for direction in self._directions)
        return Seen(
            measured=math.fsum(self._measured(direction)[row] for direction in self._directions),
            estimated=estimated,
            capacity=self.capacity(row),
            age_seconds=self._age(row),
            pods=max(self._estimates[direction].pods(row) for direction in self._directions) if estimated else 0,
        )

    def is_too_old(self, row: int) -> bool:
        """Whether there is a sample, which is not believed any more."""
        return self._age(row) > self._maximum_age

    def _age(self, row: int) -> float:
        return max(0.0, self._live.now - float(self._live.bandwidth(self._query).sampled_at[row]))

    def _is_usable(self, row: int) -> bool:
        loads = self._loads_of(row)
        return not any(math.isnan(load) for load in loads) and not self.is_too_old(row)

    def _loads_of(self, row: int) -> list[float]:
        return [
            float(self._measured(direction)[row] + self._estimates[direction].column()[row])
            for direction in self._directions
        ]

    # All nodes.

    def all_used(self) -> Amount:
        """float64[capacity] of :meth:`used`."""
        loads = self._all_loads()
        return np.where(self._all_recent(), loads[0] if len(loads) == 1 else loads[0] + loads[1], np.nan)

    def all_used_shares(self) -> Amount:
        """float64[capacity] of :meth:`used_share`."""
        loads, told = self._all_loads(), self._live.bandwidth(self._query).capacity
        capacity = np.where(np.isnan(told), self._capacity, told)
        used = loads[0] if len(loads) == 1 else np.maximum(loads[0], loads[1])
        shares: Amount = np.full(len(used), np.nan)
        np.divide(used, capacity, out=shares, where=self._all_recent() & (capacity > 0))
        return shares

    def _all_recent(self) -> npt.NDArray[np.bool_]:
        return self._live.now - self._live.bandwidth(self._query).sampled_at <= self._maximum_age

    def _all_loads(self) -> list[Amount]:
        return [self._measured(direction) + self._estimates[direction].column() for direction in self._directions]

    def _measured(self, direction: str) -> Amount:
        columns = self._live.bandwidth(self._query)
        return columns.receive if direction == RECEIVE else columns.transmit


def measured_share(sample: Bandwidth, args: NetworkTrafficArgs) -> float:
    """Of the link's capacity, the direction that uses more of it, by one sample; NaN when any of it is not known."""
    amounts = {RECEIVE: (sample.receive,), TRANSMIT: (sample.transmit,), BOTH: (sample.receive, sample.transmit)}
    configured = bytes_per_second(args.capacity) if args.capacity else None
    capacity = sample.capacity if sample.capacity is not None else configured
    known = [amount for amount in amounts[args.direction] if amount is not None]
    if not capacity or len(known) < len(amounts[args.direction]):
        return math.nan
    return max(known) / capacity


def _of_pod(pod: Pod, *, annotation: str, default: float) -> float:
    """What a pod is estimated to carry: as it announces, else as anybody does."""
    named = annotated_rate(pod, annotation)
    return default if named is None else named
