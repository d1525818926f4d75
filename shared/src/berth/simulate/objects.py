"""The objects that a cycle reads, by Kubernetes' name of their kind, from the documents that hold them.

A cluster's objects, read from files, as the Snapshot that a scheduler would have of them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar

import msgspec

from berth.api.kinds import PLUGIN_KINDS, Kind, PluginObject
from berth.api.messages import MALFORMED
from berth.api.meta import ObjectMeta, trim
from berth.api.node import Node
from berth.api.pod import Pod, bound_at, is_bound, is_finished, is_gone_while_unbound
from berth.api.workloads import Namespace, PriorityClass
from berth.cluster.snapshot import Snapshot
from berth.simulate.creation.limitranges import LimitRange
from berth.simulate.creation.runtimeclasses import RuntimeClass
from berth.simulate.documents import Document, fitted

KubernetesObject = Pod | Node | Namespace | PriorityClass | LimitRange | RuntimeClass | PluginObject

T = TypeVar("T", bound=KubernetesObject)

Identity = tuple[str, str, str]
"""The kind, the namespace, the name."""

DEFAULT_NAMESPACE: Final = "default"

_VALIDATION: Final = re.compile(r"(?P<what>.*) - at `\$\.?(?P<path>.*)`", re.DOTALL)

_OF_KUBERNETES: Final = ".k8s.io"

_VERSION: Final = re.compile("v[1-9][0-9]*((alpha|beta)[1-9][0-9]*)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadableKind:
    """How a kind is read: its version, after its group of the API, and whether its objects are in namespaces."""

    version: str
    struct: type[KubernetesObject]
    is_namespaced: bool = True

    @property
    def group(self) -> str:
        """``apps`` of ``apps/v1``; empty of ``v1``."""
        return self.version.rpartition("/")[0]


KINDS: Final[Mapping[str, ReadableKind]] = {
    "Pod": ReadableKind(version="v1", struct=Pod),
    "Node": ReadableKind(version="v1", struct=Node, is_namespaced=False),
    "Namespace": ReadableKind(version="v1", struct=Namespace, is_namespaced=False),
    "LimitRange": ReadableKind(version="v1", struct=LimitRange),
    "PriorityClass": ReadableKind(version="scheduling.k8s.io/v1", struct=PriorityClass, is_namespaced=False),
    "RuntimeClass": ReadableKind(version="node.k8s.io/v1", struct=RuntimeClass, is_namespaced=False),
    **{
        further.kind: ReadableKind(
            version=further.api_version, struct=further.struct, is_namespaced=further.is_namespaced
        )
        for further in PLUGIN_KINDS.values()
    },
}

_IN_LOWER_CASE: Final = {kind.lower(): kind for kind in KINDS}


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundObject(Generic[T]):
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


def as_pod(found: FoundObject[KubernetesObject]) -> FoundObject[Pod] | None:
    """The same when it is a pod."""
    if not isinstance(found.thing, Pod):
        return None
    return FoundObject(where=found.where, kind=found.kind, thing=found.thing, manifest=found.manifest)


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

    def read(self, documents: Iterable[Document]) -> Iterator[FoundObject[KubernetesObject]]:
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

    def _found(self, document: Document, kind: ReadableKind) -> FoundObject[KubernetesObject] | None:
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
        return FoundObject(where=_named(document, thing), kind=document.kind, thing=thing, manifest=manifest)

    def _decoded(self, document: Document, kind: ReadableKind) -> tuple[KubernetesObject, bytes] | None:
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


def _problem(document: Document, metadata: ObjectMeta, kind: ReadableKind) -> str:
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


def _identified(kind: str, thing: KubernetesObject, read: ReadableKind) -> KubernetesObject:
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


_NAME_LABEL: Final = "kubernetes.io/metadata.name"

_BY_KIND: Final[dict[str, Kind[PluginObject]]] = {further.kind: further for further in PLUGIN_KINDS.values()}


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """``waiting`` is how many pods are neither on a node nor finished."""

    snapshot: Snapshot
    waiting: int


def snapshot_of(pods: Iterable[Pod], others: Iterable[KubernetesObject]) -> State:
    """Pods count where they are bound or nominated to; those among ``others`` do not."""
    snapshot = Snapshot()
    for thing in others:
        _set(snapshot, thing)
    waiting = sum(_take_pod(snapshot, pod) for pod in pods)
    return State(snapshot=snapshot, waiting=waiting)


def _set(snapshot: Snapshot, thing: KubernetesObject) -> None:
    if isinstance(thing, Node):
        snapshot.set_node(thing)
    elif isinstance(thing, Namespace):
        snapshot.set_namespace(_labelled(thing))
    elif not isinstance(thing, Pod | PriorityClass | LimitRange | RuntimeClass):
        further = _BY_KIND[type(thing).__name__]
        snapshot.objects(further.struct).set(further.key_of(name=thing.metadata.name, uid=thing.metadata.uid), thing)


def _labelled(namespace: Namespace) -> Namespace:
    """With the label that the API server gives each namespace; one from a manifest does not have it yet."""
    labels = {**(namespace.metadata.labels or {}), _NAME_LABEL: namespace.metadata.name}
    return msgspec.structs.replace(namespace, metadata=msgspec.structs.replace(namespace.metadata, labels=labels))


def _take_pod(snapshot: Snapshot, pod: Pod) -> bool:
    """Whether the pod waits."""
    if is_bound(pod):
        snapshot.place(pod, pod.spec.node_name, bound_at=bound_at(pod))
        return False
    if is_finished(pod) or is_gone_while_unbound(pod):
        return False
    if pod.status.nominated_node_name:
        snapshot.nominate(pod, pod.status.nominated_node_name)
    return True
