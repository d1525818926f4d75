"""Applies declared streams, buckets and consumers to the server, and reports differences."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import AsyncIterator, Collection
from datetime import UTC, datetime, timedelta
from typing import Final

from berth.bus.connection import Connection
from berth.bus.interface import (
    BusRefusedError,
    ConsumerState,
    MissingError,
    StoreFullError,
    StreamState,
    WrongLastSequenceError,
)
from berth.bus.jetstream import (
    ApiResponse,
    ConsumerInfo,
    ConsumerList,
    ConsumerNames,
    StreamInfo,
    api_read,
    api_request,
    get_entry,
    nanoseconds,
    put_entry,
    stream_info,
)
from berth.bus.settings import MEBIBYTE, TopologySettings
from berth.bus.topology import (
    BANDWIDTH,
    BUCKETS,
    BUS_ID_KEY,
    CLUSTER,
    CONTROL,
    DECISIONS,
    FACTS,
    PENDING,
    PROBE,
    RANKED,
    STORED_PREFIX,
    UNLIMITED,
    ConsumerSpec,
    StreamSpec,
    bucket_stream,
    declared_consumer,
    declared_consumers,
    declared_streams,
    reserved_bytes,
)
from berth.errors import TemporaryError
from berth.messages.subjects import PREFIX

BUS_ID_CHARACTERS: Final = 64  # Maximum length of `bus.id`: twice berth's own.
PROBE_BYTES: Final = 512 * 1024  # Bytes of a probe message: more than a stream's first blocks and index.
NAMED_IN_POSITIONS: Final = (*map(bucket_stream, (CLUSTER, BANDWIDTH, FACTS)), DECISIONS)
WITH_POSITIONS: Final = (PENDING, RANKED, DECISIONS)
HOW_TO_APPLY: Final = "`berth bus apply` brings it in line"


async def apply(connection: Connection) -> str:
    """Create or update everything declared; return ``bus.id``."""
    topology = connection.settings.topology
    await _delete_positions_of_what_is_gone(connection)
    for stream in declared_streams(topology):
        await _apply_stream(connection, stream)
    for consumer in declared_consumers(topology):
        await _write_consumer(connection, consumer, action="")
    return await _create_bus_id(connection)


async def _delete_positions_of_what_is_gone(connection: Connection) -> None:
    """Delete the streams whose messages contain positions if a stream of these positions is missing."""
    known = {name: await _last_sequence(connection, name) for name in (*NAMED_IN_POSITIONS, *WITH_POSITIONS)}
    if all(known[name] is not None for name in NAMED_IN_POSITIONS):
        return
    # A new stream begins at 1, so old positions would mark its messages as read (ADR 29). Empty streams stay, because
    # another client may be creating them.
    for name in WITH_POSITIONS:
        if known[name]:
            with contextlib.suppress(MissingError):
                there = connection.names.stream(name)
                await api_request(connection, f"STREAM.DELETE.{there}", None, ApiResponse)


async def _last_sequence(connection: Connection, name: str) -> int | None:
    try:
        return (await stream_info(connection, connection.names.stream(name))).state.last_seq
    except MissingError:
        return None


async def remake(connection: Connection, name: str) -> bool:
    """Delete and apply everything if there is room and the server no longer stores to this stream or bucket."""
    unstored = connection.stores.unstored().get(name)
    if unstored is None or unstored.answered:
        return False
    stream = connection.names.stream(bucket_stream(name) if name in BUCKETS else name)
    info = await stream_info(connection, stream)
    if info.created is None or (info.ts or datetime.now(UTC)) - info.created < timedelta(seconds=unstored.since):
        connection.lose(f"{name} was made anew by another client")
        return False
    if not await _has_room(connection):
        return False
    for one in declared_streams(connection.settings.topology):
        with contextlib.suppress(MissingError):
            await api_request(connection, f"STREAM.DELETE.{one.name}", None, ApiResponse)
    await apply(connection)
    connection.lose(f"the server had given {name} up: everything was made anew")
    return True


async def _has_room(connection: Connection) -> bool:
    probe, subject = connection.names.stream(PROBE), connection.names.subject(f"{PREFIX}.{PROBE}")
    config = {
        "name": probe,
        "subjects": [subject],
        "storage": connection.settings.topology.storage,
        "num_replicas": connection.settings.topology.replicas,
        "max_bytes": PROBE_BYTES * 2,
        "max_msgs": 1,
    }
    with contextlib.suppress(MissingError):
        await api_request(connection, f"STREAM.DELETE.{probe}", None, ApiResponse)
    try:
        await api_request(connection, f"STREAM.CREATE.{probe}", config, StreamInfo)
        await connection.request(subject, bytes(PROBE_BYTES))
        stored = (await stream_info(connection, probe)).state.messages
    except TemporaryError:
        return False
    finally:
        with contextlib.suppress(TemporaryError):
            await api_request(connection, f"STREAM.DELETE.{probe}", None, ApiResponse)
    return stored > 0


async def verify(connection: Connection, only: Collection[str] = ()) -> None:
    """Raise for the first missing stream or consumer, or else for all differences. ``only``: of these streams."""
    topology, names = connection.settings.topology, connection.names
    found: list[str] = []
    for stream in declared_streams(topology):
        if only and names.own_stream(stream.name) not in only:
            continue
        existing = (await stream_info(connection, stream.name)).config
        found += differences(f"stream {stream.name}", stream_config(stream, topology), existing)
    for consumer in declared_consumers(topology):
        if only and names.own_stream(consumer.stream) not in only:
            continue
        subject = f"CONSUMER.INFO.{consumer.stream}.{consumer.name}"
        info = await api_read(connection, subject, None, ConsumerInfo)
        found += differences(f"consumer {consumer.stream} {consumer.name}", consumer_config(consumer), info.config)
    if found:
        raise BusRefusedError(f"verifying the bus: {'; '.join(found)}: {HOW_TO_APPLY}")


async def read_bus_id(connection: Connection) -> str:
    """``bus.id``, or empty if the bucket or the key is missing."""
    try:
        found = await get_entry(connection, CONTROL, BUS_ID_KEY)
    except MissingError:
        return ""
    return (found.data or b"").decode(errors="replace")[:BUS_ID_CHARACTERS] if found else ""


async def create_consumer(connection: Connection, stream: str, name: str) -> None:
    """Create a declared consumer.

    Raises:
        BusRefusedError: it exists with other settings, or another consumer takes the stream.
    """
    consumer = declared_consumer(connection.settings.topology, stream, name)
    if consumer is None:
        raise BusRefusedError(f"creating consumer {name!r} of {stream}: no consumer of that name is declared there")
    await _write_consumer(connection, consumer, action="create")


async def delete_consumer(connection: Connection, stream: str, name: str) -> None:
    try:
        await api_request(connection, f"CONSUMER.DELETE.{stream}.{name}", None, ApiResponse)
    except MissingError:
        return


async def consumer_names(connection: Connection, stream: str) -> list[str]:
    """Names of the stream's consumers, ephemeral ones included."""
    names: list[str] = []
    while True:
        page = await api_read(connection, f"CONSUMER.NAMES.{stream}", {"offset": len(names)}, ConsumerNames)
        names += page.consumers or []
        if not page.consumers or len(names) >= page.total:
            return names


