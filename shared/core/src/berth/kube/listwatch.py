"""LIST and WATCH: a consistent LIST in pages, and the decoding of objects and watch events.

Decoding is pure. It is the hot path of every reflector. Equal parts of pods are stored once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from http import HTTPStatus
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

import msgspec

from berth.api.devices import ResourceSlice, SharedAttributes
from berth.api.kinds import Kind
from berth.api.meta import NAME_CHARACTERS, KubernetesObject, ObjectMeta
from berth.api.pod import Pod, PodSpec, PodStatus
from berth.api.trimming import readable_rest, trim, with_effective_requests, with_whole, without_unreadable
from berth.decoding import MALFORMED, reason_of
from berth.errors import DecodeError
from berth.kube.client import KubeClient
from berth.kube.errors import refusal
from berth.kube.gojson import decoded, readable
from berth.kube.http1 import Response, StatusObject, decode_status
from berth.memory import give_back_free_pages

T = TypeVar("T", bound=KubernetesObject)


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedPart(Generic[T]):
    """Some objects of an unfinished LIST, so that a large one is processed in steps.

    The kind is complete only with ``Listed``. If the LIST fails, the next one starts with its first object again.
    """

    kind: str
    objects: Sequence[T]


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed(Generic[T]):
    """A consistent and complete LIST. ``resource_version`` is the list's, not an object's."""

    kind: str
    objects: Sequence[T]
    resource_version: str
    passed_on: int = 0  # The first objects, this many, came before as a ListedPart.

    @property
    def rest(self) -> Sequence[T]:
        """Objects that did not come before."""
        return self.objects[self.passed_on :]


class Upserted(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    kind: str
    object: T


class Deleted(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """An object was deleted, or left the selector: its last state, with the resourceVersion of the deletion."""

    kind: str
    object: T


@dataclass(frozen=True, slots=True, kw_only=True)
class Current:
    """The kind is complete up to this version: a bookmark, or the start of a watch. Changes no object.

    ``unread``: why an optional kind cannot be read, until the next event of this type. Its objects may be old then.
    ``is_served``: false of a rare kind that the API server lacks.
    """

    kind: str
    resource_version: str
    unread: str = ""
    is_served: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Undecodable:
    """An object that cannot be decoded. It is reported, and the reflector continues.

    After a LIST such objects follow their ``Listed``, which does not contain them. Undecodable fields are empty.
    """

    kind: str
    namespace: str
    name: str
    uid: str
    resource_version: str
    reason: str
    raw: bytes
    deleted: bool = False  # Or left the selector.


ReflectorEvent = ListedPart[T] | Listed[T] | Upserted[T] | Deleted[T] | Current | Undecodable


class Sink(Protocol[T]):
    """Receives a reflector's events, in order. Must not block."""

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


class Page(NamedTuple):
    """A page of a LIST. ``continue_token`` is empty on the last page."""

    items: list[msgspec.Raw]  # Undecoded.
    resource_version: str
    continue_token: str


