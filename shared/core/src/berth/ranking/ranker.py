"""From PENDING to RANKED: runs the scheduling cycle on the view and puts its result into a message."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from berth.api.trimming import without_whole
from berth.cluster.snapshot import Snapshot
from berth.framework.cycle import BEST, Detail, Ranking, RankOptions, ToExtend, nodes_to_extend, rank
from berth.framework.extending import Extension
from berth.framework.interface import Nomination
from berth.framework.plugincalls import Timing
from berth.framework.profile import Profile
from berth.messages.attempts import Pending, Preemption, Ranked, Victim, within_bounds
from berth.messages.livedata import LiveSource
from berth.messages.subjects import Attempt
from berth.observability.logging import get_logger
from berth.ranking.view import View

log = get_logger()

Explain = Callable[[Pending, Detail], None]

SMALL_CLUSTER: Final = 512
"""Nodes. Below this the pods in flight, 64 at least, are so many that the best 32 nodes are full of them: with eight
scorers 4 to 5 % of the pods went elsewhere than by one on 60 to 150 nodes of three sizes, 2.8 % on 300. With twice as
many nodes named it is 0.0 to 0.4 % (ADR 2)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranker:
    """Ranks pods with the profiles of one configuration.

    ``best`` is K, how many nodes the binder may choose from; twice as many in a cluster of fewer than ``small`` nodes.
    The first ``explained`` have every plugin's points.
    """

    profiles: Mapping[str, Profile]
    config: str
    identity: str
    best: int
    small: int = SMALL_CLUSTER
    explained: int = BEST
    explain: Explain | None = None
    """Called with every plugin's result on every node; ``None``: they are not collected."""

    @property
    def live_sources(self) -> frozenset[LiveSource]:
        """The live data that the profiles' plugins read."""
        return frozenset[LiveSource]().union(*(profile.live_sources for profile in self.profiles.values()))

    def nodes_named(self, view: View) -> int:
        """How many nodes a ranking names at most."""
        return 2 * self.best if view.snapshot.size < self.small else self.best

    def to_extend(self, pending: Pending, view: View, *, search: bool = True) -> ToExtend:
        """The nodes about which extenders are to be asked before the pod is ranked."""
        return nodes_to_extend(pending.pod, view.snapshot, self.profiles[pending.profile], search=search)

    def evictions(self, pending: Pending, view: View, extension: Extension | None) -> list[Nomination]:
        """The evictions about which extenders are to be asked, the best first; none when none would be proposed."""
        found: list[Nomination] = []
        profile, attempt = self.profiles[pending.profile], Attempt.parse(pending.attempt)
        rank(
            pending.pod,
            view.snapshot,
            profile,
            attempt=attempt,
            options=RankOptions(explained=0, extension=extension, evictions=found),
        )
        return found

    def answer(  # noqa: PLR0913 - what is ranked, on what, and the options
        self,
        pending: Pending,
        view: View,
        now: float,
        timing: Timing | None = None,
        extension: Extension | None = None,
        *,
        also: str = "",
    ) -> Ranked:
        """Rank one pod of a known profile. The resulting proposal counts in the view from here on.

        ``extension``: what extenders have said about the pod, if they had to be asked. ``also``: a node to name too.
        """
        attempt = Attempt.parse(pending.attempt)
        view.proposals.withdraw(attempt.uid)
        ranking = self._rank(pending, attempt, view, timing, extension, also)
        if _is_rejected(ranking) and not view.positions.covers(pending.after):
            message = self._message(
                pending, msgspec.structs.replace(ranking, nomination=None, clears_nomination=False), view, behind=True
            )
        else:
            if extension is None:  # about further nodes the extenders would have to be asked again
                ranking = self._with_nodes_that_proposals_fill(pending, ranking, view)
            ranking, counted = self._compared_without_proposals(pending, ranking, view, extension)
            message = self._message(pending, ranking, view, proposals_counted=counted)
        view.proposals.ranked(message, now)
        return message

    def give_up(self, pending: Pending, reason: str) -> Ranked:
        """The answer for a pod that cannot be ranked: an error, since only the binder publishes Decisions."""
        failed = Ranked(
            config=self.config,
            attempt=pending.attempt,
            profile=pending.profile,
            failures=pending.failures,
            pod=without_whole(pending.pod),
            scorer=self.identity,
            error=reason,
        )
        return within_bounds(failed)

    def _rank(  # noqa: PLR0913, PLR0917 - the parts of an answer
        self,
        pending: Pending,
        attempt: Attempt,
        view: View,
        timing: Timing | None,
        extension: Extension | None,
        also: str,
    ) -> Ranking:
        profile = self.profiles[pending.profile]
        detail = None if self.explain is None else Detail()
        ranking = rank(
            pending.pod,
            view.snapshot,
            profile,
            attempt=attempt,
            options=RankOptions(
                best=self.nodes_named(view),
                explained=self.explained,
                detail=detail,
                timing=timing,
                extension=extension,
                also=also,
            ),
        )
        if self.explain is not None and detail is not None:
            self.explain(pending, detail)
        return ranking

    def _with_nodes_that_proposals_fill(self, pending: Pending, ranking: Ranking, view: View) -> Ranking:
        """Name also the nodes on which the pod does not fit for proposals alone: the binder may have moved those.

        Without them, a pod whose other nodes are taken by then would go to a node that one scorer leaves alone.
        """
        named = ranking.candidates
        most = self.nodes_named(view)
        if not named or len(named) >= most or named[0].node == pending.pod.status.nominated_node_name:
            return ranking
        full = {proposal.node for proposal in view.proposals.unbound()} - {each.node for each in named}
        if ranking.only is not None:
            full &= ranking.only
        if not full:
            return ranking
        without = self._rank_without_proposals(pending, view, bound=False).candidates
        anchor = next((each for each in without if each.node == named[0].node), None)
        if anchor is None:
            return ranking
        # Two rankings are normalized by different nodes: what counts is the distance from a node that both have.
        newcomers = named[0].pods - anchor.pods
        shift = named[0].total - round(anchor.total - anchor.loss * newcomers)
        found = [msgspec.structs.replace(each, total=each.total + shift) for each in without if each.node in full]
        return msgspec.structs.replace(ranking, candidates=(*named, *found)[:most])

    def _compared_without_proposals(
        self, pending: Pending, ranking: Ranking, view: View, extension: Extension | None
    ) -> tuple[Ranking, bool]:
        """For a pod that fits nowhere: whether it would fit without proposals; that is a conflict, not unschedulable.

        Fitting after evictions counts: the binder may put the other pod elsewhere, and no event would tell that. So
        does a bound pod that the mirror does not show yet: it may never do so, when the pod is deleted at once.
        If it would not, what rejects it where only a proposal did so is a blocker too: its events may help as well.
        """
        if not _is_rejected(ranking) or not any(rejection.resolvable for rejection in ranking.rejections):
            return ranking, False
        if not len(view.proposals) and not len(view.proposals.nominations):
            return ranking, False
        may_preempt = ranking.nomination is None
        without = self._rank_without_proposals(pending, view, bound=True, may_preempt=may_preempt, extension=extension)
        if without.candidates or without.nomination is not None:
            return ranking, True
        blockers = {*ranking.unschedulable_plugins, *without.unschedulable_plugins}
        return msgspec.structs.replace(ranking, unschedulable_plugins=tuple(sorted(blockers))), False

    def _rank_without_proposals(
        self,
        pending: Pending,
        view: View,
        *,
        bound: bool,
        may_preempt: bool = False,
        extension: Extension | None = None,
    ) -> Ranking:
        """Nodes about which extenders were not asked count: a proposal may have filled them."""
        profile = self.profiles[pending.profile]
        with view.without_proposals(bound=bound):
            return rank(
                pending.pod,
                view.snapshot,
                profile,
                attempt=Attempt.parse(pending.attempt),
                options=RankOptions(
                    best=self.nodes_named(view), explained=0, may_preempt=may_preempt, extension=extension, unasked=True
                ),
            )

    def _message(
        self, pending: Pending, ranking: Ranking, view: View, *, proposals_counted: bool = False, behind: bool = False
    ) -> Ranked:
        message = Ranked(
            config=self.config,
            attempt=pending.attempt,
            profile=pending.profile,
            failures=pending.failures,
            pod=without_whole(pending.pod),
            scorer=self.identity,
            positions=view.positions,
            received=view.take_received(),
            view_age_seconds=view.age_seconds(),
            evaluated=ranking.evaluated,
            feasible=ranking.feasible,
            nodes=ranking.nodes,
            nominated_first=ranking.nominated_first,
            candidates=list(ranking.candidates),
            rejections=list(ranking.rejections),
            blockers=list(ranking.unschedulable_plugins),
            proposals_counted=proposals_counted,
            behind=behind,
            preemption=_preemption(ranking.nomination, view.snapshot),
            clears_nomination=ranking.clears_nomination,
            message=ranking.message,
            error=ranking.error,
        )
        return within_bounds(message)


def _is_rejected(ranking: Ranking) -> bool:
    return not ranking.candidates and not ranking.error


def _preemption(nomination: Nomination | None, snapshot: Snapshot) -> Preemption | None:
    """The proposed preemption, with the victims' names."""
    if nomination is None:
        return None
    placed = [found.pod.metadata for uid in nomination.victims if (found := snapshot.placed(uid)) is not None]
    victims = [Victim(uid=each.uid, namespace=each.namespace, name=each.name) for each in placed]
    return Preemption(node=nomination.node, victims=victims, violations=nomination.violations)


def explain(pending: Pending, detail: Detail) -> None:
    """Log a line for each rejected node and for each plugin's score of a node (V_SCORE)."""
    whose = {"pod": pending.pod.key, "uid": pending.pod.uid, "attempt": pending.attempt}
    for node, status in detail.node_to_status.items():
        log.info("node refused", plugin=status.plugin, node=node, reason=", ".join(status.reasons), **whose)
    for plugin, scores in detail.scores.items():
        for node, score in scores.items():
            log.info("node scored", plugin=plugin, node=node, score=score, **whose)
