"""Carries out the effects of the watcher's core, and answers with events."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final

from berth.api.kinds import PLUGIN_KINDS
from berth.api.podgroups import Dialect
from berth.bus.interface import (
    BusLostError,
    MissingError,
    PubAck,
    Session,
    TooLargeError,
    UnansweredError,
    WrongLastSequenceError,
)
from berth.bus.stages import group_pending_message, pending_message, publish_dead_letter
from berth.bus.topology import CLUSTER, FACTS, PENDING, RANKED
from berth.cluster.podgroups import KINDS
from berth.errors import BerthError, PermanentError, TemporaryError
from berth.kube.client import KubeClient
from berth.kube.informers import Informers
from berth.kube.writes import get_pod
from berth.leader.session import LeaderSession, NoLongerLeadingError
from berth.lifecycle.coreloop import Inbox
from berth.lifecycle.process import Process
from berth.lifecycle.sessions import Refusals
from berth.messages.attempts import Pending
from berth.messages.encoding import encode
from berth.messages.groupattempts import GroupPending
from berth.messages.livedata import POD_FAILURES
from berth.messages.subjects import TRACEPARENT, Attempt, key, trace_id_of, trace_of_pod
from berth.observability.logging import get_logger
from berth.observability.metrics import Meter
from berth.observability.tracing import Span, UnexportedSpan
from berth.settings.settings import V_STEP
from berth_watcher.events import (
    AttemptLookedUp,
    CountScheduled,
    CountWholeGroup,
    Effect,
    Event,
    FactNotWritten,
    KeyLookedUp,
    KeyTooLarge,
    KeyWriteFailed,
    KeyWritten,
    LookUpAttempt,
    LookUpKey,
    Note,
    PodGroupsSought,
    PodRead,
    PublishDeadLetter,
    PublishGroup,
    PublishNotStored,
    PublishPending,
    PublishRefused,
    PurgeKey,
    QueueStarted,
    ReadPod,
    SeekPodGroups,
    StepDown,
    Warn,
    WorkQueue,
    WriteFailures,
    WriteKey,
)
from berth_watcher.takeover import holds, last_decision

log = get_logger()

# The health condition of a leader that has taken over. Set from the start, so that a process that does not wait for its
# Lease yet is not ready.
TAKEOVER: Final = "takeover"
FULL_SECONDS: Final = 1.0  # until a key that NATS had no room for is written again
RETRY_SECONDS: Final = 0.2  # until a request without an answer is repeated
# The streams that hold an attempt's messages, in the order in which they move.
WORK_QUEUES: Final[Mapping[WorkQueue, str]] = {"pending": PENDING, "ranked": RANKED}
MANY_ATTEMPTS: Final = 15  # pods with at least this many share one `attempts` label


class EffectRunner:
    """Carries out the effects of one term. Answers go into the inbox, and an error that ends the term too."""

    def __init__(  # noqa: PLR0913 - what the effects act on
        self,
        *,
        session: Session,
        client: KubeClient,
        informers: Informers,
        leadership: LeaderSession,
        process: Process,
        inbox: Inbox[Event],
    ) -> None:
        self._session = session
        self._client = client
        self._informers = informers
        self._leadership = leadership
        self._process = process
        self._inbox = inbox
        self._logs_steps = process.settings.log.verbosity >= V_STEP
        self._fact_refusals = Refusals("cannot write failures of pods")
        # Called with the sequence of each own write of cluster.
        self.on_own_entry: Callable[[int], None] = lambda _sequence: None

    def carry_out(self, effect: Effect) -> Coroutine[Any, Any, None] | None:  # noqa: C901, PLR0911, PLR0912 - one case an effect
        """Begin an effect. Returns the rest of it if it needs a task."""
        match effect:
            case PublishPending():
                return self._publish(effect)
            case PublishGroup():
                self._publish_group(effect)
            case WriteKey():
                self._write(effect)
            case PurgeKey():
                return self._purge(effect)
            case WriteFailures():
                return self._write_failures(effect)
            case LookUpKey():
                return self._look_up_key(effect)
            case LookUpAttempt():
                return self._look_up_attempt(effect)
            case ReadPod():
                return self._read_pod(effect)
            case SeekPodGroups():
                return self._seek_pod_groups(effect.dialect)
            case PublishDeadLetter():
                return self._publish_dead_letter(effect)
            case CountScheduled():
                count_scheduled(self._process.metrics, effect)
                self._export_whole(effect)
            case CountWholeGroup():
                self._process.metrics.observe("berth_group_scheduling_sli_duration_seconds", effect.seconds)
            case Warn() | Note():
                (log.warning if isinstance(effect, Warn) else log.info)(effect.message, **with_trace(effect.fields))
            case StepDown():
                return self._confirm_lead(effect)
            case QueueStarted():
                log.info("taken over", term=self._leadership.number)
                self._process.health.condition(TAKEOVER).ready()
        return None

    def _export_whole(self, scheduled: CountScheduled) -> None:
        """Export the span that contains all other spans of the pod."""
        if self._process.tracing.is_exporting:
            pod = scheduled.pod
            notes: dict[str, str | int] = {"pod": pod.key, "node": pod.spec.node_name, "attempts": scheduled.attempts}
            self._process.tracing.whole("schedule", trace_of_pod(pod.uid), seconds=scheduled.seconds, notes=notes)

    async def _confirm_lead(self, effect: StepDown) -> None:
        """Ask Lease and ``control`` whether a higher term leads: a message with such a term is no proof."""
        while True:
            try:
                await self._leadership.confirm()
            except (BusLostError, NoLongerLeadingError):
                return
            except TemporaryError as error:
                log.warning("cannot confirm a higher term", term=effect.term, error=str(error))
                await self._process.clock.sleep(RETRY_SECONDS)
            else:
                log.warning("ignoring a term that no watcher has", term=effect.term, seen_in=effect.reason)
                return

    def _publish(self, effect: PublishPending) -> Coroutine[Any, Any, None] | None:
        """Publish once: a repeat without an answer could replace a newer attempt of the pod in PENDING."""
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

    def _publish_group(self, effect: PublishGroup) -> None:
        trace = trace_of_pod(effect.message.group.uid)
        staged = group_pending_message(self._session, effect.message, {TRACEPARENT: trace})
        staged.publish_soon(
            self._session, lambda answer: self._on_published(effect, trace_id_of({TRACEPARENT: trace}), answer)
        )

    def _on_published(self, effect: PublishPending | PublishGroup, trace_id: str, answer: PubAck | BerthError) -> None:
        message = effect.message
        match answer:
            case PubAck():
                count_published(self._process.metrics, effect)
                if self._logs_steps:
                    what, about = _published(message)
                    log.info(what, **about, attempt=message.attempt, trace_id=trace_id)
            case BusLostError():
                return  # the session's end is the term's
            case TemporaryError() if not isinstance(answer, MissingError):
                # the session reports a full NATS once for all pods
                self._inbox.put(PublishNotStored(attempt=Attempt.parse(message.attempt)))
            case PermanentError():
                self._inbox.put(PublishRefused(attempt=Attempt.parse(message.attempt), reason=str(answer)))
            case _:
                self._inbox.fail(answer)

    def _write(self, effect: WriteKey) -> None:
        # Without a task, because a start writes tens of thousands.

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
                self._inbox.fail(answer)

    async def _write_failures(self, effect: WriteFailures) -> None:
        name = key(POD_FAILURES.name, effect.node)
        with self._fact_refusals.logged_once():
            try:
                if effect.fact is None:
                    await self._session.purge(FACTS, name)
                else:
                    await self._session.put(FACTS, name, encode(effect.fact))
            except MissingError:
                raise  # the term ends, and the next one makes the bucket
            except BerthError:
                self._inbox.put(FactNotWritten(node=effect.node))
                raise

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
        # In the order in which a message moves. Without an answer the core asks again after look_up_seconds.
        try:
            for stage, stream in WORK_QUEUES.items():
                if await holds(self._session, stream, effect.subject(stage), effect.attempt):
                    is_worked_on = self._process.peers.hold(str(effect.attempt), self._process.clock.now())
                    self._inbox.put(AttemptLookedUp(attempt=effect.attempt, held_by=stage, is_worked_on=is_worked_on))
                    return
            last = await last_decision(self._session, effect.subject("decision"))
        except UnansweredError:
            return
        decision, time = (last[0], last[1].time) if last else (None, None)
        self._inbox.put(AttemptLookedUp(attempt=effect.attempt, decision=decision, time=time))

    async def _read_pod(self, effect: ReadPod) -> None:
        # Without an answer the core asks again after WATCH_SECONDS.
        try:
            pod = await get_pod(self._client, effect.namespace, effect.name)
        except BerthError as error:
            log.warning(
                "cannot read the pod", pod=f"{effect.namespace}/{effect.name}", uid=effect.uid, error=str(error)
            )
            return
        same = pod is not None and pod.metadata.uid == effect.uid
        self._inbox.put(PodRead(uid=effect.uid, pod=pod if same else None))

    async def _seek_pod_groups(self, dialect: Dialect) -> None:
        await self._informers.seek(PLUGIN_KINDS[KINDS[dialect]])
        self._inbox.put(PodGroupsSought(dialect=dialect))

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


def _published(message: Pending | GroupPending) -> tuple[str, dict[str, str]]:
    if isinstance(message, GroupPending):
        return "group published", {"group": str(message.group.key), "uid": message.group.uid}
    return "pod published", {"pod": message.pod.key, "uid": message.pod.uid}


def with_trace(fields: Mapping[str, str]) -> Mapping[str, str]:
    """The fields of a log line, and if they name a pod, the trace of the pod's messages."""
    uid = fields.get("uid")
    return {**fields, "trace_id": trace_id_of({TRACEPARENT: trace_of_pod(uid)})} if uid else fields


def count_published(metrics: Meter, published: PublishPending | PublishGroup) -> None:
    """Count an attempt that PENDING has stored, and the time for which its pod was active."""
    metrics.count("berth_messages_published_total", stream=PENDING)
    if published.waited_seconds is not None:
        metrics.observe("berth_stage_duration_seconds", published.waited_seconds, stage="queue")


def count_scheduled(metrics: Meter, scheduled: CountScheduled) -> None:
    attempts = str(scheduled.attempts) if scheduled.attempts < MANY_ATTEMPTS else f"{MANY_ATTEMPTS}+"
    metrics.observe("scheduler_pod_scheduling_sli_duration_seconds", scheduled.seconds, attempts=attempts)
    metrics.observe("scheduler_pod_scheduling_attempts", scheduled.attempts)
