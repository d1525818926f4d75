"""Pod counts by topology domain for InterPodAffinity: for Filter, and weighted for Score.

Score: for each placed pod, in its node's domains: +weight per preferred affinity term of the incoming pod that matches
it, -weight per preferred anti-affinity term; the same for the placed pod's preferred terms that match the incoming pod;
and ``hardPodAffinityWeight`` per required affinity term of the placed pod that matches. A node's score is the sum over
its domains.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Self

import numpy as np

from berth.api.pod import Pod
from berth.api.selectors import AffinityTerm, AffinityTermKind, AffinityTerms
from berth.cluster.nodes import Mask, Nodes, RemovedPods
from berth.cluster.snapshot import Snapshot
from berth.cluster.topologycounts import LabelGroup, PodQuery, PodsMatching, PodsWithTerm, label_items
from berth.plugins.domains import DomainSums


@dataclass(slots=True)
class AffinityCounts:
    """Counts of pods that match the incoming pod's required terms, and of pods whose anti-affinity matches it."""

    terms: AffinityTerms
    # per required affinity term, the pods that match all of these terms, by the term's topology
    affinity: list[DomainSums] = field(default_factory=list)
    # per required anti-affinity term, the pods that match it
    anti_affinity: list[DomainSums] = field(default_factory=list)
    # by topology key, the existing pods whose required anti-affinity matches this pod
    existing_anti_affinity: dict[str, DomainSums] = field(default_factory=dict)
    # whether the pod matches its own affinity terms: the first pod of a group may go anywhere
    matches_itself: bool = False

    @property
    def is_empty(self) -> bool:
        """Whether there are no terms, so that Filter can be skipped."""
        return not (self.terms.required_affinity or self.terms.required_anti_affinity or self.existing_anti_affinity)

    def clone(self) -> Self:
        return type(self)(
            self.terms,
            [domains.clone() for domains in self.affinity],
            [domains.clone() for domains in self.anti_affinity],
            {key: domains.clone() for key, domains in self.existing_anti_affinity.items()},
            self.matches_itself,
        )

    def update(self, pod: Pod, other: Pod, row: int, by: int, snapshot: Snapshot) -> None:
        """Add (``by`` 1) or remove (-1) another pod on a row."""
        if self.terms.required_affinity and all(
            _matches(term, other, snapshot) for term in self.terms.required_affinity
        ):
            for domains in self.affinity:
                domains.add(row, by)
        for term, domains in zip(self.terms.required_anti_affinity, self.anti_affinity, strict=True):
            if _matches(term, other, snapshot):
                domains.add(row, by)
        for term in _terms_of(other, snapshot).required_anti_affinity:
            if _matches(term, pod, snapshot):
                self._existing_anti_affinity(term.topology_key, snapshot).add(row, by)

    def _existing_anti_affinity(self, key: str, snapshot: Snapshot) -> DomainSums:
        known = self.existing_anti_affinity.get(key)
        if known is None:
            known = self.existing_anti_affinity[key] = DomainSums.of_column(snapshot, key, snapshot.columns.nothing)
        return known

    # One row.

    def satisfies_affinity(self, row: int) -> bool:
        if not all(domains.has(row) for domains in self.affinity):
            return False
        return all(domains.at(row) > 0 for domains in self.affinity) or self._is_first()

    def satisfies_anti_affinity(self, row: int) -> bool:
        return not any(domains.at(row) > 0 for domains in self.anti_affinity)

    def satisfies_existing_anti_affinity(self, row: int) -> bool:
        return not any(domains.at(row) > 0 for domains in self.existing_anti_affinity.values())

    # Many nodes.

    def affinity_mask(self, nodes: Nodes) -> Mask:
        has_keys = _all_of(nodes, *(domains.present(nodes) for domains in self.affinity))
        if self._is_first():
            return has_keys
        return _all_of(nodes, has_keys, *(domains.of_nodes(nodes) > 0 for domains in self.affinity))

    def anti_affinity_mask(self, nodes: Nodes) -> Mask:
        return _all_of(nodes, *(domains.of_nodes(nodes) <= 0 for domains in self.anti_affinity))

    def existing_anti_affinity_mask(self, nodes: Nodes) -> Mask:
        return _all_of(nodes, *(domains.of_nodes(nodes) <= 0 for domains in self.existing_anti_affinity.values()))

    # For preemption, with pods removed.

    def anti_affinity_violated_without(self, nodes: Nodes, removed: RemovedPods) -> Mask:
        labels_of = nodes.snapshot.labels_of_namespace
        violated: Mask = np.zeros(len(nodes), dtype=np.bool_)
        for term, domains in zip(self.terms.required_anti_affinity, self.anti_affinity, strict=True):
            matching = partial(PodsMatching((term.selector,)).times, labels_of=labels_of)
            violated |= domains.of_nodes(nodes) - removed.count(matching) > 0
        return violated

    def existing_anti_affinity_violated_without(self, pod: Pod, nodes: Nodes, removed: RemovedPods) -> Mask:
        snapshot = nodes.snapshot

        def times(group: LabelGroup, key: str) -> int:
            terms = (term for term in group.terms.required_anti_affinity if term.topology_key == key)
            return sum(_matches(term, pod, snapshot) for term in terms)

        violated: Mask = np.zeros(len(nodes), dtype=np.bool_)
        for key, domains in self.existing_anti_affinity.items():
            violated |= domains.of_nodes(nodes) - removed.count(partial(times, key=key)) > 0
        return violated

    def _is_first(self) -> bool:
        return self.matches_itself and not any(domains.any() for domains in self.affinity)


