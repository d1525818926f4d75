"""The four scores by resources of kube-scheduler 1.18.

R is requested, this pod included, A is allocatable; a container without requests counts with a default. All scores are
whole numbers.

- NodeResourcesBalancedAllocation: with ``f = R / A``, ``(1 - |f_cpu - f_memory|) * 100``; 0 if one of them is used up
  or missing.
- NodeResourcesLeastAllocated and NodeResourcesMostAllocated: ``(A - R) * 100 / A`` and ``R * 100 / A``, the mean of cpu
  and memory, each 0 if R > A or A = 0.
- NodeResourceLimits: 1 if the node has at least the pod's limits of cpu or of memory, to break ties. The limits are the
  sum over the containers, or an init container's if larger; missing limits and resources do not count. Behind the gate
  ResourceLimitsPriorityFunction.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from typing import ClassVar, Final

import numpy as np
import numpy.typing as npt

from berth.api.config.types import Point
from berth.api.pod import Container, Pod
from berth.api.resources import CPU, MEMORY, Amounts, read_amounts
from berth.cluster.nodes import NodeInfo, Nodes
from berth.framework.interface import MAX_SCORE, PreScorePlugin, Reads, Scores, VectorScorePlugin
from berth.framework.status import SUCCESS, CycleState, StateKey, Status
from berth.plugins.factory import PluginFactory, no_args

BALANCED_ALLOCATION: Final = "NodeResourcesBalancedAllocation"
LEAST: Final = "NodeResourcesLeastAllocated"
MOST: Final = "NodeResourcesMostAllocated"
RESOURCE_LIMITS: Final = "NodeResourceLimits"
Amount = npt.NDArray[np.float64]


class BalancedAllocationV118(VectorScorePlugin):
    name: ClassVar[str] = BALANCED_ALLOCATION
    reads = Reads.NODE | Reads.PODS
    reads_amounts = True
    counts_others = True

    def score(self, state: CycleState, pod: Pod, node: NodeInfo) -> int:
        wanted = state.pod_class.requests
        cpu = _used(node.nonzero_cpu + wanted.nonzero_cpu, node.allocatable(CPU))
        memory = _used(node.nonzero_memory + wanted.nonzero_memory, node.allocatable(MEMORY))
        return int((1 - abs(cpu - memory)) * MAX_SCORE) if cpu < 1 and memory < 1 else 0

    def score_all(self, state: CycleState, pod: Pod, nodes: Nodes) -> Scores:
        wanted = state.pod_class.requests
        cpu = _all_used(nodes.nonzero_cpu + wanted.nonzero_cpu, nodes.allocatable(CPU))
        memory = _all_used(nodes.nonzero_memory + wanted.nonzero_memory, nodes.allocatable(MEMORY))
        points = (1 - np.abs(cpu - memory)) * MAX_SCORE
        return np.where((cpu < 1) & (memory < 1), points, 0.0).astype(np.int64)


def _used(requested: int, allocatable: int) -> float:
    return requested / allocatable if allocatable else 1.0


def _all_used(requested: Amount, allocatable: Amount) -> Amount:
    return np.where(allocatable > 0, requested / np.maximum(allocatable, 1.0), 1.0)


class ResourceAllocation(VectorScorePlugin):
    """Scores by the mean share of cpu and memory; ``part`` is the amount that counts: free or used."""

    reads = Reads.NODE | Reads.PODS
    reads_amounts = True
    counts_others = True

    @abstractmethod
    def part(self, requested: Amount, allocatable: Amount) -> Amount:
        """float64[nodes], whole numbers: the amount that counts."""

    @abstractmethod
    def part_of_one(self, requested: int, allocatable: int) -> int:
        pass

    def score(self, state: CycleState, pod: Pod, node: NodeInfo) -> int:
        wanted = state.pod_class.requests
        cpu = self._points(node.nonzero_cpu + wanted.nonzero_cpu, node.allocatable(CPU))
        memory = self._points(node.nonzero_memory + wanted.nonzero_memory, node.allocatable(MEMORY))
        return (cpu + memory) // 2

    def score_all(self, state: CycleState, pod: Pod, nodes: Nodes) -> Scores:
        wanted = state.pod_class.requests
        cpu = self._all_points(nodes.nonzero_cpu + wanted.nonzero_cpu, nodes.allocatable(CPU))
        memory = self._all_points(nodes.nonzero_memory + wanted.nonzero_memory, nodes.allocatable(MEMORY))
        scores: Scores = (cpu + memory) // 2
        return scores

    def _points(self, requested: int, allocatable: int) -> int:
        fits = allocatable and requested <= allocatable
        return self.part_of_one(requested, allocatable) * 100 // allocatable if fits else 0

    def _all_points(self, requested: Amount, allocatable: Amount) -> Scores:
        fits = (allocatable > 0) & (requested <= allocatable)
        points = np.floor(self.part(requested, allocatable) * 100.0 / np.maximum(allocatable, 1.0))
        return np.where(fits, points, 0.0).astype(np.int64)


class NodeResourcesLeastAllocated(ResourceAllocation):
    name: ClassVar[str] = LEAST

    def part(self, requested: Amount, allocatable: Amount) -> Amount:
        return allocatable - requested

    def part_of_one(self, requested: int, allocatable: int) -> int:
        return allocatable - requested


class NodeResourcesMostAllocated(ResourceAllocation):
    name: ClassVar[str] = MOST
    packs = True

    def part(self, requested: Amount, allocatable: Amount) -> Amount:
        return requested

    def part_of_one(self, requested: int, allocatable: int) -> int:
        return requested


LIMITS: Final = StateKey[dict[str, int]]("NodeResourceLimits.limits")
_COUNTED: Final = (CPU, MEMORY)


class NodeResourceLimits(PreScorePlugin, VectorScorePlugin):
    """Scores by whether the pod's limits fit the empty node."""

    name: ClassVar[str] = RESOURCE_LIMITS
    reads = Reads.NODE
    reads_amounts = True

    def pre_score(self, state: CycleState, pod: Pod, nodes: Nodes) -> Status:
        """Never Skip, as in kube-scheduler 1.18."""
        state.write(LIMITS, limits_of(pod))
        return SUCCESS

    def score(self, state: CycleState, pod: Pod, node: NodeInfo) -> int:
        limits = state.read(LIMITS)
        return int(any(0 < limits[name] <= node.allocatable(name) for name in _COUNTED))

    def score_all(self, state: CycleState, pod: Pod, nodes: Nodes) -> Scores:
        limits, satisfied = state.read(LIMITS), np.zeros(len(nodes), dtype=np.bool_)
        for name in _COUNTED:
            satisfied |= (limits[name] > 0) & (limits[name] <= nodes.allocatable(name))
        return satisfied.astype(np.int64)


