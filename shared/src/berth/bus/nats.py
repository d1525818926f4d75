"""The bus on a real NATS server."""
# ruff: noqa: D102 - the port documents every call

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from datetime import timedelta

from nats.aio.msg import Msg

from berth.bus import admin, consuming, direct_get, following, kv, presence, publishing
from berth.bus.connection import Connection
from berth.bus.consuming import NatsConsumption
from berth.bus.delivered import NO_HEADERS
from berth.bus.following import EVERYTHING, NatsFollowing
from berth.bus.port import (
    Bus,
    BusLostError,
    BusRefusedError,
    Entry,
    Present,
    PubAck,
    Session,
    Stored,
    StreamState,
    UnansweredError,
)
from berth.bus.settings import BusSettings

log = logging.getLogger(__name__)

Listener = Callable[[str, bytes, Mapping[str, str]], None]


class NatsBus(Bus):
    """Opens sessions with one set of settings. Keeps :class:`berth.bus.port.Bus`."""

    def __init__(self, settings: BusSettings | None = None) -> None:
        """Check the settings.

        Raises:
            BusRefusedError: everything that is wrong with them at once.
        """
        self.settings = settings or BusSettings()
        if problems := self.settings.problems():
            raise BusRefusedError(f"reading the bus settings: {'; '.join(problems)}")

    async def connect(self, *, name: str) -> NatsSession:
        """A new client; see the port."""
        connection = Connection(self.settings, name)
        await connection.open()
        try:
            return NatsSession(connection, await admin.read_bus_id(connection))
        except UnansweredError as exc:
            await connection.close()
            raise BusLostError(f"connecting as {name!r}: {exc}") from exc
        except BaseException:
            await connection.close()
            raise


class NatsSession(Session):
    """One client on one connection. Keeps :class:`berth.bus.port.Session`, which documents every call."""

    def __init__(self, connection: Connection, bus_id: str) -> None:
        self._connection = connection
        self._bus_id = bus_id

    @property
    def bus_id(self) -> str:
        return self._bus_id

    @property
    def lost(self) -> asyncio.Event:
        return self._connection.lost

    async def close(self) -> None:
        await self._connection.close()

    async def publish(
        self,
        subject: str,
        data: bytes,
        *,
        message_id: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> PubAck:
        return await publishing.publish(self._connection, subject, data, message_id=message_id, headers=headers)

    def consume(self, stream: str, consumer: str, *, hold: int) -> AbstractAsyncContextManager[NatsConsumption]:
        return consuming.consume(self._connection, stream, consumer, hold)

    def follow(
        self,
        stream: str,
        *,
        filters: tuple[str, ...] = EVERYTHING,
        since: timedelta | None = None,
        after: int | None = None,
    ) -> AbstractAsyncContextManager[NatsFollowing[Stored]]:
        return following.follow_stream(self._connection, stream, filters, since, after).open()

    def follow_bucket(
        self, bucket: str, *, filters: tuple[str, ...] = EVERYTHING
    ) -> AbstractAsyncContextManager[NatsFollowing[Entry]]:
        return following.follow_bucket(self._connection, bucket, filters).open()

    def look_through(self, stream: str, subject: str, *, after: int = 0) -> AsyncIterator[Stored]:
        return direct_get.look_through(self._connection, stream, subject, after)

    async def last(self, stream: str, subject: str) -> Stored | None:
        return await direct_get.last(self._connection, stream, subject)

    async def get(self, bucket: str, key: str) -> Entry | None:
        return await kv.get(self._connection, bucket, key)

    async def put(self, bucket: str, key: str, data: bytes, *, expected: int | None = None) -> int:
        return await kv.put(self._connection, bucket, key, data, expected)

    async def purge(self, bucket: str, key: str, *, expected: int | None = None) -> int:
        return await kv.purge(self._connection, bucket, key, expected)

    async def subscribe(self, subject: str, listener: Listener) -> None:
        async def hear(msg: Msg) -> None:
            try:
                listener(msg.subject, msg.data, msg.headers or NO_HEADERS)
            except Exception:  # a listener's mistake costs one message, not the subscription
                log.exception("hearing %r failed", msg.subject)

        await self._connection.subscribe(subject, hear)

    async def apply(self) -> None:
        self._bus_id = await admin.apply(self._connection)

    async def verify(self) -> None:
        await admin.verify(self._connection)

    async def create_consumer(self, stream: str, consumer: str) -> None:
        await admin.create_consumer(self._connection, stream, consumer)

    async def consumers(self, stream: str) -> list[str]:
        return await admin.consumer_names(self._connection, stream)

    async def delete_consumer(self, stream: str, consumer: str) -> None:
        await admin.delete_consumer(self._connection, stream, consumer)

    async def register(
        self, service: str, *, identity: str, version: str, stats: Callable[[], Mapping[str, object]]
    ) -> None:
        await presence.register(self._connection, service, identity=identity, version=version, stats=stats)

    async def state(self, stream: str) -> StreamState:
        return await admin.stream_state(self._connection, stream)

    async def present(self) -> list[Present]:
        return await presence.present(self._connection)
