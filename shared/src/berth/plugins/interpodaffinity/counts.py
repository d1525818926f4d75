"""What InterPodAffinity's filter knows in one cycle: how many pods that matter are in which domain.

What InterPodAffinity's score adds up: weights of preferences, the pod's own and those of placed pods, by domain.

For each placed pod, in its node's domain: +weight for each preferred term of the pod that means it and -weight for each
preferred term of anti-affinity; ``hardPodAffinityWeight`` for each of its required terms that means the pod, and its
own preferences about the pod likewise. A node has the sum over its domains.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Self

import numpy as np

from berth.api.pod import Pod
from berth.api.selectors import AffinityTerm, AffinityTermKind, AffinityTerms, compile_affinity_terms
from berth.cluster.nodes import Gone, Mask, Nodes
from berth.cluster.snapshot import Snapshot
from berth.cluster.topologycounts import HoldersOf, Kind, PodGroup, PodKind, label_items
from berth.plugins.domains import Domains


@dataclass(slots=True)
class Meetings:
    """Domains of a pod's own terms, and of other pods' terms against it.

    Attributes:
        required: for each required term, pods that satisfy all of them, by the term's topology.
        apart: for each term of anti-affinity, the pods that it means.
        refusing: by topology key, pods that are to be kept apart from this one.
        matches_itself: whether the pod satisfies its own required terms: the first of a group may go anywhere.
    """

    terms: AffinityTerms
    required: list[Domains] = field(default_factory=list)
    apart: list[Domains] = field(default_factory=list)
    refusing: dict[str, Domains] = field(default_factory=dict)
    matches_itself: bool = False

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to filter by."""
        return not (self.terms.required_affinity or self.terms.required_anti_affinity or self.refusing)

    def clone(self) -> Self:
        """A copy that may be changed."""
        return type(self)(
            self.terms,
            [domains.clone() for domains in self.required],
            [domains.clone() for domains in self.apart],
            {key: domains.clone() for key, domains in self.refusing.items()},
            self.matches_itself,
        )

    def change(self, pod: Pod, other: Pod, row: int, by: int, snapshot: Snapshot) -> None:
        """Another pod is supposed to come to a row, or to leave it."""
        if self.terms.required_affinity and all(_means(term, other, snapshot) for term in self.terms.required_affinity):
            for domains in self.required:
                domains.add(row, by)
        for term, domains in zip(self.terms.required_anti_affinity, self.apart, strict=True):
            if _means(term, other, snapshot):
                domains.add(row, by)
        for term in compile_affinity_terms(other.spec.affinity, other.metadata.namespace).required_anti_affinity:
            if _means(term, pod, snapshot):
                self._refusing(term.topology_key, snapshot).add(row, by)

    def _refusing(self, key: str, snapshot: Snapshot) -> Domains:
        known = self.refusing.get(key)
        if known is None:
            known = self.refusing[key] = Domains.adding(snapshot, key, snapshot.columns.nothing)
        return known

    # One row.

    def is_together(self, row: int) -> bool:
        """Whether every required term is satisfied there."""
        if not all(domains.has(row) for domains in self.required):
            return False
        return all(domains.at(row) > 0 for domains in self.required) or self._is_first()

    def is_apart(self, row: int) -> bool:
        """Whether nobody is there from whom the pod keeps apart."""
        return not any(domains.at(row) > 0 for domains in self.apart)

    def is_let_in(self, row: int) -> bool:
        """Whether nobody is there who keeps apart from the pod."""
        return not any(domains.at(row) > 0 for domains in self.refusing.values())

    # The same for many nodes.

    def together(self, nodes: Nodes) -> Mask:
        """Where every required term is satisfied."""
        met = _everywhere(nodes, *(domains.present(nodes) for domains in self.required))
        return (
            met if self._is_first() else _everywhere(nodes, met, *(domains.on(nodes) > 0 for domains in self.required))
        )

    def kept_apart(self, nodes: Nodes) -> Mask:
        """Where nobody is from whom the pod keeps apart."""
        return _everywhere(nodes, *(domains.on(nodes) <= 0 for domains in self.apart))

    def let_in(self, nodes: Nodes) -> Mask:
        """Where nobody is who keeps apart from the pod."""
        return _everywhere(nodes, *(domains.on(nodes) <= 0 for domains in self.refusing.values()))

    # The same as if pods were gone.

    def still_apart(self, nodes: Nodes, gone: Gone) -> Mask:
        """Where somebody is left from whom the pod keeps apart."""
        labels_of = nodes.snapshot.labels_of_namespace
        refused: Mask = np.zeros(len(nodes), dtype=np.bool_)
        for term, domains in zip(self.terms.required_anti_affinity, self.apart, strict=True):
            meant = partial(PodKind((term.selector,)).times, labels_of=labels_of)
            refused |= domains.on(nodes) - gone.count(meant) > 0
        return refused

    def still_refusing(self, pod: Pod, nodes: Nodes, gone: Gone) -> Mask:
        """Where somebody is left who keeps apart from the pod."""
        snapshot = nodes.snapshot

        def times(group: PodGroup, key: str) -> int:
            terms = (term for term in group.terms.required_anti_affinity if term.topology_key == key)
            return sum(_means(term, pod, snapshot) for term in terms)

        refused: Mask = np.zeros(len(nodes), dtype=np.bool_)
        for key, domains in self.refusing.items():
            refused |= domains.on(nodes) - gone.count(partial(times, key=key)) > 0
        return refused

    def _is_first(self) -> bool:
        return self.matches_itself and not any(domains.any() for domains in self.required)


