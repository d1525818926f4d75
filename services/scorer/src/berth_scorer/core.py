"""The scorer's core: events in, effects out, with an injected clock. No I/O and no log.

A PENDING message waits in the backlog until the view has reached its positions. Then extenders are asked, the pod is
ranked, and the message is acknowledged once RANKED has the answer (docs/protocol.md, 4). A suspect (docs/protocol.md,
6.4) is counted and ranked alone. A group is planned in slices, between which pods are ranked; one at a time, because
each works on a copy of the Snapshot.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import timedelta
from typing import Final

import msgspec

from berth.bus.topology import CLUSTER, DECISIONS
from berth.framework.extending import Extension
from berth.framework.plugincalls import Timing
from berth.lifecycle.tries import MOST_TRIES
from berth.messages.attempts import Pending, Ranked
from berth.messages.groupattempts import GroupPending, GroupRanked
from berth.messages.subjects import TRACEPARENT
from berth.observability.tracing import Span
from berth.ranking.groupranker import Answering, GroupRanker
from berth.ranking.proposals import LIFETIME
from berth.ranking.ranker import Ranker
from berth.ranking.view import View
from berth_scorer.backlog import AheadTurns, Backlog, rank_of
from berth_scorer.events import (
    AckPending,
    ClearSuspect,
    CopiesMissed,
    CountMissedCopies,
    CountSuspect,
    DeadLetterStored,
    DecisionsRead,
    Effect,
    Event,
    ExtendersAnswered,
    ExtendersFailed,
    KeepAlive,
    LiveDataRead,
    LogFailure,
    MirrorRead,
    NakPending,
    ObservePlan,
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
from berth_scorer.questions import GroupQuestions, Questions

# From this delivery on, a message is a suspect for ending scorers, as is one whose former attempt stayed in PENDING: it
# is ranked alone (docs/protocol.md, 6.4).
SUSPECT_DELIVERIES: Final = 4
# Time between two `in_progress` for all held messages: a third of the ack_wait.
HEARTBEAT_SECONDS: Final = 1.0
# Seconds for which a message is held before the scorer says so: a ranking without extenders takes less, and an
# announcement with the attempt comes before the watcher's first look-up.
LONG_SECONDS: Final = 2.0
# One pod in this many has its plugins timed (kube-scheduler: one in ten), because timing takes 37 µs, 10 % of a cycle
# at 5,000 nodes. A prime number, so that alternating kinds of pods are all timed.
PLUGINS_EVERY: Final = 11
# Longest time for which plugins work ahead of a pod's ranking. Where devices of shared pools change all the time, their
# work begins anew each time; then the ranking does what is left of it.
MOST_AHEAD_SECONDS: Final = 10.0
# Length of a slice of a plan: a group of a hundred members takes less, and needs no copy of the Snapshot.
PLAN_SLICE_SECONDS: Final = 0.03


class _Planning:
    """A group's plan. ``until``: when its slice ends, by the stopwatch."""

    answering: Answering

    def __init__(self, held: PendingDelivery) -> None:
        self.held = held
        self.until = 0.0


