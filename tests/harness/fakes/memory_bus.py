"""The bus in memory: it passes the contract suite of the real one, without a server, and with the test's clock.

One :class:`MemoryBus` is a server with its store. A test can stop and start it, wipe its store, or cut a session off;
on a deterministic event loop all of it is deterministic.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, ParamSpec, Protocol, TypeVar

import msgspec

from berth.bus.admin import NAMED_IN_POSITIONS, WITH_POSITIONS
from berth.bus.interface import (
    LIMIT_SECONDS,
    MESSAGE_ID,
    NO_METADATA,
    Bus,
    BusLostError,
    BusRefusedError,
    Endpoint,
    Entry,
    MissingError,
    PubAck,
    ServiceInstance,
    Session,
    StoredListener,
    StoredMessage,
    StoreFullError,
    StreamState,
    Unstored,
)
from berth.bus.jetstream import entry_of, expecting, purge_headers
from berth.bus.settings import TopologySettings
from berth.bus.topology import (
    BUS_ID_KEY,
    CONTROL,
    STORED_PREFIX,
    Names,
    bucket_prefix,
    bucket_stream,
    declared_consumer,
    declared_consumers,
    declared_streams,
)
from berth.errors import BerthError
from berth.messages.subjects import service_subject
from harness.fakes.bus_clock import BusClock, LoopClock
from harness.fakes.memory_queue import MemoryDeliveries, WorkQueue
from harness.fakes.memory_streams import MemoryReader, MemoryStream, is_subject, matches

T = TypeVar("T")
P = ParamSpec("P")
ALL: Final = (">",)
PAGE: Final = 1000


class MemoryBus(Bus):
    """A server and its store."""

    def __init__(
        self, settings: TopologySettings | None = None, *, clock: BusClock | None = None, name: str = "memory"
    ) -> None:
        """``name`` is the prefix of ``bus.id``; the number of the store follows it."""
        self.settings: Final = settings or TopologySettings()
        self.clock: Final = clock or LoopClock()
        self.name: Final = name
        self.sessions: Final[list[MemorySession]] = []
        self._store = MemoryStore(self.settings, self.clock, name)
        self._running = True

    async def connect(self, *, name: str) -> MemorySession:
        """A new client, as :meth:`berth.bus.interface.Bus.connect` describes."""
        await asyncio.sleep(0)
        if not self._running:
            raise BusLostError(f"connecting to the bus {self.name!r} in memory as {name!r}: it is stopped")
        session = MemorySession(
            self._store, name, on_lost=self.sessions.remove, verify=self.verify, services=self.services
        )
        self.sessions.append(session)
        return session

    # --- faults

    def stop(self) -> None:
        """Every session is lost, and no client can connect until :meth:`start`. The store stays."""
        self._running = False
        self._cut_all("the server was stopped")

    def start(self) -> None:
        """Accept sessions again."""
        self._running = True

    def wipe(self) -> None:
        """The server restarts with an empty store: every session is lost, ``apply`` makes another ``bus.id``."""
        self._cut_all("the server lost its store")
        self._store.wipe()

    def lose_stream(self, name: str) -> None:
        """The server restarts without one stream, whose files it could not read."""
        self._cut_all(f"the server lost {name}")
        self._store.lose(name)

    def fill(self, *streams: str) -> None:
        """These streams have no room any more; without any, all have again."""
        self._store.full = frozenset(streams)

    def cut(self, session: MemorySession) -> None:
        """End one session's connection."""
        session.lose("the connection was cut")

    def _cut_all(self, cause: str) -> None:
        for session in list(self.sessions):
            session.lose(cause)

    # --- without a session

    def apply(self) -> str:
        """Create what is declared, as ``berth bus apply`` does; returns ``bus.id``."""
        return self._store.apply()

    def verify(self) -> None:
        """Every session's ``verify`` calls this; a test may replace it."""
        self._store.verify()

    def bus_id(self) -> str:
        """``bus.id``, empty when the bucket is missing."""
        return self._store.bus_id()

    def services(self) -> list[RegisteredService]:
        """The registered services."""
        return [one for session in self.sessions for one in session.registered]


