"""Topology counts: how many pods of which labels are on each row. Affinity and spread add them up by domain.

Placed pods that plugins cannot distinguish form one group: one namespace, one set of labels, the same pod affinities.
A query is evaluated once for each group. Then the group's pods are counted as they are placed and removed.
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
"""The most memory that all counts may use together; the least recently used are dropped."""

_MIN_QUERIES: Final = 16

_MAX_CACHED: Final = 4096
"""For how many sets of labels the matching terms are cached."""

_encode: Final = msgspec.json.Encoder().encode


class PodGroup:
    """Placed pods of one namespace, one set of labels and the same pod affinities.

    ``counts``: row to number of pods, only rows that have any. ``terminating`` pods make a group of their own, since
    spread does not count them. ``terms`` are the compiled affinities, ``counters`` the counts that include the pods,
    and how often each. ``last`` is the metadata of the pod that was placed last.
    """

    __slots__ = ("affinity", "counters", "counts", "key", "labels", "last", "namespace", "terminating", "terms")

    def __init__(self, key: GroupKey, affinity: Affinity | None) -> None:
        self.key = key
        self.namespace, labels, self.terminating, _ = key
        self.labels = dict(labels)
        self.affinity = affinity
        self.terms = compile_affinity_terms(affinity, self.namespace)
        self.counts: dict[int, int] = {}
        self.last: ObjectMeta | None = None
        self.counters: list[tuple[PodCounts, int]] = []


@dataclass(frozen=True, slots=True)
class PodsMatching:
    """Pods that all selectors match; ``living``: only those that are not terminating."""

    selectors: tuple[PodSelector, ...]
    living: bool = False

    def times(self, group: PodGroup, labels_of: LabelsOfNamespace) -> int:
        """1 for a group whose pods match, otherwise 0."""
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
        self._topology_counts = TopologyCounts(labels_of)
        self._terms = PlacedPodTerms(labels_of)
        self.namespaces = 0
        """The version of the namespaces' labels."""

    def of(self, pod: Pod) -> PodGroup:
        """The pod's group; a new one is stored when it is first counted."""
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
            self._add(group)
        left = group.counts.get(row, 0) + by
        if left:
            group.counts[row] = left
        else:
            group.counts.pop(row, None)
        for counter, times in group.counters:
            counter.counts[row] += times * by
        if not group.counts:
            self._remove(group)

    def count_pods(self, query: PodQuery) -> PodCounts:
        """How many pods that match a query are on each row."""
        return self._topology_counts.of(query, self.all, self.namespaces)

    def terms_matching(self, point: AffinityTermKind, namespace: str, labels: LabelItems) -> tuple[AffinityTerm, ...]:
        """The different affinity terms of placed pods that match a pod with these labels."""
        return self._terms.matching(point, namespace, labels, self.namespaces)

    def reserve(self, capacity: int) -> None:
        """Make room for this many rows."""
        self._topology_counts.reserve(capacity)

    def in_namespace(self, namespace: str) -> Iterable[PodGroup]:
        """The groups of a namespace."""
        return self._by_namespace.get(namespace, {}).values()

    def all(self) -> Iterable[PodGroup]:
        return (group for groups in self._by_namespace.values() for group in groups.values())

    def _add(self, group: PodGroup) -> None:
        self._by_namespace.setdefault(group.namespace, {})[group.key] = group
        self._topology_counts.join(group)
        self._terms.add(group, 1)

    def _remove(self, group: PodGroup) -> None:
        groups = self._by_namespace[group.namespace]
        del groups[group.key]
        self._terms.add(group, -1)
        if not groups:
            del self._by_namespace[group.namespace]