class ScorerCore:
    """Makes all decisions of one session. All events go through ``handle``."""

    def __init__(
        self,
        *,
        ranker: Ranker,
        stopwatch: Callable[[], float],
        spanning: Callable[[PendingDelivery], AbstractContextManager[Span]],
        proposal_lifetime: timedelta = LIFETIME,
        position_wait: timedelta,
    ) -> None:
        """``stopwatch`` measures rankings; ``spanning`` opens a ranking's span."""
        self._ranker = ranker
        self._group_ranker = GroupRanker(
            profiles=ranker.profiles,
            config=ranker.config,
            identity=ranker.identity,
            clock=lambda: stopwatch() + self._offset,
            last_ranked=lambda: self._last_ranked,
        )
        self._stopwatch = stopwatch
        self._spanning = spanning
        self.view: Final = View(proposal_lifetime=proposal_lifetime)
        self._backlog = Backlog(position_wait=position_wait)
        # By sequence, each unsettled message with its newest delivery.
        self._held: dict[int, PendingDelivery] = {}
        # By sequence, the dialogues with extenders.
        self._questions: dict[int, Questions | GroupQuestions] = {}
        # Pods with answers of extenders: they precede the backlog.
        self._answered: deque[PendingDelivery] = deque()
        # Pods whose plugins work ahead of the ranking. They take turns with the backlog, a slice each.
        self._preparing = AheadTurns()
        self._prepares = False
        # The first plan takes its turns among those that work ahead; the others wait for its end.
        self._plans: deque[_Planning] = deque()
        self._may_continue: Callable[[], bool] = lambda: True
        # By sequence, messages whose answer, or a dead letter in its place, is being stored.
        self._publishing: dict[int, PendingDelivery] = {}
        # The counted suspect. No other plugin runs meanwhile, because that one could end the process too.
        self._alone: PendingDelivery | None = None
        self._counting: PendingDelivery | None = None  # the suspect whose count is being stored
        self._offset = 0.0  # from the stopwatch's time to monotonic seconds
        self._beat_at = 0.0
        self._is_closed = False
        self.rankings = 0
        self._last_ranked = ""  # its attempt

    @property
    def held(self) -> int:
        return len(self._held)

    def held_for_long(self, now: float) -> list[str]:
        """Attempts held for seconds, which the watcher must not take for messages that no scorer works on."""
        return [held.pending.attempt for held in self._held.values() if now - held.taken_at >= LONG_SECONDS]

    @property
    def is_idle(self) -> bool:
        return not self._publishing and self._counting is None

    def handle(self, events: Iterable[Event], now: float, may_continue: Callable[[], bool]) -> list[Effect]:
        """Apply events, rank due messages while ``may_continue``, and send ``in_progress`` for held ones.

        The answers of a slice are published together, so that NATS and the binder wake up once.
        """
        self._offset, self._may_continue = now - self._stopwatch(), may_continue
        self._prepares = not self._prepares
        effects: list[Effect] = []
        for event in events:
            effects += self._apply(event, now)
        effects += self._count_when_alone()
        while (held := self._next(now)) is not None:
            effects += self._begin(held)
            if not may_continue():
                break
        if now >= self._beat_at:
            effects.append(self._beat(now))
        return effects

    def due(self) -> float | None:
        if self._is_closed:
            return None
        may_rank = self._alone is None
        if may_rank and (self._answered or self._preparing or self._backlog.is_ready):
            return 0.0
        waits_until = self._backlog.due() if may_rank else None
        return self._beat_at if waits_until is None else min(waits_until, self._beat_at)

    def close(self) -> list[Effect]:
        """Stop ranking, and nak every message whose answer is not being published."""
        self._is_closed = True
        if self._alone is not None and self._alone.sequence not in self._publishing:
            self._alone = None
        for planning in self._plans:
            planning.answering.close()
        self._plans.clear()
        self._questions.clear()
        self._answered.clear()
        self._preparing.clear()
        self._backlog.clear()
        idle = [held.delivery for sequence, held in self._held.items() if sequence not in self._publishing]
        self._held = {sequence: self._held[sequence] for sequence in self._publishing}
        return [NakPending(delivery=delivery, at_once=True) for delivery in idle]

    def _apply(self, event: Event, now: float) -> list[Effect]:  # noqa: C901, PLR0911, PLR0912 - one case an event
        view = self.view
        match event:
            case PendingReceived():
                return self._receive(event, now)
            case MirrorRead():
                return _reports(view.apply_mirror(event.entries, event.position), CLUSTER)
            case DecisionsRead():
                return _reports(view.apply_decisions(event.batch, event.position, now), DECISIONS)
            case LiveDataRead():
                view.reached(event.bucket, event.position)
            case PeerRankingRead(stored=stored):
                problem = view.apply_ranked(stored.data, stored.sequence, now)
                return _reports([problem] if problem else [], stored.subject)
            case OwnRankingRead():
                view.counted_ranked(event.sequence)
            case CopiesMissed():
                view.missed_ranked(event.sequence)
                return [CountMissedCopies(count=event.count)]
            case RankedStored():
                return self._end(event.sequence, is_answered=True)
            case RankedNotStored():
                return self._end(event.sequence, is_answered=False)
            case RankedRefused():
                held = self._publishing[event.sequence]
                return [WriteDeadLetter(held=held, reason=event.reason, in_place_of_answer=True)]
            case DeadLetterStored():
                return self._end(event.sequence, is_answered=event.is_stored)
            case ExtendersAnswered():
                self._on_extenders(event.sequence, event.extension)
            case ExtendersFailed():
                if (asked := self._questions.pop(event.sequence, None)) is not None:
                    self._answered.append(_failed(asked.held, event.reason))
            case SuspectCounted():
                return self._on_counted(event)
            case SuspectNotCounted():
                return self._on_not_counted()
        return []

    def _receive(self, event: PendingReceived, now: float) -> list[Effect]:
        """Hold the message. A redelivery only replaces the delivery that will be settled."""
        delivery, pending = event.delivery, event.pending
        if self._is_closed:
            return [NakPending(delivery=delivery, at_once=True)]
        self.view.received(delivery.sequence, delivery.time)
        older = self._held.get(delivery.sequence)
        if older is not None:
            self._held[delivery.sequence] = replace(older, delivery=delivery)
            return [SetAsidePending(delivery=older.delivery)]
        rank = rank_of(self._ranker.profiles[pending.profile], pending)
        held = PendingDelivery(
            delivery=delivery,
            pending=pending,
            sequence=delivery.sequence,
            taken_at=now,
            rank=rank,
            is_suspect=pending.suspect or delivery.delivered >= SUSPECT_DELIVERIES,
        )
        self._held[delivery.sequence] = held
        self._backlog.add(held, self.view.positions)
        return []

    def _end(self, sequence: int, *, is_answered: bool) -> list[Effect]:
        """Settle the message: acknowledge a stored answer, nak any other."""
        held = self._publishing.pop(sequence)
        newest = self._held.pop(sequence).delivery
        settle: Effect = AckPending(delivery=newest) if is_answered else NakPending(delivery=newest)
        return [settle, *self._end_alone(held)]

    def _beat(self, now: float) -> KeepAlive:
        self._beat_at = now + HEARTBEAT_SECONDS
        self.view.expire(now)
        return KeepAlive(deliveries=[held.delivery for held in self._held.values()])

    # --- ranking

    def _next(self, now: float) -> PendingDelivery | None:
        if self._alone is not None or self._is_closed:
            return None
        if self._answered:
            return self._answered.popleft()
        if self._prepares and self._preparing:
            return self._preparing.popleft()
        held = self._backlog.pop(self.view.positions, now)
        # The first slice may take a second, as any other: of many such pods each waits for a turn, and others do not.
        while held is not None and self._preparing and self._works_ahead(held):
            self._preparing.append(held, has_begun=False)
            held = self._backlog.pop(self.view.positions, now)
        if held is None and self._preparing:
            return self._preparing.popleft()
        return held

    def _works_ahead(self, held: PendingDelivery) -> bool:
        pending = held.pending
        if isinstance(pending, GroupPending):
            return not held.is_suspect
        if pending.error or held.is_suspect or self._ranker.profiles[pending.profile].asks_extenders(pending.pod):
            return False
        return self._ranker.works_ahead(pending, self.view)

    def _begin(self, held: PendingDelivery) -> list[Effect]:
        """Run plugins for a pod; for a suspect, count it first."""
        if held.is_suspect and not held.pending.error:
            self._alone = held
            return self._count_when_alone()
        return self._step(held)

    def _step(self, held: PendingDelivery) -> list[Effect]:
        """Ask the next question to extenders, or rank the pod, or work on the group's plan."""
        pending = held.pending
        if isinstance(pending, GroupPending):
            return self._step_of_group(held, pending)
        asked = self._questions.get(held.sequence)
        if asked is None:
            profile = self._ranker.profiles[pending.profile]
            if pending.error or not profile.asks_extenders(pending.pod):
                if self._is_prepared(held, pending):
                    return self._answer(held, pending, None)
                self._preparing.append(held, has_begun=True)
                return []
            asked = self._questions[held.sequence] = Questions(held, pending)
        if (effects := self._ask(asked)) is not None:
            return effects
        return self._answer(held, pending, asked.answer if isinstance(asked, Questions) else None)

    def _ask(self, asked: Questions | GroupQuestions) -> list[Effect] | None:
        """Ask the next question; None if no question is left."""
        held = asked.held
        try:
            question = asked.next(self._ranker, self.view)
        except Exception as error:  # noqa: BLE001 - an exception of a plugin is the pod's failure, not the scorer's
            del self._questions[held.sequence]
            reason = f"asking extenders raised {type(error).__name__}"
            log = LogFailure(text="asking extenders failed", attempt=held.pending.attempt, error=error)
            return [log, *self._step(_failed(held, reason))]
        if question is None:
            del self._questions[held.sequence]
            return None
        return [question, *self._end_alone(held)]

    def _is_prepared(self, held: PendingDelivery, pending: Pending) -> bool:
        is_late = self._stopwatch() + self._offset - held.taken_at > MOST_AHEAD_SECONDS
        if pending.error or self._alone is not None or is_late:
            return True
        try:
            return self._ranker.prepare(pending, self.view, self._may_continue)
        except Exception:  # noqa: BLE001 - the ranking raises it again, and says it
            return True

    def _answer(self, held: PendingDelivery, pending: Pending, extension: Extension | None) -> list[Effect]:
        """Rank the message and publish the answer; an exception becomes an error and a dead letter."""
        with self._spanning(held) as span:
            span.note("attempt", pending.attempt)
            headers = {TRACEPARENT: span.traceparent}
            if pending.error:
                return [self._publish(held, self._ranker.give_up(pending, pending.error), headers)]
            timing, began = Timing(self._stopwatch), self._stopwatch()
            try:
                message = self._rank(pending, began + self._offset, timing, extension)
            except Exception as error:  # noqa: BLE001 - an exception of a plugin is the pod's failure, not the scorer's
                reason = f"ranking raised {type(error).__name__}: {error}"
                log = LogFailure(text="ranking failed", attempt=pending.attempt, error=error)
                return [log, *self._give_up(held, reason, headers)]
            self.rankings += 1
            observed = ObserveRanking(
                message=message,
                timing=timing,
                seconds=self._stopwatch() - began,
                held_seconds=began + self._offset - held.taken_at,
                traceparent=span.traceparent,
                is_recorded=span.is_recorded,
            )
        return [self._publish(held, message, headers), observed]

    def _rank(self, pending: Pending, now: float, timing: Timing, extension: Extension | None) -> Ranked:
        if self.rankings % PLUGINS_EVERY:
            return self._ranker.answer(pending, self.view, now, timing, extension)
        profile = self._ranker.profiles[pending.profile]
        profile.time_plugins(timing)
        try:
            return self._ranker.answer(pending, self.view, now, timing, extension)
        finally:
            profile.time_plugins(None)

    def _step_of_group(self, held: PendingDelivery, pending: GroupPending) -> list[Effect]:
        """Ask the next question to extenders, or work on the plan for a slice."""
        if self._plans and self._plans[0].held.sequence == held.sequence:
            return self._plan(self._plans[0])
        if pending.error:
            return self._answer_group(held, self._group_ranker.give_up(pending, pending.error))
        asked = self._questions.get(held.sequence)
        if asked is None and (examples := self._to_ask_about(pending)):
            asked = self._questions[held.sequence] = GroupQuestions(held, examples)
        if asked is not None and (effects := self._ask(asked)) is not None:
            return effects
        planning = _Planning(held)
        planning.answering = self._group_ranker.answer(
            pending,
            self.view,
            asked.answers if isinstance(asked, GroupQuestions) else {},
            may_continue=lambda: self._stopwatch() < planning.until,
        )
        if self._alone is not None:
            return self._plan(planning)
        self._plans.append(planning)
        return self._plan(planning) if len(self._plans) == 1 else []

    def _to_ask_about(self, pending: GroupPending) -> list[Pending]:
        """A member of each class about which extenders are asked, as if it were alone."""
        profile = self._ranker.profiles[pending.profile]
        if not profile.extenders:
            return []
        of_class: dict[int, Pending] = {}
        for member, pod in zip(pending.bundle.members, pending.bundle.pods(), strict=True):
            if member.of_class not in of_class and profile.asks_extenders(pod):
                of_class[member.of_class] = Pending(attempt=pending.attempt, profile=pending.profile, pod=pod)
        return list(of_class.values())

    def _plan(self, planning: _Planning) -> list[Effect]:
        """Work on a plan for a slice; on a suspect's to its end. An exception becomes an error and a dead letter."""
        held, answering = planning.held, planning.answering
        planning.until = math.inf if self._alone is not None else self._stopwatch() + PLAN_SLICE_SECONDS
        try:
            next(answering)
        except StopIteration as end:
            self._end_plan(planning)
            message: GroupRanked = end.value
            return self._answer_group(held, message, is_planned=True)
        except Exception as error:  # noqa: BLE001 - an exception of a plugin is the group's failure, not the scorer's
            self._end_plan(planning)
            reason = f"planning raised {type(error).__name__}: {error}"
            log = LogFailure(text="planning failed", attempt=held.pending.attempt, error=error)
            return [log, *self._give_up(held, reason, held.delivery.headers)]
        self._preparing.append(held, has_begun=True)
        return []

    def _end_plan(self, planning: _Planning) -> None:
        if self._plans and self._plans[0] is planning:
            self._plans.popleft()
            if self._plans:
                self._preparing.append(self._plans[0].held, has_begun=False)

    def _answer_group(self, held: PendingDelivery, message: GroupRanked, *, is_planned: bool = False) -> list[Effect]:
        with self._spanning(held) as span:
            span.note("attempt", message.attempt)
            publish = self._publish(held, message, {TRACEPARENT: span.traceparent})
            if not is_planned:
                return [publish]
            self.rankings += 1
            began = self._stopwatch() - message.seconds
            held_seconds = began + self._offset - held.taken_at
            observed = ObservePlan(
                message=message, began=began, held_seconds=held_seconds, traceparent=span.traceparent
            )
        return [publish, observed]

    def _give_up(self, held: PendingDelivery, reason: str, headers: Mapping[str, str]) -> list[Effect]:
        return [WriteDeadLetter(held=held, reason=reason), self._publish(held, self._failure(held, reason), headers)]

    def _failure(self, held: PendingDelivery, reason: str) -> Ranked | GroupRanked:
        if isinstance(held.pending, GroupPending):
            return self._group_ranker.give_up(held.pending, reason)
        return self._ranker.give_up(held.pending, reason)

    def _publish(
        self, held: PendingDelivery, message: Ranked | GroupRanked, headers: Mapping[str, str]
    ) -> PublishRanked:
        self._publishing[held.sequence] = held
        self._last_ranked = message.attempt
        timed = msgspec.structs.replace(message, asked_at=held.delivery.time)
        return PublishRanked(held=held, message=timed, headers=headers)

    def _on_extenders(self, sequence: int, answer: Extension) -> None:
        if (asked := self._questions.get(sequence)) is not None:
            asked.on_answer(answer)
            self._answered.append(asked.held)

    # --- suspects

    def _count_when_alone(self) -> list[Effect]:
        """Count the suspect's try once all other answers are published."""
        if self._alone is None or self._counting is not None or self._publishing:
            return []
        self._counting = self._alone
        return [CountSuspect(held=self._alone)]

    def _on_counted(self, event: SuspectCounted) -> list[Effect]:
        held, self._counting = self._counting, None
        if held is None:
            return []
        if self._is_closed:
            return [ClearSuspect(held=held)]
        if event.tries < MOST_TRIES:
            return self._step(held)
        self._questions.pop(held.sequence, None)
        reason = f"ranking ended {MOST_TRIES - 1} scorers before this one"
        return self._give_up(held, reason, held.delivery.headers)

    def _on_not_counted(self) -> list[Effect]:
        """Nak the suspect, because no suspect is ranked uncounted."""
        held, self._counting, self._alone = self._counting, None, None
        if held is None or self._is_closed:
            return []
        self._questions.pop(held.sequence, None)
        return [NakPending(delivery=self._held.pop(held.sequence).delivery)]

    def _end_alone(self, held: PendingDelivery) -> list[Effect]:
        """Clear the suspect's count: this scorer survived."""
        if self._alone is None or self._alone.sequence != held.sequence:
            return []
        self._alone = None
        return [ClearSuspect(held=held)]


def _failed(held: PendingDelivery, reason: str) -> PendingDelivery:
    return replace(held, pending=msgspec.structs.replace(held.pending, error=reason))


def _reports(problems: Iterable[str], subject: str) -> list[Effect]:
    return [ReportUndecodable(subject=subject, reason=problem) for problem in problems]
