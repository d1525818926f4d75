"""How far a reflector has come, counted in resourceVersions of its kind (PROTOCOL 3 and 5)."""

from __future__ import annotations

import asyncio
import heapq
import itertools

from berth.api import resource_version
from berth.api.errors import DecodeError


class Positions:
    """Two numbers: how far the reading has come, and the newest object or event in it.

    A LIST and a bookmark move the first one only. What a conflict names is the second: the first may be a number
    that another reader of a quiet kind reaches with its next bookmark only.
    """

    def __init__(self) -> None:
        self.reached = 0
        """Everything up to here has been handed on: the highest of LIST, bookmark, object and event."""
        self.newest_object = 0
        """The highest resourceVersion of an object or an event that has been handed on."""
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []
        self._order = itertools.count()

    def listed(self, version: str, newest_object: int) -> None:
        """A LIST has been handed on. It may go back: then the API server has another store, and its numbers count."""
        self.reached = number(version)
        self.newest_object = min(max(self.newest_object, newest_object), self.reached)
        self._wake()

    def event(self, version: str) -> None:
        """An object's event has been handed on."""
        position = number(version)
        self.newest_object = max(self.newest_object, position)
        self._reach(position)

    def bookmark(self, version: str) -> None:
        """A bookmark has been handed on."""
        self._reach(number(version))

    async def wait(self, version: str) -> None:
        """Wait until everything up to this version has been handed on.

        Raises:
            DecodeError: that is no resourceVersion.
        """
        wanted = resource_version.parse(version)
        if wanted <= self.reached:
            return
        waiter = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (wanted, next(self._order), waiter))
        await waiter

    def _reach(self, position: int) -> None:
        if position > self.reached:
            self.reached = position
            self._wake()

    def _wake(self) -> None:
        while self._waiting and self._waiting[0][0] <= self.reached:
            waiter = heapq.heappop(self._waiting)[2]
            if not waiter.done():
                waiter.set_result(None)


def number(version: str) -> int:
    """The version as a number; 0 for what is none, which moves no position."""
    try:
        return resource_version.parse(version)
    except DecodeError:
        return 0
