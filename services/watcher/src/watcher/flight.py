"""The window: how many pods may be on their way at once, and who has a place."""

from __future__ import annotations

from collections import deque
from typing import Final

SHARE_OF_A_SECOND: Final = 4
"""A quarter of the Decisions of the last second: so an important pod waits for a quarter second of work at most."""


class Window:
    """Places for pods in flight: at least the floor, above it a quarter second of work."""

    def __init__(self, floor: int) -> None:
        self._floor = floor
        self._places: set[str] = set()
        self._decided: deque[tuple[float, int]] = deque()
        self._rate = 0

    @property
    def taken(self) -> int:
        """Places taken."""
        return len(self._places)

    def size(self, now: float) -> int:
        """Places that there are."""
        while self._decided and self._decided[0][0] <= now - 1.0:
            self._rate -= self._decided.popleft()[1]
        return max(self._floor, self._rate // SHARE_OF_A_SECOND)

    def room(self, now: float) -> int:
        """Places that are free; none when a takeover found more in flight than there are places."""
        return max(0, self.size(now) - len(self._places))

    def enter(self, uid: str) -> None:
        """A pod takes a place; it may have it already."""
        self._places.add(uid)

    def leave(self, uid: str) -> None:
        """A pod gives its place back, if it has one."""
        self._places.discard(uid)

    def decided(self, now: float) -> None:
        """A final Decision was heard: the pipeline gets through so much work."""
        if self._decided and self._decided[-1][0] == now:
            self._decided[-1] = (now, self._decided[-1][1] + 1)
        else:
            self._decided.append((now, 1))
        self._rate += 1
