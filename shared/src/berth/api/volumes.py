"""PersistentVolume and PersistentVolumeClaim, trimmed to what decides which node can have them, and their words."""

from __future__ import annotations

from typing import Final

from berth.api.meta import LabelSelector, ObjectMeta, Trimmed
from berth.api.pod import NodeSelector, Quantities
from berth.api.volumesources import (
    AWSElasticBlockStore,
    AzureDisk,
    Cinder,
    CSISource,
    GCEPersistentDisk,
    PortworxVolume,
)

BETA_STORAGE_CLASS: Final = "volume.beta.kubernetes.io/storage-class"
"""An annotation that names the class, from before there was a field; where it is, it counts."""
BIND_COMPLETED: Final = "pv.kubernetes.io/bind-completed"
"""An annotation of claims whose binding is complete, whatever its value."""
STORAGE: Final = "storage"
"""The resource that capacities and claims speak of."""
READ_WRITE_ONCE_POD: Final = "ReadWriteOncePod"


class ClaimReference(Trimmed, frozen=True, kw_only=True):
    """The claim that a volume is promised to. Without a uid: to whoever has the name."""

    namespace: str = ""
    name: str = ""
    uid: str = ""


class VolumeNodeAffinity(Trimmed, frozen=True, kw_only=True):
    """The nodes from which a volume can be reached."""

    required: NodeSelector | None = None


class PersistentVolumeSpec(Trimmed, frozen=True, kw_only=True):
    """What the volume is. Sources that no plugin looks into are left out."""

    capacity: Quantities | None = None
    access_modes: list[str] | None = None
    claim_ref: ClaimReference | None = None
    storage_class_name: str = ""
    volume_mode: str | None = None
    volume_attributes_class_name: str | None = None
    node_affinity: VolumeNodeAffinity | None = None
    csi: CSISource | None = None
    gce_persistent_disk: GCEPersistentDisk | None = None
    aws_elastic_block_store: AWSElasticBlockStore | None = None
    azure_disk: AzureDisk | None = None
    cinder: Cinder | None = None
    portworx_volume: PortworxVolume | None = None


class PhaseStatus(Trimmed, frozen=True, kw_only=True):
    """Available, Bound, Pending, Lost, ..."""

    phase: str = ""


class PersistentVolume(Trimmed, frozen=True, kw_only=True):
    """A volume of the cluster."""

    metadata: ObjectMeta
    spec: PersistentVolumeSpec = PersistentVolumeSpec()
    status: PhaseStatus = PhaseStatus()

    @property
    def class_name(self) -> str:
        """The class that the volume belongs to; empty for none."""
        return (self.metadata.annotations or {}).get(BETA_STORAGE_CLASS, self.spec.storage_class_name)


class ClaimResources(Trimmed, frozen=True, kw_only=True):
    """How much is claimed."""

    requests: Quantities | None = None


class PersistentVolumeClaimSpec(Trimmed, frozen=True, kw_only=True):
    """What is claimed; ``volume_name`` is what was given."""

    access_modes: list[str] | None = None
    resources: ClaimResources = ClaimResources()
    selector: LabelSelector | None = None
    storage_class_name: str | None = None
    volume_mode: str | None = None
    volume_name: str = ""
    volume_attributes_class_name: str | None = None


class PersistentVolumeClaim(Trimmed, frozen=True, kw_only=True):
    """A claim to a volume."""

    metadata: ObjectMeta
    spec: PersistentVolumeClaimSpec = PersistentVolumeClaimSpec()
    status: PhaseStatus = PhaseStatus()

    @property
    def class_name(self) -> str:
        """The class that a volume is wanted of; empty for none."""
        return (self.metadata.annotations or {}).get(BETA_STORAGE_CLASS, self.spec.storage_class_name or "")

    @property
    def is_fully_bound(self) -> bool:
        """Whether it has its volume and both sides say so."""
        return bool(self.spec.volume_name) and BIND_COMPLETED in (self.metadata.annotations or {})
