"""Which of the K nodes the pod gets, by the newest state: the first that passes every filter, untouched ones first.

A node is untouched when the cache has no more pods on it than the scorer counted. When all that pass were touched
since, the pod is ranked again, so that any number of scorers places as one does (PROTOCOL 5, *Untouched first*); where
that is of no use, the node that was touched least is taken (ADR 2). No node is taken for being untouched that is worse
in what pods cannot change: when all the better ones are full by now, the pod is ranked again. Where pods of a kind are
kept apart, the node with the fewest of them is taken (ADR 3).


What a proposal to evict pods comes to before anybody goes: the dry run again, on the binder's own state. Pure.

What a RANKED message comes to before anything is sent: the checks of PROTOCOL 5, in its order. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from berth.api.messages import Candidate, Outcome, Preemption, Ranked, Reason, Rejection, Victim
from berth.api.meta import version_number
from berth.api.pod import Pod, changed, is_being_preempted, is_gated, is_gone_while_unbound, priority_of
from berth.api.subjects import Attempt
from berth.framework.cycle import check, company_by_name, nodes_with_less_company
from berth.framework.interface import Nomination
from berth.framework.plugincalls import PluginFailure
from berth.framework.preemption import confirm
from berth.framework.profile import Profile
from berth.framework.status import Code, Status
from berth_binder.cache import PODS, Cache
from berth_binder.effects import CHANGED, GONE, Verdict, bound, bound_somewhere, failed

STALE_ATTEMPTS: Final = 3
"""Attempts of a uid in one term that may end in ``stale``; after that the node touched least is good enough."""


class RecheckError(Exception):
    """A filter could not answer: that is the pod's failure or a bug, never the node's "no"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The node, or why there is none: then ``refusals`` says which filter refused which node."""

    node: str = ""
    conflict: Reason | None = None
    refusals: tuple[Rejection, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Recheck:
    """The same filters that the scorer ran, asked of single nodes of the binder's own state."""

    cache: Cache
    best: int = 8
    """K: with fewer feasible nodes than this the least touched is taken at once: there is no better list to be had."""

    def passes(self, pod: Pod, node: str, profile: Profile) -> Status:
        """Every filter's answer for one node.

        Raises:
            RecheckError: a filter could not answer.
        """
        status = check(pod, node, self.cache.snapshot, profile)
        if status.code is Code.ERROR:
            raise RecheckError(f"checking {pod.key!r} on {node!r}: {status.plugin}: {', '.join(status.reasons)}")
        return status

    def choose(self, ranked: Ranked, attempt: Attempt, pod: Pod, profile: Profile) -> Choice:
        """Go through the K nodes in the scorer's order.

        Raises:
            RecheckError: a filter could not answer.
        """
        refusals: list[Rejection] = []
        if not ranked.untouched_first:
            chosen = next(self._passing(ranked.candidates, pod, profile, refusals), None)
            return Choice(node=chosen.node) if chosen else _nothing(refusals)
        choose = self._untouched if profile.spreading is None else self._least_company
        try:
            return choose(ranked, attempt, pod, profile)
        except PluginFailure as failure:
            raise RecheckError(f"checking {pod.key!r}: {failure}") from failure

    def _untouched(self, ranked: Ranked, attempt: Attempt, pod: Pod, profile: Profile) -> Choice:
        refusals: list[Rejection] = []
        excess: dict[str, int] = {}
        floor = 0
        for candidate in self._passing(ranked.candidates, pod, profile, refusals):
            points = profile.fixed_points(candidate.scores)
            if not excess and _is_worse_than_first(points, ranked, profile) and attempt.n <= STALE_ATTEMPTS:
                return Choice(conflict=Reason.STALE)
            floor = floor if excess else points
            if points < floor:
                continue
            there = company_by_name(pod, [candidate.node], self.cache.snapshot, profile)[candidate.node]
            excess[candidate.node] = there - candidate.pods
            if excess[candidate.node] <= 0:
                return Choice(node=candidate.node)
        if not excess:
            return _nothing(refusals)
        if self._may_be_ranked_again(ranked, attempt):
            return Choice(conflict=Reason.STALE)
        return Choice(node=min(excess, key=excess.__getitem__))

    def _least_company(self, ranked: Ranked, attempt: Attempt, pod: Pod, profile: Profile) -> Choice:
        """The node of the K with the fewest of the pod's kind; when another has fewer, a better list is to be had."""
        names = [candidate.node for candidate in ranked.candidates]
        there = company_by_name(pod, names, self.cache.snapshot, profile)
        in_order = sorted(ranked.candidates, key=lambda candidate: there[candidate.node])
        refusals: list[Rejection] = []
        chosen = next(self._passing(in_order, pod, profile, refusals), None)
        if chosen is None:
            return _nothing(refusals)
        if self._may_be_ranked_again(ranked, attempt):
            fewer = nodes_with_less_company(pod, self.cache.snapshot, profile, than=there[chosen.node])
            if any(self.passes(pod, node, profile).is_success for node in fewer[: self.best]):
                return Choice(conflict=Reason.STALE)
        return Choice(node=chosen.node)

    def _passing(
        self, candidates: Iterable[Candidate], pod: Pod, profile: Profile, refusals: list[Rejection]
    ) -> Iterator[Candidate]:
        """Those that pass every filter, looked at when they are asked for; of the others, why not."""
        for candidate in candidates:
            status = self.passes(pod, candidate.node, profile)
            if status.is_success:
                yield candidate
            else:
                refusals.append(_refusal(candidate, status))

    def _may_be_ranked_again(self, ranked: Ranked, attempt: Attempt) -> bool:
        return attempt.n <= STALE_ATTEMPTS and ranked.feasible >= self.best


