"""The objects of the cluster as the reflectors show them, what each event changed, and which cluster events that is.

A standby keeps the store current. Cluster events are what queueing hints are asked about; metrics name them as
kube-scheduler does. Objects that cannot be decoded are left out and reported.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping
from typing import Final

import msgspec

from berth.api.kinds import NODE, PLUGIN_KINDS, WATCHED_KINDS
from berth.api.meta import KubernetesObject
from berth.api.node import Node
from berth.api.pod import Pod, is_bound, is_finished, priority_of
from berth.api.resources import PODS, pod_requests, read_amounts
from berth.decoding import check_size, decode_json, structure_of, version_number
from berth.errors import DecodeError
from berth.framework.events import (
    NO_ACTION,
    Action,
    ClusterEvent,
    LiveDataUpdate,
    NodeRoom,
    Resource,
    node_update_actions,
    pod_update_actions,
)
from berth.kube.listwatch import Deleted, Listed, ListedPart, ReflectorEvent, Undecodable, Upserted
from berth.messages.attempts import DeadLetter
from berth.messages.livedata import BANDWIDTH, FACT_BYTES, FACTS, LiveBucket, LiveSource
from berth.messages.subjects import PodSubject, parse_key
from berth_watcher.events import Effect, LiveDataReceived, PublishDeadLetter, Warn

BY_NAME = frozenset(kind.name for kind in WATCHED_KINDS if not kind.is_namespaced)
"""Kinds whose key on the bus is the name. Others are stored by uid, since another object may take the same name."""


class ObjectChange(msgspec.Struct, frozen=True, kw_only=True):
    """One object before and after; ``None`` where it does not exist. ``name`` is its key in the store."""

    kind: str
    name: str
    old: KubernetesObject | None
    new: KubernetesObject | None


class ObjectStore:
    """By kind, every object's newest state."""

    def __init__(self, kinds: Iterable[str]) -> None:
        self._objects: dict[str, dict[str, KubernetesObject]] = {kind: {} for kind in kinds}
        self.versions: dict[str, int] = dict.fromkeys(self._objects, 0)
        """By kind, the resourceVersion that its reflector has reached."""
        self.undecodable: dict[tuple[str, str, str], Undecodable] = {}
        """Objects that could not be decoded, by kind, namespace and name."""
        self._rooms = NodeRooms()

    @property
    def kinds(self) -> tuple[str, ...]:
        return tuple(self._objects)

    def of(self, kind: str) -> Mapping[str, KubernetesObject]:
        """The objects of a kind, by name or uid."""
        return self._objects[kind]

    def room_of(self, node: str) -> NodeRoom | None:
        """The room on a node beside its bound pods; None for a node that is not known."""
        there = self._objects.get(NODE.name, {}).get(node)
        return self._rooms.of(there) if isinstance(there, Node) else None

    def apply(self, event: ReflectorEvent[KubernetesObject]) -> list[ObjectChange]:
        """Store what a reflector shows, and return what it changed, in order."""
        if isinstance(event, ListedPart):
            return [self._set(event.kind, thing) for thing in event.objects]
        metadata = event.object.metadata if isinstance(event, Upserted | Deleted) else event
        reached = version_number(metadata.resource_version)
        self.versions[event.kind] = reached if isinstance(event, Listed) else max(reached, self.versions[event.kind])
        if isinstance(event, Undecodable):
            return self._apply_undecodable(event)
        if isinstance(event, Upserted):
            return [self._set(event.kind, event.object)]
        if isinstance(event, Deleted):
            return self._remove(event.kind, _key(event.kind, event.object), event.object)
        if isinstance(event, Listed):
            return self._replace(event)
        return []

    def _apply_undecodable(self, event: Undecodable) -> list[ObjectChange]:
        """An earlier version that could be decoded stays in the store until the object is deleted."""
        key = (event.kind, event.namespace, event.name)
        if not event.deleted:
            self.undecodable[key] = event
            return []
        self.undecodable.pop(key, None)
        return self._remove(event.kind, event.name if event.kind in BY_NAME else event.uid, None)

    def _set(self, kind: str, thing: KubernetesObject) -> ObjectChange:
        objects, name = self._objects[kind], _key(kind, thing)
        if self.undecodable:
            self.undecodable.pop((kind, thing.metadata.namespace, thing.metadata.name), None)
        old = objects.get(name)
        objects[name] = thing
        self._rooms.update(old, thing)
        return ObjectChange(kind=kind, name=name, old=old, new=thing)

    def _remove(self, kind: str, name: str, last: KubernetesObject | None) -> list[ObjectChange]:
        old = self._objects[kind].pop(name, None)
        if old is None:
            return []
        self._rooms.update(old, None)
        return [ObjectChange(kind=kind, name=name, old=last or old, new=None)]

    def _replace(self, event: Listed[KubernetesObject]) -> list[ObjectChange]:
        self.undecodable = {key: thing for key, thing in self.undecodable.items() if thing.kind != event.kind}
        listed = {_key(event.kind, thing) for thing in event.objects}
        missing = [name for name in self._objects[event.kind] if name not in listed]
        removed = [change for name in missing for change in self._remove(event.kind, name, None)]
        return removed + [self._set(event.kind, thing) for thing in event.rest]


