"""What InterPodAffinity's score adds up: weights of preferences, the pod's own and those of placed pods, by domain.

For each placed pod, in its node's domain: +weight for each preferred term of the pod that means it and -weight for each
preferred term of anti-affinity; ``hardPodAffinityWeight`` for each of its required terms that means the pod, and its
own preferences about the pod likewise. A node has the sum over its domains.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from berth.api.pod import Pod
from berth.api.podterms import PodTerms, Point
from berth.cluster.podgroup import label_items
from berth.cluster.snapshot import Snapshot
from berth.cluster.tallies import HoldersOf, Kind, PodKind
from berth.plugins.domains import Domains


@dataclass(frozen=True, slots=True)
class Wish:
    """In the domains of this key, each pod of the kind counts with this weight."""

    key: str
    kind: Kind
    weight: int


def wishes_of(pod: Pod, terms: PodTerms, snapshot: Snapshot, *, hard_weight: int) -> Iterator[Wish]:
    """Everything that counts for a pod."""
    for term in terms.preferred:
        yield Wish(term.topology_key, PodKind((term.selector,)), term.weight)
    for term in terms.preferred_apart:
        yield Wish(term.topology_key, PodKind((term.selector,)), -term.weight)
    namespace, labels = pod.metadata.namespace, label_items(pod.metadata.labels)
    for point, sign in ((Point.REQUIRED, hard_weight), (Point.PREFERRED, 1), (Point.PREFERRED_APART, -1)):
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
