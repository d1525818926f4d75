"""Decodes the objects that a scheduling cycle reads from documents.

Objects of other kinds are counted. A missing namespace or uid is filled in, as by the API server.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar

import msgspec

from berth.api.devices import ResourceClaimTemplate
from berth.api.kinds import (
    NAMESPACE,
    NODE,
    PLUGIN_KINDS,
    POD,
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

Identity = tuple[str, str, str]  # kind with its API group, namespace and name


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundObject(Generic[T]):
    """An object, and ``where`` it is: file, position and name, for messages.

    ``kind`` has its API group, by which PodGroups differ. ``is_new``: not created yet, because it has neither uid nor
    resourceVersion.
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
    *PLUGIN_KINDS.values(),
)
# The kinds to read, by their Kubernetes names: of PodGroups there are two.
_BY_NAME: Final[Mapping[str, Sequence[Kind[ReadObject]]]] = {
    name: tuple(kind for kind in _KINDS if kind.kind == name) for name in {kind.kind for kind in _KINDS}
}
_BY_LOWER_CASE: Final = {name.lower(): kinds for name, kinds in _BY_NAME.items()}


@dataclass(slots=True)
class ObjectReader:
    problems: list[str] = field(default_factory=list)  # the errors in objects, one text each
    # the number of objects of each kind that the cycle does not read
    others: Counter[str] = field(default_factory=Counter)
    _decoders: dict[type[Any], msgspec.json.Decoder[Any]] = field(default_factory=dict)

    def read(self, documents: Iterable[Document]) -> Iterator[FoundObject[ReadObject]]:
        for document in documents:
            mistake = _mistaken_kind(document)
            if mistake:
                self.problems.append(f"{document.where}: {mistake}")
            elif (kind := _kind_of(document)) is None:
                self.others[_full_kind(document)] += 1
            elif (found := self._found(document, kind)) is not None:
                yield found

    def _found(self, document: Document, kind: Kind[ReadObject]) -> FoundObject[ReadObject] | None:
        struct = kind.served or kind.struct
        decoder = self._decoders.setdefault(struct, msgspec.json.Decoder(struct))
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
            kind=_with_group(kind.kind, kind.group),
            value=value,
            is_new=not is_created,
        )


def _kind_of(document: Document) -> Kind[ReadObject] | None:
    group = document.api_version.rpartition("/")[0]
    return next((kind for kind in _BY_NAME.get(document.kind, ()) if group in ("", kind.group)), None)


def _mistaken_kind(document: Document) -> str:
    """The problem with an unknown kind; empty if kind and version are known.

    Without this check, ``kind: pod`` would be left out silently.
    """
    lower = document.kind.lower()
    close = _BY_LOWER_CASE.get(lower) or _BY_LOWER_CASE.get(lower.removesuffix("s"))
    if close is None:
        return ""
    name = close[0].kind
    if name != document.kind:
        return f"kind: unknown kind {document.kind!r}, did you mean {name!r}?"
    group, _, version = document.api_version.rpartition("/")
    if "." in group and not group.endswith(_KUBERNETES_GROUPS):
        return ""
    is_known = bool(_VERSION.fullmatch(version)) and any(group == kind.group for kind in close)
    if is_known or (not document.api_version and len(close) == 1):
        return ""
    wanted = " or ".join(repr(kind.api_version) for kind in close)
    return f"apiVersion: want {wanted} for a {name}, got {document.api_version!r}"


def _full_kind(document: Document) -> str:
    return _with_group(document.kind, document.api_version.rpartition("/")[0])


def _with_group(kind: str, group: str) -> str:
    return f"{kind}.{group}" if group else kind


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
