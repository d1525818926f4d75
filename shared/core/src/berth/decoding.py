"""The guard of all decoding of foreign bytes and text: any exception becomes that message's ``DecodeError``.

Messages, buckets and facts may be written by others, so numbers are bounded in digits, values in bytes and nesting.
"""

from __future__ import annotations

import re
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Final, TypeVar

import msgspec

from berth.errors import DecodeError

R = TypeVar("R")

# What decoding JSON may raise. msgspec does not wrap the last two: invalid UTF-8, endless nesting.
MALFORMED: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)

# Arrays and objects inside each other in a value that plugins decode themselves. Python's own limit depends on how deep
# the call stack is, so that a value that one caller can decode could end another.
MAX_NESTING: Final = 64
# Of a decoder's message: some quote the value.
REASON_CHARACTERS: Final = 300


class decoding(AbstractContextManager[None]):  # noqa: N801 - reads as a statement: ``with decoding("a fact"):``
    """Turns every exception of the block into a DecodeError that names the decoded value."""

    __slots__ = ("_what",)

    def __init__(self, what: str) -> None:
        self._what = what

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, Exception) and not isinstance(error, DecodeError):
            raise DecodeError(f"decoding {self._what}: {reason_of(error)}") from error


def reason_of(error: Exception) -> str:
    """The decoder's message, cut to a readable length."""
    text = str(error) or type(error).__name__
    return text if len(text) <= REASON_CHARACTERS else f"{text[:REASON_CHARACTERS]}..."


def decode_json(decoder: msgspec.json.Decoder[R], data: bytes | msgspec.Raw, what: str) -> R:
    """The decoded value.

    Raises:
        DecodeError: any exception of the decoder: malformed or of another type, not UTF-8, nested too deep.
    """
    with decoding(what):
        return decoder.decode(data)


# Digits of the largest number that Kubernetes and NATS write (63 bits). Longer texts are rejected: reading takes time
# with the square of the digits, and Python refuses above 4,300.
MAX_DIGITS: Final = 19


def bounded_number(text: str) -> int | None:
    """A number written in decimal digits, at most ``MAX_DIGITS`` of them; ``None`` for any other text."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= MAX_DIGITS else None


def number(text: str, what: str) -> int:
    """A whole number of bounded digits and no sign.

    Raises:
        DecodeError: anything else.
    """
    found = bounded_number(text)
    if found is None:
        raise DecodeError(f"decoding {what}: want a number, got {text!r:.80}")
    return found


def check_size(data: bytes, what: str, *, most: int) -> None:
    """Check JSON that is decoded later.

    Raises:
        DecodeError: it has more bytes than ``most``, or is nested deeper than ``MAX_NESTING``.
    """
    if len(data) > most:
        raise DecodeError(f"decoding {what}: want at most {most} bytes, got {len(data)}")
    if data.count(b"[") + data.count(b"{") <= MAX_NESTING:
        return
    depth = 0
    for found in _TOKENS.finditer(data):
        depth += _STEPS.get(found[0], 0)
        if depth > MAX_NESTING:
            raise DecodeError(f"decoding {what}: want at most {MAX_NESTING} arrays and objects inside each other")


def structure_of(data: bytes) -> str:
    """JSON without its values, which may be secret: the names of fields, and the type of each value."""
    try:
        check_size(data, "an object", most=len(data))
        value = msgspec.json.decode(data)
    except (DecodeError, *MALFORMED):
        return f"{len(data)} bytes"
    return msgspec.json.encode(_types_in(value)).decode()


def _types_in(value: object) -> object:
    if isinstance(value, dict):
        return {name: _types_in(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_types_in(each) for each in value]
    return type(value).__name__


_TOKENS: Final = re.compile(rb'"(?:[^"\\]|\\.)*"?|[\[\]{}]', re.DOTALL)
_STEPS: Final = {b"[": 1, b"{": 1, b"]": -1, b"}": -1}


def version_number(resource_version: str) -> int:
    """A resourceVersion as a number, which may be compared within a kind; 0 for one that is absent or no number."""
    return bounded_number(resource_version) or 0


def parse_resource_version(resource_version: str) -> int:
    """The same where one must be there.

    Raises:
        DecodeError: it is no decimal number; such an API server is older than 1.35, or not Kubernetes.
    """
    version = version_number(resource_version)
    if not version and resource_version != "0":
        raise DecodeError(f"decoding resourceVersion {resource_version!r:.80}: want a decimal number")
    return version
