"""Time as it is handed to whatever waits or judges ages here, so that tests move it instead of sleeping.

How long to wait after a failure: twice as long after each, with jitter, so that many do not come back at once.

Times as the API writes them.
"""

from __future__ import annotations

import asyncio
import random
import time
from datetime import UTC, datetime, timedelta
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


class Backoff:
    """Counts failures in a row. Pauses double from ``initial`` to ``maximum``; chance cuts each by up to a half."""

    def __init__(self, *, initial: timedelta, maximum: timedelta, chance: random.Random | None = None) -> None:
        self._initial = initial
        self._maximum = maximum
        self._chance = chance or random.Random()
        self.failures = 0

    def failed(self) -> timedelta:
        """One more failure; returns the pause before the next try."""
        full: timedelta = min(self._initial * (1 << min(self.failures, 30)), self._maximum)
        self.failures += 1
        return full * self._chance.uniform(0.5, 1.0)

    def succeeded(self) -> None:
        """Whatever was wrong is over: the next failure is a first one."""
        self.failures = 0


def micro_time(moment: datetime) -> str:
    """A MicroTime: RFC 3339 with microseconds, in UTC, always with a Z."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def whole_seconds(moment: datetime) -> str:
    """A Time: RFC 3339 in whole seconds, in UTC, as conditions have it."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
