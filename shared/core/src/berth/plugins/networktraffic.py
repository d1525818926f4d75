"""NetworkTraffic: prefers nodes with little network traffic, by live data from Prometheus.

Relative: ``100 - bandwidth * 100 / largest`` in whole numbers, all 100 if no node has traffic. Capacity: ``100 -
bandwidth * 100 / capacity`` of the node's own link, 0 for a full link. A node without a usable sample gets
``unknownScore``. ``bandwidth`` is the sample plus, for each recently placed pod, ``estimate x max(0, 1 - (sampled_at -
bound_at) / range)``, at most all of it (docs/design.md, 3.10); a proposed or assumed pod counts as placed now. Amounts
are bytes per second. The plugin of the article "Kubernetes scheduler, live traffic"; it uses the rate of the counters
where the article adds up their readings.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Final

import numpy as np
import numpy.typing as npt

from berth.api.config.networktraffic import (
    BOTH,
    CAPACITY,
    EGRESS_ANNOTATION,
    INGRESS_ANNOTATION,
    NAME,
    POINTS,
    RECEIVE,
    TRANSMIT,
    NetworkTrafficArgs,
    annotated_rate,
    bytes_per_second,
    maximum_age_of,
    query_of,
    time_range_of,
    validate,
)
from berth.api.pod import Pod
from berth.cluster.columns import grown
from berth.cluster.livedata import SampleColumns
from berth.cluster.nodes import Amount, NodeInfo, Nodes, NodesWithAnother
from berth.cluster.pods import PlacedPod
from berth.cluster.snapshot import Snapshot
from berth.framework.events import Action, ClusterEvent, EventHint, LiveDataUpdate, Resource, nothing, was_placed
from berth.framework.interface import (
    MAX_SCORE,
    EnqueueExtensions,
    ExplainingPlugin,
    NormalizePlugin,
    Scores,
    VectorFilterPlugin,
    VectorScorePlugin,
)
from berth.framework.status import SUCCESS, CycleState, Status, Verdicts
from berth.messages.livedata import BANDWIDTH, LiveSource, NodeSample, decode_sample
from berth.plugins.factory import PluginFactory

SATURATED: Final = Status.unresolvable("node(s) had a saturated network link")
UNKNOWN: Final = -1  # raw score of a node without a usable sample
# Bytes per second, beyond any link; larger values are clipped, so that whole numbers stay within 64 bits.
_MOST: Final = 2.0**53
_MEGA: Final = 1e6
ANNOTATIONS: Final = {RECEIVE: INGRESS_ANNOTATION, TRANSMIT: EGRESS_ANNOTATION}


class NetworkTraffic(VectorScorePlugin, NormalizePlugin, ExplainingPlugin):
    """Prefers nodes with little network traffic, by live data of the bucket ``bandwidth``."""

    name: ClassVar[str] = NAME

    def __init__(self, args: NetworkTrafficArgs) -> None:
        self._args = args
        self._of_capacity = args.scoring == CAPACITY
        self._rule = TrafficRule.of(args)
        self.live_sources = frozenset({LiveSource(bucket=BANDWIDTH, name=self._rule.query)})

    def score(self, state: CycleState, pod: Pod, node: NodeInfo) -> int:
        """Bytes per second, or percent of the capacity; UNKNOWN without a usable sample."""
        traffic = self._traffic_on(node.snapshot)
        raw = 100 * traffic.used_share(node.row) if self._of_capacity else traffic.used(node.row)
        return UNKNOWN if math.isnan(raw) else math.floor(min(raw, _MOST))

    def score_all(self, state: CycleState, pod: Pod, nodes: Nodes) -> Scores:
        return self._score_all(nodes, None)

    def score_with_another(self, state: CycleState, pod: Pod, nodes: NodesWithAnother) -> Scores:
        """Score with the whole estimate for the other pod, as for a pod that was just placed."""
        return self._score_all(nodes, pod)

    def _score_all(self, nodes: Nodes, another: Pod | None) -> Scores:
        traffic = self._traffic_on(nodes.snapshot)
        raw = nodes.take(100 * traffic.all_used_shares(another) if self._of_capacity else traffic.all_used(another))
        return np.where(np.isnan(raw), UNKNOWN, np.floor(np.minimum(raw, _MOST))).astype(np.int64)

    def normalize(self, state: CycleState, pod: Pod, scores: Scores, nodes: Nodes) -> Scores:
        largest = MAX_SCORE if self._of_capacity else max(int(scores.max(initial=0)), 1)
        used = np.minimum(scores * MAX_SCORE // largest, MAX_SCORE)
        return np.where(scores == UNKNOWN, self._args.unknown_score, MAX_SCORE - used)

    def explain(self, state: CycleState, pod: Pod, node: NodeInfo) -> str:
        details, direction = self._traffic_on(node.snapshot).details(node.row), self._args.direction
        if math.isnan(details.measured):
            return "unknown: no sample"
        text = f"{_megabytes(details.measured)} {direction}, sampled {details.age_seconds:.0f} s ago"
        if details.estimated:
            pods = "1 pod" if details.pods == 1 else f"{details.pods} pods"
            text += f", {_megabytes(details.estimated)} estimated for {pods} placed lately"
        if self._of_capacity:
            text += f", link {_megabytes(details.capacity)}"
        return f"unknown, too old: {text}" if details.is_too_old else text

    def _traffic_on(self, snapshot: Snapshot) -> NodeTraffic:
        return snapshot.derived(self, lambda: NodeTraffic(self._rule, snapshot))


class FilteringNetworkTraffic(NetworkTraffic, VectorFilterPlugin, EnqueueExtensions):
    """NetworkTraffic that also rejects nodes with a saturated link; nodes without a usable sample pass."""

    def __init__(self, args: NetworkTrafficArgs) -> None:
        super().__init__(args)
        self._limit = args.saturation_percent / 100
        self.rejects_for = maximum_age_of(args)

    def filter(self, state: CycleState, pod: Pod, node: NodeInfo) -> Status:
        return SATURATED if self._traffic_on(node.snapshot).used_share(node.row) >= self._limit else SUCCESS

    def filter_all(self, state: CycleState, pod: Pod, nodes: Nodes) -> Verdicts:
        shares = nodes.take(self._traffic_on(nodes.snapshot).all_used_shares())
        return Verdicts.refusing(shares >= self._limit, SATURATED)

    def events(self) -> Sequence[EventHint]:
        """A sample below the limit; a new node, which has no sample yet; a placed pod is deleted."""
        return (
            EventHint(ClusterEvent(Resource.BANDWIDTH, Action.UPDATE), self._is_unsaturated_now, key=nothing),
            EventHint(ClusterEvent(Resource.NODE, Action.ADD)),
            EventHint(ClusterEvent(Resource.POD, Action.DELETE), was_placed, key=nothing),
        )

    def _is_unsaturated_now(self, _: Pod, __: object, news: object) -> bool:
        """Decide by the sample alone, because estimates that may have rejected the node fade."""
        if not isinstance(news, LiveDataUpdate) or news.source not in self.live_sources:
            return False
        return news.data is None or not measured_share(decode_sample(news.data), self._args) >= self._limit


def _megabytes(bytes_per_second: float) -> str:
    return "unknown" if math.isnan(bytes_per_second) else f"{bytes_per_second / _MEGA:.4g} MB/s"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficDetails:
    """One node: the sample (NaN: unknown), its age, the estimate for recently placed pods and their number."""

    measured: float
    estimated: float
    capacity: float
    age_seconds: float
    is_too_old: bool
    pods: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficRule:
    """The plugin's arguments, parsed once. Amounts are bytes per second; ``capacity`` is NaN if not configured."""

    query: str
    maximum_age_seconds: float
    range_seconds: float
    directions: tuple[str, ...]
    capacity: float
    pod_bandwidth: float

    @classmethod
    def of(cls, args: NetworkTrafficArgs) -> TrafficRule:
        return cls(
            query=query_of(args).token,
            maximum_age_seconds=maximum_age_of(args).total_seconds(),
            range_seconds=time_range_of(args).total_seconds(),
            directions=(RECEIVE, TRANSMIT) if args.direction == BOTH else (args.direction,),
            capacity=bytes_per_second(args.capacity) if args.capacity else math.nan,
            pod_bandwidth=bytes_per_second(args.pod_bandwidth),
        )


