"""The collector's own settings, beside those that all services have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from berth.process import readers
from berth.process.exits import UsageError

INTERVAL_VARIABLE: Final = "BERTH_COLLECTOR_INTERVAL"
_read_interval = readers.duration(0.2, 3600)


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectorSettings:
    """How often Prometheus is polled."""

    interval: timedelta = timedelta(seconds=15)
    """Time between two rounds, 0.2 s to 1 h (BERTH_COLLECTOR_INTERVAL). The usual scrape interval: polling more often
    than Prometheus scrapes gives nothing new."""
    inventory_rounds: int = 8
    """Rounds between two queries for names, capacities and scrape intervals, which seldom change. An exporter that is
    not among the names causes one in the next round."""


def collector_settings(environment: Mapping[str, str]) -> CollectorSettings:
    """Read the environment.

    Raises:
        UsageError: the value is not valid.
    """
    given = environment.get(INTERVAL_VARIABLE)
    if given is None:
        return CollectorSettings()
    try:
        return CollectorSettings(interval=_read_interval(given))
    except ValueError as exc:
        raise UsageError(f"{INTERVAL_VARIABLE}: {exc}") from exc
