"""Every built-in plugin by the name that a configuration gives it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from berth.errors import PermanentError
from berth.plugins import (
    defaultbinder,
    dynamicresources,
    imagelocality,
    nodeaffinity,
    nodename,
    nodeports,
    nodeunschedulable,
    prioritysort,
    schedulinggates,
    tainttoleration,
)
from berth.plugins.additional import freecapacity, nodelabel, nodeready, tenantspread
from berth.plugins.defaultpreemption import plugin as defaultpreemption
from berth.plugins.factory import PluginFactory
from berth.plugins.interpodaffinity import plugin as interpodaffinity
from berth.plugins.networktraffic import plugin as networktraffic
from berth.plugins.noderesources import balancedallocation, fit
from berth.plugins.podtopologyspread import plugin as podtopologyspread
from berth.plugins.volumes import nodevolumelimits, volumerestrictions, volumezone
from berth.plugins.volumes.volumebinding import plugin as volumebinding
from berth_plugins_1_18.providers import RELEASE

# A second name of a plugin is an alias: its settings are those of the plugin (berth.api.config.profiles).
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
    "NetworkTraffic": networktraffic.FACTORY,
    "network_traffic": networktraffic.FACTORY,
    "NodeReady": nodeready.FACTORY,
    "NodeScoreLabel": nodelabel.NODE_SCORE_LABEL_FACTORY,
    "NodeFilterLabel": nodelabel.NODE_FILTER_LABEL_FACTORY,
    "FreeCapacity": freecapacity.FACTORY,
    "TenantSpread": tenantspread.FACTORY,
    "DefaultBinder": defaultbinder.FACTORY,
}


def plugins_of_release(
    release: str, known: Mapping[str, PluginFactory], *, most_disks: int | None = None
) -> Mapping[str, PluginFactory]:
    """The known plugins in the form that the given release of Kubernetes had them.

    ``most_disks``: the limit of disks for nodes that report none; None: the default of each cloud.
    """
    if release != RELEASE:
        return known
    from berth_plugins_1_18.registry import as_of_1_18  # noqa: PLC0415 - 20 ms for plugins that are rarely asked for

    return as_of_1_18(known, most_disks=most_disks)


class RegistryError(PermanentError):
    """Two plugins have the same name."""


def with_third_party(found: Iterable[PluginFactory]) -> Mapping[str, PluginFactory]:
    """The built-in plugins and those found elsewhere (entry point group ``berth.plugins``).

    Raises:
        RegistryError: a name is taken.
    """
    merged = dict(BUILT_IN)
    for factory in found:
        if factory.name in merged:
            raise RegistryError(f"registering plugin {factory.name!r}: the name is taken; give it another")
        merged[factory.name] = factory
    return merged
