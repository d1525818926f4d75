"""LoadAwareScheduling: Koordinator's plugin of that name, by its arguments (pkg/scheduler/plugins/loadaware).

Score: ``(allocatable - used) * 100 / allocatable`` of each resource in whole numbers, 0 beyond it; their mean by
``resourceWeights``, with the lowest of them by ``dominantResourceWeight``. Filter: ``100 * used / allocatable``,
rounded, above the threshold: of koord-prod for such pods if there is one, else of the percentile if there is one, else
of the mean. ``used`` includes estimates for newcomers and the incoming pod.

It differs where theirs is wrong or berth knows less:
- Unknown and old samples: a node counts as the mean of the others, not as 0 points, and the filter passes it always.
  ``filterExpiredNodeMetrics`` and ``enableScheduleWhenNodeMetricsExpired`` have no effect.
- A newcomer's estimate fades over the range of the sample. Theirs counts it whole until a report after its start has
  the pod, then at once no more. berth has no sample of single pods, so none replaces an estimate.
- A limit below the request, as of a pod whose proxy alone has one, does not bound the estimate.
- What koord-prod uses is the node's use, divided by the estimates of its pods that samples show; with
  ``prodUsageIncludeSys`` at least what other pods are not estimated to use.
- Reasons are berth's own; evictions are not tried, because they change no sample.
- ``estimatedSecondsAfterInitialized`` counts from the Binding too; the longer of both times counts.
- Annotations of nodes are not read: ``usage-thresholds``, ``raw-allocatable``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Hashable, Mapping
from dataclasses import replace
from typing import ClassVar, Final

import msgspec
import numpy as np

from berth.api.config.nodeload.args import factors_of
from berth.api.config.nodeload.koordinator import (
    MOST_SECONDS,
    NAME,
    POINTS,
    LoadAwareSchedulingArgs,
    filter_reading,
    prod_thresholds_of,
    readings_of,
    score_reading,
    thresholds_of,
    usual_reading,
    validate,
    weights_of,
)
from berth.api.config.nodeload.queries import MEASURED, LoadReading, MeasuredResource, Statistic, by_resource
from berth.api.pod import Pod
from berth.cluster.nodes import Nodes
from berth.cluster.pods import EquivalenceClass, PlacedPod
from berth.cluster.snapshot import Snapshot
from berth.decoding import MALFORMED
from berth.framework.interface import KeyedPlugin, RowChanges
from berth.plugins.factory import PluginFactory
from berth.plugins.nodeload.estimates import ClassEstimates, Estimate, scaled
from berth.plugins.nodeload.loads import Amount, Measured, NodeLoads, PodEstimate, RowLog, RowSums
from berth.plugins.nodeload.scoring import LoadFilter, LoadLimit, Loads, LoadScore, Usage, source_of

PRIORITY_CLASS_LABEL: Final = "koordinator.sh/priority-class"
QOS_CLASS_LABEL: Final = "koordinator.sh/qosClass"
PROD: Final = "koord-prod"
BATCH: Final = "koord-batch"
MID: Final = "koord-mid"
_CLASSES: Final = (PROD, MID, BATCH, "koord-free")
# Priorities of each class, from and to (apis/extension).
_PRIORITIES: Final = {PROD: (9000, 9999), MID: (7000, 7999), BATCH: (5000, 5999), "koord-free": (3000, 3999)}
_BY_QOS: Final = {"SYSTEM": PROD, "LSE": PROD, "LSR": PROD, "LS": PROD, "BE": BATCH}
# What pods of these classes request in place of cpu (in millicores there) and memory.
_REQUESTED: Final[Mapping[str, Mapping[MeasuredResource, str]]] = {
    BATCH: {"cpu": "kubernetes.io/batch-cpu", "memory": "kubernetes.io/batch-memory"},
    MID: {"cpu": "kubernetes.io/mid-cpu", "memory": "kubernetes.io/mid-memory"},
}


# Annotations of pods, read if ``allowCustomizeEstimation`` is set: percent by resource as JSON, and whole seconds.
FACTORS: Final = "scheduling.koordinator.sh/load-estimated-scaling-factors"
SECONDS_AFTER_SCHEDULED: Final = "scheduling.koordinator.sh/load-estimated-seconds-after-pod-scheduled"
SECONDS_AFTER_INITIALIZED: Final = "scheduling.koordinator.sh/load-estimated-seconds-after-initialized"
_MOST_CHARACTERS: Final = 256  # of such an annotation
_MOST_PERCENT: Final = 1000
_DIGITS: Final = 10
# Kept estimates by class and factors, because each pod may have other annotations.
_MOST_ESTIMATES: Final = 256

Factors = tuple[tuple[MeasuredResource, int], ...]
_decode_factors: Final = msgspec.json.Decoder(dict[str, int]).decode


class LoadAwareScheduling(LoadScore, KeyedPlugin):
    """Prefers nodes with much unused CPU and memory, as Koordinator's plugin does."""

    name: ClassVar[str] = NAME

    def __init__(self, args: LoadAwareSchedulingArgs) -> None:
        self._args = args
        self._weights = weights_of(args)
        self._dominant = args.dominant_resource_weight
        factors = factors_of(args.estimated_scaling_factors)
        self._factors: Factors = tuple(factors.items())
        self._estimates: dict[tuple[str, Factors], ClassEstimates] = {}  # by class and factors
        self._last: tuple[Pod | None, ClassEstimates] = None, ClassEstimates(scaled(factors))
        self._last_placed: tuple[PlacedPod | None, Estimate] = None, ()
        self._score_reading = score_reading(args)
        self.resources = MEASURED if self._dominant else tuple(self._weights)
        self.live_sources = frozenset(map(source_of, readings_of(args)))

    def pod_key(self, pod: Pod) -> Hashable:
        """What labels and annotations decide: which estimates, loads and limit count for the pod."""
        return priority_class(pod), self._factors_of(pod)

    def row_changes(self, snapshot: Snapshot, since: int) -> RowChanges:
        self._refresh(snapshot)
        return self._log(snapshot).since(since)

    def _refresh(self, snapshot: Snapshot) -> None:
        """All loads that the plugin may read."""
        self._loads(snapshot, self._score_reading)
        if self._args.score_according_prod_usage:
            self._prod_loads(snapshot)

    def _log(self, snapshot: Snapshot) -> RowLog:
        return snapshot.derived((self, RowLog), RowLog)

    def loads_for(self, pod: Pod, snapshot: Snapshot) -> NodeLoads:
        if self._args.score_according_prod_usage and priority_class(pod) == PROD:
            return self._prod_loads(snapshot)
        return self._loads(snapshot, self._score_reading)

    def _loads(self, snapshot: Snapshot, reading: LoadReading) -> NodeLoads:
        loads = snapshot.derived(
            (self, reading is self._score_reading),  # there are two at most; a reading takes long to hash
            lambda: NodeLoads(snapshot, reading, self._of_placed, hold_seconds=self._hold, log=self._log(snapshot)),
        )
        loads.refresh()
        return loads

    def _prod_loads(self, snapshot: Snapshot) -> NodeLoads:
        loads = snapshot.derived(
            (self, PROD),
            lambda: ProdLoads(
                snapshot,
                usual_reading(self._args),
                self._of_placed,
                hold_seconds=self._hold,
                include_sys=self._args.prod_usage_include_sys,
                log=self._log(snapshot),
            ),
        )
        loads.refresh()
        return loads

    @property
    def _hold(self) -> Callable[[Pod], float] | None:
        args = self._args
        holds = args.estimated_seconds_after_pod_scheduled or args.estimated_seconds_after_initialized
        return self._hold_seconds if holds or args.allow_customize_estimation else None

    def _hold_seconds(self, pod: Pod) -> float:
        scheduled = self._args.estimated_seconds_after_pod_scheduled
        initialized = self._args.estimated_seconds_after_initialized
        if self._args.allow_customize_estimation and pod.metadata.annotations:
            scheduled = annotated_seconds(pod, SECONDS_AFTER_SCHEDULED, scheduled)
            initialized = annotated_seconds(pod, SECONDS_AFTER_INITIALIZED, initialized)
        return float(max(scheduled, initialized))

    def _of_placed(self, placed: PlacedPod) -> Estimate:
        # Newcomers of one node are mostly of one workload, of whose pods equal parts are kept once.
        last, amounts = self._last_placed
        if last is not None and placed.pod_class is last.pod_class:
            own, others = placed.pod.metadata, last.pod.metadata
            if own.labels is others.labels and own.annotations is others.annotations:
                return amounts
        amounts = self._of(placed.pod).of_placed(placed)
        self._last_placed = placed, amounts
        return amounts

    def estimate(self, pod: Pod, pod_class: EquivalenceClass) -> Estimate:
        return self._of(pod).of(pod_class)

    def _factors_of(self, pod: Pod) -> Factors:
        if self._args.allow_customize_estimation and pod.metadata.annotations:
            return tuple({**dict(self._factors), **annotated_factors(pod)}.items())
        return self._factors

    def _of(self, pod: Pod) -> ClassEstimates:
        last, known_for_it = self._last
        if pod is last:
            return known_for_it
        name, factors = priority_class(pod), self._factors_of(pod)
        key = (name if name in _REQUESTED else "", factors)
        known = self._estimates.get(key)
        if known is None:
            if len(self._estimates) >= _MOST_ESTIMATES:
                self._estimates.clear()
            known = self._estimates[key] = ClassEstimates(scaled(dict(factors), _REQUESTED.get(name)))
        self._last = pod, known
        return known

    def points(self, pod: Pod, nodes: Nodes, loads: Loads) -> Amount:
        free = {resource: _least_used(loads, resource) for resource in loads.used}
        total = sum(
            (weight * free[each] for each, weight in self._weights.items() if each in free), np.zeros(len(nodes))
        )
        weights = sum(weight for each, weight in self._weights.items() if each in free)
        if self._dominant:
            total += self._dominant * np.minimum.reduce(list(free.values()))
        return np.floor(total / (weights + self._dominant))

    def points_of(self, row: int, loads: NodeLoads, usages: Mapping[MeasuredResource, Usage]) -> float:
        del row, loads
        free = {
            each: max(math.floor((allocatable - used) * 100 / allocatable), 0)
            for each, (used, allocatable) in usages.items()
        }
        total, weights = 0, self._dominant
        for resource, weight in self._weights.items():
            if resource in free:
                total += weight * free[resource]
                weights += weight
        if self._dominant:
            total += self._dominant * min(free.values())
        return total // weights


