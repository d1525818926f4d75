"""The file of a recording: lines of JSON, compressed in frames that are read whole or not at all.

A frame is a member of a gzip file (``zcat FILE`` shows a recording) with a checksum at its end. The writer begins one
every second, so a killed recorder leaves readable frames.

The first line is the :class:`Header`. Then come messages as the recorder read them: in each stream's order, not in one
order of all streams. :class:`Begun` follows the stored messages, and soon after it the waiting pods (:class:`Waiting`).
:class:`Ended` is last, unless the recorder was killed or could not write, or the file was copied in part.
"""

from __future__ import annotations

import gzip
import os
import zlib
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from io import RawIOBase
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Final, Literal, Protocol, TypeVar, overload

import msgspec

from berth import __version__
from berth.decoding import check_size, decode_json, decoding
from berth.errors import BerthError, DecodeError
from berth.exits import UsageError
from berth.messages.queue import WaitingPod

# The shape of the file. A change that older readers would misunderstand gets the next number.
SCHEMA: Final = 1
KIND: Final = "berth-recording"
# Bytes of all lines, uncompressed, because a replay holds them in memory: about 100,000 pods on 1,000 nodes. The
# recorder ends there.
MOST_BYTES: Final = 1 << 30
MOST_RECORDS: Final = 5_000_000
# Exceeds the number of headers, begins, ends and messages that arrive before the recorder checks the size.
_OTHER_RECORDS: Final = 1000
# Uncompressed bytes after which a frame is written; a larger one compresses little better.
FRAME_BYTES: Final = 1 << 20
# A frame has at most one message more than FRAME_BYTES, and NATS takes none above 64 MiB.
MOST_FRAME_BYTES: Final = 96 << 20
# Bytes of the header, whose configuration is decoded as it stands: 30 million empty lists compress to 85 KiB.
_MOST_HEADER_BYTES: Final = 1 << 20
_MOST_PODS: Final = 10_000  # of one record of waiting pods; a recorder writes a hundred
_READ_BYTES: Final = 1 << 18
# A third of the time of gzip's default for a file larger by a tenth.
_COMPRESSION: Final = 3
_GZIP: Final = 31  # zlib's number for a gzip member with its header
_MAGIC: Final = b"\x1f\x8b"
_BEGUN: Final = b'{"record":"begun"'  # begins the line of Begun

Source = Literal["PENDING", "RANKED", "DECISIONS", "cluster", "bandwidth", "facts"]
Sequence = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class RecordingError(UsageError):
    """A file that cannot be read as a recording: the problem, its place, and the remedy."""


class NotBegunError(RecordingError):
    """The recording has no whole frame: the recorder ended within a second, or has just begun."""


class RecordingWriteError(BerthError):
    """A write failed, as on a full disk. Earlier records can be read."""


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """``configuration`` is the services', as ``berth config show`` prints it."""

    kind: str
    schema: int
    berth: str
    at: Annotated[datetime, msgspec.Meta(tz=True)]  # by NATS's clock
    bus_id: str
    config: str  # the digest of the configuration in messages
    release: str  # the release whose plugins it has
    configuration: dict[str, Any]
    anonymised: bool = False  # names are masked, also in the configuration


class Recorded(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="record", tag="message"):
    """A message of a stream, or an entry of a bucket.

    ``subject`` is the subject, or the key in the bucket. ``data`` is JSON, ``null`` for a removal. Other bytes are in
    ``base64``, because anybody may write to the bus.
    """

    source: Source
    sequence: Sequence
    time: datetime
    subject: str
    data: msgspec.Raw = msgspec.Raw(b"null")
    base64: str | None = None

    @property
    def payload(self) -> bytes | None:
        if self.base64 is not None:
            return b64decode(self.base64, validate=True)
        data = bytes(self.data)
        return None if data == _NULL else data

    def check(self) -> None:
        """Check the record.

        Raises:
            DecodeError: it looks like a message and is invalid.
        """
        _check_zone(self.time)
        if self.base64 is not None:
            with decoding("a recording's base64"):
                b64decode(self.base64, validate=True)


