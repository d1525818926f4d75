"""Arguments of Trimaran's plugins TargetLoadPacking and LoadVariationRiskBalancing (kubernetes-sigs/scheduler-plugins).

Fields and defaults are those of apis/config/v1 there, for its files to be taken as they are. What berth does by its own
settings is said in a sentence when the file is loaded (``remarks``); what it cannot do is refused with one. Of
Trimaran's other plugins, LowRiskOverCommitment and Peaks, the file's reader says the same.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from datetime import timedelta
from typing import Final

import msgspec

from berth.api.config.networktraffic import url_problems, with_scheme
from berth.api.config.nodeload.queries import AVERAGE, DEVIATION, LoadQuery, LoadReading
from berth.api.config.types import Args, Point
from berth.api.resources import CPU, QuantityError, milli_value

TARGET_LOAD_PACKING: Final = "TargetLoadPacking"
LOAD_VARIATION_RISK_BALANCING: Final = "LoadVariationRiskBalancing"
POINTS: Final = (Point.SCORE,)

PROMETHEUS: Final = "Prometheus"
METRICS_SERVER: Final = "KubernetesMetricsServer"
# load-watcher gives the mean and the deviation of 15 minutes by Prometheus, and the latest values by metrics.k8s.io.
_PROMETHEUS_RANGE: Final = timedelta(minutes=15)
_METRICS_RANGE: Final = timedelta(minutes=5)

_DEFAULT_TARGET: Final = 40
_DEFAULT_REQUESTS_MILLICORES: Final = 1000
_DEFAULT_MULTIPLIER: Final = "1.5"
_MOST: Final = 1000  # of a factor
NOT_KEPT: Final = "not kept"  # in place of a token


class MetricProviderSpec(Args, frozen=True, kw_only=True):
    """The source of the load, which the metrics collector asks."""

    type: str = ""
    """``KubernetesMetricsServer`` (the default: the cluster's ``metrics.k8s.io``) or ``Prometheus``."""
    address: str = ""
    """URL of the Prometheus server."""
    token: str = ""
    """Not kept: the collector reads its token from the file of ``BERTH_PROMETHEUS_TOKEN_FILE``."""
    insecure_skip_verify: bool = False
    """Without effect: the collector verifies the server's certificate, by ``BERTH_PROMETHEUS_CA_FILE``."""

    def __post_init__(self) -> None:
        if self.token:
            msgspec.structs.force_setattr(self, "token", NOT_KEPT)  # recordings, /configz and errors show arguments


class TrimaranArgs(Args, frozen=True, kw_only=True):
    """What Trimaran's plugins have in common."""

    metric_provider: MetricProviderSpec = MetricProviderSpec()
    """The source of the load: ``type`` and ``address``."""
    watcher_address: str = ""
    """A load-watcher, whose work the metrics collector does by the cluster's ``metrics.k8s.io``."""

    def remarks(self, points: Collection[Point]) -> Iterator[str]:
        del points
        provider = self.metric_provider
        if self.watcher_address:
            yield "watcherAddress: not asked; the metrics collector asks metrics.k8s.io itself"
            if provider.type == PROMETHEUS:
                yield "metricProvider: without effect beside watcherAddress; without that its Prometheus is asked"
        elif provider.address and provider.type != PROMETHEUS:
            yield f"metricProvider.address: without effect without type: {PROMETHEUS}; metrics.k8s.io is asked"
        if provider.token:
            yield "metricProvider.token: not kept; put it into the file of BERTH_PROMETHEUS_TOKEN_FILE"
        if provider.insecure_skip_verify:
            yield "metricProvider.insecureSkipVerify: certificates are verified; name them by BERTH_PROMETHEUS_CA_FILE"


class TargetLoadPackingArgs(TrimaranArgs, frozen=True, kw_only=True):
    """Trimaran's arguments; what differs is in the page about moving over."""

    default_requests: dict[str, object] | None = None
    """CPU of a container without request and limit; default: 1 core."""
    default_requests_multiplier: str = _DEFAULT_MULTIPLIER
    """By which the request of a container without limit is multiplied."""
    target_utilization: int = _DEFAULT_TARGET
    """Percent of CPU up to which nodes are filled; 0 or less is 40."""

    def remarks(self, points: Collection[Point]) -> Iterator[str]:
        yield from super().remarks(points)
        if self.default_requests is not None and CPU not in self.default_requests:
            yield "defaultRequests: without cpu a container without request and limit counts as using none"
        for name in sorted((self.default_requests or {}).keys() - {CPU}):
            yield f"defaultRequests.{name}: without effect; the plugin scores CPU alone"
        if self.target_utilization <= 0:
            yield f"targetUtilization: {self.target_utilization} counts as {_DEFAULT_TARGET}"


class LoadVariationRiskBalancingArgs(TrimaranArgs, frozen=True, kw_only=True):
    """Trimaran's arguments; what differs is in the page about moving over."""

    safe_variance_margin: float = 1.0
    """Factor of the deviation; below 0 is 1."""
    safe_variance_sensitivity: float = 1.0
    """Root of the deviation; below 0 is 1, 0 leaves the deviation out."""

    def remarks(self, points: Collection[Point]) -> Iterator[str]:
        yield from super().remarks(points)
        if self.safe_variance_margin < 0:
            yield f"safeVarianceMargin: {self.safe_variance_margin:g} counts as 1"
        if self.safe_variance_sensitivity < 0:
            yield f"safeVarianceSensitivity: {self.safe_variance_sensitivity:g} counts as 1"


def packing_readings(args: TargetLoadPackingArgs) -> tuple[LoadReading, ...]:
    """What valid arguments ask of the collector."""
    query = _query(args)
    return (LoadReading(query=query, statistic=AVERAGE, maximum_age=query.time_range),)


def balancing_readings(args: LoadVariationRiskBalancingArgs) -> tuple[LoadReading, LoadReading]:
    """What valid arguments ask of the collector: means and deviations."""
    query = _query(args)
    return (
        LoadReading(query=query, statistic=AVERAGE, maximum_age=query.time_range),
        LoadReading(query=query, statistic=DEVIATION, maximum_age=query.time_range),
    )


def target_of(args: TargetLoadPackingArgs) -> int:
    return args.target_utilization if args.target_utilization > 0 else _DEFAULT_TARGET


def default_millicores_of(args: TargetLoadPackingArgs) -> int:
    """CPU of a container without request and limit; without ``cpu`` in the argument 0, as in Trimaran."""
    if args.default_requests is None:
        return _DEFAULT_REQUESTS_MILLICORES
    return milli_value(str(args.default_requests.get(CPU, 0)))


def _query(args: TrimaranArgs) -> LoadQuery:
    if not args.watcher_address and args.metric_provider.type == PROMETHEUS:
        return LoadQuery(url=with_scheme(args.metric_provider.address).rstrip("/"), time_range=_PROMETHEUS_RANGE)
    return LoadQuery(time_range=_METRICS_RANGE)


def validate_packing(args: TargetLoadPackingArgs, path: str) -> list[str]:
    problems = _source_problems(args, path)
    try:
        if default_millicores_of(args) < 0:
            problems.append(f"{path}.defaultRequests.cpu: want 0 or more, got {(args.default_requests or {})[CPU]}")
    except QuantityError as exc:
        problems.append(f"{path}.defaultRequests.cpu: {exc}")
    try:
        multiplier = float(args.default_requests_multiplier)
    except ValueError:
        multiplier = -1.0
    if not 0 <= multiplier <= _MOST:
        problems.append(
            f"{path}.defaultRequestsMultiplier: want a number of 0..{_MOST}, got {args.default_requests_multiplier!r}"
        )
    if args.target_utilization > 100:
        problems.append(f"{path}.targetUtilization: want at most 100, got {args.target_utilization}")
    return problems


def validate_balancing(args: LoadVariationRiskBalancingArgs, path: str) -> list[str]:
    factors = (
        ("safeVarianceMargin", args.safe_variance_margin),
        ("safeVarianceSensitivity", args.safe_variance_sensitivity),
    )
    return [
        *_source_problems(args, path),
        *(f"{path}.{name}: want at most {_MOST}, got {factor}" for name, factor in factors if not factor <= _MOST),
    ]


def _source_problems(args: TrimaranArgs, path: str) -> list[str]:
    provider, where = args.metric_provider, f"{path}.metricProvider"
    problems: list[str] = []
    if args.watcher_address:
        return problems
    if provider.type not in ("", METRICS_SERVER, PROMETHEUS):
        problems.append(f"{where}.type: want {METRICS_SERVER} or {PROMETHEUS}, got {provider.type!r}")
    if provider.type == PROMETHEUS:
        problems += url_problems(provider.address, f"{where}.address")
    return problems