def limits_of(pod: Pod) -> dict[str, int]:
    """Millicores and bytes of the whole pod; 0 for no limit."""
    together, one_by_one = _limits(pod.spec.containers), _limits(pod.spec.init_containers)
    return {
        name: max([sum(limits.get(name, 0) for limits in together), *(limits.get(name, 0) for limits in one_by_one)])
        for name in _COUNTED
    }


def _limits(containers: Iterable[Container] | None) -> list[Amounts]:
    """An invalid limit counts as 0; the API server rejects it anyway."""
    given = (container.resources.limits if container.resources else None for container in containers or ())
    return [read_amounts(limits, "limits", lambda _: None) for limits in given]


BALANCED_ALLOCATION_FACTORY: Final = PluginFactory(
    name=BALANCED_ALLOCATION, points=(Point.SCORE,), build=no_args(BalancedAllocationV118)
)
LEAST_FACTORY: Final = PluginFactory(
    name=LEAST, points=(Point.SCORE,), build=no_args(NodeResourcesLeastAllocated), only_in_presets=True
)
MOST_FACTORY: Final = PluginFactory(
    name=MOST, points=(Point.SCORE,), build=no_args(NodeResourcesMostAllocated), only_in_presets=True
)
RESOURCE_LIMITS_FACTORY: Final = PluginFactory(
    name=RESOURCE_LIMITS, points=(Point.PRE_SCORE, Point.SCORE), build=no_args(NodeResourceLimits), only_in_presets=True
)
