"""Records a bus: what is stored, then every change, until it is told to end.

It reads as a user who may only look: Direct Get, and the copies that streams publish of what they store. No service
knows of it. The queues PENDING and RANKED are read in the same way, so messages are recorded that are gone at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from datetime import timedelta
from typing import Final

from berth.bus.interface import BucketReader, Entry, OrderedReader, Session, StoredMessage, StreamReader
from berth.bus.topology import BANDWIDTH, CLUSTER, DECISIONS, FACTS, PENDING, RANKED
from berth.recording.file import Begun, Recorded, RecordingWriter, Source, recorded

FLUSH: Final = timedelta(seconds=1)
"""Between two writes: what a recorder that is killed loses."""
DECISIONS_BEFORE: Final = timedelta(minutes=2)
"""How old the oldest Decisions are that a recording begins with. A scorer that starts reads as many."""

_STREAMS: Final[tuple[Source, ...]] = (PENDING, RANKED, DECISIONS)
_BUCKETS: Final[tuple[Source, ...]] = (CLUSTER, BANDWIDTH, FACTS)

OnBegun = Callable[[], None]
OnRecords = Callable[[list[Recorded]], None]
Change = Callable[[Recorded], Recorded]


def unchanged(record: Recorded) -> Recorded:
    return record


class BusReading:
    """Reads every source of a recording: what is stored, then what follows. ``received`` gets it batch by batch."""

    def __init__(self, session: Session, received: OnRecords) -> None:
        self._session = session
        self._received = received
        self._readers: dict[Source, OrderedReader] = {}

    @property
    def begun(self) -> Begun:
        """Up to where each source has been received."""
        return Begun(positions={name: each.position for name, each in self._readers.items()})

    @asynccontextmanager
    async def following(self) -> AsyncIterator[None]:
        """When the block starts, everything that was stored has been received; in it, what follows is.

        The queues come first: what moves on meanwhile is met in the next stream, and not missed.

        Raises:
            BusLostError: the connection is lost.
        """
        async with AsyncExitStack() as stack:
            tasks = await stack.enter_async_context(asyncio.TaskGroup())
            for source in _STREAMS:
                since = DECISIONS_BEFORE if source == DECISIONS else None
                stream = await stack.enter_async_context(self._session.read_stream(source, since=since))
                self._readers[source] = stream
                stack.callback(tasks.create_task(self._follow_stream(source, stream), name=source).cancel)
                await stream.caught_up.wait()
            for source in _BUCKETS:
                bucket = await stack.enter_async_context(self._session.read_bucket(source))
                self._readers[source] = bucket
                stack.callback(tasks.create_task(self._follow_bucket(source, bucket), name=source).cancel)
                await bucket.caught_up.wait()
            yield

    async def _follow_stream(self, source: Source, reader: StreamReader) -> None:
        async for batch in reader.batches():
            self._received([_of_stream(source, message) for message in batch])

    async def _follow_bucket(self, source: Source, reader: BucketReader) -> None:
        async for batch in reader.batches():
            self._received([_of_bucket(source, entry) for entry in batch])


class Recorder:
    """Writes what a session reads. ``change``: what is written in place of each record."""

    def __init__(self, session: Session, writer: RecordingWriter, change: Change = unchanged) -> None:
        self._reading = BusReading(session, self._add)
        self._change = change
        self._writer = writer
        self._wake = asyncio.Event()

    async def run(self, *, on_begun: OnBegun) -> str:
        """Record until cancelled, or until the recording is as large as a replay reads; returns why it ended.

        ``on_begun`` is called once everything that was stored has been read and written.

        Raises:
            BusLostError: the connection is lost. What was recorded before is written.
            RecordingWriteError: it cannot be written.
        """
        async with self._reading.following():
            self._writer.add(self._reading.begun)
            self._writer.flush()
            on_begun()
            while not self._writer.is_full:
                await self._next_flush()
        return "the recording is as large as a replay reads"

    def end(self, reason: str) -> None:
        """Write the end, so that the recording is known to be whole.

        Raises:
            RecordingWriteError: it cannot be written.
        """
        self._writer.end(reason)

    def _add(self, records: list[Recorded]) -> None:
        for record in records:
            self._writer.add(self._change(record))
        if self._writer.has_frame:
            self._wake.set()

    async def _next_flush(self) -> None:
        self._wake.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(FLUSH.total_seconds()):
                await self._wake.wait()
        self._writer.flush()


def _of_stream(source: Source, message: StoredMessage) -> Recorded:
    return recorded(source, message.sequence, message.time, message.subject, message.data)


def _of_bucket(source: Source, entry: Entry) -> Recorded:
    return recorded(source, entry.sequence, entry.time, entry.key, entry.data)