class NodeTraffic:
    def __init__(self, rule: TrafficRule, snapshot: Snapshot) -> None:
        self._rule = rule
        self._live = snapshot.live
        samples = self._samples = self._live.samples(rule.query)
        self._estimates = [
            TrafficEstimates(
                snapshot,
                samples,
                range_seconds=rule.range_seconds,
                amount=partial(_pod_bandwidth, annotation=ANNOTATIONS[direction], default=rule.pod_bandwidth),
            )
            for direction in rule.directions
        ]

    # One node.

    def used(self, row: int) -> float:
        """The sum of the configured directions, estimates included; NaN if unknown."""
        loads = self._loads_of(row)
        return math.fsum(loads) if self._is_usable(row, loads) else math.nan

    def used_share(self, row: int) -> float:
        """The used share of the link's capacity, by the busier direction; NaN if this or the capacity is unknown."""
        loads, capacity = self._loads_of(row), self._capacity(row)
        return max(loads) / capacity if self._is_usable(row, loads) and capacity > 0 else math.nan

    def details(self, row: int) -> TrafficDetails:
        """The parts of the value, also for a sample that is too old."""
        self._samples.refresh()
        estimated = math.fsum(estimates.column()[row] for estimates in self._estimates)
        age = self._age(row)
        return TrafficDetails(
            measured=math.fsum(measured[row] for measured in self._measured()),
            estimated=estimated,
            capacity=self._capacity(row),
            age_seconds=age,
            is_too_old=age > self._rule.maximum_age_seconds,
            pods=max(estimates.pods(row) for estimates in self._estimates) if estimated else 0,
        )

    def _capacity(self, row: int) -> float:
        reported = float(self._samples.capacity[row])
        return self._rule.capacity if math.isnan(reported) else reported

    def _age(self, row: int) -> float:
        return max(0.0, self._live.now - float(self._samples.sampled_at[row]))

    def _is_usable(self, row: int, loads: Sequence[float]) -> bool:
        return not any(map(math.isnan, loads)) and not self._age(row) > self._rule.maximum_age_seconds

    def _loads_of(self, row: int) -> list[float]:
        self._samples.refresh()
        pairs = zip(self._measured(), self._estimates, strict=True)
        return [float(measured[row] + estimates.column()[row]) for measured, estimates in pairs]

    # All nodes.

    def all_used(self, another: Pod | None = None) -> Amount:
        """float64[capacity] of :meth:`used`; ``another``: as if this pod had just been placed on each node too."""
        loads = self._all_loads(another)
        return np.where(self._all_recent(), loads[0] if len(loads) == 1 else loads[0] + loads[1], np.nan)

    def all_used_shares(self, another: Pod | None = None) -> Amount:
        """float64[capacity] of :meth:`used_share`; ``another`` as in :meth:`all_used`."""
        loads, reported = self._all_loads(another), self._samples.capacity
        capacity = np.where(np.isnan(reported), self._rule.capacity, reported)
        used = loads[0] if len(loads) == 1 else np.maximum(loads[0], loads[1])
        shares: Amount = np.full(len(used), np.nan)
        np.divide(used, capacity, out=shares, where=self._all_recent() & (capacity > 0))
        return shares

    def _all_recent(self) -> npt.NDArray[np.bool_]:
        return self._live.now - self._samples.sampled_at <= self._rule.maximum_age_seconds

    def _all_loads(self, another: Pod | None) -> list[Amount]:
        self._samples.refresh()
        pairs = zip(self._measured(), self._estimates, strict=True)
        return [measured + estimates.column() + estimates.of_new(another) for measured, estimates in pairs]

    def _measured(self) -> list[Amount]:
        """The samples by direction; up to date after ``refresh``."""
        samples = self._samples
        return [samples.receive if direction == RECEIVE else samples.transmit for direction in self._rule.directions]


