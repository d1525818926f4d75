"""What a configuration wants to know of Prometheus: each different question of its profiles once. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

from berth.api.bandwidth import BandwidthQuery
from berth.api.config.configuration import KubeSchedulerConfiguration, ProfileConfiguration
from berth.plugins.networktraffic import NAME
from berth.plugins.networktrafficargs import NetworkTrafficArgs, maximum_age_of, query_of


def questions_of(configuration: KubeSchedulerConfiguration) -> tuple[BandwidthQuery, ...]:
    """The questions of all profiles that run NetworkTraffic; none when none does."""
    return tuple({query.token: query for query in map(query_of, _args_of(configuration))}.values())


def maximum_ages_of(configuration: KubeSchedulerConfiguration) -> dict[str, timedelta]:
    """By question, the age from which on none of the profiles that ask it believes a sample."""
    ages: dict[str, timedelta] = {}
    for args in _args_of(configuration):
        token = query_of(args).token
        ages[token] = max(maximum_age_of(args), ages.get(token, timedelta()))
    return ages


def _args_of(configuration: KubeSchedulerConfiguration) -> Iterator[NetworkTrafficArgs]:
    for profile in configuration.profiles:
        args = profile.args.get(NAME)
        if _runs(profile) and isinstance(args, NetworkTrafficArgs):
            yield args


def _runs(profile: ProfileConfiguration) -> bool:
    return any(ref.name == NAME for refs in profile.plugins.values() for ref in refs)
