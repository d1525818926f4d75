"""Pod counts by topology domain for PodTopologySpread: for Filter, and weighted for Score.

Raw score: the sum of ``pods * ln(domains + 2) + maxSkew - 1`` over the constraints with a topology key that the node
has, rounded half up. Only feasible nodes' domains count; for host names their number is the number of feasible nodes.
Pods are counted on all nodes that are eligible for the constraint; for host names only on the node itself.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Self

import numpy as np

from berth.api.pod import Pod
from berth.cluster.nodes import Mask, NodeInfo, Nodes, RemovedPods
from berth.cluster.pods import EquivalenceClass
from berth.cluster.snapshot import Snapshot
from berth.framework.interface import MAX_SCORE, Scores
from berth.plugins.domains import DomainSums, Numbers
from berth.plugins.podtopologyspread.constraints import HOSTNAME, Constraint, has_all_keys

# The minimum if no node is eligible: no domain exceeds the skew then.
_NO_DOMAIN: Final = float(2**31 - 1)


@dataclass(slots=True)
class ConstraintCounts:
    """The matching pods by domain for one constraint.

    ``is_domain``: bool by code + 1, the values of eligible nodes. ``self_match``: 1 if the selector matches the
    incoming pod.
    """

    constraint: Constraint
    domains: DomainSums
    is_domain: Mask
    self_match: int

    @property
    def max_count(self) -> float:
        """The most matching pods that a domain may have when the pod is added to it."""
        return self._min_count() + self.constraint.max_skew - self.self_match

    def removed(self, removed: RemovedPods, snapshot: Snapshot) -> Numbers:
        """float64[nodes]: the number of counted pods that are removed from each node."""
        return removed.count(lambda group: self.constraint.pods.times(group, snapshot.labels_of_namespace))

    def _min_count(self) -> float:
        """The fewest matching pods of any domain; 0 with fewer domains than minDomains."""
        if int(np.count_nonzero(self.is_domain)) < self.constraint.min_domains:
            return 0.0
        return float(self.domains.numbers.min(where=self.is_domain, initial=_NO_DOMAIN))


@dataclass(slots=True)
class SpreadCounts:
    pod_class: EquivalenceClass
    constraints: list[ConstraintCounts]

    def clone(self) -> Self:
        return type(self)(
            self.pod_class,
            [ConstraintCounts(s.constraint, s.domains.clone(), s.is_domain, s.self_match) for s in self.constraints],
        )

    def update(self, other: Pod, node: NodeInfo, by: int) -> None:
        """Add (``by`` 1) or remove (-1) another pod on a node."""
        if not all(counts.domains.has(node.row) for counts in self.constraints):
            return
        for counts in self.constraints:
            if counts.constraint.counts_pod(other) and counts.constraint.is_eligible(node.node, self.pod_class):
                counts.domains.add(node.row, by)


def count_matches(
    constraints: Sequence[Constraint], pod: Pod, pod_class: EquivalenceClass, snapshot: Snapshot
) -> SpreadCounts:
    """The counts of Filter, computed once in PreFilter. Nodes without all topology keys do not count."""
    nodes = Nodes(snapshot)
    complete = has_all_keys(constraints, nodes)
    return SpreadCounts(
        pod_class,
        [_count_constraint(c, complete & c.eligible_mask(snapshot, pod_class), pod, snapshot) for c in constraints],
    )


def _count_constraint(constraint: Constraint, among: Mask, pod: Pod, snapshot: Snapshot) -> ConstraintCounts:
    domains = DomainSums.of_column(snapshot, constraint.key, constraint.counts(snapshot), among)
    codes = domains.codes if among.all() else domains.codes[among]
    is_domain: Mask = np.bincount(codes + 1, minlength=len(domains.numbers)) > 0
    return ConstraintCounts(constraint, domains, is_domain, int(constraint.selects(pod)))


@dataclass(frozen=True, slots=True)
class ConstraintScore:
    """The raw score of one constraint: pods by domain (by row for host names), times a weight, plus a constant.

    ``self_match``: 1 if the incoming pod will be counted once it is placed.
    """

    domains: DomainSums
    pods: Numbers | None
    weight: float
    added: int
    self_match: int

    def at(self, row: int) -> float:
        """The row's raw score; 0 without the topology key."""
        if not self.domains.has(row):
            return 0.0
        pods = self.domains.at(row) if self.pods is None else float(self.pods[row])
        return pods * self.weight + self.added

    def of_nodes(self, nodes: Nodes, others: int = 0) -> Numbers:
        """float64[nodes] of :meth:`at`; ``others``: as if this many equal pods were added to each node."""
        pods = self.domains.of_nodes(nodes) if self.pods is None else nodes.take(self.pods)
        scores = (pods + others * self.self_match if others else pods) * self.weight
        scores += self.added
        scores *= self.domains.present(nodes)
        return scores


