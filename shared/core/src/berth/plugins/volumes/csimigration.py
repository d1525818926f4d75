"""CSI migration: CSI drivers serve in-tree volumes, because their plugins moved out of Kubernetes.

Drivers, handles and topology keys come from Kubernetes' csi-translation-lib.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from berth.api.pod import AWSElasticBlockStore, GCEPersistentDisk, Volume
from berth.api.volumes import MIGRATED_PLUGINS, CSINode, PersistentVolume

ZONE: Final = "topology.kubernetes.io/zone"
BETA_ZONE: Final = "failure-domain.beta.kubernetes.io/zone"
ZONE_SEPARATOR: Final = "__"
_EBS_ID: Final = re.compile(r"vol-[^/]*")
_GCE_ZONE_PARTS: Final = 3
_UNSPECIFIED: Final = "UNSPECIFIED"


class UntranslatableError(ValueError):
    """A volume that cannot be translated for its CSI driver."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Driver:
    """The CSI driver that replaces an in-tree plugin.

    ``handle`` translates a volume's source and the labels of its PersistentVolume to the driver's volume handle;
    ``topology_key`` is the driver's own zone label of nodes, if any.
    """

    in_tree: str
    name: str
    handle: Callable[[Any, Mapping[str, str]], str]
    topology_key: str = ""


def _by_id(source: Any, _: Mapping[str, str]) -> str:
    return str(source.volume_id)


def _ebs_handle(source: AWSElasticBlockStore, _: Mapping[str, str]) -> str:
    """The id in ``aws://<zone>/vol-...``, or the volumeID itself."""
    if not source.volume_id.startswith("aws://"):
        return source.volume_id
    found = source.volume_id.removeprefix("aws://").partition("/")[2].strip("/")
    if not _EBS_ID.fullmatch(found):
        raise UntranslatableError(f"reading volumeID {source.volume_id!r}: want aws://<zone>/vol-<id>")
    return found


def _gce_handle(source: GCEPersistentDisk, labels: Mapping[str, str]) -> str:
    zones = (labels.get(BETA_ZONE) or labels.get(ZONE, "")).split(ZONE_SEPARATOR)
    if len(zones) > 1:
        return f"projects/{_UNSPECIFIED}/regions/{_gce_region(zones)}/disks/{source.pd_name}"
    return f"projects/{_UNSPECIFIED}/zones/{zones[0] or _UNSPECIFIED}/disks/{source.pd_name}"


def _gce_region(zones: list[str]) -> str:
    parts = [zone.split("-") for zone in zones]
    regions = {"-".join(part[:-1]) for part in parts}
    if len(regions) != 1 or any(len(part) != _GCE_ZONE_PARTS for part in parts):
        raise UntranslatableError(f"reading zones {zones!r}: want <place>-<region>-<zone> of one region")
    return regions.pop()


DRIVERS: Final[Mapping[str, Driver]] = {
    "aws_elastic_block_store": Driver(
        in_tree="kubernetes.io/aws-ebs",
        name="ebs.csi.aws.com",
        handle=_ebs_handle,
        topology_key="topology.ebs.csi.aws.com/zone",
    ),
    "gce_persistent_disk": Driver(
        in_tree="kubernetes.io/gce-pd",
        name="pd.csi.storage.gke.io",
        handle=_gce_handle,
        topology_key="topology.gke.io/zone",
    ),
    "azure_disk": Driver(
        in_tree="kubernetes.io/azure-disk",
        name="disk.csi.azure.com",
        handle=lambda source, _: str(source.disk_uri),
    ),
    "cinder": Driver(
        in_tree="kubernetes.io/cinder",
        name="cinder.csi.openstack.org",
        handle=_by_id,
        topology_key="topology.cinder.csi.openstack.org/zone",
    ),
    "portworx_volume": Driver(in_tree="kubernetes.io/portworx-volume", name="pxd.portworx.com", handle=_by_id),
}  # by the volume's field with its source
BY_PROVISIONER: Final = {driver.in_tree: driver for driver in DRIVERS.values()}
# Provisioners without a limit of volumes per node.
LEFT_IN_TREE: Final = frozenset({"kubernetes.io/azure-file", "kubernetes.io/vsphere-volume"})


def driver_of(volume: PersistentVolume | Volume) -> tuple[Driver, Any] | None:
    """The driver that a volume migrates to, and the volume's source; None without migration."""
    holder = volume.spec if isinstance(volume, PersistentVolume) else volume
    for member, driver in DRIVERS.items():
        source = getattr(holder, member)
        if source is not None:
            return driver, source
    return None


def translation_error(driver: Driver, source: Any, labels: Mapping[str, str]) -> str:
    try:
        driver.handle(source, labels)
    except UntranslatableError as exc:
        return str(exc)
    return ""


def is_migrated(driver: Driver, node: CSINode | None) -> bool:
    """Whether the node's kubelet uses the driver for volumes of the in-tree plugin."""
    annotations = (node.metadata.annotations or {}) if node is not None else {}
    return driver.in_tree in annotations.get(MIGRATED_PLUGINS, "").split(",")
