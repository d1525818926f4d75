"""Carries out the effects of the binder's core; answers are events."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from datetime import timedelta
from functools import partial
from typing import Any, Final, TypeVar

import msgspec

from berth.api.trimming import without_whole
from berth.bus.interface import BusLostError, Delivery, MissingError, PubAck, Session
from berth.bus.settings import MEBIBYTE
from berth.bus.stages import StagedMessage, decision_message, publish_dead_letter
from berth.bus.topology import COMMITS
from berth.errors import BerthError, TemporaryError
from berth.extenders.client import Extenders
from berth.extenders.wire import ExtenderError
from berth.framework.preemption import Evictions
from berth.leader.session import LeaderSession
from berth.lifecycle.coreloop import EffectTasks, Inbox
from berth.lifecycle.process import Process
from berth.lifecycle.tries import clear_tries, count_try
from berth.messages.attempts import DeadLetter, Decision, Outcome
from berth.messages.subjects import key, trace_id_of
from berth.observability.logging import get_logger
from berth.observability.metrics import Meter, result_of
from berth.settings.settings import V_RESULT, V_STEP
from berth_binder.apicalls import ApiRequests
from berth_binder.cache import Cache
from berth_binder.eventrecorder.recorder import EventRecorder
from berth_binder.events import (
    Ack,
    ApiRequest,
    AskAboutEvictions,
    AskAboutNodes,
    ClearTries,
    CountTry,
    DecisionNotStored,
    DecisionStored,
    Effect,
    Event,
    EvictionsAnswered,
    LogMissingRight,
    NodesAnswered,
    PublishDecision,
    PutOff,
    RecordEvent,
    RecordGroup,
    RejectRanked,
    SetAside,
    TryCounted,
)

log = get_logger()

T = TypeVar("T")

# Pause before a publish without an answer is repeated; its message id prevents duplicates.
RETRY_SECONDS: Final = 0.2
# Pause before a count of tries without an answer is repeated.
TRIES_RETRY_SECONDS: Final = 1.0
PLACED_NOWHERE: Final = frozenset({Outcome.UNSCHEDULABLE, Outcome.PREEMPTING, Outcome.ERROR})


class BinderEffects:
    """Carries out the core's effects; answers go into the inbox."""

    def __init__(  # noqa: PLR0913 - the parts that carry out effects, and the inbox
        self,
        process: Process,
        leadership: LeaderSession,
        session: Session,
        *,
        requests: ApiRequests,
        publisher: DecisionPublisher,
        recorder: EventRecorder,
        cache: Cache,
        extenders: Extenders,
        inbox: Inbox[Event],
    ) -> None:
        self._process = process
        self._leadership = leadership
        self._session = session
        self._requests = requests
        self._publisher = publisher
        self._recorder = recorder
        self._cache = cache
        self._extenders = extenders
        self._inbox = inbox
        # Tasks that wait for extenders. They change nothing, so the end of the leadership awaits no answer.
        self.questions = EffectTasks(inbox.fail)
        self._logged: set[str] = set()

    def carry_out(self, effect: Effect) -> Coroutine[Any, Any, None] | None:  # noqa: C901, PLR0911, PLR0912 - one case an effect
        """Begin an effect. Returns a coroutine if the effect waits for an answer."""
        if isinstance(effect, ApiRequest):
            self._requests.start(effect)
            return None
        match effect:
            case PublishDecision():
                return self._publish(effect)
            case AskAboutEvictions():
                self.questions.start(self._ask_about_evictions(effect))
            case AskAboutNodes():
                self.questions.start(self._ask_about_nodes(effect))
            case Ack():
                effect.held.delivery.ack()
            case PutOff():
                return self._publisher.put_off(effect.held.delivery, effect.reason)
            case SetAside():
                effect.held.delivery.set_aside()
            case RejectRanked():
                return self._publisher.reject_unusable(effect.held.delivery, effect.reason)
            case RecordEvent():
                self._recorder.record(effect.decision, self._cache.pod(effect.decision.uid) or effect.pod)
            case RecordGroup():
                self._recorder.record_group(effect.decision, effect.group, effect.pods)
            case LogMissingRight():
                self._log_missing_right(effect.text)
            case CountTry():
                return self._count_try(effect)
            case ClearTries():
                return self._clear_tries(effect)
        return None

    async def _ask_about_nodes(self, effect: AskAboutNodes) -> None:
        """Any exception is a failure of the filter."""
        pod, left, failure = effect.pod, frozenset[str](), ""
        try:
            left = (await self._extenders.filter(pod, effect.nodes)).left
        except ExtenderError as error:
            failure = str(error)
        except Exception as error:
            log.exception("asking extenders failed", pod=pod.key, uid=pod.uid)
            failure = _raised(error)
        self._inbox.put(
            NodesAnswered(pod=without_whole(pod), asked=frozenset(effect.nodes), left=left, failure=failure)
        )

    async def _ask_about_evictions(self, effect: AskAboutEvictions) -> None:
        """Any exception is an answer that keeps no eviction."""
        pod = effect.pod
        try:
            evictions = await self._extenders.ask_about_evictions(pod, effect.candidates, effect.victims)
        except Exception as error:
            log.exception("asking extenders failed", pod=pod.key, uid=pod.uid)
            evictions = Evictions(failure=_raised(error))
        self._inbox.put(EvictionsAnswered(pod=without_whole(pod), evictions=evictions))

    def _publish(self, effect: PublishDecision) -> Coroutine[Any, Any, None] | None:
        if effect.dead_letter or effect.is_repeat:
            return self._publish_and_wait(effect)
        self._publisher.publish_soon(effect, partial(self._on_published, effect))
        return None

    def _on_published(self, effect: PublishDecision, error: BerthError | None) -> None:
        """Runs in the connection's reader, where no exception may be raised."""
        is_stored = error is None
        self._inbox.put(DecisionStored(decision=effect.decision) if is_stored else DecisionNotStored(publish=effect))

    async def _publish_and_wait(self, effect: PublishDecision) -> None:
        if effect.is_repeat:
            await asyncio.sleep(RETRY_SECONDS)
        await self._publisher.publish(effect)
        self._inbox.put(DecisionStored(decision=effect.decision))

    async def _count_try(self, effect: CountTry) -> None:
        tries = await self._until_answered(lambda: count_try(self._session, COMMITS, key("pod", effect.uid)))
        self._inbox.put(TryCounted(uid=effect.uid, tries=tries))

    async def _clear_tries(self, effect: ClearTries) -> None:
        """Only while leading: if this loop was blocked until the Lease was lost, the try counts."""
        self._leadership.check()
        await self._until_answered(lambda: clear_tries(self._session, COMMITS, key("pod", effect.uid)))

    async def _until_answered(self, work: Callable[[], Awaitable[T]]) -> T:
        """Try again while NATS does not answer.

        Raises:
            BusLostError: the leadership is over.
        """
        while True:
            try:
                return await work()
            except (BusLostError, MissingError):
                raise
            except TemporaryError as error:
                log.warning("cannot count a begun pod, trying again", reason=str(error))
                await self._process.clock.sleep(TRIES_RETRY_SECONDS)

    def _log_missing_right(self, text: str) -> None:
        if text not in self._logged:
            self._logged.add(text)
            log.error("berth's account lacks a right", reason=text)


