"""All built-in plugins by their names in configurations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from berth.framework.interface import Plugin
from berth.plugins import (
    defaultbinder,
    imagelocality,
    networktraffic,
    nodeaffinity,
    nodedeclaredfeatures,
    nodename,
    nodeports,
    nodeunschedulable,
    prioritysort,
    schedulinggates,
    tainttoleration,
)
from berth.plugins.additional import freecapacity, nodefailures, nodelabel, nodeready, tenantspread
from berth.plugins.defaultpreemption import plugin as defaultpreemption
from berth.plugins.dynamicresources import plugin as dynamicresources
from berth.plugins.factory import PluginFactory
from berth.plugins.interpodaffinity import plugin as interpodaffinity
from berth.plugins.nodeload import koordinator, trimaran
from berth.plugins.nodeload import plugin as nodeload
from berth.plugins.noderesources import balancedallocation, fit
from berth.plugins.podgrouptopology import PodGroupTopology
from berth.plugins.podtopologyspread import plugin as podtopologyspread
from berth.plugins.volumes import nodevolumelimits, volumerestrictions, volumezone
from berth.plugins.volumes.volumebinding import plugin as volumebinding

# A second name of a plugin is an alias: its settings apply to the plugin (berth.api.config.profiles).
BUILT_IN: Final[Mapping[str, PluginFactory]] = {
    "SchedulingGates": schedulinggates.FACTORY,
    "PrioritySort": prioritysort.FACTORY,
    "NodeUnschedulable": nodeunschedulable.FACTORY,
    "NodeName": nodename.FACTORY,
    "TaintToleration": tainttoleration.FACTORY,
    "NodeAffinity": nodeaffinity.FACTORY,
    "NodePorts": nodeports.FACTORY,
    "NodeResourcesFit": fit.FACTORY,
    "NodeResourcesBalancedAllocation": balancedallocation.FACTORY,
    "VolumeRestrictions": volumerestrictions.FACTORY,
    "NodeVolumeLimits": nodevolumelimits.FACTORY,
    "VolumeBinding": volumebinding.FACTORY,
    "VolumeZone": volumezone.FACTORY,
    "PodTopologySpread": podtopologyspread.FACTORY,
    "InterPodAffinity": interpodaffinity.FACTORY,
    "DynamicResources": dynamicresources.FACTORY,
    "DefaultPreemption": defaultpreemption.FACTORY,
    "ImageLocality": imagelocality.FACTORY,
    "NodeDeclaredFeatures": nodedeclaredfeatures.FACTORY,
    "NetworkTraffic": networktraffic.FACTORY,
    "network_traffic": networktraffic.FACTORY,
    "NodeLoad": nodeload.FACTORY,
    "LoadAwareScheduling": koordinator.FACTORY,
    "TargetLoadPacking": trimaran.PACKING_FACTORY,
    "LoadVariationRiskBalancing": trimaran.BALANCING_FACTORY,
    "NodeFailures": nodefailures.FACTORY,
    "NodeReady": nodeready.FACTORY,
    "NodeScoreLabel": nodelabel.NODE_SCORE_LABEL_FACTORY,
    "NodeFilterLabel": nodelabel.NODE_FILTER_LABEL_FACTORY,
    "FreeCapacity": freecapacity.FACTORY,
    "TenantSpread": tenantspread.FACTORY,
    "DefaultBinder": defaultbinder.FACTORY,
}

# Filters of every profile: what groups are promised is not left to a file.
IN_EVERY_PROFILE: Final[Sequence[Callable[[], Plugin]]] = (PodGroupTopology,)
