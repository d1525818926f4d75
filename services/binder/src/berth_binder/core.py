"""The final Decisions of this epoch, so that a redelivered message is acknowledged without another word.

RANKED messages that have not been looked at, in stream order: what is redelivered takes its old place again.

The binder's core: RANKED messages and the API's answers in, requests and Decisions out. No I/O, no clock, no log.

Messages are examined in stream order, each when there is a place on the wire for its POST, so that the re-check sees
the newest state. A pod whose Binding was left open keeps its reservation and its node and pauses without holding a
place; pods behind it go on. When the API server answers nobody, nothing new is started (PROTOCOL 5 and 6).
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from itertools import count
from typing import Final

from berth.api.messages import Decision, Ranked
from berth.api.meta import version_number
from berth.api.pod import Pod
from berth.api.subjects import Attempt
from berth.framework.interface import SNAPSHOT
from berth.framework.profile import Profile
from berth.framework.state import CycleState
from berth.framework.status import Code, Status
from berth_binder.attempt import AttemptPhase, BindingAttempt, RankedDelivery
from berth_binder.cache import Cache
from berth_binder.conflictcheck import ConflictCheck, EvictionPlan, Placement, PreemptionCheck, Recheck
from berth_binder.effects import (
    Ack,
    Answer,
    Effect,
    Evicted,
    LogWarning,
    Nak,
    Next,
    PodAnswer,
    RankedMessage,
    RecordEvent,
    Retry,
    Verdict,
    Written,
    after_binding,
    after_evicting,
    after_reading,
    after_writing,
    failed,
    refused,
)
from berth_binder.pluginsteps import PluginSteps
from berth_binder.progress import (
    AttemptEnding,
    DecisionBuilder,
    PausedAttempts,
    RequestSender,
    RequestsInFlight,
    ViewState,
)
from berth_binder.settings import CoreSettings


class DecidedAttempts:
    """Per uid the highest attempt that was finally decided. Bounded: the oldest is forgotten.

    A redelivery comes within ack_wait (30 s): the default holds more than that at a thousand pods a second. One that
    comes later still meets the API's own truth (bound, gone) and is decided alike.
    """

    def __init__(self, limit: int = 100_000) -> None:
        self._limit = limit
        self._orders: OrderedDict[str, tuple[int, int]] = OrderedDict()

    def remember(self, attempt: Attempt) -> None:
        """This attempt has its final Decision."""
        known = self._orders.pop(attempt.uid, (0, 0))
        self._orders[attempt.uid] = max(known, attempt.order)
        if len(self._orders) > self._limit:
            self._orders.popitem(last=False)

    def covers(self, attempt: Attempt) -> bool:
        """Whether this or a higher attempt of the uid has its final Decision."""
        return attempt.order <= self._orders.get(attempt.uid, (-1, -1))

    def __len__(self) -> int:
        return len(self._orders)


class StreamOrder:
    """A heap by stream sequence; of equal ones (a redelivery of the same message) the first to arrive comes first."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, RankedDelivery]] = []
        self._arrivals = count()

    def push(self, claim: RankedDelivery) -> None:
        """Put a message in its place."""
        heapq.heappush(self._heap, (claim.held.sequence, next(self._arrivals), claim))

    def pop(self) -> RankedDelivery:
        """Take the message that stands first. Raises IndexError when there is none."""
        return heapq.heappop(self._heap)[2]

    def __len__(self) -> int:
        return len(self._heap)

    def __iter__(self) -> Iterator[RankedDelivery]:
        return (claim for _, _, claim in self._heap)


UNSEEN: Final = Status(Code.WAIT, ("what was written before the Binding is not seen yet",), "the API server")


