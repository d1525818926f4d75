"""Judges a run from outside, by the history in etcd: every change of pods, nodes and claims, in their one order.

A watch of the API server would end with the server, and may skip what happened meanwhile. The judge needs
`--storage-media-type=application/json` and `--etcd-compaction-interval=0`.

berth's own Bindings must always leave room for each other. What others do (another scheduler's Bindings, nodes that
shrink, are cordoned or deleted) berth may overlook for `LAG_SECONDS`, and longer while a fault holds its view back.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import aiohttp

from harness.worlds.audit import amount
from harness.worlds.cluster_user import node_of

LAG_SECONDS = 5.0
SCHEDULER = "berth"
FIRST, END = "/registry/minions/", "/registry/resourceclaims0"
"""The range of keys that has nodes, pods and ResourceClaims, but neither Leases nor Events."""
EXTENDED = "example.com/gpu"
"""The resource by which pods without claims of their own get a device."""
Device = tuple[str, str, str]
"""Driver, pool and name."""
TOLERANCE = 1e-6


@dataclass(slots=True, kw_only=True)
class NodeState:
    """What a node offered from a moment on; `cpu` is zero when it was cordoned or not there."""

    at: float
    cpu: float
    labels: Mapping[str, str]


@dataclass(slots=True, kw_only=True)
class PodState:
    """A pod of any scheduler, by its last change."""

    name: str
    uid: str
    cpu: float
    priority: int
    is_ours: bool
    selector: Mapping[str, str]
    node: str = ""
    created_at: float = 0.0
    bound_at: float = 0.0
    left_at: float = 0.0
    is_going: bool = False
    claims: tuple[str | None, ...] = ()
    """Each claim that the pod needs, with its namespace; None while it is not made."""

    @property
    def waits(self) -> bool:
        return not self.node and not self.left_at and not self.is_going


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimState:
    """A ResourceClaim by its last change."""

    uid: str
    owner: str
    """The uid of the pod that it was made for, empty if it was made for none."""
    is_going: bool
    devices: frozenset[Device]
    reserved_for: frozenset[str]


@dataclass
class Judge:
    """Everything seen so far, and what was wrong with it."""

    problems: list[str] = field(default_factory=list)
    pods: dict[str, PodState] = field(default_factory=dict)
    nodes: dict[str, list[NodeState]] = field(default_factory=lambda: defaultdict(list))
    claims: dict[str, ClaimState] = field(default_factory=dict)
    """By namespace and name."""
    deleted_by_user: set[str] = field(default_factory=set)
    """uids that the run itself deletes; every other deletion is an eviction."""
    evicted: dict[str, PodState] = field(default_factory=dict)
    binding_times: list[float] = field(default_factory=list)
    """When each pod of ours was seen bound."""
    _on: dict[str, dict[str, PodState]] = field(default_factory=lambda: defaultdict(dict))
    _uid_of: dict[str, str] = field(default_factory=dict)
    _forgotten: dict[str, str] = field(default_factory=dict)
    _blind: list[list[float]] = field(default_factory=list)

    @contextlib.contextmanager
    def blind(self, seconds_after: float) -> Iterator[None]:
        """Berth's view of the cluster is late during the block and for some seconds after it."""
        self._blind.append(period := [time.monotonic(), float("inf")])
        try:
            yield
        finally:
            period[1] = time.monotonic() + seconds_after

    def take(self, key: str, found: dict | None, at: float) -> None:
        """Apply one change in the order of the history; None: the object was removed."""
        _, _, kind, *rest = key.split("/")
        name = "/".join(rest)
        if kind == "minions":
            self._take_node(name, found, at)
        elif kind == "pods":
            self._take_pod(name, found, at)
        elif kind == "resourceclaims":
            self._take_claim(name, found)

    def _take_claim(self, name: str, found: dict | None) -> None:
        if found is None:
            del self.claims[name]
            return
        before, claim = self.claims.get(name), _claim_state(found)
        self.claims[name] = claim
        for device in claim.devices - (before.devices if before else frozenset()):
            holders = sorted(other for other, each in self.claims.items() if device in each.devices)
            if len(holders) > 1:
                self.problems.append(f"{'/'.join(device)} is given to {' and to '.join(holders)}")

    def held_devices(self) -> set[Device]:
        """Those in claims."""
        return {device for claim in self.claims.values() for device in claim.devices}

    def leaked_devices(self) -> list[str]:
        """Claims with devices that no living pod has reserved."""
        living = {uid for uid, pod in self.pods.items() if not pod.left_at}
        return sorted(name for name, claim in self.claims.items() if claim.devices and not claim.reserved_for & living)

    def _take_node(self, name: str, found: dict | None, at: float) -> None:
        usable = found is not None and not found["spec"].get("unschedulable", False)
        cpu = amount(found["status"]["allocatable"]["cpu"]) if found is not None and usable else 0.0
        labels = found["metadata"].get("labels", {}) if found is not None else {}
        self.nodes[name].append(NodeState(at=at, cpu=cpu, labels=labels))

    def _take_pod(self, name: str, found: dict | None, at: float) -> None:
        if found is None:
            self._leave(self.pods[self._uid_of.pop(name)], at)
            return
        uid = found["metadata"]["uid"]
        self._uid_of[name] = uid
        pod = self.pods.get(uid)
        if pod is None:
            pod = self.pods[uid] = _pod_state(name, found, at)
        pod.claims = tuple(_claims_of(found))
        if "deletionTimestamp" in found["metadata"] and not pod.is_going:
            pod.is_going = True
            self._check_deletion(pod)
        if (node := node_of(found)) != pod.node:
            self._bind(pod, node, at)

    def _leave(self, pod: PodState, at: float) -> None:
        if not pod.is_going:
            self._check_deletion(pod)
        pod.left_at, pod.is_going = at, True
        self._on[pod.node].pop(pod.uid, None)

    def _check_deletion(self, pod: PodState) -> None:
        if pod.uid not in self.deleted_by_user:
            self.evicted[pod.uid] = pod

    def _bind(self, pod: PodState, node: str, at: float) -> None:
        if pod.node:
            self.problems.append(f"{pod.name} moved from {pod.node!r} to {node!r}")
        pod.node, pod.bound_at = node, at
        self._on[node][pod.uid] = pod
        if pod.is_ours:
            self.binding_times.append(at)
            self._check_room(pod, at)
            for name in pod.claims:
                self._check_claim(pod, name)

    def _check_claim(self, pod: PodState, name: str | None) -> None:
        claim = self.claims.get(name or "")
        if claim is None or pod.uid not in claim.reserved_for or not claim.devices:
            self.problems.append(f"{pod.name} bound to {pod.node!r} without its claim {name}: {claim}")
        elif any(pool != pod.node for _, pool, _ in claim.devices):
            self.problems.append(f"{pod.name} bound to {pod.node!r}, its devices are elsewhere: {claim}")

    def _check_room(self, pod: PodState, at: float) -> None:
        since = at - self.lag(at)
        states = self._states(pod.node, since)
        room = max((state.cpu for state in states), default=0.0)
        known = [each for each in self._on[pod.node].values() if each.is_ours or each.bound_at < since]
        used = sum(each.cpu for each in known)
        if pod not in known:
            used += pod.cpu
        if not states or not room:
            self.problems.append(f"{pod.name} bound to {pod.node!r}, which was not usable for {at - since:.1f} s")
        elif used > room + TOLERANCE:
            self.problems.append(f"{pod.name} bound to {pod.node!r}: {used:.1f} of {room:.1f} cpu with it")
        if not any(pod.selector.items() <= state.labels.items() for state in states):
            self.problems.append(f"{pod.name} ({pod.uid}) bound to {pod.node!r}, which it does not select")

    def _states(self, node: str, since: float) -> list[NodeState]:
        """What the node offered from this moment on, the state at that moment included."""
        states = self.nodes.get(node, [])
        later = [state for state in states if state.at >= since]
        before = [state for state in states if state.at < since]
        return before[-1:] + later

    def lag(self, at: float) -> float:
        """How old the view of the cluster may be at this moment."""
        starts = [start for start, end in self._blind if start <= at and at - LAG_SECONDS <= end]
        return LAG_SECONDS + max((at - start for start in starts), default=0.0)

    def waiting(self) -> list[PodState]:
        """Pods of ours that wait."""
        return [pod for pod in self.pods.values() if pod.waits and pod.is_ours]

    def free(self) -> list[tuple[NodeState, float]]:
        """Every node with its room at this moment."""
        return [
            (states[-1], states[-1].cpu - sum(pod.cpu for pod in self._on[name].values()))
            for name, states in list(self.nodes.items())
        ]

    def waiting_that_fit(self) -> list[PodState]:
        """Pods of ours that wait although a node has room."""
        waiting = self.waiting()
        free = self.free() if waiting else []
        return [
            pod
            for pod in waiting
            if any(pod.cpu <= room + TOLERANCE and pod.selector.items() <= state.labels.items() for state, room in free)
        ]

    def bound(self) -> set[str]:
        """uids of the pods that are on a node."""
        return {uid for uid, pod in self.pods.items() if pod.node and not pod.left_at}

    def forget_those_gone(self) -> None:
        """Drop pods that have left, but for their node, so that a long run does not become slow."""
        for uid in [uid for uid, pod in self.pods.items() if pod.left_at and uid in self.deleted_by_user]:
            self._forgotten[uid] = self.pods.pop(uid).node
            self.deleted_by_user.discard(uid)

    def check_decision(self, uid: str, node: str) -> None:
        """A Decision says that the pod was bound to the node."""
        found = self.pods[uid].node if uid in self.pods else self._forgotten.get(uid, "")
        if found != node:
            where = f"on {found!r}" if found else "nowhere"
            self.problems.append(f"a Decision says that pod {uid} was bound to {node!r}, but it is {where}")


