"""One leadership of the watcher: takes over, feeds events to the core, and carries out its effects.

A term begins with the takeover (docs/protocol.md, 3): LIST every kind, read the bucket ``cluster`` and write the
differences, and find each pod's messages on the bus. The queue runs when every difference is stored.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec

from berth.api.errors import BerthError, DecodeError, PermanentError, TemporaryError
from berth.api.livedata import LiveBucket
from berth.api.messages import DecisionSummary, decode
from berth.api.queue import POD, QUEUE, RETRY, QueueAnswer, decode_page_request, decode_pod_request
from berth.api.subjects import Attempt, Term
from berth.bus.interface import (
    BucketReader,
    BusLostError,
    Endpoint,
    Entry,
    MissingError,
    PubAck,
    Session,
    StoredMessage,
    StreamReader,
    TooLargeError,
    UnansweredError,
    WrongLastSequenceError,
)
from berth.bus.orphans import CHECK_SECONDS, OrphanCheck
from berth.bus.stages import pending_message, publish_dead_letter
from berth.bus.topology import CLUSTER, CONTROL, DECISIONS, DRAIN_KEY, PENDING, RANKED, SCORER
from berth.framework.profile import Profile
from berth.kube.client import KubeClient
from berth.kube.informers import Informers
from berth.kube.writes import get_pod
from berth.leader.session import LeaderSession, NoLongerLeadingError
from berth.process.health import Progress
from berth.process.lifecycle import Process, run_until
from berth.process.logging import get_logger, verbose
from berth.process.sessions import Refusals
from berth.process.settings import V_STEP
from berth.process.tracing import TRACEPARENT, Span, UnexportedSpan, trace_id_of, trace_of_pod
from berth_watcher.answers import RETRIED_FROM
from berth_watcher.core import WatcherCore
from berth_watcher.events import (
    REFLECTOR_EVENTS,
    AttemptLookedUp,
    BucketComplete,
    BucketEntryRead,
    CountScheduled,
    DecisionReceived,
    DrainRead,
    Effect,
    Event,
    KeyLookedUp,
    KeyTooLarge,
    KeyWriteFailed,
    KeyWritten,
    LiveDataReceived,
    LookUpAttempt,
    LookUpKey,
    Note,
    PodRead,
    PublishDeadLetter,
    PublishNotStored,
    PublishPending,
    PublishRefused,
    PurgeKey,
    ReadPod,
    RetryRequested,
    StepDown,
    Warn,
    WorkQueue,
    WriteKey,
)
from berth_watcher.metrics import (
    Figures,
    Gauges,
    count_decision,
    count_published,
    count_received,
    count_scheduled,
    stats_of,
)
from berth_watcher.queue import Timestamp
from berth_watcher.settings import WatcherSettings
from berth_watcher.store import ObjectStore
from berth_watcher.takeover import holds, last_decision, read_streams

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
FULL_SECONDS: Final = 1.0
"""Before a key is written again for which NATS had no room."""
RETRY_SECONDS: Final = 0.2
"""Before a request is repeated that got no answer."""


WORK_QUEUES: Final[Mapping[WorkQueue, str]] = {"pending": PENDING, "ranked": RANKED}
"""The streams that hold the messages of an attempt, in the order in which they move."""

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


class Inbox:
    """The one queue through which every event reaches the core, in order. ``put`` never waits."""

    def __init__(self) -> None:
        self._events: deque[Event] = deque()
        self._filled = asyncio.Event()

    def __len__(self) -> int:
        return len(self._events)

    def put(self, *events: Event) -> None:
        self.put_all(events)

    def put_all(self, events: Iterable[Event]) -> None:
        self._events.extend(events)
        self._filled.set()

    def take(self, most: int, may_continue: Callable[[], bool]) -> Iterator[Event]:
        """The next events, in order, while there is time; one at least, if there is any."""
        for _ in range(min(most, len(self._events))):
            yield self._events.popleft()
            if not may_continue():
                break
        if not self._events:
            self._filled.clear()

    def store_rest(self, store: ObjectStore) -> None:
        """What the reflectors have shown since the core's last call: they do not show it again."""
        for event in self._events:
            if isinstance(event, REFLECTOR_EVENTS):
                store.apply(event)
        self._events.clear()

    async def wait(self, seconds: float | None) -> None:
        """Wait until there is an event, or for so long."""
        if self._events:
            await asyncio.sleep(0)  # let other tasks run
            return
        # Not asyncio.timeout, which takes 8 µs: this waits up to three times a pod.
        timer = None if seconds is None else asyncio.get_running_loop().call_later(seconds, self._filled.set)
        try:
            await self._filled.wait()
        finally:
            if timer is not None:
                timer.cancel()


