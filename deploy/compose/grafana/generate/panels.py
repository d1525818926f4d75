"""The parts of a dashboard, and the PromQL expressions that its panels share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

PROCESS: Final = ("service", "instance")
"""The labels that identify a process; Prometheus adds them."""
A_PROCESS: Final = "{{service}} {{instance}}"
"""The legend of a query grouped by `PROCESS`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One graph. ``queries`` by legend; ``unit`` is a Grafana unit id; ``stacked`` when the sum has a meaning."""

    title: str
    about: str
    unit: str
    queries: Mapping[str, str]
    stacked: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Single:
    """One number. ``steps``: the value from which on it has a colour, from the smallest on; none: no colour."""

    title: str
    about: str
    unit: str
    query: str
    steps: Mapping[float, str] = field(default_factory=dict)


GREEN, YELLOW, RED = "green", "orange", "red"
ONE_IS_RIGHT: Final = {0: RED, 1: GREEN, 2: RED}
NONE_IS_RIGHT: Final = {0: GREEN, 1: RED}


@dataclass(frozen=True, slots=True, kw_only=True)
class Dashboard:
    """A row of single numbers, then rows of panels by heading. Links name the ``uid``, so it never changes."""

    uid: str
    title: str
    singles: tuple[Single, ...]
    rows: Mapping[str, tuple[Panel, ...]] = field(default_factory=dict)


def rate(metric: str, *by: str, match: str = "") -> str:
    """The rate per second, summed over processes."""
    return f"sum{_by(by)} (rate({_of(metric, match)}[$__rate_interval]))"


def increase(metric: str, *by: str, over: str, match: str = "") -> str:
    """The increase within a time, summed over processes."""
    return f"sum{_by(by)} (increase({_of(metric, match)}[{over}]))"


def quantile(share: float, metric: str, *by: str) -> str:
    """A quantile of a histogram over all processes."""
    return f"histogram_quantile({share}, sum{_by(('le', *by))} (rate({_of(f'{metric}_bucket')}[$__rate_interval])))"


def quantiles(metric: str) -> dict[str, str]:
    """Median, 90th and 99th percentile, by legend."""
    return {"p50": quantile(0.5, metric), "p90": quantile(0.9, metric), "p99": quantile(0.99, metric)}


def mean(metric: str, *by: str) -> str:
    return f"{rate(f'{metric}_sum', *by)} / {rate(f'{metric}_count', *by)}"


def gauge(metric: str, *by: str, how: str = "sum", match: str = "") -> str:
    """A gauge, aggregated over processes."""
    return f"{how}{_by(by)} ({_of(metric, match)})"


def number(metric: str, *, match: str = "", above: float | None = None) -> str:
    """How many processes have a gauge, or have it above a value."""
    return f"count({_of(metric)})" if above is None else f"sum({_of(metric, match)} > bool {above:g})"


def or_none(expression: str) -> str:
    """0 where there is no series yet, as of a result that never came."""
    return f"{expression} or vector(0)"


def age(metric: str, *by: str) -> str:
    """Seconds since the oldest of the Unix times in a gauge."""
    return f"time() - {gauge(metric, *by, how='min')}"


def _by(labels: tuple[str, ...]) -> str:
    return f" by ({', '.join(labels)})" if labels else ""


def _of(metric: str, match: str = "") -> str:
    return f'{metric}{{job=~"$job"{", " + match if match else ""}}}'