def _check_zone(time: datetime) -> None:
    if time.tzinfo is None:
        raise DecodeError(f"decoding a recording: want times with a zone, got {time}")


class Waiting(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="record", tag="waiting"):
    """Waiting pods at a time, by the leading watcher: some are on no stream, and no change reports them.

    ``decisions`` has the last Decision on each that DECISIONS still had; ``more`` counts further waiting pods without a
    record.
    """

    at: datetime
    pods: Annotated[list[WaitingPod], msgspec.Meta(max_length=_MOST_PODS)]
    decisions: Annotated[list[Recorded], msgspec.Meta(max_length=_MOST_PODS)] = []
    draining: bool = False
    more: int = 0

    def check(self) -> None:
        """Check times and Decisions.

        Raises:
            DecodeError: a time has no zone, or a Decision is not one of DECISIONS or not a message.
        """
        for time in (self.at, *(pod.since for pod in self.pods)):
            _check_zone(time)
        for decision in self.decisions:
            decision.check()
            if decision.source != "DECISIONS":
                raise DecodeError(f"decoding pods that wait: want Decisions of DECISIONS, got one of {decision.source}")


class Begun(msgspec.Struct, frozen=True, kw_only=True, tag_field="record", tag="begun"):
    """Stored messages up to these sequences have been read."""

    positions: dict[Source, Sequence]


class Ended(msgspec.Struct, frozen=True, kw_only=True, tag_field="record", tag="ended"):
    """The end of a complete recording: its reason, and the sequences reached."""

    messages: int
    reason: str
    positions: dict[Source, Sequence] = {}


Record = Recorded | Waiting | Begun | Ended


class Change(Protocol):
    """The replacement of a record."""

    @overload
    def __call__(self, record: Recorded, /) -> Recorded: ...

    @overload
    def __call__(self, record: Waiting, /) -> Waiting: ...


R = TypeVar("R", Recorded, Waiting)


def unchanged(record: R) -> R:
    return record


_NULL: Final = b"null"
_encoder: Final = msgspec.json.Encoder()
_header_decoder: Final = msgspec.json.Decoder(Header)
_decoder: Final = msgspec.json.Decoder(Record)
_raw_decoder: Final = msgspec.json.Decoder(msgspec.Raw)


class _Version(msgspec.Struct):
    kind: str = ""
    schema: int = 0
    berth: str = ""


_version_decoder: Final = msgspec.json.Decoder(_Version)


def recorded(source: Source, sequence: int, time: datetime, subject: str, data: bytes | None) -> Recorded:
    """``data`` is ``None`` for a removal."""
    if data is None:
        return Recorded(source=source, sequence=sequence, time=time, subject=subject)
    if _fits_in_a_line(data):
        return Recorded(source=source, sequence=sequence, time=time, subject=subject, data=msgspec.Raw(data))
    return Recorded(source=source, sequence=sequence, time=time, subject=subject, base64=b64encode(data).decode())


def _fits_in_a_line(data: bytes) -> bool:
    # JSON other than null, which stands for a removal.
    if b"\n" in data or b"\r" in data or data.strip() == _NULL:
        return False
    try:
        check_size(data, "a message", most=len(data))
        decode_json(_raw_decoder, data, "a message")
        data.decode()  # msgspec does not check skipped texts.
    except (DecodeError, UnicodeDecodeError):
        return False
    return True


def header(  # noqa: PLR0913 - one parameter a member, given by name
    *,
    at: datetime,
    bus_id: str,
    config: str,
    release: str,
    configuration: dict[str, Any],
    anonymised: bool = False,
) -> Header:
    return Header(
        kind=KIND,
        schema=SCHEMA,
        berth=__version__,
        at=at,
        bus_id=bus_id,
        config=config,
        release=release,
        configuration=configuration,
        anonymised=anonymised,
    )


