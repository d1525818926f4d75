"""Makes the server have what ``topology`` declares, and tells where it differs."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Final

import msgspec

from berth.bus import kv
from berth.bus.connection import Connection
from berth.bus.interface import BusRefusedError, ConsumerState, MissingError, StreamState, WrongLastSequenceError
from berth.bus.jetstream import (
    API,
    A,
    ApiAnswer,
    ConsumerAnswer,
    ConsumerAnswers,
    ConsumerNames,
    StreamAnswer,
    consumer_config,
    differences,
    read_answer,
    stream_config,
)
from berth.bus.topology import (
    BUS_ID_KEY,
    CONTROL,
    ConsumerSpec,
    StreamSpec,
    declared_consumer,
    shared_consumers,
    streams,
)

HOW_TO_APPLY: Final = "`berth bus apply` brings it in line"


async def ask(connection: Connection, subject: str, request: object, kind: type[A]) -> A:
    """One request to JetStream's API. Raises what ``error_from`` makes of a refusal."""
    data = b"" if request is None else msgspec.json.encode(request)
    msg = await connection.request(f"{API}.{subject}", data)
    return read_answer(f"asking for {subject}", msg.data, msgspec.json.Decoder(kind))


async def stream_of(connection: Connection, name: str) -> StreamAnswer:
    """The stream as the server has it."""
    return await ask(connection, f"STREAM.INFO.{name}", None, StreamAnswer)


async def apply(connection: Connection) -> str:
    """Create or update all that is declared; returns ``bus.id``."""
    topology = connection.settings.topology
    for stream in streams(topology):
        await _apply_stream(connection, stream)
    for consumer in shared_consumers(topology):
        await _write_consumer(connection, consumer, action="")
    return await _apply_bus_id(connection)


async def verify(connection: Connection) -> None:
    """Raise for the first thing that is missing, or for everything that differs at once."""
    topology = connection.settings.topology
    found: list[str] = []
    for stream in streams(topology):
        existing = (await stream_of(connection, stream.name)).config
        found += differences(f"stream {stream.name}", stream_config(stream, topology), existing)
    for consumer in shared_consumers(topology):
        there = await ask(connection, f"CONSUMER.INFO.{consumer.stream}.{consumer.name}", None, ConsumerAnswer)
        found += differences(f"consumer {consumer.stream} {consumer.name}", consumer_config(consumer), there.config)
    if found:
        raise BusRefusedError(f"verifying the bus: {'; '.join(found)}: {HOW_TO_APPLY}")


async def create_consumer(connection: Connection, stream: str, name: str) -> None:
    """Create a declared consumer. Refused: one of that name with other settings, or another that takes the stream."""
    consumer = declared_consumer(connection.settings.topology, stream, name)
    if consumer is None:
        raise BusRefusedError(f"creating consumer {name!r} of {stream}: nothing of that name is declared there")
    await _write_consumer(connection, consumer, action="create")


async def delete_consumer(connection: Connection, stream: str, name: str) -> None:
    """Delete a consumer if it is there."""
    try:
        await ask(connection, f"CONSUMER.DELETE.{stream}.{name}", None, ApiAnswer)
    except MissingError:
        return


async def consumer_names(connection: Connection, stream: str) -> list[str]:
    """All consumers of the stream, page by page."""
    names: list[str] = []
    for _ in itertools.count():
        page = await ask(connection, f"CONSUMER.NAMES.{stream}", {"offset": len(names)}, ConsumerNames)
        names += page.consumers or []
        if not page.consumers or len(names) >= page.total:
            break
    return names


async def stream_state(connection: Connection, name: str) -> StreamState:
    """The stream with its durable consumers."""
    stream = await stream_of(connection, name)
    numbers = stream.state
    return StreamState(
        stream=name,
        messages=numbers.messages,
        bytes=numbers.bytes,
        last_sequence=numbers.last_seq,
        now=stream.ts or datetime.now(UTC),
        first_time=numbers.first_ts if numbers.messages else None,
        consumers=tuple([_consumer_state(one) async for one in _consumers(connection, name) if _is_durable(one)]),
    )


async def _consumers(connection: Connection, stream: str) -> AsyncIterator[ConsumerAnswer]:
    """All consumers of the stream, page by page."""
    seen = 0
    while True:
        page = await ask(connection, f"CONSUMER.LIST.{stream}", {"offset": seen}, ConsumerAnswers)
        for consumer in page.consumers or []:
            yield consumer
        seen += len(page.consumers or [])
        if not page.consumers or seen >= page.total:
            return


def _is_durable(consumer: ConsumerAnswer) -> bool:
    return bool(consumer.config.get("durable_name"))


def _consumer_state(consumer: ConsumerAnswer) -> ConsumerState:
    return ConsumerState(
        name=consumer.name,
        undelivered=consumer.num_pending,
        unacknowledged=consumer.num_ack_pending,
        redelivered=consumer.num_redelivered,
    )


async def _apply_stream(connection: Connection, stream: StreamSpec) -> None:
    config = stream_config(stream, connection.settings.topology)
    try:
        existing = (await stream_of(connection, stream.name)).config
    except MissingError:
        await ask(connection, f"STREAM.CREATE.{stream.name}", config, StreamAnswer)
        return
    if differences(stream.name, config, existing):
        await ask(connection, f"STREAM.UPDATE.{stream.name}", existing | config, StreamAnswer)


async def _write_consumer(connection: Connection, consumer: ConsumerSpec, *, action: str) -> None:
    request = {"stream_name": consumer.stream, "config": consumer_config(consumer), "action": action}
    await ask(connection, f"CONSUMER.CREATE.{consumer.stream}.{consumer.name}", request, ConsumerAnswer)


async def _apply_bus_id(connection: Connection) -> str:
    """Make ``bus.id`` when it is not there; who comes second reads what the first one made."""
    made = uuid.uuid4().hex
    try:
        await kv.put(connection, CONTROL, BUS_ID_KEY, made.encode(), expected=0)
    except WrongLastSequenceError:
        return await read_bus_id(connection)
    return made


async def read_bus_id(connection: Connection) -> str:
    """``bus.id``, or nothing when the bucket or the key is missing."""
    try:
        found = await kv.get(connection, CONTROL, BUS_ID_KEY)
    except MissingError:
        return ""
    return (found.data or b"").decode() if found else ""
