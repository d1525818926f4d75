"""Members on the nodes that they fill best, for groups that find no place where each goes by itself (ADR 72).

Scores spread pods, so that members of 1 CPU may take the 2 free CPUs that one of 1.2 needs. Two remedies: the node with
the least left over for each member, which any group can afford (``scarcity_of``), and for a few members a search for
nodes whose sums hold all that are needed (``packed``). Both know sums alone: the filters have the last word.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from berth.cluster.nodes import Amount, Mask
from berth.cluster.snapshot import Snapshot
from berth.groups.question import GroupClass

# Members of a group for which ``packed`` looks.
MOST_PACKED: Final = 32
# States that it looks at: 10 to 100 ms.
MOST_STATES: Final = 500

_PODS: Final = "pods"

Amounts = tuple[int, ...]
Packing = Generator[None, None, dict[GroupClass, list[int]]]


def scarcity_of(classes: Sequence[GroupClass], snapshot: Snapshot) -> dict[str, float]:
    """By resource, how much one unit of it counts in what a member leaves over.

    The part of all free units that it is, times the part of them that the members request.
    """
    is_open = np.logical_or.reduce([each.static for each in classes])
    found: dict[str, float] = {}
    for resource in sorted({name for each in classes for name in each.counted}):
        requested = sum(each.counted.get(resource, 0) * len(each.pods) for each in classes)
        total = float(np.where(is_open, np.maximum(_free(resource, snapshot), 0), 0).sum())
        if requested and total:
            found[resource] = requested / total / total
    return found


def packed(
    classes: Sequence[GroupClass], rows: Mask, snapshot: Snapshot, need: int, scarcity: Mapping[str, float]
) -> Packing:
    """For ``need`` members, of each class the first, a row whose sums hold them; empty if none are found.

    ``classes``: the largest first. Yields at each state; the Snapshot is read before.
    """
    members = [place for place, each in enumerate(classes) for _ in each.pods]
    if len(members) > MOST_PACKED:
        return {}
    resources = [*scarcity, _PODS]
    requests = [(*(each.counted.get(name, 0) for name in scarcity), 1) for each in classes]
    # The filters' answer before any is placed, but for members that need others beside them.
    masks = [(each.static if each.follows else each.feasible) & rows for each in classes]
    places = _places(masks, len(members), snapshot, scarcity)
    free = np.stack([_free(name, snapshot)[places] for name in resources], axis=1).astype(np.int64).tolist()
    search = _Search(
        members=members,
        requests=requests,
        is_open=[tuple(bool(mask[row]) for mask in masks) for row in places],
        free=[tuple(each) for each in free],
        weights=[*scarcity.values(), 0.0],
    )
    if not (yield from search.run(0, need)):
        return {}
    found: dict[GroupClass, list[int]] = {}
    for of_class, node in search.chosen:
        found.setdefault(classes[of_class], []).append(places[node])
    return found


def _places(masks: Sequence[Mask], count: int, snapshot: Snapshot, scarcity: Mapping[str, float]) -> list[int]:
    """Of each class's rows the ``count`` with most left: if only one resource counts, no others are ever needed."""
    room = np.zeros(snapshot.size)
    for resource, weight in scarcity.items():
        room += _free(resource, snapshot) * weight
    order = np.lexsort((snapshot.columns.tie_hash[: snapshot.size], -room))
    chosen = {row: None for mask in masks for row in order[mask[order]][:count].tolist()}
    return list(chosen)


def _free(resource: str, snapshot: Snapshot) -> Amount:
    size, columns = snapshot.size, snapshot.columns
    if resource == _PODS:
        return columns.allowed_pods[:size] - columns.pods[:size]
    return columns.allocatable.of(resource)[:size] - columns.requested.of(resource)[:size]


@dataclass(slots=True)
class _Search:
    """Depth first, each member on the node with the least left first. Equal states are looked at once.

    ``members``: the class of each. ``requests``: by class; ``is_open``: by node and class; ``free``: by node.
    """

    members: Sequence[int]
    requests: Sequence[Amounts]
    is_open: Sequence[tuple[bool, ...]]
    free: list[Amounts]
    weights: Sequence[float]
    chosen: list[tuple[int, int]] = field(default_factory=list)  # classes and nodes
    _seen: set[object] = field(default_factory=set)

    def run(self, member: int, need: int) -> Generator[None, None, bool]:
        """Give ``need`` of the members from this one on a node."""
        if not need:
            return True
        state = member, need, tuple(sorted(zip(self.is_open, self.free, strict=True)))
        if state in self._seen or len(self._seen) >= MOST_STATES or not self._may_fit(member, need):
            return False
        self._seen.add(state)
        yield
        of_class = self.members[member]
        for node in sorted(self._nodes_for(of_class), key=self._left_on):
            before = self.free[node]
            requested = self.requests[of_class]
            self.free[node] = tuple(free - amount for free, amount in zip(before, requested, strict=True))
            self.chosen.append((of_class, node))
            if (yield from self.run(member + 1, need - 1)):
                return True
            self.chosen.pop()
            self.free[node] = before
        return (yield from self.run(member + 1, need))  # without it

    def _nodes_for(self, of_class: int) -> Iterator[int]:
        requested = self.requests[of_class]
        for node, free in enumerate(self.free):
            if self.is_open[node][of_class] and all(map(int.__ge__, free, requested)):
                yield node

    def _left_on(self, node: int) -> float:
        return sum(free * weight for free, weight in zip(self.free[node], self.weights, strict=True))

    def _may_fit(self, member: int, need: int) -> bool:
        """Whether the least that ``need`` of the members request is free on nodes that take one of them."""
        left = self.members[member:]
        if len(left) < need:
            return False
        usable = {node for of_class in {*left} for node in self._nodes_for(of_class)}
        for resource in range(len(self.weights)):
            least = sorted(self.requests[of_class][resource] for of_class in left)[:need]
            if sum(least) > sum(self.free[node][resource] for node in usable):
                return False
        return True
