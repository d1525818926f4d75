"""Which of the K nodes the pod gets, by the newest state: the first that passes every filter, untouched ones first.

A node is untouched when the ledger has no more pods on it than the scorer counted. When all that pass were touched
since, the pod is ranked again, so that any number of scorers places as one does (PROTOCOL 5, *Untouched first*); where
that is of no use, the node that was touched least is taken (ADR 2). No node is taken for being untouched that is worse
in what pods cannot change: when all the better ones are full by now, the pod is ranked again. Where pods of a kind are
kept apart, the node with the fewest of them is taken (ADR 3).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from berth.api.identity import Attempt
from berth.api.messages import Candidate, Ranked, Reason, Rejection
from berth.api.pod import Pod
from berth.framework.company import company_by_name, nodes_with_less_company
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
            there = company_by_name(pod, [candidate.node], self.ledger.snapshot, profile)[candidate.node]
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
        there = company_by_name(pod, names, self.ledger.snapshot, profile)
        in_order = sorted(ranked.candidates, key=lambda candidate: there[candidate.node])
        refusals: list[Rejection] = []
        chosen = next(self._passing(in_order, pod, profile, refusals), None)
        if chosen is None:
            return _nothing(refusals)
        if self._may_be_ranked_again(ranked, attempt):
            fewer = nodes_with_less_company(pod, self.ledger.snapshot, profile, than=there[chosen.node])
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
