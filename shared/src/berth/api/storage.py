"""What is known of storage beside volumes and claims: classes, and what CSI drivers can do on which node."""

from __future__ import annotations

from typing import Final

from berth.api.meta import Int32, LabelSelector, ObjectMeta, Trimmed

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
