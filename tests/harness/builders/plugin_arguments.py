"""Arguments with which a plugin has an effect in random clusters, for the tests that run every plugin there."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta

from berth.api.config.networktraffic import NetworkTrafficArgs
from berth.api.config.nodeload.args import NodeLoadArgs
from berth.api.config.nodeload.koordinator import LoadAwareSchedulingArgs
from berth.api.pod import TopologySpreadConstraint
from berth.plugins.additional.nodefailures import NodeFailuresArgs
from berth.plugins.additional.nodelabel import NodeFilterLabelArgs, NodeScoreLabelArgs
from berth.plugins.additional.tenantspread import TenantSpreadArgs
from berth.plugins.factory import Args, PluginFactory
from berth.plugins.interpodaffinity.plugin import InterPodAffinityArgs
from berth.plugins.noderesources.balancedallocation import BalancedAllocationArgs
from berth.plugins.noderesources.fit import NodeResourcesFitArgs
from berth.plugins.noderesources.scoringstrategy import ResourceWeight, ScoringStrategy, Shape, ShapePoint
from berth.plugins.podtopologyspread.plugin import PodTopologySpreadArgs
from berth_plugins_1_18.scores import PodTopologySpreadArgsV118
from harness.builders.random_clusters import QUERY

RESOURCES = [
    ResourceWeight(name="cpu", weight=3),
    ResourceWeight(name="memory", weight=2),
    ResourceWeight(name="example.com/gpu", weight=5),
    ResourceWeight(name="ephemeral-storage", weight=1),
]
ONCE_EACH = [ResourceWeight(name=resource.name) for resource in RESOURCES]
DEFAULTS = PodTopologySpreadArgs(
    defaulting_type="List",
    default_constraints=[
        TopologySpreadConstraint(max_skew=1, topology_key=key, when_unsatisfiable=action)
        for key in ("zone", "disk")
        for action in ("DoNotSchedule", "ScheduleAnyway")
    ],
)
SHAPE = Shape(shape=[ShapePoint(utilization=u, score=s) for u, s in [(0, 10), (30, 0), (70, 7), (100, 3)]])


def fit(kind: str, **args: object) -> NodeResourcesFitArgs:
    shape = SHAPE if kind == "RequestedToCapacityRatio" else None
    strategy = ScoringStrategy(type=kind, resources=RESOURCES, requested_to_capacity_ratio=shape)
    return NodeResourcesFitArgs(scoring_strategy=strategy, **args)


def traffic(**args: object) -> NetworkTrafficArgs:
    return NetworkTrafficArgs(url=QUERY.url, range=QUERY.time_range, **args)


ARGUMENTS: dict[str, dict[str, Args]] = {
    "NodeResourcesFit": {
        "LeastAllocated": fit("LeastAllocated"),
        "MostAllocated": fit("MostAllocated", ignored_resources=["example.com/gpu"]),
        "RequestedToCapacityRatio": fit("RequestedToCapacityRatio", ignored_resource_groups=["example.com"]),
    },
    "NodeResourcesBalancedAllocation": {
        "two resources": BalancedAllocationArgs(),
        "four resources": BalancedAllocationArgs(resources=ONCE_EACH),
    },
    "NodeLoad": {
        "balance": NodeLoadArgs(balance_weight=2, resource_weights={"memory": 1}),
        "thresholds": NodeLoadArgs(statistic="p95", usage_thresholds={"cpu": 60, "memory": 30}),
    },
    "NodeFailures": {"back-off": NodeFailuresArgs(back_off=timedelta(minutes=1))},
    "LoadAwareScheduling": {
        "dominant": LoadAwareSchedulingArgs(dominant_resource_weight=1, estimated_seconds_after_pod_scheduled=60),
        "prod": LoadAwareSchedulingArgs(
            prod_usage_thresholds={"cpu": 20}, score_according_prod_usage=True, prod_usage_include_sys=True
        ),
    },
    "InterPodAffinity": {"heavy": InterPodAffinityArgs(hard_pod_affinity_weight=50)},
    "PodTopologySpread": {"by the system": PodTopologySpreadArgs(), "by a list": DEFAULTS},
    "1.18 PodTopologySpread": {
        "by a list": PodTopologySpreadArgsV118(default_constraints=DEFAULTS.default_constraints)
    },
    "NodeScoreLabel": {"disk": NodeScoreLabelArgs(key="disk", value="a")},
    "NodeFilterLabel": {"zone": NodeFilterLabelArgs(key="zone", value="b")},
    "TenantSpread": {"tier": TenantSpreadArgs(key="tier")},
    "NetworkTraffic": {
        "relative": traffic(direction="both", saturation_percent=80),
        "of the capacity": traffic(scoring="Capacity", capacity="1G", saturation_percent=5),
    },
}
"""By plugin and what is special about them. A plugin that is not here takes its defaults."""


def arguments_of(name: str, factory: PluginFactory) -> Mapping[str, Args | None]:
    """The plugin's arguments by what is special about them; ``name`` has ``1.18`` before it for a plugin of 1.18."""
    return ARGUMENTS.get(name) or {"defaults": factory.args_type() if factory.args_type else None}
