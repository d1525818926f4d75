"""Watchers that run on a cluster and a bus, and a stand-in for scorer and binder that binds every pod to node n1."""

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

from berth.bus.interface import Bus, Delivery, Session
from berth.bus.stages import publish_decision
from berth.errors import BerthError
from berth.lifecycle.process import Process
from berth.messages.attempts import Decision, Outcome, Pending
from berth.messages.encoding import decode
from berth.messages.subjects import Attempt
from berth.profiles.configuration import read_configuration
from berth.settings.settings import LeaderElectionSettings, Settings
from berth_watcher.service import serve
from berth_watcher.settings import watcher_settings
from harness.fakes.recording_meter import RecordingMeter
from harness.plugins.fixtures_kube import Cluster

SECONDS = 40.0

Answer = Callable[[Pending], Outcome | None]
"""The outcome that the stand-in decides for an attempt; ``None`` acknowledges the message and publishes no Decision."""


def bound(pending: Pending) -> Outcome:
    return Outcome.BOUND


@dataclass
class RunningWatcher:
    """One watcher, in a task of the test's process."""

    process: Process
    task: asyncio.Task[None]

    @property
    def leads(self) -> bool:
        return self.process.health.is_working

    async def stop(self) -> None:
        """As on SIGTERM."""
        self.process.stopping.set()
        await asyncio.wait_for(self.task, SECONDS)

    async def kill(self) -> None:
        """As on SIGKILL, except that the Lease is released."""
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


@dataclass
class WatcherWorld:
    """The cluster, the bus and the running watchers of a test."""

    cluster: Cluster
    bus: Bus
    answer: Answer = bound
    config: Path | None = None
    """The watchers' configuration file."""
    decision_fields: dict[str, Any] = field(default_factory=dict)
    """Fields of every Decision of the stand-in."""
    lease: str = field(default_factory=lambda: f"watcher-test-{uuid.uuid4().hex[:8]}")
    watchers: list[RunningWatcher] = field(default_factory=list)
    attempts: list[str] = field(default_factory=list)
    names: list[str] = field(default_factory=list)

    async def start_watcher(self, **settings: Any) -> RunningWatcher:
        """Start one more watcher."""
        election = LeaderElectionSettings(resource_name=self.lease, retry_period=timedelta(seconds=0.2))
        chosen = Settings(leader_election=election, **settings)
        configuration = read_configuration(self.config)
        process = Process(name="watcher", metrics=RecordingMeter(), settings=chosen)
        work = serve(self.bus, self.cluster.client, process, configuration, watcher_settings(chosen, configuration))
        watcher = RunningWatcher(process=process, task=asyncio.create_task(work))
        self.watchers.append(watcher)
        return watcher

    async def leading_watcher(self, **settings: Any) -> RunningWatcher:
        """Start a watcher and wait until its queue runs."""
        watcher = await self.start_watcher(**settings)
        await self.until(lambda: watcher.leads)
        return watcher

    async def add_node(self, name: str) -> None:
        room = {"cpu": "64", "memory": "256Gi", "pods": "1000"}
        node = {"metadata": {"name": name}, "status": {"allocatable": room, "capacity": room}}
        assert (await self.cluster.api.post("/api/v1/nodes", node)).code == 201

    async def add_pods(self, prefix: str, count: int) -> list[str]:
        names = [f"{prefix}-{number}" for number in range(count)]
        for name in names:
            await self.add_pod(name)
        return names

    async def add_pod(self, name: str, **spec: Any) -> None:
        container = {"name": "main", "image": "pause", "resources": {"requests": {"cpu": "10m"}}}
        answer = await self.cluster.api.add_pod(name, containers=[container], **spec)
        assert answer.code == 201, answer.body

    async def unbound(self) -> list[str]:
        """The pods that wait for a node."""
        items = (await self.cluster.api.get(self.cluster.api.pods)).body["items"]
        return [item["metadata"]["name"] for item in items if not item["spec"].get("nodeName")]

    async def all_bound(self) -> bool:
        return not await self.unbound()

    async def session(self) -> Session:
        return await self.bus.connect(name="test")

    async def until(self, condition: Callable[[], Any], seconds: float = SECONDS) -> None:
        """Wait until a condition holds."""
        async with asyncio.timeout(seconds):
            while True:
                result = condition()
                if await result if asyncio.iscoroutine(result) else result:
                    return
                await asyncio.sleep(0.02)

    async def run_stand_in(self) -> None:
        """Rank and bind every pod of PENDING. Connects again after an error."""
        while True:
            with contextlib.suppress(BerthError):
                session = await self.bus.connect(name="stand-in")
                try:
                    await self._consume(session)
                finally:
                    await session.close()
            await asyncio.sleep(0.05)

    async def _consume(self, session: Session) -> None:
        async with session.consume("PENDING", "scorer", max_unacked=64) as deliveries:
            async for delivery in deliveries:
                await self._take(session, delivery)

    async def _take(self, session: Session, delivery: Delivery) -> None:
        pending = decode(delivery.data, Pending)
        self.attempts.append(pending.attempt)
        self.names.append(pending.pod.metadata.name)
        outcome = self.answer(pending)
        if outcome is Outcome.BOUND:
            await self.cluster.api.bind(pending.pod.metadata.name, "n1")
        if outcome is not None:
            await publish_decision(session, _decision(pending, outcome, **self.decision_fields))
        delivery.ack()


def _decision(pending: Pending, outcome: Outcome, **more: Any) -> Decision:
    return Decision(
        attempt=pending.attempt,
        epoch=1,
        outcome=outcome,
        profile=pending.profile,
        namespace=pending.pod.metadata.namespace,
        pod=pending.pod.metadata.name,
        uid=Attempt.parse(pending.attempt).uid,
        node="n1",
        **more,
    )


@asynccontextmanager
async def watcher_world(cluster: Cluster, bus: Bus) -> AsyncIterator[WatcherWorld]:
    """Ends the watchers and the stand-in with it."""
    world = WatcherWorld(cluster=cluster, bus=bus)
    stand_in = asyncio.create_task(world.run_stand_in())
    yield world
    stand_in.cancel()
    await asyncio.gather(stand_in, return_exceptions=True)
    for watcher in world.watchers:
        await watcher.kill()
