"""Disks that two pods on one node cannot both have: a cloud's disk, an RBD image or an iSCSI target of volumes."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from berth.api.pod import Pod, Volume
from berth.api.volumesources import ISCSI, RBD, AWSElasticBlockStore, GCEPersistentDisk

Disk = GCEPersistentDisk | AWSElasticBlockStore | ISCSI | RBD


def disks_of(pod: Pod) -> list[Disk]:
    """The disks that a pod's volumes name."""
    return [disk for volume in pod.spec.volumes or () for disk in _disks(volume)]


def any_conflict(disks: Collection[Disk], others: Iterable[Pod]) -> bool:
    """Whether one of the pods has one of the disks in a way that leaves no room for a second user."""
    return bool(disks) and any(_conflict(disk, taken) for pod in others for taken in disks_of(pod) for disk in disks)


def _disks(volume: Volume) -> Iterable[Disk]:
    sources = (volume.gce_persistent_disk, volume.aws_elastic_block_store, volume.iscsi, volume.rbd)
    return (source for source in sources if source is not None)


def _conflict(disk: Disk, taken: Disk) -> bool:
    """Readers do not disturb each other, but for disks of Amazon's cloud, which have one user."""
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
