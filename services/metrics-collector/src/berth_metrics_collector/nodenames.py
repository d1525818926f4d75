"""Finds the node of an exporter.

By the first match: the node label, the kernel's host name (node_uname_info), the address as a node's InternalIP, the
address as a node's name. Names may differ in case and domain: they are compared whole, then up to the first dot if
unambiguous. Exporters without a node and nodes without an exporter are reported.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from berth.api.bandwidth import LINK_CAPACITY_ANNOTATION, annotated_rate
from berth.api.node import Node
from berth.bus.interface import Entry
from berth.decoding import decode_json
from berth.errors import DecodeError
from berth.messages.attempts import decode_entry
from berth.messages.livedata import MAX_RATE, Bandwidth
from berth.messages.subjects import parse_key
from berth.observability.logging import get_logger
from berth_metrics_collector.prometheus import SampleRow
from berth_metrics_collector.samples import Target, TargetSample, parse_value

log = get_logger()

_nodes: Final = msgspec.json.Decoder(Node)
_INTERNAL_IP: Final = "InternalIP"


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchedSamples:
    """Samples by node, with unmatched exporters."""

    samples: Mapping[str, Bandwidth] = field(default_factory=dict)
    unmatched: tuple[str, ...] = ()  # instances of exporters that match no node
    missing: tuple[str, ...] = ()  # nodes without an exporter
    duplicates: tuple[str, ...] = ()  # nodes with several exporters of the same devices; the one scraped last counts


def match_samples(samples: Iterable[TargetSample], host_rows: Sequence[SampleRow], nodes: NodeNames) -> MatchedSamples:
    hosts = host_names(host_rows)
    by_node: dict[str, list[TargetSample]] = {}
    unmatched: set[str] = set()
    for sample in samples:
        target = sample.target
        node = nodes.node_of(target, hosts.get((target.instance, target.job), ""))
        if node is None:
            unmatched.add(target.instance)
        else:
            by_node.setdefault(node, []).append(sample)
    return MatchedSamples(
        samples={node: _with_capacity(_combine(found), nodes.capacities.get(node)) for node, found in by_node.items()},
        unmatched=tuple(sorted(unmatched)),
        missing=tuple(sorted(nodes.names - by_node.keys())),
        duplicates=tuple(sorted(node for node, found in by_node.items() if not _are_disjoint(found))),
    )


class MirroredNodes:
    """The mirror's nodes. ``arrivals`` counts all nodes ever added, deleted ones included."""

    def __init__(self) -> None:
        self._nodes: dict[str, Node] = {}
        self._names: NodeNames | None = None
        self._arrived = asyncio.Event()
        self.arrivals = 0

    @property
    def names(self) -> NodeNames:
        if self._names is None:
            self._names = NodeNames(self._nodes.values())
        return self._names

    def apply(self, entry: Entry) -> None:
        """Apply an entry of ``cluster`` under ``node.``; an undecodable one is logged and skipped."""
        try:
            _, name = parse_key(entry.key)
            if entry.data is None:
                self._nodes.pop(name, None)
            else:
                self._set(name, decode_json(_nodes, decode_entry(entry.data).object, "a node"))
        except DecodeError as exc:
            log.warning("a node could not be decoded", key=entry.key, reason=str(exc))
        self._names = None

    async def arrived_after(self, arrivals: int) -> None:
        """Wait until ``arrivals`` exceeds this number."""
        while self.arrivals <= arrivals:
            await self._arrived.wait()

    def _set(self, name: str, node: Node) -> None:
        if name not in self._nodes:
            self.arrivals += 1
            self._arrived.set()
            self._arrived = asyncio.Event()
        self._nodes[name] = node


class NodeNames:
    """Names and addresses of the cluster's nodes, to match exporters."""

    def __init__(self, nodes: Iterable[Node]) -> None:
        listed = list(nodes)
        self.names = frozenset(node.metadata.name for node in listed)
        # Bytes per second from annotations, which precede the capacity that the network card reports.
        self.capacities = {
            node.metadata.name: capacity
            for node in listed
            if (capacity := annotated_rate(node, LINK_CAPACITY_ANNOTATION))  # 0 is like no annotation
        }
        self._whole = {name.lower(): name for name in self.names}
        self._short = _unambiguous((_short(name), name) for name in self.names)
        self._by_address = _unambiguous(
            (address.address, node.metadata.name)
            for node in listed
            for address in node.status.addresses or ()
            if address.type == _INTERNAL_IP
        )

    def node_of(self, target: Target, nodename: str) -> str | None:
        """The exporter's node; ``None`` if unmatched."""
        host = host_of(target.instance)
        return (
            self._by_name(target.label)
            or self._by_name(nodename)
            or self._by_address.get(host)
            or (None if _is_address(host) else self._by_name(host))
        )

    def _by_name(self, name: str) -> str | None:
        if not name:
            return None
        return self._whole.get(name.lower()) or self._short.get(_short(name))


def host_names(rows: Iterable[SampleRow]) -> dict[tuple[str, str], str]:
    """The kernel's host name by (instance, job); for two names of one exporter, the later."""
    latest: dict[tuple[str, str], tuple[float, str]] = {}
    for row in rows:
        key = (row.metric.get("instance", ""), row.metric.get("job", ""))
        found = (parse_value(row.value[1]) or 0.0, row.metric.get("nodename", ""))
        latest[key] = max(latest.get(key, found), found)
    return {key: name for key, (_, name) in latest.items()}


def host_of(instance: str) -> str:
    """The host part of ``host:port`` or ``[v6]:port``; all of it without a port."""
    if instance.startswith("["):
        return instance[1:].partition("]")[0]
    host, colon, port = instance.rpartition(":")
    return host if colon and port.isdigit() and ":" not in host else instance


def _combine(found: list[TargetSample]) -> Bandwidth:
    """Sum over exporters with disjoint devices; otherwise the exporter scraped last counts."""
    if len(found) == 1 or not _are_disjoint(found):
        return max(found, key=lambda sample: (sample.bandwidth.sampled_at, sample.target.instance)).bandwidth
    parts = [sample.bandwidth for sample in found]
    return Bandwidth(
        receive=_sum(part.receive for part in parts),
        transmit=_sum(part.transmit for part in parts),
        capacity=_sum(part.capacity for part in parts),
        sampled_at=min(part.sampled_at for part in parts),
    )


def _with_capacity(bandwidth: Bandwidth, announced: float | None) -> Bandwidth:
    """Set the capacity. One beyond MAX_RATE becomes unknown, because readers would refuse the whole sample."""
    capacity = bandwidth.capacity if announced is None else announced
    if capacity is not None and capacity > MAX_RATE:
        capacity = None
    return msgspec.structs.replace(bandwidth, capacity=capacity)


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
    """The keys of exactly one node."""
    listed = list(pairs)
    counts = Counter(key for key, _ in set(listed))
    return {key: node for key, node in listed if counts[key] == 1}


def _short(name: str) -> str:
    return name.lower().partition(".")[0]


def _is_address(host: str) -> bool:
    """IP addresses have no short name."""
    return ":" in host or all(part.isdigit() for part in host.split("."))