@dataclass(frozen=True, slots=True)
class SpreadScores:
    """The raw scores of all constraints. ``ignored``: bool[rows], nodes without a required topology key: they get 0."""

    constraints: tuple[ConstraintScore, ...]
    ignored: Mask

    def raw(self, row: int) -> int:
        return 0 if self.ignored[row] else math.floor(sum(score.at(row) for score in self.constraints) + 0.5)

    def all_raw(self, nodes: Nodes, others: int = 0) -> Scores:
        """int64[nodes] of :meth:`raw`; ``others``: as if this many equal pods were added to each node."""
        total = np.zeros(len(nodes))
        for score in self.constraints:
            total += score.of_nodes(nodes, others)
        rounded: Scores = np.floor(total + 0.5).astype(np.int64)
        rounded[nodes.take(self.ignored)] = 0
        return rounded

    def normalized(self, scores: Scores, nodes: Nodes) -> Scores:
        """``100 * (most + least - raw) / most``: fewer pods are better."""
        ignored = nodes.take(self.ignored)
        counted = scores[~ignored] if ignored.any() else scores
        most, least = int(counted.max(initial=0)), int(counted.min(initial=2**62))
        if most == 0:
            return np.where(ignored, 0, MAX_SCORE)
        return np.where(ignored, 0, MAX_SCORE * (most + least - scores) // most)


def spread_scores(
    constraints: Sequence[Constraint], pod: Pod, pod_class: EquivalenceClass, nodes: Nodes, *, all_keys: bool
) -> SpreadScores:
    """The inputs of Score for the feasible ``nodes``, computed once in PreScore.

    ``all_keys``: nodes without all topology keys are ignored, and their pods do not count.
    """
    every = Nodes(nodes.snapshot)
    complete = has_all_keys(constraints, every) if all_keys else np.ones(len(every), dtype=np.bool_)
    scored = np.zeros(len(every), dtype=np.bool_)
    scored[nodes.rows] = True
    scored &= complete
    parts = tuple(
        _constraint_score(
            c, complete & c.eligible_mask(nodes.snapshot, pod_class), scored, every, self_match=int(c.counts_pod(pod))
        )
        for c in constraints
    )
    return SpreadScores(parts, ~complete)


def _constraint_score(
    constraint: Constraint, among: Mask, scored: Mask, every: Nodes, self_match: int
) -> ConstraintScore:
    counts = constraint.counts(every.snapshot)
    if constraint.key == HOSTNAME:
        domains, pods = DomainSums.without_numbers(every.snapshot, HOSTNAME), counts.astype(np.float64)
        size = int(np.count_nonzero(scored))
    else:
        domains, pods = DomainSums.of_column(every.snapshot, constraint.key, counts, among), None
        codes = domains.codes if scored.all() else domains.codes[scored]
        size = int(np.count_nonzero(np.bincount(codes + 1)))
    return ConstraintScore(domains, pods, math.log(size + 2), constraint.max_skew - 1, self_match)
