"""The arguments of NodeResourcesFit and what is wrong with them."""

from __future__ import annotations

from itertools import pairwise
from typing import Final

import msgspec

from berth.api.resources import is_counted
from berth.plugins.factory import Args
from berth.plugins.labelargs import key_problems
from berth.plugins.scoringstrategy import LeastAllocated, MostAllocated, RequestedToCapacityRatio, Strategy

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
