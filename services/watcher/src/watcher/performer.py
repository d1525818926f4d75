"""Does what the core asks for: each effect in a task of its own, answered with an event."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, Final

from berth.api.errors import BerthError, PermanentError, TemporaryError
from berth.api.identity import Attempt
from berth.api.pod import Pod
from berth.bus.port import BusLostError, MissingError, Session, UnansweredError, WrongLastSequenceError
from berth.bus.stages import bury, publish_pending
from berth.bus.topology import CLUSTER, PENDING, RANKED
from berth.kube.client import KubeClient
from berth.kube.pods import get_pod
from berth.service.leadership import Leadership
from berth.service.logging import get_logger, verbose
from berth.service.process import Process
from berth.service.tracing import TRACEPARENT
from watcher.counting import count_published, count_scheduled
from watcher.effects import (
    Bury,
    CountScheduled,
    Effect,
    LookUpAttempt,
    LookUpKey,
    PublishPending,
    PurgeKey,
    ReadPod,
    StepDown,
    Warn,
    WriteKey,
)
from watcher.events import KeyLookedUp, KeyRefused, KeyWritten, LookedUp, PodRead, PublishRefused
from watcher.inbox import Inbox
from watcher.takeover import holds, last_decision
from watcher.trace import trace_of

log = get_logger()

AGAIN_SECONDS: Final = 0.2
"""Before what got no answer is asked again."""
V_POD: Final = 4
"""klog's verbosity for a line a pod."""


class Performer:
    """The hands of one leadership. What a lost connection leaves undone is made good by the next takeover."""

    def __init__(  # noqa: PLR0913 - what it works on, and whom it answers
        self,
        *,
        session: Session,
        client: KubeClient,
        leadership: Leadership,
        process: Process,
        inbox: Inbox,
        tasks: asyncio.TaskGroup,
        writes_at_once: int,
    ) -> None:
        self._session = session
        self._client = client
        self._leadership = leadership
        self._process = process
        self._inbox = inbox
        self._tasks = tasks
        self._writing = asyncio.Semaphore(writes_at_once)

    def perform(self, effects: Iterable[Effect]) -> None:
        """Start effects, in order: publishes reach the connection in the order in which they were asked for."""
        for effect in effects:
            work = self._work(effect)
            if work is not None:
                self._tasks.create_task(work)

    def _work(self, effect: Effect) -> Coroutine[Any, Any, None] | None:  # noqa: PLR0911 - one line an effect
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
            case Bury():
                return self._bury(effect)
            case CountScheduled():
                count_scheduled(self._process.metrics, effect)
                return None
            case Warn():
                log.warning(effect.sentence, **effect.fields)
                return None
            case StepDown():
                self._leadership.report_higher(effect.term, seen_in=effect.reason)
                return None

    async def _publish(self, effect: PublishPending) -> None:
        """An answer that does not come is not asked for again: a repeat could replace the attempt after this one."""
        message = effect.message
        with self._process.tracing.span("enqueue", parent=trace_of(message.pod.uid)) as span:
            span.note("pod", message.pod.key)
            try:
                await publish_pending(self._session, message, headers={TRACEPARENT: span.traceparent})
            except UnansweredError as error:
                log.warning("publishing a pod", pod=message.pod.key, attempt=message.attempt, cause=str(error))
                return
            except PermanentError as error:
                self._inbox.put(PublishRefused(attempt=Attempt.parse(message.attempt), reason=str(error)))
                return
            if verbose(V_POD):
                log.info("published", pod=message.pod.key, attempt=message.attempt, trace_id=span.trace_id)
        count_published(self._process.metrics, effect)

    async def _write(self, effect: WriteKey | PurgeKey) -> None:
        async with self._writing:
            try:
                if isinstance(effect, WriteKey):
                    sequence = await self._session.put(CLUSTER, effect.key, effect.data, expected=effect.expected)
                else:
                    sequence = await self._session.purge(CLUSTER, effect.key, expected=effect.expected)
            except WrongLastSequenceError:
                self._inbox.put(KeyRefused(key=effect.key))
            except UnansweredError as error:
                log.warning("writing the mirror", key=effect.key, cause=str(error))
                self._inbox.put(KeyRefused(key=effect.key))
            else:
                self._inbox.put(KeyWritten(key=effect.key, sequence=sequence))

    async def _look_up_key(self, effect: LookUpKey) -> None:
        while True:
            try:
                entry = await self._session.get(CLUSTER, effect.key)
            except UnansweredError:
                await asyncio.sleep(AGAIN_SECONDS)
            else:
                self._inbox.put(KeyLookedUp(key=effect.key, entry=entry))
                return

    async def _look_up_attempt(self, effect: LookUpAttempt) -> None:
        """In the order in which a message moves. Without an answer the core asks again ten seconds later."""
        try:
            for stage, stream in (("pending", PENDING), ("ranked", RANKED)):
                if await holds(self._session, stream, effect.subject(stage), effect.attempt):
                    self._inbox.put(LookedUp(attempt=effect.attempt, held=True))
                    return
            last = await last_decision(self._session, effect.subject("decision"))
        except UnansweredError:
            return
        decision, time = (last[0], last[1].time) if last else (None, None)
        self._inbox.put(LookedUp(attempt=effect.attempt, held=False, decision=decision, time=time))

    async def _read_pod(self, effect: ReadPod) -> None:
        """Without an answer the core asks again ten seconds later."""
        try:
            pod = await get_pod(self._client, effect.namespace, effect.name)
        except BerthError as error:
            log.warning("reading a pod", pod=f"{effect.namespace}/{effect.name}", uid=effect.uid, cause=str(error))
            return
        self._inbox.put(PodRead(uid=effect.uid, pod=_same_uid(pod, effect.uid)))

    async def _bury(self, effect: Bury) -> None:
        self._process.metrics.count("berth_dead_letters_total", cause="failed")
        while True:
            try:
                await bury(self._session, effect.letter)
            except (BusLostError, MissingError):
                raise
            except TemporaryError:
                await asyncio.sleep(AGAIN_SECONDS)
            else:
                return


def _same_uid(pod: Pod | None, uid: str) -> Pod | None:
    return pod if pod is not None and pod.metadata.uid == uid else None
