"""Outgoing state of a connection: queued calls of nats-py, pending requests, and messages that were not stored."""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Final

import msgspec
from nats.aio.msg import Msg

from berth.bus.interface import MissingError, UnansweredError, Unstored
from berth.errors import BerthError, cause_of

NO_RESPONDERS: Final = "503"
# A message within this time of the last one waits as long, so that dense ones go out in one write: each read costs its
# receiver 60 µs of CPU, with one message or ten.
DENSE_SECONDS: Final = 0.001
# Bytes held while the server reads too slowly. Above it publishes wait; acknowledgements never do.
MOST_HELD_BYTES: Final = 16 * 1024 * 1024
_STATUS_DIGITS: Final = 3


def status_of(message: Msg) -> str:
    """The three digits of a server's status message; empty for other messages."""
    status = message.headers.get("Status", "") if message.headers else ""
    return status if len(status) == _STATUS_DIGITS and status.isascii() and status.isdigit() else ""


def description_of(message: Msg) -> str:
    return message.headers.get("Description", "") if message.headers else ""


class Outbox:
    """Calls of nats-py's client in order, made by one task, because they must be awaited."""

    def __init__(self, on_failure: Callable[[str], None]) -> None:
        """``on_failure`` gets the cause of a failed call, and must end the connection."""
        self._on_failure: Final = on_failure
        self._loop = asyncio.get_running_loop()
        self._calls: Final[deque[tuple[Callable[..., Awaitable[object]], tuple[object, ...], int]]] = deque()
        self._held_bytes = 0
        self._has_calls: Final = asyncio.Event()
        self._waiting: Final[deque[asyncio.Future[None]]] = deque()
        self._is_stopped = False
        self._writing: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._writing = asyncio.create_task(self._write())

    def put(self, call: Callable[..., Awaitable[object]], arguments: tuple[object, ...], size: int = 0) -> None:
        """Queue a call; ``size``: bytes held until the call, after all earlier ones."""
        self._calls.append((call, arguments, size))
        self._held_bytes += size
        self._has_calls.set()

    def stop(self) -> None:
        """Callers that wait for room continue."""
        self._is_stopped = True
        self._calls.clear()
        self._held_bytes = 0
        self._admit_next()
        if self._writing is not None:
            self._writing.cancel()

    async def passed(self) -> None:
        """Wait until all earlier calls were made."""
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
        """Wait, in turn, until enough was sent, or the connection has ended."""
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
        while not self._is_stopped:  # nats-py may swallow the cancellation
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
            except Exception as exc:  # noqa: BLE001 - after any error nothing more would be sent
                self._on_failure(f"writing to it: {cause_of(exc)}")
                return
            self._held_bytes -= size
            if self._waiting:
                self._admit_next()


# --- pending requests

NUMBER_DIGITS: Final = 15


# Called once, with the reply or the error.
OnAnswer = Callable[[Msg | BerthError], None]


def settle(reply: asyncio.Future[Msg], answer: Msg | BerthError) -> None:
    """Pass the answer to the waiting caller, if it is still there."""
    if reply.done():
        return
    if isinstance(answer, Msg):
        reply.set_result(answer)
    else:
        reply.set_exception(answer)
        reply.exception()  # retrieved: the caller may be gone, and asyncio would warn


class PendingRequest(msgspec.Struct):
    """A request without a reply yet; ``deadline`` in seconds of the event loop."""

    subject: str
    deadline: float
    on_answer: OnAnswer


class PendingRequests:
    """Requests by number. All have the same time limit, so they are in the order of their deadlines."""

    def __init__(self, timeout: timedelta) -> None:
        self._timeout: Final = timeout.total_seconds()
        self._loop = asyncio.get_running_loop()
        self._numbers = itertools.count(1)
        self._by_number: dict[int, PendingRequest] = {}

    def add(self, subject: str, on_answer: OnAnswer) -> int:
        number = next(self._numbers)
        self._by_number[number] = PendingRequest(subject, self._loop.time() + self._timeout, on_answer)
        return number

    def remove(self, number: int) -> None:
        self._by_number.pop(number, None)

    def resolve(self, number: int, message: Msg) -> None:
        """A reply arrived, perhaps to a request that has ended."""
        request = self._by_number.pop(number, None)
        if request is None:
            return
        if message.data or status_of(message) != NO_RESPONDERS:
            request.on_answer(message)
        else:
            error = f"asking {request.subject!r}: no responders: no such stream, or no JetStream"
            request.on_answer(MissingError(error))

    def fail_all(self, error: Callable[[], BerthError]) -> None:
        """Fail all requests, each with an error of its own."""
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
        while self._by_number:
            number, request = next(iter(self._by_number.items()))
            if request.deadline > now:
                break
            del self._by_number[number]
            request.on_answer(UnansweredError(f"asking {request.subject!r}: no answer within {self._timeout:g} s"))


# --- stored or not

STALE_SECONDS: Final = 60.0  # A record without a further try expires after this time.


class StoreRecord:
    """Streams and buckets that did not store the last message published to them."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._refused: dict[str, tuple[float, float, str, bool]] = {}

    @property
    def has_refused(self) -> bool:
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
