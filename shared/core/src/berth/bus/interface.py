"""The interface of the bus, its types and its errors.

``berth.bus.session`` and the tests' fake in memory implement it; one contract suite tests both.

A :class:`Session` is one client on one connection and never reconnects: when the connection is lost, every call raises
:class:`BusLostError`, ``lost`` is set, and the owner opens a new session, whose first request reads ``bus.id``
(docs/protocol.md, 2, *a connection is a client*). A delivery can only be settled on its session.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final, Protocol

import msgspec

from berth.errors import BerthError, PermanentError, TemporaryError

# Called with subject, data and headers.
MessageListener = Callable[[str, bytes, Mapping[str, str]], None]
# Statistics of a service in `nats micro stats`.
Stats = Callable[[], Mapping[str, object]]
NO_METADATA: Final[Mapping[str, str]] = {}
# Header by which a stream recognizes a duplicate.
MESSAGE_ID: Final = "Nats-Msg-Id"


def _no_error(_answer: Any) -> str:
    return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """An endpoint beside the statistics, on ``service_subject`` of its name (berth.messages.subjects)."""

    name: str
    # Gets the request's payload; must neither block nor raise. The answer is sent as JSON.
    answer: Callable[[bytes], object]
    for_admins: bool = False  # It changes state, so people may not call it.
    # The error in an answer, or empty: for `nats micro stats`.
    error_of: Callable[[Any], str] = _no_error


class BusLostError(TemporaryError):
    """The connection is lost: unknown whether pending requests arrived."""


class UnansweredError(TemporaryError):
    """No answer in time: unknown whether the request was carried out.

    The session stays open; a publish with a message id can be repeated.
    """


class StoreFullError(TemporaryError):
    """The server has no room, or the stream has reached ``max_bytes``: the message was not stored."""


class BusyError(TemporaryError):
    """More messages arrive for the stream than the server stores: the message was not stored, and may be next time."""


class TooLargeError(PermanentError):
    """A message above the limit of its stream or of the server: it can never be published."""


class BusRefusedError(BerthError):
    """The server refuses it, or its streams differ from the declaration; the text contains the remedy."""


class WrongLastSequenceError(BerthError):
    """The subject has another last sequence than the write expects: another client wrote. Read and write again."""


class MissingError(TemporaryError):
    """A stream, bucket or consumer does not exist (yet)."""


# After this time a subscription with a limit gets messages again.
LIMIT_SECONDS: Final = 5.0
# Bytes of such a subscription's messages in that time, as many as may wait for a connection (`max_pending`): rankings
# of 3 KB take them at 1,000 pods a second.
LIMIT_BYTES: Final = 16 * 1024 * 1024

_AROUND_HEADERS: Final = len("NATS/1.0\r\n\r\n")
_AROUND_HEADER: Final = len(": \r\n")


def message_size(data: bytes, headers: Mapping[str, str] | None) -> int:
    """Bytes of a message by the server's limit: payload and encoded headers."""
    if not headers:
        return len(data)
    size = len(data) + _AROUND_HEADERS
    for name, text in headers.items():
        size += len(name) + len(text.strip().encode()) + _AROUND_HEADER
    return size


