"""From the rows of one query to each node's traffic with its time. Pure.

``rate`` divides by the whole range even if scrapes cover only part of it: 80 MB/s reads 13 after 5 of 30 s. So the rate
of a series that did not exist one range ago is multiplied by range / covered part, from MIN_SCRAPES on. Of one that did
and lacks scrapes since, it is what the counter has grown by between the scrapes there are. A device without such a rate
leaves itself out; a node without any keeps its last sample, which ages.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import lru_cache
from typing import Any, Final, NamedTuple

from berth.api.config.networktraffic import BandwidthQuery
from berth.messages.livedata import MAX_RATE as MAX_CAPACITY
from berth.messages.livedata import MAX_TIME, MIN_CAPACITY, NodeSample, utc_time
from berth_metrics_collector.devices import DeviceFacts, counted_devices
from berth_metrics_collector.prometheus import SampleRow, labels_of

MIN_SCRAPES: Final = 4  # from here on rate x range / (scrapes x interval) is within 11 % of the truth
MAX_RATE: Final = 1e13  # bytes per second above which a value is invalid: a thousand times the fastest link
# Seconds by which a series may be older than the newest of its exporter: a scrape gives all the same time, so older
# ones have ended without a marker.
_SAME_SCRAPE: Final = 1.0
# Labels of a metric, not of its exporter.
_OF_METRICS: Final = ("__name__", "device", "address", "broadcast", "duplex", "ifalias", "operstate", "adminstate")
_OF_UNAME: Final = ("nodename", "domainname", "machine", "release", "sysname", "version", "master")
_OF_NO_OTHERS: Final = frozenset((*_OF_METRICS, *_OF_UNAME, "instance", "job"))
_DOWN: Final = frozenset({"down", "lowerlayerdown", "notpresent", "dormant"})  # of RFC 2863


# A tuple, whose hash takes no Python code: a round looks each target up some thirty times.
class Target(NamedTuple):
    """One exporter as one Prometheus has scraped it.

    ``label``: the node label's value, or empty. ``others``: all other labels of its series, such as ``cluster``.
    """

    instance: str
    job: str
    label: str = ""
    others: frozenset[tuple[str, str]] = frozenset()


Device = tuple[Target, str]
Values = Mapping[Device, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficValues:
    """The values of one round, by device; each may lack devices."""

    receive: Values
    transmit: Values
    young: Values
    scraped_at: Values
    young_since: Values = field(default_factory=dict)
    gapped: Values = field(default_factory=dict)
    receive_over_gaps: Values = field(default_factory=dict)
    transmit_over_gaps: Values = field(default_factory=dict)

    @property
    def targets(self) -> frozenset[Target]:
        return frozenset(target for target, _ in self.scraped_at)


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """What seldom changes; ``interval``: seconds between scrapes, by job."""

    hosts: Mapping[Target, str] = field(default_factory=dict)  # the kernel's host names
    facts: Mapping[Target, Mapping[str, DeviceFacts]] = field(default_factory=dict)
    speed: Values = field(default_factory=dict)
    interval: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSamples:
    """Samples by node, with what there is to report."""

    samples: Mapping[str, NodeSample] = field(default_factory=dict)
    duplicates: tuple[str, ...] = ()  # nodes that are measured several times; what was scraped last counts
    differing: tuple[str, ...] = ()  # the labels in which these differ
    # The first reason for each node with a value of CPU or memory that is left out.
    unusable: Mapping[str, str] = field(default_factory=dict)


LabelOrder = tuple[str, str, str, list[tuple[str, str]]]


def label_order(target: Target) -> LabelOrder:
    """Always the same, in every collector."""
    return target.instance, target.job, target.label, sorted(target.others)


def age_order(target: Target, scraped_at: float) -> tuple[float, LabelOrder]:
    """The newest last; of equally new ones always the same."""
    return scraped_at, label_order(target)


class _Reading(NamedTuple):
    """The traffic of a device by one series per direction."""

    target: Target
    device: str
    receive: float | None
    transmit: float | None
    scraped_at: float

    @property
    def total(self) -> float:
        return (self.receive or 0.0) + (self.transmit or 0.0)

    @property
    def age_order(self) -> tuple[float, LabelOrder]:
        return age_order(self.target, self.scraped_at)


def node_samples(
    traffic: TrafficValues,
    inventory: Inventory,
    node_of: Mapping[Target, str],
    capacities: Mapping[str, float],
    query: BandwidthQuery,
) -> NodeSamples:
    """One sample per node with a current value.

    ``node_of`` has the nodes of exporters; ``capacities``, bytes per second by node, precede the cards' own speed.
    """
    by_node: dict[str, list[_Reading]] = {}
    for reading in _readings(traffic, inventory, query.time_range):
        node = node_of.get(reading.target)
        if node is not None:
            by_node.setdefault(node, []).append(reading)
    samples: dict[str, NodeSample] = {}
    duplicates: list[str] = []
    differing: set[str] = set()
    for node, readings in by_node.items():
        chosen: Sequence[_Reading] = readings
        if len(readings) > 1:
            by_device: dict[str, list[_Reading]] = {}
            for reading in readings:
                by_device.setdefault(reading.device, []).append(reading)
            chosen = _chosen(by_device, inventory, only_own=not query.devices)
            if len(by_device) < len(readings):
                duplicates.append(node)
                for found in by_device.values():
                    differing.update(differing_labels([one.target for one in found]))
        sample = _sample(chosen, inventory, capacities.get(node))
        if sample is not None:
            samples[node] = sample
    return NodeSamples(samples=samples, duplicates=tuple(sorted(duplicates)), differing=tuple(sorted(differing)))


def _readings(traffic: TrafficValues, inventory: Inventory, time_range: timedelta) -> Iterator[_Reading]:
    """Devices with a rate that is current."""
    newest: dict[Target, float] = {}
    for (target, _), at in traffic.scraped_at.items():
        if newest.get(target, -1.0) < at <= MAX_TIME:
            newest[target] = at
    young, gapped = traffic.young, traffic.gapped
    for key, at in traffic.scraped_at.items():
        target, device = key
        if at > MAX_TIME or at < newest[target] - _SAME_SCRAPE:
            continue
        if key in gapped:
            receive, transmit = (
                grown if (grown := over_gaps.get(key)) is not None and grown >= 0 else None
                for over_gaps in (traffic.receive_over_gaps, traffic.transmit_over_gaps)
            )
        else:
            receive, transmit = traffic.receive.get(key), traffic.transmit.get(key)
            if key in young:
                elapsed = at - traffic.young_since.get(key, at)
                factor = rate_correction(young[key], inventory.interval.get(target.job), time_range, elapsed)
                receive, transmit = (
                    None if factor is None or rate is None else rate * factor for rate in (receive, transmit)
                )
        if receive is not None or transmit is not None:
            yield _Reading(target, device, receive, transmit, at)


def rate_correction(
    scrapes: float, interval: float | None, time_range: timedelta, elapsed: float = 0.0
) -> float | None:
    """The factor for the rate of a young series with so many scrapes; ``None`` below MIN_SCRAPES or without interval.

    ``interval``: seconds between scrapes. ``elapsed``: seconds from the first to the last, more if some have failed.
    """
    if interval is None or scrapes < MIN_SCRAPES:
        return None
    seconds = time_range.total_seconds()
    # ``rate`` takes half an interval as covered before the first scrape, and half of one after the last.
    with_gaps = elapsed * scrapes / (scrapes - 1) if elapsed <= seconds else 0.0
    return max(1.0, seconds / max(scrapes * interval, with_gaps))


def _chosen(readings: Mapping[str, Sequence[_Reading]], inventory: Inventory, *, only_own: bool) -> Sequence[_Reading]:
    """A node's devices that are added up, each by the series that was scraped last."""
    newest = {device: max(found, key=lambda one: one.age_order) for device, found in readings.items()}
    # Names that are not the node's own are left out of the queries: a single device counts.
    if len(newest) == 1:
        return list(newest.values())
    facts: dict[str, DeviceFacts] = {}
    # By labels and not by age: the exporter that was scraped last changes from round to round, and between collectors.
    for target in sorted({one.target for found in readings.values() for one in found}, key=label_order):
        for device, known in inventory.facts.get(target, {}).items():
            facts[device] = facts[device] | known if device in facts else known
    counted = counted_devices({device: one.total for device, one in newest.items()}, facts, only_own=only_own)
    return [newest[device] for device in counted]


