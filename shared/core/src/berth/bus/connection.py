"""One client on one connection to NATS: requests with numbered replies, deadlines, and the loss of the connection.

``berth.bus.login`` connects, ``berth.bus.wire`` reads and writes. A lost connection stays lost (docs/protocol.md, 2):
nats-py would reconnect by itself and replay subscriptions, publishes and acks into a store that may be a different one.
The connection pings the server, which finds a half-open one, and on a loss it fails all pending requests at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Final, Literal

from berth.bus.interface import BusLostError, BusRefusedError, MissingError, TooLargeError, UnansweredError, Unstored
from berth.bus.login import Login
from berth.bus.settings import IMPORTED_DOMAIN, BusSettings
from berth.bus.topology import Names
from berth.bus.wire import Listener, Msg, Wire, header_block
from berth.errors import BerthError

NO_RESPONDERS: Final = "503"

SWEEP_SECONDS: Final = 0.25
"""Time between two checks of all deadlines: one timer for all costs less than a timer for each."""
CLOSE_SECONDS: Final = 0.4
"""How long each of the two steps of closing may take."""

Sweeper = Callable[[float], None]
"""Called with the event loop's time at every sweep."""
Traffic = Callable[[Literal["sent", "received"], str, int], None]
"""Called with the subject and the size of each message of a connection; its content stays out of logs."""

_OWN_JETSTREAM: Final = "$JS.API."
_OR_THE_DOMAIN: Final = (
    ", or, if its account has no streams and imports them, set its JetStream domain: "
    f"BERTH_NATS_DOMAIN={IMPORTED_DOMAIN}"
)
_FORBIDDEN: Final = re.compile(r'permissions violation for (publish|subscription) to "([^"]*)"', re.IGNORECASE)


