"""The PromQL of a query: frequent queries for traffic, rare ones for the inventory. Pure.

Each query covers all nodes and sums per (instance, job, device). Cost at 5,000 nodes and 505,000 samples of one device:
73 ms for a rate, 111 ms for a timestamp. Names are joined in Python, because in PromQL one bad node would cost all
others their samples. Profiles share equal queries.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from berth.api.config.configuration import KubeSchedulerConfiguration, ProfileConfiguration
from berth.api.config.networktraffic import NAME, BandwidthQuery, NetworkTrafficArgs, maximum_age_of, query_of

RECEIVED: Final = "node_network_receive_bytes_total"
TRANSMITTED: Final = "node_network_transmit_bytes_total"
# Kernel host name per instance. The value is the time of its last scrape: of two names the later counts.
NAMES: Final = "max by (instance, job, nodename) (timestamp(node_uname_info))"
# Longest range to measure the scrape interval over. Series scraped less than every two minutes are stale anyway.
_LONGEST_LOOKBACK: Final = timedelta(minutes=1)


def configured_queries(configuration: KubeSchedulerConfiguration) -> tuple[BandwidthQuery, ...]:
    """The distinct queries of all profiles that run NetworkTraffic."""
    return tuple({query.token: query for query in map(query_of, _args_of(configuration))}.values())


def maximum_ages(configuration: KubeSchedulerConfiguration) -> dict[str, timedelta]:
    """By query token, the age at which no profile uses a sample any more."""
    ages: dict[str, timedelta] = {}
    for args in _args_of(configuration):
        token = query_of(args).token
        ages[token] = max(maximum_age_of(args), ages.get(token, timedelta()))
    return ages


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficQueries:
    """Sent at every interval.

    ``scraped_at`` lacks series that have ended. ``scraped_before`` lacks series that did not exist one range ago: their
    ``rate`` covers only part of the range but divides by all of it.
    """

    receive: str
    transmit: str
    count: str
    scraped_at: str
    scraped_before: str


def traffic_queries(query: BandwidthQuery) -> TrafficQueries:
    by = _grouping(query)
    received, transmitted = (f"{name}{_selector(query)}" for name in (RECEIVED, TRANSMITTED))
    over = f"[{_seconds(query.time_range)}]"
    return TrafficQueries(
        receive=f"sum by ({by}) (rate({received}{over}))",
        transmit=f"sum by ({by}) (rate({transmitted}{over}))",
        count=f"sum by ({by}) (count_over_time({received}{over}))",
        scraped_at=f"max by ({by}) (timestamp({received}))",
        scraped_before=f"max by ({by}) (timestamp({received} offset {_seconds(query.time_range)}))",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class InventoryQueries:
    """Sent less often, because its values seldom change."""

    names: str
    flags: str
    speed: str
    interval: str  # seconds between two scrapes, the median of each job


def inventory_queries(query: BandwidthQuery) -> InventoryQueries:
    by, received = _grouping(query), f"{RECEIVED}{_selector(query)}"
    look = _seconds(min(query.time_range, _LONGEST_LOOKBACK))
    elapsed = f"timestamp({received}) - timestamp({received} offset {look})"
    return InventoryQueries(
        names=NAMES,
        flags=f"max by ({by}) (node_network_flags{_selector(query)})",
        speed=f"max by ({by}) (node_network_speed_bytes{_selector(query)})",
        interval=f"quantile by (job) (0.5, ({elapsed}) / count_over_time({received}[{look}]))",
    )


def _grouping(query: BandwidthQuery) -> str:
    return ", ".join(dict.fromkeys(("instance", "job", query.node_label, "device")))


def _selector(query: BandwidthQuery) -> str:
    """Compare with a single plain name; otherwise match a regular expression, which PromQL anchors."""
    plain = _plain(query.devices[0]) if len(query.devices) == 1 else None
    if plain is not None:
        return f"{{device={_quoted(plain)}}}"
    return f"{{device=~{_quoted('|'.join(query.devices))}}}"


def _plain(pattern: str) -> str | None:
    """The only name that a pattern matches; ``None`` if there may be several."""
    name = re.sub(r"\\([^\w\s])", r"\1", pattern)
    return name if re.escape(name) == pattern else None


def _quoted(text: str) -> str:
    """Quote as JSON, which is valid Go syntax as long as non-ASCII characters are escaped."""
    return json.dumps(text)


def _seconds(duration: timedelta) -> str:
    """Prometheus takes whole milliseconds."""
    milliseconds = round(duration.total_seconds() * 1000)
    return f"{milliseconds // 1000}s" if milliseconds % 1000 == 0 else f"{milliseconds}ms"


def _args_of(configuration: KubeSchedulerConfiguration) -> Iterator[NetworkTrafficArgs]:
    for profile in configuration.profiles:
        args = profile.args.get(NAME)
        if _runs(profile) and isinstance(args, NetworkTrafficArgs):
            yield args


def _runs(profile: ProfileConfiguration) -> bool:
    return any(ref.name == NAME for refs in profile.plugins.values() for ref in refs)
