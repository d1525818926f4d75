"""Ordered reading of a stream or bucket with an ephemeral consumer that is recreated when a message is missing.

The consumer is pulled without acknowledgements, so that a slow reader asks for less instead of being disconnected. Its
messages are numbered. On a gap in the numbers, a heartbeat with a higher number, or silence, the reader creates a new
consumer that starts after the last message read.
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

from berth.bus.connection import Connection
from berth.bus.consumer import NO_HEADERS, MessageMetadata, Pull, metadata_of
from berth.bus.interface import BusRefusedError, Entry, MissingError, StoredMessage
from berth.bus.jetstream import API, ConsumerInfo, api_request, entry_of, last_message, nanoseconds, stream_info
from berth.bus.topology import bucket_prefix, bucket_stream

T = TypeVar("T")
Convert = Callable[[Msg, MessageMetadata], T]

INACTIVE_THRESHOLD: Final = timedelta(seconds=60)
"""How long the server keeps the consumer of a reader that does not pull: longer than a reader is busy with a batch."""
ALL: Final = (">",)


def read_stream(
    connection: Connection, stream: str, filters: tuple[str, ...], since: timedelta | None, after: int | None
) -> NatsReader[StoredMessage]:
    """A reader of a stream from after a sequence, from a time ago, or from its beginning."""
    policy: dict[str, object] = {"deliver_policy": "all"}
    if after is not None:
        policy = _after(after)
    elif since is not None:
        policy = {"deliver_policy": "by_start_time", "opt_start_time": (datetime.now(UTC) - since).isoformat()}
    reader = NatsReader(connection, Start(stream=stream, filters=filters, policy=policy), _stored)
    reader.position = after or 0
    return reader


def read_bucket(connection: Connection, bucket: str, filters: tuple[str, ...]) -> NatsReader[Entry]:
    """A reader of a bucket: the last entry of every key, then every change."""
    prefix = bucket_prefix(bucket)
    start = Start(
        stream=bucket_stream(bucket),
        filters=tuple(prefix + one for one in filters),
        policy={"deliver_policy": "last_per_subject"},
    )

    def convert(msg: Msg, metadata: MessageMetadata) -> Entry:
        return entry_of(bucket, _stored(msg, metadata))

    return NatsReader(connection, start, convert)


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """What to read, and the deliver policy of the first consumer."""

    stream: str
    filters: tuple[str, ...]
    policy: dict[str, object]


class NatsReader(Generic[T]):
    """One ordered reader. ``position`` and ``caught_up`` change just before the batch that changes them is yielded."""

    def __init__(self, connection: Connection, start: Start, convert: Convert[T]) -> None:
        self.position = 0
        self.caught_up = asyncio.Event()
        self._connection = connection
        self._start = start
        self._convert = convert
        self._numbers = itertools.count(1)
        self._prefix = f"follow-{uuid.uuid4().hex[:12]}"
        self._pull: Pull | None = None
        self._consumer = AsyncExitStack()
        self._consumer_sequence = 0
        self._is_first = True
        self._stream_end = 0
        """The stream's last sequence when the reader started."""
        self._filtered_end = 0
        """The last sequence under the filters when the reader started."""

    @asynccontextmanager
    async def open(self) -> AsyncIterator[NatsReader[T]]:
        """Create the consumer; delete it at the end."""
        try:
            await self._start_consumer()
            yield self
        finally:
            await self._consumer.aclose()

    async def batches(self) -> AsyncIterator[list[T]]:
        """What has arrived, in order, without end."""
        while True:
            pull = self._pull
            if pull is None:
                await self._start_consumer()
            elif pull.buffer:
                batch = self._drain(pull)
                pull.request_soon()
                if batch:
                    yield batch
            elif pull.failure or self._is_behind(pull) or not await pull.wait():
                await self._drop_consumer(pull)
            elif self._catches_up_idle(pull):
                yield []

    # --- consumers

    async def _start_consumer(self) -> None:
        stream = self._start.stream
        last_sequence = (await stream_info(self._connection, stream)).state.last_seq
        if last_sequence < self.position:
            self._refuse_another_stream(last_sequence)
        if self._is_first:
            self._stream_end, self._filtered_end = last_sequence, await self._find_filtered_end()
        name = f"{self._prefix}-{next(self._numbers)}"
        created = await self._create_consumer(name)
        self._is_first = False
        self._consumer_sequence = 0
        window = self._connection.settings.read_ahead
        self._pull = await self._consumer.enter_async_context(Pull(self._connection, stream, name, window).open())
        self._consumer.callback(self._connection.enqueue, f"{API}.CONSUMER.DELETE.{stream}.{name}")
        if created.num_pending == 0 or self._filtered_end <= self.position:
            self._catch_up(max(last_sequence, self.position))

    def _refuse_another_stream(self, last_sequence: int) -> None:
        """The stream was deleted and created again: the position in the former one is invalid."""
        cause = f"stream {self._start.stream} was recreated: last sequence {last_sequence}, ours {self.position}"
        if self._is_first:
            raise BusRefusedError(f"following from a sequence: {cause}: read it from its beginning")
        self._connection.lose(cause)
        raise self._connection.lost_error()

    async def _find_filtered_end(self) -> int:
        """The last sequence under the filters.

        The reader has caught up at this sequence. The count of pending messages that comes with each message is not
        exact enough while others publish.
        """
        found = [await last_message(self._connection, self._start.stream, one) for one in self._start.filters]
        return max((stored.sequence for stored in found if stored), default=0)

    async def _create_consumer(self, name: str) -> ConsumerInfo:
        start = self._start
        config = {
            "name": name,
            "ack_policy": "none",
            "replay_policy": "instant",
            "mem_storage": True,
            "num_replicas": 1,
            "inactive_threshold": nanoseconds(INACTIVE_THRESHOLD),
            "filter_subjects": list(start.filters),
            **(start.policy if self._is_first else _after(self.position)),
        }
        request = {"stream_name": start.stream, "config": config, "action": "create"}
        return await api_request(self._connection, f"CONSUMER.CREATE.{start.stream}.{name}", request, ConsumerInfo)

    async def _drop_consumer(self, pull: Pull) -> None:
        """Delete the consumer; the next one starts after the last message that was read."""
        if pull.failure and not isinstance(pull.failure, MissingError):
            raise pull.failure
        self._pull = None
        await self._consumer.aclose()
        self._consumer = AsyncExitStack()

    # --- messages

    def _drain(self, pull: Pull) -> list[T]:
        """All messages in the buffer up to a gap; those after a gap are dropped and read again."""
        batch: list[T] = []
        reached = 0
        while pull.buffer:
            msg = pull.buffer.popleft()
            pull.credit.held -= 1
            metadata = metadata_of(msg.reply)
            if metadata.consumer_sequence != self._consumer_sequence + 1:
                self._drop_after_gap(pull)
                break
            self._consumer_sequence = metadata.consumer_sequence
            batch.append(self._convert(msg, metadata))
            reached = metadata.stream_sequence
        if reached:
            self._advance(reached)
        return batch

    def _drop_after_gap(self, pull: Pull) -> None:
        pull.credit.held -= len(pull.buffer)
        pull.buffer.clear()
        pull.failure = pull.failure or MissingError(f"reading {self._start.stream}: messages are missing")

    def _is_behind(self, pull: Pull) -> bool:
        """Whether a heartbeat has a higher number than the last message."""
        return pull.idle_at is not None and pull.idle_at[0] > self._consumer_sequence

    def _catches_up_idle(self, pull: Pull) -> bool:
        """A heartbeat without new messages moves the position to its sequence.

        Returns whether the reader has caught up by it: the messages that it waited for were removed.
        """
        if pull.idle_at is None or pull.buffer or pull.idle_at[0] != self._consumer_sequence:
            return False
        was_caught_up = self.caught_up.is_set()
        self._catch_up(max(self.position, pull.idle_at[1]))
        return not was_caught_up

    def _advance(self, sequence: int) -> None:
        if sequence >= self._filtered_end:
            self._catch_up(sequence)
        else:
            self.position = sequence

    def _catch_up(self, sequence: int) -> None:
        """Whether every message from before the start is read: the position reached the stream's end at the start."""
        self.position = max(sequence, self._stream_end)
        self.caught_up.set()


def _after(sequence: int) -> dict[str, object]:
    return {"deliver_policy": "by_start_sequence", "opt_start_seq": sequence + 1}


def _stored(msg: Msg, metadata: MessageMetadata) -> StoredMessage:
    return StoredMessage(
        subject=msg.subject,
        sequence=metadata.stream_sequence,
        data=msg.data,
        headers=msg.headers or NO_HEADERS,
        time=metadata.time,
    )