class ObjectDecoder(Generic[T]):
    """Decodes and trims objects of one kind; equal parts of pods and attributes of devices are shared."""

    def __init__(self, kind: Kind[T]) -> None:
        self._kind = kind
        self._shared = SharedParts()
        self._shared_attributes = SharedAttributes()
        self._decode = msgspec.json.Decoder(kind.served or kind.struct).decode

    def one(self, raw: bytes | msgspec.Raw) -> T | Undecodable:
        try:
            return decoded(self._one, raw)
        except MALFORMED as exc:
            rest = self._rest(readable(bytes(raw)), reason_of(exc))
            return rest or undecodable(self._kind.name, bytes(raw), str(exc))

    def _one(self, raw: bytes | msgspec.Raw) -> T:
        size = len(memoryview(raw))
        thing = trim(self._decode(raw), size)
        if isinstance(thing, Pod):
            thing = with_effective_requests(thing)  # type: ignore[assignment]  # T is Pod here
            self._shared.share(thing, size)
        elif isinstance(thing, ResourceSlice):
            self._shared_attributes(thing)
        keeps = self._kind.keeps_whole
        return with_whole(thing, raw) if keeps is not None and keeps(thing) else without_unreadable(thing)

    def _rest(self, raw: bytes, reason: str) -> T | None:
        try:
            return readable_rest(self._kind.struct, raw, reason)  # type: ignore[return-value]  # it is a T
        except MALFORMED:
            return None

    def several(self, items: Iterable[bytes | msgspec.Raw]) -> tuple[list[T], list[Undecodable]]:
        """Decode objects; undecodable ones are returned apart."""
        objects: list[T] = []
        undecodable: list[Undecodable] = []
        for raw in items:
            thing = self.one(raw)
            if isinstance(thing, Undecodable):
                undecodable.append(thing)
            else:
                objects.append(thing)
        return objects, undecodable

    def page(self, body: bytes) -> Page:
        """Split the answer to a LIST into its objects.

        Raises:
            DecodeError: not a list.
        """
        try:
            page = decoded(_list_decoder.decode, body)
        except MALFORMED as exc:
            raise DecodeError(f"decoding a list of {self._kind.name!r}: {exc}") from exc
        return Page(page.items or [], page.metadata.resource_version, page.metadata.continue_)

    def event(self, line: bytes) -> ReflectorEvent[T] | StatusObject:
        """Decode a line of a WATCH; an ERROR event gives its Status.

        Raises:
            DecodeError: not a watch event. The rest of the stream cannot be trusted.
        """
        try:
            envelope = decoded(_envelope_decoder.decode, line)
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
    """Describe an undecodable object by the text fields of its metadata."""
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
        metadata = decoded(_any_decoder.decode, raw).metadata
    except MALFORMED:
        return {}
    return {key: value[:NAME_CHARACTERS] for key, value in metadata.items() if isinstance(value, str)}


# Bytes of a line of a watch. etcd stores objects of at most 1.5 MiB by default, and JSON may escape each character.
MOST_LINE_BYTES: Final = 32 << 20


class LineSplitter:
    """Splits chunks into lines. A pod's line can exceed a megabyte, too long for asyncio's readline."""

    def __init__(self) -> None:
        self._begun: list[bytes] = []
        self._size = 0

    def feed(self, chunk: bytes) -> list[bytes]:
        """Return the lines that this chunk completes; keep the rest for the next chunk.

        Raises:
            DecodeError: a line without end.
        """
        first, *others = chunk.split(b"\n")
        self._size += len(first)
        if self._size > MOST_LINE_BYTES:
            raise DecodeError(f"reading a watch: want lines of at most {MOST_LINE_BYTES} bytes, got more")
        self._begun.append(first)
        if not others:
            return []
        self._size = len(others[-1])
        lines = [b"".join(self._begun), *others[:-1]]
        self._begun = [others[-1]]
        return [line for line in lines if line]


# Objects in the first page, whose bytes decide the size of the others; also the minimum of those.
PAGE_SIZE: Final = 500
# Target bytes of the following pages: 5,000 small pods. kube-apiserver scans all remaining objects for each page:
# 70,000 pods in pages of 500 cost it twice the CPU time. Larger pages would take more memory, and splitting one blocks
# the event loop: 10 ms at this size.
PAGE_BYTES: Final = 8 * 2**20
# Maximum objects in a page.
LARGEST_PAGE: Final = 10_000
# Objects decoded before other tasks get their turn: a few milliseconds, so that a Lease is renewed while 200,000 pods
# are listed.
OBJECTS_IN_A_STEP: Final = 250

# Time limit of a page; a large LIST on a busy API server takes seconds.
PAGE_TIMEOUT = timedelta(seconds=30)


# Maximum bytes of a LIST that cannot be paged: 200,000 pods of 5 KB.
LIST_BYTES = 2**30