class MemorySession(Session):
    """One client. :class:`berth.bus.interface.Session` documents every call."""

    def __init__(
        self,
        store: MemoryStore,
        name: str,
        *,
        on_lost: Callable[[MemorySession], None],
        verify: Callable[[], None],
        services: Callable[[], list[RegisteredService]],
    ) -> None:
        self.name: Final = name
        self._lost = asyncio.Event()
        self.registered: Final[list[RegisteredService]] = []
        self._store = store
        self._bus_id = store.bus_id()
        self._on_lost = on_lost
        self._verify = verify
        self._services = services
        self._cause = "closed"
        self._unstored: dict[str, Unstored] = {}
        self._publishes: set[asyncio.Task[PubAck]] = set()
        self._open: list[_Closable] = []
        self._stop_listening: list[Callable[[], None]] = []

    @property
    def bus_id(self) -> str:
        return self._bus_id

    @property
    def lost(self) -> asyncio.Event:
        return self._lost

    @property
    def max_message_bytes(self) -> int:
        return self._store.settings.message_bytes

    async def close(self) -> None:
        await asyncio.sleep(0)
        self.lose("closed")

    def lose(self, cause: str) -> None:
        """End the session: what is open fails, and every later call raises."""
        if self._lost.is_set():
            return
        self._cause = cause
        self._lost.set()
        self._on_lost(self)
        for stop in self._stop_listening:
            stop()
        for one in self._open:
            one.fail(self._lost_error())

    def _lost_error(self) -> BusLostError:
        return BusLostError(f"using the session of {self.name!r}: {self._cause}")

    def _check(self) -> None:
        if self._lost.is_set():
            raise self._lost_error()

    async def _answer(self, done: Callable[[], T]) -> T:
        """Do it now and return a turn of the loop later; raises when the session is lost in between."""
        self._check()
        try:
            result = done()
        finally:
            await asyncio.sleep(0)
            self._check()
        return result

    def unstored(self) -> Mapping[str, Unstored]:
        return self._unstored

    async def remake(self, name: str) -> bool:
        del name
        return False

    async def publish(
        self,
        subject: str,
        data: bytes,
        *,
        message_id: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> PubAck:
        named = {MESSAGE_ID: message_id} if message_id is not None else {}
        try:
            ack = await self._answer(lambda: self._store.store(subject, data, {**(headers or {}), **named}))
        except StoreFullError as error:
            self._unstored[Names().store_of(subject)] = Unstored(reason=str(error), since=0.0, answered=True)
            raise
        self._unstored.pop(Names().store_of(subject), None)
        return ack

    def publish_soon(
        self,
        subject: str,
        data: bytes,
        *,
        message_id: str | None = None,
        headers: Mapping[str, str] | None = None,
        on_answer: Callable[[PubAck | BerthError], None],
    ) -> None:
        def on_done(publishing: asyncio.Task[PubAck]) -> None:
            self._publishes.discard(publishing)
            if publishing.cancelled():
                return
            error = publishing.exception()
            if error is not None and not isinstance(error, BerthError):
                raise error
            on_answer(publishing.result() if error is None else error)

        publishing = asyncio.ensure_future(self.publish(subject, data, message_id=message_id, headers=headers))
        self._publishes.add(publishing)
        publishing.add_done_callback(on_done)

    @contextmanager
    def _opened(self, one: E) -> Iterator[E]:
        self._open.append(one)
        try:
            yield one
        finally:
            self._open.remove(one)
            one.close()

    def _deliveries(self, *arguments: Any) -> MemoryDeliveries:
        return MemoryDeliveries(*arguments)

    def _reader(self, *arguments: Any) -> MemoryReader[Any]:
        return MemoryReader(*arguments)

    @asynccontextmanager
    async def consume(self, stream: str, consumer: str, *, max_unacked: int) -> AsyncIterator[MemoryDeliveries]:
        queue = await self._answer(lambda: self._store.queue(stream))
        if consumer not in queue.consumers:
            raise MissingError(f"consuming {stream} {consumer}: consumer not found")
        with self._opened(self._deliveries(queue.consumers[consumer], max_unacked)) as deliveries:
            yield deliveries

    @asynccontextmanager
    async def read_stream(
        self,
        stream: str,
        *,
        filters: tuple[str, ...] = ALL,
        since: timedelta | None = None,
        after: int | None = None,
    ) -> AsyncIterator[MemoryReader[StoredMessage]]:
        source = await self._answer(lambda: self._store.stream(stream))
        if after is not None and after > source.last_sequence:
            raise BusRefusedError(f"reading {stream} after {after}: its last sequence is {source.last_sequence}")
        begin = self._store.clock.now() - since if since is not None and after is None else None

        def begins_with(stored: StoredMessage) -> bool:
            return stored.sequence > (after or 0) and (begin is None or stored.time >= begin)

        with self._opened(self._reader(source, filters, begins_with, lambda stored: stored)) as reader:
            yield reader

    @asynccontextmanager
    async def read_bucket(
        self, bucket: str, *, filters: tuple[str, ...] = ALL, every: timedelta | None = None
    ) -> AsyncIterator[MemoryReader[Entry]]:
        del every  # changes are there at once
        source = await self._answer(lambda: self._store.stream(bucket_stream(bucket)))
        subjects = tuple(bucket_prefix(bucket) + one for one in filters)
        reader = self._reader(source, subjects, lambda _: True, lambda stored: entry_of(bucket, stored))
        with self._opened(reader):
            yield reader

    async def scan(self, stream: str, subject: str, *, after: int = 0) -> AsyncIterator[StoredMessage]:
        test = matches(subject)
        page = await self._answer(lambda: self._page(stream, test, after))
        while page:
            for stored in page:
                yield stored
            after = page[-1].sequence
            page = await self._answer(lambda: self._page(stream, test, after))  # noqa: B023 - called before it moves on

    def _page(self, stream: str, test: Callable[[str], bool], after: int) -> list[StoredMessage]:
        found = (one for one in self._store.stream(stream).all_after(after) if test(one.subject))
        return [one for one, _ in zip(found, range(PAGE), strict=False)]

    async def last_of_each(self, stream: str, subjects: Sequence[str]) -> AsyncIterator[StoredMessage]:
        source = await self._answer(lambda: self._store.stream(stream))
        for subject in subjects:
            stored = source.last(subject)
            if stored is not None:
                yield stored

    async def last(self, stream: str, subject: str) -> StoredMessage | None:
        return await self._answer(lambda: self._store.stream(stream).last(subject))

    async def get(self, bucket: str, key: str) -> Entry | None:
        stored = await self.last(bucket_stream(bucket), bucket_prefix(bucket) + key)
        return entry_of(bucket, stored) if stored else None

    async def put(self, bucket: str, key: str, data: bytes, *, expected: int | None = None) -> int:
        ack = await self.publish(bucket_prefix(bucket) + key, data, headers=expecting(expected))
        return ack.sequence

    def put_soon(
        self, bucket: str, key: str, data: bytes, *, expected: int | None, on_answer: Callable[[int | BerthError], None]
    ) -> None:
        def on_ack(answer: PubAck | BerthError) -> None:
            on_answer(answer.sequence if isinstance(answer, PubAck) else answer)

        self.publish_soon(bucket_prefix(bucket) + key, data, headers=expecting(expected), on_answer=on_ack)

    async def purge(self, bucket: str, key: str, *, expected: int | None = None) -> int:
        headers = purge_headers(self._store.settings.marker_ttl) | expecting(expected)
        return (await self.publish(bucket_prefix(bucket) + key, b"", headers=headers)).sequence

    async def delete(self, stream: str, sequence: int) -> None:
        await self._answer(lambda: self._store.stream(stream).remove(sequence))

    async def subscribe(self, subject: str, listener: Listener, *, most: int = 0) -> None:
        heard = limited(listener, most) if most else listener
        await self._answer(lambda: self._stop_listening.append(self._store.listen(subject, heard)))

    async def subscribe_stored(self, subject: str, listener: StoredListener, *, most: int = 0) -> None:
        heard = limited(listener, most) if most else listener
        await self._answer(lambda: self._stop_listening.append(self._store.listen_stored(subject, heard)))

    async def broadcast(self, subject: str, data: bytes) -> None:
        await self._answer(lambda: self._store.tell_listeners(subject, data, {}))

    async def apply(self) -> None:
        self._bus_id = await self._answer(self._store.apply)

    async def verify(self, only: Collection[str] = ()) -> None:
        await self._answer(self._verify)

    async def create_consumer(self, stream: str, consumer: str) -> None:
        declared = declared_consumer(self._store.settings, stream, consumer)
        if declared is None:
            raise BusRefusedError(
                f"creating consumer {consumer!r} of {stream}: no consumer of that name is declared there"
            )
        await self._answer(lambda: self._store.queue(stream).create(declared))

    async def consumers(self, stream: str) -> list[str]:
        return await self._answer(lambda: self._names(stream))

    def _names(self, stream: str) -> list[str]:
        queue = self._store.stream(stream).queue
        return list(queue.consumers) if queue else []

    async def delete_consumer(self, stream: str, consumer: str) -> None:
        await self._answer(lambda: self._store.queue(stream).delete(consumer))

    async def register(
        self,
        service: str,
        *,
        identity: str,
        version: str,
        stats: Stats,
        metadata: Mapping[str, str] = NO_METADATA,
        endpoints: Sequence[Endpoint] = (),
    ) -> None:
        del metadata  # only `nats micro info` shows it
        one = RegisteredService(
            service=service, identity=identity, version=version, stats=stats, endpoints=tuple(endpoints)
        )
        await self._answer(lambda: self.registered.append(one))

    async def ask(self, subject: str, data: bytes) -> bytes:
        services = await self._answer(self._services)
        answers = {asked: answer for one in services for asked, answer in one.answers()}
        if subject not in answers:
            raise MissingError(f"asking {subject!r}: nothing answers there")
        return msgspec.json.encode(answers[subject](data))

    async def state(self, stream: str) -> StreamState:
        return await self._answer(lambda: self._store.stream(stream).state())

    async def services(self, service: str = "") -> list[ServiceInstance]:
        found = await self._answer(self._services)
        named = sorted(found, key=lambda one: (one.service, one.identity))
        return [
            ServiceInstance(service=one.service, identity=one.identity, version=one.version, stats=one.stats())
            for one in named
            if service in {"", one.service}
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisteredService:
    """A registered service."""

    service: str
    identity: str
    version: str
    stats: Stats
    endpoints: tuple[Endpoint, ...] = ()

    def answers(self) -> Iterator[tuple[str, Callable[[bytes], object]]]:
        """By subject."""
        yield service_subject(self.service, self.identity), lambda _request: self.stats()
        for one in self.endpoints:
            yield service_subject(self.service, self.identity, one.name, for_admins=one.for_admins), one.answer


class _Closable(Protocol):
    """Deliveries or a reader that is open until the session is lost."""

    def fail(self, failure: BerthError) -> None: ...
    def close(self) -> None: ...


E = TypeVar("E", bound=_Closable)


class MemoryStore:
    """Streams, their consumers, ``bus.id``, and plain subscriptions."""

    def __init__(self, settings: TopologySettings, clock: BusClock, name: str) -> None:
        self.settings: Final = settings
        self.clock: Final = clock
        self._name = name
        self._number = 1
        self._streams: dict[str, MemoryStream] = {}
        self._listeners: list[tuple[Callable[[str], bool], Listener]] = []
        self._stored_listeners: list[tuple[Callable[[str], bool], StoredListener]] = []
        self.full: frozenset[str] = frozenset()

    def wipe(self) -> None:
        """Become another, empty store."""
        self._streams = {}
        self._number += 1

    def lose(self, name: str) -> None:
        """The stream is there no more."""
        self._streams.pop(name, None)

    def listen(self, subject: str, listener: Listener) -> Callable[[], None]:
        """Call the listener with every message under a subject; the returned function removes it."""
        entry = (matches(subject), listener)
        self._listeners.append(entry)
        return lambda: self._listeners.remove(entry)

    def listen_stored(self, subject: str, listener: StoredListener) -> Callable[[], None]:
        """Call the listener with what is stored under a subject; the returned function removes it."""
        entry = (matches(subject), listener)
        self._stored_listeners.append(entry)
        return lambda: self._stored_listeners.remove(entry)

    def stream(self, name: str) -> MemoryStream:
        """A stream by name.

        Raises:
            MissingError: it does not exist.
        """
        if name not in self._streams:
            raise MissingError(f"using stream {name!r}: stream not found")
        return self._streams[name]

    def queue(self, name: str) -> WorkQueue:
        """A work queue by its stream's name.

        Raises:
            MissingError: it does not exist.
            BusRefusedError: the stream is no work queue.
        """
        queue = self.stream(name).queue
        if queue is None:
            raise BusRefusedError(f"using stream {name!r} as a work queue: it is none")
        return queue

    def store(self, subject: str, data: bytes, headers: Mapping[str, str]) -> PubAck:
        """Pass a message to the listeners, and to the stream that has the subject.

        Raises:
            BusRefusedError: the subject is not valid.
            MissingError: no stream has the subject.
        """
        if not is_subject(subject):
            raise BusRefusedError(f"publishing to {subject!r}: not a subject: it is empty or has white space")
        stream = next((one for one in self._streams.values() if one.accepts(subject)), None)
        self.tell_listeners(subject, data, headers)
        if stream is None:
            raise MissingError(f"publishing to {subject!r}: no stream has the subject")
        if Names().store_of(subject) in self.full:
            raise StoreFullError(f"publishing to {subject!r}: insufficient storage resources available")
        ack = stream.store(subject, data, headers)
        if not ack.duplicate:
            stored = StoredMessage(
                subject=subject, sequence=ack.sequence, data=data, headers=headers, time=self.clock.now()
            )
            self._tell_stored(stored)
        return ack

    def _tell_stored(self, stored: StoredMessage) -> None:
        for test, listener in self._stored_listeners:
            if test(stored.subject):
                asyncio.get_running_loop().call_soon(listener, stored)
        self.tell_listeners(STORED_PREFIX + stored.subject, stored.data, stored.headers)

    def tell_listeners(self, subject: str, data: bytes, headers: Mapping[str, str]) -> None:
        """Pass a message to the plain subscriptions, a turn of the loop later."""
        for test, listener in self._listeners:
            if test(subject):
                asyncio.get_running_loop().call_soon(listener, subject, data, headers)

    def apply(self) -> str:
        """Create what is declared; returns ``bus.id``."""
        if not all(name in self._streams for name in NAMED_IN_POSITIONS):
            self.delete_positions()
        for declared in declared_streams(self.settings):
            self._streams.setdefault(declared.name, MemoryStream(declared, self.settings, self.clock))
        for consumer in declared_consumers(self.settings):
            self.queue(consumer.stream).create(consumer)
        if not self.bus_id():
            self.store(bucket_prefix(CONTROL) + BUS_ID_KEY, f"{self._name}-{self._number}".encode(), {})
        return self.bus_id()

    def delete_positions(self) -> None:
        """Delete the streams whose messages name positions, as ``berth.bus.admin`` does."""
        for name in WITH_POSITIONS:
            self.lose(name)

    def bus_id(self) -> str:
        """``bus.id``, empty when the bucket is missing."""
        control = self._streams.get(bucket_stream(CONTROL))
        stored = control.last(bucket_prefix(CONTROL) + BUS_ID_KEY) if control else None
        return stored.data.decode() if stored else ""

    def verify(self) -> None:
        """Raise for the first thing that is missing."""
        for declared in declared_streams(self.settings):
            self.stream(declared.name)
        for consumer in declared_consumers(self.settings):
            if consumer.name not in self.queue(consumer.stream).consumers:
                raise MissingError(f"looking for consumer {consumer.name!r} of {consumer.stream}: consumer not found")


Listener = Callable[[str, bytes, Mapping[str, str]], None]
Stats = Callable[[], Mapping[str, object]]


def limited(listener: Callable[P, None], most: int) -> Callable[P, None]:
    """The listener, called at most so often in each period."""
    loop = asyncio.get_running_loop()
    began, count = loop.time(), 0

    def listen(*message: P.args, **parts: P.kwargs) -> None:
        nonlocal began, count
        if loop.time() - began >= LIMIT_SECONDS:
            began, count = loop.time(), 0
        count += 1
        if count <= most:
            listener(*message, **parts)

    return listen
