"""How many pods of a kind are on each row, kept up as pods come and go: what affinity and spread add up by domain.

A kind is a question put to groups of pods. It is put to each group once, when the kind or the group is new; from then
on the group's pods are counted where they are.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np

from berth.api.podterms import LabelsOfNamespace, PodSelector, PodTerm, Point
from berth.cluster.podgroup import PodGroup
from berth.cluster.rows import grown
from berth.cluster.tally import Tally

_MAX_BYTES: Final = 32 * 1024 * 1024
"""What all tallies may hold together; those that were not asked for longest are dropped."""
_MIN_TALLIES: Final = 16


@dataclass(frozen=True, slots=True)
class PodKind:
    """Pods that every selector means; ``living``: those only that are not being deleted."""

    selectors: tuple[PodSelector, ...]
    living: bool = False

    def times(self, group: PodGroup, labels_of: LabelsOfNamespace) -> int:
        """1 for a group whose pods are of the kind, otherwise 0."""
        if self.living and group.terminating:
            return 0
        return int(all(selector.matches(group.namespace, group.labels, labels_of) for selector in self.selectors))

    @property
    def looks_at_namespaces(self) -> bool:
        """Whether the answer depends on namespaces' labels."""
        return any(selector.looks_at_namespaces for selector in self.selectors)


@dataclass(frozen=True, slots=True)
class HoldersOf:
    """Pods that have the term themselves."""

    point: Point
    term: PodTerm

    def times(self, group: PodGroup, _: LabelsOfNamespace) -> int:
        """How often the group's pods have it."""
        return group.terms.at(self.point).count(self.term)

    @property
    def looks_at_namespaces(self) -> bool:
        """Whether the answer depends on namespaces' labels: it does not."""
        return False


Kind = PodKind | HoldersOf


class Tallies:
    """The tallies that were asked for last."""

    def __init__(self, labels_of: LabelsOfNamespace) -> None:
        self._labels_of = labels_of
        self._tallies: OrderedDict[Kind, Tally] = OrderedDict()
        self._capacity = 0

    def __len__(self) -> int:
        return len(self._tallies)

    def of(self, kind: Kind, groups: Callable[[], Iterable[PodGroup]], namespaces: int) -> Tally:
        """The tally of a kind; counted from all groups when it is new, or when ``namespaces`` (a version) moved on."""
        tally = self._tallies.get(kind)
        if tally is not None and (tally.namespaces_seen == namespaces or not kind.looks_at_namespaces):
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

    def _make(self, kind: Kind, groups: list[PodGroup], namespaces: int) -> Tally:
        tally = self._tallies[kind] = Tally(self._capacity, namespaces)
        for group in groups:
            times = kind.times(group, self._labels_of)
            if times:
                group.tallies.append((tally, times))
                tally.counts[list(group.counts)] += np.array(list(group.counts.values()), dtype=np.int32) * times
        while len(self._tallies) > max(_MIN_TALLIES, _MAX_BYTES // (4 * self._capacity)):
            self._drop(next(iter(self._tallies)), groups)
        return tally

    def _drop(self, kind: Kind, groups: Iterable[PodGroup]) -> None:
        tally = self._tallies.pop(kind)
        for group in groups:
            group.tallies = [entry for entry in group.tallies if entry[0] is not tally]