class NodeRooms:
    """The bound pods of each node, and what those of a priority request: added up when a node is asked for first."""

    def __init__(self) -> None:
        self._pods: dict[str, dict[str, Pod]] = {}
        self._requested: dict[str, dict[int, Counter[str]]] = {}

    def update(self, old: KubernetesObject | None, new: KubernetesObject | None) -> None:
        """An object has changed; only bound pods count."""
        if isinstance(old, Node) and new is None:
            self._requested.pop(old.metadata.name, None)
        before = old if isinstance(old, Pod) and is_bound(old) else None
        after = new if isinstance(new, Pod) and is_bound(new) else None
        if before is not None and after is not None and before.spec == after.spec:
            self._pods[after.spec.node_name][after.metadata.uid] = after
            return
        if before is not None:
            self._count(before, -1)
        if after is not None:
            self._count(after, 1)

    def of(self, node: Node) -> NodeRoom:
        """The room on a node now."""
        name = node.metadata.name
        requested = self._requested.get(name)
        if requested is None:
            requested = {}
            for pod in self._pods.get(name, {}).values():
                _add(requested, pod, 1)
            if requested:
                self._requested[name] = requested
        allocatable = read_amounts(node.status.allocatable, "status.allocatable", lambda _: None)
        free = {
            resource: amount - sum(amounts[resource] for amounts in requested.values())
            for resource, amount in allocatable.items()
        }
        return NodeRoom(free, sorted(requested.items()))

    def _count(self, pod: Pod, by: int) -> None:
        name = pod.spec.node_name
        pods = self._pods.setdefault(name, {})
        if by > 0:
            pods[pod.metadata.uid] = pod
        else:
            pods.pop(pod.metadata.uid, None)
        if name in self._requested:
            _add(self._requested[name], pod, by)
        if not pods:
            del self._pods[name]
            self._requested.pop(name, None)


def _add(requested: dict[int, Counter[str]], pod: Pod, by: int) -> None:
    amounts = requested.setdefault(priority_of(pod), Counter())
    for resource, amount in pod_requests(pod.spec).amounts.items():
        amounts[resource] += by * amount
    amounts[PODS] += by
    if not amounts[PODS]:
        del requested[priority_of(pod)]


def _key(kind: str, thing: KubernetesObject) -> str:
    return thing.metadata.name if kind in BY_NAME else thing.metadata.uid


def without_version(thing: KubernetesObject) -> KubernetesObject:
    """A copy without resourceVersion and generation, which change also with what is not kept of the object."""
    metadata = msgspec.structs.replace(thing.metadata, resource_version="", generation=0)
    return msgspec.structs.replace(thing, metadata=metadata)  # type: ignore[type-var]  # all kinds are Structs


