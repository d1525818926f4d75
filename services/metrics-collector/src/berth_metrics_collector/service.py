"""The collector's service: reads nodes from the mirror, polls Prometheus, writes the bucket ``bandwidth``."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from datetime import UTC, datetime
from typing import Final

from berth.api.config.networktraffic import BandwidthQuery
from berth.bus.interface import (
    BucketReader,
    Bus,
    BusLostError,
    BusRefusedError,
    Session,
    WrongLastSequenceError,
)
from berth.bus.topology import BANDWIDTH, CLUSTER, COMPARED
from berth.errors import TemporaryError
from berth.lifecycle.process import Process, run_until
from berth.lifecycle.sessions import present, serve_each_session
from berth.messages.livedata import encode_bandwidth
from berth.observability.health import Condition
from berth.observability.logging import get_logger
from berth_metrics_collector.nodenames import MirroredNodes
from berth_metrics_collector.poller import MatchedSamples, Poller, Reporter
from berth_metrics_collector.prometheus import Prometheus
from berth_metrics_collector.samplestore import SampleRemoval, SampleStore, SampleWrite
from berth_metrics_collector.settings import CollectorSettings

log = get_logger()

# Seconds until a collector is ready without samples: a rate needs two scrapes, and Prometheus may have no such series.
FIRST_SAMPLES_SECONDS: Final = 60.0
FIRST_NODES_SECONDS: Final = 5.0  # until it is ready without nodes: a watcher that starts beside it needs about two
SETTLE_SECONDS: Final = 1.0  # wait of a poll for more new nodes: a new cluster adds many at once
CONCURRENT_WRITES: Final = 64  # writes under way: 5,000 take about a second


async def serve(process: Process, bus: Bus, queries: Sequence[BandwidthQuery], settings: CollectorSettings) -> None:
    """Collect until the process stops. Each session has a new collector, because its store may be another one."""
    condition = process.health.condition("collector", "waiting for NATS")
    if not queries:
        log.info("no queries: no profile of the configuration runs NetworkTraffic")
    servers = {query.url: Prometheus(query.url, access=settings.access) for query in queries}

    async def collect(session: Session) -> None:
        collector = Collector(session, queries, servers, process, settings)
        async with present(session, process, stats=collector.stats):
            await run_until(collector.run(condition), process.stopping, session.lost)

    try:
        await serve_each_session(
            bus,
            name="metrics-collector",
            process=process,
            condition=condition,
            serve=collect,
            only=COMPARED["collector"],
        )
    finally:
        for server in servers.values():
            server.close()


class Collector:
    """One collector on one session."""

    def __init__(
        self,
        session: Session,
        queries: Sequence[BandwidthQuery],
        servers: dict[str, Prometheus],
        process: Process,
        settings: CollectorSettings,
    ) -> None:
        self._session = session
        self._queries = queries
        self._servers = servers
        self._process = process
        self._settings = settings
        self._nodes = MirroredNodes()
        self._stores = {query.token: SampleStore(query.token) for query in queries}
        self._unsampled = set(self._stores)
        self._sampled = asyncio.Event()  # the nodes of every query have samples, or its Prometheus is away
        self._write_slots = asyncio.Semaphore(CONCURRENT_WRITES)
        self._written = 0

    def stats(self) -> dict[str, object]:
        """The figures that ``nats micro stats`` shows."""
        return {
            "queries": {query.token: query.url for query in self._queries},
            "known": {token: store.count() for token, store in self._stores.items()},
            "written": self._written,
        }

    async def run(self, condition: Condition) -> None:
        """Read the buckets, then poll at every interval until cancelled."""
        if not self._queries:
            condition.ready("no queries: no profile runs NetworkTraffic")
            await asyncio.Event().wait()
        async with AsyncExitStack() as stack, asyncio.TaskGroup() as tasks:
            condition.waiting("reading the mirror")
            cluster = await stack.enter_async_context(self._session.read_bucket(CLUSTER, filters=("node.>",)))
            tasks.create_task(self._read_nodes(cluster), name="nodes")
            filters = tuple(f"{token}.>" for token in self._stores)
            bandwidth = await stack.enter_async_context(self._session.read_bucket(BANDWIDTH, filters=filters))
            tasks.create_task(self._read_bandwidth(bandwidth), name="bandwidth")
            await cluster.caught_up.wait()
            await bandwidth.caught_up.wait()
            for query in self._queries:
                tasks.create_task(self._collect(query), name=query.token)
            condition.waiting("waiting for nodes in the mirror")
            with suppress(TimeoutError):
                await asyncio.wait_for(self._nodes.arrived_after(0), FIRST_NODES_SECONDS)
            if self._nodes.arrivals:
                condition.waiting("waiting for the first samples from Prometheus")
                await run_until(self._process.clock.sleep(FIRST_SAMPLES_SECONDS), self._sampled)
            condition.ready()

    async def _read_nodes(self, reader: BucketReader) -> None:
        async for batch in reader.batches():
            for entry in batch:
                self._nodes.apply(entry)

    async def _read_bandwidth(self, reader: BucketReader) -> None:
        async for batch in reader.batches():
            for entry in batch:
                for store in self._stores.values():
                    store.apply(entry)

    async def _collect(self, query: BandwidthQuery) -> None:
        reporter = Reporter(query, self._process.metrics)
        server, store = self._servers[query.url], self._stores[query.token]
        poller = Poller(query, server, reporter, inventory_rounds=self._settings.inventory_rounds)
        log.info("collecting", query=query.token, url=query.url, devices=query.devices, range=str(query.time_range))
        await self._nodes.arrived_after(0)
        known = 0
        while True:
            began, arrivals = self._process.clock.now(), self._nodes.arrivals
            matched = await self._poll(poller, store)
            before, known = known, store.count()
            # Some nodes may have no exporter: the others are complete when no more have come.
            if reporter.is_failing or (known and (known >= len(self._nodes.names.names) or known == before)):
                self._unsampled.discard(query.token)
            if not self._unsampled:
                self._sampled.set()
            newest = store.newest()
            reporter.age(None if newest is None else datetime.now(UTC) - newest)
            rest = max(0.0, self._settings.interval.total_seconds() - (self._process.clock.now() - began))
            await self._wait(rest, arrivals if matched.unmatched else None)

    async def _wait(self, seconds: float, arrivals: int | None) -> None:
        """Wait for the next round; with unmatched exporters, at most until more than ``arrivals`` nodes have come."""
        sleep = self._process.clock.sleep
        if arrivals is None:
            await sleep(seconds)
            return
        arriving = asyncio.ensure_future(self._nodes.arrived_after(arrivals))
        sleeping = asyncio.ensure_future(sleep(seconds))
        try:
            await sleep(min(seconds, SETTLE_SECONDS))
            await asyncio.wait([arriving, sleeping], return_when=asyncio.FIRST_COMPLETED)
        finally:
            arriving.cancel()
            sleeping.cancel()

    async def _poll(self, poller: Poller, store: SampleStore) -> MatchedSamples:
        """One round: poll, write newer samples, remove deleted nodes' samples."""
        matched = await poller.poll(self._nodes)
        await asyncio.gather(*(self._write(store, write) for write in store.writes(matched.found.samples)))
        await asyncio.gather(*(self._remove(removal) for removal in store.removals(self._nodes.names.names)))
        return matched

    async def _write(self, store: SampleStore, write: SampleWrite) -> None:
        async with self._write_slots:
            try:
                if not await self._put(store, write):
                    await self._refresh(store, write)
            except BusLostError:
                raise
            except (TemporaryError, BusRefusedError) as exc:
                log.warning("a sample was not stored", key=write.key, reason=str(exc))

    async def _put(self, store: SampleStore, write: SampleWrite) -> bool:
        """Write a sample; false if the key has another last sequence."""
        try:
            data = encode_bandwidth(write.sample)
            sequence = await self._session.put(BANDWIDTH, write.key, data, expected=write.expected)
        except WrongLastSequenceError:
            return False
        store.written(write, sequence)
        self._written += 1
        return True

    async def _refresh(self, store: SampleStore, write: SampleWrite) -> None:
        """Read the key again, because another collector has written it or its removal marker has expired."""
        entry = await self._session.get(BANDWIDTH, write.key)
        if entry is None:
            store.forget(write.node)
        else:
            store.apply(entry)

    async def _remove(self, removal: SampleRemoval) -> None:
        async with self._write_slots:
            try:
                await self._session.purge(BANDWIDTH, removal.key, expected=removal.expected)
            except WrongLastSequenceError:
                return  # another collector was faster
            except BusLostError:
                raise
            except (TemporaryError, BusRefusedError) as exc:
                log.warning("the sample of a deleted node was not removed", key=removal.key, reason=str(exc))