def _pod_state(name: str, found: dict, at: float) -> PodState:
    requests = [each.get("resources", {}).get("requests", {}) for each in found["spec"]["containers"]]
    return PodState(
        name=name,
        uid=found["metadata"]["uid"],
        cpu=sum(amount(each["cpu"]) for each in requests if "cpu" in each),
        priority=found["spec"].get("priority", 0),
        is_ours=found["spec"].get("schedulerName") == SCHEDULER,
        selector=found["spec"].get("nodeSelector", {}),
        created_at=at,
    )


def _claims_of(pod: dict) -> Iterator[str | None]:
    """Its claims as far as they are made."""
    namespace, status = pod["metadata"].get("namespace", ""), pod.get("status", {})
    made = {each["name"]: each.get("resourceClaimName") for each in status.get("resourceClaimStatuses", ())}
    names = [each.get("resourceClaimName") or made.get(each["name"]) for each in pod["spec"].get("resourceClaims", ())]
    if any(EXTENDED in each.get("resources", {}).get("requests", {}) for each in pod["spec"]["containers"]):
        names.append(status.get("extendedResourceClaimStatus", {}).get("resourceClaimName"))
    return (f"{namespace}/{name}" if name else None for name in names)


def _claim_state(found: dict) -> ClaimState:
    metadata, status = found["metadata"], found.get("status", {})
    results = status.get("allocation", {}).get("devices", {}).get("results", ())
    return ClaimState(
        uid=metadata["uid"],
        owner=next((each["uid"] for each in metadata.get("ownerReferences", ())), ""),
        is_going="deletionTimestamp" in metadata,
        devices=frozenset((each["driver"], each["pool"], each["device"]) for each in results),
        reserved_for=frozenset(each["uid"] for each in status.get("reservedFor", ())),
    )


