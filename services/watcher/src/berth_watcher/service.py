"""One leadership of the watcher: takes over, then feeds the core and does what it asks, until it has to stop.

The watcher: reads the cluster all the time; while it leads, mirrors it and releases pending pods.
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
from berth.process.configuration import profiles_of
from berth.process.lifecycle import Process
from berth.process.logging import get_logger
from berth.process.sessions import cluster_informers, kube_client, nats_bus
from berth.process.tasks import run_until
from berth_watcher.core import WatcherCore
from berth_watcher.events import BucketComplete, BucketEntryRead, DecisionReceived, LiveDataReceived, Tick
from berth_watcher.metrics import Gauges, count_decision, count_received
from berth_watcher.runner import EffectRunner, Inbox
from berth_watcher.settings import WatcherSettings, watcher_settings
from berth_watcher.store import ObjectStore
from berth_watcher.takeover import read_streams

log = get_logger()


DECISIONS_BEFORE: Final = timedelta(seconds=10)
"""How far back DECISIONS is followed from: longer than clocks of this machine and of NATS may differ. What was said
before is found by subject."""

TAKEOVER: Final = "takeover"
"""The condition that says whether a leader has taken over. It is there from the start: one that has not yet begun to
wait for its Lease is not working."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WatcherParts:
    """What lives as long as the process and serves each leadership."""

    process: Process
    client: KubeClient
    informers: Informers
    store: ObjectStore
    """Kept by the informers while this process does not lead, by the core while it does."""
    profiles: Mapping[str, Profile]
    settings: WatcherSettings


class WatcherRunner:
    """The shell of one term."""

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
        """Lead until the leadership is lost or the process stops.

        Raises:
            BerthError, or a group of them: leading is over for this reason.
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
        core = self._core()
        self._parts.informers.listen(self._inbox.put)
        async with AsyncExitStack() as stack, asyncio.TaskGroup() as tasks:
            effects = EffectRunner(
                session=self._session,
                client=self._parts.client,
                leadership=self._leadership,
                process=self._parts.process,
                inbox=self._inbox,
                tasks=tasks,
                max_writes=self._parts.settings.max_writes,
            )
            effects.run(core.begin(self._now()))
            cluster = await stack.enter_async_context(self._session.read_bucket(CLUSTER))
            decisions = await stack.enter_async_context(self._session.read_stream(DECISIONS, since=DECISIONS_BEFORE))
            tasks.create_task(self._follow_cluster(cluster), name="cluster")
            tasks.create_task(self._follow_decisions(decisions), name="decisions")
            for bucket in core.live_buckets():
                following = await stack.enter_async_context(self._session.read_bucket(bucket))
                tasks.create_task(self._follow_live(bucket, following), name=bucket)
            tasks.create_task(self._look_through(core, cluster), name="take over")
            await self._dispatch(core, effects)

    def _core(self) -> WatcherCore:
        return WatcherCore(
            term=Term(self._leadership.number),
            store=self._parts.store,
            profiles=self._parts.profiles,
            settings=self._parts.settings.attempts,
            started=(self._now(), datetime.now(UTC)),
        )

    async def _look_through(self, core: WatcherCore, cluster: BucketReader) -> None:
        """Where every pod stands, once the mirror's differences are on their way; then the queue runs."""
        self._condition.waiting("taking over: reading the bus")
        await cluster.caught_up.wait()
        subjects = {str(waiting.uid): waiting.subject("decision") for waiting in core.recovering_pods()}
        found = await read_streams(self._session, subjects, max_look_ups=self._parts.settings.max_look_ups)
        self._inbox.put(found)
        log.info("taken over", term=self._leadership.number, pending=len(subjects), in_flight=len(found.in_flight))
        self._condition.ready()

    async def _dispatch(self, core: WatcherCore, effects: EffectRunner) -> None:
        """Hand events to the core and its effects to the runner, for ever."""
        while True:
            due = core.next_wakeup()
            await self._inbox.wait(self._until(due))
            self._leadership.check()
            now = self._now()
            events = self._inbox.take(self._parts.settings.batch_size) or [Tick()]
            effects.run(core.handle_all(events, now))
            if now >= self._gauges_due:
                self._gauges_due = now + self._parts.settings.gauge_interval.total_seconds()
                self._gauges.update(core.figures(now))

    def _until(self, due: float | None) -> float:
        """Seconds until the next thing that happens by the clock alone, the gauges at the latest."""
        soonest = self._gauges_due if due is None else min(due, self._gauges_due)
        return max(0.0, soonest - self._now())

    async def _follow_cluster(self, following: BucketReader) -> None:
        complete = False
        if following.caught_up.is_set():
            complete = True
            self._inbox.put(BucketComplete(position=following.position))
        async for batch in following.batches():
            self._inbox.put_all(BucketEntryRead(entry=entry) for entry in batch)
            if not complete and following.caught_up.is_set():
                complete = True
                self._inbox.put(BucketComplete(position=following.position))

    async def _follow_decisions(self, following: StreamReader) -> None:
        metrics, is_new = self._parts.process.metrics, following.caught_up.is_set()
        async for batch in following.batches():
            for stored in batch:
                decision = _decision(stored)
                if decision is not None:
                    event = DecisionReceived(decision=decision, sequence=stored.sequence, time=stored.time)
                    self._inbox.put(event)
                    if is_new:  # what was there before this leadership was counted by the one before it
                        count_decision(metrics, decision, stored)
            count_received(metrics, len(batch))
            is_new = following.caught_up.is_set()

    async def _follow_live(self, bucket: LiveBucket, following: BucketReader) -> None:
        async for batch in following.batches():
            self._inbox.put_all(
                LiveDataReceived(bucket=bucket, key=entry.key, sequence=entry.sequence, data=entry.data)
                for entry in batch
            )


def _decision(stored: StoredMessage) -> Decision | None:
    try:
        return decode(stored.data, Decision)
    except DecodeError as error:
        log.warning("leaving out a decision", subject=stored.subject, error=str(error))
        return None


async def serve(process: Process, configuration: KubeSchedulerConfiguration) -> None:
    """Run the watcher on the clients that the settings name, until the process stops."""
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
        reading = tasks.create_task(parts.informers.run(), name="informers")
        await lead_until_stopped(
            bus,
            client,
            process,
            role="watcher",
            serve=lambda session, leadership: WatcherRunner(parts, session, leadership).run(),
            apply_when_missing=True,
        )
        reading.cancel()
