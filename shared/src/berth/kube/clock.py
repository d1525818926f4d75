"""Time as it is handed to whatever waits or judges ages here, so that tests move it instead of sleeping."""

from __future__ import annotations

import asyncio
import time
from typing import Protocol


class Clock(Protocol):
    """A clock that never goes back, and a way to wait by it."""

    def now(self) -> float:
        """Seconds; only differences mean something."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Return once so much time has passed."""
        ...


class SteadyClock:
    """The machine's time since it started, where it can be had with the time that the machine slept.

    A leader on a laptop that was closed for a minute must know that a minute has passed: CLOCK_MONOTONIC stands still.
    """

    _ID = getattr(time, "CLOCK_BOOTTIME", None)

    def now(self) -> float:
        """Seconds since the machine started."""
        return time.monotonic() if self._ID is None else time.clock_gettime(self._ID)

    async def sleep(self, seconds: float) -> None:
        """Give the loop to others for so many seconds."""
        await asyncio.sleep(seconds)
