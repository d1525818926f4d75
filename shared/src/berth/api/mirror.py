"""The values of the bucket ``cluster``: objects with the term that wrote them, and watermarks (docs/protocol.md, 2, 3).

The watcher writes them; scorers and ``berth why --now`` read them. Objects stay bytes here: their readers decode
them.
"""

from __future__ import annotations

from typing import Final

import msgspec

from berth.api.messages import Versioned, decode_versioned, encode
from berth.api.subjects import Term, key

WATERMARK: Final = "watermark"
"""The first token of a watermark's key: ``watermark.<kind>``."""


class Mirrored(Versioned, frozen=True, kw_only=True):
    """A value of the bucket. ``term`` is that of the watcher that wrote it."""

    term: Term


class MirrorEntry(Mirrored, frozen=True, kw_only=True):
    """An object, trimmed to what plugins read.

    ``object`` is its JSON. ``bound_at``, of pods on a node only, is the RFC 3339 time at which it was bound, if the
    watcher has it.
    """

    object: msgspec.Raw = msgspec.Raw(b"null")
    bound_at: str | None = None


class Watermark(Mirrored, frozen=True, kw_only=True):
    """A kind is complete up to this resourceVersion. Its age is that of the message, by NATS' clock."""

    resource_version: str


def encode_entry(entry: MirrorEntry) -> bytes:
    return encode(entry)


def decode_entry(data: bytes) -> MirrorEntry:
    """Read an entry; ``object`` is JSON of any shape.

    Raises:
        UnknownSchemaError: of a schema that is neither this one nor the one before.
        DecodeError: anything else that is wrong with it.
    """
    return decode_versioned(data, MirrorEntry, "a mirrored value")


def watermark_key(kind: str) -> str:
    """The key of a kind's watermark."""
    return key(WATERMARK, kind)


def encode_watermark(watermark: Watermark) -> bytes:
    return encode(watermark)


def decode_watermark(data: bytes) -> Watermark:
    """Read a watermark. Raises as :func:`decode_entry`."""
    return decode_versioned(data, Watermark, "a mirrored value")
