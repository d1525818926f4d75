"""An ordered reading of a stream in memory.

What a server in memory holds: streams, their consumers, ``bus.id``, and who listens.

A client of the bus in memory.

The bus in memory: the same promises as the real one, without a server, with a clock that is handed in.

One :class:`MemoryBus` stands for a server and its store. It can be stopped and started, lose its store, or cut a
session off, at moments that a test or a simulation chooses; on a deterministic event loop all of it is deterministic.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, Generic, Protocol, TypeVar

from berth.api.errors import BerthError
from berth.bus import kv
from berth.bus.interface import (
    Bus,
    BusLostError,
    BusRefusedError,
    Entry,
    MissingError,
    PubAck,
    ServiceInstance,
    Session,
    StoredMessage,
    StreamState,
)
from berth.bus.settings import TopologySettings
from berth.bus.streams import MESSAGE_ID
from berth.bus.topology import (
    BUS_ID_KEY,
    CONTROL,
    bucket_prefix,
    bucket_stream,
    declared_consumer,
    shared_consumers,
    streams,
)
from harness.fakes.memory_queue import BusClock, LoopClock, MemoryConsumption, WorkQueue
from harness.fakes.memory_streams import MemoryStream, is_subject, takes, takes_any

T = TypeVar("T")


class MemoryReader(Generic[T]):
    """One reading: what was there when it began, then what is stored from then on."""

    def __init__(
        self,
        stream: MemoryStream,
        filters: tuple[str, ...],
        begins_with: Callable[[StoredMessage], bool],
        shape: Callable[[StoredMessage], T],
    ) -> None:
        self.position = 0
        self.caught_up = asyncio.Event()
        self.failure: BerthError | None = None
        self._stream = stream
        self._takes = takes_any(filters)
        self._shape = shape
        self._to_come = deque(
            one.sequence for one in stream.all_after(0) if begins_with(one) and self._takes(one.subject)
        )
        self._end = self._to_come[-1] if self._to_come else 0
        self._last_at_start = stream.last_sequence
        self._woken = asyncio.Event()
        self._stop_listening = stream.listen(self._hear)
        if not self._to_come:
            self._finish_start()

    async def batches(self) -> AsyncIterator[list[T]]:
        """What has arrived, in order, for ever."""
        while self.failure is None:
            was_caught_up = self.caught_up.is_set()
            batch = self._drain()
            if batch or self.caught_up.is_set() != was_caught_up:
                yield batch
            elif self.failure is None:
                self._woken.clear()
                await self._woken.wait()
        raise self.failure

    def fail(self, failure: BerthError) -> None:
        """Nothing will come any more."""
        self.failure = self.failure or failure
        self._woken.set()

    def close(self) -> None:
        """Read no more."""
        self._stop_listening()

    def _drain(self) -> list[T]:
        batch = []
        while self._to_come:
            self.position = self._to_come.popleft()
            if (stored := self._stream.get(self.position)) is not None:
                batch.append(self._shape(stored))
        if self.position >= self._end:
            self._finish_start()
        return batch

    def _finish_start(self) -> None:
        self.position = max(self.position, self._last_at_start)
        self.caught_up.set()

    def _hear(self, stored: StoredMessage) -> None:
        if self._takes(stored.subject):
            self._to_come.append(stored.sequence)
            self._woken.set()


Listener = Callable[[str, bytes, Mapping[str, str]], None]


class MemoryStore:
    """Everything that sessions do to the server's state."""

    def __init__(self, settings: TopologySettings, clock: BusClock, name: str) -> None:
        self.settings: Final = settings
        self.clock: Final = clock
        self._name = name
        self._number = 1
        self._streams: dict[str, MemoryStream] = {}
        self._listeners: list[tuple[Callable[[str], bool], Listener]] = []

    def wipe(self) -> None:
        """Be another, empty store."""
        self._streams = {}
        self._number += 1

    def listen(self, subject: str, listener: Listener) -> Callable[[], None]:
        """Call the listener with what passes under a subject; what comes back takes it off."""
        entry = (takes(subject), listener)
        self._listeners.append(entry)
        return lambda: self._listeners.remove(entry)

    def stream(self, name: str) -> MemoryStream:
        """A stream by name.

        Raises:
            MissingError: it is not there.
        """
        if name not in self._streams:
            raise MissingError(f"using stream {name!r}: stream not found")
        return self._streams[name]

    def queue(self, name: str) -> WorkQueue:
        """A work queue by its stream's name.

        Raises:
            MissingError: it is not there.
            BusRefusedError: it is no work queue.
        """
        queue = self.stream(name).queue
        if queue is None:
            raise BusRefusedError(f"using stream {name!r} as a work queue: it is none")
        return queue

    def store(self, subject: str, data: bytes, headers: Mapping[str, str]) -> PubAck:
        """Hand a message to everybody who listens, and to the stream that takes it.

        Raises:
            BusRefusedError: it is no subject.
            MissingError: no stream takes it.
        """
        if not is_subject(subject):
            raise BusRefusedError(f"publishing to {subject!r}: no subject: it is empty or has white space")
        stream = next((one for one in self._streams.values() if one.accepts(subject)), None)
        for test, listener in self._listeners:
            if test(subject):
                asyncio.get_running_loop().call_soon(listener, subject, data, headers)
        if stream is None:
            raise MissingError(f"publishing to {subject!r}: no stream takes it")
        return stream.store(subject, data, headers)

    def apply(self) -> str:
        """Make what is declared; returns ``bus.id``."""
        for declared in streams(self.settings):
            self._streams.setdefault(declared.name, MemoryStream(declared, self.settings, self.clock))
        for consumer in shared_consumers(self.settings):
            self.queue(consumer.stream).create(consumer)
        if not self.bus_id():
            self.store(bucket_prefix(CONTROL) + BUS_ID_KEY, f"{self._name}-{self._number}".encode(), {})
        return self.bus_id()

    def bus_id(self) -> str:
        """``bus.id``, or nothing."""
        control = self._streams.get(bucket_stream(CONTROL))
        stored = control.last(bucket_prefix(CONTROL) + BUS_ID_KEY) if control else None
        return stored.data.decode() if stored else ""

    def verify(self) -> None:
        """Raise for the first thing that is missing."""
        for declared in streams(self.settings):
            self.stream(declared.name)
        for consumer in shared_consumers(self.settings):
            if consumer.name not in self.queue(consumer.stream).consumers:
                raise MissingError(f"looking for consumer {consumer.name!r} of {consumer.stream}: consumer not found")


