"""JetStream's JSON API without consumers: publishes with PubAck, Direct Get, keys of buckets.

Errors have the types of ``interface``. Direct Get reads the last message of a subject, or all of them page by page.
A bucket is a stream: its keys are subjects, and a removal is a marker.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Final, TypeVar

import msgspec
from nats.aio.msg import Msg

from berth.bus.connection import Connection
from berth.bus.interface import (
    MESSAGE_ID,
    BusRefusedError,
    BusyError,
    Entry,
    MissingError,
    PubAck,
    StoredMessage,
    StoreFullError,
    TooLargeError,
    UnansweredError,
    WrongLastSequenceError,
)
from berth.bus.outgoing import NO_RESPONDERS, description_of, status_of
from berth.bus.topology import BANDWIDTH, FACTS, STORED_PREFIX, Names, bucket_prefix, bucket_stream
from berth.decoding import MALFORMED, reason_of
from berth.errors import BerthError, DecodeError, TemporaryError


class JetStreamError(msgspec.Struct, frozen=True, kw_only=True):
    """An error of the server. ``err_code`` is stable across versions, the text is not."""

    code: int
    err_code: int = 0
    description: str = ""


class ApiResponse(msgspec.Struct, frozen=True, kw_only=True):
    error: JetStreamError | None = None


class PublishResponse(ApiResponse, frozen=True, kw_only=True):
    stream: str = ""
    seq: int = 0
    duplicate: bool = False


class StreamInfoState(msgspec.Struct, frozen=True, kw_only=True):
    messages: int = 0
    bytes: int = 0
    first_seq: int = 0
    last_seq: int = 0
    first_ts: datetime | None = None


class StreamInfo(ApiResponse, frozen=True, kw_only=True):
    config: dict[str, object] = {}
    state: StreamInfoState = StreamInfoState()
    created: datetime | None = None
    ts: datetime | None = None  # The server's clock.


class ConsumerPosition(msgspec.Struct, frozen=True, kw_only=True):
    stream_seq: int = 0


class ConsumerInfo(ApiResponse, frozen=True, kw_only=True):
    name: str = ""
    config: dict[str, object] = {}
    num_pending: int = 0
    num_ack_pending: int = 0
    num_redelivered: int = 0
    ack_floor: ConsumerPosition = ConsumerPosition()


class ConsumerList(ApiResponse, frozen=True, kw_only=True):
    consumers: list[ConsumerInfo] | None = None
    total: int = 0


class ConsumerNames(ApiResponse, frozen=True, kw_only=True):
    consumers: list[str] | None = None
    total: int = 0


class LeadersMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message as a stream's leader returns it."""

    subject: str = ""
    seq: int = 0
    data: bytes = b""
    hdrs: bytes = b""
    time: datetime = datetime.fromtimestamp(0, UTC)


class LeadersMessageResponse(ApiResponse, frozen=True, kw_only=True):
    message: LeadersMessage = LeadersMessage()


A = TypeVar("A")
R = TypeVar("R", bound=ApiResponse)

_NO_MESSAGE: Final = 10037
_DELETED: Final = frozenset({_NO_MESSAGE, 10043, 10057})  # no such message
_NOT_ENABLED: Final = frozenset({10039, 10076})
_TAKEN: Final = frozenset({10099, 10100})
_BY_ERR_CODE: Final[Mapping[int, type[BerthError]]] = MappingProxyType(
    {
        10014: MissingError,  # consumer not found
        10059: MissingError,  # stream not found
        10149: MissingError,  # consumer does not exist
        10071: WrongLastSequenceError,
        10164: WrongLastSequenceError,  # the same, without the last sequence
        10054: TooLargeError,
        10002: StoreFullError,  # resource limits of the account
        10023: StoreFullError,  # insufficient resources
        10028: StoreFullError,  # insufficient memory
        10047: StoreFullError,  # insufficient storage
        10077: StoreFullError,  # maximum bytes or messages of the stream
        10167: BusyError,  # too many requests
        10052: BusRefusedError,  # stream configuration that the server cannot change, with code 500
        10074: BusRefusedError,  # replicas on a single server, with code 500
    }
)
_SERVER_ERRORS: Final = 500


def decode_response(doing: str, data: bytes, decoder: msgspec.json.Decoder[R]) -> R:
    """Decode a response.

    Raises:
        BerthError: an error response (see :func:`error_from`), or an undecodable one (TemporaryError).
    """
    try:
        response = decoder.decode(data)
    except MALFORMED as exc:
        raise TemporaryError(f"{doing}: the answer {data[:80]!r} cannot be read: {reason_of(exc)}") from exc
    if response.error is not None:
        raise error_from(doing, response.error)
    return response


