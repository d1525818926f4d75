"""From bytes of LIST and WATCH to events: pure, and the hot path of every reflector."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic

import msgspec

from berth.api.errors import DecodeError
from berth.api.trim import trim
from berth.kube.kinds import Kind
from berth.kube.port import Current, Deleted, ReflectorEvent, T, Undecodable, Upserted
from berth.kube.response import StatusObject, decode_status

Unreadable = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""What msgspec raises for bytes of another shape, for bytes that are no UTF-8, and for brackets without end."""


class _Envelope(msgspec.Struct, frozen=True):
    type: str
    object: msgspec.Raw


class _ListMeta(msgspec.Struct, frozen=True, rename="camel"):
    resource_version: str = ""
    continue_: str = msgspec.field(default="", name="continue")


class _List(msgspec.Struct, frozen=True):
    metadata: _ListMeta
    items: list[msgspec.Raw] | None = None


class _AnyMetadata(msgspec.Struct, frozen=True):
    metadata: dict[str, Any] = {}


_list_decoder = msgspec.json.Decoder(_List)
_envelope_decoder = msgspec.json.Decoder(_Envelope)
_any_decoder = msgspec.json.Decoder(_AnyMetadata)


@dataclass(frozen=True, slots=True, kw_only=True)
class Page(Generic[T]):
    """A part of a LIST. ``continue_token`` is empty on the last one."""

    objects: list[T]
    undecodable: list[Undecodable]
    resource_version: str
    continue_token: str


class ObjectDecoder(Generic[T]):
    """Decodes objects of one kind, trimmed."""

    def __init__(self, kind: Kind[T]) -> None:
        self._kind = kind
        self._decode = msgspec.json.Decoder(kind.struct).decode

    def one(self, raw: bytes | msgspec.Raw) -> T | Undecodable:
        """An object, or what can be said of one that has another shape."""
        try:
            return trim(self._decode(raw))
        except Unreadable as exc:
            return undecodable(self._kind.name, bytes(raw), str(exc))

    def page(self, body: bytes) -> Page[T]:
        """The answer to a LIST.

        Raises:
            DecodeError: it is no list at all.
        """
        try:
            page = _list_decoder.decode(body)
        except Unreadable as exc:
            raise DecodeError(f"decoding a list of {self._kind.name!r}: {exc}") from exc
        decoded = [self.one(raw) for raw in page.items or ()]
        return Page(
            objects=[thing for thing in decoded if not isinstance(thing, Undecodable)],
            undecodable=[thing for thing in decoded if isinstance(thing, Undecodable)],
            resource_version=page.metadata.resource_version,
            continue_token=page.metadata.continue_,
        )

    def event(self, line: bytes) -> ReflectorEvent[T] | StatusObject:
        """A line of a WATCH; an ERROR gives the Status that it carries.

        Raises:
            DecodeError: it is no watch event: what follows cannot be trusted.
        """
        try:
            envelope = _envelope_decoder.decode(line)
        except Unreadable as exc:
            raise DecodeError(f"decoding a watch event of {self._kind.name!r}: {exc}") from exc
        if envelope.type in ("ADDED", "MODIFIED"):
            return self._upserted(envelope.object)
        return self._rarer(envelope)

    def _upserted(self, raw: msgspec.Raw) -> Upserted[T] | Undecodable:
        thing = self.one(raw)
        return thing if isinstance(thing, Undecodable) else Upserted(kind=self._kind.name, object=thing)

    def _rarer(self, envelope: _Envelope) -> ReflectorEvent[T] | StatusObject:
        match envelope.type:
            case "DELETED":
                thing = self.one(envelope.object)
                if isinstance(thing, Undecodable):
                    return undecodable(self._kind.name, thing.raw, thing.reason, deleted=True)
                return Deleted(kind=self._kind.name, object=thing)
            case "BOOKMARK":
                version = _metadata_text(envelope.object).get("resourceVersion", "")
                return Current(kind=self._kind.name, resource_version=version)
            case "ERROR":
                return decode_status(envelope.object)
        raise DecodeError(f"decoding a watch event of {self._kind.name!r}: unknown type {envelope.type!r}")


def undecodable(kind: str, raw: bytes, reason: str, *, deleted: bool = False) -> Undecodable:
    """What can be read of an object of another shape: whatever of its metadata is text."""
    text = _metadata_text(raw)
    return Undecodable(
        kind=kind,
        namespace=text.get("namespace", ""),
        name=text.get("name", ""),
        uid=text.get("uid", ""),
        resource_version=text.get("resourceVersion", ""),
        reason=reason,
        raw=raw,
        deleted=deleted,
    )


def _metadata_text(raw: bytes | msgspec.Raw) -> dict[str, str]:
    try:
        metadata = _any_decoder.decode(raw).metadata
    except Unreadable:
        return {}
    return {key: value for key, value in metadata.items() if isinstance(value, str)}


class LineSplitter:
    """Cuts chunks into lines. A pod may be a line of a megabyte and more: too long for the readline of asyncio."""

    def __init__(self) -> None:
        self._begun: list[bytes] = []

    def feed(self, chunk: bytes) -> list[bytes]:
        """The lines that this chunk ends; the rest is kept for the next one."""
        first, *others = chunk.split(b"\n")
        self._begun.append(first)
        if not others:
            return []
        lines = [b"".join(self._begun), *others[:-1]]
        self._begun = [others[-1]]
        return [line for line in lines if line]
