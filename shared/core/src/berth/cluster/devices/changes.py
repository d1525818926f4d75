"""A bounded log of changes, for caches that follow them."""

from __future__ import annotations

from typing import Generic, TypeVar

C = TypeVar("C")


class Changes(Generic[C]):
    """The latest changes. A version is the number of changes ever made."""

    def __init__(self, bound: int = 4096) -> None:
        self._bound = bound
        self._dropped = 0
        self._entries: list[C] = []

    @property
    def version(self) -> int:
        return self._dropped + len(self._entries)

    def add(self, change: C) -> None:
        self._entries.append(change)
        if len(self._entries) >= 2 * self._bound:
            del self._entries[: self._bound]
            self._dropped += self._bound

    def since(self, version: int) -> list[C] | None:
        """The changes after the version, or None if the log no longer reaches back to it."""
        return None if version < self._dropped else self._entries[version - self._dropped :]
