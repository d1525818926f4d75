"""From the mirror on the bus to a Snapshot: what each key of the bucket ``cluster`` means to one.

Whoever reads the bucket uses this: the scorer as it goes, ``berth why --now`` once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import msgspec

from berth.api.boundat import unix_seconds
from berth.api.errors import DecodeError
from berth.api.furtherkinds import FURTHER_KINDS
from berth.api.mirror import MirrorEntry, decode_entry
from berth.api.namespace import Namespace
from berth.api.node import Node
from berth.api.pod import Pod, is_bound
from berth.api.subjects import parse_key
from berth.cluster.snapshot import Snapshot

WATERMARK = "watermark"


@dataclass(frozen=True, slots=True, kw_only=True)
class PodSeen:
    """The mirror shows a pod on a node."""

    uid: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PodNominated:
    """The mirror shows which node is kept for a pod."""

    pod: Pod


@dataclass(frozen=True, slots=True, kw_only=True)
class PodLeft:
    """The mirror does not show a pod any more."""

    uid: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Complete:
    """A kind is complete up to the time at which this was stored."""

    kind: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Changed:
    """Something else changed."""

    kind: str


News = PodSeen | PodNominated | PodLeft | Complete | Changed


class MirroredSnapshot:
    """A Snapshot kept by the entries of the bucket ``cluster``."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self._nodes = msgspec.json.Decoder(Node)
        self._pods = msgspec.json.Decoder(Pod)
        self._namespaces = msgspec.json.Decoder(Namespace)
        self._further = {name: msgspec.json.Decoder(kind.struct) for name, kind in FURTHER_KINDS.items()}
        self._setters: Mapping[str, Callable[[MirrorEntry], News]] = {
            "node": self._set_node,
            "pod": self._set_pod,
            "namespace": self._set_namespace,
        }

    def apply(self, key: str, data: bytes | None) -> News:
        """Take over one entry; ``data`` is ``None`` for a removal. Kinds that no plugin here reads change nothing.

        Raises:
            DecodeError: the key or the value does not say what it should; the Snapshot is as it was.
        """
        kind, name = parse_key(key)
        if kind == WATERMARK:
            return Complete(kind=name)
        if data is None:
            return self._remove(kind, name)
        setter = self._setters.get(kind)
        if setter is None and kind not in FURTHER_KINDS:
            return Changed(kind=kind)
        try:
            entry = decode_entry(data)
            return self._set_further(kind, name, entry) if setter is None else setter(entry)
        except msgspec.MsgspecError as exc:
            raise DecodeError(f"decoding mirrored {key!r}: {exc}") from exc

    def _remove(self, kind: str, name: str) -> News:
        if kind == "node":
            self.snapshot.remove_node(name)
        elif kind == "namespace":
            self.snapshot.remove_namespace(name)
        elif kind == "pod":
            self.snapshot.remove_pod(name)
            self.snapshot.end_nomination(name)
            return PodLeft(uid=name)
        elif kind in FURTHER_KINDS:
            self.snapshot.objects(FURTHER_KINDS[kind].struct).remove(name)
        return Changed(kind=kind)

    def _set_node(self, entry: MirrorEntry) -> News:
        self.snapshot.set_node(self._nodes.decode(entry.object))
        return Changed(kind="node")

    def _set_namespace(self, entry: MirrorEntry) -> News:
        self.snapshot.set_namespace(self._namespaces.decode(entry.object))
        return Changed(kind="namespace")

    def _set_further(self, kind: str, name: str, entry: MirrorEntry) -> News:
        thing = self._further[kind].decode(entry.object)
        self.snapshot.objects(FURTHER_KINDS[kind].struct).set(name, thing)
        return Changed(kind=kind)

    def _set_pod(self, entry: MirrorEntry) -> News:
        pod = self._pods.decode(entry.object)
        if is_bound(pod):
            self.snapshot.end_nomination(pod.uid)
            self.snapshot.place(pod, pod.spec.node_name, bound_at=unix_seconds(entry.bound_at))
            return PodSeen(uid=pod.uid)
        if not pod.status.nominated_node_name:
            return Changed(kind="pod")
        self.snapshot.nominate(pod, pod.status.nominated_node_name)
        return PodNominated(pod=pod)
