"""The plugins of kube-scheduler 1.18 by name: its versions of today's plugins, and those that were removed since."""

from __future__ import annotations

from collections.abc import Mapping

from berth.plugins.factory import PluginFactory
from berth_plugins_1_18 import disklimits, noderesources, preferavoidpods, scores, selectorspread


def as_of_1_18(known: Mapping[str, PluginFactory], *, most_disks: int | None = None) -> Mapping[str, PluginFactory]:
    """The known plugins, with 1.18's in place of those that differed. ``most_disks``: see ``disklimits.factories``."""
    own = {
        "NodeResourcesBalancedAllocation": noderesources.BALANCED_ALLOCATION_FACTORY,
        "ImageLocality": scores.IMAGE_LOCALITY_FACTORY,
        "InterPodAffinity": scores.INTER_POD_AFFINITY_FACTORY,
        "NodeResourcesLeastAllocated": noderesources.LEAST_FACTORY,
        "NodeResourcesMostAllocated": noderesources.MOST_FACTORY,
        "NodeAffinity": scores.NODE_AFFINITY_FACTORY,
        "NodePreferAvoidPods": preferavoidpods.FACTORY,
        "DefaultPodTopologySpread": selectorspread.FACTORY,
        "TaintToleration": scores.TAINT_TOLERATION_FACTORY,
        "PodTopologySpread": scores.POD_TOPOLOGY_SPREAD_FACTORY,
        "NodeResourceLimits": noderesources.RESOURCE_LIMITS_FACTORY,
    }
    return {**known, **own, **{factory.name: factory for factory in disklimits.factories(most=most_disks)}}