def _raised(error: Exception) -> str:
    return f"asking extenders raised {type(error).__name__}"


class DecisionPublisher:
    """Publishes on one session. If the session is lost, the leadership ends and the message is redelivered."""

    def __init__(self, session: Session, process: Process, cache: Cache) -> None:
        self._session = session
        self._metrics = process.metrics
        self._clock = process.clock
        self._live = cache.snapshot.live
        self._ahead = AheadMessages(process.settings.nats.ranked_mebibytes * MEBIBYTE)
        self._verbosity = process.settings.log.verbosity
        self.under_way = 0  # Decisions without a PubAck yet

    def publish_soon(self, effect: PublishDecision, on_end: Callable[[BerthError | None], None]) -> None:
        """``on_end`` is called once: with None when the Decision is stored, or with the error."""

        def on_answer(answer: PubAck | BerthError) -> None:
            self.under_way -= 1
            if isinstance(answer, BerthError):
                on_end(answer)
            else:
                self._on_stored(effect)
                on_end(None)

        try:
            staged = self._staged(effect)
        except BerthError as error:
            on_end(error)
        else:
            self.under_way += 1
            staged.publish_soon(self._session, on_answer)

    async def publish(self, effect: PublishDecision) -> None:
        """Publish a Decision, after its dead letter if it has one, and wait until both are stored.

        Raises:
            BusLostError, MissingError: the connection or the stream is lost.
        """
        if effect.dead_letter:
            decision = effect.decision
            await self._publish_dead_letter(effect.held.delivery, decision.message, decision.attempt, cause="failed")
        await _until_stored(lambda: self._staged(effect).publish(self._session))
        self._on_stored(effect)

    async def put_off(self, delivery: Delivery, reason: str) -> None:
        """Have a message redelivered that a newer binder may understand, within bounds. Raises as `reject_unusable`."""
        size, age = len(delivery.data), timedelta(seconds=self._live.now - delivery.time.timestamp())
        if self._ahead.may_wait(delivery.sequence, size=size, age=age, now=self._clock.now()):
            delivery.nak(REDELIVERY)
        else:
            await self.reject_unusable(delivery, reason)

    async def reject_unusable(self, delivery: Delivery, reason: str) -> None:
        """Publish a dead letter of an unusable message, then acknowledge it.

        Raises:
            BusLostError, MissingError: the connection or the stream is lost.
        """
        log.warning("wrote a dead letter of an unusable message", subject=delivery.subject, reason=reason)
        await self._publish_dead_letter(delivery, reason, cause="undecodable")
        delivery.ack()

    async def _publish_dead_letter(self, delivery: Delivery, reason: str, attempt: str = "", *, cause: str) -> None:
        self._metrics.count("berth_dead_letters_total", cause=cause)
        payload = delivery.data.decode(errors="replace")
        letter = DeadLetter(subject=delivery.subject, reason=reason, service="binder", attempt=attempt, payload=payload)
        await _until_stored(lambda: publish_dead_letter(self._session, letter))

    def _staged(self, effect: PublishDecision) -> StagedMessage:
        delivery = effect.held.delivery
        timed = msgspec.structs.replace(effect.decision, ranked_at=delivery.time)
        return decision_message(self._session, timed, delivery.headers)

    def _on_stored(self, effect: PublishDecision) -> None:
        count_decision(self._metrics, effect.decision)
        if self._verbosity >= V_RESULT:
            log_decision(effect.decision, effect.held.delivery.headers, self._verbosity)


