"""The scheduling cycle: finds a pod's best nodes in a Snapshot by a profile, or the reasons against all.

``rank`` is the scorer's cycle. ``check`` runs the filters on one node, as the binder does before it commits.
``rank_every_node`` has a result for every node, for ``berth why`` and ``berth simulate``. ``nodes_to_extend`` finds the
nodes to ask HTTP extenders about before a cycle.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Final

import msgspec
import numpy as np

from berth.api.devices import Allocations
from berth.api.pod import Pod
from berth.api.podlimits import refusal
from berth.cluster.nodes import Mask, Nodes, RowIndex, node_info
from berth.cluster.snapshot import Snapshot
from berth.framework.equivalencecache import ClassResults, EquivalenceCache
from berth.framework.extending import Extension
from berth.framework.filtering import (
    FeasibleNodes,
    PreFiltered,
    checked,
    earmark_on,
    filter_node,
    filter_node_with,
    nominated_pods,
    pre_filter,
)
from berth.framework.interface import FreeClaim, Nomination, PostFilterResult
from berth.framework.plugincalls import PluginFailure, Timing, call, no_clock, run_explain
from berth.framework.preemption import post_filter
from berth.framework.profile import Profile, nodes_to_find
from berth.framework.scoring import BestNodes, Scored, best_first, counted_pods, losses, score
from berth.framework.status import NO_NODES, Code, Diagnosis, FilterColumn, Status, unavailable
from berth.messages.attempts import Candidate, Rejection
from berth.messages.subjects import Attempt

# Nodes named by a ranking: enough for the binder to find one with any number of scorers (ADR 2).
BEST: Final = 32


class Ranking(msgspec.Struct, frozen=True, kw_only=True):
    """The best nodes, the reasons against all nodes, or a failure: exactly one of candidates, message, error.

    A single feasible node is not scored, as in kube-scheduler: its candidate has total 0 and no scores.
    ``unschedulable_plugins`` have rejected nodes, as they are or after evictions; their events may help the pod.
    ``evaluated``: how many of the ``nodes`` of the Snapshot were tried; ``nominated_first``: only the pod's nominated
    node, because it is feasible. ``nomination``: PostFilter's result if there is no candidate; ``clears_nomination``:
    the pod's nominated node does not help it.
    """

    candidates: tuple[Candidate, ...] = ()
    evaluated: int = 0
    feasible: int = 0
    nodes: int | None = None
    nominated_first: bool = False
    rejections: tuple[Rejection, ...] = ()
    unschedulable_plugins: tuple[str, ...] = ()
    message: str = ""
    error: str = ""
    nomination: Nomination | None = None
    clears_nomination: bool = False
    only: frozenset[str] | None = None  # the only nodes that can be feasible, by PreFilter; None for all
    devices: Allocations = {}  # that the pod would get on the first candidate


@dataclass(slots=True)
class Detail:
    """The result for every node of one cycle; filled in on request.

    ``node_to_status``: by rejected node, the plugin and the reasons. ``scores``: by plugin and node the points after
    NormalizeScore, times the plugin's weight. A single feasible node is not scored.
    """

    node_to_status: dict[str, Status] = field(default_factory=dict)
    scores: dict[str, dict[str, int]] = field(default_factory=dict)

    def add_diagnosis(self, diagnosis: Diagnosis, names: Sequence[str]) -> None:
        """``names``: the node of each row."""
        rows = ((row, entry.status) for entry in diagnosis.entries for row in entry.rows.tolist())
        self.node_to_status.update({names[row]: status for row, status in sorted(rows, key=lambda pair: pair[0])})

    def add_scores(self, scored: Scored, nodes: Nodes) -> None:
        """``nodes``: the feasible ones, in the order of the scores."""
        for plugin, points in scored.by_plugin(nodes, np.arange(nodes.size)).items():
            self.scores[plugin] = dict(zip(nodes.names, points, strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class EveryNode:
    """``ranking`` has every feasible node as a candidate, best first; ``detail`` has the others' reasons."""

    ranking: Ranking
    detail: Detail


@dataclass(frozen=True, slots=True, kw_only=True)
class RankOptions:
    """Options of ``rank``; ``detail`` and ``timing`` are filled in."""

    best: int = BEST  # number of named nodes
    explained: int = BEST  # how many of them, from the first on, have every plugin's points
    also: str = ""  # an additional node to name with its points, if it is scored
    may_preempt: bool = True  # run PostFilter if no node is feasible
    extension: Extension | None = None  # the extenders' answers about the pod
    unasked: bool = False  # count nodes that extenders were not asked about
    only: Mask | None = None  # bool[rows]: no other node may be chosen, and all of these are scored
    detail: Detail | None = None  # the result for every node
    timing: Timing | None = None  # the duration of each extension point


