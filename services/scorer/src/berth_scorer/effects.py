"""Carries out the effects of the scorer's core; answers are events. Publishes and counts rankings."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any, Final

from berth.api.trimming import WHOLE
from berth.bus.interface import (
    BusLostError,
    BusyError,
    Delivery,
    MissingError,
    PubAck,
    Session,
    StoreFullError,
)
from berth.bus.stages import StagedMessage, group_ranked_message, publish_dead_letter, ranked_message
from berth.bus.topology import RANKED, TRIES
from berth.errors import BerthError, PermanentError, TemporaryError
from berth.extenders.client import Extenders
from berth.extenders.wire import ExtenderError
from berth.framework.plugincalls import Timing
from berth.framework.profile import Profile
from berth.lifecycle.process import Process
from berth.lifecycle.sessions import UndecodableReporter
from berth.lifecycle.tries import clear_tries, count_try
from berth.messages.attempts import DeadLetter, Pending, Ranked
from berth.messages.groupattempts import GroupRanked
from berth.messages.subjects import key, trace_id_of
from berth.observability.logging import get_logger
from berth.observability.metrics import Meter
from berth.ranking.view import View
from berth.settings.settings import V_STEP
from berth_scorer.events import (
    AckPending,
    AskExtenders,
    ClearSuspect,
    CountMissedCopies,
    CountSuspect,
    DeadLetterStored,
    Effect,
    Event,
    ExtendersAnswered,
    ExtendersFailed,
    KeepAlive,
    LogFailure,
    NakPending,
    ObservePlan,
    ObserveRanking,
    PendingDelivery,
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

log = get_logger()

RETRY_DELAY: Final = timedelta(seconds=2)  # until a message is redelivered after a failed publish
# Seconds between two tries to publish a ranking that a full RANKED has refused. Its places become free all the time,
# and a hostile scorer that fills it takes those that nobody else takes.
FULL_RETRY_SECONDS: Final = 0.1
# Tries, for 10 s. Then PENDING is redelivered; from the fourth delivery on its pod is a suspect.
FULL_TRIES: Final = 100
PAYLOAD_QUOTED: Final = 4096  # bytes of a message in its dead letter
# Start of the whole pod in a message. Only extenders read it; its environment may contain passwords.
WHOLE_POD: Final = f',"{WHOLE}":'.encode()
LABELS: Final[Mapping[str, str]] = {
    "NormalizeScore": "ScoreExtensionNormalize",
    "AddPod": "PreFilterExtensionAddPod",
    "RemovePod": "PreFilterExtensionRemovePod",
}  # kube-scheduler's, where they differ from the extension points


class ScorerEffects:
    """Carries out the core's effects on one session; answers go to ``put``."""

    def __init__(  # noqa: PLR0913 - the parts that carry out effects, and where answers go
        self,
        process: Process,
        session: Session,
        *,
        profiles: Mapping[str, Profile],
        view: View,
        extenders: Extenders,
        put: Callable[[Event], None],
    ) -> None:
        self._session = session
        self._profiles = profiles
        self._view = view
        self._extenders = extenders
        self._put = put
        self._metrics = process.metrics
        self._tracing = process.tracing
        self.undecodable: Final = UndecodableReporter(process.metrics)
        self.publisher: Final = RankingPublisher(
            session,
            process.metrics,
            put,
            later=asyncio.get_running_loop().call_later,
            logs_steps=process.settings.log.verbosity >= V_STEP,
        )

    def carry_out(self, effect: Effect) -> Coroutine[Any, Any, None] | None:  # noqa: C901, PLR0912 - one case an effect
        match effect:
            case PublishRanked():
                self.publisher.publish_soon(effect)
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
            case ObservePlan():
                self._observe_plan(effect)
            case ReportUndecodable():
                self.undecodable.report(effect.subject, effect.reason)
            case LogFailure():
                log.error(effect.text, attempt=effect.attempt, exc_info=effect.error)
            case WriteDeadLetter():
                return self._publish_dead_letter(effect)
            case AskExtenders():
                return self._ask(effect)
            case CountMissedCopies(count=count):
                self._metrics.count("berth_copies_missed_total", count)
            case CountSuspect():
                return self._count_try(effect)
            case ClearSuspect():
                return self._clear_tries(effect)
        return None

    def _keep_alive(self, effect: KeepAlive) -> None:
        for delivery in effect.deliveries:
            delivery.in_progress()
        set_gauges(self._metrics, self._view, held=len(effect.deliveries))

    def _observe(self, effect: ObserveRanking) -> None:
        profile = self._profiles[effect.message.profile]
        self._metrics.observe("berth_hold_duration_seconds", effect.held_seconds)
        count_ranking(self._metrics, effect.message, profile, effect.timing, effect.seconds)
        for point, (seconds, code, began) in effect.timing.points.items() if effect.is_recorded else ():
            notes = {"status": code.label}
            self._tracing.past(point, effect.traceparent, began=began, seconds=seconds, notes=notes)

    def _observe_plan(self, effect: ObservePlan) -> None:
        message = effect.message
        self._metrics.observe("berth_hold_duration_seconds", effect.held_seconds)
        self._metrics.observe("berth_group_plan_duration_seconds", message.seconds)
        plan, members = message.plan, message.bundle.members
        notes = {"members": len(members), "placed": len(plan.members), "steps": plan.steps}
        self._tracing.past("plan", effect.traceparent, began=effect.began, seconds=message.seconds, notes=notes)

    async def _publish_dead_letter(self, effect: WriteDeadLetter) -> None:
        delivery, cause = effect.held.delivery, "undecodable" if effect.in_place_of_answer else "failed"
        try:
            await self.publisher.publish_dead_letter(delivery, effect.reason, effect.held.pending.attempt, cause=cause)
        except BerthError as error:
            log.warning("publishing a dead letter failed", attempt=effect.held.pending.attempt, reason=str(error))
            is_stored = False
        else:
            is_stored = True
        if effect.in_place_of_answer:
            self._put(DeadLetterStored(sequence=effect.held.sequence, is_stored=is_stored))

    async def _ask(self, effect: AskExtenders) -> None:
        """Any exception is an error of the pod."""
        held = effect.held
        try:
            extension = await self._extenders.ask(effect.pod, effect.to_extend, effect.nodes)
            answer: Event = ExtendersAnswered(sequence=held.sequence, extension=extension)
        except ExtenderError as error:
            answer = ExtendersFailed(sequence=held.sequence, reason=str(error))
        except Exception as error:
            log.exception("asking extenders failed", attempt=held.pending.attempt)
            answer = ExtendersFailed(sequence=held.sequence, reason=f"asking extenders raised {type(error).__name__}")
        self._put(answer)

    async def _count_try(self, effect: CountSuspect) -> None:
        """Count a try, or rank the pod again later. Raises BusLostError, MissingError: the session ends."""
        try:
            tries = await count_try(self._session, TRIES, _key_of(effect.held))
        except (BusLostError, MissingError):
            raise
        except TemporaryError as error:
            log.warning("ranking a suspect again later", attempt=effect.held.pending.attempt, reason=str(error))
            self._put(SuspectNotCounted())
        else:
            self._put(SuspectCounted(tries=tries))

    async def _clear_tries(self, effect: ClearSuspect) -> None:
        """Clear the count. If that fails, the count expires."""
        with suppress(BerthError):
            await clear_tries(self._session, TRIES, _key_of(effect.held))


