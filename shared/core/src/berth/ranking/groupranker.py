"""From PENDING to RANKED of a group: a plan on the view, whose members count as proposals from then on (ADR 72)."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from typing import Any

from berth.framework.extending import Extension
from berth.framework.profile import Profile
from berth.groups.evictions import may_help, plan_evictions
from berth.groups.planner import plan
from berth.groups.question import GroupQuestion
from berth.messages.attempts import Preemption, Victim
from berth.messages.groupattempts import GroupPending, GroupRanked, within_bounds
from berth.messages.groups import GroupPlan
from berth.messages.subjects import Attempt
from berth.ranking.view import View

Answering = Generator[None, None, GroupRanked]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRanker:
    """Plans groups with the profiles of one configuration.

    ``clock``: monotonic seconds. ``last_ranked``: the attempt of the scorer's last ranking.
    """

    profiles: Mapping[str, Profile]
    config: str
    identity: str
    clock: Callable[[], float]
    last_ranked: Callable[[], str] = lambda: ""

    def answer(
        self,
        pending: GroupPending,
        view: View,
        extensions: Mapping[str, Extension] | None = None,
        *,
        may_continue: Callable[[], bool] = lambda: True,
    ) -> Answering:
        """Plan a group of a known profile. Yields when ``may_continue`` says that its time is over.

        Meanwhile the view may change: the plan, and the positions in the answer, are those of the start.
        """
        begun, pods = self.clock(), pending.bundle.pods()
        for pod in pods:
            view.proposals.withdraw(pod.uid)
        begun_after = self.last_ranked()
        positions, received, age = view.positions, view.take_received(), view.age_seconds()
        question = GroupQuestion(
            group=pending.group,
            attempt=Attempt.parse(pending.attempt),
            members=pods,
            need=pending.need,
            bound=pending.bound,
            extensions=extensions or {},
        )
        profile, is_behind, is_counted, preemption = self.profiles[pending.profile], False, False, None
        found = yield from plan(question, view.snapshot, profile, may_continue=may_continue)
        if not found.is_found and not found.error:
            is_behind = not positions.covers(pending.after)
            if not is_behind:
                is_counted = yield from self._fits_without_proposals(question, profile, view, may_continue)
                if not is_counted:
                    preemption = yield from self._evictions(question, profile, pending.priority, view, may_continue)
        message = self._message(
            pending,
            found,
            positions=positions,
            received=received,
            begun_after=begun_after,
            view_age_seconds=age,
            seconds=max(0.0, self.clock() - begun),
            behind=is_behind,
            proposals_counted=is_counted,
            preemption=preemption,
        )
        view.proposals.ranked_group(message, self.clock())
        return message

    def give_up(self, pending: GroupPending, reason: str) -> GroupRanked:
        """An answer with an error, because only the binder publishes Decisions."""
        return self._message(pending, GroupPlan(need=pending.need, error=reason))

    def _message(self, pending: GroupPending, found: GroupPlan, **values: Any) -> GroupRanked:
        return within_bounds(
            GroupRanked(
                config=self.config,
                attempt=pending.attempt,
                profile=pending.profile,
                group=pending.group,
                bundle=pending.bundle,
                need=pending.need,
                bound=pending.bound,
                failures=pending.failures,
                plan=found,
                scorer=self.identity,
                **values,
            )
        )

    def _fits_without_proposals(
        self, question: GroupQuestion, profile: Profile, view: View, may_continue: Callable[[], bool]
    ) -> Generator[None, None, bool]:
        """Whether only proposals keep the group out: the binder may place them elsewhere, and no event would say so."""
        if not any(view.proposals.uncertain()) and not len(view.proposals.nominations):
            return False
        with view.without_proposals(bound=True):
            without = view.snapshot.copied()
        found = yield from plan(question, without, profile, may_continue=may_continue)
        return found.is_found

    def _evictions(
        self,
        question: GroupQuestion,
        profile: Profile,
        priority: int,
        view: View,
        may_continue: Callable[[], bool],
    ) -> Generator[None, None, Preemption | None]:
        """The pods whose eviction makes room for all that is needed: no proposals, which the binder does not count."""
        if not may_help(view.snapshot, priority):
            return None
        found = yield from plan_evictions(
            question,
            view.snapshot,
            profile,
            priority=priority,
            groups=view.groups.known,
            absent=[proposal.attempt.uid for proposal in view.proposals.unbound()],
            may_continue=may_continue,
        )
        if found is None:
            return None
        victims = [
            Victim(uid=pod.uid, namespace=pod.metadata.namespace, name=pod.metadata.name) for pod in found.victims
        ]
        return Preemption(node="", victims=victims)
