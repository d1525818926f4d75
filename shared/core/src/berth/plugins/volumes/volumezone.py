"""VolumeZone: the zone and region labels of bound volumes must match the node's.

Nodes without any zone or region label pass. As kube-scheduler's plugin of that name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar, Final

import numpy as np

from berth.api.config.types import Point
from berth.api.pod import Pod
from berth.api.selectors import NodeTerm, Requirement, in_words
from berth.api.volumes import WAIT_FOR_FIRST_CONSUMER, PersistentVolume, PersistentVolumeClaim, StorageClass
from berth.cluster.nodes import NodeInfo, Nodes, RejectedNodes
from berth.cluster.pods import Trait
from berth.cluster.snapshot import Snapshot
from berth.framework.events import Action, ClusterEvent, EventHint, Resource, nothing
from berth.framework.interface import (
    PRE_FILTER_SKIPPED,
    EnqueueExtensions,
    PreFilterPlugin,
    PreFilterResult,
    RemedyPlugin,
    RemedySentence,
    VectorFilterPlugin,
)
from berth.framework.status import SKIP, SUCCESS, CycleState, Mask, StateKey, Status, Verdicts
from berth.plugins.factory import PluginFactory, no_args
from berth.plugins.matching import term_mask
from berth.plugins.volumes.claims import (
    ClaimUse,
    claim_index,
    claim_not_found,
    has_claims,
    named_claims,
    not_found,
    uses_claim,
)

NAME: Final = "VolumeZone"
ZONE_CONFLICT: Final = Status.unresolvable("node(s) had no available volume zone")
PVTopologies = tuple[Requirement, ...]  # ``label In values`` per zone or region label of a volume
PV_TOPOLOGIES: Final = StateKey[PVTopologies | Status]("VolumeZone.topologies")
_BETA: Final = {
    "failure-domain.beta.kubernetes.io/zone": "topology.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region": "topology.kubernetes.io/region",
}
# Beta names first; the current name applies to nodes without the beta name.
TOPOLOGY_LABELS: Final = (*_BETA, *_BETA.values())
_HAS_TOPOLOGY: Final = tuple(NodeTerm((Requirement(label, "Exists"),)) for label in TOPOLOGY_LABELS)
_SEPARATOR: Final = "__"  # between the zones of one volume


class VolumeZone(PreFilterPlugin, VectorFilterPlugin, RemedyPlugin, EnqueueExtensions):
    """Filters by the labels of bound volumes."""

    name: ClassVar[str] = NAME
    only_for = Trait.VOLUMES

    def pre_filter(self, state: CycleState, pod: Pod, snapshot: Snapshot) -> PreFilterResult:
        if not has_claims(pod):
            return PRE_FILTER_SKIPPED
        topologies = self._topologies(state, pod, snapshot)
        if isinstance(topologies, Status):
            return PreFilterResult(topologies)
        return PreFilterResult(SUCCESS if topologies else SKIP)

    def filter(self, state: CycleState, pod: Pod, node: NodeInfo) -> Status:
        labels, topologies = node.labels, self._topologies(state, pod, node.snapshot)
        if isinstance(topologies, Status):
            return topologies
        if not any(label in labels for label in TOPOLOGY_LABELS):
            return SUCCESS
        return SUCCESS if all(_matches(requirement, labels) for requirement in topologies) else ZONE_CONFLICT

    def filter_all(self, state: CycleState, pod: Pod, nodes: Nodes) -> Verdicts:
        topologies = self._topologies(state, pod, nodes.snapshot)
        if isinstance(topologies, Status):
            return Verdicts.refusing(np.ones(len(nodes), dtype=np.bool_), topologies)
        if not topologies:
            return Verdicts.all_fit(len(nodes))
        has_topology = np.any([term_mask(term, nodes) for term in _HAS_TOPOLOGY], axis=0)
        matches = np.all([_matches_mask(requirement, nodes) for requirement in topologies], axis=0)
        return Verdicts.refusing(has_topology & ~matches, ZONE_CONFLICT)

    def remedy(self, state: CycleState, pod: Pod, nodes: RejectedNodes) -> Iterable[RemedySentence]:
        topologies = self._topologies(state, pod, nodes.snapshot)
        if topologies and not isinstance(topologies, Status):
            before = f"its volumes are in {in_words(topologies)}, and"
            yield RemedySentence(about=topologies[0].key, before=before, after="are not")

    def events(self) -> Sequence[EventHint]:
        changed = Action.ADD | Action.UPDATE
        return (
            EventHint(ClusterEvent(Resource.STORAGE_CLASS, changed), _delays_binding_now, nothing),
            EventHint(ClusterEvent(Resource.NODE, Action.ADD | Action.UPDATE_NODE_LABEL)),
            EventHint(ClusterEvent(Resource.PERSISTENT_VOLUME_CLAIM, changed), _is_its_claim, index=claim_index),
            EventHint(ClusterEvent(Resource.PERSISTENT_VOLUME, changed), _topology_changed, nothing),
        )

    def _topologies(self, state: CycleState, pod: Pod, snapshot: Snapshot) -> PVTopologies | Status:
        """Computed once a cycle; by Filter if the profile lacks this plugin's PreFilter."""
        topologies = state.find(PV_TOPOLOGIES)
        if topologies is None:
            topologies = _topologies_of_pod(pod, snapshot)
            state.write(PV_TOPOLOGIES, topologies)
        return topologies


