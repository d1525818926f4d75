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
from http import HTTPStatus
from typing import Final, TypeVar

import msgspec

from berth.api.pod import Pod, is_gone_while_unbound
from berth.api.podgroups import group_of
from berth.api.trimming import without_whole
from berth.cluster.pods import Trait
from berth.decoding import version_number
from berth.framework.profile import Profile
from berth.framework.status import Code, Status
from berth.messages.attempts import Decision, Outcome, Reason
from berth.messages.subjects import Epoch
from berth_binder.attempts.attempt import AttemptPhase, BindingAttempt, DecidedAttempts, PluginSteps
from berth_binder.attempts.groupattempt import GroupAttempt, GroupPhase
from berth_binder.attempts.groups import UNDONE, GroupBinding, MemberCalls
from berth_binder.attempts.queue import LONG_AGO, BindingQueue, ClaimTurns, Suspects, given_up, waits_for
from berth_binder.attempts.strays import Strays
from berth_binder.cache import CLAIMS, Cache
from berth_binder.decisions.conflictcheck import ConflictCheck
from berth_binder.decisions.groupcheck import refuses_single
from berth_binder.decisions.groupverdict import NOT_ALONE
from berth_binder.decisions.preemption import PreemptionCheck, evictions, verdict_after_evicting, verdict_on_nodes
from berth_binder.decisions.verdict import (
    GONE,
    EvictionPlan,
    EvictionQuestion,
    Freeing,
    NodeQuestion,
    Placement,
    Verdict,
    bound,
    decision_on,
    failed,
    preempted,
    refused,
    rejected,
    verdict_on,
    waiting,
)
from berth_binder.events import (
    Ack,
    ApiRequest,
    BindingAnswer,
    ClearNomination,
    DecisionNotStored,
    DecisionStored,
    Effect,
    Event,
    EvictionAnswer,
    EvictionsAnswered,
    GroupDelivery,
    Held,
    LogMissingRight,
    NodesAnswered,
    NominationAnswer,
    NominationCleared,
    PodAnswer,
    PodShown,
    PublishDecision,
    PutOff,
    RankedDelivery,
    RecordEvent,
    RehearsalAnswer,
    RejectRanked,
    ReleaseAnswer,
    ReleaseClaims,
    RequestAnswer,
    RequestFailed,
    SetAside,
    TryCounted,
    WriteObjects,
    WritesAnswer,
    may_have_been_executed,
)
from berth_binder.settings import CoreSettings

# Pods about which the same extenders are asked at once before evictions; further ones wait.
MOST_QUESTIONS: Final = 32

# In which nothing of a pod's Binding was sent.
_BEFORE_BINDING: Final = frozenset(
    {AttemptPhase.WRITING, AttemptPhase.NOMINATING, AttemptPhase.REHEARSING, AttemptPhase.READING}
)

# How long other messages wait for those about groups that a former binder has begun. One may never be delivered.
FIRST_SECONDS: Final = 1.0

