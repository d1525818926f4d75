"""The collector's own number, beside what all services can be told."""

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
    """How often is asked."""

    interval: timedelta = timedelta(seconds=15)
    """Between two rounds, 0.2 s to 1 h (BERTH_COLLECTOR_INTERVAL). The usual scrape interval: asking more often than is
    scraped gives nothing new."""
    inventory_rounds: int = 8
    """Rounds between two looks at names, capacities and scrape intervals, which seldom change; an exporter that is not
    among the names is a reason to look at once."""


def collector_settings(environment: Mapping[str, str]) -> CollectorSettings:
    """Read the environment.

    Raises:
        UsageError: it says what cannot be used.
    """
    given = environment.get(INTERVAL_VARIABLE)
    if given is None:
        return CollectorSettings()
    try:
        return CollectorSettings(interval=_read_interval(given))
    except ValueError as exc:
        raise UsageError(f"{INTERVAL_VARIABLE}: {exc}") from exc