def _is_worse_than_first(points: int, ranked: Ranked, profile: Profile) -> bool:
    """Whether the scorer's first node, which does not pass any more, had more of the points that pods cannot change.

    Others of its kind may have room that the scorer did not know of.
    """
    return points < profile.fixed_points(ranked.candidates[0].scores)


def _nothing(refusals: Iterable[Rejection]) -> Choice:
    return Choice(conflict=Reason.NO_CANDIDATE, refusals=tuple(refusals))


def _refusal(candidate: Candidate, status: Status) -> Rejection:
    return Rejection(plugin=status.plugin, reason=", ".join(status.reasons), nodes=1, examples=[candidate.node])


NOT_AS_PROPOSED: Final = "whom the pod would need gone is not as it was when the pod was ranked"


@dataclass(frozen=True, slots=True, kw_only=True)
class EvictionPlan:
    """These pods are to go from the node, so that this one can be there.

    ``demoted``: less important pods for which the node was kept; they look for another.
    """

    pod: Pod
    node: str
    victims: tuple[Pod, ...]
    demoted: tuple[Pod, ...]
    preemption: Preemption


@dataclass(frozen=True, slots=True, kw_only=True)
class PreemptionCheck:
    """Reads the cache, changes nothing."""

    cache: Cache
    profiles: Mapping[str, Profile]

    def of(self, ranked: Ranked, proposed: Preemption, pod: Pod) -> Verdict | EvictionPlan:
        """Whom to evict; or that victims are still going; or the conflict that others would be needed by now.

        Raises:
            RecheckError: a plugin could not answer.
        """
        profile = self.profiles[ranked.profile]
        kept = self.cache.nominated_pods.node_of(pod)
        if kept and self._is_being_vacated(pod, kept, profile):
            preemption = self._under_way(kept, proposed)
            return Verdict(outcome=Outcome.PREEMPTING, node=kept, message=ranked.message, preemption=preemption)
        now = self._needed_now(pod, proposed.node, profile)
        if now is None or not self._is_as_proposed(now, proposed):
            return Verdict(outcome=Outcome.CONFLICT, reason=Reason.VICTIMS, message=NOT_AS_PROPOSED)
        victims = tuple(placed.pod for uid in now.victims if (placed := self.cache.snapshot.placed(uid)))
        return EvictionPlan(
            pod=pod,
            node=now.node,
            victims=victims,
            demoted=self._less_important_nominees(pod, now.node),
            preemption=Preemption(node=now.node, victims=[_named(each) for each in victims], violations=now.violations),
        )

    def _is_being_vacated(self, pod: Pod, node: str, profile: Profile) -> bool:
        """Whether pods are still going for this one from a node that can take it then: nobody else is evicted."""
        info = self.cache.snapshot.node_info(node)
        if info is None or check(pod, node, self.cache.snapshot, profile).code is Code.UNSCHEDULABLE_AND_UNRESOLVABLE:
            return False
        if self.cache.victims_left(pod.uid):
            return True
        there = (placed.pod for placed in info.placed())
        return any(is_being_preempted(other) and priority_of(other) < priority_of(pod) for other in there)

    def _under_way(self, node: str, proposed: Preemption) -> Preemption:
        """Of what was proposed, whom somebody has evicted already: a binder that was killed before it said so."""
        placed = ((victim, self.cache.snapshot.placed(victim.uid)) for victim in proposed.victims)
        going = [victim for victim, found in placed if found is not None and is_being_preempted(found.pod)]
        return Preemption(node=node, victims=going, violations=proposed.violations)

    def _needed_now(self, pod: Pod, node: str, profile: Profile) -> Nomination | None:
        try:
            return confirm(pod, node, self.cache.snapshot, profile)
        except PluginFailure as failure:
            raise RecheckError(f"choosing victims for {pod.key!r} on {node!r}: {failure}") from failure

    def _is_as_proposed(self, now: Nomination, proposed: Preemption) -> bool:
        """Whether nobody else has to go than was said, nothing is violated that was not, and all are bound indeed."""
        said = {victim.uid for victim in proposed.victims}
        all_bound = not any(uid in self.cache.assumed_pods for uid in now.victims)
        return said.issuperset(now.victims) and now.violations <= proposed.violations and all_bound

    def _less_important_nominees(self, pod: Pod, node: str) -> tuple[Pod, ...]:
        nominees = (each for each in self.cache.snapshot.nominations() if each.node == node)
        return tuple(each.pod for each in nominees if priority_of(each.pod) < priority_of(pod))


