"""NodeResourceLimits: one point for a node that has at least what the pod's limits name, of cpu or of memory.

The limits are the sum over the containers, or those of an init container where they are larger. A limit that is not
named, or 0, gives nothing; nor does a resource that the node lacks. One point of 100 breaks ties and no more. As
kube-scheduler 1.18's plugin of that name, behind the gate ResourceLimitsPriorityFunction.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar, Final

import numpy as np

from berth.api.config.types import Point
from berth.api.pod import Container, Pod
from berth.api.resources import CPU, MEMORY, Amounts, read_amounts
from berth.cluster.nodeinfo import NodeInfo
from berth.cluster.nodes import Nodes
from berth.framework.interface import PreScorePlugin, Reads, Scores, VectorScorePlugin
from berth.framework.state import CycleState, StateKey
from berth.framework.status import SUCCESS, Status
from berth.plugins.factory import PluginFactory, no_args

NAME: Final = "NodeResourceLimits"
LIMITS: Final = StateKey[dict[str, int]]("NodeResourceLimits.limits")
_COUNTED: Final = (CPU, MEMORY)


class NodeResourceLimits(PreScorePlugin, VectorScorePlugin):
    """Scores by whether the pod's limits fit into the node were it empty."""

    name: ClassVar[str] = NAME
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


FACTORY: Final = PluginFactory(
    name=NAME, points=(Point.PRE_SCORE, Point.SCORE), build=no_args(NodeResourceLimits), only_in_presets=True
)
