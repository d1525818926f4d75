"""The configurations of a run, and a plugin of another distribution that fails for marked pods."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Any, ClassVar, Final, Literal

import msgspec

from berth.api.config.configuration import KubeSchedulerConfiguration
from berth.api.config.load import load
from berth.api.config.networktraffic import NetworkTrafficArgs, query_of
from berth.api.config.presets import DEFAULT
from berth.api.pod import Pod
from berth.framework.events import Action, ClusterEvent, EventHint, Resource
from berth.framework.interface import EnqueueExtensions, FilterPlugin, NodeInfo, ScorePlugin
from berth.framework.profile import Point
from berth.framework.status import SUCCESS, CycleState, Status
from berth.messages.livedata import FACTS, LiveSource
from berth.plugins.factory import PluginFactory, no_args
from berth.plugins.prioritysort import PrioritySort
from berth.profiles.installed import known_plugins

TRAP: Final = "trap"
"""The label of a pod for which the plugin fails; its value says how."""
SECOND: Final = "packed"
"""The scheduler name of the second profile."""
SMALL_NOTES: Final = 20_000
"""Bytes of labels that every message has room for."""
LOAD: Final = "load"
"""The source of the facts that a plugin reads."""
Variant = Literal["one", "two", "live", "asked"]

_ONE: Final = """
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles:
- schedulerName: berth
  plugins:
    filter: {enabled: [{name: Trap}]}
    queueSort: {enabled: [{name: TrapSort}], disabled: [{name: PrioritySort}]}
"""
_TWO: Final = (
    _ONE
    + """- schedulerName: packed
  plugins:
    filter: {enabled: [{name: Trap}]}
    queueSort: {enabled: [{name: TrapSort}], disabled: [{name: PrioritySort}]}
  pluginConfig:
  - name: NodeResourcesFit
    args: {scoringStrategy: {type: MostAllocated}}
"""
)
_LIVE: Final = """
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles:
- schedulerName: berth
  plugins:
    filter: {enabled: [{name: Trap}, {name: NetworkTraffic}]}
    score: {enabled: [{name: NetworkTraffic}, {name: Load}]}
    queueSort: {enabled: [{name: TrapSort}], disabled: [{name: PrioritySort}]}
  pluginConfig:
  - name: NetworkTraffic
    args: {url: "http://prometheus", scoring: Capacity, saturationPercent: 90}
"""
_ASKED: Final = _ONE + "extenders: [{urlPrefix: 'http://extender', preemptVerb: preempt, nodeCacheCapable: true}]\n"


class Load(ScorePlugin):
    """Prefers nodes with less load, by facts from outside."""

    name: ClassVar[str] = "Load"
    live_sources = frozenset({LiveSource(bucket=FACTS, name=LOAD)})

    def score(self, state: CycleState, pod: Pod, node: NodeInfo) -> int:
        fact = node.snapshot.live.fact(LOAD, node.name)
        try:
            load = 0.0 if fact is None else msgspec.json.decode(fact, type=_Fact).load
        except msgspec.MsgspecError:
            return 0
        return 100 - int(100 * min(1.0, max(0.0, load)))


class _Fact(msgspec.Struct):
    load: float = 0.0


class Trap(FilterPlugin, EnqueueExtensions):
    """Fails for marked pods: in its filter, or in the hint of a pod that it has rejected."""

    name: ClassVar[str] = "Trap"

    def events(self) -> Sequence[EventHint]:
        happened = Action.ADD | Action.DELETE | Action.UPDATE_NODE_ALLOCATABLE
        return [EventHint(ClusterEvent(resource, happened), _raises) for resource in (Resource.NODE, Resource.POD)]

    def filter(self, state: CycleState, pod: Pod, node: NodeInfo) -> Status:
        match (pod.metadata.labels or {}).get(TRAP):
            case "raise":
                raise RuntimeError("trapped")
            case "none":
                return None  # type: ignore[return-value] - an answer of the wrong type
            case "error":
                return Status.error("trapped")
            case "hint":
                return Status.unschedulable("trapped")
        return SUCCESS


def _raises(_pod: Pod, _old: object, _new: object) -> bool:
    raise RuntimeError("trapped")


class TrapSort(PrioritySort):
    """Fails for marked pods."""

    name: ClassVar[str] = "TrapSort"

    def sort_key(self, pod: Pod, since: datetime) -> tuple[Any, ...]:
        if (pod.metadata.labels or {}).get(TRAP) == "sort":
            raise RuntimeError("trapped")
        return super().sort_key(pod, since)


FACTORY: Final = PluginFactory(name=Trap.name, points=(Point.FILTER,), build=no_args(Trap))
SORT_FACTORY: Final = PluginFactory(name=TrapSort.name, points=(Point.QUEUE_SORT,), build=no_args(TrapSort))


@dataclass(frozen=True)
class TrapPoint:
    """An entry point by which a plugin is found."""

    factory: PluginFactory
    dist: Any = None

    @property
    def name(self) -> str:
        return self.factory.name

    @property
    def value(self) -> str:
        return f"simulation.configurations:{self.name}"

    def load(self) -> PluginFactory:
        return self.factory


LOAD_FACTORY: Final = PluginFactory(name=Load.name, points=(Point.SCORE,), build=no_args(Load))
POINTS: Final = (TrapPoint(FACTORY), TrapPoint(SORT_FACTORY), TrapPoint(LOAD_FACTORY))
TEXTS: Final = {"one": _ONE, "two": _TWO, "live": _LIVE, "asked": _ASKED}
NETWORK_QUERY: Final = query_of(NetworkTrafficArgs(url="http://prometheus")).token


@lru_cache
def configuration(variant: Variant) -> KubeSchedulerConfiguration:
    """One profile, two, or one with live data or an extender. Call it in ``simulated``, where the plugins are found."""
    return load(TEXTS[variant], known=known_plugins(), preset=DEFAULT)
