"""The shell of the core: carries out effects, each in a task of its own, and puts the answers into the inbox.

What a lost connection leaves undone is made good by the next takeover.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import deque
from collections.abc import Coroutine, Iterable
from typing import Any, Final

from berth.api.errors import BerthError, PermanentError, TemporaryError
from berth.api.subjects import Attempt
from berth.bus.interface import (
    BusLostError,
    MissingError,
    Session,
    UnansweredError,
    WrongLastSequenceError,
)
from berth.bus.stages import publish_dead_letter, publish_pending
from berth.bus.topology import CLUSTER, PENDING, RANKED
from berth.kube.client import KubeClient
from berth.kube.writes import get_pod
from berth.leader.session import LeaderSession
from berth.process.lifecycle import Process
from berth.process.logging import get_logger, verbose
from berth.process.tracing import TRACEPARENT
from berth_watcher.events import (
    AttemptLookedUp,
    CountScheduled,
    Effect,
    Event,
    KeyLookedUp,
    KeyWriteFailed,
    KeyWritten,
    LookUpAttempt,
    LookUpKey,
    PodRead,
    PublishDeadLetter,
    PublishPending,
    PublishRefused,
    PurgeKey,
    ReadPod,
    StepDown,
    Warn,
    WriteKey,
)
from berth_watcher.metrics import count_published, count_scheduled
from berth_watcher.takeover import holds, last_decision

log = get_logger()

RETRY_SECONDS: Final = 0.2
"""Before a request is repeated that got no answer."""

V_POD: Final = 4
"""klog's verbosity for one line per pod."""


class Inbox:
    """The one queue through which every event reaches the core, in order. ``put`` never waits."""

    def __init__(self) -> None:
        self._events: deque[Event] = deque()
        self._filled = asyncio.Event()

    def put(self, *events: Event) -> None:
        self.put_all(events)

    def put_all(self, events: Iterable[Event]) -> None:
        self._events.extend(events)
        self._filled.set()

    def take(self, most: int) -> list[Event]:
        """The next events, in order; empty if there are none."""
        taken = [self._events.popleft() for _ in range(min(most, len(self._events)))]
        if not self._events:
            self._filled.clear()
        return taken

    async def wait(self, seconds: float | None) -> None:
        """Wait until there is an event, or for so long."""
        if self._events:
            await asyncio.sleep(0)  # let other tasks run
            return
        try:
            async with asyncio.timeout(seconds):
                await self._filled.wait()
        except TimeoutError:
            return


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
        max_writes: int,
    ) -> None:
        self._session = session
        self._client = client
        self._leadership = leadership
        self._process = process
        self._inbox = inbox
        self._tasks = tasks
        self._write_slots = asyncio.Semaphore(max_writes)

    def run(self, effects: Iterable[Effect]) -> None:
        """Start effects in order, so that publishes reach the connection in the order of the core."""
        for effect in effects:
            work = self._start(effect)
            if work is not None:
                self._tasks.create_task(work)

    def _start(self, effect: Effect) -> Coroutine[Any, Any, None] | None:  # noqa: PLR0911 - one line an effect
        match effect:
            case PublishPending():
                return self._publish(effect)
            case WriteKey() | PurgeKey():
                return self._write(effect)
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
                return None
            case Warn():
                log.warning(effect.message, **effect.fields)
                return None
            case StepDown():
                self._leadership.report_higher(effect.term, seen_in=effect.reason)
                return None

    async def _publish(self, effect: PublishPending) -> None:
        """Not repeated if there is no answer: a repeat could replace a newer attempt of the pod in PENDING."""
        message = effect.message
        with self._process.tracing.span("enqueue", parent=trace_of(message.pod.uid)) as span:
            span.note("pod", message.pod.key)
            try:
                await publish_pending(self._session, message, headers={TRACEPARENT: span.traceparent})
            except UnansweredError as error:
                log.warning("publishing a pod", pod=message.pod.key, attempt=message.attempt, error=str(error))
                return
            except PermanentError as error:
                self._inbox.put(PublishRefused(attempt=Attempt.parse(message.attempt), reason=str(error)))
                return
            if verbose(V_POD):
                log.info("published", pod=message.pod.key, attempt=message.attempt, trace_id=span.trace_id)
        count_published(self._process.metrics, effect)

    async def _write(self, effect: WriteKey | PurgeKey) -> None:
        async with self._write_slots:
            try:
                if isinstance(effect, WriteKey):
                    sequence = await self._session.put(CLUSTER, effect.key, effect.data, expected=effect.expected)
                else:
                    sequence = await self._session.purge(CLUSTER, effect.key, expected=effect.expected)
            except WrongLastSequenceError:
                self._inbox.put(KeyWriteFailed(key=effect.key))
            except UnansweredError as error:
                log.warning("writing the mirror", key=effect.key, error=str(error))
                self._inbox.put(KeyWriteFailed(key=effect.key))
            else:
                self._inbox.put(KeyWritten(key=effect.key, sequence=sequence))

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
            for stage, stream in (("pending", PENDING), ("ranked", RANKED)):
                if await holds(self._session, stream, effect.subject(stage), effect.attempt):
                    self._inbox.put(AttemptLookedUp(attempt=effect.attempt, in_work_queue=True))
                    return
            last = await last_decision(self._session, effect.subject("decision"))
        except UnansweredError:
            return
        decision, time = (last[0], last[1].time) if last else (None, None)
        answer = AttemptLookedUp(attempt=effect.attempt, in_work_queue=False, decision=decision, time=time)
        self._inbox.put(answer)

    async def _read_pod(self, effect: ReadPod) -> None:
        """Without an answer the core asks again after ``WATCH_SECONDS``."""
        try:
            pod = await get_pod(self._client, effect.namespace, effect.name)
        except BerthError as error:
            log.warning("reading a pod", pod=f"{effect.namespace}/{effect.name}", uid=effect.uid, error=str(error))
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


def trace_of(uid: str) -> str:
    """The ``traceparent`` of a pod. It follows from the uid, so that all attempts are in one trace, whoever leads."""
    digest = hashlib.blake2b(uid.encode(), digest_size=24).hexdigest()
    return f"00-{digest[:32]}-{digest[32:]}-00"
