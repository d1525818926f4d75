"""The three ways in which NodeResourcesFit turns requested and allocatable into points, for one node and for many.

With R requested (this pod included) and A allocatable, in whole numbers, per resource (those with A = 0 left out):

- LeastAllocated: ``(A - R) * 100 / A``, 0 when R > A; a node's points are the mean by weight, rounded down.
- MostAllocated: ``R * 100 / A``, with R at most A; the mean likewise.
- RequestedToCapacityRatio: a shape over the utilization ``R * 100 / A`` (100 when R > A); only resources with points
  count, in sum and weights, and the mean is rounded half up.

The formulas are kube-scheduler 1.36's. Sums are exact in float64 up to 2**53, so for amounts up to 80 TiB of memory.


The arguments of NodeResourcesFit and what is wrong with them.
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
from berth.plugins.factory import Args, key_problems

Amount = npt.NDArray[np.float64]

Points = npt.NDArray[np.int64]


class Strategy(ABC):
    """Points of a node from (weight, requested, allocatable) per resource."""

    packs: bool
    """Whether a fuller node is a better one."""

    @abstractmethod
    def of_node(self, resources: Iterable[tuple[int, int, int]]) -> int:
        """One node's points, 0..100."""

    @abstractmethod
    def of_nodes(self, resources: Iterable[tuple[int, Amount, Amount]], count: int) -> Points:
        """The points of ``count`` nodes."""


