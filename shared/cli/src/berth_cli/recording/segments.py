"""The folder of `berth record --keep`: a recording in segments, each of which is an ordinary recording of its own.

A segment is called ``000017-20261125T101500Z.berth``: its number, and when it begins by NATS's clock. Its header names
the segment that it follows when nothing is missing between the two. One recorder at a time has the folder's lock, which
ends with its process.
"""

from __future__ import annotations

import fcntl
import os
import re
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from berth.exits import UsageError
from berth_cli.recording.file import Begun, Header, Recorded, RecordingWriter, Waiting

LOCK: Final = "recorder.lock"
SEGMENTS: Final = 12
"""Into so many the time and the size that are kept are cut: as much more than asked for is in a recording of them."""
_LONGEST: Final = timedelta(minutes=10)
_NAME: Final = re.compile(r"(\d{6,18})-(\d{8}T\d{6})Z\.berth", re.ASCII)
_TIME: Final = "%Y%m%dT%H%M%S"
_SHOWN: Final = 200
"""Characters of what is in the lock's file, which says who has it."""


def segment_length(keep: timedelta) -> timedelta:
    """When the next segment begins, if this much is kept."""
    return min(keep / SEGMENTS, _LONGEST)


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentFile:
    """A segment as its name has it."""

    path: Path
    number: int
    at: datetime
    """When it begins, to the second."""


def segments_in(folder: Path) -> list[SegmentFile]:
    """The segments of a folder, oldest first. Other files are none of them.

    Raises:
        UsageError: the folder cannot be read.
    """
    try:
        found = [_named(path) for path in folder.iterdir()]
    except OSError as exc:
        raise UsageError(
            f"reading {str(folder)!r}: {exc.strerror}: want the folder of a `berth record --keep`"
        ) from exc
    return sorted((each for each in found if each is not None), key=lambda each: each.number)


def _named(path: Path) -> SegmentFile | None:
    match = _NAME.fullmatch(path.name)
    if match is None:
        return None
    try:
        at = datetime.strptime(match[2], _TIME).replace(tzinfo=UTC)
    except ValueError:  # no such day
        return None
    return SegmentFile(path=path, number=int(match[1]), at=at)


class Segment:
    """A segment that is written."""

    def __init__(self, path: Path, head: Header, checkpoint: Sequence[Recorded | Waiting], begun: Begun) -> None:
        """Create it, with what it begins with.

        Raises:
            UsageError: it cannot be created.
            RecordingWriteError: it cannot be written. Then there is none.
        """
        self.path = path
        self.at = head.at
        self._writer = RecordingWriter.create(path, head)
        try:
            self.write(checkpoint)
            self._writer.add(begun)
            self._writer.flush()
        except BaseException:
            self.abandon()
            with suppress(OSError):
                path.unlink()
            raise
        self._checkpoint_bytes = self._writer.written

    @property
    def written(self) -> int:
        """Bytes of the file."""
        return self._writer.written

    def is_long(self, most_bytes: int) -> bool:
        """Whether the next one should begin: it has so many bytes, half of them changes, or is all that is replayed."""
        return self._writer.is_full or self.written >= max(most_bytes, 2 * self._checkpoint_bytes)

    def write(self, records: Sequence[Recorded | Waiting]) -> None:
        """Write records to the disk.

        Raises:
            RecordingWriteError: it cannot be written.
        """
        for record in records:
            self._writer.add(record)
            if self._writer.has_frame:
                self._writer.write_frames()
        self._writer.flush()

    def end(self, reason: str) -> None:
        """Write the end, and close it. Raises as :meth:`write`."""
        self._writer.end(reason)

    def abandon(self) -> None:
        """Close it as it is on the disk."""
        self._writer.drop()


class SegmentFolder:
    """The folder of the one recorder that keeps segments there."""

    def __init__(self, path: Path, *, keep: timedelta, most_bytes: int) -> None:
        self.path = path
        self.most_bytes = most_bytes
        self._keep = keep + segment_length(keep)
        there = segments_in(path)
        self._ended = list(_with_sizes(there))
        self._number = max((each.number for each in there), default=0)

    @property
    def summary(self) -> tuple[int, int]:
        """How many segments there are, and their bytes."""
        return len(self._ended), sum(size for _, size in self._ended)

    def next_path(self, at: datetime) -> Path:
        """The file of the next segment."""
        self._number += 1
        return self.path / f"{self._number:06}-{at.astimezone(UTC).strftime(_TIME)}Z.berth"

    def ended(self, segment: Segment) -> None:
        """The segment is written no more."""
        found = _named(segment.path)
        if found is not None:
            self._ended.append((found, segment.written))

    def remove_old(self, now: datetime, current: Segment | None) -> None:
        """Remove the oldest segments: those that the time that is kept does not need, and then what is too much.

        One more stays than is needed, for whoever is reading it.
        """
        begins = [each.at for each, _ in self._ended[1:]] + ([current.at] if current else [])
        old = _not_needed(begins, now - self._keep, now)
        size = sum(size for _, size in self._ended[old:]) + (current.written if current else 0)
        while size > self.most_bytes and old < len(self._ended):
            size -= self._ended[old][1]
            old += 1
        for each, _ in self._ended[:old]:
            with suppress(OSError):  # somebody else has
                each.path.unlink()
        del self._ended[:old]


def _with_sizes(segments: list[SegmentFile]) -> Iterator[tuple[SegmentFile, int]]:
    for each in segments:
        try:
            size = each.path.stat().st_size
        except OSError:  # a link to nothing, or somebody has removed it since
            continue
        yield each, size


def _not_needed(begins: list[datetime], limit: datetime, now: datetime) -> int:
    """How many segments are followed by one that begins by the limit.

    One that begins after now says nothing: NATS's clock has been set back since.
    """
    found = 0
    for number, each in enumerate(begins, start=1):
        if each <= limit:
            found = number
        elif each <= now:
            break
    return found


@contextmanager
def locked_folder(path: Path, *, keep: timedelta, most_bytes: int) -> Iterator[SegmentFolder]:
    """The folder, created if it is missing, which in the block no other recorder can have.

    Raises:
        UsageError: it cannot be used, or another recorder has it.
    """
    what = f"keeping segments in {str(path)!r}"
    try:
        path.mkdir(mode=0o700, exist_ok=True)
        descriptor = os.open(path / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as exc:
        raise UsageError(f"{what}: {exc.strerror}: name a folder that can be written to") from exc
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as exc:
            who = os.pread(descriptor, _SHOWN, 0).decode(errors="replace").strip() or "unknown"
            raise UsageError(f"{what}: another recorder has it, {who}: end that one, or name another folder") from exc
        except OSError as exc:  # as of a network file system without locks
            raise UsageError(f"{what}: locking it: {exc.strerror}: name a folder on a disk that has locks") from exc
        try:
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
        except OSError:  # a full disk; it is only for people
            pass
        yield SegmentFolder(path, keep=keep, most_bytes=most_bytes)
    finally:
        os.close(descriptor)
