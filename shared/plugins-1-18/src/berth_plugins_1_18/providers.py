"""The algorithm providers of kube-scheduler 1.18 and the feature gates that add plugins to them.

The lists are by extension point, in its registry's order. Flags ``--algorithm-provider`` and ``--feature-gates``.
"""

from __future__ import annotations

from typing import Final

import msgspec

from berth.api.config.presets import Gate, Preset
from berth.api.config.types import PluginRef, Plugins, PluginSet, Point

RELEASE: Final = "1.18"
# kube-scheduler 1.18's help text of the flag.
DEPRECATION: Final = (
    "--algorithm-provider: DEPRECATED: the scheduling algorithm provider to use, "
    "one of: ClusterAutoscalerProvider | DefaultProvider"
)


def _named(*names: str) -> PluginSet:
    return PluginSet(enabled=[PluginRef(name=name) for name in names])


def _weighted(**weights: int) -> PluginSet:
    return PluginSet(enabled=[PluginRef(name=name, weight=weight) for name, weight in weights.items()])


# The default plugins of kube-scheduler 1.18.
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
# The same, but full nodes first, so that others become empty and can be removed.
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
GATES: Final = (EVEN_PODS_SPREAD, RESOURCE_LIMITS)  # with 1.18's defaults
# Plugins appended to every provider. 1.18 preempted pods and bound volumes outside of plugins. It had no scheduling
# gates, but the API server would reject the Binding of a gated pod. Nor had it resource claims, but a pod with claims
# cannot start before they have devices.
APPENDED: Final = Plugins(
    pre_enqueue=_named("SchedulingGates"),
    pre_filter=_named("DynamicResources"),
    filter=_named("DynamicResources"),
    post_filter=_named("DefaultPreemption"),
    reserve=_named("VolumeBinding", "DynamicResources"),
    pre_bind=_named("VolumeBinding", "DynamicResources"),
)


def _preset(plugins: Plugins) -> Preset:
    return Preset(plugins=plugins, release=RELEASE, gates=GATES, appended=APPENDED, deprecation=DEPRECATION)


DEFAULT_PRESET: Final = _preset(DEFAULT_PROVIDER)
CLUSTER_AUTOSCALER_PRESET: Final = _preset(CLUSTER_AUTOSCALER_PROVIDER)
