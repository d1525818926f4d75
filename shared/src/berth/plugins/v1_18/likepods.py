"""Which pods are a pod's like, as kube-scheduler 1.18 found them: every service, controller and set that selects it.

The selectors of all services, replication controllers, replica sets and stateful sets of the namespace that mean the
pod's labels, taken together. Today's plugins ask the pod's owner instead (spreadselector).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from berth.api.pod import Pod
from berth.api.selectors import Labels, Requirement, compile_label_selector
from berth.api.workloads import ReplicaSet, ReplicationController, Service, StatefulSet
from berth.cluster.podgroup import LabelItems, label_items
from berth.cluster.snapshot import Snapshot

KINDS: Final = (Service, ReplicationController, ReplicaSet, StatefulSet)
_MAX_REMEMBERED: Final = 4096


class LikePods:
    """The selectors on one Snapshot, remembered until one of the objects that they come from changes."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._remembered: dict[tuple[str, LabelItems], Labels | None] = {}
        self._seen = -1

    def of(self, pod: Pod) -> Labels | None:
        """The selector; None when nothing selects the pod."""
        version = sum(self._snapshot.objects(kind).version for kind in KINDS)
        if version != self._seen or len(self._remembered) > _MAX_REMEMBERED:
            self._remembered.clear()
            self._seen = version
        namespace, labels = pod.metadata.namespace, pod.metadata.labels or {}
        key = (namespace, label_items(labels))
        if key not in self._remembered:
            self._remembered[key] = self._found(namespace, labels)
        return self._remembered[key]

    def _found(self, namespace: str, labels: Mapping[str, str]) -> Labels | None:
        equal: dict[str, str] = {}
        for selector in self._maps(namespace):
            if selector.items() <= labels.items():
                equal.update(selector)
        own = [Requirement(key, "In", frozenset((value,))) for key, value in equal.items()]
        sets = [r for selector in self._sets(namespace) if selector.matches(labels) for r in selector.requirements]
        return Labels(tuple(dict.fromkeys((*own, *sets)))) if own or sets else None

    def _maps(self, namespace: str) -> Iterator[Mapping[str, str]]:
        for service in self._snapshot.objects(Service).in_namespace(namespace):
            yield service.spec.selector or {}
        for controller in self._snapshot.objects(ReplicationController).in_namespace(namespace):
            yield controller.spec.selector or {}

    def _sets(self, namespace: str) -> Iterator[Labels]:
        for replicas in self._snapshot.objects(ReplicaSet).in_namespace(namespace):
            yield compile_label_selector(replicas.spec.selector)
        for stateful in self._snapshot.objects(StatefulSet).in_namespace(namespace):
            yield compile_label_selector(stateful.spec.selector)
