"""From the rows of one query to each node's traffic with its time. Pure.

``rate`` divides by the whole range even if scrapes cover only part of it: 80 MB/s reads 13 after 5 of 30 s. So the rate
of a series that did not exist one range ago is multiplied by range / covered part, from MIN_SCRAPES on. Of one that did
and lacks scrapes since, it is what the counter has grown by between the scrapes there are. A device without such a rate
leaves itself out; a node without any keeps its last sample, which ages.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import lru_cache
from typing import Final

from berth.api.config.networktraffic import BandwidthQuery
from berth.messages.livedata import MAX_RATE as MAX_CAPACITY
from berth.messages.livedata import MIN_CAPACITY, NodeSample, utc_time
from berth_metrics_collector.devices import DeviceFacts, counted_devices
from berth_metrics_collector.prometheus import SampleRow, labels_of

MIN_SCRAPES: Final = 4  # from here on rate x range / (scrapes x interval) is within 11 % of the truth
MAX_RATE: Final = 1e13  # bytes per second above which a value is invalid: a thousand times the fastest link
MAX_TIME: Final = 1e10  # Unix seconds above which a time is invalid: the year 2286, far below milliseconds
# Seconds by which a series may be older than the newest of its exporter: a scrape gives all the same time, so older
# ones have ended without a marker.
_SAME_SCRAPE: Final = 1.0
# Labels of a metric, not of its exporter.
_OF_METRICS: Final = ("__name__", "device", "address", "broadcast", "duplex", "ifalias", "operstate", "adminstate")
_OF_UNAME: Final = ("nodename", "domainname", "machine", "release", "sysname", "version", "master")
_DOWN: Final = frozenset({"down", "lowerlayerdown", "notpresent", "dormant"})  # of RFC 2863


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One exporter as one Prometheus has scraped it.

    ``label``: the node label's value, or empty. ``others``: all other labels of its series, such as ``cluster``.
    """

    instance: str
    job: str
    label: str = ""
    others: frozenset[tuple[str, str]] = frozenset()
    # A round looks each target up some thirty times.
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash((self.instance, self.job, self.label, self.others)))

    def __hash__(self) -> int:
        return self._hash


