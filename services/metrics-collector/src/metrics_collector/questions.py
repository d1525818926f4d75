"""What a configuration wants to know of Prometheus: each different question of its profiles once. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from berth.api.bandwidth import BandwidthQuery
from berth.api.config.configuration import KubeSchedulerConfiguration, ProfileConfiguration
from berth.plugins.networktraffic import NAME
from berth.plugins.networktrafficargs import NetworkTrafficArgs, query_of


def questions_of(configuration: KubeSchedulerConfiguration) -> tuple[BandwidthQuery, ...]:
    """The questions of all profiles that run NetworkTraffic; none when none does."""
    found = (query for profile in configuration.profiles for query in _of_profile(profile))
    return tuple({query.token: query for query in found}.values())


def _of_profile(profile: ProfileConfiguration) -> Iterator[BandwidthQuery]:
    runs = any(ref.name == NAME for refs in profile.plugins.values() for ref in refs)
    args = profile.args.get(NAME)
    if runs and isinstance(args, NetworkTrafficArgs):
        yield query_of(args)