class RecordingWriter:
    """Records are safe after ``flush``; ``close`` flushes the rest."""

    def __init__(self, name: str, file: RawIOBase, *, is_pipe: bool = False) -> None:
        self._name = name
        self._file = file
        self._is_pipe = is_pipe
        self._is_behind = False  # written bytes may not be on the disk yet
        self._failed = ""  # why a write failed; later writes are dropped, so that the file has no gap
        self._lines: list[bytes] = []
        self._waiting = 0
        self.messages = 0  # number of messages added
        self.size = 0  # bytes of all lines, uncompressed
        self.written = 0  # bytes of the file

    @classmethod
    def create(cls, path: Path, head: Header) -> RecordingWriter:
        """A new file that only its owner may read, because it contains pods' names and labels.

        Raises:
            UsageError: the file exists or cannot be created.
        """
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError as exc:
            raise UsageError(f"writing {str(path)!r}: it exists already: remove it, or name another file") from exc
        except OSError as exc:
            raise UsageError(f"writing {str(path)!r}: {exc.strerror}") from exc
        return cls.into(str(path), os.fdopen(descriptor, "wb", buffering=0), head)

    @classmethod
    def into(cls, name: str, file: RawIOBase, head: Header, *, is_pipe: bool = False) -> RecordingWriter:
        """Write into an open file without a buffer, such as standard output."""
        writer = cls(name, file, is_pipe=is_pipe)
        writer._add(_encoder.encode(head))
        return writer

    def add(self, record: Record) -> None:
        self.messages += isinstance(record, Recorded)
        self._add(_encoder.encode(record))

    @property
    def is_full(self) -> bool:
        """Whether a replay would read no more."""
        return self.size > MOST_BYTES - MOST_FRAME_BYTES or self.messages > MOST_RECORDS - _OTHER_RECORDS

    @property
    def has_frame(self) -> bool:
        return self._waiting >= FRAME_BYTES

    def flush(self) -> None:
        """Write the added records to the disk.

        Raises:
            RecordingWriteError: it cannot be written. The file ends with the last written frame.
        """
        self.write_frames()
        if self._is_pipe or not self._is_behind:
            return
        try:
            os.fsync(self._file.fileno())
        except OSError as exc:
            raise self._fail(exc) from exc
        self._is_behind = False

    def write_frames(self) -> None:
        """Write the added records in frames, without syncing to the disk. Raises as :meth:`flush`."""
        lines, self._lines, self._waiting = self._lines, [], 0
        if self._failed:
            raise RecordingWriteError(self._failed)
        try:
            for frame in _in_frames(lines):
                self._write(gzip.compress(frame, _COMPRESSION, mtime=0))
        except OSError as exc:
            self._remove_part()
            raise self._fail(exc) from exc

    def _fail(self, error: OSError) -> RecordingWriteError:
        self._failed = f"writing {self._name!r}: {error.strerror}"
        return RecordingWriteError(self._failed)

    def _write(self, frame: bytes) -> None:
        rest = memoryview(frame)
        while rest:
            rest = rest[self._file.write(rest) or 0 :]
        self.written += len(frame)
        self._is_behind = True

    def _remove_part(self) -> None:
        with suppress(OSError):  # A device or a pipe.
            os.ftruncate(self._file.fileno(), self.written)
            self._file.seek(self.written)

    def end(self, reason: str, positions: dict[Source, int]) -> None:
        """Write the end, so that the recording is known to be whole, and close the file.

        Raises:
            RecordingWriteError: this or an earlier write failed. Then it has no end.
        """
        self.add(Ended(messages=self.messages, reason=reason, positions=positions))
        self.close()

    def drop(self) -> None:
        with suppress(OSError):
            self._file.close()

    def close(self) -> None:
        try:
            self.flush()
        finally:
            with suppress(OSError):  # Of records that could not be written.
                self._file.close()

    def _add(self, line: bytes) -> None:
        self._lines.append(line + b"\n")
        self._waiting += len(line) + 1
        self.size += len(line) + 1


