"""Clocks of the bus in memory: the event loop's time, or one that a test moves by hand."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Final, Protocol

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class BusClock(Protocol):
    """Time and timers."""

    def now(self) -> datetime:
        """The current time, with a time zone."""
        ...

    def call_at(self, when: datetime, callback: Callable[[], None]) -> None:
        """Call back at this time or soon after, also for a time in the past, but never from within this call."""
        ...


class LoopClock:
    """The running event loop's time as UTC; it follows a loop with simulated time."""

    def __init__(self) -> None:
        self._offset: timedelta | None = None

    def now(self) -> datetime:
        """UTC at the first call plus the loop's time since then: it never goes backwards."""
        passed = timedelta(seconds=asyncio.get_running_loop().time())
        if self._offset is None:
            self._offset = datetime.now(UTC) - _EPOCH - passed
        return _EPOCH + self._offset + passed

    def call_at(self, when: datetime, callback: Callable[[], None]) -> None:
        asyncio.get_running_loop().call_later(max(0.0, (when - self.now()).total_seconds()), callback)


class ManualClock:
    """A clock that moves only by :meth:`advance`."""

    def __init__(self, start: datetime = datetime(2026, 1, 1, tzinfo=UTC)) -> None:
        self._now = start
        self._numbers = itertools.count()
        self._due: list[tuple[datetime, int, Callable[[], None]]] = []

    def now(self) -> datetime:
        return self._now

    def call_at(self, when: datetime, callback: Callable[[], None]) -> None:
        """Call back when :meth:`advance` gets there, in the order of time."""
        heapq.heappush(self._due, (when, next(self._numbers), callback))

    def advance(self, duration: timedelta) -> None:
        """Move on, calling back at every time on the way."""
        end = self._now + duration
        while self._due and self._due[0][0] <= end:
            when, _, callback = heapq.heappop(self._due)
            self._now = max(self._now, when)
            callback()
        self._now = end
