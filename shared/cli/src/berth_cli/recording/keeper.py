"""Keeps the last hour of the bus as segments (`berth record --keep`): reads one session, and writes while it lasts.

The loop reads and remembers what counts (:class:`Checkpoint`); one thread writes, so that a
slow disk does not keep the loop from reading. A segment begins with what counted at the moment when the one before it
ended. What the disk did not take is not in any segment: the next one begins with what counts then, and follows none.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final, TypeVar

import msgspec

from berth.api.config.configuration import KubeSchedulerConfiguration
from berth.bus.interface import Session
from berth.bus.topology import DECISIONS
from berth.exits import UsageError
from berth_cli.recording.checkpoint import Checkpoint
from berth_cli.recording.configuration import recorded_configuration
from berth_cli.recording.file import FRAME_BYTES, Begun, Header, Recorded, RecordingWriteError, Waiting, header
from berth_cli.recording.recorder import FLUSH, AskQueue, BusReading, ask_who_waits
from berth_cli.recording.segments import SEGMENTS, Segment, SegmentFolder, segment_length

T = TypeVar("T")

MOST_WAITING: Final = 64 << 20
"""Bytes of messages that may wait for the disk, in memory."""
TRY_AGAIN: Final = timedelta(seconds=5)
"""Until a disk that took nothing is tried again. Each try writes all that counts."""

POD_BYTES: Final = 400
"""Of a pod that waits, in a list."""

OnDisk = Callable[[str], None]
"""Called with why nothing is recorded; empty: it is again."""
OnMissing = Callable[[str], None]
"""Called with why it is not known which pods wait; empty: it is."""


@dataclass(frozen=True, slots=True)
class _NatsClock:
    """NATS's clock, as it was read at the begin of a session."""

    read: datetime
    at: float = field(default_factory=time.monotonic)

    def now(self) -> datetime:
        return self.read + timedelta(seconds=time.monotonic() - self.at)


class _Following:
    """What has been read of a session: what counts, and what has not been written."""

    def __init__(self, session: Session, clock: _NatsClock) -> None:
        self.session = session
        self.clock = clock
        self.checkpoint = Checkpoint()
        self.reading = BusReading(session, self._received)
        self.has_lost = False
        """Whether messages were dropped, so that a segment with what follows would lack them."""
        self.has_begun = asyncio.Event()
        """Set with each segment; cleared when it is asked which pods wait."""
        self._waiting: list[Recorded | Waiting] = []
        self._bytes = 0
        self._has_started = False
        self._wake = asyncio.Event()
        self._try_again_at = 0.0

    @property
    def may_try_again(self) -> bool:
        return time.monotonic() >= self._try_again_at

    def try_again_later(self) -> None:
        self._try_again_at = time.monotonic() + TRY_AGAIN.total_seconds()

    def start(self) -> list[Recorded | Waiting]:
        """What has been read so far. From now on it is dropped when it waits for too long."""
        waiting, self._has_started, self.has_lost = self.take(), True, False
        return waiting

    def take(self) -> list[Recorded | Waiting]:
        """What has been read since."""
        waiting, self._waiting, self._bytes = self._waiting, [], 0
        return waiting

    async def wait(self) -> None:
        """Until there is a frame to write, or a second has passed."""
        self._wake.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(FLUSH.total_seconds()):
                await self._wake.wait()

    def waits(self, waiting: Waiting) -> None:
        """Pods wait, as the watcher says."""
        size = POD_BYTES * len(waiting.pods) + sum(len(each.data) for each in waiting.decisions)
        self._add([waiting], size)

    def _received(self, records: list[Recorded]) -> None:
        for record in records:
            self.checkpoint.add(record)
        self._add(records, sum(len(record.data) + len(record.base64 or "") for record in records))

    def _add(self, records: Sequence[Recorded | Waiting], size: int) -> None:
        self._bytes += size
        if not self.has_lost:
            self._waiting += records
        if self._has_started and self._bytes > MOST_WAITING:
            self.has_lost = True
            self.take()
        if self._bytes >= FRAME_BYTES:
            self._wake.set()


