"""From the rows of one question to what each node's devices carry, and since when it is known. Pure.

``rate`` divides by the whole range whatever part of it a series covers: a busy node that is new, or just back, would
look quiet (the reference value 80 MB/s reads 13 after 5 of 30 s). So what it says counts as it is only when the series
was there a whole range ago too; else it is taken times range / covered part, from MIN_SCRAPES on; a series that has
ended says nothing at all, and its node keeps its last sample with that sample's age.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

from berth.api.livedata import Bandwidth, utc_time
from berth_metrics_collector.prometheus import SampleRow

MIN_SCRAPES: Final = 4
"""From so many on, rate x range / (scrapes x interval) is within 11 % of the truth."""
SLAVE: Final = 0x800
"""IFF_SLAVE of a device's flags: its traffic is counted on its bond."""
MOST: Final = 1e13
"""Bytes per second beyond which a figure is nonsense: a thousand times the fastest link."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One exporter as Prometheus sees it; ``label`` is the value of the node label, empty without one."""

    instance: str
    job: str
    label: str = ""


Device = tuple[Target, str]
Values = Mapping[Device, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Readings:
    """The answers to one round of questions, by device; each lacks what the server did not know."""

    receive: Values
    transmit: Values
    count: Values
    scraped_at: Values
    scraped_before: Values


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What seldom changes. ``interval``: seconds between two scrapes, by job."""

    names: Sequence[SampleRow] = ()
    flags: Values = field(default_factory=dict)
    speed: Values = field(default_factory=dict)
    interval: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetSample:
    """What one exporter says, its devices by name so that two exporters of one node can be told apart."""

    target: Target
    bandwidth: Bandwidth
    devices: frozenset[str]


def values(rows: Iterable[SampleRow], node_label: str) -> dict[Device, float]:
    """Rows by device. What is not finite, or negative, is missing."""
    found = ((_device(row, node_label), number(row.value[1])) for row in rows)
    return {device: value for device, value in found if value is not None}


def intervals(rows: Iterable[SampleRow]) -> dict[str, float]:
    """Seconds between two scrapes by job; without those that make no sense."""
    found = ((row.metric.get("job", ""), number(row.value[1])) for row in rows)
    return {job: seconds for job, seconds in found if seconds}


def number(text: str) -> float | None:
    """A sample's value; ``None`` for NaN, infinities, negative numbers and what is no number."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) and value >= 0 else None


def samples(readings: Readings, known: Known, time_range: timedelta) -> list[TargetSample]:
    """One sample for each exporter that says something now."""
    by_target: dict[Target, set[str]] = {}
    for target, device in readings.scraped_at:
        by_target.setdefault(target, set()).add(device)
    made = (
        _of_target(target, _without_slaves(target, devices, known), readings, known, time_range)
        for target, devices in by_target.items()
    )
    return [sample for sample in made if sample is not None]


def is_slave(flags: float | None) -> bool:
    """Whether a device is part of a bond."""
    return flags is not None and bool(int(flags) & SLAVE)


def _without_slaves(target: Target, devices: set[str], known: Known) -> set[str]:
    """A bond and its slaves carry the same traffic. Slaves alone count: then somebody has asked for them by name."""
    return {device for device in devices if not is_slave(known.flags.get((target, device)))} or devices


def _of_target(
    target: Target, devices: set[str], readings: Readings, known: Known, time_range: timedelta
) -> TargetSample | None:
    keys = [(target, device) for device in sorted(devices)]
    interval = known.interval.get(target.job)
    factors = {key: _correction(key, readings, interval, time_range.total_seconds()) for key in keys}
    receive = _sum(readings.receive, factors)
    transmit = _sum(readings.transmit, factors)
    if receive is None and transmit is None:
        return None
    capacities = [speed for key in keys if (speed := known.speed.get(key))]
    return TargetSample(
        target=target,
        bandwidth=Bandwidth(
            receive=receive,
            transmit=transmit,
            capacity=sum(capacities) if len(capacities) == len(keys) else None,
            sampled_at=utc_time(min(readings.scraped_at[key] for key in keys)),
        ),
        devices=frozenset(devices),
    )


def _correction(key: Device, readings: Readings, interval: float | None, range_seconds: float) -> float | None:
    """What a rate has to be multiplied with; ``None`` when it says too little to be believed."""
    if key in readings.scraped_before:
        return 1.0
    scrapes = readings.count.get(key, 0)
    if interval is None or scrapes < MIN_SCRAPES:
        return None
    return max(1.0, range_seconds / (scrapes * interval))


def _sum(rates: Values, factors: Mapping[Device, float | None]) -> float | None:
    """Over all devices of an exporter; one of which too little is known makes the sum unknown."""
    total = 0.0
    for key, factor in factors.items():
        rate = rates.get(key)
        if rate is None or factor is None:
            return None
        total += rate * factor
    return total if factors and total <= MOST else None


def _device(row: SampleRow, node_label: str) -> Device:
    labels = row.metric
    target = Target(instance=labels.get("instance", ""), job=labels.get("job", ""), label=labels.get(node_label, ""))
    return target, labels.get("device", "")
