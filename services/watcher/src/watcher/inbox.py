"""The one queue through which everything reaches the core, in order."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable

from watcher.events import Event


class Inbox:
    """Events that wait for the core. ``put`` never waits."""

    def __init__(self) -> None:
        self._events: deque[Event] = deque()
        self._filled = asyncio.Event()

    def put(self, *events: Event) -> None:
        """Add events."""
        self.put_all(events)

    def put_all(self, events: Iterable[Event]) -> None:
        """Add events."""
        self._events.extend(events)
        self._filled.set()

    def take(self, most: int) -> list[Event]:
        """The next events, in order; empty when there are none."""
        taken = [self._events.popleft() for _ in range(min(most, len(self._events)))]
        if not self._events:
            self._filled.clear()
        return taken

    async def wait(self, seconds: float | None) -> None:
        """Until something is there, or so long at most."""
        if self._events:
            await asyncio.sleep(0)  # others want their turn too
            return
        try:
            async with asyncio.timeout(seconds):
                await self._filled.wait()
        except TimeoutError:
            return