class Keeper:
    """Writes segments into a folder, of one session after the other."""

    def __init__(  # noqa: PLR0913 - where, what, and who is told
        self,
        folder: SegmentFolder,
        configuration: KubeSchedulerConfiguration,
        ask: AskQueue,
        *,
        keep: timedelta,
        on_disk: OnDisk,
        on_missing: OnMissing,
    ) -> None:
        """``ask``: how the watcher is asked which pods wait."""
        self._folder = folder
        self._ask = ask
        self._on_missing = on_missing
        self._configuration = configuration
        self._length = segment_length(keep)
        self._on_disk = on_disk
        self._disk = ThreadPoolExecutor(max_workers=1, thread_name_prefix="berth-segments")
        self._segment: Segment | None = None

    async def follow(self, session: Session, *, on_begun: Callable[[], None]) -> None:
        """Record until cancelled. ``on_begun`` is called once everything that was stored is written.

        Raises:
            BusLostError: the connection is lost. What was recorded before is written.
        """
        following = _Following(session, _NatsClock((await session.state(DECISIONS)).now))
        reason = "NATS was lost"
        try:
            async with following.reading.following(), asyncio.TaskGroup() as tasks:
                tasks.create_task(self._ask_who_waits(following), name="who waits")
                await self._begin(following, is_first=True)
                on_begun()
                while True:
                    await following.wait()
                    await self._write(following)
        except asyncio.CancelledError:
            reason = "it was stopped"
            raise
        finally:
            await self._in_thread(self._end, following.take(), reason)

    def close(self) -> None:
        """Wait until everything is written."""
        self._disk.shutdown()

    async def _ask_who_waits(self, following: _Following) -> None:
        """Ask for each segment, again until the watcher answers."""
        while True:
            await following.has_begun.wait()
            following.has_begun.clear()
            while missing := await ask_who_waits(following.session, self._ask, following.waits):
                self._on_missing(missing)
                await asyncio.sleep(TRY_AGAIN.total_seconds())
            self._on_missing("")

    async def _write(self, following: _Following) -> None:
        """Write what has arrived; begin the next segment when it is time."""
        if self._segment is None or following.has_lost:
            following.take()
            if following.may_try_again:
                await self._begin(following)
            return
        records, now = following.take(), following.clock.now()
        is_due = now - self._segment.at >= self._length or self._segment.is_long(self._folder.most_bytes // SEGMENTS)
        if is_due:
            begin = (following.checkpoint.records(), following.reading.begun, self._head(following, now))
            if await self._to_disk(following, self._go_on, records, *begin):
                following.has_begun.set()
        else:
            await self._to_disk(following, self._segment.write, records)
        await self._in_thread(self._folder.remove_old, now, self._segment)

    async def _begin(self, following: _Following, *, is_first: bool = False) -> None:
        """Begin a segment that follows none; the first one with all that was read."""
        now = following.clock.now()
        await self._in_thread(self._end, [], "what follows is missing")
        await self._in_thread(self._folder.remove_old, now, None)
        read = following.start()
        checkpoint = read if is_first else following.checkpoint.records()
        if await self._to_disk(following, self._start, checkpoint, following.reading.begun, self._head(following, now)):
            self._on_disk("")
            following.has_begun.set()

    def _head(self, following: _Following, now: datetime) -> Header:
        return header(
            at=now,
            bus_id=following.session.bus_id,
            config=self._configuration.digest,
            release=self._configuration.release,
            configuration=recorded_configuration(self._configuration),
        )

    async def _to_disk(self, following: _Following, work: Callable[..., None], *given: object) -> bool:
        try:
            await self._in_thread(work, *given)
        except (RecordingWriteError, UsageError) as error:
            self._on_disk(str(error))
            await self._in_thread(self._abandon)
            following.try_again_later()
            return False
        return True

    async def _in_thread(self, work: Callable[..., T], *given: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._disk, work, *given)

    # --- in the thread

    def _start(self, checkpoint: list[Recorded | Waiting], begun: Begun, head: Header) -> None:
        self._segment = Segment(self._folder.next_path(head.at), head, checkpoint, begun)

    def _go_on(
        self, records: list[Recorded | Waiting], checkpoint: list[Recorded | Waiting], begun: Begun, head: Header
    ) -> None:
        """End the segment with these records, and begin the one that follows it; one without its end has none."""
        if self._segment is not None:
            before = self._segment
            before.write(records)
            before.end("the next segment follows")
            self._segment = None
            self._folder.ended(before)
            self._start(checkpoint, begun, msgspec.structs.replace(head, follows=before.path.name))

    def _end(self, records: list[Recorded | Waiting], reason: str) -> None:
        segment, self._segment = self._segment, None
        if segment is None:
            return
        try:
            segment.write(records)
            segment.end(reason)
        except RecordingWriteError:  # then it is one that was cut off
            segment.abandon()
        self._folder.ended(segment)

    def _abandon(self) -> None:
        segment, self._segment = self._segment, None
        if segment is not None:
            segment.abandon()
            self._folder.ended(segment)
