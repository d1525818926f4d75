"""The PromQL of a query: what is read at every interval, and what is read less often. Pure.

Each query covers all nodes at once and sums per (instance, job, device), never per node. Cost at 5,000 nodes
and 505,000 samples of one device: a rate 73 ms, a timestamp 111 ms. Joins with names are made in Python: in PromQL one
bad node would cost all others their samples. The profiles of a configuration share equal queries.
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
NAMES: Final = "max by (instance, job, nodename) (timestamp(node_uname_info))"
"""The kernel's host name of each instance; the value is when it was last scraped: of two names the later one counts."""
_LONGEST_LOOKBACK: Final = timedelta(minutes=1)
"""Over what time the scrape interval is measured. Scrapes further apart than two minutes are stale to Prometheus."""


def configured_queries(configuration: KubeSchedulerConfiguration) -> tuple[BandwidthQuery, ...]:
    """The queries of all profiles that run NetworkTraffic, each different one once."""
    return tuple({query.token: query for query in map(query_of, _args_of(configuration))}.values())


def maximum_ages(configuration: KubeSchedulerConfiguration) -> dict[str, timedelta]:
    """By query token, the age from which on no profile with that query uses a sample."""
    ages: dict[str, timedelta] = {}
    for args in _args_of(configuration):
        token = query_of(args).token
        ages[token] = max(maximum_age_of(args), ages.get(token, timedelta()))
    return ages


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficQueries:
    """Sent at every interval.

    ``scraped_at`` has no row for a series that has ended, ``scraped_before`` none for one that did not exist (or had
    ended) a whole range ago: its ``rate`` covers only a part of the range, though it divides by all of it.
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
    """Sent less often: what seldom changes."""

    names: str
    flags: str
    speed: str
    interval: str
    """Seconds between two scrapes, the median of each job."""


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
    """Compares a single plain name; anything else is a regular expression, which PromQL matches with whole names."""
    plain = _plain(query.devices[0]) if len(query.devices) == 1 else None
    if plain is not None:
        return f"{{device={_quoted(plain)}}}"
    return f"{{device=~{_quoted('|'.join(query.devices))}}}"


def _plain(pattern: str) -> str | None:
    """The one name that a pattern matches; ``None`` when there may be several."""
    name = re.sub(r"\\([^\w\s])", r"\1", pattern)
    return name if re.escape(name) == pattern else None


def _quoted(text: str) -> str:
    """JSON's quoting is also valid in Go's syntax when everything outside ASCII is escaped."""
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
