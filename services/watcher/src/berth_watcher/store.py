"""The newest state of every object, and the free resources of each node. A standby keeps both current too.

A change has cluster events for queueing hints, with kube-scheduler's labels for metrics. Objects that cannot be decoded
are left out and reported.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping
from typing import Final

import msgspec

from berth.api.devices import DeviceClass, ResourceClaim, as_mirrored, left_out
from berth.api.kinds import DEVICE_KINDS, NODE, PLUGIN_KINDS, WATCHED_KINDS
from berth.api.meta import KubernetesObject, ObjectMeta
from berth.api.node import Node
from berth.api.pod import Pod, is_bound, is_finished, priority_of
from berth.api.podgroups import CoschedulingPodGroup, UpstreamPodGroup
from berth.api.resources import PODS, pod_requests, read_amounts
from berth.cluster.objects import Objects
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
from berth.kube.listwatch import Current, Deleted, Listed, ListedPart, ReflectorEvent, Undecodable, Upserted
from berth.messages.attempts import DeadLetter
from berth.messages.livedata import BANDWIDTH, FACT_BYTES, FACTS, LiveBucket, LiveSource
from berth.messages.subjects import PodSubject, parse_key
from berth_watcher.events import Effect, LiveDataReceived, PublishDeadLetter, Warn

# Kinds whose key on the bus is the name. Other objects are stored by uid, because names are reused.
BY_NAME = frozenset(kind.name for kind in WATCHED_KINDS if not kind.is_namespaced)


class ObjectChange(msgspec.Struct, frozen=True, kw_only=True):
    """One object before and after; ``None`` where it does not exist. ``name`` is its key in the store."""

    kind: str
    name: str
    old: KubernetesObject | None
    new: KubernetesObject | None


class ObjectStore:
    def __init__(self, kinds: Iterable[str]) -> None:
        self._objects: dict[str, dict[str, KubernetesObject]] = {kind: {} for kind in kinds}
        # By kind, the resourceVersion that its reflector has reached.
        self.versions: dict[str, int] = dict.fromkeys(self._objects, 0)
        self.undecodable: dict[tuple[str, str, str], Undecodable] = {}  # by kind, namespace and name
        self.unread: dict[str, str] = {}  # by kind, why it cannot be read
        self.absent: set[str] = set()  # rare kinds that the API server does not serve
        self.claims: Final = Objects(ResourceClaim)  # for PreEnqueue, which finds them by name
        self._rooms = NodeRooms()

    @property
    def kinds(self) -> tuple[str, ...]:
        return tuple(self._objects)

    def of(self, kind: str) -> Mapping[str, KubernetesObject]:
        return self._objects[kind]

    def is_placed(self, uid: str) -> bool:
        """Whether the pod is on a node."""
        pod = self._objects["pod"].get(uid)
        return isinstance(pod, Pod) and is_bound(pod)

    def room_of(self, node: str) -> NodeRoom | None:
        """The node's resources beside its bound pods; ``None`` if the node is unknown."""
        there = self._objects.get(NODE.name, {}).get(node)
        return self._rooms.of(there) if isinstance(there, Node) else None

    def apply(self, event: ReflectorEvent[KubernetesObject]) -> list[ObjectChange]:
        """Returns the event's changes, in order."""
        if isinstance(event, ListedPart):
            return [self._set(event.kind, thing) for thing in event.objects]
        metadata = event.object.metadata if isinstance(event, Upserted | Deleted) else event
        reached = version_number(metadata.resource_version)
        self.versions[event.kind] = reached if isinstance(event, Listed) else max(reached, self.versions[event.kind])
        self.absent.discard(event.kind)  # also if berth may no longer ask for it
        if isinstance(event, Current):
            self._note_unread(event)
            if not event.is_served:
                self.absent.add(event.kind)
        if isinstance(event, Undecodable):
            return self._apply_undecodable(event)
        if isinstance(event, Upserted):
            return [self._set(event.kind, event.object)]
        if isinstance(event, Deleted):
            return self._remove(event.kind, _key(event.kind, event.object), event.object)
        if isinstance(event, Listed):
            return self._replace(event)
        return []

    def _note_unread(self, event: Current) -> None:
        if event.unread:
            self.unread[event.kind] = event.unread
        elif self.unread.pop(event.kind, None) is None:
            return
        self.claims.unread = next((self.unread[kind] for kind in DEVICE_KINDS if kind in self.unread), "")

    def _apply_undecodable(self, event: Undecodable) -> list[ObjectChange]:
        """Keep the last decodable version of the object until it is deleted."""
        key = (event.kind, event.namespace, event.name)
        if not event.deleted:
            self.undecodable[key] = event
            return []
        self.undecodable.pop(key, None)
        return self._remove(event.kind, event.name if event.kind in BY_NAME else event.uid, None)

    def _set(self, kind: str, thing: KubernetesObject) -> ObjectChange:
        objects, name = self._objects[kind], _key(kind, thing)
        if isinstance(thing, ResourceClaim | DeviceClass):
            thing = as_mirrored(thing)  # configurations of drivers are most of a claim, and only the binder reads them
        if self.undecodable:
            self.undecodable.pop((kind, thing.metadata.namespace, thing.metadata.name), None)
        old = objects.get(name)
        objects[name] = thing
        self._rooms.update(old, thing)
        if isinstance(thing, ResourceClaim):
            self.claims.set(name, thing)
        return ObjectChange(kind=kind, name=name, old=old, new=thing)

    def _remove(self, kind: str, name: str, last: KubernetesObject | None) -> list[ObjectChange]:
        old = self._objects[kind].pop(name, None)
        if old is None:
            return []
        self._rooms.update(old, None)
        if isinstance(old, ResourceClaim):
            self.claims.remove(name)
        return [ObjectChange(kind=kind, name=name, old=last or old, new=None)]

    def _replace(self, event: Listed[KubernetesObject]) -> list[ObjectChange]:
        self.undecodable = {key: thing for key, thing in self.undecodable.items() if thing.kind != event.kind}
        listed = {_key(event.kind, thing) for thing in event.objects}
        missing = [name for name in self._objects[event.kind] if name not in listed]
        removed = [change for name in missing for change in self._remove(event.kind, name, None)]
        return removed + [self._set(event.kind, thing) for thing in event.rest]