class FilteringLoadAwareScheduling(LoadAwareScheduling, LoadFilter):
    """Prefers nodes with much unused CPU and memory, and refuses those above its thresholds, as Koordinator's does."""

    def __init__(self, args: LoadAwareSchedulingArgs) -> None:
        super().__init__(args)
        reading = filter_reading(args)
        if reading == self._score_reading:
            reading = self._score_reading  # so that both read the same loads
        self._limit = LoadLimit(percents=thresholds_of(args), reading=reading)
        self._prod_limit = LoadLimit(percents=prod_thresholds_of(args), reading=usual_reading(args))
        self.rejects_for = reading.maximum_age  # both limits have one

    def _refresh(self, snapshot: Snapshot) -> None:
        super()._refresh(snapshot)
        if self._limit.reading is not self._score_reading:
            self._loads(snapshot, self._limit.reading)
        if self._prod_limit.percents:
            self._prod_loads(snapshot)

    def limit_for(self, pod: Pod) -> LoadLimit:
        return self._prod_limit if self._has_prod_limit(pod) else self._limit

    def filter_loads(self, pod: Pod, snapshot: Snapshot) -> NodeLoads:
        return self._prod_loads(snapshot) if self._has_prod_limit(pod) else self._loads(snapshot, self._limit.reading)

    def hint_key(self, pod: Pod) -> Hashable:
        return self._has_prod_limit(pod), super().hint_key(pod)

    def least_used(self, pod: Pod, amount: float) -> float:
        return 0.0 if self._has_prod_limit(pod) else amount  # the sample does not have the part of koord-prod

    def _has_prod_limit(self, pod: Pod) -> bool:
        return bool(self._prod_limit.percents) and priority_class(pod) == PROD


