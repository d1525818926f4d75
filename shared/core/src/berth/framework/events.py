"""Cluster events, the events that a plugin registers (EnqueueExtensions), and cheap queueing hints by keys and indexes.

A hint may name a *key*: the data it reads of the rejected pod. Pods with equal keys get equal answers, so the hint is
called once for all of them. It may have an *index*, which finds the keys that an event can concern, so that the hint is
not called for the others. A hint keeps values computed from a pod or node between its calls (``IdentityCache``).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntFlag, StrEnum, auto
from hashlib import blake2b
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

import msgspec

from berth.api.node import Node
from berth.api.pod import Pod, is_gated
from berth.api.resources import pod_requests
from berth.messages.livedata import LiveSource

T = TypeVar("T")
V = TypeVar("V")


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
    RESOURCE_CLAIM = "ResourceClaim"
    RESOURCE_SLICE = "ResourceSlice"
    DEVICE_CLASS = "DeviceClass"
    POD_GROUP = "PodGroup"
    EARMARK = "earmark"  # nodes kept for a group: DELETE when it ends, or has other nodes
    NOMINATION = "nomination"  # a pod's nominated node: DELETE when the nomination ends
    BANDWIDTH = "bandwidth"  # live traffic of a node
    FACTS = "facts"  # external data that a plugin reads


class Action(IntFlag):
    """The change of the object. An update names the part that changed."""

    ADD = auto()
    DELETE = auto()
    UPDATE = auto()  # of a resource whose parts are not distinguished
    UPDATE_NODE_ALLOCATABLE = auto()
    UPDATE_NODE_LABEL = auto()
    UPDATE_NODE_TAINT = auto()  # taints or unschedulable
    UPDATE_NODE_CONDITION = auto()
    UPDATE_NODE_ANNOTATION = auto()
    UPDATE_NODE_DECLARED_FEATURE = auto()
    UPDATE_POD_LABEL = auto()
    UPDATE_POD_SCALE_DOWN = auto()  # some request became smaller
    UPDATE_POD_SCALE_UP = auto()  # some request became larger
    UPDATE_POD_TOLERATIONS = auto()
    UPDATE_POD_SCHEDULING_GATES_ELIMINATED = auto()
    UPDATE_POD_TERMINATING = auto()  # it got a deletionTimestamp
    UPDATE_POD_GENERATED_RESOURCE_CLAIM = auto()  # its status names other claims made for it


NO_ACTION = Action(0)


@dataclass(frozen=True, slots=True)
class ClusterEvent:
    """A resource and one or more actions; events match if they share an action."""

    resource: Resource
    action: Action

    def matches(self, happened: ClusterEvent) -> bool:
        return self.resource is happened.resource and bool(self.action & happened.action)


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveDataUpdate:
    """New live data of one node: the new object that a hint gets for a BANDWIDTH or FACTS event.

    ``data`` is the bucket's value as written (a fact is any JSON), None after its removal.
    """

    source: LiveSource
    node: str
    data: bytes | None


# (rejected pod, old object or None, new object or None) -> whether the event may make the pod schedulable.
QueueingHint = Callable[[Pod, object, object], bool]

# The data of the rejected pod that a hint reads, for events about another object than that pod.
PodKey = Callable[[Pod], Hashable]


class HintIndex(Protocol):
    """Finds the keys that an event can concern. One instance serves one hint of one profile's plugin."""

    def add(self, key: Hashable, pod: Pod) -> None:
        """Pods with a new key wait; ``pod`` is one of them."""
        ...

    def remove(self, key: Hashable) -> None:
        """The last pod with this key stopped waiting."""
        ...

    def find(self, old: object, new: object) -> Iterable[Hashable]:
        """All keys for which the hint may say yes; the hint is then called for each of them."""
        ...


@dataclass(frozen=True, slots=True)
class EventHint:
    """An event that may make a rejected pod schedulable; without ``hint`` it always may.

    With ``key`` the hint is called once for all pods with an equal key, with ``index`` only for the keys that the index
    finds. An event about the rejected pod itself is checked for that pod alone, so key and index may assume events
    about other objects.
    """

    event: ClusterEvent
    hint: QueueingHint | None = None
    # None: the hint may read anything of the pod, so it is called for each pod.
    key: PodKey | None = None
    index: Callable[[], HintIndex] | None = None  # makes the index of one profile's pods


