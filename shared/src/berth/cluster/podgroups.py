"""How many pods of which labels are where: what affinity and spread are sums over."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from berth.api.pod import Affinity, Pod

GroupKey = tuple[str, tuple[tuple[str, str], ...], bool, bytes]
_encode: Final = msgspec.json.Encoder().encode


class PodGroup:
    """Placed pods of one namespace, one set of labels and the same pod affinities.

    ``counts``: row to number of pods, only rows that have any. ``terminating`` pods make a group of their own, since
    spread does not count them.
    """

    __slots__ = ("affinity", "counts", "key", "labels", "namespace", "terminating")

    def __init__(self, key: GroupKey, affinity: Affinity | None) -> None:
        self.key = key
        self.namespace, labels, self.terminating, _ = key
        self.labels = dict(labels)
        self.affinity = affinity
        self.counts: dict[int, int] = {}


class PodGroups:
    """All groups that have a pod, by namespace."""

    def __init__(self) -> None:
        self._by_namespace: dict[str, dict[GroupKey, PodGroup]] = {}

    def of(self, pod: Pod) -> PodGroup:
        """The pod's group; a new one is kept from its first count on."""
        affinity = _pod_terms(pod.spec.affinity)
        key = (
            pod.metadata.namespace,
            tuple(sorted((pod.metadata.labels or {}).items())),
            pod.metadata.deletion_timestamp is not None,
            _encode(affinity) if affinity else b"",
        )
        return self._by_namespace.get(key[0], {}).get(key) or PodGroup(key, affinity)

    def count(self, group: PodGroup, row: int, by: int) -> None:
        """Count pods of the group on a row, or off it."""
        left = group.counts.get(row, 0) + by
        if left:
            group.counts[row] = left
        else:
            group.counts.pop(row, None)
        self._keep(group)

    def in_namespace(self, namespace: str) -> Iterable[PodGroup]:
        """The groups of a namespace."""
        return self._by_namespace.get(namespace, {}).values()

    def all(self) -> Iterable[PodGroup]:
        """Every group."""
        return (group for groups in self._by_namespace.values() for group in groups.values())

    def _keep(self, group: PodGroup) -> None:
        groups = self._by_namespace.setdefault(group.namespace, {})
        if group.counts:
            groups[group.key] = group
        else:
            groups.pop(group.key, None)
        if not groups:
            del self._by_namespace[group.namespace]


def _pod_terms(affinity: Affinity | None) -> Affinity | None:
    if affinity is None or (affinity.pod_affinity is None and affinity.pod_anti_affinity is None):
        return None
    return msgspec.structs.replace(affinity, node_affinity=None)
