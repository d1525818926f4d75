"""Where a group may go: the values of a topology label, with a bound of how many members each can take.

The bound adds up what each node's sums leave room for, class by class, and what each resource leaves in all. No order
of placing takes more, so that a domain whose bound is below the need is out, proven. Of the others the fullest one that
may hold all members is tried first, so that large domains stay whole.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from berth.api.pod import Pod
from berth.api.resources import amount_in_words, counted
from berth.api.selectors import AffinityTermKind, PodSelector
from berth.cluster.columns import ABSENT
from berth.cluster.nodes import Amount, Mask
from berth.cluster.podgroups import home_domain
from berth.cluster.pods import PlacedPod
from berth.cluster.snapshot import Snapshot
from berth.cluster.topologycounts import LabelItems, label_items
from berth.groups.question import GroupClass, GroupQuestion

# DomainChoice in which members are placed, of any number that is bounded: each costs up to a cycle a member and order.
MOST_TRIED: Final = 8
# Of these, how many are the emptiest. Bounds do not see fragments, so that the fullest may all be too full.
_EMPTIEST: Final = 2

EVERYWHERE: Final = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Domain:
    """``name``: the label's value. ``bound``: how many members it can take at most."""

    name: str
    rows: Mask
    bound: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DomainChoice:
    """``tried``: in this order, best first. ``best``: the one with the highest bound, for the explanation.

    ``outside``: rows for members that have no place in a preferred domain; None if it is required. ``note``: of bound
    members that are elsewhere. ``shortage``: the minResources that no domain has free. ``is_impossible``: bounds rule
    out every domain. ``is_home``: the group runs there, so that no other one counts.
    """

    key: str
    tried: Sequence[Domain]
    best: Domain | None
    is_impossible: bool
    outside: Mask | None = None
    note: str = ""
    shortage: str = ""
    is_home: bool = False


def domains_of(question: GroupQuestion, classes: Sequence[GroupClass], snapshot: Snapshot) -> DomainChoice:
    """The domains for the group as the nodes are now."""
    topology = question.group.topology
    key, required = (topology.key, topology.required) if topology is not None else ("", True)
    if topology is None or not topology.required:
        mutual = mutual_key(question.members, snapshot)
        key, required = (mutual, True) if mutual else (key, required)
    every = snapshot.columns.exists[: snapshot.size]
    if not key:
        bounds = _Bounds(question, classes, snapshot, _as_one(every), 1)
        return _one(bounds, Domain(name=EVERYWHERE, rows=every, bound=bounds.of(0)), "", 0, "")
    column = snapshot.label_column(key)
    codes = np.where(every, column.codes[: snapshot.size], ABSENT)
    bounds = _Bounds(question, classes, snapshot, codes, len(column.values))
    outside = None if required else every.copy()
    home, note = _home(question, snapshot, codes, key)
    if home is not None and required:
        domain = Domain(name=column.values[home], rows=codes == home, bound=bounds.of(home))
        return _one(bounds, domain, key, home, note)
    if outside is not None:
        return _preferred(question, bounds, codes, column.values, key, outside, home)
    return _required(question, bounds, codes, column.values, key, note)


def mutual_key(members: Sequence[Pod], snapshot: Snapshot) -> str:
    """The topology key by which all members require each other; empty without one."""
    common: set[str] | None = None
    of_class = {snapshot.class_of(pod): pod.metadata.namespace for pod in members}
    for pod_class, namespace in of_class.items():
        terms = pod_class.affinity_terms(namespace).at(AffinityTermKind.REQUIRED_AFFINITY)
        if not terms:
            return ""
        keys = {term.topology_key for term in terms if _selects_all(term.selector, members, snapshot)}
        common = keys if common is None else common & keys
        if not common:
            return ""
    return min(common or {""})


def _one(bounds: _Bounds, domain: Domain, key: str, code: int, note: str) -> DomainChoice:
    shortage = bounds.shortage_in(code)
    fits = domain.bound >= bounds.need and not shortage
    tried = [domain] if fits else []
    return DomainChoice(
        key=key, tried=tried, best=domain, is_impossible=not fits, note=note, shortage=shortage, is_home=bool(key)
    )


def _as_one(every: Mask) -> npt.NDArray[np.int32]:
    """The codes of a label that all nodes share."""
    return np.where(every, 0, ABSENT).astype(np.int32)


