"""Topology counts: pods by labels and row. Affinity and spread add them up by domain.

Placed pods that plugins cannot distinguish form one group: one namespace, one set of labels, the same pod affinities. A
query is evaluated once per group; from then on the group's pods are counted as they are placed and removed.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import chain, count
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from berth.api.meta import ObjectMeta
from berth.api.pod import Affinity, Pod
from berth.api.podlimits import pod_affinity_counts
from berth.api.selectors import (
    NO_AFFINITY_TERMS,
    AffinityTerm,
    AffinityTermKind,
    LabelsOfNamespace,
    PodSelector,
    compile_affinity_terms,
)
from berth.cluster.columns import grown

Counts = npt.NDArray[np.int32]

LabelItems = tuple[tuple[str, str], ...]  # sorted

GroupKey = tuple[str, LabelItems, bool, bytes]

# Bytes that all counts may use together; the least recently used are dropped.
_MAX_BYTES: Final = 32 * 1024 * 1024

_MIN_QUERIES: Final = 16

# Sets of labels for which the matching terms are cached.
_MAX_CACHED: Final = 4096

_encode: Final = msgspec.json.Encoder().encode


class LabelGroup:
    """Placed pods of one namespace, one set of labels and the same pod affinities.

    ``counts``: row to number of pods, without zeros. ``terminating`` pods form a group of their own, because spread
    does not count them. ``terms`` are the compiled affinities that count, ``counters`` the counts that include the
    pods, and how often each. ``last`` is the metadata of the pod placed last.
    """

    __slots__ = ("affinity", "counters", "counts", "key", "labels", "last", "namespace", "terminating", "terms")

    def __init__(self, key: GroupKey, affinity: Affinity | None) -> None:
        self.key = key
        self.namespace, labels, self.terminating, _ = key
        self.labels = dict(labels)
        self.affinity = affinity
        self.terms = compile_affinity_terms(affinity, self.namespace) if affinity else NO_AFFINITY_TERMS
        self.counts: dict[int, int] = {}
        self.last: ObjectMeta | None = None
        self.counters: dict[PodCounts, int] = {}

    def copied(self) -> LabelGroup:
        """The same pods; the counts that include them are made anew."""
        copy = self.emptied()
        copy.counts = self.counts.copy()
        return copy

    def emptied(self) -> LabelGroup:
        """The group before its first pod."""
        copy = LabelGroup.__new__(LabelGroup)
        copy.key, copy.labels, copy.affinity, copy.terms = self.key, self.labels, self.affinity, self.terms
        copy.namespace, copy.terminating = self.namespace, self.terminating
        copy.counts, copy.counters, copy.last = {}, {}, self.last
        return copy

    def distinct_terms(self) -> Iterable[tuple[AffinityTermKind, AffinityTerm, int]]:
        """Each term once, with how often the pods have it."""
        if self.affinity is None:
            return
        for kind in AffinityTermKind:
            for term, times in Counter(self.terms.at(kind)).items():
                yield kind, term, times


@dataclass(frozen=True, slots=True)
class PodsMatching:
    """Pods that all selectors match; with ``living`` only those that are not terminating."""

    selectors: tuple[PodSelector, ...]
    living: bool = False
    # Kept, because counts are looked up by it once or twice a cycle and the selectors are deep.
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash((self.selectors, self.living)))

    def __hash__(self) -> int:
        return self._hash

    def times(self, group: LabelGroup, labels_of: LabelsOfNamespace) -> int:
        """1 for a group whose pods match, otherwise 0."""
        if self.living and group.terminating:
            return 0
        return int(all(selector.matches(group.namespace, group.labels, labels_of) for selector in self.selectors))

    @property
    def namespaces(self) -> Iterable[str] | None:
        """The only namespaces whose pods can match; None if any can."""
        return next((each.namespaces for each in self.selectors if not each.uses_namespace_labels), None)

    @property
    def uses_namespace_labels(self) -> bool:
        return any(selector.uses_namespace_labels for selector in self.selectors)


@dataclass(frozen=True, slots=True)
class PodsWithTerm:
    """Pods that have the term themselves."""

    point: AffinityTermKind
    term: AffinityTerm

    @property
    def uses_namespace_labels(self) -> bool:
        return False


PodQuery = PodsMatching | PodsWithTerm


class LabelGroups:
    """All groups with pods, by namespace."""

    def __init__(self, labels_of: LabelsOfNamespace) -> None:
        self._labels_of = labels_of
        self._by_namespace: dict[str, dict[GroupKey, LabelGroup]] = {}
        self._topology_counts = TopologyCounts(labels_of)
        self._terms = PlacedPodTerms(labels_of)
        self.namespaces = 0  # the version of the namespaces' labels

    def copied(self, labels_of: LabelsOfNamespace, capacity: int) -> LabelGroups:
        """A copy for a copy of the Snapshot, whose pods name the groups of this one."""
        return _CopiedGroups(self, labels_of, capacity)

    def of(self, pod: Pod) -> LabelGroup:
        """The pod's group; a new one is stored when first counted. Affinity above the limits is left out."""
        affinity = _pod_terms(pod.spec.affinity)
        key = (
            pod.metadata.namespace,
            label_items(pod.metadata.labels),
            pod.metadata.deletion_timestamp is not None,
            _encode(affinity) if affinity else b"",
        )
        return self._by_namespace.get(key[0], {}).get(key) or LabelGroup(key, affinity)

    def count(self, group: LabelGroup, row: int, by: int) -> None:
        """Count pods of the group on a row, or remove them from it."""
        if not group.counts:
            self._add(group)
        left = group.counts.get(row, 0) + by
        if left:
            group.counts[row] = left
        else:
            group.counts.pop(row, None)
        for counter, times in group.counters.items():
            counter.counts[row] += times * by
        if not group.counts:
            self._remove(group)

    def count_pods(self, query: PodQuery) -> PodCounts:
        """The number of matching pods per row."""
        known = self._topology_counts.known(query, self.namespaces)
        return known or self._topology_counts.make(query, self._counted_by(query), self.namespaces)

    def have_terms(self, points: Iterable[AffinityTermKind]) -> bool:
        """Whether any placed pod has affinity terms of these kinds."""
        return any(map(self._terms.have, points))

    @property
    def have_any_terms(self) -> bool:
        """Whether any placed pod has affinity terms."""
        return self._terms.are_any

    def terms_matching(self, point: AffinityTermKind, namespace: str, labels: LabelItems) -> tuple[AffinityTerm, ...]:
        """The distinct affinity terms of placed pods that match a pod with these labels."""
        return self._terms.matching(point, namespace, labels, self.namespaces)

    def reserve(self, capacity: int) -> None:
        """Make room for this many rows."""
        self._topology_counts.reserve(capacity)

    def in_namespace(self, namespace: str) -> Iterable[LabelGroup]:
        return self._by_namespace.get(namespace, {}).values()

    def all(self) -> Iterable[LabelGroup]:
        return (group for groups in self._by_namespace.values() for group in groups.values())

    def _counted_by(self, query: PodQuery) -> Iterable[tuple[LabelGroup, int]]:
        if isinstance(query, PodsWithTerm):
            return self._terms.groups_with(query.point, query.term)
        named = query.namespaces
        groups = self.all() if named is None else chain.from_iterable(map(self.in_namespace, named))
        return ((group, 1) for group in groups if query.times(group, self._labels_of))

    def _add(self, group: LabelGroup) -> None:
        self._by_namespace.setdefault(group.namespace, {})[group.key] = group
        self._topology_counts.join(group)
        self._terms.add(group)

    def _remove(self, group: LabelGroup) -> None:
        groups = self._by_namespace[group.namespace]
        del groups[group.key]
        self._topology_counts.leave(group)
        self._terms.remove(group)
        if not groups:
            del self._by_namespace[group.namespace]


