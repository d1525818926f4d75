"""The collector's service: reads nodes from the mirror, polls for each query, writes the bucket ``bandwidth``."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import islice
from typing import Final, Self

from berth.bus.interface import (
    BucketReader,
    Bus,
    BusLostError,
    BusRefusedError,
    Session,
    WrongLastSequenceError,
)
from berth.bus.topology import BANDWIDTH, CLUSTER, COMPARED
from berth.errors import BerthError, TemporaryError
from berth.lifecycle.process import Process, run_until
from berth.lifecycle.sessions import present, serve_each_session
from berth.messages.livedata import encode_sample
from berth.observability.health import Condition
from berth.observability.logging import get_logger
from berth_metrics_collector.nodenames import MirroredNodes
from berth_metrics_collector.poller import Measurement, Poller, Query, Reporter, server_of
from berth_metrics_collector.samplestore import CHECK_SECONDS, SampleRemoval, SampleStore, SampleWrite
from berth_metrics_collector.settings import CollectorSettings

log = get_logger()

# Seconds until a collector is ready without samples: a rate needs two scrapes, and Prometheus may have no such series.
FIRST_SAMPLES_SECONDS: Final = 60.0
FIRST_NODES_SECONDS: Final = 5.0  # until it is ready without nodes: a watcher that starts beside it needs about two
SETTLE_SECONDS: Final = 1.0  # wait of a poll for more new nodes: a new cluster adds many at once
# Between two looks at what others have written to the bucket.
READ_EVERY: Final = timedelta(seconds=0.5)
CONCURRENT_WRITES: Final = 64  # writes under way: 5,000 take about a second
MOST_REMOVALS: Final = 5000  # between two checks: a flood of samples of nodes that do not exist must not hold up writes


@dataclass(frozen=True, kw_only=True)
class MeasuredQuery:
    """A query, how it is measured, and its samples. They outlast a session."""

    query: Query
    measurement: Measurement
    maximum_age: timedelta  # at which no profile uses a sample any more
    store: SampleStore

    @classmethod
    def of(cls, query: Query, measurement: Measurement, maximum_age: timedelta) -> Self:
        return cls(query=query, measurement=measurement, maximum_age=maximum_age, store=SampleStore(query.token))


async def serve(process: Process, bus: Bus, sources: Sequence[MeasuredQuery], settings: CollectorSettings) -> None:
    """Collect until the process stops. Each session has a new collector, because its store may be another one."""
    condition = process.health.condition("collector", "waiting for NATS")
    if not sources:
        log.info("no queries: no profile of the configuration runs a plugin with samples")

    async def collect(session: Session) -> None:
        collector = Collector(session, sources, process, settings)
        async with present(session, process, stats=collector.stats):
            await run_until(collector.run(condition), process.stopping, session.lost)

    await serve_each_session(
        bus,
        name="metrics-collector",
        process=process,
        condition=condition,
        serve=collect,
        only=COMPARED["collector"],
    )


class Collector:
    """One collector on one session."""

    def __init__(
        self, session: Session, sources: Sequence[MeasuredQuery], process: Process, settings: CollectorSettings
    ) -> None:
        self._session = session
        self._sources = sources
        self._process = process
        self._settings = settings
        self._nodes = MirroredNodes()
        for source in sources:
            source.store.begin()
        self._settling = {source.query.token: asyncio.Lock() for source in sources}
        self._unsampled = {*self._settling}
        self._sampled = asyncio.Event()  # the nodes of every query have samples, or its Prometheus is away
        self._under_way = 0  # writes without an answer
        self._answered = asyncio.Event()  # one of them has its answer
        self._removal_slots = asyncio.Semaphore(CONCURRENT_WRITES)
        self._written = 0

    def stats(self) -> dict[str, object]:
        """The figures that ``nats micro stats`` shows."""
        return {
            "queries": {source.query.token: server_of(source.query) for source in self._sources},
            "known": {source.query.token: len(source.store.times()) for source in self._sources},
            "written": self._written,
        }

    async def run(self, condition: Condition) -> None:
        """Read the buckets, then poll at every interval until cancelled."""
        if not self._sources:
            condition.ready("no queries: no profile runs a plugin with samples")
            await asyncio.Event().wait()
        async with AsyncExitStack() as stack, asyncio.TaskGroup() as tasks:
            condition.waiting("reading the mirror")
            cluster = await stack.enter_async_context(self._session.read_bucket(CLUSTER, filters=("node.>",)))
            tasks.create_task(self._read_nodes(cluster), name="nodes")
            filters = tuple(f"{source.query.token}.>" for source in self._sources)
            reading = self._session.read_bucket(BANDWIDTH, filters=filters, every=READ_EVERY)
            bandwidth = await stack.enter_async_context(reading)
            self._leave_out = bandwidth.leave_out
            tasks.create_task(self._read_bandwidth(bandwidth), name="bandwidth")
            await cluster.caught_up.wait()
            await bandwidth.caught_up.wait()
            for source in self._sources:
                tasks.create_task(self._collect(source), name=source.query.token)
                tasks.create_task(self._check(source.store), name=f"check {source.query.token}")
            condition.waiting("waiting for nodes in the mirror")
            with suppress(TimeoutError):
                await asyncio.wait_for(self._nodes.arrived_after(0), FIRST_NODES_SECONDS)
            if self._nodes.arrivals:
                condition.waiting("waiting for the first samples")
                await run_until(self._process.clock.sleep(FIRST_SAMPLES_SECONDS), self._sampled)
            condition.ready()

    async def _read_nodes(self, reader: BucketReader) -> None:
        async for batch in reader.batches():
            for entry in batch:
                self._nodes.apply(entry)

    async def _read_bandwidth(self, reader: BucketReader) -> None:
        async for batch in reader.batches():
            for entry in batch:
                for source in self._sources:
                    source.store.apply(entry, self._process.clock.now())

    async def _collect(self, source: MeasuredQuery) -> None:
        query, store = source.query, source.store
        reporter = Reporter(query, self._process.metrics)
        poller = Poller(source.measurement, reporter)
        log.info("collecting", query=query.token, server=server_of(query), range=str(query.time_range))
        await self._nodes.arrived_after(0)
        known = 0
        while True:
            began, arrivals = self._process.clock.now(), self._nodes.arrivals
            matched = await poller.poll(self._nodes)
            if not reporter.is_failing:
                store.measured(matched.found.samples, self._nodes.names.names)
            await self._settle(store)
            times, present = store.times(), datetime.now(UTC)
            before, known = known, len(times)
            # Some nodes may have no exporter: the others are complete when no more have come.
            if reporter.is_failing or (known and (known >= len(self._nodes.names.names) or known == before)):
                self._unsampled.discard(query.token)
            if not self._unsampled:
                self._sampled.set()
            reporter.age(present - max(times) if times else None)
            oldest = present - source.maximum_age
            reporter.fresh(sum([time >= oldest for time in times]))
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

    async def _check(self, store: SampleStore) -> None:
        """Correct what others have written, without waiting for Prometheus."""
        await self._nodes.arrived_after(0)
        while True:
            await self._process.clock.sleep(CHECK_SECONDS)
            await self._settle(store)

    async def _settle(self, store: SampleStore) -> None:
        """Write the own samples that should be stored; remove those of deleted nodes and those without an author.

        What NATS refuses is due again at the next check, and logged in one line.
        """
        async with self._settling[store.query]:
            nodes, now = self._nodes.names.names, self._process.clock.now()
            reasons = await self._write(store, store.writes(nodes, now))
            removals = islice(store.removals(nodes, now), MOST_REMOVALS)
            reasons += filter(None, await asyncio.gather(*(self._remove(store, removal) for removal in removals)))
        if reasons:
            log.warning("samples were not changed", query=store.query, number=len(reasons), reason=reasons[0])

    async def _write(self, store: SampleStore, due: Sequence[SampleWrite]) -> list[str]:
        """Write all; return why NATS refuses some."""
        # With a task for each, 5,000 cost 0.6 s of CPU in place of 0.3 (tests/bench/collector.py).
        failed: list[tuple[SampleWrite, BerthError]] = []
        open_writes, all_answered = len(due), asyncio.Event()

        def on_answer(write: SampleWrite, answer: int | BerthError) -> None:
            nonlocal open_writes
            open_writes -= 1
            self._under_way -= 1
            self._answered.set()
            if isinstance(answer, BerthError):
                failed.append((write, answer))
            else:
                store.written(write, answer, self._process.clock.now())
                self._written += 1
                if write.sample.sampled_at <= datetime.now(UTC):  # else the time of its storing counts
                    self._leave_out(answer)
            if not open_writes:
                all_answered.set()

        for write in due:
            # A semaphore took 7 % of a collector's CPU (tests/bench/collector.py).
            while self._under_way >= CONCURRENT_WRITES:
                self._answered.clear()
                await self._answered.wait()
            self._under_way += 1
            data, note = encode_sample(write.sample), partial(on_answer, write)
            self._session.put_soon(BANDWIDTH, write.key, data, expected=write.expected, on_answer=note)
        if due:
            await all_answered.wait()
        return [reason for write, error in failed if (reason := await self._failed(store, write, error))]

    async def _remove(self, store: SampleStore, removal: SampleRemoval) -> str:
        """Remove one; return why NATS refuses it."""
        async with self._removal_slots:
            try:
                await self._session.purge(BANDWIDTH, removal.key, expected=removal.expected)
            except BerthError as error:
                return await self._failed(store, removal, error)
        return ""

    async def _failed(self, store: SampleStore, change: SampleWrite | SampleRemoval, error: BerthError) -> str:
        """Return why NATS refuses a change; none if somebody else has written the key, which is read again."""
        if isinstance(error, WrongLastSequenceError):
            try:
                await self._refresh(store, change)
            except BerthError as exc:
                error = exc
            else:
                return ""
        if isinstance(error, BusLostError) or not isinstance(error, TemporaryError | BusRefusedError):
            raise error
        return str(error)

    async def _refresh(self, store: SampleStore, change: SampleWrite | SampleRemoval) -> None:
        """Read the key again: somebody else wrote it, its marker has expired, or the full bucket has dropped it."""
        entry = await self._session.get(BANDWIDTH, change.key)
        if entry is None:
            store.forget(change.node)
        else:
            store.apply(entry, self._process.clock.now())