# An earmark ends, or has other nodes.
EARMARK_ENDED: Final = ClusterEvent(Resource.EARMARK, Action.DELETE)


def was_placed(_: Pod, old: object, __: object) -> bool:
    """A hint for deleted pods: the pod was on a node."""
    return isinstance(old, Pod) and bool(old.spec.node_name)


def node_update_actions(old: Node, new: Node) -> Action:
    """The parts of a node that differ."""
    before, now = old.metadata, new.metadata
    return (
        _when(old.status.allocatable != new.status.allocatable, Action.UPDATE_NODE_ALLOCATABLE)
        | _when((before.labels or {}) != (now.labels or {}), Action.UPDATE_NODE_LABEL)
        | _when(_taints_of(old) != _taints_of(new), Action.UPDATE_NODE_TAINT)
        | _when(old.status.conditions != new.status.conditions, Action.UPDATE_NODE_CONDITION)
        | _when((before.annotations or {}) != (now.annotations or {}), Action.UPDATE_NODE_ANNOTATION)
        | _when(
            (old.status.declared_features or []) != (new.status.declared_features or []),
            Action.UPDATE_NODE_DECLARED_FEATURE,
        )
    )


def pod_update_actions(old: Pod, new: Pod) -> Action:
    """The parts of a pod that differ and whose change may help it or other pods."""
    return (
        _when((old.metadata.labels or {}) != (new.metadata.labels or {}), Action.UPDATE_POD_LABEL)
        | _scaled(old, new)
        | _when((old.spec.tolerations or []) != (new.spec.tolerations or []), Action.UPDATE_POD_TOLERATIONS)
        | _when(is_gated(old) and not is_gated(new), Action.UPDATE_POD_SCHEDULING_GATES_ELIMINATED)
        | _when(_begins_to_terminate(old, new), Action.UPDATE_POD_TERMINATING)
        | _when(has_other_claims(old, new), Action.UPDATE_POD_GENERATED_RESOURCE_CLAIM)
    )


def has_other_claims(old: Pod, new: Pod) -> bool:
    """Whether the claims that Kubernetes' controller makes of templates differ."""
    return old.status.resource_claim_statuses != new.status.resource_claim_statuses


def _begins_to_terminate(old: Pod, new: Pod) -> bool:
    return old.metadata.deletion_timestamp is None and new.metadata.deletion_timestamp is not None


# Fields of the spec that a resize changes.
_WITH_REQUESTS: Final = ("containers", "init_containers", "resources")


def _scaled(old: Pod, new: Pod) -> Action:
    if all(getattr(old.spec, field) == getattr(new.spec, field) for field in _WITH_REQUESTS):
        return NO_ACTION
    before, now = pod_requests(old.spec).amounts, pod_requests(new.spec).amounts
    return _when(_is_less(now, before), Action.UPDATE_POD_SCALE_DOWN) | _when(
        _is_less(before, now), Action.UPDATE_POD_SCALE_UP
    )


def _is_less(some: Mapping[str, int], others: Mapping[str, int]) -> bool:
    return any(some.get(resource, 0) < amount for resource, amount in others.items())


def _taints_of(node: Node) -> tuple[object, ...]:
    return (node.spec.unschedulable, node.spec.taints or [])


def _when(condition: bool, action: Action) -> Action:  # noqa: FBT001 - reads as a sentence
    return action if condition else NO_ACTION


# Values that a pod and an event must have in common; None matches any.
Values = Collection[Hashable] | None

_LONGEST_KEY: Final = 64
_encode: Final = msgspec.json.Encoder(order="deterministic").encode


def nothing(_: Pod) -> Hashable:
    """The key of a hint that reads no data of the pod."""
    return None


def encoded(*parts: object) -> bytes:
    """Parts of a pod as a key: a digest if they are long, because thousands of terms are half a megabyte."""
    key = _encode(parts)
    return key if len(key) <= _LONGEST_KEY else blake2b(key).digest()


class NodeRoom(NamedTuple):
    """A node's room for more pods, by resource, the number of pods included."""

    free: Mapping[str, int]  # below 0 where requests exceed allocatable
    # The requests of the pods of each priority, lowest priority first: more important pods may evict them.
    taken: Sequence[tuple[int, Mapping[str, int]]]


