"""The arguments of DefaultPreemption and what is wrong with them.

DefaultPreemption: room is made for an important pod by evicting less important ones, as few as possible.

Of the nodes on which that helps the one is taken that violates the fewest disruption budgets, then whose most important
victim is the least important, then with the smallest sum of priorities, the fewest victims, and the youngest among its
most important ones; equals are told apart by a hash. As kube-scheduler 1.36's plugin of that name, which tries nodes
from a random one on until it has enough; here the most promising are tried first (preemptionprospects).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, Final

import numpy as np

from berth.api.config.types import Point
from berth.api.pod import Pod, is_being_preempted, priority_of
from berth.cluster.columns import hash_of
from berth.cluster.nodes import RowIndex
from berth.cluster.pods import PlacedPods
from berth.cluster.snapshot import Snapshot
from berth.framework.diagnosis import Diagnosis
from berth.framework.interface import Nomination, PostFilterPlugin, PostFilterResult
from berth.framework.preemption import DryRun
from berth.framework.scoring import mixed
from berth.framework.state import CycleState
from berth.framework.status import Code, Status
from berth.plugins.defaultpreemption.candidates import LessImportant, Prospect, Prospects
from berth.plugins.defaultpreemption.victims import (
    NO_VICTIMS,
    DisruptionBudgets,
    Victims,
    less_important_on,
    victims_on,
)
from berth.plugins.factory import Args, PluginFactory

_MAX_PERCENT: Final = 100


class DefaultPreemptionArgs(Args, frozen=True, kw_only=True):
    """How many nodes that evictions would help are enough to choose from: the greater of the two.

    ``minCandidateNodesPercentage``: 0..100, of the nodes on which evictions may help at all.
    ``minCandidateNodesAbsolute``: a number of nodes. Not both are 0.
    """

    min_candidate_nodes_percentage: int = 10
    min_candidate_nodes_absolute: int = 100

    def enough(self, nodes: int) -> int:
        """How many candidates are enough where evictions may help on this many nodes."""
        least = max(nodes * self.min_candidate_nodes_percentage // 100, self.min_candidate_nodes_absolute)
        return min(least, nodes)


def validate(args: DefaultPreemptionArgs, path: str) -> list[str]:
    """Every problem, with its path."""
    percent, absolute = args.min_candidate_nodes_percentage, args.min_candidate_nodes_absolute
    problems = []
    if not 0 <= percent <= _MAX_PERCENT:
        problems.append(f"{path}.minCandidateNodesPercentage: want 0..{_MAX_PERCENT}, got {percent}")
    if absolute < 0:
        problems.append(f"{path}.minCandidateNodesAbsolute: want 0 or more, got {absolute}")
    if percent == absolute == 0:
        wanted = "more than 0, or minCandidateNodesAbsolute more than 0"
        problems.append(f"{path}.minCandidateNodesPercentage: want {wanted}, got 0")
    return problems


NAME: Final = "DefaultPreemption"

NEVER: Final = "Never"

BY_POLICY: Final = "preemption: not eligible due to preemptionPolicy=Never."

VICTIMS_GOING: Final = "preemption: not eligible due to a terminating pod on the nominated node."

NOT_HELPFUL: Final = Status.unresolvable("Preemption is not helpful for scheduling")


class DefaultPreemption(PostFilterPlugin):
    """Finds whom to evict; the binder confirms and does it."""

    name: ClassVar[str] = NAME

    def __init__(self, args: DefaultPreemptionArgs) -> None:
        self._args = args

    def post_filter(
        self, state: CycleState, pod: Pod, snapshot: Snapshot, refusals: Diagnosis, dry_run: DryRun
    ) -> PostFilterResult:
        """A nomination; or that victims are still going; or, for each node, why evictions do not help."""
        if pod.spec.preemption_policy == NEVER:
            return PostFilterResult(message=BY_POLICY)
        if _victims_are_going(pod, snapshot, refusals):
            return PostFilterResult(Nomination(pod.status.nominated_node_name), VICTIMS_GOING)
        search = _Search(snapshot, dry_run)
        rows = refusals.resolvable_rows()
        best = search.best(rows, self._args.enough(len(rows)))
        if best is None:
            message = search.why_not(rows, refusals.node_count)
            return PostFilterResult(message=f"preemption: {message}", clears_nomination=True)
        return PostFilterResult(_nomination(best, snapshot))

    def confirm(self, pod: Pod, node: str, dry_run: DryRun) -> Nomination | None:
        """Whom the pod needs gone from the node now."""
        info = dry_run.snapshot.node_info(node)
        if info is None or pod.spec.preemption_policy == NEVER:
            return None
        found = victims_on(info, dry_run, _budgets_of(dry_run.snapshot))
        return _nomination(found, dry_run.snapshot) if isinstance(found, Victims) else None


class _Search:
    """One pod's search among the nodes on which evictions may help."""

    def __init__(self, snapshot: Snapshot, dry_run: DryRun) -> None:
        self._snapshot = snapshot
        self._dry_run = dry_run
        self._budgets = _budgets_of(snapshot)
        self._pods = snapshot.live.derived(PlacedPods, lambda: PlacedPods(snapshot))
        self._pods.refresh()
        self._refused = Diagnosis(snapshot.node_count)
        self._wordless: RowIndex = np.empty(0, dtype=np.intp)

    def best(self, rows: RowIndex, enough: int) -> Victims | None:
        """The best node, of all unless ``enough`` candidates were found first."""
        best: Victims | None = None
        candidates = without_violation = 0
        for prospect in self._prospects(rows):
            if best is not None and (prospect.best >= best.worth or (without_violation and candidates >= enough)):
                break
            found = self._try(prospect.row)
            if isinstance(found, Status):
                self._refused.add(found, np.array([prospect.row]))
                continue
            candidates += 1
            without_violation += not found.violations
            best = found if best is None or found.worth < best.worth else best
        return best

    def why_not(self, rows: RowIndex, node_count: int) -> str:
        """The sentence when nothing helped; nodes that were left out without a word are asked for theirs."""
        for row in self._wordless.tolist():
            found = self._try(row)
            if isinstance(found, Status):
                self._refused.add(found, np.array([row]))
        self._refused.add(NOT_HELPFUL, np.arange(node_count - len(rows)))
        return self._refused.message()

    def _prospects(self, rows: RowIndex) -> Iterator[Prospect]:
        """The rows that a dry run may find good, the most promising first; why not the others is noted."""
        priority = priority_of(self._dry_run.pod)
        has_victims = LessImportant(self._pods, rows, self._snapshot.size, priority).has_any
        self._refused.add(NO_VICTIMS, rows[~has_victims])
        rows = rows[has_victims]
        every = LessImportant(self._pods, rows, self._snapshot.size, priority)
        refused, wordless = self._dry_run.refused_without(rows, every.gone(), self._refused)
        self._wordless, rows = rows[wordless], rows[~refused]
        if not len(rows):
            return iter(())
        pods = LessImportant(self._pods, rows, self._snapshot.size, priority)
        hashes = mixed(self._snapshot.columns.name_hash[rows], np.uint64(hash_of(self._dry_run.pod.uid)))
        return Prospects(pods, rows, self._dry_run, self._budgets).best_first(self._pods, hashes)

    def _try(self, row: int) -> Victims | Status:
        node = self._snapshot.info_of_row(row)
        return NOT_HELPFUL if node is None else victims_on(node, self._dry_run, self._budgets)


def _victims_are_going(pod: Pod, snapshot: Snapshot, refusals: Diagnosis) -> bool:
    """Whether room is being made for the pod already, on a node that can still be feasible then."""
    node = snapshot.node_info(pod.status.nominated_node_name)
    if node is None:
        return False
    refused = refusals.status_of(node.row)
    if refused is None or refused.code is Code.UNSCHEDULABLE_AND_UNRESOLVABLE:
        return False
    return any(is_being_preempted(placed.pod) for placed in less_important_on(node, pod))


def _budgets_of(snapshot: Snapshot) -> DisruptionBudgets:
    return snapshot.live.derived(DisruptionBudgets, lambda: DisruptionBudgets(snapshot))


def _nomination(victims: Victims, snapshot: Snapshot) -> Nomination:
    uids = tuple(placed.pod.uid for placed in victims.pods)
    return Nomination(snapshot.rows.names[victims.row], uids, victims.violations)


def _build(args: Any) -> DefaultPreemption:
    return DefaultPreemption(args or DefaultPreemptionArgs())


FACTORY: Final = PluginFactory(
    name=NAME,
    points=(Point.POST_FILTER,),
    build=_build,
    args_type=DefaultPreemptionArgs,
    validate=validate,
)