def measured_share(sample: NodeSample, args: NetworkTrafficArgs) -> float:
    """The share of the link's capacity used in one sample, by the busier direction; NaN if unknown."""
    amounts = {RECEIVE: (sample.receive,), TRANSMIT: (sample.transmit,), BOTH: (sample.receive, sample.transmit)}
    configured = bytes_per_second(args.capacity) if args.capacity else None
    capacity = sample.capacity if sample.capacity is not None else configured
    known = [amount for amount in amounts[args.direction] if amount is not None]
    if not capacity or len(known) < len(amounts[args.direction]):
        return math.nan
    return max(known) / capacity


def _pod_bandwidth(pod: Pod, *, annotation: str, default: float) -> float:
    value = annotated_rate(pod, annotation) if pod.metadata.annotations else None
    return default if value is None else value


class TrafficEstimates:
    """Estimates by row for one direction of traffic; ``amount`` is the estimate for one pod.

    One sum per row, recomputed after a change of the sample or the pods.
    """

    def __init__(
        self, snapshot: Snapshot, samples: SampleColumns, *, range_seconds: float, amount: Callable[[Pod], float]
    ) -> None:
        self._snapshot = snapshot
        self._samples = samples
        self._range = range_seconds
        self._amount = amount
        self._sums: npt.NDArray[np.float64] = np.zeros(0, dtype=np.float64)
        self._seen = -1
        self._sampled = -1

    def column(self) -> npt.NDArray[np.float64]:
        """float64[capacity], in the unit of ``amount``; 0 for rows without a sample. Read-only."""
        if len(self._sums) != self._snapshot.columns.capacity:
            self._sums = grown(self._sums, self._snapshot.columns.capacity)
        version = self._snapshot.version
        if (version, self._samples.version) != (self._seen, self._sampled):
            for row in self._changed():
                self._sums[row] = self._sum(row)
            self._seen, self._sampled = version, self._samples.version
        return self._sums

    def of_new(self, pod: Pod | None) -> float:
        """The estimate for a pod that is placed now; 0 for None."""
        return 0.0 if pod is None else self._amount(pod)

    def pods(self, row: int) -> int:
        return sum(self._share_of(placed) > 0 for placed in self._snapshot.placed_on_row(row))

    def _changed(self) -> Iterable[int]:
        changed = self._snapshot.changed_since(self._seen) if self._seen >= 0 else None
        if changed is None:
            return range(self._snapshot.size)
        rows = changed.nodes | changed.pods | changed.pods_updated
        return {*rows, *self._samples.changed_since(self._sampled)}

    def _sum(self, row: int) -> float:
        return math.fsum(
            share * self._amount(placed.pod)
            for placed in self._snapshot.placed_on_row(row)
            if (share := self._share_of(placed)) > 0
        )

    def _share_of(self, placed: PlacedPod) -> float:
        return missing_share(placed.bound_at, float(self._samples.sampled_at[placed.row]), self._range)


def missing_share(bound_at: float | None, sampled_at: float, range_seconds: float) -> float:
    """The share (0..1) of a pod that is missing in the average up to ``sampled_at``; 0 without a sample."""
    if math.isnan(sampled_at):
        return 0.0
    if bound_at is None:
        return 1.0
    return min(1.0, max(0.0, 1 - (sampled_at - bound_at) / range_seconds))


def _build(args: NetworkTrafficArgs) -> NetworkTraffic:
    """The plugin, without Filter unless configured, so that the binder reads live data only for a filter."""
    return FilteringNetworkTraffic(args) if args.saturation_percent else NetworkTraffic(args)


FACTORY: Final = PluginFactory(
    name=NAME,
    points=POINTS,
    build=_build,
    args_type=NetworkTrafficArgs,
    validate=validate,
)
