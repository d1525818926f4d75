"""NodeLoad: prefers nodes with much CPU and memory that is really unused, as measured.

``free = 1 - (used + pod) / allocatable`` of each resource, 0..1; ``used`` is measured use with estimates for newcomers
(``loads``), ``pod`` the estimate for the incoming pod (``estimates``). Score: 100 times the mean of ``free`` by
``resourceWeights``, and of ``1 - |used share of CPU - of memory|`` by ``balanceWeight``, in whole numbers. The filter
refuses nodes where ``100 (used + pod) / allocatable``, rounded, is above ``usageThresholds``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Final, TypeVar

import numpy as np

from berth.api.config.nodeload.args import (
    NAME,
    POINTS,
    NodeLoadArgs,
    factors_of,
    reading_of,
    thresholds_of,
    validate,
    weights_of,
)
from berth.api.config.nodeload.queries import MEASURED, MeasuredResource
from berth.api.pod import Pod
from berth.cluster.nodes import Nodes
from berth.cluster.snapshot import Snapshot
from berth.plugins.factory import PluginFactory
from berth.plugins.nodeload.estimates import scaled
from berth.plugins.nodeload.loads import Amount, NodeLoads
from berth.plugins.nodeload.scoring import LoadFilter, LoadLimit, Loads, OneReadingScore, Usage

Value = TypeVar("Value", float, Amount)


class NodeLoad(OneReadingScore):
    """Prefers nodes with much unused CPU and memory, by live data of the bucket ``bandwidth``."""

    name: ClassVar[str] = NAME

    def __init__(self, args: NodeLoadArgs) -> None:
        self._weights = weights_of(args)
        self._balance = args.balance_weight
        scored = MEASURED if self._balance else tuple(self._weights)
        super().__init__(reading_of(args), scored, scaled(factors_of(args.estimated_scaling_factors)))

    def points_of(self, row: int, loads: NodeLoads, usages: Mapping[MeasuredResource, Usage]) -> float:
        del row, loads
        return self._points({resource: min(used / total, 1.0) for resource, (used, total) in usages.items()})

    def points(self, pod: Pod, nodes: Nodes, loads: Loads) -> Amount:
        del pod
        return np.zeros(len(nodes)) + self._points({each: np.minimum(loads.share(each), 1.0) for each in loads.used})

    def _points(self, shares: Mapping[MeasuredResource, Value]) -> Value | float:
        """By the used shares, 0..1."""
        points: Value | float = 0.0
        weights = 0
        for resource, weight in self._weights.items():
            if resource in shares:
                points = points + weight * (1 - shares[resource])
                weights += weight
        if self._balance and len(shares) > 1:
            points = points + self._balance * (1 - abs(shares["cpu"] - shares["memory"]))
            weights += self._balance
        return points * (100 / max(weights, 1))


class FilteringNodeLoad(NodeLoad, LoadFilter):
    """NodeLoad that also refuses nodes above a threshold."""

    def __init__(self, args: NodeLoadArgs) -> None:
        super().__init__(args)
        self._limit = LoadLimit(percents=thresholds_of(args), reading=self.reading)
        self.rejects_for = self.reading.maximum_age

    def limit_for(self, pod: Pod) -> LoadLimit:
        del pod  # one limit for all
        return self._limit

    def filter_loads(self, pod: Pod, snapshot: Snapshot) -> NodeLoads:
        return self.loads_for(pod, snapshot)


def _build(args: NodeLoadArgs) -> NodeLoad:
    """The plugin, without Filter unless configured, so that the binder reads live data only for a filter."""
    return FilteringNodeLoad(args) if thresholds_of(args) else NodeLoad(args)


FACTORY: Final = PluginFactory(name=NAME, points=POINTS, build=_build, args_type=NodeLoadArgs, validate=validate)