async def stream_state(connection: Connection, name: str) -> StreamState:
    there = connection.names.stream(name)
    stream = await stream_info(connection, there)
    state = stream.state
    return StreamState(
        stream=name,
        messages=state.messages,
        bytes=state.bytes,
        last_sequence=state.last_seq,
        first_sequence=state.first_seq,
        now=stream.ts or datetime.now(UTC),
        first_time=state.first_ts if state.messages else None,
        created=stream.created,
        consumers=tuple([_consumer_state(one) async for one in _consumers(connection, there) if _is_durable(one)]),
    )


async def _consumers(connection: Connection, stream: str) -> AsyncIterator[ConsumerInfo]:
    # All consumers of the stream, page by page.
    seen = 0
    while True:
        page = await api_read(connection, f"CONSUMER.LIST.{stream}", {"offset": seen}, ConsumerList)
        for consumer in page.consumers or []:
            yield consumer
        seen += len(page.consumers or [])
        if not page.consumers or seen >= page.total:
            return


def _is_durable(consumer: ConsumerInfo) -> bool:
    return bool(consumer.config.get("durable_name"))


def _consumer_state(consumer: ConsumerInfo) -> ConsumerState:
    return ConsumerState(
        name=consumer.name,
        undelivered=consumer.num_pending,
        unacknowledged=consumer.num_ack_pending,
        acknowledged_to=consumer.ack_floor.stream_seq,
        redelivered=consumer.num_redelivered,
    )


