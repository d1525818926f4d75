"""After a watcher was away, or on a new store, no pod is ranked on a part of the cluster."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from berth.lifecycle.process import Process
from berth.messages.attempts import Ranked
from berth.messages.encoding import decode
from berth.profiles.configuration import profiles_of, read_configuration
from berth.ranking.ranker import Ranker
from berth_scorer.service import serve
from harness.fakes.memory_bus import MemoryBus, MemorySession
from harness.fakes.recording_meter import RecordingMeter
from harness.plugins.fixtures_kube import Cluster
from harness.worlds.watcher_service import WatcherWorld

NODES = 120
LATE = 5
"""Nodes with room, the last ones that the mirror gets."""
PODS = 10
TURNS_PER_WRITE = 25


class SlowSession(MemorySession):
    """Stores one value of ``cluster`` after the other, and takes its time for each."""

    async def put(self, bucket: str, key: str, data: bytes, *, expected: int | None = None) -> int:
        async with self.disk:
            for _ in range(TURNS_PER_WRITE if bucket == "cluster" else 0):
                await asyncio.sleep(0)
            return await super().put(bucket, key, data, expected=expected)


class SlowBus(MemoryBus):
    async def connect(self, *, name: str) -> MemorySession:
        session = await super().connect(name=name)
        session.__class__ = SlowSession
        session.disk = asyncio.Lock()
        return session


@asynccontextmanager
async def running_scorer(bus: MemoryBus) -> AsyncIterator[None]:
    configuration = read_configuration(None)
    ranker = Ranker(profiles=profiles_of(configuration), config=configuration.digest, identity="s1", best=8)
    process = Process(name="scorer", metrics=RecordingMeter())
    task = asyncio.create_task(serve(process, bus, ranker))
    try:
        async with asyncio.timeout(30):
            while not process.health.is_ready:  # noqa: ASYNC110 - health has no event
                await asyncio.sleep(0.01)
        yield
    finally:
        process.stopping.set()
        await task


async def add_node(cluster: Cluster, number: int) -> None:
    room = {"cpu": "4" if number >= NODES - LATE else "1", "memory": "8Gi", "pods": "110"}
    node = {"metadata": {"name": f"n{number:04}"}, "status": {"allocatable": room, "capacity": room}}
    assert (await cluster.api.post("/api/v1/nodes", node)).code == 201


async def add_pod(cluster: Cluster, name: str, *, cpu: str, priority: int, node: str = "") -> None:
    container = {"name": "main", "image": "pause", "resources": {"requests": {"cpu": cpu}}}
    spec = {"nodeName": node} if node else {}
    answer = await cluster.api.add_pod(name, containers=[container], priority=priority, **spec)
    assert answer.code == 201, answer.body


@pytest.fixture
async def world(simulated_cluster: Cluster) -> AsyncIterator[WatcherWorld]:
    bus = SlowBus()
    bus.apply()
    world = WatcherWorld(cluster=simulated_cluster, bus=bus)
    yield world
    for watcher in world.watchers:
        await watcher.kill()


async def test_pods_that_fit_only_late_nodes_are_neither_rejected_nor_preempt_others(world):
    for number in range(NODES):
        await add_node(world.cluster, number)
    await add_pod(world.cluster, "victim", cpu="1", priority=0, node="n0000")
    for number in range(PODS):
        await add_pod(world.cluster, f"web-{number}", cpu="1100m", priority=1000)
    for number in range(PODS // 2):
        await add_pod(world.cluster, f"small-{number}", cpu="900m", priority=1000)

    async with running_scorer(world.bus):
        await world.leading_watcher()
        session = await world.session()
        ranked: list[Ranked] = []

        async def all_ranked() -> bool:
            ranked[:] = [decode(stored.data, Ranked) async for stored in session.scan("RANKED", "berth.ranked.>")]
            return len(ranked) == PODS + PODS // 2

        await world.until(all_ranked)

    assert [message.message for message in ranked if not message.candidates] == []
    assert {message.evaluated for message in ranked} == {NODES}
