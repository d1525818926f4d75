"""LoadAwareSchedulingArgs, the arguments of Koordinator's plugin LoadAwareScheduling.

Fields and defaults are Koordinator's (pkg/scheduler/apis/config/v1), for its files to be taken as they are. What berth
does otherwise is said in a sentence when the file is loaded (``remarks``); what is an error there is one here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from datetime import timedelta
from typing import Final

from berth.api.config.networktraffic import range_problems
from berth.api.config.nodeload.args import DEFAULT_WEIGHTS, NOT_A_FILTER
from berth.api.config.nodeload.queries import (
    AVERAGE,
    LoadQuery,
    LoadReading,
    MeasuredResource,
    Statistic,
    by_resource,
    percent_problems,
)
from berth.api.config.types import Args, Point

NAME: Final = "LoadAwareScheduling"
# Files name PreFilter and Reserve too, where theirs computes estimates and counts assumed pods, as the Snapshot does.
POINTS: Final = (Point.PRE_FILTER, Point.FILTER, Point.SCORE, Point.RESERVE)

_DEFAULT_THRESHOLDS: Final[Mapping[str, int]] = {"cpu": 65, "memory": 95}
_DEFAULT_EXPIRATION: Final = 180
MOST_SECONDS: Final = 86_400  # a day, as the longest range
# The means of a NodeMetric cover 5 minutes, its percentiles at most 30 (Koordinator's pkg/util/sloconfig).
_AVERAGE_RANGE: Final = timedelta(minutes=5)
_LONGEST_RANGE: Final = timedelta(minutes=30)
_STATISTICS: Final[Mapping[str, Statistic]] = {"avg": AVERAGE, "p50": "p50", "p90": "p90", "p95": "p95", "p99": "p99"}


class LoadAwareSchedulingAggregatedArgs(Args, frozen=True, kw_only=True):
    """Percentiles in place of means; a duration that is absent or 0 is 30m."""

    usage_thresholds: dict[str, int] | None = None
    """Percent by resource above which a node is filtered out."""
    usage_aggregation_type: str = ""
    """Of Filter: avg, p50, p90, p95 or p99."""
    usage_aggregated_duration: timedelta | None = None
    """The range of Filter's percentile."""
    score_aggregation_type: str = ""
    """Of Score."""
    score_aggregated_duration: timedelta | None = None
    """The range of Score's percentile."""

    def without_effect(self) -> Iterator[str]:
        filters = {"usageThresholds": self.usage_thresholds, "usageAggregationType": self.usage_aggregation_type}
        for name, other in (tuple(filters), tuple(filters)[::-1]):
            if filters[name] and not filters[other]:
                yield f"aggregated.{name}: without effect without {other}"
        if self.usage_aggregated_duration and not all(filters.values()):
            yield "aggregated.usageAggregatedDuration: without effect without usageThresholds and usageAggregationType"
        if self.score_aggregated_duration and not self.score_aggregation_type:
            yield "aggregated.scoreAggregatedDuration: without effect without scoreAggregationType"


