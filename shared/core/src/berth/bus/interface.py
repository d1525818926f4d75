"""The interface of the bus, its types and its errors.

``berth.bus.session`` and the tests' fake in memory implement it, and one contract suite tests both.

A :class:`Session` is one client on one connection and never reconnects: when the connection is lost, every call raises
:class:`BusLostError`, ``lost`` is set, and the owner opens a new session, whose first request reads ``bus.id``
(docs/protocol.md, 2, *a connection is a client*). A delivery can only be settled on the session that delivered it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final, Protocol

import msgspec

from berth.errors import BerthError, PermanentError, TemporaryError

MessageListener = Callable[[str, bytes, Mapping[str, str]], None]
"""Called with subject, data and headers."""
Stats = Callable[[], Mapping[str, object]]
"""The statistics of a service in ``nats micro stats``."""
NO_METADATA: Final[Mapping[str, str]] = {}
MESSAGE_ID: Final = "Nats-Msg-Id"
"""The header with a message's id, by which a stream recognizes a second one."""


def _no_error(_answer: Any) -> str:
    return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """What a service answers beside its statistics, on ``service_subject`` of its name (berth.messages.subjects)."""

    name: str
    answer: Callable[[bytes], object]
    """From the request's payload, at once and without raising; the answer is sent as JSON."""
    for_admins: bool = False
    """It changes something, so people may not ask it."""
    error_of: Callable[[Any], str] = _no_error
    """Of an answer: the error that it tells, empty for none. For the figures of ``nats micro stats``."""


class BusLostError(TemporaryError):
    """The connection is lost: unknown whether pending requests arrived."""


class UnansweredError(TemporaryError):
    """No answer came in time: unknown whether the request was carried out.

    The session stays open; a publish with a message id can be repeated without harm.
    """


class StoreFullError(TemporaryError):
    """The server has no room, or the stream has reached its ``max_bytes``: the message was not stored."""


class TooLargeError(PermanentError):
    """A message above the limit of its stream or of the server: it can never be published."""


class BusRefusedError(BerthError):
    """The server does not allow it, or its streams differ from what berth declares; the text contains the remedy."""


class WrongLastSequenceError(BerthError):
    """The subject has another last sequence than the write expects: another client wrote. Read and write again."""


class MissingError(TemporaryError):
    """A stream, bucket or consumer does not exist (yet)."""


_AROUND_HEADERS: Final = len("NATS/1.0\r\n\r\n")
_AROUND_HEADER: Final = len(": \r\n")


def message_size(data: bytes, headers: Mapping[str, str] | None) -> int:
    """The bytes of a message that count for the server's limit: the payload, and the headers as they are sent."""
    if not headers:
        return len(data)
    of_headers = sum(len(name) + len(text.strip().encode()) + _AROUND_HEADER for name, text in headers.items())
    return len(data) + of_headers + _AROUND_HEADERS


