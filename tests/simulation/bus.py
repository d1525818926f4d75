"""The bus in memory behind a network: requests, deliveries and what readers follow arrive later, or not at all.

What one connection sends arrives in the order in which it was sent, as on TCP, except for requests whose fate is to be
late: the server's store takes its time with them while it answers others.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final, TypeVar

from berth.bus.admin import WITH_POSITIONS
from berth.bus.interface import (
    BusLostError,
    PubAck,
    StoredMessage,
    StoreFullError,
    UnansweredError,
)
from berth.bus.settings import TopologySettings
from berth.bus.topology import CLUSTER, bucket_prefix
from harness.fakes.memory_bus import Listener, MemoryBus, MemorySession
from harness.fakes.memory_queue import MemoryConsumer, MemoryDeliveries, MemoryDelivery
from harness.fakes.memory_streams import MemoryReader
from simulation.loop import SimulatedProcess, VirtualLoop
from simulation.network import Fate, Network
from simulation.patches import true_time

T = TypeVar("T")
LIMITED: Final = (
    "pending_bytes", "ranked_bytes", "decisions_bytes", "dead_bytes", "cluster_bytes", "live_bytes", "control_bytes"
)  # fmt: skip
"""The settings of all streams and buckets."""
ANSWER_SECONDS: Final = 5.0
"""After which a request counts as unanswered, as in berth.bus.connection."""


class VirtualClock:
    """The server's clock: the true time."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop

    def now(self) -> datetime:
        return true_time()

    def call_at(self, when: datetime, callback: Callable[[], None]) -> None:
        self._loop.in_world(max(0.0, (when - true_time()).total_seconds()), callback)


class SimulatedBus(MemoryBus):
    """The server. ``endpoint`` is the bus as one process sees it."""

    def __init__(self, loop: VirtualLoop, network: Network, settings: TopologySettings | None = None) -> None:
        super().__init__(settings, clock=VirtualClock(loop), name="simulated")
        self.loop = loop
        self.network = network
        self.is_full = False
        """The disk is full: nothing is stored."""
        self.forgetting: dict[str, float] = {}
        """By stream, the share of deliveries after which its consumer counts everything as acknowledged."""
        self.on_stored: list[Callable[[str, bytes, Mapping[str, str], PubAck], None]] = []
        """Called with every message that a stream has stored or known as a duplicate."""
        self.on_settled: list[Callable[[str, StoredMessage], None]] = []
        """Called with every message of a work queue that is acknowledged, before it is removed."""
        self.on_wiped: list[Callable[[], None]] = []
        self.on_messages_lost: list[Callable[[], None]] = []
        """Called when PENDING, RANKED or DECISIONS is there no more, and the rest of the store is."""
        self.on_consumer_deleted: list[Callable[[SimulatedProcess, str, str], None]] = []
        """Called with who deletes which consumer of which stream, before it is deleted."""
        self.on_delivered: list[Callable[[SimulatedProcess, str, int, int], None]] = []
        """Called when a client gets a message for the first time: stream, sequence, and the highest it had before."""
        self.serving: SimulatedProcess | None = None
        """Whose request is being carried out."""
        self._store_message = self._store.store
        self._store.store = self._stored  # type: ignore[method-assign] - the bus knows what its store does
        self._lose_stream = self._store.lose
        self._store.lose = self._lost  # type: ignore[method-assign] - the same

    def _stored(self, subject: str, data: bytes, headers: Mapping[str, str]) -> PubAck:
        ack = self._store_message(subject, data, headers)
        for observer in self.on_stored:
            observer(subject, data, headers, ack)
        return ack

    def settling(self, stream: str, stored: StoredMessage) -> None:
        for observer in self.on_settled:
            observer(stream, stored)

    def take_at_most(self, message_bytes: int, stream_bytes: int = 0) -> None:
        """Refuse larger messages, and more in a stream. Called before the first service starts."""
        settings = replace(self._store.settings, message_bytes=message_bytes)
        if stream_bytes:
            settings = replace(settings, **dict.fromkeys(LIMITED, stream_bytes))
        self._store.settings = settings  # type: ignore[misc] - as said

    def wipe(self) -> None:
        super().wipe()
        for observer in self.on_wiped:
            observer()

    def _lost(self, name: str) -> None:
        self._lose_stream(name)
        for observer in self.on_messages_lost if name in WITH_POSITIONS else ():
            observer()

    def endpoint(self, process: SimulatedProcess) -> Endpoint:
        return Endpoint(self, process)

    def sessions_of(self, process: SimulatedProcess) -> list[SimulatedSession]:
        return [each for each in self.sessions if isinstance(each, SimulatedSession) and each.process is process]


