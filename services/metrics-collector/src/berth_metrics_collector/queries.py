"""The PromQL of one question: what is asked at every interval, and what is asked now and then.

Each asks for all nodes at once and sums per (instance, job, device), never per node. Cost on the server at 5,000 nodes
and 505,000 samples of one device: a rate 73 ms, a timestamp 111 ms. Joins with names are made in Python: one bad node
must never cost the others their data.


What a configuration wants to know of Prometheus: each different question of its profiles once. Pure.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from berth.api.config.configuration import KubeSchedulerConfiguration, ProfileConfiguration
from berth.api.livedata import BandwidthQuery
from berth.plugins.networktraffic.args import NetworkTrafficArgs, maximum_age_of, query_of
from berth.plugins.networktraffic.plugin import NAME

RECEIVED: Final = "node_network_receive_bytes_total"

TRANSMITTED: Final = "node_network_transmit_bytes_total"

NAMES: Final = "max by (instance, job, nodename) (timestamp(node_uname_info))"
"""The kernel's host name of each instance; the value is when it was last scraped, so that of two the later wins."""

_LONGEST_LOOK: Final = timedelta(minutes=1)
"""How far back the scrape interval is looked for. Scrapes further apart than two minutes are stale to Prometheus."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficQueries:
    """Asked at every interval.

    ``scraped_at`` has no row for a series that has ended, ``scraped_before`` none for one that did not exist (or had
    ended) a whole range ago: what ``rate`` says then covers a part of the range only, though it divides by all of it.
    """

    receive: str
    transmit: str
    count: str
    scraped_at: str
    scraped_before: str


@dataclass(frozen=True, slots=True, kw_only=True)
class InventoryQueries:
    """Asked now and then: what seldom changes."""

    names: str
    flags: str
    speed: str
    interval: str
    """Seconds between two scrapes, the median of each job."""


def traffic_of(query: BandwidthQuery) -> TrafficQueries:
    """The queries of one question."""
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


def inventory_of(query: BandwidthQuery) -> InventoryQueries:
    """The queries beside them."""
    by, received = _grouping(query), f"{RECEIVED}{_selector(query)}"
    look = _seconds(min(query.time_range, _LONGEST_LOOK))
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
    """A single plain name is compared; anything else is a regular expression, which matches whole names there."""
    plain = _plain(query.devices[0]) if len(query.devices) == 1 else None
    if plain is not None:
        return f"{{device={_quoted(plain)}}}"
    return f"{{device=~{_quoted('|'.join(query.devices))}}}"


def _plain(pattern: str) -> str | None:
    """The one name that a pattern stands for; ``None`` when it may be several."""
    name = re.sub(r"\\([^\w\s])", r"\1", pattern)
    return name if re.escape(name) == pattern else None


def _quoted(text: str) -> str:
    """Go's and JSON's double quotes mean the same as long as what is not ASCII is escaped."""
    return json.dumps(text)


def _seconds(duration: timedelta) -> str:
    """Prometheus takes whole milliseconds."""
    milliseconds = round(duration.total_seconds() * 1000)
    return f"{milliseconds // 1000}s" if milliseconds % 1000 == 0 else f"{milliseconds}ms"


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
