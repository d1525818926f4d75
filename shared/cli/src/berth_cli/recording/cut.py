"""One ordinary recording of what `berth record --keep` has in its folder: the last half hour, or up to some time.

It begins where a segment begins: with that one's checkpoint, and who waited then. Then come the changes of all segments
that follow, whose own checkpoints say nothing more; who waited at last is in the last two. It is read while the
recorder writes: what is whole in the newest segment is taken.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

from berth.errors import DecodeError
from berth.exits import UsageError
from berth_cli.recording.file import (
    MOST_BYTES,
    MOST_FRAME_BYTES,
    Begun,
    Change,
    Ended,
    Header,
    Record,
    Recorded,
    RecordingError,
    RecordingWriter,
    Source,
    Waiting,
    is_recording,
    lines_of,
    opened_recording,
)
from berth_cli.recording.segments import SegmentFile, segments_in

_BEGUN: Final = b'{"record":"begun"'
"""How the line begins that ends a checkpoint."""
_MOVE_AWAY: Final = "or move that file away and take what is before it (--until) or after it"
_LAST_LISTS: Final = 2
"""Segments at the end whose lists of pods that wait are taken: the newest may have begun a moment ago."""
_NOTHING: Final = "nothing before that is kept"


class SegmentGoneError(RecordingError):
    """A segment was removed while it was about to be read. What is there now can be taken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """Which segments a recording is made of. ``less`` says why there is less than was asked for, if there is."""

    segments: list[SegmentFile]
    head: Header
    until: datetime | None
    less: str = ""


@dataclass(slots=True)
class CutWritten:
    """What was written: the times of the begin and of the newest message."""

    begin: datetime
    newest: datetime
    _last: dict[Source, int] = field(default_factory=dict)

    def add(self, record: Recorded) -> None:
        """Raises: DecodeError: it is not the next one of its source."""
        before = self._last.get(record.source, -1)
        if record.sequence <= before:
            wanted = f"want {record.source} after {before}, where the segment ends that it follows"
            raise DecodeError(f"{wanted}, got {record.sequence}")
        self._last[record.source] = record.sequence
        self.newest = max(self.newest, record.time)


class _Until:
    """What is taken of a recording that ends at a time: of each source what comes before the first message after it.

    NATS's clock may have been set back, so that messages of before the time follow others of after it.
    """

    def __init__(self, until: datetime | None) -> None:
        self._until = until
        self._has_begun = False
        self._over: set[Source] = set()

    def begin(self) -> None:
        """Changes follow. What was there when the segment began is taken, whatever the clock said."""
        self._has_begun = True

    def takes(self, record: Recorded) -> bool:
        if self._has_begun and self._until is not None and record.time > self._until:
            self._over.add(record.source)
        return record.source not in self._over

    def takes_list(self, waiting: Waiting) -> bool:
        return self._until is None or waiting.at <= self._until


def choose(folder: Path, since: timedelta, until: datetime | None) -> Cut:
    """The segments of the last while before ``until``, or before the newest message.

    Raises:
        UsageError: there are none.
        SegmentGoneError: one has gone meanwhile.
        RecordingError: one of them cannot be read.
    """
    with _advising():
        heads = _Heads(folder)
        newest = next((each for each in reversed(heads.files) if heads.is_usable(each, until)), None)
        if newest is None:
            when = f" that begins before {until.isoformat()}" if until else ""
            raise UsageError(f"reading {str(folder)!r}: it has no segment of a `berth record --keep`{when}")
        chosen, less = _back_to(_end_of(newest, until), since, newest, heads)
        return Cut(segments=chosen, head=heads.of(chosen[0]), until=until, less=less)


def write(cut: Cut, writer: RecordingWriter, change: Change) -> CutWritten:
    """Write the recording to its end. ``change``: what is written in place of each record.

    Raises:
        SegmentGoneError: a segment has gone meanwhile.
        RecordingError: a segment cannot be read.
        RecordingWriteError: it cannot be written.
    """
    written, until = CutWritten(begin=cut.head.at, newest=cut.head.at), _Until(cut.until)
    for segment, record in _records(cut.segments):
        if isinstance(record, Begun):
            until.begin()
            writer.add(record)
        elif isinstance(record, Waiting) and until.takes_list(record):
            writer.add(change(record))
        elif isinstance(record, Recorded) and until.takes(record):
            _check(written, record, segment)
            writer.add(change(record))
        if writer.has_frame:
            writer.write_frames()
        if writer.is_full:  # the newest segment has grown since its size was looked at
            break
    writer.end(f"it was cut from {len(cut.segments)} segments")
    return written


