"""The watcher's service: informers run as long as the process, the core only while it leads.

A term begins with the takeover (docs/protocol.md, 3): LIST every kind, read the bucket ``cluster`` and write the
differences, and find each pod's messages on the bus. The queue runs once every difference is stored.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec

from berth.api.config.configuration import KubeSchedulerConfiguration
from berth.api.kinds import POD as POD_KIND
from berth.api.kinds import WATCHED_KINDS
from berth.api.pod import Pod
from berth.bus.interface import (
    MESSAGE_ID,
    BucketReader,
    Bus,
    Endpoint,
    Entry,
    Session,
    StoredMessage,
    StreamReader,
)
from berth.bus.topology import CLUSTER, CONTROL, DECISIONS, DRAIN_KEY, PENDING, SCORER
from berth.errors import DecodeError
from berth.framework.profile import Profile
from berth.kube.client import KubeClient
from berth.kube.informers import Informers
from berth.leader.checks import LeaderChecks, OrphanCheck
from berth.leader.clients import cluster_informers
from berth.leader.loop import lead_until_stopped
from berth.leader.otherschedulers import OtherSchedulers
from berth.leader.samepods import leases_of_others
from berth.leader.session import LeaderSession
from berth.lifecycle.coreloop import CoreLoop, Inbox
from berth.lifecycle.peers import GROUPS
from berth.lifecycle.process import Process, run_until
from berth.lifecycle.sessions import STORE, Refusals
from berth.messages.attempts import DecisionSummary
from berth.messages.encoding import decode
from berth.messages.livedata import LiveBucket
from berth.messages.queue import POD, QUEUE, RETRY, QueueAnswer, decode_page_request, decode_pod_request
from berth.messages.subjects import Attempt, Term, all_of
from berth.observability.health import Progress
from berth.observability.logging import get_logger
from berth.observability.metrics import Meter, result_of
from berth.profiles.configuration import profiles_of
from berth_watcher.core import WatcherCore
from berth_watcher.effects import TAKEOVER, EffectRunner
from berth_watcher.events import (
    REFLECTOR_EVENTS,
    BucketComplete,
    BucketEntryRead,
    DecisionReceived,
    DrainRead,
    Event,
    LiveDataComplete,
    LiveDataReceived,
    RetryRequested,
)
from berth_watcher.metrics import Gauges, stats_of
from berth_watcher.queue.answers import RETRIED_FROM
from berth_watcher.queue.queuedpod import Timestamp, waits
from berth_watcher.settings import WatcherSettings
from berth_watcher.store import ObjectStore
from berth_watcher.takeover import read_streams

log = get_logger()

# A takeover reads DECISIONS from this long ago, more than the clocks of this machine and of NATS may differ. Earlier
# Decisions are found by the subjects of the pods.
DECISIONS_BEFORE: Final = timedelta(seconds=10)


END_SECONDS: Final = 5.0  # between two searches for messages of PENDING that no pod needs


@dataclass(frozen=True, slots=True, kw_only=True)
class WatcherParts:
    process: Process
    client: KubeClient
    informers: Informers
    store: ObjectStore  # written by the informers in standby, by the core in a term
    progress: Progress
    profiles: Mapping[str, Profile]
    settings: WatcherSettings
    stats: dict[str, object] = field(default_factory=dict)  # shown by `nats micro stats`; empty while it does not lead
    answers: dict[str, Answer] = field(default_factory=dict)  # by endpoint; empty while it does not lead


Answer = Callable[[bytes], QueueAnswer]


def endpoints(parts: WatcherParts) -> list[Endpoint]:
    """The endpoints of this watcher beside its statistics, which answer while it leads."""

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


async def serve(
    bus: Bus, client: KubeClient, process: Process, configuration: KubeSchedulerConfiguration, settings: WatcherSettings
) -> None:
    process.health.condition("leadership", "waiting to lead as watcher")
    process.health.condition(TAKEOVER).standby("not leading")
    store = ObjectStore(kind.name for kind in WATCHED_KINDS)
    parts = WatcherParts(
        process=process,
        client=client,
        informers=cluster_informers(client, store.apply, process, configuration.extenders),
        store=store,
        progress=Progress(process.health, process.clock, limit=settings.stalled),
        profiles=profiles_of(configuration, process.settings.numbers.plugin_deadline),
        settings=settings,
    )
    async with asyncio.TaskGroup() as tasks:
        informers = tasks.create_task(parts.informers.run(), name="informers")
        counting = tasks.create_task(count_waiting(parts), name="counting")
        await lead_until_stopped(
            bus,
            client,
            process,
            role="watcher",
            serve=lambda session, leadership: WatcherTerm(parts, session, leadership).run(),
            stats=lambda: dict(parts.stats),
            endpoints=endpoints(parts),
            apply_when_missing=True,
            others=OtherSchedulers(
                client,
                leases_of_others(process.settings.leader_election, configuration.scheduler_names),
                is_allowed=process.settings.allow_other_scheduler,
                clock=process.clock,
            ),
        )
        informers.cancel()
        counting.cancel()


async def count_waiting(parts: WatcherParts) -> None:
    """Count waiting pods while NATS stores no message: then no watcher can begin a term, and no queue exists."""
    process, counted = parts.process, False
    seconds = parts.settings.gauge_interval.total_seconds()
    while True:
        leads = not process.health.condition(TAKEOVER).is_standby
        if not leads and not process.health.condition(STORE, "waiting for NATS").is_ready:
            pods = sum(
                waits(pod, parts.profiles) for pod in parts.store.of(POD_KIND.name).values() if isinstance(pod, Pod)
            )
            process.metrics.set("scheduler_pending_pods", pods, queue="active")
            counted = True
        elif counted:
            counted = False
            if not leads:
                process.metrics.clear("scheduler_pending_pods")
        await process.clock.sleep(seconds)


class WatcherTerm:
    """One term: takes over, then runs the core."""

    def __init__(self, parts: WatcherParts, session: Session, leadership: LeaderSession) -> None:
        self._parts = parts
        self._session = session
        self._leadership = leadership
        self._now = parts.process.clock.now
        self._inbox = Inbox[Event]()
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
            for event in self._inbox.drain():  # the reflectors do not show them again
                if isinstance(event, REFLECTOR_EVENTS):
                    self._parts.store.apply(event)
            self._condition.standby("not leading")
            self._parts.answers.clear()

    async def _lead(self) -> None:
        parts = self._parts
        self._condition.waiting("taking over: listing the cluster")
        await parts.informers.refresh()
        core = WatcherCore(
            term=Term(self._leadership.number),
            store=parts.store,
            profiles=parts.profiles,
            settings=parts.settings.attempts,
            started=Timestamp(monotonic=self._now(), wall=datetime.now(UTC)),
            max_writes=parts.settings.max_writes,
            lacks_groups=lambda profile: parts.process.peers.lacking(GROUPS, profile),
        )
        parts.informers.listen(self._inbox.put)
        effects = EffectRunner(
            session=self._session,
            client=parts.client,
            informers=parts.informers,
            leadership=self._leadership,
            process=parts.process,
            inbox=self._inbox,
        )
        loop = CoreLoop(
            core,
            effects.carry_out,
            clock=parts.process.clock,
            slice_seconds=parts.settings.slice.total_seconds(),
            inbox=self._inbox,
            check=self._leadership.check,
            gather_seconds=core.gather_seconds,
        )
        async with AsyncExitStack() as stack, asyncio.TaskGroup() as tasks:
            stack.push_async_callback(loop.tasks.settle, 0)
            for begun in core.begin(self._now()):
                loop.start(begun)
                await asyncio.sleep(0)  # lets the Lease be renewed
                self._leadership.check()
            control = await stack.enter_async_context(self._session.read_bucket(CONTROL, filters=(DRAIN_KEY,)))
            tasks.create_task(self._read_drain(control), name="drain")
            cluster = await stack.enter_async_context(self._session.read_bucket(CLUSTER))
            effects.on_own_entry = cluster.leave_out
            decisions = await stack.enter_async_context(self._session.read_stream(DECISIONS, since=DECISIONS_BEFORE))
            tasks.create_task(self._read_cluster(cluster), name="cluster")
            tasks.create_task(self._read_decisions(decisions), name="decisions")
            for bucket in core.live_buckets():
                reader = await stack.enter_async_context(self._session.read_bucket(bucket))
                tasks.create_task(self._read_live_data(bucket, reader), name=bucket)
            tasks.create_task(self._take_over(core, cluster), name="take over")
            tasks.create_task(self._show_figures(core), name="figures")
            tasks.create_task(self._end_messages(core), name="ended messages")
            self._check(core, tasks)
            await loop.run()

    def _check(self, core: WatcherCore, tasks: asyncio.TaskGroup) -> None:
        checks = LeaderChecks(process=self._parts.process, leadership=self._leadership, role="watcher")
        progress = checks.check_progress(
            self._parts.progress,
            lambda: f"{core.waiting} pods wait",
            waiting=lambda: core.waiting,
            begun=lambda: core.progress,
        )
        tasks.create_task(progress, name="progress")
        orphans = OrphanCheck(self._session, PENDING, SCORER)
        streams = checks.check_orphans(self._session, orphans, self._renew_consumer, verifies=True)
        tasks.create_task(streams, name="streams")

    async def _take_over(self, core: WatcherCore, cluster: BucketReader) -> None:
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

    async def _end_messages(self, core: WatcherCore) -> None:
        """Delete messages of PENDING that no pod needs: a scorer can have put them off, for a century.

        A message must be found twice, because one that was just decided is about to be acknowledged.
        """
        refusals, found = Refusals("cannot delete messages of PENDING"), set[int]()
        while True:
            await self._parts.process.clock.sleep(END_SECONDS)
            if not core.is_queue_running:
                continue
            with refusals.logged_once():
                before, found = found, set[int]()
                async for stored in self._session.scan(PENDING, all_of("pending")):
                    attempt = _attempt_of(stored)
                    if attempt is None or attempt.term > self._leadership.number or core.needs(attempt):
                        continue
                    if stored.sequence in before:
                        await self._session.delete(PENDING, stored.sequence)
                    else:
                        found.add(stored.sequence)

    async def _renew_consumer(self, problem: str) -> None:
        """Recreate the consumer of PENDING, which is missing or does not deliver the messages that PENDING holds."""
        log.warning("recreating the consumer of PENDING, its messages are redelivered", reason=problem)
        self._leadership.check()
        await self._session.delete_consumer(PENDING, SCORER)
        await self._session.create_consumer(PENDING, SCORER)

    async def _show_figures(self, core: WatcherCore) -> None:
        gauges, stats = Gauges(self._parts.process.metrics), self._parts.stats
        try:
            while True:
                figures = core.figures(self._now())
                gauges.update(figures)
                stats.clear()
                stats.update(stats_of(figures))
                await self._parts.process.clock.sleep(self._parts.settings.gauge_interval.total_seconds())
        finally:
            gauges.clear()
            stats.clear()

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
                    if is_new:  # the former leader counted Decisions from before this term
                        count_decision(metrics, decision, stored)
            metrics.count("berth_messages_received_total", len(batch), stream=DECISIONS)
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
            log.info("a person requeued the pod", pod=queued.pod.key, uid=queued.uid)
            self._inbox.put(RetryRequested(uid=queued.uid))
            return msgspec.structs.replace(answer, retried=True)

        return {
            QUEUE: lambda request: core.answers.page(decode_page_request(request), self._now()),
            POD: lambda request: core.answers.pod(decode_pod_request(request), self._now()),
            RETRY: retry,
        }

    async def _read_live_data(self, bucket: LiveBucket, reader: BucketReader) -> None:
        complete = reader.caught_up.is_set()
        if complete:
            self._inbox.put(LiveDataComplete(bucket=bucket))
        async for batch in reader.batches():
            self._inbox.put_all(
                LiveDataReceived(bucket=bucket, key=entry.key, sequence=entry.sequence, data=entry.data)
                for entry in batch
            )
            if not complete and reader.caught_up.is_set():
                complete = True
                self._inbox.put(LiveDataComplete(bucket=bucket))


def _attempt_of(stored: StoredMessage) -> Attempt | None:
    """The attempt of a message of PENDING; ``None`` if it has none: scorers make a dead letter of it."""
    try:
        return Attempt.parse(stored.headers.get(MESSAGE_ID, ""))
    except DecodeError:
        return None


def _drain_read(entry: Entry) -> DrainRead:
    return DrainRead(is_draining=entry.data is not None, sequence=entry.sequence)


def _decoded(stored: StoredMessage) -> DecisionSummary | None:
    try:
        return decode(stored.data, DecisionSummary)
    except DecodeError as error:
        log.warning("cannot decode a Decision, it is left out", subject=stored.subject, error=str(error))
        return None


def count_decision(metrics: Meter, decision: DecisionSummary, stored: StoredMessage) -> None:
    """Observe the durations of an attempt, between times at which NATS stored messages, so that one clock is used."""
    if not decision.outcome.final or decision.asked_at is None:
        return
    result = result_of(decision.outcome)
    if result is not None:
        seconds, profile = (stored.time - decision.asked_at).total_seconds(), decision.profile
        metrics.observe("scheduler_scheduling_attempt_duration_seconds", seconds, result=result, profile=profile)
    if decision.ranked_at is not None:
        ranking, committing = decision.ranked_at - decision.asked_at, stored.time - decision.ranked_at
        metrics.observe("berth_stage_duration_seconds", ranking.total_seconds(), stage="rank")
        metrics.observe("berth_stage_duration_seconds", committing.total_seconds(), stage="commit")
