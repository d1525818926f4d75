"""From a PENDING to its RANKED: the scheduling cycle asked on the view, and what it said put into a message.

A line for each plugin, node, score and reason, from verbosity 4: what the articles' plugins log by themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from berth.api.livedata import LiveSource
from berth.api.messages import Pending, Preemption, Ranked, Victim
from berth.api.subjects import Attempt
from berth.cluster.snapshot import Snapshot
from berth.framework.cycle import Detail, Ranking, rank
from berth.framework.interface import Nomination
from berth.framework.plugincalls import Timing
from berth.framework.profile import Profile
from berth.process.logging import get_logger
from berth_scorer.view import View

Explain = Callable[[Pending, Detail], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranker:
    """What every answer of one scorer has in common. ``best`` is K: how many nodes the binder may choose from."""

    profiles: Mapping[str, Profile]
    config: str
    identity: str
    best: int
    explain: Explain | None = None
    """What to do with every plugin's word on every node; ``None``: it is not collected."""

    @property
    def live_sources(self) -> frozenset[LiveSource]:
        """What the profiles' plugins read beside the cluster's objects."""
        return frozenset[LiveSource]().union(*(profile.live_sources for profile in self.profiles.values()))

    def answer(self, pending: Pending, view: View, now: float, timing: Timing | None = None) -> Ranked:
        """Rank one pod. Its profile is one of ours. The proposal that this makes counts from here on."""
        attempt = Attempt.parse(pending.attempt)
        view.proposals.withdraw(attempt.uid)
        ranking = self._explained(pending, attempt, view, timing)
        message = self._message(
            pending, ranking, view, proposals_counted=self._hangs_on_proposals(pending, ranking, view)
        )
        view.proposals.ranked(message, now)
        return message

    def give_up(self, pending: Pending, reason: str) -> Ranked:
        """The answer of a scorer that cannot rank this pod: only the binder publishes Decisions."""
        return Ranked(
            config=self.config,
            attempt=pending.attempt,
            profile=pending.profile,
            pod=pending.pod,
            scorer=self.identity,
            error=reason,
        )

    def _explained(self, pending: Pending, attempt: Attempt, view: View, timing: Timing | None) -> Ranking:
        if self.explain is None:
            return self._rank(pending, attempt, view, timing=timing)
        detail = Detail()
        ranking = self._rank(pending, attempt, view, detail=detail, timing=timing)
        self.explain(pending, detail)
        return ranking

    def _rank(
        self,
        pending: Pending,
        attempt: Attempt,
        view: View,
        *,
        detail: Detail | None = None,
        timing: Timing | None = None,
    ) -> Ranking:
        profile = self.profiles[pending.profile]
        return rank(pending.pod, view.snapshot, profile, attempt=attempt, best=self.best, detail=detail, timing=timing)

    def _hangs_on_proposals(self, pending: Pending, ranking: Ranking, view: View) -> bool:
        """Whether a "no" would be a "yes" if nobody had proposed anything: then it is a conflict, not a verdict."""
        refused = not ranking.candidates and not ranking.error
        if not refused or not any(rejection.resolvable for rejection in ranking.rejections):
            return False
        rooms = len(view.proposals.rooms)
        if next(view.proposals.open(), None) is None and not rooms:
            return False
        profile, attempt = self.profiles[pending.profile], Attempt.parse(pending.attempt)
        may_preempt = rooms > 0 and ranking.nomination is None
        with view.without_open_proposals():
            without = rank(pending.pod, view.snapshot, profile, attempt=attempt, may_preempt=may_preempt)
        return bool(without.candidates) or without.nomination is not None

    def _message(self, pending: Pending, ranking: Ranking, view: View, *, proposals_counted: bool) -> Ranked:
        return Ranked(
            config=self.config,
            attempt=pending.attempt,
            profile=pending.profile,
            pod=pending.pod,
            scorer=self.identity,
            positions=view.positions,
            view_age_seconds=view.age_seconds(),
            evaluated=ranking.evaluated,
            feasible=ranking.feasible,
            untouched_first=ranking.untouched_first,
            candidates=list(ranking.candidates),
            rejections=list(ranking.rejections),
            blockers=list(ranking.unschedulable_plugins),
            proposals_counted=proposals_counted,
            preemption=_preemption(ranking.nomination, view.snapshot),
            clears_nomination=ranking.clears_nomination,
            message=ranking.message,
            error=ranking.error,
        )


def _preemption(nomination: Nomination | None, snapshot: Snapshot) -> Preemption | None:
    """What the ranking proposes, with the victims' names."""
    if nomination is None:
        return None
    placed = [found.pod.metadata for uid in nomination.victims if (found := snapshot.placed(uid)) is not None]
    victims = [Victim(uid=each.uid, namespace=each.namespace, name=each.name) for each in placed]
    return Preemption(node=nomination.node, victims=victims, violations=nomination.violations)


log = get_logger()


VERBOSITY: Final = 4
"""klog's V from which on it is said; below it nothing is collected either."""


def explain(pending: Pending, detail: Detail) -> None:
    """Log what every plugin said of every node."""
    whose = {"pod": pending.pod.key, "uid": pending.pod.uid, "attempt": pending.attempt}
    for node, status in detail.node_to_status.items():
        log.info("node refused", plugin=status.plugin, node=node, reason=", ".join(status.reasons), **whose)
    for plugin, scores in detail.scores.items():
        for node, score in scores.items():
            log.info("node scored", plugin=plugin, node=node, score=score, **whose)
