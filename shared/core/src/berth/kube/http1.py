"""HTTP/1.1 as bytes: requests written from a template, answers cut out of what a connection delivers. No I/O.

An answer has an end by its Content-Length, its chunks, or the end of the connection. What could be read in two ways, or
exceeds a limit, is an error, after which nothing of that connection is used any more (RFC 9112, 6.3 and 11).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from http import HTTPStatus
from typing import Final, NamedTuple

HEAD_BYTES: Final = 64 * 1024
"""Longest head of an answer, and longest trailer. kube-apiserver writes 400 bytes."""
CHUNK_LINE_BYTES: Final = 4096
"""Longest line before a chunk: a size in hexadecimal, and extensions, which are not used in practice."""
ANSWER_BYTES: Final = 32 * 1024 * 1024
"""Longest body of an answer about one object. etcd stores at most 1.5 MiB of one."""
INTERIM_ANSWERS: Final = 8
"""How many answers with a status of 100 to 199 may come before the final one."""

_OK: Final = int(HTTPStatus.OK)
_SWITCHING: Final = int(HTTPStatus.SWITCHING_PROTOCOLS)
_BODILESS: Final = frozenset({int(HTTPStatus.NO_CONTENT), int(HTTPStatus.NOT_MODIFIED)})
_END: Final = b"\r\n\r\n"
_LINE_END: Final = b"\r\n"
_HEAD = re.compile(
    rb"HTTP/1\.[01] [1-5][0-9][0-9](?: [^\r\n\0]*)?(?:\r\n[!#$%&'*+\-.^_`|~0-9A-Za-z]+:[^\r\n\0]*)*", re.ASCII
)
_FIELD = re.compile(rb"\r\n(content-length|transfer-encoding|connection|content-encoding|retry-after):[ \t]*([^\r\n]*)")
"""The fields that are read, in a head in small letters; the others are only checked for their form."""
_LENGTH = re.compile(rb"[0-9]{1,15}")
_CHUNK_SIZE = re.compile(rb"([0-9A-Fa-f]{1,12})[ \t]*(?:;[^\r\n]*)?")
_TARGET = re.compile(r"[!-~]+")
_FIELD_VALUE = re.compile(r"[!-~](?:[ \t!-~]*[!-~])?")


class BadAnswerError(ValueError):
    """What arrived is no answer of HTTP/1.1, has two meanings, or is too long."""


def fields(headers: Mapping[str, str]) -> bytes:
    """Header lines.

    Raises:
        ValueError: a value that would not stay one header.
    """
    for name, value in headers.items():
        if not _FIELD_VALUE.fullmatch(value):
            raise ValueError(f"sending the header {name}: want visible characters in ASCII")
    return b"".join(f"{name}: {value}\r\n".encode() for name, value in headers.items())


def request(method: str, target: str, shared: bytes, body: bytes | None, content_type: str) -> bytes:
    """A whole request. ``shared``: the header lines that all requests have.

    Raises:
        ValueError: a target with characters that would end it.
    """
    if not _TARGET.fullmatch(target):
        raise ValueError(f"requesting {target!r}: want visible characters in ASCII")
    line = f"{method} {target} HTTP/1.1\r\n".encode()
    if body is not None:
        own = f"Content-Type: {content_type}\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        return b"".join((line, shared, own, body))
    return b"".join((line, shared, _LINE_END if method == "GET" else b"Content-Length: 0\r\n\r\n"))


class Answer(NamedTuple):
    """A whole answer."""

    status: int
    body: bytes
    retry_after: str | None
    """The header Retry-After, as it stands."""
    keeps: bool
    """Whether the connection can be used again."""


class Head(NamedTuple):
    """What the head of an answer says about the rest of it."""

    status: int
    length: int | None
    """The body's length; ``None``: it is chunked, or ends with the connection."""
    is_chunked: bool
    keeps: bool
    retry_after: str | None


def parse_head(head: bytes) -> Head:
    """Parse a head, without the empty line at its end.

    Raises:
        BadAnswerError: no such head, or one that does not say clearly where the body ends.
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
    """Cuts the answer to one request out of bytes that arrive in pieces of any size. Call ``expect`` for the next."""

    __slots__ = ("_buffer", "_chunk", "_head", "_interim", "_largest", "_pieces", "_scanned", "_size")

    def __init__(self) -> None:
        self._buffer = bytearray()
        self.expect(ANSWER_BYTES)

    def expect(self, largest: int) -> None:
        """Begin the next answer, whose body may be so long."""
        self._largest = largest
        self._head: Head | None = None
        self._interim = 0
        self._scanned = 0
        """How far the buffer was searched in vain."""
        self._pieces: list[bytes] = []
        """The chunks so far, and the length of all of them."""
        self._size = 0
        self._chunk: int | None = None
        """The size of the chunk that is being read; 0: the trailer; ``None``: the size comes next."""

    @property
    def is_empty(self) -> bool:
        """Whether nothing of the answer has arrived."""
        return self._head is None and not self._buffer and not self._interim

    def feed(self, data: bytes) -> Answer | None:
        """Take what has arrived; returns the answer once it is whole.

        Raises:
            BadAnswerError: it cannot be read.
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
        """The connection has ended; returns the answer if that is its end, ``None`` if it is incomplete."""
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
        """After bytes that answer no request, the connection is not used again: they could pass for the next one."""
        return Answer(head.status, body, head.retry_after, head.keeps and not self._buffer)

    def _take_head(self) -> Head | None:
        """The head of the final answer, once it has arrived; those before it are dropped."""
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
        """Drop the lines after the last chunk, up to an empty one."""
        while (line := self._until(_LINE_END, CHUNK_LINE_BYTES)) is not None:
            if not line:
                return True
            self._size += len(line)
            self._limit(self._size)
        return False

    def _until(self, mark: bytes, longest: int) -> bytes | None:
        """Take what stands before the mark, and the mark; ``None`` as long as it has not arrived."""
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