class ProdLoads(NodeLoads):
    """The part of each node's load that pods of koord-prod use."""

    of_whom = f" by {PROD}"
    _moves_with_pods = True

    def __init__(  # noqa: PLR0913 - as those of NodeLoads, and whose part it is
        self,
        snapshot: Snapshot,
        reading: LoadReading,
        estimate: PodEstimate,
        *,
        hold_seconds: Callable[[Pod], float] | None,
        include_sys: bool,
        log: RowLog,
    ) -> None:
        def of_prod(placed: PlacedPod) -> Estimate | None:
            return estimate(placed) if priority_class(placed.pod) == PROD else None

        def shown(row: int, pods: Collection[PlacedPod], *, are_all: bool) -> tuple[list[Estimate], bool]:
            del row, are_all
            found, are_whole = [], True
            for placed in pods:
                share = 1 - self.missing_share(placed)
                are_whole = are_whole and not share
                of_all = tuple([share * amount for amount in estimate(placed) or ()])
                is_prod = priority_class(placed.pod) == PROD
                found.append((*of_all, *(of_all if is_prod else (0.0,) * len(of_all))))
            return found, are_whole

        super().__init__(snapshot, reading, of_prod, hold_seconds=hold_seconds, log=log)
        self._include_sys = include_sys
        self._shown = RowSums(snapshot, 2 * len(MEASURED), shown)  # of all pods, then of koord-prod
        self._sums.append(self._shown)

    def measured(self, resource: MeasuredResource, statistic: Statistic | None = None) -> Measured:
        whole, index = super().measured(resource, statistic), MEASURED.index(resource)
        of_all, of_prod = self._shown.columns[index], self._shown.columns[len(MEASURED) + index]
        share = np.divide(of_prod, of_all, out=np.zeros(len(of_all)), where=of_all > 0)
        amount = whole.amount * share
        if self._include_sys:
            amount = np.maximum(amount, whole.amount - (of_all - of_prod))
        return replace(whole, amount=amount)