@asynccontextmanager
async def judging(etcd_url: str) -> AsyncIterator[Judge]:
    """Follow the history from its beginning while the block runs."""
    judge = Judge()
    following = asyncio.create_task(_follow(etcd_url, judge))
    try:
        yield judge
        if following.done():
            following.result()
    finally:
        following.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await following


async def _follow(etcd_url: str, judge: Judge) -> None:
    watch = {"key": _base64(FIRST), "range_end": _base64(END), "start_revision": 1}
    timeout = aiohttp.ClientTimeout(total=None)
    async with (
        aiohttp.ClientSession(timeout=timeout, read_bufsize=2**22) as session,
        session.post(f"{etcd_url}/v3/watch", data=json.dumps({"create_request": watch})) as response,
    ):
        buffer = b""
        async for data in response.content.iter_any():
            at = time.monotonic()
            *lines, buffer = (buffer + data).split(b"\n")
            for line in lines:
                for event in json.loads(line)["result"].get("events", []):
                    _apply(judge, event, at)
    raise RuntimeError("etcd ended the watch")


def _apply(judge: Judge, event: dict, at: float) -> None:
    pair = event["kv"]
    found = None if event.get("type") == "DELETE" else json.loads(base64.b64decode(pair["value"]))
    judge.take(base64.b64decode(pair["key"]).decode(), found, at)


def _base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()
