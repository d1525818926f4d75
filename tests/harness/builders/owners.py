"""Pods of a controller, and their failures."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec

from berth.api.meta import OwnerReference
from berth.api.pod import Pod, PodFailure


def owned_by(owner: str, pod: Pod, *, kind: str = "ReplicaSet") -> Pod:
    """The pod, made by the controller of this object."""
    reference = OwnerReference(kind=kind, name=owner, uid=f"uid-of-{owner}", controller=True)
    return msgspec.structs.replace(pod, metadata=msgspec.structs.replace(pod.metadata, owner_references=[reference]))


def failed(pod: Pod, node: str, at: float, reason: str = "OutOfcpu") -> Pod:
    """The pod, which failed on the node at these Unix seconds."""
    time = datetime.fromtimestamp(at, tz=UTC).isoformat().replace("+00:00", "Z")
    return msgspec.structs.replace(
        pod,
        spec=msgspec.structs.replace(pod.spec, node_name=node),
        status=msgspec.structs.replace(pod.status, phase="Failed", failure=PodFailure(reason=reason, at=time)),
    )