class _ListExpiredError(Exception):
    """410: the snapshot behind the pages has expired."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Field and label selectors of a LIST or WATCH; all objects when both are ``None``."""

    field_selector: str | None = None
    label_selector: str | None = None

    def params(self) -> dict[str, str]:
        chosen = {"fieldSelector": self.field_selector, "labelSelector": self.label_selector}
        return {key: value for key, value in chosen.items() if value}

    @property
    def may_be_paged(self) -> bool:
        # kube-apiserver 1.36 then returns an empty second page without a continue token: every object after the first
        # page would be missing without an error.
        return "metadata.namespace" not in (self.field_selector or "")


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeList(Generic[T]):
    objects: list[T]
    undecodable: list[Undecodable]
    resource_version: str
    passed_on: int  # The first objects, this many, were passed to `on_part`.


# Receives objects of a LIST in order, while the rest is read.
OnPart = Callable[[list[T]], None]


async def list_objects(
    client: KubeClient,
    kind: Kind[T],
    *,
    selection: Selection | None = None,
    page_size: int | None = None,
    on_part: OnPart[T] | None = None,
) -> WholeList[T]:
    """List all objects of a kind at one resourceVersion. ``page_size``: objects per page; ``None``: by their size.

    Objects are decoded in steps while the next page is fetched. ``on_part`` receives every step but the last, and all
    again from the first object if the snapshot expires between two pages (410).

    Raises:
        ApiUnreachableError: no answer.
        ApiRefusedError: an answer other than 200.
        DecodeError: not a list.
    """
    selection = selection or Selection()
    params = selection.params()
    try:
        if selection.may_be_paged:
            with suppress(_ListExpiredError):
                limit = f"{page_size or PAGE_SIZE}"
                return await _Listing(client, kind, page_size, on_part).read({**params, "limit": limit})
        return await _Listing(client, kind, page_size, on_part).read(params)
    finally:
        give_back_free_pages()  # the answers' bytes: 20 MB and more


async def present_version(client: KubeClient, kind: Kind[Any]) -> str:
    """The API server's current resourceVersion of this kind, from a LIST of one object.

    Raises:
        ApiUnreachableError, ApiRefusedError, DecodeError: as :func:`list_objects`.
    """
    return ObjectDecoder(kind).page(await _fetch(client, kind, {"limit": "1"})).resource_version


class _Listing(Generic[T]):
    def __init__(self, client: KubeClient, kind: Kind[T], page_size: int | None, on_part: OnPart[T] | None) -> None:
        self._client = client
        self._kind = kind
        self._page_size = page_size
        self._on_part = on_part
        self._decoder = ObjectDecoder(kind)
        self._objects: list[T] = []
        self._undecodable: list[Undecodable] = []
        self._passed_on = 0

    async def read(self, params: Mapping[str, str]) -> WholeList[T]:
        body = await _fetch(self._client, self._kind, params)
        while True:
            page = self._decoder.page(body)
            if not page.continue_token:
                await self._decode(page.items)
                return self._whole(page.resource_version)
            params = {**params, "continue": page.continue_token, "limit": self._limit(page, len(body))}
            following = asyncio.create_task(_fetch(self._client, self._kind, params), name=f"list {self._kind.name}")
            try:
                await self._decode(page.items)
                body = await following
            finally:
                following.cancel()
                await asyncio.gather(following, return_exceptions=True)

    def _limit(self, page: Page, size: int) -> str:
        fitting = PAGE_BYTES * len(page.items) // size
        return str(self._page_size or max(PAGE_SIZE, min(LARGEST_PAGE, fitting)))

    async def _decode(self, items: Sequence[msgspec.Raw]) -> None:
        for begin in range(0, len(items), OBJECTS_IN_A_STEP):
            if self._objects or self._undecodable:
                self._pass_on()
                await asyncio.sleep(0)
            objects, undecodable = self._decoder.several(items[begin : begin + OBJECTS_IN_A_STEP])
            self._objects += objects
            self._undecodable += undecodable

    def _pass_on(self) -> None:
        if self._on_part is not None and self._passed_on < len(self._objects):
            self._on_part(self._objects[self._passed_on :])
            self._passed_on = len(self._objects)

    def _whole(self, resource_version: str) -> WholeList[T]:
        return WholeList(
            objects=self._objects,
            undecodable=self._undecodable,
            resource_version=resource_version,
            passed_on=self._passed_on,
        )


