"""A continuous pull: ask ahead for as many as may be held, count what is still to come, ask again below half.

``PullSubscription.fetch`` of nats-py stalls after a fetch that timed out and costs five times as much; this is the
plain protocol: a request ``{batch, expires, idle_heartbeat}`` to ``CONSUMER.MSG.NEXT`` with an inbox that messages come
to. A request that the server has lost (restart of a cluster member, change of leader) is found by missing heartbeats
and made again under a new number; what an older one still brings is taken as well.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import msgspec
from nats.aio.msg import Msg

from berth.api.errors import BerthError
from berth.bus.connection import DESCRIPTION, NO_RESPONDERS, STATUS, Connection
from berth.bus.credit import Credit
from berth.bus.delivered import NatsDelivery
from berth.bus.port import MissingError
from berth.bus.wire import API, nanoseconds

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
    """Pull continuously, as :meth:`berth.bus.port.Session.consume` says."""
    async with Pull(connection, stream, consumer, hold).open() as pull:
        consumption = NatsConsumption(pull, connection)
        try:
            yield consumption
        finally:
            consumption.give_back_unread()