def _key_of(held: PendingDelivery) -> str:
    # By pod or group, so that an attempt goes on counting where the one before it was replaced.
    pending = held.pending
    return key("pod", pending.pod.uid) if isinstance(pending, Pending) else key("group", pending.group.uid)


class RankingPublisher:
    """Publishes on one session, without a task per answer; the outcome is an event."""

    def __init__(
        self,
        session: Session,
        metrics: Meter,
        put: Callable[[Event], None],
        *,
        later: Callable[[float, Callable[[], None]], object],
        logs_steps: bool = False,
    ) -> None:
        """``later``: calls a function after so many seconds."""
        self._session = session
        self._metrics = metrics
        self._put = put
        self._later = later
        self._logs_steps = logs_steps
        self.sent: Final = SentRankings()

    def publish_soon(self, effect: PublishRanked) -> None:
        try:
            message = effect.message
            if isinstance(message, Ranked):
                staged = ranked_message(self._session, message, effect.headers)
            else:
                staged = group_ranked_message(self._session, message, effect.headers)
        except PermanentError as error:
            self._put(RankedRefused(sequence=effect.held.sequence, reason=str(error)))
            return
        self._publish(effect, staged, FULL_TRIES)

    def _publish(self, effect: PublishRanked, staged: StagedMessage, tries: int) -> None:
        self.sent.add(staged.subject, staged.data)
        staged.publish_soon(self._session, partial(self._on_answer, effect, staged, tries - 1))

    async def publish_dead_letter(self, delivery: Delivery, reason: str, attempt: str, *, cause: str) -> None:
        """Publish a dead letter that quotes the message. Raises as :meth:`Session.publish`."""
        self._metrics.count("berth_dead_letters_total", cause=cause)
        await publish_dead_letter(self._session, dead_letter(delivery, reason, attempt))

    def _on_answer(self, effect: PublishRanked, staged: StagedMessage, tries: int, answer: PubAck | BerthError) -> None:
        sequence = effect.held.sequence
        if not isinstance(answer, PubAck) or answer.duplicate:
            # There is no copy, or it may never come: one that does is read as another scorer's.
            self.sent.forget(staged.subject)
        if isinstance(answer, PubAck):
            self._metrics.count("berth_messages_published_total", stream=RANKED)
            if self._logs_steps:
                log_ranking(effect.message, effect.headers)
            self._put(RankedStored(sequence=sequence))
        elif isinstance(answer, StoreFullError | BusyError) and tries:
            self._later(FULL_RETRY_SECONDS, partial(self._publish, effect, staged, tries))
        elif isinstance(answer, PermanentError):
            self._put(RankedRefused(sequence=sequence, reason=str(answer)))
        else:
            log.warning("publishing failed, the message is redelivered", reason=str(answer))
            self._put(RankedNotStored(sequence=sequence))


def log_ranking(message: Ranked | GroupRanked, headers: Mapping[str, str]) -> None:
    if isinstance(message, GroupRanked):
        plan = message.plan
        log.info(
            "group planned",
            group=str(message.group.key),
            uid=message.group.uid,
            attempt=message.attempt,
            trace_id=trace_id_of(headers),
            members=len(message.bundle.members),
            placed=len(plan.members),
            domain=plan.domain,
            reason=plan.error or plan.message,
        )
        return
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

    Their proposals count since the ranking, so their copies are skipped undecoded.
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