class BinderCore:
    """Takes every decision of one epoch."""

    def __init__(
        self,
        *,
        cache: Cache,
        profiles: Mapping[str, Profile],
        stand: ViewState,
        settings: CoreSettings | None = None,
    ) -> None:
        self._settings = settings or CoreSettings()
        self._cache = cache
        self._profiles = profiles
        self._statements = DecisionBuilder(cache=cache, stand=stand)
        self._recheck = Recheck(cache=cache, best=self._settings.best)
        preempting = PreemptionCheck(cache=cache, profiles=profiles)
        self._examination = ConflictCheck(cache=cache, recheck=self._recheck, preempting=preempting, profiles=profiles)
        self._given = DecidedAttempts()
        self._queue = StreamOrder()
        self._open: dict[str, BindingAttempt] = {}
        self._wire = RequestsInFlight(self._settings.max_in_flight)
        self._requests = RequestSender(cache=cache, wire=self._wire)
        self._hold_ups = PausedAttempts(settings=self._settings, statements=self._statements)
        self._ending = AttemptEnding(cache=cache, statements=self._statements, hold_ups=self._hold_ups)
        self._is_closed = False

    # Events.

    def take(self, ranked: Ranked, held: RankedMessage, now: float) -> list[Effect]:
        """A RANKED message was delivered. Raises DecodeError when its attempt has another form."""
        attempt = Attempt.parse(ranked.attempt)
        if ranked.profile not in self._profiles:
            return [Nak(held=held, delay=self._settings.nak_delay)]
        return self._admit(RankedDelivery(ranked=ranked, attempt=attempt, held=held), now)

    def advance(self, now: float) -> list[Effect]:
        """Start what may be started: words that are due, pauses that are over, then new messages in stream order."""
        if self._is_closed:
            return []
        effects = self._hold_ups.words(now)
        while self._wire.has_place:
            step = self._next_step(now)
            if step is None:
                break
            effects += step
        return effects

    def answered(self, uid: str, answer: Answer, now: float) -> list[Effect]:
        """The API server answered a Binding, or did not (status 0)."""
        return self._on_answer(uid, answer, lambda it: self._after_binding(it, answer, now), now)

    def read(self, uid: str, reading: PodAnswer, now: float) -> list[Effect]:
        """The API server answered the reading of a pod, or did not."""
        return self._on_answer(uid, reading, lambda it: self._after_reading(it, reading, now), now)

    def evicted(self, uid: str, answer: Evicted, now: float) -> list[Effect]:
        """The API server answered the evictions for a pod, or one of them not."""
        return self._on_answer(uid, answer, lambda it: self._after_evicting(it, answer, now), now)

    def written(self, uid: str, answer: Written, now: float) -> list[Effect]:
        """The API server answered what was to be written before a Binding, or one of the requests not."""
        return self._on_answer(uid, answer, lambda it: self._after_writing(it, answer, now), now)

    def published(self, said: Decision) -> list[Effect]:
        """The Decision has its PubAck: what it settles is acknowledged, and people are told."""
        commitment = self._open.get(said.uid)
        if commitment is None or commitment.decision is not said or commitment.decided is None:
            return []
        del self._open[said.uid]
        self._given.remember(commitment.decided)
        for claim in commitment.claims_left():
            self._queue.push(claim)
        done: list[Effect] = [Ack(held=claim.held) for claim in commitment.claims_decided()]
        return [*done, RecordEvent(decision=said, pod=commitment.pod)]

    def close(self) -> None:
        """Start nothing any more; answers to what is on the wire are still taken."""
        self._is_closed = True

    # Questions.

    def due(self) -> float | None:
        """When ``advance`` has something to do by the clock alone; ``None``: not before the next event."""
        return None if self._is_closed else self._hold_ups.due(has_place=self._wire.has_place)

    def held(self) -> Iterator[RankedMessage]:
        """Every message that is not settled: it has to be kept alive."""
        for commitment in self._open.values():
            yield from (claim.held for claim in commitment.claims)
        yield from (claim.held for claim in self._queue)

    @property
    def on_wire(self) -> int:
        """Requests under way."""
        return len(self._wire)

    @property
    def backlog(self) -> int:
        """Messages not looked at yet."""
        return len(self._queue)

    @property
    def is_api_silent(self) -> bool:
        """Whether so many requests in a row were left open that nothing new is started."""
        return self._wire.is_silent

    # Messages.

    def _admit(self, claim: RankedDelivery, now: float) -> list[Effect]:
        if self._given.covers(claim.attempt):
            return [Ack(held=claim.held)]
        commitment = self._open.get(claim.attempt.uid)
        if commitment is not None:
            return self._join(commitment, claim, now)
        self._queue.push(claim)
        return []

    def _join(self, commitment: BindingAttempt, claim: RankedDelivery, now: float) -> list[Effect]:
        """A later attempt takes the reservation over; a waiting one says so at once."""
        was_waiting = commitment.is_waiting
        is_later = commitment.join(claim)
        if not (is_later and was_waiting) or commitment.phase is AttemptPhase.DECIDING:
            return []
        return [self._hold_ups.word(commitment, now)]

    def _next_step(self, now: float) -> list[Effect] | None:
        resumed = self._hold_ups.resume(now)
        if resumed is not None:
            return self._resume(resumed, now)
        if not self._queue or self.is_api_silent:
            return None
        return self._begin(self._queue.pop(), now)

    def _begin(self, claim: RankedDelivery, now: float) -> list[Effect]:
        if self._given.covers(claim.attempt) or claim.attempt.uid in self._open:
            return self._admit(claim, now)
        commitment = BindingAttempt(foremost=claim, claims=[claim], phase=AttemptPhase.PAUSED, pod=claim.ranked.pod)
        self._open[commitment.uid] = commitment
        return self._guarded(commitment, lambda it: self._examine(it, now), now)

    def _examine(self, commitment: BindingAttempt, now: float) -> list[Effect]:
        foremost = commitment.foremost
        found = self._examination.of(foremost.ranked, foremost.attempt)
        if isinstance(found, Verdict):
            return self._ending.settle(commitment, found)
        if isinstance(found, EvictionPlan):
            return self._requests.evict(commitment, found)
        return self._place(commitment, found, now)

    def _place(self, commitment: BindingAttempt, placement: Placement, now: float) -> list[Effect]:
        """Reserve the node, and go on to the Binding as far as the plugins let it."""
        self._ending.undo(commitment)
        commitment.pod, commitment.node, commitment.is_posted = placement.pod, placement.node, False
        commitment.unseen = {}
        self._cache.assume(placement.pod, placement.node)
        state = CycleState(self._cache.snapshot.class_of(placement.pod))
        state.write(SNAPSHOT, self._cache.snapshot)
        profile = self._profiles[commitment.foremost.ranked.profile]
        steps = PluginSteps(profile=profile, state=state, pod=placement.pod, node=placement.node)
        commitment.steps = steps
        return self._go_on(commitment, steps, now)

    def _go_on(self, commitment: BindingAttempt, steps: PluginSteps, now: float) -> list[Effect]:
        if not self._requests.have_been_seen(commitment):
            return self._hold_ups.await_plugin(commitment, steps, UNSEEN, now)
        status = steps.before_binding(now)
        if status.is_success:
            return self._requests.post(commitment, steps)
        if steps.unwritten:
            return self._requests.write(commitment, steps)
        if status.code is Code.WAIT:
            return self._hold_ups.await_plugin(commitment, steps, status, now)
        return self._ending.settle(commitment, refused(commitment.node, status))

    # Answers.

    def _on_answer(
        self, uid: str, answer: Answer, then: Callable[[BindingAttempt], list[Effect]], now: float
    ) -> list[Effect]:
        commitment = self._open.get(uid)
        if commitment is None or not self._wire.end(uid, answer):
            return []
        complaint: list[Effect] = [LogWarning(text=answer.missing_right)] if answer.missing_right else []
        return [*complaint, *self._guarded(commitment, then, now)]

    def _after_binding(self, commitment: BindingAttempt, answer: Answer, now: float) -> list[Effect]:
        step = after_binding(answer, commitment.node)
        if isinstance(step, Verdict):
            return self._ending.settle(commitment, step)
        if step is Next.READ and commitment.collisions < self._settings.max_conflicts:
            commitment.collisions += 1
            return self._requests.look(commitment)
        return self._hold_ups.pause(commitment, answer, now)

    def _after_evicting(self, commitment: BindingAttempt, answer: Evicted, now: float) -> list[Effect]:
        eviction, message = commitment.eviction, commitment.foremost.ranked.message
        if eviction is None:
            return []
        step = after_evicting(answer, eviction.node, message, eviction.preemption)
        if not isinstance(step, Verdict):
            return self._hold_ups.pause(commitment, answer, now)
        if answer.pod is not None:
            self._cache.nomination_written(commitment.uid, version_number(answer.pod.metadata.resource_version))
        return self._ending.settle(commitment, step)

    def _after_writing(self, commitment: BindingAttempt, answer: Written, now: float) -> list[Effect]:
        step, steps = after_writing(answer), commitment.steps
        if isinstance(step, Verdict):
            return self._ending.settle(commitment, step)
        if step is not None or steps is None:
            return self._hold_ups.pause(commitment, answer, now)
        steps.written()
        commitment.unseen = answer.versions
        return self._go_on(commitment, steps, now)

    def _after_reading(self, commitment: BindingAttempt, reading: PodAnswer, now: float) -> list[Effect]:
        step = after_reading(reading, commitment.foremost.ranked.pod, commitment.node)
        if isinstance(step, Verdict):
            return self._ending.settle(commitment, step)
        if isinstance(step, Retry):
            return self._again(commitment, step.pod, now)
        return self._hold_ups.pause(commitment, reading, now)

    def _again(self, commitment: BindingAttempt, pod: Pod, now: float) -> list[Effect]:
        """Try the same node again, since a lost POST may still arrive.

        Once the pod's version has moved none can: then the node has to pass again, or another may be chosen.
        """
        is_free = commitment.learn(pod)
        claim, steps = commitment.foremost, commitment.steps
        if steps is not None and (not is_free or self._passes(commitment, pod)):
            return self._requests.post(commitment, steps)
        found = self._examination.choose(claim.ranked, claim.attempt, pod)
        if isinstance(found, Verdict):
            return self._ending.settle(commitment, found)
        return self._place(commitment, found, now)

    def _passes(self, commitment: BindingAttempt, pod: Pod) -> bool:
        profile = self._profiles[commitment.foremost.ranked.profile]
        return self._recheck.passes(pod, commitment.node, profile).is_success

    # BackoffSettings.

    def _resume(self, commitment: BindingAttempt, now: float) -> list[Effect]:
        commitment.collisions = 0
        if commitment.is_posted:
            return self._requests.look(commitment)
        return self._guarded(commitment, lambda it: self._take_up(it, now), now)

    def _take_up(self, commitment: BindingAttempt, now: float) -> list[Effect]:
        """Nothing was sent yet: no node was chosen, or plugins had to be waited for and things may have changed."""
        claim, steps = commitment.foremost, commitment.steps
        if steps is None:
            return self._examine(commitment, now)
        standing = self._examination.standing(claim.ranked, claim.attempt)
        if isinstance(standing, Verdict):
            return self._ending.settle(commitment, standing)
        commitment.pod = standing
        if self._passes(commitment, standing):
            return self._go_on(commitment, steps, now)
        return self._examine(commitment, now)

    # Ends.

    def _guarded(
        self, commitment: BindingAttempt, step: Callable[[BindingAttempt], list[Effect]], now: float
    ) -> list[Effect]:
        """An exception while a pod is committed counts for that pod, never for the process (PROTOCOL 6)."""
        try:
            return step(commitment)
        except Exception as exc:  # noqa: BLE001 - whatever a plugin raises must not stop the queue
            commitment.tries += 1
            if commitment.tries < self._settings.max_exceptions:
                return self._hold_ups.pause(commitment, None, now)
            reason = f"committing {commitment.pod.key!r}: failed {commitment.tries} times: {type(exc).__name__}: {exc}"
            return self._ending.settle(commitment, failed(reason, reason="exception"), bury=True)
