"""Topology spread constraints, compiled for a pod, and the nodes that count for each.

Which pods are a pod's like, for default constraints: the selectors of its services and its controller together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from berth.api.meta import OwnerReference
from berth.api.node import first_untolerated
from berth.api.pod import Pod, TopologySpreadConstraint
from berth.api.selectors import MATCHES_NOTHING, LabelMatcher, PodSelector, Requirement, compile_label_selector
from berth.api.workloads import ReplicaSet, ReplicationController, Service, StatefulSet
from berth.cluster.equivalence import EquivalenceClass
from berth.cluster.nodes import Mask, NodeInfo, Nodes
from berth.cluster.snapshot import Snapshot
from berth.cluster.topologycounts import Counts, LabelItems, PodKind, label_items
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
    labels: LabelMatcher
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

    def matching(self, nodes: Nodes, pod_class: EquivalenceClass) -> Mask:
        """Which nodes count."""
        mask: Mask = nodes.exists.copy()
        if self.by_affinity:
            mask &= required_mask(pod_class, nodes)
        if self.by_taints:
            mask &= ~untolerated_mask(pod_class.tolerations, nodes)
        return mask

    def matches(self, node: NodeInfo, pod_class: EquivalenceClass) -> bool:
        """The same for one node."""
        if self.by_affinity and not pod_class.allows(node.name, node.labels):
            return False
        return not (self.by_taints and first_untolerated(node.taints, pod_class.tolerations))


def compile_constraints(
    given: Iterable[TopologySpreadConstraint], pod: Pod, action: str, *, selector: LabelMatcher | None = None
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


def _compiled(constraint: TopologySpreadConstraint, pod: Pod, labels: LabelMatcher) -> Constraint:
    here = PodSelector(frozenset((pod.metadata.namespace,)), MATCHES_NOTHING, labels)
    return Constraint(
        key=constraint.topology_key,
        max_skew=constraint.max_skew,
        pods=PodKind((here,), living=True),
        labels=labels,
        min_domains=constraint.min_domains or 1,
        by_affinity=(constraint.node_affinity_policy or _HONOR) == _HONOR,
        by_taints=(constraint.node_taints_policy or _IGNORE) == _HONOR,
    )


def _labels_of(constraint: TopologySpreadConstraint, pod: Pod) -> LabelMatcher:
    """The selector, and of the labels that matchLabelKeys names those that the pod has, with the pod's values."""
    selector, own = compile_label_selector(constraint.label_selector), pod.metadata.labels or {}
    keys = [key for key in constraint.match_label_keys or () if key in own]
    same = [Requirement(key, "In", frozenset((own[key],))) for key in keys]
    return LabelMatcher((*same, *(r for r in selector.requirements if r not in same))) if same else selector


KINDS: Final = (Service, ReplicationController, ReplicaSet, StatefulSet)

_MAX_REMEMBERED: Final = 4096

_Key = tuple[str, LabelItems, OwnerReference | None]


class DefaultSelectors:
    """The selectors on one Snapshot, remembered until one of the objects that they come from changes."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._remembered: dict[_Key, LabelMatcher | None] = {}
        self._seen = -1

    def of(self, pod: Pod) -> LabelMatcher | None:
        """The selector; None when nothing is known that selects pods like this one."""
        version = sum(self._snapshot.objects(kind).version for kind in KINDS)
        if version != self._seen or len(self._remembered) > _MAX_REMEMBERED:
            self._remembered.clear()
            self._seen = version
        owner = next((owner for owner in pod.metadata.owner_references or () if owner.controller), None)
        if owner is None and not self._snapshot.objects(Service).in_namespace(pod.metadata.namespace):
            return None
        key = (pod.metadata.namespace, label_items(pod.metadata.labels), owner)
        if key not in self._remembered:
            self._remembered[key] = self._found(pod.metadata.namespace, pod.metadata.labels or {}, owner)
        return self._remembered[key]

    def _found(self, namespace: str, labels: Mapping[str, str], owner: OwnerReference | None) -> LabelMatcher | None:
        equalities: dict[str, str] = {}
        for service in self._snapshot.objects(Service).in_namespace(namespace):
            wanted = service.spec.selector or {}
            if wanted.items() <= labels.items():
                equalities.update(wanted)
        if owner is not None and (owner.api_version, owner.kind) == ("v1", "ReplicationController"):
            controller = self._snapshot.objects(ReplicationController).named(owner.name, namespace)
            equalities.update((controller.spec.selector or {}) if controller else {})
        own = [Requirement(key, "In", frozenset((value,))) for key, value in equalities.items()]
        requirements = (*own, *self._of_set(namespace, owner))
        return LabelMatcher(tuple(dict.fromkeys(requirements))) if requirements else None

    def _of_set(self, namespace: str, owner: OwnerReference | None) -> tuple[Requirement, ...]:
        if owner is None or owner.api_version != "apps/v1":
            return ()
        found: ReplicaSet | StatefulSet | None = None
        if owner.kind == "ReplicaSet":
            found = self._snapshot.objects(ReplicaSet).named(owner.name, namespace)
        elif owner.kind == "StatefulSet":
            found = self._snapshot.objects(StatefulSet).named(owner.name, namespace)
        return compile_label_selector(found.spec.selector).requirements if found else ()
