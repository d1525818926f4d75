"""How many pods of which labels are where: what affinity and spread are sums over."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from berth.api.pod import Affinity, Pod
from berth.api.podterms import LabelsOfNamespace, PodTerm, Point
from berth.cluster.heldterms import HeldTerms
from berth.cluster.podgroup import GroupKey, LabelItems, PodGroup, label_items
from berth.cluster.tallies import Kind, Tallies
from berth.cluster.tally import Tally

_encode: Final = msgspec.json.Encoder().encode


class PodGroups:
    """All groups that have a pod, by namespace."""

    def __init__(self, labels_of: LabelsOfNamespace) -> None:
        self._by_namespace: dict[str, dict[GroupKey, PodGroup]] = {}
        self._tallies = Tallies(labels_of)
        self._held = HeldTerms(labels_of)
        self.namespaces = 0
        """The version of what is known of namespaces."""

    def of(self, pod: Pod) -> PodGroup:
        """The pod's group; a new one is kept from its first count on."""
        affinity = _pod_terms(pod.spec.affinity)
        key = (
            pod.metadata.namespace,
            label_items(pod.metadata.labels),
            pod.metadata.deletion_timestamp is not None,
            _encode(affinity) if affinity else b"",
        )
        return self._by_namespace.get(key[0], {}).get(key) or PodGroup(key, affinity)

    def count(self, group: PodGroup, row: int, by: int) -> None:
        """Count pods of the group on a row, or off it."""
        if not group.counts:
            self._keep(group)
        left = group.counts.get(row, 0) + by
        if left:
            group.counts[row] = left
        else:
            group.counts.pop(row, None)
        for tally, times in group.tallies:
            tally.counts[row] += times * by
        if not group.counts:
            self._let_go(group)

    def tally(self, kind: Kind) -> Tally:
        """How many pods of a kind are on each row."""
        return self._tallies.of(kind, self.all, self.namespaces)

    def terms_about(self, point: Point, namespace: str, labels: LabelItems) -> tuple[PodTerm, ...]:
        """The different terms of placed pods that mean a pod with these labels."""
        return self._held.meaning(point, namespace, labels, self.namespaces)

    def reserve(self, capacity: int) -> None:
        """Make room for this many rows."""
        self._tallies.reserve(capacity)

    def in_namespace(self, namespace: str) -> Iterable[PodGroup]:
        """The groups of a namespace."""
        return self._by_namespace.get(namespace, {}).values()

    def all(self) -> Iterable[PodGroup]:
        """Every group."""
        return (group for groups in self._by_namespace.values() for group in groups.values())

    def _keep(self, group: PodGroup) -> None:
        self._by_namespace.setdefault(group.namespace, {})[group.key] = group
        self._tallies.join(group)
        self._held.add(group, 1)

    def _let_go(self, group: PodGroup) -> None:
        groups = self._by_namespace[group.namespace]
        del groups[group.key]
        self._held.add(group, -1)
        if not groups:
            del self._by_namespace[group.namespace]


def _pod_terms(affinity: Affinity | None) -> Affinity | None:
    if affinity is None or (affinity.pod_affinity is None and affinity.pod_anti_affinity is None):
        return None
    return msgspec.structs.replace(affinity, node_affinity=None)
