"""NetworkTraffic: prefers nodes with little network traffic, by live data from Prometheus.

Relative: ``100 - bandwidth * 100 / largest`` in whole numbers, all 100 if no node has traffic. Capacity: ``100 -
bandwidth * 100 / capacity`` of the node's own link, 0 for a full link. A node without a usable sample gets
``unknownScore``. ``bandwidth`` is the sample plus an estimate for recently placed pods, so that not all pods go to one
quiet node until the next sample (docs/design.md, 3.10). The plugin of the article "Kubernetes scheduler, live traffic";
it uses the rate of the counters where the article adds up their readings.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar, Final

import numpy as np

from berth.api.config.networktraffic import CAPACITY, NAME, POINTS, NetworkTrafficArgs, validate
from berth.api.pod import Pod
from berth.cluster.nodes import NodeInfo, Nodes, NodesWithAnother
from berth.cluster.snapshot import Snapshot
from berth.framework.events import Action, ClusterEvent, EventHint, LiveDataUpdate, Resource, nothing
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
from berth.messages.livedata import BANDWIDTH, LiveSource, decode_bandwidth
from berth.plugins.factory import PluginFactory
from berth.plugins.networktraffic.traffic import NodeTraffic, TrafficRule, measured_share

SATURATED: Final = Status.unresolvable("node(s) had a saturated network link")
UNKNOWN: Final = -1  # raw score of a node without a usable sample
# Bytes per second, beyond any link; larger values are clipped, so that whole numbers stay within 64 bits.
_MOST: Final = 2.0**53
_MEGA: Final = 1e6


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
            EventHint(ClusterEvent(Resource.POD, Action.DELETE), _was_on_a_node, key=nothing),
        )

    def _is_unsaturated_now(self, _: Pod, __: object, news: object) -> bool:
        """Decide by the sample alone, because estimates that may have rejected the node fade."""
        if not isinstance(news, LiveDataUpdate) or news.source not in self.live_sources:
            return False
        return news.data is None or not measured_share(decode_bandwidth(news.data), self._args) >= self._limit


def _was_on_a_node(_: Pod, old: object, __: object) -> bool:
    return isinstance(old, Pod) and bool(old.spec.node_name)


def _megabytes(bytes_per_second: float) -> str:
    return "unknown" if math.isnan(bytes_per_second) else f"{bytes_per_second / _MEGA:.4g} MB/s"


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
