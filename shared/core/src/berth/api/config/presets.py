"""Presets: named lists of plugins that profiles start from, and their feature gates.

``berth.settings.presets`` finds other distributions' presets too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

import msgspec

from berth.api.config.types import PluginRef, Plugins, PluginSet, Point
from berth.errors import PermanentError

GateValues = Mapping[str, bool]
NO_GATES: Final[GateValues] = MappingProxyType({})


class GateError(PermanentError):
    """A feature gate or its value is unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """A feature gate: its default, and the plugins that it appends by extension point."""

    name: str
    is_on: bool
    adds: Mapping[Point, PluginRef]


# The values of Go's strconv.ParseBool, as for kube-scheduler's flag.
_BOOLEANS: Final[Mapping[str, bool]] = {
    **dict.fromkeys(("1", "t", "T", "true", "TRUE", "True"), True),
    **dict.fromkeys(("0", "f", "F", "false", "FALSE", "False"), False),
}


def read_gates(text: str, gates: Iterable[Gate]) -> GateValues:
    """Parse ``A=true,B=false``; the last value of a gate counts.

    Raises:
        GateError: a gate is not one of ``gates``, or its value is neither true nor false.
    """
    values: dict[str, bool] = {}
    names = [gate.name for gate in gates]
    for part in text.split(","):
        name, equals, setting = (piece.strip() for piece in part.partition("="))
        if name not in names and name:
            raise GateError(f"featureGates: want {' or '.join(names)}, got {name!r}")
        if name and (not equals or setting not in _BOOLEANS):
            raise GateError(f"featureGates: want {name}=true or {name}=false, got {part.strip()!r}")
        if name:
            values[name] = _BOOLEANS[setting]
    return values


def apply_gates(plugins: Plugins, gates: Iterable[Gate], values: GateValues) -> Plugins:
    """Append the enabled gates' plugins, in the order of the gates."""
    for gate in gates:
        if values.get(gate.name, gate.is_on):
            added = {point: PluginSet(enabled=[ref]) for point, ref in gate.adds.items()}
            plugins = append_plugins(plugins, added)
    return plugins


def append_plugins(plugins: Plugins, added: Mapping[Point, PluginSet]) -> Plugins:
    sets = {
        point.name.lower(): PluginSet(enabled=[*(plugins.at(point).enabled or ()), *(more.enabled or ())])
        for point, more in added.items()
    }
    return msgspec.structs.replace(plugins, **sets)


# kube-scheduler 1.36's default plugins, in its order and with its weights (ADR 4).
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
            PluginRef(name="DynamicResources", weight=2),
            PluginRef(name="DefaultPreemption"),
            PluginRef(name="NodeResourcesBalancedAllocation", weight=1),
            PluginRef(name="ImageLocality", weight=1),
            PluginRef(name="DefaultBinder"),
            PluginRef(name="NodeDeclaredFeatures"),
        ]
    )
)


# The scheduler of the article "from scratch": ready nodes that fit and match the affinity, the freest first. Listed by
# extension point, because NodeResourcesFit and NodeAffinity only filter here. Taints and cordons are ignored, as in the
# article; SchedulingGates stays, because the API server would reject a gated pod's Binding.
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
            PluginRef(name="DynamicResources"),
        ]
    ),
    score=PluginSet(enabled=[PluginRef(name="FreeCapacity", weight=1)]),
    reserve=PluginSet(enabled=[PluginRef(name="DynamicResources")]),
    pre_bind=PluginSet(enabled=[PluginRef(name="DynamicResources")]),
    bind=PluginSet(enabled=[PluginRef(name="DefaultBinder")]),
)


# Weight by which one pod of the tenant outweighs any score of FreeCapacity (0..100), which only breaks ties.
TENANTS_FIRST: Final = 101


# The same for several tenants: nodes with the fewest pods of the pod's tenant first, among them the freest.
FROM_SCRATCH_MULTI_TENANT: Final = Plugins(
    pre_enqueue=FROM_SCRATCH.pre_enqueue,
    queue_sort=FROM_SCRATCH.queue_sort,
    pre_filter=PluginSet(enabled=[PluginRef(name="TenantSpread"), *(FROM_SCRATCH.pre_filter.enabled or ())]),
    filter=FROM_SCRATCH.filter,
    reserve=FROM_SCRATCH.reserve,
    pre_bind=FROM_SCRATCH.pre_bind,
    score=PluginSet(
        enabled=[
            PluginRef(name="TenantSpread", weight=TENANTS_FIRST),
            *(FROM_SCRATCH.score.enabled or ()),
        ]
    ),
    bind=FROM_SCRATCH.bind,
)


CURRENT_RELEASE: Final = "1.36"  # Kubernetes release of the plugins' default formulas


NO_PLUGINS: Final = Plugins()


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """A named list of plugins.

    Attributes:
        plugins: the list without gates.
        release: the Kubernetes release of the plugins' formulas.
        gates: the feature gates that add plugins.
        appended: plugins appended after the gates' plugins.
        deprecation: the warning at a start with it; may be empty.
    """

    plugins: Plugins
    release: str = CURRENT_RELEASE
    gates: tuple[Gate, ...] = ()
    appended: Plugins = NO_PLUGINS
    deprecation: str = ""

    def gated(self, values: GateValues = NO_GATES) -> Plugins:
        return apply_gates(self.plugins, self.gates, values)

    def all_plugins(self, values: GateValues = NO_GATES) -> Plugins:
        return append_plugins(self.gated(values), {point: self.appended.at(point) for point in Point})


DEFAULT_NAME: Final = "default"


PRESETS: Final[Mapping[str, Preset]] = {
    DEFAULT_NAME: Preset(plugins=DEFAULT),
    "FromScratch": Preset(plugins=FROM_SCRATCH),
    "FromScratchMultiTenant": Preset(plugins=FROM_SCRATCH_MULTI_TENANT),
}
