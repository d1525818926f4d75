"""EBSLimits, GCEPDLimits, AzureDiskLimits: the number of different disks of a cloud that a node may have.

Filter: counts this pod's and the node's pods' disks, named directly or by a bound claim. An unbound claim counts as a
disk of the cloud of its class's provisioner. The limit is the node's allocatable (``attachable-volumes-...``), else a
number for the whole cluster, else the cloud's default: 39 for EBS (25 on newer instance types), 16 for the others. As
kube-scheduler 1.18's plugins of these names.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from berth.api.config.types import Point
from berth.api.node import Node
from berth.api.pod import Pod, Volume
from berth.api.volumes import PersistentVolume, PersistentVolumeClaim, PersistentVolumeSpec, StorageClass
from berth.cluster.nodes import NodeInfo, Nodes
from berth.cluster.snapshot import Snapshot
from berth.framework.events import Action, ClusterEvent, EventHint, Resource
from berth.framework.interface import EnqueueExtensions, VectorFilterPlugin
from berth.framework.status import SUCCESS, CycleState, Status, Verdicts
from berth.plugins.factory import PluginFactory
from berth.plugins.volumes.claims import claim_of

MAX_VOLUME_COUNT_EXCEEDED: Final = Status.unschedulable("node(s) exceed max volume count")
INSTANCE_TYPE_LABELS: Final = ("beta.kubernetes.io/instance-type", "node.kubernetes.io/instance-type")
_NEWER_INSTANCES: Final = re.compile(r"^[cmr]5.*|t3|z1d")
_EBS_DISKS: Final = 39
_EBS_DISKS_OF_NEWER: Final = 25
_DISKS: Final = 16
Disks = frozenset[str]  # by the cloud's name, or by the unbound claim


@dataclass(frozen=True, slots=True, kw_only=True)
class Cloud:
    """How a cloud's disks are recognized and limited."""

    # the name of the disk behind a pod's volume or a PersistentVolume; None for another kind of volume
    disk_of: Callable[[Volume | PersistentVolumeSpec], str | None]
    provisioner: str  # the provisioner of the cloud's storage classes
    allocatable: str  # the resource with the node's limit
    limit_of: Callable[[Node], int] = lambda _: _DISKS  # the limit of a node that does not report it


def _ebs_limit(node: Node) -> int:
    labels = node.metadata.labels or {}
    instance = next((labels[key] for key in INSTANCE_TYPE_LABELS if key in labels), "")
    return _EBS_DISKS_OF_NEWER if _NEWER_INSTANCES.search(instance) else _EBS_DISKS


EBS: Final = Cloud(
    disk_of=lambda volume: disk.volume_id if (disk := volume.aws_elastic_block_store) is not None else None,
    provisioner="kubernetes.io/aws-ebs",
    allocatable="attachable-volumes-aws-ebs",
    limit_of=_ebs_limit,
)
GCE_PD: Final = Cloud(
    disk_of=lambda volume: disk.pd_name if (disk := volume.gce_persistent_disk) is not None else None,
    provisioner="kubernetes.io/gce-pd",
    allocatable="attachable-volumes-gce-pd",
)
AZURE_DISK: Final = Cloud(
    disk_of=lambda volume: disk.disk_name if (disk := volume.azure_disk) is not None else None,
    provisioner="kubernetes.io/azure-disk",
    allocatable="attachable-volumes-azure-disk",
)