def error_from(doing: str, error: JetStreamError) -> BerthError:
    """Map an error of the server to an exception of the bus; the only place that does so."""
    text = f"{doing}: {error.description or 'refused'} (code {error.code}, err_code {error.err_code})"
    if kind := _BY_ERR_CODE.get(error.err_code):
        return kind(text)
    if error.err_code in _NOT_ENABLED:
        return BusRefusedError(f"{text}: start nats-server with JetStream (-js)")
    if error.err_code in _TAKEN:  # a work queue allows one consumer for each subject
        return BusRefusedError(f"{text}: delete the consumer that takes the stream first")
    return TemporaryError(text) if error.code >= _SERVER_ERRORS else BusRefusedError(text)


def nanoseconds(duration: timedelta) -> int:
    # JetStream's unit of durations.
    return duration // timedelta(microseconds=1) * 1000


EXPECTED_SEQUENCE: Final = "Nats-Expected-Last-Subject-Sequence"
TTL: Final = "Nats-TTL"

PAGE: Final = 1000  # Messages per batched Direct Get.
# Subjects per batched Direct Get: with the longest names 200 KiB. The server refuses more than 1,024.
SUBJECTS: Final = 500

_leaders_message: Final = msgspec.json.Decoder(LeadersMessageResponse)
_stream_info: Final = msgspec.json.Decoder(StreamInfo)
_api_response: Final = msgspec.json.Decoder(ApiResponse)
_publish_response: Final = msgspec.json.Decoder(PublishResponse)


async def api_request(connection: Connection, subject: str, request: object, kind: type[R]) -> R:
    """Send a request to JetStream's API. Raises the exception of ``error_from`` for an error response."""
    data = b"" if request is None else msgspec.json.encode(request)
    message = await connection.request(f"{connection.api}.{subject}", data)
    return decode_response(f"requesting {subject}", message.data, msgspec.json.Decoder(kind))


# How often a request that changes nothing is sent if no answer comes. Requests of all accounts share one queue, and at
# 10,000 the server drops everybody's, so one lost answer must end neither a reader nor a leadership.
READ_TRIES: Final = 3


async def api_read(connection: Connection, subject: str, request: object, kind: type[R]) -> R:
    """A request that changes nothing; as :func:`api_request`, but repeated if no answer comes."""
    return await _repeated(lambda: api_request(connection, subject, request, kind))


async def _repeated(ask: Callable[[], Awaitable[A]]) -> A:
    for _ in range(READ_TRIES - 1):
        with contextlib.suppress(UnansweredError):
            return await ask()
    return await ask()


async def stream_info(connection: Connection, name: str) -> StreamInfo:
    return await api_read(connection, f"STREAM.INFO.{name}", None, StreamInfo)


def stream_info_soon(connection: Connection, name: str, on_info: Callable[[StreamInfo | BerthError], None]) -> None:
    """As :func:`stream_info`, once, without a task that waits; ``on_info`` gets the answer or the error."""
    subject = f"STREAM.INFO.{name}"

    def on_reply(answer: Msg | BerthError) -> None:
        try:
            if not isinstance(answer, Msg):
                raise answer
            info = decode_response(f"requesting {subject}", answer.data, _stream_info)
        except BerthError as error:
            on_info(error)
        else:
            on_info(info)

    connection.request_soon(f"{connection.api}.{subject}", b"", None, on_reply)