async def _apply_stream(connection: Connection, stream: StreamSpec) -> None:
    config = stream_config(stream, connection.settings.topology)
    try:
        existing = (await stream_info(connection, stream.name)).config
    except MissingError:
        await _create_stream(connection, stream.name, config)
        return
    if differences(stream.name, config, existing):
        await api_request(connection, f"STREAM.UPDATE.{stream.name}", existing | config, StreamInfo)


async def _create_stream(connection: Connection, name: str, config: dict[str, object]) -> None:
    """Create a stream; errors of a server without room or JetStream name the remedy.

    Raises:
        MissingError: JetStream does not answer.
        StoreFullError: less room than the streams reserve.
    """
    settings = connection.settings
    try:
        await api_request(connection, f"STREAM.CREATE.{name}", config, StreamInfo)
    except MissingError as exc:
        where = f"domain {settings.domain!r} of {settings.addresses}" if settings.domain else settings.addresses
        remedy = "start nats-server with -js, or enable JetStream for this account"
        raise MissingError(f"creating the stream {name}: no JetStream answers at {where}: {remedy}") from exc
    except StoreFullError as exc:
        size = reserved_bytes(settings.topology) // MEBIBYTE
        remedy = "raise max_file_store there, or lower BERTH_NATS_DECISIONS_MEBIBYTES, _CLUSTER_ and _RANKED_MEBIBYTES"
        raise StoreFullError(f"{exc}: berth's streams set {size} MiB aside on a server: {remedy}") from exc


async def _write_consumer(connection: Connection, consumer: ConsumerSpec, *, action: str) -> None:
    request = {"stream_name": consumer.stream, "config": consumer_config(consumer), "action": action}
    await api_request(connection, f"CONSUMER.CREATE.{consumer.stream}.{consumer.name}", request, ConsumerInfo)


async def _create_bus_id(connection: Connection) -> str:
    # A client that loses the race reads the other's id.
    created = uuid.uuid4().hex
    try:
        await put_entry(connection, CONTROL, BUS_ID_KEY, created.encode(), expected=0)
    except WrongLastSequenceError:
        return await read_bus_id(connection)
    return created


# --- declarations as configurations


def stream_config(stream: StreamSpec, settings: TopologySettings) -> dict[str, object]:
    return {
        "name": stream.name,
        "description": stream.description,
        "subjects": list(stream.subjects),
        "retention": stream.retention,
        "discard": stream.discard,
        "storage": settings.storage,
        "num_replicas": settings.replicas,
        "max_consumers": UNLIMITED,
        "max_msgs": stream.max_msgs,
        "max_msgs_per_subject": stream.max_msgs_per_subject,
        "max_bytes": stream.max_bytes,
        "max_age": nanoseconds(stream.max_age),
        "max_msg_size": settings.message_bytes,
        # NATS refuses a window above the age at which messages are dropped.
        "duplicate_window": nanoseconds(min(settings.duplicate_window, stream.max_age or settings.duplicate_window)),
        "allow_direct": True,
        "allow_rollup_hdrs": False,
        "allow_msg_ttl": stream.key_value,
        "deny_delete": stream.key_value,
        "republish": {"src": stream.subjects[0], "dest": STORED_PREFIX + stream.subjects[0]},
    }


def consumer_config(consumer: ConsumerSpec) -> dict[str, object]:
    return {
        "name": consumer.name,
        "durable_name": consumer.name,
        "deliver_policy": "all",
        "ack_policy": "explicit",
        "ack_wait": nanoseconds(consumer.ack_wait),
        "max_deliver": UNLIMITED,
        "max_ack_pending": UNLIMITED,
        "replay_policy": "instant",
    }


def differences(name: str, declared: dict[str, object], existing: dict[str, object]) -> list[str]:
    """All differences, each with both values. The server's response omits fields with their zero value."""
    return [
        f"{name}: {key}: want {value!r}, got {existing.get(key)!r}"
        for key, value in declared.items()
        if existing.get(key, type(value)()) != value
    ]
