"""The pods of one epoch that are not decided yet: the steps of each attempt, from the conflict check to its Decision.

The chosen node is assumed, the plugins take their steps, and the Binding is posted; what follows an answer is said by
``ApiAnswers``. Members of a group take the same steps when ``GroupBinding`` calls for them. When an attempt begins or
goes on after a pause is decided by ``BinderCore``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from http import HTTPStatus
from typing import Final

from berth.api.pod import Pod, is_gone_while_unbound
from berth.api.trimming import without_whole
from berth.cluster.pods import Trait
from berth.decoding import version_number
from berth.framework.profile import Profile
from berth.framework.status import Code, Status
from berth.messages.attempts import Decision, Outcome, Reason
from berth.messages.subjects import Epoch
from berth_binder.attempts.answers import ApiAnswers, NextStep
from berth_binder.attempts.attempt import AttemptPhase, BindingAttempt, DecidedAttempts, PluginSteps, Postponed
from berth_binder.attempts.groups import UNDONE, GroupBinding, MemberCalls
from berth_binder.attempts.queue import BindingQueue, RequestsInFlight, Suspects, waits_for
from berth_binder.attempts.strays import Strays
from berth_binder.cache import CLAIMS, Cache
from berth_binder.decisions.conflictcheck import ConflictCheck
from berth_binder.decisions.groupcheck import needs_others
from berth_binder.decisions.groupverdict import NOT_ALONE
from berth_binder.decisions.preemption import PreemptionCheck, evictions, verdict_on_nodes
from berth_binder.decisions.verdict import (
    EvictionPlan,
    EvictionQuestion,
    Freeing,
    NodeQuestion,
    Placement,
    Verdict,
    decision_on,
    failed,
    preempted,
    rejected,
    waiting,
)
from berth_binder.eventrecorder.records import FAILED
from berth_binder.events import (
    ApiRequest,
    ClearNomination,
    Effect,
    EvictionsAnswered,
    LogMissingRight,
    NodesAnswered,
    NominationAnswer,
    PublishDecision,
    RankedDelivery,
    RecordEvent,
    RehearsalAnswer,
    RejectRanked,
    ReleaseClaims,
    RequestAnswer,
    RequestFailed,
    WriteObjects,
)
from berth_binder.settings import CoreSettings

# Pods about which the same extenders are asked at once before evictions; further ones wait.
MOST_QUESTIONS: Final = 32
# Every third failure of an attempt is an Event if it is an answer 500 (docs/protocol.md, 5).
REPORTED_FAILURES: Final = 3

# In which nothing of a pod's Binding was sent.
_BEFORE_BINDING: Final = frozenset(
    {AttemptPhase.WRITING, AttemptPhase.NOMINATING, AttemptPhase.REHEARSING, AttemptPhase.READING}
)

Found = Verdict | Placement | EvictionPlan | EvictionQuestion | NodeQuestion | Freeing


class PodBinding:
    """``attempts``: those under way, by the uid of the pod. ``groups``: the gangs of which some are members."""

    def __init__(  # noqa: PLR0913 - an epoch begins with these
        self,
        *,
        cache: Cache,
        profiles: Mapping[str, Profile],
        queue: BindingQueue,
        in_flight: RequestsInFlight,
        suspects: Suspects,
        decided: DecidedAttempts,
        strays: Strays,
        checking: Callable[[RankedDelivery], AbstractContextManager[object]],
        settings: CoreSettings,
        epoch: Epoch,
        config: str,
    ) -> None:
        self._cache = cache
        self._profiles = profiles
        self._queue = queue
        self._in_flight = in_flight
        self._suspects = suspects
        self._strays = strays
        self._checking = checking
        self._settings = settings
        self._epoch = epoch
        self._config = config
        self._check = ConflictCheck(cache=cache, profiles=profiles)
        self._preemption = PreemptionCheck(cache=cache, may_give_up=self._may_give_up)
        self._answers = ApiAnswers(cache=cache, check=self._check, most_conflicts=settings.max_conflicts)
        self.attempts: dict[str, BindingAttempt] = {}
        # Extenders that are asked before a pod's evictions, by its uid: from its reading until it is decided or paused.
        self._asked: dict[str, tuple[str, ...]] = {}
        self.now = 0.0  # of the events that are handled
        self.groups: Final = GroupBinding(
            cache=cache,
            profiles=profiles,
            calls=MemberCalls(
                begin=self._begin_member,
                prepare=self._prepare_member,
                proceed=self.proceed,
                request=self._request_all,
                decide=self._decide_member,
                is_tried=self.attempts.__contains__,
                is_in_flight=in_flight.uids.__contains__,
                push=queue.ranked.push,
            ),
            check=self._check,
            decided=decided,
            settings=settings,
            epoch=epoch,
            config=config,
        )

    def proceed(self, attempt: BindingAttempt, now: float) -> list[Effect]:
        if attempt.postponed is not None:
            verdict, dead_letter = attempt.postponed
            return self.decide(attempt, verdict, dead_letter=dead_letter)
        if attempt.is_posted or (attempt.group and self.groups.is_reading(attempt)):
            return self._read(attempt)
        if attempt.group and attempt.eviction is not None:
            attempt.phase = AttemptPhase.EVICTING
            return self._request(attempt, *evictions(attempt.eviction, attempt.eviction.victims))
        return self._guard(attempt, lambda: self._examine(attempt, now), now)

    # Members of groups.

    def _begin_member(self, member: BindingAttempt) -> None:
        self.attempts[member.uid] = member

    def _prepare_member(self, member: BindingAttempt, now: float) -> list[Effect]:
        steps = member.steps
        return [] if steps is None else self._guard(member, lambda: self._before_binding(member, steps, now), now)

    def _request_all(self, member: BindingAttempt, requests: Iterable[ApiRequest]) -> list[Effect]:
        return self._request(member, *requests)

    def _decide_member(self, member: BindingAttempt, verdict: Verdict) -> list[Effect]:
        """End a member that has no request in flight."""
        self._queue.paused.remove(member)
        return self._guard(member, lambda: self.decide(member, verdict), self.now)

    def _end_member(self, member: BindingAttempt, verdict: Verdict) -> list[Effect]:
        """The end of a member, which has a Decision of its own only if its group is begun."""
        is_begun = verdict.outcome is Outcome.BOUND or self.groups.may_post(member)
        if is_begun and verdict.outcome in {Outcome.BOUND, Outcome.GONE, Outcome.ERROR}:
            decision = self._decision(member, verdict)
            member.decide(decision)
            self.groups.publishing(member, verdict)
            return [PublishDecision(decision=decision, held=member.latest)]
        del self.attempts[member.uid]
        for single in member.deliveries[1:]:
            self._queue.ranked.push(single)
        is_nominated = member.is_nominated(self._cache.pod(member.uid) or member.pod)
        cleared: list[Effect] = [ClearNomination(pod=member.pod)] if is_nominated else []
        return [*cleared, *self.groups.ended(member, verdict)]

    def _undo_after(self, member: BindingAttempt, answer: RequestAnswer) -> list[Effect]:
        """Its group has failed while the request was under way."""
        if isinstance(answer, NominationAnswer) and answer.pod is not None:
            member.nominated = member.node
            member.nominated_version = version_number(answer.pod.metadata.resource_version)
        member.failures += answer.is_open
        return self.decide(member, UNDONE)

    def _compare_member(self, member: BindingAttempt) -> list[Effect]:
        """Before evictions for its group the member must be as it was planned."""
        pod = self._check.current_pod(member.latest.ranked, member.latest.attempt, member.read)
        return self.decide(member, pod) if isinstance(pod, Verdict) else self.groups.read(member)

    # From the conflict check to the Binding.

    def _examine(self, attempt: BindingAttempt, now: float) -> list[Effect]:
        """Decide on the pod's current state; if the chosen node still passes, go on with the plugins' steps."""
        latest, steps = attempt.latest, attempt.steps
        pod = self._current_pod(attempt)
        if pod is None:
            return self._wait_for_watch(attempt, now)
        if isinstance(pod, Verdict):
            return self.decide(attempt, pod)
        if pod.spec.scheduler_name != latest.ranked.profile:
            return self._reject(attempt, pod)
        attempt.pod = pod = without_whole(pod)
        if attempt.is_stray:
            attempt.is_stray = False
            self._strays.give_back()
        if self._may_have_claims(pod) and self._cache.reached(CLAIMS) < self._answers.released_at:
            attempt.await_version(CLAIMS, self._answers.released_at)
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
        if isinstance(pod, Pod) and not attempt.group and needs_others(pod, self._cache):
            return NOT_ALONE
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
            return self.decide(attempt, found)
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

    def on_extenders(self, event: EvictionsAnswered | NodesAnswered, now: float) -> list[Effect]:
        attempt = self.attempts.get(event.pod.uid)
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

    def shown(self, uid: str) -> None:
        self.groups.shown(uid)
        attempt, shown = self.attempts.get(uid), self._cache.pod(uid)
        if attempt is None or (attempt.is_unseen and self._unseen(attempt)):
            return
        if not attempt.is_unseen and attempt.is_waiting and shown is not None and not is_gone_while_unbound(shown):
            self._cache.await_pod(uid)  # a write of any client: plugins are not asked more often for it
            return
        self._queue.paused.end_pause(attempt)

    def _reject(self, attempt: BindingAttempt, pod: Pod) -> list[Effect]:
        self._queue.waiting.remove(attempt.uid)
        self._asked.pop(attempt.uid, None)
        del self.attempts[attempt.uid]
        return [
            *self._suspects.clear(attempt.uid),
            *(RejectRanked(held=delivery, reason=wrong_profile(delivery, pod)) for delivery in attempt.deliveries),
        ]

    def _assume(self, attempt: BindingAttempt, placement: Placement, now: float) -> list[Effect]:
        if attempt.releases():
            message = f"the devices of its claims are on node {attempt.node!r}, where it does not fit any more"
            return self.decide(attempt, Verdict(outcome=Outcome.CONFLICT, reason=Reason.CLAIMS, message=message))
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
            return self.decide(attempt, failed(", ".join(status.reasons)))
        return self.decide(attempt, rejected(attempt.node, status))

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
            published = [] if attempt.is_waiting else self.publish_waiting(attempt, now)
            if self.attempts.get(attempt.uid) is not attempt:  # its group has failed
                return published
            return [*published, *self._request(attempt, attempt.begin_nominating())]
        return self._wait_for_plugin(attempt, steps, status, now)

    def _may_give_up(self, uid: str) -> bool:
        attempt = self.attempts.get(uid)
        if attempt is None:
            return False
        return attempt.may_give_up or (bool(attempt.group) and self.groups.may_give_up(attempt))

    def _evict(self, attempt: BindingAttempt, plan: EvictionPlan) -> list[Effect]:
        """Nominate the node before the victims are evicted, so that no other pod takes the freed resources.

        Victims that wait are not deleted: their attempts end, and they are tried again.
        """
        attempt.begin_evicting(plan)
        waiting_ones = [self.attempts[victim.uid] for victim in plan.victims if self._may_give_up(victim.uid)]
        given_up = {each.uid for each in waiting_ones}
        victims = [victim for victim in plan.victims if victim.uid not in given_up]
        self._cache.nominate(plan.pod, plan.node, frozenset(victim.uid for victim in victims))
        effects: list[Effect] = []
        for each in waiting_ones:
            if self.attempts.get(each.uid) is each:  # a group ends with the first of its members
                self._queue.paused.remove(each)
                effects += self.decide(each, preempted(each.node, plan.pod))
        return [*effects, *self._request(attempt, *evictions(plan, victims))]

    def _post(self, attempt: BindingAttempt, steps: PluginSteps, now: float) -> list[Effect]:
        if attempt.group and not self.groups.may_post(attempt):
            return self.groups.made_ready(attempt)
        by_extender = steps.profile.is_bound_by_extender(attempt.pod)
        if by_extender:
            self._in_flight.at_extender.add(attempt.uid)
            self._queue.wait_for_extender(attempt, now)
        return self._request(attempt, attempt.begin_posting(steps.binding().node, by_extender=by_extender))

    def _read(self, attempt: BindingAttempt) -> list[Effect]:
        profile = self._profiles[attempt.latest.ranked.profile]
        return self._request(attempt, attempt.begin_reading(keeps_whole=profile.asks_before_evictions))

    def _void(self, attempt: BindingAttempt) -> list[Effect]:
        return self._request(attempt, attempt.begin_voiding())

    def _request(self, attempt: BindingAttempt, *requests: ApiRequest) -> list[Effect]:
        writes = (each for each in requests if isinstance(each, WriteObjects | ReleaseClaims))
        self._in_flight.begin(attempt.uid, {claim for each in writes for claim in each.claims})
        if attempt.group:
            self.groups.in_flight.add(attempt.uid)
        return [*requests]

    def _end_request(self, uid: str) -> None:
        self._in_flight.end(uid)
        self.groups.in_flight.discard(uid)

    # Answers.

    def on_answer(self, answer: RequestAnswer, now: float) -> list[Effect]:
        attempt = self.attempts.get(answer.uid)
        if attempt is None or answer.uid not in self._in_flight.uids:
            return []
        self._end_request(answer.uid)
        self._queue.silence.answered(now, is_open=answer.is_open)
        effects = self._guard(attempt, lambda: self._go_on_after(answer, attempt, now), now)
        return [LogMissingRight(text=answer.missing_right), *effects] if answer.missing_right else effects

    def _go_on_after(self, answer: RequestAnswer, attempt: BindingAttempt, now: float) -> list[Effect]:
        if attempt.group and attempt.phase in _BEFORE_BINDING and self.groups.is_undoing(attempt):
            return self._undo_after(attempt, answer)
        found = self._answers.next_step(attempt, answer)
        if isinstance(found, NextStep):
            return self._take(found, attempt, answer, now)
        verdict, dead_letter = found if isinstance(found, Postponed) else (found, False)
        return self.decide(attempt, verdict, dead_letter=dead_letter)

    def _take(  # noqa: PLR0911 - one for each step
        self, step: NextStep, attempt: BindingAttempt, answer: RequestAnswer, now: float
    ) -> list[Effect]:
        match step:
            case NextStep.BACK_OFF:
                return self._back_off(attempt, answer, now)
            case NextStep.READ:
                return self._read(attempt)
            case NextStep.EXAMINE if attempt.group and self.groups.is_reading(attempt):
                return self._compare_member(attempt)
            case NextStep.EXAMINE:
                return self._examine(attempt, now)
            case NextStep.POST if attempt.steps is not None:
                return self._post(attempt, attempt.steps, now)
            case NextStep.VOID:
                return self._void(attempt)
            case NextStep.CHOOSE:
                return self._go_to(self._check.choose(attempt.latest.ranked, attempt.pod), attempt, now)
            case NextStep.END_REHEARSAL if isinstance(answer, RehearsalAnswer):
                return self.groups.after_rehearsing(attempt, answer)
            case _:
                return []

    def on_failure(self, failure: RequestFailed, now: float) -> list[Effect]:
        """Go on as after a lost answer, because the request may have been carried out."""
        attempt = self.attempts.get(failure.uid)
        if attempt is None or failure.uid not in self._in_flight.uids:
            return []
        self._end_request(failure.uid)
        return self._count_exception(attempt, failure.error, now)

    # Pauses.

    def _end_questions(self, attempt: BindingAttempt) -> None:
        """Free the pod's place among those asked about; an answer may be old when the pod goes on."""
        self._asked.pop(attempt.uid, None)
        attempt.answered = None

    def _back_off(self, attempt: BindingAttempt, answer: RequestAnswer | None, now: float) -> list[Effect]:
        self._end_questions(attempt)
        aside = self._queue.back_off(attempt, answer, now)
        return [*self._suspects.clear(attempt.group or attempt.uid), *aside, *self._record_failing(attempt, answer)]

    def _record_failing(self, attempt: BindingAttempt, answer: RequestAnswer | None) -> Iterator[Effect]:
        """Say that requests for the pod fail again and again: a webhook that fails does not end by itself."""
        if answer is None or answer.status != HTTPStatus.INTERNAL_SERVER_ERROR or attempt.failures % REPORTED_FAILURES:
            return
        verdict = waiting(attempt.node, attempt.waits_for, FAILED)
        yield RecordEvent(decision=self._decision(attempt, verdict), pod=attempt.pod)
        if attempt.group:
            yield self.groups.record_failing(attempt)

    def _wait_for_plugin(self, attempt: BindingAttempt, steps: PluginSteps, status: Status, now: float) -> list[Effect]:
        """Pause after a plugin's WAIT: the pod stays assumed, and another pod may be in flight instead."""
        self._end_questions(attempt)
        self._cache.await_pod(attempt.uid)
        aside = self._queue.wait_for_plugin(attempt, steps, status, now)
        published = [] if attempt.is_waiting else self.publish_waiting(attempt, now)
        return [*self._suspects.clear(attempt.group or attempt.uid), *aside, *published]

    def publish_waiting(self, attempt: BindingAttempt, now: float) -> list[Effect]:
        if attempt.group:
            self._queue.published_waiting(attempt, now)
            return self.groups.publish_waiting(attempt, now)
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
        return self.decide(attempt, verdict, dead_letter=True)

    def decide(self, attempt: BindingAttempt, verdict: Verdict, *, dead_letter: bool = False) -> list[Effect]:
        """Publish the final Decision; unless the pod is bound, free the node and the plugins' reservations.

        Before that, if a POST without an answer may still land, void it, unless the pod is gone; and release its claims
        (ADR 67), unless another client has bound it.
        """
        if attempt.may_still_land and verdict.outcome not in {Outcome.BOUND, Outcome.GONE}:
            attempt.postponed = Postponed(verdict, dead_letter)
            return self._void(attempt)
        is_bound = verdict.outcome is Outcome.BOUND or (verdict.outcome is Outcome.GONE and verdict.node)
        if not is_bound and (releases := attempt.releases()):
            attempt.postponed = Postponed(verdict, dead_letter)
            return self._request(attempt, attempt.begin_releasing(releases))
        ranked = attempt.latest.ranked
        profile = self._profiles[ranked.profile]
        is_unschedulable = verdict.outcome is Outcome.UNSCHEDULABLE
        is_useless = is_unschedulable and self._preemption.nomination_is_useless(ranked, attempt.pod, profile)
        attempt.postponed = None
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
            of_group=self.groups.attempt_of(attempt) if attempt.group else "",
        )


def wrong_profile(delivery: RankedDelivery, pod: Pod) -> str:
    ranked = delivery.ranked
    return f"ranked by profile {ranked.profile!r}, and pod {pod.key!r} names scheduler {pod.spec.scheduler_name!r}"
