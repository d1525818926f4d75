"""Every plugin as kube-scheduler 1.18 had it, by name: in the place of today's, and beside them where they are gone."""

from __future__ import annotations

from collections.abc import Mapping

from berth.plugins.factory import PluginFactory
from berth.plugins.v1_18 import disklimits, noderesources, preferavoidpods, scores, spreading


def as_of_1_18(known: Mapping[str, PluginFactory], *, most_disks: int | None = None) -> Mapping[str, PluginFactory]:
    """The plugins that are known, those that differed as they were. ``most_disks``: see disklimits."""
    own = {
        "NodeResourcesBalancedAllocation": noderesources.BALANCED_ALLOCATION_FACTORY,
        "ImageLocality": scores.IMAGE_LOCALITY_FACTORY,
        "InterPodAffinity": scores.INTER_POD_AFFINITY_FACTORY,
        "NodeResourcesLeastAllocated": noderesources.LEAST_FACTORY,
        "NodeResourcesMostAllocated": noderesources.MOST_FACTORY,
        "NodeAffinity": scores.NODE_AFFINITY_FACTORY,
        "NodePreferAvoidPods": preferavoidpods.FACTORY,
        "DefaultPodTopologySpread": spreading.SELECTOR_SPREAD_FACTORY,
        "TaintToleration": scores.TAINT_TOLERATION_FACTORY,
        "PodTopologySpread": spreading.POD_TOPOLOGY_SPREAD_FACTORY,
        "NodeResourceLimits": noderesources.RESOURCE_LIMITS_FACTORY,
    }
    return {**known, **own, **{factory.name: factory for factory in disklimits.factories(most=most_disks)}}
