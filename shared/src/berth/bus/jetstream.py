"""JetStream's JSON: declarations as requests, answers as values, and every refusal as one of the port's errors."""

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
    """What the server says when it refuses. ``err_code`` is stable across versions, the text is not."""

    code: int
    err_code: int = 0
    description: str = ""


class ApiAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What all answers share."""

    error: JetStreamError | None = None


class PublishAnswer(ApiAnswer, frozen=True, kw_only=True):
    """A PubAck."""

    stream: str = ""
    seq: int = 0
    duplicate: bool = False


class StreamNumbers(msgspec.Struct, frozen=True, kw_only=True):
    """Where a stream stands."""

    messages: int = 0
    bytes: int = 0
    last_seq: int = 0
    first_ts: datetime | None = None


class StreamAnswer(ApiAnswer, frozen=True, kw_only=True):
    """A stream as the server has it."""

    config: dict[str, object] = {}
    state: StreamNumbers = StreamNumbers()
    ts: datetime | None = None
    """The server's clock."""


class ConsumerAnswer(ApiAnswer, frozen=True, kw_only=True):
    """A consumer as the server has it."""

    name: str = ""
    config: dict[str, object] = {}
    num_pending: int = 0
    num_ack_pending: int = 0
    num_redelivered: int = 0


class ConsumerAnswers(ApiAnswer, frozen=True, kw_only=True):
    """One page of a stream's consumers as the server has them."""

    consumers: list[ConsumerAnswer] | None = None
    total: int = 0


class ConsumerNames(ApiAnswer, frozen=True, kw_only=True):
    """One page of a stream's consumers."""

    consumers: list[str] | None = None
    total: int = 0


A = TypeVar("A", bound=ApiAnswer)
_NOT_ENABLED: Final = frozenset({10039, 10076})
_TAKEN: Final = frozenset({10099, 10100})
_KINDS: Final[Mapping[int, type[BerthError]]] = MappingProxyType(
    {
        10014: MissingError,  # consumer not found
        10059: MissingError,  # stream not found
        10149: MissingError,  # consumer does not exist
        10071: WrongLastSequenceError,
        10164: WrongLastSequenceError,  # the same without the number that it stands at
        10054: TooLargeError,
        10052: BusRefusedError,  # stream configuration that the server cannot change, with code 500
        10074: BusRefusedError,  # replicas on a single server, with code 500
    }
)
_SERVER_ERRORS: Final = 500


def error_from(doing: str, error: JetStreamError) -> BerthError:
    """The one place where what the server refuses becomes what a caller can act upon."""
    text = f"{doing}: {error.description or 'refused'} (code {error.code}, err_code {error.err_code})"
    if kind := _KINDS.get(error.err_code):
        return kind(text)
    if error.err_code in _NOT_ENABLED:
        return BusRefusedError(f"{text}: start nats-server with JetStream (-js)")
    if error.err_code in _TAKEN:  # a work queue hands every message to one consumer
        return BusRefusedError(f"{text}: delete the consumer that takes the stream first")
    return TemporaryError(text) if error.code >= _SERVER_ERRORS else BusRefusedError(text)


def read_answer(doing: str, data: bytes, using: msgspec.json.Decoder[A]) -> A:
    """An answer of the server's.

    Raises:
        BerthError: it refuses (see :func:`error_from`), or says what nobody can read (TemporaryError).
    """
    try:
        answer = using.decode(data)
    except MALFORMED as exc:
        raise TemporaryError(f"{doing}: the answer {data[:80]!r} cannot be read: {exc}") from exc
    if answer.error is not None:
        raise error_from(doing, answer.error)
    return answer


def stream_config(stream: StreamSpec, settings: TopologySettings) -> dict[str, object]:
    """The declaration as the server's API takes and shows it."""
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
    """The declaration as the server's API takes and shows it."""
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
    """What differs, each with both values. What the server leaves out of its answer is at its zero value."""
    return [
        f"{name}: {key}: want {value!r}, got {existing.get(key)!r}"
        for key, value in declared.items()
        if existing.get(key, type(value)()) != value
    ]


def nanoseconds(duration: timedelta) -> int:
    """A duration as the server writes it."""
    return duration // timedelta(microseconds=1) * 1000
