"""A clock that tests move, for loops that wait while real sockets of the same event loop do their work."""

import asyncio
import heapq
import itertools
from collections.abc import Callable

TICK_SECONDS = 0.25
LOOP_PASSES = 25
"""Passes of the event loop in one tick: enough for several round trips of a local request, so that answers keep up."""


class TickingClock:
    """A `berth.clock.Clock` whose time moves only when a test moves it."""

    def __init__(self) -> None:
        self._now = 1000.0
        self._numbers = itertools.count()
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []

    def now(self) -> float:
        return self._now

    async def sleep(self, seconds: float) -> None:
        awake = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._now + seconds, next(self._numbers), awake))
        await awake

    def jump(self, seconds: float) -> None:
        """Move the time at once, as for a process that was paused."""
        self._now += seconds
        while self._sleepers and self._sleepers[0][0] <= self._now:
            _, _, awake = heapq.heappop(self._sleepers)
            if not awake.done():
                awake.set_result(None)

    async def run(self, seconds: float) -> None:
        """Move the time tick by tick; what is due runs in between."""
        for _ in range(round(seconds / TICK_SECONDS)):
            await self._tick()

    async def run_until(self, condition: Callable[[], bool], *, within: float = 60) -> float:
        """Move the time until the condition holds; returns how long it took by this clock."""
        began = self._now
        while not condition():
            assert self._now - began < within, f"nothing happened within {within} s"
            await self._tick()
        return self._now - began

    async def _tick(self) -> None:
        self.jump(TICK_SECONDS)
        for _ in range(LOOP_PASSES):
            await asyncio.sleep(0)
        await asyncio.sleep(0.001)
