"""How evenly the resources of a node are used, before and after a pod: what NodeResourcesBalancedAllocation computes.

With the used part ``f = R / A`` of each resource, at most 1, those with A = 0 left out: the spread is ``|f1 - f2| / 2``
of two resources, the population standard deviation of more, 0 of fewer, and the balance ``(1 - spread) * 100`` without
its fraction. Points: ``50 + (50 + balance with the pod - balance without it) / 2``, without the fraction.

Balances are 50..100, so nothing is ever negative. Sums are in the order of the resources: float results depend on it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce
from operator import add
from typing import Final

import numpy as np
import numpy.typing as npt

Amount = npt.NDArray[np.float64]
Points = npt.NDArray[np.int64]
_TWO: Final = 2


def points_of_node(resources: Sequence[tuple[int, int, int]]) -> int:
    """Of (requested without the pod, amount of the pod, allocatable) of each resource."""
    counted = [(r, amount, a) for r, amount, a in resources if a]
    now = _balance([(r + amount) / a for r, amount, a in counted])
    before = _balance([r / a for r, _, a in counted])
    return 50 + (50 + now - before) // 2


def points_of_nodes(resources: Sequence[tuple[Amount, float, Amount]], count: int) -> Points:
    """The same for ``count`` nodes."""
    has = [a > 0 for _, _, a in resources]
    divisors = [np.maximum(a, 1.0) for _, _, a in resources]
    now = [(r + amount) / a for (r, amount, _), a in zip(resources, divisors, strict=True)]
    before = [r / a for (r, _, _), a in zip(resources, divisors, strict=True)]
    points: Points = 50 + (50 + _balances(now, has, count) - _balances(before, has, count)) // 2
    return points


def _balance(fractions: Sequence[float]) -> int:
    parts = [min(part, 1.0) for part in fractions]
    if len(parts) < _TWO:
        return 100
    if len(parts) == _TWO:
        return int((1 - abs(parts[0] - parts[1]) / 2) * 100)
    mean = _added(parts) / len(parts)
    return int((1 - math.sqrt(_added([(part - mean) * (part - mean) for part in parts]) / len(parts))) * 100)


def _added(numbers: Sequence[float]) -> float:
    """One after the other: ``sum`` of newer Pythons is more exact than kube-scheduler's."""
    return reduce(add, numbers)


def _balances(fractions: Sequence[Amount], has: Sequence[npt.NDArray[np.bool_]], count: int) -> Points:
    parts = [np.minimum(f, 1.0) * there for f, there in zip(fractions, has, strict=True)]
    if len(parts) < _TWO:
        return np.full(count, 100, dtype=np.int64)
    spread = np.abs(parts[0] - parts[1]) / 2 * (has[0] & has[1]) if len(parts) == _TWO else _deviations(parts, has)
    balances: Points = ((1 - spread) * 100).astype(np.int64)
    return balances


def _deviations(parts: Sequence[Amount], has: Sequence[npt.NDArray[np.bool_]]) -> Amount:
    """The spread of more than two resources, of which a node may lack some."""
    there = np.add.reduce([h.astype(np.float64) for h in has])
    number = np.maximum(there, 1.0)
    mean = np.add.reduce(parts) / number
    squares = [np.where(h, (part - mean) * (part - mean), 0.0) for part, h in zip(parts, has, strict=True)]
    deviations: Amount = np.sqrt(np.add.reduce(squares) / number)
    if not np.any(there == _TWO):
        return deviations
    ranked = [np.where(h, part, np.nan) for part, h in zip(parts, has, strict=True)]
    halves = np.abs(np.fmax.reduce(ranked) - np.fmin.reduce(ranked)) / 2
    return np.where(there == _TWO, halves, deviations)
