"""NodeResourcesBalancedAllocation: prefers nodes of which the pod makes cpu and memory equally used.

With the used part ``f = R / A`` of each, this pod included: ``(1 - |f_cpu - f_memory|) * 100`` without the fraction; 0
where one of them is used up, or the node has none of it. A container that names no request counts with a default. As
kube-scheduler 1.18's plugin of that name; today's looks at real requests and at what the pod changes.
"""

from __future__ import annotations

from typing import ClassVar, Final

import numpy as np
import numpy.typing as npt

from berth.api.config.types import Point
from berth.api.pod import Pod
from berth.api.resources import CPU, MEMORY
from berth.cluster.nodeinfo import NodeInfo
from berth.cluster.nodes import Nodes
from berth.framework.interface import MAX_SCORE, Reads, Scores, VectorScorePlugin
from berth.framework.state import CycleState
from berth.plugins.factory import PluginFactory, no_args

NAME: Final = "NodeResourcesBalancedAllocation"
Amount = npt.NDArray[np.float64]


class NodeResourcesBalancedAllocation(VectorScorePlugin):
    """Scores by how evenly the node is used with the pod on it."""

    name: ClassVar[str] = NAME
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


FACTORY: Final = PluginFactory(name=NAME, points=(Point.SCORE,), build=no_args(NodeResourcesBalancedAllocation))