Device = tuple[Target, str]
Values = Mapping[Device, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficValues:
    """The values of one round, by device; each may lack devices."""

    receive: Values
    transmit: Values
    young: Values
    scraped_at: Values
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


AgeOrder = tuple[float, str, str, list[tuple[str, str]]]


def age_order(target: Target, scraped_at: float) -> AgeOrder:
    """The newest last; of equally new ones always the same."""
    return scraped_at, target.instance, target.job, sorted(target.others)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reading:
    """The traffic of a device by one series per direction."""

    target: Target
    receive: float | None
    transmit: float | None
    scraped_at: float

    @property
    def total(self) -> float:
        return (self.receive or 0.0) + (self.transmit or 0.0)

    @property
    def age_order(self) -> AgeOrder:
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
    by_node: dict[str, dict[str, list[_Reading]]] = {}
    for device, reading in _readings(traffic, inventory, query.time_range):
        node = node_of.get(reading.target)
        if node is not None:
            by_node.setdefault(node, {}).setdefault(device, []).append(reading)
    made = {
        node: _sample(readings, inventory, capacities.get(node), only_own=not query.devices)
        for node, readings in by_node.items()
    }
    repeated = {node: [one for one in readings.values() if len(one) > 1] for node, readings in by_node.items()}
    differing = {
        label
        for devices in repeated.values()
        for found in devices
        for label in differing_labels([one.target for one in found])
    }
    return NodeSamples(
        samples={node: sample for node, sample in made.items() if sample is not None},
        duplicates=tuple(sorted(node for node, devices in repeated.items() if devices)),
        differing=tuple(sorted(differing)),
    )


def _readings(traffic: TrafficValues, inventory: Inventory, time_range: timedelta) -> Iterator[tuple[str, _Reading]]:
    """Devices with a rate that is current."""
    newest: dict[Target, float] = {}
    for (target, _), at in traffic.scraped_at.items():
        if at <= MAX_TIME:
            newest[target] = max(at, newest.get(target, 0.0))
    for key, at in traffic.scraped_at.items():
        target, device = key
        if at > MAX_TIME or at < newest[target] - _SAME_SCRAPE:
            continue
        if key in traffic.gapped:
            receive, transmit = (
                grown if (grown := over_gaps.get(key)) is not None and grown >= 0 else None
                for over_gaps in (traffic.receive_over_gaps, traffic.transmit_over_gaps)
            )
        else:
            factor = rate_correction(traffic.young.get(key), inventory.interval.get(target.job), time_range)
            receive, transmit = (
                None if factor is None or (rate := rates.get(key)) is None else rate * factor
                for rates in (traffic.receive, traffic.transmit)
            )
        if receive is not None or transmit is not None:
            yield device, _Reading(target=target, receive=receive, transmit=transmit, scraped_at=at)


def rate_correction(scrapes: float | None, interval: float | None, time_range: timedelta) -> float | None:
    """The factor for a rate; ``None`` below MIN_SCRAPES. ``scrapes`` of a young series; ``None`` of any other."""
    if scrapes is None:
        return 1.0
    if interval is None or scrapes < MIN_SCRAPES:
        return None
    return max(1.0, time_range.total_seconds() / (scrapes * interval))


def _sample(
    readings: Mapping[str, list[_Reading]], inventory: Inventory, announced: float | None, *, only_own: bool
) -> NodeSample | None:
    """Add up a node's devices, each by the series that was scraped last."""
    newest = {
        device: found[0] if len(found) == 1 else max(found, key=lambda one: one.age_order)
        for device, found in readings.items()
    }
    # Names that are not the node's own are left out of the queries: a single device counts.
    counted = newest.keys() if len(newest) == 1 else _counted(newest, readings, inventory, only_own=only_own)
    chosen = [newest[device] for device in counted]
    receive, transmit = _sum(one.receive for one in chosen), _sum(one.transmit for one in chosen)
    if receive is None and transmit is None:
        return None
    speeds = [inventory.speed.get((newest[device].target, device)) for device in counted]
    capacity = announced or (_sum(speeds) if all(speeds) else None)
    return NodeSample(
        receive=receive,
        transmit=transmit,
        # Readers would refuse the whole sample with another capacity.
        capacity=capacity if capacity is not None and MIN_CAPACITY <= capacity <= MAX_CAPACITY else None,
        sampled_at=utc_time(min(one.scraped_at for one in chosen)),
    )


def _counted(
    newest: Mapping[str, _Reading], readings: Mapping[str, list[_Reading]], inventory: Inventory, *, only_own: bool
) -> Collection[str]:
    facts: dict[str, DeviceFacts] = {}
    for target in {one.target for found in readings.values() for one in found}:
        for device, known in inventory.facts.get(target, {}).items():
            facts[device] = facts[device] | known if device in facts else known
    return counted_devices({device: one.total for device, one in newest.items()}, facts, only_own=only_own)


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
    found = ((row.metric, parse_value(row.value[1])) for row in rows)
    return {_device_of(metric, node_label): value for metric, value in found if value is not None}


def values_by_target(rows: Iterable[SampleRow], node_label: str) -> dict[Target, float]:
    """Values by exporter, of metrics with one series each."""
    return {target: value for (target, _), value in values_by_device(rows, node_label).items()}


# The queries of a round have the same series: at 5,000 nodes with two devices this saves 0.5 of 1 s of CPU.
@lru_cache(maxsize=32_768)
def _device_of(metric: bytes, node_label: str) -> Device:
    labels = labels_of(metric)
    return target_of(labels, node_label), labels.get("device", "")


def target_of(labels: Mapping[str, str], node_label: str) -> Target:
    others = dict(labels)
    for name in (*_OF_METRICS, *_OF_UNAME, "instance", "job", node_label):
        others.pop(name, None)
    return _the_same(
        Target(
            instance=labels.get("instance", ""),
            job=labels.get("job", ""),
            label=labels.get(node_label, ""),
            others=frozenset(others.items()),
        )
    )


@lru_cache(maxsize=32_768)
def _the_same(target: Target) -> Target:
    """One object for equal targets, which need not be compared then."""
    return target


def host_names(rows: Iterable[SampleRow], node_label: str) -> dict[Target, str]:
    """The kernel's host name by exporter; of two names of one exporter, the later."""
    latest: dict[Target, tuple[float, str]] = {}
    for row in rows:
        labels = labels_of(row.metric)
        target = target_of(labels, node_label)
        found = (parse_value(row.value[1]) or 0.0, labels.get("nodename", ""))
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
    found: dict[Target, dict[str, DeviceFacts]] = {}

    def add(labels: Mapping[str, str], device: str, facts: DeviceFacts) -> None:
        of_target = found.setdefault(target_of(labels, node_label), {})
        of_target[device] = of_target[device] | facts if device in of_target else facts

    for labels, value in _labelled(rows.flags):
        add(labels, labels.get("device", ""), DeviceFacts(flags=_whole(value)))
    for labels, _ in _labelled(rows.info):
        is_down = labels.get("operstate", "") in _DOWN
        add(labels, labels.get("device", ""), DeviceFacts(address=labels.get("address", ""), is_down=is_down))
    for labels, value in _labelled(rows.stacked):
        add(labels, labels.get("device", ""), DeviceFacts(is_stacked=bool(_whole(value))))  # 0: upon none
    for labels, value in _labelled(rows.named_by):
        add(labels, labels.get("device", ""), DeviceFacts(named_by=_whole(value)))
    for labels, value in _labelled(rows.bonds):
        add(labels, labels.get("master", ""), DeviceFacts(members=_whole(value)))
    return found


def _labelled(rows: Iterable[SampleRow]) -> Iterator[tuple[Mapping[str, str], float | None]]:
    return ((labels_of(row.metric), parse_value(row.value[1])) for row in rows)


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)


def scrape_intervals(rows: Iterable[SampleRow]) -> dict[str, float]:
    """Seconds between scrapes, by job, without zero and invalid values."""
    return {labels.get("job", ""): seconds for labels, seconds in _labelled(rows) if seconds}


def parse_value(text: str) -> float | None:
    """A sample's value; ``None`` for NaN, infinities, negative numbers and non-numbers."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) and value >= 0 else None
