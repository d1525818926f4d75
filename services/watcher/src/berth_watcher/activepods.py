"""The order in which active pods are tried: by the profile's QueueSort plugin, in turns of namespaces.

Pods that the plugin puts at one place but for their time are of one rank: with PrioritySort, of one priority. Within a
rank first those that lost a conflict, then one pod of each namespace after the other, so that thousands of pods of one
namespace hold up those of others by one pod and not by thousands (docs/adr/0020-namespaces-take-turns.md). Within a
namespace the plugin's order counts.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from datetime import datetime
from itertools import count
from typing import Final, NamedTuple

from berth.framework.plugincalls import SortKey


class ActiveEntry(NamedTuple):
    """An active pod at its place. No two have the same generation, so that uids are never compared."""

    key: SortKey
    timestamp: datetime
    generation: int
    uid: str


IsCurrent = Callable[[ActiveEntry], bool]
"""Whether the pod has not moved since: entries of pods that have are dropped when they are met."""

FRONT: Final = ""
"""In place of a namespace: the pods that go before all others of their rank."""


class ActivePods:
    """The active pods of a profile. Adding and taking one costs O(log n)."""

    def __init__(self, is_current: IsCurrent) -> None:
        self._is_current = is_current
        self._ranks: dict[SortKey, _Rank] = {}
        self._order: list[SortKey] = []
        self._size = 0

    def __len__(self) -> int:
        """Entries, stale ones included."""
        return self._size

    def add(self, rank: SortKey, namespace: str, entry: ActiveEntry) -> None:
        """Add a pod of a rank and namespace, or at the FRONT of the rank."""
        of_rank = self._ranks.get(rank)
        if of_rank is None:
            of_rank = self._ranks[rank] = _Rank()
            heapq.heappush(self._order, rank)
        of_rank.add(namespace, entry)
        self._size += 1

    def first(self) -> tuple[SortKey, ActiveEntry] | None:
        """The rank and the entry of the pod whose turn it is."""
        while self._order:
            rank = self._order[0]
            of_rank = self._ranks[rank]
            while (entry := of_rank.first()) is not None:
                if self._is_current(entry):
                    return rank, entry
                of_rank.drop()
                self._size -= 1
            heapq.heappop(self._order)
            del self._ranks[rank]
        return None

    def pop(self) -> ActiveEntry:
        """Remove and return the entry of the pod whose turn it is. Raises LookupError when there is none."""
        found = self.first()
        if found is None:
            raise LookupError("there is no active pod")
        rank, entry = found
        self._ranks[rank].take()
        self._size -= 1
        return entry

    def compact(self) -> None:
        """Drop all stale entries."""
        self._size = sum(rank.compact(self._is_current) for rank in self._ranks.values())


class _Rank:
    """Pods of one rank. A namespace that comes has its turn after those of the present round."""

    def __init__(self) -> None:
        self._front: list[ActiveEntry] = []
        self._by_namespace: dict[str, list[ActiveEntry]] = {}
        self._turns: list[tuple[int, int, str]] = []
        """Round, number and namespace, once for each that has entries."""
        self._numbers = count()
        self._round = 0
        self._last_round: dict[str, int] = {}
        """The last round in which a namespace had its turn; those before the present one are forgotten."""

    def add(self, namespace: str, entry: ActiveEntry) -> None:
        if namespace == FRONT:
            heapq.heappush(self._front, entry)
            return
        entries = self._by_namespace.get(namespace)
        if entries is None:
            entries = self._by_namespace[namespace] = []
            self._line_up(namespace)
        heapq.heappush(entries, entry)

    def first(self) -> ActiveEntry | None:
        if self._front:
            return self._front[0]
        return self._by_namespace[self._turns[0][2]][0] if self._turns else None

    def take(self) -> None:
        """Remove the first entry: its namespace has had its turn."""
        if self._front:
            heapq.heappop(self._front)
            return
        turn, _, namespace = heapq.heappop(self._turns)
        if turn > self._round:
            self._round = turn
            self._last_round.clear()
        self._last_round[namespace] = turn
        heapq.heappop(self._by_namespace[namespace])
        self._line_up_again(namespace)

    def drop(self) -> None:
        """Remove the first entry, which is stale: its namespace keeps its turn unless it has no other pod."""
        if self._front:
            heapq.heappop(self._front)
            return
        namespace = self._turns[0][2]
        heapq.heappop(self._by_namespace[namespace])
        if not self._by_namespace[namespace]:
            heapq.heappop(self._turns)
            del self._by_namespace[namespace]

    def compact(self, is_current: IsCurrent) -> int:
        """Drop stale entries; returns how many are left."""
        for entries in self._lists():
            entries[:] = filter(is_current, entries)
            heapq.heapify(entries)
        self._by_namespace = {name: entries for name, entries in self._by_namespace.items() if entries}
        self._turns = [turn for turn in self._turns if turn[2] in self._by_namespace]
        heapq.heapify(self._turns)
        return sum(map(len, self._lists()))

    def _lists(self) -> Iterator[list[ActiveEntry]]:
        yield self._front
        yield from self._by_namespace.values()

    def _line_up(self, namespace: str) -> None:
        turn = self._round + 1 if self._last_round.get(namespace) == self._round else self._round
        heapq.heappush(self._turns, (turn, next(self._numbers), namespace))

    def _line_up_again(self, namespace: str) -> None:
        if self._by_namespace[namespace]:
            self._line_up(namespace)
        else:
            del self._by_namespace[namespace]
