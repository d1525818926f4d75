"""Finds the node of an exporter.

By the first match: the node label, the kernel's host name (node_uname_info), the host of the exporter's address. Each
may be a name or an IP address in any notation, with a port or not. Names may differ in case, and one may lack its
domain. A name or address that two nodes share matches neither.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final, TypeVar

import msgspec

from berth.api.config.networktraffic import LINK_CAPACITY_ANNOTATION, annotated_rate
from berth.api.config.nodeload.queries import MEASURED, MeasuredResource
from berth.api.node import Node
from berth.api.resources import QuantityError, of_resource
from berth.bus.interface import Entry
from berth.decoding import decode_json
from berth.errors import DecodeError
from berth.messages.mirror import decode_entry
from berth.messages.subjects import parse_key
from berth.observability.logging import get_logger
from berth_metrics_collector.samples import Target

log = get_logger()

_nodes: Final = msgspec.json.Decoder(Node)
_NAME_TYPES: Final = ("Hostname", "InternalDNS", "ExternalDNS")
_HOSTNAME_LABEL: Final = "kubernetes.io/hostname"
_URL: Final = re.compile(r"(?:\w+://)?([^/]*).*", re.DOTALL)

_MOST_FOUND: Final = 32_768  # exporters that are remembered, more than a cluster has: names may change at every scrape

Address = IPv4Address | IPv6Address


def nodes_of(targets: Iterable[Target], hosts: Mapping[Target, str], nodes: NodeNames) -> dict[Target, str]:
    """The nodes of those exporters that have one; ``hosts``: the kernel's host names."""
    found = ((target, nodes.node_of(target, hosts.get(target, ""))) for target in targets)
    return {target: node for target, node in found if node is not None}


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
                self._names = None
            else:
                self._set(name, decode_json(_nodes, decode_entry(entry.data).object, "a node"))
        except DecodeError as exc:
            log.warning("a node could not be decoded", key=entry.key, reason=str(exc))

    async def arrived_after(self, arrivals: int) -> None:
        """Wait until ``arrivals`` exceeds this number."""
        while self.arrivals <= arrivals:
            await self._arrived.wait()

    def _set(self, name: str, node: Node) -> None:
        if name not in self._nodes:
            self.arrivals += 1
            self._arrived.set()
            self._arrived = asyncio.Event()
        elif _names_of(self._nodes[name]) == _names_of(node):
            return  # a change of its status, as nodes have every few minutes: names of 5,000 cost 0.1 s of CPU
        self._nodes[name] = node
        self._names = None


def _names_of(node: Node) -> object:
    """Everything that NodeNames reads."""
    annotation = (node.metadata.annotations or {}).get(LINK_CAPACITY_ANNOTATION)
    label = (node.metadata.labels or {}).get(_HOSTNAME_LABEL)
    return annotation, label, node.status.addresses, node.status.allocatable


class NodeNames:
    """Names and addresses of the cluster's nodes, to match exporters, and what samples say of a node beside."""

    def __init__(self, nodes: Iterable[Node]) -> None:
        listed = list(nodes)
        self._found: dict[tuple[Target, str], str | None] = {}  # what node_of has found
        self.names = frozenset(node.metadata.name for node in listed)
        # Bytes per second from annotations, which precede the capacity that the network card reports.
        self.capacities = {
            node.metadata.name: capacity
            for node in listed
            if (capacity := annotated_rate(node, LINK_CAPACITY_ANNOTATION))  # 0 is like no annotation
        }
        self.allocatable = {node.metadata.name: _allocatable(node) for node in listed}
        own = {name.lower(): name for name in self.names}
        aliases = [(alias.lower(), node.metadata.name) for node in listed for alias in _aliases(node)]
        self._whole = _unambiguous(aliases) | own
        # Names without a domain, of all that a node has.
        self._short = _unambiguous((name.partition(".")[0], node) for name, node in (*own.items(), *aliases))
        self._without_domain = {name: node for name, node in own.items() if "." not in name}
        self._by_address = {
            **_unambiguous(_addresses(listed, "ExternalIP")),
            **_unambiguous(_addresses(listed, "InternalIP")),
            **{address: node for name, node in own.items() if (address := _address(name)) is not None},
        }

    def node_of(self, target: Target, nodename: str) -> str | None:
        asked = target, nodename
        if asked not in self._found:
            if len(self._found) >= _MOST_FOUND:
                self._found.clear()
            self._found[asked] = self._find(target.label) or self._find(nodename) or self._find(target.instance)
        return self._found[asked]

    def _find(self, text: str) -> str | None:
        host = host_of(text).lower()
        address = _address(host)
        if address is not None:
            return self._by_address.get(address)
        if found := self._whole.get(host):
            return found
        first, dot, _ = host.partition(".")
        if first.isdigit():
            return None  # of no valid address
        return (self._without_domain if dot else self._short).get(first)


def _allocatable(node: Node) -> dict[MeasuredResource, float]:
    found: dict[MeasuredResource, float] = {}
    for resource in MEASURED:
        with suppress(QuantityError):
            if (quantity := (node.status.allocatable or {}).get(resource)) is not None:
                found[resource] = of_resource(resource, quantity)
    return found


def _aliases(node: Node) -> Iterator[str]:
    """What a node is called beside its name, without addresses."""
    named = (address.address for address in node.status.addresses or () if address.type in _NAME_TYPES)
    label = (node.metadata.labels or {}).get(_HOSTNAME_LABEL, "")
    return (alias for alias in (*named, label) if alias and _address(alias) is None)


def _addresses(nodes: Iterable[Node], kind: str) -> Iterator[tuple[Address, str]]:
    for node in nodes:
        for found in node.status.addresses or ():
            if found.type == kind and (address := _address(found.address)) is not None:
                yield address, node.metadata.name


def _address(text: str) -> Address | None:
    """The address without zone, an IPv4 address within IPv6 as IPv4; ``None`` if invalid."""
    try:
        address = ip_address(text.partition("%")[0])
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address


def host_of(instance: str) -> str:
    """The host part of ``host:port``, ``[v6]:port`` or a URL; all of it without a port. Without a final dot."""
    found = _URL.fullmatch(instance.strip())
    text = found[1] if found else instance
    if text.startswith("["):
        return text[1:].partition("]")[0]
    host, colon, port = text.rpartition(":")
    return (host if colon and port.isdigit() and ":" not in host else text).rstrip(".")


_Key = TypeVar("_Key")


def _unambiguous(pairs: Iterable[tuple[_Key, str]]) -> dict[_Key, str]:
    """The keys of exactly one node."""
    listed = set(pairs)
    counts = Counter(key for key, _ in listed)
    return {key: node for key, node in listed if counts[key] == 1}
