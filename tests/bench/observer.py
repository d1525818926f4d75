"""When pods are bound, as a watch shows it: the same view of every scheduler, and cheap for the API server.

Lists over and over would take CPU that the measured scheduler then lacks: a list of 600 pods each 20 ms costs the API
server more than a small scheduler does.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from harness.worlds.cluster_user import ClusterUser


class _Metadata(msgspec.Struct):
    name: str = ""
    resourceVersion: str = ""  # noqa: N815 - as on the wire


class _Spec(msgspec.Struct):
    nodeName: str = ""  # noqa: N815 - as on the wire


class _Pod(msgspec.Struct):
    metadata: _Metadata
    spec: _Spec = msgspec.field(default_factory=_Spec)


class _Change(msgspec.Struct):
    object: _Pod


_CHANGES = msgspec.json.Decoder(_Change)


@dataclass(slots=True)
class Bound:
    """The pods of a namespace that have been seen bound since the watch began."""

    clock: Callable[[], float] = time.monotonic
    at: dict[str, float] = field(default_factory=dict)
    """When each was first seen so, by the clock; in the order of seeing."""
    nodes: dict[str, str] = field(default_factory=dict)
    resumed: int = 0
    """How often the watch ended and was resumed. Each time, pods are seen some milliseconds late."""
    _version: str = ""

    def take(self, line: bytes) -> None:
        pod = _CHANGES.decode(line).object
        self._version = pod.metadata.resourceVersion
        if pod.spec.nodeName and pod.metadata.name not in self.nodes:
            self.nodes[pod.metadata.name] = pod.spec.nodeName
            self.at[pod.metadata.name] = self.clock()

    async def watch(self, seen: ClusterUser, version: str) -> None:
        """Watch for ever. The API server ends a watch with a slow reader; it is resumed from the last version."""
        self._version = version
        while True:
            async with seen.changes(seen.api.pods, self._version) as lines:
                async for line in lines:
                    self.take(line)
            self.resumed += 1
