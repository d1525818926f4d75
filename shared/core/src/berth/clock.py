"""The injected clock, back-off after failures, and times in the API's formats."""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Protocol


class Clock(Protocol):
    """A monotonic clock, and waiting by it."""

    def now(self) -> float:
        """Seconds since an arbitrary start; only differences have a meaning."""
        ...

    async def sleep(self, seconds: float) -> None: ...


class SteadyClock:
    """The time since the machine started, including suspend where the system has such a clock.

    A leader on a laptop that was suspended for a minute must count that minute, which CLOCK_MONOTONIC does not.
    """

    # Without a function of Python's in between: a pod takes some thirty looks at the clock.
    now = staticmethod(
        partial(time.clock_gettime, time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic
    )

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """Exponential back-off: the pause doubles with each failure in a row, from ``initial`` to ``maximum``."""

    initial: timedelta
    maximum: timedelta
    # The random part of a pause, 0 to 1, so that clients do not retry at the same time.
    jitter_ratio: float = 0.5
    chance: random.Random = field(default_factory=random.Random)

    def after(self, failures: int, retry_after: timedelta | None = None) -> float:
        """Seconds to wait after this many failures in a row (from 1). Retry-After is obeyed, up to ``maximum``."""
        maximum = self.maximum.total_seconds()
        doublings = min(max(failures, 1) - 1, 60)
        full = min(self.initial.total_seconds() * 2.0**doublings, maximum)
        pause = full * self.chance.uniform(1.0 - self.jitter_ratio, 1.0)
        least = min(retry_after.total_seconds(), maximum) if retry_after is not None else 0.0
        return max(pause, least)


def micro_time(moment: datetime) -> str:
    """A MicroTime: RFC 3339 with microseconds, in UTC, with a Z."""
    return moment.astimezone(UTC).isoformat(timespec="microseconds").removesuffix("+00:00") + "Z"


def whole_seconds(moment: datetime) -> str:
    """A Time: RFC 3339 in whole seconds, in UTC, as in conditions."""
    return moment.astimezone(UTC).isoformat(timespec="seconds").removesuffix("+00:00") + "Z"
