"""One leadership of the watcher: takes over, feeds events to the core, and carries out its effects.

A term begins with the takeover (docs/protocol.md, 3): LIST every kind, read the bucket ``cluster`` and write the
differences, and find each pod's messages on the bus. The queue runs when every difference is stored.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec

from berth.bus.interface import (
    BucketReader,
    Endpoint,
    Entry,
    Session,
    StoredMessage,
    StreamReader,
)
from berth.bus.orphans import CHECK_SECONDS, OrphanCheck
from berth.bus.topology import CLUSTER, CONTROL, DECISIONS, DRAIN_KEY, PENDING, SCORER
from berth.errors import DecodeError
from berth.framework.profile import Profile
from berth.kube.client import KubeClient
from berth.kube.informers import Informers
from berth.leader.session import LeaderSession
from berth.lifecycle.process import Process, run_until
from berth.lifecycle.sessions import Refusals
from berth.messages.attempts import DecisionSummary, decode
from berth.messages.livedata import LiveBucket
from berth.messages.queue import POD, QUEUE, RETRY, QueueAnswer, decode_page_request, decode_pod_request
from berth.messages.subjects import Term
from berth.observability.health import Progress
from berth.observability.logging import get_logger
from berth_watcher.answers import RETRIED_FROM
from berth_watcher.core import WatcherCore
from berth_watcher.effects import EffectRunner, Inbox
from berth_watcher.events import (
    BucketComplete,
    BucketEntryRead,
    DecisionReceived,
    DrainRead,
    LiveDataReceived,
    RetryRequested,
)
from berth_watcher.metrics import Figures, Gauges, count_decision, count_received, stats_of
from berth_watcher.queue import Timestamp
from berth_watcher.settings import WatcherSettings
from berth_watcher.store import ObjectStore
from berth_watcher.takeover import read_streams

log = get_logger()

DECISIONS_BEFORE: Final = timedelta(seconds=10)
"""How far back DECISIONS is read from at a takeover: more than the clocks of this machine and of NATS may differ.
Earlier Decisions are found by the subjects of the pods."""
TAKEOVER: Final = "takeover"
"""The health condition of a leader that has taken over. It is there from the start, so that a process which does not
wait for its Lease yet is not ready."""
PROGRESS_SECONDS: Final = 1.0
"""Between two checks whether anything is done about the pods that wait."""
VERIFIED: Final = 3
"""Every so many checks for orphans everything that berth declares on the bus is looked for: a request for each."""
GATHER_SECONDS: Final = 0.02
"""How long events are gathered while pods wait for a slot of the window: a call of the core costs 30 µs whether it has
one event or twenty, and pods that are published together stay together in scorer and binder (ADR 33). A slot that is
filled so much later delays no pod. Otherwise every event is handled at once."""
SHARE_OF_EVENTS: Final = 2 / 3
"""Of a slice. The rest is for the pods that events may help, however many events there are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WatcherParts:
    """What lives as long as the process and is used in every term."""

    process: Process
    client: KubeClient
    informers: Informers
    store: ObjectStore
    """Written by the informers in standby, and by the core during a term."""
    progress: Progress
    profiles: Mapping[str, Profile]
    settings: WatcherSettings
    stats: dict[str, object] = field(default_factory=dict)
    """What NATS's service protocol shows of this watcher; empty while it does not lead."""
    answers: dict[str, Answer] = field(default_factory=dict)
    """What the leader answers to people, by endpoint; empty while it does not lead."""


Answer = Callable[[bytes], QueueAnswer]


def endpoints(parts: WatcherParts) -> list[Endpoint]:
    """What this watcher answers beside its statistics, while it leads."""

    def answering(name: str) -> Callable[[bytes], QueueAnswer]:
        def answer(request: bytes) -> QueueAnswer:
            if name not in parts.answers:
                return QueueAnswer(error="this watcher does not lead: ask the one that does")
            try:
                return parts.answers[name](request)
            except DecodeError as error:
                return QueueAnswer(error=str(error))

        return answer

    def error_of(answer: QueueAnswer) -> str:
        return answer.error

    return [
        Endpoint(name=name, answer=answering(name), for_admins=name == RETRY, error_of=error_of)
        for name in (QUEUE, POD, RETRY)
    ]