DEFAULT_OPTIONS: Final = RankOptions()


def rank(
    pod: Pod, snapshot: Snapshot, profile: Profile, *, attempt: Attempt, options: RankOptions = DEFAULT_OPTIONS
) -> Ranking:
    """Run the whole cycle; a placed pod does not count against itself.

    A plugin's failure ends in ``error``, with the plugin's name; so does a pod above the limits. Raises no exception.
    """
    count = snapshot.node_count
    pod_class = snapshot.class_of(pod)
    if too_much := pod_class.refusal(pod):
        return Ranking(error=too_much)
    problems = pod_class.requests.problems
    if problems:
        return Ranking(error=unreadable(problems), evaluated=0)
    if count == 0:
        return Ranking(message=NO_NODES, nodes=0, clears_nomination=True)
    timing = options.timing or Timing(no_clock)
    try:
        with _without_itself(pod, snapshot):
            timing.begin("PreFilter")
            results = EquivalenceCache.of(snapshot, profile).results_of(pod)
            found = pre_filter(pod, snapshot, profile, results.new_state(), results.pre_filtered)
            timing.end(found.rejection.code if found.rejection is not None else Code.SUCCESS)
            return _rank(_Cycle(pod, snapshot, profile, results, found, timing, options), attempt)
    except PluginFailure as failure:
        timing.fail()
        return Ranking(error=str(failure), evaluated=count)


@dataclass(frozen=True, slots=True)
class ToExtend:
    """The nodes that pass all filters, and the pod's nominated node if it is one of them."""

    nodes: tuple[str, ...] = ()
    nominated: str = ""

    @property
    def all(self) -> tuple[str, ...]:
        """Every node that may be asked about; a search does not always find the nominated one."""
        return tuple(dict.fromkeys((*self.nodes, self.nominated))) if self.nominated else self.nodes


def nodes_to_extend(pod: Pod, snapshot: Snapshot, profile: Profile, *, search: bool = True) -> ToExtend:
    """The nodes to ask extenders about; empty if ``rank`` needs no answer of theirs.

    ``search``: as many as the profile's percentage asks for; otherwise all that pass. Raises no exception.
    """
    if refusal(pod) or snapshot.class_of(pod).requests.problems or not snapshot.node_count:
        return ToExtend()
    try:
        with _without_itself(pod, snapshot):
            results = EquivalenceCache.of(snapshot, profile).results_of(pod)
            found = pre_filter(pod, snapshot, profile, results.new_state(), results.pre_filtered)
            if found.rejection is not None:
                return ToExtend()
            cycle = _Cycle(pod, snapshot, profile, results, found, Timing(no_clock), DEFAULT_OPTIONS)
            feasible = FeasibleNodes(pod, snapshot, profile, found, results.refresh_filters())
            feasible.find()
    except PluginFailure:
        return ToExtend()
    rows = np.flatnonzero(feasible.mask)
    nominated = snapshot.rows.of(pod.status.nominated_node_name)
    if search and len(rows):
        rows = _found(cycle, feasible, len(rows))[0].rows
    names = tuple(snapshot.rows.names[row] for row in rows.tolist())
    is_feasible = nominated is not None and bool(feasible.mask[nominated])
    return ToExtend(names, pod.status.nominated_node_name if is_feasible else "")


def check(pod: Pod, node: str, snapshot: Snapshot, profile: Profile, *, has_room: bool = False) -> Status:
    """Run all filters on one node, as ``check_in_turn`` does."""
    return check_in_turn(pod, (node,), snapshot, profile, has_room=has_room)[0]


def check_in_turn(
    pod: Pod, nodes: Sequence[str], snapshot: Snapshot, profile: Profile, *, has_room: bool = False
) -> list[Status]:
    """Run all filters on one node after the other, in one cycle, until one passes or a plugin fails.

    A placed pod does not count against itself. Nominated pods and earmarks count too, unless the pod ``has_room`` there
    already: they came after it. Of each node looked at: success, the first filter's rejection, or an error that
    names the failed plugin.
    """
    problems = snapshot.class_of(pod).requests.problems
    if problems:
        return [Status.error(unreadable(problems))]
    statuses: list[Status] = []
    try:
        with _without_itself(pod, snapshot):
            results = EquivalenceCache.of(snapshot, profile).results_of(pod)
            found = pre_filter(pod, snapshot, profile, results.new_state(), results.pre_filtered)
            for node in nodes:
                statuses.append(_check(pod, node, snapshot, profile, found, has_room=has_room))
                if statuses[-1].is_success or statuses[-1].code is Code.ERROR:
                    break
    except PluginFailure as failure:
        statuses.append(Status.error(str(failure)))
    return statuses


