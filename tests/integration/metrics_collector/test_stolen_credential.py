"""What somebody with the collector's credential has written to a real server is gone seconds after the thief."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime, timedelta

import pytest

from berth.api.config.networktraffic import BandwidthQuery
from berth.bus.session import NatsBus, NatsSession
from berth.lifecycle.process import Process
from berth.messages.livedata import NodeSample, decode_sample, encode_sample
from berth.messages.subjects import key
from berth_metrics_collector.service import MeasuredQuery, serve
from berth_metrics_collector.settings import CollectorSettings
from berth_sim.cluster import SimulatedCluster
from berth_sim.nodes import node_manifests
from harness.fakes.recording_meter import RecordingMeter
from harness.servers.bus_users import bus_of_users, inbox_of, password_of, settings_of
from harness.servers.nats_server import NatsServer
from harness.worlds.collector_world import by_prometheus, mirrored, node_at
from harness.worlds.hostile_clients import client_of

pytestmark = pytest.mark.requires("nats-server")

MEASURED = ("node-0", "node-1", "node-2")
NODES = (*MEASURED, "unmeasured", "unknown")
FORGED = 9e14
KINDS: list[Mapping[str, str]] = [{}, {}, {"Nats-TTL": "60s"}, {"KV-Operation": "PURGE", "Nats-TTL": "60s"}]


@pytest.fixture
def server() -> Iterator[NatsServer]:
    with bus_of_users() as server:
        yield server


@asynccontextmanager
async def collector(server: NatsServer, query: BandwidthQuery) -> AsyncIterator[None]:
    """A collector that asks Prometheus once: no later round replaces what somebody has written."""
    process = Process(name="metrics-collector", metrics=RecordingMeter())
    settings = CollectorSettings(interval=timedelta(hours=1))
    source = MeasuredQuery.of(query, by_prometheus()(query), timedelta(minutes=5))
    task = asyncio.create_task(serve(process, NatsBus(settings_of(server, "collector")), [source], settings))
    try:
        yield
    finally:
        process.stopping.set()
        await asyncio.wait_for(task, 15)


async def harm(server: NatsServer, query: BandwidthQuery, authors: list[str], *, seconds: float) -> None:
    """Write samples of every node, old and new and of tomorrow, in each of these names, and remove some."""
    thief = await client_of(server, "collector", password_of("collector"), inbox_of("collector"))
    ends, number = time.monotonic() + seconds, 0
    while time.monotonic() < ends:
        for node in NODES:
            number += 1
            ahead = timedelta(seconds=(-60, 0, 1, 86400)[number % 4])
            by = authors[number % len(authors)]
            sample = NodeSample(receive=FORGED, sampled_at=datetime.now(UTC) + ahead, by=by)
            headers = KINDS[number // 7 % len(KINDS)]
            data = b"" if "KV-Operation" in headers else encode_sample(sample)
            await thief.publish(f"$KV.bandwidth.{key(query.token, node)}", data, headers=dict(headers))
        await thief.flush()
        await asyncio.sleep(0.1)
    for node in NODES:
        last = NodeSample(receive=FORGED, sampled_at=datetime.now(UTC) + timedelta(days=1), by="somebody")
        await thief.publish(f"$KV.bandwidth.{key(query.token, node)}", encode_sample(last))
    await thief.close()


class Samples:
    """The bucket, as the watcher reads it."""

    def __init__(self, watcher: NatsSession, query: BandwidthQuery) -> None:
        self._watcher = watcher
        self._query = query

    async def stored(self) -> dict[str, NodeSample]:
        entries = {node: await self._watcher.get("bandwidth", key(self._query.token, node)) for node in NODES}
        return {node: decode_sample(each.data) for node, each in entries.items() if each is not None and each.data}

    async def until_honest(self) -> dict[str, NodeSample]:
        """Wait until each node that is measured has an honest sample, and no other has any."""
        async with asyncio.timeout(30):
            while not self._are_honest(found := await self.stored()):  # noqa: ASYNC110 - a bucket has no event
                await asyncio.sleep(0.1)
        return found

    def _are_honest(self, found: Mapping[str, NodeSample]) -> bool:
        return sorted(found) == list(MEASURED) and all(sample.receive != FORGED for sample in found.values())


@pytest.mark.parametrize("count", [1, 2])
async def test_nothing_is_left_of_a_thief(server, count):
    async with SimulatedCluster(nodes=node_manifests(len(MEASURED))) as cluster, AsyncExitStack() as stack:
        query = BandwidthQuery(url=cluster.prometheus_url, time_range=timedelta(minutes=5))
        watcher = await NatsBus(settings_of(server, "watcher")).connect(name="watcher")
        stack.push_async_callback(watcher.close)
        await watcher.apply()
        for node in (*MEASURED, "unmeasured"):
            await watcher.put("cluster", key("node", node), mirrored(node_at(node)))
        for _ in range(count):
            await stack.enter_async_context(collector(server, query))
        samples = Samples(watcher, query)
        before = await samples.until_honest()
        await harm(server, query, ["", "somebody", *{each.by for each in before.values()}], seconds=3)
        after = await samples.until_honest()
        assert {each.sampled_at for each in after.values()} == {each.sampled_at for each in before.values()}
