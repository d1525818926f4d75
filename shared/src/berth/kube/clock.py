"""The clock, which is handed in so that tests can move it; pauses after failures; times as the API writes them."""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import dataclass, field
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """How long to wait after a failure: twice as long after each further one, from ``initial`` to ``maximum``."""

    initial: timedelta
    maximum: timedelta
    jitter_ratio: float = 0.5
    """The part of a pause that chance may cut off, 0 to 1, so that many clients do not come back at once."""
    chance: random.Random = field(default_factory=random.Random)

    def after(self, failures: int, retry_after: timedelta | None = None) -> float:
        """Seconds to wait after so many failures in a row (from 1). Retry-After is kept, up to ``maximum``."""
        maximum = self.maximum.total_seconds()
        doublings = min(max(failures, 1) - 1, 60)
        full = min(self.initial.total_seconds() * 2.0**doublings, maximum)
        pause = full * self.chance.uniform(1.0 - self.jitter_ratio, 1.0)
        least = min(retry_after.total_seconds(), maximum) if retry_after is not None else 0.0
        return max(pause, least)


def micro_time(moment: datetime) -> str:
    """A MicroTime: RFC 3339 with microseconds, in UTC, always with a Z."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def whole_seconds(moment: datetime) -> str:
    """A Time: RFC 3339 in whole seconds, in UTC, as conditions have it."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
