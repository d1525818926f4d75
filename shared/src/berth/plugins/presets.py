"""Lists of plugins by name: what a profile runs unless its file says otherwise; flag ``--algorithm-provider``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from berth.api.config.types import PluginRef, Plugins, PluginSet
from berth.api.errors import PermanentError
from berth.plugins import (
    balancedallocation,
    defaultbinder,
    defaultpreemption,
    freecapacity,
    imagelocality,
    interpodaffinity,
    nodeaffinity,
    nodename,
    nodeports,
    nodeready,
    noderesourcesfit,
    nodeunschedulable,
    podtopologyspread,
    prioritysort,
    schedulinggates,
    tainttoleration,
    tenantspread,
)

DEFAULT: Final = Plugins(
    multi_point=PluginSet(
        enabled=[
            PluginRef(name=schedulinggates.NAME),
            PluginRef(name=prioritysort.NAME),
            PluginRef(name=nodeunschedulable.NAME),
            PluginRef(name=nodename.NAME),
            PluginRef(name=tainttoleration.NAME, weight=3),
            PluginRef(name=nodeaffinity.NAME, weight=2),
            PluginRef(name=nodeports.NAME),
            PluginRef(name=noderesourcesfit.NAME, weight=1),
            PluginRef(name=podtopologyspread.NAME, weight=2),
            PluginRef(name=interpodaffinity.NAME, weight=2),
            PluginRef(name=defaultpreemption.NAME),
            PluginRef(name=imagelocality.NAME, weight=1),
            PluginRef(name=defaultbinder.NAME),
        ]
    )
)
"""kube-scheduler 1.36's default plugins, in its order and with its weights, without BALANCED (ADR 4)."""

BALANCED: Final = PluginRef(name=balancedallocation.NAME, weight=1)
"""In kube-scheduler's default; here a file enables it: with it, equal nodes do not always get equally many pods."""

FROM_SCRATCH: Final = Plugins(
    pre_enqueue=PluginSet(enabled=[PluginRef(name=schedulinggates.NAME)]),
    queue_sort=PluginSet(enabled=[PluginRef(name=prioritysort.NAME)]),
    pre_filter=PluginSet(enabled=[PluginRef(name=noderesourcesfit.NAME), PluginRef(name=nodeaffinity.NAME)]),
    filter=PluginSet(
        enabled=[
            PluginRef(name=nodeready.NAME),
            PluginRef(name=noderesourcesfit.NAME),
            PluginRef(name=nodeaffinity.NAME),
        ]
    ),
    score=PluginSet(enabled=[PluginRef(name=freecapacity.NAME, weight=1)]),
    bind=PluginSet(enabled=[PluginRef(name=defaultbinder.NAME)]),
)
"""The article's scheduler written from scratch: ready nodes with room that the pod's affinity allows, the freest first.

Point by point, since NodeResourcesFit and NodeAffinity only filter here. Taints and cordons are not looked at, as
there; a pod with scheduling gates waits, since the API server would refuse its Binding.
"""

TENANTS_FIRST: Final = 101
"""One pod of the tenant more or less outweighs all that FreeCapacity can say (0..100): it only breaks ties."""

FROM_SCRATCH_MULTI_TENANT: Final = Plugins(
    pre_enqueue=FROM_SCRATCH.pre_enqueue,
    queue_sort=FROM_SCRATCH.queue_sort,
    pre_filter=PluginSet(enabled=[PluginRef(name=tenantspread.NAME), *(FROM_SCRATCH.pre_filter.enabled or ())]),
    filter=FROM_SCRATCH.filter,
    score=PluginSet(
        enabled=[
            PluginRef(name=tenantspread.NAME, weight=TENANTS_FIRST),
            *(FROM_SCRATCH.score.enabled or ()),
        ]
    ),
    bind=FROM_SCRATCH.bind,
)
"""The same for several tenants: the node with the fewest pods of the pod's tenant, of these the freest."""

DEFAULT_NAME: Final = "default"
PRESETS: Final[Mapping[str, Plugins]] = {
    DEFAULT_NAME: DEFAULT,
    "FromScratch": FROM_SCRATCH,
    "FromScratchMultiTenant": FROM_SCRATCH_MULTI_TENANT,
}


class UnknownPresetError(PermanentError):
    """No preset has this name."""


def preset(name: str) -> Plugins:
    """The plugins of a preset.

    Raises:
        UnknownPresetError: there is none of this name; the text names those that there are.
    """
    if name not in PRESETS:
        raise UnknownPresetError(f"algorithmProvider: want one of {', '.join(PRESETS)}, got {name!r}")
    return PRESETS[name]
