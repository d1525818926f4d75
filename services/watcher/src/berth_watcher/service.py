"""The watcher's eyes on the API server: a reflector for each kind, all the time, also in standby.

One reflector shows all pods, bound and pending: with two of opposite field selectors a pod that moves from one to the
other would be in neither or in both for a moment, and each needs its own LIST to be consistent.


One leadership of the watcher: takes over, then feeds the core and does what it asks, until it has to stop.

The watcher: reads the cluster all the time; while it leads, mirrors it and releases pending pods.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from importlib.metadata import version
from typing import Any, Final

from berth.api.config.configuration import KubeSchedulerConfiguration
from berth.api.errors import BerthError, DecodeError, TemporaryError
from berth.api.kinds import WATCHED_KINDS, Kind
from berth.api.livedata import LiveBucket
from berth.api.messages import Decision, decode
from berth.api.subjects import Term
from berth.bus.interface import BucketReader, Bus, Session, StoredMessage, StreamReader
from berth.bus.topology import CLUSTER, DECISIONS
from berth.framework.profile import Profile
from berth.kube.client import KubeClient
from berth.kube.reflector import Reflector
from berth.kube.watch import Listed, ReflectorEvent
from berth.leader.session import LeaderSession, NotLeadingError, lead
from berth.process.configuration import profiles_of
from berth.process.lifecycle import Process
from berth.process.logging import get_logger
from berth.process.sessions import kube_client, nats_bus, sessions
from berth.process.tasks import run_until
from berth_watcher.core import WatcherCore
from berth_watcher.events import BucketComplete, BucketEntryRead, DecisionReceived, LiveDataReceived, Tick
from berth_watcher.metrics import Gauges, count_decision, count_received
from berth_watcher.runner import EffectRunner, Inbox
from berth_watcher.settings import WatcherSettings, watcher_settings
from berth_watcher.store import ObjectStore
from berth_watcher.takeover import read_streams

Listener = Callable[[Any], None]


class _Round:
    """One LIST of every kind and what follows it."""

    def __init__(self) -> None:
        self.listed = {kind.name: asyncio.Event() for kind in WATCHED_KINDS}
        self.over = asyncio.Event()

    async def complete(self) -> None:
        for listed in self.listed.values():
            await listed.wait()


class WatcherInformers:
    """Keeps the store, or hands what the reflectors show to whoever leads. ``run`` it in a task of its own."""

    def __init__(self, client: KubeClient, process: Process) -> None:
        self._client = client
        self._metrics = process.metrics
        for kind in WATCHED_KINDS:
            self._metrics.count("berth_relists_total", 0, kind=kind.name)
        self._condition = process.health.condition("cluster", "listing the cluster")
        self._listener: Listener | None = None
        self._round = _Round()
        self.store = ObjectStore(kind.name for kind in WATCHED_KINDS)
        """Right while nobody listens, and for the one who has just begun to."""

    async def run(self) -> None:
        """Read until cancelled; from the beginning each time that it is asked for."""
        while True:
            this = self._round
            async with asyncio.TaskGroup() as tasks:
                reading = [
                    tasks.create_task(self._reflect(kind, this), name=f"reflect {kind.name}") for kind in WATCHED_KINDS
                ]
                await self._see_through(this)
                for task in reading:
                    task.cancel()

    async def list_anew(self) -> None:
        """Wait until every kind has been listed anew: what a standby has seen may be half a minute old."""
        former, self._round = self._round, _Round()
        self._listener = None
        former.over.set()
        await self._round.complete()

    def listen(self, listener: Listener | None) -> None:
        """From now on everything goes to the listener, who keeps the store from then on; ``None``: nobody leads."""
        self._listener = listener

    async def _see_through(self, this: _Round) -> None:
        """Say when a round is complete; it may be over before that."""
        await run_until(this.complete(), this.over)
        if not this.over.is_set():
            self._condition.ready()
        await this.over.wait()

    async def _reflect(self, kind: Kind[Any], this: _Round) -> None:
        await Reflector(self._client, kind, partial(self._take, this)).run()

    def _take(self, this: _Round, event: ReflectorEvent[Any]) -> None:
        if this is not self._round:
            return
        if self._listener is not None:
            self._listener(event)
        else:
            self.store.apply(event)
        if isinstance(event, Listed):
            if this.listed[event.kind].is_set():
                self._metrics.count("berth_relists_total", kind=event.kind)
            this.listed[event.kind].set()


log = get_logger()


DECISIONS_BEFORE: Final = timedelta(seconds=10)
"""How far back DECISIONS is followed from: longer than clocks of this machine and of NATS may differ. What was said
before is found by subject."""

TAKEOVER: Final = "takeover"
"""The condition that says whether a leader has taken over. It is there from the start: one that has not yet begun to
wait for its Lease is not working."""


class NoLongerLeadingError(TemporaryError):
    """The Lease was not renewed in time: somebody else may be leading."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WatcherParts:
    """What lives as long as the process and serves each leadership."""

    process: Process
    client: KubeClient
    reading: WatcherInformers
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
            self._parts.reading.listen(None)
            self._condition.standby("not leading")
            self._gauges.clear()

    async def _lead(self) -> None:
        self._condition.waiting("taking over: listing the cluster")
        await self._parts.reading.list_anew()
        core = self._core()
        self._parts.reading.listen(self._inbox.put)
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
            store=self._parts.reading.store,
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
            if self._leadership.expired():
                why = self._leadership.reason or "the Lease was not renewed in time"
                raise NoLongerLeadingError(f"leading as watcher {self._leadership.number}: {why}")
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


AGAIN_SECONDS: Final = 1.0
"""Between a leadership that ended in an error and the next try."""


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
    parts = WatcherParts(
        process=process,
        client=client,
        reading=WatcherInformers(client, process),
        profiles=profiles_of(configuration, process.settings.numbers.plugin_deadline),
        settings=settings,
    )
    async with asyncio.TaskGroup() as tasks:
        reading = tasks.create_task(parts.reading.run(), name="reading")
        await _lead_again_and_again(bus, parts)
        reading.cancel()


async def _lead_again_and_again(bus: Bus, parts: WatcherParts) -> None:
    process = parts.process
    async for session in sessions(bus, name="watcher", process=process, apply_when_missing=True):
        try:
            await _lead_once(session, parts)
        except* NotLeadingError as errors:
            log.info("not leading", cause=_causes(errors))
        except* BerthError as errors:
            log.warning("starting anew", cause=_causes(errors))
            await process.sleep(AGAIN_SECONDS)


async def _lead_once(session: Session, parts: WatcherParts) -> None:
    process = parts.process
    await session.register("berth-watcher", identity=process.identity, version=version("berth-watcher"), stats=dict)
    async with lead(
        role="watcher", session=session, client=parts.client, settings=process.settings, process=process
    ) as leadership:
        await WatcherRunner(parts, session, leadership).run()


def _causes(errors: BaseExceptionGroup[BerthError]) -> str:
    """The texts of all errors, however deep they lie in the group."""
    parts = (_causes(each) if isinstance(each, BaseExceptionGroup) else str(each) for each in errors.exceptions)
    return "; ".join(dict.fromkeys(parts))
