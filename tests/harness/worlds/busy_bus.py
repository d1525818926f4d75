"""What watcher, scorer and binder of a large cluster would have written to a bus, at a rate, without running them.

    busy = BusyBus(session, nodes=5000)
    await busy.fill()
    await busy.decide(rate=500, seconds=10)

Each Decision has a pod that is bound in the mirror, as the watcher writes it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import msgspec

from berth.bus.interface import Bus, Session
from berth.bus.stages import publish_decision
from berth.bus.topology import BANDWIDTH, CLUSTER
from berth.messages.attempts import Candidate, DeadLetter, Decision, Outcome, Rejection
from berth.messages.encoding import encode
from berth.messages.livedata import NodeSample, encode_sample
from berth.messages.mirror import MirrorEntry, Watermark, encode_entry, encode_watermark, watermark_key
from berth.messages.subjects import Term, key
from harness.builders.objects import a_node, a_pod, first_attempt

TERM = Term(1)
AT_ONCE = 200
"""Writes that wait for their answers."""
NAMESPACES = ("shop", "search", "batch", "default")
ZONE = "topology.kubernetes.io/zone"


class BusyBus:
    """A bus and how many pods were decided on it."""

    bound, unschedulable = Outcome.BOUND, Outcome.UNSCHEDULABLE

    def __init__(self, session: Session, *, nodes: int) -> None:
        self._session = session
        self.nodes = [f"node-{number:05}" for number in range(nodes)]
        self.pods = 0
        self.bound_pods = 0
        self.largest_delay = 0.0
        """Seconds by which a Decision came later than its rate asks for."""

    @classmethod
    @asynccontextmanager
    async def on(cls, bus: Bus, *, nodes: int) -> AsyncIterator[BusyBus]:
        """On a bus that has its streams when the block begins."""
        for _ in range(2):  # a session that found no bucket does not know the id of the bus
            session = await bus.connect(name="busy")
            await session.apply()
            if session.bus_id:
                break
            await session.close()
        try:
            yield cls(session, nodes=nodes)
        finally:
            await session.close()

    async def fill(self, *, pods_on_each: int = 0) -> None:
        """Write the nodes, some pods on each, and watermarks."""
        await self._all(self._write_node(number, name) for number, name in enumerate(self.nodes))
        await self._all(self._place(name) for name in self.nodes for _ in range(pods_on_each))
        for kind in ("node", "pod"):
            watermark = encode_watermark(Watermark(term=TERM, resource_version="1"))
            await self._session.put(CLUSTER, watermark_key(kind), watermark)

    async def measure(self) -> None:
        """Write a sample of bandwidth for each node."""
        await self._all(self._write_sample(number, name) for number, name in enumerate(self.nodes))

    async def decide(self, *, rate: float, seconds: float) -> None:
        """Bind pods at a rate, one node after the other; some are unschedulable first, or in conflict."""
        begin, number = time.monotonic(), 0
        doing: set[asyncio.Task[None]] = set()
        while number < rate * seconds:
            due = begin + number / rate
            late = time.monotonic() - due
            if late < 0:
                await asyncio.sleep(-late)
            self.largest_delay = max(self.largest_delay, late)
            task = asyncio.create_task(self.decide_one())
            doing.add(task)
            task.add_done_callback(doing.discard)
            if len(doing) >= AT_ONCE:
                await asyncio.wait(doing, return_when=asyncio.FIRST_COMPLETED)
            number += 1
        await asyncio.gather(*doing)

    async def decide_one(self, *, message: str = "", outcome: Outcome | None = None) -> str:
        """One Decision; returns the pod as namespace/name."""
        self.pods += 1
        number = self.pods
        node = self.nodes[number * 7919 % len(self.nodes)]
        name, namespace = f"web-{number}", NAMESPACES[number % len(NAMESPACES)]
        what = outcome or _outcome(number)
        pod = self._pod(name, namespace, node)
        now = datetime.now(UTC)
        is_bound = what is Outcome.BOUND
        decision = Decision(
            attempt=str(first_attempt(pod)),
            profile="berth",
            epoch=1,
            outcome=what,
            namespace=namespace,
            pod=name,
            uid=pod.uid,
            node=node if is_bound else "",
            scorer="scorer-1",
            message=message or ("" if is_bound else "0/5000 nodes are available: 5000 Insufficient cpu."),
            asked_at=now - timedelta(milliseconds=9),
            ranked_at=now - timedelta(milliseconds=5),
            evaluated=len(self.nodes),
            feasible=len(self.nodes) if is_bound else 0,
            nodes=len(self.nodes),
            candidates=_candidates(node, self.nodes) if is_bound else [],
            rejections=[] if is_bound else [_rejection(self.nodes)],
            blockers=[] if is_bound else ["NodeResourcesFit"],
        )
        await publish_decision(self._session, decision)
        if is_bound:
            self.bound_pods += 1
            await self._write_pod(pod)
        return f"{namespace}/{name}"

    async def bury(self, reason: str) -> None:
        """Write a dead letter."""
        letter = DeadLetter(subject="berth.ranked.berth.default.dies", reason=reason, service="binder")
        await self._session.publish("berth.dead.berth.default.dies", encode(letter), message_id=f"dead-{reason:.40}")

    async def _all(self, writes) -> None:
        doing: set[asyncio.Task[None]] = set()
        for write in writes:
            doing.add(asyncio.create_task(write))
            if len(doing) >= AT_ONCE:
                done, doing = await asyncio.wait(doing, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
        await asyncio.gather(*doing)

    async def _write_node(self, number: int, name: str) -> None:
        labels = {ZONE: f"zone-{'abc'[number % 3]}", "pool": "gpu" if number % 10 == 0 else "web"}
        node = a_node(name, labels=labels, unschedulable=number % 97 == 96, cpu="16", memory="64Gi")
        await self._session.put(CLUSTER, key("node", name), _entry(node))

    async def _place(self, node: str) -> None:
        self.pods += 1
        name = f"web-{self.pods}"
        await self._write_pod(self._pod(name, NAMESPACES[self.pods % len(NAMESPACES)], node))

    async def _write_pod(self, pod) -> None:
        entry = _entry(pod, bound_at=datetime.now(UTC).isoformat())
        await self._session.put(CLUSTER, key("pod", pod.uid), entry)

    async def _write_sample(self, number: int, name: str) -> None:
        rate = (number * 7919 % 1000) / 1000 * 1.25e9
        sample = NodeSample(receive=rate, transmit=rate / 3, capacity=1.25e9, sampled_at=datetime.now(UTC))
        await self._session.put(BANDWIDTH, key("q1", name), encode_sample(sample))

    def _pod(self, name: str, namespace: str, node: str):
        created = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        metadata = {"namespace": namespace, "creation_timestamp": created}
        cpu = f"{(self.pods * 37 % 9 + 1) * 100}m"
        pod = a_pod(name, node=node, cpu=cpu, uid=f"uid-{namespace}-{name}", metadata=metadata)
        memory = f"{(self.pods * 53 % 7 + 1) * 512}Mi"
        (container,) = pod.spec.containers
        resources = msgspec.structs.replace(container.resources, requests={"cpu": cpu, "memory": memory})
        container = msgspec.structs.replace(container, resources=resources)
        return msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, containers=[container]))


def _entry(thing, bound_at: str | None = None) -> bytes:
    return encode_entry(MirrorEntry(term=TERM, object=msgspec.Raw(msgspec.json.encode(thing)), bound_at=bound_at))


def _outcome(number: int) -> Outcome:
    if number % 50 == 0:
        return Outcome.UNSCHEDULABLE
    return Outcome.CONFLICT if number % 75 == 0 else Outcome.BOUND


def _candidates(node: str, nodes: list[str]) -> list[Candidate]:
    scores = {"NodeResourcesFit": 96, "NodeResourcesBalancedAllocation": 74, "TaintToleration": 300}
    others = [name for name in nodes[:8] if name != node][:7]
    best = Candidate(node=node, total=470, scores=scores, loss=2)
    rest = (
        Candidate(node=name, total=469 - place, scores={**scores, "NodeResourcesFit": 95 - place}, loss=2)
        for place, name in enumerate(others)
    )
    return [best, *rest]


def _rejection(nodes: list[str]) -> Rejection:
    return Rejection(plugin="NodeResourcesFit", reason="Insufficient cpu", nodes=len(nodes), examples=nodes[:3])
