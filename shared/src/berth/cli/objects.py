"""The objects that a cycle reads, by Kubernetes' name of their kind, from the documents that hold them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar

import msgspec

from berth.api.furtherkinds import FURTHER_KINDS, FurtherObject
from berth.api.messages import MALFORMED
from berth.api.meta import ObjectMeta
from berth.api.namespace import Namespace
from berth.api.node import Node
from berth.api.pod import Pod
from berth.api.priorityclass import PriorityClass
from berth.api.trim import trim
from berth.cli.creation.limitranges import LimitRange
from berth.cli.creation.runtimeclasses import RuntimeClass
from berth.cli.fieldtypes import fitted
from berth.cli.objectfiles import Document

KubernetesObject = Pod | Node | Namespace | PriorityClass | LimitRange | RuntimeClass | FurtherObject
T = TypeVar("T", bound=KubernetesObject)
Identity = tuple[str, str, str]
"""The kind, the namespace, the name."""
DEFAULT_NAMESPACE: Final = "default"
_VALIDATION: Final = re.compile(r"(?P<what>.*) - at `\$\.?(?P<path>.*)`", re.DOTALL)
_OF_KUBERNETES: Final = ".k8s.io"
_VERSION: Final = re.compile("v[1-9][0-9]*((alpha|beta)[1-9][0-9]*)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """How a kind is read: its version, after its group of the API, and whether its objects are in namespaces."""

    version: str
    struct: type[KubernetesObject]
    is_namespaced: bool = True

    @property
    def group(self) -> str:
        """``apps`` of ``apps/v1``; empty of ``v1``."""
        return self.version.rpartition("/")[0]


def _version(path: str) -> str:
    """Of the path that lists a kind: ``/apis/apps/v1/replicasets`` is of ``apps/v1``, ``/api/v1/pods`` of ``v1``."""
    return path.split("/", 2)[2].rpartition("/")[0]


KINDS: Final[Mapping[str, Read]] = {
    "Pod": Read(version="v1", struct=Pod),
    "Node": Read(version="v1", struct=Node, is_namespaced=False),
    "Namespace": Read(version="v1", struct=Namespace, is_namespaced=False),
    "LimitRange": Read(version="v1", struct=LimitRange),
    "PriorityClass": Read(version="scheduling.k8s.io/v1", struct=PriorityClass, is_namespaced=False),
    "RuntimeClass": Read(version="node.k8s.io/v1", struct=RuntimeClass, is_namespaced=False),
    **{
        further.kind: Read(version=_version(further.path), struct=further.struct, is_namespaced=further.is_namespaced)
        for further in FURTHER_KINDS.values()
    },
}
_IN_LOWER_CASE: Final = {kind.lower(): kind for kind in KINDS}


@dataclass(frozen=True, slots=True, kw_only=True)
class Found(Generic[T]):
    """An object and where it stands: its file, its place there, its name.

    ``manifest`` is the JSON of one that nobody created yet, which has neither uid nor resourceVersion; empty otherwise.
    """

    where: str
    kind: str
    thing: T
    manifest: bytes = b""

    @property
    def identity(self) -> Identity:
        """What there is one of in a cluster."""
        return self.kind, self.thing.metadata.namespace, self.thing.metadata.name


def as_pod(found: Found[KubernetesObject]) -> Found[Pod] | None:
    """The same when it is a pod."""
    if not isinstance(found.thing, Pod):
        return None
    return Found(where=found.where, kind=found.kind, thing=found.thing, manifest=found.manifest)


@dataclass(slots=True)
class ObjectReader:
    """Reads documents one by one.

    Attributes:
        problems: what is wrong with objects, a sentence each.
        others: how many objects there were of each kind that no cycle reads.
    """

    problems: list[str] = field(default_factory=list)
    others: Counter[str] = field(default_factory=Counter)
    _decoders: dict[str, msgspec.json.Decoder[Any]] = field(default_factory=dict)

    def read(self, documents: Iterable[Document]) -> Iterator[Found[KubernetesObject]]:
        """The objects of kinds that are read, trimmed, each with a namespace and a uid where it must have one."""
        for document in documents:
            kind = KINDS.get(document.kind)
            meant = _meant(document)
            if meant:
                self.problems.append(f"{document.where}: {meant}")
            elif kind is None or not _is_of(document.api_version, kind.group):
                self.others[_full_kind(document)] += 1
            elif (found := self._found(document, kind)) is not None:
                yield found

    def _found(self, document: Document, kind: Read) -> Found[KubernetesObject] | None:
        decoded = self._decoded(document, kind)
        if decoded is None:
            return None
        thing, raw = decoded
        problem = _problem(document, thing.metadata, kind)
        if problem:
            self.problems.append(f"{document.where} ({document.kind}): {problem}")
            return None
        manifest = b"" if _is_created(thing.metadata) else raw
        thing = _identified(document.kind, trim(thing), kind)
        return Found(where=_named(document, thing), kind=document.kind, thing=thing, manifest=manifest)

    def _decoded(self, document: Document, kind: Read) -> tuple[KubernetesObject, bytes] | None:
        decoder = self._decoders.setdefault(document.kind, msgspec.json.Decoder(kind.struct))
        try:
            return decoder.decode(document.raw), document.raw
        except MALFORMED:
            pass
        problems: list[str] = []
        try:
            raw = msgspec.json.encode(fitted(msgspec.json.decode(document.raw), kind.struct, problems))
            return decoder.decode(raw), raw
        except MALFORMED as exc:
            self.problems.extend(f"{document.where} ({document.kind}): {one}" for one in problems or [_said(exc)])
            return None


def _meant(document: Document) -> str:
    """What a document whose kind or version is of no object was meant to be; empty for what is one, known or not."""
    close = _IN_LOWER_CASE.get(document.kind.lower()) or _IN_LOWER_CASE.get(document.kind.lower().removesuffix("s"))
    if close is None:
        return ""
    if close != document.kind:
        return f"kind: no kind is called {document.kind!r}, did you mean {close!r}?"
    group, kind = document.api_version.rpartition("/")[0], KINDS[close]
    is_kubernetes_own = "." not in group or group.endswith(_OF_KUBERNETES)
    version = document.api_version.rpartition("/")[2]
    wrong = document.api_version and is_kubernetes_own and (group != kind.group or not _VERSION.fullmatch(version))
    return f"apiVersion: want {kind.version!r} for a {close}, got {document.api_version!r}" if wrong else ""


def _problem(document: Document, metadata: ObjectMeta, kind: Read) -> str:
    """Why an object cannot be one; old versions of those that a cluster has are fine."""
    if not metadata.name:
        return "metadata.name: missing: give it a name"
    if document.api_version not in ("", kind.version) and not _is_created(metadata):
        return f"apiVersion: want {kind.version!r}, got {document.api_version!r}"
    return ""


def _is_created(metadata: ObjectMeta) -> bool:
    return bool(metadata.uid or metadata.resource_version)


def _is_of(api_version: str, group: str) -> bool:
    """Whether a version is of the group; one that is not named is taken to be."""
    return not api_version or api_version.rpartition("/")[0] == group


def _full_kind(document: Document) -> str:
    group = document.api_version.rpartition("/")[0]
    return f"{document.kind}.{group}" if group else document.kind


def _identified(kind: str, thing: KubernetesObject, read: Read) -> KubernetesObject:
    """The object with what the API server would have added: a namespace, a uid."""
    given = thing.metadata
    namespace = (given.namespace or DEFAULT_NAMESPACE) if read.is_namespaced else ""
    uid = given.uid or "/".join(part for part in (kind, namespace, given.name) if part)
    if (namespace, uid) == (given.namespace, given.uid):
        return thing
    metadata = msgspec.structs.replace(given, namespace=namespace, uid=uid)
    return msgspec.structs.replace(thing, metadata=metadata)


def _named(document: Document, thing: KubernetesObject) -> str:
    """Where it is, and its name; all that a template makes is told of as one."""
    if document.is_made:
        return document.where
    parts = (thing.metadata.namespace, thing.metadata.name)
    return f"{document.where} ({document.kind} {'/'.join(part for part in parts if part)})"


def _said(exc: Exception) -> str:
    """What msgspec says, the field first."""
    found = _VALIDATION.fullmatch(str(exc))
    what, path = (found["what"], found["path"]) if found else (str(exc), "")
    return f"{path}: {what}" if path else what
