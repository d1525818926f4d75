"""JetStream's JSON API: configurations as requests, responses as types, and errors as those of ``interface``."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Final, TypeVar

import msgspec

from berth.api.errors import BerthError, TemporaryError
from berth.api.messages import MALFORMED
from berth.bus.interface import BusRefusedError, MissingError, TooLargeError, WrongLastSequenceError
from berth.bus.settings import TopologySettings
from berth.bus.topology import UNLIMITED, ConsumerSpec, StreamSpec

API: Final = "$JS.API"


class JetStreamError(msgspec.Struct, frozen=True, kw_only=True):
    """An error of the server. ``err_code`` is stable across versions, the text is not."""

    code: int
    err_code: int = 0
    description: str = ""


class ApiResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of all responses."""

    error: JetStreamError | None = None


class PublishResponse(ApiResponse, frozen=True, kw_only=True):
    """A PubAck."""

    stream: str = ""
    seq: int = 0
    duplicate: bool = False


class StreamInfoState(msgspec.Struct, frozen=True, kw_only=True):
    """The counters of a stream."""

    messages: int = 0
    bytes: int = 0
    last_seq: int = 0
    first_ts: datetime | None = None


class StreamInfo(ApiResponse, frozen=True, kw_only=True):
    """A stream."""

    config: dict[str, object] = {}
    state: StreamInfoState = StreamInfoState()
    ts: datetime | None = None
    """The server's clock."""


class ConsumerInfo(ApiResponse, frozen=True, kw_only=True):
    """A consumer."""

    name: str = ""
    config: dict[str, object] = {}
    num_pending: int = 0
    num_ack_pending: int = 0
    num_redelivered: int = 0


class ConsumerList(ApiResponse, frozen=True, kw_only=True):
    """One page of a stream's consumers."""

    consumers: list[ConsumerInfo] | None = None
    total: int = 0


class ConsumerNames(ApiResponse, frozen=True, kw_only=True):
    """One page of the names of a stream's consumers."""

    consumers: list[str] | None = None
    total: int = 0


R = TypeVar("R", bound=ApiResponse)

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
        10052: BusRefusedError,  # stream configuration that the server cannot change, with code 500
        10074: BusRefusedError,  # replicas on a single server, with code 500
    }
)
_SERVER_ERRORS: Final = 500


def decode_response(doing: str, data: bytes, decoder: msgspec.json.Decoder[R]) -> R:
    """Decode a response.

    Raises:
        BerthError: the response is an error (see :func:`error_from`), or cannot be decoded (TemporaryError).
    """
    try:
        response = decoder.decode(data)
    except MALFORMED as exc:
        raise TemporaryError(f"{doing}: the answer {data[:80]!r} cannot be read: {exc}") from exc
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


def stream_config(stream: StreamSpec, settings: TopologySettings) -> dict[str, object]:
    """The declared stream as JetStream's stream configuration."""
    return {
        "name": stream.name,
        "description": stream.description,
        "subjects": list(stream.subjects),
        "retention": stream.retention,
        "discard": stream.discard,
        "storage": settings.storage,
        "num_replicas": settings.replicas,
        "max_consumers": UNLIMITED,
        "max_msgs": UNLIMITED,
        "max_msgs_per_subject": stream.max_msgs_per_subject,
        "max_bytes": stream.max_bytes,
        "max_age": nanoseconds(stream.max_age),
        "max_msg_size": settings.message_bytes,
        "duplicate_window": nanoseconds(settings.duplicate_window),
        "allow_direct": True,
        "allow_rollup_hdrs": stream.key_value,
        "allow_msg_ttl": stream.key_value,
        "deny_delete": stream.key_value,
    }


def consumer_config(consumer: ConsumerSpec) -> dict[str, object]:
    """The declared consumer as JetStream's consumer configuration."""
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


def nanoseconds(duration: timedelta) -> int:
    """A duration in JetStream's unit."""
    return duration // timedelta(microseconds=1) * 1000
