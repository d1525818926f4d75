"""The two ends of the core: where events wait for it, and what carries out its effects, whose answers are events."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from typing import Any, Final

from berth.bus.interface import (
    BusLostError,
    MissingError,
    PubAck,
    Session,
    TooLargeError,
    UnansweredError,
    WrongLastSequenceError,
)
from berth.bus.stages import pending_message, publish_dead_letter
from berth.bus.topology import CLUSTER, PENDING, RANKED
from berth.errors import BerthError, PermanentError, TemporaryError
from berth.kube.client import KubeClient
from berth.kube.writes import get_pod
from berth.leader.session import LeaderSession, NoLongerLeadingError
from berth.lifecycle.process import Process
from berth.messages.subjects import Attempt
from berth.observability.logging import get_logger, verbose
from berth.observability.traceparent import TRACEPARENT, trace_id_of, trace_of_pod
from berth.observability.tracing import Span, UnexportedSpan
from berth.settings.settings import V_STEP
from berth_watcher.events import (
    REFLECTOR_EVENTS,
    AttemptLookedUp,
    CountScheduled,
    Effect,
    Event,
    KeyLookedUp,
    KeyTooLarge,
    KeyWriteFailed,
    KeyWritten,
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
    StepDown,
    Warn,
    WorkQueue,
    WriteKey,
)
from berth_watcher.metrics import count_published, count_scheduled
from berth_watcher.store import ObjectStore
from berth_watcher.takeover import holds, last_decision

log = get_logger()

FULL_SECONDS: Final = 1.0
"""Before a key is written again for which NATS had no room."""
RETRY_SECONDS: Final = 0.2
"""Before a request is repeated that got no answer."""
WORK_QUEUES: Final[Mapping[WorkQueue, str]] = {"pending": PENDING, "ranked": RANKED}
"""The streams that hold the messages of an attempt, in the order in which they move."""


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