Stats = Callable[[], Mapping[str, object]]

EVERYTHING: Final = (">",)

PAGE: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Registered:
    """A service that is there, as ``nats micro`` would show it."""

    service: str
    identity: str
    version: str
    stats: Stats


class _Ending(Protocol):
    """Something that goes on until it fails."""

    def fail(self, failure: BerthError) -> None: ...
    def close(self) -> None: ...


E = TypeVar("E", bound=_Ending)


class MemorySession(Session):
    """One client. Keeps :class:`berth.bus.interface.Session`, which documents every call."""

    def __init__(
        self,
        store: MemoryStore,
        name: str,
        *,
        on_lost: Callable[[MemorySession], None],
        verify: Callable[[], None],
        everybody: Callable[[], list[Registered]],
    ) -> None:
        self.name: Final = name
        self._lost = asyncio.Event()
        self.registered: Final[list[Registered]] = []
        self._store = store
        self._bus_id = store.bus_id()
        self._on_lost = on_lost
        self._verify = verify
        self._everybody = everybody
        self._cause = "closed"
        self._going_on: list[_Ending] = []
        self._stop_listening: list[Callable[[], None]] = []

    @property
    def bus_id(self) -> str:
        return self._bus_id

    @property
    def lost(self) -> asyncio.Event:
        return self._lost

    async def close(self) -> None:
        await asyncio.sleep(0)
        self.lose("closed")

    def lose(self, cause: str) -> None:
        """End the session: everything that goes on fails, everything that comes later is refused."""
        if self._lost.is_set():
            return
        self._cause = cause
        self._lost.set()
        self._on_lost(self)
        for stop in self._stop_listening:
            stop()
        for one in self._going_on:
            one.fail(self._loss())

    def _loss(self) -> BusLostError:
        return BusLostError(f"using the session of {self.name!r}: {self._cause}")

    def _check(self) -> None:
        if self._lost.is_set():
            raise self._loss()

    async def _answer(self, done: Callable[[], T]) -> T:
        """Do it now; the answer comes a turn of the loop later, and is lost when the session is lost meanwhile."""
        self._check()
        try:
            result = done()
        finally:
            await asyncio.sleep(0)
            self._check()
        return result

    async def publish(
        self,
        subject: str,
        data: bytes,
        *,
        message_id: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> PubAck:
        named = {MESSAGE_ID: message_id} if message_id is not None else {}
        return await self._answer(lambda: self._store.store(subject, data, {**(headers or {}), **named}))

    @contextmanager
    def _going(self, one: E) -> Iterator[E]:
        self._going_on.append(one)
        try:
            yield one
        finally:
            self._going_on.remove(one)
            one.close()

    @asynccontextmanager
    async def consume(self, stream: str, consumer: str, *, max_unacked: int) -> AsyncIterator[MemoryConsumption]:
        queue = await self._answer(lambda: self._store.queue(stream))
        if consumer not in queue.consumers:
            raise MissingError(f"consuming {stream} {consumer}: consumer not found")
        with self._going(MemoryConsumption(queue.consumers[consumer], max_unacked)) as consumption:
            yield consumption

    @asynccontextmanager
    async def read_stream(
        self,
        stream: str,
        *,
        filters: tuple[str, ...] = EVERYTHING,
        since: timedelta | None = None,
        after: int | None = None,
    ) -> AsyncIterator[MemoryReader[StoredMessage]]:
        source = await self._answer(lambda: self._store.stream(stream))
        if after is not None and after > source.last_sequence:
            raise BusRefusedError(f"following {stream} after {after}: it stands at {source.last_sequence}")
        begin = self._store.clock.now() - since if since is not None and after is None else None

        def begins_with(stored: StoredMessage) -> bool:
            return stored.sequence > (after or 0) and (begin is None or stored.time >= begin)

        with self._going(MemoryReader(source, filters, begins_with, lambda stored: stored)) as following:
            yield following

    @asynccontextmanager
    async def read_bucket(
        self, bucket: str, *, filters: tuple[str, ...] = EVERYTHING
    ) -> AsyncIterator[MemoryReader[Entry]]:
        source = await self._answer(lambda: self._store.stream(bucket_stream(bucket)))
        subjects = tuple(bucket_prefix(bucket) + one for one in filters)
        following = MemoryReader(source, subjects, lambda _: True, lambda stored: kv.entry(bucket, stored))
        with self._going(following):
            yield following

    async def scan(self, stream: str, subject: str, *, after: int = 0) -> AsyncIterator[StoredMessage]:
        test = takes(subject)
        page = await self._answer(lambda: self._page(stream, test, after))
        while page:
            for stored in page:
                yield stored
            after = page[-1].sequence
            page = await self._answer(lambda: self._page(stream, test, after))  # noqa: B023 - called before it moves on

    def _page(self, stream: str, test: Callable[[str], bool], after: int) -> list[StoredMessage]:
        found = (one for one in self._store.stream(stream).all_after(after) if test(one.subject))
        return [one for one, _ in zip(found, range(PAGE), strict=False)]

    async def last(self, stream: str, subject: str) -> StoredMessage | None:
        return await self._answer(lambda: self._store.stream(stream).last(subject))

    async def get(self, bucket: str, key: str) -> Entry | None:
        stored = await self.last(bucket_stream(bucket), bucket_prefix(bucket) + key)
        return kv.entry(bucket, stored) if stored else None

    async def put(self, bucket: str, key: str, data: bytes, *, expected: int | None = None) -> int:
        ack = await self.publish(bucket_prefix(bucket) + key, data, headers=kv.expecting(expected))
        return ack.sequence

    async def purge(self, bucket: str, key: str, *, expected: int | None = None) -> int:
        headers = kv.purge_headers(self._store.settings.marker_ttl) | kv.expecting(expected)
        return (await self.publish(bucket_prefix(bucket) + key, b"", headers=headers)).sequence

    async def subscribe(self, subject: str, listener: Listener) -> None:
        await self._answer(lambda: self._stop_listening.append(self._store.listen(subject, listener)))

    async def apply(self) -> None:
        self._bus_id = await self._answer(self._store.apply)

    async def verify(self) -> None:
        await self._answer(self._verify)

    async def create_consumer(self, stream: str, consumer: str) -> None:
        declared = declared_consumer(self._store.settings, stream, consumer)
        if declared is None:
            raise BusRefusedError(f"creating consumer {consumer!r} of {stream}: nothing of that name is declared there")
        await self._answer(lambda: self._store.queue(stream).create(declared))

    async def consumers(self, stream: str) -> list[str]:
        return await self._answer(lambda: self._names(stream))

    def _names(self, stream: str) -> list[str]:
        queue = self._store.stream(stream).queue
        return list(queue.consumers) if queue else []

    async def delete_consumer(self, stream: str, consumer: str) -> None:
        await self._answer(lambda: self._store.queue(stream).delete(consumer))

    async def register(self, service: str, *, identity: str, version: str, stats: Stats) -> None:
        one = Registered(service=service, identity=identity, version=version, stats=stats)
        await self._answer(lambda: self.registered.append(one))

    async def state(self, stream: str) -> StreamState:
        return await self._answer(lambda: self._store.stream(stream).state())

    async def services(self) -> list[ServiceInstance]:
        found = await self._answer(self._everybody)
        named = sorted(found, key=lambda one: (one.service, one.identity))
        return [
            ServiceInstance(service=one.service, identity=one.identity, version=one.version, stats=one.stats())
            for one in named
        ]


__all__ = ["MemoryBus", "MemorySession", "Registered"]


class MemoryBus(Bus):
    """A server and its store. Keeps :class:`berth.bus.interface.Bus`."""

    def __init__(
        self, settings: TopologySettings | None = None, *, clock: BusClock | None = None, name: str = "memory"
    ) -> None:
        """``name`` is what ``bus.id`` begins with; each store has a number of its own after it."""
        self.settings: Final = settings or TopologySettings()
        self.clock: Final = clock or LoopClock()
        self.name: Final = name
        self.sessions: Final[list[MemorySession]] = []
        self._store = MemoryStore(self.settings, self.clock, name)
        self._running = True

    async def connect(self, *, name: str) -> MemorySession:
        """A new client; see the port."""
        await asyncio.sleep(0)
        if not self._running:
            raise BusLostError(f"connecting to the bus {self.name!r} in memory as {name!r}: it is stopped")
        session = MemorySession(
            self._store, name, on_lost=self.sessions.remove, verify=self.verify, everybody=self.services
        )
        self.sessions.append(session)
        return session

    # --- what befalls a server

    def stop(self) -> None:
        """Every session is lost, and nobody can connect until :meth:`start`. The store stays."""
        self._running = False
        self._cut_all("the server was stopped")

    def start(self) -> None:
        """Take sessions again."""
        self._running = True

    def wipe(self) -> None:
        """The server is back with an empty store: every session is lost, ``apply`` makes another ``bus.id``."""
        self._cut_all("the server lost its store")
        self._store.wipe()

    def cut(self, session: MemorySession) -> None:
        """One session is lost."""
        session.lose("the connection was cut")

    def _cut_all(self, cause: str) -> None:
        for session in list(self.sessions):
            session.lose(cause)

    # --- what somebody does on the server itself

    def apply(self) -> str:
        """Make what is declared, as ``berth bus apply`` does; returns ``bus.id``."""
        return self._store.apply()

    def verify(self) -> None:
        """What every session's ``verify`` asks; a test may put its own answer in the place."""
        self._store.verify()

    def bus_id(self) -> str:
        """``bus.id`` as it stands, or nothing."""
        return self._store.bus_id()

    def services(self) -> list[Registered]:
        """Who is registered."""
        return [one for session in self.sessions for one in session.registered]