async def _fetch(client: KubeClient, kind: Kind[Any], params: Mapping[str, str]) -> bytes:
    response = await client.request("GET", kind.path, params=params, timeout=PAGE_TIMEOUT, largest=LIST_BYTES)
    if response.status == HTTPStatus.GONE and "continue" in params:
        raise _ListExpiredError
    return _wanted(kind, response).body


def _wanted(kind: Kind[Any], response: Response) -> Response:
    if response.status != HTTPStatus.OK:
        raise refusal(f"listing {kind.name!r}", response)
    return response


# Maximum workloads and namespaces with a remembered pod.
WORKLOADS: Final = 512
# Maximum remembered names of nodes: one string for all pods of a node.
NODES: Final = 65_536
# Maximum bytes of a remembered pod as JSON. With WORKLOADS it limits the memory of remembered pods, because some of
# them are deleted already.
LARGEST: Final = 16 * 1024

_OF_SPEC: Final = PodSpec.__struct_fields__
_OF_METADATA: Final = ("namespace", "labels", "annotations", "owner_references", "creation_timestamp")


class _PodParts(NamedTuple):
    metadata: ObjectMeta
    spec: PodSpec
    status: PodStatus


class SharedParts:
    """The last pod's parts of each workload, which replace equal parts of its next pod.

    Pods of one workload share 2 of the 2.5 KB of a small pod. A LIST is ordered by name, so that it has the pods of a
    workload in sequence. The first pod of a workload is compared with one of its namespace.
    """

    def __init__(self) -> None:
        self._last: dict[Hashable, _PodParts] = {}
        self._nodes: dict[str, str] = {}

    def __len__(self) -> int:
        return len(self._last)

    def share(self, pod: Pod, size: int) -> None:
        """Replace parts of a new pod by equal ones of the last. ``size``: its bytes as JSON."""
        if size > LARGEST:
            return
        metadata = pod.metadata
        workload, namespace = _workload_of(metadata), metadata.namespace
        before = self._last.get(workload) or self._last.get(namespace)
        if before is not None:
            _take_equal(metadata, before.metadata, _OF_METADATA)
            if pod.spec == before.spec:
                msgspec.structs.force_setattr(pod, "spec", before.spec)
            else:
                _take_equal(pod.spec, before.spec, _OF_SPEC)
                self._share_node_name(pod.spec)
            if pod.status == before.status:
                msgspec.structs.force_setattr(pod, "status", before.status)
        self._remember(workload, parts := _PodParts(metadata, pod.spec, pod.status))
        self._remember(namespace, parts)

    def _share_node_name(self, spec: PodSpec) -> None:
        name = spec.node_name
        known = self._nodes.get(name)
        if known is not None:
            msgspec.structs.force_setattr(spec, "node_name", known)
        elif len(self._nodes) < NODES:
            self._nodes[name] = name

    def _remember(self, whose: Hashable, parts: _PodParts) -> None:
        if whose not in self._last and len(self._last) >= WORKLOADS:
            del self._last[next(iter(self._last))]
        self._last[whose] = parts


def _workload_of(metadata: ObjectMeta) -> Hashable:
    # Pods of one owner, or without owner of one namespace and equal labels, are alike.
    if metadata.owner_references:
        return metadata.owner_references[0].uid
    return metadata.namespace, *(metadata.labels or {}).items()


def _take_equal(new: msgspec.Struct, before: msgspec.Struct, names: Iterable[str]) -> None:
    for name in names:
        value = getattr(before, name)
        if value is not None and value == getattr(new, name):
            msgspec.structs.force_setattr(new, name, value)