class _CopiedGroups(LabelGroups):
    """The groups of a copied Snapshot: placed pods name the original's, and count in the copies."""

    def __init__(self, original: LabelGroups, labels_of: LabelsOfNamespace, capacity: int) -> None:
        super().__init__(labels_of)
        self.namespaces = original.namespaces
        self.reserve(capacity)
        for group in original.all():
            self._by_namespace.setdefault(group.namespace, {})[group.key] = copy = group.copied()
            if copy.affinity is not None:
                self._terms.add(copy)

    def count(self, group: LabelGroup, row: int, by: int) -> None:
        own = self._by_namespace.get(group.namespace, {}).get(group.key)
        super().count(own or group.emptied(), row, by)


class TopologyCounts:
    """The counts of the most recently used queries.

    A new group is compared only with queries that may count its namespace, so that one tenant's queries cost other
    tenants' pods nothing.
    """

    def __init__(self, labels_of: LabelsOfNamespace) -> None:
        self._labels_of = labels_of
        self._by_query: OrderedDict[PodQuery, PodCounts] = OrderedDict()
        self._by_namespace: dict[str, dict[PodsMatching, PodCounts]] = {}
        self._of_any_namespace: dict[PodsMatching, PodCounts] = {}
        self._capacity = 0

    def __len__(self) -> int:
        return len(self._by_query)

    def known(self, query: PodQuery, namespaces: int) -> PodCounts | None:
        """The counts of a query; None if it is new or ``namespaces`` (a version) has changed."""
        counter = self._by_query.get(query)
        if counter is None or (counter.namespaces_seen != namespaces and query.uses_namespace_labels):
            return None
        self._by_query.move_to_end(query)
        return counter

    def make(self, query: PodQuery, counted: Iterable[tuple[LabelGroup, int]], namespaces: int) -> PodCounts:
        """Count the pods of these groups, each that often, and keep the counts up to date from here on."""
        if query in self._by_query:
            self._drop(query)
        counter = self._by_query[query] = PodCounts(self._capacity, namespaces)
        for group, times in counted:
            counter.include(group, times)
            counter.counts[list(group.counts)] += np.array(list(group.counts.values()), dtype=np.int32) * times
        if isinstance(query, PodsMatching):
            for queries in self._indexed(query):
                queries[query] = counter
        while len(self._by_query) > max(_MIN_QUERIES, _MAX_BYTES // (4 * self._capacity)):
            self._drop(next(iter(self._by_query)))
        return counter

    def join(self, group: LabelGroup) -> None:
        """Include a new group's pods from now on; it is still empty."""
        of_namespace = self._by_namespace.get(group.namespace, {})
        for query, counter in chain(of_namespace.items(), self._of_any_namespace.items()):
            if times := query.times(group, self._labels_of):
                counter.include(group, times)
        for kind, term, times in group.distinct_terms():
            holders = self._by_query.get(PodsWithTerm(kind, term))
            if holders is not None:
                holders.include(group, times)

    def leave(self, group: LabelGroup) -> None:
        """Drop a group without pods."""
        for counter in group.counters:
            counter.groups.discard(group)
        group.counters = {}

    def reserve(self, capacity: int) -> None:
        """Make room for more rows."""
        if capacity != self._capacity:
            self._capacity = capacity
            for counter in self._by_query.values():
                counter.counts = grown(counter.counts, capacity)

    def _drop(self, query: PodQuery) -> None:
        counter = self._by_query.pop(query)
        for group in counter.groups:
            del group.counters[counter]
        if isinstance(query, PodsMatching):
            for queries in self._indexed(query):
                queries.pop(query, None)
            for namespace in query.namespaces or ():
                if not self._by_namespace[namespace]:
                    del self._by_namespace[namespace]

    def _indexed(self, query: PodsMatching) -> list[dict[PodsMatching, PodCounts]]:
        """The namespaces under which a query is compared with a new group, or None for all groups."""
        named = query.namespaces
        if named is None:
            return [self._of_any_namespace]
        return [self._by_namespace.setdefault(namespace, {}) for namespace in named]


class PodCounts:
    """The counts of one query. ``counts``: int32[capacity], read only; ``groups``: the groups counted."""

    __slots__ = ("counts", "groups", "namespaces_seen")

    def __init__(self, capacity: int, namespaces_seen: int) -> None:
        self.namespaces_seen = namespaces_seen
        self.counts: Counts = np.zeros(capacity, dtype=np.int32)
        self.groups: set[LabelGroup] = set()

    def include(self, group: LabelGroup, times: int) -> None:
        """Count the group's pods from now on, each that often."""
        self.groups.add(group)
        group.counters[self] = times


class PlacedPodTerms:
    """The distinct affinity terms of placed pods, by kind, with the groups that have each.

    A term that names namespaces is compared only with pods of these, so that one tenant's terms cost the pods of others
    nothing unless the terms are about them.
    """

    def __init__(self, labels_of: LabelsOfNamespace) -> None:
        self._labels_of = labels_of
        self._groups: dict[AffinityTermKind, dict[AffinityTerm, dict[LabelGroup, int]]] = {
            kind: {} for kind in AffinityTermKind
        }
        # By namespace; "" for terms about any.
        self._by_namespace: dict[tuple[AffinityTermKind, str], dict[AffinityTerm, None]] = {}
        # The version of the last change of a namespace's terms; absent without terms.
        self._changed: dict[tuple[AffinityTermKind, str], int] = {}
        self._changes = count(1)
        self._cached: OrderedDict[tuple[AffinityTermKind, str, LabelItems], tuple[object, tuple[AffinityTerm, ...]]]
        self._cached = OrderedDict()

    def add(self, group: LabelGroup) -> None:
        for kind, term, times in group.distinct_terms():
            groups = self._groups[kind].setdefault(term, {})
            if not groups:
                for key in _places(kind, term):
                    self._by_namespace.setdefault(key, {})[term] = None
                    self._changed[key] = next(self._changes)
            groups[group] = times

    def remove(self, group: LabelGroup) -> None:
        for kind, term, _ in group.distinct_terms():
            groups = self._groups[kind][term]
            del groups[group]
            if not groups:
                del self._groups[kind][term]
                for key in _places(kind, term):
                    self._forget(key, term)

    @property
    def are_any(self) -> bool:
        return any(self._groups.values())

    def have(self, point: AffinityTermKind) -> bool:
        return bool(self._groups[point])

    def groups_with(self, point: AffinityTermKind, term: AffinityTerm) -> Collection[tuple[LabelGroup, int]]:
        """The groups whose pods have the term, and how often each pod has it."""
        return self._groups[point].get(term, {}).items()

    def matching(
        self, point: AffinityTermKind, namespace: str, labels: LabelItems, namespaces: int
    ) -> tuple[AffinityTerm, ...]:
        """The terms that match a pod with these labels; ``namespaces`` is the version of the namespaces' labels."""
        if not self._groups[point]:
            return ()
        here, anywhere = (point, namespace), (point, "")
        state = (self._changed.get(here), self._changed.get(anywhere), namespaces)
        key = (point, namespace, labels)
        known = self._cached.get(key)
        if known is not None and known[0] == state:
            return known[1]
        of_labels = dict(labels)
        candidates = chain(self._by_namespace.get(here, ()), self._by_namespace.get(anywhere, ()))
        found = tuple(term for term in candidates if term.selector.matches(namespace, of_labels, self._labels_of))
        self._cached[key] = (state, found)
        if len(self._cached) > _MAX_CACHED:
            self._cached.popitem(last=False)
        return found

    def _forget(self, key: tuple[AffinityTermKind, str], term: AffinityTerm) -> None:
        terms = self._by_namespace[key]
        del terms[term]
        self._changed[key] = next(self._changes)
        if not terms:
            del self._by_namespace[key], self._changed[key]
        if not self._by_namespace:
            self._cached.clear()


def _places(kind: AffinityTermKind, term: AffinityTerm) -> Iterable[tuple[AffinityTermKind, str]]:
    """The namespaces that a term names, or "" for all."""
    if term.selector.uses_namespace_labels:
        return ((kind, ""),)
    return [(kind, namespace) for namespace in term.selector.namespaces]


def label_items(labels: Mapping[str, str] | None) -> LabelItems:
    """Sorted labels: equal for equal labels, and hashable."""
    return tuple(sorted((labels or {}).items()))


def _pod_terms(affinity: Affinity | None) -> Affinity | None:
    if affinity is None or (affinity.pod_affinity is None and affinity.pod_anti_affinity is None):
        return None
    if not pod_affinity_counts(affinity):
        return None
    return msgspec.structs.replace(affinity, node_affinity=None)
