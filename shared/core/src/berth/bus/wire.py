"""NATS's client protocol on a transport: frames are cut out of one buffer, what is sent in one turn goes out together.

What arrives in one read is handled in one go: each message goes to its subscription's listener at once, without a task,
a future or a queue. Header lines are parsed only when somebody asks for them. Measured reasons are in
docs/adr/0015-the-wire-of-our-own.md; ``berth.bus.login`` hands the transport over.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import re
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Final

import msgspec

from berth.bus.interface import BusRefusedError

log = logging.getLogger(__name__)

MOST_LINE_BYTES: Final = 64 * 1024
"""Of a line of the protocol. A server takes 4 KiB from clients; an INFO that names a thousand servers has 30 KiB."""
MOST_SUBJECT_BYTES: Final = 4000
"""Of a subject and the one to answer to. NATS ends the connection of a client whose command has more than 4 KiB before
the message: what else it has are two numbers."""
MOST_MESSAGE_BYTES: Final = 64 * 1024 * 1024 + MOST_LINE_BYTES
"""Of a message. No server can be set to take more than 64 MiB; what it adds to a stored one is below 1 KiB."""
MOST_HEADER_BYTES: Final = 128 * 1024
"""Of header lines that are read. JetStream stores at most 64 KiB of them."""
MOST_HELD_BYTES: Final = 16 * 1024 * 1024
"""What waits here while the server reads too slowly. Above it publishes wait; acknowledgements never do."""

DENSE_SECONDS: Final = 0.001
"""When two reads come within this time, the next one waits for as long. Messages that are so dense are then handled
together: a read costs some 60 µs of CPU whether it has one message or ten, and what it leads to is one write in place
of ten, here and in what reads that. A first message, and a second one, are handled at once."""
LARGE_READ_BYTES: Final = 32 * 1024
"""After a read of so much the next one does not wait: it has many messages, or a part of a long one."""

_CRLF: Final = b"\r\n"
_HEADER_LINE: Final = b"NATS/1.0"
_STATUS_AT: Final = len("NATS/1.0 ")
_STATUS_DIGITS: Final = 3
_SIZE_DIGITS: Final = 9
_MSG: Final = b"MSG "
_HMSG: Final = b"HMSG "
_WITHOUT_REPLY: Final = 3
"""Words of a message: subject, subscription, size. A reply is between the last two."""


class Headers(Mapping[str, str]):
    """The header lines of a message, parsed when somebody asks; of equal names the last counts."""

    __slots__ = ("_hidden", "_lines", "_raw")

    def __init__(self, raw: bytes, hidden: frozenset[str] = frozenset()) -> None:
        """``hidden``: names that are left out."""
        self._raw = raw
        self._hidden = hidden
        self._lines: dict[str, str] | None = None

    def __getitem__(self, name: str) -> str:
        return self._parsed()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._parsed())

    def __len__(self) -> int:
        return len(self._parsed())

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self.get(name) is not None

    def get(self, name: str, default: str | None = None) -> str | None:  # type: ignore[override] # no other default
        """The value. A name whose bytes are nowhere in the block is not looked for in its lines."""
        if self._lines is None and name.encode() not in self._raw:
            return default
        return self._parsed().get(name, default)

    def __repr__(self) -> str:
        return f"Headers({self._parsed()!r})"

    def _parsed(self) -> dict[str, str]:
        if self._lines is None:
            found = header_lines(self._raw) if len(self._raw) <= MOST_HEADER_BYTES else {}
            self._lines = {name: text for name, text in found.items() if name not in self._hidden}
        return self._lines


class Msg(msgspec.Struct, gc=False):
    """A message as it arrived. ``head`` is its header block, empty for a message without one."""

    subject: str
    reply: str
    head: bytes
    data: bytes

    @property
    def headers(self) -> Headers:
        """Its header lines, without the status."""
        return Headers(self.head)

    @property
    def status(self) -> str:
        """The three digits with which the server answers instead of data; empty for anything else."""
        digits = self.head[_STATUS_AT : _STATUS_AT + _STATUS_DIGITS]
        is_status = self.head[len(_HEADER_LINE) : _STATUS_AT] == b" " and digits.isdigit()
        return digits.decode() if is_status else ""

    @property
    def description(self) -> str:
        """The server's text after the status."""
        line, _, _ = self.head[_STATUS_AT + _STATUS_DIGITS : MOST_LINE_BYTES].partition(_CRLF)
        return line.strip().decode(errors="replace") if self.status else ""


