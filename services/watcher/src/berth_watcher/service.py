"""The watcher process: keeps the objects of the cluster current all the time and, while it leads, runs the core.

A term begins with the takeover (docs/protocol.md, 3): LIST every kind, read the bucket ``cluster`` and write the
differences, then find each pod's messages on the bus.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from berth.api.config.configuration import KubeSchedulerConfiguration
from berth.api.errors import DecodeError
from berth.api.kinds import WATCHED_KINDS
from berth.api.livedata import LiveBucket
from berth.api.messages import Decision, decode
from berth.api.subjects import Term
from berth.bus.interface import BucketReader, Bus, Session, StoredMessage, StreamReader
from berth.bus.topology import CLUSTER, DECISIONS
from berth.framework.profile import Profile
from berth.kube.client import KubeClient
from berth.kube.informers import Informers
from berth.leader.loop import lead_until_stopped
from berth.leader.session import LeaderSession
from berth.process.clients import cluster_informers, kube_client, nats_bus
from berth.process.configuration import profiles_of
from berth.process.lifecycle import Process, run_until
from berth.process.logging import get_logger
from berth_watcher.core import WatcherCore
from berth_watcher.events import BucketComplete, BucketEntryRead, DecisionReceived, LiveDataReceived, Tick
from berth_watcher.metrics import Gauges, count_decision, count_received
from berth_watcher.queue import Timestamp
from berth_watcher.runner import EffectRunner, Inbox
from berth_watcher.settings import WatcherSettings, watcher_settings
from berth_watcher.store import ObjectStore
from berth_watcher.takeover import read_streams

log = get_logger()

DECISIONS_BEFORE: Final = timedelta(seconds=10)
"""How far back DECISIONS is read from at a takeover: more than the clocks of this machine and of NATS may differ.
Earlier Decisions are found by the subjects of the pods."""

TAKEOVER: Final = "takeover"
"""The health condition of a leader that has taken over. It is there from the start, so that a process which does not
wait for its Lease yet is not ready."""


async def serve(process: Process, configuration: KubeSchedulerConfiguration) -> None:
    """Run the watcher until the process stops, on clients made from the settings."""
    settings = watcher_settings(process.settings, configuration)
    async with kube_client(process.settings, name="watcher", meter=process.metrics) as client:
        await serve_on(nats_bus(process.settings), client, process, configuration, settings)


async def serve_on(
    bus: Bus, client: KubeClient, process: Process, configuration: KubeSchedulerConfiguration, settings: WatcherSettings
) -> None:
    """The same on given clients."""
    process.health.condition("leadership", "waiting to lead as watcher")
    process.health.condition(TAKEOVER).standby("not leading")
    store = ObjectStore(kind.name for kind in WATCHED_KINDS)
    parts = WatcherParts(
        process=process,
        client=client,
        informers=cluster_informers(client, store.apply, process),
        store=store,
        profiles=profiles_of(configuration, process.settings.numbers.plugin_deadline),
        settings=settings,
    )
    async with asyncio.TaskGroup() as tasks:
        informers = tasks.create_task(parts.informers.run(), name="informers")
        await lead_until_stopped(
            bus,
            client,
            process,
            role="watcher",
            serve=lambda session, leadership: WatcherTerm(parts, session, leadership).run(),
            apply_when_missing=True,
        )
        informers.cancel()


@dataclass(frozen=True, slots=True, kw_only=True)
class WatcherParts:
    """What lives as long as the process and is used in every term."""

    process: Process
    client: KubeClient
    informers: Informers
    store: ObjectStore
    """Written by the informers in standby, and by the core during a term."""
    profiles: Mapping[str, Profile]
    settings: WatcherSettings


class WatcherTerm:
    """One term: takes over, then passes events to the core and its effects to the runner."""

    def __init__(self, parts: WatcherParts, session: Session, leadership: LeaderSession) -> None:
        self._parts = parts
        self._session = session
        self._leadership = leadership
        self._now = parts.process.clock.now
        self._inbox = Inbox()
        self._gauges_due = self._now()
        self._gauges = Gauges(parts.process.metrics)
        self._condition = parts.process.health.condition(TAKEOVER)

    async def run(self) -> None:
        """Lead until the leadership or the session is lost, or the process stops.

        Raises:
            BerthError, or a group of them: why the term has ended.
        """
        try:
            await run_until(self._lead(), self._leadership.lost, self._session.lost, self._parts.process.stopping)
        finally:
            self._parts.informers.listen(self._parts.store.apply)
            self._condition.standby("not leading")
            self._gauges.clear()

    async def _lead(self) -> None:
        self._condition.waiting("taking over: listing the cluster")
        await self._parts.informers.list_anew()
        core = WatcherCore(
            term=Term(self._leadership.number),
            store=self._parts.store,
            profiles=self._parts.profiles,
            settings=self._parts.settings.attempts,
            started=Timestamp(monotonic=self._now(), wall=datetime.now(UTC)),
        )
        self._parts.informers.listen(self._inbox.put)
        async with AsyncExitStack() as stack, asyncio.TaskGroup() as tasks:
            runner = EffectRunner(
                session=self._session,
                client=self._parts.client,
                leadership=self._leadership,
                process=self._parts.process,
                inbox=self._inbox,
                tasks=tasks,
                max_writes=self._parts.settings.max_writes,
            )
            runner.run(core.begin(self._now()))
            cluster = await stack.enter_async_context(self._session.read_bucket(CLUSTER))
            decisions = await stack.enter_async_context(self._session.read_stream(DECISIONS, since=DECISIONS_BEFORE))
            tasks.create_task(self._read_cluster(cluster), name="cluster")
            tasks.create_task(self._read_decisions(decisions), name="decisions")
            for bucket in core.live_buckets():
                reader = await stack.enter_async_context(self._session.read_bucket(bucket))
                tasks.create_task(self._read_live_data(bucket, reader), name=bucket)
            tasks.create_task(self._take_over(core, cluster), name="take over")
            await self._run_core(core, runner)

    async def _take_over(self, core: WatcherCore, cluster: BucketReader) -> None:
        """Find the pods' messages once the bucket ``cluster`` has been read. Then the queue runs."""
        self._condition.waiting("taking over: reading the bus")
        await cluster.caught_up.wait()
        subjects = {str(queued.uid): queued.subject("decision") for queued in core.recovering_pods()}
        streams = await read_streams(self._session, subjects, max_look_ups=self._parts.settings.max_look_ups)
        self._inbox.put(streams)
        log.info("taken over", term=self._leadership.number, pending=len(subjects), in_flight=len(streams.in_flight))
        self._condition.ready()

    async def _run_core(self, core: WatcherCore, runner: EffectRunner) -> None:
        while True:
            await self._inbox.wait(self._seconds_until(core.next_wakeup()))
            self._leadership.check()
            now = self._now()
            events = self._inbox.take(self._parts.settings.batch_size) or [Tick()]
            runner.run(core.handle(events, now))
            if now >= self._gauges_due:
                self._gauges_due = now + self._parts.settings.gauge_interval.total_seconds()
                self._gauges.update(core.figures(now))

    def _seconds_until(self, due: float | None) -> float:
        """Until something is due in the core, or the gauges are."""
        soonest = self._gauges_due if due is None else min(due, self._gauges_due)
        return max(0.0, soonest - self._now())

    async def _read_cluster(self, reader: BucketReader) -> None:
        complete = False
        if reader.caught_up.is_set():
            complete = True
            self._inbox.put(BucketComplete(position=reader.position))
        async for batch in reader.batches():
            self._inbox.put_all(BucketEntryRead(entry=entry) for entry in batch)
            if not complete and reader.caught_up.is_set():
                complete = True
                self._inbox.put(BucketComplete(position=reader.position))

    async def _read_decisions(self, reader: StreamReader) -> None:
        metrics, is_new = self._parts.process.metrics, reader.caught_up.is_set()
        async for batch in reader.batches():
            for stored in batch:
                decision = _decoded(stored)
                if decision is not None:
                    self._inbox.put(DecisionReceived(decision=decision, sequence=stored.sequence, time=stored.time))
                    if is_new:  # Decisions from before this term were counted by the former leader
                        count_decision(metrics, decision, stored)
            count_received(metrics, len(batch))
            is_new = reader.caught_up.is_set()

    async def _read_live_data(self, bucket: LiveBucket, reader: BucketReader) -> None:
        async for batch in reader.batches():
            self._inbox.put_all(
                LiveDataReceived(bucket=bucket, key=entry.key, sequence=entry.sequence, data=entry.data)
                for entry in batch
            )


def _decoded(stored: StoredMessage) -> Decision | None:
    try:
        return decode(stored.data, Decision)
    except DecodeError as error:
        log.warning("leaving out a decision", subject=stored.subject, error=str(error))
        return None
