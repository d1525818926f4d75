"""Overlapping recordings read as one: the segments of a folder, or files in the order of recording.

A recording continues another if both have one bus and one configuration, and the first reaches the second's begin. A
gap is never bridged.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import BinaryIO, Final

from berth.exits import UsageError
from berth_cli.recording.file import (
    MOST_BYTES,
    Begun,
    Ended,
    Header,
    NotBegunError,
    Record,
    Recorded,
    Recording,
    RecordingError,
    Source,
    collected,
    opened,
)
from berth_cli.recording.segments.folder import segments_in

_LINE_BYTES: Final = 100  # average bytes of a record's line besides its data


@dataclass(slots=True, kw_only=True)
class OverlappingFile:
    """One file: the begin of its changes, its last position, and its newest message."""

    name: str
    file: BinaryIO
    header: Header
    newest: datetime
    has_begun: bool = False
    begins: dict[Source, int] = field(default_factory=dict)
    reached: dict[Source, int] = field(default_factory=dict)

    @classmethod
    def of(cls, name: str, file: BinaryIO) -> OverlappingFile:
        """Read a file once. Raises as :func:`opened`."""
        header, records = opened(name, file, is_continued=True)
        part = cls(name=name, file=file, header=header, newest=header.at)
        for record in records:
            if isinstance(record, Recorded):
                part.reached[record.source] = record.sequence
                part.newest = max(part.newest, record.time)
            elif isinstance(record, Begun):
                part.has_begun = True
                part.begins = record.positions
                part.reached = dict(record.positions)
            elif isinstance(record, Ended):
                part.reached |= record.positions
        return part

    def why_not_continued_by(self, other: OverlappingFile) -> str:
        """Why the other file does not continue this one; empty if it does."""
        if other.header.bus_id != self.header.bus_id:
            return "it is of another bus, or of one that lost its store"
        if other.header.config != self.header.config:
            return "it was recorded under another configuration"
        if other.header.anonymised or self.header.anonymised:
            return "names are masked, in each recording by other words"
        if any(begin < self.begins.get(source, 0) for source, begin in other.begins.items()):
            return "it begins earlier: name the files in their order"
        behind = [source for source, begin in other.begins.items() if self.reached.get(source, 0) < begin]
        if behind:
            ended = self.newest.isoformat(timespec="seconds")
            return f"the recorder was away since {ended}, while {', '.join(behind)} went on"
        return ""

    def records(self, *, is_continued: bool) -> Iterator[Record]:
        self.file.seek(0)
        return opened(self.name, self.file, is_continued=is_continued)[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """Overlapping files; ``less``: why they cover less than requested; empty if they do not."""

    parts: Sequence[OverlappingFile]
    less: str = ""

    @property
    def header(self) -> Header:
        return self.parts[0].header

    @property
    def newest(self) -> datetime:
        return self.parts[-1].newest

    def records(self) -> Iterator[Record]:
        """The first file, then the others' changes that their predecessor lacks; every list of pods.

        Raises:
            RecordingError: there are more than a replay reads.
        """
        reached: dict[Source, int] = {}
        size = 0
        for part in self.parts:
            for record in part.records(is_continued=part is not self.parts[0]):
                if isinstance(record, Begun) and part is not self.parts[0]:
                    continue
                if isinstance(record, Ended) and part is not self.parts[-1]:
                    continue
                if isinstance(record, Recorded):
                    if record.sequence <= reached.get(record.source, -1):
                        continue
                    reached[record.source] = record.sequence
                    size += _LINE_BYTES + len(record.data) + len(record.base64 or "")
                if size > MOST_BYTES:
                    raise RecordingError(f"{part.name}: want at most {MOST_BYTES} bytes, got more: take fewer segments")
                yield record

    def recording(self) -> Recording:
        """All of it in memory. Raises as :meth:`records`."""
        return collected(self.header, self.records())


@contextmanager
def joined(paths: Sequence[Path], since: timedelta | None = None) -> Iterator[Joined]:
    """The newest of these files or of a folder's segments that continue each other, back to ``since`` before the end.

    The files stay open in the block, so that a recorder may remove them meanwhile.

    Raises:
        UsageError: no segment or file.
        RecordingError: the newest cannot be read.
    """
    with ExitStack() as stack:
        files = list(_opened_files(paths, stack))
        parts, less = _back_to(files, since)
        if not parts:
            raise UsageError(
                f"reading {', '.join(map(str, paths))}: want segments of a `berth record --keep`, got none"
            )
        yield Joined(parts=parts, less=less)


def _opened_files(paths: Sequence[Path], stack: ExitStack) -> Iterator[tuple[str, BinaryIO]]:
    for path in paths:
        for file in [each.path for each in segments_in(path)] if path.is_dir() else [path]:
            try:
                yield str(file), stack.enter_context(file.open("rb"))
            except FileNotFoundError as exc:
                if file == path:
                    raise RecordingError(f"{file}: reading: {exc.strerror}") from exc
                # Otherwise a segment that its recorder has removed since.
            except OSError as exc:
                raise RecordingError(f"{file}: reading: {exc.strerror or exc}") from exc


def _back_to(files: Sequence[tuple[str, BinaryIO]], since: timedelta | None) -> tuple[list[OverlappingFile], str]:
    """The newest files that continue each other, and why there are no more."""
    parts: list[OverlappingFile] = []
    for name, file in reversed(files):
        if _is_enough(parts, since):
            break
        try:
            part = OverlappingFile.of(name, file)
        except NotBegunError:
            continue
        except RecordingError as exc:
            if not parts:
                raise
            return parts, f"what is before {parts[0].name} is left out: {exc}"
        if not part.has_begun:  # Its recorder was killed while it read stored messages, or is reading them now.
            continue
        if parts and (why := part.why_not_continued_by(parts[0])):
            return parts, f"what is before {parts[0].name} is left out: {why}"
        parts.insert(0, part)
    return parts, "" if since is None or _is_enough(parts, since) else "nothing before that is kept"


def _is_enough(parts: Sequence[OverlappingFile], since: timedelta | None) -> bool:
    return bool(parts) and since is not None and parts[0].header.at <= parts[-1].newest - since
