"""The scoring strategies of NodeResourcesFit, with their arguments: from requested and allocatable to a score.

With R requested (this pod included) and A allocatable, in whole numbers, per resource with A > 0:

- LeastAllocated: ``(A - R) * 100 / A``, 0 if R > A; a node's score is the weighted mean, rounded down.
- MostAllocated: ``R * 100 / A``, with R at most A; the mean likewise.
- RequestedToCapacityRatio: a shape over the utilization ``R * 100 / A`` (100 if R > A); only resources with a score
  above 0 count, in sum and weights, and the mean is rounded half up.

The formulas are kube-scheduler 1.36's, whose int64 overflows where 100 times an amount exceeds 2**63; here it does not.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from berth.api.resources import is_counted
from berth.plugins.factory import Args

LEAST: Final = "LeastAllocated"
MOST: Final = "MostAllocated"
RATIO: Final = "RequestedToCapacityRatio"


class ResourceWeight(Args, frozen=True, kw_only=True):
    """A resource and its weight, 1..100."""

    name: str = ""
    """cpu, memory, ephemeral-storage or an extended resource."""
    weight: int = 1
    """1..100."""

    def __post_init__(self) -> None:
        if not self.weight:
            msgspec.structs.force_setattr(self, "weight", 1)


def cpu_and_memory() -> list[ResourceWeight]:
    return [ResourceWeight(name="cpu"), ResourceWeight(name="memory")]


class ShapePoint(Args, frozen=True, kw_only=True):
    """The score (0..10) at a utilization (0..100)."""

    utilization: int = 0
    """0..100, rising from point to point."""
    score: int = 0
    """0..10."""


class Shape(Args, frozen=True, kw_only=True):
    """The points of the function, by rising utilization."""

    shape: list[ShapePoint] | None = None
    """One point or more; only for RequestedToCapacityRatio."""


class ScoringStrategy(Args, frozen=True, kw_only=True):
    """The formula and its resources; by default cpu and memory, each of weight 1.

    A strategy in a file must have a type.
    """

    type: str = ""
    """LeastAllocated, MostAllocated or RequestedToCapacityRatio; required in a strategy in a file."""
    resources: list[ResourceWeight] | None = msgspec.field(default_factory=cpu_and_memory)
    """The resources that count."""
    requested_to_capacity_ratio: Shape | None = None
    """The function of RequestedToCapacityRatio."""

    def __post_init__(self) -> None:
        if not self.resources:
            msgspec.structs.force_setattr(self, "resources", cpu_and_memory())


Amount = npt.NDArray[np.float64]
Points = npt.NDArray[np.int64]


class Strategy(ABC):
    """Scores a node from (weight, requested, allocatable) of each resource."""

    packs: bool  # fuller nodes score higher

    @abstractmethod
    def of_node(self, resources: Iterable[tuple[int, int, int]]) -> int:
        pass

    @abstractmethod
    def of_nodes(self, resources: Iterable[tuple[int, Amount, Amount]], count: int) -> Points:
        """int64[count]: 0..100 for each of ``count`` nodes."""


class LeastAllocated(Strategy):
    packs = False

    def of_node(self, resources: Iterable[tuple[int, int, int]]) -> int:
        return _mean([(weight, (a - r) * 100 // a if r < a else 0) for weight, r, a in resources if a])

    def of_nodes(self, resources: Iterable[tuple[int, Amount, Amount]], count: int) -> Points:
        return _means(((w, np.maximum(a - r, 0.0), a) for w, r, a in resources), count)


class MostAllocated(Strategy):
    packs = True

    def of_node(self, resources: Iterable[tuple[int, int, int]]) -> int:
        counted = [(weight, min(r, a) * 100 // a) for weight, r, a in resources if a]
        return _mean(counted)

    def of_nodes(self, resources: Iterable[tuple[int, Amount, Amount]], count: int) -> Points:
        return _means(((w, np.minimum(r, a), a) for w, r, a in resources), count)


class RequestedToCapacityRatio(Strategy):
    """Scores by a function of the utilization. ``shape``: rising (utilization 0..100, score 0..100)."""

    packs = True

    def __init__(self, shape: Sequence[tuple[int, int]]) -> None:
        self._points = [_on_shape(shape, utilization) for utilization in range(101)]
        self._table: npt.NDArray[np.float64] = np.array(self._points, dtype=np.float64)

    def of_node(self, resources: Iterable[tuple[int, int, int]]) -> int:
        points = [(weight, self._points[min(r, a) * 100 // a]) for weight, r, a in resources if a]
        counted = [(weight, score) for weight, score in points if score > 0]
        total, weights = sum(w * score for w, score in counted), sum(w for w, _ in counted)
        return (2 * total + weights) // (2 * weights) if weights else 0

    def of_nodes(self, resources: Iterable[tuple[int, Amount, Amount]], count: int) -> Points:
        total, weights = np.zeros(count), np.zeros(count)
        for weight, r, a in resources:
            utilization = np.floor(np.minimum(r, a) * 100.0 / np.maximum(a, 1.0)).astype(np.intp)
            scores = np.where(a > 0, self._table[utilization], 0.0)
            total += weight * scores
            weights += weight * (scores > 0)
        rounded: Points = np.floor((2.0 * total + weights) / np.maximum(2.0 * weights, 1.0)).astype(np.int64)
        return rounded


def weights_of(strategy: ScoringStrategy) -> tuple[tuple[str, int], ...]:
    """(resource, weight) of the resources that count."""
    return tuple((resource.name, resource.weight) for resource in strategy.resources or ())


def strategy_of(args: ScoringStrategy) -> Strategy:
    if args.type == MOST:
        return MostAllocated()
    if args.type == RATIO:
        points = (args.requested_to_capacity_ratio or Shape()).shape or []
        return RequestedToCapacityRatio([(p.utilization, p.score * 100 // _MAX_SHAPE_SCORE) for p in points])
    return LeastAllocated()


def _mean(counted: Sequence[tuple[int, int]]) -> int:
    total = weights = 0
    for weight, points in counted:
        total += weight * points
        weights += weight
    return total // weights if weights else 0


def _means(parts: Iterable[tuple[int, Amount, Amount]], count: int) -> Points:
    """Weighted means of ``part * 100 / allocatable``, every division rounded down."""
    total, weights = np.zeros(count), np.zeros(count)
    for weight, part, a in parts:
        score = part * 100.0
        score /= np.maximum(a, 1.0)
        np.floor(score, out=score)
        there = a > 0
        total += score if weight == 1 else score * weight
        weights += there if weight == 1 else there * weight
    total /= np.maximum(weights, 1.0)
    return total.astype(np.int64)


def _on_shape(shape: Sequence[tuple[int, int]], utilization: int) -> int:
    """Linear between two points, division toward zero; constant beyond the end points."""
    if utilization <= shape[0][0]:
        return shape[0][1]
    for (u0, s0), (u1, s1) in pairwise(shape):
        if utilization <= u1:
            rise = (s1 - s0) * (utilization - u0)
            return s0 + (abs(rise) // (u1 - u0)) * (1 if rise >= 0 else -1)
    return shape[-1][1]


_MAX_SHAPE_SCORE: Final = 10


def strategy_problems(strategy: ScoringStrategy, path: str) -> list[str]:
    problems = []
    if strategy.type not in (LEAST, MOST, RATIO):
        problems.append(f"{path}.type: want {LEAST}, {MOST} or {RATIO}, got {strategy.type!r}")
    problems += resource_problems(strategy.resources or [], f"{path}.resources")
    return problems + _ratio_problems(strategy, f"{path}.requestedToCapacityRatio")


def _ratio_problems(strategy: ScoringStrategy, path: str) -> list[str]:
    ratio = strategy.requested_to_capacity_ratio
    if strategy.type == RATIO:
        return shape_problems((ratio or Shape()).shape or [], f"{path}.shape")
    return [f"{path}: want it only where type is {RATIO}, got it with {strategy.type!r}"] if ratio is not None else []


def resource_problems(resources: list[ResourceWeight], path: str) -> list[str]:
    problems = [
        f"{path}[{i}].weight: want 1..100, got {resource.weight}"
        for i, resource in enumerate(resources)
        if not 1 <= resource.weight <= 100
    ]
    return problems + [
        f"{path}[{i}].name: want cpu, memory, ephemeral-storage or an extended resource, got {resource.name!r}"
        for i, resource in enumerate(resources)
        if not is_counted(resource.name)
    ]


def shape_problems(shape: list[ShapePoint], path: str) -> list[str]:
    """Points must be within their ranges and of rising utilization."""
    if not shape:
        return [f"{path}: want at least one point, got none"]
    problems = [
        f"{path}[{i}].utilization: want 0..100, got {p.utilization}"
        for i, p in enumerate(shape)
        if not 0 <= p.utilization <= 100
    ]
    problems += [
        f"{path}[{i}].score: want 0..10, got {p.score}"
        for i, p in enumerate(shape)
        if not 0 <= p.score <= _MAX_SHAPE_SCORE
    ]
    return problems + [
        f"{path}[{i}].utilization: want more than that of the point before ({before.utilization}), got {p.utilization}"
        for i, (before, p) in enumerate(pairwise(shape), start=1)
        if p.utilization <= before.utilization
    ]
