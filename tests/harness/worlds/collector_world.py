"""Collectors on a bus in memory, with nodes in the mirror and a Snapshot that reads the bucket."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime, timedelta

import msgspec

from berth.api.config.networktraffic import BandwidthQuery
from berth.api.config.nodeload.queries import AVERAGE, Statistic
from berth.api.meta import ObjectMeta
from berth.api.node import Node, NodeAddress, NodeStatus
from berth.bus.interface import Session
from berth.cluster.buckets import LiveDataReader
from berth.cluster.snapshot import Snapshot
from berth.kube.client import KubeClient
from berth.lifecycle.process import Process
from berth.messages.livedata import BANDWIDTH, LiveSource, NodeSample, decode_sample
from berth.messages.mirror import MirrorEntry, encode_entry
from berth.messages.subjects import Term, key
from berth_metrics_collector.metricsapi import MetricsApiMeasurement
from berth_metrics_collector.poller import Measurement, Query, TrafficMeasurement, UsageMeasurement
from berth_metrics_collector.prometheus import Prometheus, SampleRow
from berth_metrics_collector.service import MeasuredQuery, serve
from berth_metrics_collector.settings import CollectorSettings
from harness.fakes.bus_clock import ManualClock
from harness.fakes.memory_bus import MemoryBus
from harness.fakes.recording_meter import RecordingMeter


def node_at(name: str, address: str = "", **metadata: object) -> Node:
    """A node with free resources and an InternalIP."""
    addresses = [NodeAddress(type="InternalIP", address=address)] if address else None
    status = NodeStatus(allocatable={"cpu": "64", "memory": "256Gi", "pods": "1000"}, addresses=addresses)
    return Node(metadata=ObjectMeta(name=name, uid=name, **metadata), status=status)


def sample_row(value: object, time: float = 0.0, **labels: str) -> SampleRow:
    """A row of an answer of Prometheus."""
    return SampleRow(metric=msgspec.json.encode(labels), value=(time, str(value)))


def mirrored(node: Node) -> bytes:
    """A node as the watcher writes it into the mirror."""
    return encode_entry(MirrorEntry(term=Term(1), object=msgspec.Raw(msgspec.json.encode(node))))


class CollectorWorld:
    """The bus, the nodes and the Snapshot of a test."""

    def __init__(self, bus: MemoryBus, session: Session, query: Query, process: Process) -> None:
        self.bus = bus
        self.session = session
        self.query = query
        self.process = process
        self.snapshot = Snapshot()
        self._live_data = LiveDataReader(self.snapshot.live, {LiveSource(bucket=BANDWIDTH, name=query.token)})

    async def show(self, *nodes: Node) -> None:
        """Write nodes as the watcher does."""
        for one in nodes:
            self.snapshot.set_node(one)
            await self.session.put("cluster", key("node", one.metadata.name), mirrored(one))

    async def remove(self, name: str) -> None:
        """Remove a node as the watcher does."""
        self.snapshot.remove_node(name)
        await self.session.purge("cluster", key("node", name))

    async def sample(self, node: str) -> NodeSample | None:
        """The node's sample in the bucket."""
        entry = await self.session.get("bandwidth", key(self.query.token, node))
        return decode_sample(entry.data) if entry is not None and entry.data is not None else None

    async def until(
        self, condition: Callable[[NodeSample | None], bool], node: str, seconds: float = 30.0
    ) -> NodeSample:
        """Wait until the node's sample meets the condition."""
        async with asyncio.timeout(seconds):
            while not condition(sample := await self.sample(node)):  # noqa: ASYNC110 - a bucket has no event
                await asyncio.sleep(0.05)
        assert sample is not None
        return sample

    def advance_clock(self) -> None:
        """Set the Snapshot's clock, for ages, when nothing more is written."""
        self.snapshot.live.observe_time(datetime.now(UTC).timestamp())

    async def read_bandwidth(self) -> None:
        """Read the bucket into the Snapshot."""
        async with self.session.read_bucket("bandwidth") as reader:
            async for batch in reader.batches():
                for entry in batch:
                    self._live_data.apply("bandwidth", entry.key, entry.data, entry.time)


INVENTORY_ROUNDS = 4

Measure = Callable[[Query], Measurement]


def by_prometheus(*statistics: Statistic) -> Measure:
    """Measure by the query's server; of CPU and memory these statistics, and averages."""

    def measure(query: Query) -> Measurement:
        asked = Prometheus(query.url)
        if isinstance(query, BandwidthQuery):
            return TrafficMeasurement(query, asked, inventory_rounds=INVENTORY_ROUNDS)
        return UsageMeasurement(query, {AVERAGE, *statistics}, asked, inventory_rounds=INVENTORY_ROUNDS)

    return measure


def by_metrics_api(client: KubeClient, *statistics: Statistic) -> Measure:
    """Measure by the API server: averages, and these statistics."""
    return lambda query: MetricsApiMeasurement(query, {AVERAGE, *statistics}, client)


@asynccontextmanager
async def collecting(
    query: Query,
    *nodes: Node,
    measure: Measure | None = None,
    maximum_age: timedelta = timedelta(minutes=5),
    interval: timedelta = timedelta(seconds=0.5),
    collectors: int = 1,
    clock: ManualClock | None = None,
) -> AsyncIterator[CollectorWorld]:
    """Collectors with one query, until the block ends."""
    bus = MemoryBus(clock=clock) if clock is not None else MemoryBus()
    session = await bus.connect(name="test")
    await session.apply()
    processes = [Process(name="metrics-collector", metrics=RecordingMeter()) for _ in range(collectors)]
    world = CollectorWorld(bus, session, query, processes[0])
    await world.show(*nodes)
    async with AsyncExitStack() as stack:
        reading = asyncio.create_task(world.read_bandwidth())
        settings, measure = CollectorSettings(interval=interval), measure or by_prometheus()
        tasks = [
            asyncio.create_task(serve(process, bus, [MeasuredQuery.of(query, measure(query), maximum_age)], settings))
            for process in processes
        ]
        stack.push_async_callback(_end, processes, tasks, reading)
        yield world


async def _end(processes: list[Process], tasks: list[asyncio.Task[None]], reading: asyncio.Task[None]) -> None:
    for process in processes:
        process.stopping.set()
    await asyncio.wait_for(asyncio.gather(*tasks), 15)
    reading.cancel()
