"""The arithmetic of a continuous pull: what may be asked for, so that no more is held than was allowed.

A message as a consumer delivers it: what its reply subject says of it, and how it is settled.

A continuous pull: ask ahead for as many as may be held, count what is still to come, ask again below half.

``PullSubscription.fetch`` of nats-py stalls after a fetch that timed out and costs five times as much; this is the
plain protocol: a request ``{batch, expires, idle_heartbeat}`` to ``CONSUMER.MSG.NEXT`` with an inbox that messages come
to. A request that the server has lost (restart of a cluster member, change of leader) is found by missing heartbeats
and made again under a new number; what an older one still brings is taken as well.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Final

import msgspec
from nats.aio.msg import Msg

from berth.api.errors import BerthError
from berth.bus.connection import DESCRIPTION, NO_RESPONDERS, STATUS, Connection
from berth.bus.interface import MissingError
from berth.bus.jetstream import API, nanoseconds


@dataclass(slots=True, kw_only=True)
class Credit:
    """How many messages may still be asked for: those held and those asked for never exceed ``hold``."""

    hold: int
    outstanding: int = 0
    """Asked for and not yet arrived."""
    held: int = 0
    """Arrived and not yet settled."""

    def take(self) -> int:
        """How many to ask for now: nothing while more than half of the hold is still to come."""
        if self.outstanding * 2 > self.hold:
            return 0
        wanted = max(0, self.hold - self.held - self.outstanding)
        self.outstanding += wanted
        return wanted

    def arrive(self) -> None:
        """One came. What an older request brings was not counted any more: then nothing is outstanding for it."""
        self.outstanding = max(0, self.outstanding - 1)
        self.held += 1

    def give_back(self, count: int) -> None:
        """The server ended a request with so many not sent."""
        self.outstanding = max(0, self.outstanding - count)


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


HEARTBEATS_MISSED: Final = 3

_HEARTBEAT: Final = "100"

_GONE: Final = ("consumer deleted", "consumer is push based")

_CREDIT_BACK: Final = "Nats-Pending-Messages"


class Pull:
    """Continuous pulls of one consumer over one wildcard inbox. Who owns it takes messages from ``buffer``."""

    def __init__(self, connection: Connection, stream: str, consumer: str, hold: int) -> None:
        self.buffer: Final[deque[Msg]] = deque()
        self.credit: Final = Credit(hold=hold)
        self.failure: BerthError | None = None
        self.woken: Final = asyncio.Event()
        self.idle_at: tuple[int, int] | None = None
        """Consumer and stream sequence named by the last heartbeat, while nothing came after it."""
        self._connection = connection
        self._name = f"{stream} {consumer}"
        self._next = f"{API}.CONSUMER.MSG.NEXT.{stream}.{consumer}"
        self._inbox = connection.new_inbox()
        self._number = 0
        self._loop = asyncio.get_running_loop()
        self._heard = self._loop.time()
        self._asking = False
        self._closed = False

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Pull]:
        """Subscribe and ask for the first time; hear no more at leaving."""
        subscription = await self._connection.subscribe(f"{self._inbox}.*", self._hear)
        off = self._connection.on_lost(self._on_lost)
        try:
            self._ask()
            yield self
        finally:
            off()
            self._closed = True
            await self._connection.unsubscribe(subscription)

    @property
    def silence_allowed(self) -> float:
        """Seconds without any sign of life after which requests count as forgotten."""
        return self._connection.settings.pull_heartbeat.total_seconds() * HEARTBEATS_MISSED

    def ask_soon(self) -> None:
        """Ask for what there is room for, once for all that is settled in this turn of the loop."""
        if not self._asking:
            self._asking = True
            self._loop.call_soon(self._ask)

    async def wait(self) -> bool:
        """Wait until something comes, fails or is settled; false when the server is silent for too long."""
        self.woken.clear()
        if not self.credit.outstanding:
            await self.woken.wait()
            return True
        try:
            async with asyncio.timeout(max(0.0, self._heard + self.silence_allowed - self._loop.time())):
                await self.woken.wait()
        except TimeoutError:
            return False
        return True

    def ask_anew(self) -> None:
        """Take all requests for lost, and ask under a new number."""
        self._number += 1
        self._heard = self._loop.time()
        self.credit.outstanding = 0
        self._ask()

    def _ask(self) -> None:
        self._asking = False
        if self._closed or self.failure or not (batch := self.credit.take()):
            return
        if self.credit.outstanding == batch:
            self._heard = self._loop.time()  # nothing was asked before: the silence begins now
        settings = self._connection.settings
        request = {
            "batch": batch,
            "expires": nanoseconds(settings.pull_expires),
            "idle_heartbeat": nanoseconds(settings.pull_heartbeat),
        }
        self._connection.post(self._next, msgspec.json.encode(request), f"{self._inbox}.{self._number}")
        self.woken.set()

    async def _hear(self, msg: Msg) -> None:
        self._heard = self._loop.time()
        if msg.reply:
            self.credit.arrive()
            self.idle_at = None
            self.buffer.append(msg)
            self.woken.set()
        elif msg.headers and msg.subject == f"{self._inbox}.{self._number}":
            self._hear_status(msg.headers)

    def _hear_status(self, headers: dict[str, str]) -> None:
        status, text = headers.get(STATUS, ""), headers.get(DESCRIPTION, "")
        if status == _HEARTBEAT:
            self.idle_at = (int(headers.get("Nats-Last-Consumer", 0)), int(headers.get("Nats-Last-Stream", 0)))
            self.woken.set()
        elif status == NO_RESPONDERS or text.lower().startswith(_GONE):
            self._fail(MissingError(f"consuming {self._name}: the consumer is not there ({text or 'no responders'})"))
        else:
            self.credit.give_back(int(headers.get(_CREDIT_BACK, self.credit.hold)))
            self.ask_soon()

    def _on_lost(self) -> None:
        self._fail(self._connection.loss())

    def _fail(self, failure: BerthError) -> None:
        self.failure = self.failure or failure
        self.woken.set()


class NatsConsumption:
    """The deliveries of a pull, each held until it is settled."""

    def __init__(self, pull: Pull, connection: Connection) -> None:
        self._pull = pull
        self._connection = connection
        self._lent = 0

    def __aiter__(self) -> AsyncIterator[NatsDelivery]:
        return self

    async def __anext__(self) -> NatsDelivery:
        pull = self._pull
        while not pull.failure and not (pull.buffer and self._lent < pull.credit.hold):
            if not await pull.wait():
                pull.ask_anew()
        if pull.failure:
            raise pull.failure
        self._lent += 1
        return NatsDelivery(pull.buffer.popleft(), self._connection, self._on_settled)

    def _on_settled(self) -> None:
        self._lent -= 1
        self._pull.credit.held -= 1
        self._pull.woken.set()
        self._pull.ask_soon()

    def give_back_unread(self) -> None:
        """What arrived and nobody took goes to somebody else at once."""
        while self._pull.buffer:
            NatsDelivery(self._pull.buffer.popleft(), self._connection, _nothing).nak()


def _nothing() -> None:
    """Nobody counts any more."""


@asynccontextmanager
async def consume(connection: Connection, stream: str, consumer: str, hold: int) -> AsyncIterator[NatsConsumption]:
    """Pull continuously, as :meth:`berth.bus.interface.Session.consume` says."""
    async with Pull(connection, stream, consumer, hold).open() as pull:
        consumption = NatsConsumption(pull, connection)
        try:
            yield consumption
        finally:
            consumption.give_back_unread()
