"""Keeps the last hour of the bus as segments (`berth record --keep`).

A segment is what `berth record` writes. The next one begins while it is still written, so that together they lack
nothing: each reads what is stored from NATS, and ends when the one after it has been read as far.
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
from berth_cli.recording.segments import SEGMENTS, SegmentFolder

TRY_AGAIN: Final = timedelta(seconds=5)
"""Until a disk that took nothing is tried again."""
OVERLAP: Final = timedelta(seconds=10)
"""How long a segment may be read further until it has what the next one begins with. After that there is a gap."""

OnDisk = Callable[[str], None]
"""Called with why nothing is recorded; empty: it is again."""


class Keeper:
    """Writes segments into a folder, of one session after the other."""

    def __init__(
        self,
        folder: SegmentFolder,
        configuration: KubeSchedulerConfiguration,
        ask: AskQueue,
        *,
        on_disk: OnDisk,
        on_missing: OnBegun,
    ) -> None:
        """``ask``: how the watcher is asked which pods wait; ``on_missing`` is called with why that is not known."""
        self._folder = folder
        self._configuration = configuration
        self._ask = ask
        self._on_disk = on_disk
        self._on_missing = on_missing

    async def follow(self, session: Session, *, on_begun: Callable[[], None]) -> None:
        """Record until cancelled. ``on_begun`` is called once everything that was stored is written.

        Raises:
            BusLostError: the connection is lost. What was recorded before is written.
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
        """Until the next segment should begin: it has lasted, or it is large and half of it are changes."""
        most = max(self._folder.most_bytes // SEGMENTS, 2 * segment.written)
        until = asyncio.get_running_loop().time() + self._folder.length.total_seconds()
        while asyncio.get_running_loop().time() < until and segment.written < most and segment.has_room:
            await segment.wait(FLUSH)
            self._folder.remove_old()


class _Segment:
    """A recorder that runs, and the file that it writes."""

    def __init__(self, path: Path, head: Header, session: Session, ask: AskQueue, on_missing: OnBegun) -> None:
        """Raises: UsageError: the file cannot be created."""
        self._path = path
        self._writer = RecordingWriter.create(path, head)
        self._recorder = Recorder(session, self._writer, ask)
        self._task = asyncio.create_task(self._recorder.run(on_begun=on_missing))

    @property
    def positions(self) -> dict[Source, int]:
        """Up to where each source has been read."""
        return self._recorder.positions

    @property
    def written(self) -> int:
        """Bytes of the file."""
        return self._writer.written

    @property
    def has_room(self) -> bool:
        """Whether a replay would read what comes until the next segment has begun too."""
        return self._writer.size < MOST_BYTES - 2 * MOST_FRAME_BYTES

    async def begin(self) -> None:
        """Until everything that was stored has been written. Raises as :meth:`wait`."""
        while not self._recorder.has_begun.is_set():
            await self.wait(FLUSH / 20)

    async def read_up_to(self, positions: dict[Source, int]) -> None:
        """Until it has what the next segment begins with, or that takes too long. Raises as :meth:`wait`."""
        with suppress(TimeoutError):
            async with asyncio.timeout(OVERLAP.total_seconds()):
                while any(self.positions[source] < position for source, position in positions.items()):
                    await self.wait(FLUSH / 20)

    async def wait(self, seconds: timedelta) -> None:
        """Some time.

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
        """Write the end; leave the file as it is where that cannot be written, and remove one without a begin."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        with suppress(RecordingWriteError):
            self._recorder.end(reason)
        if not self._recorder.has_begun.is_set():
            self._path.unlink(missing_ok=True)