def any_feasible_node(pod: Pod, snapshot: Snapshot, profile: Profile) -> str:
    """The first of ``feasible_nodes``; empty if no node passes. Raises as it does."""
    return next(iter(feasible_nodes(pod, snapshot, profile)), "")


def feasible_nodes(pod: Pod, snapshot: Snapshot, profile: Profile) -> list[str]:
    """The nodes on which the pod passes all filters, nominated pods included.

    Raises:
        PluginFailure: a plugin failed.
    """
    if snapshot.class_of(pod).requests.problems:
        return []
    with _without_itself(pod, snapshot):
        results = EquivalenceCache.of(snapshot, profile).results_of(pod)
        found = pre_filter(pod, snapshot, profile, results.new_state(), results.pre_filtered)
        if found.rejection is not None:
            return []
        feasible = FeasibleNodes(pod, snapshot, profile, found, results.refresh_filters())
        feasible.find()
        return [snapshot.rows.names[row] for row in np.flatnonzero(feasible.mask).tolist()]


def claim_to_free(pod: Pod, snapshot: Snapshot, profile: Profile) -> FreeClaim | None:
    """The ResourceClaim that PostFilter plugins want freed for the pod; None if a node is feasible, or no claim helps.

    Raises:
        PluginFailure: a plugin failed.
    """
    left_out = profile.left_out(snapshot.traits_of(pod))
    plugins = [
        plugin
        for plugin in profile.post_filters
        if plugin.name not in left_out and call(plugin, "PostFilter", plugin.may_free_claim, bool, pod, snapshot)
    ]
    if not plugins or snapshot.class_of(pod).requests.problems:
        return None
    with _without_itself(pod, snapshot):
        results = EquivalenceCache.of(snapshot, profile).results_of(pod)
        found = pre_filter(pod, snapshot, profile, results.new_state(), results.pre_filtered)
        if found.rejection is None:
            feasible = FeasibleNodes(pod, snapshot, profile, found, results.refresh_filters())
            feasible.find()
            if feasible.mask.any():
                return None
        for plugin in plugins:
            answer = call(plugin, "PostFilter", plugin.claim_to_free, object, found.state, pod, snapshot)
            if isinstance(answer, FreeClaim):
                return answer
    return None


def rank_every_node(pod: Pod, snapshot: Snapshot, profile: Profile, *, attempt: Attempt) -> EveryNode:
    """The cycle with a result for every node. A plugin's failure is in ``ranking.error``; then ``detail`` is empty."""
    detail = Detail()
    count = max(1, snapshot.node_count)
    ranking = rank(
        pod, snapshot, profile, attempt=attempt, options=RankOptions(best=count, explained=count, detail=detail)
    )
    return EveryNode(ranking=ranking, detail=Detail() if ranking.error else detail)


def unreadable(problems: tuple[str, ...]) -> str:
    """The error for a pod whose quantities cannot be parsed."""
    return f"parsing {'; '.join(problems)}"


@dataclass(frozen=True, slots=True)
class _Cycle:
    """The parts of one cycle, after PreFilter."""

    pod: Pod
    snapshot: Snapshot
    profile: Profile
    results: ClassResults
    found: PreFiltered
    timing: Timing
    options: RankOptions


def _rank(cycle: _Cycle, attempt: Attempt) -> Ranking:
    snapshot, rejection = cycle.snapshot, cycle.found.rejection
    if rejection is not None:
        return _rejected_by_pre_filter(cycle, rejection)
    cycle.timing.begin("Filter")
    cached = cycle.results.refresh_filters()
    feasible = FeasibleNodes(cycle.pod, snapshot, cycle.profile, cycle.found, cached)
    feasible.find()
    cycle.timing.end()
    if cycle.options.detail is not None:
        cycle.options.detail.add_diagnosis(feasible.diagnosis(), snapshot.rows.names)
    if cycle.options.only is not None:
        feasible.mask = feasible.mask & cycle.options.only
    passed = feasible.mask
    if cycle.options.extension is not None:
        feasible.mask = passed & cycle.options.extension.mask(snapshot, unasked=cycle.options.unasked)
    count = int(np.count_nonzero(feasible.mask))
    if count == 0:
        diagnosis = feasible.diagnosis()
        if cycle.options.extension is not None:
            cycle.options.extension.diagnose(passed, snapshot, diagnosis)
        return _none_feasible(cycle, diagnosis, diagnosis.message(), cached.columns)
    nominated = _nominated(cycle, feasible)
    if nominated is None and cycle.found.preferred is not None and (feasible.mask & cycle.found.preferred).any():
        feasible.mask = feasible.mask & cycle.found.preferred
        count = int(np.count_nonzero(feasible.mask))
    nodes, evaluated = _found(cycle, feasible, count) if nominated is None else (nominated, 1)
    candidates = _candidates(cycle, nodes, attempt)
    return Ranking(
        candidates=candidates,
        devices=_devices(cycle, candidates[0].node),
        evaluated=evaluated,
        feasible=nodes.size,
        nodes=snapshot.node_count,
        nominated_first=nominated is not None,
        only=cycle.found.nodes,
    )


