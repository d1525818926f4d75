"""What PodTopologySpread's filter knows in one cycle: how many pods each domain has, and which has the fewest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Self

import numpy as np

from berth.api.pod import Pod
from berth.cluster.nodeinfo import NodeInfo
from berth.cluster.nodes import Mask, Nodes
from berth.cluster.nodeswithout import Gone
from berth.cluster.podclass import PodClass
from berth.cluster.snapshot import Snapshot
from berth.plugins.domains import Domains, Numbers
from berth.plugins.spreadconstraints import Constraint, with_all_keys

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

    pod_class: PodClass
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


def skews_of(constraints: Sequence[Constraint], pod: Pod, pod_class: PodClass, snapshot: Snapshot) -> Skews:
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
