"""Topology spread constraints, compiled for a pod, and the nodes that count for each."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np

from berth.api.pod import Pod, TopologySpreadConstraint
from berth.api.podterms import PodSelector
from berth.api.selectors import NOTHING, Labels, Requirement, compile_label_selector
from berth.api.taints import first_untolerated
from berth.cluster.nodeinfo import NodeInfo
from berth.cluster.nodes import Mask, Nodes
from berth.cluster.podclass import PodClass
from berth.cluster.snapshot import Snapshot
from berth.cluster.tallies import PodKind
from berth.cluster.tally import Counts
from berth.plugins.matching import required_mask, untolerated_mask

DO_NOT_SCHEDULE: Final = "DoNotSchedule"
SCHEDULE_ANYWAY: Final = "ScheduleAnyway"
HOSTNAME: Final = "kubernetes.io/hostname"
ZONE: Final = "topology.kubernetes.io/zone"
_HONOR: Final = "Honor"
_IGNORE: Final = "Ignore"


@dataclass(frozen=True, slots=True, kw_only=True)
class Constraint:
    """Pods of the selector are to lie evenly over the values of a node label.

    ``by_affinity``, ``by_taints``: whether nodes count that the pod's affinity or a taint rules out anyway (they do
    not, when true).
    """

    key: str
    max_skew: int
    pods: PodKind
    labels: Labels
    min_domains: int
    by_affinity: bool
    by_taints: bool

    def counts(self, snapshot: Snapshot) -> Counts:
        """int32[capacity]: the pods on each row. An empty selector counts nobody, as in kube-scheduler."""
        if not self.labels.requirements:
            return np.zeros(snapshot.columns.capacity, dtype=np.int32)
        return snapshot.groups.tally(self.pods).counts

    def counts_pod(self, pod: Pod) -> bool:
        """Whether a pod is one of those that are counted."""
        return bool(self.labels.requirements) and pod.metadata.deletion_timestamp is None and self.means(pod)

    def means(self, pod: Pod) -> bool:
        """Whether the selector means a pod; an empty one means every pod of the namespace."""
        (selector,) = self.pods.selectors
        return pod.metadata.namespace in selector.namespaces and self.labels.matches(pod.metadata.labels or {})

    def matching(self, nodes: Nodes, pod_class: PodClass) -> Mask:
        """Which nodes count."""
        mask: Mask = nodes.exists.copy()
        if self.by_affinity:
            mask &= required_mask(pod_class, nodes)
        if self.by_taints:
            mask &= ~untolerated_mask(pod_class.tolerations, nodes)
        return mask

    def matches(self, node: NodeInfo, pod_class: PodClass) -> bool:
        """The same for one node."""
        if self.by_affinity and not pod_class.allows(node.name, node.labels):
            return False
        return not (self.by_taints and first_untolerated(node.taints, pod_class.tolerations))


def compile_constraints(
    given: Iterable[TopologySpreadConstraint], pod: Pod, action: str, *, selector: Labels | None = None
) -> tuple[Constraint, ...]:
    """Those of one action; ``selector`` takes the place of their own."""
    return tuple(
        _compiled(constraint, pod, selector or _labels_of(constraint, pod))
        for constraint in given
        if constraint.when_unsatisfiable == action
    )


def with_all_keys(constraints: Iterable[Constraint], nodes: Nodes) -> Mask:
    """Which nodes have a value for every constraint."""
    mask: Mask = np.ones(len(nodes), dtype=np.bool_)
    for constraint in constraints:
        mask &= nodes.label(constraint.key)[0] >= 0
    return mask


def _compiled(constraint: TopologySpreadConstraint, pod: Pod, labels: Labels) -> Constraint:
    here = PodSelector(frozenset((pod.metadata.namespace,)), NOTHING, labels)
    return Constraint(
        key=constraint.topology_key,
        max_skew=constraint.max_skew,
        pods=PodKind((here,), living=True),
        labels=labels,
        min_domains=constraint.min_domains or 1,
        by_affinity=(constraint.node_affinity_policy or _HONOR) == _HONOR,
        by_taints=(constraint.node_taints_policy or _IGNORE) == _HONOR,
    )


def _labels_of(constraint: TopologySpreadConstraint, pod: Pod) -> Labels:
    """The selector, and of the labels that matchLabelKeys names those that the pod has, with the pod's values."""
    selector, own = compile_label_selector(constraint.label_selector), pod.metadata.labels or {}
    keys = [key for key in constraint.match_label_keys or () if key in own]
    same = [Requirement(key, "In", frozenset((own[key],))) for key in keys]
    return Labels((*same, *(r for r in selector.requirements if r not in same))) if same else selector
