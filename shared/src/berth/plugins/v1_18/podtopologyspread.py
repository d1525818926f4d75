"""PodTopologySpread: pods of a kind lie evenly over zones, hosts or any other values of a node label.

Filter: as today's plugin of that name. Raw: the pods of the node's domains, added up over the constraints. Normalized:
with the sum over the feasible nodes that have all the labels and the least of them, ``100 * (sum - raw) / (sum -
least)``, without the fraction, 0 for other nodes, 100 for all when there is nothing to divide by. An empty selector
means every pod of the namespace, and pods without constraints have none by default. As in kube-scheduler 1.18.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, Final

import numpy as np

from berth.api.pod import Pod
from berth.cluster.nodes import Nodes
from berth.cluster.podclass import PodClass
from berth.cluster.snapshot import Snapshot
from berth.cluster.tally import Counts
from berth.framework.interface import MAX_SCORE, Scores
from berth.framework.state import CycleState
from berth.framework.status import SKIP, SUCCESS, Status
from berth.plugins import podtopologyspread
from berth.plugins.domains import Domains
from berth.plugins.podtopologyspreadargs import LIST, PodTopologySpreadArgs, validate
from berth.plugins.spreadconstraints import SCHEDULE_ANYWAY, Constraint, with_all_keys
from berth.plugins.spreadscore import Part, Spread


class SpreadArgs(PodTopologySpreadArgs, frozen=True, kw_only=True):
    """``defaultConstraints``: for pods that have none of their own; without them these pods are not spread."""

    defaulting_type: str = LIST


@dataclass(frozen=True, slots=True, kw_only=True)
class WideConstraint(Constraint):
    """A constraint of which an empty selector means every pod of the namespace."""

    def counts(self, snapshot: Snapshot) -> Counts:
        """int32[capacity]: the pods on each row."""
        return snapshot.groups.tally(self.pods).counts

    def counts_pod(self, pod: Pod) -> bool:
        """Whether a pod is one of those that are counted."""
        return pod.metadata.deletion_timestamp is None and self.means(pod)


class PodTopologySpread(podtopologyspread.PodTopologySpread):
    """Filters by DoNotSchedule, scores by ScheduleAnyway."""

    def pre_score(self, state: CycleState, pod: Pod, nodes: Nodes) -> Status:
        """Skip without constraints that would rather hold."""
        constraints = self.constraints(pod, SCHEDULE_ANYWAY, nodes.snapshot)
        if not constraints:
            return SKIP
        state.write(podtopologyspread.SPREAD, _spread_of(constraints, state.pod_class, nodes))
        return SUCCESS

    def normalize(self, state: CycleState, pod: Pod, scores: Scores, nodes: Nodes) -> Scores:
        """Fewest pods first."""
        ignored = nodes.take(state.read(podtopologyspread.SPREAD).ignored)
        counted = scores[~ignored]
        if not len(counted):
            return np.zeros(len(scores), dtype=np.int64)
        total, least = int(counted.sum()), int(counted.min())
        if total == least:
            return np.full(len(scores), MAX_SCORE, dtype=np.int64)
        points = (MAX_SCORE * ((total - scores) / float(total - least))).astype(np.int64)
        return np.where(ignored, 0, points)

    def constraints(self, pod: Pod, action: str, snapshot: Snapshot) -> tuple[Constraint, ...]:
        """What holds for the pod, read as that release did."""
        return tuple(_wide(constraint) for constraint in super().constraints(pod, action, snapshot))


def _wide(constraint: Constraint) -> WideConstraint:
    return WideConstraint(**{field.name: getattr(constraint, field.name) for field in fields(Constraint)})


def _spread_of(constraints: tuple[Constraint, ...], pod_class: PodClass, nodes: Nodes) -> Spread:
    every = Nodes(nodes.snapshot)
    complete = with_all_keys(constraints, every)
    counted = [(c, c.counts(nodes.snapshot), complete & c.matching(every, pod_class)) for c in constraints]
    parts = (Part(Domains.adding(nodes.snapshot, c.key, counts, among), None, 1.0, 0) for c, counts, among in counted)
    return Spread(tuple(parts), ~complete)


def _build(args: Any) -> PodTopologySpread:
    return PodTopologySpread(args or SpreadArgs())


FACTORY: Final = replace(podtopologyspread.FACTORY, build=_build, args_type=SpreadArgs, validate=validate)
