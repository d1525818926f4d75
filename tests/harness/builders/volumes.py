"""Builders of volumes, claims and classes for tests; claims and pods are in the namespace default."""

from __future__ import annotations

from typing import Any

import msgspec

from berth.api.kinds import PLUGIN_KINDS, PluginObject
from berth.api.meta import LabelSelector, ObjectMeta, OwnerReference, SelectorRequirement
from berth.api.pod import ClaimSource, EphemeralSource, NodeSelector, NodeSelectorTerm, Pod, Volume
from berth.api.volumes import (
    BIND_COMPLETED,
    AttachedSource,
    ClaimResources,
    CSIDriver,
    CSIDriverSpec,
    CSINode,
    CSINodeDriver,
    CSINodeSpec,
    CSIStorageCapacity,
    PersistentVolume,
    PersistentVolumeClaim,
    PersistentVolumeClaimSpec,
    PersistentVolumeSpec,
    PhaseStatus,
    StorageClass,
    TopologyLabel,
    TopologyTerm,
    VolumeAttachment,
    VolumeAttachmentSpec,
    VolumeCount,
    VolumeNodeAffinity,
)
from berth.cluster.snapshot import Snapshot
from harness.builders.objects import a_pod

HOSTNAME = "kubernetes.io/hostname"
ZONE = "topology.kubernetes.io/zone"
DRIVER = "disks.example.com"
_NAMES = {kind.struct: name for name, kind in PLUGIN_KINDS.items()}


def kind_of(thing: PluginObject) -> str:
    """berth's name of an object's kind."""
    return _NAMES[type(thing)]


def add_objects(snapshot: Snapshot, *things: PluginObject) -> None:
    """Add objects to the Snapshot."""
    for thing in things:
        kind, metadata = PLUGIN_KINDS[kind_of(thing)], thing.metadata
        snapshot.objects(type(thing)).set(kind.key_of(uid=metadata.uid, name=metadata.name), thing)


def metadata_of(name: str, **more: Any) -> ObjectMeta:
    """Metadata of an object in the namespace default."""
    return ObjectMeta(name=name, namespace="default", uid=f"uid-{name}", **more)


def a_class(provisioner: str = DRIVER, mode: str = "WaitForFirstConsumer", **topology: list[str]) -> StorageClass:
    """The class slow; its volumes are made for nodes whose zone is one of ``zones``, or for all."""
    zones = topology.get("zones")
    label = TopologyLabel(key=ZONE, values=zones)
    return StorageClass(
        metadata=ObjectMeta(name="slow"),
        provisioner=provisioner,
        volume_binding_mode=mode,
        allowed_topologies=[TopologyTerm(match_label_expressions=[label])] if zones else None,
    )


def a_claim(
    name: str = "data",
    *,
    volume: str = "",
    size: str = "1Gi",
    version: int = 1,
    annotations: dict[str, str] | None = None,
    phase: str = "Pending",
    **spec: Any,
) -> PersistentVolumeClaim:
    """A claim of the class slow; with a volume, one that is bound to it."""
    given = {**(annotations or {}), **({BIND_COMPLETED: "yes"} if volume else {})}
    whole = {"access_modes": ["ReadWriteOnce"], "storage_class_name": "slow", **spec}
    return PersistentVolumeClaim(
        metadata=metadata_of(name, resource_version=str(version), annotations=given or None),
        spec=PersistentVolumeClaimSpec(
            volume_name=volume, resources=ClaimResources(requests={"storage": size}), **whole
        ),
        status=PhaseStatus(phase=phase),
    )


def a_volume(
    name: str, *nodes: str, size: str = "2Gi", labels: dict[str, str] | None = None, version: int = 1, **spec: Any
) -> PersistentVolume:
    """A free volume of the class slow, reached from the nodes of these host names, or from all."""
    reached = SelectorRequirement(key=HOSTNAME, operator="In", values=list(nodes))
    whole = {"access_modes": ["ReadWriteOnce"], "storage_class_name": "slow", **spec}
    return PersistentVolume(
        metadata=ObjectMeta(name=name, uid=f"uid-{name}", labels=labels, resource_version=str(version)),
        spec=PersistentVolumeSpec(
            capacity={"storage": size}, node_affinity=reached_by(reached) if nodes else None, **whole
        ),
        status=PhaseStatus(phase="Available"),
    )


def reached_by(*expressions: SelectorRequirement) -> VolumeNodeAffinity:
    """The node affinity of a volume that is reached where all expressions hold."""
    term = NodeSelectorTerm(match_expressions=list(expressions))
    return VolumeNodeAffinity(required=NodeSelector(node_selector_terms=[term]))


def pod_with_claims(name: str = "web", *claims: str, **spec: Any) -> Pod:
    """A pod with these claims, or with the claim data."""
    sources = [ClaimSource(claim_name=claim) for claim in claims or ("data",)]
    volumes = [Volume(name=f"v{at}", persistent_volume_claim=source) for at, source in enumerate(sources)]
    return a_pod(name, volumes=volumes, **spec)


def pod_with_ephemeral_claim(name: str = "web") -> Pod:
    """A pod with a claim of its own, ``<pod>-scratch``."""
    return a_pod(name, volumes=[Volume(name="scratch", ephemeral=EphemeralSource())])


def owned(claim: PersistentVolumeClaim, pod: Pod) -> PersistentVolumeClaim:
    """The claim with the pod as its owner."""
    owner = OwnerReference(kind="Pod", name=pod.metadata.name, uid=pod.uid, api_version="v1", controller=True)
    metadata = msgspec.structs.replace(claim.metadata, owner_references=[owner])
    return msgspec.structs.replace(claim, metadata=metadata)


def a_csi_node(name: str = "n0", annotations: dict[str, str] | None = None, **counts: int) -> CSINode:
    """The CSINode of a node; drivers with their limits, dots in names as underscores."""
    drivers = [
        CSINodeDriver(name=driver.replace("_", "."), allocatable=VolumeCount(count=count))
        for driver, count in counts.items()
    ]
    return CSINode(metadata=ObjectMeta(name=name, annotations=annotations), spec=CSINodeSpec(drivers=drivers))


def a_driver(*, reports: bool = True) -> CSIDriver:
    """The driver of the class slow, which may report storage capacity."""
    return CSIDriver(metadata=ObjectMeta(name=DRIVER), spec=CSIDriverSpec(storage_capacity=reports))


def storage_capacity_of(size: str | None, zone: str, largest: str | None = None) -> CSIStorageCapacity:
    """This storage capacity of the class slow for the nodes of a zone."""
    return CSIStorageCapacity(
        metadata=metadata_of(f"room-{zone}"),
        storage_class_name="slow",
        node_topology=LabelSelector(match_labels={ZONE: zone}),
        capacity=size,
        maximum_volume_size=largest,
    )


def attached(volume: str, node: str) -> VolumeAttachment:
    """A volume that is attached to a node."""
    source = AttachedSource(persistent_volume_name=volume)
    spec = VolumeAttachmentSpec(attacher=DRIVER, node_name=node, source=source)
    return VolumeAttachment(metadata=ObjectMeta(name=f"{volume}-{node}"), spec=spec)