def _in_frames(lines: list[bytes]) -> Iterator[bytes]:
    # Parts of about FRAME_BYTES, because a reader refuses frames that expand too far.
    part: list[bytes] = []
    size = 0
    for line in lines:
        part.append(line)
        size += len(line)
        if size >= FRAME_BYTES:
            yield b"".join(part)
            part, size = [], 0
    if part:
        yield b"".join(part)


@dataclass(slots=True, kw_only=True)
class Recording:
    """A recording in memory: the messages of each source by sequence.

    ``begun`` is ``None`` if the recorder ended before it had read all stored messages. ``is_cut``: it has no end.
    """

    header: Header
    messages: dict[Source, list[Recorded]] = field(default_factory=dict)
    waiting: list[Waiting] = field(default_factory=list)
    begun: Begun | None = None
    is_cut: bool = True

    def of(self, source: Source) -> list[Recorded]:
        return self.messages.get(source, [])

    def position(self, source: Source) -> int:
        return self.begun.positions.get(source, 0) if self.begun is not None else 0

    @property
    def last_time(self) -> datetime:
        """The time of the newest message, by NATS's clock."""
        return max((there[-1].time for there in self.messages.values() if there), default=self.header.at)


def is_recording(name: str) -> bool:
    """Whether the file begins as recordings do; false for an unreadable file."""
    try:
        with Path(name).open("rb") as file:
            return file.read(len(_MAGIC)) == _MAGIC
    except OSError:
        return False


def read_recording(path: Path) -> Recording:
    """The whole recording, or its beginning if it was cut off.

    Raises:
        RecordingError: unreadable, no recording, damaged, of a newer version, or too large.
    """
    try:
        with path.open("rb") as file:
            return read_opened(str(path), file)
    except OSError as exc:
        raise RecordingError(f"{path}: reading: {exc.strerror or exc}") from exc


def read_opened(name: str, file: BinaryIO) -> Recording:
    """Read an open file, such as standard input. Raises as :func:`read_recording`, and OSError."""
    return collected(*opened(name, file))


def collected(head: Header, records: Iterable[Record]) -> Recording:
    recording = Recording(header=head)
    for record in records:
        if isinstance(record, Begun):
            recording.begun = record
        elif isinstance(record, Ended):
            recording.is_cut = False
        elif isinstance(record, Waiting):
            recording.waiting.append(record)
        else:
            recording.messages.setdefault(record.source, []).append(record)
    return recording


def opened(name: str, file: BinaryIO, *, is_continued: bool = False) -> tuple[Header, Iterator[Record]]:
    """The header, and the rest, read and checked on demand.

    ``is_continued``: skips the stored messages at its begin, which the recording before it has.

    Raises:
        NotBegunError: no frame is whole.
        RecordingError: no recording; also while records are read, where it is damaged.
    """
    lines = _lines(name, file)
    first = next(lines, None)
    if first is None:
        what, error = _what_it_is(file)
        raise error(f"{name}: want a recording of `berth record`, got {what}")
    return _header(name, first), _records(name, lines, is_continued=is_continued)


def _records(name: str, lines: Iterator[bytes], *, is_continued: bool) -> Iterator[Record]:
    order, has_begun = _Order(), not is_continued
    for count, line in enumerate(lines, start=2):
        if not (has_begun := has_begun or line.startswith(_BEGUN)):
            continue
        if count > MOST_RECORDS:
            raise RecordingError(f"{name}: want at most {MOST_RECORDS} records, got more: record for a shorter time")
        try:
            record = decode_json(_decoder, line, f"line {count}")
            order.check(record)
        except DecodeError as exc:
            raise RecordingError(f"{name}: {exc}: {_COPY_AGAIN}") from exc
        yield record


