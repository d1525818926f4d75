"""A limit on the requests that one client makes, for those who set ``clientConnection.qps``."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable


class TokenBucket:
    """Lets ``burst`` requests through at once and ``qps`` a second in the long run, in the order in which they came."""

    def __init__(self, *, qps: float, burst: int, clock: Callable[[], float] = time.monotonic) -> None:
        if qps <= 0 or burst < 1:
            raise ValueError(f"limiting requests: want qps above 0 and burst of at least 1, got {qps} and {burst}")
        self._interval = 1 / qps
        self._slack = (burst - 1) * self._interval
        self._clock = clock
        self._next = clock() - self._slack

    def reserve(self) -> float:
        """Take the next place; returns the seconds to wait for it."""
        now = self._clock()
        self._next = max(self._next, now - self._slack)
        wait = max(0.0, self._next - now)
        self._next += self._interval
        return wait

    async def wait(self) -> None:
        """Wait for the next place."""
        seconds = self.reserve()
        if seconds > 0:
            await asyncio.sleep(seconds)
