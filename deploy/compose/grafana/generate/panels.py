"""What a dashboard is made of, and the queries that its panels ask again and again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

PROCESS: Final = ("service", "instance")
"""The labels that tell one process from the others, as Prometheus gives them."""
A_PROCESS: Final = "{{service}} {{instance}}"
"""The legend for these."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One graph. ``queries`` by legend; ``unit`` is Grafana's id of it; ``stacked`` where the sum means something."""

    title: str
    about: str
    unit: str
    queries: Mapping[str, str]
    stacked: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Dashboard:
    """Rows of panels by heading; ``uid`` is what links to it name, and never changes."""

    uid: str
    title: str
    rows: Mapping[str, tuple[Panel, ...]] = field(default_factory=dict)


def rate(metric: str, *by: str, match: str = "") -> str:
    """How often a second, added up over processes."""
    return f"sum{_by(by)} (rate({_of(metric, match)}[$__rate_interval]))"


def increase(metric: str, *by: str, over: str) -> str:
    """How often within a time, added up over processes."""
    return f"sum{_by(by)} (increase({_of(metric)}[{over}]))"


def quantile(share: float, metric: str, *by: str) -> str:
    """A quantile of a histogram over all processes."""
    return f"histogram_quantile({share}, sum{_by(('le', *by))} (rate({_of(f'{metric}_bucket')}[$__rate_interval])))"


def quantiles(metric: str) -> dict[str, str]:
    """The three that are looked at."""
    return {"p50": quantile(0.5, metric), "p90": quantile(0.9, metric), "p99": quantile(0.99, metric)}


def mean(metric: str, *by: str) -> str:
    """The mean of a histogram."""
    return f"{rate(f'{metric}_sum', *by)} / {rate(f'{metric}_count', *by)}"


def gauge(metric: str, *by: str, how: str = "sum", match: str = "") -> str:
    """A gauge over all processes."""
    return f"{how}{_by(by)} ({_of(metric, match)})"


def age(metric: str, *by: str) -> str:
    """Seconds since the oldest of some Unix times."""
    return f"time() - {gauge(metric, *by, how='min')}"


def _by(labels: tuple[str, ...]) -> str:
    return f" by ({', '.join(labels)})" if labels else ""


def _of(metric: str, match: str = "") -> str:
    return f'{metric}{{job=~"$job"{", " + match if match else ""}}}'
