"""How values on the bus are written and read: as JSON, with their schema (docs/protocol.md, 4).

Every message carries its schema and the digest of its writer's configuration, so that two versions or two
configurations can run side by side.
"""

from __future__ import annotations

from functools import cache
from typing import Final, TypeVar

import msgspec

from berth.api.meta import Name
from berth.decoding import decode_json
from berth.errors import DecodeError

# The schema that is written and read. The release that raises it also reads the one before (docs/protocol.md, 4.7).
SCHEMA: Final = 1


def _schema() -> int:
    return SCHEMA


class Versioned(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A value on the bus. Its schema comes first and is always written, because a factory makes it."""

    schema: int = msgspec.field(default_factory=_schema)


class Message(Versioned, frozen=True, kw_only=True):
    """A message of a stream. ``config`` is the digest of its writer's configuration."""

    config: Name = ""


V = TypeVar("V", bound=Versioned)
M = TypeVar("M", bound=Message)


class UnknownSchemaError(DecodeError):
    """A well-formed value of a schema that this reader does not support. A newer process may support it."""


_encoder: Final = msgspec.json.Encoder()


def encode(message: Versioned) -> bytes:
    return _encoder.encode(message)


def decode(data: bytes, kind: type[M]) -> M:
    """Raises as :func:`decode_versioned`."""
    return decode_versioned(data, kind, "a message")


def decode_versioned(data: bytes, kind: type[V], what: str, schema: int | None = None) -> V:
    """Decode a value of this schema, or of ``SCHEMA``; errors call it ``what``.

    Raises:
        UnknownSchemaError: another schema.
        DecodeError: malformed in any other way.
    """
    wanted = SCHEMA if schema is None else schema
    try:
        value: V = decode_json(_decoder(kind), data, f"{what} of {len(data)} bytes")
    except DecodeError:
        # A newer schema may have another shape: then the schema is the error, not the shape.
        _check_schema(_schema_of(data, wanted), wanted, what)
        raise
    _check_schema(value.schema, wanted, what)
    return value


@cache
def _decoder(kind: type[V]) -> msgspec.json.Decoder[V]:
    return msgspec.json.Decoder(kind)


class _Schema(msgspec.Struct):
    schema: int


_schema_decoder: Final = msgspec.json.Decoder(_Schema)


def _schema_of(data: bytes, wanted: int) -> int:
    """The schema of a value of unknown shape; the wanted one if unreadable."""
    try:
        return decode_json(_schema_decoder, data, "a schema").schema
    except DecodeError:
        return wanted


def _check_schema(schema: int, wanted: int, what: str) -> None:
    if schema != wanted:
        raise UnknownSchemaError(f"decoding {what}: want schema {wanted}, got {schema}")
