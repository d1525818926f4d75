"""The objects of the cluster as the reflectors show them, and what each event changed. Kept warm also in standby."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from berth.api.errors import DecodeError
from berth.api.kinds import WATCHED_KINDS
from berth.api.meta import KubernetesObject, parse_resource_version
from berth.kube.watch import Current, Deleted, Listed, Undecodable, Upserted

BY_NAME = frozenset(kind.name for kind in WATCHED_KINDS if not kind.is_namespaced)
"""Kinds whose key on the bus is their name. All others are known by uid, since a namesake may follow."""

ReflectorNews = (
    Listed[KubernetesObject] | Upserted[KubernetesObject] | Deleted[KubernetesObject] | Current | Undecodable
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectChange:
    """One object before and after; ``None`` where it is not there."""

    kind: str
    name: str
    old: KubernetesObject | None
    new: KubernetesObject | None


class ObjectStore:
    """By kind, every object's newest state."""

    def __init__(self, kinds: Iterable[str]) -> None:
        self._objects: dict[str, dict[str, KubernetesObject]] = {kind: {} for kind in kinds}
        self.versions: dict[str, int] = dict.fromkeys(self._objects, 0)
        """How far each kind has come, in resourceVersions."""
        self.left_out: dict[tuple[str, str, str], Undecodable] = {}
        """What is there and cannot be read, by kind, namespace and name."""

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds kept."""
        return tuple(self._objects)

    def of(self, kind: str) -> Mapping[str, KubernetesObject]:
        """The objects of a kind by name or uid."""
        return self._objects[kind]

    def apply(self, event: ReflectorNews) -> list[ObjectChange]:
        """Take an event in; what it changed, in order."""
        reached = version_of(event)
        self.versions[event.kind] = reached if isinstance(event, Listed) else max(reached, self.versions[event.kind])
        if isinstance(event, Undecodable):
            return self._leave_out(event)
        if isinstance(event, Upserted):
            return [self._set(event.kind, event.object)]
        if isinstance(event, Deleted):
            return self._remove(event.kind, name_of(event.kind, event.object), event.object)
        if isinstance(event, Listed):
            return self._replace(event)
        return []

    def _leave_out(self, event: Undecodable) -> list[ObjectChange]:
        """What could be read before stays as it was, until a LIST lacks it."""
        key = (event.kind, event.namespace, event.name)
        if not event.deleted:
            self.left_out[key] = event
            return []
        self.left_out.pop(key, None)
        return self._remove(event.kind, event.name if event.kind in BY_NAME else event.uid, None)

    def _set(self, kind: str, thing: KubernetesObject) -> ObjectChange:
        objects, name = self._objects[kind], name_of(kind, thing)
        if self.left_out:
            self.left_out.pop((kind, thing.metadata.namespace, thing.metadata.name), None)
        old = objects.get(name)
        objects[name] = thing
        return ObjectChange(kind=kind, name=name, old=old, new=thing)

    def _remove(self, kind: str, name: str, last: KubernetesObject | None) -> list[ObjectChange]:
        old = self._objects[kind].pop(name, None)
        if old is None:
            return []
        return [ObjectChange(kind=kind, name=name, old=last or old, new=None)]

    def _replace(self, event: Listed[KubernetesObject]) -> list[ObjectChange]:
        self.left_out = {key: thing for key, thing in self.left_out.items() if thing.kind != event.kind}
        there = {name_of(event.kind, thing) for thing in event.objects}
        left = [name for name in self._objects[event.kind] if name not in there]
        removed = [change for name in left for change in self._remove(event.kind, name, None)]
        return removed + [self._set(event.kind, thing) for thing in event.objects]


def name_of(kind: str, thing: KubernetesObject) -> str:
    """What the object is known by: its name, or its uid."""
    return thing.metadata.name if kind in BY_NAME else thing.metadata.uid


def version_of(event: ReflectorNews) -> int:
    """How far the event brings its kind; 0 for a version that is no number."""
    try:
        return parse_resource_version(_version(event))
    except DecodeError:
        return 0


def _version(event: ReflectorNews) -> str:
    if isinstance(event, Upserted | Deleted):
        return event.object.metadata.resource_version
    return event.resource_version
