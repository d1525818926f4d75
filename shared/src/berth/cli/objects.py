"""The objects that a cycle reads, by Kubernetes' name of their kind, from the documents that hold them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar

import msgspec

from berth.api.furtherkinds import FURTHER_KINDS, FurtherObject
from berth.api.messages import MALFORMED
from berth.api.namespace import Namespace
from berth.api.node import Node
from berth.api.pod import Pod
from berth.api.priorityclass import PriorityClass
from berth.api.trim import trim
from berth.cli.objectfiles import Document

KubernetesObject = Pod | Node | Namespace | PriorityClass | FurtherObject
T = TypeVar("T", bound=KubernetesObject)
Identity = tuple[str, str, str]
"""The kind, the namespace, the name."""
DEFAULT_NAMESPACE: Final = "default"
_VALIDATION: Final = re.compile(r"(?P<what>.*) - at `\$\.?(?P<path>.*)`", re.DOTALL)
_EXPECTED: Final = re.compile(r"Expected `(.*?)`, got `(.*?)`")


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """How a kind is read: the group of its API, and whether its objects live in namespaces."""

    group: str
    struct: type[KubernetesObject]
    is_namespaced: bool = True


def _group(path: str) -> str:
    """Of the path that lists a kind: ``/apis/apps/v1/replicasets`` is of the group apps, ``/api/v1/pods`` of none."""
    _, api, group, *_ = path.split("/")
    return group if api == "apis" else ""


KINDS: Final[Mapping[str, Read]] = {
    "Pod": Read(group="", struct=Pod),
    "Node": Read(group="", struct=Node, is_namespaced=False),
    "Namespace": Read(group="", struct=Namespace, is_namespaced=False),
    "PriorityClass": Read(group="scheduling.k8s.io", struct=PriorityClass, is_namespaced=False),
    **{
        further.kind: Read(group=_group(further.path), struct=further.struct, is_namespaced=further.is_namespaced)
        for further in FURTHER_KINDS.values()
    },
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Found(Generic[T]):
    """An object and where it stands: its file, its place there, its name."""

    where: str
    kind: str
    thing: T

    @property
    def identity(self) -> Identity:
        """What there is one of in a cluster."""
        return self.kind, self.thing.metadata.namespace, self.thing.metadata.name


def as_pod(found: Found[KubernetesObject]) -> Found[Pod] | None:
    """The same when it is a pod."""
    return Found(where=found.where, kind=found.kind, thing=found.thing) if isinstance(found.thing, Pod) else None


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

    def read(self, documents: Iterator[Document]) -> Iterator[Found[KubernetesObject]]:
        """The objects of kinds that are read, trimmed, each with a namespace and a uid where it must have one."""
        for document in documents:
            kind = KINDS.get(document.kind)
            if kind is None or not _is_of(document.api_version, kind.group):
                self.others[_full_kind(document)] += 1
                continue
            thing = self._decoded(document, kind)
            if thing is not None:
                yield Found(where=_named(document, thing), kind=document.kind, thing=thing)

    def _decoded(self, document: Document, kind: Read) -> KubernetesObject | None:
        decoder = self._decoders.setdefault(document.kind, msgspec.json.Decoder(kind.struct))
        try:
            thing: KubernetesObject = trim(decoder.decode(document.raw))
        except MALFORMED as exc:
            self.problems.append(f"{document.where} ({document.kind}): {_said(exc)}")
            return None
        if not thing.metadata.name:
            self.problems.append(f"{document.where} ({document.kind}): metadata.name: missing: give it a name")
            return None
        return _identified(document.kind, thing, kind)


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
    parts = (thing.metadata.namespace, thing.metadata.name)
    return f"{document.where} ({document.kind} {'/'.join(part for part in parts if part)})"


def _said(exc: Exception) -> str:
    """What msgspec says, the field first: ``spec.priority: want int, got str``."""
    found = _VALIDATION.fullmatch(str(exc))
    what, path = (found["what"], found["path"]) if found else (str(exc), "")
    return f"{path}: {_wanted(what)}" if path else _wanted(what)


def _wanted(what: str) -> str:
    return _EXPECTED.sub(r"want \1, got \2", what)
