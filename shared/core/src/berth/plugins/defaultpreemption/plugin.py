"""DefaultPreemption: evicts pods of lower priority, as few as possible, for a pod without a feasible node.

Nominates the node with the fewest violated disruption budgets, then the lowest priority of its most important victim,
the smallest sum of priorities, the fewest victims, and the latest start of its most important victims; then by a hash.
As kube-scheduler 1.36's plugin of that name, which tries nodes from a random one on until it has enough candidates;
here the cheapest nodes are tried first (see ``potentialnodes``).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import chain, islice
from typing import ClassVar, Final

import numpy as np

from berth.api.config.types import Point
from berth.api.pod import PREEMPT_NEVER, Pod, is_being_preempted, priority_of
from berth.cluster.columns import hash_of
from berth.cluster.nodes import RowIndex, info_of_row, node_info
from berth.cluster.placedpods import PlacedPods
from berth.cluster.snapshot import Snapshot
from berth.framework.disruptionbudgets import DisruptionBudgets
from berth.framework.interface import DryRun, Nomination, PostFilterPlugin, PostFilterResult
from berth.framework.scoring import seeded_hashes
from berth.framework.status import Code, CycleState, Diagnosis, Status
from berth.plugins.defaultpreemption.potentialnodes import LowerPriorityPods, PotentialNode, PotentialNodes
from berth.plugins.defaultpreemption.victims import NO_VICTIMS, Victims, lower_priority_pods_on, victims_on
from berth.plugins.factory import Args, PluginFactory, with_args

NAME: Final = "DefaultPreemption"
# Candidates about which extenders are asked at once: the search for more would hold up other pods in the binder's loop.
ASKED_AT_ONCE: Final = 100
NOT_ELIGIBLE_BY_POLICY: Final = "preemption: not eligible due to preemptionPolicy=Never."
NOT_ELIGIBLE_TERMINATING: Final = "preemption: not eligible due to a terminating pod on the nominated node."
NOT_HELPFUL: Final = Status.unresolvable("Preemption is not helpful for scheduling")


class DefaultPreemptionArgs(Args, frozen=True, kw_only=True):
    """Candidates that are enough to choose from: the greater of the two numbers, which may not both be 0."""

    min_candidate_nodes_percentage: int = 10
    """Enough candidates in percent of the nodes on which preemption may help, 0..100."""
    min_candidate_nodes_absolute: int = 100
    """Enough candidates, 0 or more, if that is more than the percentage. One of the two is above 0."""

    def enough(self, nodes: int) -> int:
        """Enough candidates if preemption may help on ``nodes`` nodes."""
        least = max(nodes * self.min_candidate_nodes_percentage // 100, self.min_candidate_nodes_absolute)
        return min(least, nodes)


class DefaultPreemption(PostFilterPlugin):
    """Finds the victims; the binder confirms and evicts them."""

    name: ClassVar[str] = NAME

    def __init__(self, args: DefaultPreemptionArgs) -> None:
        self._args = args

    def post_filter(
        self, state: CycleState, pod: Pod, snapshot: Snapshot, diagnosis: Diagnosis, dry_run: DryRun
    ) -> PostFilterResult:
        """A nomination, or the reasons against one. Keeps a nomination with victims that still terminate."""
        if pod.spec.preemption_policy == PREEMPT_NEVER:
            return PostFilterResult(message=NOT_ELIGIBLE_BY_POLICY)
        if _waits_for_victims(pod, snapshot, diagnosis, dry_run):
            return PostFilterResult(Nomination(pod.status.nominated_node_name), NOT_ELIGIBLE_TERMINATING)
        search = _CandidateSearch(snapshot, dry_run)
        rows = diagnosis.resolvable_rows()
        best = search.best(rows, self._args.enough(len(rows)))
        if best is None:
            why_not = search.why_not(rows, diagnosis.node_count)
            return PostFilterResult(
                message=f"preemption: {why_not.message()}",
                clears_nomination=True,
                unschedulable_plugins=why_not.unschedulable_plugins(),
            )
        return PostFilterResult(_nomination(best, snapshot))

    def confirm(self, pod: Pod, node: str, dry_run: DryRun) -> Nomination | None:
        info = node_info(dry_run.snapshot, node)
        if info is None or pod.spec.preemption_policy == PREEMPT_NEVER:
            return None
        found = victims_on(info, dry_run, DisruptionBudgets.of(dry_run.snapshot))
        return _nomination(found, dry_run.snapshot) if isinstance(found, Victims) else None

    def choose(self, pod: Pod, proposed: str, diagnosis: Diagnosis, dry_run: DryRun) -> Nomination | None:
        if pod.spec.preemption_policy == PREEMPT_NEVER:
            return None
        snapshot, rows = dry_run.snapshot, diagnosis.resolvable_rows()
        search, enough = _CandidateSearch(snapshot, dry_run), self._args.enough(len(rows))
        best = search.best(rows, enough, first=snapshot.rows.of(proposed), most=enough)
        return None if best is None else _nomination(best, snapshot)

    def candidates(
        self, pod: Pod, proposed: str, diagnosis: Diagnosis, dry_run: DryRun, asked: Collection[str]
    ) -> list[Nomination]:
        snapshot, rows = dry_run.snapshot, diagnosis.resolvable_rows()
        most = self._args.enough(len(rows)) - len(asked)
        if pod.spec.preemption_policy == PREEMPT_NEVER or most <= 0:
            return []
        rows = rows[~np.isin(rows, [row for row in snapshot.rows.of_all(asked) if row is not None])]
        found = _CandidateSearch(snapshot, dry_run).some(rows, most, first=snapshot.rows.of(proposed))
        return [_nomination(each, snapshot) for each in sorted(found, key=lambda victims: victims.cost)]


class _CandidateSearch:
    """One pod's search for the best candidate among the potential nodes."""

    def __init__(self, snapshot: Snapshot, dry_run: DryRun) -> None:
        self._snapshot = snapshot
        self._dry_run = dry_run
        self._budgets = DisruptionBudgets.of(snapshot)
        self._pods = snapshot.derived(PlacedPods, lambda: PlacedPods(snapshot))
        self._pods.refresh()
        self._diagnosis = Diagnosis(snapshot.node_count)
        self._unexplained: RowIndex = np.empty(0, dtype=np.intp)

    def best(self, rows: RowIndex, enough: int, *, first: int | None = None, most: int | None = None) -> Victims | None:
        """The cheapest victims of all nodes, or of ``enough`` candidates.

        The row ``first`` wins against equals. ``most``: dry runs of other rows, for a search whose time is bounded.
        """
        proposed = self._dry_run_on(first) if first is not None and first in rows else NOT_HELPFUL
        best = proposed if isinstance(proposed, Victims) else None
        candidates = without_violation = 0
        for node in islice(self._potential_nodes(rows, best), most):
            if best is not None and (node.least_cost >= best.cost or (without_violation and candidates >= enough)):
                break
            found = proposed if node.row == first else self._dry_run_on(node.row)
            if isinstance(found, Status):
                self._diagnosis.add(found, np.array([node.row]))
                continue
            candidates += 1
            without_violation += not found.violations
            best = found if best is None or found.cost < best.cost else best
        return best

    def some(self, rows: RowIndex, most: int, *, first: int | None) -> list[Victims]:
        """The victims on the row ``first``, and of ``most`` dry runs of others, the cheapest bounds first.

        At most ``ASKED_AT_ONCE``, so that the time is bounded.
        """
        tried = [first] if first is not None and first in rows else []
        others = (node.row for node in islice(self._potential_nodes(rows), most) if node.row != first)
        found = (self._dry_run_on(row) for row in chain(tried, others))
        return list(islice((each for each in found if isinstance(each, Victims)), ASKED_AT_ONCE))

    def why_not(self, rows: RowIndex, node_count: int) -> Diagnosis:
        """The reasons of all nodes; skipped nodes get a dry run for theirs."""
        for row in self._unexplained.tolist():
            found = self._dry_run_on(row)
            if isinstance(found, Status):
                self._diagnosis.add(found, np.array([row]))
        self._diagnosis.add(NOT_HELPFUL, np.arange(node_count - len(rows)))
        return self._diagnosis

    def _potential_nodes(self, rows: RowIndex, best: Victims | None = None) -> Iterator[PotentialNode]:
        """The rows worth a dry run, cheapest first; records the reasons of the others."""
        priority = priority_of(self._dry_run.pod)
        if best is not None and not best.violations:
            # A node is not better if it needs a more important victim. Most rows drop out before their bounds.
            priority = best.highest + 1
        has_victims = LowerPriorityPods(self._pods, rows, self._snapshot.size, priority).has_any
        self._diagnosis.add(NO_VICTIMS, rows[~has_victims])
        rows = rows[has_victims]
        if not len(rows):  # in a full cluster of pods of one priority for every pod that is tried
            return iter(())
        every = LowerPriorityPods(self._pods, rows, self._snapshot.size, priority)
        rejected, unexplained = self._dry_run.rejected_without(rows, every.removed(), self._diagnosis)
        self._unexplained, rows = rows[unexplained], rows[~rejected]
        if not len(rows):
            return iter(())
        pods = LowerPriorityPods(self._pods, rows, self._snapshot.size, priority)
        hashes = seeded_hashes(self._snapshot.columns.tie_hash[rows], np.uint64(hash_of(self._dry_run.pod.uid)))
        return PotentialNodes(pods, rows, self._dry_run, self._budgets).cheapest_first(self._pods, hashes)

    def _dry_run_on(self, row: int) -> Victims | Status:
        node = info_of_row(self._snapshot, row)
        return NOT_HELPFUL if node is None else victims_on(node, self._dry_run, self._budgets)


