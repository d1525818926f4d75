"""Cluster events, and which of them a plugin names in EnqueueExtensions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntFlag, StrEnum, auto

from berth.api.livedata import LiveSource
from berth.api.node import Node
from berth.api.pod import Pod, is_gated
from berth.api.resources import pod_requests
from berth.framework.hintindex import HintIndex, PodKey


class Resource(StrEnum):
    """The kind of an event's object: kinds of Kubernetes, and berth's own sources."""

    POD = "Pod"
    NODE = "Node"
    NAMESPACE = "Namespace"
    SERVICE = "Service"
    REPLICATION_CONTROLLER = "ReplicationController"
    REPLICA_SET = "ReplicaSet"
    STATEFUL_SET = "StatefulSet"
    PERSISTENT_VOLUME = "PersistentVolume"
    PERSISTENT_VOLUME_CLAIM = "PersistentVolumeClaim"
    STORAGE_CLASS = "StorageClass"
    CSI_NODE = "CSINode"
    CSI_DRIVER = "CSIDriver"
    CSI_STORAGE_CAPACITY = "CSIStorageCapacity"
    VOLUME_ATTACHMENT = "VolumeAttachment"
    POD_DISRUPTION_BUDGET = "PodDisruptionBudget"
    NOMINATION = "nomination"
    """A pod's nominated node: DELETE when the nomination ends."""
    BANDWIDTH = "bandwidth"
    """Live traffic of a node."""
    FACTS = "facts"
    """External data that a plugin reads."""


class Action(IntFlag):
    """What happened to the object. An update names the part that changed."""

    ADD = auto()
    DELETE = auto()
    UPDATE = auto()
    """An update of a resource whose parts are not distinguished."""
    UPDATE_NODE_ALLOCATABLE = auto()
    UPDATE_NODE_LABEL = auto()
    UPDATE_NODE_TAINT = auto()
    """Taints or unschedulable."""
    UPDATE_NODE_CONDITION = auto()
    UPDATE_NODE_ANNOTATION = auto()
    UPDATE_POD_LABEL = auto()
    UPDATE_POD_SCALE_DOWN = auto()
    """Some request became smaller."""
    UPDATE_POD_TOLERATIONS = auto()
    UPDATE_POD_SCHEDULING_GATES_ELIMINATED = auto()


NO_ACTION = Action(0)


@dataclass(frozen=True, slots=True)
class ClusterEvent:
    """A resource and one or more actions; events match when they share one of them."""

    resource: Resource
    action: Action

    def matches(self, happened: ClusterEvent) -> bool:
        """Whether this event includes ``happened``."""
        return self.resource is happened.resource and bool(self.action & happened.action)


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveDataUpdate:
    """New live data of one node: what a hint gets as the new object of a BANDWIDTH or FACTS event.

    ``data`` is the bucket's value as it was written (a fact is any JSON), None when it was removed.
    """

    source: LiveSource
    node: str
    data: bytes | None


QueueingHint = Callable[[Pod, object, object], bool]
"""(rejected pod, old object or None, new object or None) -> whether the event may make the pod schedulable."""


@dataclass(frozen=True, slots=True)
class EventHint:
    """An event that may make a rejected pod schedulable; without ``hint`` it always may.

    With ``key`` the hint is called once for all pods with an equal key, with ``index`` for the keys only that the index
    finds. An event about the rejected pod itself is checked for that pod alone, so both may take it to be about others.
    """

    event: ClusterEvent
    hint: QueueingHint | None = None
    key: PodKey | None = None
    """What the hint reads of the pod; None: anything, so it is called for each pod."""
    index: Callable[[], HintIndex] | None = None
    """Makes the index of one profile's pods."""


def node_update_actions(old: Node, new: Node) -> Action:
    """Which parts of a node differ."""
    before, now = old.metadata, new.metadata
    return (
        _when(old.status.allocatable != new.status.allocatable, Action.UPDATE_NODE_ALLOCATABLE)
        | _when((before.labels or {}) != (now.labels or {}), Action.UPDATE_NODE_LABEL)
        | _when(_taints_of(old) != _taints_of(new), Action.UPDATE_NODE_TAINT)
        | _when(old.status.conditions != new.status.conditions, Action.UPDATE_NODE_CONDITION)
        | _when((before.annotations or {}) != (now.annotations or {}), Action.UPDATE_NODE_ANNOTATION)
    )


def pod_update_actions(old: Pod, new: Pod) -> Action:
    """Which parts of a pod differ that may help it or others."""
    return (
        _when((old.metadata.labels or {}) != (new.metadata.labels or {}), Action.UPDATE_POD_LABEL)
        | _when(is_scaled_down(old, new), Action.UPDATE_POD_SCALE_DOWN)
        | _when((old.spec.tolerations or []) != (new.spec.tolerations or []), Action.UPDATE_POD_TOLERATIONS)
        | _when(is_gated(old) and not is_gated(new), Action.UPDATE_POD_SCHEDULING_GATES_ELIMINATED)
    )


def is_scaled_down(old: Pod, new: Pod) -> bool:
    """Whether some resource request became smaller."""
    if (old.spec.containers, old.spec.resources) == (new.spec.containers, new.spec.resources):
        return False
    before, now = pod_requests(old.spec).amounts, pod_requests(new.spec).amounts
    return any(now.get(resource, 0) < amount for resource, amount in before.items())


def _taints_of(node: Node) -> tuple[object, ...]:
    return (node.spec.unschedulable, node.spec.taints or [])


def _when(condition: bool, action: Action) -> Action:  # noqa: FBT001 - reads as a sentence
    return action if condition else NO_ACTION
