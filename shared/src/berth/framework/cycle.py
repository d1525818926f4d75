"""The result of a cycle.

Which pods on a node are company to a pod: those that make the node another one than it was when it was ranked.

All of them, unless the profile is about keeping pods of a kind apart: then those of the pod's kind. The scorer writes
the number on each candidate, the binder compares it with what it knows now (PROTOCOL 5, *Untouched first*).


What a cycle says of every node, for people: filled in on request, since only the best nodes travel on.

The scheduling cycle: one pod, one state, one profile in; the best nodes, or why there is none, out.

What the scheduling cycle says of every node: for people who ask why, not for speed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

import numpy as np

from berth.api.messages import Candidate, Rejection
from berth.api.pod import Pod
from berth.api.subjects import Attempt
from berth.cluster.nodes import Nodes
from berth.cluster.snapshot import Snapshot
from berth.framework.diagnosis import NO_NODES, Diagnosis, unavailable
from berth.framework.filtering import (
    Filtering,
    PreFiltered,
    filter_one,
    filter_with,
    nominated_by_node,
    pre_filter,
)
from berth.framework.interface import Nomination, PostFilterResult, Scores
from berth.framework.plugincalls import PluginFailure, call, checked_scores
from berth.framework.preemption import post_filter
from berth.framework.profile import Profile, enough
from berth.framework.scoring import Scored, best_first, score
from berth.framework.status import Code, Status
from berth.framework.timing import Timing, no_clock


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """The best nodes, or why there is none, or why ranking failed: exactly one of candidates, message, error.

    When a single node is feasible it is not scored, as in kube-scheduler: its candidate has total 0 and no scores.
    ``blockers`` are the plugins that refused nodes: events that they name may help. ``nomination`` is what PostFilter
    found when there is no candidate; ``clears_nomination``: the node that is kept for the pod is of no use to it.
    ``untouched_first`` is False where more pods make a node better.
    """

    candidates: tuple[Candidate, ...] = ()
    evaluated: int = 0
    feasible: int = 0
    rejections: tuple[Rejection, ...] = ()
    blockers: tuple[str, ...] = ()
    message: str = ""
    error: str = ""
    nomination: Nomination | None = None
    clears_nomination: bool = False
    untouched_first: bool = True


def company(pod: Pod, nodes: Nodes, profile: Profile) -> Scores:
    """int64[nodes]: how many pods on each node are company to the pod, itself and nominated pods not counted.

    Raises:
        PluginFailure: a plugin failed.
    """
    spreading = profile.spreading
    if spreading is not None:
        counts = call(spreading, "Score", spreading.company, np.ndarray, pod, nodes)
        return checked_scores(spreading, counts, len(nodes))
    counts = nodes.pods.astype(np.int64)
    itself = nodes.snapshot.placed(pod.uid)
    if itself is not None:
        counts -= nodes.rows == itself.row
    return counts


def company_by_name(pod: Pod, names: Iterable[str], snapshot: Snapshot, profile: Profile) -> dict[str, int]:
    """The same by the nodes' names; 0 for one that is not there.

    Raises:
        PluginFailure: a plugin failed.
    """
    rows = {name: row for name in names if (row := snapshot.rows.of(name)) is not None}
    counts = company(pod, Nodes(snapshot, np.array(list(rows.values()), dtype=np.intp)), profile)
    return defaultdict(int, zip(rows, counts.tolist(), strict=True))


def nodes_with_less_company(pod: Pod, snapshot: Snapshot, profile: Profile, *, than: int) -> list[str]:
    """The names of all nodes with fewer such pods, the fewest first.

    Raises:
        PluginFailure: a plugin failed.
    """
    nodes = Nodes(snapshot)
    counts = np.where(nodes.exists, company(pod, nodes, profile), than)
    rows = np.flatnonzero(counts < than)
    return [snapshot.rows.names[row] for row in rows[np.argsort(counts[rows], kind="stable")].tolist()]


@dataclass(slots=True)
class Detail:
    """Every refusal and every score of one cycle.

    ``refused`` says by node who refused it and why; ``scores`` has by plugin and node the points after NormalizeScore,
    times the plugin's weight. A node that is the only feasible one is not scored.
    """

    refused: dict[str, Status] = field(default_factory=dict)
    scores: dict[str, dict[str, int]] = field(default_factory=dict)

    def take_refusals(self, refusals: Diagnosis, names: Sequence[str]) -> None:
        """``names``: the node of each row."""
        rows = ((row, refusal.status) for refusal in refusals.refused for row in refusal.rows.tolist())
        self.refused.update({names[row]: status for row, status in sorted(rows, key=lambda pair: pair[0])})

    def take_scores(self, scored: Scored, names: Sequence[str]) -> None:
        """``names``: the feasible nodes, in the order of the scores."""
        for plugin, column in scored.parts.items():
            self.scores[plugin] = dict(zip(names, column.tolist(), strict=True))


def rank(  # noqa: PLR0913 - what it is about, and what is wanted of it, each by name
    pod: Pod,
    snapshot: Snapshot,
    profile: Profile,
    *,
    attempt: Attempt,
    best: int = 8,
    detail: Detail | None = None,
    may_preempt: bool = True,
    timing: Timing | None = None,
) -> Ranking:
    """Run the whole cycle; a pod that is placed does not count against itself.

    ``may_preempt``: ask PostFilter what can be done when no node is feasible. ``timing`` is told how long it took.

    What a plugin raises ends in ``error``, by name; nothing else is raised. A ``detail`` is filled in for every node.
    """
    count, untouched_first = snapshot.node_count, profile.untouched_first
    problems = snapshot.class_of(pod).requests.problems
    if problems:
        return Ranking(error=unreadable(problems), evaluated=0, untouched_first=untouched_first)
    if count == 0:
        return Ranking(message=NO_NODES, clears_nomination=True, untouched_first=untouched_first)
    timing = timing or Timing(no_clock)
    try:
        with _without_itself(pod, snapshot):
            timing.begin("PreFilter")
            found = pre_filter(pod, snapshot, profile)
            timing.end(found.rejection.code if found.rejection is not None else Code.SUCCESS)
            return _rank(_Cycle(pod, snapshot, profile, found, detail, may_preempt, timing), attempt, best)
    except PluginFailure as failure:
        timing.fail()
        return Ranking(error=str(failure), evaluated=count, untouched_first=untouched_first)


def check(pod: Pod, node: str, snapshot: Snapshot, profile: Profile) -> Status:
    """All filters on one node, nominated pods included; a pod that is placed does not count against itself.

    Success, the first filter's rejection, or an error that names what failed.
    """
    problems = snapshot.class_of(pod).requests.problems
    if problems:
        return Status.error(unreadable(problems))
    try:
        with _without_itself(pod, snapshot):
            return _check(pod, node, snapshot, profile)
    except PluginFailure as failure:
        return Status.error(str(failure))


def _without_itself(pod: Pod, snapshot: Snapshot) -> AbstractContextManager[None]:
    """A pod that is placed already, by an earlier attempt's proposal or reservation, does not stand in its own way."""
    return nullcontext() if snapshot.node_of(pod.uid) is None else snapshot.supposing(removed=[pod.uid])


