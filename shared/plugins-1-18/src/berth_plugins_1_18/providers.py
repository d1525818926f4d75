"""The algorithm providers of kube-scheduler 1.18 and the feature gates that add plugins to them.

The lists are point by point and in the order of its registry. Flags ``--algorithm-provider`` and ``--feature-gates``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

import msgspec

from berth.api.config.types import PluginRef, Plugins, PluginSet, Point
from berth.errors import PermanentError

RELEASE: Final = "1.18"
GateValues = Mapping[str, bool]
NO_GATES: Final[GateValues] = MappingProxyType({})


class GateError(PermanentError):
    """A feature gate or its value is unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """A feature gate: its default, and the plugin that it appends at each extension point when it is on."""

    name: str
    is_on: bool
    adds: Mapping[Point, PluginRef]


# The values of Go's strconv.ParseBool, as for kube-scheduler's flag.
_BOOLEANS: Final[Mapping[str, bool]] = {
    **dict.fromkeys(("1", "t", "T", "true", "TRUE", "True"), True),
    **dict.fromkeys(("0", "f", "F", "false", "FALSE", "False"), False),
}


def read_gates(text: str, gates: Iterable[Gate]) -> GateValues:
    """Parses ``A=true,B=false``; the last value of a gate counts.

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
    """The plugins with those appended that enabled gates add, in the order of the gates."""
    for gate in gates:
        if values.get(gate.name, gate.is_on):
            added = {point: PluginSet(enabled=[ref]) for point, ref in gate.adds.items()}
            plugins = append_plugins(plugins, added)
    return plugins


def append_plugins(plugins: Plugins, added: Mapping[Point, PluginSet]) -> Plugins:
    """The plugins with others appended at each extension point."""
    sets = {
        point.name.lower(): PluginSet(enabled=[*(plugins.at(point).enabled or ()), *(more.enabled or ())])
        for point, more in added.items()
    }
    return msgspec.structs.replace(plugins, **sets)


def _named(*names: str) -> PluginSet:
    return PluginSet(enabled=[PluginRef(name=name) for name in names])


def _weighted(**weights: int) -> PluginSet:
    return PluginSet(enabled=[PluginRef(name=name, weight=weight) for name, weight in weights.items()])


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
"""The default plugins of kube-scheduler 1.18."""
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
"""The same, but full nodes first, so that others become empty and can be removed."""
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
GATES: Final = (EVEN_PODS_SPREAD, RESOURCE_LIMITS)
"""With the defaults of that release."""
APPENDED: Final = Plugins(
    pre_enqueue=_named("SchedulingGates"),
    pre_filter=_named("DynamicResources"),
    post_filter=_named("DefaultPreemption"),
    reserve=_named("VolumeBinding"),
    pre_bind=_named("VolumeBinding"),
)
"""Plugins that every provider needs in addition.

That release preempted pods and bound volumes outside of plugins. It had no scheduling gates, but the API server would
reject the Binding of a gated pod. Pods with resource claims are rejected.
"""
