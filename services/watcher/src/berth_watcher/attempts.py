"""Where a pod stood under the former leader, as its messages tell: in flight, decided, or never tried.

The way of each waiting pod: into the queue, onto the bus, and out again by what is decided of its latest attempt.

A pod leaves the flight by a final Decision of its latest attempt, or when the API shows it bound, gone or changed. An
attempt of which nothing is found any more is followed by the next one (PROTOCOL 3).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from berth.api.errors import DecodeError
from berth.api.messages import DeadLetter, Decision, Outcome, Pending
from berth.api.pod import Pod, changed, is_bound, is_finished
from berth.api.subjects import Attempt, Term
from berth.framework.events import pod_update_actions
from berth_watcher.events import (
    CountScheduled,
    DecisionReceived,
    Effect,
    FoundDecision,
    FoundInFlight,
    LookedUp,
    LookUpAttempt,
    PodRead,
    PublishDeadLetter,
    PublishPending,
    PublishRefused,
    ReadPod,
    StepDown,
    Warn,
)
from berth_watcher.hints import QueueingHints
from berth_watcher.queue import ASLEEP, InFlightWindow, SchedulingQueue
from berth_watcher.queuedpod import Stage, WaitingPod, label_of_own_update
from berth_watcher.requeue import Requeue
from berth_watcher.settings import AttemptSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class FormerState:
    """What counts of what was found: of several attempts the highest."""

    attempt: Attempt | None = None
    """The latest one; ``None`` for a pod that nobody has tried."""
    in_flight: Pod | None = None
    """The pod as a message of that attempt carries it, when there is one and no final Decision."""
    has_place: bool = True
    """Whether it takes a place in the window; after ``waiting`` it does not."""
    decided: FoundDecision | None = None
    """The final Decision of that attempt."""


def former_state(uid: str, found: FoundInFlight | None, last: FoundDecision | None) -> FormerState:
    """From the message in PENDING or RANKED and the last Decision of the subject."""
    said = _attempt_of(uid, last)
    if found is not None and (said is None or said.order < found.attempt.order):
        return FormerState(attempt=found.attempt, in_flight=found.pod)
    if said is None or last is None:
        return FormerState()
    if last.decision.outcome.final:
        return FormerState(attempt=said, decided=last)
    is_there = found is not None and found.attempt == said
    return FormerState(attempt=said, in_flight=found.pod if found and is_there else None, has_place=False)


def _attempt_of(uid: str, last: FoundDecision | None) -> Attempt | None:
    """The attempt of the last Decision of a subject, unless it was a namesake's."""
    if last is None or last.decision.uid != uid:
        return None
    try:
        return Attempt.parse(last.decision.attempt)
    except DecodeError:
        return None


LOST_IN_A_ROW: Final = 3
"""Attempts of one pod that got lost one after the other: the third one counts as its error."""

PARKED_SECONDS: Final = 10.0
"""After which the API is asked about a pod that the binder called bound and of which the watch is silent."""