def _sample(chosen: Sequence[_Reading], inventory: Inventory, announced: float | None) -> NodeSample | None:
    """Add up a node's devices."""
    receive, transmit = _sum([one.receive for one in chosen]), _sum([one.transmit for one in chosen])
    if receive is None and transmit is None:
        return None
    speeds = [inventory.speed.get((one.target, one.device)) for one in chosen]
    capacity = announced or (_sum(speeds) if all(speeds) else None)
    return NodeSample(
        receive=receive,
        transmit=transmit,
        # Readers would refuse the whole sample with another capacity.
        capacity=capacity if capacity is not None and MIN_CAPACITY <= capacity <= MAX_CAPACITY else None,
        sampled_at=utc_time(min([one.scraped_at for one in chosen])),
    )


def _sum(amounts: Iterable[float | None]) -> float | None:
    known = [amount for amount in amounts if amount is not None]
    return total if known and (total := math.fsum(known)) <= MAX_RATE else None


def differing_labels(targets: Sequence[Target]) -> Iterator[str]:
    labels = [{"instance": one.instance, "job": one.job, **dict(one.others)} for one in targets]
    for name in {name for one in labels for name in one}:
        if len({one.get(name) for one in labels}) > 1:
            yield name


# --- from rows


def values_by_device(rows: Iterable[SampleRow], node_label: str) -> dict[Device, float]:
    """Values by device, without negative and infinite ones."""
    devices, found = _known_devices(node_label), {}
    for row in rows:
        if (value := parse_value(row.value[1])) is not None:
            found[devices[row.metric]] = value
    return found