def _preferred(  # noqa: PLR0913, PLR0917 - the parts of one choice
    question: GroupQuestion,
    bounds: _Bounds,
    codes: npt.NDArray[np.int32],
    names: Sequence[str],
    key: str,
    outside: Mask,
    home: int | None,
) -> DomainChoice:
    """The domain of the bound members, else the one that holds most, of several that hold all the fullest."""
    everywhere = bounds.everywhere()
    impossible = everywhere.of(0) < question.need or bool(everywhere.shortage_in(0))
    there = np.unique(codes[codes != ABSENT]).tolist() if home is None else [home]
    wanted = len(question.members)
    chosen = min(
        there, key=lambda code: (-min(bounds.of(code), wanted), bounds.emptiness[code], names[code]), default=ABSENT
    )
    name = names[chosen] if chosen != ABSENT else EVERYWHERE
    rows = codes == chosen if chosen != ABSENT else outside
    best = Domain(name=name, rows=rows, bound=everywhere.of(0))
    return DomainChoice(
        key=key,
        tried=[] if impossible else [best],
        best=best,
        is_impossible=impossible,
        outside=outside,
        shortage=everywhere.shortage_in(0),
    )


def _required(  # noqa: PLR0913, PLR0917 - the parts of one choice
    question: GroupQuestion,
    bounds: _Bounds,
    codes: npt.NDArray[np.int32],
    names: Sequence[str],
    key: str,
    note: str,
) -> DomainChoice:
    def domain(code: int) -> Domain:
        return Domain(name=names[code], rows=codes == code, bound=bounds.of(code))

    def preference(code: int) -> tuple[int, float, str]:
        return -min(bounds.of(code), wanted), bounds.emptiness[code], names[code]

    wanted = len(question.members)
    there = sorted(np.unique(codes[codes != ABSENT]).tolist(), key=preference)
    large = [code for code in there if bounds.of(code) >= question.need]
    left = [code for code in large if not bounds.shortage_in(code)]
    tried = sorted(left, key=lambda code: not bounds.has_feasible(code))  # affinity to others may leave a few
    if len(tried) > MOST_TRIED:
        emptiest = sorted(tried[MOST_TRIED - _EMPTIEST :], key=lambda code: -bounds.emptiness[code])
        tried = [*tried[: MOST_TRIED - _EMPTIEST], *emptiest[:_EMPTIEST]]
    best = (tried or large or there)[:1]
    return DomainChoice(
        key=key,
        tried=[domain(code) for code in tried],
        best=domain(best[0]) if best else None,
        is_impossible=not left,
        note=note,
        shortage=bounds.shortage_in(large[0]) if large and not left else "",
    )


class _Bounds:
    """Bounds by domain. ``codes``: int32[rows], each row's domain, or ABSENT."""

    def __init__(
        self,
        question: GroupQuestion,
        classes: Sequence[GroupClass],
        snapshot: Snapshot,
        codes: npt.NDArray[np.int32],
        count: int,
    ) -> None:
        self.need = question.need
        self._question = question
        self._classes = classes
        self._snapshot = snapshot
        self._codes = codes
        self._count = max(1, count)
        self._inside = codes != ABSENT
        self._open = _open_to_some(classes, len(codes))
        # By resource, what minResources asks for, and how much of it each domain has.
        self._asked = {name: (asked, self._free(name)) for name, asked in _still_asked(question, snapshot).items()}
        self._bounds = self._bounds_of(classes)
        # How much of the scarcest class each domain could take if it were for this class alone.
        scarcest = min(classes, key=lambda each: each.scarcity)
        self.emptiness = self._sums(scarcest.loose_room)
        self._feasible = self._sums(scarcest.feasible.astype(np.float64))

    def everywhere(self) -> _Bounds:
        """The same of all nodes together, as domain 0."""
        every = self._snapshot.columns.exists[: self._snapshot.size]
        return _Bounds(self._question, self._classes, self._snapshot, _as_one(every), 1)

    def of(self, domain: int) -> int:
        return int(self._bounds[domain])

    def has_feasible(self, domain: int) -> bool:
        """Whether the first member has a node there before others are placed."""
        return bool(self._feasible[domain] > 0)

    def shortage_in(self, domain: int) -> str:
        """What minResources asks for and is not free; empty if all is."""
        for resource, (amount, of_domains) in self._asked.items():
            free = int(of_domains[domain])
            if amount > free:
                asked = amount_in_words(resource, amount, up=True)
                return (
                    f"minResources asks for {asked} {resource} beyond its bound members, "
                    f"{amount_in_words(resource, free)} is free in all (a sum of {self._nodes(domain)} nodes)"
                )
        return ""

    def _bounds_of(self, classes: Sequence[GroupClass]) -> Amount:
        total = np.zeros(self._count)
        for each in classes:
            total += np.minimum(self._sums(each.room), len(each.pods))
        if self._snapshot.columns.large:
            return total  # sums of large amounts are rounded
        for resource in {name for each in classes for name in each.counted}:
            # Of any number of members, those that request least take least.
            each_requests = [each.counted.get(resource, 0) for each in classes]
            amounts = np.sort(np.repeat(each_requests, [len(each.pods) for each in classes]))
            taken = np.cumsum(amounts.astype(np.float64))
            total = np.minimum(total, np.searchsorted(taken, self._free(resource), side="right").astype(np.float64))
        return total

    def _free(self, resource: str) -> Amount:
        """By domain, the sum of what is free on nodes that are open to some class."""
        size, columns = self._snapshot.size, self._snapshot.columns
        free = columns.allocatable.of(resource)[:size] - columns.requested.of(resource)[:size]
        return self._sums(np.where(self._open, np.maximum(free, 0), 0))

    def _nodes(self, domain: int) -> int:
        return int(np.count_nonzero(self._open & (self._codes == domain)))

    def _sums(self, of_rows: Amount) -> Amount:
        inside = self._inside
        return np.bincount(self._codes[inside], weights=of_rows[inside], minlength=self._count).astype(np.float64)