class NodeRooms:
    """The bound pods of each node and their requests by priority, added up on the first call for the node."""

    def __init__(self) -> None:
        self._pods: dict[str, dict[str, Pod]] = {}
        self._requested: dict[str, dict[int, Counter[str]]] = {}

    def update(self, old: KubernetesObject | None, new: KubernetesObject | None) -> None:
        """Take in a changed object; only bound pods count."""
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
        if not amounts[resource]:
            del amounts[resource]
    amounts[PODS] += by
    if not amounts[PODS]:
        del requested[priority_of(pod)]


def _key(kind: str, thing: KubernetesObject) -> str:
    return thing.metadata.name if kind in BY_NAME else thing.metadata.uid


def without_version(thing: KubernetesObject) -> KubernetesObject:
    """A copy without resourceVersion and generation, which also change with fields that are not kept."""
    metadata = msgspec.structs.replace(thing.metadata, resource_version="", generation=0)
    return msgspec.structs.replace(thing, metadata=metadata)  # type: ignore[type-var]  # all kinds are Structs


def nominated_node(pod: Pod) -> str:
    """The nominated node of an unbound pod; may be empty."""
    if pod.spec.node_name or pod.metadata.deletion_timestamp is not None or is_finished(pod):
        return ""
    return pod.status.nominated_node_name


EventWithObjects = tuple[ClusterEvent, object, object]  # the object before and after

RESOURCES: Final = {
    "pod": Resource.POD,
    "node": Resource.NODE,
    "namespace": Resource.NAMESPACE,
    **{name: Resource(kind.kind) for name, kind in PLUGIN_KINDS.items()},
}


def cluster_events(change: ObjectChange) -> Iterator[EventWithObjects]:
    """The events of a change; empty if no field that scheduling reads has changed."""
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
    """NO_ACTION if only the resourceVersion differs, as after every LIST."""
    if isinstance(old, Node) and isinstance(new, Node):
        return node_update_actions(old, new)
    return NO_ACTION if without_version(old) == without_version(new) else Action.UPDATE


def _pod_events(old: object, new: object) -> Iterator[EventWithObjects]:
    """Only bound pods count: binding is ADD, leaving the node is DELETE."""
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
    if before is not None and nominated_node(before) and _counts_otherwise(before, after):
        yield ClusterEvent(Resource.NOMINATION, Action.DELETE), _as_placed(before), None
    if after is not None and nominated_node(after) and (before is None or _counts_otherwise(after, before)):
        yield ClusterEvent(Resource.NOMINATION, Action.ADD), None, _as_placed(after)


def _counts_otherwise(before: Pod, after: Pod | None) -> bool:
    """Whether a nominated pod is gone from the node, or stays there with other labels or requests."""
    return after is None or nominated_node(after) != nominated_node(before) or bool(pod_update_actions(before, after))


def as_new(change: ObjectChange) -> EventWithObjects | None:
    """The event for a scorer that has not read the former version; ``None`` for an added or deleted object.

    The mirror keeps one version of an object, so that scorer can never read the former one.
    """
    old, new = change.old, change.new
    if old is None or new is None:
        return None
    if isinstance(old, Pod) and isinstance(new, Pod) and not (is_bound(old) and is_bound(new)):
        return None  # binding is ADD already, and unbound pods count only where they are nominated
    return ClusterEvent(RESOURCES[change.kind], Action.ADD), None, new


def _as_placed(nominated: Pod) -> Pod:
    """A nominated pod as plugins see it: on its node."""
    spec = msgspec.structs.replace(nominated.spec, node_name=nominated_node(nominated))
    return msgspec.structs.replace(nominated, spec=spec)


