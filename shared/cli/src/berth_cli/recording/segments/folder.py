"""The folder of `berth record --keep`: segments that overlap.

A segment is called ``000017-20261125T101500Z.berth``: its number, and its begin by NATS's clock. One recorder at a time
holds the folder's lock, which ends with its process.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Final

from berth.exits import UsageError

LOCK: Final = "recorder.lock"
SEGMENTS: Final = 12  # number of segments for the kept time and size
_LONGEST: Final = timedelta(minutes=10)
_NAME: Final = re.compile(r"(\d{6,18})-(\d{8}T\d{6})Z\.berth", re.ASCII)
_TIME: Final = "%Y%m%dT%H%M%S"
_SHOWN: Final = 200  # characters of the lock file, which names its process, in an error


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentFile:
    path: Path
    number: int
    at: datetime


def segments_in(folder: Path) -> list[SegmentFile]:
    """The segments of a folder, oldest first; other files are ignored.

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


class SegmentFolder:
    """The folder of its one recorder."""

    def __init__(self, path: Path, *, keep: timedelta, most_bytes: int) -> None:
        self.path = path
        self.length = min(keep / SEGMENTS, _LONGEST)  # duration of a segment
        self.most_bytes = most_bytes  # of all segments together
        self._keep = keep

    @property
    def size(self) -> int:
        return sum(_size(each) for each in segments_in(self.path))

    def next_path(self, at: datetime) -> Path:
        number = max((each.number for each in segments_in(self.path)), default=0) + 1
        return self.path / f"{number:06}-{at.astimezone(UTC).strftime(_TIME)}Z.berth"

    def remove_old(self) -> None:
        """Remove the oldest segments: those before the kept time, then those above the size.

        The newest one, which may be open, stays.
        """
        there = segments_in(self.path)
        size = sum(_size(each) for each in there)
        for each, following in pairwise(there):
            if there[-1].at - following.at < self._keep and size <= self.most_bytes:
                return
            size -= _size(each)
            with suppress(OSError):  # Another process removed it.
                each.path.unlink()


def _size(segment: SegmentFile) -> int:
    try:
        return segment.path.lstat().st_size
    except OSError:  # It was removed since.
        return 0


def _is_own_file(there: os.stat_result) -> bool:
    return stat.S_ISREG(there.st_mode) and there.st_uid == os.geteuid() and there.st_nlink == 1


@contextmanager
def locked_folder(path: Path, *, keep: timedelta, most_bytes: int) -> Iterator[SegmentFolder]:
    """The folder, created if missing and locked inside the block.

    Raises:
        UsageError: it cannot be used, or another recorder holds it.
    """
    what = f"keeping segments in {str(path)!r}"
    try:
        path.mkdir(mode=0o700, exist_ok=True)
        # The folder may be shared: its other users may put a link or a pipe in place of the lock.
        descriptor = os.open(path / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
    except OSError as exc:
        if exc.errno == errno.ELOOP:
            raise UsageError(f"{what}: {LOCK} is a link: remove it, or name a folder of your own") from exc
        raise UsageError(f"{what}: {exc.strerror}: name a folder that can be written to") from exc
    try:
        if not _is_own_file(os.fstat(descriptor)):
            raise UsageError(f"{what}: {LOCK} is not this user's own file: remove it, or name another folder")
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as exc:
            who = os.pread(descriptor, _SHOWN, 0).decode(errors="replace").strip() or "unknown"
            raise UsageError(f"{what}: another recorder has it, {who}: end that one, or name another folder") from exc
        except OSError as exc:  # As on a network file system without locks.
            raise UsageError(f"{what}: locking it: {exc.strerror}: name a folder on a disk that has locks") from exc
        try:
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
        except OSError:  # A full disk; the text is only for people.
            pass
        yield SegmentFolder(path, keep=keep, most_bytes=most_bytes)
    finally:
        os.close(descriptor)
