"""The conflict check: decides on a RANKED message before anything is sent (docs/protocol.md, 5).

It reads the cache only. ``ConflictCheck`` first looks at the pod: bound, gone, changed, or still to be placed.
``NodeChoice`` then takes, of the K nodes that pass every filter, the one with the best estimate. ``PreemptionCheck``
repeats the dry run of a proposal to evict pods.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from berth.api.decoding import version_number
from berth.api.messages import (
    Candidate,
    Outcome,
    Preemption,
    Ranked,
    Reason,
    Rejection,
    Victim,
    by_best_estimate,
)
from berth.api.pod import Pod, changed, is_being_preempted, is_gated, is_gone_while_unbound, priority_of
from berth.api.subjects import Attempt
from berth.cluster.nodes import node_info
from berth.framework.cycle import any_feasible_node, check
from berth.framework.interface import Nomination
from berth.framework.plugincalls import PluginFailure
from berth.framework.preemption import confirm
from berth.framework.profile import Profile
from berth.framework.scoring import counted_pods_by_node
from berth.framework.status import Code, Status
from berth_binder.attempt import (
    CHANGED,
    GONE,
    EvictionPlan,
    Placement,
    Verdict,
    bound,
    bound_or_gone,
    failed,
)
from berth_binder.cache import PODS, Cache

NOT_AS_PROPOSED: Final = "the victims that the pod needs have changed since it was ranked"


class RecheckError(Exception):
    """A plugin could not answer: a failure of the pod or a bug, never a rejection of the node."""


class ConflictCheck:
    """The checks in docs/protocol.md, 5's order."""

    def __init__(self, *, cache: Cache, profiles: Mapping[str, Profile], max_view_age: float = 60.0) -> None:
        """``max_view_age``: seconds; the oldest view on which pods are evicted."""
        self._cache = cache
        self._profiles = profiles
        self._nodes = NodeChoice(cache=cache)
        self._preemption = PreemptionCheck(cache=cache, max_view_age=max_view_age)

    def examine(self, ranked: Ranked, pod: Pod) -> Verdict | Placement | EvictionPlan:
        """The verdict (an error, no candidate), or else a node for the pod, or the pods to evict.

        Raises:
            RecheckError: a plugin could not answer.
        """
        verdict = _scorers_verdict(ranked)
        if verdict is None:
            return self.choose(ranked, pod)
        if verdict.outcome is Outcome.UNSCHEDULABLE and ranked.preemption is not None:
            return self._preemption.plan(ranked, ranked.preemption, pod, self._profiles[ranked.profile])
        return verdict

    def current_pod(self, ranked: Ranked, attempt: Attempt, read: Pod | None) -> Verdict | Pod | None:
        """The verdict (bound, gone or changed), or else the pod; ``None``: its own watch has not shown it yet.

        ``read`` is what the API server has just answered. The pod of the message is compared, and never used itself.
        """
        node = self._cache.bound_node(attempt.uid)
        if node is not None:
            return bound_or_gone(node, frozenset(each.node for each in ranked.candidates))
        pod = _newer(self._cache.pod(attempt.uid), read)
        if pod is None or (read is None and self._is_behind(pod, ranked.pod)):
            is_to_come = version_number(ranked.pod.metadata.resource_version) > self._cache.reached(PODS)
            return None if is_to_come else GONE if pod is None else self._unless_over(pod, ranked)
        return GONE if pod.uid != attempt.uid else self._unless_over(pod, ranked)

    def _unless_over(self, pod: Pod, ranked: Ranked) -> Verdict | Pod:
        """The pod; or the verdict when it is bound or gone, or is not as it was ranked."""
        assumed = self._cache.assumed_pod(pod.uid)
        if assumed is not None and assumed.is_bound:
            return bound(assumed.node)
        if pod.spec.node_name:
            return bound_or_gone(pod.spec.node_name, frozenset(each.node for each in ranked.candidates))
        if is_gone_while_unbound(pod):
            return GONE
        if ranked.error or pod.spec.scheduler_name != ranked.profile:
            return pod  # the message may have only the pod's name; or no scorer has sent it, and the caller rejects it
        return CHANGED if is_gated(pod) or changed(ranked.pod, pod) else pod

    def choose(self, ranked: Ranked, pod: Pod) -> Verdict | Placement:
        """One of the K nodes, or a conflict when none passes.

        Raises:
            RecheckError: a plugin could not answer.
        """
        return self._nodes.choose(ranked, pod, self._profiles[ranked.profile])

    def passes(self, ranked: Ranked, pod: Pod, node: str) -> bool:
        """Whether the pod passes every filter on the node.

        Raises:
            RecheckError: a filter could not answer.
        """
        return self._nodes.status(pod, node, self._profiles[ranked.profile]).is_success

    def _is_behind(self, shown: Pod, ranked: Pod) -> bool:
        """Whether the watcher has seen a change of the pod that our own watch has not shown yet."""
        return version_number(ranked.metadata.resource_version) > version_number(
            shown.metadata.resource_version
        ) and changed(ranked, shown)


