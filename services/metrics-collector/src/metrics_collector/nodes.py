"""The nodes that the mirror shows, and word of those that come."""

from __future__ import annotations

import asyncio

import msgspec

from berth.api.errors import DecodeError
from berth.api.mirror import decode_entry
from berth.api.node import Node
from berth.api.subjects import parse_key
from berth.bus.port import Entry
from berth.service.logging import get_logger
from metrics_collector.names import Directory

log = get_logger()


class Nodes:
    """The nodes by name. ``arrivals`` counts those that came, also the ones that are gone again."""

    def __init__(self) -> None:
        self._nodes: dict[str, Node] = {}
        self._directory: Directory | None = None
        self._arrived = asyncio.Event()
        self.arrivals = 0

    @property
    def directory(self) -> Directory:
        """The nodes as they are now, ready to be looked up."""
        if self._directory is None:
            self._directory = Directory(self._nodes.values())
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