def annotated_factors(pod: Pod) -> dict[MeasuredResource, int]:
    """The pod's own percents by resource; none of an annotation that cannot be read, as in Koordinator."""
    text = (pod.metadata.annotations or {}).get(FACTORS, "")
    try:
        given = _decode_factors(text) if 0 < len(text) <= _MOST_CHARACTERS else {}
    except MALFORMED:
        return {}
    return by_resource({name: percent for name, percent in given.items() if 0 <= percent <= _MOST_PERCENT})


def annotated_seconds(pod: Pod, annotation: str, otherwise: int) -> int:
    """The pod's own seconds; ``otherwise`` without any, or if they are no number of 0 up to a day."""
    text = (pod.metadata.annotations or {}).get(annotation, "")
    is_number = text.isascii() and text.isdecimal() and len(text) < _DIGITS
    return int(text) if is_number and int(text) <= MOST_SECONDS else otherwise


def priority_class(pod: Pod) -> str:
    """koord-prod, -mid, -batch or -free: by the label, else the priority, else the class of QoS."""
    labels = pod.metadata.labels or {}
    if (name := labels.get(PRIORITY_CLASS_LABEL)) in _CLASSES:
        return str(name)
    if name is None and pod.spec.priority is not None:
        for found, (lowest, highest) in _PRIORITIES.items():
            if lowest <= pod.spec.priority <= highest:
                return found
    qos = labels.get(QOS_CLASS_LABEL, "")
    return _BY_QOS.get(qos) or (BATCH if _is_best_effort(pod) else PROD)


def _is_best_effort(pod: Pod) -> bool:
    containers = (*(pod.spec.containers or ()), *(pod.spec.init_containers or ()))
    resources = [each.resources for each in containers if each.resources is not None]
    return not any(
        name in (each.requests or {}) or name in (each.limits or {}) for each in resources for name in MEASURED
    )


def _least_used(loads: Loads, resource: MeasuredResource) -> Amount:
    used, allocatable = loads.used[resource], loads.allocatable[resource]
    return np.maximum(np.floor((allocatable - used) * 100 / allocatable), 0.0)


def _build(args: LoadAwareSchedulingArgs) -> LoadAwareScheduling:
    """The plugin, without Filter if no threshold is above 0."""
    has_limit = thresholds_of(args) or prod_thresholds_of(args)
    return FilteringLoadAwareScheduling(args) if has_limit else LoadAwareScheduling(args)


FACTORY: Final = PluginFactory(
    name=NAME, points=POINTS, build=_build, args_type=LoadAwareSchedulingArgs, validate=validate
)
