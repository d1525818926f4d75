"""What stands in the bucket ``cluster``: an object with the term that wrote it, and watermarks (PROTOCOL 2, 3).

The watcher writes these, scorers and ``berth why --now`` read them. Objects stay bytes here: who reads a kind knows its
type.
"""

from __future__ import annotations

from typing import Final, TypeVar

import msgspec

from berth.api.errors import DecodeError
from berth.api.messages import MALFORMED, SCHEMA, UnknownSchemaError
from berth.api.subjects import Term, key

WATERMARK: Final = "watermark"
"""The kind of key under which watermarks stand: ``watermark.<kind>``."""


def _schema() -> int:
    return SCHEMA


class Mirrored(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What all values carry: the schema, always written, and the term of the watcher that wrote it."""

    schema: int = msgspec.field(default_factory=_schema)
    term: Term


class MirrorEntry(Mirrored, frozen=True, kw_only=True):
    """An object, trimmed to what plugins read.

    ``object`` is its JSON. ``bound_at``, of pods on a node only, is the RFC 3339 time at which it was bound, when the
    watcher knows it.
    """

    object: msgspec.Raw = msgspec.Raw(b"null")
    bound_at: str | None = None


class Watermark(Mirrored, frozen=True, kw_only=True):
    """A kind is complete up to this resourceVersion; how old that is says the time of the message, not the writer."""

    resource_version: str


M = TypeVar("M", bound=Mirrored)
_entries: Final = msgspec.json.Decoder(MirrorEntry)
_watermarks: Final = msgspec.json.Decoder(Watermark)
_encoder: Final = msgspec.json.Encoder()


def encode_entry(entry: MirrorEntry) -> bytes:
    """The entry as JSON."""
    return _encoder.encode(entry)


def decode_entry(data: bytes) -> MirrorEntry:
    """Read an entry; ``object`` is JSON of any shape.

    Raises:
        UnknownSchemaError: of a schema that is neither this one nor the one before.
        DecodeError: anything else that is wrong with it.
    """
    return _decode(data, _entries)


def watermark_key(kind: str) -> str:
    """The key of a kind's watermark."""
    return key(WATERMARK, kind)


def encode_watermark(watermark: Watermark) -> bytes:
    """The watermark as JSON."""
    return _encoder.encode(watermark)


def decode_watermark(data: bytes) -> Watermark:
    """Read a watermark. Raises as :func:`decode_entry`."""
    return _decode(data, _watermarks)


def _decode(data: bytes, using: msgspec.json.Decoder[M]) -> M:
    try:
        value = using.decode(data)
    except MALFORMED as exc:
        raise DecodeError(f"decoding a mirrored value of {len(data)} bytes: {exc}") from exc
    if value.schema not in (SCHEMA, SCHEMA - 1):
        raise UnknownSchemaError(f"decoding a mirrored value: want schema {SCHEMA} or {SCHEMA - 1}, got {value.schema}")
    return value
