"""The binder's core: events in, effects out, the clock injected. No I/O and no log.

A RANKED message passes the conflict check; its pod is assumed on a node, goes through Reserve, Permit and PreBind, and
its Binding is posted. The API's answer becomes a Decision, and the message is acknowledged once the Decision is stored
(docs/protocol.md, 5 and 6).

Messages are examined in stream order, each when another request may be in flight, so that the check sees the newest
state. A pod without an answer to its Binding stays assumed and pauses; the pods behind it go on.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Final

import msgspec

from berth.framework.profile import Profile
from berth.messages.attempts import Decision
from berth.messages.subjects import Epoch
from berth_binder.attempts.attempt import AttemptPhase, BindingAttempt, DecidedAttempts
from berth_binder.attempts.groupattempt import GroupAttempt, GroupPhase
from berth_binder.attempts.pods import PodBinding, wrong_profile
from berth_binder.attempts.queue import LONG_AGO, BindingQueue, RequestsInFlight, Suspects, given_up
from berth_binder.attempts.strays import Strays
from berth_binder.cache import Cache
from berth_binder.events import (
    Ack,
    DecisionNotStored,
    DecisionStored,
    Effect,
    Event,
    EvictionsAnswered,
    GroupDelivery,
    Held,
    LogMissingRight,
    NodesAnswered,
    NominationCleared,
    PodShown,
    PutOff,
    RankedDelivery,
    RecordEvent,
    RejectRanked,
    RequestAnswer,
    RequestFailed,
    SetAside,
    TryCounted,
)
from berth_binder.settings import CoreSettings

# How long other messages wait for those about groups that a former binder has begun. One may never be delivered.
FIRST_SECONDS: Final = 1.0


class BinderCore:
    """Makes every decision of one epoch. All events go through ``handle``."""

    def __init__(  # noqa: PLR0913 - an epoch begins with these
        self,
        *,
        cache: Cache,
        profiles: Mapping[str, Profile],
        epoch: Epoch,
        config: str,
        settings: CoreSettings | None = None,
        checking: Callable[[RankedDelivery], AbstractContextManager[object]] = nullcontext,
        strays: Strays | None = None,
    ) -> None:
        """``config``: digest of the configuration. ``checking`` is entered while a node is chosen."""
        self._settings = settings or CoreSettings()
        self._cache = cache
        self._profiles = profiles
        self._queue = BindingQueue(self._settings)
        self._in_flight = RequestsInFlight()
        self._decided = DecidedAttempts()
        self._suspects = Suspects()
        self.strays = strays or Strays()
        self._pods = PodBinding(
            cache=cache,
            profiles=profiles,
            queue=self._queue,
            in_flight=self._in_flight,
            suspects=self._suspects,
            decided=self._decided,
            strays=self.strays,
            checking=checking,
            settings=self._settings,
            epoch=epoch,
            config=config,
        )
        self._attempts, self._groups = self._pods.attempts, self._pods.groups
        self.examined = 0  # number of messages
        self._is_closed = False
        self._first = frozenset[int]()  # sequences of messages about groups that former binders have begun

    def handle(
        self, events: Iterable[Event], now: float, may_continue: Callable[[], bool] = lambda: True
    ) -> list[Effect]:
        """Apply events in order, then start all messages and attempts that may start.

        Once ``may_continue`` returns false, no more is started: ``due`` asks for the next call.
        """
        effects: list[Effect] = []
        self._pods.now = now
        if self._groups.earmarks:
            self._groups.earmarks.review(now)
        for event in events:
            effects += self._apply(event, now)
        if not self._is_closed:
            effects += self._start(now, may_continue)
        while self._is_closed and self._groups.has_work and len(self._in_flight.uids) < self._settings.max_in_flight:
            effects += self._groups.step(now)
        return effects

    def examine_first(self, sequences: frozenset[int], now: float) -> None:
        """Examine these messages about groups before all others, which wait a moment for them."""
        self._first = sequences
        self._queue.ranked.put_first(sequences, now + FIRST_SECONDS)

    def close(self) -> None:
        """Start no more requests, but for begun groups; answers to requests in flight are still handled."""
        self._is_closed = True
        self._groups.close()

    def due(self) -> float | None:
        """When to call ``handle`` without an event; ``None``: not before the next event."""
        if self._is_closed:
            return None
        due = self._queue.due(may_start=self._may_start)
        return self._due_of_groups(due) if self._groups.undecided or self._groups.earmarks else due

    def _due_of_groups(self, due: float | None) -> float | None:
        if self._groups.has_work and self._may_step_groups:
            return LONG_AGO
        of_groups = self._groups.due()
        return of_groups if due is None or (of_groups is not None and of_groups < due) else due

    def held(self) -> Iterator[Held]:
        """Unsettled messages; each needs ``in_progress``."""
        for attempt in self._attempts.values():
            yield from attempt.deliveries
        yield from self._groups.held()
        yield from self._queue.ranked

    def latest(self, uid: str) -> RankedDelivery | None:
        """The message of the pod's highest attempt, if one is held."""
        attempt = self._attempts.get(uid)
        return attempt.latest if attempt is not None else None

    @property
    def in_flight(self) -> int:
        return len(self._in_flight.uids)

    @property
    def has_open_requests(self) -> bool:
        """Whether a request without an answer may still be carried out."""
        return any(attempt.failures for attempt in self._attempts.values())

    @property
    def is_posting_group(self) -> bool:
        """Whether a group is begun and not all of its Bindings are sent and answered."""
        return self._groups.is_posting

    def begun_groups(self) -> Collection[str]:
        """The uids of PodGroups that this epoch has begun, and not seen whole."""
        return self._groups.unfinished()

    def is_group_tried(self, uid: str) -> bool:
        """Whether there is an attempt for the PodGroup."""
        return self._groups.get(uid) is not None

    @property
    def backlog(self) -> int:
        return len(self._queue.ranked)

    @property
    def is_api_silent(self) -> bool:
        """Whether as many requests in a row as may be in flight have no answer."""
        return self._queue.silence.is_silent

    @property
    def _may_start(self) -> bool:
        return self._in_flight.at_api_server < self._settings.max_in_flight and not self._suspects.hold_up_others

    @property
    def _may_step_groups(self) -> bool:
        """Also for a group that goes on alone."""
        is_alone = self._suspects.alone is not None and self._groups.get(self._suspects.alone) is not None
        return self._may_start or (is_alone and len(self._in_flight.uids) < self._settings.max_in_flight)

    def _apply(self, event: Event, now: float) -> list[Effect]:  # noqa: C901, PLR0911 - one for each kind of event
        match event:
            case RankedDelivery():
                return self._receive(event, now)
            case GroupDelivery():
                return self._receive_group(event)
            case NominationCleared():
                return [LogMissingRight(text=event.missing_right)] if event.missing_right else []
            case RequestAnswer():
                return self._pods.on_answer(event, now)
            case EvictionsAnswered() | NodesAnswered():
                return self._pods.on_extenders(event, now)
            case RequestFailed():
                return self._pods.on_failure(event, now)
            case TryCounted():
                return self._on_counted(event, now)
            case DecisionStored():
                return self._settle(event.decision, now)
            case DecisionNotStored():
                return [msgspec.structs.replace(event.publish, is_repeat=True)]
            case PodShown():
                self._pods.shown(event.uid)
                return []

    def _start(self, now: float, may_continue: Callable[[], bool]) -> list[Effect]:
        """Publish ``waiting`` where due; then resume attempts whose pause is over and examine messages, in turns."""
        effects: list[Effect] = []
        while (attempt := self._queue.waiting.pop(now)) is not None:
            effects += self._pods.publish_waiting(attempt, now)
            if not may_continue():
                return effects
        self._queue.paused.end_pauses(now)
        alone = None if self._in_flight.uids else self._suspects.take_alone()
        if alone is not None:
            effects += self._proceed_alone(alone, now)
        undecided = self._groups.undecided
        if undecided:
            self._groups.end_pauses(now)
        while True:
            has_step = undecided and self._groups.has_work and self._may_step_groups
            if has_step:
                effects += self._groups.step(now)
            if self._may_start and (turn := self._queue.next(now)) is not None:
                effects += (
                    self._resume(turn, now) if isinstance(turn, BindingAttempt) else self._examine_next(turn, now)
                )
            elif not has_step:
                break
            if not may_continue():
                break
        return effects

    def _proceed_alone(self, uid: str, now: float) -> list[Effect]:
        group = self._groups.get(uid)
        return self._pods.proceed(self._attempts[uid], now) if group is None else self._examine_group(group, now)

    def _examine_next(self, delivery: Held, now: float) -> list[Effect]:
        before = len(self._in_flight.uids)
        self.examined += 1
        if isinstance(delivery, GroupDelivery):
            return self._begin_group(delivery, now)
        effects = self._begin(delivery, now)
        if self._queue.silence.is_silent and len(self._in_flight.uids) > before:
            self._queue.silence.probed(now)
        return effects

    # Messages.

    def _receive(self, delivery: RankedDelivery, now: float) -> list[Effect]:
        ranked = delivery.ranked
        if ranked.pod.spec.scheduler_name != ranked.profile:
            return [RejectRanked(held=delivery, reason=wrong_profile(delivery, ranked.pod))]
        if ranked.profile not in self._profiles:
            return self._receive_of_unknown_profile(delivery)
        return self._admit(delivery, now)

    def _receive_of_unknown_profile(self, delivery: RankedDelivery) -> list[Effect]:
        """A newer binder may know the profile, if a pod waits for it."""
        pod, reason = self._cache.pod(delivery.attempt.uid), f"profile {delivery.ranked.profile!r}: not configured here"
        if pod is None:
            return [RejectRanked(held=delivery, reason=f"{reason}, and pod {delivery.ranked.pod.key!r} does not wait")]
        if pod.spec.scheduler_name != delivery.ranked.profile:
            return [RejectRanked(held=delivery, reason=wrong_profile(delivery, pod))]
        return [PutOff(held=delivery, reason=reason)]

    def _admit(self, delivery: RankedDelivery, now: float) -> list[Effect]:
        if self._decided.covers(delivery):
            return [Ack(held=delivery)]
        attempt = self._attempts.get(delivery.attempt.uid)
        if attempt is not None:
            return self._join(attempt, delivery, now)
        self._queue.ranked.push(delivery)
        return []

    def _join(self, attempt: BindingAttempt, delivery: RankedDelivery, now: float) -> list[Effect]:
        """Join a message to its pod's attempt. For a later one of a waiting pod, publish ``waiting`` at once."""
        was_waiting = attempt.is_waiting
        if attempt.group:  # it is bound with its group, whatever a message says of it alone
            attempt.deliveries.append(delivery)
            is_later = False
        else:
            is_later = attempt.join(delivery)
        effects: list[Effect] = [SetAside(held=delivery)] if attempt.has_paused else []
        surplus = attempt.take_surplus()
        if surplus is not None:  # a message delivered twice is acknowledged only once no delivery is held
            effects.append((SetAside if attempt.holds(surplus.sequence) else Ack)(held=surplus))
        if is_later and was_waiting and attempt.phase is not AttemptPhase.DECIDING:
            effects += self._pods.publish_waiting(attempt, now)
        return effects

    def _begin(self, delivery: RankedDelivery, now: float) -> list[Effect]:
        if self._decided.covers(delivery) or delivery.attempt.uid in self._attempts:
            return self._admit(delivery, now)
        attempt = BindingAttempt(
            latest=delivery,
            deliveries=[delivery],
            phase=AttemptPhase.PAUSED,
            pod=delivery.ranked.pod,
            is_stray=delivery.is_stray,
        )
        self._attempts[attempt.uid] = attempt
        return self._go_on(attempt, now)

    def _resume(self, attempt: BindingAttempt, now: float) -> list[Effect]:
        attempt.conflicts = 0
        attempt.read = None
        attempt.is_unseen = False
        return self._go_on(attempt, now)

    def _go_on(self, attempt: BindingAttempt, now: float) -> list[Effect]:
        """Begin the attempt, or resume it after a pause; a suspect only after its count is stored."""
        if not attempt.is_suspect or self._suspects.is_counted(attempt.uid):
            return self._pods.proceed(attempt, now)
        attempt.phase = AttemptPhase.COUNTING
        return [self._suspects.count(attempt.uid)]

    # Messages about groups.

    def _receive_group(self, delivery: GroupDelivery) -> list[Effect]:
        profile = delivery.ranked.profile
        if profile not in self._profiles:
            return [PutOff(held=delivery, reason=f"profile {profile!r}: not configured here")]
        return self._admit_group(delivery)

    def _admit_group(self, delivery: GroupDelivery) -> list[Effect]:
        if self._decided.covers(delivery):
            return [Ack(held=delivery)]
        joined = self._groups.receive(delivery)
        if joined is None:
            self._queue.ranked.push(delivery)
        return joined or []

    def _begin_group(self, delivery: GroupDelivery, now: float) -> list[Effect]:
        if self._decided.covers(delivery) or self._groups.get(delivery.attempt.uid) is not None:
            return self._admit_group(delivery)
        group = self._groups.begin(delivery, now)
        if not delivery.is_suspect:
            return self._examine_group(group, now)
        group.phase = GroupPhase.COUNTING
        return [self._suspects.count(group.uid)]

    def _examine_group(self, group: GroupAttempt, now: float) -> list[Effect]:
        """In its turn; in one go if it was begun by a former binder, or others would take its room meanwhile."""
        self._groups.examine(group)
        effects: list[Effect] = []
        while group.latest.sequence in self._first and group.phase is GroupPhase.EXAMINING:
            effects += self._groups.step(now)
        return effects

    # Suspects.

    def _on_counted(self, event: TryCounted, now: float) -> list[Effect]:
        if not self._suspects.counted(event):
            return []
        group = self._groups.get(event.uid)
        return self._on_counted_pod(event, now) if group is None else self._on_counted_group(group, event.tries, now)

    def _on_counted_pod(self, event: TryCounted, now: float) -> list[Effect]:
        attempt = self._attempts.get(event.uid)
        if attempt is None:
            return []
        if self._is_closed:
            return [*self._suspects.clear(event.uid)]
        verdict = given_up(attempt.pod.key, event.tries)
        if verdict is not None:
            return self._pods.decide(attempt, verdict, dead_letter=True)
        if event.tries == 1:
            return self._pods.proceed(attempt, now)
        self._suspects.put_off(event.uid)
        return []

    def _on_counted_group(self, group: GroupAttempt, tries: int, now: float) -> list[Effect]:
        if self._is_closed:
            return [*self._suspects.clear(group.uid)]
        verdict = given_up(str(group.key), tries)
        if verdict is not None:
            return self._groups.give_up(group, verdict)
        if tries == 1:
            return self._examine_group(group, now)
        self._suspects.put_off(group.uid)
        return []

    # Decisions.

    def _settle(self, decision: Decision, now: float) -> list[Effect]:
        """The Decision is stored: acknowledge the messages that it settles, and record its Event."""
        attempt = self._attempts.get(decision.uid)
        if attempt is None:
            settled = self._groups.settle(decision, now)
            return [*settled, *self._suspects.clear(decision.uid)] if settled else []
        if attempt.decision is not decision or attempt.decided is None:
            return []
        del self._attempts[decision.uid]
        self._decided.add(attempt.decided, now)
        for delivery in attempt.undecided_deliveries():
            self._queue.ranked.push(delivery)
        part = attempt.deliveries[0] if attempt.group else None
        acks: list[Effect] = [Ack(held=each) for each in attempt.decided_deliveries() if each is not part]
        recorded = RecordEvent(decision=decision, pod=attempt.pod)
        of_group = self._groups.stored(attempt) if attempt.group else []
        return [*acks, *self._suspects.clear(attempt.uid), recorded, *of_group]
