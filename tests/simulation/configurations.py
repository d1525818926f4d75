"""The configurations of a run, and a plugin of another distribution that fails for marked pods."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, Final, Literal

from berth.api.config.configuration import KubeSchedulerConfiguration
from berth.api.config.load import load
from berth.api.pod import Pod
from berth.framework.interface import FilterPlugin, NodeInfo
from berth.framework.profile import Point
from berth.framework.status import SUCCESS, CycleState, Status
from berth.plugins.factory import PluginFactory, no_args
from berth.plugins.presets import DEFAULT
from berth.process.configuration import known_plugins

TRAP: Final = "trap"
"""The label of a pod for which the plugin fails; its value says how."""
SECOND: Final = "packed"
"""The scheduler name of the second profile."""
Variant = Literal["one", "two"]

_ONE: Final = """
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles:
- schedulerName: berth
  plugins: {filter: {enabled: [{name: Trap}]}}
"""
_TWO: Final = (
    _ONE
    + """- schedulerName: packed
  plugins: {filter: {enabled: [{name: Trap}]}}
  pluginConfig:
  - name: NodeResourcesFit
    args: {scoringStrategy: {type: MostAllocated}}
"""
)


class Trap(FilterPlugin):
    """Fails for marked pods."""

    name: ClassVar[str] = "Trap"

    def filter(self, state: CycleState, pod: Pod, node: NodeInfo) -> Status:
        match (pod.metadata.labels or {}).get(TRAP):
            case "raise":
                raise RuntimeError("trapped")
            case "none":
                return None  # type: ignore[return-value] - an answer of the wrong type
            case "error":
                return Status.error("trapped")
        return SUCCESS


FACTORY: Final = PluginFactory(name=Trap.name, points=(Point.FILTER,), build=no_args(Trap))


@dataclass(frozen=True)
class TrapPoint:
    """The entry point by which the plugin is found."""

    name: str = Trap.name
    value: str = "simulation.configurations:FACTORY"
    dist: Any = None

    def load(self) -> PluginFactory:
        return FACTORY


@lru_cache
def configuration(variant: Variant) -> KubeSchedulerConfiguration:
    """A configuration with one profile or with two. Call it inside ``simulated``, where the plugin is found."""
    return load(_ONE if variant == "one" else _TWO, known=known_plugins(), preset=DEFAULT)
