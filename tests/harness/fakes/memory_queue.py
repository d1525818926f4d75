"""The time of a bus in memory: handed in, so that a simulation or a test says when it passes.

The consumers of a work queue in memory: who gets which message, and when it comes again.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final, Protocol

from berth.api.errors import BerthError
from berth.bus.consumer import Credit
from berth.bus.interface import BusRefusedError, ConsumerState, MissingError, StoredMessage
from berth.bus.topology import ConsumerSpec


class BusClock(Protocol):
    """What a bus in memory needs of time."""

    def now(self) -> datetime:
        """The present moment, with a time zone."""
        ...

    def call_at(self, when: datetime, callback: Callable[[], None]) -> None:
        """Call back at that moment or soon after. Moments that have passed are called back too, but not from within."""
        ...


class LoopClock:
    """The running event loop's time, shown as UTC. Moves with a loop whose time is made up."""

    def __init__(self) -> None:
        self._offset: timedelta | None = None

    def now(self) -> datetime:
        """The loop's time, put where UTC was when it was first asked for: it never goes backwards."""
        passed = timedelta(seconds=asyncio.get_running_loop().time())
        if self._offset is None:
            self._offset = datetime.now(UTC) - _EPOCH - passed
        return _EPOCH + self._offset + passed

    def call_at(self, when: datetime, callback: Callable[[], None]) -> None:
        """Call back from the loop."""
        asyncio.get_running_loop().call_later(max(0.0, (when - self.now()).total_seconds()), callback)


class ManualClock:
    """Stands still until it is told to go on."""

    def __init__(self, start: datetime = datetime(2026, 1, 1, tzinfo=UTC)) -> None:
        self._now = start
        self._numbers = itertools.count()
        self._due: list[tuple[datetime, int, Callable[[], None]]] = []

    def now(self) -> datetime:
        """Where it stands."""
        return self._now

    def call_at(self, when: datetime, callback: Callable[[], None]) -> None:
        """Call back when :meth:`advance` gets there, in the order of the moments."""
        heapq.heappush(self._due, (when, next(self._numbers), callback))

    def advance(self, duration: timedelta) -> None:
        """Go on, stopping at every moment that somebody waits for."""
        end = self._now + duration
        while self._due and self._due[0][0] <= end:
            when, _, callback = heapq.heappop(self._due)
            self._now = max(self._now, when)
            callback()
        self._now = end


_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Messages(Protocol):
    """What a consumer reads of its stream."""

    last_sequence: int

    def get(self, sequence: int) -> StoredMessage | None:
        """A message that is still there."""
        ...

    def remove(self, sequence: int) -> None:
        """Forget a message."""
        ...


class WorkQueue:
    """The consumers of one work-queue stream. They would share its messages, so there is one at most."""

    def __init__(self, stream: str, messages: Messages, clock: BusClock) -> None:
        self.consumers: Final[dict[str, MemoryConsumer]] = {}
        self._stream = stream
        self._messages = messages
        self._clock = clock

    def create(self, declared: ConsumerSpec) -> None:
        """Create a consumer; the same one again is as good.

        Raises:
            BusRefusedError: another one takes the stream.
        """
        if declared.name in self.consumers:
            return
        if self.consumers:
            there = ", ".join(self.consumers)
            raise BusRefusedError(
                f"creating consumer {declared.name!r} of {self._stream}: {there} takes its messages: delete it first"
            )
        self.consumers[declared.name] = MemoryConsumer(declared, self._messages, self._clock)

    def delete(self, name: str) -> None:
        """Delete a consumer; who pulls from it is told."""
        if (consumer := self.consumers.pop(name, None)) is not None:
            consumer.end()

    def dispatch(self) -> None:
        """Something was stored."""
        for consumer in self.consumers.values():
            consumer.dispatch()


@dataclass(slots=True)
class _Lent:
    """A message that was delivered and not settled."""

    due: datetime


@dataclass(slots=True)
class _Request:
    consumption: MemoryConsumption
    left: int


