"""Which rows changed since a version: how a reader that keeps results per row learns what to compute again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

NODE: Final = 1
"""The node object changed: labels, taints, allocatable, images, or whether it exists."""
PODS: Final = 2
"""What is placed on the node changed."""
RETOLD: Final = 4
"""The same is placed there, and something else is known of it: since when it is bound, its annotations. No sum or count
of the row is another."""


@dataclass(frozen=True, slots=True)
class Changed:
    """Rows of which the node object changed, rows on which pods did, and rows of whose pods more is known by now.

    A row may be in several.
    """

    nodes: frozenset[int]
    pods: frozenset[int]
    retold: frozenset[int] = frozenset()


class ChangeLog:
    """A bounded log of (row, kind). A version is the number of entries ever written."""

    def __init__(self, bound: int = 4096) -> None:
        self._bound = bound
        self._dropped = 0
        self._entries: list[tuple[int, int]] = []

    @property
    def version(self) -> int:
        """Where the log stands."""
        return self._dropped + len(self._entries)

    def add(self, row: int, kind: int) -> None:
        """Say that something of this kind changed on the row."""
        self._entries.append((row, kind))
        if len(self._entries) >= 2 * self._bound:
            del self._entries[: self._bound]
            self._dropped += self._bound

    def since(self, version: int) -> Changed | None:
        """What changed after the version, or None when the log does not reach back to it: then anything may have."""
        if version < self._dropped:
            return None
        entries = self._entries[version - self._dropped :]
        return Changed(
            frozenset(row for row, kind in entries if kind & NODE),
            frozenset(row for row, kind in entries if kind & PODS),
            frozenset(row for row, kind in entries if kind & RETOLD),
        )
