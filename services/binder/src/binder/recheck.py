"""Which of the K nodes the pod gets, by the newest state: the first that passes every filter, untouched ones first.

A node is untouched when the ledger has no more pods on it than the scorer counted; of a profile with a plugin that
keeps pods of a kind apart, no more pods of the pod's kind. When all that pass were touched
since, the pod is ranked again, so that any number of scorers places as one does (PROTOCOL 5, *Untouched first*); where
that is of no use, the node that was touched least is taken (ADR 2).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from berth.api.identity import Attempt
from berth.api.messages import Candidate, Ranked, Reason, Rejection
from berth.api.pod import Pod
from berth.framework.company import company_on
from berth.framework.cycle import check
from berth.framework.guard import PluginFailure
from berth.framework.profile import Profile
from berth.framework.status import Code, Status
from binder.ledger import Ledger

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

    ledger: Ledger
    best: int = 8
    """K: with fewer feasible nodes than this the least touched is taken at once: there is no better list to be had."""

    def passes(self, pod: Pod, node: str, profile: Profile) -> Status:
        """Every filter's answer for one node.

        Raises:
            RecheckError: a filter could not answer.
        """
        status = check(pod, node, self.ledger.snapshot, profile)
        if status.code is Code.ERROR:
            raise RecheckError(f"checking {pod.key!r} on {node!r}: {status.plugin}: {', '.join(status.reasons)}")
        return status

    def choose(self, ranked: Ranked, attempt: Attempt, pod: Pod, profile: Profile) -> Choice:
        """Go through the K nodes in the scorer's order.

        Raises:
            RecheckError: a filter could not answer.
        """
        excess: dict[str, int] = {}
        refusals: list[Rejection] = []
        for candidate in ranked.candidates:
            status = self.passes(pod, candidate.node, profile)
            if not status.is_success:
                refusals.append(_refusal(candidate, status))
                continue
            excess[candidate.node] = self._excess(candidate, pod, profile) if ranked.untouched_first else 0
            if excess[candidate.node] <= 0:
                return Choice(node=candidate.node)
        if not excess:
            return Choice(conflict=Reason.NO_CANDIDATE, refusals=tuple(refusals))
        if self._may_be_ranked_again(ranked, attempt):
            return Choice(conflict=Reason.STALE)
        return Choice(node=min(excess, key=excess.__getitem__))

    def _excess(self, candidate: Candidate, pod: Pod, profile: Profile) -> int:
        """How many pods more than the scorer counted are on the node; 0 or less: untouched."""
        try:
            return company_on(pod, candidate.node, self.ledger.snapshot, profile) - candidate.pods
        except PluginFailure as failure:
            raise RecheckError(f"checking {pod.key!r} on {candidate.node!r}: {failure}") from failure

    def _may_be_ranked_again(self, ranked: Ranked, attempt: Attempt) -> bool:
        return attempt.n <= STALE_ATTEMPTS and ranked.feasible >= self.best


def _refusal(candidate: Candidate, status: Status) -> Rejection:
    return Rejection(plugin=status.plugin, reason=", ".join(status.reasons), nodes=1, examples=[candidate.node])
