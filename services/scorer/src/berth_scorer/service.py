"""The scorer's service: feeds the core from the bus, carries out its effects, and counts them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractContextManager, AsyncExitStack, suppress
from datetime import timedelta
from functools import partial
from typing import Any, Final

from berth.api.config.configuration import ExtenderConfiguration
from berth.api.trimming import WHOLE
from berth.bus.interface import (
    Bus,
    BusLostError,
    Delivery,
    MissingError,
    PubAck,
    Session,
    StoredMessage,
    UnansweredError,
)
from berth.bus.stages import StagedMessage, publish_dead_letter, ranked_message
from berth.bus.topology import COMPARED, PENDING, RANKED, SCORER, TRIES
from berth.cluster.buckets import LiveDataReader
from berth.errors import BerthError, DecodeError, PermanentError, TemporaryError
from berth.extenders.client import Extenders
from berth.extenders.wire import ExtenderError
from berth.framework.plugincalls import Timing
from berth.framework.profile import Profile
from berth.lifecycle.coreloop import CoreLoop
from berth.lifecycle.process import Process, run_until
from berth.lifecycle.sessions import UndecodableReporter, present, serve_each_session
from berth.lifecycle.tries import clear_tries, count_try
from berth.messages.attempts import DeadLetter, Pending, Ranked, UnknownSchemaError, attempt_of, decode
from berth.messages.subjects import TRACEPARENT, key, trace_id_of
from berth.observability.health import Condition
from berth.observability.logging import get_logger
from berth.observability.metrics import Meter
from berth.observability.tracing import Span
from berth.ranking.ranker import Ranker
from berth.ranking.view import View
from berth.settings.settings import V_STEP
from berth_scorer.core import ScorerCore
from berth_scorer.events import (
    AckPending,
    AskExtenders,
    ClearSuspect,
    CountSuspect,
    DeadLetterStored,
    Effect,
    Event,
    ExtendersAnswered,
    ExtendersFailed,
    KeepAlive,
    LogFailure,
    NakPending,
    ObserveRanking,
    OwnRankingRead,
    PeerRankingRead,
    PendingDelivery,
    PendingReceived,
    PublishRanked,
    RankedNotStored,
    RankedRefused,
    RankedStored,
    ReportUndecodable,
    SetAsidePending,
    SuspectCounted,
    SuspectNotCounted,
    WriteDeadLetter,
)
from berth_scorer.following import follow

log = get_logger()

# Until a message of an unknown schema or profile is redelivered, perhaps to a scorer that supports it.
UNKNOWN_DELAY: Final = timedelta(seconds=2)
RETRY_DELAY: Final = timedelta(seconds=2)  # until a message is redelivered after a failed publish
# Length of a slice, by which the first answer of a batch may be delayed. Publishing one by one would cost a write per
# answer and wake up NATS and the binder each time.
SLICE_SECONDS: Final = 0.01
FINISH_SECONDS: Final = 1.0  # wait of a stopping scorer for its last PubAcks
PAYLOAD_QUOTED: Final = 4096  # bytes of a message in its dead letter
# Start of the whole pod in a message. Only extenders read it; its environment may contain passwords.
WHOLE_POD: Final = f',"{WHOLE}":'.encode()
LABELS: Final[Mapping[str, str]] = {
    "NormalizeScore": "ScoreExtensionNormalize",
    "AddPod": "PreFilterExtensionAddPod",
    "RemovePod": "PreFilterExtensionRemovePod",
}  # kube-scheduler's, where they differ from the extension points


async def serve(process: Process, bus: Bus, ranker: Ranker, extenders: Sequence[ExtenderConfiguration] = ()) -> None:
    """Rank until the process stops. Each session has a new scorer, because its store may be another one."""
    condition = process.health.condition("scorer", "waiting for NATS")
    async with Extenders(extenders, process.metrics) as asked:

        async def score(session: Session) -> None:
            scorer = Scorer(session, ranker, process, asked)
            async with present(session, process, stats=scorer.stats, held=scorer.held_for_long):
                await run_until(scorer.run(condition), process.stopping, session.lost)
                await scorer.finish()

        await serve_each_session(
            bus, name="scorer", process=process, condition=condition, serve=score, only=COMPARED["scorer"]
        )


class Scorer:
    """One scorer on one session."""

    def __init__(self, session: Session, ranker: Ranker, process: Process, extenders: Extenders) -> None:
        self._session = session
        self._ranker = ranker
        self._process = process
        self._extenders = extenders
        self._metrics = process.metrics
        self._undecodable = UndecodableReporter(process.metrics)
        numbers = process.settings.numbers
        self._core = ScorerCore(
            ranker=ranker,
            stopwatch=time.perf_counter,
            spanning=self._span,
            proposal_lifetime=numbers.proposal,
            position_wait=numbers.position_wait,
        )
        self._loop = CoreLoop[Event, Effect](
            self._core, self._carry_out, clock=process.clock, slice_seconds=SLICE_SECONDS
        )
        self._logs_steps = process.settings.log.verbosity >= V_STEP
        self._publisher = RankingPublisher(session, process.metrics, self._loop.inbox.put, logs_steps=self._logs_steps)

    def stats(self) -> dict[str, object]:
        """The figures that ``nats micro stats`` shows."""
        return {
            "answered": self._core.rankings,
            "held": self._core.held,
            "proposals": len(self._core.view.proposals),
            "view_age_seconds": self._core.view.age_seconds(),
        }

    def held_for_long(self) -> list[str]:
        """The attempts that the scorer announces."""
        return self._core.held_for_long(self._process.clock.now())

    async def run(self, condition: Condition) -> None:
        """Build the view, then rank until cancelled."""
        view, numbers = self._core.view, self._process.settings.numbers
        async with AsyncExitStack() as stack, asyncio.TaskGroup() as tasks:
            condition.waiting("reading the mirror")
            tasks.create_task(self._loop.run(), name="core")
            await follow(
                self._session,
                self._loop.inbox.put,
                self._on_ranked,
                LiveDataReader(view.snapshot.live, self._ranker.live_sources),
                lifetime=numbers.proposal,
                undecodable=self._undecodable,
                stack=stack,
                tasks=tasks,
            )
            await self._loop.until(lambda: not self._loop.inbox)  # no message waits here while the mirror is read
            tasks.create_task(self._consume(numbers.scorer_hold), name="consume")
            condition.ready()

    async def finish(self) -> None:
        """Nak the unranked messages, and wait for the PubAcks of the others."""
        self._loop.start(self._core.close())
        with suppress(TimeoutError, BerthError):  # on a lost connection, whose messages are redelivered anyway
            async with asyncio.timeout(FINISH_SECONDS):
                while not self._core.is_idle or self._loop.inbox:
                    await self._loop.inbox.wait(None)
                    self._loop.step()
        await self._loop.tasks.settle(0.0)

    # --- events

    def _on_ranked(self, stored: StoredMessage) -> None:
        is_own = self._publisher.sent.has(stored.subject, stored.data)
        self._loop.inbox.put(OwnRankingRead(sequence=stored.sequence) if is_own else PeerRankingRead(stored=stored))

    async def _consume(self, max_unacked: int) -> None:
        async with self._session.consume(PENDING, SCORER, max_unacked=max_unacked) as deliveries:
            async for delivery in deliveries:
                await self._take(delivery)

    async def _take(self, delivery: Delivery) -> None:
        try:
            pending = decode(delivery.data, Pending)
            attempt_of(pending)
        except UnknownSchemaError:
            delivery.nak(UNKNOWN_DELAY)
        except DecodeError as error:
            log.warning("a message becomes a dead letter", subject=delivery.subject, reason=str(error))
            await self._publisher.publish_dead_letter(delivery, str(error), "", cause="undecodable")
            delivery.ack()
        else:
            self._process.peers.read("watcher", pending.config, pending.profile, self._process.clock.now())
            if pending.profile in self._ranker.profiles:
                self._receive(delivery, pending)
            else:
                delivery.nak(UNKNOWN_DELAY)

    def _receive(self, delivery: Delivery, pending: Pending) -> None:
        self._metrics.count("berth_messages_received_total", stream=PENDING)
        if self._logs_steps:
            about = {"pod": pending.pod.key, "uid": pending.pod.uid, "attempt": pending.attempt}
            log.info("pod received", **about, trace_id=trace_id_of(delivery.headers), delivered=delivery.delivered)
        self._loop.inbox.put(PendingReceived(delivery=delivery, pending=pending))

    # --- effects

    def _carry_out(self, effect: Effect) -> Coroutine[Any, Any, None] | None:  # noqa: C901 - one case an effect
        match effect:
            case PublishRanked():
                self._publisher.publish_soon(effect)
            case AckPending():
                effect.delivery.ack()
            case NakPending():
                effect.delivery.nak(None if effect.at_once else RETRY_DELAY)
            case SetAsidePending():
                effect.delivery.set_aside()
            case KeepAlive():
                self._keep_alive(effect)
            case ObserveRanking():
                self._observe(effect)
            case ReportUndecodable():
                self._undecodable.report(effect.subject, effect.reason)
            case LogFailure():
                log.error(effect.text, attempt=effect.attempt, exc_info=effect.error)
            case WriteDeadLetter():
                return self._publish_dead_letter(effect)
            case AskExtenders():
                return self._ask(effect)
            case CountSuspect():
                return self._count_try(effect)
            case ClearSuspect():
                return self._clear_tries(effect)
        return None

    def _keep_alive(self, effect: KeepAlive) -> None:
        for delivery in effect.deliveries:
            delivery.in_progress()
        set_gauges(self._metrics, self._core.view, held=len(effect.deliveries))

    def _span(self, held: PendingDelivery) -> AbstractContextManager[Span]:
        return self._process.tracing.span("rank", parent=held.delivery.headers.get(TRACEPARENT))

    def _observe(self, effect: ObserveRanking) -> None:
        profile = self._ranker.profiles[effect.message.profile]
        self._metrics.observe("berth_hold_duration_seconds", effect.held_seconds)
        count_ranking(self._metrics, effect.message, profile, effect.timing, effect.seconds)
        for point, (seconds, code, began) in effect.timing.points.items() if effect.is_recorded else ():
            notes = {"status": code.label}
            self._process.tracing.past(point, effect.traceparent, began=began, seconds=seconds, notes=notes)

    async def _publish_dead_letter(self, effect: WriteDeadLetter) -> None:
        delivery, cause = effect.held.delivery, "undecodable" if effect.in_place_of_answer else "failed"
        try:
            await self._publisher.publish_dead_letter(delivery, effect.reason, effect.held.pending.attempt, cause=cause)
        except BerthError as error:
            log.warning("publishing a dead letter failed", attempt=effect.held.pending.attempt, reason=str(error))
            is_stored = False
        else:
            is_stored = True
        if effect.in_place_of_answer:
            self._loop.inbox.put(DeadLetterStored(sequence=effect.held.sequence, is_stored=is_stored))

    async def _ask(self, effect: AskExtenders) -> None:
        """Ask extenders. Any exception is an error of the pod."""
        held = effect.held
        try:
            extension = await self._extenders.ask(held.pending.pod, effect.to_extend, effect.nodes)
            answer: Event = ExtendersAnswered(sequence=held.sequence, extension=extension)
        except ExtenderError as error:
            answer = ExtendersFailed(sequence=held.sequence, reason=str(error))
        except Exception as error:
            log.exception("asking extenders failed", attempt=held.pending.attempt)
            answer = ExtendersFailed(sequence=held.sequence, reason=f"asking extenders raised {type(error).__name__}")
        self._loop.inbox.put(answer)

    async def _count_try(self, effect: CountSuspect) -> None:
        """Count a try, or rank the pod again later. Raises BusLostError, MissingError: the session ends."""
        try:
            tries = await count_try(self._session, TRIES, _key_of(effect.held))
        except (BusLostError, MissingError):
            raise
        except TemporaryError as error:
            log.warning("ranking a suspect again later", attempt=effect.held.pending.attempt, reason=str(error))
            self._loop.inbox.put(SuspectNotCounted())
        else:
            self._loop.inbox.put(SuspectCounted(tries=tries))

    async def _clear_tries(self, effect: ClearSuspect) -> None:
        """Clear the count. If that fails, the count expires."""
        with suppress(BerthError):
            await clear_tries(self._session, TRIES, _key_of(effect.held))


def _key_of(held: PendingDelivery) -> str:
    # By pod, so that an attempt goes on counting where the one before it was replaced.
    return key("pod", held.pending.pod.uid)


class RankingPublisher:
    """Publishes on one session, without a task per answer; the outcome is an event."""

    def __init__(
        self, session: Session, metrics: Meter, put: Callable[[Event], None], *, logs_steps: bool = False
    ) -> None:
        self._session = session
        self._metrics = metrics
        self._put = put
        self._logs_steps = logs_steps
        self.sent: Final = SentRankings()

    def publish_soon(self, effect: PublishRanked) -> None:
        try:
            staged = ranked_message(self._session, effect.message, effect.headers)
        except PermanentError as error:
            self._put(RankedRefused(sequence=effect.held.sequence, reason=str(error)))
            return
        self.sent.add(staged.subject, staged.data)
        staged.publish_soon(self._session, partial(self._on_answer, effect, staged))

    async def publish_dead_letter(self, delivery: Delivery, reason: str, attempt: str, *, cause: str) -> None:
        """Publish a dead letter that quotes the message. Raises as :meth:`Session.publish`."""
        self._metrics.count("berth_dead_letters_total", cause=cause)
        await publish_dead_letter(self._session, dead_letter(delivery, reason, attempt))

    def _on_answer(self, effect: PublishRanked, staged: StagedMessage, answer: PubAck | BerthError) -> None:
        sequence = effect.held.sequence
        if isinstance(answer, PubAck):
            self._metrics.count("berth_messages_published_total", stream=RANKED)
            if self._logs_steps:
                log_ranking(effect.message, effect.headers)
            if answer.duplicate:
                self.sent.forget(staged.subject)
            self._put(RankedStored(sequence=sequence))
        elif isinstance(answer, PermanentError):
            self._put(RankedRefused(sequence=sequence, reason=str(answer)))
        else:
            log.warning("publishing failed, the message is redelivered", reason=str(answer))
            if not isinstance(answer, UnansweredError | BusLostError):
                self.sent.forget(staged.subject)
            self._put(RankedNotStored(sequence=sequence))


def log_ranking(message: Ranked, headers: Mapping[str, str]) -> None:
    log.info(
        "pod ranked",
        pod=message.pod.key,
        uid=message.pod.uid,
        attempt=message.attempt,
        trace_id=trace_id_of(headers),
        node=message.candidates[0].node if message.candidates else "",
        evaluated=message.evaluated,
        feasible=message.feasible,
        reason=message.error or message.message,
    )


class SentRankings:
    """This scorer's rankings on their way through RANKED.

    Their proposals count since the ranking, so their copies are skipped undecoded, which saves an eighth of a single
    scorer's time.
    """

    # More than are on their way at once. Beyond it the oldest is forgotten, because its copy may be lost.
    MOST: Final = 1024

    def __init__(self) -> None:
        self._by_subject: dict[str, bytes] = {}

    def add(self, subject: str, data: bytes) -> None:
        self._by_subject.pop(subject, None)
        self._by_subject[subject] = data
        if len(self._by_subject) > self.MOST:
            del self._by_subject[next(iter(self._by_subject))]

    def forget(self, subject: str) -> None:
        self._by_subject.pop(subject, None)

    def has(self, subject: str, data: bytes) -> bool:
        """Whether exactly these bytes were sent; true once.

        Other bytes come from another scorer, and end the wait for this scorer's own.
        """
        return self._by_subject.pop(subject, None) == data


def dead_letter(delivery: Delivery, reason: str, attempt: str = "") -> DeadLetter:
    payload = delivery.data.partition(WHOLE_POD)[0][:PAYLOAD_QUOTED].decode(errors="replace")
    return DeadLetter(subject=delivery.subject, reason=reason, service="scorer", attempt=attempt, payload=payload)


def count_ranking(metrics: Meter, message: Ranked, profile: Profile, timing: Timing, seconds: float) -> None:
    metrics.observe("scheduler_scheduling_algorithm_duration_seconds", seconds)
    if message.view_age_seconds is not None:
        metrics.observe("berth_view_age_seconds", message.view_age_seconds)
    if profile.post_filters and "PostFilter" in timing.points:
        metrics.count("scheduler_preemption_attempts_total")
    for point, took in timing.points.items():
        metrics.observe(
            "scheduler_framework_extension_point_duration_seconds",
            took.seconds,
            extension_point=LABELS.get(point, point),
            status=took.code.label,
            profile=message.profile,
        )
    for (plugin, point), took in timing.plugins.items():
        metrics.observe(
            "scheduler_plugin_execution_duration_seconds",
            took.seconds,
            plugin=plugin,
            extension_point=LABELS.get(point, point),
            status=took.code.label,
        )


def set_gauges(metrics: Meter, view: View, *, held: int) -> None:
    metrics.set("berth_held_pods", held)
    metrics.set("berth_proposals", len(view.proposals))
    metrics.set("scheduler_cache_size", view.snapshot.node_count, type="nodes")
    metrics.set("scheduler_cache_size", view.snapshot.pod_count, type="pods")
    metrics.set("scheduler_cache_size", len(view.proposals), type="assumed_pods")
    for kind, complete_at in view.complete.items():
        metrics.set("berth_mirror_complete_timestamp_seconds", complete_at.timestamp(), kind=kind)
