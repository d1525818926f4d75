"""The PromQL of a query: frequent queries for traffic, rare ones for the inventory. Pure.

Each query covers all nodes and keeps all labels: exporters of several clusters or replicas differ in labels that only
their owner knows. Names are joined in Python: in PromQL one bad node would cost all others their samples. Profiles
share equal queries.
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
from berth_metrics_collector.devices import OTHERS

RECEIVED: Final = "node_network_receive_bytes_total"
TRANSMITTED: Final = "node_network_transmit_bytes_total"
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
    series = _device_selector(query)
    received, over = f"{RECEIVED}{series}", f"[{_seconds(query.time_range)}]"
    return TrafficQueries(
        receive=f"rate({received}{over})",
        transmit=f"rate({TRANSMITTED}{series}{over})",
        count=f"count_over_time({received}{over})",
        scraped_at=f"timestamp({received})",
        scraped_before=f"timestamp({received} offset {_seconds(query.time_range)})",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class InventoryQueries:
    """Sent less often, because its values seldom change."""

    names: str  # the kernel's host name; the value is the time of its last scrape: of two names the later counts
    speed: str
    interval: str  # seconds between two scrapes, the median of each job
    # About devices: flags, hardware address and state, those upon others, who named them, members of bonds.
    flags: str
    info: str
    stacked: str
    named_by: str
    bonds: str


def inventory_queries(query: BandwidthQuery) -> InventoryQueries:
    series = _device_selector(query)
    received, look = f"{RECEIVED}{series}", _seconds(min(query.time_range, _LONGEST_LOOKBACK))
    elapsed = f"timestamp({received}) - timestamp({received} offset {look})"
    return InventoryQueries(
        names=f"timestamp(node_uname_info{_selector(query)})",
        speed=f"node_network_speed_bytes{series}",
        interval=f"quantile by (job) (0.5, ({elapsed}) / count_over_time({received}[{look}]))",
        flags=f"node_network_flags{series}",
        info=f"node_network_info{series}",
        stacked=f"node_network_iface_link{series} != node_network_iface_id{series}",
        named_by=f"node_network_name_assign_type{series}",
        bonds=f"node_bonding_slaves{_selector(query)}",
    )


def _device_selector(query: BandwidthQuery) -> str:
    """Series of devices. Compare with a single plain name; otherwise match expressions, which PromQL anchors."""
    if not query.devices:
        return _selector(query, f"device!~{_quoted('|'.join(OTHERS))}")
    return _selector(query, f"device{_matcher('|'.join(query.devices), is_plain=len(query.devices) == 1)}")


def _selector(query: BandwidthQuery, *matchers: str) -> str:
    found = (*matchers, *(f"{label}{_matcher(pattern)}" for label, pattern in query.labels))
    return f"{{{','.join(found)}}}" if found else ""


def _matcher(pattern: str, *, is_plain: bool = True) -> str:
    plain = _plain(pattern) if is_plain else None
    return f"=~{_quoted(pattern)}" if plain is None else f"={_quoted(plain)}"


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
