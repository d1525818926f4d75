"""PersistentVolume and PersistentVolumeClaim, trimmed to what decides which node can have them, and their words.

What is known of storage beside volumes and claims: classes, and what CSI drivers can do on which node.
"""

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


WAIT_FOR_FIRST_CONSUMER: Final = "WaitForFirstConsumer"
"""The binding mode in which a claim gets its volume only when the scheduler has chosen a node."""

MIGRATED_PLUGINS: Final = "storage.alpha.kubernetes.io/migrated-plugins"
"""An annotation of CSINodes: the in-tree plugins, by name and comma, whose volumes CSI drivers take there."""


class TopologyLabel(Trimmed, frozen=True, kw_only=True):
    """A label that has one of these values."""

    key: str
    values: list[str] | None = None


class TopologyTerm(Trimmed, frozen=True, kw_only=True):
    """Labels that must all be so; none means no node."""

    match_label_expressions: list[TopologyLabel] | None = None


class StorageClass(Trimmed, frozen=True, kw_only=True):
    """A kind of storage: who makes its volumes, when, and for which nodes."""

    metadata: ObjectMeta
    provisioner: str = ""
    volume_binding_mode: str | None = None
    allowed_topologies: list[TopologyTerm] | None = None


class VolumeCount(Trimmed, frozen=True, kw_only=True):
    """How many volumes of a driver a node may have; absent is any number."""

    count: Int32 | None = None


class CSINodeDriver(Trimmed, frozen=True, kw_only=True):
    """A driver that runs on the node."""

    name: str
    allocatable: VolumeCount | None = None


class CSINodeSpec(Trimmed, frozen=True, kw_only=True):
    """The drivers on the node."""

    drivers: list[CSINodeDriver] | None = None


class CSINode(Trimmed, frozen=True, kw_only=True):
    """What the kubelet says of the CSI drivers on its node; it has the node's name."""

    metadata: ObjectMeta
    spec: CSINodeSpec = CSINodeSpec()


class CSIDriverSpec(Trimmed, frozen=True, kw_only=True):
    """``storage_capacity``: the driver says how much room there is, and pods wait until it is enough."""

    storage_capacity: bool | None = None


class CSIDriver(Trimmed, frozen=True, kw_only=True):
    """A driver of the cluster; it has the name of the provisioner."""

    metadata: ObjectMeta
    spec: CSIDriverSpec = CSIDriverSpec()


class CSIStorageCapacity(Trimmed, frozen=True, kw_only=True):
    """How much room a class has for the nodes of a topology. Absent amounts mean none."""

    metadata: ObjectMeta
    storage_class_name: str = ""
    node_topology: LabelSelector | None = None
    capacity: str | int | float | None = None
    maximum_volume_size: str | int | float | None = None


class AttachedSource(Trimmed, frozen=True, kw_only=True):
    """The volume that is attached; an inline one has no name."""

    persistent_volume_name: str | None = None


class VolumeAttachmentSpec(Trimmed, frozen=True, kw_only=True):
    """Which volume is attached where, and by which driver."""

    attacher: str = ""
    node_name: str = ""
    source: AttachedSource = AttachedSource()


class VolumeAttachment(Trimmed, frozen=True, kw_only=True):
    """A volume that is attached to a node, or is to be."""

    metadata: ObjectMeta
    spec: VolumeAttachmentSpec = VolumeAttachmentSpec()