class PubAck(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The stream has stored the message. ``duplicate``: it already had one with the same message id."""

    stream: str
    sequence: int
    duplicate: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Unstored:
    """A stream or bucket that did not store what was last published to it, though the connection lasts."""

    reason: str
    since: float
    """Seconds ago that it began."""
    answered: bool
    """Whether the server has refused it. A server whose disk is full does not answer: it has given the stream up until
    it is restarted, or until the stream is made anew."""


STORES_NOTHING: Final = "NATS stores nothing"
"""The begin of a service's sentence about it; ``berth why`` finds it by that among the conditions of services."""


class StoredMessage(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A message in a stream."""

    subject: str
    sequence: int
    data: bytes
    headers: Mapping[str, str] = {}
    time: datetime
    """When the server stored it. Ages are computed from these times, never from a client's clock."""


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
    """The counters of a durable consumer."""

    name: str
    undelivered: int
    """Messages not delivered yet."""
    unacknowledged: int
    """Messages delivered and not settled."""
    acknowledged_to: int = 0
    """Every message up to this sequence counts as acknowledged."""
    redelivered: int
    """Unacknowledged messages that were delivered more than once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamState:
    """The counters of a stream. Ages are differences to ``now``, the server's clock."""

    stream: str
    messages: int
    bytes: int
    last_sequence: int
    now: datetime
    first_sequence: int = 0
    """That of the oldest message; above ``last_sequence``, or 0: the stream is empty."""
    first_time: datetime | None
    """When the oldest message was stored; ``None``: the stream is empty."""
    created: datetime | None = None
    """When the stream was made."""
    consumers: tuple[ConsumerState, ...] = ()
    """The durable consumers; those of ordered readers are left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceInstance:
    """A running service, by NATS's service protocol."""

    service: str
    identity: str
    version: str
    stats: Mapping[str, object] = field(default_factory=dict)


class Delivery(Protocol):
    """A message of a work queue. ``ack`` or ``nak`` settles it; calls after that do nothing."""

    @property
    def subject(self) -> str:
        """The subject that it was published to."""
        ...

    @property
    def data(self) -> bytes:
        """The payload, unchecked."""
        ...

    @property
    def headers(self) -> Mapping[str, str]:
        """The publisher's headers, ``Nats-Msg-Id`` among them."""
        ...

    @property
    def sequence(self) -> int:
        """Its sequence in the stream: the order of the work queue."""
        ...

    @property
    def delivered(self) -> int:
        """How many times the message has been delivered, this delivery included."""
        ...

    @property
    def time(self) -> datetime:
        """When the stream stored it."""
        ...

    def ack(self) -> None:
        """The result is stored in the next stream. Not confirmed: if the ack is lost, the message is redelivered."""
        ...

    def nak(self, delay: timedelta | None = None) -> None:
        """Have the message redelivered after the delay."""
        ...

    def in_progress(self) -> None:
        """Still working on it: the ack_wait starts again."""
        ...

    def set_aside(self) -> None:
        """Keep it without counting it in ``max_unacked`` any more: others are delivered in its place."""
        ...


class Deliveries(Protocol):
    """A continuous pull from a work queue, with at most ``max_unacked`` deliveries that are not settled."""

    def __aiter__(self) -> AsyncIterator[Delivery]: ...


class OrderedReader(Protocol):
    """Ordered reading of a stream or bucket: gaps are found and read again, nothing is acknowledged.

    ``batches`` yields what has arrived, in order, as lists (for a bucket: of :class:`Entry`). ``position`` is the
    stream sequence up to which everything has been yielded, the current batch included. ``caught_up`` is set with the
    batch that completes what the stream held at the start (at once for an empty one); that batch is empty when the rest
    was removed before it was read. The iteration ends with :class:`BusLostError`, or with :class:`MissingError` when
    the stream is deleted.
    """

    position: int
    caught_up: asyncio.Event


class StreamReader(OrderedReader, Protocol):
    """Ordered reading of a stream."""

    def batches(self) -> AsyncIterator[list[StoredMessage]]:
        """What has arrived, in order, without end."""
        ...


class BucketReader(OrderedReader, Protocol):
    """Ordered reading of a bucket: first the last entry of every key, then every change."""

    def batches(self) -> AsyncIterator[list[Entry]]:
        """What has arrived, in order, without end."""
        ...

    def leave_out(self, sequence: int) -> None:
        """The reader wrote this entry itself: it need not be yielded, if it has not been yet."""
        ...


class Session(Protocol):
    """One client on one connection to the bus."""

    @property
    def bus_id(self) -> str:
        """KV ``control`` ``bus.id``, read by this session's first request; empty when the bucket is missing."""
        ...

    @property
    def lost(self) -> asyncio.Event:
        """Set once the connection is lost for any reason, ``close`` included."""
        ...

    @property
    def max_message_bytes(self) -> int:
        """The most that a message may take, its headers included: of the server, and as the streams are declared."""
        ...

    async def close(self) -> None:
        """Flush what was sent, and disconnect. Never raises and takes at most a second."""
        ...

    async def publish(
        self,
        subject: str,
        data: bytes,
        *,
        message_id: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> PubAck:
        """Publish to the stream that has the subject; returns once it is stored.

        Raises:
            BusLostError, UnansweredError: unknown whether it arrived. With a message id a repeat is harmless.
            MissingError: no stream has the subject.
            TooLargeError: above ``max_message_bytes``. Nothing was sent.
            BusRefusedError: this client may not publish there.
            StoreFullError: the server or the stream has no room.
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
        """Publish as :meth:`publish` does, without waiting: ``on_answer`` is called once, perhaps before this returns.

        It gets the PubAck, or the error that :meth:`publish` raises. It must neither block nor raise.
        """
        ...

    def consume(self, stream: str, consumer: str, *, max_unacked: int) -> AbstractAsyncContextManager[Deliveries]:
        """Pull continuously from an existing durable consumer.

        The iteration raises :class:`MissingError` when the consumer is deleted, :class:`BusLostError` on a lost
        connection. What is not settled at the end is redelivered after its ack_wait.
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
        self, bucket: str, *, filters: tuple[str, ...] = (">",)
    ) -> AbstractAsyncContextManager[BucketReader]:
        """Read the last entry of every key under a filter (``node.>``), then every change.

        Markers are read as entries without data. A marker that expires is not reported. Nor would a value be that has a
        time to live, so that those of ``bandwidth`` and ``facts`` are read as removals from the beginning.
        """
        ...

    def scan(self, stream: str, subject: str, *, after: int = 0) -> AsyncIterator[StoredMessage]:
        """Every message in the stream under the filter, in order, unacknowledged ones too."""
        ...

    def last_of_each(self, stream: str, subjects: Sequence[str]) -> AsyncIterator[StoredMessage]:
        """The last message of each subject that has one, in any order; the subjects have no wildcards.

        The cost grows with the messages that are found, and not with those that the stream holds.
        """
        ...

    async def last(self, stream: str, subject: str) -> StoredMessage | None:
        """The last message of one subject (Direct Get)."""
        ...

    async def get(self, bucket: str, key: str) -> Entry | None:
        """The key's last entry; ``None`` when there is none, or when its marker has expired.

        Until then a marker is an entry with ``data=None``, whose sequence is what a new write must expect.
        """
        ...

    async def put(self, bucket: str, key: str, data: bytes, *, expected: int | None = None) -> int:
        """Write a key; returns the sequence.

        ``expected`` is the key's last sequence, 0 for a key that must not exist.

        Raises:
            WrongLastSequenceError: the key has another last sequence.
        """
        ...

    def put_soon(
        self, bucket: str, key: str, data: bytes, *, expected: int | None, on_answer: Callable[[int | BerthError], None]
    ) -> None:
        """Write a key as :meth:`put` does, without waiting: ``on_answer`` is called once, perhaps before this returns.

        It gets the key's sequence, or the error that :meth:`put` raises.
        """
        ...

    async def purge(self, bucket: str, key: str, *, expected: int | None = None) -> int:
        """Replace a key by a marker, which expires after an hour; returns its sequence. Raises as :meth:`put`."""
        ...

    async def subscribe(self, subject: str, listener: MessageListener) -> None:
        """Call the listener with every message that is broadcast from now on, without delivery guarantees.

        The listener must not block.
        """
        ...

    async def subscribe_stored(self, subject: str, listener: StoredListener) -> None:
        """Call the listener with what streams store under the subject from now on, without delivery guarantees.

        The listener must not block.
        """
        ...

    async def broadcast(self, subject: str, data: bytes) -> None:
        """Send to all subscribers. No stream stores it, and there is no answer whether anything received it.

        Raises:
            BusLostError: the connection is lost.
            TooLargeError: above the limit of the server.
        """
        ...

    async def apply(self) -> None:
        """Create or update every declared stream, bucket and shared consumer, and ``bus.id`` if it is missing.

        Afterwards ``bus_id`` is the one in the bucket.
        """
        ...

    def unstored(self) -> Mapping[str, Unstored]:
        """The streams and buckets that stored nothing of what this session last published to them, by name.

        One that nothing was published to for a minute is left out.
        """
        ...

    async def remake(self, name: str) -> bool:
        """Delete and apply everything if there is room and the server has given this stream or bucket up.

        Everything on the bus can be made again from the API server. Afterwards the bus has another ``bus.id``, and this
        session is lost. Returns whether that was done.

        Raises:
            BusRefusedError: this client may not.
        """
        ...

    async def verify(self) -> None:
        """Compare what exists with what berth declares.

        Raises:
            MissingError: something does not exist: wait until it is applied.
            BusRefusedError: something differs; the text names it and both values.
        """
        ...

    async def create_consumer(self, stream: str, consumer: str) -> None:
        """Create the durable ``binder-<epoch>`` with its declared settings, unless it exists.

        Raises:
            BusRefusedError: another consumer takes the stream.
        """
        ...

    async def consumers(self, stream: str) -> list[str]:
        """The names of the stream's consumers, ephemeral ones included."""
        ...

    async def delete_consumer(self, stream: str, consumer: str) -> None:
        """Delete a consumer if it exists."""
        ...

    async def register(  # noqa: PLR0913 - what a service says about itself
        self,
        service: str,
        *,
        identity: str,
        version: str,
        stats: Stats,
        metadata: Mapping[str, str] = NO_METADATA,
        endpoints: Sequence[Endpoint] = (),
    ) -> None:
        """Register with NATS's service protocol, so that ``nats micro ls`` and ``nats micro stats`` show it.

        ``nats micro info`` shows the metadata, beside the identity, and the endpoints.
        """
        ...

    async def ask(self, subject: str, data: bytes) -> bytes:
        """The answer of a service to a request.

        Raises:
            MissingError: no service answers there.
            UnansweredError: it has not answered in time.
            BusRefusedError: this client may not ask it.
        """
        ...

    async def state(self, stream: str) -> StreamState:
        """The counters of a stream and its durable consumers.

        Raises:
            MissingError: there is no such stream.
        """
        ...

    async def services(self, service: str = "") -> list[ServiceInstance]:
        """The running services, or those of one name, by name and identity.

        One that does not answer within half a second is left out.
        """
        ...


class Bus(Protocol):
    """Opens sessions."""

    async def connect(self, *, name: str) -> Session:
        """A new client. Its first request reads ``bus.id``.

        Raises:
            BusLostError: the server cannot be reached; the text names the address.
        """
        ...
