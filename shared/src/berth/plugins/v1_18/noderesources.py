"""NodeResourcesBalancedAllocation: prefers nodes of which the pod makes cpu and memory equally used.

With the used part ``f = R / A`` of each, this pod included: ``(1 - |f_cpu - f_memory|) * 100`` without the fraction; 0
where one of them is used up, or the node has none of it. A container that names no request counts with a default. As
kube-scheduler 1.18's plugin of that name; today's looks at real requests and at what the pod changes.


NodeResourcesLeastAllocated and NodeResourcesMostAllocated: nodes with much room first, or with little.

With R requested (this pod included) and A allocatable, of cpu and memory: the least allocated gives
``(A - R) * 100 / A`` and the most allocated ``R * 100 / A``, without the fraction; 0 where R > A or A = 0. A node's
points are the mean of both, rounded down; a resource that the node lacks counts in it as 0. A container that names no
request counts with a default. As kube-scheduler 1.18's plugins of these names; today's
NodeResourcesFit differs where R > A and where A = 0.


NodeResourceLimits: one point for a node that has at least what the pod's limits name, of cpu or of memory.

The limits are the sum over the containers, or those of an init container where they are larger. A limit that is not
named, or 0, gives nothing; nor does a resource that the node lacks. One point of 100 breaks ties and no more. As
kube-scheduler 1.18's plugin of that name, behind the gate ResourceLimitsPriorityFunction.
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
from berth.framework.state import CycleState, StateKey
from berth.framework.status import SUCCESS, Status
from berth.plugins.factory import PluginFactory, no_args

BALANCED_ALLOCATION: Final = "NodeResourcesBalancedAllocation"

Amount = npt.NDArray[np.float64]


class BalancedAllocationV118(VectorScorePlugin):
    """Scores by how evenly the node is used with the pod on it."""

    name: ClassVar[str] = BALANCED_ALLOCATION
    reads = Reads.NODE | Reads.PODS

    def score(self, state: CycleState, pod: Pod, node: NodeInfo) -> int:
        """0..100."""
        wanted = state.pod_class.requests
        cpu = _used(node.nonzero_cpu + wanted.nonzero_cpu, node.allocatable(CPU))
        memory = _used(node.nonzero_memory + wanted.nonzero_memory, node.allocatable(MEMORY))
        return int((1 - abs(cpu - memory)) * MAX_SCORE) if cpu < 1 and memory < 1 else 0

    def score_all(self, state: CycleState, pod: Pod, nodes: Nodes) -> Scores:
        """The same for all nodes."""
        wanted = state.pod_class.requests
        cpu = _all_used(nodes.nonzero_cpu + wanted.nonzero_cpu, nodes.allocatable(CPU))
        memory = _all_used(nodes.nonzero_memory + wanted.nonzero_memory, nodes.allocatable(MEMORY))
        points = (1 - np.abs(cpu - memory)) * MAX_SCORE
        return np.where((cpu < 1) & (memory < 1), points, 0.0).astype(np.int64)


def _used(requested: int, allocatable: int) -> float:
    return requested / allocatable if allocatable else 1.0


def _all_used(requested: Amount, allocatable: Amount) -> Amount:
    return np.where(allocatable > 0, requested / np.maximum(allocatable, 1.0), 1.0)


BALANCED_ALLOCATION_FACTORY: Final = PluginFactory(
    name=BALANCED_ALLOCATION, points=(Point.SCORE,), build=no_args(BalancedAllocationV118)
)


LEAST: Final = "NodeResourcesLeastAllocated"

MOST: Final = "NodeResourcesMostAllocated"

_RESOURCES: Final = 2


class ResourceAllocation(VectorScorePlugin):
    """The mean over cpu and memory of what ``part`` says is to be counted."""

    reads = Reads.NODE | Reads.PODS

    @abstractmethod
    def part(self, requested: Amount, allocatable: Amount) -> Amount:
        """What counts of each node's allocatable; float64[nodes], whole numbers."""

    @abstractmethod
    def part_of_one(self, requested: int, allocatable: int) -> int:
        """The same for one node."""

    def score(self, state: CycleState, pod: Pod, node: NodeInfo) -> int:
        """0..100."""
        wanted = state.pod_class.requests
        cpu = self._points(node.nonzero_cpu + wanted.nonzero_cpu, node.allocatable(CPU))
        memory = self._points(node.nonzero_memory + wanted.nonzero_memory, node.allocatable(MEMORY))
        return (cpu + memory) // _RESOURCES

    def score_all(self, state: CycleState, pod: Pod, nodes: Nodes) -> Scores:
        """The same for all nodes."""
        wanted = state.pod_class.requests
        cpu = self._all_points(nodes.nonzero_cpu + wanted.nonzero_cpu, nodes.allocatable(CPU))
        memory = self._all_points(nodes.nonzero_memory + wanted.nonzero_memory, nodes.allocatable(MEMORY))
        scores: Scores = (cpu + memory) // _RESOURCES
        return scores

    def _points(self, requested: int, allocatable: int) -> int:
        fits = allocatable and requested <= allocatable
        return self.part_of_one(requested, allocatable) * 100 // allocatable if fits else 0

    def _all_points(self, requested: Amount, allocatable: Amount) -> Scores:
        fits = (allocatable > 0) & (requested <= allocatable)
        points = np.floor(self.part(requested, allocatable) * 100.0 / np.maximum(allocatable, 1.0))
        return np.where(fits, points, 0.0).astype(np.int64)


