"""What PodTopologySpread's filter knows in one cycle: how many pods each domain has, and which has the fewest.

What PodTopologySpread's score adds up: for each constraint the pods of a node's domain, in fewer domains for less.

Raw: the sum of ``pods * ln(domains + 2) + maxSkew - 1`` over the constraints of which the node has the label, rounded
half up. The domains are those of the feasible nodes; of the host names there are as many as such nodes. Pods are
counted on all nodes that count for the constraint, by host name on the node itself.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Self

import numpy as np

from berth.api.pod import Pod
from berth.cluster.equivalence import EquivalenceClass
from berth.cluster.nodes import Gone, Mask, NodeInfo, Nodes
from berth.cluster.snapshot import Snapshot
from berth.framework.interface import MAX_SCORE, Scores
from berth.plugins.domains import Domains, Numbers
from berth.plugins.podtopologyspread.constraints import HOSTNAME, Constraint, with_all_keys

_NO_DOMAIN: Final = float(2**31 - 1)
"""What counts as the fewest when no node counts at all: then no node is too full."""


@dataclass(slots=True)
class Skew:
    """One constraint. ``there``: bool by code + 1, which values are domains; ``itself``: 1 if it means the pod too."""

    constraint: Constraint
    domains: Domains
    there: Mask
    itself: int

    @property
    def most(self) -> float:
        """How many pods a domain may have for one more to be added."""
        return self._fewest() + self.constraint.max_skew - self.itself

    def gone(self, gone: Gone, snapshot: Snapshot) -> Numbers:
        """How many pods that count are supposed to be gone from each node."""
        return gone.count(lambda group: self.constraint.pods.times(group, snapshot.labels_of_namespace))

    def _fewest(self) -> float:
        """The number of the emptiest domain; 0 when there are fewer domains than there are to be."""
        if int(np.count_nonzero(self.there)) < self.constraint.min_domains:
            return 0.0
        return float(self.domains.numbers.min(where=self.there, initial=_NO_DOMAIN))


@dataclass(slots=True)
class Skews:
    """All constraints of a pod."""

    pod_class: EquivalenceClass
    every: list[Skew]

    def clone(self) -> Self:
        """A copy that may be changed."""
        return type(self)(
            self.pod_class, [Skew(s.constraint, s.domains.clone(), s.there, s.itself) for s in self.every]
        )

    def change(self, other: Pod, node: NodeInfo, by: int) -> None:
        """Another pod is supposed to come to a node, or to leave it."""
        if not all(skew.domains.has(node.row) for skew in self.every):
            return
        for skew in self.every:
            if skew.constraint.counts_pod(other) and skew.constraint.matches(node, self.pod_class):
                skew.domains.add(node.row, by)


def skews_of(constraints: Sequence[Constraint], pod: Pod, pod_class: EquivalenceClass, snapshot: Snapshot) -> Skews:
    """What there is to know before any node is looked at. Nodes without one of the labels count for no constraint."""
    nodes = Nodes(snapshot)
    complete = with_all_keys(constraints, nodes)
    return Skews(
        pod_class,
        [_skew(c, complete & c.matching(nodes, pod_class), pod, snapshot) for c in constraints],
    )


def _skew(constraint: Constraint, among: Mask, pod: Pod, snapshot: Snapshot) -> Skew:
    domains = Domains.adding(snapshot, constraint.key, constraint.counts(snapshot), among)
    there: Mask = np.bincount(domains.codes[among] + 1, minlength=len(domains.numbers)) > 0
    return Skew(constraint, domains, there, int(constraint.means(pod)))


@dataclass(frozen=True, slots=True)
class Part:
    """One constraint: pods by domain (by row for host names), what each weighs, and what is added."""

    domains: Domains
    pods: Numbers | None
    weight: float
    added: int

    def at(self, row: int) -> float:
        """What the row has of it; nothing without the label."""
        if not self.domains.has(row):
            return 0.0
        pods = self.domains.at(row) if self.pods is None else float(self.pods[row])
        return pods * self.weight + self.added

    def on(self, nodes: Nodes) -> Numbers:
        """The same for many nodes."""
        pods = self.domains.on(nodes) if self.pods is None else nodes.take(self.pods)
        return np.where(self.domains.present(nodes), pods * self.weight + self.added, 0.0)


@dataclass(frozen=True, slots=True)
class Spread:
    """All constraints. ``ignored``: bool[rows], nodes that lack a label which they have to have: they get 0."""

    parts: tuple[Part, ...]
    ignored: Mask

    def raw(self, row: int) -> int:
        """One node."""
        return 0 if self.ignored[row] else math.floor(sum(part.at(row) for part in self.parts) + 0.5)

    def all_raw(self, nodes: Nodes) -> Scores:
        """Many nodes."""
        total = np.zeros(len(nodes), dtype=np.float64)
        for part in self.parts:
            total += part.on(nodes)
        return np.where(nodes.take(self.ignored), 0, np.floor(total + 0.5)).astype(np.int64)

    def normalized(self, scores: Scores, nodes: Nodes) -> Scores:
        """``100 * (most + least - raw) / most``: the fewest pods first."""
        ignored = nodes.take(self.ignored)
        counted = scores[~ignored]
        most, least = int(counted.max(initial=0)), int(counted.min(initial=2**62))
        if most == 0:
            return np.where(ignored, 0, MAX_SCORE)
        return np.where(ignored, 0, MAX_SCORE * (most + least - scores) // most)


def spread_of(
    constraints: Sequence[Constraint], pod_class: EquivalenceClass, nodes: Nodes, *, all_keys: bool
) -> Spread:
    """What there is to know before the feasible ``nodes`` are scored.

    ``all_keys``: nodes that lack one of the labels are ignored, and do not count either.
    """
    every = Nodes(nodes.snapshot)
    complete = with_all_keys(constraints, every) if all_keys else np.ones(len(every), dtype=np.bool_)
    scored = np.zeros(len(every), dtype=np.bool_)
    scored[nodes.rows] = True
    scored &= complete
    parts = tuple(_part(c, complete & c.matching(every, pod_class), scored, every) for c in constraints)
    return Spread(parts, ~complete)


def _part(constraint: Constraint, among: Mask, scored: Mask, every: Nodes) -> Part:
    counts = constraint.counts(every.snapshot)
    domains = Domains.adding(every.snapshot, constraint.key, counts, among)
    by_host = constraint.key == HOSTNAME
    codes = domains.codes[scored]
    size = len(codes) if by_host else int(np.count_nonzero(np.bincount(codes + 1)))
    pods = counts.astype(np.float64) if by_host else None
    return Part(domains, pods, math.log(size + 2), constraint.max_skew - 1)
