"""Topology counts: how many pods of which labels are on each row, which affinity and spread add up by domain.

Placed pods that plugins cannot tell apart are one group: one namespace, one set of labels, the same pod affinities. A
query is evaluated once for each group; from then on the group's pods are counted as they come and go.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from berth.api.meta import ObjectMeta
from berth.api.pod import Affinity, Pod
from berth.api.selectors import AffinityTerm, AffinityTermKind, LabelsOfNamespace, PodSelector, compile_affinity_terms
from berth.cluster.columns import grown

Counts = npt.NDArray[np.int32]

LabelItems = tuple[tuple[str, str], ...]
"""Labels in order."""

GroupKey = tuple[str, LabelItems, bool, bytes]

_MAX_BYTES: Final = 32 * 1024 * 1024
"""What all tallies may hold together; those that were not asked for longest are dropped."""

_MIN_TALLIES: Final = 16

_MAX_REMEMBERED: Final = 4096
"""For how many kinds of pods it is remembered which terms mean them."""

_encode: Final = msgspec.json.Encoder().encode


class PodGroup:
    """Placed pods of one namespace, one set of labels and the same pod affinities.

    ``counts``: row to number of pods, only rows that have any. ``terminating`` pods make a group of their own, since
    spread does not count them. ``terms`` are what the affinities compile to, ``tallies`` what the pods are counted in,
    and how often each. ``last`` is the metadata of the pod that was placed last.
    """

    __slots__ = ("affinity", "counts", "key", "labels", "last", "namespace", "tallies", "terminating", "terms")

    def __init__(self, key: GroupKey, affinity: Affinity | None) -> None:
        self.key = key
        self.namespace, labels, self.terminating, _ = key
        self.labels = dict(labels)
        self.affinity = affinity
        self.terms = compile_affinity_terms(affinity, self.namespace)
        self.counts: dict[int, int] = {}
        self.last: ObjectMeta | None = None
        self.tallies: list[tuple[PodCounts, int]] = []


@dataclass(frozen=True, slots=True)
class PodsMatching:
    """Pods that every selector means; ``living``: those only that are not being deleted."""

    selectors: tuple[PodSelector, ...]
    living: bool = False

    def times(self, group: PodGroup, labels_of: LabelsOfNamespace) -> int:
        """1 for a group whose pods are of the kind, otherwise 0."""
        if self.living and group.terminating:
            return 0
        return int(all(selector.matches(group.namespace, group.labels, labels_of) for selector in self.selectors))

    @property
    def uses_namespace_labels(self) -> bool:
        """Whether the answer depends on namespaces' labels."""
        return any(selector.uses_namespace_labels for selector in self.selectors)


@dataclass(frozen=True, slots=True)
class PodsWithTerm:
    """Pods that have the term themselves."""

    point: AffinityTermKind
    term: AffinityTerm

    def times(self, group: PodGroup, _: LabelsOfNamespace) -> int:
        """How often the group's pods have it."""
        return group.terms.at(self.point).count(self.term)

    @property
    def uses_namespace_labels(self) -> bool:
        """Whether the answer depends on namespaces' labels: it does not."""
        return False


PodQuery = PodsMatching | PodsWithTerm


class PodGroups:
    """All groups that have a pod, by namespace."""

    def __init__(self, labels_of: LabelsOfNamespace) -> None:
        self._by_namespace: dict[str, dict[GroupKey, PodGroup]] = {}
        self._tallies = TopologyCounts(labels_of)
        self._held = PlacedPodTerms(labels_of)
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

    def count_pods(self, kind: PodQuery) -> PodCounts:
        """How many pods of a kind are on each row."""
        return self._tallies.of(kind, self.all, self.namespaces)

    def terms_matching(self, point: AffinityTermKind, namespace: str, labels: LabelItems) -> tuple[AffinityTerm, ...]:
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


