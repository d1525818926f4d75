"""One client on one connection to NATS: requests with numbered replies, and a queue for publishes without a reply.

nats-py would reconnect by itself and replay subscriptions, publishes and acks into a store that may be a different one.
Here a lost connection stays lost (docs/protocol.md, 2). nats-py's own callbacks are late or, on a half-open connection
with full buffers, never called. So the connection pings the server itself, and on a loss it fails all pending requests
at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import re
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from berth.api.errors import BerthError
from berth.bus.client import GuardedClient, secret_options, wants_tls
from berth.bus.interface import BusLostError, BusRefusedError, MissingError, TooLargeError, UnansweredError, Unstored
from berth.bus.settings import BusSettings

NO_RESPONDERS: Final = "503"
STATUS: Final = "Status"
DESCRIPTION: Final = "Description"

EXPIRY_SECONDS: Final = 0.25
"""Time between two checks for requests past their deadline."""
CLOSE_SECONDS: Final = 0.4
"""How long each of the two steps of closing may take."""

WRITE_ERRORS: Final = (nats.errors.Error, OSError, RuntimeError)
"""What a write to a lost connection raises; uvloop raises a RuntimeError when it has closed the socket already."""

_HEADER_BLOCK_BYTES: Final = len("NATS/1.0\r\n\r\n")
_HEADER_LINE_BYTES: Final = len(": \r\n")

_FORBIDDEN: Final = re.compile(r'permissions violation for (publish|subscription) to "([^"]*)"')


class Connection:
    """A client that connects once. After a loss every call raises :class:`BusLostError`."""

    def __init__(self, settings: BusSettings, name: str) -> None:
        self.settings: Final = settings
        self.name: Final = name
        self.lost: Final = asyncio.Event()
        self._client = GuardedClient(only_tls=wants_tls(settings))
        self._loop = asyncio.get_running_loop()
        self._cause = "closed"
        self._last_error: Exception | None = None
        self._forbidden: dict[str, str] = {}
        self._inbox = ""
        self._requests = PendingRequests(settings.answer_timeout)
        self.stores: Final = StoreRecord(self._loop.time)
        self._queue: deque[tuple[str, bytes, str]] = deque()
        self._queue_filled = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._listeners: set[Callable[[], None]] = set()

    @property
    def client(self) -> Client:
        """nats-py's client, for its service protocol."""
        return self._client

    @property
    def max_message_bytes(self) -> int:
        """The most that a message may take with its headers: of the server, and as the streams are declared.

        The server closes the connection of a client that sends more.
        """
        return min(self._client.max_payload, self.settings.topology.message_bytes)

    async def open(self) -> None:
        """Connect, and start the background tasks.

        Raises:
            BusLostError: no server can be reached.
            BusRefusedError: the credentials cannot be read, or the server has no TLS.
        """
        options = self._options()
        try:
            async with asyncio.timeout(self.settings.connect_timeout.total_seconds()):
                await self._client.connect(**options)
        except nats.errors.SecureConnRequiredError as exc:
            await self._close_socket()
            raise BusRefusedError(f"{self._unreachable(exc)}: TLS is asked for, the server has none") from exc
        except (TimeoutError, OSError, nats.errors.Error) as exc:
            await self._close_socket()
            raise BusLostError(self._unreachable(exc)) from exc
        await self._open_inbox()
        self._tasks = [self._loop.create_task(run()) for run in (self._ping, self._expire_requests, self._send_queued)]

    async def _open_inbox(self) -> None:
        self._inbox = self._client.new_inbox()
        try:
            await self.subscribe(f"{self._inbox}.*", self._on_reply)
        except UnansweredError as exc:
            await self._close_socket()
            raise BusLostError(self._unreachable(exc)) from exc
        except BusRefusedError:
            await self._close_socket()
            raise

    def _options(self) -> dict[str, Any]:
        settings = self.settings
        try:
            secrets = secret_options(settings)
        except (OSError, ValueError) as exc:
            raise BusRefusedError(f"connecting to NATS as {self.name!r}: {exc}") from exc
        return {
            "servers": list(settings.servers),
            "name": self.name,
            "inbox_prefix": settings.inbox_prefix,
            "allow_reconnect": False,
            "pending_size": 0,  # otherwise a publish waits inside nats-py for a flush, even after the loss
            "max_reconnect_attempts": 1,
            "reconnect_time_wait": 0,
            "connect_timeout": settings.connect_timeout.total_seconds(),
            "error_cb": self._on_error,
            "disconnected_cb": self._on_disconnected,
            **secrets,
        }

    def _servers(self) -> str:
        return ", ".join(server.rpartition("@")[2] for server in self.settings.servers)

    def _unreachable(self, exc: Exception) -> str:
        cause = self._last_error if isinstance(exc, nats.errors.NoServersError) and self._last_error else exc
        return f"connecting to NATS at {self._servers()} as {self.name!r}: {cause or type(cause).__name__}"

    # --- requests, publishes, subscriptions

    async def request(self, subject: str, data: bytes = b"", headers: Mapping[str, str] | None = None) -> Msg:
        """Send a request and wait for its one reply.

        Raises:
            BusLostError: the connection is lost; unknown whether the request arrived.
            UnansweredError: no reply came in ``answer_timeout``; unknown whether the request arrived.
            MissingError: nobody listens on the subject.
            TooLargeError: above ``max_message_bytes``.
        """
        pending = self._requests.add(subject)
        try:
            await self.publish(subject, data, reply=f"{self._inbox}.{pending.number}", headers=headers)
            reply = await pending.reply
        finally:
            self._requests.remove(pending)
        if reply.headers and not reply.data and reply.headers.get(STATUS) == NO_RESPONDERS:
            raise MissingError(f"asking {subject!r}: no responders: no such stream, or no JetStream")
        return reply

    async def publish(
        self, subject: str, data: bytes, *, reply: str = "", headers: Mapping[str, str] | None = None
    ) -> None:
        """Send without waiting for a reply. Raises as :meth:`request`."""
        if self.lost.is_set():
            raise self.lost_error()
        if (size := message_size(data, headers)) > self.max_message_bytes:
            raise TooLargeError(f"publishing {size} bytes to {subject!r}: NATS takes {self.max_message_bytes} at most")
        try:
            # A copy, since nats-py may write into what it is given.
            await self._client.publish(subject, data, reply=reply, headers=dict(headers) if headers else None)
        except (nats.errors.BadSubjectError, nats.errors.BadHeaderError) as exc:
            raise BusRefusedError(f"publishing to {subject!r}: {exc}") from exc
        except WRITE_ERRORS as exc:
            self.lose(f"publishing to {subject!r}: {exc}")
            raise self.lost_error() from exc

    def enqueue(self, subject: str, data: bytes = b"", reply: str = "") -> None:
        """Send soon, in the order of the calls, without waiting. Dropped when the connection is lost."""
        if not self.lost.is_set():
            self._queue.append((subject, data, reply))
            self._queue_filled.set()

    async def subscribe(self, subject: str, listener: Callable[[Msg], Awaitable[None]]) -> Subscription:
        """Subscribe; the server has the subscription when this returns. The listener gets one message at a time.

        Raises:
            BusRefusedError: this client may not subscribe to it.
        """
        if self.lost.is_set():
            raise self.lost_error()
        try:
            subscription = await self._client.subscribe(subject, cb=listener)
        except WRITE_ERRORS as exc:
            self.lose(f"subscribing to {subject!r}: {exc}")
            raise self.lost_error() from exc
        await self.flush(self.settings.answer_timeout)
        if (error := self._forbidden.pop(subject.lower(), None)) is not None:
            raise BusRefusedError(
                f"subscribing to {subject!r} as {self.name!r}: {error}: give this user the permission"
            )
        return subscription

    async def unsubscribe(self, subscription: Subscription) -> None:
        """End a subscription. On a lost connection there is nothing to do."""
        with contextlib.suppress(*WRITE_ERRORS):
            await subscription.unsubscribe()

    async def flush(self, within: timedelta) -> None:
        """Wait until the server has read all that was sent before. Raises as :meth:`request`."""
        pong = self._loop.create_future()
        answered = asyncio.Event()
        pong.add_done_callback(lambda _: answered.set())
        remove_listener = self.on_lost(answered.set)
        try:
            if not self.lost.is_set():
                await self._client.ping(pong)
                async with asyncio.timeout(within.total_seconds()):
                    await answered.wait()
        except TimeoutError as exc:
            text = f"pinging {self._servers()}: no answer within {within.total_seconds():g} s"
            raise UnansweredError(text) from exc
        finally:
            remove_listener()
        if self.lost.is_set():
            raise self.lost_error()

    def new_inbox(self) -> str:
        """A unique subject for replies."""
        return self._client.new_inbox()

    async def _on_reply(self, msg: Msg) -> None:
        self._requests.resolve(int(msg.subject[len(self._inbox) + 1 :]), msg)

    # --- loss

    def lost_error(self) -> BusLostError:
        """The error of every call once the connection is lost."""
        return BusLostError(f"using the connection of {self.name!r} to {self._servers()}: {self._cause}")

    def on_lost(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call the listener when the connection is lost; the returned function removes it."""
        self._listeners.add(listener)
        return lambda: self._listeners.discard(listener)

    def lose(self, cause: str) -> None:
        """End the connection: fail all pending requests, drop what was not sent."""
        if self.lost.is_set():
            return
        self._cause = cause
        self.lost.set()
        self._queue.clear()
        self._requests.fail_all(self.lost_error)
        for listener in list(self._listeners):
            listener()
        self._ending = self._loop.create_task(self._end())

    async def close(self) -> None:
        """Send what is queued, and disconnect. Takes at most a second."""
        with contextlib.suppress(TimeoutError, BusLostError, UnansweredError):
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._drain_queue()
                await self.flush(self.settings.ping_timeout)
        self.lose("closed")
        await asyncio.shield(self._ending)

    async def _end(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._close_socket()

    async def _close_socket(self) -> None:
        """Close the socket, even when the server does not take what is buffered."""
        with contextlib.suppress(TimeoutError, *WRITE_ERRORS):
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._client.close()
        self._client.abort()
        await asyncio.sleep(0)  # the loop closes the socket in its next turn

    async def _on_disconnected(self) -> None:
        self.lose(f"the server closed it ({self._last_error or 'no reason given'})")

    async def _on_error(self, error: Exception) -> None:
        self._last_error = error
        if isinstance(error, nats.errors.SlowConsumerError):
            self.lose(f"messages were dropped: too slow on {error.subject!r}")
        elif isinstance(error, nats.errors.UnexpectedEOF):
            self.lose("the server closed it")
        else:
            self._fail_forbidden(str(error))

    def _fail_forbidden(self, error: str) -> None:
        """A forbidden request gets no reply; the server only sends this error, with the subject in lower case."""
        found = _FORBIDDEN.search(error)
        if found is None:
            return
        doing, subject = found.groups()
        if doing == "subscription":
            self._forbidden[subject] = error
            return
        self._requests.fail_subject(
            subject,
            lambda asked: BusRefusedError(
                f"publishing to {asked!r} as {self.name!r}: {error}: give this user the permission"
            ),
        )

    # --- background tasks

    async def _ping(self) -> None:
        """Ping at every interval; without an answer the connection is lost."""
        while not self.lost.is_set():
            await asyncio.sleep(self.settings.ping_interval.total_seconds())
            try:
                await self.flush(self.settings.ping_timeout)
            except UnansweredError as exc:
                self.lose(str(exc))
            if not self._client.is_reading:
                self.lose("the client's reading task has ended")

    async def _expire_requests(self) -> None:
        while True:
            await asyncio.sleep(EXPIRY_SECONDS)
            self._requests.expire()

    async def _send_queued(self) -> None:
        while True:
            await self._queue_filled.wait()
            self._queue_filled.clear()
            with contextlib.suppress(BusLostError):
                await self._drain_queue()

    async def _drain_queue(self) -> None:
        while self._queue:
            subject, data, reply = self._queue.popleft()
            await self.publish(subject, data, reply=reply)


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingRequest:
    """A request without a reply yet; ``deadline`` in seconds of the event loop."""

    number: int
    subject: str
    deadline: float
    reply: asyncio.Future[Msg]

    def fail(self, error: BerthError) -> None:
        if not self.reply.done():
            self.reply.set_exception(error)
            self.reply.exception()  # retrieved: the caller may have ended with the connection, and asyncio would warn


STALE_SECONDS: Final = 60.0
"""After this long without a further try nothing is known of a stream any more."""


class StoreRecord:
    """Which streams and buckets have stored what was last published to them."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._refused: dict[str, tuple[float, float, str, bool]] = {}

    def stored(self, name: str) -> None:
        if self._refused:
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


def message_size(data: bytes, headers: Mapping[str, str] | None) -> int:
    """The bytes of a message that count for the server's limit: the payload, and the headers as they are sent."""
    if not headers:
        return len(data)
    lines = (len(name.encode()) + len(text.encode()) + _HEADER_LINE_BYTES for name, text in headers.items())
    return len(data) + _HEADER_BLOCK_BYTES + sum(lines)


class PendingRequests:
    """Requests by number. All have the same time-out, so they are in the order of their deadlines."""

    def __init__(self, timeout: timedelta) -> None:
        self._timeout: Final = timeout.total_seconds()
        self._loop = asyncio.get_running_loop()
        self._numbers = itertools.count(1)
        self._by_number: dict[int, PendingRequest] = {}

    def add(self, subject: str) -> PendingRequest:
        """A request with a new number; the caller must :meth:`remove` it."""
        deadline = self._loop.time() + self._timeout
        request = PendingRequest(
            number=next(self._numbers), subject=subject, deadline=deadline, reply=self._loop.create_future()
        )
        self._by_number[request.number] = request
        return request

    def remove(self, request: PendingRequest) -> None:
        self._by_number.pop(request.number, None)

    def resolve(self, number: int, msg: Msg) -> None:
        """A reply arrived; its request may have ended before."""
        request = self._by_number.get(number)
        if request is not None and not request.reply.done():
            request.reply.set_result(msg)

    def fail_all(self, error: Callable[[], BerthError]) -> None:
        """Fail every request, each with an error of its own."""
        for request in self._by_number.values():
            request.fail(error())

    def fail_subject(self, subject: str, error: Callable[[str], BerthError]) -> None:
        """Fail the requests to a subject, which is in lower case, as in the server's error."""
        for request in self._by_number.values():
            if request.subject.lower() == subject:
                request.fail(error(request.subject))

    def expire(self) -> None:
        """Fail requests past their deadline. One check for all is cheaper than a timer for each."""
        now = self._loop.time()
        for request in self._by_number.values():
            if request.deadline > now:
                break
            request.fail(UnansweredError(f"asking {request.subject!r}: no answer within {self._timeout:g} s"))
