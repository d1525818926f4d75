"""What berth asks of a bus.

The real one (``berth.bus.session``) and the fake in memory of the tests both keep it, and one contract suite holds
them to it.

A :class:`Session` is one client on one connection. There is no reconnecting inside it: when the connection is lost
every call raises :class:`BusLostError`, ``lost`` is set, and the owner opens a new session, whose first request reads
``bus.id`` (PROTOCOL 2, *a connection is a client*). A delivery can only be acknowledged on the session that delivered
it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Protocol

from berth.api.errors import BerthError, PermanentError, TemporaryError


class BusLostError(TemporaryError):
    """The connection is gone: nothing that was under way is known to have arrived."""


class UnansweredError(TemporaryError):
    """No answer came in its time, on a connection that still lives: unknown whether it was done.

    The session stays; a publish with a message id can be repeated without harm.
    """


class TooLargeError(PermanentError):
    """A message above the limit of its stream or of the server: it will never get through."""


class BusRefusedError(BerthError):
    """The server has what differs from what berth declares, or does not allow it; the text says what to do."""


class WrongLastSequenceError(BerthError):
    """A write expected another last sequence on its subject: somebody wrote in between. Read and write again."""


class MissingError(TemporaryError):
    """A stream, bucket or consumer that should be there is not (yet)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PubAck:
    """The stream has the message. ``duplicate``: it had it already, under the same message id."""

    stream: str
    sequence: int
    duplicate: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredMessage:
    """A message as a stream holds it."""

    subject: str
    sequence: int
    data: bytes
    headers: Mapping[str, str] = field(default_factory=dict)
    time: datetime
    """When the server stored it; ages are computed with these, never with a client's clock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A key of a bucket as it stands, or as it was removed.

    ``key`` is the escaped key without the bucket's prefix; ``data`` is ``None`` for a removal.
    """

    key: str
    sequence: int
    data: bytes | None
    time: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerState:
    """Where a durable consumer stands."""

    name: str
    undelivered: int
    """Messages that nobody was given yet."""
    unacknowledged: int
    """Messages that somebody was given and has not settled."""
    redelivered: int
    """Of the unacknowledged ones, those that were given more than once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamState:
    """Where a stream stands. Ages are differences to ``now``, the server's own clock."""

    stream: str
    messages: int
    bytes: int
    last_sequence: int
    now: datetime
    first_time: datetime | None
    """When the oldest message that is still there was stored; ``None``: there is none."""
    consumers: tuple[ConsumerState, ...] = ()
    """The durable ones; readings that somebody keeps for himself are not among them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceInstance:
    """A service that is there, by NATS's service protocol."""

    service: str
    identity: str
    version: str
    stats: Mapping[str, object] = field(default_factory=dict)


class Delivery(Protocol):
    """A message of a work queue, lent until ``ack`` or ``nak`` settles it. What is said of it later is dropped."""

    @property
    def subject(self) -> str:
        """What it was published to."""
        ...

    @property
    def data(self) -> bytes:
        """The payload, nothing checked."""
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
        """The how-manieth delivery this is, from 1."""
        ...

    @property
    def time(self) -> datetime:
        """When the stream stored it."""
        ...

    def ack(self) -> None:
        """Done, and its effect is durable one step further on. Fire and forget: lost, it comes again."""
        ...

    def nak(self, delay: timedelta | None = None) -> None:
        """Not now: comes again after the delay."""
        ...

    def in_progress(self) -> None:
        """Still at it: the ack_wait starts anew."""
        ...


class Consumption(Protocol):
    """A continuous pull from a work queue. Never holds more than ``hold`` deliveries that are not settled."""

    def __aiter__(self) -> AsyncIterator[Delivery]: ...


class OrderedReader(Protocol):
    """An ordered reading of a stream or bucket: gaps are found and read again, nothing is acknowledged.

    ``batches`` yields what has arrived, in order, as lists (for a bucket: of :class:`Entry`); ``position`` is the
    stream sequence up to which everything has been yielded, the batch that is being handed out included; ``caught_up``
    is set with the batch that completes what was there at the start (at once when there was nothing). That batch is
    empty when the rest was removed before it was read. What ends a reading is raised by the iteration:
    :class:`BusLostError`, or :class:`MissingError` for a stream that is gone.
    """

    position: int
    caught_up: asyncio.Event


class StreamReader(OrderedReader, Protocol):
    """Following a stream."""

    def batches(self) -> AsyncIterator[list[StoredMessage]]:
        """What has arrived, in order, for ever."""
        ...


class BucketReader(OrderedReader, Protocol):
    """Following a bucket: first the last entry of every key, then every change."""

    def batches(self) -> AsyncIterator[list[Entry]]:
        """What has arrived, in order, for ever."""
        ...


