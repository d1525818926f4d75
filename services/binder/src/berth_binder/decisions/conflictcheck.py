"""The conflict check of a RANKED message, before any request (docs/protocol.md, 5). It reads the cache only.

``ConflictCheck`` looks at the pod: bound, gone, changed, or pending. ``NodeChoice`` takes the node with the best
estimate of the K candidates that pass every filter.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from berth.api.pod import Pod, changed, is_gated, is_gone_while_unbound
from berth.decoding import version_number
from berth.framework.cycle import check, check_in_turn, claim_to_free
from berth.framework.interface import FreeClaim
from berth.framework.plugincalls import PluginFailure
from berth.framework.profile import Profile
from berth.framework.scoring import counted_pods_of
from berth.framework.status import Code, Status
from berth.messages.attempts import Candidate, Outcome, Ranked, Reason, Rejection, by_best_estimate
from berth.messages.subjects import Attempt
from berth_binder.cache import PODS, Cache
from berth_binder.decisions.verdict import (
    CHANGED,
    GONE,
    Placement,
    RecheckError,
    Verdict,
    bound,
    bound_or_gone,
    explaining_candidates,
    failed,
)


class ConflictCheck:
    """Runs the checks in the order of docs/protocol.md, 5."""

    def __init__(self, *, cache: Cache, profiles: Mapping[str, Profile]) -> None:
        self._cache = cache
        self._profiles = profiles
        self._nodes = NodeChoice(cache=cache)

    def examine(self, ranked: Ranked, pod: Pod) -> Verdict | Placement:
        """The verdict (an error, no candidate), or a node for the pod.

        A pod above the limits of a cycle is an error, even with candidates.

        Raises:
            RecheckError: a plugin could not answer.
        """
        too_much = self._cache.snapshot.class_of(pod).refusal(pod)
        verdict = failed(too_much) if too_much else _scorers_verdict(ranked)
        return self.choose(ranked, pod) if verdict is None else verdict

    def current_pod(self, ranked: Ranked, attempt: Attempt, read: Pod | None) -> Verdict | Pod | None:
        """The verdict (bound, gone or changed), or the pod; ``None``: the watch has not shown the pod yet.

        ``read`` is the pod as the API server has just returned it. The message's pod is only compared, never used.
        """
        node = self._cache.bound_node(attempt.uid)
        if node is not None:
            return bound_or_gone(node, frozenset(each.node for each in ranked.candidates))
        pod = _newer(self._cache.pod(attempt.uid), read)
        if pod is None or (read is None and self._is_behind(pod, ranked.pod)):
            is_to_come = version_number(ranked.pod.metadata.resource_version) > self._cache.reached(PODS)
            return None if is_to_come else GONE if pod is None else self._unless_over(pod, attempt.uid, ranked)
        if read is not None and pod.uid != attempt.uid:
            return GONE
        return self._unless_over(pod, attempt.uid, ranked)

    def _unless_over(self, pod: Pod, uid: str, ranked: Ranked) -> Verdict | Pod:
        """The pod, or the verdict if it is bound, gone, or changed since it was ranked."""
        if (answered := self._cache.answered_node(uid)) is not None:
            return bound(answered)
        if pod.spec.node_name:
            return bound_or_gone(pod.spec.node_name, frozenset(each.node for each in ranked.candidates))
        if is_gone_while_unbound(pod):
            return GONE
        if ranked.error or pod.spec.scheduler_name != ranked.profile:
            return pod  # the message may have only the pod's name; or no scorer has sent it, and the caller rejects it
        return CHANGED if is_gated(pod) or changed(ranked.pod, pod) else pod

    def choose(self, ranked: Ranked, pod: Pod) -> Verdict | Placement:
        """One of the K candidates, or a conflict if all are rejected.

        Raises:
            RecheckError: a plugin could not answer.
        """
        return self._nodes.choose(ranked, pod, self._profiles[ranked.profile])

    def passes(self, ranked: Ranked, pod: Pod, node: str) -> bool:
        """Whether the pod, which is assumed on the node, still passes every filter there.

        Raises:
            RecheckError: a filter could not answer.
        """
        return self._nodes.status(pod, node, self._profiles[ranked.profile], has_room=True).is_success

    def claim_to_free(self, pod: Pod, profile: Profile) -> FreeClaim | None:
        """A claim whose devices keep the pod from every node, by the binder's own cache.

        Raises:
            RecheckError: a plugin could not answer.
        """
        try:
            return claim_to_free(pod, self._cache.snapshot, profile)
        except PluginFailure as failure:
            raise RecheckError(f"looking for a claim to free for {pod.key!r}: {failure}") from failure

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
    reason = Reason.NO_NODES if ranked.nodes == 0 else ""
    return Verdict(outcome=Outcome.UNSCHEDULABLE, reason=reason, message=ranked.message)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeChoice:
    """Chooses among the K candidates that pass: the best estimate gets the pod (docs/protocol.md, 5).

    The filters are the scorer's, run on single nodes of the binder's cache. If the node has more or fewer pods than the
    scorer counted, its total is corrected by the measured score loss per pod.
    """

    cache: Cache

    def status(self, pod: Pod, node: str, profile: Profile, *, has_room: bool = False) -> Status:
        """The filters' answer for one node; ``has_room``: on which the pod is assumed.

        Raises:
            RecheckError: a filter could not answer.
        """
        return _answered(check(pod, node, self.cache.snapshot, profile, has_room=has_room), pod, node)

    def choose(self, ranked: Ranked, pod: Pod, profile: Profile) -> Placement | Verdict:
        """One of the K candidates, or a conflict with the filter that rejected each.

        Raises:
            RecheckError: a plugin could not answer.
        """
        candidates = self._with_newcomers(ranked.candidates, pod, profile)
        order = by_best_estimate(candidates)
        if nominated := pod.status.nominated_node_name:
            # A former binder may have waited there: others have kept off that room since.
            order.sort(key=lambda candidate: candidate.node != nominated)
        rejections: list[Rejection] = []
        statuses = check_in_turn(pod, [each.node for each in order], self.cache.snapshot, profile)
        for place, (candidate, status) in enumerate(zip(order, statuses, strict=False)):
            if _answered(status, pod, candidate.node).is_success:
                kept = explaining_candidates(candidates, order[: place + 2])
                return Placement(pod=pod, node=candidate.node, candidates=kept)
            reasons = ", ".join(status.reasons)
            rejections.append(Rejection(plugin=status.plugin, reason=reasons, nodes=1, examples=[candidate.node]))
        return Verdict(outcome=Outcome.CONFLICT, reason=Reason.NO_CANDIDATE, rejections=tuple(rejections))

    def _with_newcomers(self, candidates: list[Candidate], pod: Pod, profile: Profile) -> list[Candidate]:
        """The candidates in the scorer's order, with the number of pods added or removed since the ranking."""
        names = [candidate.node for candidate in candidates]
        try:
            present = counted_pods_of(pod, names, self.cache.snapshot, profile)
        except PluginFailure as failure:
            raise RecheckError(f"checking {pod.key!r}: {failure}") from failure
        return [
            candidate
            if count == candidate.pods + candidate.newcomers
            else msgspec.structs.replace(candidate, newcomers=count - candidate.pods)
            for candidate, count in zip(candidates, present, strict=True)
        ]


def _answered(status: Status, pod: Pod, node: str) -> Status:
    if status.code is Code.ERROR:
        raise RecheckError(f"checking {pod.key!r} on {node!r}: {status.plugin}: {', '.join(status.reasons)}")
    return status
