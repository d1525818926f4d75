"""The bus in memory: the same promises as the real one, without a server, with a clock that is handed in.

One :class:`MemoryBus` stands for a server and its store. It can be stopped and started, lose its store, or cut a
session off, at moments that a test or a simulation chooses; on a deterministic event loop all of it is deterministic.
"""
# ruff: noqa: D102 - the port documents every call of a session

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, Protocol, TypeVar

from berth.api.errors import BerthError
from berth.bus import kv
from berth.bus.clock import Clock, LoopClock
from berth.bus.filters import is_subject, takes
from berth.bus.memory_following import MemoryFollowing
from berth.bus.memory_queue import MemoryConsumption, WorkQueue
from berth.bus.memory_stream import MemoryStream
from berth.bus.port import Bus, BusLostError, BusRefusedError, Entry, MissingError, PubAck, Session, Stored
from berth.bus.publishing import MESSAGE_ID
from berth.bus.settings import TopologySettings
from berth.bus.topology import (
    BUS_ID_KEY,
    CONTROL,
    bucket_prefix,
    bucket_stream,
    declared_consumer,
    shared_consumers,
    streams,
)

T = TypeVar("T")
Listener = Callable[[str, bytes, Mapping[str, str]], None]
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


class MemoryBus(Bus):
    """A server and its store. Keeps :class:`berth.bus.port.Bus`."""

    def __init__(
        self, settings: TopologySettings | None = None, *, clock: Clock | None = None, name: str = "memory"
    ) -> None:
        """``name`` is what ``bus.id`` begins with; each store has a number of its own after it."""
        self.settings: Final = settings or TopologySettings()
        self.clock: Final = clock or LoopClock()
        self.name: Final = name
        self.sessions: Final[list[MemorySession]] = []
        self._streams: dict[str, MemoryStream] = {}
        self._stores = 1
        self._running = True

    async def connect(self, *, name: str) -> MemorySession:
        await asyncio.sleep(0)
        if not self._running:
            raise BusLostError(f"connecting to the bus {self.name!r} in memory as {name!r}: it is stopped")
        session = MemorySession(self, name)
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
        self._streams = {}
        self._stores += 1

    def cut(self, session: MemorySession) -> None:
        """One session is lost."""
        session.lose("the connection was cut")

    def _cut_all(self, cause: str) -> None:
        for session in list(self.sessions):
            session.lose(cause)

    # --- what sessions do on it

    def services(self) -> list[Registered]:
        """Who is registered."""
        return [one for session in self.sessions for one in session.registered]

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
        """Hand a message to the stream that takes it, and to everybody who listens."""
        if not is_subject(subject):
            raise BusRefusedError(f"publishing to {subject!r}: no subject: it is empty or has white space")
        stream = next((one for one in self._streams.values() if one.accepts(subject)), None)
        for session in self.sessions:
            session.hear(subject, data, headers)
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
            self.store(bucket_prefix(CONTROL) + BUS_ID_KEY, f"{self.name}-{self._stores}".encode(), {})
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


class _Ending(Protocol):
    """Something that goes on until it fails."""

    def fail(self, failure: BerthError) -> None: ...
    def close(self) -> None: ...


E = TypeVar("E", bound=_Ending)