class TopologyCounts:
    """The tallies that were asked for last."""

    def __init__(self, labels_of: LabelsOfNamespace) -> None:
        self._labels_of = labels_of
        self._tallies: OrderedDict[PodQuery, PodCounts] = OrderedDict()
        self._capacity = 0

    def __len__(self) -> int:
        return len(self._tallies)

    def of(self, kind: PodQuery, groups: Callable[[], Iterable[PodGroup]], namespaces: int) -> PodCounts:
        """The tally of a kind; counted from all groups when it is new, or when ``namespaces`` (a version) moved on."""
        tally = self._tallies.get(kind)
        if tally is not None and (tally.namespaces_seen == namespaces or not kind.uses_namespace_labels):
            self._tallies.move_to_end(kind)
            return tally
        every = list(groups())
        if tally is not None:
            self._drop(kind, every)
        return self._make(kind, every, namespaces)

    def join(self, group: PodGroup) -> None:
        """Count a group's pods from now on; it has none yet."""
        answers = ((tally, kind.times(group, self._labels_of)) for kind, tally in self._tallies.items())
        group.tallies = [(tally, times) for tally, times in answers if times]

    def reserve(self, capacity: int) -> None:
        """Make room for this many rows."""
        if capacity != self._capacity:
            self._capacity = capacity
            for tally in self._tallies.values():
                tally.counts = grown(tally.counts, capacity)

    def _make(self, kind: PodQuery, groups: list[PodGroup], namespaces: int) -> PodCounts:
        tally = self._tallies[kind] = PodCounts(self._capacity, namespaces)
        for group in groups:
            times = kind.times(group, self._labels_of)
            if times:
                group.tallies.append((tally, times))
                tally.counts[list(group.counts)] += np.array(list(group.counts.values()), dtype=np.int32) * times
        while len(self._tallies) > max(_MIN_TALLIES, _MAX_BYTES // (4 * self._capacity)):
            self._drop(next(iter(self._tallies)), groups)
        return tally

    def _drop(self, kind: PodQuery, groups: Iterable[PodGroup]) -> None:
        tally = self._tallies.pop(kind)
        for group in groups:
            group.tallies = [entry for entry in group.tallies if entry[0] is not tally]


class PodCounts:
    """The pods of one kind. ``counts``: int32[capacity], to be read only."""

    __slots__ = ("counts", "namespaces_seen")

    def __init__(self, capacity: int, namespaces_seen: int) -> None:
        self.namespaces_seen = namespaces_seen
        self.counts: Counts = np.zeros(capacity, dtype=np.int32)


class PlacedPodTerms:
    """Every different term once, by point, however many pods have it."""

    def __init__(self, labels_of: LabelsOfNamespace) -> None:
        self._labels_of = labels_of
        self._held: dict[AffinityTermKind, Counter[AffinityTerm]] = {point: Counter() for point in AffinityTermKind}
        self._remembered: OrderedDict[tuple[AffinityTermKind, str, LabelItems], tuple[AffinityTerm, ...]] = (
            OrderedDict()
        )
        self._namespaces_seen = 0

    def add(self, group: PodGroup, by: int) -> None:
        """A group of pods comes (1) or goes (-1)."""
        for point, held in self._held.items():
            for term in group.terms.at(point):
                held[term] += by
                if held[term] == by or not held[term]:
                    self._remembered.clear()
                if not held[term]:
                    del held[term]

    def meaning(
        self, point: AffinityTermKind, namespace: str, labels: LabelItems, namespaces: int
    ) -> tuple[AffinityTerm, ...]:
        """The terms that mean a pod with these labels; ``namespaces`` is the version of what is known of them."""
        if not self._held[point]:
            return ()
        if namespaces != self._namespaces_seen:
            self._remembered.clear()
            self._namespaces_seen = namespaces
        key = (point, namespace, labels)
        known = self._remembered.get(key)
        if known is None:
            known = self._remembered[key] = self._find(point, namespace, dict(labels))
            if len(self._remembered) > _MAX_REMEMBERED:
                self._remembered.popitem(last=False)
        return known

    def _find(self, point: AffinityTermKind, namespace: str, labels: dict[str, str]) -> tuple[AffinityTerm, ...]:
        held = self._held[point]
        return tuple(term for term in held if term.selector.matches(namespace, labels, self._labels_of))


def label_items(labels: Mapping[str, str] | None) -> LabelItems:
    """Labels in order: equal for equal labels, and good as a key."""
    return tuple(sorted((labels or {}).items()))


def _pod_terms(affinity: Affinity | None) -> Affinity | None:
    if affinity is None or (affinity.pod_affinity is None and affinity.pod_anti_affinity is None):
        return None
    return msgspec.structs.replace(affinity, node_affinity=None)
