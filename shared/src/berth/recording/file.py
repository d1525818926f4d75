"""The file of a recording: lines of JSON, compressed in frames, of which each is whole or is not read.

A frame is a member of a gzip file, so ``zcat FILE`` shows a recording to people. A frame ends with its checksum, and
the writer begins a new one every second: a recorder that is killed leaves a file whose complete frames can be read,
and no record is ever read in part.

The first line is the :class:`Header`. Then come messages in the order in which the recorder read them, which is that of
each stream, but not one order of all streams. :class:`Begun` follows the messages that were there already.
:class:`Ended` is last; without it the recorder was killed, or the file was copied in part.
"""

from __future__ import annotations

import gzip
import os
import zlib
from base64 import b64decode, b64encode
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Final, Literal

import msgspec

from berth import __version__
from berth.api.decoding import check_size, decode_json, decoding
from berth.api.errors import BerthError, DecodeError
from berth.process.exits import UsageError

SCHEMA: Final = 1
"""The shape of the file. One that an older reader would misunderstand gets the next number."""
KIND: Final = "berth-recording"
MOST_BYTES: Final = 1 << 30
"""Of all lines, uncompressed: a replay holds them in memory. 100,000 pods on 1,000 nodes take about as much. The
recorder ends there."""
MOST_RECORDS: Final = 5_000_000
_OTHER_RECORDS: Final = 1000
"""More than the header, the begin, the end, and what arrives before the recorder looks at the size."""
FRAME_BYTES: Final = 1 << 20
"""Uncompressed, after which a frame is written. A larger one compresses little better."""
MOST_FRAME_BYTES: Final = 96 << 20
"""A frame has at most one message more than ``FRAME_BYTES``, and NATS takes none above 64 MiB."""
_READ_BYTES: Final = 1 << 18
_COMPRESSION: Final = 3
"""A third of the time of gzip's default, and a file larger by a tenth."""
_GZIP: Final = 31
"""zlib's number for a gzip member with its header."""
_MAGIC: Final = b"\x1f\x8b"

Source = Literal["PENDING", "RANKED", "DECISIONS", "cluster", "bandwidth", "facts"]
Sequence = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class RecordingError(UsageError):
    """A file that cannot be read as a recording: what is wrong, where, and what to do."""


class RecordingWriteError(BerthError):
    """The file cannot be written any more, as on a full disk."""


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """What a recording is. ``configuration`` is that of the services, as ``berth config show`` prints it."""

    kind: str
    schema: int
    berth: str
    at: Annotated[datetime, msgspec.Meta(tz=True)]
    """By NATS's clock."""
    bus_id: str
    config: str
    """The digest of the configuration in messages."""
    release: str
    """The release whose plugins it has."""
    configuration: dict[str, Any]
    anonymised: bool = False
    """Names are masked, also in the configuration."""


class Recorded(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="record", tag="message"):
    """A message of a stream, or an entry of a bucket.

    ``subject`` is the subject, or the key in the bucket. ``data`` is JSON, ``null`` for a removal. What is no JSON is
    in ``base64``: others may write to the bus.
    """

    source: Source
    sequence: Sequence
    time: datetime
    subject: str
    data: msgspec.Raw = msgspec.Raw(b"null")
    base64: str | None = None

    @property
    def payload(self) -> bytes | None:
        """The bytes; ``None`` for a removal."""
        if self.base64 is not None:
            return b64decode(self.base64, validate=True)
        data = bytes(self.data)
        return None if data == _NULL else data


class Begun(msgspec.Struct, frozen=True, kw_only=True, tag_field="record", tag="begun"):
    """Everything that was stored when the recorder started has been read, up to these sequences; then come changes."""

    positions: dict[Source, Sequence]


class Ended(msgspec.Struct, frozen=True, kw_only=True, tag_field="record", tag="ended"):
    """The end of a recording that was not cut off. ``reason`` is why it ended."""

    messages: int
    reason: str


Record = Recorded | Begun | Ended

_NULL: Final = b"null"
_encoder: Final = msgspec.json.Encoder()
_header_decoder: Final = msgspec.json.Decoder(Header)
_decoder: Final = msgspec.json.Decoder(Record)
_raw_decoder: Final = msgspec.json.Decoder(msgspec.Raw)


class _Version(msgspec.Struct):
    """Enough of a header to say which berth can read the rest."""

    kind: str = ""
    schema: int = 0
    berth: str = ""


_version_decoder: Final = msgspec.json.Decoder(_Version)


def recorded(source: Source, sequence: int, time: datetime, subject: str, data: bytes | None) -> Recorded:
    """A record of a message. ``data`` is ``None`` for a removal."""
    if data is None:
        return Recorded(source=source, sequence=sequence, time=time, subject=subject)
    if _fits_in_a_line(data):
        return Recorded(source=source, sequence=sequence, time=time, subject=subject, data=msgspec.Raw(data))
    return Recorded(source=source, sequence=sequence, time=time, subject=subject, base64=b64encode(data).decode())


