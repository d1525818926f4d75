"""The newest state of every object, and the free resources of each node. A standby keeps both current too."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

import msgspec

from berth.api.kinds import NODE, WATCHED_KINDS
from berth.api.meta import KubernetesObject
from berth.api.node import Node
from berth.api.pod import Pod, is_bound, is_finished, priority_of
from berth.api.resources import PODS, pod_requests, read_amounts
from berth.decoding import version_number
from berth.framework.events import (
    NodeRoom,
)
from berth.kube.listwatch import Deleted, Listed, ListedPart, ReflectorEvent, Undecodable, Upserted

# Kinds whose key on the bus is the name. Other objects are stored by uid, because names are reused.
BY_NAME = frozenset(kind.name for kind in WATCHED_KINDS if not kind.is_namespaced)


class ObjectChange(msgspec.Struct, frozen=True, kw_only=True):
    """One object before and after; ``None`` where it does not exist. ``name`` is its key in the store."""

    kind: str
    name: str
    old: KubernetesObject | None
    new: KubernetesObject | None


class ObjectStore:
    """The newest state of every object, by kind."""

    def __init__(self, kinds: Iterable[str]) -> None:
        self._objects: dict[str, dict[str, KubernetesObject]] = {kind: {} for kind in kinds}
        # By kind, the resourceVersion that its reflector has reached.
        self.versions: dict[str, int] = dict.fromkeys(self._objects, 0)
        self.undecodable: dict[tuple[str, str, str], Undecodable] = {}  # by kind, namespace and name
        self._rooms = NodeRooms()

    @property
    def kinds(self) -> tuple[str, ...]:
        return tuple(self._objects)

    def of(self, kind: str) -> Mapping[str, KubernetesObject]:
        return self._objects[kind]

    def room_of(self, node: str) -> NodeRoom | None:
        """The node's resources beside its bound pods; ``None`` if the node is unknown."""
        there = self._objects.get(NODE.name, {}).get(node)
        return self._rooms.of(there) if isinstance(there, Node) else None

    def apply(self, event: ReflectorEvent[KubernetesObject]) -> list[ObjectChange]:
        """Store a reflector's event. Returns its changes, in order."""
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
        """Keep the last decodable version of the object until it is deleted."""
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
    """The node that an unbound pod is nominated to; empty for none."""
    if pod.spec.node_name or pod.metadata.deletion_timestamp is not None or is_finished(pod):
        return ""
    return pod.status.nominated_node_name
