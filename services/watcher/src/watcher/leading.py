"""One leadership of the watcher: takes over, then feeds the core and does what it asks, until it has to stop."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from berth.api.errors import DecodeError, TemporaryError
from berth.api.identity import Term
from berth.api.messages import Decision, decode
from berth.bus.port import BucketFollowing, Session, Stored, StreamFollowing
from berth.bus.topology import CLUSTER, DECISIONS
from berth.cluster.livesource import LiveBucket
from berth.framework.profile import Profile
from berth.kube.client import KubeClient
from berth.service.leadership import Leadership
from berth.service.logging import get_logger
from berth.service.process import Process
from berth.service.until import run_until
from watcher.counting import Gauges, count_decision, count_heard
from watcher.dispatcher import Dispatcher
from watcher.events import BucketComplete, BucketRead, DecisionHeard, LiveDataHeard, Tick
from watcher.inbox import Inbox
from watcher.performer import Performer
from watcher.reading import Reading
from watcher.settings import WatcherSettings
from watcher.takeover import DECISION_DECODER, look_through

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
class Parts:
    """What lives as long as the process and serves each leadership."""

    process: Process
    client: KubeClient
    reading: Reading
    profiles: Mapping[str, Profile]
    settings: WatcherSettings


class Leading:
    """The shell of one term."""

    def __init__(self, parts: Parts, session: Session, leadership: Leadership) -> None:
        self._parts = parts
        self._session = session
        self._leadership = leadership
        self._now = parts.process.clock.now
        self._inbox = Inbox()
        self._figures_due = self._now()
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
            performer = Performer(
                session=self._session,
                client=self._parts.client,
                leadership=self._leadership,
                process=self._parts.process,
                inbox=self._inbox,
                tasks=tasks,
                writes_at_once=self._parts.settings.writes_at_once,
            )
            performer.perform(core.begin(self._now()))
            cluster = await stack.enter_async_context(self._session.follow_bucket(CLUSTER))
            decisions = await stack.enter_async_context(self._session.follow(DECISIONS, since=DECISIONS_BEFORE))
            tasks.create_task(self._follow_cluster(cluster), name="cluster")
            tasks.create_task(self._follow_decisions(decisions), name="decisions")
            for bucket in core.live_buckets():
                following = await stack.enter_async_context(self._session.follow_bucket(bucket))
                tasks.create_task(self._follow_live(bucket, following), name=bucket)
            tasks.create_task(self._look_through(core, cluster), name="take over")
            await self._dispatch(core, performer)

    def _core(self) -> Dispatcher:
        return Dispatcher(
            term=Term(self._leadership.number),
            store=self._parts.reading.store,
            profiles=self._parts.profiles,
            settings=self._parts.settings.attempts,
            started=(self._now(), datetime.now(UTC)),
        )

    async def _look_through(self, core: Dispatcher, cluster: BucketFollowing) -> None:
        """Where every pod stands, once the mirror's differences are on their way; then the queue runs."""
        self._condition.waiting("taking over: reading the bus")
        await cluster.caught_up.wait()
        subjects = {str(waiting.uid): waiting.subject("decision") for waiting in core.held()}
        found = await look_through(self._session, subjects, at_once=self._parts.settings.look_ups_at_once)
        self._inbox.put(found)
        log.info("taken over", term=self._leadership.number, pending=len(subjects), in_flight=len(found.in_flight))
        self._condition.ready()

    async def _dispatch(self, core: Dispatcher, performer: Performer) -> None:
        """Hand events to the core and its effects to the performer, for ever."""
        while True:
            due = core.next_wakeup()
            await self._inbox.wait(self._until(due))
            if self._leadership.expired():
                why = self._leadership.reason or "the Lease was not renewed in time"
                raise NoLongerLeadingError(f"leading as watcher {self._leadership.number}: {why}")
            now = self._now()
            events = self._inbox.take(self._parts.settings.batch) or [Tick()]
            performer.perform(core.handle_all(events, now))
            if now >= self._figures_due:
                self._figures_due = now + self._parts.settings.figures_every.total_seconds()
                self._gauges.show(core.figures(now))

    def _until(self, due: float | None) -> float:
        """Seconds until the next thing that happens by the clock alone, the gauges at the latest."""
        soonest = self._figures_due if due is None else min(due, self._figures_due)
        return max(0.0, soonest - self._now())

    async def _follow_cluster(self, following: BucketFollowing) -> None:
        complete = False
        if following.caught_up.is_set():
            complete = True
            self._inbox.put(BucketComplete(position=following.position))
        async for batch in following.batches():
            self._inbox.put_all(BucketRead(entry=entry) for entry in batch)
            if not complete and following.caught_up.is_set():
                complete = True
                self._inbox.put(BucketComplete(position=following.position))

    async def _follow_decisions(self, following: StreamFollowing) -> None:
        metrics, is_new = self._parts.process.metrics, following.caught_up.is_set()
        async for batch in following.batches():
            for stored in batch:
                decision = _decision(stored)
                if decision is not None:
                    event = DecisionHeard(decision=decision, sequence=stored.sequence, time=stored.time)
                    self._inbox.put(event)
                    if is_new:  # what was there before this leadership was counted by the one before it
                        count_decision(metrics, decision, stored)
            count_heard(metrics, len(batch))
            is_new = following.caught_up.is_set()

    async def _follow_live(self, bucket: LiveBucket, following: BucketFollowing) -> None:
        async for batch in following.batches():
            self._inbox.put_all(
                LiveDataHeard(bucket=bucket, key=entry.key, sequence=entry.sequence, data=entry.data) for entry in batch
            )


def _decision(stored: Stored) -> Decision | None:
    try:
        return decode(stored.data, DECISION_DECODER)
    except DecodeError as error:
        log.warning("leaving out a decision", subject=stored.subject, cause=str(error))
        return None