class PubAck(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The stream has stored the message. ``duplicate``: it already had one with this message id."""

    stream: str
    sequence: int
    duplicate: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Unstored:
    """A stream or bucket that did not store the last message published to it, on a working connection."""

    reason: str
    since: float  # Seconds ago.
    # Whether the server answered with a refusal. A server with a full disk does not answer: it stores nothing until the
    # server is restarted or the stream is recreated.
    answered: bool


# Start of a service's condition, by which `berth why` finds it.
STORES_NOTHING: Final = "NATS stores nothing"


class StoredMessage(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    subject: str
    sequence: int
    data: bytes
    headers: Mapping[str, str] = {}
    time: datetime  # By the server. Ages are computed from such times, not a client's clock.


StoredListener = Callable[[StoredMessage], None]


class Entry(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The last value of a key, or the marker of its removal.

    ``key`` is the escaped key without the bucket's prefix; ``data`` is ``None`` for a removal.
    """

    key: str
    sequence: int
    data: bytes | None
    time: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerState:
    name: str
    undelivered: int  # Messages not delivered yet.
    unacknowledged: int  # Messages delivered and not settled.
    acknowledged_to: int = 0  # All messages up to this sequence count as acknowledged.
    redelivered: int  # Unacknowledged messages that were delivered more than once.


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamState:
    """Counters of a stream. Ages are differences to ``now``, the server's clock."""

    stream: str
    messages: int
    bytes: int
    last_sequence: int
    now: datetime
    first_sequence: int = 0  # Of the oldest message; 0, or above last_sequence: the stream is empty.
    first_time: datetime | None  # When the oldest message was stored; None: the stream is empty.
    created: datetime | None = None
    consumers: tuple[ConsumerState, ...] = ()  # Durable ones, without ordered readers.


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceInstance:
    """A running service, by NATS's service protocol."""

    service: str
    identity: str
    version: str
    stats: Mapping[str, object] = field(default_factory=dict)


class Delivery(Protocol):
    """A message of a work queue. ``ack`` or ``nak`` settles it; later calls have no effect."""

    @property
    def subject(self) -> str: ...

    @property
    def data(self) -> bytes: ...

    @property
    def headers(self) -> Mapping[str, str]:
        """The publisher's headers, with ``Nats-Msg-Id``."""
        ...

    @property
    def sequence(self) -> int:
        """Sequence in the stream: the order of the work queue."""
        ...

    @property
    def delivered(self) -> int:
        """Number of deliveries of the message, this one included."""
        ...

    @property
    def time(self) -> datetime:
        """When the stream stored it."""
        ...

    def ack(self) -> None:
        """The result is stored in the next stream. Unconfirmed: if the ack is lost, the message is redelivered."""
        ...

    def nak(self, delay: timedelta | None = None) -> None:
        """Have the message redelivered after the delay."""
        ...

    def in_progress(self) -> None:
        """The work continues: restart the ack_wait."""
        ...

    def set_aside(self) -> None:
        """Keep it without counting it in ``max_unacked``, so that another message can be delivered."""
        ...


class Deliveries(Protocol):
    """A continuous pull from a work queue, with at most ``max_unacked`` unsettled deliveries."""

    def __aiter__(self) -> AsyncIterator[Delivery]: ...


class OrderedReader(Protocol):
    """Ordered reading of a stream or bucket, without acknowledgements: gaps are found and read again.

    ``batches`` yields lists of messages (for a bucket: of :class:`Entry`) in order. ``position`` is the stream sequence
    up to which everything was yielded, the current batch included. ``caught_up`` is set with the batch that completes
    the stream's content at the start (at once for an empty stream); that batch is empty if the rest was removed before
    it was read. The iteration ends with :class:`BusLostError`, or with :class:`MissingError` when the stream is
    deleted.
    """

    position: int
    caught_up: asyncio.Event


class StreamReader(OrderedReader, Protocol):
    def batches(self) -> AsyncIterator[list[StoredMessage]]:
        """Arrived messages, in order, without end."""
        ...


class BucketReader(OrderedReader, Protocol):
    """Ordered reading of a bucket: first the last entry of every key, then every change."""

    def batches(self) -> AsyncIterator[list[Entry]]:
        """Arrived entries, in order, without end."""
        ...

    def leave_out(self, sequence: int) -> None:
        """Skip this entry, which the reader wrote itself, unless it was yielded already."""
        ...


class Session(Protocol):
    @property
    def bus_id(self) -> str:
        """KV ``control`` ``bus.id``, read by this session's first request; empty if the bucket is missing."""
        ...

    @property
    def lost(self) -> asyncio.Event:
        """Set once the connection is lost for any reason, ``close`` included."""
        ...

    @property
    def max_message_bytes(self) -> int:
        """Maximum bytes of a message with its headers, by the server and the declared streams."""
        ...

    async def close(self) -> None:
        """Send buffered messages, and disconnect. Never raises and takes at most a second."""
        ...

    async def publish(
        self,
        subject: str,
        data: bytes,
        *,
        message_id: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> PubAck:
        """Publish to the stream of the subject; returns once the message is stored.

        Raises:
            BusLostError, UnansweredError: unknown whether it arrived. With a message id it can be repeated.
            MissingError: no stream has the subject.
            TooLargeError: above ``max_message_bytes``. The message was not sent.
            BusRefusedError: this client may not publish there.
            StoreFullError: the server or the stream has no room.
            BusyError: more messages arrive for the stream than the server stores.
            TemporaryError: the server is not ready.
        """
        ...

    def publish_soon(
        self,
        subject: str,
        data: bytes,
        *,
        message_id: str | None = None,
        headers: Mapping[str, str] | None = None,
        on_answer: Callable[[PubAck | BerthError], None],
    ) -> None:
        """Publish as :meth:`publish`, without waiting: ``on_answer`` is called once, perhaps before this returns.

        It gets the PubAck or the error, and must neither block nor raise.
        """
        ...

    def consume(self, stream: str, consumer: str, *, max_unacked: int) -> AbstractAsyncContextManager[Deliveries]:
        """Pull continuously from an existing durable consumer.

        The iteration raises :class:`MissingError` when the consumer is deleted, :class:`BusLostError` on a lost
        connection. Unsettled deliveries are redelivered after their ack_wait.
        """
        ...

    def read_stream(
        self,
        stream: str,
        *,
        filters: tuple[str, ...] = (">",),
        since: timedelta | None = None,
        after: int | None = None,
    ) -> AbstractAsyncContextManager[StreamReader]:
        """Read a stream in order: after a sequence, from a time ago, or from its beginning; then every new message."""
        ...

    def read_bucket(
        self, bucket: str, *, filters: tuple[str, ...] = (">",), every: timedelta | None = None
    ) -> AbstractAsyncContextManager[BucketReader]:
        """Read the last entry of every key under a filter (``node.>``), then every change.

        ``every``: for a reader that leaves out most of the changes, because it writes them. It gets the others within
        this time instead of at once, and NATS does not send it its own.

        Markers are entries without data. An expired marker or value is not reported, so values with a time to live in
        ``bandwidth`` and ``facts`` are read as removals at once.
        """
        ...

    def scan(self, stream: str, subject: str, *, after: int = 0) -> AsyncIterator[StoredMessage]:
        """Every message in the stream under the filter, in order, unacknowledged ones too."""
        ...

    def last_of_each(self, stream: str, subjects: Sequence[str]) -> AsyncIterator[StoredMessage]:
        """The last message of each subject, in any order, without wildcards. Subjects without a message are omitted.

        The cost grows with the messages found, not with the messages in the stream.
        """
        ...

    async def last(self, stream: str, subject: str) -> StoredMessage | None:
        """The last message of one subject (Direct Get)."""
        ...

    async def get(self, bucket: str, key: str) -> Entry | None:
        """The key's last entry; ``None`` if there is none, or its marker has expired.

        Until then a marker is an entry with ``data=None``, whose sequence a new write must expect.
        """
        ...

    async def put(self, bucket: str, key: str, data: bytes, *, expected: int | None = None) -> int:
        """Write a key; return the sequence.

        ``expected``: the key's last sequence, 0 for a key that must not exist.

        Raises:
            WrongLastSequenceError: the key has another last sequence.
        """
        ...

    def put_soon(
        self, bucket: str, key: str, data: bytes, *, expected: int | None, on_answer: Callable[[int | BerthError], None]
    ) -> None:
        """Write a key as :meth:`put`, without waiting: ``on_answer`` is called once, perhaps before this returns.

        It gets the key's sequence or the error.
        """
        ...

    async def purge(self, bucket: str, key: str, *, expected: int | None = None) -> int:
        """Replace a key by a marker, which expires after ``marker_ttl``; return its sequence. Raises as :meth:`put`."""
        ...

    async def delete(self, stream: str, sequence: int) -> None:
        """Delete a stored message, also one that is delivered and not settled. One that is gone is no error."""
        ...

    async def subscribe(self, subject: str, listener: MessageListener, *, most: int = 0) -> None:
        """Call the listener with every message broadcast from now on, without delivery guarantees.

        ``most``: after so many messages the server sends no more until ``LIMIT_SECONDS`` have passed, so that a flood
        does not end the connection; 0 is no limit. The listener must not block.
        """
        ...

    async def subscribe_stored(self, subject: str, listener: StoredListener, *, most: int = 0) -> None:
        """Call the listener with every message stored under the subject from now on, without delivery guarantees.

        ``most`` and the listener: as for :meth:`subscribe`.
        """
        ...

    async def broadcast(self, subject: str, data: bytes) -> None:
        """Send to all subscribers, without storing it and without confirmation.

        Raises:
            BusLostError: the connection is lost.
            TooLargeError: above the limit of the server.
        """
        ...

    async def apply(self) -> None:
        """Create or update every declared stream, bucket and shared consumer, and ``bus.id`` if it is missing.

        Afterwards ``bus_id`` is the bucket's.
        """
        ...

    def unstored(self) -> Mapping[str, Unstored]:
        """The streams and buckets that did not store this session's last message to them, by name.

        Omits those without a publish for a minute.
        """
        ...

    async def remake(self, name: str) -> bool:
        """Delete and apply everything if there is room and the server no longer stores to this stream or bucket.

        Everything on the bus can be rebuilt from the API server. Afterwards the bus has another ``bus.id``, and this
        session is lost. Returns whether that was done.

        Raises:
            BusRefusedError: this client may not.
        """
        ...

    async def verify(self, only: Collection[str] = ()) -> None:
        """Compare the server with the declaration, of these streams or of all.

        Raises:
            MissingError: a stream, bucket or consumer is missing: wait until it is applied.
            BusRefusedError: differences; the text names them and both values.
        """
        ...

    async def create_consumer(self, stream: str, consumer: str) -> None:
        """Create the durable ``binder-<epoch>`` with its declared settings, unless it exists.

        Raises:
            BusRefusedError: another consumer takes the stream.
        """
        ...

    async def consumers(self, stream: str) -> list[str]:
        """Names of the stream's consumers, ephemeral ones included."""
        ...

    async def delete_consumer(self, stream: str, consumer: str) -> None: ...

    async def register(  # noqa: PLR0913 - the parts of a service's description
        self,
        service: str,
        *,
        identity: str,
        version: str,
        stats: Stats,
        metadata: Mapping[str, str] = NO_METADATA,
        endpoints: Sequence[Endpoint] = (),
    ) -> None:
        """Register with NATS's service protocol, for ``nats micro ls`` and ``nats micro stats``.

        ``nats micro info`` shows the metadata, beside the identity, and the endpoints.
        """
        ...

    async def ask(self, subject: str, data: bytes) -> bytes:
        """Send a request to a service; return its answer.

        Raises:
            MissingError: no service answers there.
            UnansweredError: no answer in time.
            BusRefusedError: this client may not ask it.
        """
        ...

    async def state(self, stream: str) -> StreamState:
        """Counters of a stream and its durable consumers.

        Raises:
            MissingError: no such stream.
        """
        ...

    async def services(self, service: str = "") -> list[ServiceInstance]:
        """The running services, all or of one name, by name and identity.

        Omits services without an answer in half a second.
        """
        ...


class Bus(Protocol):
    async def connect(self, *, name: str) -> Session:
        """A new client. Its first request reads ``bus.id``.

        Raises:
            BusLostError: the server cannot be reached; the text names the address.
        """
        ...
