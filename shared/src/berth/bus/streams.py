"""Operations on streams and buckets without a consumer.

Publishes that wait for the PubAck, Direct Get (the last message of a subject, or all of them page by page), the keys of
a bucket, and requests to JetStream's API. A bucket is a stream: its keys are subjects, and a removal is a marker.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from datetime import datetime, timedelta
from typing import Final

import msgspec
from nats.aio.msg import Msg

from berth.api.errors import BerthError
from berth.bus.connection import DESCRIPTION, NO_RESPONDERS, STATUS, Connection
from berth.bus.interface import Entry, MissingError, PubAck, StoredMessage, UnansweredError
from berth.bus.jetstream import API, JetStreamError, PublishResponse, R, StreamInfo, decode_response, error_from
from berth.bus.topology import bucket_prefix, bucket_stream

MESSAGE_ID: Final = "Nats-Msg-Id"
EXPECTED_SEQUENCE: Final = "Nats-Expected-Last-Subject-Sequence"
ROLLUP: Final = "Nats-Rollup"
TTL: Final = "Nats-TTL"

PAGE: Final = 1000
"""Messages that one batched Direct Get asks for."""

_publish_response: Final = msgspec.json.Decoder(PublishResponse)


async def api_request(connection: Connection, subject: str, request: object, kind: type[R]) -> R:
    """Send a request to JetStream's API. Raises the exception of ``error_from`` for an error response."""
    data = b"" if request is None else msgspec.json.encode(request)
    msg = await connection.request(f"{API}.{subject}", data)
    return decode_response(f"requesting {subject}", msg.data, msgspec.json.Decoder(kind))


async def stream_info(connection: Connection, name: str) -> StreamInfo:
    """The stream's configuration and state on the server."""
    return await api_request(connection, f"STREAM.INFO.{name}", None, StreamInfo)


