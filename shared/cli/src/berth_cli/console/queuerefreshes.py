"""Answers about the queue for all pages: the watcher is asked for one list after another.

Refreshes begin at least a second apart; one answer serves every page that requests the same list.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from berth.clock import Clock, SteadyClock
from berth.errors import TemporaryError
from berth_cli.console.answers import Document

REFRESH_SECONDS: Final = 1.0  # between the beginnings of two refreshes; also how long an answer is kept
MOST_LISTS: Final = 16  # lists requested at the same time; each waits for those before it
ANSWER_SECONDS: Final = 20.0  # that a page waits for its list


@dataclass(frozen=True, slots=True)
class WantedList:
    """The pods of a queue and namespace; empty: all."""

    queue: str = ""
    namespace: str = ""


class QueueRefreshes:
    def __init__(self, read: Callable[[WantedList], Awaitable[Document]], clock: Clock | None = None) -> None:
        self._read = read
        self._clock = clock or SteadyClock()
        self._one_at_a_time = asyncio.Lock()
        self._next_at = self._clock.now()
        self._kept: dict[WantedList, tuple[float, Document]] = {}
        self._asking: dict[WantedList, asyncio.Task[Document]] = {}

    async def answer(self, wanted: WantedList) -> Document:
        """The list, at most a second old.

        Raises:
            TemporaryError: too many different lists are requested, or it took too long.
            BerthError: as ``read``.
        """
        now = self._clock.now()
        self._kept = {each: kept for each, kept in self._kept.items() if now - kept[0] < REFRESH_SECONDS}
        if wanted in self._kept:
            return self._kept[wanted][1]
        task = self._asking.get(wanted) or self._begin(wanted)
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                return await asyncio.shield(task)
        except TimeoutError as error:
            raise TemporaryError(f"listing the pods that wait: it took more than {ANSWER_SECONDS:g} s") from error

    def _begin(self, wanted: WantedList) -> asyncio.Task[Document]:
        if len(self._asking) >= MOST_LISTS:
            raise TemporaryError("listing the pods that wait: too many different lists are asked for: try again soon")
        task = self._asking[wanted] = asyncio.create_task(self._refresh(wanted))
        task.add_done_callback(lambda ended: self._ended(wanted, ended))
        return task

    async def _refresh(self, wanted: WantedList) -> Document:
        async with self._one_at_a_time:
            if (pause := self._next_at - self._clock.now()) > 0:
                await self._clock.sleep(pause)
            begun_at = self._clock.now()
            self._next_at = begun_at + REFRESH_SECONDS
            answer = await self._read(wanted)
            self._kept[wanted] = begun_at, answer
            return answer

    def _ended(self, wanted: WantedList, task: asyncio.Task[Document]) -> None:
        del self._asking[wanted]
        if not task.cancelled():
            task.exception()  # So that its error is not logged after the last waiter has left.
