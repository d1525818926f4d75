"""Equal parts of pods are kept once.

Pods of one workload differ in their names, their token's volume and later in their node. The rest is equal, and most
of what a pod takes: of a small one with one container and two tolerations 2 KB of 2.5. So while a pod is new and nobody
has it yet, its parts are replaced by equal ones of the pod of its workload that was read before. A LIST has the pods of
a workload one after the other, since it is ordered by name.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Final, NamedTuple

import msgspec

from berth.api.meta import ObjectMeta
from berth.api.pod import Pod, PodSpec, PodStatus

WORKLOADS: Final = 512
"""Workloads and namespaces of which a pod is remembered."""
NODES: Final = 65_536
"""Names of nodes that are remembered: each is kept once, and not with each of its pods."""
LARGEST: Final = 16 * 1024
"""Bytes, as the API server writes the pod: larger ones are not remembered, since pods that were deleted meanwhile are
among those remembered. With the number of workloads this bounds what they take."""

_OF_SPEC: Final = PodSpec.__struct_fields__
_OF_METADATA: Final = ("namespace", "labels", "annotations", "owner_references", "creation_timestamp")


class _PodParts(NamedTuple):
    metadata: ObjectMeta
    spec: PodSpec
    status: PodStatus


class SharedParts:
    """Of each workload the parts of the pod that was read last. A first pod is compared with one of its namespace."""

    def __init__(self) -> None:
        self._last: dict[Hashable, _PodParts] = {}
        self._nodes: dict[str, str] = {}

    def __len__(self) -> int:
        return len(self._last)

    def share(self, pod: Pod, size: int) -> None:
        """Let a new pod have the parts of the one before where they are equal. ``size``: its bytes as JSON."""
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
    """Whose pods are alike: the first owner's, or without one those of a namespace with the same labels."""
    if metadata.owner_references:
        return metadata.owner_references[0].uid
    return metadata.namespace, *(metadata.labels or {}).items()


def _take_equal(new: msgspec.Struct, before: msgspec.Struct, names: Iterable[str]) -> None:
    for name in names:
        value = getattr(before, name)
        if value is not None and value == getattr(new, name):
            msgspec.structs.force_setattr(new, name, value)