class DiskLimits(VectorFilterPlugin, EnqueueExtensions):
    """Filters by the number of disks of one cloud. ``most``: the limit of nodes that do not report it."""

    cloud: ClassVar[Cloud]

    def __init__(self, *, most: int | None = None) -> None:
        self._most = most

    def filter(self, state: CycleState, pod: Pod, node: NodeInfo) -> Status:
        return self._of_node(self._disks_of(pod, node.snapshot), node)

    def filter_all(self, state: CycleState, pod: Pod, nodes: Nodes) -> Verdicts:
        """Node by node, because few pods have such disks."""
        wanted = self._disks_of(pod, nodes.snapshot)
        if not wanted:
            return Verdicts.all_fit(len(nodes))
        return Verdicts.of(SUCCESS if info is None else self._of_node(wanted, info) for info in nodes.infos())

    def events(self) -> Sequence[EventHint]:
        return (
            EventHint(ClusterEvent(Resource.POD, Action.DELETE)),
            EventHint(ClusterEvent(Resource.NODE, Action.ADD | Action.UPDATE_NODE_ALLOCATABLE)),
            EventHint(ClusterEvent(Resource.PERSISTENT_VOLUME_CLAIM, Action.ADD | Action.UPDATE)),
            EventHint(ClusterEvent(Resource.NOMINATION, Action.DELETE)),
        )

    def _of_node(self, wanted: Disks, node: NodeInfo) -> Status:
        if not wanted:
            return SUCCESS
        there = (self._disks_of(other, node.snapshot) for other in node.snapshot.pod_volumes.on_row(node.row))
        return MAX_VOLUME_COUNT_EXCEEDED if len(wanted.union(*there)) > self._limit_of(node) else SUCCESS

    def _limit_of(self, node: NodeInfo) -> int:
        if self.cloud.allocatable in (node.node.status.allocatable or {}):
            return node.allocatable(self.cloud.allocatable)
        return self._most or self.cloud.limit_of(node.node)

    def _disks_of(self, pod: Pod, snapshot: Snapshot) -> Disks:
        return frozenset(self._named_by(pod, snapshot)) if pod.spec.volumes else frozenset()

    def _named_by(self, pod: Pod, snapshot: Snapshot) -> Iterator[str]:
        for volume in pod.spec.volumes or ():
            disk = self.cloud.disk_of(volume)
            if disk is None and (use := claim_of(volume, pod)) is not None:
                disk = self._claimed(use.find(pod, snapshot), snapshot)
            if disk is not None:
                yield disk

    def _claimed(self, claim: PersistentVolumeClaim | None, snapshot: Snapshot) -> str | None:
        """The disk behind a claim, or the claim itself while it is unbound; None for a disk of another kind."""
        if claim is None:
            return None
        name = claim.spec.volume_name
        volume = snapshot.objects(PersistentVolume).named(name) if name else None
        if volume is not None:
            return self.cloud.disk_of(volume.spec)
        storage = snapshot.objects(StorageClass).named(claim.spec.storage_class_name or "")
        is_of_cloud = storage is not None and storage.provisioner == self.cloud.provisioner
        return f"claim {claim.metadata.namespace}/{claim.metadata.name}" if is_of_cloud else None


class EBSLimits(DiskLimits):
    name: ClassVar[str] = "EBSLimits"
    cloud = EBS


class GCEPDLimits(DiskLimits):
    name: ClassVar[str] = "GCEPDLimits"
    cloud = GCE_PD


class AzureDiskLimits(DiskLimits):
    name: ClassVar[str] = "AzureDiskLimits"
    cloud = AZURE_DISK


# Variable with the most cloud disks on a node that does not report its limit, as in 1.18. The same value in all
# services.
MOST_DISKS_VARIABLE: Final = "KUBE_MAX_PD_VOLS"


def _factory(plugin: type[DiskLimits]) -> PluginFactory:
    return PluginFactory(
        name=plugin.name,
        points=(Point.FILTER,),
        build=lambda _args: plugin(most=_most_disks()),
        validate=_variable_problems,
        only_in_presets=True,
    )


def _most_disks() -> int | None:
    """The value of the variable; None for the limit of each cloud."""
    return int(os.environ.get(MOST_DISKS_VARIABLE) or 0) or None


def _variable_problems(_args: object, path: str) -> list[str]:
    given = os.environ.get(MOST_DISKS_VARIABLE)
    if not given or (given.isdecimal() and int(given) > 0):
        return []
    return [f"{path}: {MOST_DISKS_VARIABLE}: want a whole number above 0, got {given!r}"]


EBS_FACTORY: Final = _factory(EBSLimits)
GCE_PD_FACTORY: Final = _factory(GCEPDLimits)
AZURE_DISK_FACTORY: Final = _factory(AzureDiskLimits)
