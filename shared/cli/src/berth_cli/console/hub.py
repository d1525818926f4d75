"""Sends frames to pages; the number of pages and of unread frames per page is bounded.

A page that is too slow gets the whole state again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from berth.errors import TemporaryError

MOST_PAGES: Final = 32
MOST_WAITING: Final = 20  # unread frames per page: two seconds


class TooManyPagesError(TemporaryError):
    """The limit of open pages is reached."""


class OpenPage:
    def __init__(self, whole: Callable[[], bytes]) -> None:
        self._whole = whole
        self._waiting: deque[bytes] = deque()
        self._needs_whole = True
        self._changed = asyncio.Event()
        self._changed.set()

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def put(self, frame: bytes) -> None:
        # Beyond the limit all unread frames are replaced by a whole one.
        if self._needs_whole:
            return
        if len(self._waiting) >= MOST_WAITING:
            self.renew()
            return
        self._waiting.append(frame)
        self._changed.set()

    def renew(self) -> None:
        self._waiting.clear()
        self._needs_whole = True
        self._changed.set()

    async def next(self) -> bytes:
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
    """The open pages. ``whole`` makes the first frame of a page."""

    def __init__(self, whole: Callable[[], bytes]) -> None:
        self._make_whole = whole
        self._made: bytes | None = None
        self._pages: set[OpenPage] = set()

    def __len__(self) -> int:
        return len(self._pages)

    @contextmanager
    def page(self) -> Iterator[OpenPage]:
        """A page that is open inside the block.

        Raises:
            TooManyPagesError: the limit is reached.
        """
        self.check_room()
        page = OpenPage(self._whole)
        self._pages.add(page)
        try:
            yield page
        finally:
            self._pages.remove(page)

    def check_room(self) -> None:
        """Raises TooManyPagesError: the limit is reached."""
        if len(self._pages) >= MOST_PAGES:
            raise TooManyPagesError(f"opening the console: {MOST_PAGES} pages are open already: close one of them")

    def publish(self, frame: bytes | None) -> None:
        """End a tick: send its frame, if any, to all pages."""
        self._made = None
        if frame is None:
            return
        for page in self._pages:
            page.put(frame)

    def renew(self) -> None:
        self._made = None
        for page in self._pages:
            page.renew()

    def _whole(self) -> bytes:
        # Made once per tick for all pages.
        if self._made is None:
            self._made = self._make_whole()
        return self._made