class TopologyCounts:
    """The counts of the most recently used queries."""

    def __init__(self, labels_of: LabelsOfNamespace) -> None:
        self._labels_of = labels_of
        self._by_query: OrderedDict[PodQuery, PodCounts] = OrderedDict()
        self._capacity = 0

    def __len__(self) -> int:
        return len(self._by_query)

    def of(self, query: PodQuery, groups: Callable[[], Iterable[PodGroup]], namespaces: int) -> PodCounts:
        """The counts of a query; computed again for a new query, or when ``namespaces`` (a version) has changed."""
        counter = self._by_query.get(query)
        if counter is not None and (counter.namespaces_seen == namespaces or not query.uses_namespace_labels):
            self._by_query.move_to_end(query)
            return counter
        every = list(groups())
        if counter is not None:
            self._drop(query, every)
        return self._make(query, every, namespaces)

    def join(self, group: PodGroup) -> None:
        """Include a new group's pods from now on; it has none yet."""
        answers = ((counter, query.times(group, self._labels_of)) for query, counter in self._by_query.items())
        group.counters = [(counter, times) for counter, times in answers if times]

    def reserve(self, capacity: int) -> None:
        """Make room for this many rows."""
        if capacity != self._capacity:
            self._capacity = capacity
            for counter in self._by_query.values():
                counter.counts = grown(counter.counts, capacity)

    def _make(self, query: PodQuery, groups: list[PodGroup], namespaces: int) -> PodCounts:
        counter = self._by_query[query] = PodCounts(self._capacity, namespaces)
        for group in groups:
            times = query.times(group, self._labels_of)
            if times:
                group.counters.append((counter, times))
                counter.counts[list(group.counts)] += np.array(list(group.counts.values()), dtype=np.int32) * times
        while len(self._by_query) > max(_MIN_QUERIES, _MAX_BYTES // (4 * self._capacity)):
            self._drop(next(iter(self._by_query)), groups)
        return counter

    def _drop(self, query: PodQuery, groups: Iterable[PodGroup]) -> None:
        counter = self._by_query.pop(query)
        for group in groups:
            group.counters = [entry for entry in group.counters if entry[0] is not counter]


class PodCounts:
    """The counts of one query. ``counts``: int32[capacity], read only."""

    __slots__ = ("counts", "namespaces_seen")

    def __init__(self, capacity: int, namespaces_seen: int) -> None:
        self.namespaces_seen = namespaces_seen
        self.counts: Counts = np.zeros(capacity, dtype=np.int32)


class PlacedPodTerms:
    """The different affinity terms of placed pods, by kind, with the number of groups that have each."""

    def __init__(self, labels_of: LabelsOfNamespace) -> None:
        self._labels_of = labels_of
        self._terms: dict[AffinityTermKind, Counter[AffinityTerm]] = {point: Counter() for point in AffinityTermKind}
        self._cached: OrderedDict[tuple[AffinityTermKind, str, LabelItems], tuple[AffinityTerm, ...]] = OrderedDict()
        self._namespaces_seen = 0

    def add(self, group: PodGroup, by: int) -> None:
        """A group is added (1) or removed (-1)."""
        for point, terms in self._terms.items():
            for term in group.terms.at(point):
                terms[term] += by
                if terms[term] == by or not terms[term]:
                    self._cached.clear()
                if not terms[term]:
                    del terms[term]

    def matching(
        self, point: AffinityTermKind, namespace: str, labels: LabelItems, namespaces: int
    ) -> tuple[AffinityTerm, ...]:
        """The terms that match a pod with these labels; ``namespaces`` is the version of the namespaces' labels."""
        if not self._terms[point]:
            return ()
        if namespaces != self._namespaces_seen:
            self._cached.clear()
            self._namespaces_seen = namespaces
        key = (point, namespace, labels)
        known = self._cached.get(key)
        if known is None:
            known = self._cached[key] = self._find(point, namespace, dict(labels))
            if len(self._cached) > _MAX_CACHED:
                self._cached.popitem(last=False)
        return known

    def _find(self, point: AffinityTermKind, namespace: str, labels: dict[str, str]) -> tuple[AffinityTerm, ...]:
        terms = self._terms[point]
        return tuple(term for term in terms if term.selector.matches(namespace, labels, self._labels_of))


def label_items(labels: Mapping[str, str] | None) -> LabelItems:
    """Labels in order: equal for equal labels, and hashable."""
    return tuple(sorted((labels or {}).items()))


def _pod_terms(affinity: Affinity | None) -> Affinity | None:
    if affinity is None or (affinity.pod_affinity is None and affinity.pod_anti_affinity is None):
        return None
    return msgspec.structs.replace(affinity, node_affinity=None)