class EffectRunner:
    """Carries out the effects of one term."""

    def __init__(  # noqa: PLR0913 - the clients that effects need, and where answers go
        self,
        *,
        session: Session,
        client: KubeClient,
        leadership: LeaderSession,
        process: Process,
        inbox: Inbox,
        tasks: asyncio.TaskGroup,
    ) -> None:
        self._session = session
        self._client = client
        self._leadership = leadership
        self._process = process
        self._inbox = inbox
        self._tasks = tasks
        self._failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """A write that ends the term."""
        tasks.create_task(self._fail(), name="failure")
        self.on_own_entry: Callable[[int], None] = lambda _sequence: None
        """Called with the sequence of each entry of ``cluster`` that was written."""

    async def _fail(self) -> None:
        await self._failure

    def run(self, effects: Iterable[Effect]) -> None:
        """Start effects in order, so that publishes reach the connection in the order of the core."""
        for effect in effects:
            work = self._start(effect)
            if work is not None:
                self._tasks.create_task(work)

    def _start(self, effect: Effect) -> Coroutine[Any, Any, None] | None:  # noqa: C901, PLR0911 - one case an effect
        match effect:
            case PublishPending():
                return self._publish(effect)
            case WriteKey():
                self._write(effect)
                return None
            case PurgeKey():
                return self._purge(effect)
            case LookUpKey():
                return self._look_up_key(effect)
            case LookUpAttempt():
                return self._look_up_attempt(effect)
            case ReadPod():
                return self._read_pod(effect)
            case PublishDeadLetter():
                return self._publish_dead_letter(effect)
            case CountScheduled():
                count_scheduled(self._process.metrics, effect)
                self._export_whole(effect)
                return None
            case Warn() | Note():
                (log.warning if isinstance(effect, Warn) else log.info)(effect.message, **with_trace(effect.fields))
                return None
            case StepDown():
                return self._confirm_lead(effect)

    def _export_whole(self, scheduled: CountScheduled) -> None:
        """The span that has all others of the pod."""
        if self._process.tracing.is_exporting:
            pod = scheduled.pod
            notes: dict[str, str | int] = {"pod": pod.key, "node": pod.spec.node_name, "attempts": scheduled.attempts}
            self._process.tracing.whole("schedule", trace_of_pod(pod.uid), seconds=scheduled.seconds, notes=notes)

    async def _confirm_lead(self, effect: StepDown) -> None:
        """Somebody wrote a term above the own: that alone proves nothing, so Lease and ``control`` are asked."""
        while True:
            try:
                await self._leadership.confirm()
            except (BusLostError, NoLongerLeadingError):
                return
            except TemporaryError as error:
                log.warning("a higher term, and no answer whether it leads", term=effect.term, reason=str(error))
                await self._process.clock.sleep(RETRY_SECONDS)
            else:
                log.warning("ignoring a term that no watcher has", term=effect.term, seen_in=effect.reason)
                return

    def _publish(self, effect: PublishPending) -> Coroutine[Any, Any, None] | None:
        """Not repeated if there is no answer: a repeat could replace a newer attempt of the pod in PENDING."""
        if self._process.tracing.is_exporting:
            return self._publish_traced(effect)
        self._publish_soon(effect, UnexportedSpan(trace_of_pod(effect.message.pod.uid)), lambda: None)
        return None

    async def _publish_traced(self, effect: PublishPending) -> None:
        message, answered = effect.message, asyncio.Event()
        with self._process.tracing.span("enqueue", parent=trace_of_pod(message.pod.uid), is_first=True) as span:
            span.note("pod", message.pod.key)
            span.note("attempt", message.attempt)
            self._publish_soon(effect, span, answered.set)
            await answered.wait()

    def _publish_soon(self, effect: PublishPending, span: Span, on_end: Callable[[], None]) -> None:
        message, trace_id = effect.message, span.trace_id

        def on_answer(answer: PubAck | BerthError) -> None:
            self._on_published(effect, trace_id, answer)
            on_end()

        staged = pending_message(self._session, message, {TRACEPARENT: span.traceparent})
        staged.publish_soon(self._session, on_answer)

    def _on_published(self, effect: PublishPending, trace_id: str, answer: PubAck | BerthError) -> None:
        message = effect.message
        match answer:
            case PubAck():
                count_published(self._process.metrics, effect)
                if verbose(V_STEP):
                    about = {"pod": message.pod.key, "uid": message.pod.uid, "attempt": message.attempt}
                    log.info("pod published", **about, trace_id=trace_id)
            case BusLostError():
                return  # the session's end is the term's
            case TemporaryError() if not isinstance(answer, MissingError):
                # that NATS stores nothing is said once, for all pods
                self._inbox.put(PublishNotStored(attempt=Attempt.parse(message.attempt)))
            case PermanentError():
                self._inbox.put(PublishRefused(attempt=Attempt.parse(message.attempt), reason=str(answer)))
            case _:
                self._end(answer)

    def _write(self, effect: WriteKey) -> None:
        """Without a task: a start writes tens of thousands."""

        def on_answer(answer: int | BerthError) -> None:
            if isinstance(answer, int):
                self.on_own_entry(answer)
            self._on_written(effect.key, answer)

        self._session.put_soon(CLUSTER, effect.key, effect.data, expected=effect.expected, on_answer=on_answer)

    async def _purge(self, effect: PurgeKey) -> None:
        try:
            self._on_written(effect.key, await self._session.purge(CLUSTER, effect.key, expected=effect.expected))
        except BerthError as error:
            self._on_written(effect.key, error)

    def _on_written(self, key: str, answer: int | BerthError) -> None:
        match answer:
            case int():
                self._inbox.put(KeyWritten(key=key, sequence=answer))
            case TooLargeError():
                self._inbox.put(KeyTooLarge(key=key, reason=str(answer)))
            case WrongLastSequenceError() | UnansweredError():
                self._inbox.put(KeyWriteFailed(key=key))
            case BusLostError():
                return  # the session's end is the term's
            case TemporaryError() if not isinstance(answer, MissingError):
                asyncio.get_running_loop().call_later(FULL_SECONDS, self._inbox.put, KeyWriteFailed(key=key))
            case _:
                self._end(answer)

    def _end(self, error: BerthError) -> None:
        """Nothing can be written any more: end the term."""
        if not self._failure.done():
            self._failure.set_exception(error)

    async def _look_up_key(self, effect: LookUpKey) -> None:
        while True:
            try:
                entry = await self._session.get(CLUSTER, effect.key)
            except UnansweredError:
                await asyncio.sleep(RETRY_SECONDS)
            else:
                self._inbox.put(KeyLookedUp(key=effect.key, entry=entry))
                return

    async def _look_up_attempt(self, effect: LookUpAttempt) -> None:
        """In the order in which a message moves. Without an answer the core asks again after ``look_up_seconds``."""
        try:
            for stage, stream in WORK_QUEUES.items():
                if await holds(self._session, stream, effect.subject(stage), effect.attempt):
                    self._inbox.put(AttemptLookedUp(attempt=effect.attempt, held_by=stage))
                    return
            last = await last_decision(self._session, effect.subject("decision"))
        except UnansweredError:
            return
        decision, time = (last[0], last[1].time) if last else (None, None)
        self._inbox.put(AttemptLookedUp(attempt=effect.attempt, decision=decision, time=time))

    async def _read_pod(self, effect: ReadPod) -> None:
        """Without an answer the core asks again after ``WATCH_SECONDS``."""
        try:
            pod = await get_pod(self._client, effect.namespace, effect.name)
        except BerthError as error:
            log.warning("reading a pod", pod=f"{effect.namespace}/{effect.name}", uid=effect.uid, reason=str(error))
            return
        same = pod is not None and pod.metadata.uid == effect.uid
        self._inbox.put(PodRead(uid=effect.uid, pod=pod if same else None))

    async def _publish_dead_letter(self, effect: PublishDeadLetter) -> None:
        self._process.metrics.count("berth_dead_letters_total", cause="failed")
        while True:
            try:
                await publish_dead_letter(self._session, effect.dead_letter)
            except (BusLostError, MissingError):
                raise
            except TemporaryError:
                await asyncio.sleep(RETRY_SECONDS)
            else:
                return


def with_trace(fields: Mapping[str, str]) -> Mapping[str, str]:
    """The fields of a log line; of one about a pod with the trace that its messages are in."""
    uid = fields.get("uid")
    return {**fields, "trace_id": trace_id_of({TRACEPARENT: trace_of_pod(uid)})} if uid else fields


def _drain_read(entry: Entry) -> DrainRead:
    return DrainRead(is_draining=entry.data is not None, sequence=entry.sequence)


def _decoded(stored: StoredMessage) -> DecisionSummary | None:
    try:
        return decode(stored.data, DecisionSummary)
    except DecodeError as error:
        log.warning("leaving out a decision", subject=stored.subject, reason=str(error))
        return None