def nominated_node(pod: Pod) -> str:
    """The node whose resources are kept for an unbound pod; empty for none."""
    if pod.spec.node_name or pod.metadata.deletion_timestamp is not None or is_finished(pod):
        return ""
    return pod.status.nominated_node_name


EventWithObjects = tuple[ClusterEvent, object, object]
"""An event with the object before and after it."""

RESOURCES: Final = {
    "pod": Resource.POD,
    "node": Resource.NODE,
    "namespace": Resource.NAMESPACE,
    **{name: Resource(kind.kind) for name, kind in PLUGIN_KINDS.items()},
}


def cluster_events(change: ObjectChange) -> Iterator[EventWithObjects]:
    """The events of a change; none when nothing that scheduling reads is different."""
    if change.kind == "pod":
        yield from _pod_events(change.old, change.new)
        return
    resource, old, new = RESOURCES[change.kind], change.old, change.new
    if old is None or new is None:
        yield ClusterEvent(resource, Action.ADD if old is None else Action.DELETE), old, new
        return
    action = _update_action(old, new)
    if action is not NO_ACTION:
        yield ClusterEvent(resource, action), old, new


def _update_action(old: KubernetesObject, new: KubernetesObject) -> Action:
    """NO_ACTION when only the resourceVersion differs, as after every LIST."""
    if isinstance(old, Node) and isinstance(new, Node):
        return node_update_actions(old, new)
    return NO_ACTION if without_version(old) == without_version(new) else Action.UPDATE


def _pod_events(old: object, new: object) -> Iterator[EventWithObjects]:
    """Only bound pods count as there: binding is ADD, and leaving the node is DELETE."""
    before = old if isinstance(old, Pod) else None
    after = new if isinstance(new, Pod) else None
    was_bound, is_now_bound = before is not None and is_bound(before), after is not None and is_bound(after)
    if was_bound and not is_now_bound:
        yield ClusterEvent(Resource.POD, Action.DELETE), before, None
    elif is_now_bound and not was_bound:
        yield ClusterEvent(Resource.POD, Action.ADD), None, after
    elif was_bound and before is not None and after is not None:
        action = pod_update_actions(before, after)
        if action:
            yield ClusterEvent(Resource.POD, action), before, after
    if before is not None and nominated_node(before) not in ("", nominated_node(after) if after is not None else ""):
        yield _nomination_ended(before, after)


def as_new(change: ObjectChange) -> EventWithObjects | None:
    """The event for a scorer that has not read the object as it was before. ``None``: it was not, or is no more.

    The mirror keeps one version of an object: who has not read the former one when it is rewritten reads it no more.
    """
    old, new = change.old, change.new
    if old is None or new is None:
        return None
    if isinstance(old, Pod) and isinstance(new, Pod) and not (is_bound(old) and is_bound(new)):
        return None  # binding is ADD already, and pods without a node count only where they are nominated
    return ClusterEvent(RESOURCES[change.kind], Action.ADD), None, new


def _nomination_ended(before: Pod, after: Pod | None) -> EventWithObjects:
    """Plugins see it as if the pod had left the node that it was nominated for: its resources are free for others."""
    spec = msgspec.structs.replace(before.spec, node_name=nominated_node(before))
    return ClusterEvent(Resource.NOMINATION, Action.DELETE), msgspec.structs.replace(before, spec=spec), after


LIVE_DATA_EVENTS: Final[Mapping[LiveBucket, ClusterEvent]] = {
    BANDWIDTH: ClusterEvent(Resource.BANDWIDTH, Action.UPDATE),
    FACTS: ClusterEvent(Resource.FACTS, Action.UPDATE),
}


def live_data_event(received: LiveDataReceived) -> tuple[ClusterEvent, LiveDataUpdate] | None:
    """The event of live data; ``None`` for what no plugin reads: any client may put facts."""
    try:
        name, node = parse_key(received.key)
        if received.data is not None:
            check_size(received.data, "live data", most=FACT_BYTES)
    except DecodeError:
        return None
    source = LiveSource(bucket=received.bucket, name=name)
    return LIVE_DATA_EVENTS[received.bucket], LiveDataUpdate(source=source, node=node, data=received.data)


