"""What an attempt does after an answer of the API server: it ends with a verdict, or takes another step.

Each answer leads to a value, which ``PodBinding`` carries out; only the attempt and what the answers have shown are
changed here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum, auto
from http import HTTPStatus
from typing import Any

from berth.api.pod import Pod
from berth.decoding import version_number
from berth.messages.attempts import Outcome
from berth_binder.attempts.attempt import AttemptPhase, BindingAttempt, Postponed
from berth_binder.cache import Cache
from berth_binder.decisions.conflictcheck import ConflictCheck
from berth_binder.decisions.groupcheck import needs_others
from berth_binder.decisions.groupverdict import NOT_ALONE
from berth_binder.decisions.preemption import verdict_after_evicting
from berth_binder.decisions.verdict import GONE, Verdict, bound, failed, refused, verdict_on
from berth_binder.events import (
    BindingAnswer,
    EvictionAnswer,
    NominationAnswer,
    PodAnswer,
    RehearsalAnswer,
    ReleaseAnswer,
    RequestAnswer,
    WritesAnswer,
    may_have_been_executed,
)


class NextStep(Enum):
    BACK_OFF = auto()  # the answer leaves the pod undecided
    READ = auto()  # ask the API server for the pod
    EXAMINE = auto()  # check the pod, and the node, which may be gone or full meanwhile
    POST = auto()  # to the same node
    VOID = auto()  # a POST without an answer, before another node is chosen
    CHOOSE = auto()  # another node
    END_REHEARSAL = auto()  # the group goes on, or fails
    NOTHING = auto()


Next = Verdict | Postponed | NextStep


class ApiAnswers:
    def __init__(self, *, cache: Cache, check: ConflictCheck, most_conflicts: int) -> None:
        """``most_conflicts``: 409 answers to Bindings of a pod in a row after which it pauses."""
        self._cache = cache
        self._check = check
        self._most_conflicts = most_conflicts
        # The highest resourceVersion by which a claim was released. Until the watch has reached it, the cache shows
        # allocations that are gone.
        self.released_at = 0
        self._handlers: Mapping[type, Callable[[BindingAttempt, Any], Next]] = {
            RehearsalAnswer: self._after_rehearsing,
            BindingAnswer: self._after_posting,
            PodAnswer: self._after_pod_answer,
            EvictionAnswer: self._after_evicting,
            WritesAnswer: self._after_writing,
            ReleaseAnswer: self._after_releasing,
            NominationAnswer: self._after_nominating,
        }

    def next_step(self, attempt: BindingAttempt, answer: RequestAnswer) -> Next:
        return self._handlers[type(answer)](attempt, answer)

    def _after_rehearsing(self, _member: BindingAttempt, answer: RehearsalAnswer) -> Next:
        return NextStep.BACK_OFF if answer.is_open else NextStep.END_REHEARSAL

    def _after_posting(self, attempt: BindingAttempt, answer: BindingAnswer) -> Next:
        if answer.succeeded:
            return bound(attempt.node)
        if answer.failure:
            return failed(answer.failure)
        if may_have_been_executed(answer.status):
            attempt.lost_answer()
        if answer.status == HTTPStatus.CONFLICT and attempt.conflicts < self._most_conflicts:
            attempt.conflicts += 1
            return NextStep.READ
        if answer.status == HTTPStatus.CONFLICT or answer.is_open:
            return NextStep.BACK_OFF
        return _without_pod(answer)

    def _after_pod_answer(self, attempt: BindingAttempt, answer: PodAnswer) -> Next:
        if answer.is_open:
            return NextStep.BACK_OFF
        if attempt.phase is AttemptPhase.VOIDING:
            return self._after_voiding(attempt, answer)
        if answer.pod is None:
            return _without_pod(answer)
        if not attempt.is_posted:
            attempt.read = answer.pod
            return NextStep.EXAMINE
        return self._after_reading(attempt, answer.pod)

    def _after_voiding(self, attempt: BindingAttempt, answer: PodAnswer) -> Next:
        """Give the postponed verdict, or choose a new node, unless the Binding has landed meanwhile."""
        if answer.status in (HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT, HTTPStatus.UNPROCESSABLE_ENTITY):
            return GONE
        if answer.pod is None:
            return NextStep.BACK_OFF
        if attempt.postponed is None:
            return self._after_reading(attempt, answer.pod)
        postponed, attempt.postponed = attempt.postponed, None
        attempt.pod = answer.pod
        return verdict_on(answer.pod, answer.pod, attempt.node) or postponed

    def _after_reading(self, attempt: BindingAttempt, pod: Pod) -> Next:
        """Retry the same node as long as it passes, since a lost POST may still land.

        A node that no longer passes (deleted or full) gets no further POST: unanswered ones are voided before another
        node is chosen (ADR 17).
        """
        ranked = attempt.latest.ranked
        verdict = verdict_on(pod, ranked.pod, attempt.node)
        if verdict is not None:
            return verdict
        if not attempt.group and needs_others(pod, self._cache):  # it has joined the group since
            return NOT_ALONE
        attempt.pod = pod
        if attempt.steps is not None and self._check.passes(ranked, pod, attempt.node):
            return NextStep.POST
        return NextStep.VOID if attempt.may_still_land else NextStep.CHOOSE

    def _after_evicting(self, attempt: BindingAttempt, answer: EvictionAnswer) -> Next:
        plan = attempt.eviction
        if plan is None:
            return NextStep.NOTHING
        if answer.is_open:
            return NextStep.BACK_OFF
        if answer.pod is not None:
            self._cache.nomination_written(attempt.uid, version_number(answer.pod.metadata.resource_version))
        return verdict_after_evicting(plan, answer, attempt.latest.ranked.message)

    def _after_writing(self, attempt: BindingAttempt, answer: WritesAnswer) -> Next:
        steps = attempt.steps
        if answer.is_open or steps is None:
            return NextStep.BACK_OFF
        if answer.status in (HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT):
            return Verdict(outcome=Outcome.CONFLICT, reason=answer.conflict, message=answer.message)
        if not answer.succeeded:
            return refused("writes before the Binding were", answer.status, answer.reason)
        steps.unwritten = ()
        attempt.awaited_versions = answer.versions
        return NextStep.EXAMINE

    def _after_releasing(self, attempt: BindingAttempt, answer: ReleaseAnswer) -> Next:
        """Give the postponed verdict. A claim that other clients keep writing is tried again."""
        if answer.is_open or answer.status == HTTPStatus.CONFLICT:
            return NextStep.BACK_OFF
        self.released_at = max(self.released_at, answer.version)
        if attempt.phase is AttemptPhase.FREEING and attempt.freeing is not None:
            return attempt.freeing.verdict
        if attempt.steps is not None:
            attempt.steps.is_released = True
        return attempt.postponed or NextStep.NOTHING

    def _after_nominating(self, attempt: BindingAttempt, answer: NominationAnswer) -> Next:
        """Wait, also after a rejection: the nomination only informs others."""
        if answer.is_open or attempt.steps is None:
            return NextStep.BACK_OFF
        attempt.nominated = attempt.node
        if answer.pod is not None:
            attempt.read = answer.pod
            attempt.nominated_version = version_number(answer.pod.metadata.resource_version)
        return NextStep.EXAMINE


def _without_pod(answer: RequestAnswer) -> Verdict:
    return GONE if answer.status == HTTPStatus.NOT_FOUND else refused("binding", answer.status, answer.reason)
