"""The consumers of a work queue in memory: which client gets which message, and when it is redelivered."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final, Protocol

from berth.bus.consumer import Credit
from berth.bus.interface import BusRefusedError, ConsumerState, MissingError, StoredMessage
from berth.bus.topology import ConsumerSpec
from berth.errors import BerthError
from harness.fakes.bus_clock import BusClock


class WorkQueue:
    """The consumers of one work-queue stream: at most one, since it has no filter."""

    def __init__(self, stream: str, messages: Messages, clock: BusClock) -> None:
        self.consumers: Final[dict[str, MemoryConsumer]] = {}
        self._stream = stream
        self._messages = messages
        self._clock = clock

    def create(self, declared: ConsumerSpec) -> None:
        """Create a consumer if it does not exist.

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
        """Delete a consumer; what pulls from it fails."""
        if (consumer := self.consumers.pop(name, None)) is not None:
            consumer.end()

    def dispatch(self) -> None:
        """Deliver new messages."""
        for consumer in self.consumers.values():
            consumer.dispatch()


class Messages(Protocol):
    """The stream, as its consumers use it."""

    last_sequence: int

    def get(self, sequence: int) -> StoredMessage | None:
        """The message with that sequence, unless it has been removed."""
        ...

    def remove(self, sequence: int) -> None:
        """Remove a message."""
        ...


@dataclass(slots=True)
class MemoryConsumer:
    """Explicit acks, unlimited redelivery: redelivered messages first, then new ones, each in order."""

    declared: ConsumerSpec
    messages: Messages
    clock: BusClock
    _next: int = 1
    _unacked: dict[int, _Unacked] = field(default_factory=dict)
    _redeliver: deque[int] = field(default_factory=deque)
    _delivered: dict[int, int] = field(default_factory=dict)
    _requests: deque[_Request] = field(default_factory=deque)
    _pulling: list[MemoryDeliveries] = field(default_factory=list)
    _deleted: bool = False

    def join(self, deliveries: MemoryDeliveries) -> None:
        """Register a client that pulls."""
        self._pulling.append(deliveries)

    def leave(self, deliveries: MemoryDeliveries) -> None:
        """Remove a client and its requests."""
        self._pulling.remove(deliveries)
        self._requests = deque(one for one in self._requests if one.deliveries is not deliveries)

    def ask(self, deliveries: MemoryDeliveries, batch: int) -> None:
        """Add a pull request."""
        self._requests.append(_Request(deliveries, batch))
        self.dispatch()

    def dispatch(self) -> None:
        """Deliver messages to the requests in turns, as nats-server does: each goes to the end after one message."""
        while self._requests and not self._deleted and (stored := self._take()) is not None:
            request = self._requests.popleft()
            request.left -= 1
            if request.left:
                self._requests.append(request)
            request.deliveries.arrive(self._deliver(stored))

    def settle(self, sequence: int) -> None:
        """Acknowledged: remove the message."""
        if not self._deleted and self._unacked.pop(sequence, None) is not None:
            self._delivered.pop(sequence, None)
            self.messages.remove(sequence)

    def give_back(self, sequence: int, delay: timedelta) -> None:
        """Nak: redeliver after the delay."""
        self._prolong(sequence, delay)

    def prolong(self, sequence: int) -> None:
        """In progress: the ack_wait starts again."""
        self._prolong(sequence, self.declared.ack_wait)

    def state(self) -> ConsumerState:
        coming = range(self._next, self.messages.last_sequence + 1)
        return ConsumerState(
            name=self.declared.name,
            undelivered=sum(self.messages.get(sequence) is not None for sequence in coming),
            unacknowledged=sum(
                self.messages.get(sequence) is not None for sequence in (*self._unacked, *self._redeliver)
            ),
            acknowledged_to=min((*self._unacked, *self._redeliver), default=self._next) - 1,
            redelivered=sum(self._delivered.get(sequence, 0) > 1 for sequence in self._unacked),
        )

    def forget(self) -> None:
        """Count every message as delivered and acknowledged, as nats-server may after a kill. The stream has them."""
        self._next = self.messages.last_sequence + 1
        self._unacked.clear()
        self._redeliver.clear()
        self._delivered.clear()

    def end(self) -> None:
        """Fail every pull: the consumer was deleted."""
        self._deleted = True
        for deliveries in list(self._pulling):
            deliveries.fail(MissingError(f"consuming {self.declared.stream} {self.declared.name}: it was deleted"))

    def _take(self) -> StoredMessage | None:
        while self._redeliver:
            sequence = self._redeliver.popleft()
            if (stored := self.messages.get(sequence)) is not None:
                return stored
            self._delivered.pop(sequence, None)
        while self._next <= self.messages.last_sequence:
            self._next += 1
            if (stored := self.messages.get(self._next - 1)) is not None:
                return stored
        return None

    def _deliver(self, stored: StoredMessage) -> MemoryDelivery:
        count = self._delivered[stored.sequence] = self._delivered.get(stored.sequence, 0) + 1
        self._unacked[stored.sequence] = _Unacked(self.clock.now())
        self._prolong(stored.sequence, self.declared.ack_wait)
        return MemoryDelivery(stored, count, self)

    def _prolong(self, sequence: int, duration: timedelta) -> None:
        unacked = self._unacked.get(sequence)
        if unacked is None:
            return
        unacked.due = self.clock.now() + duration
        if duration:
            self.clock.call_at(unacked.due, lambda: self._requeue(sequence, unacked))
        else:
            self._requeue(sequence, unacked)

    def _requeue(self, sequence: int, unacked: _Unacked) -> None:
        if self._unacked.get(sequence) is unacked and unacked.due <= self.clock.now():
            del self._unacked[sequence]
            self._redeliver.append(sequence)
            self.dispatch()


