"""Ordered reading of a stream or bucket: Direct Get for stored messages, then the stream's copies.

Every stream republishes stored messages under ``stored.`` (``topology``), with the sequence in a header. A reader
subscribes to these copies, reads stored messages by Direct Get, and continues with the copies. Copies can be lost: a
stream's new leader does not send its predecessor's. So on a gap in the sequences, and if the stream has more than has
arrived, the reader reads again from its position. It asks for the stream's state from time to time, and at once on a
copy that is not after its position: a recreated stream begins at 1.

A reader that writes most of a bucket itself can do without copies. It asks for the stream's last sequence more often,
and reads only if others have written up to there.

A reader needs no consumer, and so no right to create one (docs/adr/0014-accounts-are-the-boundary.md).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, Generic, TypeVar

from nats.aio.msg import Msg

from berth.bus.connection import Connection
from berth.bus.interface import BusRefusedError, Entry, StoredMessage, UnansweredError
from berth.bus.jetstream import (
    StreamInfo,
    entry_of,
    get_page,
    is_copy,
    last_sequence,
    stored_copy,
    stored_sequence,
    stream_info,
    stream_info_soon,
)
from berth.bus.jetstream import scan as scan_messages
from berth.bus.topology import STORED_PREFIX, bucket_prefix, bucket_stream, stream_subjects
from berth.errors import BerthError

T = TypeVar("T")
Convert = Callable[[StoredMessage], T]

ALL: Final = (">",)
# Maximum copies that wait for a reader. With more, all are dropped and read again by Direct Get.
MOST_BUFFERED: Final = 65_536
RETRY_SECONDS: Final = 0.1
RETRIES: Final = 10  # How often a replica that may lag behind the leader is asked again.


def read_stream(
    connection: Connection, stream: str, filters: tuple[str, ...], since: timedelta | None, after: int | None
) -> NatsReader[StoredMessage]:
    """Read a stream from after a sequence, from a time ago, or from its beginning."""
    subjects = stream_subjects(connection.settings.topology, stream) if filters == ALL else filters
    start = Start(stream=stream, subjects=subjects, is_whole=filters == ALL, since=since, after=after or 0)
    return NatsReader(connection, start, lambda stored: stored)


def read_bucket(
    connection: Connection, bucket: str, filters: tuple[str, ...], every: timedelta | None
) -> NatsReader[Entry]:
    """Read the last entry of every key, then every change: by copies, or by looking ``every`` so often."""
    there = connection.names.word(bucket)
    subjects = tuple(bucket_prefix(there) + one for one in filters)
    start = Start(stream=bucket_stream(there), subjects=subjects, is_whole=filters == ALL, every=every)
    return NatsReader(connection, start, lambda stored: entry_of(bucket, stored))


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    stream: str
    subjects: tuple[str, ...]
    is_whole: bool  # All subjects of the stream: a gap in the sequences is a lost copy.
    since: timedelta | None = None
    after: int = 0
    every: timedelta | None = None  # Between two looks at the stream, without its copies.


class NatsReader(Generic[T]):
    """One ordered reader. ``position`` and ``caught_up`` change just before their batch is yielded."""

    def __init__(self, connection: Connection, start: Start, convert: Convert[T]) -> None:
        self.position = start.after
        self.caught_up = asyncio.Event()
        self._connection = connection
        self._start = start
        self._convert = convert
        self._copies: deque[Msg] = deque()
        self._changed = asyncio.Event()
        self._left_out: set[int] = set()  # Sequences after the position that are not yielded.
        self._scan: Scan | None = None
        self._stream_end = 0  # The stream's last sequence when the reader started.
        self._created: datetime | None = None
        self._is_replicated = False
        self._loop = asyncio.get_running_loop()
        self._next_check = 0.0
        self._failure: BerthError | None = None  # of a check, such as that the stream is missing

    @asynccontextmanager
    async def open(self) -> AsyncIterator[NatsReader[T]]:
        """Subscribe to the copies, and read the stream's last sequence."""
        copied = self._start.subjects if self._start.every is None else ()
        subscriptions = [await self._connection.subscribe(STORED_PREFIX + subject, self._on_copy) for subject in copied]
        remove_listener = self._connection.on_lost(self._changed.set)
        remove_sweeper = self._connection.on_sweep(self._on_sweep)
        try:
            await self._begin()
            yield self
        finally:
            remove_listener()
            remove_sweeper()
            for subscription in subscriptions:
                self._connection.unsubscribe(subscription)

    async def batches(self) -> AsyncIterator[list[T]]:
        """Arrived messages, in order, without end."""
        while True:
            self._changed.clear()
            if self._scan is not None:
                batch = await self._read_page(self._scan)
                caught_up = self._scan is None and self._catch_up()
                if batch or caught_up:
                    yield batch
            elif self._copies:
                if batch := self._drain():
                    yield batch
            elif self._connection.lost.is_set():
                raise self._connection.lost_error()
            elif self._failure is not None:
                raise self._failure
            else:
                if self._loop.time() >= self._next_check:
                    self._check()
                await self._changed.wait()

    def leave_out(self, sequence: int) -> None:
        """As :meth:`berth.bus.interface.BucketReader.leave_out`."""
        if sequence > self.position:
            self._left_out.add(sequence)

    async def _begin(self) -> None:
        stream = self._start.stream
        info = await stream_info(self._connection, stream)
        self._stream_end, self._created = info.state.last_seq, info.created
        self._is_replicated = info.config.get("num_replicas") != 1
        if self._stream_end < self.position:
            cause = f"stream {stream} was recreated: last sequence {self._stream_end}, ours {self.position}"
            raise BusRefusedError(f"following from a sequence: {cause}: read it from its beginning")
        end = await self._last_stored()
        self._next_check = self._loop.time() + self._check_seconds
        if end <= self.position:
            self._catch_up()
        else:
            self._scan = Scan(end=end, since=self._start.since)

    @property
    def _check_seconds(self) -> float:
        return (self._start.every or self._connection.settings.reader_check).total_seconds()

    async def _last_stored(self) -> int:
        # From the stream's leader: other replicas may lag.
        found = [await last_sequence(self._connection, self._start.stream, one) for one in self._start.subjects]
        return max(found, default=0)

    # --- what is stored

    async def _read_page(self, scan: Scan) -> list[T]:
        # After the last page the scan has ended.
        stored, more = await self._next_page(scan)
        fresh = [one for one in stored if one.sequence > self.position]
        if fresh:
            self.position = fresh[-1].sequence
        wanted = [self._convert(one) for one in fresh if one.sequence not in self._left_out]
        if not more:
            await self._end_scan(scan)
        return wanted

    async def _next_page(self, scan: Scan) -> tuple[list[StoredMessage], bool]:
        get = self._connection, self._start.stream
        if len(self._start.subjects) == 1:
            since, scan.since = scan.since, None
            return await get_page(*get, self._start.subjects[0], self.position, since)
        found = [one for subject in self._start.subjects async for one in scan_messages(*get, subject, self.position)]
        if self._start.every is not None:  # an earlier one may have come since under a subject that was read before
            found = [one for one in found if one.sequence <= scan.end]
        return sorted(found, key=lambda one: one.sequence), False

    async def _end_scan(self, scan: Scan) -> None:
        # Direct Get may be answered by a lagging replica: then read again, for at most a second.
        if self.position < scan.end and self._is_replicated and scan.tries_left:
            scan.tries_left -= 1
            await asyncio.sleep(RETRY_SECONDS)
            return
        self.position = max(self.position, scan.end)
        self._left_out = {sequence for sequence in self._left_out if sequence > self.position}
        self._scan = None

    def _catch_up(self) -> bool:
        # Everything stored before the start was read. Returns whether that is new.
        if self.caught_up.is_set():
            return False
        self.position = max(self.position, self._stream_end)
        self.caught_up.set()
        return True

    # --- copies

    def _on_copy(self, message: Msg) -> None:
        if not is_copy(message, self._start.stream):
            return
        if len(self._copies) >= MOST_BUFFERED:
            self._copies.clear()
            if self._scan is None:
                self._scan = Scan(end=self.position)
        self._copies.append(message)
        self._changed.set()

    def _drain(self) -> list[T]:
        """The copies in the buffer up to a gap."""
        batch: list[T] = []
        names = self._connection.names
        while self._copies:
            if self._left_out and self._leaves_out(self._copies[0]):
                self._copies.popleft()
                continue
            stored = stored_copy(self._copies[0], names)
            if stored is None or stored.sequence <= self.position:
                self._copies.popleft()
                if stored is not None:  # a scan has read it, or the stream was recreated
                    self._next_check = 0.0
                continue
            if self._start.is_whole and stored.sequence != self.position + 1:
                self._scan = Scan(end=stored.sequence - 1)
                break
            self._copies.popleft()
            self.position = stored.sequence
            batch.append(self._convert(stored))
        return batch

    def _leaves_out(self, copy: Msg) -> bool:
        # Whether to skip the next copy; then it counts as read, at a third of the cost.
        sequence = stored_sequence(copy)
        if sequence not in self._left_out or (self._start.is_whole and sequence != self.position + 1):
            return False
        self._left_out.discard(sequence)
        self.position = max(self.position, sequence)
        return True

    def _on_sweep(self, now: float) -> None:
        # Wakes the reader when the next check is due.
        if now >= self._next_check:
            self._changed.set()

    def _check(self) -> None:
        """Ask whether the stream has more than has arrived. Copies are yielded meanwhile.

        Without an answer the next check asks again.
        """
        asked_at = self.position

        def on_info(info: StreamInfo | BerthError) -> None:
            if isinstance(info, UnansweredError):
                return
            if isinstance(info, BerthError):
                self._failure = info
            else:
                self._compare(info, asked_at)
            self._changed.set()

        self._next_check = self._loop.time() + self._check_seconds
        stream_info_soon(self._connection, self._start.stream, on_info)

    def _compare(self, info: StreamInfo, position: int) -> None:
        last = info.state.last_seq
        if last < position or info.created != self._created:
            self._connection.lose(f"stream {self._start.stream} was recreated: last sequence {last}, ours {position}")
        while self.position + 1 in self._left_out:
            self.position += 1
            self._left_out.discard(self.position)
        if last > self.position and not self._copies and self._scan is None:
            self._scan = Scan(end=last)


@dataclass(slots=True, kw_only=True)
class Scan:
    """Reading by Direct Get from the reader's position to at least ``end``."""

    end: int
    since: timedelta | None = None
    tries_left: int = RETRIES
