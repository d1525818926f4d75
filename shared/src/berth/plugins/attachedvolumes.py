"""The volumes that CSI drivers attach to nodes: which a pod needs, which the pods of a node have, which are attached.

A volume is known by its driver and handle, and counted once however many pods use it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final
from weakref import ref

from berth.api.pod import Pod, Volume
from berth.api.storage import StorageClass, VolumeAttachment
from berth.api.volumes import PersistentVolume, PersistentVolumeClaim
from berth.cluster.snapshot import Snapshot
from berth.framework.status import Status
from berth.plugins.csimigration import BY_PROVISIONER, LEFT_IN_TREE, UntranslatableError, driver_of
from berth.plugins.volumeclaims import ClaimUse, claim_not_found, claim_of, foreign

Attached = Mapping[str, str]
"""Driver and handle to driver."""
_NONE: Final[Attached] = {}


def has_attachable(pod: Pod) -> bool:
    """Whether the pod has volumes that may be attached by a CSI driver."""
    volumes = pod.spec.volumes or ()
    return any(claim_of(volume, pod) is not None or driver_of(volume) is not None for volume in volumes)


def needed_volumes(pod: Pod, snapshot: Snapshot) -> Attached | Status:
    """What must be attached for a pod that waits; a Status when one of its claims is not there or not its own."""
    found: dict[str, str] = {}
    for volume in pod.spec.volumes or ():
        use = claim_of(volume, pod)
        if use is not None and use.find(pod, snapshot) is None:
            missing = f"looking up PVC {pod.metadata.namespace}/{use.name}: {claim_not_found(use.name)}"
            return Status.unresolvable(missing)
        one = _of_volume(volume, use, pod, snapshot)
        if isinstance(one, Status):
            return one
        found.update(one)
    return found


def volumes_of(pods: Iterable[Pod], snapshot: Snapshot) -> Attached:
    """What is attached for pods that are on a node. What is odd about them counts for nothing: it is not for others."""
    found: dict[str, str] = {}
    for pod in pods:
        for volume in pod.spec.volumes or ():
            one = _of_volume(volume, claim_of(volume, pod), pod, snapshot)
            found.update(_NONE if isinstance(one, Status) else one)
    return found


class Attachments:
    """VolumeAttachments by node, gone through again when one of them or a volume has changed."""

    def __init__(self) -> None:
        self._seen: tuple[ref[Snapshot], int, int] | None = None
        self._by_node: dict[str, dict[str, str]] = {}

    def on_node(self, node: str, snapshot: Snapshot) -> Attached:
        """What is attached to a node, or is to be."""
        attachments, volumes = snapshot.objects(VolumeAttachment), snapshot.objects(PersistentVolume)
        seen = (ref(snapshot), attachments.version, volumes.version)
        if seen != self._seen:
            self._seen, self._by_node = seen, {}
            for attachment in attachments.in_namespace(""):
                self._take(attachment, snapshot)
        return self._by_node.get(node, _NONE)

    def _take(self, attachment: VolumeAttachment, snapshot: Snapshot) -> None:
        spec = attachment.spec
        volume = snapshot.objects(PersistentVolume).named(spec.source.persistent_volume_name or "")
        if spec.attacher and volume is not None and volume.spec.csi is not None:
            name = _name(spec.attacher, volume.spec.csi.volume_handle)
            self._by_node.setdefault(spec.node_name, {})[name] = spec.attacher


def _of_volume(volume: Volume, use: ClaimUse | None, pod: Pod, snapshot: Snapshot) -> Attached | Status:
    if use is None:
        return _of_inline(volume)
    claim = use.find(pod, snapshot)
    if claim is None:
        return _NONE
    reason = foreign(pod, claim) if use.is_ephemeral else ""
    return Status.error(reason) if reason else _of_claim(claim, snapshot)


def _of_inline(volume: Volume) -> Attached | Status:
    found = driver_of(volume)
    if found is None:
        return _NONE
    driver, source = found
    try:
        return {_name(driver.name, driver.handle(source, {})): driver.name}
    except UntranslatableError as exc:
        return Status.error(f"converting volume({volume.name}) from inline to csi: {exc}")


def _of_claim(claim: PersistentVolumeClaim, snapshot: Snapshot) -> Attached:
    volume = snapshot.objects(PersistentVolume).named(claim.spec.volume_name) if claim.spec.volume_name else None
    if volume is None:
        return _of_class(claim, snapshot)
    csi = volume.spec.csi
    return _of_in_tree(volume) if csi is None else _counted(csi.driver, csi.volume_handle)


def _of_in_tree(volume: PersistentVolume) -> Attached:
    found = driver_of(volume)
    if found is None:
        return _NONE
    driver, source = found
    try:
        return _counted(driver.name, driver.handle(source, volume.metadata.labels or {}))
    except UntranslatableError:
        return _NONE


def _of_class(claim: PersistentVolumeClaim, snapshot: Snapshot) -> Attached:
    """A volume that is still to be made, of the driver that will make it."""
    storage_class = snapshot.objects(StorageClass).named(claim.class_name) if claim.class_name else None
    if storage_class is None or storage_class.provisioner in LEFT_IN_TREE:
        return _NONE
    driver = BY_PROVISIONER.get(storage_class.provisioner)
    name = driver.name if driver is not None else storage_class.provisioner
    return _counted(name, f"claim {claim.metadata.namespace}/{claim.metadata.name}")


def _counted(driver: str, handle: str) -> Attached:
    return {_name(driver, handle): driver} if driver and handle else _NONE


def _name(driver: str, handle: str) -> str:
    return f"{driver}/{handle}"