_RESOURCE_LABELS: Final = {
    Resource.POD: "AssignedPod",
    Resource.CSI_NODE: "storage.k8s.io/CSINode",
    Resource.CSI_DRIVER: "storage.k8s.io/CSIDriver",
    Resource.CSI_STORAGE_CAPACITY: "storage.k8s.io/CSIStorageCapacity",
    Resource.STORAGE_CLASS: "storage.k8s.io/StorageClass",
    Resource.VOLUME_ATTACHMENT: "storage.k8s.io/VolumeAttachment",
}
"""kube-scheduler's labels that are not just the kind. The only pods that plugins get events of are assigned ones."""

_ACTION_LABELS: Final = {Action.UPDATE_POD_TOLERATIONS: "UpdatePodToleration"}


def label_of(event: ClusterEvent) -> str:
    """kube-scheduler's name of the event in metrics. When several parts changed at once it names the first."""
    return f"{_RESOURCE_LABELS.get(event.resource, event.resource.value)}{_action_label(event.action)}"


def label_of_own_update(action: Action) -> str:
    """The same for a change of the waiting pod itself."""
    return f"UnschedulablePod{_action_label(action) or 'Update'}"


def _action_label(actions: Action) -> str:
    for action in actions:
        return _ACTION_LABELS.get(action) or "".join(word.capitalize() for word in (action.name or "").split("_"))
    return ""


PAYLOAD_CHARACTERS: Final = 4096
"""Of an undecodable object, in its dead letter: enough to find what is wrong with it."""


class UndecodableObjects:
    """Reports objects that cannot be decoded: a warning and, for an unbound pod of ours, a dead letter.

    Each version is reported once, since every LIST brings the object again.
    """

    def __init__(self, profiles: Container[str]) -> None:
        self._profiles = profiles
        self._reported: dict[tuple[str, str, str], str] = {}

    def report(self, thing: Undecodable) -> list[Effect]:
        key = (thing.kind, thing.namespace, thing.name)
        if thing.deleted:
            self._reported.pop(key, None)
            return []
        if self._reported.get(key) == thing.resource_version:
            return []
        self._reported[key] = thing.resource_version
        profile = self._profile_of(thing)
        return [_warning(thing), *([_dead_letter(thing, profile)] if profile else [])]

    def _profile_of(self, thing: Undecodable) -> str:
        """The profile of ours that an unbound pod names, if that can be decoded; empty for none."""
        if thing.kind != "pod":
            return ""
        try:
            spec = decode_json(_partial_pod, thing.raw, "a pod").spec
        except DecodeError:
            return ""
        return spec.scheduler_name if spec.scheduler_name in self._profiles and not spec.node_name else ""


class _PartialSpec(msgspec.Struct, rename="camel"):
    scheduler_name: str = "default-scheduler"
    node_name: str = ""


class _PartialPod(msgspec.Struct):
    spec: _PartialSpec = msgspec.field(default_factory=_PartialSpec)


_partial_pod: Final = msgspec.json.Decoder(_PartialPod)


def _warning(thing: Undecodable) -> Warn:
    message = f"{thing.kind} {_full_name(thing)!r} cannot be decoded and is left out: {thing.reason}"
    return Warn(message=message, fields={"uid": thing.uid, "resource_version": thing.resource_version})


def _dead_letter(thing: Undecodable, profile: str) -> PublishDeadLetter:
    subject = PodSubject(stage="pending", profile=profile, namespace=thing.namespace, pod=thing.name)
    payload = structure_of(thing.raw)[:PAYLOAD_CHARACTERS]  # people may read it, and not the values of its environment
    reason = f"pod {_full_name(thing)!r} cannot be decoded and is not scheduled: {thing.reason}"
    dead_letter = DeadLetter(subject=str(subject), reason=reason, service="watcher", payload=payload)
    return PublishDeadLetter(dead_letter=dead_letter)


def _full_name(thing: Undecodable) -> str:
    return f"{thing.namespace}/{thing.name}" if thing.namespace else thing.name
