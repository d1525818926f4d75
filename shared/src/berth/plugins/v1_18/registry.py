"""Every plugin as kube-scheduler 1.18 had it, by name: in the place of today's, and beside them where they are gone."""

from __future__ import annotations

from collections.abc import Mapping

from berth.plugins.factory import PluginFactory
from berth.plugins.v1_18 import (
    balancedallocation,
    disklimits,
    imagelocality,
    interpodaffinity,
    nodeaffinity,
    podtopologyspread,
    preferavoidpods,
    resourceallocation,
    resourcelimits,
    selectorspread,
    tainttoleration,
)


def as_of_1_18(known: Mapping[str, PluginFactory], *, most_disks: int | None = None) -> Mapping[str, PluginFactory]:
    """The plugins that are known, those that differed as they were. ``most_disks``: see disklimits."""
    own = {
        "NodeResourcesBalancedAllocation": balancedallocation.FACTORY,
        "ImageLocality": imagelocality.FACTORY,
        "InterPodAffinity": interpodaffinity.FACTORY,
        "NodeResourcesLeastAllocated": resourceallocation.LEAST_FACTORY,
        "NodeResourcesMostAllocated": resourceallocation.MOST_FACTORY,
        "NodeAffinity": nodeaffinity.FACTORY,
        "NodePreferAvoidPods": preferavoidpods.FACTORY,
        "DefaultPodTopologySpread": selectorspread.FACTORY,
        "TaintToleration": tainttoleration.FACTORY,
        "PodTopologySpread": podtopologyspread.FACTORY,
        "NodeResourceLimits": resourcelimits.FACTORY,
    }
    return {**known, **own, **{factory.name: factory for factory in disklimits.factories(most=most_disks)}}
