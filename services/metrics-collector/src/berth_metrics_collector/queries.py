"""The PromQL of a query: frequent queries for traffic or use, rare ones for the inventory. Pure.

Each query covers all nodes and keeps all labels: exporters of several clusters or replicas differ in labels that only
their owner knows. Names are joined in Python: in PromQL one bad node would cost all others their samples.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, NamedTuple, get_args

from berth.api.config.networktraffic import BandwidthQuery
from berth.api.config.nodeload.queries import LoadQuery, Statistic
from berth_metrics_collector.devices import OTHERS

RECEIVED: Final = "node_network_receive_bytes_total"
TRANSMITTED: Final = "node_network_transmit_bytes_total"
# Seconds of a node's processors, without the idle ones, and those that the hypervisor gives to others.
_CPU: Final = "node_cpu_seconds_total"
_BUSY: Final = 'mode!~"idle|iowait|steal"'
_TOTAL: Final = "node_memory_MemTotal_bytes"
_AVAILABLE: Final = "node_memory_MemAvailable_bytes"
# Memory reserved for huge pages: not available, and no part of what is allocatable. Old kernels lack the metric.
_HUGE: Final = "node_memory_Hugetlb_bytes"
QUANTILES: Final[Mapping[Statistic, float]] = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}
# Points of a range at which the use of CPU is computed for percentiles and deviation, or the first scrape is looked
# for, or values of metrics.k8s.io are kept: a day costs as much as an hour.
MOST_POINTS: Final = 60
# Scrapes in which two are found for the use of CPU at one point, also when some fail.
_SCRAPES_A_POINT: Final = 4
# Part of a scrape by which a range may have fewer of them, because they come some milliseconds early or late.
_SCRAPE_JITTER: Final = 0.1
# Longest range to measure the scrape interval over. Series scraped less than every two minutes are stale anyway.
_LONGEST_LOOKBACK: Final = timedelta(minutes=1)


class ScrapeSeconds(NamedTuple):
    """Between two scrapes, of all jobs the shortest and the longest."""

    shortest: float
    longest: float

    @classmethod
    def of(cls, intervals: Mapping[str, float]) -> ScrapeSeconds:
        """``intervals``: by job."""
        return cls(min(intervals.values(), default=1.0), max(intervals.values(), default=1.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficQueries:
    """Sent at every interval; those over gaps only if ``gapped`` has rows, ``young_since`` only if ``young`` has.

    ``scraped_at`` lacks series that have ended. ``rate`` divides by the whole range, though scrapes may cover only part
    of it. ``young`` counts the scrapes of series that did not exist one range ago. As scrapes may have failed,
    ``young_since`` has the time of their first one, up to a sixtieth of the range too late. ``gapped`` has those that
    did exist but lack scrapes since, with the seconds from the last scrape then to the last one now. Over these the
    counter's growth is the rate, without rows after a reset.
    """

    receive: str
    transmit: str
    young: str
    young_since: str
    scraped_at: str
    gapped: str
    receive_over_gaps: str
    transmit_over_gaps: str


def traffic_queries(query: BandwidthQuery, scrapes: ScrapeSeconds) -> TrafficQueries:
    series, time_range = _device_selector(query), query.time_range
    received, transmitted, over = f"{RECEIVED}{series}", f"{TRANSMITTED}{series}", _seconds(time_range)
    gapped = _gapped(received, time_range, scrapes)
    return TrafficQueries(
        receive=f"rate({received}[{over}])",
        transmit=f"rate({transmitted}[{over}])",
        young=_young(received, time_range),
        young_since=_young_since(received, time_range, scrapes),
        scraped_at=f"timestamp({received})",
        gapped=gapped,
        receive_over_gaps=_over_gaps(received, time_range, gapped),
        transmit_over_gaps=_over_gaps(transmitted, time_range, gapped),
    )


def _young(series: str, time_range: timedelta) -> str:
    return f"count_over_time({series}[{_seconds(time_range)}]) unless ({_existed(series, time_range)})"


def _young_since(series: str, time_range: timedelta, scrapes: ScrapeSeconds) -> str:
    points = f"timestamp({series})[{_seconds(time_range)}:{_step(time_range, scrapes.shortest)}]"
    return f"min_over_time({points}) unless ({_existed(series, time_range)})"


def _existed(series: str, time_range: timedelta) -> str:
    return f"{series} offset {_seconds(time_range)} and {_scraped_before(series, time_range)}"


def _step(time_range: timedelta, scrape_seconds: float) -> str:
    return _seconds(max(timedelta(seconds=math.ceil(scrape_seconds)), time_range / MOST_POINTS))


def _gapped(series: str, time_range: timedelta, scrapes: ScrapeSeconds) -> str:
    over, whole = _seconds(time_range), time_range.total_seconds() / scrapes.shortest
    few = f"count_over_time({series}[{over}]) < {whole - _SCRAPE_JITTER:.2f}"
    elapsed = f"timestamp({series}) - timestamp({series} offset {over})"
    return f"{elapsed} and {few} and {_scraped_before(series, time_range)}"


def _scraped_before(series: str, time_range: timedelta) -> str:
    # Of a Prometheus that was away there are no marks of series' ends: it would show what it knew up to 5 minutes ago.
    look = _seconds(min(time_range, _LONGEST_LOOKBACK))
    return f"count_over_time({series}[{look}] offset {_seconds(time_range)})"


def _over_gaps(counter: str, time_range: timedelta, gapped: str) -> str:
    return f"({counter} - {counter} offset {_seconds(time_range)}) / ({gapped}) unless {_resets(counter, time_range)}"


def _resets(series: str, time_range: timedelta) -> str:
    """Since the scrape before the range: a counter may have grown beyond its old value again."""
    return f"resets({series}[{_seconds(time_range + min(time_range, _LONGEST_LOOKBACK))}]) > 0"


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
    return InventoryQueries(
        names=_names(query),
        speed=f"node_network_speed_bytes{series}",
        interval=_interval(f"{RECEIVED}{series}", query.time_range),
        flags=f"node_network_flags{series}",
        info=f"node_network_info{series}",
        stacked=f"node_network_iface_link{series} != node_network_iface_id{series}",
        named_by=f"node_network_name_assign_type{series}",
        bonds=f"node_bonding_slaves{_selector(query)}",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageQueries:
    """As TrafficQueries, of ``cpu`` in cores and ``memory`` in bytes."""

    cpu: Mapping[Statistic, str]
    memory: Mapping[Statistic, str]
    young: str
    young_since: str
    scraped_at: str
    gapped: str
    cpu_over_gaps: str


def usage_queries(query: LoadQuery, statistics: Collection[Statistic], scrapes: ScrapeSeconds) -> UsageQueries:
    asked = [statistic for statistic in get_args(Statistic) if statistic in statistics]
    total = f"{_TOTAL}{_selector(query)}"
    busy, over = f"{_CPU}{_selector(query, _BUSY)}", _seconds(query.time_range)
    gapped = _gapped(total, query.time_range, scrapes)
    return UsageQueries(
        cpu={statistic: _cpu(query, statistic, scrapes.longest) for statistic in asked},
        memory={statistic: _memory(query, statistic) for statistic in asked},
        young=_young(total, query.time_range),
        young_since=_young_since(total, query.time_range, scrapes),
        scraped_at=f"timestamp({total})",
        gapped=gapped,
        cpu_over_gaps=(
            f"sum without (cpu, mode) ({busy} - {busy} offset {over}) / ({gapped})"
            f" unless max without (cpu, mode) ({_resets(busy, query.time_range)})"
        ),
    )


def _cpu(query: LoadQuery, statistic: Statistic, scrape_seconds: float) -> str:
    series, time_range = f"{_CPU}{_selector(query, _BUSY)}", query.time_range
    if statistic == "average":
        return f"sum without (cpu, mode) (rate({series}[{_seconds(time_range)}]))"
    # irate is right from the second scrape on, where rate divides by the whole range.
    look = timedelta(seconds=math.ceil(_SCRAPES_A_POINT * scrape_seconds))
    step = _step(time_range, scrape_seconds)
    points = f"sum without (cpu, mode) (irate({series}[{_seconds(look)}]))[{_seconds(time_range)}:{step}]"
    if statistic == "deviation":
        return f"stddev_over_time({points})"
    return f"quantile_over_time({QUANTILES[statistic]:g}, {points})"


def _memory(query: LoadQuery, statistic: Statistic) -> str:
    """A high percentile of what is used is a low one of what is available."""
    selector = _selector(query)
    available = f"{_AVAILABLE}{selector}[{_seconds(query.time_range)}]"
    if statistic == "deviation":
        return f"stddev_over_time({available})"
    total = f"({_TOTAL}{selector} - {_HUGE}{selector} or {_TOTAL}{selector})"
    if statistic == "average":
        return f"{total} - avg_over_time({available})"
    return f"{total} - quantile_over_time({1 - QUANTILES[statistic]:g}, {available})"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExporterQueries:
    """Sent less often: of the exporters' inventory what the use of CPU and memory needs."""

    names: str
    interval: str


def exporter_queries(query: LoadQuery) -> ExporterQueries:
    return ExporterQueries(names=_names(query), interval=_interval(f"{_TOTAL}{_selector(query)}", query.time_range))


def _names(query: BandwidthQuery | LoadQuery) -> str:
    return f"timestamp(node_uname_info{_selector(query)})"


def _interval(series: str, time_range: timedelta) -> str:
    look = _seconds(min(time_range, _LONGEST_LOOKBACK))
    elapsed = f"timestamp({series}) - timestamp({series} offset {look})"
    return f"quantile by (job) (0.5, ({elapsed}) / count_over_time({series}[{look}]))"


def _device_selector(query: BandwidthQuery) -> str:
    """Series of devices. Compare with a single plain name; otherwise match expressions, which PromQL anchors."""
    if not query.devices:
        return _selector(query, f"device!~{_quoted('|'.join(OTHERS))}")
    return _selector(query, f"device{_matcher('|'.join(query.devices), is_plain=len(query.devices) == 1)}")


def _selector(query: BandwidthQuery | LoadQuery, *matchers: str) -> str:
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