def count_decision(metrics: Meter, decision: Decision) -> None:
    """Count a stored Decision; the outcomes of kube-scheduler also under its metric names."""
    metrics.count("berth_decisions_total", outcome=decision.outcome.value, profile=decision.profile)
    metrics.count("berth_messages_published_total", stream="DECISIONS")
    if decision.outcome is Outcome.CONFLICT:
        metrics.count("berth_conflicts_total", reason=decision.reason)
    if decision.preemption is not None and decision.preemption.victims:
        metrics.observe("scheduler_preemption_victims", len(decision.preemption.victims))
    result = result_of(decision.outcome)
    if result is not None:
        metrics.count("scheduler_schedule_attempts_total", result=result, profile=decision.profile)


async def _until_stored(publish: Callable[[], Awaitable[object]]) -> None:
    while True:
        try:
            await publish()
        except (BusLostError, MissingError):
            raise
        except TemporaryError:  # a stream that stores no messages is logged once, for all pods
            await asyncio.sleep(RETRY_SECONDS)
        else:
            return


def log_decision(decision: Decision, headers: Mapping[str, str], verbosity: int) -> None:
    """Log a stored Decision: at V_RESULT if the pod is bound or cannot be placed, else at V_STEP."""
    about = {
        "pod": f"{decision.namespace}/{decision.pod}",
        "uid": decision.uid,
        "attempt": decision.attempt,
        "trace_id": trace_id_of(headers),
        "node": decision.node,
    }
    if decision.outcome is Outcome.BOUND:
        log.info("pod bound", **about)
    elif decision.outcome in PLACED_NOWHERE:
        log.info("pod cannot be placed", **about, outcome=decision.outcome.value, reason=decision.message)
    elif verbosity >= V_STEP:
        reason = decision.message or decision.reason
        log.info("attempt decided", **about, outcome=decision.outcome.value, reason=reason)


# Between two deliveries of such a message.
REDELIVERY: Final = timedelta(seconds=5)
# Until it becomes a dead letter. A rollout replaces the binder within a minute; the watcher publishes the pod again.
LONGEST: Final = timedelta(minutes=2)
# Their share of RANKED's bytes.
SHARE: Final = 8
# Without a redelivery for this long, the message is no longer stored.
_FORGOTTEN: Final = 3 * REDELIVERY


class AheadMessages:
    """Messages of RANKED that only a newer binder may understand: of a newer schema, or of a profile added there.

    They are redelivered for a while, because such a binder may lead soon. Time and bytes are bounded, because any
    scorer can write them. Pure, the clock is injected.
    """

    def __init__(self, ranked_bytes: int) -> None:
        self._most_bytes = ranked_bytes // SHARE
        self._kept: dict[int, tuple[int, float, float]] = {}  # bytes, and the times of the first and last delivery

    def may_wait(self, sequence: int, *, size: int, age: timedelta, now: float) -> bool:
        """Whether the message may be redelivered; if not, it is a dead letter.

        ``age``: since it was stored, as far as known. ``now``: monotonic seconds.
        """
        _, first, _ = self._kept.pop(sequence, (0, now, now))
        if max(age, timedelta(seconds=now - first)) > LONGEST or self._bytes_at(now) + size > self._most_bytes:
            return False
        self._kept[sequence] = size, first, now
        return True

    def _bytes_at(self, now: float) -> int:
        oldest = now - _FORGOTTEN.total_seconds()
        self._kept = {sequence: kept for sequence, kept in self._kept.items() if kept[2] >= oldest}
        return sum(size for size, _, _ in self._kept.values())
