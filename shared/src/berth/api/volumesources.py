"""Where a volume's bytes are: the sources that plugins look into, as pods and PersistentVolumes name them."""

from __future__ import annotations

import msgspec

from berth.api.meta import Trimmed


class GCEPersistentDisk(Trimmed, frozen=True, kw_only=True):
    """A disk of Google's cloud."""

    pd_name: str = ""
    read_only: bool = False


class AWSElasticBlockStore(Trimmed, frozen=True, kw_only=True):
    """A disk of Amazon's cloud: ``vol-...`` or ``aws://<zone>/vol-...``."""

    volume_id: str = msgspec.field(default="", name="volumeID")


class AzureDisk(Trimmed, frozen=True, kw_only=True):
    """A disk of Microsoft's cloud."""

    disk_name: str = ""
    disk_uri: str = msgspec.field(default="", name="diskURI")


class Cinder(Trimmed, frozen=True, kw_only=True):
    """A disk of OpenStack."""

    volume_id: str = msgspec.field(default="", name="volumeID")


class PortworxVolume(Trimmed, frozen=True, kw_only=True):
    """A Portworx volume."""

    volume_id: str = msgspec.field(default="", name="volumeID")


class RBD(Trimmed, frozen=True, kw_only=True):
    """An image of a Ceph cluster, which is known by its monitors."""

    monitors: list[str] | None = None
    pool: str = "rbd"
    image: str = ""
    read_only: bool = False


class ISCSI(Trimmed, frozen=True, kw_only=True):
    """A disk behind iSCSI, known by its qualified name."""

    iqn: str = ""
    read_only: bool = False


class CSISource(Trimmed, frozen=True, kw_only=True):
    """What a CSI driver knows under a handle; an inline one of a pod has none."""

    driver: str = ""
    volume_handle: str = ""
