"""NodeLoad's arguments."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from datetime import timedelta
from typing import Final, get_args

from berth.api.config.networktraffic import DEFAULT_NODE_LABEL, age_problems, label_problems, url_problems, with_scheme
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

NAME: Final = "NodeLoad"
POINTS: Final = (Point.FILTER, Point.SCORE)

DEFAULT_WEIGHTS: Final[Mapping[str, int]] = {"cpu": 1, "memory": 1}
# Percent of a pod's request, or larger limit, that it is estimated to use until samples show it.
DEFAULT_SCALING_FACTORS: Final[Mapping[str, int]] = {"cpu": 85, "memory": 70}
_DEFAULT_RANGE: Final = timedelta(minutes=5)
NOT_A_FILTER: Final = "without effect; the plugin is not enabled at filter"  # of thresholds


class NodeLoadArgs(Args, frozen=True, kw_only=True):
    """Source of the load, and how it is scored."""

    url: str = ""
    """URL of the Prometheus server; by default the cluster's own ``metrics.k8s.io``."""
    range: timedelta | None = None
    """Time that a sample covers, such as 90s; at least two scrape intervals. Default: 5m."""
    statistic: str = AVERAGE
    """``average``, ``p50``, ``p90``, ``p95`` or ``p99`` of the range."""
    maximum_age: timedelta | None = None
    """Age at which a sample counts as unknown; default: the range, at least 5 minutes."""
    resource_weights: dict[str, int] | None = None
    """Weights of ``cpu`` and ``memory``, 0..100; default: 1 each. A resource that is absent or 0 is not scored."""
    balance_weight: int = 0
    """Weight of an equal use of CPU and memory beside ``resourceWeights``, 0..100; 0: it is not scored."""
    usage_thresholds: dict[str, int] | None = None
    """Percent by resource above which a node is filtered out, 1..100; unset: no filter."""
    estimated_scaling_factors: dict[str, int] | None = None
    """Percent of its request, or of its limit if larger, that a pod uses by estimate, 1..100; default: 85 for CPU, 70
    for memory."""
    node_label: str = DEFAULT_NODE_LABEL
    """Metric label with the node's name, if any."""
    labels: dict[str, str] | None = None
    """Only series with these labels count, such as ``cluster: east``: a regular expression for each whole value."""

    def remarks(self, points: Collection[Point]) -> Iterator[str]:
        if not self.url:
            chosen = {"labels": self.labels, "nodeLabel": self.node_label != DEFAULT_NODE_LABEL}
            yield from (f"{name}: without effect without url" for name, given in chosen.items() if given)
        if self.usage_thresholds and Point.FILTER not in points:
            yield f"usageThresholds: {NOT_A_FILTER}"


def reading_of(args: NodeLoadArgs) -> LoadReading:
    """What valid arguments ask of the collector."""
    time_range = args.range or _DEFAULT_RANGE
    query = LoadQuery(
        url=with_scheme(args.url).rstrip("/") if args.url else "",
        time_range=time_range,
        node_label=args.node_label,
        labels=tuple(sorted((args.labels or {}).items())),
    )
    statistic: Statistic = args.statistic  # type: ignore[assignment]  # validated
    return LoadReading(
        query=query, statistic=statistic, maximum_age=args.maximum_age or max(time_range, _DEFAULT_RANGE)
    )


def weights_of(args: NodeLoadArgs) -> dict[MeasuredResource, int]:
    """The resources that are scored."""
    weights = by_resource(DEFAULT_WEIGHTS if args.resource_weights is None else args.resource_weights)
    return {resource: weight for resource, weight in weights.items() if weight}


def thresholds_of(args: NodeLoadArgs) -> dict[MeasuredResource, int]:
    return by_resource(args.usage_thresholds or {})


def factors_of(given: Mapping[str, int] | None) -> dict[MeasuredResource, int]:
    """The scaling factor of each resource, in percent; the default where none is given."""
    return by_resource({**DEFAULT_SCALING_FACTORS, **(given or {})})


def validate(args: NodeLoadArgs, path: str) -> list[str]:
    problems = [
        *(url_problems(args.url, f"{path}.url") if args.url else ()),
        *label_problems(args.node_label, args.labels, path),
        *age_problems(args.range, args.maximum_age, path),
        *percent_problems(args.resource_weights, f"{path}.resourceWeights"),
        *percent_problems(args.usage_thresholds, f"{path}.usageThresholds", low=1),
        *percent_problems(args.estimated_scaling_factors, f"{path}.estimatedScalingFactors", low=1),
    ]
    statistics = [name for name in get_args(Statistic) if name != "deviation"]
    if args.statistic not in statistics:
        problems.append(f"{path}.statistic: want {', '.join(statistics[:-1])} or p99, got {args.statistic!r}")
    if not 0 <= args.balance_weight <= 100:
        problems.append(f"{path}.balanceWeight: want 0..100, got {args.balance_weight}")
    if args.resource_weights is not None and not any(args.resource_weights.values()):
        problems.append(f"{path}.resourceWeights: want at least one weight above 0, got {args.resource_weights}")
    return problems