LIVE_DATA_EVENTS: Final[Mapping[LiveBucket, ClusterEvent]] = {
    BANDWIDTH: ClusterEvent(Resource.BANDWIDTH, Action.UPDATE),
    FACTS: ClusterEvent(Resource.FACTS, Action.UPDATE),
}


def live_data_event(received: LiveDataReceived) -> tuple[ClusterEvent, LiveDataUpdate] | None:
    """The event of live data; ``None`` for an entry that no plugin reads: facts come from outside."""
    try:
        name, node = parse_key(received.key)
        if received.data is not None:
            check_size(received.data, "live data", most=FACT_BYTES)
    except DecodeError:
        return None
    source = LiveSource(bucket=received.bucket, name=name)
    return LIVE_DATA_EVENTS[received.bucket], LiveDataUpdate(source=source, node=node, data=received.data)


# kube-scheduler's labels that differ from the kind. Plugins get events of assigned pods only.
_RESOURCE_LABELS: Final = {
    Resource.POD: "AssignedPod",
    Resource.CSI_NODE: "storage.k8s.io/CSINode",
    Resource.CSI_DRIVER: "storage.k8s.io/CSIDriver",
    Resource.CSI_STORAGE_CAPACITY: "storage.k8s.io/CSIStorageCapacity",
    Resource.STORAGE_CLASS: "storage.k8s.io/StorageClass",
    Resource.VOLUME_ATTACHMENT: "storage.k8s.io/VolumeAttachment",
    Resource.RESOURCE_CLAIM: "resource.k8s.io/ResourceClaim",
    Resource.RESOURCE_SLICE: "resource.k8s.io/ResourceSlice",
    Resource.DEVICE_CLASS: "resource.k8s.io/DeviceClass",
    Resource.POD_GROUP: "scheduling.k8s.io/PodGroup",
}

_ACTION_LABELS: Final = {Action.UPDATE_POD_TOLERATIONS: "UpdatePodToleration"}


def label_of(event: ClusterEvent) -> str:
    """kube-scheduler's name of the event in metrics. If several parts changed at once, it names the first."""
    return f"{_RESOURCE_LABELS.get(event.resource, event.resource.value)}{_action_label(event.action)}"


def label_of_own_update(action: Action) -> str:
    """kube-scheduler's name of a change of the waiting pod in metrics."""
    return f"UnschedulablePod{_action_label(action) or 'Update'}"


def _action_label(actions: Action) -> str:
    for action in actions:
        return _ACTION_LABELS.get(action) or "".join(word.capitalize() for word in (action.name or "").split("_"))
    return ""


PAYLOAD_CHARACTERS: Final = 4096  # of the object in its dead letter: enough to find the error


class UndecodableObjects:
    """Reports undecodable objects: a warning and, for an unbound pod of berth's, a dead letter.

    Reports each version once, because every LIST brings the object again. Of claims, classes and slices of which a part
    cannot be used, each reason once.
    """

    def __init__(self, profiles: Container[str]) -> None:
        self._profiles = profiles
        self._reported: dict[tuple[str, str, str], str] = {}
        self._left_out: dict[tuple[str, str], str] = {}  # by kind and key, why a part is left out

    def look_at(self, kind: str, name: str, thing: KubernetesObject | None) -> list[Effect]:
        """Warn about an object of which a part is left out."""
        reason = thing.spec.left_out if isinstance(thing, CoschedulingPodGroup | UpstreamPodGroup) else left_out(thing)
        if reason == self._left_out.get((kind, name), ""):
            return []
        self._left_out.pop((kind, name), None)
        if not reason or thing is None:
            return []
        self._left_out[kind, name] = reason
        return [Warn(message="object cannot be used", fields=_fields(kind, thing.metadata, reason))]

    def counts(self) -> Counter[str]:
        """By kind, the objects of which a part is left out."""
        return Counter(kind for kind, _ in self._left_out)

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
        """The profile of berth's that an unbound pod names, if its spec can be decoded; otherwise empty."""
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
    return Warn(message="object cannot be decoded and is left out", fields=_fields(thing.kind, thing, thing.reason))


def _fields(kind: str, metadata: ObjectMeta | Undecodable, reason: str) -> dict[str, str]:
    return {
        "kind": kind,
        "name": _full_name(metadata),
        "uid": metadata.uid,
        "resource_version": metadata.resource_version,
        "reason": reason,
    }


def _dead_letter(thing: Undecodable, profile: str) -> PublishDeadLetter:
    subject = PodSubject(stage="pending", profile=profile, namespace=thing.namespace, pod=thing.name)
    payload = structure_of(thing.raw)[:PAYLOAD_CHARACTERS]  # people read it: no values of variables
    reason = f"pod {_full_name(thing)!r} cannot be decoded and is not scheduled: {thing.reason}"
    dead_letter = DeadLetter(subject=str(subject), reason=reason, service="watcher", payload=payload)
    return PublishDeadLetter(dead_letter=dead_letter)


def _full_name(thing: ObjectMeta | Undecodable) -> str:
    return f"{thing.namespace}/{thing.name}" if thing.namespace else thing.name
