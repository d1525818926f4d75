"""Presets: named lists of plugins that a profile runs unless its file changes them; flag ``--algorithm-provider``.

They have names alone, since settings and help texts need those: importing the plugins takes 0.2 s.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from berth.api.config.types import PluginRef, Plugins, PluginSet, Point
from berth.errors import PermanentError
from berth_plugins_1_18.providers import (
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

DEFAULT: Final = Plugins(
    multi_point=PluginSet(
        enabled=[
            PluginRef(name="SchedulingGates"),
            PluginRef(name="PrioritySort"),
            PluginRef(name="NodeUnschedulable"),
            PluginRef(name="NodeName"),
            PluginRef(name="TaintToleration", weight=3),
            PluginRef(name="NodeAffinity", weight=2),
            PluginRef(name="NodePorts"),
            PluginRef(name="NodeResourcesFit", weight=1),
            PluginRef(name="VolumeRestrictions"),
            PluginRef(name="NodeVolumeLimits"),
            PluginRef(name="VolumeBinding"),
            PluginRef(name="VolumeZone"),
            PluginRef(name="PodTopologySpread", weight=2),
            PluginRef(name="InterPodAffinity", weight=2),
            PluginRef(name="DynamicResources"),
            PluginRef(name="DefaultPreemption"),
            PluginRef(name="NodeResourcesBalancedAllocation", weight=1),
            PluginRef(name="ImageLocality", weight=1),
            PluginRef(name="DefaultBinder"),
        ]
    )
)
"""kube-scheduler 1.36's default plugins, in its order and with its weights (ADR 4)."""


FROM_SCRATCH: Final = Plugins(
    pre_enqueue=PluginSet(enabled=[PluginRef(name="SchedulingGates")]),
    queue_sort=PluginSet(enabled=[PluginRef(name="PrioritySort")]),
    pre_filter=PluginSet(
        enabled=[
            PluginRef(name="NodeResourcesFit"),
            PluginRef(name="NodeAffinity"),
            PluginRef(name="DynamicResources"),
        ]
    ),
    filter=PluginSet(
        enabled=[
            PluginRef(name="NodeReady"),
            PluginRef(name="NodeResourcesFit"),
            PluginRef(name="NodeAffinity"),
        ]
    ),
    score=PluginSet(enabled=[PluginRef(name="FreeCapacity", weight=1)]),
    bind=PluginSet(enabled=[PluginRef(name="DefaultBinder")]),
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
    pre_filter=PluginSet(enabled=[PluginRef(name="TenantSpread"), *(FROM_SCRATCH.pre_filter.enabled or ())]),
    filter=FROM_SCRATCH.filter,
    score=PluginSet(
        enabled=[
            PluginRef(name="TenantSpread", weight=TENANTS_FIRST),
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
