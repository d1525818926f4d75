"""A message as a consumer delivers it: what its reply subject says of it, and how it is settled."""

# ruff: noqa: D102 - the port documents what a delivery does
from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Final

import msgspec
from nats.aio.msg import Msg

from berth.bus.connection import Connection
from berth.bus.wire import nanoseconds

NO_HEADERS: Final[Mapping[str, str]] = MappingProxyType({})

_ACK: Final = b"+ACK"
_NAK: Final = b"-NAK"
_IN_PROGRESS: Final = b"+WPI"
_PLAIN_TOKENS: Final = 9
_NANOSECONDS: Final = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Position:
    """What a reply subject ``$JS.ACK.<stream>.<consumer>.<delivered>.<sseq>.<cseq>.<time>.<pending>`` says.

    A server with domains writes two more tokens before the stream, and newer ones a random one at the end.
    """

    delivered: int
    stream_sequence: int
    consumer_sequence: int
    nanoseconds: int
    pending: int

    @property
    def time(self) -> datetime:
        """When the stream stored the message."""
        seconds, rest = divmod(self.nanoseconds, _NANOSECONDS)
        return datetime.fromtimestamp(seconds, UTC) + timedelta(microseconds=rest // 1000)


def position_of(reply: str) -> Position:
    """Read a reply subject."""
    tokens = reply.split(".")
    first = 4 if len(tokens) == _PLAIN_TOKENS else 6
    return Position(*map(int, tokens[first : first + 5]))


class NatsDelivery:
    """A message of a work queue, lent until it is settled; what is said of it after that is dropped."""

    __slots__ = ("_connection", "_msg", "_on_settled", "_position")

    def __init__(self, msg: Msg, connection: Connection, on_settled: Callable[[], None]) -> None:
        self._msg = msg
        self._connection = connection
        self._position = position_of(msg.reply)
        self._on_settled: Callable[[], None] | None = on_settled

    @property
    def subject(self) -> str:
        return self._msg.subject

    @property
    def data(self) -> bytes:
        return self._msg.data

    @property
    def headers(self) -> Mapping[str, str]:
        return self._msg.headers or NO_HEADERS

    @property
    def sequence(self) -> int:
        return self._position.stream_sequence

    @property
    def delivered(self) -> int:
        return self._position.delivered

    @property
    def time(self) -> datetime:
        return self._position.time

    def ack(self) -> None:
        self._settle(_ACK)

    def nak(self, delay: timedelta | None = None) -> None:
        wait = b" " + msgspec.json.encode({"delay": nanoseconds(delay)}) if delay else b""
        self._settle(_NAK + wait)

    def in_progress(self) -> None:
        if self._on_settled is not None:
            self._connection.post(self._msg.reply, _IN_PROGRESS)

    def _settle(self, word: bytes) -> None:
        if self._on_settled is None:
            return
        self._connection.post(self._msg.reply, word)
        on_settled, self._on_settled = self._on_settled, None
        on_settled()
