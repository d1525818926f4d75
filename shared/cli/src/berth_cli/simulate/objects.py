"""Decodes the objects that a scheduling cycle reads from documents.

Objects of other kinds are counted. A missing namespace or uid is filled in, as by the API server.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar

import msgspec

from berth.api.devices import ResourceClaimTemplate
from berth.api.kinds import (
    COSCHEDULING_POD_GROUP,
    NAMESPACE,
    NODE,
    PLUGIN_KINDS,
    POD,
    POD_GROUP,
    PRIORITY_CLASS,
    RESOURCE_CLAIM_TEMPLATE,
    Kind,
    PluginObject,
)
from berth.api.meta import ObjectMeta
from berth.api.node import Node
from berth.api.pod import Pod
from berth.api.trimming import trim, without_unreadable
from berth.api.workloads import Namespace, PriorityClass
from berth.errors import DecodeError
from berth_cli.simulate.documents import Document, decode

DEFAULT_NAMESPACE: Final = "default"

_KUBERNETES_GROUPS: Final = ".k8s.io"
_VERSION: Final = re.compile("v[1-9][0-9]*((alpha|beta)[1-9][0-9]*)?")


ReadObject = Pod | Node | Namespace | PriorityClass | ResourceClaimTemplate | PluginObject

T = TypeVar("T", bound=ReadObject)

Identity = tuple[str, str, str]  # kind, namespace and name


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundObject(Generic[T]):
    """An object, and ``where`` it is: file, position and name, for messages.

    ``is_new``: not created yet, because it has neither uid nor resourceVersion.
    """

    where: str
    kind: str
    value: T
    is_new: bool = False

    @property
    def identity(self) -> Identity:
        return self.kind, self.value.metadata.namespace, self.value.metadata.name


def as_pod(found: FoundObject[ReadObject]) -> FoundObject[Pod] | None:
    if not isinstance(found.value, Pod):
        return None
    return FoundObject(where=found.where, kind=found.kind, value=found.value, is_new=found.is_new)


_KINDS: Final[tuple[Kind[ReadObject], ...]] = (
    POD,
    NODE,
    NAMESPACE,
    PRIORITY_CLASS,
    RESOURCE_CLAIM_TEMPLATE,
    *(kind for kind in PLUGIN_KINDS.values() if kind not in {POD_GROUP, COSCHEDULING_POD_GROUP}),
)
# The kinds to read, by their Kubernetes names.
KINDS: Final[Mapping[str, Kind[ReadObject]]] = {kind.kind: kind for kind in _KINDS}

_BY_LOWER_CASE: Final = {kind.lower(): kind for kind in KINDS}


@dataclass(slots=True)
class ObjectReader:
    problems: list[str] = field(default_factory=list)  # the errors in objects, one text each
    # the number of objects of each kind that the cycle does not read
    others: Counter[str] = field(default_factory=Counter)
    _decoders: dict[str, msgspec.json.Decoder[Any]] = field(default_factory=dict)

    def read(self, documents: Iterable[Document]) -> Iterator[FoundObject[ReadObject]]:
        for document in documents:
            kind = KINDS.get(document.kind)
            mistake = _mistaken_kind(document)
            if mistake:
                self.problems.append(f"{document.where}: {mistake}")
            elif kind is None or document.api_version.rpartition("/")[0] not in ("", kind.group):
                self.others[_full_kind(document)] += 1
            elif (found := self._found(document, kind)) is not None:
                yield found

    def _found(self, document: Document, kind: Kind[ReadObject]) -> FoundObject[ReadObject] | None:
        decoder = self._decoders.setdefault(document.kind, msgspec.json.Decoder(kind.served or kind.struct))
        try:
            value: ReadObject = decode(decoder, document.raw)
            if not value.metadata.name:
                raise DecodeError("metadata.name: missing: give it a name")  # noqa: TRY301 - reported as the others
        except DecodeError as exc:
            self.problems.append(f"{document.where} ({document.kind}): {exc}")
            return None
        is_created = value.metadata.uid or value.metadata.resource_version
        value = _identified(document.kind, without_unreadable(trim(value)), kind)
        return FoundObject(
            where=_where(document, value.metadata),
            kind=document.kind,
            value=value,
            is_new=not is_created,
        )


def _mistaken_kind(document: Document) -> str:
    """The problem with an unknown kind; empty if kind and version are known.

    Without this check, ``kind: pod`` would be left out silently.
    """
    close = _BY_LOWER_CASE.get(document.kind.lower()) or _BY_LOWER_CASE.get(document.kind.lower().removesuffix("s"))
    if close is None:
        return ""
    if close != document.kind:
        return f"kind: unknown kind {document.kind!r}, did you mean {close!r}?"
    group, _, version = document.api_version.rpartition("/")
    kind = KINDS[close]
    is_of_kubernetes = "." not in group or group.endswith(_KUBERNETES_GROUPS)
    is_wrong = document.api_version and is_of_kubernetes and (group != kind.group or not _VERSION.fullmatch(version))
    return f"apiVersion: want {kind.api_version!r} for a {close}, got {document.api_version!r}" if is_wrong else ""


def _full_kind(document: Document) -> str:
    group = document.api_version.rpartition("/")[0]
    return f"{document.kind}.{group}" if group else document.kind


def _identified(kind: str, value: ReadObject, readable: Kind[ReadObject]) -> ReadObject:
    own = value.metadata
    namespace = (own.namespace or DEFAULT_NAMESPACE) if readable.is_namespaced else ""
    uid = own.uid or "/".join(part for part in (kind, namespace, own.name) if part)
    if (namespace, uid) == (own.namespace, own.uid):
        return value
    return msgspec.structs.replace(value, metadata=msgspec.structs.replace(own, namespace=namespace, uid=uid))


def _where(document: Document, metadata: ObjectMeta) -> str:
    """Position and name; for pods of a template the position alone, so that equal messages are printed once."""
    if document.is_generated:
        return document.where
    name = "/".join(part for part in (metadata.namespace, metadata.name) if part)
    return f"{document.where} ({document.kind} {name})"
