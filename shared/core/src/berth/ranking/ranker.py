"""From PENDING to RANKED: runs the scheduling cycle on the view and puts its result into a message."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from berth.api.trimming import without_whole
from berth.cluster.snapshot import Snapshot
from berth.framework.cycle import BEST, Detail, Ranking, RankOptions, ToExtend, nodes_to_extend, rank
from berth.framework.extending import Extension
from berth.framework.interface import AllocatingPlugin, Nomination
from berth.framework.plugincalls import PluginFailure, Timing, call
from berth.framework.profile import Profile
from berth.log import get_logger
from berth.messages.attempts import Pending, Preemption, Ranked, Victim, repeated
from berth.messages.bounds import within_bounds
from berth.messages.livedata import LiveSource
from berth.messages.subjects import Attempt
from berth.ranking.view import View

log = get_logger()

Explain = Callable[[Pending, Detail], None]

# Nodes below which a ranking names twice as many. There the pods in flight, at least 64, fill the best 32 nodes: with
# eight scorers 4 to 5 % of the pods went elsewhere than with one on 60 to 150 nodes of three sizes, 2.8 % on 300. With
# twice as many named nodes: 0.0 to 0.4 % (ADR 2).
SMALL_CLUSTER: Final = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranker:
    """Ranks pods with the profiles of one configuration.

    ``best``: the number of named nodes where a scorer is alone in a large cluster (``nodes_named``). ``named``: this
    number in any case, for a replay. The first ``explained`` have every plugin's points.
    """

    profiles: Mapping[str, Profile]
    config: str
    identity: str
    best: int
    named: int | None = None
    explained: int = BEST
    explain: Explain | None = None  # called with all plugins' results on all nodes

    @property
    def live_sources(self) -> frozenset[LiveSource]:
        return frozenset[LiveSource]().union(*(profile.live_sources for profile in self.profiles.values()))

    def nodes_named(self, view: View, profile: Profile) -> int:
        """``best``; twice as many in a small cluster and while other scorers propose, four times then with live data.

        Of the best nodes of a view, the pods in flight may have filled as many since, and as many may seem full of pods
        that the binder has moved. By live data hardly two nodes are equal, so that all scorers propose the same (ADR
        78).
        """
        if self.named is not None:
            return self.named
        if view.proposals.others_propose(self.identity):
            return (4 if profile.live_sources else 2) * self.best
        return 2 * self.best if view.snapshot.size < SMALL_CLUSTER else self.best

    def to_extend(self, pending: Pending, view: View, *, search: bool = True) -> ToExtend:
        """The nodes to ask extenders about before the pod is ranked."""
        return nodes_to_extend(pending.pod, view.snapshot, self.profiles[pending.profile], search=search)

    def works_ahead(self, pending: Pending, view: View) -> bool:
        """Whether a plugin works ahead of the pod's ranking."""
        return any(self._allocating(pending, view))

    def prepare(self, pending: Pending, view: View, may_continue: Callable[[], bool]) -> bool:
        """Work ahead of the pod's ranking, while it may continue; returns whether it is done."""
        try:
            return all(
                call(plugin, "Prepare", plugin.prepare, bool, pending.pod, view.snapshot, may_continue)
                for plugin in self._allocating(pending, view)
            )
        except PluginFailure:
            return True  # the ranking fails in the same way

    def _allocating(self, pending: Pending, view: View) -> Iterator[AllocatingPlugin]:
        profile = self.profiles[pending.profile]
        left_out = profile.left_out(view.snapshot.traits_of(pending.pod))
        return (plugin for plugin in profile.allocating if plugin.name not in left_out)

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

        ``extension``: the extenders' answers about the pod, if they had to be asked. ``also``: an additional node to
        name.
        """
        attempt = Attempt.parse(pending.attempt)
        view.proposals.withdraw(attempt.uid)
        ranking = self._rank(pending, attempt, view, timing, extension, also)
        if _is_rejected(ranking) and not view.positions.covers(pending.after):
            message = self._message(
                pending, msgspec.structs.replace(ranking, nomination=None, clears_nomination=False), view, behind=True
            )
        else:
            if extension is None:  # extenders would have to be asked about the added nodes
                ranking = self._with_nodes_that_proposals_fill(pending, ranking, view)
            ranking, counted = self._compared_without_proposals(pending, ranking, view, extension)
            message = self._message(pending, ranking, view, proposals_counted=counted)
        view.proposals.ranked(message, now)
        return message

    def give_up(self, pending: Pending, reason: str) -> Ranked:
        """An answer with an error, because only the binder publishes Decisions."""
        failed = Ranked(
            config=self.config,
            **repeated(pending),
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
                best=self.nodes_named(view, profile),
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
        """Add nodes that only proposals keep infeasible, because the binder may have moved those proposals.

        Without them, a pod whose other nodes are filled meanwhile would go to a node that a single scorer avoids.
        """
        named = ranking.candidates
        most = self.nodes_named(view, self.profiles[pending.profile])
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
        # The rankings are normalized over different nodes, so totals are compared by distance from a shared node.
        newcomers = named[0].pods - anchor.pods
        shift = named[0].total - round(anchor.total - anchor.loss * newcomers)
        found = [msgspec.structs.replace(each, total=each.total + shift) for each in without if each.node in full]
        return msgspec.structs.replace(ranking, candidates=(*named, *found)[:most])

    def _compared_without_proposals(
        self, pending: Pending, ranking: Ranking, view: View, extension: Extension | None
    ) -> tuple[Ranking, bool]:
        """Rank a rejected pod without proposals: if that succeeds, the pod is a conflict, not unschedulable.

        A fit after evictions succeeds too. If it does not fit without proposals either, add the plugins that reject it
        then, so that their events requeue it too.
        """
        if not _is_rejected(ranking) or not self._may_be_due_to_proposals(pending, ranking, view):
            return ranking, False
        if not any(view.proposals.uncertain()) and not len(view.proposals.nominations):
            return ranking, False
        may_preempt = ranking.nomination is None
        # Neither causes an event: the binder places the other pod elsewhere, or a bound pod is deleted before it is
        # mirrored. Pods that wait with their room held count in both, because the end of a wait is an event.
        without = self._rank_without_proposals(pending, view, bound=True, may_preempt=may_preempt, extension=extension)
        if without.candidates or without.nomination is not None:
            return ranking, True
        rejecting = {*ranking.unschedulable_plugins, *without.unschedulable_plugins}
        return msgspec.structs.replace(ranking, unschedulable_plugins=tuple(sorted(rejecting))), False

    def _may_be_due_to_proposals(self, pending: Pending, ranking: Ranking, view: View) -> bool:
        if any(rejection.resolvable for rejection in ranking.rejections):
            return True
        # No eviction frees devices, so their rejections are not resolvable.
        giving = {plugin.name for plugin in self.profiles[pending.profile].allocating}
        return not giving.isdisjoint(ranking.unschedulable_plugins) and view.proposals.have_devices()

    def _rank_without_proposals(
        self,
        pending: Pending,
        view: View,
        *,
        bound: bool,
        may_preempt: bool = False,
        extension: Extension | None = None,
    ) -> Ranking:
        """Nodes that extenders were not asked about count, because proposals may have filled them."""
        profile = self.profiles[pending.profile]
        with view.without_proposals(bound=bound):
            return rank(
                pending.pod,
                view.snapshot,
                profile,
                attempt=Attempt.parse(pending.attempt),
                options=RankOptions(
                    best=self.nodes_named(view, profile),
                    explained=0,
                    may_preempt=may_preempt,
                    extension=extension,
                    unasked=True,
                ),
            )

    def _message(
        self, pending: Pending, ranking: Ranking, view: View, *, proposals_counted: bool = False, behind: bool = False
    ) -> Ranked:
        message = Ranked(
            config=self.config,
            **repeated(pending),
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
            devices=ranking.devices,
            weights=self.profiles[pending.profile].weights if ranking.candidates else {},
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
    if nomination is None:
        return None
    placed = [found.pod.metadata for uid in nomination.victims if (found := snapshot.placed(uid)) is not None]
    victims = [Victim(uid=each.uid, namespace=each.namespace, name=each.name) for each in placed]
    return Preemption(node=nomination.node, victims=victims, violations=nomination.violations)


def explain(pending: Pending, detail: Detail) -> None:
    """Log a line per rejected node and per score of a plugin (V_SCORE)."""
    about = {"pod": pending.pod.key, "uid": pending.pod.uid, "attempt": pending.attempt}
    for node, status in detail.node_to_status.items():
        log.info("node rejected", plugin=status.plugin, node=node, reason=", ".join(status.reasons), **about)
    for plugin, scores in detail.scores.items():
        for node, score in scores.items():
            log.info("node scored", plugin=plugin, node=node, score=score, **about)