def _waits_for_victims(pod: Pod, snapshot: Snapshot, diagnosis: Diagnosis, dry_run: DryRun) -> bool:
    """Whether victims on the nominated node still terminate, and the pod fits there once they are gone.

    kube-scheduler waits for them in any case.
    """
    node = node_info(snapshot, pod.status.nominated_node_name)
    if node is None:
        return False
    refused = diagnosis.status_of(node.row)
    if refused is None or refused.code is Code.UNSCHEDULABLE_AND_UNRESOLVABLE:
        return False
    victims = [placed for placed in lower_priority_pods_on(node, pod) if is_being_preempted(placed.pod)]
    if not victims:
        return False
    with dry_run.removing(node, victims) as vacated:
        return vacated.status().is_success


def _nomination(victims: Victims, snapshot: Snapshot) -> Nomination:
    uids = tuple(placed.pod.uid for placed in victims.pods)
    return Nomination(snapshot.rows.names[victims.row], uids, victims.violations)


def validate(args: DefaultPreemptionArgs, path: str) -> list[str]:
    percent, absolute = args.min_candidate_nodes_percentage, args.min_candidate_nodes_absolute
    problems = []
    if not 0 <= percent <= 100:
        problems.append(f"{path}.minCandidateNodesPercentage: want 0..100, got {percent}")
    if absolute < 0:
        problems.append(f"{path}.minCandidateNodesAbsolute: want 0 or more, got {absolute}")
    if percent == absolute == 0:
        wanted = "more than 0, or minCandidateNodesAbsolute more than 0"
        problems.append(f"{path}.minCandidateNodesPercentage: want {wanted}, got 0")
    return problems


FACTORY: Final = PluginFactory(
    name=NAME,
    points=(Point.POST_FILTER,),
    build=with_args(DefaultPreemption, DefaultPreemptionArgs),
    args_type=DefaultPreemptionArgs,
    validate=validate,
)