class NodeResourcesLeastAllocated(ResourceAllocation):
    """The more room is left, the better."""

    name: ClassVar[str] = LEAST

    def part(self, requested: Amount, allocatable: Amount) -> Amount:
        """What is left."""
        return allocatable - requested

    def part_of_one(self, requested: int, allocatable: int) -> int:
        """What is left."""
        return allocatable - requested


class NodeResourcesMostAllocated(ResourceAllocation):
    """The less room is left, the better."""

    name: ClassVar[str] = MOST
    packs = True

    def part(self, requested: Amount, allocatable: Amount) -> Amount:
        """What is used."""
        return requested

    def part_of_one(self, requested: int, allocatable: int) -> int:
        """What is used."""
        return requested


LEAST_FACTORY: Final = PluginFactory(
    name=LEAST, points=(Point.SCORE,), build=no_args(NodeResourcesLeastAllocated), only_in_presets=True
)

MOST_FACTORY: Final = PluginFactory(
    name=MOST, points=(Point.SCORE,), build=no_args(NodeResourcesMostAllocated), only_in_presets=True
)


RESOURCE_LIMITS: Final = "NodeResourceLimits"

LIMITS: Final = StateKey[dict[str, int]]("NodeResourceLimits.limits")

_COUNTED: Final = (CPU, MEMORY)


class NodeResourceLimits(PreScorePlugin, VectorScorePlugin):
    """Scores by whether the pod's limits fit into the node were it empty."""

    name: ClassVar[str] = RESOURCE_LIMITS
    reads = Reads.NODE

    def pre_score(self, state: CycleState, pod: Pod, nodes: Nodes) -> Status:
        """The limits of the whole pod; never Skip."""
        state.write(LIMITS, limits_of(pod))
        return SUCCESS

    def score(self, state: CycleState, pod: Pod, node: NodeInfo) -> int:
        """1 or 0."""
        limits = state.read(LIMITS)
        return int(any(0 < limits[name] <= node.allocatable(name) for name in _COUNTED))

    def score_all(self, state: CycleState, pod: Pod, nodes: Nodes) -> Scores:
        """The same for all nodes."""
        limits, satisfied = state.read(LIMITS), np.zeros(len(nodes), dtype=np.bool_)
        for name in _COUNTED:
            satisfied |= (limits[name] > 0) & (limits[name] <= nodes.allocatable(name))
        return satisfied.astype(np.int64)


def limits_of(pod: Pod) -> dict[str, int]:
    """Millicores and bytes; 0 for what is not limited."""
    together, one_by_one = _limits(pod.spec.containers), _limits(pod.spec.init_containers)
    return {
        name: max([sum(limits.get(name, 0) for limits in together), *(limits.get(name, 0) for limits in one_by_one)])
        for name in _COUNTED
    }


def _limits(containers: Iterable[Container] | None) -> list[Amounts]:
    """A limit that cannot be read counts as 0: the API server lets none through."""
    given = (container.resources.limits if container.resources else None for container in containers or ())
    return [read_amounts(limits, "limits", lambda _: None) for limits in given]


RESOURCE_LIMITS_FACTORY: Final = PluginFactory(
    name=RESOURCE_LIMITS, points=(Point.PRE_SCORE, Point.SCORE), build=no_args(NodeResourceLimits), only_in_presets=True
)
