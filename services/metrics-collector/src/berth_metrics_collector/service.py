"""The shell of the collector: reads nodes from the mirror, asks Prometheus, writes ``bandwidth``."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Final

from berth.api.errors import TemporaryError
from berth.api.livedata import BandwidthQuery, encode_bandwidth
from berth.bus.interface import BucketReader, Bus, BusLostError, Session, WrongLastSequenceError
from berth.bus.topology import BANDWIDTH, CLUSTER
from berth.process.health import Condition
from berth.process.lifecycle import Process, run_until
from berth.process.logging import get_logger
from berth.process.sessions import sessions
from berth_metrics_collector.nodenames import NamedSamples, NodeDirectory
from berth_metrics_collector.poller import Poller, Reports
from berth_metrics_collector.prometheus import Prometheus
from berth_metrics_collector.samplestore import SampleRemoval, SampleStore, SampleWrite
from berth_metrics_collector.settings import CollectorSettings

log = get_logger()

VERSION: Final = version("berth-metrics-collector")
SETTLE_SECONDS: Final = 1.0
"""Nodes come in crowds when a cluster is new: so long is waited for more of them."""
AT_ONCE: Final = 64
"""Writes on the wire at once: 5,000 take about a second."""


async def serve(process: Process, bus: Bus, questions: Sequence[BandwidthQuery], settings: CollectorSettings) -> None:
    """Collect until told to stop. Each session has a collector of its own: a store may be another one."""
    condition = process.health.condition("collector", "waiting for NATS")
    if not questions:
        log.info("nothing to ask: no profile of the configuration runs NetworkTraffic")
    servers = {query.url: Prometheus(query.url) for query in questions}
    try:
        async for session in sessions(bus, name="metrics-collector", process=process):
            collector = Collector(session, questions, servers, process, settings)
            await session.register(
                "berth-metrics-collector", identity=process.identity, version=VERSION, stats=collector.stats
            )
            try:
                await run_until(collector.run(condition), process.stopping, session.lost)
            except* TemporaryError as lost:
                log.warning("starting anew on another connection", reason=str(lost.exceptions[0]))
            condition.waiting("waiting for NATS")
    finally:
        for server in servers.values():
            server.close()


class Collector:
    """One collector on one session."""

    def __init__(
        self,
        session: Session,
        questions: Sequence[BandwidthQuery],
        servers: dict[str, Prometheus],
        process: Process,
        settings: CollectorSettings,
    ) -> None:
        self._session = session
        self._questions = questions
        self._servers = servers
        self._process = process
        self._settings = settings
        self._nodes = NodeDirectory()
        self._books = {query.token: SampleStore(query.token) for query in questions}
        self._at_once = asyncio.Semaphore(AT_ONCE)
        self._written = 0

    def stats(self) -> dict[str, object]:
        """What `nats micro stats` shows."""
        known = {token: book.known() for token, book in self._books.items()}
        return {
            "questions": {query.token: query.url for query in self._questions},
            "known": known,
            "written": self._written,
        }

    async def run(self, condition: Condition) -> None:
        """Read what stands there, then ask at every interval until cancelled."""
        if not self._questions:
            condition.ready("nothing to ask: no profile runs NetworkTraffic")
            await asyncio.Event().wait()
        async with AsyncExitStack() as stack, asyncio.TaskGroup() as tasks:
            condition.waiting("reading the mirror")
            cluster = await stack.enter_async_context(self._session.read_bucket(CLUSTER, filters=("node.>",)))
            tasks.create_task(self._follow_nodes(cluster), name="nodes")
            own = tuple(f"{token}.>" for token in self._books)
            bandwidth = await stack.enter_async_context(self._session.read_bucket(BANDWIDTH, filters=own))
            tasks.create_task(self._follow_bandwidth(bandwidth), name="bandwidth")
            await cluster.caught_up.wait()
            await bandwidth.caught_up.wait()
            for query in self._questions:
                tasks.create_task(self._collect(query), name=query.token)
            condition.ready()

    async def _follow_nodes(self, following: BucketReader) -> None:
        async for batch in following.batches():
            for entry in batch:
                self._nodes.take(entry)

    async def _follow_bandwidth(self, following: BucketReader) -> None:
        async for batch in following.batches():
            for entry in batch:
                for book in self._books.values():
                    book.read(entry)

    async def _collect(self, query: BandwidthQuery) -> None:
        reports = Reports(query, self._process.metrics)
        rounds = Poller(query, self._servers[query.url], reports, inventory_rounds=self._settings.inventory_rounds)
        log.info("collecting", query=query.token, url=query.url, devices=query.devices, range=str(query.time_range))
        await self._nodes.arrived_after(0)
        while True:
            began, arrivals = self._process.clock.now(), self._nodes.arrivals
            named = await self._one_round(rounds, self._books[query.token])
            self._report_age(reports, self._books[query.token])
            rest = max(0.0, self._settings.interval.total_seconds() - (self._process.clock.now() - began))
            await self._rest(rest, arrivals if named.strangers else None)

    async def _rest(self, seconds: float, arrivals: int | None) -> None:
        """Until the next round; sooner when exporters wait for their nodes (``arrivals`` so far) and one comes."""
        sleep = self._process.clock.sleep
        if arrivals is None:
            await sleep(seconds)
            return
        waiting = asyncio.ensure_future(self._nodes.arrived_after(arrivals))
        sleeping = asyncio.ensure_future(sleep(seconds))
        try:
            await sleep(min(seconds, SETTLE_SECONDS))
            await asyncio.wait([waiting, sleeping], return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()
            sleeping.cancel()

    async def _one_round(self, rounds: Poller, book: SampleStore) -> NamedSamples:
        named = await rounds.ask(self._nodes.directory)
        await asyncio.gather(*(self._write(book, write) for write in book.due(named.samples)))
        await asyncio.gather(*(self._remove(removal) for removal in book.gone(self._nodes.directory.names)))
        return named

    async def _write(self, book: SampleStore, write: SampleWrite) -> None:
        async with self._at_once:
            try:
                data = encode_bandwidth(write.sample)
                sequence = await self._session.put(BANDWIDTH, write.key, data, expected=write.expected)
            except WrongLastSequenceError:
                await self._look_up(book, write)
                return
            except BusLostError:
                raise
            except TemporaryError as exc:
                log.warning("a sample was not stored, the next one may be", key=write.key, reason=str(exc))
                return
            book.written(write, sequence)
            self._written += 1

    async def _look_up(self, book: SampleStore, write: SampleWrite) -> None:
        """Another collector was faster, or the marker of a removed key has expired without a word: see what stands."""
        entry = await self._session.get(BANDWIDTH, write.key)
        if entry is None:
            book.forget(write.node)
        else:
            book.read(entry)

    async def _remove(self, removal: SampleRemoval) -> None:
        async with self._at_once:
            try:
                await self._session.purge(BANDWIDTH, removal.key, expected=removal.expected)
            except WrongLastSequenceError:
                return  # another collector was faster
            except BusLostError:
                raise
            except TemporaryError as exc:
                log.warning("a sample of a node that is gone was not removed", key=removal.key, reason=str(exc))

    def _report_age(self, reports: Reports, book: SampleStore) -> None:
        newest = book.newest()
        reports.age(None if newest is None else datetime.now(UTC) - newest)
