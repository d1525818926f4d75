"""Applies entries of the buckets ``cluster`` (the mirror), ``bandwidth`` and ``facts`` to a Snapshot.

The scorer applies entries as they arrive; ``berth why --now`` reads all of them once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import datetime

import msgspec

from berth.api.kinds import PLUGIN_KINDS
from berth.api.node import Node
from berth.api.pod import Pod, is_bound, unix_seconds
from berth.api.workloads import Namespace
from berth.cluster.livedata import LiveData
from berth.cluster.snapshot import Snapshot
from berth.decoding import decoding
from berth.messages.earmarks import EARMARK, Earmark
from berth.messages.livedata import BANDWIDTH, FACTS, LiveSource, NodeSample, decode_fact, decode_sample
from berth.messages.mirror import MirrorEntry, decode_entry, decode_watermark
from berth.messages.subjects import parse_key

WATERMARK = "watermark"


@dataclass(frozen=True, slots=True, kw_only=True)
class PodPlaced:
    """The mirror has a pod on a node."""

    uid: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PodNominated:
    """The mirror has a pod's nominated node."""

    pod: Pod


@dataclass(frozen=True, slots=True, kw_only=True)
class PodRemoved:
    uid: str


@dataclass(frozen=True, slots=True, kw_only=True)
class KindComplete:
    """The kind is complete up to the time at which this entry was stored."""

    kind: str


MirrorEvent = PodPlaced | PodNominated | PodRemoved | KindComplete | None  # None: the Snapshot has it already


class MirroredSnapshot:
    """A Snapshot kept up to date by entries of the bucket ``cluster``."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self._nodes = msgspec.json.Decoder(Node)
        self._pods = msgspec.json.Decoder(Pod)
        self._namespaces = msgspec.json.Decoder(Namespace)
        self._earmarks = msgspec.json.Decoder(Earmark)
        self._decoders = {name: msgspec.json.Decoder(kind.struct) for name, kind in PLUGIN_KINDS.items()}
        self._setters: Mapping[str, Callable[[MirrorEntry], MirrorEvent]] = {
            "node": self._set_node,
            "pod": self._set_pod,
            "namespace": self._set_namespace,
            EARMARK: self._set_earmark,
        }

    def apply(self, key: str, data: bytes | None) -> MirrorEvent:
        """Apply one entry; ``data`` is ``None`` for a removal. Kinds that plugins do not read are ignored.

        Raises:
            DecodeError: the key or the value cannot be decoded; the Snapshot is unchanged.
        """
        kind, name = parse_key(key)
        if kind == WATERMARK:
            if name in PLUGIN_KINDS and data is not None:
                self.snapshot.objects(PLUGIN_KINDS[name].struct).unread = decode_watermark(data).unread
            return KindComplete(kind=name)
        if data is None:
            return self._remove(kind, name)
        setter = self._setters.get(kind)
        if setter is None and kind not in PLUGIN_KINDS:
            return None
        with decoding(f"mirrored {key!r:.300}"):
            entry = decode_entry(data)
            if setter is not None:
                return setter(entry)
            self.snapshot.objects(PLUGIN_KINDS[kind].struct).set(name, self._decoders[kind].decode(entry.object))
        return None

    def _remove(self, kind: str, name: str) -> MirrorEvent:
        if kind == "node":
            self.snapshot.remove_node(name)
        elif kind == "namespace":
            self.snapshot.remove_namespace(name)
        elif kind == "pod":
            self.snapshot.remove_pod(name)
            self.snapshot.end_nomination(name)
            return PodRemoved(uid=name)
        elif kind == EARMARK:
            self.snapshot.earmarks = {key: each for key, each in self.snapshot.earmarks.items() if key != name}
        elif kind in PLUGIN_KINDS:
            self.snapshot.objects(PLUGIN_KINDS[kind].struct).remove(name)
        return None

    def _set_node(self, entry: MirrorEntry) -> None:
        self.snapshot.set_node(self._nodes.decode(entry.object))

    def _set_namespace(self, entry: MirrorEntry) -> None:
        self.snapshot.set_namespace(self._namespaces.decode(entry.object))

    def _set_earmark(self, entry: MirrorEntry) -> None:
        earmark = self._earmarks.decode(entry.object)
        self.snapshot.earmarks = {**self.snapshot.earmarks, earmark.profile: earmark}

    def _set_pod(self, entry: MirrorEntry) -> MirrorEvent:
        pod = self._pods.decode(entry.object)
        if is_bound(pod):
            self.snapshot.end_nomination(pod.uid)
            self.snapshot.place(pod, pod.spec.node_name, bound_at=unix_seconds(entry.bound_at))
            return PodPlaced(uid=pod.uid)
        if not pod.status.nominated_node_name:
            return None
        self.snapshot.nominate(pod, pod.status.nominated_node_name)
        return PodNominated(pod=pod)


class LiveDataReader:
    """Applies entries of the live data buckets."""

    def __init__(self, live: LiveData, sources: Collection[LiveSource]) -> None:
        self._live = live
        self._wanted = {
            bucket: frozenset(s.name for s in sources if s.bucket == bucket) for bucket in (BANDWIDTH, FACTS)
        }

    @property
    def buckets(self) -> tuple[str, ...]:
        return tuple(bucket for bucket, names in self._wanted.items() if names)

    def apply(self, bucket: str, key: str, data: bytes | None, time: datetime) -> None:
        """Apply one entry, stored at ``time``; ``data`` is ``None`` for a removal. Unknown sources are ignored.

        Raises:
            DecodeError: the key or the value cannot be decoded; the previous value stays.
        """
        self._live.observe_time(time.timestamp())
        source, node = parse_key(key)
        if source not in self._wanted[bucket]:
            return
        with decoding(f"{bucket} {key!r:.300}"):
            if bucket == BANDWIDTH:
                self._live.set_sample(source, node, None if data is None else _sample(data, time))
            else:
                fact = None if data is None else decode_fact(data)
                self._live.set_fact(source, node, fact, stored_at=time.timestamp())


def _sample(data: bytes, stored_at: datetime) -> NodeSample:
    # A sample from the future would stay fresh until then, so the time of its storing is its upper bound.
    sample = decode_sample(data)
    return sample if sample.sampled_at <= stored_at else msgspec.structs.replace(sample, sampled_at=stored_at)
