"""Which node an exporter speaks for. Pure.

The chain: the node label; the kernel's host name (node_uname_info); the address against the node's InternalIP; the
address against its name. Names may differ in case and in domain: they are compared whole, then up to the first dot
where that is unambiguous. Whoever is not recognised, on either side, is reported.


The nodes that the mirror shows, and word of those that come.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from berth.api.errors import DecodeError
from berth.api.livedata import LINK_CAPACITY_ANNOTATION, Bandwidth, annotated_rate
from berth.api.mirror import decode_entry
from berth.api.node import Node
from berth.api.subjects import parse_key
from berth.bus.interface import Entry
from berth.process.logging import get_logger
from berth_metrics_collector.prometheus import SampleRow
from berth_metrics_collector.samples import Target, TargetSample, number

_INTERNAL: Final = "InternalIP"


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedSamples:
    """Samples by node, and what could not be brought together."""

    samples: Mapping[str, Bandwidth] = field(default_factory=dict)
    strangers: tuple[str, ...] = ()
    """Instances that are no node's."""
    missing: tuple[str, ...] = ()
    """Nodes that no exporter speaks for."""
    doubles: tuple[str, ...] = ()
    """Nodes that several exporters speak for, of the same devices: the one scraped last counts."""


class ExporterDirectory:
    """The nodes of the cluster, by everything that an exporter may call them."""

    def __init__(self, nodes: Iterable[Node]) -> None:
        listed = list(nodes)
        self.names = frozenset(node.metadata.name for node in listed)
        self.capacities = {
            node.metadata.name: capacity
            for node in listed
            if (capacity := annotated_rate(node, LINK_CAPACITY_ANNOTATION))  # 0 says no more than nothing does
        }
        """Bytes per second of links whose node says so itself: that beats what the network card tells."""
        self._whole = {name.lower(): name for name in self.names}
        self._short = _unambiguous((_short(name), name) for name in self.names)
        self._by_address = _unambiguous(
            (address.address, node.metadata.name)
            for node in listed
            for address in node.status.addresses or ()
            if address.type == _INTERNAL
        )

    def node_of(self, target: Target, nodename: str) -> str | None:
        """The node that an exporter speaks for; ``None`` when nothing about it is known here."""
        host = host_of(target.instance)
        return (
            self._called(target.label)
            or self._called(nodename)
            or self._by_address.get(host)
            or (None if _is_address(host) else self._called(host))
        )

    def _called(self, name: str) -> str | None:
        if not name:
            return None
        return self._whole.get(name.lower()) or self._short.get(_short(name))


def nodenames(rows: Iterable[SampleRow]) -> dict[tuple[str, str], str]:
    """The kernel's host name by (instance, job); of two that one exporter had within the time, the later."""
    latest: dict[tuple[str, str], tuple[float, str]] = {}
    for row in rows:
        key = (row.metric.get("instance", ""), row.metric.get("job", ""))
        found = (number(row.value[1]) or 0.0, row.metric.get("nodename", ""))
        latest[key] = max(latest.get(key, found), found)
    return {key: name for key, (_, name) in latest.items()}


def name(samples: Iterable[TargetSample], names: Sequence[SampleRow], directory: ExporterDirectory) -> NamedSamples:
    """Bring samples and nodes together."""
    hosts = nodenames(names)
    by_node: dict[str, list[TargetSample]] = {}
    strangers: set[str] = set()
    for sample in samples:
        target = sample.target
        node = directory.node_of(target, hosts.get((target.instance, target.job), ""))
        if node is None:
            strangers.add(target.instance)
        else:
            by_node.setdefault(node, []).append(sample)
    return NamedSamples(
        samples={
            node: _with_capacity(_joined(found), directory.capacities.get(node)) for node, found in by_node.items()
        },
        strangers=tuple(sorted(strangers)),
        missing=tuple(sorted(directory.names - by_node.keys())),
        doubles=tuple(sorted(node for node, found in by_node.items() if not _are_disjoint(found))),
    )


def host_of(instance: str) -> str:
    """The host part of ``host:port`` or ``[v6]:port``; the whole when there is no port."""
    if instance.startswith("["):
        return instance[1:].partition("]")[0]
    host, colon, port = instance.rpartition(":")
    return host if colon and port.isdigit() and ":" not in host else instance


def _joined(found: list[TargetSample]) -> Bandwidth:
    """Two exporters are added up only when their devices differ; else the one that was scraped last counts."""
    if len(found) == 1 or not _are_disjoint(found):
        return max(found, key=lambda sample: (sample.bandwidth.sampled_at, sample.target.instance)).bandwidth
    parts = [sample.bandwidth for sample in found]
    return Bandwidth(
        receive=_sum(part.receive for part in parts),
        transmit=_sum(part.transmit for part in parts),
        capacity=_sum(part.capacity for part in parts),
        sampled_at=min(part.sampled_at for part in parts),
    )


def _with_capacity(bandwidth: Bandwidth, said: float | None) -> Bandwidth:
    return bandwidth if said is None else msgspec.structs.replace(bandwidth, capacity=said)


def _are_disjoint(found: list[TargetSample]) -> bool:
    return sum(len(sample.devices) for sample in found) == len(frozenset().union(*(s.devices for s in found)))


def _sum(amounts: Iterable[float | None]) -> float | None:
    total = 0.0
    for amount in amounts:
        if amount is None:
            return None
        total += amount
    return total


def _unambiguous(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """What stands for exactly one node."""
    listed = list(pairs)
    counts = Counter(key for key, _ in set(listed))
    return {key: node for key, node in listed if counts[key] == 1}


def _short(name: str) -> str:
    return name.lower().partition(".")[0]


def _is_address(host: str) -> bool:
    """Whether it is an IP address: the part before its first dot is no name."""
    return ":" in host or all(part.isdigit() for part in host.split("."))


log = get_logger()


class NodeDirectory:
    """The nodes by name. ``arrivals`` counts those that came, also the ones that are gone again."""

    def __init__(self) -> None:
        self._nodes: dict[str, Node] = {}
        self._directory: ExporterDirectory | None = None
        self._arrived = asyncio.Event()
        self.arrivals = 0

    @property
    def directory(self) -> ExporterDirectory:
        """The nodes as they are now, ready to be looked up."""
        if self._directory is None:
            self._directory = ExporterDirectory(self._nodes.values())
        return self._directory

    def take(self, entry: Entry) -> None:
        """An entry of ``cluster`` under ``node.``; one that cannot be read leaves its node as it was."""
        try:
            _, name = parse_key(entry.key)
            if entry.data is None:
                self._nodes.pop(name, None)
            else:
                self._set(name, msgspec.json.decode(decode_entry(entry.data).object, type=Node))
        except (DecodeError, msgspec.MsgspecError) as exc:
            log.warning("left a node out", key=entry.key, reason=str(exc))
        self._directory = None

    async def arrived_after(self, arrivals: int) -> None:
        """Wait until more nodes have come than so many."""
        while self.arrivals <= arrivals:
            await self._arrived.wait()

    def _set(self, name: str, node: Node) -> None:
        if name not in self._nodes:
            self.arrivals += 1
            self._arrived.set()
            self._arrived = asyncio.Event()
        self._nodes[name] = node