class MemorySession(Session):
    """One client. Keeps :class:`berth.bus.port.Session`, which documents every call."""

    def __init__(self, bus: MemoryBus, name: str) -> None:
        self.name: Final = name
        self._lost = asyncio.Event()
        self.registered: Final[list[Registered]] = []
        self._bus = bus
        self._bus_id = bus.bus_id()
        self._cause = "closed"
        self._going_on: list[_Ending] = []
        self._listeners: list[tuple[Callable[[str], bool], Listener]] = []

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
        self._listeners.clear()
        self._bus.sessions.remove(self)
        for one in self._going_on:
            one.fail(self._loss())

    def hear(self, subject: str, data: bytes, headers: Mapping[str, str]) -> None:
        """Something passes by."""
        for test, listener in self._listeners:
            if test(subject):
                asyncio.get_running_loop().call_soon(listener, subject, data, headers)

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
        return await self._answer(lambda: self._bus.store(subject, data, {**(headers or {}), **named}))

    @contextmanager
    def _going(self, one: E) -> Iterator[E]:
        self._going_on.append(one)
        try:
            yield one
        finally:
            self._going_on.remove(one)
            one.close()

    @asynccontextmanager
    async def consume(self, stream: str, consumer: str, *, hold: int) -> AsyncIterator[MemoryConsumption]:
        queue = await self._answer(lambda: self._bus.queue(stream))
        if consumer not in queue.consumers:
            raise MissingError(f"consuming {stream} {consumer}: consumer not found")
        with self._going(MemoryConsumption(queue.consumers[consumer], hold)) as consumption:
            yield consumption

    @asynccontextmanager
    async def follow(
        self,
        stream: str,
        *,
        filters: tuple[str, ...] = EVERYTHING,
        since: timedelta | None = None,
        after: int | None = None,
    ) -> AsyncIterator[MemoryFollowing[Stored]]:
        source = await self._answer(lambda: self._bus.stream(stream))
        if after is not None and after > source.last_sequence:
            raise BusRefusedError(f"following {stream} after {after}: it stands at {source.last_sequence}")
        begin = self._bus.clock.now() - since if since is not None and after is None else None

        def begins_with(stored: Stored) -> bool:
            return stored.sequence > (after or 0) and (begin is None or stored.time >= begin)

        with self._going(MemoryFollowing(source, filters, begins_with, lambda stored: stored)) as following:
            yield following

    @asynccontextmanager
    async def follow_bucket(
        self, bucket: str, *, filters: tuple[str, ...] = EVERYTHING
    ) -> AsyncIterator[MemoryFollowing[Entry]]:
        source = await self._answer(lambda: self._bus.stream(bucket_stream(bucket)))
        subjects = tuple(bucket_prefix(bucket) + one for one in filters)
        following = MemoryFollowing(source, subjects, lambda _: True, lambda stored: kv.entry(bucket, stored))
        with self._going(following):
            yield following

    async def look_through(self, stream: str, subject: str, *, after: int = 0) -> AsyncIterator[Stored]:
        test = takes(subject)
        page = await self._answer(lambda: self._page(stream, test, after))
        while page:
            for stored in page:
                yield stored
            after = page[-1].sequence
            page = await self._answer(lambda: self._page(stream, test, after))  # noqa: B023 - called before it moves on

    def _page(self, stream: str, test: Callable[[str], bool], after: int) -> list[Stored]:
        found = (one for one in self._bus.stream(stream).all_after(after) if test(one.subject))
        return [one for one, _ in zip(found, range(PAGE), strict=False)]

    async def last(self, stream: str, subject: str) -> Stored | None:
        return await self._answer(lambda: self._bus.stream(stream).last(subject))

    async def get(self, bucket: str, key: str) -> Entry | None:
        stored = await self.last(bucket_stream(bucket), bucket_prefix(bucket) + key)
        return kv.entry(bucket, stored) if stored else None

    async def put(self, bucket: str, key: str, data: bytes, *, expected: int | None = None) -> int:
        ack = await self.publish(bucket_prefix(bucket) + key, data, headers=kv.expecting(expected))
        return ack.sequence

    async def purge(self, bucket: str, key: str, *, expected: int | None = None) -> int:
        headers = kv.purge_headers(self._bus.settings.marker_ttl) | kv.expecting(expected)
        return (await self.publish(bucket_prefix(bucket) + key, b"", headers=headers)).sequence

    async def subscribe(self, subject: str, listener: Listener) -> None:
        await self._answer(lambda: self._listeners.append((takes(subject), listener)))

    async def apply(self) -> None:
        self._bus_id = await self._answer(self._bus.apply)

    async def verify(self) -> None:
        await self._answer(self._bus.verify)

    async def create_consumer(self, stream: str, consumer: str) -> None:
        declared = declared_consumer(self._bus.settings, stream, consumer)
        if declared is None:
            raise BusRefusedError(f"creating consumer {consumer!r} of {stream}: nothing of that name is declared there")
        await self._answer(lambda: self._bus.queue(stream).create(declared))

    async def consumers(self, stream: str) -> list[str]:
        return await self._answer(lambda: self._names(stream))

    def _names(self, stream: str) -> list[str]:
        queue = self._bus.stream(stream).queue
        return list(queue.consumers) if queue else []

    async def delete_consumer(self, stream: str, consumer: str) -> None:
        await self._answer(lambda: self._bus.queue(stream).delete(consumer))

    async def register(self, service: str, *, identity: str, version: str, stats: Stats) -> None:
        one = Registered(service=service, identity=identity, version=version, stats=stats)
        await self._answer(lambda: self.registered.append(one))
