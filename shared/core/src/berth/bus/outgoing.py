"""What a connection has under way: calls of nats-py to be made, requests without an answer, and what was not stored."""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from nats.aio.msg import Msg

from berth.bus.interface import MissingError, UnansweredError, Unstored
from berth.errors import BerthError, cause_of

NO_RESPONDERS: Final = "503"
DENSE_SECONDS: Final = 0.001
"""When something is to be sent within this time after the last, it waits for as long. What is so dense then goes out in
one write: a read costs some 60 µs of CPU in whoever receives it, whether it has one message or ten."""
MOST_HELD_BYTES: Final = 16 * 1024 * 1024
"""Bytes that wait here while the server reads too slowly. Above it publishes wait; acknowledgements never do."""
_STATUS_DIGITS: Final = 3


def status_of(message: Msg) -> str:
    """The three digits with which the server answers instead of data; empty for anything else."""
    status = message.headers.get("Status", "") if message.headers else ""
    return status if len(status) == _STATUS_DIGITS and status.isascii() and status.isdigit() else ""


def description_of(message: Msg) -> str:
    """The server's text after the status."""
    return message.headers.get("Description", "") if message.headers else ""


class Outbox:
    """Calls of nats-py's client in their order, made by one task: the library's own calls are awaited."""

    def __init__(self, on_failure: Callable[[str], None]) -> None:
        """``on_failure`` gets the cause when a call fails: the connection is closed."""
        self._on_failure: Final = on_failure
        self._loop = asyncio.get_running_loop()
        self._calls: Final[deque[tuple[Callable[..., Awaitable[object]], tuple[object, ...], int]]] = deque()
        self._held_bytes = 0
        self._has_calls: Final = asyncio.Event()
        self._waiting: Final[deque[asyncio.Future[None]]] = deque()
        self._is_stopped = False
        self._writing: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to make the calls."""
        self._writing = asyncio.create_task(self._write())

    def put(self, call: Callable[..., Awaitable[object]], arguments: tuple[object, ...], size: int = 0) -> None:
        """Make the call after all that were put before. ``size``: the bytes that it holds until then."""
        self._calls.append((call, arguments, size))
        self._held_bytes += size
        self._has_calls.set()

    def stop(self) -> None:
        """Drop all calls. Whoever waits for room goes on."""
        self._is_stopped = True
        self._calls.clear()
        self._held_bytes = 0
        self._admit_next()
        if self._writing is not None:
            self._writing.cancel()

    async def passed(self) -> None:
        """Wait until everything that was put before has gone to nats-py."""
        at_this_place = self._loop.create_future()

        async def arrive() -> None:
            if not at_this_place.done():
                at_this_place.set_result(None)

        self.put(arrive, ())
        await at_this_place

    @property
    def is_crowded(self) -> bool:
        """Whether a publish must await :meth:`room` first."""
        return bool(self._waiting) or self._held_bytes > MOST_HELD_BYTES

    async def room(self) -> None:
        """Wait, in turn, until the server has taken enough of what is held, or the connection has ended."""
        turn = self._loop.create_future()
        self._waiting.append(turn)
        self._admit_next()
        try:
            await turn
        finally:
            self._waiting.remove(turn)
            self._loop.call_soon(self._admit_next)

    def _admit_next(self) -> None:
        has_room = self._is_stopped or self._held_bytes <= MOST_HELD_BYTES
        if self._waiting and not self._waiting[0].done() and has_room:
            self._waiting[0].set_result(None)

    async def _write(self) -> None:
        while not self._is_stopped:  # nats-py may take the cancellation for itself
            if not self._calls:
                emptied = self._loop.time()
                self._has_calls.clear()
                await self._has_calls.wait()
                if self._loop.time() < emptied + DENSE_SECONDS:
                    await asyncio.sleep(DENSE_SECONDS)
                continue
            call, arguments, size = self._calls.popleft()
            try:
                await call(*arguments)
            except Exception as exc:  # noqa: BLE001 - whatever it is, nothing more would be sent
                self._on_failure(f"writing to it: {cause_of(exc)}")
                return
            self._held_bytes -= size
            if self._waiting:
                self._admit_next()


# --- pending requests

NUMBER_DIGITS: Final = 15


OnAnswer = Callable[[Msg | BerthError], None]
"""Called once, with the reply to a request, or with why there is none."""


def settle(reply: asyncio.Future[Msg], answer: Msg | BerthError) -> None:
    """End the wait for a reply; its caller may have gone."""
    if reply.done():
        return
    if isinstance(answer, Msg):
        reply.set_result(answer)
    else:
        reply.set_exception(answer)
        reply.exception()  # retrieved: the caller may have ended with the connection, and asyncio would warn


@dataclass(slots=True)
class PendingRequest:
    """A request without a reply yet; ``deadline`` in seconds of the event loop."""

    subject: str
    deadline: float
    on_answer: OnAnswer


class PendingRequests:
    """Requests by number. All have the same time-out, so they are in the order of their deadlines."""

    def __init__(self, timeout: timedelta) -> None:
        self._timeout: Final = timeout.total_seconds()
        self._loop = asyncio.get_running_loop()
        self._numbers = itertools.count(1)
        self._by_number: dict[int, PendingRequest] = {}

    def add(self, subject: str, on_answer: OnAnswer) -> int:
        """The number of a new request."""
        number = next(self._numbers)
        self._by_number[number] = PendingRequest(subject, self._loop.time() + self._timeout, on_answer)
        return number

    def remove(self, number: int) -> None:
        """Nothing was sent."""
        self._by_number.pop(number, None)

    def resolve(self, number: int, message: Msg) -> None:
        """A reply arrived; its request may have ended before."""
        request = self._by_number.pop(number, None)
        if request is None:
            return
        if message.data or status_of(message) != NO_RESPONDERS:
            request.on_answer(message)
        else:
            nobody = f"asking {request.subject!r}: no responders: no such stream, or no JetStream"
            request.on_answer(MissingError(nobody))

    def fail_all(self, error: Callable[[], BerthError]) -> None:
        """Fail every request, each with an error of its own."""
        failed, self._by_number = self._by_number, {}
        for request in failed.values():
            request.on_answer(error())

    def fail_subject(self, subject: str, error: Callable[[str], BerthError]) -> None:
        """Fail the requests to a subject, which nats-py gives in lower case."""
        for number, request in list(self._by_number.items()):
            if request.subject.lower() == subject:
                del self._by_number[number]
                request.on_answer(error(request.subject))

    def expire(self, now: float) -> None:
        """Fail requests past their deadline, and forget them."""
        while self._by_number:
            number, request = next(iter(self._by_number.items()))
            if request.deadline > now:
                break
            del self._by_number[number]
            request.on_answer(UnansweredError(f"asking {request.subject!r}: no answer within {self._timeout:g} s"))


# --- what was stored

STALE_SECONDS: Final = 60.0
"""After this long without a further try nothing is known of a stream any more."""


class StoreRecord:
    """Which streams and buckets have stored what was last published to them."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._refused: dict[str, tuple[float, float, str, bool]] = {}

    @property
    def has_refused(self) -> bool:
        """Whether anything is to be forgotten when it is stored."""
        return bool(self._refused)

    def stored(self, name: str) -> None:
        self._refused.pop(name, None)

    def refused(self, name: str, reason: str, *, answered: bool) -> None:
        now = self._clock()
        began = self._refused[name][0] if name in self._refused else now
        self._refused[name] = (began, now, reason, answered)

    def unstored(self) -> dict[str, Unstored]:
        """As :meth:`berth.bus.interface.Session.unstored`."""
        now = self._clock()
        return {
            name: Unstored(reason=reason, since=now - began, answered=answered)
            for name, (began, last, reason, answered) in self._refused.items()
            if now - last < STALE_SECONDS
        }
