"""The kinds that plugins read beyond pods, nodes and namespaces: one table, from which everybody takes what he needs.

The watcher mirrors them, the binder watches them, a Snapshot holds them (``Snapshot.objects``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from berth.api.volumes import (
    CSIDriver,
    CSINode,
    CSIStorageCapacity,
    PersistentVolume,
    PersistentVolumeClaim,
    StorageClass,
    VolumeAttachment,
)
from berth.api.workloads import PodDisruptionBudget, ReplicaSet, ReplicationController, Service, StatefulSet

FurtherObject = (
    Service
    | ReplicationController
    | ReplicaSet
    | StatefulSet
    | PersistentVolume
    | PersistentVolumeClaim
    | StorageClass
    | CSINode
    | CSIDriver
    | CSIStorageCapacity
    | VolumeAttachment
    | PodDisruptionBudget
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FurtherKind:
    """One kind. ``struct`` has the name that Kubernetes gives the kind; ``path`` lists it in all namespaces."""

    struct: type[FurtherObject]
    path: str
    is_namespaced: bool = True

    def key_of(self, *, uid: str, name: str) -> str:
        """By what an object is known on the bus: its uid, since a namesake may follow; without a namespace its name."""
        return uid if self.is_namespaced else name

    @property
    def kind(self) -> str:
        """Kubernetes' word for the kind."""
        return self.struct.__name__


FURTHER_KINDS: Final[Mapping[str, FurtherKind]] = {
    "service": FurtherKind(struct=Service, path="/api/v1/services"),
    "replicationcontroller": FurtherKind(struct=ReplicationController, path="/api/v1/replicationcontrollers"),
    "replicaset": FurtherKind(struct=ReplicaSet, path="/apis/apps/v1/replicasets"),
    "statefulset": FurtherKind(struct=StatefulSet, path="/apis/apps/v1/statefulsets"),
    "pv": FurtherKind(struct=PersistentVolume, path="/api/v1/persistentvolumes", is_namespaced=False),
    "pvc": FurtherKind(struct=PersistentVolumeClaim, path="/api/v1/persistentvolumeclaims"),
    "storageclass": FurtherKind(
        struct=StorageClass, path="/apis/storage.k8s.io/v1/storageclasses", is_namespaced=False
    ),
    "csinode": FurtherKind(struct=CSINode, path="/apis/storage.k8s.io/v1/csinodes", is_namespaced=False),
    "csidriver": FurtherKind(struct=CSIDriver, path="/apis/storage.k8s.io/v1/csidrivers", is_namespaced=False),
    "csistoragecapacity": FurtherKind(struct=CSIStorageCapacity, path="/apis/storage.k8s.io/v1/csistoragecapacities"),
    "volumeattachment": FurtherKind(
        struct=VolumeAttachment, path="/apis/storage.k8s.io/v1/volumeattachments", is_namespaced=False
    ),
    "poddisruptionbudget": FurtherKind(struct=PodDisruptionBudget, path="/apis/policy/v1/poddisruptionbudgets"),
}
"""By berth's word for the kind, as on the bus."""