def unreadable(problems: tuple[str, ...]) -> str:
    """What is said of a pod whose quantities cannot be read."""
    return f"parsing {'; '.join(problems)}"


@dataclass(frozen=True, slots=True)
class _Cycle:
    """What one cycle is about, after PreFilter."""

    pod: Pod
    snapshot: Snapshot
    profile: Profile
    found: PreFiltered
    detail: Detail | None
    may_preempt: bool
    timing: Timing


def _rank(cycle: _Cycle, attempt: Attempt, best: int) -> Ranking:
    snapshot, rejection = cycle.snapshot, cycle.found.rejection
    if rejection is not None:
        return _refused_by_pre_filter(cycle, rejection)
    filtering = Filtering(cycle.pod, snapshot, cycle.profile, cycle.found)
    cycle.timing.begin("Filter")
    filtering.run()
    cycle.timing.end()
    if cycle.detail is not None:
        cycle.detail.take_refusals(filtering.refusals(), snapshot.rows.names)
    feasible = int(np.count_nonzero(filtering.feasible))
    if feasible == 0:
        refusals = filtering.refusals()
        return _none_feasible(cycle, refusals, refusals.message())
    nodes, evaluated = _to_score(cycle, filtering, feasible)
    return Ranking(
        candidates=_candidates(cycle, nodes, attempt, best),
        evaluated=evaluated,
        feasible=len(nodes),
        untouched_first=cycle.profile.untouched_first,
    )


def _to_score(cycle: _Cycle, filtering: Filtering, feasible: int) -> tuple[Nodes, int]:
    """The nodes to score, and how many were looked at to find them: all, unless the profile says otherwise."""
    snapshot, profile = cycle.snapshot, cycle.profile
    kept = _kept_for_it(cycle, filtering)
    if kept is not None:
        return Nodes(snapshot, np.array([kept], dtype=np.intp)), 1
    looked_at = snapshot.node_count if cycle.found.nodes is None else len(cycle.found.nodes)
    wanted = enough(looked_at, profile.percentage_of_nodes_to_score)
    if feasible > wanted:
        found = profile.search.find(filtering.feasible, snapshot.columns.exists[: snapshot.size], wanted)
        return Nodes(snapshot, found.rows), found.evaluated
    every = feasible == snapshot.size
    return Nodes(snapshot) if every else Nodes(snapshot, np.flatnonzero(filtering.feasible)), snapshot.node_count


