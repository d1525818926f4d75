"""The affinity terms that placed pods have, and which of them mean a given pod."""

from __future__ import annotations

from collections import Counter, OrderedDict
from typing import Final

from berth.api.podterms import LabelsOfNamespace, PodTerm, Point
from berth.cluster.podgroup import LabelItems, PodGroup

_MAX_REMEMBERED: Final = 4096
"""For how many kinds of pods it is remembered which terms mean them."""


class HeldTerms:
    """Every different term once, by point, however many pods have it."""

    def __init__(self, labels_of: LabelsOfNamespace) -> None:
        self._labels_of = labels_of
        self._held: dict[Point, Counter[PodTerm]] = {point: Counter() for point in Point}
        self._remembered: OrderedDict[tuple[Point, str, LabelItems], tuple[PodTerm, ...]] = OrderedDict()
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

    def meaning(self, point: Point, namespace: str, labels: LabelItems, namespaces: int) -> tuple[PodTerm, ...]:
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

    def _find(self, point: Point, namespace: str, labels: dict[str, str]) -> tuple[PodTerm, ...]:
        held = self._held[point]
        return tuple(term for term in held if term.selector.matches(namespace, labels, self._labels_of))