def _newer(shown: Pod | None, read: Pod | None) -> Pod | None:
    if shown is None or read is None:
        return shown or read
    versions = (version_number(each.metadata.resource_version) for each in (shown, read))
    return shown if next(versions) > next(versions) else read


def _scorers_verdict(ranked: Ranked) -> Verdict | None:
    if ranked.error:
        return failed(ranked.error)
    if ranked.candidates:
        return None
    if ranked.behind:
        return Verdict(outcome=Outcome.CONFLICT, reason=Reason.BEHIND, message=ranked.message)
    if ranked.proposals_counted:
        return Verdict(outcome=Outcome.CONFLICT, reason=Reason.PROPOSALS, message=ranked.message)
    return Verdict(outcome=Outcome.UNSCHEDULABLE, message=ranked.message)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeChoice:
    """Which of the K nodes the pod gets: the best estimate of those that pass (docs/protocol.md, 5).

    The filters are the scorer's, run on single nodes of the binder's own cache. Where more or fewer pods are on a node
    than the scorer counted, its total is corrected by what each of them costs there.
    """

    cache: Cache

    def status(self, pod: Pod, node: str, profile: Profile) -> Status:
        """The filters' answer for one node.

        Raises:
            RecheckError: a filter could not answer.
        """
        status = check(pod, node, self.cache.snapshot, profile)
        if status.code is Code.ERROR:
            raise RecheckError(f"checking {pod.key!r} on {node!r}: {status.plugin}: {', '.join(status.reasons)}")
        return status

    def choose(self, ranked: Ranked, pod: Pod, profile: Profile) -> Placement | Verdict:
        """One of the K nodes, or a conflict with the filter that rejected each node.

        Raises:
            RecheckError: a plugin could not answer.
        """
        candidates = self._with_newcomers(ranked.candidates, pod, profile)
        rejections: list[Rejection] = []
        for candidate in by_best_estimate(candidates):
            status = self.status(pod, candidate.node, profile)
            if status.is_success:
                return Placement(pod=pod, node=candidate.node, candidates=candidates)
            reasons = ", ".join(status.reasons)
            rejections.append(Rejection(plugin=status.plugin, reason=reasons, nodes=1, examples=[candidate.node]))
        return Verdict(outcome=Outcome.CONFLICT, reason=Reason.NO_CANDIDATE, rejections=tuple(rejections))

    def _with_newcomers(self, candidates: list[Candidate], pod: Pod, profile: Profile) -> list[Candidate]:
        """The candidates in the scorer's order, each with the pods that came or went since it was ranked."""
        names = [candidate.node for candidate in candidates]
        try:
            present = counted_pods_by_node(pod, names, self.cache.snapshot, profile)
        except PluginFailure as failure:
            raise RecheckError(f"checking {pod.key!r}: {failure}") from failure
        return [_with_newcomers(candidate, present[candidate.node]) for candidate in candidates]


def _with_newcomers(candidate: Candidate, present: int) -> Candidate:
    newcomers = present - candidate.pods
    if newcomers == candidate.newcomers:
        return candidate
    return msgspec.structs.replace(candidate, newcomers=newcomers)