async def publish(
    connection: Connection,
    subject: str,
    data: bytes,
    *,
    message_id: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> PubAck:
    """Publish and wait for the PubAck. Raises as :meth:`berth.bus.interface.Session.publish`."""
    try:
        return _stored(
            connection, subject, await connection.request(subject, data, with_message_id(headers, message_id))
        )
    except BerthError as exc:
        _not_stored(connection, subject, exc)
        raise


def publish_soon(
    connection: Connection,
    subject: str,
    data: bytes,
    headers: Mapping[str, str] | None,
    on_answer: Callable[[PubAck | BerthError], None],
) -> None:
    """Publish; ``on_answer`` gets the PubAck or the error of :func:`publish`. No task and no future waits for it."""

    # With a task for each, a watcher that writes 55,000 entries at its start takes 2.8 s of CPU instead of 2.3
    # (tests/bench/watcher_takeover.py).
    def on_reply(answer: Msg | BerthError) -> None:
        try:
            if not isinstance(answer, Msg):
                raise answer
            ack = _stored(connection, subject, answer)
        except BerthError as error:
            _not_stored(connection, subject, error)
            on_answer(error)
        else:
            on_answer(ack)

    try:
        connection.request_soon(subject, data, headers, on_reply)
    except BerthError as error:
        on_answer(error)


def with_message_id(headers: Mapping[str, str] | None, message_id: str | None) -> Mapping[str, str] | None:
    """The headers of a publish that is stored once under this id."""
    return headers if message_id is None else {**(headers or {}), MESSAGE_ID: message_id}


def _stored(connection: Connection, subject: str, message: Msg) -> PubAck:
    # The PubAck in the answer to a publish. Raises the exception of `error_from` for an error response.
    response = decode_response(f"publishing to {subject!r}", message.data, _publish_response)
    if connection.stores.has_refused:
        connection.stores.stored(_store_of(connection, subject))
    stream = connection.names.own_stream(response.stream)
    return PubAck(stream=stream, sequence=response.seq, duplicate=response.duplicate)


def _not_stored(connection: Connection, subject: str, error: BerthError) -> None:
    if isinstance(error, UnansweredError | StoreFullError):
        connection.stores.refused(
            _store_of(connection, subject), str(error), answered=isinstance(error, StoreFullError)
        )


def _store_of(connection: Connection, subject: str) -> str:
    return connection.names.store_of(subject.removeprefix(connection.before_keys))


# --- Direct Get

_NOT_FOUND: Final = "404"
_END_OF_BATCH: Final = "204"
_PENDING: Final = "Nats-Num-Pending"
_SEQUENCE: Final = "Nats-Sequence"
_STREAM: Final = "Nats-Stream"
_SUBJECT: Final = "Nats-Subject"
_TIME: Final = "Nats-Time-Stamp"
_DIGITS: Final = 20  # Of an unsigned 64-bit integer.
# Headers that the server adds; the others are the publisher's.
_ADDED: Final = frozenset({_STREAM, _SUBJECT, _SEQUENCE, _TIME, _PENDING, "Nats-Last-Sequence", "Nats-UpTo-Sequence"})


async def last_message(connection: Connection, stream: str, subject: str) -> StoredMessage | None:
    if "*" in subject or ">" in subject:
        return await _leaders_last(connection, stream, subject)
    asked = f"{connection.api}.DIRECT.GET.{stream}.{subject}"
    message = await _repeated(lambda: connection.request(asked))
    if (stored := stored_message(message, connection.names)) is not None:
        return stored
    if status_of(message) == _NOT_FOUND:
        return None
    raise _error_of(f"reading {subject!r} of {stream}", message)


async def last_sequence(connection: Connection, stream: str, subject: str) -> int:
    found = await _leaders_last(connection, stream, subject)
    return found.sequence if found else 0


async def _leaders_last(connection: Connection, stream: str, subject: str) -> StoredMessage | None:
    request = msgspec.json.encode({"last_by_subj": subject})
    asked = f"{connection.api}.STREAM.MSG.GET.{stream}"
    message = await _repeated(lambda: connection.request(asked, request))
    response = _leaders_message.decode(message.data)
    if response.error is not None and response.error.err_code == _NO_MESSAGE:
        return None
    found = decode_response(f"reading {subject!r} of {stream}", message.data, _leaders_message).message
    headers = header_lines(found.hdrs)
    own = connection.names.own_subject(found.subject)
    return StoredMessage(subject=own, sequence=found.seq, data=found.data, headers=headers, time=found.time)


async def delete_message(connection: Connection, stream: str, sequence: int) -> None:
    """As :meth:`berth.bus.interface.Session.delete`."""
    request = msgspec.json.encode({"seq": sequence, "no_erase": True})
    asked = f"{connection.api}.STREAM.MSG.DELETE.{stream}"
    response = _api_response.decode((await connection.request(asked, request)).data)
    if response.error is not None and response.error.err_code not in _DELETED:
        raise error_from(f"deleting message {sequence} of {stream}", response.error)


async def scan(connection: Connection, stream: str, subject: str, after: int) -> AsyncIterator[StoredMessage]:
    more = True
    while more:
        page, more = await get_page(connection, stream, subject, after)
        for message in page:
            yield message
        after = page[-1].sequence if page else after


async def last_of_each(connection: Connection, stream: str, subjects: Sequence[str]) -> AsyncIterator[StoredMessage]:
    """The last message of each subject, a page at a time. Subjects without a message are omitted."""
    # 20,000 subjects among 200,000 messages take 2 s; one Direct Get for each takes 3 s, reading the last message of
    # every subject 14 s (one core, nats-server 2.15).
    for start in range(0, len(subjects), SUBJECTS):
        request = {"multi_last": subjects[start : start + SUBJECTS], "batch": SUBJECTS}
        page, _ = await _request_page(connection, stream, request, f"reading subjects of {stream}")
        for message in page:
            yield message


async def get_page(
    connection: Connection, stream: str, subject: str, after: int, since: timedelta | None = None
) -> tuple[list[StoredMessage], bool]:
    """One page of messages under the filter after a sequence, or from a time ago, and whether there are more."""
    start = {"seq": after + 1} if since is None else {"start_time": (datetime.now(UTC) - since).isoformat()}
    request = {**start, "batch": PAGE, "next_by_subj": subject}
    return await _request_page(connection, stream, request, f"scanning {subject!r} of {stream}")


async def _request_page(
    connection: Connection, stream: str, request: Mapping[str, object], doing: str
) -> tuple[list[StoredMessage], bool]:
    return await _repeated(lambda: _request_page_once(connection, stream, request, doing))


async def _request_page_once(
    connection: Connection, stream: str, request: Mapping[str, object], doing: str
) -> tuple[list[StoredMessage], bool]:
    page = DirectGetBatch(connection, doing)
    inbox = connection.new_inbox()
    subscription = connection.subscribe_soon(inbox, page.on_message)
    remove_listener, remove_sweeper = connection.on_lost(page.on_lost), connection.on_sweep(page.on_sweep)
    try:
        await connection.publish(f"{connection.api}.DIRECT.GET.{stream}", msgspec.json.encode(request), reply=inbox)
        return page.messages, await page.has_more
    finally:
        remove_listener()
        remove_sweeper()
        connection.unsubscribe(subscription)


class DirectGetBatch:
    """Collects the answers to one batched Direct Get. The server ends them with a status."""

    def __init__(self, connection: Connection, doing: str) -> None:
        self.messages: Final[list[StoredMessage]] = []
        self._loop = asyncio.get_running_loop()
        self.has_more: Final[asyncio.Future[bool]] = self._loop.create_future()
        self._connection = connection
        self._doing = doing
        self._last_received = self._loop.time()

    def on_message(self, message: Msg) -> None:
        self._last_received = self._loop.time()
        if self.has_more.done():
            return
        try:
            stored = stored_message(message, self._connection.names)
        except DecodeError as exc:
            self._fail(TemporaryError(f"{self._doing}: {exc}"))
            return
        if stored is not None:
            self.messages.append(stored)
        elif status_of(message) == _END_OF_BATCH:
            has_more = (message.headers or {}).get(_PENDING) not in (None, "0")
            self.has_more.set_result(bool(self.messages) and has_more)
        elif status_of(message) == _NOT_FOUND:
            self.has_more.set_result(False)
        else:
            self._fail(_error_of(self._doing, message))

    def on_sweep(self, now: float) -> None:
        """Fail when no further answer comes in time."""
        seconds = self._connection.settings.answer_timeout.total_seconds()
        if now > self._last_received + seconds:
            self._fail(UnansweredError(f"{self._doing}: no answer within {seconds:g} s"))

    def on_lost(self) -> None:
        self._fail(self._connection.lost_error())

    def _fail(self, error: BerthError) -> None:
        if not self.has_more.done():
            self.has_more.set_exception(error)
            self.has_more.exception()  # retrieved: its reader may be gone


def is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= _DIGITS


def header_lines(raw: bytes) -> dict[str, str]:
    """The valid lines of a header block, as nats-py reads them; of equal names the last."""
    headers: dict[str, str] = {}
    for line in raw.split(b"\r\n"):
        name, colon, value = line.partition(b":")
        key = name.strip().decode(errors="replace")
        if colon and key.isascii() and not any(map(str.isspace, key)):
            headers[key] = value.strip().decode(errors="replace")
    return headers


def stored_copy(message: Msg, names: Names) -> StoredMessage | None:
    """The stored message in a copy; ``None`` if the message is not from a stream."""
    try:
        return stored_message(message, names)
    except DecodeError:
        return None


def is_copy(message: Msg, stream: str) -> bool:
    """Whether the stream itself sent this copy.

    JetStream sends answers to any subject that the asker names, so that a client can have a message of another stream
    or key delivered where the readers of this one listen.
    """
    headers = message.headers
    if headers is None or headers.get(_STREAM) != stream:
        return False
    return message.subject == f"{STORED_PREFIX}{headers.get(_SUBJECT)}"


def stored_sequence(message: Msg) -> int:
    sequence = (message.headers or {}).get(_SEQUENCE, "")
    return int(sequence) if is_number(sequence) else 0


def stored_message(message: Msg, names: Names) -> StoredMessage | None:
    """The stored message in an answer or a copy; ``None`` without the server's headers.

    Its subject is without the prefix.

    Raises:
        DecodeError: the headers are not the server's.
    """
    # The server writes its lines below the publisher's, and of equal names nats-py takes the last.
    headers = message.headers
    if headers is None or (sequence := headers.get(_SEQUENCE)) is None:
        return None
    subject, time = headers.get(_SUBJECT), headers.get(_TIME)
    if subject is None or time is None or not is_number(sequence):
        raise DecodeError(f"decoding a stored message: its headers are {str(headers)[-300:]}")
    try:
        stored_at = datetime.fromisoformat(time)
    except ValueError as exc:
        raise DecodeError(f"decoding the time of a stored message: {reason_of(exc)}") from exc
    return StoredMessage(
        subject=names.own_subject(subject),
        sequence=int(sequence),
        data=message.data,
        headers={name: text for name, text in headers.items() if name not in _ADDED},
        time=stored_at,
    )


def _error_of(doing: str, message: Msg) -> BerthError:
    if status_of(message) == NO_RESPONDERS:
        return MissingError(f"{doing}: no responders: no such stream, or no JetStream")
    return error_from(doing, JetStreamError(code=int(status_of(message) or "0"), description=description_of(message)))


# --- buckets

_OPERATION: Final = "KV-Operation"
_PURGE: Final = "PURGE"
_REMOVALS: Final = frozenset({"DEL", _PURGE})
_EXPIRED: Final = "Nats-Marker-Reason"
# Buckets in which a value with a time to live reads as a removal: its end leaves no marker, so that readers would keep
# it forever, and any number of such values. The server's own markers need rollups (docs/adr/0014).
_NOTHING_EXPIRES: Final = frozenset({BANDWIDTH, FACTS})


async def get_entry(connection: Connection, bucket: str, key: str) -> Entry | None:
    there = connection.names.word(bucket)
    stored = await last_message(connection, bucket_stream(there), bucket_prefix(there) + key)
    return None if stored is None else entry_of(bucket, stored)


async def put_entry(connection: Connection, bucket: str, key: str, data: bytes, expected: int | None) -> int:
    ack = await publish(connection, _written_key(connection, bucket, key), data, headers=expecting(expected))
    return ack.sequence


def put_entry_soon(  # noqa: PLR0913 - the parts of a write, and its callback
    connection: Connection,
    bucket: str,
    key: str,
    data: bytes,
    *,
    expected: int | None,
    on_answer: Callable[[int | BerthError], None],
) -> None:
    """Write a key; ``on_answer`` gets its sequence or the error of :func:`put_entry`."""

    def on_ack(answer: PubAck | BerthError) -> None:
        on_answer(answer.sequence if isinstance(answer, PubAck) else answer)

    publish_soon(connection, _written_key(connection, bucket, key), data, expecting(expected), on_ack)


async def purge_entry(connection: Connection, bucket: str, key: str, expected: int | None) -> int:
    headers = purge_headers(connection.settings.topology.marker_ttl) | expecting(expected)
    ack = await publish(connection, _written_key(connection, bucket, key), b"", headers=headers)
    return ack.sequence


def _written_key(connection: Connection, bucket: str, key: str) -> str:
    return f"{connection.before_keys}{bucket_prefix(connection.names.word(bucket))}{key}"


def entry_of(bucket: str, stored: StoredMessage) -> Entry:
    """A marker has no data."""
    headers = stored.headers
    removed = headers.get(_OPERATION) in _REMOVALS or _EXPIRED in headers
    if bucket in _NOTHING_EXPIRES:
        removed = removed or TTL in headers
    return Entry(
        key=stored.subject[len(bucket_prefix(bucket)) :],
        sequence=stored.sequence,
        data=None if removed else stored.data,
        time=stored.time,
    )


def purge_headers(marker_ttl: timedelta) -> dict[str, str]:
    """Headers of a removal: a marker replaces the key's one message, and expires."""
    # No rollup: in a stream with rollups, the right to write one key would purge all of them. nats-py's own calls
    # accept either the time to live or the expected sequence.
    return {_OPERATION: _PURGE, TTL: f"{int(marker_ttl.total_seconds())}s"}


def expecting(sequence: int | None) -> dict[str, str]:
    """The header of a write that fails unless this is the key's last sequence."""
    return {} if sequence is None else {EXPECTED_SEQUENCE: str(sequence)}
