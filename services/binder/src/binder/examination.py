"""What a RANKED message comes to before anything is sent: the checks of PROTOCOL 5, in its order. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from berth.api.identity import Attempt
from berth.api.messages import Outcome, Ranked, Reason
from berth.api.pod import Pod, changed, is_gated, is_gone_while_unbound
from berth.framework.profile import Profile
from binder.ledger import PODS, Ledger, version_number
from binder.preempting import Eviction, Preempting
from binder.recheck import Recheck
from binder.verdict import CHANGED, GONE, Verdict, bound, bound_somewhere, failed


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """A node for the pod, as the binder knows it newest: its resourceVersion goes into the Binding."""

    pod: Pod
    node: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Examination:
    """Reads the ledger, changes nothing."""

    ledger: Ledger
    recheck: Recheck
    preempting: Preempting
    profiles: Mapping[str, Profile]

    def of(self, ranked: Ranked, attempt: Attempt) -> Verdict | Placement | Eviction:
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
        node = self.ledger.node_shown(attempt.uid)
        if node is not None:
            return bound_somewhere(node, frozenset(each.node for each in ranked.candidates))
        pod = self._newest(ranked.pod)
        if pod is None:
            return GONE
        promised = self.ledger.reservation(pod.uid)
        if promised is not None and promised.answered:
            return bound(promised.node)
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
        shown = self.ledger.pod(said.uid)
        version = version_number(said.metadata.resource_version)
        if shown is None:
            return said if version > self.ledger.reached(PODS) else None
        return said if version > version_number(shown.metadata.resource_version) else shown


def _said_by_the_scorer(ranked: Ranked) -> Verdict | None:
    if ranked.error:
        return failed(ranked.error)
    if ranked.candidates:
        return None
    if ranked.proposals_counted:
        return Verdict(outcome=Outcome.CONFLICT, reason=Reason.PROPOSALS, message=ranked.message)
    return Verdict(outcome=Outcome.UNSCHEDULABLE, message=ranked.message)