@dataclass(frozen=True, slots=True, kw_only=True)
class PreemptionCheck:
    """Checks a proposal to evict pods: no other way may exist by the binder's own cache, and the same victims.

    A scorer whose view lacks nodes, or is old, proposes what one scheduler with full knowledge would not.
    """

    cache: Cache
    max_view_age: float
    """Seconds."""

    def plan(self, ranked: Ranked, proposed: Preemption, pod: Pod, profile: Profile) -> Verdict | EvictionPlan:
        """The pods to evict; or a verdict: victims still terminate, or (a conflict) other victims are needed by now.

        Raises:
            RecheckError: a plugin could not answer.
        """
        nominated = self.cache.nominated_pods.node_of(pod)
        if nominated and self._is_being_vacated(pod, nominated, profile):
            preemption = self._under_way(nominated, proposed)
            return Verdict(outcome=Outcome.PREEMPTING, node=nominated, message=ranked.message, preemption=preemption)
        verdict = self._too_little_known(ranked) or self._without_eviction(pod, profile)
        if verdict is not None:
            return verdict
        needed = self._dry_run(pod, proposed.node, profile)
        if needed is None or not self._is_as_proposed(needed, proposed):
            return Verdict(outcome=Outcome.CONFLICT, reason=Reason.VICTIMS, message=NOT_AS_PROPOSED)
        victims = tuple(placed.pod for uid in needed.victims if (placed := self.cache.snapshot.placed(uid)))
        return EvictionPlan(
            pod=pod,
            node=needed.node,
            victims=victims,
            demoted=self._less_important_nominees(pod, needed.node),
            preemption=Preemption(
                node=needed.node, victims=[_victim(each) for each in victims], violations=needed.violations
            ),
        )

    def _too_little_known(self, ranked: Ranked) -> Verdict | None:
        known, age = self.cache.snapshot.node_count, ranked.view_age_seconds
        if age is None or age > self.max_view_age:
            how_old = "of unknown age" if age is None else f"{age:.0f} s old"
            return Verdict(outcome=Outcome.CONFLICT, reason=Reason.VIEW, message=f"the scorer's view was {how_old}")
        if ranked.evaluated < known:
            message = f"the scorer knew {ranked.evaluated} nodes, and there are {known}"
            return Verdict(outcome=Outcome.CONFLICT, reason=Reason.VIEW, message=message)
        return None

    def _without_eviction(self, pod: Pod, profile: Profile) -> Verdict | None:
        try:
            node = any_feasible_node(pod, self.cache.snapshot, profile)
        except PluginFailure as failure:
            raise RecheckError(f"looking for a node for {pod.key!r}: {failure}") from failure
        if not node:
            return None
        message = f"it fits on node {node!r} without an eviction"
        return Verdict(outcome=Outcome.CONFLICT, reason=Reason.FITS, message=message)

    def _is_being_vacated(self, pod: Pod, node: str, profile: Profile) -> bool:
        """Whether victims still terminate on a node that the pod can use afterwards: then no other pod is evicted."""
        info = node_info(self.cache.snapshot, node)
        if info is None or check(pod, node, self.cache.snapshot, profile).code is Code.UNSCHEDULABLE_AND_UNRESOLVABLE:
            return False
        if self.cache.victims_left(pod.uid):
            return True
        others = (placed.pod for placed in info.placed())
        return any(is_being_preempted(other) and priority_of(other) < priority_of(pod) for other in others)

    def _under_way(self, node: str, proposed: Preemption) -> Preemption:
        """The proposed victims that are evicted already: by a binder that was killed before its Decision."""
        placed = ((victim, self.cache.snapshot.placed(victim.uid)) for victim in proposed.victims)
        going = [victim for victim, found in placed if found is not None and is_being_preempted(found.pod)]
        return Preemption(node=node, victims=going, violations=proposed.violations)

    def _dry_run(self, pod: Pod, node: str, profile: Profile) -> Nomination | None:
        try:
            return confirm(pod, node, self.cache.snapshot, profile)
        except PluginFailure as failure:
            raise RecheckError(f"choosing victims for {pod.key!r} on {node!r}: {failure}") from failure

    def _is_as_proposed(self, needed: Nomination, proposed: Preemption) -> bool:
        """Whether no other victim is needed, no more budgets are violated, and no victim is only assumed."""
        uids = {victim.uid for victim in proposed.victims}
        all_bound = not any(uid in self.cache.assumed_pods for uid in needed.victims)
        return uids.issuperset(needed.victims) and needed.violations <= proposed.violations and all_bound

    def _less_important_nominees(self, pod: Pod, node: str) -> tuple[Pod, ...]:
        nominees = (each for each in self.cache.snapshot.nominations() if each.node == node)
        return tuple(each.pod for each in nominees if priority_of(each.pod) < priority_of(pod))


def _victim(pod: Pod) -> Victim:
    return Victim(uid=pod.uid, namespace=pod.metadata.namespace, name=pod.metadata.name)
