"""Time as it is handed to everything that waits, so that tests move it instead of sleeping."""

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


class MonotonicClock:
    """The machine's own clock."""

    def now(self) -> float:
        """Seconds of CLOCK_MONOTONIC: it goes on while a process is paused, which is what a Lease needs."""
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        """Give the loop to others for so many seconds."""
        await asyncio.sleep(seconds)
