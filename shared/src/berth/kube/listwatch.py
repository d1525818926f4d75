"""LIST and WATCH: a consistent LIST in pages, the decoding of lists and watch events, and the events made of them.

Decoding is pure. It is the hot path of every reflector.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from http import HTTPStatus
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from berth.api.decoding import MALFORMED
from berth.api.errors import DecodeError
from berth.api.kinds import Kind
from berth.api.meta import KubernetesObject
from berth.api.trimming import trim
from berth.kube.client import KubeClient
from berth.kube.errors import Response, StatusObject, decode_status, refusal

T = TypeVar("T", bound=KubernetesObject)


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed(Generic[T]):
    """A consistent and complete LIST. ``resource_version`` is the list's, not an object's."""

    kind: str
    objects: Sequence[T]
    resource_version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Upserted(Generic[T]):
    """An object was added or modified; its version is in its metadata."""

    kind: str
    object: T


@dataclass(frozen=True, slots=True, kw_only=True)
class Deleted(Generic[T]):
    """An object was deleted, or left the selector: its last state, with the resourceVersion of the deletion."""

    kind: str
    object: T


@dataclass(frozen=True, slots=True, kw_only=True)
class Current:
    """The kind is complete up to this version: a bookmark, or the start of a watch. Changes no object."""

    kind: str
    resource_version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Undecodable:
    """An object that cannot be decoded. It is reported, and the reflector continues.

    Those of a LIST follow their ``Listed``, which does not contain them although they exist. Unreadable fields are
    empty.
    """

    kind: str
    namespace: str
    name: str
    uid: str
    resource_version: str
    reason: str
    raw: bytes
    deleted: bool = False
    """Whether it was deleted, or left the selector."""


ReflectorEvent = Listed[T] | Upserted[T] | Deleted[T] | Current | Undecodable


class Sink(Protocol[T]):
    """Receives a reflector's events, in order. It must not block: enqueue them."""

    def __call__(self, event: ReflectorEvent[T], /) -> None: ...


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
    """A page of a LIST. ``continue_token`` is empty on the last page."""

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
        """An object, or a description of one that cannot be decoded."""
        try:
            return trim(self._decode(raw))
        except MALFORMED as exc:
            return undecodable(self._kind.name, bytes(raw), str(exc))

    def page(self, body: bytes) -> Page[T]:
        """Decode the answer to a LIST.

        Raises:
            DecodeError: it is not a list.
        """
        try:
            page = _list_decoder.decode(body)
        except MALFORMED as exc:
            raise DecodeError(f"decoding a list of {self._kind.name!r}: {exc}") from exc
        decoded = [self.one(raw) for raw in page.items or ()]
        return Page(
            objects=[thing for thing in decoded if not isinstance(thing, Undecodable)],
            undecodable=[thing for thing in decoded if isinstance(thing, Undecodable)],
            resource_version=page.metadata.resource_version,
            continue_token=page.metadata.continue_,
        )

    def event(self, line: bytes) -> ReflectorEvent[T] | StatusObject:
        """Decode a line of a WATCH; for an ERROR event returns its Status.

        Raises:
            DecodeError: it is not a watch event. The rest of the stream cannot be trusted.
        """
        try:
            envelope = _envelope_decoder.decode(line)
        except MALFORMED as exc:
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
    """Describe an object that cannot be decoded, by the metadata fields that are text."""
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
    except MALFORMED:
        return {}
    return {key: value for key, value in metadata.items() if isinstance(value, str)}


class LineSplitter:
    """Splits chunks into lines. The line of a pod can exceed a megabyte, which is too long for asyncio's readline."""

    def __init__(self) -> None:
        self._begun: list[bytes] = []

    def feed(self, chunk: bytes) -> list[bytes]:
        """Return the lines that this chunk completes; keep the rest for the next chunk."""
        first, *others = chunk.split(b"\n")
        self._begun.append(first)
        if not others:
            return []
        lines = [b"".join(self._begun), *others[:-1]]
        self._begun = [others[-1]]
        return [line for line in lines if line]


PAGE_SIZE = 500
"""Objects per page: 2 MB of full pods, 10 ms of decoding, which block the event loop."""

PAGE_TIMEOUT = timedelta(seconds=30)
"""How long a page may take; a LIST of everything on a busy API server takes seconds."""


LIST_BYTES = 2**30
"""Longest answer to a LIST: 200,000 pods of 5 KB, when it cannot be read in pages."""


class _ListExpiredError(Exception):
    """410: the snapshot that the pages are read from has expired."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Field and label selectors of a LIST or WATCH; all objects when both are ``None``."""

    field_selector: str | None = None
    label_selector: str | None = None

    def params(self) -> dict[str, str]:
        """The selectors as query parameters."""
        chosen = {"fieldSelector": self.field_selector, "labelSelector": self.label_selector}
        return {key: value for key, value in chosen.items() if value}

    @property
    def may_be_paged(self) -> bool:
        """Whether a LIST with this selector can be read in pages.

        With a field selector on metadata.namespace, kube-apiserver 1.36 returns an empty second page without a continue
        token. Every object after the first page would be missing, without an error.
        """
        return "metadata.namespace" not in (self.field_selector or "")


async def list_objects(
    client: KubeClient, kind: Kind[T], *, selection: Selection | None = None, page_size: int = PAGE_SIZE
) -> Page[T]:
    """All objects of a kind at one resourceVersion, as a single page.

    When the snapshot expires between two pages (410), the list is read again without paging.

    Raises:
        ApiUnreachableError: no answer.
        ApiRefusedError: an answer other than 200.
        DecodeError: the answer is not a list.
    """
    selection = selection or Selection()
    params = selection.params()
    decoder = ObjectDecoder(kind)
    if not selection.may_be_paged:
        return await _in_pages(client, kind, decoder, params)
    try:
        return await _in_pages(client, kind, decoder, {**params, "limit": str(page_size)})
    except _ListExpiredError:
        return await _in_pages(client, kind, decoder, params)


async def present_version(client: KubeClient, kind: Kind[Any]) -> str:
    """The API server's current resourceVersion of this kind, from a LIST of one object.

    Raises:
        ApiUnreachableError, ApiRefusedError, DecodeError: as :func:`list_objects`.
    """
    return (await _page(client, kind, ObjectDecoder(kind), {"limit": "1"})).resource_version


async def _in_pages(client: KubeClient, kind: Kind[T], decoder: ObjectDecoder[T], params: Mapping[str, str]) -> Page[T]:
    objects: list[T] = []
    undecodable: list[Undecodable] = []
    token = ""
    while True:
        page = await _page(client, kind, decoder, {**params, "continue": token} if token else params)
        objects += page.objects
        undecodable += page.undecodable
        token = page.continue_token
        if not token:
            version = page.resource_version
            return Page(objects=objects, undecodable=undecodable, resource_version=version, continue_token="")


async def _page(client: KubeClient, kind: Kind[T], decoder: ObjectDecoder[T], params: Mapping[str, str]) -> Page[T]:
    response = await client.request("GET", kind.path, params=params, timeout=PAGE_TIMEOUT, largest=LIST_BYTES)
    if response.status == HTTPStatus.GONE and "continue" in params:
        raise _ListExpiredError
    return decoder.page(_wanted(kind, response).body)


def _wanted(kind: Kind[T], response: Response) -> Response:
    if response.status != HTTPStatus.OK:
        raise refusal(f"listing {kind.name!r}", response)
    return response
