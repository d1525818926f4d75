"""Pods that wait for the watcher's reflectors to see what a conflict was about."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterable, Mapping


class VersionGate:
    """How far each kind has come, and who waits for more. A wait costs O(log n), an event that frees nobody O(1)."""

    def __init__(self, kinds: Iterable[str]) -> None:
        self._reached: dict[str, int] = dict.fromkeys(kinds, 0)
        self._waiting: dict[str, list[tuple[int, int, str]]] = {kind: [] for kind in self._reached}
        self._order = itertools.count()

    def wait(self, uid: str, wanted: Mapping[str, int]) -> bool:
        """Whether a pod may pass now; otherwise ``reach`` names it later. A kind that is not read is no obstacle."""
        for kind, version in wanted.items():
            if self._reached.get(kind, version) < version:
                heapq.heappush(self._waiting[kind], (version, next(self._order), uid))
                return False
        return True

    def reach(self, kind: str, version: int) -> list[str]:
        """A kind has come to a version; the pods that waited for it and may ask again. Some may have left meanwhile."""
        if version <= self._reached[kind]:
            return []
        self._reached[kind] = version
        passed, waiting = [], self._waiting[kind]
        while waiting and waiting[0][0] <= version:
            passed.append(heapq.heappop(waiting)[2])
        return passed

    def relisted(self, kind: str, version: int) -> list[str]:
        """As :meth:`reach`, but it may go back: then the API server has another store, and its numbers count."""
        passed = self.reach(kind, version)
        self._reached[kind] = version
        return passed