class LoadAwareSchedulingArgs(Args, frozen=True, kw_only=True):
    """Koordinator's arguments; what differs is in the page about moving over."""

    filter_expired_node_metrics: bool | None = None
    """Without effect: an old sample never filters a node out."""
    node_metric_expiration_seconds: int = _DEFAULT_EXPIRATION
    """Age at which a sample counts as unknown."""
    enable_schedule_when_node_metrics_expired: bool | None = None
    """Without effect: an old sample never filters a node out."""
    resource_weights: dict[str, int] | None = None
    """Weights of ``cpu`` and ``memory``, 1..100; default: 1 each."""
    dominant_resource_weight: int = 0
    """Weight of the resource that is used most, 0..100."""
    usage_thresholds: dict[str, int] | None = None
    """Percent by resource above which a node is filtered out; 0: never. Default: 65 for CPU, 95 for memory."""
    prod_usage_thresholds: dict[str, int] | None = None
    """The same for pods of the class koord-prod, by what such pods use."""
    prod_usage_include_sys: bool = False
    """Whether what no pod is estimated to use counts as used by koord-prod."""
    score_according_prod_usage: bool = False
    """Pods of koord-prod are scored by what such pods use."""
    estimator: str = ""
    """``defaultEstimator``, the only one."""
    estimated_scaling_factors: dict[str, int] | None = None
    """Percent of its request, or of its limit if larger, that a pod uses by estimate, 1..100; default: 85 for CPU, 70
    for memory."""
    estimated_seconds_after_pod_scheduled: int = 0
    """Seconds for which a pod's estimate does not fade."""
    estimated_seconds_after_initialized: int = 0
    """The same, from the Binding too; the longer time counts."""
    allow_customize_estimation: bool = False
    """Whether annotations of a pod replace ``estimatedScalingFactors`` and these seconds for it."""
    aggregated: LoadAwareSchedulingAggregatedArgs | None = None
    """Percentiles in place of means."""
    supported_resources: list[str] | None = None
    """``cpu`` and ``memory``."""

    def remarks(self, points: Collection[Point]) -> Iterator[str]:
        if self.estimated_seconds_after_initialized > 0:
            yield "estimatedSecondsAfterInitialized: counted from the Binding; the mirror has no time of initialization"
        for given, name in (
            (self.filter_expired_node_metrics, "filterExpiredNodeMetrics"),
            (self.enable_schedule_when_node_metrics_expired is False, "enableScheduleWhenNodeMetricsExpired"),
        ):
            if given:
                yield f"{name}: without effect; a node with an old sample counts as the mean of the others"
        yield from self.aggregated.without_effect() if self.aggregated is not None else ()
        if self.usage_thresholds and filters_by_percentile(self):
            yield "usageThresholds: without effect; aggregated.usageThresholds count in their place"
        if self.prod_usage_include_sys and not (prod_thresholds_of(self) or self.score_according_prod_usage):
            yield "prodUsageIncludeSys: without effect without prodUsageThresholds and scoreAccordingProdUsage"
        if Point.FILTER not in points:
            yield from (f"{name}: {NOT_A_FILTER}" for name in self._filters())

    def _filters(self) -> Iterator[str]:
        if self.usage_thresholds:
            yield "usageThresholds"
        if self.prod_usage_thresholds:
            yield "prodUsageThresholds"
        if filters_by_percentile(self):
            yield "aggregated.usageThresholds"


def filter_reading(args: LoadAwareSchedulingArgs) -> LoadReading:
    aggregated = args.aggregated
    if aggregated is None or not filters_by_percentile(args):
        return usual_reading(args)
    return _reading(args, aggregated.usage_aggregation_type, aggregated.usage_aggregated_duration)


def score_reading(args: LoadAwareSchedulingArgs) -> LoadReading:
    aggregated = args.aggregated
    if aggregated is None or not aggregated.score_aggregation_type:
        return usual_reading(args)
    return _reading(args, aggregated.score_aggregation_type, aggregated.score_aggregated_duration)


def usual_reading(args: LoadAwareSchedulingArgs) -> LoadReading:
    """Means, also for the share of koord-prod."""
    return LoadReading(query=LoadQuery(time_range=_AVERAGE_RANGE), statistic=AVERAGE, maximum_age=_expiration(args))


def readings_of(args: LoadAwareSchedulingArgs) -> tuple[LoadReading, ...]:
    """What valid arguments ask of the collector."""
    return tuple(dict.fromkeys((usual_reading(args), filter_reading(args), score_reading(args))))


def filters_by_percentile(args: LoadAwareSchedulingArgs) -> bool:
    aggregated = args.aggregated
    return aggregated is not None and bool(aggregated.usage_thresholds and aggregated.usage_aggregation_type)


