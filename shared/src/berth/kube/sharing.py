"""Equal parts of pods are kept once.

Pods of one workload differ in their names, their token's volume and later in their node. The rest is equal, and most
of what a pod takes: of a small one with one container and two tolerations 2 KB of 2.5. So while a pod is new and nobody
has it yet, its parts are replaced by equal ones of the pod of its workload that was read before. A LIST has the pods of
a workload one after the other, since it is ordered by name.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

import msgspec

from berth.api.meta import ObjectMeta
from berth.api.pod import Pod, PodSpec, PodStatus

WORKLOADS: Final = 512
"""Workloads of which a pod is remembered."""
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
    """Of each workload the parts of the pod that was read last."""

    def __init__(self) -> None:
        self._last: dict[str, _PodParts] = {}

    def __len__(self) -> int:
        return len(self._last)

    def share(self, pod: Pod, size: int) -> None:
        """Let a new pod have the parts of the one before where they are equal. ``size``: its bytes as JSON."""
        if size > LARGEST:
            return
        metadata, owners = pod.metadata, pod.metadata.owner_references
        workload = owners[0].uid if owners else metadata.namespace
        before = self._last.get(workload)
        if before is not None:
            _take_equal(metadata, before.metadata, _OF_METADATA)
            if pod.spec == before.spec:
                msgspec.structs.force_setattr(pod, "spec", before.spec)
            else:
                _take_equal(pod.spec, before.spec, _OF_SPEC)
            if pod.status == before.status:
                msgspec.structs.force_setattr(pod, "status", before.status)
        elif len(self._last) >= WORKLOADS:
            del self._last[next(iter(self._last))]
        self._last[workload] = _PodParts(metadata, pod.spec, pod.status)


def _take_equal(new: msgspec.Struct, before: msgspec.Struct, names: Iterable[str]) -> None:
    for name in names:
        value = getattr(before, name)
        if value is not None and value == getattr(new, name):
            msgspec.structs.force_setattr(new, name, value)
