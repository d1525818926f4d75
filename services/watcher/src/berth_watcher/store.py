"""The objects of the cluster as the reflectors show them, and what each event changed. A standby keeps it current."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import msgspec

from berth.api.kinds import WATCHED_KINDS
from berth.api.meta import KubernetesObject, version_number
from berth.api.pod import Pod, is_finished
from berth.kube.watch import Current, Deleted, Listed, Undecodable, Upserted

BY_NAME = frozenset(kind.name for kind in WATCHED_KINDS if not kind.is_namespaced)
"""Kinds whose key on the bus is the name. Others are stored by uid, since another object may take the same name."""

ReflectorNews = (
    Listed[KubernetesObject] | Upserted[KubernetesObject] | Deleted[KubernetesObject] | Current | Undecodable
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectChange:
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

    @property
    def kinds(self) -> tuple[str, ...]:
        return tuple(self._objects)

    def of(self, kind: str) -> Mapping[str, KubernetesObject]:
        """The objects of a kind, by name or uid."""
        return self._objects[kind]

    def apply(self, event: ReflectorNews) -> list[ObjectChange]:
        """Store what a reflector shows, and return what it changed, in order."""
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
        return ObjectChange(kind=kind, name=name, old=old, new=thing)

    def _remove(self, kind: str, name: str, last: KubernetesObject | None) -> list[ObjectChange]:
        old = self._objects[kind].pop(name, None)
        if old is None:
            return []
        return [ObjectChange(kind=kind, name=name, old=last or old, new=None)]

    def _replace(self, event: Listed[KubernetesObject]) -> list[ObjectChange]:
        self.undecodable = {key: thing for key, thing in self.undecodable.items() if thing.kind != event.kind}
        listed = {_key(event.kind, thing) for thing in event.objects}
        missing = [name for name in self._objects[event.kind] if name not in listed]
        removed = [change for name in missing for change in self._remove(event.kind, name, None)]
        return removed + [self._set(event.kind, thing) for thing in event.objects]


def _key(kind: str, thing: KubernetesObject) -> str:
    return thing.metadata.name if kind in BY_NAME else thing.metadata.uid


def without_version(thing: KubernetesObject) -> KubernetesObject:
    """A copy without resourceVersion, which changes with every write, also with those that change nothing else."""
    metadata = msgspec.structs.replace(thing.metadata, resource_version="")
    return msgspec.structs.replace(thing, metadata=metadata)  # type: ignore[type-var]  # all kinds are Structs


def nominated_node(pod: Pod) -> str:
    """The node whose resources are kept for an unbound pod; empty for none."""
    if pod.spec.node_name or pod.metadata.deletion_timestamp is not None or is_finished(pod):
        return ""
    return pod.status.nominated_node_name
