"""From the rows of one query to each exporter's traffic with its time. Pure.

``rate`` divides by the whole range even if a series covers only part of it: a busy node that is new or restarted would
look quiet (80 MB/s reads 13 after 5 of 30 s). So a rate counts unchanged only if the series existed one range ago; else
it is multiplied by range / covered part, from MIN_SCRAPES on. A series that has ended gives no sample: its node keeps
the last one, which ages.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

from berth.messages.livedata import Bandwidth, utc_time
from berth_metrics_collector.prometheus import SampleRow

MIN_SCRAPES: Final = 4  # from here on rate x range / (scrapes x interval) is within 11 % of the truth
IFF_SLAVE: Final = 0x800  # flag of a device in a bond, which counts its traffic
MAX_RATE: Final = 1e13  # bytes per second above which a value is invalid: a thousand times the fastest link
MAX_TIME: Final = 1e10  # Unix seconds above which a time is invalid: the year 2286, far below milliseconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One exporter in Prometheus; ``label``: the node label's value, or empty."""

    instance: str
    job: str
    label: str = ""


Device = tuple[Target, str]
Values = Mapping[Device, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficValues:
    """The values of one round, by device; each may lack devices."""

    receive: Values
    transmit: Values
    count: Values
    scraped_at: Values
    scraped_before: Values


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """Host names, flags and capacities, which seldom change; ``interval``: seconds between scrapes, by job."""

    names: Sequence[SampleRow] = ()
    flags: Values = field(default_factory=dict)
    speed: Values = field(default_factory=dict)
    interval: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetSample:
    """The traffic of one exporter. ``devices`` decides whether two exporters of a node overlap."""

    target: Target
    bandwidth: Bandwidth
    devices: frozenset[str]


def target_samples(traffic: TrafficValues, inventory: Inventory, time_range: timedelta) -> list[TargetSample]:
    """One sample per exporter with a current value."""
    by_target: dict[Target, set[str]] = {}
    for target, device in traffic.scraped_at:
        by_target.setdefault(target, set()).add(device)
    made = (
        _target_sample(target, _without_slaves(target, devices, inventory), traffic, inventory, time_range)
        for target, devices in by_target.items()
    )
    return [sample for sample in made if sample is not None]


def _target_sample(
    target: Target, devices: set[str], traffic: TrafficValues, inventory: Inventory, time_range: timedelta
) -> TargetSample | None:
    keys = [(target, device) for device in sorted(devices)]
    interval = inventory.interval.get(target.job)
    factors = {key: _correction(key, traffic, interval, time_range.total_seconds()) for key in keys}
    receive = _sum(traffic.receive, factors)
    transmit = _sum(traffic.transmit, factors)
    times = [traffic.scraped_at[key] for key in keys]
    if (receive is None and transmit is None) or max(times) > MAX_TIME:
        return None
    capacities = [speed for key in keys if (speed := inventory.speed.get(key))]
    return TargetSample(
        target=target,
        bandwidth=Bandwidth(
            receive=receive,
            transmit=transmit,
            capacity=sum(capacities) if len(capacities) == len(keys) else None,
            sampled_at=utc_time(min(times)),
        ),
        devices=frozenset(devices),
    )


def _without_slaves(target: Target, devices: set[str], inventory: Inventory) -> set[str]:
    """Leave out slaves, because their bond carries the same traffic. Slaves without a bond in the query count."""
    return {device for device in devices if not is_slave(inventory.flags.get((target, device)))} or devices


def is_slave(flags: float | None) -> bool:
    return flags is not None and bool(int(flags) & IFF_SLAVE)


def _correction(key: Device, traffic: TrafficValues, interval: float | None, range_seconds: float) -> float | None:
    """The factor for a rate; ``None`` below MIN_SCRAPES."""
    if key in traffic.scraped_before:
        return 1.0
    scrapes = traffic.count.get(key, 0)
    if interval is None or scrapes < MIN_SCRAPES:
        return None
    return max(1.0, range_seconds / (scrapes * interval))


def _sum(rates: Values, factors: Mapping[Device, float | None]) -> float | None:
    """The sum over an exporter's devices; ``None`` if one has no usable rate."""
    total = 0.0
    for key, factor in factors.items():
        rate = rates.get(key)
        if rate is None or factor is None:
            return None
        total += rate * factor
    return total if factors and total <= MAX_RATE else None


def values_by_device(rows: Iterable[SampleRow], node_label: str) -> dict[Device, float]:
    """Values by device, without negative and infinite ones."""
    found = ((_device(row, node_label), parse_value(row.value[1])) for row in rows)
    return {device: value for device, value in found if value is not None}


def _device(row: SampleRow, node_label: str) -> Device:
    labels = row.metric
    target = Target(instance=labels.get("instance", ""), job=labels.get("job", ""), label=labels.get(node_label, ""))
    return target, labels.get("device", "")


def scrape_intervals(rows: Iterable[SampleRow]) -> dict[str, float]:
    """Seconds between scrapes, by job, without zero and invalid values."""
    found = ((row.metric.get("job", ""), parse_value(row.value[1])) for row in rows)
    return {job: seconds for job, seconds in found if seconds}


def parse_value(text: str) -> float | None:
    """A sample's value; ``None`` for NaN, infinities, negative numbers and non-numbers."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) and value >= 0 else None