class Connection:
    """A client that connects once. After a loss every call raises :class:`BusLostError`."""

    def __init__(self, settings: BusSettings, name: str, traffic: Traffic | None = None) -> None:
        self.settings: Final = settings
        self.name: Final = name
        self.names: Final = Names(settings.topology.prefix)
        self.lost: Final = asyncio.Event()
        self._login = Login(settings, name)
        self._wire: Final = Wire(on_error=self._on_error, on_end=self.lose)
        self._traffic = traffic
        self._write = self._wire.publish if traffic is None else self._write_and_tell
        self._loop = asyncio.get_running_loop()
        self._cause = "closed"
        self._forbidden: dict[str, str] = {}
        self._inbox = ""
        self._inbox_bytes = b""
        self._requests = PendingRequests(settings.answer_timeout)
        self.stores: Final = StoreRecord(self._loop.time)
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._listeners: set[Callable[[], None]] = set()
        self._sweepers: set[Sweeper] = set()

    @property
    def max_message_bytes(self) -> int:
        """The most bytes of a message with its headers: the server's limit, or that of the streams if it is lower.

        The server closes the connection of a client that sends more.
        """
        return min(self._wire.max_payload, self.settings.topology.message_bytes)

    async def open(self) -> None:
        """Connect, log in, and start to read.

        Raises:
            BusLostError: no server can be reached.
            BusRefusedError: the credentials cannot be read, or the server has no TLS.
        """
        transport, received = await self._login.open()
        self._wire.set_max_payload(self._login.max_payload)
        self._wire.take_over(transport, received)
        self._inbox = self.new_inbox() + "."
        self._inbox_bytes = self._inbox.encode()
        try:
            await self.subscribe(f"{self._inbox}*", self._on_reply)
        except (UnansweredError, BusLostError) as exc:
            self.lose("closed")
            raise BusLostError(self._login.unreachable(exc)) from exc
        except BusRefusedError as exc:
            self.lose("closed")
            inbox = f"{self.settings.inbox_prefix}.>"
            remedy = "give it the permission, or name its own prefix in BERTH_NATS_INBOX_PREFIX"
            raise BusRefusedError(f"connecting as {self.name!r}: this user may not read {inbox!r}: {remedy}") from exc
        self._sweep()
        self._later("ping", self.settings.ping_interval, self._ping)

    # --- requests, publishes, subscriptions

    async def request(self, subject: str, data: bytes = b"", headers: Mapping[str, str] | None = None) -> Msg:
        """Send a request and wait for its one reply.

        Raises:
            BusLostError: the connection is lost; unknown whether the request arrived.
            UnansweredError: no reply came in ``answer_timeout``; unknown whether the request arrived.
            MissingError: nothing is subscribed to the subject.
            TooLargeError: above ``max_message_bytes``.
            BusRefusedError: the subject or a header breaks the protocol, or this client may not publish there.
        """
        if self._wire.is_crowded:
            await self._room(subject)
        reply: asyncio.Future[Msg] = self._loop.create_future()
        self.request_soon(subject, data, headers, partial(_settle, reply))
        return await reply

    def request_soon(self, subject: str, data: bytes, headers: Mapping[str, str] | None, on_answer: OnAnswer) -> None:
        """Send a request now, however much the server has not read yet; ``on_answer`` gets what it returns or raises.

        Raises:
            BerthError: nothing was sent, and ``on_answer`` is not called.
        """
        number = self._requests.add(subject, on_answer)
        try:
            self._send(subject, data, b" %b%d" % (self._inbox_bytes, number), headers)
        except BaseException:
            self._requests.remove(number)
            raise

    async def publish(
        self, subject: str, data: bytes, *, reply: str = "", headers: Mapping[str, str] | None = None
    ) -> None:
        """Send without waiting for a reply. Raises as :meth:`request`."""
        if self._wire.is_crowded:
            await self._room(subject)
        self.send(subject, data, reply=reply, headers=headers)

    def send(
        self, subject: str, data: bytes = b"", *, reply: str = "", headers: Mapping[str, str] | None = None
    ) -> None:
        """Send with all that is sent in this turn of the event loop, in the order of the calls. Raises as request."""
        self._send(subject, data, b" " + reply.encode() if reply else b"", headers)

    def _send(self, subject: str, data: bytes, reply: bytes, headers: Mapping[str, str] | None) -> None:
        if self.lost.is_set():
            raise self.lost_error()
        head = header_block(headers)
        if (size := len(head) + len(data)) > self.max_message_bytes:
            raise TooLargeError(f"publishing {size} bytes to {subject!r}: NATS takes {self.max_message_bytes} at most")
        self._write(subject, data, reply, head)

    def acknowledge(self, subject: str, data: bytes) -> None:
        """Send what need not arrive: dropped when the connection is lost."""
        if not self.lost.is_set():
            self._write(subject, data, b"", b"")

    def _write_and_tell(self, subject: str, data: bytes, reply: bytes, head: bytes) -> None:
        self._wire.publish(subject, data, reply, head)
        if self._traffic is not None:
            self._traffic("sent", self.names.own_subject(subject), len(head) + len(data))

    async def _room(self, subject: str) -> None:
        """Wait while the server reads too slowly."""
        seconds = self.settings.answer_timeout.total_seconds()
        try:
            async with asyncio.timeout(seconds):
                await self._wire.room()
        except TimeoutError as exc:
            raise UnansweredError(f"publishing to {subject!r}: the server reads nothing for {seconds:g} s") from exc

    async def subscribe(self, subject: str, listener: Listener) -> bytes:
        """Subscribe; the server has the subscription when this returns.

        Raises:
            BusRefusedError: this client may not subscribe to it.
        """
        number = self.subscribe_soon(subject, listener)
        await self.flush(self.settings.answer_timeout)
        if (error := self._forbidden.pop(subject, None)) is not None:
            raise BusRefusedError(
                f"subscribing to {subject!r} as {self.name!r}: {error}: give this user the permission"
            )
        return number

    def subscribe_soon(self, subject: str, listener: Listener) -> bytes:
        """Subscribe before anything that is sent later."""
        if self.lost.is_set():
            raise self.lost_error()
        return self._wire.subscribe(subject, listener if self._traffic is None else self._telling(listener))

    def _telling(self, listener: Listener) -> Listener:
        """The listener, once the message is told to whoever sees the traffic."""

        def on_message(message: Msg) -> None:
            if self._traffic is not None:
                self._traffic("received", self.names.own_subject(message.subject), len(message.data))
            listener(message)

        return on_message

    def unsubscribe(self, number: bytes) -> None:
        """End a subscription. On a lost connection there is nothing to do."""
        self._wire.unsubscribe(number)

    async def flush(self, within: timedelta) -> None:
        """Wait until the server has read all that was sent before. Raises as :meth:`request`."""
        answered = asyncio.Event()
        remove_listener = self.on_lost(answered.set)
        try:
            if not self.lost.is_set():
                self._wire.ping(answered.set)
                async with asyncio.timeout(within.total_seconds()):
                    await answered.wait()
        except TimeoutError as exc:
            raise UnansweredError(self._no_answer(within)) from exc
        finally:
            remove_listener()
        if self.lost.is_set():
            raise self.lost_error()

    def _no_answer(self, within: timedelta) -> str:
        return f"pinging {self.settings.addresses}: no answer within {within.total_seconds():g} s"

    def new_inbox(self) -> str:
        """A unique subject for replies."""
        return self._login.new_inbox()

    def _on_reply(self, message: Msg) -> None:
        number = message.subject[len(self._inbox) :]
        if number.isdecimal() and len(number) <= _NUMBER_DIGITS:
            self._requests.resolve(int(number), message)

    # --- deadlines

    def on_sweep(self, sweeper: Sweeper) -> Callable[[], None]:
        """Call ``sweeper`` at every sweep, until the returned function is called."""
        self._sweepers.add(sweeper)
        return lambda: self._sweepers.discard(sweeper)

    def _sweep(self) -> None:
        self._later("sweep", timedelta(seconds=SWEEP_SECONDS), self._sweep)
        now = self._loop.time()
        self._requests.expire(now)
        for sweeper in list(self._sweepers):
            sweeper(now)

    def _ping(self) -> None:
        """Ping at every interval; without an answer the connection is lost."""
        within = self.settings.ping_timeout
        self._later("ping", within, lambda: self.lose(self._no_answer(within)))
        self._wire.ping(self._on_pong)

    def _on_pong(self) -> None:
        self._later("ping", self.settings.ping_interval, self._ping)

    def _later(self, name: str, delay: timedelta, run: Callable[[], None]) -> None:
        """Run it after the delay, in place of what was to run under the name."""
        if name in self._timers:
            self._timers.pop(name).cancel()
        if not self.lost.is_set():
            self._timers[name] = self._loop.call_later(delay.total_seconds(), run)

    # --- loss

    def lost_error(self) -> BusLostError:
        """The error of every call once the connection is lost."""
        return BusLostError(f"using the connection of {self.name!r} to {self.settings.addresses}: {self._cause}")

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
        for timer in self._timers.values():
            timer.cancel()
        self._wire.abort()
        self._requests.fail_all(self.lost_error)
        for listener in list(self._listeners):
            listener()

    async def close(self) -> None:
        """Send what is written, and disconnect. Takes at most a second."""
        with contextlib.suppress(TimeoutError, BusLostError, UnansweredError):
            async with asyncio.timeout(CLOSE_SECONDS):
                await self.flush(self.settings.ping_timeout)
        self.lose("closed")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._wire.wait_closed()

    def _on_error(self, error: str) -> None:
        """An -ERR. After any but a refusal the server closes the connection."""
        found = _FORBIDDEN.search(error)
        if found is None:
            if "permissions violation" not in error.lower():
                self.lose(f"the server closed it ({error})")
            return
        doing, subject = found.groups()
        if doing.lower() == "subscription":
            self._forbidden[subject] = error
            return
        self._requests.fail_subject(
            subject,
            lambda asked: BusRefusedError(
                f"publishing to {asked!r} as {self.name!r}: {error}: give this user the permission"
                f"{_OR_THE_DOMAIN if asked.startswith(_OWN_JETSTREAM) else ''}"
            ),
        )


# --- pending requests

_NUMBER_DIGITS: Final = 15


OnAnswer = Callable[[Msg | BerthError], None]
"""Called once, with the reply to a request, or with why there is none."""


def _settle(reply: asyncio.Future[Msg], answer: Msg | BerthError) -> None:
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
        if message.data or message.status != NO_RESPONDERS:
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
        """Fail the requests to a subject."""
        for number, request in list(self._by_number.items()):
            if request.subject == subject:
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