def _nominated(cycle: _Cycle, feasible: FeasibleNodes) -> Nodes | None:
    """The pod's nominated node, if it is feasible: then no other node is evaluated, as in kube-scheduler."""
    row = cycle.snapshot.rows.of(cycle.pod.status.nominated_node_name)
    if row is None or not feasible.mask[row]:
        return None
    return Nodes(cycle.snapshot, np.array([row], dtype=np.intp))


def _found(cycle: _Cycle, feasible: FeasibleNodes, count: int) -> tuple[Nodes, int]:
    """The nodes to score, and the number evaluated to find them: all, unless the profile has a percentage."""
    snapshot, profile = cycle.snapshot, cycle.profile
    evaluated = snapshot.node_count if cycle.found.nodes is None else len(cycle.found.nodes)
    # Extenders were asked about the nodes that the search found; a group's members do not move the search of others.
    searched = cycle.options.extension is not None or cycle.options.only is not None
    wanted = count if searched else nodes_to_find(evaluated, profile.percentage_of_nodes_to_score)
    if count > wanted:
        chosen = profile.search.find(feasible.mask, snapshot.columns.exists[: snapshot.size], wanted)
        return Nodes(snapshot, chosen.rows), chosen.evaluated
    every = count == snapshot.size
    return Nodes(snapshot) if every else Nodes(snapshot, feasible.mask.nonzero()[0]), snapshot.node_count


def _candidates(cycle: _Cycle, nodes: Nodes, attempt: Attempt) -> tuple[Candidate, ...]:
    pod, profile = cycle.pod, cycle.profile
    if nodes.size == 1:
        scored, indices = Scored(np.zeros(1, dtype=np.int64)), np.zeros(1, dtype=np.intp)
        lost = [0.0]
    else:
        scored = score(pod, nodes, profile, cycle.found, cycle.results, timing=cycle.timing)
        if cycle.options.extension is not None:
            scored.add_constants(cycle.options.extension.scores(nodes))
        fewer_pods_first = profile.fewer_pods_first
        indices = best_first(
            scored.totals, nodes, attempt, cycle.options.best, fewer_pods_first=fewer_pods_first, keys=scored.keys
        )
        best_nodes = BestNodes(pod=pod, nodes=nodes, scored=scored, indices=indices)
        lost = losses(best_nodes, profile, cycle.found.state, cycle.results)
    if cycle.options.detail is not None:
        cycle.options.detail.add_scores(scored, nodes)
    rows = nodes.rows_at(indices)
    counted = counted_pods(pod, Nodes(cycle.snapshot, rows), profile).tolist()
    names, explained = cycle.snapshot.rows.names, scored.of(nodes, indices[: cycle.options.explained])
    found = list(zip(rows.tolist(), scored.totals[indices].tolist(), counted, lost, strict=True))
    details = _details(cycle, rows[: len(explained)], scored)
    candidates = [
        Candidate(node=names[row], total=total, scores=scores, pods=pods, loss=loss, details=each)
        for (row, total, pods, loss), scores, each in zip(found, explained, details, strict=False)
    ]
    candidates += [
        Candidate(node=names[row], total=total, pods=pods, loss=loss)
        for row, total, pods, loss in found[len(explained) :]
    ]
    return tuple(_with_also(cycle, candidates, nodes, scored) if cycle.options.also else candidates)


def _devices(cycle: _Cycle, node: str) -> Allocations:
    found: Allocations = {}
    for plugin in cycle.profile.allocating:
        if plugin.name not in cycle.found.skipped and (info := node_info(cycle.snapshot, node)) is not None:
            found |= call(plugin, "Allocations", plugin.allocations, dict, cycle.found.state, cycle.pod, info)
    return found


