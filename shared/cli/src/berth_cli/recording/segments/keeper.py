"""Keeps the last hour of the bus as segments (`berth record --keep`).

Each segment is an ordinary recording, with NATS's stored messages. It ends when its successor has reached its position,
so that there is no gap.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Final

from berth.api.config.configuration import KubeSchedulerConfiguration
from berth.bus.interface import Session
from berth.bus.topology import DECISIONS
from berth.errors import first_error
from berth.exits import UsageError
from berth_cli.recording.configuration import recorded_header
from berth_cli.recording.file import (
    MOST_BYTES,
    MOST_FRAME_BYTES,
    Header,
    RecordingWriteError,
    RecordingWriter,
    Source,
)
from berth_cli.recording.recorder import FLUSH, AskQueue, OnBegun, Recorder
from berth_cli.recording.segments.folder import SEGMENTS, SegmentFolder

TRY_AGAIN: Final = timedelta(seconds=5)  # until a disk that failed is tried again
# How long a segment is continued until its successor has caught up. Beyond it there is a gap.
OVERLAP: Final = timedelta(seconds=10)

OnDisk = Callable[[str], None]  # called with the reason when recording stops, and with "" when it goes on


class Keeper:
    """Writes segments into a folder, over one session after another."""

    def __init__(
        self,
        folder: SegmentFolder,
        configuration: KubeSchedulerConfiguration,
        ask: AskQueue,
        *,
        on_disk: OnDisk,
        on_missing: OnBegun,
    ) -> None:
        """``ask``: asks the watcher for waiting pods; ``on_missing`` is called with the reason if they are unknown."""
        self._folder = folder
        self._configuration = configuration
        self._ask = ask
        self._on_disk = on_disk
        self._on_missing = on_missing

    async def follow(self, session: Session, *, on_begun: Callable[[], None]) -> None:
        """Record until cancelled. ``on_begun`` is called once every stored message is written.

        Raises:
            BusLostError: the connection is lost. Earlier records are written.
        """
        running: list[_Segment] = []
        reason = "NATS was lost"
        try:
            while True:
                try:
                    running.append(await self._create(session))
                    await running[-1].begin()
                    if len(running) > 1:
                        await running[0].read_up_to(running[-1].positions)
                        await running[0].end("the next segment follows")
                        running.pop(0)
                    self._on_disk("")
                    on_begun()
                    await self._until_due(running[0])
                except (RecordingWriteError, UsageError) as error:
                    self._on_disk(str(error))
                    for segment in running:
                        await segment.end("")
                    running.clear()
                    self._folder.remove_old()
                    await asyncio.sleep(TRY_AGAIN.total_seconds())
        except asyncio.CancelledError:
            reason = "it was stopped"
            raise
        finally:
            for segment in running:
                await segment.end(reason)

    async def _create(self, session: Session) -> _Segment:
        head = recorded_header(self._configuration, session.bus_id, (await session.state(DECISIONS)).now)
        return _Segment(self._folder.next_path(head.at), head, session, self._ask, self._on_missing)

    async def _until_due(self, segment: _Segment) -> None:
        """Wait until the segment is old, or large and half of it changes."""
        most = max(self._folder.most_bytes // SEGMENTS, 2 * segment.written)
        until = asyncio.get_running_loop().time() + self._folder.length.total_seconds()
        while asyncio.get_running_loop().time() < until and segment.written < most and segment.has_room:
            await segment.wait(FLUSH)
            self._folder.remove_old()


class _Segment:
    def __init__(self, path: Path, head: Header, session: Session, ask: AskQueue, on_missing: OnBegun) -> None:
        """Begin a segment.

        Raises:
            UsageError: the file cannot be created.
        """
        self._path = path
        self._writer = RecordingWriter.create(path, head)
        self._recorder = Recorder(session, self._writer, ask)
        self._task = asyncio.create_task(self._recorder.run(on_begun=on_missing))

    @property
    def positions(self) -> dict[Source, int]:
        return self._recorder.positions

    @property
    def written(self) -> int:
        return self._writer.written

    @property
    def has_room(self) -> bool:
        """Whether a replay could also read the messages until the next segment has begun."""
        return self._writer.size < MOST_BYTES - 2 * MOST_FRAME_BYTES

    async def begin(self) -> None:
        """Wait until every stored message is written. Raises as :meth:`wait`."""
        while not self._recorder.has_begun.is_set():
            await self.wait(FLUSH / 20)

    async def read_up_to(self, positions: dict[Source, int]) -> None:
        """Wait until it has reached the next segment's begin, or a time limit. Raises as :meth:`wait`."""
        with suppress(TimeoutError):
            async with asyncio.timeout(OVERLAP.total_seconds()):
                while any(self.positions[source] < position for source, position in positions.items()):
                    await self.wait(FLUSH / 20)

    async def wait(self, seconds: timedelta) -> None:
        """Wait.

        Raises:
            RecordingWriteError: it cannot be written meanwhile.
            BusLostError: the connection is lost meanwhile.
        """
        try:
            async with asyncio.timeout(seconds.total_seconds()):
                await asyncio.shield(self._task)
        except TimeoutError:
            return
        except BaseExceptionGroup as group:
            raise first_error(group) from group

    async def end(self, reason: str) -> None:
        """Write the end; leave an unwritable file as it is, and remove one without a begin."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        with suppress(RecordingWriteError):
            self._recorder.end(reason)
        if not self._recorder.has_begun.is_set():
            self._path.unlink(missing_ok=True)
