"""Requests that wait for their answers: numbered, all with the same patience, ended together when the connection is."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from nats.aio.msg import Msg

from berth.api.errors import BerthError
from berth.bus.port import UnansweredError


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """A request under way; ``deadline`` in seconds of the event loop."""

    number: int
    subject: str
    deadline: float
    answer: asyncio.Future[Msg]

    def fail(self, error: BerthError) -> None:
        """End it without an answer."""
        if not self.answer.done():
            self.answer.set_exception(error)


class Answers:
    """Who waits for which number. All have the same patience, so they stand in the order of their deadlines."""

    def __init__(self, patience: timedelta) -> None:
        self._patience: Final = patience.total_seconds()
        self._loop = asyncio.get_running_loop()
        self._numbers = itertools.count(1)
        self._waiting: dict[int, Waiting] = {}

    def expect(self, subject: str) -> Waiting:
        """A new number; whoever asks for it must :meth:`forget` it."""
        deadline = self._loop.time() + self._patience
        waiting = Waiting(
            number=next(self._numbers), subject=subject, deadline=deadline, answer=self._loop.create_future()
        )
        self._waiting[waiting.number] = waiting
        return waiting

    def forget(self, waiting: Waiting) -> None:
        """Nobody waits for it any more."""
        self._waiting.pop(waiting.number, None)

    def hear(self, number: int, msg: Msg) -> None:
        """An answer; nobody may be there for it any more."""
        waiting = self._waiting.get(number)
        if waiting is not None and not waiting.answer.done():
            waiting.answer.set_result(msg)

    def fail_all(self, error: Callable[[], BerthError]) -> None:
        """End all of them, each with an error of its own."""
        for waiting in self._waiting.values():
            waiting.fail(error())

    def fail_subject(self, subject: str, error: Callable[[str], BerthError]) -> None:
        """End those that asked on a subject, given in small letters as the server names it."""
        for waiting in self._waiting.values():
            if waiting.subject.lower() == subject:
                waiting.fail(error(waiting.subject))

    def sweep(self) -> None:
        """End those whose time is over. One sweep now and then for all is what makes thousands a second cheap."""
        now = self._loop.time()
        for waiting in self._waiting.values():
            if waiting.deadline > now:
                break
            waiting.fail(UnansweredError(f"asking {waiting.subject!r}: no answer within {self._patience:g} s"))
