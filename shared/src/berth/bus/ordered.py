"""An ordered reading of a stream: a consumer of our own, made anew after the last message read when one is missing.

The consumer is a pull without acknowledgements, so that a slow reader asks for less instead of being cut off. Its
messages are numbered: a gap in the numbers, a heartbeat that names a higher one, or silence, and it is made anew.
"""

from __future__ import annotations

import asyncio
import itertools
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, Generic, TypeVar

from nats.aio.msg import Msg

from berth.bus.admin import ask, stream_of
from berth.bus.connection import Connection
from berth.bus.consumer import NO_HEADERS, Position, Pull, position_of
from berth.bus.interface import BusRefusedError, Entry, MissingError, StoredMessage
from berth.bus.jetstream import API, ConsumerAnswer, nanoseconds
from berth.bus.kv import entry
from berth.bus.streams import last
from berth.bus.topology import bucket_prefix, bucket_stream

T = TypeVar("T")
Shape = Callable[[Msg, Position], T]

FORGOTTEN_AFTER: Final = timedelta(seconds=60)
"""How long the server keeps the consumer of a reader that does not ask: longer than one is ever busy with a batch."""
EVERYTHING: Final = (">",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Where a reading begins: what to read, and from where."""

    stream: str
    filters: tuple[str, ...]
    policy: dict[str, object]


class NatsReader(Generic[T]):
    """One reading. ``position`` and ``caught_up`` are moved just before the batch that moves them is yielded."""

    def __init__(self, connection: Connection, start: Start, shape: Shape[T]) -> None:
        self.position = 0
        self.caught_up = asyncio.Event()
        self._connection = connection
        self._start = start
        self._shape = shape
        self._names = itertools.count(1)
        self._prefix = f"follow-{uuid.uuid4().hex[:12]}"
        self._pull: Pull | None = None
        self._held = AsyncExitStack()
        self._consumer_sequence = 0
        self._first_time = True
        self._last_at_start = 0
        self._end_at_start = 0

    @asynccontextmanager
    async def open(self) -> AsyncIterator[NatsReader[T]]:
        """Create the consumer; delete it at leaving."""
        try:
            await self._begin()
            yield self
        finally:
            await self._held.aclose()

    async def batches(self) -> AsyncIterator[list[T]]:
        """What has arrived, in order, for ever."""
        while True:
            pull = self._pull
            if pull is None:
                await self._begin()
            elif pull.buffer:
                batch = self._drain(pull)
                pull.ask_soon()
                if batch:
                    yield batch
            elif pull.failure or self._is_behind(pull) or not await pull.wait():
                await self._lose_consumer(pull)
            elif self._ends_at_idle(pull):
                yield []

    # --- one consumer after another

    async def _begin(self) -> None:
        stream = self._start.stream
        stands_at = (await stream_of(self._connection, stream)).state.last_seq
        if stands_at < self.position:
            self._refuse_another_stream(stands_at)
        if self._first_time:
            self._last_at_start, self._end_at_start = stands_at, await self._end()
        name = f"{self._prefix}-{next(self._names)}"
        made = await self._create(name)
        self._first_time = False
        self._consumer_sequence = 0
        window = self._connection.settings.follow_window
        self._pull = await self._held.enter_async_context(Pull(self._connection, stream, name, window).open())
        self._held.callback(self._connection.post, f"{API}.CONSUMER.DELETE.{stream}.{name}")
        if made.num_pending == 0 or self._end_at_start <= self.position:
            self._reach(max(stands_at, self.position))

    def _refuse_another_stream(self, stands_at: int) -> None:
        """The stream was deleted and made again: nothing that was read from the former one holds."""
        cause = f"stream {self._start.stream} was made anew: it stands at {stands_at}, we at {self.position}"
        if self._first_time:
            raise BusRefusedError(f"following from a sequence: {cause}: read it from its beginning")
        self._connection.lose(cause)
        raise self._connection.loss()

    async def _end(self) -> int:
        """The sequence of the last message that is there under the filters.

        What is read up to it is complete; the count of pending messages that comes with each is not exact enough for
        that while others write.
        """
        found = [await last(self._connection, self._start.stream, one) for one in self._start.filters]
        return max((stored.sequence for stored in found if stored), default=0)

    async def _create(self, name: str) -> ConsumerAnswer:
        start = self._start
        config = {
            "name": name,
            "ack_policy": "none",
            "replay_policy": "instant",
            "mem_storage": True,
            "num_replicas": 1,
            "inactive_threshold": nanoseconds(FORGOTTEN_AFTER),
            "filter_subjects": list(start.filters),
            **(start.policy if self._first_time else _after(self.position)),
        }
        request = {"stream_name": start.stream, "config": config, "action": "create"}
        return await ask(self._connection, f"CONSUMER.CREATE.{start.stream}.{name}", request, ConsumerAnswer)

    async def _lose_consumer(self, pull: Pull) -> None:
        """Let go of the consumer; the next one begins after the last message that was read."""
        if pull.failure and not isinstance(pull.failure, MissingError):
            raise pull.failure
        self._pull = None
        await self._held.aclose()
        self._held = AsyncExitStack()

    # --- what arrives

    def _drain(self, pull: Pull) -> list[T]:
        """All that is there up to a gap; what stands after a gap is dropped and will be read again."""
        batch: list[T] = []
        reached = 0
        while pull.buffer:
            msg = pull.buffer.popleft()
            pull.credit.held -= 1
            found = position_of(msg.reply)
            if found.consumer_sequence != self._consumer_sequence + 1:
                self._drop_after_gap(pull)
                break
            self._consumer_sequence = found.consumer_sequence
            batch.append(self._shape(msg, found))
            reached = found.stream_sequence
        if reached:
            self._read_up_to(reached)
        return batch

    def _drop_after_gap(self, pull: Pull) -> None:
        pull.credit.held -= len(pull.buffer)
        pull.buffer.clear()
        pull.failure = pull.failure or MissingError(f"following {self._start.stream}: messages are missing")

    def _is_behind(self, pull: Pull) -> bool:
        """Whether a heartbeat names a message that never came."""
        return pull.idle_at is not None and pull.idle_at[0] > self._consumer_sequence

    def _ends_at_idle(self, pull: Pull) -> bool:
        """A heartbeat without anything new: all up to the sequence that it names was looked at.

        True when the start is over by that: what was still to come has been removed.
        """
        if pull.idle_at is None or pull.buffer or pull.idle_at[0] != self._consumer_sequence:
            return False
        was_caught_up = self.caught_up.is_set()
        self._reach(max(self.position, pull.idle_at[1]))
        return not was_caught_up

    def _read_up_to(self, sequence: int) -> None:
        if sequence >= self._end_at_start:
            self._reach(sequence)
        else:
            self.position = sequence

    def _reach(self, sequence: int) -> None:
        """Nothing that was there at the start is still to come, whatever stands between its end and the stream's."""
        self.position = max(sequence, self._last_at_start)
        self.caught_up.set()


def _after(sequence: int) -> dict[str, object]:
    return {"deliver_policy": "by_start_sequence", "opt_start_seq": sequence + 1}


def _since(age: timedelta) -> dict[str, object]:
    return {"deliver_policy": "by_start_time", "opt_start_time": (datetime.now(UTC) - age).isoformat()}


def read_stream(
    connection: Connection, stream: str, filters: tuple[str, ...], since: timedelta | None, after: int | None
) -> NatsReader[StoredMessage]:
    """Follow a stream from a sequence, from a time ago, or from its beginning."""
    policy: dict[str, object] = {"deliver_policy": "all"}
    if after is not None:
        policy = _after(after)
    elif since is not None:
        policy = _since(since)
    following = NatsReader(connection, Start(stream=stream, filters=filters, policy=policy), _stored)
    following.position = after or 0
    return following


def read_bucket(connection: Connection, bucket: str, filters: tuple[str, ...]) -> NatsReader[Entry]:
    """Follow a bucket: the last entry of every key, then every change."""
    prefix = bucket_prefix(bucket)
    start = Start(
        stream=bucket_stream(bucket),
        filters=tuple(prefix + one for one in filters),
        policy={"deliver_policy": "last_per_subject"},
    )

    def shape(msg: Msg, found: Position) -> Entry:
        return entry(bucket, _stored(msg, found))

    return NatsReader(connection, start, shape)


def _stored(msg: Msg, found: Position) -> StoredMessage:
    return StoredMessage(
        subject=msg.subject,
        sequence=found.stream_sequence,
        data=msg.data,
        headers=msg.headers or NO_HEADERS,
        time=found.time,
    )
