"""What the plugins of this package ask of the collector: a query, and a statistic of its samples.

Checks of arguments that all of them have.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, Literal, get_args

from berth.api.config.networktraffic import DEFAULT_NODE_LABEL

MeasuredResource = Literal["cpu", "memory"]  # the fields of a sample (berth.messages.livedata) with a usage
Statistic = Literal["average", "deviation", "p50", "p90", "p95", "p99"]  # the fields of a usage

MEASURED: Final[tuple[MeasuredResource, ...]] = get_args(MeasuredResource)
AVERAGE: Final[Statistic] = "average"
DEVIATION: Final[Statistic] = "deviation"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadQuery:
    """The CPU and memory that every node uses, over ``time_range``.

    ``url``: a Prometheus with scheme; empty for the API ``metrics.k8s.io`` of the cluster itself.
    """

    url: str = ""
    time_range: timedelta
    # A metric label with the node's name, if relabelling has made one.
    node_label: str = DEFAULT_NODE_LABEL
    # Labels of the series that count, each with a regular expression for the whole value.
    labels: tuple[tuple[str, str], ...] = ()

    @property
    def token(self) -> str:
        """The query's name in keys: short, stable, equal in every process."""
        labels = (f"{label}={value}" for label, value in self.labels)
        text = "\0".join((self.url, f"{self.time_range.total_seconds():g}", self.node_label, *labels))
        return f"l{hashlib.blake2b(text.encode(), digest_size=6).hexdigest()}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadReading:
    """One statistic of a query's samples, and the age from which a plugin takes them as unknown."""

    query: LoadQuery
    statistic: Statistic
    maximum_age: timedelta


def by_resource(amounts: Mapping[str, int]) -> dict[MeasuredResource, int]:
    """The part of an argument about measured resources."""
    return {resource: amounts[resource] for resource in MEASURED if resource in amounts}


def percent_problems(amounts: Mapping[str, int] | None, path: str, *, low: int = 0) -> list[str]:
    """Problems of an argument with numbers up to 100 by resource."""
    given = amounts or {}
    return [
        *(f"{path}.{name}: {NOT_MEASURED}" for name in given if name not in MEASURED),
        *(
            f"{path}.{name}: want {low}..100, got {amount}"
            for name, amount in given.items()
            if name in MEASURED and not low <= amount <= 100
        ),
    ]


NOT_MEASURED: Final = "want cpu or memory, the resources whose use the collector measures"