class MinResources:
    """What is free beyond a group's minResources, as its evictions are taken back one by one.

    Of a node that holds more than it has, all that comes back counts: its evictions may be more than are needed.
    """

    def __init__(self, question: GroupQuestion, classes: Sequence[GroupClass], snapshot: Snapshot) -> None:
        """Without the group's pending members on the nodes."""
        size, columns = snapshot.size, snapshot.columns
        self._open = _open_to_some(classes, size)
        self._spare: dict[str, int] = {}
        for name, asked in _still_asked(question, snapshot).items():
            free = columns.allocatable.of(name)[:size] - columns.requested.of(name)[:size]
            self._spare[name] = int(np.maximum(free, 0)[self._open].sum()) - asked

    def leave(self, pods: Iterable[PlacedPod]) -> bool:
        """Whether enough stays free with these pods on their nodes; then they count from now on."""
        there = [each.pod_class.requests.amounts for each in pods if self._open[each.row]]
        left = {name: spare - sum(each.get(name, 0) for each in there) for name, spare in self._spare.items()}
        if any(spare < 0 for spare in left.values()):
            return False
        self._spare = left
        return True


def _open_to_some(classes: Sequence[GroupClass], size: int) -> Mask:
    """bool[rows]: the nodes that some class may have."""
    found = np.zeros(size, dtype=np.bool_)
    for each in classes:
        found |= each.static
    return found


def _still_asked(question: GroupQuestion, snapshot: Snapshot) -> dict[str, int]:
    """minResources without what bound members have."""
    asked = counted(question.group.min_resources)
    for uid in question.bound:
        placed = snapshot.placed(uid)
        for resource, amount in (placed.pod_class.requests.amounts if placed is not None else {}).items():
            if resource in asked:
                asked[resource] -= amount
    return {resource: amount for resource, amount in asked.items() if amount > 0}


def _home(
    question: GroupQuestion, snapshot: Snapshot, codes: npt.NDArray[np.int32], key: str
) -> tuple[int | None, str]:
    """As of ``home_domain``, of the members that the message names as bound."""
    rows = Counter(placed.row for uid in question.bound if (placed := snapshot.placed(uid)) is not None)
    bound = frozenset(question.bound)
    return home_domain(snapshot, key, rows, codes, lambda member: member.metadata.uid in bound)


def _selects_all(selector: PodSelector, members: Iterable[Pod], snapshot: Snapshot) -> bool:
    labels_of = snapshot.labels_of_namespace
    seen: set[LabelItems] = set()
    for pod in members:
        items = label_items(pod.metadata.labels)
        if items not in seen:
            seen.add(items)
            if not selector.matches(pod.metadata.namespace, dict(items), labels_of):
                return False
    return True
