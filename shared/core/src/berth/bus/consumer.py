"""Deliveries of a durable consumer by a continuous pull.

It requests as many messages as may be unsettled, counts outstanding ones, and requests more below half. nats-py's own
pull stalls (docs/adr/0008). This is the plain protocol: a request ``{batch, expires, idle_heartbeat}`` to
``CONSUMER.MSG.NEXT`` with an inbox for the messages. When the server loses a request (restart of a cluster member,
change of leader), its heartbeats stop, and the request is repeated under a new number. Messages for older numbers are
accepted too.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

import msgspec
from nats.aio.msg import Msg

from berth.bus.connection import Connection, Subscription
from berth.bus.interface import BusLostError, MissingError
from berth.bus.jetstream import is_number, nanoseconds
from berth.bus.outgoing import NO_RESPONDERS, description_of, status_of
from berth.errors import BerthError

INBOX_LIVES: Final = 2  # An inbox is used for this many lifetimes of a request.
# Subject and reply of a delivery. A request ends at the bytes of the largest message: the server closes a connection
# for which twice as much waits (`max_pending`), and would do so again and again with a thousand messages of 100 KB.
BESIDE_BYTES: Final = 16 * 1024
HEARTBEATS_MISSED: Final = 3  # After this many missing heartbeats the server has lost the request.


@asynccontextmanager
async def consume(
    connection: Connection, stream: str, consumer: str, max_unacked: int
) -> AsyncIterator[NatsDeliveries]:
    """Pull continuously, as :meth:`berth.bus.interface.Session.consume`."""
    async with Pull(connection, stream, consumer, max_unacked).open() as pull:
        deliveries = NatsDeliveries(pull, connection)
        try:
            yield deliveries
        finally:
            deliveries.nak_unread()


class NatsDeliveries:
    """Deliveries of a pull, at most ``max_unacked`` of them unsettled and not set aside."""

    def __init__(self, pull: Pull, connection: Connection) -> None:
        self._pull = pull
        self._connection = connection
        self._unsettled = 0

    def __aiter__(self) -> AsyncIterator[NatsDelivery]:
        return self

    async def __anext__(self) -> NatsDelivery:
        pull = self._pull
        while not pull.failure and not (pull.buffer and self._unsettled < pull.credit.limit):
            await pull.wait()
        if pull.failure:
            raise pull.failure
        self._unsettled += 1
        return NatsDelivery(*pull.buffer.popleft(), self._connection, self._on_settled)

    def _on_settled(self) -> None:
        self._unsettled -= 1
        self._pull.credit.held -= 1
        self._pull.changed.set()
        self._pull.request_soon()

    def nak_unread(self) -> None:
        """Give unread messages back, so that another client gets them at once."""
        while self._pull.buffer:
            NatsDelivery(*self._pull.buffer.popleft(), self._connection, _ignore).nak()


def _ignore() -> None:
    # For deliveries that are not counted.
    pass


_ACK: Final = b"+ACK"
_NAK: Final = b"-NAK"
_IN_PROGRESS: Final = b"+WPI"


class NatsDelivery:
    """A message of a work queue. Once settled, further calls have no effect."""

    __slots__ = ("_connection", "_headers", "_message", "_metadata", "_on_settled", "_time")

    def __init__(
        self, message: Msg, metadata: MessageMetadata, connection: Connection, on_settled: Callable[[], None]
    ) -> None:
        self._message = message
        self._connection = connection
        self._metadata = metadata
        self._headers: Mapping[str, str] | None = None
        self._time: datetime | None = None
        self._on_settled: Callable[[], None] | None = on_settled

    @property
    def subject(self) -> str:
        return self._connection.names.own_subject(self._message.subject)

    @property
    def data(self) -> bytes:
        return self._message.data

    @property
    def headers(self) -> Mapping[str, str]:
        if self._headers is None:
            self._headers = self._message.headers or {}
        return self._headers

    @property
    def sequence(self) -> int:
        return self._metadata.stream_sequence

    @property
    def delivered(self) -> int:
        return self._metadata.delivered

    @property
    def time(self) -> datetime:
        if self._time is None:
            self._time = self._metadata.time
        return self._time

    def ack(self) -> None:
        self._settle(_ACK)

    def nak(self, delay: timedelta | None = None) -> None:
        options = b" " + msgspec.json.encode({"delay": nanoseconds(delay)}) if delay else b""
        self._settle(_NAK + options)

    def in_progress(self) -> None:
        if self._on_settled is not None:
            self._connection.acknowledge(self._message.reply, _IN_PROGRESS)

    def set_aside(self) -> None:
        if self._on_settled is not None:
            on_settled, self._on_settled = self._on_settled, _ignore
            on_settled()

    def _settle(self, payload: bytes) -> None:
        if self._on_settled is None:
            return
        self._connection.acknowledge(self._message.reply, payload)
        on_settled, self._on_settled = self._on_settled, None
        on_settled()


_PLAIN_TOKENS: Final = 9
_DIGITS: Final = 19  # Of a signed 64-bit integer.
_NANOSECONDS: Final = 1_000_000_000


class MessageMetadata(NamedTuple):
    """Fields of an ack subject ``$JS.ACK.<stream>.<consumer>.<delivered>.<sseq>.<cseq>.<time>.<pending>``.

    A server with domains writes two more tokens before the stream, and newer ones a random one at the end.
    """

    delivered: int
    stream_sequence: int
    consumer_sequence: int
    nanoseconds: int
    pending: int

    @property
    def time(self) -> datetime:
        seconds, rest = divmod(self.nanoseconds, _NANOSECONDS)
        return datetime.fromtimestamp(seconds, UTC) + timedelta(microseconds=rest // 1000)


def metadata_of(reply: str) -> MessageMetadata | None:
    """The metadata in an ack subject; ``None`` for other subjects."""
    tokens = reply.split(".")
    first = 4 if len(tokens) == _PLAIN_TOKENS else 6
    numbers = tokens[first : first + 5]
    if max(map(len, numbers), default=0) > _DIGITS:
        return None
    try:
        return MessageMetadata(*map(int, numbers))
    except (ValueError, TypeError):
        return None


_HEARTBEAT: Final = "100"
_CONSUMER_GONE: Final = ("consumer deleted", "consumer is push based")
_NOT_SENT: Final = "Nats-Pending-Messages"


class Pull:
    """Continuous pull requests to one consumer. The owner takes messages from ``buffer``.

    The inbox changes periodically, because the server remembers requests to another account until their inbox is gone
    (0.8 KB each, measured with 2.15).
    """

    def __init__(self, connection: Connection, stream: str, consumer: str, limit: int) -> None:
        self.buffer: Final[deque[tuple[Msg, MessageMetadata]]] = deque()
        self.credit: Final = Credit(limit=limit)
        self.failure: BerthError | None = None
        self.changed: Final = asyncio.Event()
        self._connection = connection
        self._name = f"{stream} {consumer}"
        self._next = f"{connection.api}.CONSUMER.MSG.NEXT.{stream}.{consumer}"
        self._inbox = ""
        self._number = 0
        self._loop = asyncio.get_running_loop()
        self._last_received = self._loop.time()
        self._request_scheduled = False
        self._closed = False

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Pull]:
        """Subscribe and send the first request; unsubscribe at the end."""
        inboxes = [await self._new_inbox()]
        changing = asyncio.create_task(self._change_inbox(inboxes))
        remove_listener = self._connection.on_lost(self._on_lost)
        remove_sweeper = self._connection.on_sweep(self._check_silence)
        try:
            self._request()
            yield self
        finally:
            remove_listener()
            remove_sweeper()
            self._closed = True
            changing.cancel()
            with suppress(asyncio.CancelledError, BerthError):
                await changing
            for inbox in inboxes:
                self._connection.unsubscribe(inbox)

    async def _new_inbox(self) -> Subscription:
        inbox = self._connection.new_inbox()
        subscription = await self._connection.subscribe(f"{inbox}.*", self._on_message)
        self._inbox = inbox
        return subscription

    async def _change_inbox(self, inboxes: list[Subscription]) -> None:
        # New requests get a new inbox; the former one is removed when its last request has expired.
        while True:
            await asyncio.sleep(self._connection.settings.pull_expires.total_seconds() * INBOX_LIVES)
            inboxes.append(await self._new_inbox())
            await asyncio.sleep(self._connection.settings.pull_expires.total_seconds() + self.silence_allowed)
            self._connection.unsubscribe(inboxes.pop(0))

    @property
    def silence_allowed(self) -> float:
        """Seconds without message or heartbeat after which requests count as lost."""
        return self._connection.settings.pull_heartbeat.total_seconds() * HEARTBEATS_MISSED

    def request_soon(self) -> None:
        """Request more if needed, once per iteration of the event loop."""
        if not self._request_scheduled and self.credit.is_low:
            self._request_scheduled = True
            self._loop.call_soon(self._request)

    async def wait(self) -> None:
        """Wait until a message arrives, the pull fails or a message is settled."""
        self.changed.clear()
        await self.changed.wait()

    def _check_silence(self, now: float) -> None:
        # After too long a silence the requests are lost: send one under a new number.
        if self.credit.outstanding and now > self._last_received + self.silence_allowed:
            self._number += 1
            self._last_received = now
            self.credit.outstanding = 0
            self._request()

    def _request(self) -> None:
        self._request_scheduled = False
        if self._closed or self.failure or not (batch := self.credit.take()):
            return
        if self.credit.outstanding == batch:
            self._last_received = self._loop.time()  # no request was open before: the silence begins now
        settings = self._connection.settings
        request = {
            "batch": batch,
            "max_bytes": settings.topology.message_bytes + BESIDE_BYTES,
            "expires": nanoseconds(settings.pull_expires),
            "idle_heartbeat": nanoseconds(settings.pull_heartbeat),
        }
        with suppress(BusLostError):
            self._connection.send(self._next, msgspec.json.encode(request), reply=f"{self._inbox}.{self._number}")

    def _on_message(self, message: Msg) -> None:
        self._last_received = self._loop.time()
        if message.reply:
            self._on_delivery(message)
        elif message.subject.endswith(f".{self._number}"):
            self._on_status(message)

    def _on_delivery(self, message: Msg) -> None:
        metadata = metadata_of(message.reply)
        if metadata is None:
            return  # not from a consumer, but another client that may publish to this inbox
        self.credit.arrive()
        self.buffer.append((message, metadata))
        self.changed.set()

    def _on_status(self, message: Msg) -> None:
        status, text = status_of(message), description_of(message)
        if status == NO_RESPONDERS or text.lower().startswith(_CONSUMER_GONE):
            self._fail(MissingError(f"consuming {self._name}: the consumer is not there ({text or 'no responders'})"))
        elif status and status != _HEARTBEAT:
            not_sent = (message.headers or {}).get(_NOT_SENT, "")
            self.credit.give_back(int(not_sent) if is_number(not_sent) else self.credit.limit)
            self.request_soon()

    def _on_lost(self) -> None:
        self._fail(self._connection.lost_error())

    def _fail(self, failure: BerthError) -> None:
        self.failure = self.failure or failure
        self.changed.set()


@dataclass(slots=True, kw_only=True)
class Credit:
    """Credit of a pull: messages held and requested never exceed ``limit``."""

    limit: int
    outstanding: int = 0  # Requested, not yet arrived.
    held: int = 0  # Arrived, not yet settled.

    @property
    def is_low(self) -> bool:
        """Whether at least half of the limit has arrived."""
        return self.outstanding * 2 <= self.limit

    def take(self) -> int:
        """The number to request now: 0 while more than half of the limit is outstanding."""
        if not self.is_low:
            return 0
        wanted = max(0, self.limit - self.held - self.outstanding)
        self.outstanding += wanted
        return wanted

    def arrive(self) -> None:
        """A message arrived, perhaps for an older request, which no longer counts."""
        self.outstanding = max(0, self.outstanding - 1)
        self.held += 1

    def give_back(self, count: int) -> None:
        """The server ended a request without sending ``count`` messages."""
        self.outstanding = max(0, self.outstanding - count)