def _reading(args: LoadAwareSchedulingArgs, aggregation: str, duration: timedelta | None) -> LoadReading:
    return LoadReading(
        query=LoadQuery(time_range=duration or _LONGEST_RANGE),
        statistic=_STATISTICS[aggregation],
        maximum_age=_expiration(args),
    )


def _expiration(args: LoadAwareSchedulingArgs) -> timedelta:
    return timedelta(seconds=args.node_metric_expiration_seconds)


def weights_of(args: LoadAwareSchedulingArgs) -> dict[MeasuredResource, int]:
    is_default = not args.resource_weights and not args.dominant_resource_weight
    return by_resource(DEFAULT_WEIGHTS if is_default else args.resource_weights or {})


def thresholds_of(args: LoadAwareSchedulingArgs) -> dict[MeasuredResource, int]:
    """Percent by resource for pods that are not of koord-prod, or if it has none of its own; none for no filter."""
    aggregated = args.aggregated
    if aggregated is not None and filters_by_percentile(args):
        return _above_zero(aggregated.usage_thresholds)
    return _above_zero(args.usage_thresholds or _DEFAULT_THRESHOLDS)


def prod_thresholds_of(args: LoadAwareSchedulingArgs) -> dict[MeasuredResource, int]:
    return _above_zero(args.prod_usage_thresholds)


def _above_zero(thresholds: Mapping[str, int] | None) -> dict[MeasuredResource, int]:
    return {resource: percent for resource, percent in by_resource(thresholds or {}).items() if percent}


def validate(args: LoadAwareSchedulingArgs, path: str) -> list[str]:
    problems = [
        *percent_problems(args.resource_weights, f"{path}.resourceWeights", low=1),
        *percent_problems(args.usage_thresholds, f"{path}.usageThresholds"),
        *percent_problems(args.prod_usage_thresholds, f"{path}.prodUsageThresholds"),
        *percent_problems(args.estimated_scaling_factors, f"{path}.estimatedScalingFactors", low=1),
        *percent_problems(dict.fromkeys(args.supported_resources or (), 0), f"{path}.supportedResources"),
    ]
    if not 1 <= args.node_metric_expiration_seconds <= MOST_SECONDS:
        got = args.node_metric_expiration_seconds
        problems.append(f"{path}.nodeMetricExpirationSeconds: want 1..{MOST_SECONDS}, got {got}")
    if not 0 <= args.dominant_resource_weight <= 100:
        problems.append(f"{path}.dominantResourceWeight: want 0..100, got {args.dominant_resource_weight}")
    for name, seconds in (
        ("estimatedSecondsAfterPodScheduled", args.estimated_seconds_after_pod_scheduled),
        ("estimatedSecondsAfterInitialized", args.estimated_seconds_after_initialized),
    ):
        if not 0 <= seconds <= MOST_SECONDS:
            problems.append(f"{path}.{name}: want 0..{MOST_SECONDS}, got {seconds}")
    if args.estimator not in ("", "defaultEstimator"):
        problems.append(f"{path}.estimator: want 'defaultEstimator', got {args.estimator!r}")
    return problems + _aggregated_problems(args.aggregated, f"{path}.aggregated")


def _aggregated_problems(args: LoadAwareSchedulingAggregatedArgs | None, path: str) -> list[str]:
    if args is None:
        return []
    types = {"usageAggregationType": args.usage_aggregation_type, "scoreAggregationType": args.score_aggregation_type}
    durations = {
        "usageAggregatedDuration": args.usage_aggregated_duration,
        "scoreAggregatedDuration": args.score_aggregated_duration,
    }
    known = ", ".join(_STATISTICS)
    return [
        *percent_problems(args.usage_thresholds, f"{path}.usageThresholds"),
        *(
            f"{path}.{name}: want one of {known}, got {kind!r}"
            for name, kind in types.items()
            if kind not in {"", *_STATISTICS}
        ),
        *(problem for name, given in durations.items() if given for problem in range_problems(given, f"{path}.{name}")),
    ]
