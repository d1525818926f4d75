"""Topology spread constraints of a pod: compiled, with the nodes and pods that count for each.

Default constraints get their selector from the pod's services and controller.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

import numpy as np

from berth.api.meta import LabelSelector, OwnerReference
from berth.api.node import Node, first_untolerated
from berth.api.pod import Pod, TopologySpreadConstraint
from berth.api.selectors import MATCHES_NOTHING, LabelMatcher, PodSelector, Requirement, compile_label_selector
from berth.api.workloads import ReplicaSet, ReplicationController, Service, StatefulSet
from berth.cluster.nodes import Mask, Nodes
from berth.cluster.pods import EquivalenceClass
from berth.cluster.snapshot import Snapshot
from berth.cluster.topologycounts import Counts, LabelItems, PodsMatching, label_items
from berth.plugins.matching import EligibleNodes

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

DO_NOT_SCHEDULE: Final = "DoNotSchedule"
SCHEDULE_ANYWAY: Final = "ScheduleAnyway"
HOSTNAME: Final = "kubernetes.io/hostname"
ZONE: Final = "topology.kubernetes.io/zone"
_HONOR: Final = "Honor"
_IGNORE: Final = "Ignore"


@dataclass(frozen=True, slots=True, kw_only=True)
class Constraint:
    """Pods that match the selector are to be spread evenly over the domains of a topology key.

    ``honors_affinity``, ``honors_taints``: nodes excluded by the pod's node affinity, or by an untolerated taint, do
    not count (nodeAffinityPolicy and nodeTaintsPolicy ``Honor``).
    """

    key: str
    max_skew: int
    pods: PodsMatching
    labels: LabelMatcher
    min_domains: int
    honors_affinity: bool
    honors_taints: bool

    def counts(self, snapshot: Snapshot) -> Counts:
        """int32[capacity]: the matching pods on each row."""
        return snapshot.groups.count_pods(self.pods).counts

    def counts_pod(self, pod: Pod) -> bool:
        """A counted pod matches and is not being deleted."""
        return pod.metadata.deletion_timestamp is None and self.selects(pod)

    def selects(self, pod: Pod) -> bool:
        (selector,) = self.pods.selectors
        return pod.metadata.namespace in selector.namespaces and self.labels.matches(pod.metadata.labels or {})

    def eligible_mask(self, snapshot: Snapshot, pod_class: EquivalenceClass) -> Mask:
        """bool[rows]: nodes that count."""
        mask: Mask = snapshot.columns.exists[: snapshot.size].copy()
        eligible = EligibleNodes.of(snapshot)
        if self.honors_affinity:
            mask &= eligible.allowed(pod_class)
        if self.honors_taints:
            mask &= eligible.tolerated(pod_class)
        return mask

    def is_eligible(self, node: Node, pod_class: EquivalenceClass) -> bool:
        if self.honors_affinity and not pod_class.allows(node.metadata.name, node.metadata.labels or {}):
            return False
        return not (self.honors_taints and first_untolerated(node.spec.taints or (), pod_class.tolerations))


def compile_constraints(
    constraints: Iterable[TopologySpreadConstraint], pod: Pod, action: str, *, selector: LabelMatcher | None = None
) -> tuple[Constraint, ...]:
    """The constraints with this ``whenUnsatisfiable``; ``selector`` replaces their own."""
    return tuple(
        _compiled(constraint, pod, selector or _labels_of(constraint, pod))
        for constraint in constraints
        if constraint.when_unsatisfiable == action
    )


def _compiled(constraint: TopologySpreadConstraint, pod: Pod, labels: LabelMatcher) -> Constraint:
    here = PodSelector(frozenset((pod.metadata.namespace,)), MATCHES_NOTHING, labels)
    return Constraint(
        key=constraint.topology_key,
        max_skew=constraint.max_skew,
        pods=PodsMatching((here,), living=True),
        labels=labels,
        min_domains=constraint.min_domains or 1,
        honors_affinity=(constraint.node_affinity_policy or _HONOR) == _HONOR,
        honors_taints=(constraint.node_taints_policy or _IGNORE) == _HONOR,
    )


def _labels_of(constraint: TopologySpreadConstraint, pod: Pod) -> LabelMatcher:
    """The selector, with the pod's own value for each of matchLabelKeys that it has."""
    selector, own = compile_label_selector(constraint.label_selector), pod.metadata.labels or {}
    keys = [key for key in constraint.match_label_keys or () if key in own]
    same = [Requirement(key, "In", frozenset((own[key],))) for key in keys]
    return LabelMatcher((*same, *(r for r in selector.requirements if r not in same))) if same else selector