class Session(Protocol):
    """One client on one connection to the bus."""

    @property
    def bus_id(self) -> str:
        """KV ``control`` ``bus.id`` as read by this session's first request; empty when the bucket is missing."""
        ...

    @property
    def lost(self) -> asyncio.Event:
        """Set once the connection is gone for whatever reason, ``close`` included."""
        ...

    async def close(self) -> None:
        """Flush what was sent, and leave. Never raises and takes at most a second."""
        ...

    async def publish(
        self,
        subject: str,
        data: bytes,
        *,
        message_id: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> PubAck:
        """Publish into whichever stream takes the subject; returns once it is stored.

        Raises:
            BusLostError, UnansweredError: unknown whether it arrived. With a message id a repeat is harmless.
            MissingError: no stream takes the subject.
            TooLargeError: above the limit of the stream or the server.
            BusRefusedError: this client may not publish there.
            TemporaryError: the server has no room or is not ready.
        """
        ...

    def consume(self, stream: str, consumer: str, *, max_unacked: int) -> AbstractAsyncContextManager[Consumption]:
        """Pull continuously from a durable consumer that exists.

        The iteration raises :class:`MissingError` when the consumer is deleted, :class:`BusLostError` on a lost
        connection. What is held and not settled at leaving comes again after its ack_wait.
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
        """Read a stream in order: from a sequence (exclusive), from a time ago, or from its beginning; then on."""
        ...

    def read_bucket(
        self, bucket: str, *, filters: tuple[str, ...] = (">",)
    ) -> AbstractAsyncContextManager[BucketReader]:
        """Read the last entry of every key that a filter takes (``node.>``), then every change.

        Markers that are still there are read as entries without data. Those that expire are no news: a key that is not
        there any more is not mentioned.
        """
        ...

    def scan(self, stream: str, subject: str, *, after: int = 0) -> AsyncIterator[StoredMessage]:
        """Every message that the stream holds under the filter, in order, unacknowledged ones too."""
        ...

    async def last(self, stream: str, subject: str) -> StoredMessage | None:
        """The last message of one subject (Direct Get)."""
        ...

    async def get(self, bucket: str, key: str) -> Entry | None:
        """The key's last entry, ``None`` when there is none or it was removed and its marker has expired.

        While the marker is there it is an entry with ``data=None``, whose sequence is what a new write must expect.
        """
        ...

    async def put(self, bucket: str, key: str, data: bytes, *, expected: int | None = None) -> int:
        """Write a key; returns the sequence.

        ``expected`` is the key's last sequence, 0 for a key that must not be there.

        Raises:
            WrongLastSequenceError: the key stands at another sequence.
        """
        ...

    async def purge(self, bucket: str, key: str, *, expected: int | None = None) -> int:
        """Remove a key, leaving a marker for an hour; returns the marker's sequence. Raises as :meth:`put`."""
        ...

    async def subscribe(self, subject: str, listener: Callable[[str, bytes, Mapping[str, str]], None]) -> None:
        """Hear what passes under a subject from now on, without any promise (plain subscription).

        The listener must not wait.
        """
        ...

    async def apply(self) -> None:
        """Create or update every stream, bucket and shared consumer that berth declares; make ``bus.id`` if it lacks.

        ``bus_id`` is the one that stands there afterwards.
        """
        ...

    async def verify(self) -> None:
        """Compare what exists with what berth declares.

        Raises:
            MissingError: something is not there: wait for whoever applies.
            BusRefusedError: something differs; the text names it and both values.
        """
        ...

    async def create_consumer(self, stream: str, consumer: str) -> None:
        """Create the durable ``binder-<epoch>`` with its declared settings; one that is there already is as good.

        Raises:
            BusRefusedError: another consumer takes the stream.
        """
        ...

    async def consumers(self, stream: str) -> list[str]:
        """The names of the stream's consumers."""
        ...

    async def delete_consumer(self, stream: str, consumer: str) -> None:
        """Delete a consumer; one that is not there is as good."""
        ...

    async def register(
        self, service: str, *, identity: str, version: str, stats: Callable[[], Mapping[str, object]]
    ) -> None:
        """Register with NATS's service protocol, so that ``nats micro ls`` and ``nats micro stats`` show it."""
        ...

    async def state(self, stream: str) -> StreamState:
        """Where a stream and its durable consumers stand.

        Raises:
            MissingError: there is no such stream.
        """
        ...

    async def services(self) -> list[ServiceInstance]:
        """Which services are there, by name and identity; whoever does not answer within half a second is left out."""
        ...


class Bus(Protocol):
    """Where sessions come from."""

    async def connect(self, *, name: str) -> Session:
        """A new client. Its first request reads ``bus.id``.

        Raises:
            BusLostError: the server cannot be reached; the text names the address.
        """
        ...