class Endpoint:
    """The bus for one process."""

    def __init__(self, bus: SimulatedBus, process: SimulatedProcess) -> None:
        self._bus = bus
        self._process = process

    async def connect(self, *, name: str) -> SimulatedSession:
        bus = self._bus
        link = bus.network.link(self._process, "bus")
        await asyncio.sleep(bus.network.latency(link))
        if link.is_cut or not bus._running:
            await asyncio.sleep(0.5 if link.is_cut else 0.0)
            raise BusLostError(f"connecting to the bus as {name!r}: no answer")
        session = SimulatedSession(bus, self._process, name)
        bus.sessions.append(session)
        return session


@dataclass
class Flow:
    """What the server sends in order. Two consumers of one connection do not wait for each other."""

    arrival: float = 0.0


class SimulatedSession(MemorySession):
    """One connection of one process."""

    def __init__(self, bus: SimulatedBus, process: SimulatedProcess, name: str) -> None:
        super().__init__(bus._store, name, on_lost=bus.sessions.remove, verify=bus.verify, services=bus.services)
        self.bus = bus
        self.process = process
        self.link = bus.network.link(process, "bus")
        self._arrival = 0.0
        self._answers = Flow()
        self._pending: dict[Callable[[], None], None] = {}

    def in_order(self, late: float = 0.0) -> float:
        """How long what is sent to the server now takes."""
        now = self.bus.loop.time()
        self._arrival = max(self._arrival, now + self.bus.network.latency(self.link) + late)
        return self._arrival - now

    def back(self, late: float = 0.0, flow: Flow | None = None) -> float:
        """How long what the server sends now takes: in order within one flow, such as one reader's or all answers."""
        flow, now = flow or self._answers, self.bus.loop.time()
        flow.arrival = max(flow.arrival, now + self.bus.network.latency(self.link) + late)
        return flow.arrival - now

    async def close(self) -> None:
        await asyncio.sleep(0)
        self.bus.loop.in_world(self.in_order(), self.lose, "closed")
        self._lost.set()

    async def _answer(self, done: Callable[[], T]) -> T:  # noqa: C901 - the ways that a request may take
        self._check()
        loop, network = self.bus.loop, self.bus.network
        answer: asyncio.Future[T] = loop.create_future()
        is_open = True

        def carry_out() -> None:
            if not self.bus._running or self.link.is_cut or self not in self.bus.sessions:
                return
            self.bus.serving = self.process
            try:
                result, error = done(), None
            except Exception as exc:  # noqa: BLE001 - it is the answer
                result, error = None, exc
            self.bus.serving = None
            if fate is Fate.ANSWERED:
                loop.in_world(self.back(), settle, result, error)

        def settle(result: Any, error: Exception | None) -> None:
            if not is_open or answer.done() or self.link.is_cut:
                return
            if error is not None:
                answer.set_exception(error)
            else:
                answer.set_result(result)

        def give_up() -> None:
            if not answer.done():
                answer.set_exception(UnansweredError(f"{self.name}: no answer within {ANSWER_SECONDS:g} s"))

        def on_lost() -> None:
            if not answer.done():
                answer.set_exception(self._lost_error())

        fate = network.fate(self.link, "bus")
        if fate is Fate.LATE:
            loop.in_world(network.late(ANSWER_SECONDS + network.chance.uniform(0, 10)), carry_out)
        elif fate is not Fate.LOST:
            loop.in_world(self.in_order(), carry_out)
        timer = loop.call_later(ANSWER_SECONDS, give_up)
        self._pending[on_lost] = None
        try:
            return await answer
        finally:
            is_open = False
            timer.cancel()
            self._pending.pop(on_lost, None)

    def lose(self, cause: str) -> None:
        was_listed = self in self.bus.sessions
        if not was_listed:
            return
        self._lost.clear()
        super().lose(cause)
        for one in list(self._open):
            one.detach()
        for on_lost in list(self._pending):
            on_lost()

    async def broadcast(self, subject: str, data: bytes) -> None:
        self._check()
        self.to_server(self._store.tell_listeners, subject, data, {})

    async def publish(self, subject: str, data: bytes, **more: Any) -> Any:
        if self.link.slow_mirror and subject.startswith(bucket_prefix(CLUSTER)):
            await asyncio.sleep(self.link.slow_mirror * self.bus.network.chance.random())
        if self.bus.is_full:
            self.bus.network.count("bus: disk full")
            await asyncio.sleep(self.bus.network.latency(self.link))
            raise StoreFullError(f"publishing to {subject!r}: insufficient resources")
        return await super().publish(subject, data, **more)

    async def delete_consumer(self, stream: str, consumer: str) -> None:
        def delete() -> None:
            queue = self.bus._store.queue(stream)
            if consumer in queue.consumers:
                for observer in self.bus.on_consumer_deleted:
                    observer(self.process, stream, consumer)
            queue.delete(consumer)

        await self._answer(delete)

    def _deliveries(self, *arguments: Any) -> MemoryDeliveries:
        return SimulatedDeliveries(*arguments, self)

    def _reader(self, *arguments: Any) -> MemoryReader[Any]:
        return SimulatedReader(self, *arguments)

    async def subscribe(self, subject: str, listener: Listener, *, most: int = 0) -> None:
        context, loop, flow = contextvars.copy_context(), self.bus.loop, Flow()

        def deliver(*message: Any) -> None:
            if not self.link.is_cut and not self._lost.is_set():
                listener(*message)

        def on_message(*message: Any) -> None:
            loop.call_at(loop.time() + self.back(self._lateness(), flow), deliver, *message, context=context)

        await super().subscribe(subject, on_message, most=most)

    def _lateness(self) -> float:
        slow = self.link.slow_messages
        return self.bus.network.chance.random() * slow if slow else 0.0

    def to_client(self, flow: Flow, callback: Callable[..., object], *args: Any, late: float = 0.0) -> None:
        """Call back when a message that the server sends now has arrived; never, if it is lost with the connection."""

        def arrive() -> None:
            if not self.link.is_cut and not self._lost.is_set():
                callback(*args)

        self.bus.loop.in_world(self.back(self._lateness() + late, flow), arrive)

    def to_server(self, callback: Callable[..., object], *args: Any) -> None:
        """Call back when what the client sends now has arrived; never, if it is lost."""

        def arrive() -> None:
            if not self.link.is_cut and self.bus._running:
                callback(*args)

        fate = self.bus.network.fate(self.link, "bus ack")
        if fate is not Fate.LOST:
            self.bus.loop.in_world(self.in_order(), arrive)