def _fits_in_a_line(data: bytes) -> bool:
    """Whether it is JSON, and no ``null``, which stands for a removal."""
    if b"\n" in data or b"\r" in data or data.strip() == _NULL:
        return False
    try:
        check_size(data, "a message", most=len(data))
        decode_json(_raw_decoder, data, "a message")
        data.decode()  # msgspec does not check texts that it skips
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
    """The header of a recording of this version."""
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
    """Writes a new file. What was added is safe after ``flush``; ``close`` flushes what is left.

    Attributes:
        messages: how many were added.
        size: bytes of all lines, uncompressed.
        written: bytes of the file.
    """

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self._path = path
        self._file = file
        self._lines: list[bytes] = []
        self._waiting = 0
        self.messages = 0
        self.size = 0
        self.written = 0

    @classmethod
    def create(cls, path: Path, head: Header) -> RecordingWriter:
        """A new file that only its owner may read: pods' names and labels are in it.

        Raises:
            UsageError: there is a file of that name, or none can be created.
        """
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError as exc:
            raise UsageError(f"writing {str(path)!r}: it exists already: remove it, or name another file") from exc
        except OSError as exc:
            raise UsageError(f"writing {str(path)!r}: {exc.strerror}") from exc
        writer = cls(path, os.fdopen(descriptor, "wb"))
        writer._add(_encoder.encode(head))
        return writer

    def add(self, record: Record) -> None:
        self.messages += isinstance(record, Recorded)
        self._add(_encoder.encode(record))

    @property
    def is_full(self) -> bool:
        """Whether a replay would not read more."""
        return self.size > MOST_BYTES - MOST_FRAME_BYTES or self.messages > MOST_RECORDS - _OTHER_RECORDS

    @property
    def has_frame(self) -> bool:
        """Whether what was added is enough for a frame."""
        return self._waiting >= FRAME_BYTES

    def flush(self) -> None:
        """Write what was added as a frame, to the disk.

        Raises:
            RecordingWriteError: it cannot be written.
        """
        lines, self._lines, self._waiting = self._lines, [], 0
        if not lines:
            return
        try:
            self.written += self._file.write(gzip.compress(b"".join(lines), _COMPRESSION, mtime=0))
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as exc:
            what = f"writing {str(self._path)!r}: {exc.strerror}"
            raise RecordingWriteError(f"{what}: what was written before can be replayed") from exc

    def close(self) -> None:
        try:
            self.flush()
        finally:
            with suppress(OSError):  # of what could not be written
                self._file.close()

    def _add(self, line: bytes) -> None:
        self._lines.append(line + b"\n")
        self._waiting += len(line) + 1
        self.size += len(line) + 1


@dataclass(slots=True, kw_only=True)
class Recording:
    """A recording in memory: of each source the messages in the order of their sequences.

    ``begun`` is ``None`` when the recorder was ended before it had read what was there. ``is_cut``: it has no end.
    """

    header: Header
    messages: dict[Source, list[Recorded]] = field(default_factory=dict)
    begun: Begun | None = None
    is_cut: bool = True

    def of(self, source: Source) -> list[Recorded]:
        """The messages of a source."""
        return self.messages.get(source, [])

    def position(self, source: Source) -> int:
        """Up to where the source had been read when changes began."""
        return self.begun.positions.get(source, 0) if self.begun is not None else 0

    @property
    def last_time(self) -> datetime:
        """Of the newest message, by NATS's clock."""
        return max((there[-1].time for there in self.messages.values() if there), default=self.header.at)


def is_recording(name: str) -> bool:
    """Whether the file begins as recordings do; false for one that cannot be read."""
    try:
        with Path(name).open("rb") as file:
            return file.read(len(_MAGIC)) == _MAGIC
    except OSError:
        return False


def read_recording(path: Path) -> Recording:
    """The whole recording, or its beginning when it was cut off.

    Raises:
        RecordingError: it cannot be read, is none, is damaged, is of a newer version, or is too large.
    """
    try:
        with path.open("rb") as file:
            return _read(str(path), file)
    except OSError as exc:
        raise RecordingError(f"{path}: reading: {exc.strerror or exc}") from exc


def _read(name: str, file: BinaryIO) -> Recording:
    lines = _lines(name, file)
    first = next(lines, None)
    if first is None:
        raise RecordingError(f"{name}: want a recording of `berth record`, got {_what_it_is(file)}")
    recording = Recording(header=_header(name, first))
    count = 1
    for count, line in enumerate(lines, start=2):
        if count > MOST_RECORDS:
            raise RecordingError(f"{name}: want at most {MOST_RECORDS} records, got more: record for a shorter time")
        try:
            record = decode_json(_decoder, line, f"line {count}")
            _add(recording, record)
        except DecodeError as exc:
            raise RecordingError(f"{name}: {exc}: {_COPY_AGAIN}") from exc
    return recording


def _add(recording: Recording, record: Record) -> None:
    if not recording.is_cut:
        raise DecodeError("decoding a recording: want nothing after its end, got more")
    if isinstance(record, Begun):
        recording.begun = record
    elif isinstance(record, Ended):
        recording.is_cut = False
    else:
        if record.time.tzinfo is None:
            raise DecodeError(f"decoding a recording: want times with a zone, got {record.time}")
        if record.base64 is not None:
            with decoding("a recording's base64"):
                b64decode(record.base64, validate=True)
        there = recording.messages.setdefault(record.source, [])
        if there and record.sequence <= there[-1].sequence:
            wanted = f"want sequences of {record.source} that rise"
            raise DecodeError(f"decoding a recording: {wanted}, got {record.sequence} after {there[-1].sequence}")
        there.append(record)


_COPY_AGAIN: Final = "copy the file again, or record again"


def _header(name: str, line: bytes) -> Header:
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


def _what_it_is(file: BinaryIO) -> str:
    file.seek(0)
    start = file.read(len(_MAGIC))
    if not start:
        return "an empty file"
    return "one that was ended within its first second" if start == _MAGIC else "another file"


def _lines(name: str, file: BinaryIO) -> Iterator[bytes]:
    """The lines of all complete frames. One that was cut off ends them; a damaged one is an error."""
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
                return  # at its end, or cut off in a frame
            waiting = expander.unconsumed_tail or expander.unused_data
            size += len(parts[-1])
            if size > MOST_FRAME_BYTES:
                raise RecordingError(f"{name}: want frames of {MOST_FRAME_BYTES} bytes at most, got more")
        yield b"".join(parts)
