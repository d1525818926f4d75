"""The collector's own settings, and what it reads of the configuration file that all services share.

That are the arguments of plugins with live data, without the plugins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Final

from berth.api.config import networktraffic
from berth.api.config.configuration import KubeSchedulerConfiguration, ProfileConfiguration
from berth.api.config.networktraffic import BandwidthQuery, NetworkTrafficArgs, maximum_age_of, query_of
from berth.api.config.nodeload.plugins import LOAD_PLUGINS, load_queries
from berth.api.config.profiles import KnownPlugin
from berth.api.config.types import Point
from berth.settings import readers
from berth.settings.file import read_file
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


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownArguments:
    """NetworkTraffic in the form that the file's reader needs: names, points and arguments."""

    name: str = networktraffic.NAME
    points: tuple[Point, ...] = networktraffic.POINTS
    args_type: type[NetworkTrafficArgs] = NetworkTrafficArgs
    validate: Callable[[Any, str], list[str]] = networktraffic.validate
    only_in_presets: bool = False


KNOWN: Final[Mapping[str, KnownPlugin]] = {
    networktraffic.NAME: KnownArguments(),
    networktraffic.ALIAS: KnownArguments(),
    **LOAD_PLUGINS,
}


def read_configuration(path: Path | None, *, provider: str, gates: str) -> KubeSchedulerConfiguration:
    """Read a configuration with the plugins that have live data only. See :func:`read_file`."""
    read = read_file(path, known=KNOWN, provider=provider, gates=gates, partial=True)
    return replace(read, built_in=frozenset(KNOWN))


def traffic_queries_of(configuration: KubeSchedulerConfiguration) -> tuple[BandwidthQuery, ...]:
    """The distinct queries of all profiles that run NetworkTraffic."""
    return tuple({query.token: query for query in map(query_of, _args_of(configuration))}.values())


def maximum_ages(configuration: KubeSchedulerConfiguration) -> dict[str, timedelta]:
    """By query token, the age at which no profile uses a sample any more."""
    ages = {query.token: demand.maximum_age for query, demand in load_queries(configuration).items()}
    for args in _args_of(configuration):
        token = query_of(args).token
        ages[token] = max(maximum_age_of(args), ages.get(token, timedelta()))
    return ages


def outlived(ages: Mapping[str, timedelta], interval: timedelta) -> list[str]:
    """The queries whose samples are too old for every profile before the next round brings new ones."""
    return [query for query, age in ages.items() if age <= interval]


def _args_of(configuration: KubeSchedulerConfiguration) -> Iterator[NetworkTrafficArgs]:
    for profile in configuration.profiles:
        args = profile.args.get(networktraffic.NAME)
        if _runs(profile) and isinstance(args, NetworkTrafficArgs):
            yield args


def _runs(profile: ProfileConfiguration) -> bool:
    return any(ref.name == networktraffic.NAME for refs in profile.plugins.values() for ref in refs)