Listener = Callable[[Msg], None]
"""Called with each message of a subscription. It must not block."""


def header_lines(raw: bytes) -> dict[str, str]:
    """The valid lines of a header block, as nats-py reads them; of equal names the last."""
    headers: dict[str, str] = {}
    for line in raw.split(_CRLF):
        name, colon, value = line.partition(b":")
        if not colon:
            continue
        try:
            key = name.strip().decode("ascii")
        except UnicodeDecodeError:
            continue
        if key.split() == [key] or not key:  # a name has no white space
            headers[key] = value.strip().decode("utf-8", "replace")
    return headers


def last_header(head: bytes, name: bytes) -> bytes | None:
    """A value that the server wrote. It writes its lines below the publisher's, so the last one is the server's."""
    start = head.rfind(b"\r\n%b: " % name)
    if start < 0:
        return None
    start += len(name) + 4
    return head[start : head.find(_CRLF, start)]


# --- what is sent

_NAME: Final = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_LINE_BREAKS: Final = str.maketrans({"\r": " ", "\n": " "})
_WHITE_SPACE: Final = re.compile(r"[ \t\r\n]")
_WILDCARD_TOKENS: Final = re.compile(r"(?:[^\s.*>]+|\*)(?:\.(?:[^\s.*>]+|\*))*(?:\.>)?|>")


def header_block(headers: Mapping[str, str] | None) -> bytes:
    """The header block as it is sent, empty without headers. A line break in a value becomes a space.

    Raises:
        BusRefusedError: a name that the protocol does not allow.
    """
    if not headers:
        return b""
    lines = ["NATS/1.0"]
    for name, text in headers.items():
        value = text.strip()
        if "\n" in value or "\r" in value:
            value = value.translate(_LINE_BREAKS)
        lines.append(_begun_line(name) + value)
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


@lru_cache(maxsize=256)
def _begun_line(name: str) -> str:
    if _NAME.fullmatch(name) is None:
        raise BusRefusedError(f"publishing with header {name!r}: want letters, digits and dashes")
    return f"{name}: "


def message_size(data: bytes, headers: Mapping[str, str] | None) -> int:
    """The bytes of a message that count for the server's limit: the payload, and the headers as they are sent."""
    return len(data) + len(header_block(headers))


class ProtocolError(Exception):
    """The server sent something that breaks the protocol."""


