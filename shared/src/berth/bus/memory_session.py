"""A client of the bus in memory."""
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
from berth.bus.filters import takes
from berth.bus.interface import (
    BusLostError,
    BusRefusedError,
    Entry,
    MissingError,
    Present,
    PubAck,
    Session,
    StoredMessage,
    StreamState,
)
from berth.bus.memory_following import MemoryReader
from berth.bus.memory_queue import MemoryConsumption
from berth.bus.memory_store import Listener, MemoryStore
from berth.bus.streams import MESSAGE_ID
from berth.bus.topology import bucket_prefix, bucket_stream, declared_consumer

T = TypeVar("T")
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
    async def consume(self, stream: str, consumer: str, *, hold: int) -> AsyncIterator[MemoryConsumption]:
        queue = await self._answer(lambda: self._store.queue(stream))
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
    async def follow_bucket(
        self, bucket: str, *, filters: tuple[str, ...] = EVERYTHING
    ) -> AsyncIterator[MemoryReader[Entry]]:
        source = await self._answer(lambda: self._store.stream(bucket_stream(bucket)))
        subjects = tuple(bucket_prefix(bucket) + one for one in filters)
        following = MemoryReader(source, subjects, lambda _: True, lambda stored: kv.entry(bucket, stored))
        with self._going(following):
            yield following

    async def look_through(self, stream: str, subject: str, *, after: int = 0) -> AsyncIterator[StoredMessage]:
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

    async def present(self) -> list[Present]:
        found = await self._answer(self._everybody)
        named = sorted(found, key=lambda one: (one.service, one.identity))
        return [
            Present(service=one.service, identity=one.identity, version=one.version, stats=one.stats()) for one in named
        ]
