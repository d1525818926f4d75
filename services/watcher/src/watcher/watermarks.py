"""Watermarks: up to when each kind is complete on the bus, written about once a second.

A watermark says that everything before it is there, so it is written only after the mirror's changes up to then are.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

SHORTEST_SECONDS: Final = 1.0
"""Between two watermarks of a kind: ages are told to the second, and a busy kind must not double the writes."""


@dataclass(slots=True, kw_only=True)
class _Mark:
    version: str = ""
    newest: int = 0
    """The newest version and the change that it needs."""
    ready: str = ""
    change: int = 0
    """The version to be written next and the change that it needs: not moved on by each event, so that a busy kind
    gets its mark at all."""
    written_at: float = float("-inf")


class Watermarks:
    """What each kind has come to, and what may be written of it."""

    def __init__(self, kinds: Iterable[str]) -> None:
        self._marks = {kind: _Mark() for kind in kinds}

    def reached(self, kind: str, version: str, change: int) -> None:
        """A kind is complete up to a version once the mirror's changes up to this one are stored."""
        mark = self._marks[kind]
        if not mark.ready:
            mark.ready, mark.change = version, change
        mark.version, mark.newest = version, change

    def due(self, now: float, settled: int) -> list[tuple[str, str]]:
        """The kinds and versions to write now."""
        found = []
        for kind, mark in self._marks.items():
            if mark.ready and mark.change <= settled and now - mark.written_at >= SHORTEST_SECONDS:
                found.append((kind, mark.version if mark.newest <= settled else mark.ready))
                waits = mark.newest > settled
                mark.ready, mark.change, mark.written_at = (mark.version if waits else ""), mark.newest, now
        return found

    def next_due(self, settled: int) -> float | None:
        """When the next may be written; ``None`` when nothing is new, or when changes are awaited first."""
        times = (
            mark.written_at + SHORTEST_SECONDS for mark in self._marks.values() if mark.ready and mark.change <= settled
        )
        return min(times, default=None)