def count_affinity(pod: Pod, terms: AffinityTerms, snapshot: Snapshot) -> AffinityCounts:
    """The counts of Filter for the pod's own terms; computed once in PreFilter."""
    namespace = pod.metadata.namespace
    found = AffinityCounts(terms)
    if terms.required_affinity:
        everyone = snapshot.groups.count_pods(
            PodsMatching(tuple(term.selector for term in terms.required_affinity))
        ).counts
        found.affinity = [
            DomainSums.of_column(snapshot, term.topology_key, everyone) for term in terms.required_affinity
        ]
        found.matches_itself = all(_matches(term, pod, snapshot) for term in terms.required_affinity)
    found.anti_affinity = [
        _count_domains(term, PodsMatching((term.selector,)), snapshot) for term in terms.required_anti_affinity
    ]
    existing = snapshot.groups.terms_matching(
        AffinityTermKind.REQUIRED_ANTI_AFFINITY, namespace, label_items(pod.metadata.labels)
    )
    for key in dict.fromkeys(term.topology_key for term in existing):
        holders = (
            PodsWithTerm(AffinityTermKind.REQUIRED_ANTI_AFFINITY, term) for term in existing if term.topology_key == key
        )
        counts = sum(
            (snapshot.groups.count_pods(kind).counts for kind in holders), np.zeros_like(snapshot.columns.pods)
        )
        domains = DomainSums.of_column(snapshot, key, counts)
        if domains.any():
            found.existing_anti_affinity[key] = domains
    return found


def _count_domains(term: AffinityTerm, kind: PodsMatching, snapshot: Snapshot) -> DomainSums:
    return DomainSums.of_column(snapshot, term.topology_key, snapshot.groups.count_pods(kind).counts)


@dataclass(frozen=True, slots=True)
class ScoredTerm:
    """Each pod of the kind adds the weight to its domain of this topology key."""

    key: str
    kind: PodQuery
    weight: int


def scored_terms(pod: Pod, terms: AffinityTerms, snapshot: Snapshot, *, hard_weight: int) -> Iterator[ScoredTerm]:
    """All terms that contribute to a pod's score: its own, and placed pods' terms that match it."""
    for term in terms.preferred_affinity:
        yield ScoredTerm(term.topology_key, PodsMatching((term.selector,)), term.weight)
    for term in terms.preferred_anti_affinity:
        yield ScoredTerm(term.topology_key, PodsMatching((term.selector,)), -term.weight)
    namespace, labels = pod.metadata.namespace, label_items(pod.metadata.labels)
    for point, sign in (
        (AffinityTermKind.REQUIRED_AFFINITY, hard_weight),
        (AffinityTermKind.PREFERRED_AFFINITY, 1),
        (AffinityTermKind.PREFERRED_ANTI_AFFINITY, -1),
    ):
        for term in snapshot.groups.terms_matching(point, namespace, labels) if sign else ():
            yield ScoredTerm(term.topology_key, PodsWithTerm(point, term), sign * (term.weight or 1))


def own_points(pod: Pod, terms: AffinityTerms, snapshot: Snapshot, *, hard_weight: int) -> Iterator[tuple[str, int]]:
    """By topology key, the points that one more equal pod adds to its domain, by terms that match the pod itself."""
    for kind, factor in ((terms.preferred_affinity, 2), (terms.preferred_anti_affinity, -2)):
        for term in kind:
            if _matches(term, pod, snapshot):
                yield term.topology_key, factor * term.weight
    for term in terms.required_affinity:
        if _matches(term, pod, snapshot):
            yield term.topology_key, hard_weight


def topology_scores(terms: Iterable[ScoredTerm], snapshot: Snapshot) -> list[DomainSums]:
    """The sums per topology key; empty if no counted pod is in a domain: Score is then skipped."""
    by_key: dict[str, list[ScoredTerm]] = {}
    for term in terms:
        by_key.setdefault(term.key, []).append(term)
    sums = [_topology_score(key, of_key, snapshot) for key, of_key in by_key.items()]
    return [domains for domains in sums if domains is not None]


def _topology_score(key: str, terms: Iterable[ScoredTerm], snapshot: Snapshot) -> DomainSums | None:
    """The key's scores; None if no counted pod is in a domain; a sum of 0 counts."""
    total = np.zeros(snapshot.columns.capacity, dtype=np.float64)
    touched = np.zeros(snapshot.columns.capacity, dtype=np.bool_)
    for term in terms:
        counts = snapshot.groups.count_pods(term.kind).counts
        total += float(term.weight) * counts  # the negative of the least int32 is no int32
        touched |= counts > 0
    domains = DomainSums.of_column(snapshot, key, total)
    return domains if bool(np.any(touched[: snapshot.size] & (domains.codes >= 0))) else None


def _terms_of(pod: Pod, snapshot: Snapshot) -> AffinityTerms:
    """A placed pod's terms are compiled once for its group."""
    placed = snapshot.placed(pod.uid)
    return snapshot.groups.of(pod).terms if placed is None else placed.group.terms


def _matches(term: AffinityTerm, pod: Pod, snapshot: Snapshot) -> bool:
    meta = pod.metadata
    return term.selector.matches(meta.namespace, meta.labels or {}, snapshot.labels_of_namespace)


def _all_of(nodes: Nodes, *masks: Mask) -> Mask:
    everywhere: Mask = np.ones(len(nodes), dtype=np.bool_)
    for mask in masks:
        everywhere &= mask
    return everywhere
