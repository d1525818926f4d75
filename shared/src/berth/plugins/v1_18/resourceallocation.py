"""NodeResourcesLeastAllocated and NodeResourcesMostAllocated: nodes with much room first, or with little.

With R requested (this pod included) and A allocatable, of cpu and memory: the least allocated gives
``(A - R) * 100 / A`` and the most allocated ``R * 100 / A``, without the fraction; 0 where R > A or A = 0. A node's
points are the mean of both, rounded down; a resource that the node lacks counts in it as 0. A container that names no
request counts with a default. As kube-scheduler 1.18's plugins of these names; today's
NodeResourcesFit differs where R > A and where A = 0.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar, Final

import numpy as np
import numpy.typing as npt

from berth.api.config.types import Point
from berth.api.pod import Pod
from berth.api.resources import CPU, MEMORY
from berth.cluster.nodeinfo import NodeInfo
from berth.cluster.nodes import Nodes
from berth.framework.interface import Reads, Scores, VectorScorePlugin
from berth.framework.state import CycleState
from berth.plugins.factory import PluginFactory, no_args

LEAST: Final = "NodeResourcesLeastAllocated"
MOST: Final = "NodeResourcesMostAllocated"
_RESOURCES: Final = 2
Amount = npt.NDArray[np.float64]


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