async def publish(
    connection: Connection,
    subject: str,
    data: bytes,
    *,
    message_id: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> PubAck:
    """Publish and wait for the PubAck. Raises as :meth:`berth.bus.interface.Session.publish`."""
    all_headers = dict(headers) if headers else {}
    if message_id is not None:
        all_headers[MESSAGE_ID] = message_id
    msg = await connection.request(subject, data, all_headers)
    response = decode_response(f"publishing to {subject!r}", msg.data, _publish_response)
    return PubAck(stream=response.stream, sequence=response.seq, duplicate=response.duplicate)


# --- Direct Get

_NOT_FOUND: Final = "404"
_END_OF_BATCH: Final = "204"
_PENDING: Final = "Nats-Num-Pending"
_SEQUENCE: Final = "Nats-Sequence"
_SUBJECT: Final = "Nats-Subject"
_TIME: Final = "Nats-Time-Stamp"
_ADDED: Final = frozenset(
    {"Nats-Stream", _SUBJECT, _SEQUENCE, _TIME, _PENDING, "Nats-Last-Sequence", "Nats-UpTo-Sequence"}
)
"""Headers that the server adds to a response; the others are the message's own."""


async def last_message(connection: Connection, stream: str, subject: str) -> StoredMessage | None:
    """The last message of a subject or filter, ``None`` when there is none."""
    request = msgspec.json.encode({"last_by_subj": subject})
    msg = await connection.request(f"{API}.DIRECT.GET.{stream}", request)
    headers = msg.headers or {}
    if _SEQUENCE in headers:
        return _stored(msg, headers)
    if headers.get(STATUS) == _NOT_FOUND:
        return None
    raise _error_of(f"reading {subject!r} of {stream}", headers)


async def scan(connection: Connection, stream: str, subject: str, after: int) -> AsyncIterator[StoredMessage]:
    """Every message under the filter, in order, a page at a time."""
    more = True
    while more:
        page, more = await _get_page(connection, stream, subject, after)
        for message in page:
            yield message
        after = page[-1].sequence if page else after


async def _get_page(connection: Connection, stream: str, subject: str, after: int) -> tuple[list[StoredMessage], bool]:
    """One page, and whether there are more."""
    responses: asyncio.Queue[Msg | None] = asyncio.Queue()
    inbox = connection.new_inbox()
    remove_listener = connection.on_lost(lambda: responses.put_nowait(None))
    subscription = await connection.subscribe(inbox, responses.put)
    try:
        request = {"seq": after + 1, "batch": PAGE, "next_by_subj": subject}
        await connection.publish(f"{API}.DIRECT.GET.{stream}", msgspec.json.encode(request), reply=inbox)
        return await _collect_page(connection, responses, f"scanning {subject!r} of {stream}")
    finally:
        remove_listener()
        await connection.unsubscribe(subscription)


async def _collect_page(
    connection: Connection, responses: asyncio.Queue[Msg | None], doing: str
) -> tuple[list[StoredMessage], bool]:
    page: list[StoredMessage] = []
    while True:
        headers = (msg := await _next_response(connection, responses, doing)).headers or {}
        if _SEQUENCE in headers:
            page.append(_stored(msg, headers))
        elif headers.get(STATUS) == _END_OF_BATCH:
            return page, bool(page) and int(headers.get(_PENDING, "0")) > 0
        elif headers.get(STATUS) == _NOT_FOUND:
            return page, False
        else:
            raise _error_of(doing, headers)


async def _next_response(connection: Connection, responses: asyncio.Queue[Msg | None], doing: str) -> Msg:
    seconds = connection.settings.answer_timeout.total_seconds()
    try:
        async with asyncio.timeout(seconds):
            msg = await responses.get()
    except TimeoutError as exc:
        raise UnansweredError(f"{doing}: no answer within {seconds:g} s") from exc
    if msg is None:
        raise connection.lost_error()
    return msg


def _stored(msg: Msg, headers: Mapping[str, str]) -> StoredMessage:
    return StoredMessage(
        subject=headers[_SUBJECT],
        sequence=int(headers[_SEQUENCE]),
        data=msg.data,
        headers={name: value for name, value in headers.items() if name not in _ADDED},
        time=datetime.fromisoformat(headers[_TIME]),
    )


def _error_of(doing: str, headers: Mapping[str, str]) -> BerthError:
    status = headers.get(STATUS, "0")
    if status == NO_RESPONDERS:
        return MissingError(f"{doing}: no responders: no such stream, or no JetStream")
    return error_from(doing, JetStreamError(code=int(status), description=headers.get(DESCRIPTION, "")))


# --- buckets

_OPERATION: Final = "KV-Operation"
_PURGE: Final = "PURGE"
_REMOVALS: Final = frozenset({"DEL", _PURGE})
_EXPIRED: Final = "Nats-Marker-Reason"


async def get_entry(connection: Connection, bucket: str, key: str) -> Entry | None:
    """The key's last entry; it may be the marker of a removal."""
    stored = await last_message(connection, bucket_stream(bucket), bucket_prefix(bucket) + key)
    return None if stored is None else entry_of(bucket, stored)


async def put_entry(connection: Connection, bucket: str, key: str, data: bytes, expected: int | None) -> int:
    """Write a key; returns its sequence."""
    ack = await publish(connection, bucket_prefix(bucket) + key, data, headers=expecting(expected))
    return ack.sequence


async def purge_entry(connection: Connection, bucket: str, key: str, expected: int | None) -> int:
    """Replace a key by a marker; returns the marker's sequence."""
    headers = purge_headers(connection.settings.topology.marker_ttl) | expecting(expected)
    ack = await publish(connection, bucket_prefix(bucket) + key, b"", headers=headers)
    return ack.sequence


def entry_of(bucket: str, stored: StoredMessage) -> Entry:
    """A message of the bucket's stream as an entry. A marker has no data, whoever made it."""
    removed = stored.headers.get(_OPERATION) in _REMOVALS or _EXPIRED in stored.headers
    return Entry(
        key=stored.subject[len(bucket_prefix(bucket)) :],
        sequence=stored.sequence,
        data=None if removed else stored.data,
        time=stored.time,
    )


def purge_headers(marker_ttl: timedelta) -> dict[str, str]:
    """The headers of a removal: a marker replaces all messages of the key, and expires.

    nats-py's own calls take either the time to live or the expected sequence.
    """
    return {_OPERATION: _PURGE, ROLLUP: "sub", TTL: f"{int(marker_ttl.total_seconds())}s"}


def expecting(sequence: int | None) -> dict[str, str]:
    """The header of a write that fails unless the key's last sequence is this one."""
    return {} if sequence is None else {EXPECTED_SEQUENCE: str(sequence)}
