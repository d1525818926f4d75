"""VolumeRestrictions: exclusive disks and ReadWriteOncePod claims have one user.

Exclusive on a node: GCE persistent disks, AWS EBS volumes, iSCSI targets and RBD images named by a pod. As
kube-scheduler's plugin of that name.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Final, Self

import numpy as np

from berth.api.config.types import Point
from berth.api.pod import ISCSI, RBD, AWSElasticBlockStore, GCEPersistentDisk, Pod, Volume
from berth.api.volumes import READ_WRITE_ONCE_POD
from berth.cluster.nodes import NodeInfo, Nodes
from berth.cluster.pods import Trait
from berth.cluster.snapshot import Snapshot
from berth.framework.events import Action, ClusterEvent, EventHint, Resource, ValueIndex, Values
from berth.framework.interface import (
    PRE_FILTER_SKIPPED,
    EnqueueExtensions,
    PreFilterExtensions,
    PreFilterResult,
    VectorFilterPlugin,
)
from berth.framework.status import SKIP, SUCCESS, CycleState, StateKey, Status, Verdicts
from berth.plugins.factory import PluginFactory, no_args
from berth.plugins.volumes.claims import ClaimUse, claim_index, claim_not_found, has_claims, named_claims, uses_claim

NAME: Final = "VolumeRestrictions"
DISK_CONFLICT: Final = Status.unschedulable("node(s) had no available disk")
READ_WRITE_ONCE_POD_CONFLICT: Final = Status.unschedulable(
    "node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode already in-use by another pod"
)
Disk = GCEPersistentDisk | AWSElasticBlockStore | ISCSI | RBD


@dataclass(slots=True)
class RestrictedVolumes:
    """The pod's disks, its ReadWriteOncePod claims, and the number of uses of these claims by placed pods."""

    disks: list[Disk]
    exclusive_claims: frozenset[str]
    conflicting_uses: int

    def clone(self) -> Self:
        return replace(self)


_A_DISK: Final = ("", "")  # the indexed value of a pod with disks
RESTRICTED: Final = StateKey[RestrictedVolumes | Status]("VolumeRestrictions.restricted")


class VolumeRestrictions(PreFilterExtensions, VectorFilterPlugin, EnqueueExtensions):
    """Filters by the volumes of other pods."""

    name: ClassVar[str] = NAME
    only_for = Trait.VOLUMES

    def pre_filter(self, state: CycleState, pod: Pod, snapshot: Snapshot) -> PreFilterResult:
        """Skip for a pod without disks whose ReadWriteOncePod claims are unused."""
        if not has_claims(pod) and not disks_of(pod):
            return PRE_FILTER_SKIPPED
        restricted = self._restricted(state, pod, snapshot)
        if isinstance(restricted, Status):
            return PreFilterResult(restricted)
        return PreFilterResult(SUCCESS if restricted.disks or restricted.conflicting_uses else SKIP)

    def add_pod(self, state: CycleState, pod: Pod, added: Pod, node: NodeInfo) -> Status:
        return _count(state.find(RESTRICTED), pod, added, 1)

    def remove_pod(self, state: CycleState, pod: Pod, removed: Pod, node: NodeInfo) -> Status:
        return _count(state.find(RESTRICTED), pod, removed, -1)

    def filter(self, state: CycleState, pod: Pod, node: NodeInfo) -> Status:
        """Disks conflict on the node, claims in the whole cluster."""
        restricted = self._restricted(state, pod, node.snapshot)
        if isinstance(restricted, Status):
            return restricted
        if any_conflict(restricted.disks, node.snapshot.pod_volumes.on_row(node.row)):
            return DISK_CONFLICT
        return READ_WRITE_ONCE_POD_CONFLICT if restricted.conflicting_uses > 0 else SUCCESS

    def filter_all(self, state: CycleState, pod: Pod, nodes: Nodes) -> Verdicts:
        """Checks only nodes with pods with volumes for disks."""
        restricted, volumes = self._restricted(state, pod, nodes.snapshot), nodes.snapshot.pod_volumes
        if isinstance(restricted, Status):
            return Verdicts.refusing(np.ones(len(nodes), dtype=np.bool_), restricted)
        if not restricted.disks and not restricted.conflicting_uses:
            return Verdicts.all_fit(len(nodes))
        rows = volumes.rows if restricted.disks else ()
        taken = [row for row in rows if any_conflict(restricted.disks, volumes.on_row(row))]
        otherwise = 2 if restricted.conflicting_uses > 0 else 0
        codes = np.where(np.isin(nodes.rows, taken), 1, otherwise).astype(np.int32)
        return Verdicts(codes, (SUCCESS, DISK_CONFLICT, READ_WRITE_ONCE_POD_CONFLICT))

    def events(self) -> Sequence[EventHint]:
        return (
            EventHint(ClusterEvent(Resource.POD, Action.DELETE), _releases_volume, index=_index),
            EventHint(ClusterEvent(Resource.NODE, Action.ADD)),
            EventHint(ClusterEvent(Resource.PERSISTENT_VOLUME_CLAIM, Action.ADD), _is_its_claim, index=claim_index),
            EventHint(ClusterEvent(Resource.NOMINATION, Action.DELETE), _releases_volume, index=_index),
        )

    def _restricted(self, state: CycleState, pod: Pod, snapshot: Snapshot) -> RestrictedVolumes | Status:
        """Computed once a cycle; by Filter if the profile lacks this plugin's PreFilter."""
        restricted = state.find(RESTRICTED)
        if restricted is None:
            restricted = _restricted_volumes(pod, snapshot)
            state.write(RESTRICTED, restricted)
        return restricted


