"""The collector's own settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Final

from berth.settings import readers
from berth.settings.sources import read_variables

INTERVAL_VARIABLE: Final = "BERTH_COLLECTOR_INTERVAL"


@dataclass(frozen=True, slots=True, kw_only=True)
class PrometheusAccess:
    """Files for authentication between the collector and Prometheus."""

    token_file: Annotated[Path | None, readers.existing_file, "BERTH_PROMETHEUS_TOKEN_FILE"] = None
    """A file with a bearer token. Read for every request."""
    headers_file: Annotated[Path | None, readers.existing_file, "BERTH_PROMETHEUS_HEADERS_FILE"] = None
    """A file with more headers, one ``Name: value`` per line, such as X-Scope-OrgID for a tenant. Read for every
    request."""
    ca_file: Annotated[Path | None, readers.existing_file, "BERTH_PROMETHEUS_CA_FILE"] = None
    """PEM certificates to verify the server's certificate with. Read for every connection. None: the system's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectorSettings:
    """Polling interval and credentials for Prometheus."""

    interval: Annotated[timedelta, readers.duration(0.2, 3600), INTERVAL_VARIABLE] = timedelta(seconds=15)
    """Time between two rounds, 0.2 s to 1 h. Default: the usual scrape interval, because polling more often
    returns no new values."""
    inventory_rounds: int = 8
    """Rounds between two queries for names, capacities and scrape intervals, which seldom change. An exporter missing
    among the names causes one in the next round."""
    access: PrometheusAccess = field(default_factory=PrometheusAccess)


def collector_settings(environment: Mapping[str, str]) -> CollectorSettings:
    """Read the environment.

    Raises:
        SettingsError: with every problem.
    """
    return read_variables(CollectorSettings, environment)


def outlived(ages: Mapping[str, timedelta], interval: timedelta) -> list[str]:
    """The queries whose samples are too old for every profile before the next round brings new ones."""
    return [query for query, age in ages.items() if age <= interval]
