"""Feature gates of presets: switches of a release that add plugins to its lists; flag ``--feature-gates``.

Lists of plugins by name: what a profile runs unless its file says otherwise; flag ``--algorithm-provider``.
"""

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
from berth.plugins.featuregates import NO_GATES, Gate, GateError, GateValues, appended, read_gates, through_gates
from berth.plugins.interpodaffinity import plugin as interpodaffinity
from berth.plugins.noderesources import balancedallocation, fit
from berth.plugins.podtopologyspread import plugin as podtopologyspread
from berth.plugins.v1_18.providers import (
    BESIDE,
    CLUSTER_AUTOSCALER_PROVIDER,
    DEFAULT_PROVIDER,
    GATES,
    RELEASE,
)
from berth.plugins.volumes import nodevolumelimits, volumerestrictions, volumezone
from berth.plugins.volumes.volumebinding import plugin as volumebinding

"""Gate to on or off, of those that were named."""


"""Every gate as its release had it."""


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


CURRENT: Final = "1.36"
"""The release of Kubernetes whose formulas plugins have unless their preset says otherwise."""


NOTHING_BESIDE: Final = Plugins()


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """A list of plugins that has a name.

    Attributes:
        plugins: the list, before any gate.
        release: the release of Kubernetes whose plugins are meant.
        gates: what can be switched on and off in it.
        beside: what is appended in the end, after the gates.
    """

    plugins: Plugins
    release: str = CURRENT
    gates: tuple[Gate, ...] = ()
    beside: Plugins = NOTHING_BESIDE

    def gated(self, values: GateValues = NO_GATES) -> Plugins:
        """The list after its gates."""
        return through_gates(self.plugins, self.gates, values)

    def whole(self, values: GateValues = NO_GATES) -> Plugins:
        """What runs."""
        return appended(self.gated(values), {point: self.beside.at(point) for point in Point})


def _provider(plugins: Plugins) -> Preset:
    return Preset(plugins=plugins, release=RELEASE, gates=GATES, beside=BESIDE)


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
"""What kube-scheduler 1.18 said of the flag, in its own words behind the flag's name."""


class UnknownPresetError(PermanentError):
    """No preset has this name."""


def preset(name: str) -> Preset:
    """The preset of this name.

    Raises:
        UnknownPresetError: there is none; the text names those that there are.
    """
    if name not in PRESETS:
        raise UnknownPresetError(f"algorithmProvider: want one of {', '.join(PRESETS)}, got {name!r}")
    return PRESETS[name]


def gates_for(name: str, text: str) -> GateValues:
    """What ``--feature-gates`` says to the preset of this name.

    Raises:
        GateError: nothing has such a gate, its value is neither true nor false, or the preset has none.
    """
    values = read_gates(text, EVERY_GATE)
    if values and not preset(name).gates:
        having = " or ".join(f"--algorithm-provider={other}" for other, each in PRESETS.items() if each.gates)
        raise GateError(f"featureGates: {', '.join(values)}: preset {name!r} has no gates; start with {having}")
    return values


def deprecation_of(name: str) -> str | None:
    """What is to be said to whoever chooses this preset."""
    return DEPRECATION if preset(name).release == RELEASE else None
