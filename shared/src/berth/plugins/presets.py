"""Presets: named lists of plugins that a profile runs unless its file changes them; flag ``--algorithm-provider``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from berth.api.config.types import PluginRef, Plugins, PluginSet, Point
from berth.api.errors import PermanentError
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
from berth.plugins.additional import freecapacity, nodeready, tenantspread
from berth.plugins.defaultpreemption import plugin as defaultpreemption
from berth.plugins.interpodaffinity import plugin as interpodaffinity
from berth.plugins.noderesources import balancedallocation, fit
from berth.plugins.podtopologyspread import plugin as podtopologyspread
from berth.plugins.v1_18.providers import (
    APPENDED,
    CLUSTER_AUTOSCALER_PROVIDER,
    DEFAULT_PROVIDER,
    GATES,
    NO_GATES,
    RELEASE,
    Gate,
    GateError,
    GateValues,
    append_plugins,
    apply_gates,
    read_gates,
)
from berth.plugins.volumes import nodevolumelimits, volumerestrictions, volumezone
from berth.plugins.volumes.volumebinding import plugin as volumebinding

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
            PluginRef(name=fit.NAME, weight=1),
            PluginRef(name=volumerestrictions.NAME),
            PluginRef(name=nodevolumelimits.NAME),
            PluginRef(name=volumebinding.NAME),
            PluginRef(name=volumezone.NAME),
            PluginRef(name=podtopologyspread.NAME, weight=2),
            PluginRef(name=interpodaffinity.NAME, weight=2),
            PluginRef(name=dynamicresources.NAME),
            PluginRef(name=defaultpreemption.NAME),
            PluginRef(name=balancedallocation.NAME, weight=1),
            PluginRef(name=imagelocality.NAME, weight=1),
            PluginRef(name=defaultbinder.NAME),
        ]
    )
)
"""kube-scheduler 1.36's default plugins, in its order and with its weights (ADR 4)."""


FROM_SCRATCH: Final = Plugins(
    pre_enqueue=PluginSet(enabled=[PluginRef(name=schedulinggates.NAME)]),
    queue_sort=PluginSet(enabled=[PluginRef(name=prioritysort.NAME)]),
    pre_filter=PluginSet(
        enabled=[
            PluginRef(name=fit.NAME),
            PluginRef(name=nodeaffinity.NAME),
            PluginRef(name=dynamicresources.NAME),
        ]
    ),
    filter=PluginSet(
        enabled=[
            PluginRef(name=nodeready.NAME),
            PluginRef(name=fit.NAME),
            PluginRef(name=nodeaffinity.NAME),
        ]
    ),
    score=PluginSet(enabled=[PluginRef(name=freecapacity.NAME, weight=1)]),
    bind=PluginSet(enabled=[PluginRef(name=defaultbinder.NAME)]),
)
"""The scheduler that the article writes from scratch: ready nodes that fit and match the affinity, the freest first.

Point by point, since NodeResourcesFit and NodeAffinity only filter here. Taints and cordons are ignored, as in the
article; a pod with scheduling gates waits, since the API server would reject its Binding.
"""


TENANTS_FIRST: Final = 101
"""One pod of the tenant outweighs any score of FreeCapacity (0..100), which only breaks ties."""


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
"""The same for several tenants: the nodes with the fewest pods of the pod's tenant first, of these the freest."""


CURRENT_RELEASE: Final = "1.36"
"""The release of Kubernetes whose formulas the plugins have by default."""


NO_PLUGINS: Final = Plugins()


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """A named list of plugins.

    Attributes:
        plugins: the list without gates.
        release: the release of Kubernetes whose versions of the plugins are used.
        gates: the feature gates that add plugins.
        appended: plugins appended at the end, after those of the gates.
    """

    plugins: Plugins
    release: str = CURRENT_RELEASE
    gates: tuple[Gate, ...] = ()
    appended: Plugins = NO_PLUGINS

    def gated(self, values: GateValues = NO_GATES) -> Plugins:
        """The plugins with those of the gates."""
        return apply_gates(self.plugins, self.gates, values)

    def all_plugins(self, values: GateValues = NO_GATES) -> Plugins:
        """The plugins with those of the gates and the appended ones."""
        return append_plugins(self.gated(values), {point: self.appended.at(point) for point in Point})


def _provider(plugins: Plugins) -> Preset:
    return Preset(plugins=plugins, release=RELEASE, gates=GATES, appended=APPENDED)


DEFAULT_NAME: Final = "default"


PRESETS: Final[Mapping[str, Preset]] = {
    DEFAULT_NAME: Preset(plugins=DEFAULT),
    "DefaultProvider": _provider(DEFAULT_PROVIDER),
    "ClusterAutoscalerProvider": _provider(CLUSTER_AUTOSCALER_PROVIDER),
    "FromScratch": Preset(plugins=FROM_SCRATCH),
    "FromScratchMultiTenant": Preset(plugins=FROM_SCRATCH_MULTI_TENANT),
}


EVERY_GATE: Final = GATES
"""The gates of all presets."""


DEPRECATION: Final = (
    "--algorithm-provider: DEPRECATED: the scheduling algorithm provider to use, "
    "one of: ClusterAutoscalerProvider | DefaultProvider"
)
"""kube-scheduler 1.18's help text of the flag."""


class UnknownPresetError(PermanentError):
    """No preset has this name."""


def preset(name: str) -> Preset:
    """Finds the preset of this name.

    Raises:
        UnknownPresetError: there is none; the message lists all presets.
    """
    if name not in PRESETS:
        raise UnknownPresetError(f"algorithmProvider: want one of {', '.join(PRESETS)}, got {name!r}")
    return PRESETS[name]


def gates_for(name: str, text: str) -> GateValues:
    """Parses ``--feature-gates`` for the preset of this name.

    Raises:
        GateError: no preset has such a gate, its value is neither true nor false, or this preset has no gates.
    """
    values = read_gates(text, EVERY_GATE)
    if values and not preset(name).gates:
        having = " or ".join(f"--algorithm-provider={other}" for other, each in PRESETS.items() if each.gates)
        raise GateError(f"featureGates: {', '.join(values)}: preset {name!r} has no gates; start with {having}")
    return values


def deprecation_warning(name: str) -> str | None:
    """The warning for a preset of an older release."""
    return DEPRECATION if preset(name).release == RELEASE else None
