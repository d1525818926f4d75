"""The three ways in which NodeResourcesFit turns requested and allocatable into points, for one node and for many.

With R requested (this pod included) and A allocatable, in whole numbers, per resource (those with A = 0 left out):

- LeastAllocated: ``(A - R) * 100 / A``, 0 when R > A; a node's points are the mean by weight, rounded down.
- MostAllocated: ``R * 100 / A``, with R at most A; the mean likewise.
- RequestedToCapacityRatio: a shape over the utilization ``R * 100 / A`` (100 when R > A); only resources with points
  count, in sum and weights, and the mean is rounded half up.

The formulas are kube-scheduler 1.36's. Sums are exact in float64 up to 2**53, so for amounts up to 80 TiB of memory.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

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