class SimulatedDeliveries(MemoryDeliveries):
    """Deliveries over a network."""

    def __init__(self, consumer: MemoryConsumer, limit: int, session: SimulatedSession) -> None:
        self._session = session
        self._flow = Flow()
        self._seen: set[int] = set()
        self._highest = 0
        super().__init__(consumer, limit)

    def detach(self) -> None:
        """The server sees the connection end: it delivers nothing more to it."""
        if self._open:
            self._open = False
            self._consumer.leave(self)

    def close(self) -> None:
        self.detach()
        while self._buffer:
            self._buffer.popleft().nak()

    def arrive(self, delivery: MemoryDelivery) -> None:
        self.credit.arrive()
        if delivery.sequence not in self._seen:
            for observer in self._session.bus.on_delivered:
                stream = self._consumer.declared.stream
                observer(self._session.process, stream, delivery.sequence, self._highest)
            self._seen.add(delivery.sequence)
            self._highest = max(self._highest, delivery.sequence)
        stream = self._consumer.declared.stream
        share = self._session.bus.forgetting.get(stream, 0.0)
        if share and self._session.bus.network.chance.random() < share:
            self._session.bus.network.count("bus: deliveries forgotten")
            self._consumer.forget()
        delivery._consumer = _ConsumerAfar(delivery._consumer, self._session)  # type: ignore[assignment]
        self._session.to_client(self._flow, self._arrived, delivery)

    def _arrived(self, delivery: MemoryDelivery) -> None:
        if not self._open or self.failure is not None:
            return
        delivery.assign_to(self)
        self._buffer.append(delivery)
        self._changed.set()


class _ConsumerAfar:
    """What a client does to a message reaches the server later."""

    def __init__(self, consumer: Any, session: SimulatedSession) -> None:
        self._consumer = consumer
        self._session = session

    def settle(self, sequence: int) -> None:
        self._session.to_server(self._settle, sequence)

    def _settle(self, sequence: int) -> None:
        stored = self._consumer.messages.get(sequence)
        if stored is not None and not self._consumer._deleted and sequence in self._consumer._unacked:
            self._session.bus.settling(self._consumer.declared.stream, stored)
        self._consumer.settle(sequence)

    def give_back(self, sequence: int, delay: timedelta) -> None:
        self._session.to_server(self._consumer.give_back, sequence, delay)

    def prolong(self, sequence: int) -> None:
        self._session.to_server(self._consumer.prolong, sequence)


class SimulatedReader(MemoryReader[T]):
    """An ordered reader over a network: new messages arrive later, in order."""

    def __init__(self, session: SimulatedSession, *args: Any) -> None:
        self._session = session
        self._flow = Flow()
        self._is_attached = True
        super().__init__(*args)

    def detach(self) -> None:
        """The server sees the connection end."""
        if self._is_attached:
            self._is_attached = False
            self._stop_listening()

    def close(self) -> None:
        self.detach()

    def _on_stored(self, stored: StoredMessage) -> None:
        if self._matches(stored.subject):
            slow = self._session.link.slow_readers
            late = slow * self._session.bus.network.chance.random() if slow else 0.0
            self._session.to_client(self._flow, self._arrived, stored.sequence, late=late)

    def _arrived(self, sequence: int) -> None:
        self._unread.append(sequence)
        self._changed.set()