class Attempts:
    """Who is tried when, under one term. Effects go to ``emit``."""

    def __init__(  # noqa: PLR0913 - the parts of the watcher that it plays on
        self,
        *,
        term: Term,
        queue: SchedulingQueue,
        requeue: Requeue,
        interest: QueueingHints,
        profiles: Mapping[str, object],
        settings: AttemptSettings,
        emit: Callable[[Effect], None],
        wall_clock: Callable[[float], datetime],
    ) -> None:
        self._term = term
        self._queue = queue
        self._requeue = requeue
        self._interest = interest
        self._profiles = profiles
        self._settings = settings
        self._emit = emit
        self._wall_clock = wall_clock
        self.window = InFlightWindow(settings.window_floor)
        self.running = False
        """Whether the takeover has found out what is in flight; until then pods are held."""

    def saw(self, pod: Pod, now: float) -> None:
        """The API shows a pod."""
        waiting = self._queue.get(pod.metadata.uid)
        if not self._is_ours(pod):
            if waiting is not None:
                self._count(waiting, pod, now)
                self._drop(waiting)
        elif waiting is None:
            self._enter(pod, now)
        else:
            self._update(waiting, pod, now)

    def saw_deleted(self, uid: str) -> None:
        """The API shows that a pod is not there any more."""
        waiting = self._queue.get(uid)
        if waiting is not None:
            self._drop(waiting)

    def heard(self, event: DecisionReceived, now: float) -> None:
        """A Decision. Only one of the latest attempt counts; of two for it that of the higher epoch, then the first."""
        decision = event.decision
        if decision.outcome.final:
            self.window.decided(now)
        waiting = self._queue.get(decision.uid)
        if waiting is None or str(waiting.attempt) != decision.attempt:
            return
        in_flight = waiting.stage is Stage.IN_FLIGHT
        if decision.epoch < waiting.epoch or (not in_flight and decision.epoch == waiting.epoch):
            return
        if decision.outcome.final:
            self._conclude(waiting, decision, now, event.time)
        elif in_flight:
            waiting.epoch = decision.epoch
            self.window.leave(waiting.uid)
            self._queue.move(waiting, Stage.IN_FLIGHT, due=now + self._settings.silent_seconds)

    def looked_up(self, event: LookedUp, now: float) -> None:
        """Where a silent attempt is. Neither message nor final Decision: the next one, or after the third its error."""
        waiting = self._queue.get(event.attempt.uid)
        if waiting is None or waiting.stage is not Stage.IN_FLIGHT or waiting.attempt != event.attempt or event.held:
            return
        decision = event.decision
        if decision is not None and decision.attempt == str(event.attempt) and decision.outcome.final:
            self._conclude(waiting, decision, now, event.time or self._wall_clock(now))
            return
        waiting.misses += 1
        if waiting.misses < LOST_IN_A_ROW:
            self._publish(waiting, now)
        else:
            lost = f"looking for attempt {str(waiting.attempt)!r}: it is in none of PENDING, RANKED and DECISIONS"
            self._give_up(waiting, f"{lost}; {LOST_IN_A_ROW} attempts got lost in a row", now)

    def publish_refused(self, event: PublishRefused, now: float) -> None:
        """An attempt that the bus will never take is its pod's error at once: nobody else waits for it."""
        waiting = self._queue.get(event.attempt.uid)
        if waiting is not None and waiting.stage is Stage.IN_FLIGHT and waiting.attempt == event.attempt:
            self._give_up(waiting, event.reason, now)

    def read(self, event: PodRead, now: float) -> None:
        """What the API says of a pod that the binder called gone or bound."""
        waiting = self._queue.get(event.uid)
        if waiting is None or waiting.stage is not Stage.PARKED or event.pod is None or not self._is_ours(event.pod):
            return  # gone or bound indeed: the reflector is about to say so
        waiting.pod = event.pod
        self._requeue.again(waiting, now, self._wall_clock(now))

    def woken(self, pods: list[WaitingPod], now: float) -> None:
        """Something may help these pods."""
        for waiting in pods:
            if waiting.stage is Stage.GATED:
                self._admit(waiting)
            else:
                self._requeue.wake(waiting, now)

    def start(self, in_flight: Mapping[str, FoundInFlight], decisions: Mapping[str, FoundDecision], now: float) -> None:
        """The bus has been looked through: every pod that was held goes where it stood, and the queue runs."""
        self.running = True
        for waiting in [pod for pod in self._queue.pods() if pod.stage is Stage.HELD]:
            stood = former_state(waiting.uid, in_flight.get(waiting.uid), decisions.get(waiting.uid))
            self._restore(waiting, stood, now)

    def timers(self, now: float) -> None:
        """Do what is due."""
        for waiting in self._queue.due(now):
            if waiting.stage is Stage.IN_FLIGHT and waiting.attempt is not None:
                meta = waiting.pod.metadata
                self._emit(
                    LookUpAttempt(
                        attempt=waiting.attempt, profile=waiting.profile, namespace=meta.namespace, pod=meta.name
                    )
                )
                self._queue.remind(waiting, now + self._settings.silent_seconds)
            elif waiting.stage is Stage.PARKED:
                self._ask(waiting, now)
            else:
                self._requeue.timer(waiting)

    def release(self, now: float) -> None:
        """Publish whose turn it is, as long as the window has room."""
        room = self.window.room(now) if self.running else 0
        while room > 0:
            waiting = self._queue.pop()
            if waiting is None:
                return
            self.window.enter(waiting.uid)
            self._publish(waiting, now, waited=now - (waiting.active_since or now))
            room -= 1

    def _is_ours(self, pod: Pod) -> bool:
        """Whether the pod is to be placed by one of the profiles: unbound, alive and asking for it."""
        return (
            not pod.spec.node_name
            and pod.spec.scheduler_name in self._profiles
            and pod.metadata.deletion_timestamp is None
            and not is_finished(pod)
        )

    def _enter(self, pod: Pod, now: float) -> None:
        waiting = WaitingPod(pod=pod, since=_created(pod) or self._wall_clock(now))
        self._queue.add(waiting)
        self._admit(waiting)

    def _admit(self, waiting: WaitingPod) -> None:
        status = self._interest.pre_enqueue(waiting.pod)
        if not status.is_success:
            waiting.blockers, waiting.message = frozenset({status.plugin}), "; ".join(status.reasons)
            self._queue.move(waiting, Stage.GATED)
        else:
            waiting.blockers, waiting.message = frozenset(), ""
            self._queue.move(waiting, Stage.ACTIVE if self.running else Stage.HELD)

    def _update(self, waiting: WaitingPod, pod: Pod, now: float) -> None:
        before, waiting.pod = waiting.pod, pod
        if waiting.stage in ASLEEP:
            waiting.event = label_of_own_update(pod_update_actions(before, pod))
        if waiting.stage is Stage.GATED:
            self._admit(waiting)
        elif waiting.stage is Stage.IN_FLIGHT:
            if waiting.published is not None and changed(waiting.published, pod):
                self._publish(waiting, now)
        elif waiting.stage is Stage.UNSCHEDULABLE and changed(before, pod):
            self._requeue.wake(waiting, now)

    def _count(self, waiting: WaitingPod, pod: Pod, now: float) -> None:
        """Whether it is ours that was bound: its attempt is on its way, or was decided so."""
        decided = waiting.stage is Stage.PARKED and waiting.outcome is Outcome.BOUND
        ours = decided or waiting.stage is Stage.IN_FLIGHT
        if is_bound(pod) and ours and waiting.attempt is not None and waiting.entered_at is not None:
            self._emit(CountScheduled(attempts=waiting.attempt.n, seconds=now - waiting.entered_at))

    def _drop(self, waiting: WaitingPod) -> None:
        self.window.leave(waiting.uid)
        self._queue.remove(waiting)

    def _publish(self, waiting: WaitingPod, now: float, *, waited: float | None = None) -> None:
        """The next attempt; a place in the window is the caller's matter."""
        attempt = waiting.attempt.next(self._term) if waiting.attempt else _first(waiting, self._term)
        message = Pending(
            config=self._settings.config,
            attempt=str(attempt),
            profile=waiting.profile,
            pod=waiting.pod,
            after=waiting.after,
        )
        waiting.attempt, waiting.published, waiting.epoch = attempt, waiting.pod, 0
        waiting.first = False
        self._queue.move(waiting, Stage.IN_FLIGHT, due=now + self._settings.silent_seconds)
        self._emit(PublishPending(message=message, waited_seconds=waited))

    def _conclude(
        self, waiting: WaitingPod, decision: Decision, now: float, decided_at: datetime, age: float = 0.0
    ) -> None:
        """A final Decision: what each outcome means (PROTOCOL 5)."""
        self.window.leave(waiting.uid)
        waiting.note(decision)
        match decision.outcome:
            case Outcome.UNSCHEDULABLE | Outcome.PREEMPTING:
                self._requeue.refused(waiting, decision, now, decided_at, age)
            case Outcome.CONFLICT:
                self._requeue.conflict(waiting, decision, now, decided_at, age)
            case Outcome.ERROR:
                self._requeue.failed(waiting, now, decided_at, age)
            case Outcome.GONE:
                self._queue.move(waiting, Stage.PARKED)
                self._ask(waiting, now)
            case _:
                self._queue.move(waiting, Stage.PARKED, due=now + PARKED_SECONDS)

    def _ask(self, waiting: WaitingPod, now: float) -> None:
        meta = waiting.pod.metadata
        self._emit(ReadPod(uid=waiting.uid, namespace=meta.namespace, name=meta.name))
        self._queue.remind(waiting, now + PARKED_SECONDS)

    def _give_up(self, waiting: WaitingPod, reason: str, now: float) -> None:
        """An error of which no Decision can tell: into ``dead`` and the log with it, and the pod backs off."""
        subject = str(waiting.subject("pending"))
        self._emit(
            PublishDeadLetter(
                letter=DeadLetter(subject=subject, reason=reason, service="watcher", attempt=str(waiting.attempt))
            )
        )
        self._emit(Warn(sentence=reason, fields={"pod": waiting.pod.key, "uid": waiting.uid}))
        self.window.leave(waiting.uid)
        waiting.misses, waiting.outcome, waiting.message = 0, Outcome.ERROR, reason
        self._requeue.failed(waiting, now, self._wall_clock(now))

    def _restore(self, waiting: WaitingPod, stood: FormerState, now: float) -> None:
        """Go on where the pod stood under the former leader."""
        waiting.attempt = stood.attempt
        if stood.attempt is not None and stood.attempt.term > self._term:
            self._emit(StepDown(reason=f"attempt {str(stood.attempt)!r}", term=stood.attempt.term))
        if stood.decided is not None and stood.attempt is not None:
            waiting.failures = stood.attempt.n - 1
            last = stood.decided
            self._conclude(waiting, last.decision, now, last.time, last.age_seconds)
        elif stood.in_flight is not None:
            self._resume(waiting, stood.in_flight, has_place=stood.has_place, now=now)
        else:
            self._queue.move(waiting, Stage.ACTIVE)

    def _resume(self, waiting: WaitingPod, published: Pod, *, has_place: bool, now: float) -> None:
        """In flight as it is; after ``waiting`` without a place in the window."""
        waiting.published = published
        if has_place:
            self.window.enter(waiting.uid)
        if changed(published, waiting.pod):
            self._publish(waiting, now)
        else:
            self._queue.move(waiting, Stage.IN_FLIGHT, due=now + self._settings.silent_seconds)


def _first(waiting: WaitingPod, term: Term) -> Attempt:
    return Attempt(uid=waiting.uid, term=term, n=1)


def _created(pod: Pod) -> datetime | None:
    text = pod.metadata.creation_timestamp
    try:
        return datetime.fromisoformat(text) if text else None
    except ValueError:
        return None
