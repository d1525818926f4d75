"""NodeResourcesBalancedAllocation: prefers nodes whose resources the pod makes more evenly used.

Score: see balance. Requests are the real ones, and a pod that asks for none of the resources is not scored. As
kube-scheduler 1.36's plugin of that name.
"""

from __future__ import annotations

from typing import Any, ClassVar, Final

import msgspec

from berth.api.config.types import Point
from berth.api.pod import Pod
from berth.api.resources import Requests, is_scalar
from berth.cluster.nodeinfo import NodeInfo
from berth.cluster.nodes import Nodes
from berth.framework.interface import PreScorePlugin, Reads, Scores, VectorScorePlugin
from berth.framework.state import CycleState
from berth.framework.status import SKIP, SUCCESS, Status
from berth.plugins.balance import points_of_node, points_of_nodes
from berth.plugins.factory import Args, PluginFactory
from berth.plugins.noderesourcesargs import ResourceWeight, cpu_and_memory, resource_problems

NAME: Final = "NodeResourcesBalancedAllocation"


class BalancedAllocationArgs(Args, frozen=True, kw_only=True):
    """``resources``: those that are to be used evenly; their weight can only be 1."""

    resources: list[ResourceWeight] | None = msgspec.field(default_factory=cpu_and_memory)

    def __post_init__(self) -> None:
        """An empty list is not written."""
        if not self.resources:
            msgspec.structs.force_setattr(self, "resources", cpu_and_memory())


class NodeResourcesBalancedAllocation(PreScorePlugin, VectorScorePlugin):
    """Scores by what the pod does to the balance."""

    name: ClassVar[str] = NAME
    reads = Reads.NODE | Reads.PODS

    def __init__(self, args: BalancedAllocationArgs) -> None:
        self._resources = [resource.name for resource in args.resources or ()]

    def pre_score(self, state: CycleState, pod: Pod, nodes: Nodes) -> Status:
        """Skip for a pod that asks for none of it: it leaves every balance as it is."""
        return SUCCESS if any(amount for _, amount in self._counted(state.pod_class.requests)) else SKIP

    def score(self, state: CycleState, pod: Pod, node: NodeInfo) -> int:
        """50..100: 75 where the balance stays as it is."""
        return points_of_node(
            [
                (node.requested(name), amount, node.allocatable(name))
                for name, amount in self._counted(state.pod_class.requests)
            ]
        )

    def score_all(self, state: CycleState, pod: Pod, nodes: Nodes) -> Scores:
        """The same for all nodes."""
        counted = self._counted(state.pod_class.requests)
        resources = [(nodes.requested(name), float(amount), nodes.allocatable(name)) for name, amount in counted]
        return points_of_nodes(resources, len(nodes))

    def _counted(self, requests: Requests) -> list[tuple[str, int]]:
        """(resource, amount) of what counts: scalars only when the pod asks for them."""
        given = ((name, requests.amounts.get(name, 0)) for name in self._resources)
        return [(name, amount) for name, amount in given if amount or not is_scalar(name)]


def validate(args: BalancedAllocationArgs, path: str) -> list[str]:
    """Resources that can be counted, each once, and no weights."""
    resources = args.resources or []
    names = [resource.name for resource in resources]
    problems = [
        f"{path}.resources[{i}].name: want it once, got {name!r} once more"
        for i, name in enumerate(names)
        if name in names[:i]
    ]
    problems += [
        f"{path}.resources[{i}].weight: want 1, got {resource.weight}"
        for i, resource in enumerate(resources)
        if resource.weight != 1
    ]
    unweighed = [ResourceWeight(name=name) for name in names]
    return problems + resource_problems(unweighed, f"{path}.resources")


def _build(args: Any) -> NodeResourcesBalancedAllocation:
    return NodeResourcesBalancedAllocation(args or BalancedAllocationArgs())


FACTORY: Final = PluginFactory(
    name=NAME,
    points=(Point.PRE_SCORE, Point.SCORE),
    build=_build,
    args_type=BalancedAllocationArgs,
    validate=validate,
)