def _records(segments: list[SegmentFile]) -> Iterator[tuple[SegmentFile, Record]]:
    """All of the first segment, and the changes of the others; of those between no lists of pods that wait.

    Raises: RecordingError: one cannot be read, or one that another follows has no end.
    """
    for number, segment in enumerate(segments):
        has_list, has_ended = number == 0 or number >= len(segments) - _LAST_LISTS, False
        with _advising(), opened_recording(segment.path) as (_, records):
            for record in _without_checkpoint(records) if number else records:
                has_ended = isinstance(record, Ended)
                if has_list or not isinstance(record, Waiting):
                    yield segment, record
            if not has_ended and segment != segments[-1]:
                follows = segments[number + 1].path.name
                raise RecordingError(
                    f"{segment.path}: it lacks its end, which {follows} follows: copy the folder again"
                )


def _check(written: CutWritten, record: Recorded, segment: SegmentFile) -> None:
    try:
        written.add(record)
    except DecodeError as exc:
        raise RecordingError(f"{segment.path}: {exc}: copy the folder again") from exc


def _without_checkpoint(records: Iterator[Record]) -> Iterator[Record]:
    """What comes after a segment has begun."""
    for record in records:
        if isinstance(record, Begun):
            yield from records


@contextmanager
def _advising() -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as exc:
        raise SegmentGoneError(
            f"{exc.filename}: its recorder has removed it meanwhile: take the recording again"
        ) from exc
    except RecordingError as exc:
        raise RecordingError(f"{exc}; {_MOVE_AWAY}") from exc


class _Heads:
    """The headers of a folder's segments, each read once."""

    def __init__(self, folder: Path) -> None:
        self.files = segments_in(folder)
        self._by_name = {each.path.name: each for each in self.files}
        self._heads: dict[Path, Header] = {}

    def of(self, segment: SegmentFile) -> Header:
        if segment.path not in self._heads:
            with opened_recording(segment.path) as (head, _):
                self._heads[segment.path] = head
        return self._heads[segment.path]

    def before(self, segment: SegmentFile) -> SegmentFile | None:
        """The segment that it follows, without anything missing between them."""
        found = self._by_name.get(self.of(segment).follows)
        return found if found is not None and found.number < segment.number else None

    def older(self, segment: SegmentFile) -> SegmentFile | None:
        """The last one before it in the folder that can be used."""
        older = (each for each in reversed(self.files) if each.number < segment.number)
        return next((each for each in older if self.is_usable(each, None)), None)

    def is_usable(self, segment: SegmentFile, until: datetime | None) -> bool:
        """Whether it begins before that, and has its checkpoint: else its recorder was killed while it wrote that."""
        try:
            if not any(line.startswith(_BEGUN) for line in lines_of(segment.path)):
                if segment.path.stat().st_size > 1 and not is_recording(str(segment.path)):
                    self.of(segment)  # no begin of a segment: this says what it is
                return False
            return until is None or self.of(segment).at < until
        except FileNotFoundError:  # its recorder has removed it since
            return False


def _back_to(end: datetime, since: timedelta, newest: SegmentFile, heads: _Heads) -> tuple[list[SegmentFile], str]:
    """The segments from the one that was written so long before the end up to the newest, and why there are fewer."""
    chosen = [newest]
    first, size = _sizes(newest)
    while end - heads.of(chosen[0]).at < since:
        try:
            before = heads.before(chosen[0])
            if before is None:
                return chosen, _what_is_before(chosen[0], heads)
            heads.of(before)  # to have it, should the file be gone after this
            first, changes = _sizes(before)
        except FileNotFoundError:  # its recorder has removed it since
            return chosen, _NOTHING
        size += changes
        if first + size > MOST_BYTES - MOST_FRAME_BYTES:
            begins = heads.of(chosen[0]).at.isoformat()
            return chosen, f"a replay reads {MOST_BYTES} bytes at most: --until {begins} takes what is before"
        chosen.insert(0, before)
    return chosen, ""


def _what_is_before(segment: SegmentFile, heads: _Heads) -> str:
    try:
        older = heads.older(segment)
        if older is None:
            return _NOTHING
        ended = _end_of(older, None).isoformat(timespec="seconds")
    except FileNotFoundError:
        return _NOTHING
    except RecordingError as exc:
        return f"what was before cannot be read: {exc}"
    until = heads.of(segment).at.isoformat()
    return f"the recorder was away before that, since {ended}: --until {until} takes what was before"


def _end_of(segment: SegmentFile, until: datetime | None) -> datetime:
    """The time of the newest message, and at most ``until``."""
    with opened_recording(segment.path) as (head, records):
        newest = max((each.time for each in records if isinstance(each, Recorded)), default=head.at)
    return newest if until is None else min(newest, until)


def _sizes(segment: SegmentFile) -> tuple[int, int]:
    """Bytes of a segment's checkpoint and of its changes."""
    checkpoint = changes = 0
    has_begun = False
    for line in lines_of(segment.path):
        has_begun = has_begun or line.startswith(_BEGUN)
        if has_begun:
            changes += len(line) + 1
        else:
            checkpoint += len(line) + 1
    return checkpoint, changes