def _kept_for_it(cycle: _Cycle, filtering: Filtering) -> int | None:
    """The row of the node on which room was made for the pod, if it is feasible: then no other is looked at."""
    row = cycle.snapshot.rows.of(cycle.pod.status.nominated_node_name)
    return row if row is not None and filtering.feasible[row] else None


def _candidates(cycle: _Cycle, nodes: Nodes, attempt: Attempt, best: int) -> tuple[Candidate, ...]:
    if len(nodes) == 1:
        scored, positions = Scored(np.zeros(1, dtype=np.int64), {}), np.zeros(1, dtype=np.intp)
    else:
        scored = score(cycle.pod, nodes, cycle.profile, cycle.found, cycle.timing)
        untouched_first = cycle.profile.untouched_first
        positions = best_first(scored.totals, nodes, attempt, best, fewer_pods_first=untouched_first)
    if cycle.detail is not None:
        cycle.detail.take_scores(scored, nodes.names)
    names, points = cycle.snapshot.rows.names, scored.of(positions)
    return tuple(
        Candidate(
            node=names[row],
            total=total,
            scores=scores,
            pods=pods,
            details=_details(cycle, row, scores),
        )
        for row, total, scores, pods in zip(
            nodes.rows[positions].tolist(),
            scored.totals[positions].tolist(),
            points,
            company(cycle.pod, Nodes(cycle.snapshot, nodes.rows[positions]), cycle.profile).tolist(),
            strict=True,
        )
    )


def _details(cycle: _Cycle, row: int, scores: dict[str, int]) -> dict[str, str]:
    """What plugins add to the points that they gave the node."""
    info = cycle.snapshot.info_of_row(row) if cycle.profile.explaining else None
    if info is None:
        return {}
    return {
        plugin.name: call(plugin, "Explain", plugin.explain, str, cycle.found.state, cycle.pod, info)
        for plugin in cycle.profile.explaining
        if plugin.name in scores
    }


def _refused_by_pre_filter(cycle: _Cycle, rejection: Status) -> Ranking:
    snapshot = cycle.snapshot
    refusals = Diagnosis(snapshot.node_count)
    refusals.add(rejection, np.flatnonzero(snapshot.columns.exists[: snapshot.size]))
    if cycle.detail is not None:
        cycle.detail.take_refusals(refusals, snapshot.rows.names)
    return _none_feasible(cycle, refusals, unavailable(snapshot.node_count, [", ".join(rejection.reasons)]))


def _none_feasible(cycle: _Cycle, refusals: Diagnosis, message: str) -> Ranking:
    done = PostFilterResult()
    if cycle.may_preempt:
        cycle.timing.begin("PostFilter")
        done = post_filter(cycle.pod, cycle.snapshot, cycle.profile, cycle.found, refusals)
        cycle.timing.end(Code.SUCCESS if done.nomination is not None else Code.UNSCHEDULABLE)
    return Ranking(
        evaluated=cycle.snapshot.node_count,
        rejections=refusals.rejections(cycle.snapshot.rows.names),
        blockers=refusals.blockers(),
        message=f"{message} {done.message}" if done.message else message,
        nomination=done.nomination,
        clears_nomination=done.clears_nomination,
        untouched_first=cycle.profile.untouched_first,
    )


def _check(pod: Pod, node: str, snapshot: Snapshot, profile: Profile) -> Status:
    info = snapshot.node_info(node)
    if info is None:
        return Status.unresolvable(f"node {node!r} not found")
    found = pre_filter(pod, snapshot, profile)
    if found.rejection is not None:
        return found.rejection
    if found.nodes is not None and node not in found.nodes:
        return found.outside()
    nominated = nominated_by_node(pod, snapshot).get(node)
    if nominated:
        status = filter_with(nominated, pod, info, profile, found)
        if not status.is_success:
            return status
    return filter_one(found.state, pod, info, profile, found)


@dataclass(frozen=True, slots=True, kw_only=True)
class EveryNode:
    """``ranking`` has every feasible node as a candidate, best first; ``detail`` says of the other nodes why."""

    ranking: Ranking
    detail: Detail


def rank_every_node(pod: Pod, snapshot: Snapshot, profile: Profile, *, attempt: Attempt) -> EveryNode:
    """The cycle, with nothing left out. A plugin that fails ends it as it ends a cycle: in ``ranking.error``."""
    detail = Detail()
    ranking = rank(pod, snapshot, profile, attempt=attempt, best=max(1, snapshot.node_count), detail=detail)
    return EveryNode(ranking=ranking, detail=Detail() if ranking.error else detail)