@dataclass(slots=True)
class _Unacked:
    """A message that was delivered and not settled; ``due`` is when it is redelivered."""

    due: datetime


@dataclass(slots=True)
class _Request:
    deliveries: MemoryDeliveries
    left: int


class MemoryDelivery:
    """A message of a work queue. Once it is settled, further calls do nothing."""

    __slots__ = ("_consumer", "_deliveries", "_is_counted", "_stored", "delivered")

    def __init__(self, stored: StoredMessage, delivered: int, consumer: MemoryConsumer) -> None:
        self.delivered: Final = delivered
        self._stored = stored
        self._consumer = consumer
        self._deliveries: MemoryDeliveries | None = None
        self._is_counted = True

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
        if (deliveries := self._settle()) is not None:
            self._consumer.settle(self.sequence)
            deliveries.ask()

    def nak(self, delay: timedelta | None = None) -> None:
        if (deliveries := self._settle()) is not None:
            self._consumer.give_back(self.sequence, delay or timedelta(0))
            deliveries.ask()

    def in_progress(self) -> None:
        if self._deliveries is not None and self._deliveries.failure is None:
            self._consumer.prolong(self.sequence)

    def set_aside(self) -> None:
        if self._deliveries is not None and self._is_counted:
            self._is_counted = False
            self._deliveries.credit.held -= 1
            self._deliveries.ask()

    def assign_to(self, deliveries: MemoryDeliveries) -> None:
        """Count the delivery for these deliveries until it is settled."""
        self._deliveries = deliveries

    def _settle(self) -> MemoryDeliveries | None:
        """Settle it: once, and only on the session that it was delivered on; ``None`` when it may not be settled."""
        deliveries, self._deliveries = self._deliveries, None
        if deliveries is None:
            return None
        deliveries.credit.held -= self._is_counted
        return deliveries if deliveries.failure is None else None


class MemoryDeliveries:
    """The deliveries of a continuous pull, with the same flow control as on NATS."""

    def __init__(self, consumer: MemoryConsumer, limit: int) -> None:
        self.credit: Final = Credit(limit=limit)
        self.failure: BerthError | None = None
        self._consumer = consumer
        self._buffer: deque[MemoryDelivery] = deque()
        self._changed = asyncio.Event()
        self._open = True
        consumer.join(self)
        self.ask()

    def __aiter__(self) -> AsyncIterator[MemoryDelivery]:
        return self

    async def __anext__(self) -> MemoryDelivery:
        while self.failure is None and not self._buffer:
            self._changed.clear()
            await self._changed.wait()
        if self.failure is not None:
            raise self.failure
        return self._buffer.popleft()

    def arrive(self, delivery: MemoryDelivery) -> None:
        """Take a delivery into the buffer."""
        self.credit.arrive()
        delivery.assign_to(self)
        self._buffer.append(delivery)
        self._changed.set()

    def ask(self) -> None:
        """Request as many as the credit allows."""
        if self._open and self.failure is None and (batch := self.credit.take()):
            self._consumer.ask(self, batch)

    def fail(self, failure: BerthError) -> None:
        """End the iteration with this error."""
        self.failure = self.failure or failure
        self._changed.set()

    def close(self) -> None:
        """Stop pulling; what was not read is redelivered at once."""
        self._open = False
        self._consumer.leave(self)
        while self._buffer:
            self._buffer.popleft().nak()