class Wire(asyncio.Protocol):
    """One logged-in connection: subscriptions by number, PINGs in their order, and everything sent in its order."""

    def __init__(self, *, on_error: Callable[[str], None], on_end: Callable[[str], None]) -> None:
        """``on_error`` gets the text of each -ERR; ``on_end`` the cause, once, unless :meth:`abort` ended it."""
        self.max_payload = MOST_MESSAGE_BYTES
        self._on_error: Final = on_error
        self._on_end: Final = on_end
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._ended = False
        self._closed: Final = asyncio.Event()
        self._listeners: Final[dict[bytes, Listener]] = {}
        self._numbers: Final = itertools.count(1)
        self._pongs: Final[deque[Callable[[], None]]] = deque()
        self._last_read = 0.0
        self._resuming: asyncio.TimerHandle | None = None
        self._rest: Final[list[bytes]] = []
        self._rest_bytes = 0
        self._needed_bytes = 0
        self._out: Final[list[bytes]] = []
        self._held_bytes = 0
        self._is_paused = False
        self._is_flush_scheduled = False
        self._waiting: Final[deque[asyncio.Future[None]]] = deque()

    def take_over(self, transport: asyncio.Transport, received: bytes) -> None:
        """Become the transport's protocol; ``received`` was read from it and not looked at."""
        self._transport = transport
        transport.set_protocol(self)
        if not transport.is_reading():
            transport.resume_reading()
        if received:
            self.data_received(received)

    # --- sending

    def publish(self, subject: str, data: bytes, reply: bytes, head: bytes) -> None:
        """Send in the order of the calls. ``reply`` is empty, or a subject with a space before it.

        Dropped once the connection has ended.

        Raises:
            BusRefusedError: the subject is empty, or has white space, which would end the command, or is too long.
        """
        if not subject or _WHITE_SPACE.search(subject):
            raise BusRefusedError(f"publishing to {subject!r:.300}: want a subject without white space")
        size, place = len(data), subject.encode()
        if len(place) + len(reply) > MOST_SUBJECT_BYTES:
            raise BusRefusedError(f"publishing to {subject!r:.300}...: want {MOST_SUBJECT_BYTES} bytes at most")
        if head:
            command = b"HPUB %b%b %d %d\r\n" % (place, reply, len(head), len(head) + size)
            self._send((command, head, data, _CRLF), len(head) + size)
        else:
            self._send((b"PUB %b%b %d\r\n" % (place, reply, size), data, _CRLF), size)

    def subscribe(self, subject: str, listener: Listener) -> bytes:
        """Subscribe; returns the number of the subscription. The server has it once a later PING is answered.

        Raises:
            BusRefusedError: no such subject can exist.
        """
        if _WILDCARD_TOKENS.fullmatch(subject) is None:
            raise BusRefusedError(f"subscribing to {subject!r}: want tokens, dots between them, and whole wildcards")
        number = b"%d" % next(self._numbers)
        self._listeners[number] = listener
        self._send((b"SUB %b %b\r\n" % (subject.encode(), number),))
        return number

    def unsubscribe(self, number: bytes) -> None:
        """End a subscription; its listener is not called any more."""
        if self._listeners.pop(number, None) is not None:
            self._send((b"UNSUB %b\r\n" % number,))

    def ping(self, on_pong: Callable[[], None]) -> None:
        """Send a PING. It is answered when the server has read all that was sent before it."""
        self._pongs.append(on_pong)
        self._send((b"PING\r\n",))

    def _send(self, parts: tuple[bytes, ...], size: int = 0) -> None:
        if self._ended:
            return
        self._out.extend(parts)
        self._held_bytes += size
        if not self._is_paused and not self._is_flush_scheduled:
            self._is_flush_scheduled = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._is_flush_scheduled = False
        if self._ended or self._is_paused or self._transport is None or not self._out:
            return
        data = b"".join(self._out)
        self._out.clear()
        self._held_bytes = 0
        try:
            self._transport.write(data)
        except (OSError, RuntimeError) as exc:  # uvloop raises a RuntimeError when it has closed the socket already
            self._end(f"writing to it: {exc}")
        self._admit_next()

    # --- back-pressure

    def pause_writing(self) -> None:
        """The server reads more slowly than is sent."""
        self._is_paused = True

    def resume_writing(self) -> None:
        """The transport has written almost all: send what was held, and let those that wait go on."""
        self._is_paused = False
        self._flush()
        self._admit_next()

    @property
    def is_crowded(self) -> bool:
        """Whether a publish must await :meth:`room` first."""
        return bool(self._waiting) or not self._has_room()

    async def room(self) -> None:
        """Wait, in turn, until the server has taken enough of what is held, or the connection has ended."""
        turn = self._loop.create_future()
        self._waiting.append(turn)
        self._admit_next()
        try:
            await turn
        finally:
            self._waiting.remove(turn)
            self._loop.call_soon(self._admit_next)

    def _admit_next(self) -> None:
        if self._waiting and not self._waiting[0].done() and (self._ended or self._has_room()):
            self._waiting[0].set_result(None)

    def _has_room(self) -> bool:
        written = self._transport.get_write_buffer_size() if self._is_paused and self._transport is not None else 0
        return self._held_bytes + written <= MOST_HELD_BYTES

    # --- receiving

    def data_received(self, data: bytes) -> None:
        """Handle all whole frames; the rest is kept until more has come."""
        self._pace(len(data))
        if self._rest:
            self._rest.append(data)
            self._rest_bytes += len(data)
            if self._rest_bytes < self._needed_bytes:
                return
            data = b"".join(self._rest)
            self._rest.clear()
        try:
            done = self._cut(data)
        except ProtocolError as exc:
            self._end(f"it does not speak the protocol: {exc}")
            return
        if done < len(data):
            self._rest.append(data[done:])
            self._rest_bytes = len(data) - done

    def _pace(self, size: int) -> None:
        """Let the next read wait when they are dense."""
        now, before = time.monotonic(), self._last_read
        self._last_read = now
        is_dense = now - before < DENSE_SECONDS and size < LARGE_READ_BYTES
        if is_dense and self._resuming is None and self._transport is not None:
            self._transport.pause_reading()
            self._resuming = self._loop.call_later(DENSE_SECONDS, self._resume_reading)

    def _resume_reading(self) -> None:
        self._resuming = None
        if not self._ended and self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def _cut(self, data: bytes) -> int:
        """Handle frame after frame; returns where the first one begins that is not whole."""
        start, end = 0, len(data)
        while start < end and not self._ended:
            line_end = data.find(_CRLF, start, start + MOST_LINE_BYTES)
            if line_end < 0:
                self._needed_bytes = _more_of_line(end - start)
                return start
            body = line_end + 2
            if data.startswith(_MSG, start):
                words = data[start + 4 : line_end].split(b" ")
                head_bytes = 0
            elif data.startswith(_HMSG, start):
                words = data[start + 5 : line_end].split(b" ")
                head_bytes = _size(words.pop(-2)) if len(words) > 1 else 0
            else:
                self._on_control(data[start:line_end])
                start = body
                continue
            reply = "" if len(words) == _WITHOUT_REPLY else _reply(words)
            payload = body + head_bytes
            message_end = body + _size(words[-1])
            if end < message_end + 2:
                self._needed_bytes = message_end + 2 - start
                return start
            if payload > message_end or not data.startswith(_CRLF, message_end):
                raise ProtocolError(f"a message of other lengths than {data[start:line_end][:80]!r}")
            start = message_end + 2
            if (listener := self._listeners.get(words[1])) is None:
                continue
            message = Msg(words[0].decode(errors="replace"), reply, data[body:payload], data[payload:message_end])
            try:
                listener(message)
            except Exception:  # it costs one message, not the connection
                log.exception("reading a message of %r failed", message.subject)
        return start if not self._ended else end

    def _on_control(self, line: bytes) -> None:
        word, _, rest = line.partition(b" ")
        match word.strip().upper():
            case b"PING":
                self._send((b"PONG\r\n",))
            case b"PONG":
                if self._pongs:
                    self._pongs.popleft()()
            case b"+OK":
                return
            case b"-ERR":
                self._on_error(rest.decode(errors="replace").strip().strip("'"))
            case b"INFO":
                self._on_info(rest)
            case _:
                raise ProtocolError(f"{line[:80]!r}")

    def _on_info(self, text: bytes) -> None:
        """The server's settings, also when they change: the rest is for clients that reconnect."""
        try:
            self.set_max_payload(msgspec.json.decode(text, type=_Info).max_payload)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as exc:
            raise ProtocolError(f"INFO that cannot be read: {exc}") from exc

    def set_max_payload(self, size: int | None) -> None:
        """The server's own limit, from its INFO."""
        if size is not None and size > 0:
            self.max_payload = min(size, MOST_MESSAGE_BYTES)

    # --- the end

    def eof_received(self) -> None:
        """The server has closed its side: the transport closes, and :meth:`connection_lost` is called."""

    def connection_lost(self, exc: Exception | None) -> None:
        """The transport is closed."""
        self._closed.set()
        self._end(f"the server closed it ({exc})" if exc else "the server closed it")

    def _end(self, cause: str) -> None:
        if not self._ended:
            self.abort()
            self._on_end(cause)

    def abort(self) -> None:
        """Close the socket at once; what was not sent is dropped, and no listener is called any more."""
        self._ended = True
        if self._resuming is not None:
            self._resuming.cancel()
        self._out.clear()
        self._rest.clear()
        self._pongs.clear()
        self._listeners.clear()
        self._held_bytes = 0
        self._admit_next()
        if self._transport is not None:
            self._transport.abort()

    async def wait_closed(self) -> None:
        """Wait until the transport has closed its socket."""
        await self._closed.wait()


class _Info(msgspec.Struct, frozen=True):
    max_payload: int | None = None


def _more_of_line(length: int) -> int:
    if length >= MOST_LINE_BYTES:
        raise ProtocolError(f"a line of more than {MOST_LINE_BYTES} bytes")
    return length + 1


def _reply(words: list[bytes]) -> str:
    if len(words) != _WITHOUT_REPLY + 1:
        raise ProtocolError(f"a message with the arguments {b' '.join(words)[:80]!r}")
    return words[2].decode(errors="replace")


def _size(digits: bytes) -> int:
    if not digits.isdigit() or len(digits) > _SIZE_DIGITS or (size := int(digits)) > MOST_MESSAGE_BYTES:
        raise ProtocolError(f"a message of {digits[:20]!r} bytes")
    return size
