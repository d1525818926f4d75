"""Chooses the pods to evict, and gives the verdict after the evictions (docs/protocol.md, 5.16).

A scorer only asks for evictions: the binder searches its own cache for the cheapest ones, and evicts no pod if the
preemptor fits without. The scorer's node decides between equally good ones. Extenders are asked which nodes they keep
of those on which the pod fits, and no pod is evicted if they keep one; then which of the cheapest evictions they keep;
of these, the best one that the cache confirms is made.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

from berth.api.pod import Pod, is_being_preempted, priority_of
from berth.cluster.nodes import node_info
from berth.cluster.snapshot import Snapshot
from berth.framework.cycle import any_feasible_node, feasible_nodes
from berth.framework.extending import EXTENDER
from berth.framework.interface import Nomination
from berth.framework.plugincalls import PluginFailure
from berth.framework.preemption import Evictions, best_eviction, confirm, dry_run_of, eviction_candidates
from berth.framework.profile import Profile
from berth.groups.evictions import GroupEvictions
from berth.messages.attempts import Outcome, Preemption, Ranked, Reason, Victim
from berth_binder.cache import Cache
from berth_binder.decisions.verdict import (
    GONE,
    EvictionPlan,
    EvictionQuestion,
    NodeQuestion,
    RecheckError,
    Verdict,
    failed,
    refused,
)
from berth_binder.events import ApiRequest, ClearNomination, EvictionAnswer, EvictPods, NodesAnswered

NO_VICTIMS: Final = "no possible evictions help the pod by now"
NOT_EVICTABLE: Final = "a pod that would have to be evicted is being bound"


@dataclass(frozen=True, slots=True, kw_only=True)
class PreemptionCheck:
    """Chooses by the cache: no node fits without an eviction, and no other evictions cost less."""

    cache: Cache
    may_give_up: Callable[[str], bool]  # whether an assumed pod waits and can give up its room; by uid

    def verdict(self, ranked: Ranked, proposed: Preemption, pod: Pod, profile: Profile) -> Verdict | None:
        """The verdict if no pod is to be evicted: victims still terminate, or a node fits (a conflict).

        Raises:
            RecheckError: a plugin could not answer.
        """
        nominated = self.cache.nominated_pods.node_of(pod)
        if nominated and self._is_being_vacated(pod, nominated, profile):
            preemption = self._under_way(nominated, proposed)
            return Verdict(outcome=Outcome.PREEMPTING, node=nominated, message=ranked.message, preemption=preemption)
        return self._without_eviction(pod, profile)

    def about_nodes(self, pod: Pod, profile: Profile, refused: Collection[str]) -> NodeQuestion | None:
        """The nodes on which a pod of an extender fits without evictions, except those that extenders have ``refused``.

        Raises:
            RecheckError: a plugin could not answer.
        """
        if not profile.is_extended(pod):
            return None
        try:
            fitting = feasible_nodes(pod, self.cache.snapshot, profile)
        except PluginFailure as failure:
            raise _cannot_look(pod, failure) from failure
        infos = (node_info(self.cache.snapshot, name) for name in fitting if name not in refused)
        nodes = {info.name: info.node for info in infos if info is not None}
        return NodeQuestion(nodes=nodes) if nodes else None

    def plan(  # noqa: PLR0913, PLR0917 - the parts of a proposal, and what extenders have answered
        self,
        ranked: Ranked,
        proposed: Preemption,
        pod: Pod,
        profile: Profile,
        kept: Evictions | None,
        asked: Collection[str],
    ) -> Verdict | EvictionPlan | EvictionQuestion:
        """The pods to evict, a question, or a verdict: also a conflict if there are no victims, or one is being bound.

        Only after ``verdict`` and ``about_nodes``.

        ``kept``: the evictions that extenders keep of the last ones; ``None``: they were not asked. ``asked``: the
        nodes about which they were asked.

        Raises:
            RecheckError: a plugin could not answer.
        """
        if profile.filters_evictions(pod) and (kept is None or not kept.is_final):
            question = self._question(pod, proposed, profile, asked)
            return question or (_conflict(NO_VICTIMS) if kept is None else _left_out(ranked, kept))
        if kept is not None and kept.failure:
            return _left_out(ranked, kept)
        needed = self._best_eviction(pod, proposed, profile, kept)
        if needed is None or not needed.victims:
            return _conflict(NO_VICTIMS)
        if not all(self.may_give_up(uid) for uid in needed.victims if uid in self.cache.assumed_pods):
            return _conflict(NOT_EVICTABLE)
        victims = tuple(placed.pod for uid in needed.victims if (placed := self.cache.snapshot.placed(uid)))
        return EvictionPlan(
            pod=pod,
            node=needed.node,
            victims=victims,
            demoted=self._less_important_nominees(pod, needed.node),
            preemption=Preemption(
                node=needed.node, victims=[victim_of(each) for each in victims], violations=needed.violations
            ),
        )

    def nomination_is_useless(self, ranked: Ranked, pod: Pod, profile: Profile) -> bool:
        """Whether an unschedulable pod's nominated node does not help it even after a preemption, and keeps no victims.

        Raises:
            RecheckError: a plugin could not answer.
        """
        nominated = pod.status.nominated_node_name
        is_useless = ranked.clears_nomination and bool(nominated)
        return is_useless and not self._is_being_vacated(pod, nominated, profile)

    def _without_eviction(self, pod: Pod, profile: Profile) -> Verdict | None:
        # Extenders may reject every node that passes the filters, so they are asked first (``about_nodes``).
        if profile.is_extended(pod):
            return None
        try:
            node = any_feasible_node(pod, self.cache.snapshot, profile)
        except PluginFailure as failure:
            raise _cannot_look(pod, failure) from failure
        return _fits(node) if node else None

    def _is_being_vacated(self, pod: Pod, node: str, profile: Profile) -> bool:
        """Whether victims still terminate on a node that the pod can use then, so that no other pod is evicted."""
        info, left = node_info(self.cache.snapshot, node), self.cache.victims_left(pod.uid)
        if info is None:
            return False
        lower = [placed for placed in info.placed() if priority_of(placed.pod) < priority_of(pod)]
        victims = [placed for placed in lower if placed.pod.uid in left or is_being_preempted(placed.pod)]
        try:
            with dry_run_of(pod, self.cache.snapshot, profile).removing(info, victims) as vacated:
                return bool(victims) and vacated.status().is_success
        except PluginFailure as failure:
            raise RecheckError(f"looking at {node!r} without its victims for {pod.key!r}: {failure}") from failure

    def _under_way(self, node: str, proposed: Preemption) -> Preemption:
        """The proposed victims that a former binder, killed before its Decision, has already evicted."""
        snapshot = self.cache.snapshot
        placed = (snapshot.placed(victim.uid) for victim in proposed.victims if snapshot.node_of(victim.uid) == node)
        going = [victim_of(found.pod) for found in placed if found is not None and is_being_preempted(found.pod)]
        return Preemption(node=node, victims=going)

    def _question(
        self, pod: Pod, proposed: Preemption, profile: Profile, asked: Collection[str]
    ) -> EvictionQuestion | None:
        snapshot = self.cache.snapshot
        try:
            candidates = eviction_candidates(pod, proposed.node, snapshot, profile, asked)
        except PluginFailure as failure:
            raise _cannot_choose(pod, failure) from failure
        if not candidates:
            return None
        placed = (snapshot.placed(uid) for each in candidates for uid in each.victims)
        victims = {each.pod.uid: each.pod for each in placed if each is not None}
        return EvictionQuestion(candidates=tuple(candidates), victims=victims)

    def _best_eviction(
        self, pod: Pod, proposed: Preemption, profile: Profile, kept: Evictions | None
    ) -> Nomination | None:
        snapshot = self.cache.snapshot
        try:
            if kept is None:
                return best_eviction(pod, proposed.node, snapshot, profile)
            confirmed = ((each, confirm(pod, each.node, snapshot, profile)) for each in kept.left)
            # With other victims by now it may still cost less than those behind it: then extenders are asked again.
            asked, now = next((pair for pair in confirmed if pair[1] is not None), (None, None))
            return now if asked is not None and now is not None and _costs_no_more(now, asked) else None
        except PluginFailure as failure:
            raise _cannot_choose(pod, failure) from failure

    def _less_important_nominees(self, pod: Pod, node: str) -> tuple[Pod, ...]:
        nominees = (each.pod for each in self.cache.snapshot.nominations_to(node))
        return tuple(other for other in nominees if priority_of(other) < priority_of(pod))


def verdict_on_nodes(answered: NodesAnswered) -> Verdict | None:
    """A conflict if extenders keep a node without an eviction, an error if one failed; ``None``: they keep none."""
    if answered.failure:
        return failed(answered.failure)
    return _fits(min(answered.left)) if answered.left else None


def _fits(node: str) -> Verdict:
    message = f"it fits on node {node!r} without an eviction"
    return Verdict(outcome=Outcome.CONFLICT, reason=Reason.FITS, message=message)


def _conflict(message: str) -> Verdict:
    return Verdict(outcome=Outcome.CONFLICT, reason=Reason.VICTIMS, message=message)


def _left_out(ranked: Ranked, kept: Evictions) -> Verdict:
    """Extenders keep no eviction, or one that is not ignorable failed. Any event may help."""
    message = f"{ranked.message} preemption: {kept.message}"
    return Verdict(outcome=Outcome.UNSCHEDULABLE, message=message, blockers=(*ranked.blockers, EXTENDER))


def _costs_no_more(now: Nomination, asked: Nomination) -> bool:
    """Whether the node still needs the victims that extenders were asked about, and violates no further budget."""
    return set(now.victims) == set(asked.victims) and now.violations <= asked.violations


def _cannot_look(pod: Pod, failure: PluginFailure) -> RecheckError:
    return RecheckError(f"looking for a node for {pod.key!r}: {failure}")


def _cannot_choose(pod: Pod, failure: PluginFailure) -> RecheckError:
    return RecheckError(f"choosing victims for {pod.key!r}: {failure}")


def victim_of(pod: Pod) -> Victim:
    return Victim(uid=pod.uid, namespace=pod.metadata.namespace, name=pod.metadata.name)


def eviction_plans(
    found: GroupEvictions, pods: Mapping[str, Pod], snapshot: Snapshot, preemption: Preemption
) -> list[EvictionPlan]:
    """The evictions for a group, as those for its members on the victims' nodes. ``pods``: its members, by uid.

    The first member also has victims on nodes where no member goes, such as the rest of a group that goes as one.
    """
    of_node: dict[str, list[Pod]] = {}
    for victim in found.victims:
        of_node.setdefault(snapshot.node_of(victim.uid) or "", []).append(victim)
    nodes = {each.uid: found.plan.nodes[each.node] for each in found.plan.members}
    nominated = {uid: node for uid, node in nodes.items() if node in of_node} or dict([next(iter(nodes.items()))])
    members_on: dict[str, list[str]] = {}
    for uid, node in nominated.items():
        members_on.setdefault(node, []).append(uid)
    # All members on a node share its victims, because those of one member are evicted one after the other.
    victims: dict[str, list[Pod]] = {}
    for node, uids in members_on.items():
        there = of_node.pop(node, [])
        victims |= {uid: there[place :: len(uids)] for place, uid in enumerate(uids)}
    victims[next(iter(nominated))] += [victim for others in of_node.values() for victim in others]
    return [
        EvictionPlan(pod=pods[uid], node=node, victims=tuple(victims[uid]), demoted=(), preemption=preemption)
        for uid, node in nominated.items()
    ]


def evictions(plan: EvictionPlan, victims: Iterable[Pod]) -> list[ApiRequest]:
    """The requests to evict these victims of a plan. Less important pods lose their nomination for the node first."""
    demoted = [ClearNomination(pod=pod) for pod in plan.demoted]
    return [*demoted, EvictPods(pod=plan.pod, node=plan.node, victims=tuple(victims))]


def verdict_after_evicting(plan: EvictionPlan, answer: EvictionAnswer, message: str) -> Verdict:
    """The verdict after the API server's answer. ``message``: the scorer's text for users."""
    if answer.pod is not None:
        return Verdict(outcome=Outcome.PREEMPTING, node=plan.node, message=message, preemption=plan.preemption)
    if answer.status in (HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT):
        return GONE
    return refused("evicting pods for it", answer.status, answer.reason)
