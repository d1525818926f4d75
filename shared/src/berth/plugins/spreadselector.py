"""Which pods are a pod's like, for default constraints: the selectors of its services and its controller together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from berth.api.meta import OwnerReference
from berth.api.pod import Pod
from berth.api.selectors import Labels, Requirement, compile_label_selector
from berth.api.workloads import ReplicaSet, ReplicationController, Service, StatefulSet
from berth.cluster.podgroup import LabelItems, label_items
from berth.cluster.snapshot import Snapshot

KINDS: Final = (Service, ReplicationController, ReplicaSet, StatefulSet)
_MAX_REMEMBERED: Final = 4096
_Key = tuple[str, LabelItems, OwnerReference | None]


class DefaultSelectors:
    """The selectors on one Snapshot, remembered until one of the objects that they come from changes."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._remembered: dict[_Key, Labels | None] = {}
        self._seen = -1

    def of(self, pod: Pod) -> Labels | None:
        """The selector; None when nothing is known that selects pods like this one."""
        version = sum(self._snapshot.objects(kind).version for kind in KINDS)
        if version != self._seen or len(self._remembered) > _MAX_REMEMBERED:
            self._remembered.clear()
            self._seen = version
        owner = next((owner for owner in pod.metadata.owner_references or () if owner.controller), None)
        if owner is None and not self._snapshot.objects(Service).in_namespace(pod.metadata.namespace):
            return None
        key = (pod.metadata.namespace, label_items(pod.metadata.labels), owner)
        if key not in self._remembered:
            self._remembered[key] = self._found(pod.metadata.namespace, pod.metadata.labels or {}, owner)
        return self._remembered[key]

    def _found(self, namespace: str, labels: Mapping[str, str], owner: OwnerReference | None) -> Labels | None:
        equalities: dict[str, str] = {}
        for service in self._snapshot.objects(Service).in_namespace(namespace):
            wanted = service.spec.selector or {}
            if wanted.items() <= labels.items():
                equalities.update(wanted)
        if owner is not None and (owner.api_version, owner.kind) == ("v1", "ReplicationController"):
            controller = self._snapshot.objects(ReplicationController).named(owner.name, namespace)
            equalities.update((controller.spec.selector or {}) if controller else {})
        own = [Requirement(key, "In", frozenset((value,))) for key, value in equalities.items()]
        requirements = (*own, *self._of_set(namespace, owner))
        return Labels(tuple(dict.fromkeys(requirements))) if requirements else None

    def _of_set(self, namespace: str, owner: OwnerReference | None) -> tuple[Requirement, ...]:
        if owner is None or owner.api_version != "apps/v1":
            return ()
        found: ReplicaSet | StatefulSet | None = None
        if owner.kind == "ReplicaSet":
            found = self._snapshot.objects(ReplicaSet).named(owner.name, namespace)
        elif owner.kind == "StatefulSet":
            found = self._snapshot.objects(StatefulSet).named(owner.name, namespace)
        return compile_label_selector(found.spec.selector).requirements if found else ()