A = TypeVar("A", bound=RequestAnswer)
Found = Verdict | Placement | EvictionPlan | EvictionQuestion | NodeQuestion | Freeing


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
        self._epoch = epoch
        self._config = config
        self._checking = checking
        self._check = ConflictCheck(cache=cache, profiles=profiles)
        self._preemption = PreemptionCheck(cache=cache, may_give_up=self._may_give_up)
        self._queue = BindingQueue(self._settings)
        self._attempts: dict[str, BindingAttempt] = {}
        self._in_flight: set[str] = set()  # uids of pods with a request in flight, at most one a pod
        # Extenders that are asked before a pod's evictions, by its uid: from its reading until it is decided or paused.
        self._asked: dict[str, tuple[str, ...]] = {}
        # Pods in flight that an extender binds. They take no place, so that a slow extender delays no other Binding.
        self._at_extender: set[str] = set()
        # Nor do pods that wait for another pod's write of the same claim: up to 256 may share one.
        self._claim_turns = ClaimTurns()
        self._decided = DecidedAttempts()
        self._suspects = Suspects()
        # The highest resourceVersion by which a claim was released. Until the watch has reached it, the cache shows
        # allocations that are gone.
        self._released_at = 0
        self.strays = strays or Strays()
        self.examined = 0  # number of messages
        self._is_closed = False
        self._now = 0.0
        self._first = frozenset[int]()  # sequences of messages about groups that former binders have begun
        self._groups = GroupBinding(
            cache=cache,
            profiles=profiles,
            calls=MemberCalls(
                begin=self._begin_member,
                prepare=self._prepare_member,
                proceed=self._proceed,
                request=self._request_all,
                decide=self._decide_member,
                is_tried=self._attempts.__contains__,
                is_in_flight=self._in_flight.__contains__,
                push=self._queue.ranked.push,
            ),
            check=self._check,
            decided=self._decided,
            settings=self._settings,
            epoch=epoch,
            config=config,
        )

    def handle(
        self, events: Iterable[Event], now: float, may_continue: Callable[[], bool] = lambda: True
    ) -> list[Effect]:
        """Apply events in order, then start all messages and attempts that may start.

        Once ``may_continue`` returns false, no more is started: ``due`` asks for the next call.
        """
        effects: list[Effect] = []
        self._now = now
        if self._groups.earmarks:
            self._groups.earmarks.review(now)
        for event in events:
            effects += self._apply(event, now)
        if not self._is_closed:
            effects += self._start(now, may_continue)
        while self._is_closed and self._groups.has_work and len(self._in_flight) < self._settings.max_in_flight:
            effects += self._groups.step(now)
        return effects

    def examine_first(self, sequences: frozenset[int], now: float) -> None:
        """Examine these messages about groups before all others, which wait a moment for them."""
        self._first = sequences
        self._queue.ranked.put_first(sequences, now + FIRST_SECONDS)

    def close(self) -> None:
        """Start no more requests, but for begun groups; answers to requests in flight are still handled."""
        self._is_closed = self._groups.is_closed = True

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
        return len(self._in_flight)

    @property
    def has_open_requests(self) -> bool:
        """Whether a request without an answer may still be carried out."""
        return any(attempt.failures for attempt in self._attempts.values())

    @property
    def is_posting_group(self) -> bool:
        """Whether a group is begun and not all of its Bindings are sent and answered."""
        return self._groups.is_posting

    @property
    def begun_groups(self) -> Collection[str]:
        """The uids of PodGroups that this epoch has begun, and not seen whole."""
        return self._groups.begun

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
        at_api_server = len(self._in_flight) - len(self._at_extender) - len(self._claim_turns.behind)
        return at_api_server < self._settings.max_in_flight and not self._suspects.hold_up_others

    @property
    def _may_step_groups(self) -> bool:
        """Also for a group that goes on alone."""
        is_alone = self._suspects.alone is not None and self._groups.get(self._suspects.alone) is not None
        return self._may_start or (is_alone and len(self._in_flight) < self._settings.max_in_flight)

    def _apply(self, event: Event, now: float) -> list[Effect]:  # noqa: C901, PLR0911, PLR0912 - one for each kind of event
        match event:
            case RankedDelivery():
                return self._receive(event, now)
            case GroupDelivery():
                return self._receive_group(event)
            case RehearsalAnswer():
                return self._on_answer(event, self._after_rehearsing, now)
            case BindingAnswer():
                return self._on_answer(event, self._after_posting, now)
            case PodAnswer():
                return self._on_answer(event, self._after_pod_answer, now)
            case EvictionAnswer():
                return self._on_answer(event, self._after_evicting, now)
            case WritesAnswer():
                return self._on_answer(event, self._after_writing, now)
            case ReleaseAnswer():
                return self._on_answer(event, self._after_releasing, now)
            case NominationAnswer():
                return self._on_answer(event, self._after_nominating, now)
            case EvictionsAnswered() | NodesAnswered():
                return self._on_extenders(event, now)
            case RequestFailed():
                return self._on_failure(event, now)
            case TryCounted():
                return self._on_counted(event, now)
            case NominationCleared():
                return [LogMissingRight(text=event.missing_right)] if event.missing_right else []
            case DecisionStored():
                return self._settle(event.decision, now)
            case DecisionNotStored():
                return [msgspec.structs.replace(event.publish, is_repeat=True)]
            case PodShown():
                self._end_pause(event.uid)
                return []

    def _start(self, now: float, may_continue: Callable[[], bool]) -> list[Effect]:
        """Publish ``waiting`` where due; then resume attempts whose pause is over and examine messages, in turns."""
        effects: list[Effect] = []
        while (attempt := self._queue.waiting.pop(now)) is not None:
            effects += self._publish_waiting(attempt, now)
            if not may_continue():
                return effects
        self._queue.paused.end_pauses(now)
        alone = None if self._in_flight else self._suspects.take_alone()
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
        return self._proceed(self._attempts[uid], now) if group is None else self._examine_group(group, now)

    def _examine_next(self, delivery: Held, now: float) -> list[Effect]:
        before = len(self._in_flight)
        self.examined += 1
        if isinstance(delivery, GroupDelivery):
            return self._begin_group(delivery, now)
        effects = self._begin(delivery, now)
        if self._queue.silence.is_silent and len(self._in_flight) > before:
            self._queue.silence.probed(now)
        return effects

    # Messages.

    def _receive(self, delivery: RankedDelivery, now: float) -> list[Effect]:
        ranked = delivery.ranked
        if ranked.pod.spec.scheduler_name != ranked.profile:
            return [RejectRanked(held=delivery, reason=_wrong_profile(delivery, ranked.pod))]
        if ranked.profile not in self._profiles:
            return self._receive_of_unknown_profile(delivery)
        return self._admit(delivery, now)

    def _receive_of_unknown_profile(self, delivery: RankedDelivery) -> list[Effect]:
        """A newer binder may know the profile, if a pod waits for it."""
        pod, reason = self._cache.pod(delivery.attempt.uid), f"profile {delivery.ranked.profile!r}: not configured here"
        if pod is None:
            return [RejectRanked(held=delivery, reason=f"{reason}, and pod {delivery.ranked.pod.key!r} does not wait")]
        if pod.spec.scheduler_name != delivery.ranked.profile:
            return [RejectRanked(held=delivery, reason=_wrong_profile(delivery, pod))]
        return [PutOff(held=delivery, reason=reason)]

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

    def _on_counted_group(self, group: GroupAttempt, tries: int) -> list[Effect]:
        if self._is_closed:
            return [*self._suspects.clear(group.uid)]
        verdict = given_up(str(group.key), tries)
        if verdict is not None:
            return self._groups.give_up(group, verdict)
        if tries == 1:
            return self._examine_group(group, self._now)
        self._suspects.put_off(group.uid)
        return []

    def _examine_group(self, group: GroupAttempt, now: float) -> list[Effect]:
        """In its turn; in one go if it was begun by a former binder, or others would take its room meanwhile."""
        self._groups.examine(group)
        effects: list[Effect] = []
        while group.latest.sequence in self._first and group.phase is GroupPhase.EXAMINING:
            effects += self._groups.step(now)
        return effects

    # Members of groups.

    def _begin_member(self, member: BindingAttempt) -> None:
        self._attempts[member.uid] = member

    def _prepare_member(self, member: BindingAttempt, now: float) -> list[Effect]:
        steps = member.steps
        return [] if steps is None else self._guard(member, lambda: self._before_binding(member, steps, now), now)

    def _request_all(self, member: BindingAttempt, requests: Iterable[ApiRequest]) -> list[Effect]:
        return self._request(member, *requests)

    def _decide_member(self, member: BindingAttempt, verdict: Verdict) -> list[Effect]:
        """End a member that has no request in flight."""
        self._queue.paused.remove(member)
        return self._guard(member, lambda: self._decide(member, verdict), self._now)

    def _end_member(self, member: BindingAttempt, verdict: Verdict) -> list[Effect]:
        """The end of a member, which has a Decision of its own only if its group is begun."""
        is_begun = verdict.outcome is Outcome.BOUND or self._groups.may_post(member)
        if is_begun and verdict.outcome in {Outcome.BOUND, Outcome.GONE, Outcome.ERROR}:
            decision = self._decision(member, verdict)
            member.decide(decision)
            self._groups.publishing(member, verdict)
            return [PublishDecision(decision=decision, held=member.latest)]
        del self._attempts[member.uid]
        for single in member.deliveries[1:]:
            self._queue.ranked.push(single)
        is_nominated = member.is_nominated(self._cache.pod(member.uid) or member.pod)
        cleared: list[Effect] = [ClearNomination(pod=member.pod)] if is_nominated else []
        return [*cleared, *self._groups.ended(member, verdict)]

    def _after_rehearsing(self, member: BindingAttempt, answer: RehearsalAnswer, now: float) -> list[Effect]:
        if answer.is_open:
            return self._back_off(member, answer, now)
        return self._groups.after_rehearsing(member, answer)

    def _undo_after(self, member: BindingAttempt, answer: RequestAnswer) -> list[Effect]:
        """Its group has failed while the request was under way."""
        if isinstance(answer, NominationAnswer) and answer.pod is not None:
            member.nominated = member.node
            member.nominated_version = version_number(answer.pod.metadata.resource_version)
        member.failures += answer.is_open
        return self._decide(member, UNDONE)

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
            effects += self._publish_waiting(attempt, now)
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

    def _go_on(self, attempt: BindingAttempt, now: float) -> list[Effect]:
        """Begin the attempt, or resume it after a pause; a suspect only after its count is stored."""
        if not attempt.is_suspect or self._suspects.is_counted(attempt.uid):
            return self._proceed(attempt, now)
        attempt.phase = AttemptPhase.COUNTING
        return [self._suspects.count(attempt.uid)]

    def _on_counted(self, event: TryCounted, now: float) -> list[Effect]:
        if not self._suspects.counted(event):
            return []
        group = self._groups.get(event.uid)
        return self._on_counted_pod(event, now) if group is None else self._on_counted_group(group, event.tries)

    def _on_counted_pod(self, event: TryCounted, now: float) -> list[Effect]:
        attempt = self._attempts.get(event.uid)
        if attempt is None:
            return []
        if self._is_closed:
            return [*self._suspects.clear(event.uid)]
        verdict = given_up(attempt.pod.key, event.tries)
        if verdict is not None:
            return self._decide(attempt, verdict, dead_letter=True)
        if event.tries == 1:
            return self._proceed(attempt, now)
        self._suspects.put_off(event.uid)
        return []

    def _proceed(self, attempt: BindingAttempt, now: float) -> list[Effect]:
        if attempt.undecided is not None:
            verdict, dead_letter = attempt.undecided
            return self._decide(attempt, verdict, dead_letter=dead_letter)
        if attempt.is_posted or (attempt.group and self._groups.is_reading(attempt)):
            return self._read(attempt)
        if attempt.group and attempt.eviction is not None:
            attempt.phase = AttemptPhase.EVICTING
            return self._request(attempt, *evictions(attempt.eviction, attempt.eviction.victims))
        return self._guard(attempt, lambda: self._examine(attempt, now), now)

    # From the conflict check to the Binding.

    def _examine(self, attempt: BindingAttempt, now: float) -> list[Effect]:
        """Decide on the pod's current state; if the chosen node still passes, go on with the plugins' steps."""
        latest, steps = attempt.latest, attempt.steps
        pod = self._current_pod(attempt)
        if pod is None:
            return self._wait_for_watch(attempt, now)
        if isinstance(pod, Verdict):
            return self._decide(attempt, pod)
        if pod.spec.scheduler_name != latest.ranked.profile:
            return self._reject(attempt, pod)
        attempt.pod = pod = without_whole(pod)
        if attempt.is_stray:
            attempt.is_stray = False
            self.strays.give_back()
        if self._may_have_claims(pod) and self._cache.reached(CLAIMS) < self._released_at:
            attempt.await_version(CLAIMS, self._released_at)
            return self._wait_for_writes(attempt, now)
        if steps is not None and self._check.passes(latest.ranked, pod, attempt.node):
            return self._before_binding(attempt, steps, now)
        with self._checking(latest):
            found = self._find(attempt, pod)
        return self._read_preemptor(attempt, now) if found is None else self._go_to(found, attempt, now)

    def _current_pod(self, attempt: BindingAttempt) -> Pod | Verdict | None:
        """As of ``ConflictCheck``; also a conflict for a single pod whose group lacks members by the binder's cache.

        An old watcher, or a forged message, would bind a part of the group.
        """
        latest = attempt.latest
        pod = self._check.current_pod(latest.ranked, latest.attempt, attempt.read)
        if isinstance(pod, Pod) and not attempt.group and (key := group_of(pod)) is not None:
            group = self._cache.groups.get(key)
            if key.dialect in self._cache.groups.absent or (group is not None and group.is_ordinary({})):
                return pod
            return NOT_ALONE if refuses_single(pod, group, self._cache.members_of(key)) else pod
        return pod

    def _may_have_claims(self, pod: Pod) -> bool:
        return bool(self._cache.snapshot.class_of(pod).traits & (Trait.RESOURCE_CLAIMS | Trait.EXTENDED_RESOURCES))

    def _find(self, attempt: BindingAttempt, pod: Pod) -> Found | None:
        """A node, pods to evict, or the verdict that there is no node; ``None``: read the pod before an eviction."""
        ranked = attempt.latest.ranked
        found, proposed = self._check.examine(ranked, pod), ranked.preemption
        if not isinstance(found, Verdict) or found.outcome is not Outcome.UNSCHEDULABLE:
            return found
        profile = self._profiles[ranked.profile]
        claim = self._check.claim_to_free(pod, profile)
        if claim is not None:
            return Freeing(pod=pod, claim=claim, verdict=found)
        if proposed is None:
            return found
        verdict = self._preemption.verdict(ranked, proposed, pod, profile)
        if attempt.read is None or verdict is not None:
            return verdict
        answered = attempt.take_answer(pod)
        verdict = verdict_on_nodes(answered) if isinstance(answered, NodesAnswered) else None
        first = verdict or self._preemption.about_nodes(pod, profile, attempt.refused)
        if first is not None:
            return first
        kept = answered.evictions if isinstance(answered, EvictionsAnswered) else None
        return self._preemption.plan(ranked, proposed, pod, profile, kept, attempt.asked)

    def _read_preemptor(self, attempt: BindingAttempt, now: float) -> list[Effect]:
        """Ask the API server for the pod, not a watch: a deleted or changed pod must not evict others."""
        profile = self._profiles[attempt.latest.ranked.profile]
        extenders = profile.asked_before_evictions(attempt.pod)
        if extenders and attempt.uid not in self._asked:
            if [*self._asked.values()].count(extenders) >= MOST_QUESTIONS:
                return [*self._suspects.clear(attempt.uid), *self._queue.wait_to_ask(attempt, now)]
            self._asked[attempt.uid] = extenders
        return self._read(attempt)

    def _go_to(self, found: Found, attempt: BindingAttempt, now: float) -> list[Effect]:
        if isinstance(found, Verdict):
            return self._decide(attempt, found)
        if isinstance(found, EvictionPlan):
            return self._evict(attempt, found)
        if isinstance(found, EvictionQuestion | NodeQuestion):
            return self._ask(attempt, found, now)
        if isinstance(found, Freeing):
            return self._request(attempt, attempt.begin_freeing(found))
        return self._assume(attempt, found, now)

    def _ask(self, attempt: BindingAttempt, question: EvictionQuestion | NodeQuestion, now: float) -> list[Effect]:
        """Ask extenders before an eviction. Other pods go on meanwhile; then the pod is examined again."""
        aside = self._queue.wait_for_answer(attempt, now)
        return [*self._suspects.clear(attempt.uid), *aside, attempt.begin_asking(question)]

    def _on_extenders(self, event: EvictionsAnswered | NodesAnswered, now: float) -> list[Effect]:
        attempt = self._attempts.get(event.pod.uid)
        if attempt is not None and attempt.phase is AttemptPhase.ASKING:
            attempt.answered = event
            self._queue.go_on(attempt, now)
        return []

    def _wait_for_watch(self, attempt: BindingAttempt, now: float) -> list[Effect]:
        """Give the watch some time to show the pod, then read it; a counted suspect at once, because others wait.

        The pod is never taken from the message.
        """
        if attempt.has_waited_for_watch or self._suspects.is_counted(attempt.uid):
            self._cache.stop_awaiting(attempt.uid)
            return self._read(attempt)
        self._cache.await_pod(attempt.uid)
        self._queue.wait_for_watch(attempt, now)
        return []

    def _end_pause(self, uid: str) -> None:
        self._groups.shown(uid)
        attempt, shown = self._attempts.get(uid), self._cache.pod(uid)
        if attempt is None or (attempt.is_unseen and self._unseen(attempt)):
            return
        if not attempt.is_unseen and attempt.is_waiting and shown is not None and not is_gone_while_unbound(shown):
            self._cache.await_pod(uid)  # a write of any client: plugins are not asked more often for it
            return
        self._queue.paused.end_pause(attempt)

    def _reject(self, attempt: BindingAttempt, pod: Pod) -> list[Effect]:
        self._queue.waiting.remove(attempt.uid)
        self._asked.pop(attempt.uid, None)
        del self._attempts[attempt.uid]
        return [
            *self._suspects.clear(attempt.uid),
            *(RejectRanked(held=delivery, reason=_wrong_profile(delivery, pod)) for delivery in attempt.deliveries),
        ]

    def _assume(self, attempt: BindingAttempt, placement: Placement, now: float) -> list[Effect]:
        if attempt.releases():
            message = f"the devices of its claims are on node {attempt.node!r}, where it does not fit any more"
            return self._decide(attempt, Verdict(outcome=Outcome.CONFLICT, reason=Reason.CLAIMS, message=message))
        attempt.unreserve()
        attempt.take(placement)
        self._cache.assume(placement.pod, placement.node)
        profile = self._profiles[attempt.latest.ranked.profile]
        attempt.steps = PluginSteps.on(placement.node, placement.pod, self._cache.snapshot, profile)
        return self._before_binding(attempt, attempt.steps, now)

    def _before_binding(self, attempt: BindingAttempt, steps: PluginSteps, now: float) -> list[Effect]:
        """Run Reserve, Permit, the writes and PreBind as far as possible; when all have succeeded, post the Binding."""
        if self._unseen(attempt):
            return self._wait_for_writes(attempt, now)
        status = steps.before_binding(now)
        if status.is_success:
            return self._post(attempt, steps, now)
        if steps.unwritten:
            return self._request(attempt, attempt.begin_writing(steps))
        if status.code is Code.WAIT:
            return [*self._record_wait(attempt, steps), *self._nominate_and_wait(attempt, steps, status, now)]
        if status.code is Code.ERROR:
            return self._decide(attempt, failed(", ".join(status.reasons)))
        return self._decide(attempt, rejected(attempt.node, status))

    def _record_wait(self, attempt: BindingAttempt, steps: PluginSteps) -> Iterator[Effect]:
        if steps.wait_event is not None:
            (reason, text), steps.wait_event = steps.wait_event, None
            decision = self._decision(attempt, waiting(attempt.node, text, reason))
            yield RecordEvent(decision=decision, pod=attempt.pod)

    def _unseen(self, attempt: BindingAttempt) -> list[tuple[str, int]]:
        """The kinds and versions that the watches have not reached yet."""
        return [each for each in attempt.awaited_versions.items() if self._cache.reached(each[0]) < each[1]]

    def _wait_for_writes(self, attempt: BindingAttempt, now: float) -> list[Effect]:
        """Pause until the watches have shown what was written."""
        self._end_questions(attempt)
        attempt.is_unseen = True
        for kind, version in self._unseen(attempt):
            self._cache.await_version(attempt.uid, kind, version)
        return [*self._suspects.clear(attempt.uid), *self._queue.wait_for_writes(attempt, now)]

    def _nominate_and_wait(
        self, attempt: BindingAttempt, steps: PluginSteps, status: Status, now: float
    ) -> list[Effect]:
        """Nominate the node once, so that other schedulers and autoscalers see what the pod waits for."""
        if attempt.pod.status.nominated_node_name == attempt.node:
            attempt.nominated = attempt.node
        if attempt.nominated != attempt.node:
            attempt.waits_for = waits_for(status)
            published = [] if attempt.is_waiting else self._publish_waiting(attempt, now)
            if self._attempts.get(attempt.uid) is not attempt:  # its group has failed
                return published
            return [*published, *self._request(attempt, attempt.begin_nominating())]
        return self._wait_for_plugin(attempt, steps, status, now)

    def _may_give_up(self, uid: str) -> bool:
        attempt = self._attempts.get(uid)
        if attempt is None:
            return False
        return attempt.may_give_up or (bool(attempt.group) and self._groups.may_give_up(attempt))

    def _evict(self, attempt: BindingAttempt, plan: EvictionPlan) -> list[Effect]:
        """Nominate the node before the victims are evicted, so that no other pod takes the freed resources.

        Victims that wait are not deleted: their attempts end, and they are tried again.
        """
        attempt.begin_evicting(plan)
        waiting_ones = [self._attempts[victim.uid] for victim in plan.victims if self._may_give_up(victim.uid)]
        given_up = {each.uid for each in waiting_ones}
        victims = [victim for victim in plan.victims if victim.uid not in given_up]
        self._cache.nominate(plan.pod, plan.node, frozenset(victim.uid for victim in victims))
        effects: list[Effect] = []
        for each in waiting_ones:
            if self._attempts.get(each.uid) is each:  # a group ends with the first of its members
                self._queue.paused.remove(each)
                effects += self._decide(each, preempted(each.node, plan.pod))
        return [*effects, *self._request(attempt, *evictions(plan, victims))]

    def _post(self, attempt: BindingAttempt, steps: PluginSteps, now: float) -> list[Effect]:
        if attempt.group and not self._groups.may_post(attempt):
            return self._groups.made_ready(attempt)
        by_extender = steps.profile.is_bound_by_extender(attempt.pod)
        if by_extender:
            self._at_extender.add(attempt.uid)
            self._queue.wait_for_extender(attempt, now)
        return self._request(attempt, attempt.begin_posting(steps.binding().node, by_extender=by_extender))

    def _read(self, attempt: BindingAttempt) -> list[Effect]:
        profile = self._profiles[attempt.latest.ranked.profile]
        return self._request(attempt, attempt.begin_reading(keeps_whole=profile.asks_before_evictions))

    def _void(self, attempt: BindingAttempt) -> list[Effect]:
        return self._request(attempt, attempt.begin_voiding())

    def _request(self, attempt: BindingAttempt, *requests: ApiRequest) -> list[Effect]:
        self._in_flight.add(attempt.uid)
        if attempt.group:
            self._groups.in_flight.add(attempt.uid)
        writes = (each for each in requests if isinstance(each, WriteObjects | ReleaseClaims))
        self._claim_turns.join(attempt.uid, {claim for each in writes for claim in each.claims})
        return [*requests]

    def _end_request(self, uid: str) -> None:
        self._in_flight.discard(uid)
        self._groups.in_flight.discard(uid)
        self._at_extender.discard(uid)
        self._claim_turns.leave(uid)

    # Answers of the API server.

    def _on_answer(
        self, answer: A, then: Callable[[BindingAttempt, A, float], list[Effect]], now: float
    ) -> list[Effect]:
        attempt = self._attempts.get(answer.uid)
        if attempt is None or answer.uid not in self._in_flight:
            return []
        self._end_request(answer.uid)
        self._queue.silence.answered(now, is_open=answer.is_open)
        if attempt.group and attempt.phase in _BEFORE_BINDING and self._groups.is_undoing(attempt):
            effects = self._guard(attempt, lambda: self._undo_after(attempt, answer), now)
        else:
            effects = self._guard(attempt, lambda: then(attempt, answer, now), now)
        return [LogMissingRight(text=answer.missing_right), *effects] if answer.missing_right else effects

    def _on_failure(self, failure: RequestFailed, now: float) -> list[Effect]:
        """Go on as after a lost answer, because the request may have been carried out."""
        attempt = self._attempts.get(failure.uid)
        if attempt is None or failure.uid not in self._in_flight:
            return []
        self._end_request(failure.uid)
        return self._count_exception(attempt, failure.error, now)

    def _after_posting(self, attempt: BindingAttempt, answer: BindingAnswer, now: float) -> list[Effect]:
        if answer.succeeded:
            return self._decide(attempt, bound(attempt.node))
        if answer.failure:
            return self._decide(attempt, failed(answer.failure))
        if may_have_been_executed(answer.status):
            attempt.lost_answer()
        if answer.status == HTTPStatus.CONFLICT and attempt.conflicts < self._settings.max_conflicts:
            attempt.conflicts += 1
            return self._read(attempt)
        if answer.status == HTTPStatus.CONFLICT or answer.is_open:
            return self._back_off(attempt, answer, now)
        return self._decide(attempt, _without_pod(answer))

    def _after_pod_answer(self, attempt: BindingAttempt, answer: PodAnswer, now: float) -> list[Effect]:
        if answer.is_open:
            return self._back_off(attempt, answer, now)
        if attempt.phase is AttemptPhase.VOIDING:
            return self._after_voiding(attempt, answer, now)
        if answer.pod is None:
            return self._decide(attempt, _without_pod(answer))
        if attempt.group and self._groups.is_reading(attempt):
            return self._after_reading_member(attempt, answer.pod)
        if not attempt.is_posted:
            attempt.read = answer.pod
            return self._examine(attempt, now)
        return self._after_reading(attempt, answer.pod, now)

    def _after_reading_member(self, member: BindingAttempt, shown: Pod) -> list[Effect]:
        """Before evictions for its group the member must be as it was planned."""
        pod = self._check.current_pod(member.latest.ranked, member.latest.attempt, shown)
        return self._decide(member, pod) if isinstance(pod, Verdict) else self._groups.read(member)

    def _after_voiding(self, attempt: BindingAttempt, answer: PodAnswer, now: float) -> list[Effect]:
        """Give the postponed verdict, or choose a new node, unless the Binding has landed meanwhile."""
        if answer.status in (HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT, HTTPStatus.UNPROCESSABLE_ENTITY):
            return self._decide(attempt, GONE)
        if answer.pod is None:
            return self._back_off(attempt, answer, now)
        if attempt.undecided is None:
            return self._after_reading(attempt, answer.pod, now)
        (verdict, dead_letter), attempt.undecided = attempt.undecided, None
        attempt.pod = answer.pod
        landed = verdict_on(answer.pod, answer.pod, attempt.node)
        return self._decide(attempt, landed or verdict, dead_letter=dead_letter and landed is None)

    def _after_reading(self, attempt: BindingAttempt, pod: Pod, now: float) -> list[Effect]:
        """Retry the same node as long as it passes, since a lost POST may still land.

        A node that no longer passes (deleted or full) gets no further POST: unanswered ones are voided before another
        node is chosen (ADR 17).
        """
        latest, steps = attempt.latest, attempt.steps
        verdict = verdict_on(pod, latest.ranked.pod, attempt.node)
        if verdict is not None:
            return self._decide(attempt, verdict)
        attempt.pod = pod
        if steps is not None and self._check.passes(latest.ranked, pod, attempt.node):
            return self._post(attempt, steps, now)
        if attempt.may_still_land:
            return self._void(attempt)
        return self._go_to(self._check.choose(latest.ranked, pod), attempt, now)

    def _after_evicting(self, attempt: BindingAttempt, answer: EvictionAnswer, now: float) -> list[Effect]:
        plan = attempt.eviction
        if plan is None:
            return []
        if answer.is_open:
            return self._back_off(attempt, answer, now)
        if answer.pod is not None:
            self._cache.nomination_written(attempt.uid, version_number(answer.pod.metadata.resource_version))
        return self._decide(attempt, verdict_after_evicting(plan, answer, attempt.latest.ranked.message))

    def _after_writing(self, attempt: BindingAttempt, answer: WritesAnswer, now: float) -> list[Effect]:
        steps = attempt.steps
        if answer.is_open or steps is None:
            return self._back_off(attempt, answer, now)
        if answer.status in (HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT):
            verdict = Verdict(outcome=Outcome.CONFLICT, reason=answer.conflict, message=answer.message)
            return self._decide(attempt, verdict)
        if not answer.succeeded:
            return self._decide(attempt, refused("writes before the Binding were", answer.status, answer.reason))
        steps.unwritten = ()
        attempt.awaited_versions = answer.versions
        return self._examine(attempt, now)  # meanwhile the node may be gone, or full

    def _after_releasing(self, attempt: BindingAttempt, answer: ReleaseAnswer, now: float) -> list[Effect]:
        """Give the postponed verdict. A claim that other clients keep writing is tried again."""
        if answer.is_open or answer.status == HTTPStatus.CONFLICT:
            return self._back_off(attempt, answer, now)
        self._released_at = max(self._released_at, answer.version)
        if attempt.phase is AttemptPhase.FREEING and attempt.freeing is not None:
            return self._decide(attempt, attempt.freeing.verdict)
        if attempt.steps is not None:
            attempt.steps.is_released = True
        if attempt.undecided is None:
            return []
        verdict, dead_letter = attempt.undecided
        return self._decide(attempt, verdict, dead_letter=dead_letter)

    def _after_nominating(self, attempt: BindingAttempt, answer: NominationAnswer, now: float) -> list[Effect]:
        """Wait, also after a rejection: the nomination only informs others."""
        if answer.is_open or attempt.steps is None:
            return self._back_off(attempt, answer, now)
        attempt.nominated = attempt.node
        if answer.pod is not None:
            attempt.read = answer.pod
            attempt.nominated_version = version_number(answer.pod.metadata.resource_version)
        return self._examine(attempt, now)  # meanwhile the node may be gone, or full

    # Pauses.

    def _end_questions(self, attempt: BindingAttempt) -> None:
        """Free the pod's place among those asked about; an answer may be old when the pod goes on."""
        self._asked.pop(attempt.uid, None)
        attempt.answered = None

    def _back_off(self, attempt: BindingAttempt, answer: RequestAnswer | None, now: float) -> list[Effect]:
        self._end_questions(attempt)
        aside = self._queue.back_off(attempt, answer, now)
        return [*self._suspects.clear(attempt.group or attempt.uid), *aside]

    def _wait_for_plugin(self, attempt: BindingAttempt, steps: PluginSteps, status: Status, now: float) -> list[Effect]:
        """Pause after a plugin's WAIT: the pod stays assumed, and another pod may be in flight instead."""
        self._end_questions(attempt)
        self._cache.await_pod(attempt.uid)
        aside = self._queue.wait_for_plugin(attempt, steps, status, now)
        published = [] if attempt.is_waiting else self._publish_waiting(attempt, now)
        return [*self._suspects.clear(attempt.group or attempt.uid), *aside, *published]

    def _resume(self, attempt: BindingAttempt, now: float) -> list[Effect]:
        attempt.conflicts = 0
        attempt.read = None
        attempt.is_unseen = False
        return self._go_on(attempt, now)

    def _publish_waiting(self, attempt: BindingAttempt, now: float) -> list[Effect]:
        if attempt.group:
            self._queue.published_waiting(attempt, now)
            return self._groups.publish_waiting(attempt, now)
        decision = self._decision(attempt, waiting(attempt.node, attempt.waits_for), repeat=attempt.repeats)
        self._queue.published_waiting(attempt, now)
        return [PublishDecision(decision=decision, held=attempt.latest)]

    # Ends.

    def _guard(self, attempt: BindingAttempt, step: Callable[[], list[Effect]], now: float) -> list[Effect]:
        """Count an exception against its pod; it never stops the process (docs/protocol.md, 6)."""
        try:
            return step()
        except Exception as exc:  # noqa: BLE001 - an exception of a plugin must not stop the queue
            return self._count_exception(attempt, f"{type(exc).__name__}: {exc}", now)

    def _count_exception(self, attempt: BindingAttempt, error: str, now: float) -> list[Effect]:
        attempt.exceptions += 1
        is_releasing = attempt.phase is AttemptPhase.RELEASING  # devices may not be free before it is answered
        if attempt.exceptions < self._settings.max_exceptions or is_releasing:
            return self._back_off(attempt, None, now)
        failure = f"failed {attempt.exceptions} times: {error}"
        verdict = failed(f"committing {attempt.pod.key!r}: {failure}", reason="exception")
        return self._decide(attempt, verdict, dead_letter=True)

    def _decide(self, attempt: BindingAttempt, verdict: Verdict, *, dead_letter: bool = False) -> list[Effect]:
        """Publish the final Decision; unless the pod is bound, free the node and the plugins' reservations.

        Before that, if a POST without an answer may still land, void it, unless the pod is gone; and release its claims
        (ADR 67), unless another client has bound it.
        """
        if attempt.may_still_land and verdict.outcome not in {Outcome.BOUND, Outcome.GONE}:
            attempt.undecided = (verdict, dead_letter)
            return self._void(attempt)
        is_bound = verdict.outcome is Outcome.BOUND or (verdict.outcome is Outcome.GONE and verdict.node)
        if not is_bound and (releases := attempt.releases()):
            attempt.undecided = (verdict, dead_letter)
            return self._request(attempt, attempt.begin_releasing(releases))
        ranked = attempt.latest.ranked
        profile = self._profiles[ranked.profile]
        is_unschedulable = verdict.outcome is Outcome.UNSCHEDULABLE
        is_useless = is_unschedulable and self._preemption.nomination_is_useless(ranked, attempt.pod, profile)
        attempt.undecided = None
        self._asked.pop(attempt.uid, None)
        if verdict.outcome is Outcome.BOUND:
            self._cache.finish_binding(attempt.uid)
            if attempt.steps is not None:
                attempt.steps.after_binding()
        else:
            self._cache.forget(attempt.uid)
            self._cache.withdraw_nomination(attempt.uid)
            attempt.unreserve()
        self._queue.waiting.remove(attempt.uid)
        if attempt.group:
            return self._end_member(attempt, verdict)
        decision = self._decision(attempt, verdict)
        attempt.decide(decision)
        publish = PublishDecision(decision=decision, held=attempt.latest, dead_letter=dead_letter)
        needs_none = verdict.outcome in {Outcome.BOUND, Outcome.GONE}
        if is_useless or (not needs_none and attempt.is_nominated(self._cache.pod(attempt.uid) or attempt.pod)):
            return [publish, ClearNomination(pod=attempt.pod)]
        return [publish]

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

    def _decision(self, attempt: BindingAttempt, verdict: Verdict, *, repeat: int = 0) -> Decision:
        is_conflict = verdict.outcome is Outcome.CONFLICT
        return decision_on(
            verdict,
            attempt.latest.ranked,
            attempt.pod,
            epoch=self._epoch,
            config=self._config,
            candidates=attempt.candidates,
            resource_versions=self._cache.newest_resource_versions() if is_conflict else {},
            devices=attempt.steps.devices() if attempt.steps is not None and verdict.node else {},
            repeat=repeat,
            of_group=self._groups.attempt_of(attempt) if attempt.group else "",
        )


def _without_pod(answer: RequestAnswer) -> Verdict:
    return GONE if answer.status == HTTPStatus.NOT_FOUND else refused("binding", answer.status, answer.reason)


def _wrong_profile(delivery: RankedDelivery, pod: Pod) -> str:
    ranked = delivery.ranked
    return f"ranked by profile {ranked.profile!r}, and pod {pod.key!r} names scheduler {pod.spec.scheduler_name!r}"
