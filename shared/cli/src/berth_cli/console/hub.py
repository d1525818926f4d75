"""Sends frames to pages: at most so many pages, and to each at most so many frames that it has not taken.

A page that is too slow is sent everything again once it takes frames: it misses the frames between, and no change.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from berth.errors import TemporaryError

MOST_PAGES: Final = 32
MOST_WAITING: Final = 20
"""Frames that wait for one page: two seconds of them."""


class TooManyPagesError(TemporaryError):
    """As many pages are open as this process serves."""


class OpenPage:
    """The frames of one page that is open."""

    def __init__(self, whole: Callable[[], bytes]) -> None:
        self._whole = whole
        self._waiting: deque[bytes] = deque()
        self._needs_whole = True
        self._changed = asyncio.Event()
        self._changed.set()

    @property
    def waiting(self) -> int:
        """Frames that it has not taken."""
        return len(self._waiting)

    def put(self, frame: bytes) -> None:
        """A new frame; one too many, and all are dropped for a whole one."""
        if self._needs_whole:
            return
        if len(self._waiting) >= MOST_WAITING:
            self.renew()
            return
        self._waiting.append(frame)
        self._changed.set()

    def renew(self) -> None:
        """Have everything sent next."""
        self._waiting.clear()
        self._needs_whole = True
        self._changed.set()

    async def next(self) -> bytes:
        """The next frame to send; waits for one."""
        await self._changed.wait()
        if self._needs_whole:
            self._needs_whole = False
            frame = self._whole()
        else:
            frame = self._waiting.popleft()
        if not self._waiting:
            self._changed.clear()
        return frame


class Hub:
    """The pages that are open. ``whole`` makes the frame that a page begins with."""

    def __init__(self, whole: Callable[[], bytes]) -> None:
        self._make_whole = whole
        self._made: bytes | None = None
        self._pages: set[OpenPage] = set()

    def __len__(self) -> int:
        return len(self._pages)

    @contextmanager
    def page(self) -> Iterator[OpenPage]:
        """A page that is open in the block.

        Raises:
            TooManyPagesError: there are too many already.
        """
        self.check_room()
        page = OpenPage(self._whole)
        self._pages.add(page)
        try:
            yield page
        finally:
            self._pages.remove(page)

    def check_room(self) -> None:
        """Raises TooManyPagesError: one page more would be too many."""
        if len(self._pages) >= MOST_PAGES:
            raise TooManyPagesError(f"opening the console: {MOST_PAGES} pages are open already: close one of them")

    def publish(self, frame: bytes | None) -> None:
        """A tick is over: send its frame to all pages, if it has one."""
        self._made = None
        if frame is None:
            return
        for page in self._pages:
            page.put(frame)

    def renew(self) -> None:
        """Everything is another: send all of it to all pages."""
        self._made = None
        for page in self._pages:
            page.renew()

    def _whole(self) -> bytes:
        """Made once a tick, however many pages ask for it."""
        if self._made is None:
            self._made = self._make_whole()
        return self._made
