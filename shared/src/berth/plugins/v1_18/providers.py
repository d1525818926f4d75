"""The two lists of plugins that kube-scheduler 1.18 knew by name, and the gates that added to them.

Point by point and in order as its registry had them. What plugins do today beside them, the scheduler itself did.
"""

from __future__ import annotations

from typing import Final

import msgspec

from berth.api.config.types import PluginRef, Plugins, PluginSet, Point
from berth.plugins.featuregates import Gate

RELEASE: Final = "1.18"


def _named(*names: str) -> PluginSet:
    return PluginSet(enabled=[PluginRef(name=name) for name in names])


def _weighted(**weights: int) -> PluginSet:
    return PluginSet(enabled=[PluginRef(name=name, weight=weight) for name, weight in weights.items()])


DEFAULT_PROVIDER: Final = Plugins(
    queue_sort=_named("PrioritySort"),
    pre_filter=_named("NodeResourcesFit", "NodePorts", "InterPodAffinity"),
    filter=_named(
        "NodeUnschedulable",
        "NodeResourcesFit",
        "NodeName",
        "NodePorts",
        "NodeAffinity",
        "VolumeRestrictions",
        "TaintToleration",
        "EBSLimits",
        "GCEPDLimits",
        "NodeVolumeLimits",
        "AzureDiskLimits",
        "VolumeBinding",
        "VolumeZone",
        "InterPodAffinity",
    ),
    pre_score=_named("InterPodAffinity", "DefaultPodTopologySpread", "TaintToleration"),
    score=_weighted(
        NodeResourcesBalancedAllocation=1,
        ImageLocality=1,
        InterPodAffinity=1,
        NodeResourcesLeastAllocated=1,
        NodeAffinity=1,
        NodePreferAvoidPods=10_000,
        DefaultPodTopologySpread=1,
        TaintToleration=1,
    ),
    bind=_named("DefaultBinder"),
)
"""What kube-scheduler 1.18 ran unless it was told otherwise."""

CLUSTER_AUTOSCALER_PROVIDER: Final = msgspec.structs.replace(
    DEFAULT_PROVIDER,
    score=PluginSet(
        enabled=[
            PluginRef(name="NodeResourcesMostAllocated", weight=ref.weight)
            if ref.name == "NodeResourcesLeastAllocated"
            else ref
            for ref in DEFAULT_PROVIDER.score.enabled or ()
        ]
    ),
)
"""The same, but full nodes first, so that others fall empty and can be given back."""

EVEN_PODS_SPREAD: Final = Gate(
    name="EvenPodsSpread",
    is_on=True,
    adds={
        Point.PRE_FILTER: PluginRef(name="PodTopologySpread"),
        Point.FILTER: PluginRef(name="PodTopologySpread"),
        Point.PRE_SCORE: PluginRef(name="PodTopologySpread"),
        Point.SCORE: PluginRef(name="PodTopologySpread", weight=1),
    },
)
RESOURCE_LIMITS: Final = Gate(
    name="ResourceLimitsPriorityFunction",
    is_on=False,
    adds={
        Point.PRE_SCORE: PluginRef(name="NodeResourceLimits"),
        Point.SCORE: PluginRef(name="NodeResourceLimits", weight=1),
    },
)
GATES: Final = (EVEN_PODS_SPREAD, RESOURCE_LIMITS)
"""On or off as that release had them."""

BESIDE: Final = Plugins(
    pre_enqueue=_named("SchedulingGates"),
    pre_filter=_named("DynamicResources"),
    post_filter=_named("DefaultPreemption"),
    reserve=_named("VolumeBinding"),
    pre_bind=_named("VolumeBinding"),
)
"""What is done as well. That release evicted less important pods and bound volumes too, but outside of plugins. And a
pod with scheduling gates, which it did not know, waits: the API server would refuse its Binding. One that
claims devices is refused."""
