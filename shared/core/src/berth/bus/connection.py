"""One connection to NATS by a nats-py client: sending, numbered replies, deadlines, loss.

A lost connection stays lost (docs/protocol.md, 2): nats-py would reconnect and replay subscriptions, publishes and acks
into a store that may be another one. Apart from :class:`ReadingClient`, only the library's public interface is used
(docs/adr/0008-a-jetstream-layer-on-nats-py.md).
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache, partial
from typing import Any, Final, Literal

import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription as NatsSubscription

from berth.bus.interface import (
    LIMIT_BYTES,
    LIMIT_SECONDS,
    BusLostError,
    BusRefusedError,
    TooLargeError,
    UnansweredError,
    message_size,
)
from berth.bus.login import REFUSED, UNKNOWN_AUTHORITY, connect_options, refusal
from berth.bus.outgoing import NUMBER_DIGITS, OnAnswer, Outbox, PendingRequests, StoreRecord, settle
from berth.bus.settings import IMPORTED_DOMAIN, BusSettings
from berth.bus.topology import Names
from berth.errors import cause_of
from berth.log import get_logger

log = get_logger()

OLDEST_SERVER: Final = (2, 11)  # The first whose messages may have a time to live.

# Maximum bytes of a subject with its reply. NATS closes the connection after a command of more than 4 KiB; the rest of
# the command is two numbers.
MOST_SUBJECT_BYTES: Final = 4000
# Bytes that nats-py buffers before it waits for the socket. More wait in the outbox, where a loss drops them: the
# library still sends its buffer when a silent server returns.
WRITTEN_TOGETHER_BYTES: Final = 64 * 1024

# Between two checks of all deadlines: one timer for all costs less than one for each.
SWEEP_SECONDS: Final = 0.25
CLOSE_SECONDS: Final = 0.4  # For each of the two steps of closing.

# Receives each message of a subscription. Must not block.
Listener = Callable[[Msg], None]
# Called with the event loop's time at every sweep.
Sweeper = Callable[[float], None]
# Called with subject and size of each message, for the log, which has no content.
Traffic = Callable[[Literal["sent", "received"], str, int], None]

_OWN_JETSTREAM: Final = "$JS.API."
_OR_THE_DOMAIN: Final = (
    ", or, if its account has no streams and imports them, set its JetStream domain: "
    f"BERTH_NATS_DOMAIN={IMPORTED_DOMAIN}"
)
_FORBIDDEN: Final = re.compile(r'permissions violation for (publish|subscription) to "([^"]*)"')
_WHITE_SPACE: Final = re.compile(r"[ \t\r\n]")
_HEADERS_START, _HEADERS_END = b"NATS/1.0\r\n", b"\r\n\r\n"
_HEADER_NAME: Final = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_WILDCARD_TOKENS: Final = re.compile(r"(?:[^\s.*>]+|\*)(?:\.(?:[^\s.*>]+|\*))*(?:\.>)?|>")


class ReadingClient(Client):
    """nats-py's client, reading malformed headers and subjects too: the library would stop reading at them.

    Otherwise anybody who may publish could end every session that receives the message. These are the only private
    names of nats-py in berth (docs/adr/0008).
    """

    async def _process_headers(self, headers: bytes | None) -> dict[str, str] | None:
        if not headers:
            return None
        if headers.startswith(_HEADERS_START):  # no status: as the library does, in a third of its time
            try:
                lines = headers[len(_HEADERS_START) : -len(_HEADERS_END)].decode("ascii").split("\r\n")
                return {name.strip(): value.strip() for name, value in [line.split(":", 1) for line in lines]}
            except ValueError:
                pass  # not ASCII, or a line without a colon
        try:
            return await super()._process_headers(headers)
        except (IndexError, UnicodeDecodeError):
            return None

    def _build_message(
        self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: dict[str, str] | None
    ) -> Msg:
        try:
            texts = subject.decode(), reply.decode()
        except UnicodeDecodeError:
            texts = subject.decode(errors="replace"), reply.decode(errors="replace")
        return self.msg_class(self, *texts, data, headers, _sid=sid)


@dataclass(slots=True, eq=False)
class Subscription:
    subject: str
    listener: Listener
    is_active: bool = True
    of_library: NatsSubscription | None = None
    most: int = 0  # messages in LIMIT_SECONDS after which the server sends no more; 0 is no limit
    received: int = 0
    ends_at: int = 0  # received messages after which the server sends no more
    ended_before: int = 0  # the same until the limit was last renewed
    size: int = 0  # bytes received since then


class Connection:
    """A client that connects once. After a loss every call raises :class:`BusLostError`."""

    def __init__(self, settings: BusSettings, name: str, traffic: Traffic | None = None) -> None:
        self.settings: Final = settings
        self.name: Final = name
        self.names: Final = Names(settings.topology.prefix)
        self.api: Final = settings.api
        self.before_keys: Final = settings.before_keys
        self.lost: Final = asyncio.Event()
        self.stores: Final = StoreRecord(asyncio.get_running_loop().time)
        self._client: Final = ReadingClient()
        self._outbox: Final = Outbox(self.lose)
        self._traffic = traffic
        self._loop = asyncio.get_running_loop()
        self._cause = "closed"
        self._last_error: Exception | None = None
        self._forbidden: dict[str, str] = {}
        self._inbox = ""
        self._requests = PendingRequests(settings.answer_timeout)
        self._sweep_timer: asyncio.TimerHandle | None = None
        self._round_trips: Final[set[asyncio.Task[None]]] = set()
        self._closing: asyncio.Task[None] | None = None
        self._listeners: set[Callable[[], None]] = set()
        self._sweepers: set[Sweeper] = set()

    @property
    def max_message_bytes(self) -> int:
        """Maximum bytes of a message with its headers, by the server and the declared streams.

        The server closes the connection of a client that sends more.
        """
        return min(self._client.max_payload, self.settings.topology.message_bytes)

    # --- connecting

    async def open(self) -> None:
        """Connect, log in, and start to read.

        Raises:
            BusLostError: no server can be reached.
            BusRefusedError: unusable or refused credentials, or a server without TLS.
        """
        await self._connect()
        self._outbox.start()
        self._inbox = self.new_inbox() + "."
        try:
            await self.subscribe(f"{self._inbox}*", self._on_reply)
        except (UnansweredError, BusLostError) as exc:
            await self._end()
            raise BusLostError(self._unreachable(exc)) from exc
        except BusRefusedError as exc:
            await self._end()
            inbox = f"{self.settings.inbox_prefix}.>"
            remedy = "give it the permission, or name its own prefix in BERTH_NATS_INBOX_PREFIX"
            raise BusRefusedError(f"connecting as {self.name!r}: this user may not read {inbox!r}: {remedy}") from exc
        self._sweep()

    async def _connect(self) -> None:
        options = self._options()
        try:
            async with asyncio.timeout(self.settings.connect_timeout.total_seconds()):
                await self._client.connect(**options)
            if not self._client.is_connected:  # an INFO in place of the PONG, when servers join just then
                raise nats.errors.UnexpectedEOF
            await self._refuse_old_server()
        except nats.errors.SecureConnRequiredError as exc:
            await self._give_up()
            raise BusRefusedError(f"{self._unreachable(exc)}: TLS is asked for, the server has none") from exc
        except (TimeoutError, OSError, ValueError, nats.errors.Error) as exc:
            await self._give_up()
            text = self._unreachable(exc)
            if REFUSED in text.lower():
                refused = refusal(self.settings.credentials)
                raise BusRefusedError(f"connecting to NATS at {self.settings.addresses}: {refused}") from exc
            is_unknown = isinstance(self._cause_of(exc), ssl.SSLCertVerificationError)
            raise BusLostError(f"{text}: {UNKNOWN_AUTHORITY}" if is_unknown else text) from exc

    async def _refuse_old_server(self) -> None:
        server = self._client.connected_server_version
        if (0, 0) < (server.major, server.minor) < OLDEST_SERVER:
            await self._give_up()
            want = ".".join(map(str, OLDEST_SERVER))
            found = f"{server.major}.{server.minor}.{server.patch}"
            raise BusRefusedError(f"connecting to NATS at {self.settings.addresses}: want {want} or newer, got {found}")

    def _options(self) -> dict[str, Any]:
        settings = self.settings
        try:
            secrets = connect_options(settings)
        except (OSError, ValueError) as exc:
            raise BusRefusedError(f"connecting to NATS as {self.name!r}: {exc}") from exc
        seconds = settings.ping_interval.total_seconds()
        return {
            "servers": list(settings.servers),
            "name": self.name,
            "inbox_prefix": settings.inbox_prefix,
            "allow_reconnect": False,
            "max_reconnect_attempts": 1,
            "reconnect_time_wait": 0,
            "connect_timeout": settings.connect_timeout.total_seconds(),
            "ping_interval": seconds,
            "max_outstanding_pings": 1,
            "pending_size": WRITTEN_TOGETHER_BYTES,
            "skip_subject_validation": True,  # `send` and `subscribe_soon` have checked
            "error_cb": self._on_error,
            "closed_cb": self._on_closed,
            **secrets,
        }

    async def _give_up(self) -> None:
        # Closes the socket of a failed login.
        self.lost.set()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._close_client()

    def _unreachable(self, exc: Exception) -> str:
        return f"connecting to NATS at {self.settings.addresses} as {self.name!r}: {cause_of(self._cause_of(exc))}"

    def _cause_of(self, exc: Exception) -> Exception:
        return self._last_error if isinstance(exc, nats.errors.NoServersError) and self._last_error else exc

    # --- requests, publishes, subscriptions

    async def request(self, subject: str, data: bytes = b"", headers: Mapping[str, str] | None = None) -> Msg:
        """Send a request and wait for its one reply.

        Raises:
            BusLostError: the connection is lost; unknown whether the request arrived.
            UnansweredError: no reply in ``answer_timeout``; unknown whether the request arrived.
            MissingError: the subject has no subscriber.
            TooLargeError: above ``max_message_bytes``.
            BusRefusedError: an invalid subject or header, or a missing permission.
        """
        if self._outbox.is_crowded:
            await self._room(subject)
        reply: asyncio.Future[Msg] = self._loop.create_future()
        self.request_soon(subject, data, headers, partial(settle, reply))
        return await reply

    def request_soon(self, subject: str, data: bytes, headers: Mapping[str, str] | None, on_answer: OnAnswer) -> None:
        """Send a request, even to a slow server; ``on_answer`` gets the reply or the error.

        Raises:
            BerthError: the request was not sent, and ``on_answer`` is not called.
        """
        number = self._requests.add(subject, on_answer)
        try:
            self.send(subject, data, reply=f"{self._inbox}{number}", headers=headers)
        except BaseException:
            self._requests.remove(number)
            raise

    async def publish(
        self, subject: str, data: bytes, *, reply: str = "", headers: Mapping[str, str] | None = None
    ) -> None:
        """Send without waiting for a reply. Raises as :meth:`request`."""
        if self._outbox.is_crowded:
            await self._room(subject)
        self.send(subject, data, reply=reply, headers=headers)

    def send(
        self, subject: str, data: bytes = b"", *, reply: str = "", headers: Mapping[str, str] | None = None
    ) -> None:
        """Send in the order of calls, in one write with all of this turn of the event loop. Raises as request."""
        if self.lost.is_set():
            raise self.lost_error()
        if not subject or _WHITE_SPACE.search(subject):
            raise BusRefusedError(f"publishing to {subject!r:.300}: want a subject without white space")
        if len(subject.encode()) + len(reply) > MOST_SUBJECT_BYTES:
            raise BusRefusedError(f"publishing to {subject!r:.300}...: want {MOST_SUBJECT_BYTES} bytes at most")
        for name in headers or ():
            _check_header(name)
        if (size := message_size(data, headers)) > self.max_message_bytes:
            raise TooLargeError(f"publishing {size} bytes to {subject!r}: NATS takes {self.max_message_bytes} at most")
        self._put(subject, data, reply, headers or None, size)

    def acknowledge(self, subject: str, data: bytes) -> None:
        """Send a message that a lost connection may drop."""
        if not self.lost.is_set() and not _WHITE_SPACE.search(subject):
            self._put(subject, data, "", None, len(data))

    def _put(self, subject: str, data: bytes, reply: str, headers: Mapping[str, str] | None, size: int) -> None:
        self._outbox.put(self._client.publish, (subject, data, reply, headers), size)
        if self._traffic is not None:
            self._traffic("sent", self.names.own_subject(subject), size)

    async def _room(self, subject: str) -> None:
        # Waits while the server reads too slowly.
        seconds = self.settings.answer_timeout.total_seconds()
        try:
            async with asyncio.timeout(seconds):
                await self._outbox.room()
        except TimeoutError as exc:
            raise UnansweredError(f"publishing to {subject!r}: the server reads nothing for {seconds:g} s") from exc

    async def subscribe(self, subject: str, listener: Listener, *, most: int = 0) -> Subscription:
        """Subscribe; the server has the subscription when this returns. ``most`` as in the session's call.

        Raises:
            BusRefusedError: this client may not subscribe to it.
        """
        subscription = self.subscribe_soon(subject, listener, most=most)
        await self.flush(self.settings.answer_timeout)
        if (error := self._forbidden.pop(subject.lower(), None)) is not None:
            raise BusRefusedError(
                f"subscribing to {subject!r} as {self.name!r}: {error}: give this user the permission"
            )
        return subscription

    def subscribe_soon(self, subject: str, listener: Listener, *, most: int = 0) -> Subscription:
        """Subscribe before anything that is sent later.

        Raises:
            BusRefusedError: an invalid subject.
        """
        if self.lost.is_set():
            raise self.lost_error()
        if _WILDCARD_TOKENS.fullmatch(subject) is None:
            raise BusRefusedError(f"subscribing to {subject!r}: want tokens, dots between them, and whole wildcards")
        receive = listener if self._traffic is None else self._reporting(listener)
        subscription = Subscription(subject, receive, most=most)
        self._outbox.put(self._subscribe, (subscription,))
        if most:
            self._loop.call_later(LIMIT_SECONDS, self._renew, subscription)
        return subscription

    def _renew(self, subscription: Subscription) -> None:
        if subscription.is_active and not self.lost.is_set():
            self._outbox.put(self._extend, (subscription,))
            self._loop.call_later(LIMIT_SECONDS, self._renew, subscription)

    def _is_too_much(self, subscription: Subscription, size: int) -> bool:
        """Whether the messages since the limit was renewed have too many bytes; then the server sends no more either.

        It counts messages only, and closes a connection for which `max_pending` bytes wait.
        """
        before, subscription.size = subscription.size, subscription.size + size
        if before <= LIMIT_BYTES < subscription.size:
            self._outbox.put(self._unsubscribe, (subscription,))
        return subscription.size > LIMIT_BYTES

    async def _extend(self, subscription: Subscription) -> None:
        size, subscription.size = subscription.size, 0
        # The former limit may have ended it at the server before the present one arrived there.
        has_ended = subscription.received in {subscription.ended_before, subscription.ends_at}
        if has_ended or size > LIMIT_BYTES or subscription.of_library is None:
            await self._unsubscribe(subscription)
            await self._subscribe(subscription)
            return
        # The server counts over the subscription's whole life. A new subscription would lose what is on its way.
        subscription.ended_before = subscription.ends_at
        subscription.ends_at = subscription.received + subscription.most
        await subscription.of_library.unsubscribe(limit=subscription.ends_at)

    async def _subscribe(self, subscription: Subscription) -> None:
        async def on_message(message: Msg) -> None:
            if not subscription.is_active or self.lost.is_set():
                return
            if subscription.most:
                subscription.received += 1
                if self._is_too_much(subscription, message_size(message.data, message.headers)):
                    return
            try:
                subscription.listener(message)
            except Exception:  # costs one message, not the connection
                log.exception("reading a message failed", subject=message.subject)

        # Without limits: they would drop messages of one read of the socket, although the listener takes each at once.
        subscription.of_library = await self._client.subscribe(
            subscription.subject, cb=on_message, pending_msgs_limit=0, pending_bytes_limit=0
        )
        if subscription.most:
            subscription.received, subscription.ended_before = 0, -1
            subscription.ends_at = subscription.most
            await subscription.of_library.unsubscribe(limit=subscription.most)

    def _reporting(self, listener: Listener) -> Listener:
        # Reports each message to `traffic` before the listener gets it.

        def on_message(message: Msg) -> None:
            if self._traffic is not None:
                self._traffic("received", self.names.own_subject(message.subject), len(message.data))
            listener(message)

        return on_message

    def unsubscribe(self, subscription: Subscription) -> None:
        """Its listener is not called again."""
        if subscription.is_active and not self.lost.is_set():
            self._outbox.put(self._unsubscribe, (subscription,))
        subscription.is_active = False

    async def _unsubscribe(self, subscription: Subscription) -> None:
        if subscription.of_library is not None:
            with contextlib.suppress(nats.errors.BadSubscriptionError):  # its limit has ended it
                await subscription.of_library.unsubscribe()

    async def flush(self, within: timedelta) -> None:
        """Wait until the server has read everything sent before. Raises as :meth:`request`."""
        if self.lost.is_set():
            raise self.lost_error()
        round_trip = asyncio.create_task(self._round_trip())
        self._round_trips.add(round_trip)
        round_trip.add_done_callback(self._round_trips.discard)
        # Not cancelled when the time is over: nats-py ends its reading when the PONG of a cancelled PING arrives.
        await asyncio.wait({round_trip}, timeout=within.total_seconds())
        if self.lost.is_set():
            raise self.lost_error()
        if not round_trip.done():
            seconds = within.total_seconds()
            raise UnansweredError(f"pinging {self.settings.addresses}: no answer within {seconds:g} s")

    async def _round_trip(self) -> None:
        await self._outbox.passed()
        # nats-py sends a PING at once, ahead of what its flusher still has to write. By the first PONG it has run.
        for _ in range(2):
            with contextlib.suppress(nats.errors.Error):  # the connection is closed: the next sweep finds it
                await self._client.rtt(timeout=_NEVER_SECONDS)

    def new_inbox(self) -> str:
        return self._client.new_inbox()

    def _on_reply(self, message: Msg) -> None:
        number = message.subject[len(self._inbox) :]
        if number.isdecimal() and len(number) <= NUMBER_DIGITS:
            self._requests.resolve(int(number), message)

    # --- deadlines

    def on_sweep(self, sweeper: Sweeper) -> Callable[[], None]:
        """Call ``sweeper`` at every sweep, until the returned function is called."""
        self._sweepers.add(sweeper)
        return lambda: self._sweepers.discard(sweeper)

    def _sweep(self) -> None:
        if not self._client.is_connected:  # nats-py calls back only once the server has taken what is buffered
            self.lose(self._cause_of_closing())
        if self.lost.is_set():
            return
        self._sweep_timer = self._loop.call_later(SWEEP_SECONDS, self._sweep)
        now = self._loop.time()
        self._requests.expire(now)
        for sweeper in list(self._sweepers):
            sweeper(now)

    # --- loss

    def lost_error(self) -> BusLostError:
        return BusLostError(f"using the connection of {self.name!r} to {self.settings.addresses}: {self._cause}")

    def on_lost(self, listener: Callable[[], None]) -> Callable[[], None]:
        """The returned function removes the listener."""
        self._listeners.add(listener)
        return lambda: self._listeners.discard(listener)

    def lose(self, cause: str) -> None:
        """End the connection: fail pending requests, drop unsent messages."""
        if self.lost.is_set():
            return
        self._cause = cause
        self.lost.set()
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()
        self._outbox.stop()
        for round_trip in self._round_trips:
            round_trip.cancel()
        self._closing = asyncio.create_task(self._close_client())
        self._requests.fail_all(self.lost_error)
        for listener in list(self._listeners):
            listener()

    async def close(self) -> None:
        """Send the written data, and disconnect. Takes at most a second."""
        with contextlib.suppress(BusLostError, UnansweredError):
            await self.flush(timedelta(seconds=CLOSE_SECONDS))
        await self._end()

    async def _end(self) -> None:
        self.lose("closed")
        if self._closing is not None:
            await asyncio.wait({self._closing}, timeout=CLOSE_SECONDS)

    async def _close_client(self) -> None:
        # Closes the socket once the server has taken nats-py's buffer: no other call makes the library close it.
        with contextlib.suppress(OSError, RuntimeError, nats.errors.Error):
            await self._client.close()

    async def _on_closed(self) -> None:
        if self._inbox:  # else it has not been opened
            self.lose(self._cause_of_closing())

    def _cause_of_closing(self) -> str:
        error = self._client.last_error or self._last_error
        if isinstance(error, nats.errors.StaleConnectionError) and not isinstance(error, nats.errors.UnexpectedEOF):
            seconds = 2 * self.settings.ping_interval.total_seconds()
            return f"pinging {self.settings.addresses}: no answer within {seconds:g} s"
        return f"the server closed it ({error})" if error else "the server closed it"

    async def _on_error(self, error: Exception) -> None:
        # A refusal, or the reason why nats-py closes the connection.
        found = _FORBIDDEN.search(str(error))
        if found is None:
            self._last_error = error
            return
        doing, subject = found.groups()
        if doing == "subscription":
            self._forbidden[subject] = str(error)
            return
        self._requests.fail_subject(
            subject,
            lambda asked: BusRefusedError(
                f"publishing to {asked!r} as {self.name!r}: {error}: give this user the permission"
                f"{_OR_THE_DOMAIN if asked.startswith(_OWN_JETSTREAM) else ''}"
            ),
        )


_NEVER_SECONDS: Final = 86_400  # A time-out of nats-py that never expires.


@lru_cache(maxsize=256)
def _check_header(name: str) -> None:
    if _HEADER_NAME.fullmatch(name) is None:
        raise BusRefusedError(f"publishing with header {name!r}: want letters, digits and dashes")