class WatcherRunner:
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
            self._inbox.store_rest(self._parts.store)
            self._parts.informers.listen(self._parts.store.apply)
            self._condition.standby("not leading")
            self._gauges.clear()
            self._parts.stats.clear()
            self._parts.answers.clear()

    async def _lead(self) -> None:
        self._condition.waiting("taking over: listing the cluster")
        await self._parts.informers.refresh()
        core = WatcherCore(
            term=Term(self._leadership.number),
            store=self._parts.store,
            profiles=self._parts.profiles,
            settings=self._parts.settings.attempts,
            started=Timestamp(monotonic=self._now(), wall=datetime.now(UTC)),
            max_writes=self._parts.settings.max_writes,
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
            )
            for effects in core.begin(self._now()):
                runner.run(effects)
                await asyncio.sleep(0)  # the Lease is renewed in between
                self._leadership.check()
            control = await stack.enter_async_context(self._session.read_bucket(CONTROL, filters=(DRAIN_KEY,)))
            tasks.create_task(self._read_drain(control), name="drain")
            cluster = await stack.enter_async_context(self._session.read_bucket(CLUSTER))
            runner.on_own_entry = cluster.leave_out
            decisions = await stack.enter_async_context(self._session.read_stream(DECISIONS, since=DECISIONS_BEFORE))
            tasks.create_task(self._read_cluster(cluster), name="cluster")
            tasks.create_task(self._read_decisions(decisions), name="decisions")
            for bucket in core.live_buckets():
                reader = await stack.enter_async_context(self._session.read_bucket(bucket))
                tasks.create_task(self._read_live_data(bucket, reader), name=bucket)
            tasks.create_task(self._take_over(core, cluster), name="take over")
            tasks.create_task(self._check_progress(core), name="progress")
            tasks.create_task(self._check_streams(), name="streams")
            await self._run_core(core, runner)

    async def _take_over(self, core: WatcherCore, cluster: BucketReader) -> None:
        """Find the pods' messages once the bucket ``cluster`` has been read."""
        self._condition.waiting("taking over: reading the bus")
        await cluster.caught_up.wait()
        subjects = {str(queued.uid): queued.subject("decision") for queued in core.recovering_pods()}
        streams = await read_streams(self._session, subjects)
        self._condition.waiting("taking over: writing the mirror")
        if (drain := await self._session.get(CONTROL, DRAIN_KEY)) is not None:  # before any pod is published
            self._inbox.put(_drain_read(drain))
        self._inbox.put(streams)
        self._parts.answers.update(self._answers(core))
        log.info("read the bus", term=self._leadership.number, pending=len(subjects), in_flight=len(streams.in_flight))

    async def _run_core(self, core: WatcherCore, runner: EffectRunner) -> None:
        taken_over = False
        while True:
            due = core.next_wakeup()
            if taken_over and core.waiting and not self._inbox and (due is None or due > self._now()):
                await asyncio.sleep(GATHER_SECONDS)
            await self._inbox.wait(self._seconds_until(due))
            self._leadership.check()
            now = self._now()
            seconds = self._parts.settings.slice.total_seconds()
            events = self._inbox.take(self._parts.settings.batch_size, self._until(now + seconds * SHARE_OF_EVENTS))
            runner.run(core.handle(events, now, self._until(now + seconds)))
            if not taken_over and core.is_queue_running:
                taken_over = True
                log.info("taken over", term=self._leadership.number)
                self._condition.ready()
            if now >= self._gauges_due:
                self._gauges_due = now + self._parts.settings.gauge_interval.total_seconds()
                self._show(core.figures(now))

    async def _check_progress(self, core: WatcherCore) -> None:
        """Give up the Lease when pods wait and nothing is done about any: another watcher may go on."""
        progress = self._parts.progress
        progress.begin()
        while True:
            await self._parts.process.clock.sleep(PROGRESS_SECONDS)
            reason = progress.check(lambda: f"{core.waiting} pods wait", waiting=core.waiting, begun=core.looked_at)
            if reason is not None:
                self._parts.process.metrics.count("berth_stalls_total", role="watcher")
                self._leadership.end(reason)

    async def _check_streams(self) -> None:
        """Look for orphans of PENDING and for what is missing, in turn: the first takes the consumer away meanwhile."""
        orphans = OrphanCheck(self._session, PENDING, SCORER)
        refusals = Refusals("cannot look after the streams")
        for number in itertools.count(1):
            await self._parts.process.clock.sleep(CHECK_SECONDS)
            with refusals.logged_once():
                await self._check_for_orphans(orphans)
            if number % VERIFIED == 0:
                with refusals.logged_once():  # what is missing ends the leadership: the next session makes it anew
                    await self._session.verify()

    async def _check_for_orphans(self, check: OrphanCheck) -> None:
        """Make the consumer of PENDING anew when it does not deliver what PENDING holds, or is missing."""
        if problem := await check.find():
            log.warning("making the consumer of PENDING anew: everything is delivered again", reason=problem)
            self._leadership.check()
            self._parts.process.metrics.count("berth_orphans_found_total", stream=PENDING)
            await self._session.delete_consumer(PENDING, SCORER)
            await self._session.create_consumer(PENDING, SCORER)

    def _show(self, figures: Figures) -> None:
        self._gauges.update(figures)
        self._parts.stats.clear()
        self._parts.stats.update(stats_of(figures))

    def _until(self, deadline: float) -> Callable[[], bool]:
        return lambda: self._now() < deadline

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
        peers = self._parts.process.peers
        async for batch in reader.batches():
            for stored in batch:
                decision = _decoded(stored)
                if decision is not None:
                    self._inbox.put(DecisionReceived(decision=decision, sequence=stored.sequence, time=stored.time))
                    peers.read("binder", decision.config, decision.profile, self._now())
                    if is_new:  # Decisions from before this term were counted by the former leader
                        count_decision(metrics, decision, stored)
            count_received(metrics, len(batch))
            is_new = reader.caught_up.is_set()

    async def _read_drain(self, reader: BucketReader) -> None:
        async for batch in reader.batches():
            self._inbox.put_all(map(_drain_read, batch))

    def _answers(self, core: WatcherCore) -> Mapping[str, Answer]:
        def retry(request: bytes) -> QueueAnswer:
            asked = decode_pod_request(request)
            queued, answer = core.answers.find(asked), core.answers.pod(asked, self._now())
            if queued is None or queued.stage not in RETRIED_FROM:
                return answer
            log.info("a person has the pod tried again", pod=queued.pod.key, uid=queued.uid)
            self._inbox.put(RetryRequested(uid=queued.uid))
            return msgspec.structs.replace(answer, retried=True)

        return {
            QUEUE: lambda request: core.answers.page(decode_page_request(request), self._now()),
            POD: lambda request: core.answers.pod(decode_pod_request(request), self._now()),
            RETRY: retry,
        }

    async def _read_live_data(self, bucket: LiveBucket, reader: BucketReader) -> None:
        async for batch in reader.batches():
            self._inbox.put_all(
                LiveDataReceived(bucket=bucket, key=entry.key, sequence=entry.sequence, data=entry.data)
                for entry in batch
            )


def _drain_read(entry: Entry) -> DrainRead:
    return DrainRead(is_draining=entry.data is not None, sequence=entry.sequence)


def _decoded(stored: StoredMessage) -> DecisionSummary | None:
    try:
        return decode(stored.data, DecisionSummary)
    except DecodeError as error:
        log.warning("leaving out a decision", subject=stored.subject, reason=str(error))
        return None
