"""Pods whose victims terminate: tried again once a victim is gone, or their nominated node may be impossible."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Final

from berth.api.node import Node
from berth.api.pod import Affinity, Pod, PodAffinity, PodAffinityTerm
from berth.api.selectors import compile_affinity_terms
from berth.api.volumes import CSINode, PersistentVolumeClaim, VolumeAttachment
from berth.framework.events import Action, ClusterEvent, Resource
from berth_watcher.queue.queuedpod import QueuedPod

VICTIM_DELETED: Final = ClusterEvent(Resource.POD, Action.DELETE)

# A nominated node becomes impossible when it changes itself, when another pod takes room or comes too near, and when
# something elsewhere changes that affinity, spread constraints or volumes depend on. The events are a superset of those
# that matter: one in vain costs an attempt after the back-off, one that is missed costs the pod ten seconds.

_NODE_CHANGED: Final = ClusterEvent(
    Resource.NODE,
    Action.DELETE
    | Action.UPDATE_NODE_ALLOCATABLE
    | Action.UPDATE_NODE_LABEL
    | Action.UPDATE_NODE_TAINT
    | Action.UPDATE_NODE_CONDITION
    | Action.UPDATE_NODE_DECLARED_FEATURE,
)
# Of any node: topology domains come, go, or count otherwise.
_DOMAINS_CHANGED: Final = ClusterEvent(
    Resource.NODE, Action.ADD | Action.DELETE | Action.UPDATE_NODE_LABEL | Action.UPDATE_NODE_TAINT
)
_ROOM_TAKEN: Final = ClusterEvent(Resource.POD, Action.ADD | Action.UPDATE_POD_SCALE_UP)
_POD_ADDED: Final = ClusterEvent(Resource.POD, Action.ADD)
# Of a pod on any node: it now matches an anti-affinity term or a spread constraint, or no affinity term any more.
_POD_COUNTED: Final = ClusterEvent(Resource.POD, Action.ADD | Action.UPDATE_POD_LABEL)
# Of a pod on another node: an affinity term loses its pod, or the domain with the fewest pods has fewer.
POD_LEAVES: Final = ClusterEvent(Resource.POD, Action.DELETE | Action.UPDATE_POD_TERMINATING)
# By another scheduler. When berth nominates a pod, it has counted its equals and ends less important nominations.
_NOMINATED: Final = ClusterEvent(Resource.NOMINATION, Action.ADD)
_NAMESPACE_CHANGED: Final = ClusterEvent(Resource.NAMESPACE, Action.ADD | Action.DELETE | Action.UPDATE)
_ANY_CHANGE: Final = Action.ADD | Action.DELETE | Action.UPDATE
_VOLUMES_CHANGED: Final = tuple(
    ClusterEvent(resource, _ANY_CHANGE)
    for resource in (
        Resource.PERSISTENT_VOLUME,
        Resource.PERSISTENT_VOLUME_CLAIM,
        Resource.STORAGE_CLASS,
        Resource.CSI_NODE,
        Resource.CSI_DRIVER,
        Resource.CSI_STORAGE_CAPACITY,
        Resource.VOLUME_ATTACHMENT,
    )
)
_DEVICES_CHANGED: Final = tuple(
    ClusterEvent(resource, _ANY_CHANGE)
    for resource in (Resource.RESOURCE_CLAIM, Resource.RESOURCE_SLICE, Resource.DEVICE_CLASS)
)
AWAITED: Final = (
    VICTIM_DELETED,
    _NODE_CHANGED,
    _DOMAINS_CHANGED,
    _ROOM_TAKEN,
    _POD_COUNTED,
    POD_LEAVES,
    _NOMINATED,
    _NAMESPACE_CHANGED,
    *_VOLUMES_CHANGED,
    *_DEVICES_CHANGED,
)

# Events of other resources count only where a plugin registers the resource.
ALWAYS_READ: Final = frozenset({Resource.POD, Resource.NODE, Resource.NOMINATION})

_HOSTNAME: Final = "kubernetes.io/hostname"

# Bound pods whose Decision is kept until the watch shows them. An older one costs a preemptor one more attempt.
_MAX_BOUND: Final = 2048


class NominatedNodes:
    """Decides which events concern a preemptor: a victim is gone, or the nominated node may be impossible."""

    def __init__(self, profiles: Collection[str]) -> None:
        self._profiles = profiles
        self._bound_at: dict[str, int] = {}  # by uid, the sequence of the Decision

    def on_bound(self, uid: str, sequence: int) -> None:
        """Record a Decision that bound a pod: a ranking that has read it counts the pod, before the watch shows it."""
        self._bound_at[uid] = sequence
        if len(self._bound_at) > _MAX_BOUND:
            del self._bound_at[next(iter(self._bound_at))]

    def _is_counted(self, pod: QueuedPod, placed: Pod) -> bool:
        """Whether the ranking of a queued pod knew a placed pod from its Decision."""
        bound_at = self._bound_at.get(placed.uid)
        return bound_at is not None and bound_at <= pod.decisions_read

    def concerns(self, pod: QueuedPod, event: ClusterEvent, old: object, new: object) -> bool:
        """Whether a victim of the pod may have gone, or its nominated node may have become impossible."""
        if _POD_ADDED.matches(event) and isinstance(new, Pod) and self._is_counted(pod, new):
            return False
        if _NOMINATED.matches(event) and isinstance(new, Pod) and new.spec.scheduler_name in self._profiles:
            return False
        return _is_victim_gone(pod, event, old) or _is_node_lost(pod, event, old, new)


class PreemptingPods:
    """Pods that wait for their victims, indexed by the objects of events that concern them."""

    def __init__(self) -> None:
        self._all: dict[str, QueuedPod] = {}
        self._by_node: dict[str, dict[str, QueuedPod]] = {}
        self._anywhere: dict[str, QueuedPod] = {}  # what happens elsewhere may keep them off their node

    def add(self, pod: QueuedPod) -> None:
        self._all[pod.uid] = pod
        self._by_node.setdefault(pod.node, {})[pod.uid] = pod
        if _depends_on_pods(pod.pod) or _claims(pod.pod) or pod.pod.spec.resource_claims:
            self._anywhere[pod.uid] = pod

    def discard(self, pod: QueuedPod) -> None:
        if self._all.pop(pod.uid, None) is None:
            return
        self._anywhere.pop(pod.uid, None)
        on_node = self._by_node[pod.node]
        del on_node[pod.uid]
        if not on_node:
            del self._by_node[pod.node]

    def possibly_concerned(self, event: ClusterEvent, old: object, new: object) -> Collection[QueuedPod]:
        """Every pod that the event concerns, and others."""
        if not self._all or not any(awaited.matches(event) for awaited in AWAITED):
            return ()
        if event.resource is Resource.NAMESPACE or (isinstance(new, Pod) and _keeps_others_off_its_domain(new)):
            return list(self._all.values())
        found = dict(self._anywhere)
        for node in {_node_of(old), _node_of(new), ""}:
            found.update(self._by_node.get(node, {}))
        return list(found.values())

    def all(self) -> Iterator[QueuedPod]:
        return iter(list(self._all.values()))


def _is_victim_gone(pod: QueuedPod, event: ClusterEvent, old: object) -> bool:
    """Whether a victim of the pod is gone. A pod whose node is unknown waits for any victim."""
    if not VICTIM_DELETED.matches(event):
        return False
    return not isinstance(old, Pod) or not pod.node or old.spec.node_name == pod.node


def _is_node_lost(pod: QueuedPod, event: ClusterEvent, old: object, new: object) -> bool:
    here = pod.node in (_node_of(old), _node_of(new))
    match event.resource:
        case Resource.NODE:
            in_domain = _DOMAINS_CHANGED.matches(event) and _depends_on_pods(pod.pod)
            return in_domain or (here and _NODE_CHANGED.matches(event))
        case Resource.POD:
            return _is_lost_to_pod(pod.pod, event, old, new, here=here)
        case Resource.NOMINATION:
            return here and isinstance(new, Pod) and _NOMINATED.matches(event) and _is_not_below(new, pod.pod)
        case Resource.RESOURCE_CLAIM | Resource.RESOURCE_SLICE | Resource.DEVICE_CLASS:
            return bool(pod.pod.spec.resource_claims)
        case _:
            return _NAMESPACE_CHANGED.matches(event) or _concerns_volumes(pod.pod, event, old, new, here=here)


def _concerns_volumes(pod: Pod, event: ClusterEvent, old: object, new: object, *, here: bool) -> bool:
    match event.resource:
        case Resource.CSI_NODE | Resource.VOLUME_ATTACHMENT:
            return here and bool(pod.spec.volumes)
        case Resource.PERSISTENT_VOLUME_CLAIM:
            return any(isinstance(each, PersistentVolumeClaim) and _may_use(pod, each) for each in (old, new))
        case _:
            return any(each.matches(event) for each in _VOLUMES_CHANGED) and _claims(pod)


def _is_lost_to_pod(pod: Pod, event: ClusterEvent, old: object, new: object, *, here: bool) -> bool:
    if isinstance(old, Pod) and POD_LEAVES.matches(event):
        return not here and _depends_on_pods(pod)
    if not isinstance(new, Pod):
        return False
    if here and _ROOM_TAKEN.matches(event) and new.metadata.deletion_timestamp is None:
        return True
    if _POD_COUNTED.matches(event) and _depends_on_pods(pod):
        return True
    return _POD_ADDED.matches(event) and _keeps_off_its_domain(new, pod)


def _node_of(thing: object) -> str:
    match thing:
        case Node() | CSINode():
            return thing.metadata.name
        case Pod() | VolumeAttachment():
            return thing.spec.node_name
        case _:
            return ""


def _is_not_below(nominated: Pod, pod: Pod) -> bool:
    return (nominated.spec.priority or 0) >= (pod.spec.priority or 0)


def _required(terms: PodAffinity | None) -> list[PodAffinityTerm]:
    return (terms or PodAffinity()).required_during_scheduling_ignored_during_execution or []


def _depends_on_pods(pod: Pod) -> bool:
    """Whether pods on other nodes of a topology domain may keep the pod off a node."""
    affinity = pod.spec.affinity or Affinity()
    terms = _required(affinity.pod_affinity) or _required(affinity.pod_anti_affinity)
    constraints = pod.spec.topology_spread_constraints or ()
    return bool(terms) or any(each.when_unsatisfiable == "DoNotSchedule" for each in constraints)


def _keeps_others_off_its_domain(placed: Pod) -> bool:
    apart = _required((placed.spec.affinity or Affinity()).pod_anti_affinity)
    return any(term.topology_key != _HOSTNAME for term in apart)


def _keeps_off_its_domain(placed: Pod, pod: Pod) -> bool:
    """Whether the placed pod's anti-affinity keeps the pod off its domain. A namespaceSelector counts as matching."""
    if not _keeps_others_off_its_domain(placed):
        return False
    meta = pod.metadata
    terms = compile_affinity_terms(placed.spec.affinity, placed.metadata.namespace).required_anti_affinity
    return any(
        (term.selector.uses_namespace_labels or meta.namespace in term.selector.namespaces)
        and term.selector.labels.matches(meta.labels or {})
        for term in terms
    )


def _claims(pod: Pod) -> bool:
    volumes = pod.spec.volumes or ()
    return any(each.persistent_volume_claim is not None or each.ephemeral is not None for each in volumes)


def _may_use(pod: Pod, claim: PersistentVolumeClaim) -> bool:
    """Whether the pod names the claim, or has an ephemeral volume whose claim may have that name."""
    name, meta = claim.metadata.name, pod.metadata
    if claim.metadata.namespace != meta.namespace:
        return False
    return any(
        (volume.persistent_volume_claim is not None and volume.persistent_volume_claim.claim_name == name)
        or (volume.ephemeral is not None and name == f"{meta.name}-{volume.name}")
        for volume in pod.spec.volumes or ()
    )
