"""NodeResourcesBalancedAllocation: prefers nodes with more even use of their resources with the pod on them.

With the used fraction ``f = R / A`` of each resource, at most 1, without resources of A = 0: the spread is ``|f1 - f2|
/ 2`` of two resources, the population standard deviation of more, 0 of fewer. The balance is ``(1 - spread) * 100`` in
whole numbers. Score: ``50 + (50 + balance with the pod - balance without it) / 2``. Requests are the real ones; a pod
that requests none of the resources is not scored. As kube-scheduler 1.36's plugin of that name.

Balances are 50..100, so all numbers stay positive. Sums keep the order of the resources, which changes float results.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce
from operator import add
from typing import ClassVar, Final

import msgspec
import numpy as np
import numpy.typing as npt

from berth.api.config.types import Point
from berth.api.pod import Pod
from berth.api.resources import Requests, is_scalar
from berth.cluster.nodes import NodeInfo, Nodes
from berth.framework.interface import PreScorePlugin, Reads, Scores, VectorScorePlugin
from berth.framework.status import SKIP, SUCCESS, CycleState, Status
from berth.plugins.factory import Args, PluginFactory, with_args
from berth.plugins.noderesources.scoringstrategy import ResourceWeight, cpu_and_memory, resource_problems

NAME: Final = "NodeResourcesBalancedAllocation"


class BalancedAllocationArgs(Args, frozen=True, kw_only=True):
    """The resources to balance."""

    resources: list[ResourceWeight] | None = msgspec.field(default_factory=cpu_and_memory)
    """The resources to balance, each once; their weight can only be 1."""

    def __post_init__(self) -> None:
        if not self.resources:
            msgspec.structs.force_setattr(self, "resources", cpu_and_memory())


class NodeResourcesBalancedAllocation(PreScorePlugin, VectorScorePlugin):
    name: ClassVar[str] = NAME
    reads = Reads.NODE | Reads.PODS
    reads_amounts = True
    counts_others = True

    def __init__(self, args: BalancedAllocationArgs) -> None:
        self._resources = [resource.name for resource in args.resources or ()]

    def pre_score(self, state: CycleState, pod: Pod, nodes: Nodes) -> Status:
        return SUCCESS if any(amount for _, amount in self._counted(state.pod_class.requests)) else SKIP

    def score(self, state: CycleState, pod: Pod, node: NodeInfo) -> int:
        """50..100; 75 for an unchanged balance."""
        return points_of_node(
            [
                (node.requested(name), amount, node.allocatable(name))
                for name, amount in self._counted(state.pod_class.requests)
            ]
        )

    def score_all(self, state: CycleState, pod: Pod, nodes: Nodes) -> Scores:
        counted = self._counted(state.pod_class.requests)
        resources = [(nodes.requested(name), float(amount), nodes.allocatable(name)) for name, amount in counted]
        return points_of_nodes(resources, nodes.size)

    def _counted(self, requests: Requests) -> list[tuple[str, int]]:
        """(resource, amount) of the counted resources: scalar ones only if the pod requests them."""
        return [
            (name, amount)
            for name in self._resources
            if (amount := requests.amounts.get(name, 0)) or not is_scalar(name)
        ]


Amount = npt.NDArray[np.float64]
Points = npt.NDArray[np.int64]


def points_of_node(resources: Sequence[tuple[int, int, int]]) -> int:
    """The score, from (requested without the pod, amount of the pod, allocatable) of each resource."""
    counted = [(r, amount, a) for r, amount, a in resources if a]
    now = _balance([float(r + amount) / float(a) for r, amount, a in counted])  # rounded first, as in Go
    before = _balance([float(r) / float(a) for r, _, a in counted])
    return 50 + (50 + now - before) // 2


def points_of_nodes(resources: Sequence[tuple[Amount, float, Amount]], count: int) -> Points:
    has = [a > 0 for _, _, a in resources]
    now_and_before = _balances([_fractions(*resource) for resource in resources], has, count)
    points: Points = 50 + (50 + now_and_before[0] - now_and_before[1]) // 2
    return points


def _fractions(requested: Amount, amount: float, allocatable: Amount) -> Amount:
    """float64[2, nodes]: the used fraction with the pod, and without it; at most 1."""
    fractions = np.empty((2, len(requested)))
    np.add(requested, amount, out=fractions[0])
    fractions[1] = requested
    fractions /= np.maximum(allocatable, 1.0)
    return np.minimum(fractions, 1.0, out=fractions)


def _balance(fractions: Sequence[float]) -> int:
    parts = [min(1.0, part) for part in fractions]
    if len(parts) < 2:
        return 100
    if len(parts) == 2:
        return int((1 - abs(parts[0] - parts[1]) / 2) * 100)
    mean = _added(parts) / len(parts)
    return int((1 - math.sqrt(_added([(part - mean) * (part - mean) for part in parts]) / len(parts))) * 100)


def _added(numbers: Sequence[float]) -> float:
    """One after the other, because ``sum`` of newer Pythons is more exact than kube-scheduler's."""
    return reduce(add, numbers)


def _balances(fractions: Sequence[Amount], has: Sequence[npt.NDArray[np.bool_]], count: int) -> Points:
    """int64[2, nodes], from float64[2, nodes] of each resource."""
    if len(fractions) < 2:
        return np.full((2, count), 100, dtype=np.int64)
    if len(fractions) == 2:
        spread = np.abs(fractions[0] - fractions[1])
        spread *= (has[0] & has[1]) / 2
    else:
        parts = [f * there for f, there in zip(fractions, has, strict=True)]
        spread = np.stack([_deviations([part[i] for part in parts], has) for i in range(2)])
    balances: Points = ((1 - spread) * 100).astype(np.int64)
    return balances


def _deviations(parts: Sequence[Amount], has: Sequence[npt.NDArray[np.bool_]]) -> Amount:
    """The spread of more than two resources, some of which a node may lack."""
    there = np.add.reduce([h.astype(np.float64) for h in has])
    number = np.maximum(there, 1.0)
    mean = np.add.reduce(parts) / number
    squares = [np.where(h, (part - mean) * (part - mean), 0.0) for part, h in zip(parts, has, strict=True)]
    deviations: Amount = np.sqrt(np.add.reduce(squares) / number)
    if not np.any(there == 2):
        return deviations
    ranked = [np.where(h, part, np.nan) for part, h in zip(parts, has, strict=True)]
    halves = np.abs(np.fmax.reduce(ranked) - np.fmin.reduce(ranked)) / 2
    return np.where(there == 2, halves, deviations)


def validate(args: BalancedAllocationArgs, path: str) -> list[str]:
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


FACTORY: Final = PluginFactory(
    name=NAME,
    points=(Point.PRE_SCORE, Point.SCORE),
    build=with_args(NodeResourcesBalancedAllocation, BalancedAllocationArgs),
    args_type=BalancedAllocationArgs,
    validate=validate,
)
