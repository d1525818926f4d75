"""The time of a bus in memory: handed in, so that a simulation or a test says when it passes."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Final, Protocol


class BusClock(Protocol):
    """What a bus in memory needs of time."""

    def now(self) -> datetime:
        """The present moment, with a time zone."""
        ...

    def call_at(self, when: datetime, callback: Callable[[], None]) -> None:
        """Call back at that moment or soon after. Moments that have passed are called back too, but not from within."""
        ...


class LoopClock:
    """The running event loop's time, shown as UTC. Moves with a loop whose time is made up."""

    def __init__(self) -> None:
        self._offset: timedelta | None = None

    def now(self) -> datetime:
        """The loop's time, put where UTC was when it was first asked for: it never goes backwards."""
        passed = timedelta(seconds=asyncio.get_running_loop().time())
        if self._offset is None:
            self._offset = datetime.now(UTC) - _EPOCH - passed
        return _EPOCH + self._offset + passed

    def call_at(self, when: datetime, callback: Callable[[], None]) -> None:
        """Call back from the loop."""
        asyncio.get_running_loop().call_later(max(0.0, (when - self.now()).total_seconds()), callback)


class ManualClock:
    """Stands still until it is told to go on."""

    def __init__(self, start: datetime = datetime(2026, 1, 1, tzinfo=UTC)) -> None:
        self._now = start
        self._numbers = itertools.count()
        self._due: list[tuple[datetime, int, Callable[[], None]]] = []

    def now(self) -> datetime:
        """Where it stands."""
        return self._now

    def call_at(self, when: datetime, callback: Callable[[], None]) -> None:
        """Call back when :meth:`advance` gets there, in the order of the moments."""
        heapq.heappush(self._due, (when, next(self._numbers), callback))

    def advance(self, duration: timedelta) -> None:
        """Go on, stopping at every moment that somebody waits for."""
        end = self._now + duration
        while self._due and self._due[0][0] <= end:
            when, _, callback = heapq.heappop(self._due)
            self._now = max(self._now, when)
            callback()
        self._now = end


_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
