"""Equal parts of pods are stored once.

Pods of one workload differ in name, token volume and node. The rest is equal: 2 of the 2.5 KB of a small pod. So equal
parts of a new pod are replaced by the last pod's of its workload. A LIST is ordered by name, so that it has the pods of
a workload in sequence.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Final, NamedTuple

import msgspec

from berth.api.meta import ObjectMeta
from berth.api.pod import Pod, PodSpec, PodStatus

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
    """The last pod's parts of each workload. The first pod of a workload is compared with one of its namespace."""

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