def meetings_of(pod: Pod, snapshot: Snapshot) -> Meetings:
    """What there is to know before any node is looked at."""
    terms, namespace = compile_affinity_terms(pod.spec.affinity, pod.metadata.namespace), pod.metadata.namespace
    found = Meetings(terms)
    if terms.required_affinity:
        everyone = snapshot.groups.tally(PodKind(tuple(term.selector for term in terms.required_affinity))).counts
        found.required = [Domains.adding(snapshot, term.topology_key, everyone) for term in terms.required_affinity]
        found.matches_itself = all(_means(term, pod, snapshot) for term in terms.required_affinity)
    found.apart = [_domains_of(term, PodKind((term.selector,)), snapshot) for term in terms.required_anti_affinity]
    refusing = snapshot.groups.terms_about(
        AffinityTermKind.REQUIRED_ANTI_AFFINITY, namespace, label_items(pod.metadata.labels)
    )
    for key in dict.fromkeys(term.topology_key for term in refusing):
        holders = (
            HoldersOf(AffinityTermKind.REQUIRED_ANTI_AFFINITY, term) for term in refusing if term.topology_key == key
        )
        counts = sum((snapshot.groups.tally(kind).counts for kind in holders), np.zeros_like(snapshot.columns.pods))
        domains = Domains.adding(snapshot, key, counts)
        if domains.any():
            found.refusing[key] = domains
    return found


def _domains_of(term: AffinityTerm, kind: PodKind, snapshot: Snapshot) -> Domains:
    return Domains.adding(snapshot, term.topology_key, snapshot.groups.tally(kind).counts)


def _means(term: AffinityTerm, pod: Pod, snapshot: Snapshot) -> bool:
    meta = pod.metadata
    return term.selector.matches(meta.namespace, meta.labels or {}, snapshot.labels_of_namespace)


def _everywhere(nodes: Nodes, *masks: Mask) -> Mask:
    everywhere: Mask = np.ones(len(nodes), dtype=np.bool_)
    for mask in masks:
        everywhere &= mask
    return everywhere


@dataclass(frozen=True, slots=True)
class Wish:
    """In the domains of this key, each pod of the kind counts with this weight."""

    key: str
    kind: Kind
    weight: int


def wishes_of(pod: Pod, terms: AffinityTerms, snapshot: Snapshot, *, hard_weight: int) -> Iterator[Wish]:
    """Everything that counts for a pod."""
    for term in terms.preferred_affinity:
        yield Wish(term.topology_key, PodKind((term.selector,)), term.weight)
    for term in terms.preferred_anti_affinity:
        yield Wish(term.topology_key, PodKind((term.selector,)), -term.weight)
    namespace, labels = pod.metadata.namespace, label_items(pod.metadata.labels)
    for point, sign in (
        (AffinityTermKind.REQUIRED_AFFINITY, hard_weight),
        (AffinityTermKind.PREFERRED_AFFINITY, 1),
        (AffinityTermKind.PREFERRED_ANTI_AFFINITY, -1),
    ):
        for term in snapshot.groups.terms_about(point, namespace, labels) if sign else ():
            yield Wish(term.topology_key, HoldersOf(point, term), sign * (term.weight or 1))


def added_up(wishes: Iterable[Wish], snapshot: Snapshot) -> list[Domains]:
    """One for each topology key; none at all when no pod is in any domain: then there is nothing to score by."""
    by_key: dict[str, list[Wish]] = {}
    for wish in wishes:
        by_key.setdefault(wish.key, []).append(wish)
    sums = [_sum(key, wanted, snapshot) for key, wanted in by_key.items()]
    return [domains for domains in sums if domains is not None]


def _sum(key: str, wishes: Iterable[Wish], snapshot: Snapshot) -> Domains | None:
    """None when no pod that counts is in a domain; a sum of 0 is a sum."""
    total = np.zeros(snapshot.columns.capacity, dtype=np.float64)
    touched = np.zeros(snapshot.columns.capacity, dtype=np.bool_)
    for wish in wishes:
        counts = snapshot.groups.tally(wish.kind).counts
        total += wish.weight * counts
        touched |= counts > 0
    domains = Domains.adding(snapshot, key, total)
    return domains if bool(np.any(touched[: snapshot.size] & (domains.codes >= 0))) else None
