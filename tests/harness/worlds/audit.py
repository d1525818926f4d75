"""Checks at every instant, by a watch of its own, that no pod moves and no node is overcommitted.

async with audit(outside) as seen:
    ...
assert seen.problems == []
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from harness.worlds.cluster_user import ClusterUser, eventually, node_of

_SUFFIX = {"": 1.0, "m": 0.001, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30}
_BINDINGS = re.compile(
    r'^apiserver_request_total\{(?=[^}]*code="201")(?=[^}]*resource="pods")(?=[^}]*subresource="binding")[^}]*\} (\S+)',
    re.MULTILINE,
)


@dataclass
class Audit:
    """Everything seen so far. `allocatable` holds amounts by node and resource."""

    allocatable: dict[str, dict[str, float]]
    node_of: dict[str, str] = field(default_factory=dict)
    requested: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    problems: list[str] = field(default_factory=list)
    placements: int = 0
    _there: dict[str, tuple[str, Counter[str]]] = field(default_factory=dict)

    def take(self, kind: str, pod: dict) -> None:
        """Apply one change of a pod."""
        uid, node = pod["metadata"]["uid"], node_of(pod)
        self._check_move(uid, node, pod["metadata"]["name"])
        if kind == "DELETED" or pod["status"].get("phase") in {"Succeeded", "Failed"}:
            self._leave(uid)
        elif node and uid not in self._there:
            self._enter(uid, node, pod)

    def _check_move(self, uid: str, node: str, name: str) -> None:
        before = self.node_of.get(uid, "")
        if before and node != before:
            self.problems.append(f"{name} moved from {before!r} to {node!r}")
        if node:
            self.placements += not before
            self.node_of[uid] = node

    def _enter(self, uid: str, node: str, pod: dict) -> None:
        self._there[uid] = node, (wanted := _requests(pod))
        self.requested[node].update(wanted)
        for resource, room in self.allocatable.get(node, {}).items():
            if self.requested[node][resource] > room + 1e-6:
                self.problems.append(f"{node}: {self.requested[node][resource]} of {room} {resource} with {uid}")

    def _leave(self, uid: str) -> None:
        node, wanted = self._there.pop(uid, ("", Counter()))
        self.requested[node].subtract(wanted)

    def pods_per_node(self) -> Counter[str]:
        """The number of pods that each node has now, also of nodes without pods."""
        counts = Counter(dict.fromkeys(self.allocatable, 0))
        counts.update(node for node, _ in self._there.values())
        return counts


def _requests(pod: dict) -> Counter[str]:
    wanted: Counter[str] = Counter({"pods": 1})
    for container in pod["spec"]["containers"]:
        for resource, text in container.get("resources", {}).get("requests", {}).items():
            wanted[resource] += amount(text)
    return wanted


def amount(text: str) -> float:
    """Read the quantities that these tests use, without berth's own parser."""
    number = text.rstrip("mKMGi")
    return float(number) * _SUFFIX[text[len(number) :]]


async def nodes_of(seen: ClusterUser) -> dict[str, dict[str, float]]:
    """The allocatable resources of every node."""
    listed = (await seen.api.get("/api/v1/nodes")).body["items"]
    return {item["metadata"]["name"]: _offers(item) for item in listed}


def _offers(node: dict) -> dict[str, float]:
    offered = node.get("status", {}).get("allocatable", {})
    return {resource: amount(offered[resource]) for resource in ("cpu", "memory", "pods") if resource in offered}


@asynccontextmanager
async def audit(seen: ClusterUser) -> AsyncIterator[Audit]:
    """Watch every pod of the cluster while the block runs; at its end all changes up to then have been checked."""
    listed = (await seen.api.get("/api/v1/pods")).body
    found = Audit(allocatable=await nodes_of(seen))
    for pod in listed["items"]:
        found.take("ADDED", pod)
    watching = asyncio.create_task(_watch(seen, listed["metadata"]["resourceVersion"], found))
    try:
        yield found
        await _caught_up(seen, found, watching)
    finally:
        watching.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watching


async def _caught_up(seen: ClusterUser, found: Audit, watching: asyncio.Task[None]) -> None:
    """Wait until the watch has shown every placement that a LIST shows."""
    items = (await seen.api.get("/api/v1/pods")).body["items"]
    wanted = {item["metadata"]["uid"] for item in items if node_of(item)}

    async def there() -> bool:
        if watching.done():
            watching.result()
        return wanted <= found.node_of.keys()

    await eventually(there, "the audit's watch to show every pod")


async def _watch(seen: ClusterUser, version: str, found: Audit) -> None:
    while True:
        async with seen.changes("/api/v1/pods", version) as lines:
            async for line in lines:
                event = json.loads(line)
                assert event["type"] != "ERROR", event
                version = event["object"]["metadata"]["resourceVersion"]
                if event["type"] != "BOOKMARK":
                    found.take(event["type"], event["object"])


async def successful_bindings(seen: ClusterUser) -> int:
    """How many Bindings the real API server has answered with 201 since it started, by its own count."""
    async with seen.api._session.get("/metrics") as response:
        text = await response.text()
    return sum(int(float(count)) for count in _BINDINGS.findall(text))