def values_by_target(rows: Iterable[SampleRow], node_label: str) -> dict[Target, float]:
    """Values by exporter, of metrics with one series each, impossible ones included."""
    devices = _known_devices(node_label)
    return {devices[row.metric][0]: _number(row.value[1]) for row in rows}


class _KnownDevices(dict[bytes, Device]):
    """By labels as JSON. The queries of a round have the same series: this saves most of reading them."""

    def __init__(self, node_label: str) -> None:
        self._node_label = node_label

    def __missing__(self, metric: bytes) -> Device:
        if len(self) >= _MOST_DEVICES:
            self.clear()
        labels = labels_of(metric)
        self[metric] = found = target_of(labels, self._node_label), labels.get("device", "")
        return found


_MOST_DEVICES: Final = 65_536
_known_devices: Final = lru_cache(maxsize=8)(_KnownDevices)


def target_of(labels: Mapping[str, str], node_label: str) -> Target:
    others = [item for item in labels.items() if item[0] not in _OF_NO_OTHERS and item[0] != node_label]
    return _the_same(
        Target(labels.get("instance", ""), labels.get("job", ""), labels.get(node_label, ""), frozenset(others))
    )


@lru_cache(maxsize=32_768)
def _the_same(target: Target) -> Target:
    """One object for equal targets, which need not be compared then."""
    return target


def host_names(rows: Iterable[SampleRow], node_label: str) -> dict[Target, str]:
    """The kernel's host name by exporter; of two names of one exporter, the later."""
    devices = _known_devices(node_label)
    latest: dict[Target, tuple[float, str]] = {}
    for row in rows:
        target, _ = devices[row.metric]
        found = (parse_value(row.value[1]) or 0.0, labels_of(row.metric).get("nodename", ""))
        latest[target] = max(latest.get(target, found), found)
    return {target: name for target, (_, name) in latest.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRows:
    flags: Sequence[SampleRow] = ()
    info: Sequence[SampleRow] = ()
    stacked: Sequence[SampleRow] = ()
    named_by: Sequence[SampleRow] = ()
    bonds: Sequence[SampleRow] = ()


def device_facts(rows: DeviceRows, node_label: str) -> dict[Target, dict[str, DeviceFacts]]:
    """Of several rows about one device the last that knows a number or an address counts."""
    devices = _known_devices(node_label)
    found: dict[Device, dict[str, Any]] = {}
    _add_numbers(found, "flags", ((devices[row.metric], row) for row in rows.flags))
    _add_numbers(found, "named_by", ((devices[row.metric], row) for row in rows.named_by))
    bonds = ((devices[row.metric][0], labels_of(row.metric).get("master", "")) for row in rows.bonds)
    _add_numbers(found, "members", zip(bonds, rows.bonds, strict=True))
    for row in rows.info:
        facts, labels = found.setdefault(devices[row.metric], {}), labels_of(row.metric)
        if address := labels.get("address"):
            facts["address"] = address
        if labels.get("operstate") in _DOWN:
            facts["is_down"] = True
    for row in rows.stacked:
        facts = found.setdefault(devices[row.metric], {})
        if int(parse_value(row.value[1]) or 0):  # 0: upon none
            facts["is_stacked"] = True
    by_target: dict[Target, dict[str, DeviceFacts]] = {}
    for (target, device), facts in found.items():
        by_target.setdefault(target, {})[device] = DeviceFacts(**facts)
    return by_target


def _add_numbers(found: dict[Device, dict[str, Any]], name: str, rows: Iterable[tuple[Device, SampleRow]]) -> None:
    for device, row in rows:
        facts = found.setdefault(device, {})
        if (value := parse_value(row.value[1])) is not None:
            facts[name] = int(value)


def scrape_intervals(rows: Iterable[SampleRow]) -> dict[str, float]:
    """Seconds between scrapes, by job, without zero and invalid values."""
    found = ((labels_of(row.metric).get("job", ""), parse_value(row.value[1])) for row in rows)
    return {job: seconds for job, seconds in found if seconds}


def parse_value(text: str) -> float | None:
    """A sample's value; ``None`` for NaN, infinities, negative numbers and non-numbers."""
    value = _number(text)
    return value if 0 <= value < math.inf else None


def _number(text: str) -> float:
    """NaN of a text that is no number."""
    try:
        return float(text)
    except ValueError:
        return math.nan
