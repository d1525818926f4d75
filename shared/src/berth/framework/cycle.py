"""The scheduling cycle: one pod, one state, one profile in; the best nodes, or why there is none, out."""

from __future__ import annotations

import numpy as np

from berth.api.identity import Attempt
from berth.api.messages import Candidate
from berth.api.pod import Pod
from berth.cluster.nodes import Nodes
from berth.cluster.snapshot import Snapshot
from berth.framework.filtering import (
    Filtering,
    PreFiltered,
    filter_one,
    filter_with,
    nominated_by_node,
    pre_filter,
)
from berth.framework.guard import PluginFailure, call
from berth.framework.interface import Nomination, PostFilterResult
from berth.framework.order import best_first
from berth.framework.profile import Profile
from berth.framework.ranking import Ranking
from berth.framework.refusals import NO_NODES, Refusals, unavailable
from berth.framework.scoring import Scored, score
from berth.framework.status import Status


def rank(pod: Pod, snapshot: Snapshot, profile: Profile, *, attempt: Attempt, best: int = 8) -> Ranking:
    """Run the whole cycle over every node. What a plugin raises ends in ``error``, by name; nothing else is raised."""
    count, untouched_first = snapshot.node_count, profile.untouched_first
    problems = snapshot.class_of(pod).requests.problems
    if problems:
        return Ranking(error=unreadable(problems), evaluated=0, untouched_first=untouched_first)
    if count == 0:
        return Ranking(message=NO_NODES, untouched_first=untouched_first)
    try:
        return _rank(pod, snapshot, profile, attempt, best)
    except PluginFailure as failure:
        return Ranking(error=str(failure), evaluated=count, untouched_first=untouched_first)


def check(pod: Pod, node: str, snapshot: Snapshot, profile: Profile) -> Status:
    """All filters on one node, nominated pods included; where the pod is placed already it does not count against itself.

    Success, the first filter's rejection, or an error that names what failed.
    """
    problems = snapshot.class_of(pod).requests.problems
    if problems:
        return Status.error(unreadable(problems))
    try:
        if snapshot.node_of(pod.uid) is None:
            return _check(pod, node, snapshot, profile)
        with snapshot.supposing(removed=[pod.uid]):
            return _check(pod, node, snapshot, profile)
    except PluginFailure as failure:
        return Status.error(str(failure))


def unreadable(problems: tuple[str, ...]) -> str:
    """What is said of a pod whose quantities cannot be read."""
    return f"parsing {'; '.join(problems)}"


def _rank(pod: Pod, snapshot: Snapshot, profile: Profile, attempt: Attempt, best: int) -> Ranking:
    found = pre_filter(pod, snapshot, profile)
    if found.rejection is not None:
        return _refused_by_pre_filter(pod, snapshot, profile, found, found.rejection)
    filtering = Filtering(pod, snapshot, profile, found)
    filtering.run()
    feasible = int(np.count_nonzero(filtering.feasible))
    if feasible == 0:
        refusals = filtering.refusals()
        return _none_feasible(pod, snapshot, profile, found, refusals, refusals.message())
    every = feasible == snapshot.size
    nodes = Nodes(snapshot) if every else Nodes(snapshot, np.flatnonzero(filtering.feasible))
    return Ranking(
        candidates=_candidates(pod, nodes, profile, found, attempt, best),
        evaluated=snapshot.node_count,
        feasible=feasible,
        untouched_first=profile.untouched_first,
    )


def _candidates(
    pod: Pod, nodes: Nodes, profile: Profile, found: PreFiltered, attempt: Attempt, best: int
) -> tuple[Candidate, ...]:
    if len(nodes) == 1:
        return (_candidate(pod, nodes, 0, Scored(np.zeros(1, dtype=np.int64), {})),)
    scored = score(pod, nodes, profile, found)
    positions = best_first(scored.totals, nodes, attempt, best, fewer_pods_first=profile.untouched_first)
    return tuple(_candidate(pod, nodes, position, scored) for position in positions)


def _candidate(pod: Pod, nodes: Nodes, position: int, scored: Scored) -> Candidate:
    snapshot, row = nodes.snapshot, nodes.row(position)
    name = snapshot.rows.names[row]
    itself = snapshot.node_of(pod.uid) == name
    return Candidate(
        node=name,
        total=int(scored.totals[position]),
        scores=scored.of(position),
        pods=snapshot.pods_on(name) - itself,
    )


def _refused_by_pre_filter(
    pod: Pod, snapshot: Snapshot, profile: Profile, found: PreFiltered, rejection: Status
) -> Ranking:
    refusals = Refusals(snapshot.node_count)
    refusals.add(rejection, np.flatnonzero(snapshot.columns.exists[: snapshot.size]))
    message = unavailable(snapshot.node_count, [", ".join(rejection.reasons)])
    return _none_feasible(pod, snapshot, profile, found, refusals, message)


def _none_feasible(
    pod: Pod, snapshot: Snapshot, profile: Profile, found: PreFiltered, refusals: Refusals, message: str
) -> Ranking:
    nomination, said = _post_filter(pod, snapshot, profile, found, refusals)
    return Ranking(
        evaluated=snapshot.node_count,
        rejections=refusals.rejections(snapshot.rows.names),
        blockers=refusals.blockers(),
        message=f"{message} {said}" if said else message,
        nomination=nomination,
        untouched_first=profile.untouched_first,
    )


def _post_filter(
    pod: Pod, snapshot: Snapshot, profile: Profile, found: PreFiltered, refusals: Refusals
) -> tuple[Nomination | None, str]:
    said: list[str] = []
    for plugin in profile.post_filters:
        answer = call(plugin, "PostFilter", plugin.post_filter, PostFilterResult, found.state, pod, snapshot, refusals)
        said.extend([answer.message] if answer.message else [])
        if answer.nomination is not None:
            return answer.nomination, ", ".join(said)
    return None, ", ".join(said)


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
