"""HTTP/1.1 as bytes: writes requests, parses answers. No I/O.

``Response`` is an answer of the API server as callers read it, with the Status object of a failure.

An answer ends by its Content-Length, its chunks, or the end of the connection. An ambiguous or oversized answer is an
error, after which the connection is closed (RFC 9112, 6.3 and 11).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from http import HTTPStatus
from typing import Final, NamedTuple

import msgspec

# Maximum bytes of a head, and of a trailer. kube-apiserver writes 400.
HEAD_BYTES: Final = 64 * 1024
# Maximum bytes of the line before a chunk: hexadecimal size and extensions.
CHUNK_LINE_BYTES: Final = 4096
# Maximum bytes of a body about one object; etcd stores at most 1.5 MiB.
ANSWER_BYTES: Final = 32 * 1024 * 1024
# Maximum number of answers with a status of 100 to 199 before the final one.
INTERIM_ANSWERS: Final = 8

_OK: Final = int(HTTPStatus.OK)
_SWITCHING: Final = int(HTTPStatus.SWITCHING_PROTOCOLS)
_BODILESS: Final = frozenset({int(HTTPStatus.NO_CONTENT), int(HTTPStatus.NOT_MODIFIED)})
_END: Final = b"\r\n\r\n"
_LINE_END: Final = b"\r\n"
_HEAD = re.compile(
    rb"HTTP/1\.[01] [1-5][0-9][0-9](?: [^\r\n\0]*)?(?:\r\n[!#$%&'*+\-.^_`|~0-9A-Za-z]+:[^\r\n\0]*)*", re.ASCII
)
# Parsed fields of a lower-case head; of the others only the form is checked.
_FIELD = re.compile(rb"\r\n(content-length|transfer-encoding|connection|content-encoding|retry-after):[ \t]*([^\r\n]*)")
_LENGTH = re.compile(rb"[0-9]{1,15}")
_CHUNK_SIZE = re.compile(rb"([0-9A-Fa-f]{1,12})[ \t]*(?:;[^\r\n]*)?")
_TARGET = re.compile(r"[!-~]+")
_FIELD_VALUE = re.compile(r"[!-~](?:[ \t!-~]*[!-~])?")


class BadAnswerError(ValueError):
    """Not an HTTP/1.1 answer, an ambiguous one, or too long."""


def fields(headers: Mapping[str, str]) -> bytes:
    """Encode header lines.

    Raises:
        ValueError: a value that would break the header.
    """
    for name, value in headers.items():
        if not _FIELD_VALUE.fullmatch(value):
            raise ValueError(f"sending the header {name}: want visible characters in ASCII")
    return b"".join(f"{name}: {value}\r\n".encode() for name, value in headers.items())


def request(method: str, target: str, shared: bytes, body: bytes | None, content_type: str) -> bytes:
    """Encode a request. ``shared``: the header lines common to all requests.

    Raises:
        ValueError: a target that would break the request line.
    """
    if not _TARGET.fullmatch(target):
        raise ValueError(f"requesting {target!r}: want visible characters in ASCII")
    line = f"{method} {target} HTTP/1.1\r\n".encode()
    if body is not None:
        own = f"Content-Type: {content_type}\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        return b"".join((line, shared, own, body))
    return b"".join((line, shared, _LINE_END if method == "GET" else b"Content-Length: 0\r\n\r\n"))


class Answer(NamedTuple):
    status: int
    body: bytes
    retry_after: str | None  # The header Retry-After, unparsed.
    keeps: bool  # Whether the connection can be used again.


class Head(NamedTuple):
    status: int
    length: int | None  # Of the body; None: chunked, or up to the end of the connection.
    is_chunked: bool
    keeps: bool
    retry_after: str | None


def parse_head(head: bytes) -> Head:
    """Parse a head, without the empty line at its end.

    Raises:
        BadAnswerError: a malformed head, or an ambiguous length of the body.
    """
    if not _HEAD.fullmatch(head):
        raise BadAnswerError(f"want the head of an HTTP/1.1 answer, got {head[:80]!r}")
    status, is_new = int(head[9:12]), head[7] == ord("1")
    length: int | None = None
    is_chunked, keeps, retry_after = False, is_new, None
    for name, raw in _FIELD.findall(head.lower()):
        value = raw.rstrip()
        match name:
            case b"content-length":
                length = _content_length(value, length)
            case b"connection":
                keeps = b"close" not in value and (keeps or b"keep-alive" in value)
            case b"retry-after":
                retry_after = value.decode("latin-1")
            case b"transfer-encoding":
                _want(value == b"chunked" and is_new and not is_chunked, "one Transfer-Encoding, chunked", value)
                is_chunked = True
            case _:
                _want(value in (b"", b"identity"), "no Content-Encoding", value)
    _want(not is_chunked or length is None, "Content-Length or Transfer-Encoding", b"both")
    if status in _BODILESS:
        length, is_chunked = 0, False
    return Head(status, length, is_chunked, keeps, retry_after)


def _content_length(value: bytes, before: int | None) -> int:
    length = int(value) if _LENGTH.fullmatch(value) else -1
    _want(length >= 0 and before in (None, length), "one Content-Length", value)
    return length


def _want(is_so: bool, what: str, got: bytes) -> None:  # noqa: FBT001 - the condition, as of an assertion
    if not is_so:
        raise BadAnswerError(f"want {what}, got {got[:80]!r}")


class AnswerReader:
    """Parses one answer from bytes that arrive in pieces. Call ``expect`` before the next."""

    __slots__ = ("_buffer", "_chunk", "_head", "_interim", "_largest", "_pieces", "_scanned", "_size")

    def __init__(self) -> None:
        self._buffer = bytearray()
        self.expect(ANSWER_BYTES)

    def expect(self, largest: int) -> None:
        """Begin the next answer, with a body of at most ``largest`` bytes."""
        self._largest = largest
        self._head: Head | None = None
        self._interim = 0
        self._scanned = 0  # Bytes of the buffer that were searched without a match.
        # Chunks so far, and their total size.
        self._pieces: list[bytes] = []
        self._size = 0
        # Size of the current chunk; 0: the trailer; None: the size line comes next.
        self._chunk: int | None = None

    @property
    def is_empty(self) -> bool:
        return self._head is None and not self._buffer and not self._interim

    def feed(self, data: bytes) -> Answer | None:
        """Add received bytes; return the answer once it is complete.

        Raises:
            BadAnswerError: a malformed answer.
        """
        if self._head is None and not self._buffer:  # nearly every answer arrives in one piece
            end = data.find(_END, 0, HEAD_BYTES)
            if end >= 0:
                head = parse_head(data[:end])
                begin = end + len(_END)
                if head.length == len(data) - begin and head.status >= _OK and head.length <= self._largest:
                    return Answer(head.status, data[begin:], head.retry_after, head.keeps)
        self._buffer += data
        return self._advance()

    def end(self) -> Answer | None:
        """The connection has ended: return the answer if that ends it, ``None`` if it is incomplete."""
        head = self._head
        if head is None or head.length is not None or head.is_chunked:
            return None
        return Answer(head.status, bytes(self._buffer), head.retry_after, keeps=False)

    def _advance(self) -> Answer | None:
        head = self._head or self._take_head()
        if head is None:
            return None
        if head.is_chunked:
            return self._chunked(head)
        if head.length is None:
            self._limit(len(self._buffer))
            return None
        self._limit(head.length)
        if len(self._buffer) < head.length:
            return None
        return self._whole(head, self._take(head.length))

    def _whole(self, head: Head, body: bytes) -> Answer:
        # Close the connection after surplus bytes: they could pass for the next answer.
        return Answer(head.status, body, head.retry_after, head.keeps and not self._buffer)

    def _take_head(self) -> Head | None:
        # The head of the final answer; interim ones are dropped.
        while (line := self._until(_END, HEAD_BYTES)) is not None:
            head = parse_head(line)
            if head.status >= _OK:
                self._head = head
                return head
            self._interim += 1
            if head.status == _SWITCHING or self._interim > INTERIM_ANSWERS:
                raise BadAnswerError(f"want a final answer, got {head.status}")
        return None

    def _chunked(self, head: Head) -> Answer | None:
        while True:
            if self._chunk is None:
                line = self._until(_LINE_END, CHUNK_LINE_BYTES)
                if line is None:
                    return None
                self._chunk = _chunk_size(line)
                self._size += self._chunk
                self._limit(self._size)
            elif self._chunk > 0:
                if len(self._buffer) < self._chunk + len(_LINE_END):
                    return None
                self._pieces.append(self._take(self._chunk))
                if self._take(len(_LINE_END)) != _LINE_END:
                    raise BadAnswerError("want the end of a chunk where its size says")
                self._chunk = None
            else:
                return self._whole(head, b"".join(self._pieces)) if self._is_past_trailer() else None

    def _is_past_trailer(self) -> bool:
        # Drops the lines after the last chunk, up to an empty one.
        while (line := self._until(_LINE_END, CHUNK_LINE_BYTES)) is not None:
            if not line:
                return True
            self._size += len(line)
            self._limit(self._size)
        return False

    def _until(self, mark: bytes, longest: int) -> bytes | None:
        """Take the bytes before the mark, and the mark; ``None`` until it has arrived."""
        buffer = self._buffer
        end = buffer.find(mark, max(0, self._scanned - len(mark) + 1))
        if end > longest or (end < 0 and len(buffer) > longest + len(mark)):
            raise BadAnswerError(f"want at most {longest} bytes before {mark!r}, got more")
        if end < 0:
            self._scanned = len(buffer)
            return None
        self._scanned = 0
        taken = bytes(buffer[:end])
        del buffer[: end + len(mark)]
        return taken

    def _take(self, count: int) -> bytes:
        taken = bytes(self._buffer[:count])
        del self._buffer[:count]
        return taken

    def _limit(self, size: int) -> None:
        if size > self._largest:
            raise BadAnswerError(f"want at most {self._largest} bytes in an answer, got {size} or more")


def _chunk_size(line: bytes) -> int:
    size = _CHUNK_SIZE.fullmatch(line)
    if size is None:
        raise BadAnswerError(f"want the size of a chunk, got {line[:80]!r}")
    return int(size[1], 16)


# --- answers as callers read them

# Quoted characters of a body other than a Status object.
CUT = 300


class StatusDetails(msgspec.Struct, frozen=True, kw_only=True):
    name: str = ""


class StatusObject(msgspec.Struct, frozen=True, kw_only=True):
    """A Status of the API; ``reason`` is a CamelCase word, such as ``Expired``."""

    message: str = ""
    reason: str = ""
    code: int = 0
    details: StatusDetails | None = None


_status_decoder = msgspec.json.Decoder(StatusObject)


def decode_status(raw: bytes | msgspec.Raw, *, code: int = 0) -> StatusObject:
    """Decode a Status object. Any other body (a proxy's page) is quoted as the message."""
    try:
        return _status_decoder.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return StatusObject(message=bytes(raw)[:CUT].decode(errors="replace").strip(), code=code)


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """An answer, with its Retry-After header."""

    status: int
    body: bytes
    retry_after: timedelta | None = None

    @property
    def succeeded(self) -> bool:
        return HTTPStatus.OK <= self.status < HTTPStatus.MULTIPLE_CHOICES

    @property
    def reason(self) -> str:
        """CamelCase reason of the API, such as ``AlreadyExists`` or ``Expired``, or empty."""
        return self.failure().reason

    @property
    def message(self) -> str:
        return self.failure().message

    def failure(self) -> StatusObject:
        return decode_status(self.body, code=self.status)


def parse_retry_after(header: str | None) -> timedelta | None:
    """Parse a Retry-After header in whole seconds, as the API server writes it; other forms are ignored."""
    if header is None or not (header.isascii() and header.isdigit()):
        return None
    return timedelta(seconds=min(int(header), 3600))