def has_all_keys(constraints: Iterable[Constraint], nodes: Nodes) -> Mask:
    mask: Mask = np.ones(len(nodes), dtype=np.bool_)
    for constraint in constraints:
        mask &= nodes.label(constraint.key)[0] >= 0
    return mask


_MAX_CACHED: Final = 4096


class SelectorCache(Generic[K, V]):
    """Values derived from the selectors of a Snapshot's services and controllers; dropped when one changes."""

    KINDS: Final = (Service, ReplicationController, ReplicaSet, StatefulSet)

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._found: dict[K, V] = {}
        self._version = -1

    def get(self, key: K, make: Callable[[], V]) -> V:
        version = sum(self._snapshot.objects(kind).version for kind in self.KINDS)
        if version != self._version or len(self._found) > _MAX_CACHED:
            self._found.clear()
            self._version = version
        if key not in self._found:
            self._found[key] = make()
        return self._found[key]


class DefaultConstraints:
    """Default constraints in one Snapshot, with the common selectors of a pod's services and controller."""

    def __init__(self, snapshot: Snapshot, defaults: Sequence[TopologySpreadConstraint]) -> None:
        self._snapshot = snapshot
        self._defaults = defaults
        self._cache = SelectorCache[tuple[str, str, LabelItems, OwnerReference | None], tuple[Constraint, ...]](
            snapshot
        )

    def of(self, pod: Pod, action: str) -> tuple[Constraint, ...]:
        """The constraints with this ``whenUnsatisfiable``; empty if no service or controller selects the pod."""
        owner = next((owner for owner in pod.metadata.owner_references or () if owner.controller), None)
        if owner is None and not self._snapshot.objects(Service).in_namespace(pod.metadata.namespace):
            return ()
        namespace, labels = pod.metadata.namespace, pod.metadata.labels or {}

        def compiled() -> tuple[Constraint, ...]:
            selector = self._selector(namespace, labels, owner)
            return () if selector is None else compile_constraints(self._defaults, pod, action, selector=selector)

        return self._cache.get((action, namespace, label_items(labels), owner), compiled)

    def _selector(self, namespace: str, labels: Mapping[str, str], owner: OwnerReference | None) -> LabelMatcher | None:
        equalities: dict[str, str] = {}
        for service in self._snapshot.objects(Service).in_namespace(namespace):
            wanted = service.spec.selector or {}
            if wanted.items() <= labels.items():
                equalities.update(wanted)
        if owner is not None and (owner.api_version, owner.kind) == ("v1", "ReplicationController"):
            controller = self._snapshot.objects(ReplicationController).named(owner.name, namespace)
            equalities.update((controller.spec.selector or {}) if controller else {})
        own = [Requirement(key, "In", frozenset((value,))) for key, value in equalities.items()]
        requirements = (*own, *self._of_controller(namespace, owner))
        return LabelMatcher(tuple(dict.fromkeys(requirements))) if requirements else None

    def _of_controller(self, namespace: str, owner: OwnerReference | None) -> tuple[Requirement, ...]:
        if owner is None or owner.api_version != "apps/v1":
            return ()
        found: ReplicaSet | StatefulSet | None = None
        if owner.kind == "ReplicaSet":
            found = self._snapshot.objects(ReplicaSet).named(owner.name, namespace)
        elif owner.kind == "StatefulSet":
            found = self._snapshot.objects(StatefulSet).named(owner.name, namespace)
        # Neither an absent nor an empty selector adds a requirement, as in kube-scheduler; no API server stores one.
        return compile_label_selector(found.spec.selector or LabelSelector()).requirements if found else ()