def _restricted_volumes(pod: Pod, snapshot: Snapshot) -> RestrictedVolumes | Status:
    exclusive = _exclusive_claims(pod, snapshot)
    if isinstance(exclusive, Status):
        return exclusive
    users = sum(snapshot.pod_volumes.is_used(pod.metadata.namespace, name) for name in exclusive)
    return RestrictedVolumes(disks_of(pod), exclusive, users)


def _exclusive_claims(pod: Pod, snapshot: Snapshot) -> frozenset[str] | Status:
    exclusive = set()
    for name in named_claims(pod):
        claim = ClaimUse(name).find(pod, snapshot)
        if claim is None:
            return Status.unresolvable(claim_not_found(name))
        if READ_WRITE_ONCE_POD in (claim.spec.access_modes or ()):
            exclusive.add(name)
    return frozenset(exclusive)


def _count(restricted: RestrictedVolumes | Status | None, pod: Pod, other: Pod, by: int) -> Status:
    if isinstance(restricted, RestrictedVolumes) and other.metadata.namespace == pod.metadata.namespace:
        restricted.conflicting_uses += by * sum(name in restricted.exclusive_claims for name in named_claims(other))
    return SUCCESS


def _releases_volume(pod: Pod, old: object, _: object) -> bool:
    if not isinstance(old, Pod):
        return True
    if any_conflict(disks_of(pod), [old]):
        return True
    is_near = old.metadata.namespace == pod.metadata.namespace
    return is_near and not set(named_claims(pod)).isdisjoint(named_claims(old))


def _index() -> ValueIndex:
    return ValueIndex(_volumes_of, lambda old, _: _volumes_of(old) if isinstance(old, Pod) else None)


def _volumes_of(pod: Pod) -> Values:
    """The claims that a pod names, and whether it has disks, which pods of all namespaces share."""
    claims = {(pod.metadata.namespace, name) for name in named_claims(pod)}
    return {*claims, _A_DISK} if disks_of(pod) else claims


def _is_its_claim(pod: Pod, _: object, new: object) -> bool:
    return uses_claim(pod, new, also_ephemeral=False)


def disks_of(pod: Pod) -> list[Disk]:
    return [disk for volume in pod.spec.volumes or () for disk in _disks(volume)]


def any_conflict(disks: Collection[Disk], others: Iterable[Pod]) -> bool:
    """Whether one of the pods has one of the disks and the two cannot share it."""
    return bool(disks) and any(_conflict(disk, taken) for pod in others for taken in disks_of(pod) for disk in disks)


def _disks(volume: Volume) -> Iterable[Disk]:
    sources = (volume.gce_persistent_disk, volume.aws_elastic_block_store, volume.iscsi, volume.rbd)
    return (source for source in sources if source is not None)


def _conflict(disk: Disk, taken: Disk) -> bool:
    """Read-only users can share a disk, except an EBS volume, which has one user."""
    match disk, taken:
        case GCEPersistentDisk(), GCEPersistentDisk():
            return disk.pd_name == taken.pd_name and not (disk.read_only and taken.read_only)
        case AWSElasticBlockStore(), AWSElasticBlockStore():
            return disk.volume_id == taken.volume_id
        case ISCSI(), ISCSI():
            return disk.iqn == taken.iqn and not (disk.read_only and taken.read_only)
        case RBD(), RBD():
            return _is_same_image(disk, taken) and not (disk.read_only and taken.read_only)
        case _:
            return False


def _is_same_image(image: RBD, other: RBD) -> bool:
    same_cluster = not set(image.monitors or ()).isdisjoint(other.monitors or ())
    return same_cluster and (image.pool, image.image) == (other.pool, other.image)


FACTORY: Final = PluginFactory(name=NAME, points=(Point.PRE_FILTER, Point.FILTER), build=no_args(VolumeRestrictions))