def topologies_of(volume: PersistentVolume) -> PVTopologies:
    """The requirements of a volume's labels; a label with an empty value among its zones is ignored."""
    labels = volume.metadata.labels or {}
    named = {label: _values(labels[label]) for label in TOPOLOGY_LABELS if label in labels}
    return tuple(Requirement(label, "In", values) for label, values in named.items() if "" not in values)


def _values(text: str) -> frozenset[str]:
    return frozenset(name.strip() for name in text.split(_SEPARATOR))


def _topologies_of_pod(pod: Pod, snapshot: Snapshot) -> PVTopologies | Status:
    topologies: list[Requirement] = []
    for name in named_claims(pod):
        found = _topologies_of_claim(ClaimUse(name).find(pod, snapshot), name, snapshot)
        if isinstance(found, Status):
            return found
        topologies.extend(found)
    return tuple(topologies)


def _topologies_of_claim(claim: PersistentVolumeClaim | None, name: str, snapshot: Snapshot) -> PVTopologies | Status:
    if claim is None:
        return Status.unresolvable(claim_not_found(name))
    if not claim.spec.volume_name:
        return _of_unbound(claim, snapshot)
    volume = snapshot.objects(PersistentVolume).named(claim.spec.volume_name)
    if volume is None:
        return Status.unresolvable(not_found("persistentvolume", claim.spec.volume_name))
    return topologies_of(volume)


def _of_unbound(claim: PersistentVolumeClaim, snapshot: Snapshot) -> PVTopologies | Status:
    """No requirements for a claim that waits for its first consumer; any other claim must be bound."""
    name = claim.class_name
    if not name:
        return Status.unresolvable("PersistentVolumeClaim had no pv name and storageClass name")
    storage_class = snapshot.objects(StorageClass).named(name)
    if storage_class is None:
        return Status.unresolvable(not_found("storageclass.storage.k8s.io", name))
    if storage_class.volume_binding_mode is None:
        return Status.unresolvable(f'VolumeBindingMode not set for StorageClass "{name}"')
    waits = storage_class.volume_binding_mode == WAIT_FOR_FIRST_CONSUMER
    return () if waits else Status.unresolvable("PersistentVolume had no name")


def _matches(requirement: Requirement, labels: Mapping[str, str]) -> bool:
    value = labels.get(requirement.key, labels.get(_BETA.get(requirement.key, requirement.key)))
    return value in requirement.values


def _matches_mask(requirement: Requirement, nodes: Nodes) -> Mask:
    mask = term_mask(NodeTerm((requirement,)), nodes)
    if requirement.key not in _BETA:
        return mask
    lacks = Requirement(requirement.key, "DoesNotExist")
    mask |= term_mask(NodeTerm((lacks, Requirement(_BETA[requirement.key], "In", requirement.values))), nodes)
    return mask


def _delays_binding_now(_: Pod, old: object, new: object) -> bool:
    did, does = (
        isinstance(each, StorageClass) and each.volume_binding_mode == WAIT_FOR_FIRST_CONSUMER for each in (old, new)
    )
    return does and not did


def _is_its_claim(pod: Pod, _: object, new: object) -> bool:
    return uses_claim(pod, new, also_ephemeral=False)


def _topology_changed(_: Pod, old: object, new: object) -> bool:
    if not isinstance(old, PersistentVolume) or not isinstance(new, PersistentVolume):
        return True
    return topologies_of(old) != topologies_of(new)


FACTORY: Final = PluginFactory(name=NAME, points=(Point.PRE_FILTER, Point.FILTER), build=no_args(VolumeZone))