def _named(pod: Pod) -> Victim:
    return Victim(uid=pod.uid, namespace=pod.metadata.namespace, name=pod.metadata.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """A node for the pod, as the binder knows it newest: its resourceVersion goes into the Binding."""

    pod: Pod
    node: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ConflictCheck:
    """Reads the cache, changes nothing."""

    cache: Cache
    recheck: Recheck
    preempting: PreemptionCheck
    profiles: Mapping[str, Profile]

    def of(self, ranked: Ranked, attempt: Attempt) -> Verdict | Placement | EvictionPlan:
        """Bound already, gone, changed, an error, no candidate; or else a node, or whom to evict.

        Raises:
            RecheckError: a filter could not answer.
        """
        pod = self.standing(ranked, attempt)
        if isinstance(pod, Verdict):
            return pod
        said = _said_by_the_scorer(ranked)
        if said is None:
            return self.choose(ranked, attempt, pod)
        if said.outcome is Outcome.UNSCHEDULABLE and ranked.preemption is not None:
            return self.preempting.of(ranked, ranked.preemption, pod)
        return said

    def standing(self, ranked: Ranked, attempt: Attempt) -> Verdict | Pod:
        """Bound already, gone or changed; or else the pod as it is known newest."""
        node = self.cache.bound_node(attempt.uid)
        if node is not None:
            return bound_somewhere(node, frozenset(each.node for each in ranked.candidates))
        pod = self._newest(ranked.pod)
        if pod is None:
            return GONE
        assumed = self.cache.assumed_pod(pod.uid)
        if assumed is not None and assumed.is_bound:
            return bound(assumed.node)
        if pod.spec.node_name or is_gone_while_unbound(pod):
            return GONE  # also when the message itself shows a node: then the watcher looks again
        return CHANGED if is_gated(pod) or changed(ranked.pod, pod) else pod

    def choose(self, ranked: Ranked, attempt: Attempt, pod: Pod) -> Verdict | Placement:
        """A node of the K, or the conflict that there is none.

        Raises:
            RecheckError: a filter could not answer.
        """
        choice = self.recheck.choose(ranked, attempt, pod, self.profiles[ranked.profile])
        if choice.conflict is None:
            return Placement(pod=pod, node=choice.node)
        return Verdict(outcome=Outcome.CONFLICT, reason=choice.conflict, refusals=choice.refusals)

    def _newest(self, said: Pod) -> Pod | None:
        """The newest state of the pod that anybody has shown; ``None`` when it must have been deleted since.

        The message's own is newer when the binder's watch lags behind the watcher's. Of a pod that no watch has shown
        it counts only above everything that ours has read: else the pod came and went.
        """
        shown = self.cache.pod(said.uid)
        version = version_number(said.metadata.resource_version)
        if shown is None:
            return said if version > self.cache.reached(PODS) else None
        return said if version > version_number(shown.metadata.resource_version) else shown


def _said_by_the_scorer(ranked: Ranked) -> Verdict | None:
    if ranked.error:
        return failed(ranked.error)
    if ranked.candidates:
        return None
    if ranked.proposals_counted:
        return Verdict(outcome=Outcome.CONFLICT, reason=Reason.PROPOSALS, message=ranked.message)
    return Verdict(outcome=Outcome.UNSCHEDULABLE, message=ranked.message)