@dataclass(slots=True)
class MemoryConsumer:
    """Explicit acks, redelivered without end: first what comes again, then what is new, each in order."""

    declared: ConsumerSpec
    messages: Messages
    clock: BusClock
    _next: int = 1
    _lent: dict[int, _Lent] = field(default_factory=dict)
    _again: deque[int] = field(default_factory=deque)
    _counts: dict[int, int] = field(default_factory=dict)
    _requests: deque[_Request] = field(default_factory=deque)
    _pulling: list[MemoryConsumption] = field(default_factory=list)
    _ended: bool = False

    def join(self, consumption: MemoryConsumption) -> None:
        """Somebody pulls from now on."""
        self._pulling.append(consumption)

    def leave(self, consumption: MemoryConsumption) -> None:
        """Somebody pulls no more; what it asked for goes to others."""
        self._pulling.remove(consumption)
        self._requests = deque(one for one in self._requests if one.consumption is not consumption)

    def ask(self, consumption: MemoryConsumption, batch: int) -> None:
        """Deliver so many more."""
        self._requests.append(_Request(consumption, batch))
        self.dispatch()

    def dispatch(self) -> None:
        """Deliver what there is to who asked first."""
        while self._requests and not self._ended and (stored := self._take()) is not None:
            request = self._requests[0]
            request.left -= 1
            if not request.left:
                self._requests.popleft()
            request.consumption.arrive(self._lend(stored))

    def settle(self, sequence: int) -> None:
        """Acknowledged: the message has done its work."""
        if not self._ended and self._lent.pop(sequence, None) is not None:
            self._counts.pop(sequence, None)
            self.messages.remove(sequence)

    def give_back(self, sequence: int, delay: timedelta) -> None:
        """Not acknowledged: it comes again after the delay."""
        self._prolong(sequence, delay)

    def prolong(self, sequence: int) -> None:
        """Still at it."""
        self._prolong(sequence, self.declared.ack_wait)

    def state(self) -> ConsumerState:
        """Where it stands."""
        coming = range(self._next, self.messages.last_sequence + 1)
        return ConsumerState(
            name=self.declared.name,
            undelivered=sum(self.messages.get(sequence) is not None for sequence in coming),
            unacknowledged=sum(self.messages.get(sequence) is not None for sequence in (*self._lent, *self._again)),
            redelivered=sum(self._counts.get(sequence, 0) > 1 for sequence in self._lent),
        )

    def end(self) -> None:
        """The consumer was deleted."""
        self._ended = True
        for consumption in list(self._pulling):
            consumption.fail(MissingError(f"consuming {self.declared.stream} {self.declared.name}: it was deleted"))

    def _take(self) -> StoredMessage | None:
        while self._again:
            sequence = self._again.popleft()
            if (stored := self.messages.get(sequence)) is not None:
                return stored
            self._counts.pop(sequence, None)
        while self._next <= self.messages.last_sequence:
            self._next += 1
            if (stored := self.messages.get(self._next - 1)) is not None:
                return stored
        return None

    def _lend(self, stored: StoredMessage) -> MemoryDelivery:
        count = self._counts[stored.sequence] = self._counts.get(stored.sequence, 0) + 1
        self._lent[stored.sequence] = _Lent(self.clock.now())
        self._prolong(stored.sequence, self.declared.ack_wait)
        return MemoryDelivery(stored, count, self)

    def _prolong(self, sequence: int, duration: timedelta) -> None:
        lent = self._lent.get(sequence)
        if lent is None:
            return
        lent.due = self.clock.now() + duration
        if duration:
            self.clock.call_at(lent.due, lambda: self._take_back(sequence, lent))
        else:
            self._take_back(sequence, lent)

    def _take_back(self, sequence: int, lent: _Lent) -> None:
        if self._lent.get(sequence) is lent and lent.due <= self.clock.now():
            del self._lent[sequence]
            self._again.append(sequence)
            self.dispatch()


class MemoryDelivery:
    """A message of a work queue, lent until it is settled."""

    __slots__ = ("_consumer", "_consumption", "_stored", "delivered")

    def __init__(self, stored: StoredMessage, delivered: int, consumer: MemoryConsumer) -> None:
        self.delivered: Final = delivered
        self._stored = stored
        self._consumer = consumer
        self._consumption: MemoryConsumption | None = None

    @property
    def subject(self) -> str:
        return self._stored.subject

    @property
    def data(self) -> bytes:
        return self._stored.data

    @property
    def headers(self) -> Mapping[str, str]:
        return self._stored.headers

    @property
    def sequence(self) -> int:
        return self._stored.sequence

    @property
    def time(self) -> datetime:
        return self._stored.time

    def ack(self) -> None:
        if (consumption := self._let_go()) is not None:
            self._consumer.settle(self.sequence)
            consumption.ask()

    def nak(self, delay: timedelta | None = None) -> None:
        if (consumption := self._let_go()) is not None:
            self._consumer.give_back(self.sequence, delay or timedelta(0))
            consumption.ask()

    def in_progress(self) -> None:
        if self._consumption is not None and self._consumption.failure is None:
            self._consumer.prolong(self.sequence)

    def lend_to(self, consumption: MemoryConsumption) -> None:
        """Who has it now."""
        self._consumption = consumption

    def _let_go(self) -> MemoryConsumption | None:
        """Who had it, when it may still be settled: once, and only on the session that it came by."""
        consumption, self._consumption = self._consumption, None
        if consumption is None:
            return None
        consumption.credit.held -= 1
        return consumption if consumption.failure is None else None


class MemoryConsumption:
    """The deliveries of a continuous pull, each held until it is settled."""

    def __init__(self, consumer: MemoryConsumer, hold: int) -> None:
        self.credit: Final = Credit(hold=hold)
        self.failure: BerthError | None = None
        self._consumer = consumer
        self._buffer: deque[MemoryDelivery] = deque()
        self._woken = asyncio.Event()
        self._open = True
        consumer.join(self)
        self.ask()

    def __aiter__(self) -> AsyncIterator[MemoryDelivery]:
        return self

    async def __anext__(self) -> MemoryDelivery:
        while self.failure is None and not self._buffer:
            self._woken.clear()
            await self._woken.wait()
        if self.failure is not None:
            raise self.failure
        return self._buffer.popleft()

    def arrive(self, delivery: MemoryDelivery) -> None:
        """A message was delivered to us."""
        self.credit.arrive()
        delivery.lend_to(self)
        self._buffer.append(delivery)
        self._woken.set()

    def ask(self) -> None:
        """Ask for what there is room for."""
        if self._open and self.failure is None and (batch := self.credit.take()):
            self._consumer.ask(self, batch)

    def fail(self, failure: BerthError) -> None:
        """Nothing will come any more."""
        self.failure = self.failure or failure
        self._woken.set()

    def close(self) -> None:
        """Pull no more; what nobody took goes to others at once."""
        self._open = False
        self._consumer.leave(self)
        while self._buffer:
            self._buffer.popleft().nak()