def is_registered(hints: Iterable[EventHint] | None, happened: ClusterEvent) -> bool:
    """Whether a plugin with these hints registered for the event; a plugin without any (None) for every event."""
    if hints is None:
        return True
    # As ``ClusterEvent.matches``, without a call for each hint.
    return any(hint.event.resource is happened.resource and hint.event.action & happened.action for hint in hints)


RoomOf = Callable[[str], NodeRoom | None]  # None for an unknown node


class RoomIndex:
    """An index that also reads the room on the node of an event. Its maker sets ``room_of``."""

    def __init__(self) -> None:
        self.room_of: RoomOf = lambda _: None


class ValueIndex:
    """Finds pods by values that they must have in common with the event: a namespace, a claim, a label.

    Values are kept as hashes. A hash collision only causes a useless call of a hint.
    """

    def __init__(self, of_pod: Callable[[Pod], Values], of_event: Callable[[object, object], Values]) -> None:
        self._of_pod = of_pod
        self._of_event = of_event
        self._values: dict[Hashable, tuple[int, ...] | None] = {}
        self._keys: dict[int, _Keys] = {}
        self._any: dict[Hashable, None] = {}

    def add(self, key: Hashable, pod: Pod) -> None:
        values = self._of_pod(pod)
        hashes = self._values[key] = None if values is None else tuple({hash(value) for value in values})
        if hashes is None:
            self._any[key] = None
            return
        for value in hashes:
            known = self._keys.get(value)
            if isinstance(known, dict):
                known[key] = None
            else:
                self._keys[value] = _One(key) if known is None else {known.key: None, key: None}

    def remove(self, key: Hashable) -> None:
        hashes = self._values.pop(key)
        if hashes is None:
            del self._any[key]
            return
        for value in hashes:
            known = self._keys[value]
            if isinstance(known, dict) and len(known) > 1:
                del known[key]
            else:
                del self._keys[value]

    def find(self, old: object, new: object) -> Iterable[Hashable]:
        """Keys in a fixed order, so that equal events requeue pods in an equal order."""
        values = self._of_event(old, new)
        if values is None:
            return list(self._values)
        found = dict(self._any)
        for value in values:
            known = self._keys.get(hash(value))
            if isinstance(known, dict):
                found.update(known)
            elif known is not None:
                found[known.key] = None
        return list(found)


class _One(NamedTuple):
    """The only key of a value."""

    key: Hashable


_Keys = _One | dict[Hashable, None]


# Bytes of an IdentityCache: 10,000 ordinary pods. By bytes and not by number, because the objects stay with their
# results, also when they have been deleted, and a pod may have a megabyte.
CACHED_BYTES: Final = 32 * 1024 * 1024

_encode_in_any_order: Final = msgspec.json.Encoder().encode


def bytes_of(*things: object) -> int:
    """Bytes of the things as JSON. Takes 2 us for an ordinary pod."""
    return sum(len(_encode_in_any_order(thing)) for thing in things if thing is not None)


class IdentityCache(Generic[T, V]):
    """Results for objects that are never changed in place, by identity; the least recently used are dropped.

    Holds ``capacity`` bytes, counted as an object's JSON plus ``weigh`` of its result, and always the newest result.
    """

    def __init__(
        self, compute: Callable[[T], V], *, capacity: int = CACHED_BYTES, weigh: Callable[[V], int] = lambda _: 0
    ) -> None:
        self._compute = compute
        self._capacity = capacity
        self._weigh = weigh
        self._weight = 0
        self._results: OrderedDict[int, tuple[T, V, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._results)

    def __call__(self, thing: T) -> V:
        """The result for the object, kept together with it, so that no other object gets its identity."""
        known = self._results.get(id(thing))
        if known is not None:
            self._results.move_to_end(id(thing))
            return known[1]
        result = self._compute(thing)
        weight = bytes_of(thing) + self._weigh(result)
        self._results[id(thing)] = (thing, result, weight)
        self._weight += weight
        while self._weight > self._capacity and len(self._results) > 1:
            _, (_, _, dropped) = self._results.popitem(last=False)
            self._weight -= dropped
        return result