class _Order:
    def __init__(self) -> None:
        self._last: dict[Source, int] = {}
        self._has_ended = False

    def check(self, record: Record) -> None:
        """Check the next record.

        Raises:
            DecodeError: it is invalid, or after the end.
        """
        if self._has_ended:
            raise DecodeError("decoding a recording: want nothing after its end, got more")
        if isinstance(record, Recorded | Waiting):
            record.check()
        if not isinstance(record, Recorded):
            self._has_ended = isinstance(record, Ended)
            return
        before = self._last.get(record.source, -1)
        if record.sequence <= before:
            wanted = f"want sequences of {record.source} that rise"
            raise DecodeError(f"decoding a recording: {wanted}, got {record.sequence} after {before}")
        self._last[record.source] = record.sequence


_COPY_AGAIN: Final = "copy the file again, or record again"


def _header(name: str, line: bytes) -> Header:
    if len(line) > _MOST_HEADER_BYTES:
        raise RecordingError(f"{name}: want a header of at most {_MOST_HEADER_BYTES} bytes, got {len(line)}")
    try:
        version = decode_json(_version_decoder, line, "its first line")
        if version.kind != KIND:
            raise RecordingError(f"{name}: want a recording of `berth record`, got another gzip file")
        if version.schema != SCHEMA:
            by = f", written by berth {version.berth:.40}" if version.berth else ""
            wanted = f"want a recording of schema {SCHEMA}, got {version.schema}{by}"
            raise RecordingError(f"{name}: {wanted}: read it with that version")
        return decode_json(_header_decoder, line, "its header")
    except DecodeError as exc:
        raise RecordingError(f"{name}: want a recording of `berth record`: {exc}") from exc


def _what_it_is(file: BinaryIO) -> tuple[str, type[RecordingError]]:
    if not file.seekable():  # a pipe
        return "something else", RecordingError
    file.seek(0)
    start = file.read(len(_MAGIC))
    if not start:
        return "an empty file", NotBegunError
    if start == _MAGIC:
        return "one that was ended within its first second", NotBegunError
    return "another file", RecordingError


def _lines(name: str, file: BinaryIO) -> Iterator[bytes]:
    # Ends at a frame that was cut off; a damaged frame is an error.
    total = 0
    for frame in _frames(name, file):
        total += len(frame)
        if total > MOST_BYTES:
            raise RecordingError(f"{name}: want at most {MOST_BYTES} bytes, got more: record for a shorter time")
        if not frame.endswith(b"\n"):
            raise RecordingError(f"{name}: want frames of whole lines: {_COPY_AGAIN}")
        yield from frame.splitlines()


def _frames(name: str, file: BinaryIO) -> Iterator[bytes]:
    waiting, read_to = b"", 0
    while True:
        expander, parts, size, began = zlib.decompressobj(_GZIP), [], 0, read_to - len(waiting)
        while not expander.eof:
            if not waiting:
                waiting = file.read(_READ_BYTES)
                read_to += len(waiting)
            is_at_end = not waiting
            try:
                parts.append(expander.decompress(waiting, FRAME_BYTES))
            except zlib.error as exc:
                if began == 0 and not waiting.startswith(_MAGIC):
                    return
                raise RecordingError(f"{name}: damaged in the frame at byte {began}: {exc}: {_COPY_AGAIN}") from exc
            if is_at_end and not parts[-1] and not expander.eof:
                return  # At its end, or cut off in a frame.
            waiting = expander.unconsumed_tail or expander.unused_data
            size += len(parts[-1])
            if size > MOST_FRAME_BYTES:
                raise RecordingError(f"{name}: want frames of {MOST_FRAME_BYTES} bytes at most, got more")
        yield b"".join(parts)