def _with_also(cycle: _Cycle, candidates: list[Candidate], nodes: Nodes, scored: Scored) -> list[Candidate]:
    """Add the node of ``also`` with its points. Behind the best nodes it gets its place among all."""
    row = cycle.snapshot.rows.of(cycle.options.also)
    positions = np.arange(nodes.size, dtype=np.intp)
    at = positions[nodes.rows_at(positions) == row] if row is not None else positions[:0]
    if not len(at):
        return candidates
    for place, each in enumerate(candidates):
        if each.node == cycle.options.also:
            points = each.scores or scored.of(nodes, at)[0]
            return [*candidates[:place], msgspec.structs.replace(each, scores=points), *candidates[place + 1 :]]
    total = int(scored.totals[at[0]])
    further = Candidate(
        node=cycle.options.also,
        total=total,
        scores=scored.of(nodes, at)[0],
        pods=int(counted_pods(cycle.pod, Nodes(cycle.snapshot, nodes.rows_at(at)), cycle.profile)[0]),
        place=1 + max(len(candidates), int(np.count_nonzero(scored.totals > total))),
    )
    return [*candidates, further]


def _details(cycle: _Cycle, rows: RowIndex, scored: Scored) -> Sequence[dict[str, str]]:
    """The lines that plugins add to their scores of these nodes."""
    nodes = Nodes(cycle.snapshot, rows)
    lines = {
        plugin.name: run_explain(plugin, cycle.found.state, cycle.pod, nodes)
        for plugin in cycle.profile.explaining
        if scored.has(plugin.name)
    }
    if len(lines) == 1:  # of one plugin in most profiles
        ((name, of_nodes),) = lines.items()
        return [{name: line} for line in of_nodes]
    return [{name: of_nodes[place] for name, of_nodes in lines.items()} for place in range(len(rows))]


def _rejected_by_pre_filter(cycle: _Cycle, rejection: Status) -> Ranking:
    snapshot = cycle.snapshot
    diagnosis = Diagnosis(snapshot.node_count)
    diagnosis.add(rejection, np.flatnonzero(snapshot.columns.exists[: snapshot.size]))
    if cycle.options.detail is not None:
        cycle.options.detail.add_diagnosis(diagnosis, snapshot.rows.names)
    message = unavailable(snapshot.node_count, [", ".join(rejection.reasons)])
    return _none_feasible(cycle, diagnosis, message, {})


def _none_feasible(cycle: _Cycle, diagnosis: Diagnosis, message: str, columns: Mapping[str, FilterColumn]) -> Ranking:
    """``columns``: the verdicts of row-local filters, if there was a Filter."""
    result = PostFilterResult()
    if cycle.options.may_preempt:
        cycle.timing.begin("PostFilter")
        result = post_filter(
            cycle.pod,
            cycle.snapshot,
            cycle.profile,
            cycle.found,
            columns,
            diagnosis=diagnosis,
        )
        cycle.timing.end(Code.SUCCESS if result.nomination is not None else Code.UNSCHEDULABLE)
    return Ranking(
        evaluated=cycle.snapshot.node_count,
        nodes=cycle.snapshot.node_count,
        rejections=diagnosis.rejections(cycle.snapshot.rows.names),
        unschedulable_plugins=tuple(sorted({*diagnosis.unschedulable_plugins(), *result.unschedulable_plugins})),
        message=f"{message} {result.message}" if result.message else message,
        nomination=result.nomination,
        clears_nomination=result.clears_nomination,
    )


def _check(  # noqa: PLR0913 - the parts of one cycle, and the node
    pod: Pod, node: str, snapshot: Snapshot, profile: Profile, found: PreFiltered, *, has_room: bool
) -> Status:
    info = node_info(snapshot, node)
    if info is None:
        return Status.unresolvable(f"node {node!r} not found")
    if found.rejection is not None:
        return found.rejection
    if found.nodes is not None and node not in found.nodes:
        return found.status_of_other_nodes()
    if snapshot.earmarks and not has_room and not (kept_out := earmark_on(pod, node, snapshot)).is_success:
        return kept_out

    def status() -> Status:
        nominated = () if has_room else nominated_pods(pod, info)
        if nominated:
            status = filter_node_with(nominated, found.state, pod, info, profile, skipped=found.skipped)
            if not status.is_success:
                return status
        return filter_node(found.state, pod, info, profile, found.skipped)

    return checked(info, status)


def _without_itself(pod: Pod, snapshot: Snapshot) -> AbstractContextManager[None]:
    """The Snapshot without the pod, if it is placed, assumed or proposed by an earlier attempt."""
    return nullcontext() if snapshot.node_of(pod.uid) is None else snapshot.supposing(removed=[pod.uid])
