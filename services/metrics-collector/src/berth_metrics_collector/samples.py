"""From the rows of one query to the traffic of each exporter's devices, and its time. Pure.

``rate`` divides by the whole range even when a series covers only a part of it: a busy node that is new, or back after
a restart, would look quiet (80 MB/s reads 13 after 5 of 30 s). So a rate is used as it is only when the series existed
a whole range ago; else it is multiplied by range / covered part, from MIN_SCRAPES on. A series that has ended gives no
sample, and its node keeps the last one with that sample's age.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

from berth.messages.livedata import Bandwidth, utc_time
from berth_metrics_collector.prometheus import SampleRow

MIN_SCRAPES: Final = 4
"""With this many, rate x range / (scrapes x interval) is within 11 % of the true rate."""
IFF_SLAVE: Final = 0x800
"""Flag of a device that is part of a bond: its traffic is counted on the bond."""
MAX_RATE: Final = 1e13
"""Bytes per second above which a value is invalid: a thousand times the fastest link."""
MAX_TIME: Final = 1e10
"""Unix seconds above which a time is invalid: the year 2286. Milliseconds are far above it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One exporter in Prometheus; ``label`` is the value of the node label, empty without one."""

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
    """What seldom changes: host names, flags and capacities; ``interval``: seconds between scrapes, by job."""

    names: Sequence[SampleRow] = ()
    flags: Values = field(default_factory=dict)
    speed: Values = field(default_factory=dict)
    interval: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetSample:
    """The traffic of one exporter. The names of its devices tell whether two exporters of one node overlap."""

    target: Target
    bandwidth: Bandwidth
    devices: frozenset[str]


def target_samples(traffic: TrafficValues, inventory: Inventory, time_range: timedelta) -> list[TargetSample]:
    """One sample for each exporter with a current value."""
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
    """A bond and its slaves carry the same traffic. Slaves without their bond count: the query names them."""
    return {device for device in devices if not is_slave(inventory.flags.get((target, device)))} or devices


def is_slave(flags: float | None) -> bool:
    """Whether a device is part of a bond."""
    return flags is not None and bool(int(flags) & IFF_SLAVE)


def _correction(key: Device, traffic: TrafficValues, interval: float | None, range_seconds: float) -> float | None:
    """The factor for a rate; ``None`` when there are too few scrapes to correct it."""
    if key in traffic.scraped_before:
        return 1.0
    scrapes = traffic.count.get(key, 0)
    if interval is None or scrapes < MIN_SCRAPES:
        return None
    return max(1.0, range_seconds / (scrapes * interval))


def _sum(rates: Values, factors: Mapping[Device, float | None]) -> float | None:
    """Over all devices of an exporter; ``None`` when one of them has no usable rate."""
    total = 0.0
    for key, factor in factors.items():
        rate = rates.get(key)
        if rate is None or factor is None:
            return None
        total += rate * factor
    return total if factors and total <= MAX_RATE else None


def values_by_device(rows: Iterable[SampleRow], node_label: str) -> dict[Device, float]:
    """The rows' values by device, without those that are negative or not finite."""
    found = ((_device(row, node_label), parse_value(row.value[1])) for row in rows)
    return {device: value for device, value in found if value is not None}


def _device(row: SampleRow, node_label: str) -> Device:
    labels = row.metric
    target = Target(instance=labels.get("instance", ""), job=labels.get("job", ""), label=labels.get(node_label, ""))
    return target, labels.get("device", "")


def scrape_intervals(rows: Iterable[SampleRow]) -> dict[str, float]:
    """Seconds between two scrapes, by job, without zero and invalid values."""
    found = ((row.metric.get("job", ""), parse_value(row.value[1])) for row in rows)
    return {job: seconds for job, seconds in found if seconds}


def parse_value(text: str) -> float | None:
    """A sample's value; ``None`` for NaN, infinities, negative numbers and what is not a number."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) and value >= 0 else None
