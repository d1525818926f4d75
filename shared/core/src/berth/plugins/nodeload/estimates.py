"""What a pod is estimated to use until samples show it: millicores of CPU and bytes of memory, by its spec alone.

Scaled: ``factor`` percent of the larger of request and limit, at most the limit; 250 millicores and 200 MiB without
either. Koordinator's default estimator (pkg/scheduler/plugins/loadaware/estimator), which NodeLoad has too. If a
pod's limits are less than its requests, some container has no limit: they bound the estimate in Koordinator, not here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Final
from weakref import WeakKeyDictionary

from berth.api.config.nodeload.queries import MEASURED, MeasuredResource
from berth.api.pod import Container, Quantities, ResourceRequirements
from berth.api.resources import CPU, pod_limits, read_amounts
from berth.cluster.pods import EquivalenceClass, PlacedPod

# Of a pod with neither request nor limit: millicores, bytes.
UNREQUESTED: Final[Mapping[MeasuredResource, int]] = {"cpu": 250, "memory": 200 * 1024 * 1024}

# Whole numbers in the order of ``MEASURED``.
Estimate = tuple[float, ...]


class ClassEstimates:
    """The estimate of each equivalence class, computed once."""

    def __init__(self, estimate: Callable[[EquivalenceClass], Estimate]) -> None:
        self._estimate = estimate
        self._known: WeakKeyDictionary[EquivalenceClass, Estimate] = WeakKeyDictionary()
        self._last: tuple[EquivalenceClass | None, Estimate] = None, ()

    def of_placed(self, placed: PlacedPod) -> Estimate:
        last, amounts = self._last  # newcomers of one node are mostly of one class
        return amounts if placed.pod_class is last else self.of(placed.pod_class)

    def of(self, pod_class: EquivalenceClass) -> Estimate:
        last, amounts = self._last
        if pod_class is last:
            return amounts
        known = self._known.get(pod_class)
        if known is None:
            known = self._known[pod_class] = self._estimate(pod_class)
        self._last = pod_class, known
        return known


def scaled(
    factors: Mapping[MeasuredResource, int], names: Mapping[MeasuredResource, str] | None = None
) -> Callable[[EquivalenceClass], Estimate]:
    """``names``: the resources that the pod requests in place of cpu and memory, in the same units."""

    def estimate(pod_class: EquivalenceClass) -> Estimate:
        requests, limits = pod_class.requests.amounts, pod_limits(pod_class.spec)
        return tuple(
            _scaled(requests.get(name, 0), limits.get(name, 0), factors[resource], UNREQUESTED[resource])
            for resource in MEASURED
            for name in ((names or {}).get(resource, resource),)
        )

    return estimate


def _scaled(request: int, limit: int, factor: int, unrequested: int) -> float:
    if not (larger := max(request, limit)):
        return unrequested
    amount = round_half_up(larger * factor / 100)
    return min(amount, limit) if limit >= request else amount


def round_half_up(number: float) -> int:
    """As Go's ``math.Round`` rounds numbers above 0."""
    return math.floor(number + 0.5)


def packed(multiplier: float, unrequested: int) -> Callable[[EquivalenceClass], Estimate]:
    """CPU alone: of each container its limit, else ``multiplier`` times its request, else ``unrequested``; overhead.

    Init containers do not count. TargetLoadPacking's prediction (pkg/trimaran/targetloadpacking).
    """

    def of_container(container: Container) -> int:
        resources = container.resources or ResourceRequirements()
        for amounts, factor in ((resources.limits, 1.0), (resources.requests, multiplier)):
            if amounts and CPU in amounts:
                return round_half_up(_millicores(amounts) * factor)
        return unrequested

    def estimate(pod_class: EquivalenceClass) -> Estimate:
        spec = pod_class.spec
        return (float(sum(map(of_container, spec.containers or ())) + _millicores(spec.overhead)), 0.0)

    return estimate


def requested(pod_class: EquivalenceClass) -> Estimate:
    """The pod's requests, as LoadVariationRiskBalancing counts the incoming pod."""
    return tuple(float(pod_class.requests.amounts.get(resource, 0)) for resource in MEASURED)


def _millicores(quantities: Quantities | None) -> int:
    return read_amounts(quantities, "", lambda _: None).get(CPU, 0)
