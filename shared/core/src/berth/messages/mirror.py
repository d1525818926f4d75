"""The values of the bucket ``cluster``: objects and watermarks (docs/protocol.md, 3).

The watcher writes them; scorers and ``berth why --now`` read them. Objects stay bytes here: their readers decode them.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from berth.messages.encoding import Versioned, decode_versioned, encode
from berth.messages.subjects import Term, key

WATERMARK: Final = "watermark"  # the first token of a watermark's key: watermark.<kind>


class Mirrored(Versioned, frozen=True, kw_only=True):
    """A value of the bucket. ``term`` is its writer's."""

    term: Annotated[Term, msgspec.Meta(ge=0, lt=10**15)]


class MirrorEntry(Mirrored, frozen=True, kw_only=True):
    """An object, trimmed to the fields that plugins read.

    ``object`` is its JSON. ``bound_at``, of placed pods only, is the RFC 3339 time of the Binding, if the watcher has
    it.
    """

    object: msgspec.Raw = msgspec.Raw(b"null")
    bound_at: str | None = None


class Watermark(Mirrored, frozen=True, kw_only=True):
    """A kind is complete up to this resourceVersion. Its age is the message's, by NATS' clock.

    ``unread``: why the watcher cannot read the kind; its objects do not count then.
    """

    resource_version: str
    unread: str = ""


def encode_entry(entry: MirrorEntry) -> bytes:
    return encode(entry)


def decode_entry(data: bytes) -> MirrorEntry:
    """Read an entry; ``object`` is JSON of any shape.

    Raises:
        UnknownSchemaError: of another schema.
        DecodeError: malformed in any other way.
    """
    return decode_versioned(data, MirrorEntry, "a mirrored value")


def watermark_key(kind: str) -> str:
    return key(WATERMARK, kind)


def encode_watermark(watermark: Watermark) -> bytes:
    return encode(watermark)


def decode_watermark(data: bytes) -> Watermark:
    """Raises as :func:`decode_entry`."""
    return decode_versioned(data, Watermark, "a mirrored value")
