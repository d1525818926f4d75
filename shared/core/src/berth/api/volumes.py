"""PersistentVolumes, claims, storage classes and CSI objects, trimmed to the fields that volume plugins read."""

from __future__ import annotations

from typing import Final

from berth.api.meta import Int32, LabelSelector, ObjectMeta, Trimmed
from berth.api.pod import (
    AWSElasticBlockStore,
    AzureDisk,
    Cinder,
    CSISource,
    GCEPersistentDisk,
    NodeSelector,
    PortworxVolume,
    Quantities,
)

BETA_STORAGE_CLASS: Final = "volume.beta.kubernetes.io/storage-class"  # names the class and overrides the field

BIND_COMPLETED: Final = "pv.kubernetes.io/bind-completed"  # on fully bound claims, with any value

STORAGE: Final = "storage"  # resource name in capacities and requests

READ_WRITE_ONCE_POD: Final = "ReadWriteOncePod"


class ClaimReference(Trimmed, frozen=True, kw_only=True):
    """The claim that a volume is reserved for; without a uid, any claim of the name."""

    namespace: str = ""
    name: str = ""
    uid: str = ""


class VolumeNodeAffinity(Trimmed, frozen=True, kw_only=True):
    """The nodes from which a volume can be reached."""

    required: NodeSelector | None = None


class PersistentVolumeSpec(Trimmed, frozen=True, kw_only=True):
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
    # Available, Bound, Pending, Lost, ...

    phase: str = ""


class PersistentVolume(Trimmed, frozen=True, kw_only=True):
    metadata: ObjectMeta
    spec: PersistentVolumeSpec = PersistentVolumeSpec()
    status: PhaseStatus = PhaseStatus()

    @property
    def class_name(self) -> str:
        """The storage class; empty without one."""
        return (self.metadata.annotations or {}).get(BETA_STORAGE_CLASS, self.spec.storage_class_name)


class ClaimResources(Trimmed, frozen=True, kw_only=True):
    requests: Quantities | None = None


class PersistentVolumeClaimSpec(Trimmed, frozen=True, kw_only=True):
    """The request; ``volume_name`` is the volume that the claim is bound to."""

    access_modes: list[str] | None = None
    resources: ClaimResources = ClaimResources()
    selector: LabelSelector | None = None
    storage_class_name: str | None = None
    volume_mode: str | None = None
    volume_name: str = ""
    volume_attributes_class_name: str | None = None


class PersistentVolumeClaim(Trimmed, frozen=True, kw_only=True):
    metadata: ObjectMeta
    spec: PersistentVolumeClaimSpec = PersistentVolumeClaimSpec()
    status: PhaseStatus = PhaseStatus()

    @property
    def class_name(self) -> str:
        """The storage class; empty without one."""
        return (self.metadata.annotations or {}).get(BETA_STORAGE_CLASS, self.spec.storage_class_name or "")

    @property
    def is_fully_bound(self) -> bool:
        """Whether it is bound to its volume and the binding is complete."""
        return bool(self.spec.volume_name) and BIND_COMPLETED in (self.metadata.annotations or {})


# The binding mode in which a claim gets its volume only after the scheduler has chosen a node.
WAIT_FOR_FIRST_CONSUMER: Final = "WaitForFirstConsumer"

# An annotation of CSINodes: in-tree plugins, comma-separated, whose volumes are migrated to CSI drivers.
MIGRATED_PLUGINS: Final = "storage.alpha.kubernetes.io/migrated-plugins"


class TopologyLabel(Trimmed, frozen=True, kw_only=True):
    """A label with one of these values."""

    key: str
    values: list[str] | None = None


class TopologyTerm(Trimmed, frozen=True, kw_only=True):
    """Labels that must all match; an empty term matches no node."""

    match_label_expressions: list[TopologyLabel] | None = None


class StorageClass(Trimmed, frozen=True, kw_only=True):
    """The provisioner of the volumes, and when and for which nodes it provisions."""

    metadata: ObjectMeta
    provisioner: str = ""
    volume_binding_mode: str | None = None
    allowed_topologies: list[TopologyTerm] | None = None


class VolumeCount(Trimmed, frozen=True, kw_only=True):
    """The number of volumes of a driver that a node may have; absent is any number."""

    count: Int32 | None = None


class CSINodeDriver(Trimmed, frozen=True, kw_only=True):
    name: str
    allocatable: VolumeCount | None = None


class CSINodeSpec(Trimmed, frozen=True, kw_only=True):
    drivers: list[CSINodeDriver] | None = None


class CSINode(Trimmed, frozen=True, kw_only=True):
    """The CSI drivers of a node; it has the node's name."""

    metadata: ObjectMeta
    spec: CSINodeSpec = CSINodeSpec()


class CSIDriverSpec(Trimmed, frozen=True, kw_only=True):
    """``storage_capacity``: the driver reports its capacity, and pods wait until it suffices."""

    storage_capacity: bool | None = None


class CSIDriver(Trimmed, frozen=True, kw_only=True):
    """A CSI driver; it has the name of the provisioner."""

    metadata: ObjectMeta
    spec: CSIDriverSpec = CSIDriverSpec()


class CSIStorageCapacity(Trimmed, frozen=True, kw_only=True):
    """The capacity of a class for the nodes of a topology. Absent amounts are 0."""

    metadata: ObjectMeta
    storage_class_name: str = ""
    node_topology: LabelSelector | None = None
    capacity: str | int | float | None = None
    maximum_volume_size: str | int | float | None = None


class AttachedSource(Trimmed, frozen=True, kw_only=True):
    """The attached volume; an inline one has no name."""

    persistent_volume_name: str | None = None


class VolumeAttachmentSpec(Trimmed, frozen=True, kw_only=True):
    attacher: str = ""
    node_name: str = ""
    source: AttachedSource = AttachedSource()


class VolumeAttachment(Trimmed, frozen=True, kw_only=True):
    """A volume that is, or is to be, attached to a node."""

    metadata: ObjectMeta
    spec: VolumeAttachmentSpec = VolumeAttachmentSpec()