class LeastAllocated(Strategy):
    """The more room is left, the better."""

    packs = False

    def of_node(self, resources: Iterable[tuple[int, int, int]]) -> int:
        """The weighted mean of what is left."""
        counted = [(weight, max(a - r, 0) * 100 // a) for weight, r, a in resources if a]
        return _mean(counted)

    def of_nodes(self, resources: Iterable[tuple[int, Amount, Amount]], count: int) -> Points:
        """The same for many nodes."""
        return _means(((w, np.maximum(a - r, 0.0), a) for w, r, a in resources), count)


class MostAllocated(Strategy):
    """The less room is left, the better."""

    packs = True

    def of_node(self, resources: Iterable[tuple[int, int, int]]) -> int:
        """The weighted mean of what is used."""
        counted = [(weight, min(r, a) * 100 // a) for weight, r, a in resources if a]
        return _mean(counted)

    def of_nodes(self, resources: Iterable[tuple[int, Amount, Amount]], count: int) -> Points:
        """The same for many nodes."""
        return _means(((w, np.minimum(r, a), a) for w, r, a in resources), count)


class RequestedToCapacityRatio(Strategy):
    """As good as the shape says for the utilization. ``shape``: rising (utilization 0..100, points 0..100)."""

    packs = True

    def __init__(self, shape: Sequence[tuple[int, int]]) -> None:
        self._points = [_on_shape(shape, utilization) for utilization in range(101)]
        self._table: npt.NDArray[np.float64] = np.array(self._points, dtype=np.float64)

    def of_node(self, resources: Iterable[tuple[int, int, int]]) -> int:
        """The weighted mean of those resources that have points."""
        points = [(weight, self._points[min(r, a) * 100 // a]) for weight, r, a in resources if a]
        counted = [(weight, given) for weight, given in points if given > 0]
        total, weights = sum(w * given for w, given in counted), sum(w for w, _ in counted)
        return (2 * total + weights) // (2 * weights) if weights else 0

    def of_nodes(self, resources: Iterable[tuple[int, Amount, Amount]], count: int) -> Points:
        """The same for many nodes."""
        total, weights = np.zeros(count), np.zeros(count)
        for weight, r, a in resources:
            utilization = np.floor(np.minimum(r, a) * 100.0 / np.maximum(a, 1.0)).astype(np.intp)
            given = np.where(a > 0, self._table[utilization], 0.0)
            total += weight * given
            weights += weight * (given > 0)
        rounded: Points = np.floor((2.0 * total + weights) / np.maximum(2.0 * weights, 1.0)).astype(np.int64)
        return rounded


def _mean(counted: Sequence[tuple[int, int]]) -> int:
    weights = sum(weight for weight, _ in counted)
    return sum(weight * points for weight, points in counted) // weights if weights else 0


def _means(parts: Iterable[tuple[int, Amount, Amount]], count: int) -> Points:
    """Weighted means of ``part * 100 / allocatable``, every division rounded down."""
    total, weights = np.zeros(count), np.zeros(count)
    for weight, part, a in parts:
        total += weight * np.floor(part * 100.0 / np.maximum(a, 1.0))
        weights += weight * (a > 0)
    means: Points = np.floor(total / np.maximum(weights, 1.0)).astype(np.int64)
    return means


def _on_shape(shape: Sequence[tuple[int, int]], utilization: int) -> int:
    """Between two points on the line through them, division toward zero; the end points hold beyond them."""
    if utilization <= shape[0][0]:
        return shape[0][1]
    for (u0, s0), (u1, s1) in pairwise(shape):
        if utilization <= u1:
            rise = (s1 - s0) * (utilization - u0)
            return s0 + (abs(rise) // (u1 - u0)) * (1 if rise >= 0 else -1)
    return shape[-1][1]


LEAST: Final = "LeastAllocated"

MOST: Final = "MostAllocated"

RATIO: Final = "RequestedToCapacityRatio"

_MAX_PERCENT: Final = 100

_MAX_SHAPE_SCORE: Final = 10


class ResourceWeight(Args, frozen=True, kw_only=True):
    """A resource and how much it counts, 1..100."""

    name: str = ""
    weight: int = 1

    def __post_init__(self) -> None:
        """0 is not written."""
        if not self.weight:
            msgspec.structs.force_setattr(self, "weight", 1)


def cpu_and_memory() -> list[ResourceWeight]:
    """What counts where nothing is written: both alike."""
    return [ResourceWeight(name="cpu"), ResourceWeight(name="memory")]


class ShapePoint(Args, frozen=True, kw_only=True):
    """At this utilization (0..100) this score (0..10)."""

    utilization: int = 0
    score: int = 0


class Shape(Args, frozen=True, kw_only=True):
    """Points of rising utilization."""

    shape: list[ShapePoint] | None = None


class ScoringStrategy(Args, frozen=True, kw_only=True):
    """How points are given, and for which resources; none named is cpu and memory, each of weight 1.

    Whoever writes a strategy names its type.
    """

    type: str = ""
    resources: list[ResourceWeight] | None = msgspec.field(default_factory=cpu_and_memory)
    requested_to_capacity_ratio: Shape | None = None

    def __post_init__(self) -> None:
        """An empty list is not written."""
        if not self.resources:
            msgspec.structs.force_setattr(self, "resources", cpu_and_memory())


class NodeResourcesFitArgs(Args, frozen=True, kw_only=True):
    """``ignoredResources`` and ``ignoredResourceGroups``: extended resources that the filter leaves out."""

    ignored_resources: list[str] | None = None
    ignored_resource_groups: list[str] | None = None
    scoring_strategy: ScoringStrategy = ScoringStrategy(type=LEAST)


def weights_of(strategy: ScoringStrategy) -> tuple[tuple[str, int], ...]:
    """The resources that count and their weights."""
    return tuple((resource.name, resource.weight) for resource in strategy.resources or ())


def strategy_of(given: ScoringStrategy) -> Strategy:
    """The formula of a valid configuration."""
    if given.type == MOST:
        return MostAllocated()
    if given.type == RATIO:
        points = (given.requested_to_capacity_ratio or Shape()).shape or []
        return RequestedToCapacityRatio([(p.utilization, p.score * _MAX_PERCENT // _MAX_SHAPE_SCORE) for p in points])
    return LeastAllocated()


def validate(args: NodeResourcesFitArgs, path: str) -> list[str]:
    """Every problem, with its path."""
    strategy, where = args.scoring_strategy, f"{path}.scoringStrategy"
    problems = _ignored_problems(args, path)
    if strategy.type not in (LEAST, MOST, RATIO):
        problems.append(f"{where}.type: want {LEAST}, {MOST} or {RATIO}, got {strategy.type!r}")
    problems += resource_problems(strategy.resources or [], f"{where}.resources")
    return problems + _ratio_problems(strategy, f"{where}.requestedToCapacityRatio")


def _ignored_problems(args: NodeResourcesFitArgs, path: str) -> list[str]:
    """A name that no resource can have would ignore nothing."""
    problems = [
        problem
        for i, name in enumerate(args.ignored_resources or ())
        for problem in key_problems(name, f"{path}.ignoredResources[{i}]", "a resource such as example.com/gpu")
    ]
    for i, group in enumerate(args.ignored_resource_groups or ()):
        place, wanted = f"{path}.ignoredResourceGroups[{i}]", "a group such as example.com, without '/'"
        problems += [f"{place}: want {wanted}, got {group!r}"] if "/" in group else key_problems(group, place, wanted)
    return problems


def _ratio_problems(strategy: ScoringStrategy, path: str) -> list[str]:
    given = strategy.requested_to_capacity_ratio
    if strategy.type == RATIO:
        return shape_problems((given or Shape()).shape or [], f"{path}.shape")
    return [f"{path}: want it only where type is {RATIO}, got it with {strategy.type!r}"] if given is not None else []


def resource_problems(resources: list[ResourceWeight], path: str) -> list[str]:
    """Every problem of a list of resources with weights."""
    problems = [
        f"{path}[{i}].weight: want 1..100, got {resource.weight}"
        for i, resource in enumerate(resources)
        if not 1 <= resource.weight <= _MAX_PERCENT
    ]
    return problems + [
        f"{path}[{i}].name: want cpu, memory, ephemeral-storage or an extended resource, got {resource.name!r}"
        for i, resource in enumerate(resources)
        if not is_counted(resource.name)
    ]


def shape_problems(shape: list[ShapePoint], path: str) -> list[str]:
    """Every problem of a shape: points within their ranges, of rising utilization."""
    if not shape:
        return [f"{path}: want at least one point, got none"]
    problems = [
        f"{path}[{i}].utilization: want 0..100, got {p.utilization}"
        for i, p in enumerate(shape)
        if not 0 <= p.utilization <= _MAX_PERCENT
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
