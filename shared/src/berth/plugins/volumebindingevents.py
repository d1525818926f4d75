"""Which events may help a pod that VolumeBinding refused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from berth.api.pod import Pod
from berth.api.storage import MIGRATED_PLUGINS, CSIDriver, CSINode, CSIStorageCapacity, StorageClass
from berth.framework.events import Action, ClusterEvent, EventHint, Resource
from berth.plugins.volumeclaims import uses_claim
from berth.plugins.volumeprovisioning import limit_of


def _class_allows_others(_: Pod, old: object, new: object) -> bool:
    """A new class, or one that makes volumes for other nodes."""
    if not isinstance(old, StorageClass) or not isinstance(new, StorageClass):
        return True
    return (old.allowed_topologies or []) != (new.allowed_topologies or [])


def _is_its_claim(pod: Pod, _: object, new: object) -> bool:
    return uses_claim(pod, new)


def _drivers_took_over(_: Pod, old: object, new: object) -> bool:
    """Volumes are reached by other labels where a driver took them over."""
    if not isinstance(old, CSINode) or not isinstance(new, CSINode):
        return True
    before, now = old.metadata.annotations or {}, new.metadata.annotations or {}
    return before.get(MIGRATED_PLUGINS) != now.get(MIGRATED_PLUGINS)


def _reports_no_more(pod: Pod, old: object, new: object) -> bool:
    """A driver whose volume the pod names stops saying how much room there is: then nobody waits for room."""
    if not isinstance(old, CSIDriver) or not isinstance(new, CSIDriver):
        return True
    named = {volume.csi.driver for volume in pod.spec.volumes or () if volume.csi is not None}
    return new.metadata.name in named and bool(old.spec.storage_capacity) and not new.spec.storage_capacity


def _has_more_room(_: Pod, old: object, new: object) -> bool:
    if not isinstance(old, CSIStorageCapacity) or not isinstance(new, CSIStorageCapacity):
        return True
    before, now = limit_of(old), limit_of(new)
    return now is not None and (before is None or now > before)


_CHANGED: Final = Action.ADD | Action.UPDATE
EVENTS: Final[Sequence[EventHint]] = (
    EventHint(ClusterEvent(Resource.STORAGE_CLASS, _CHANGED), _class_allows_others),
    EventHint(ClusterEvent(Resource.PERSISTENT_VOLUME_CLAIM, _CHANGED), _is_its_claim),
    EventHint(ClusterEvent(Resource.PERSISTENT_VOLUME, _CHANGED)),
    EventHint(ClusterEvent(Resource.NODE, Action.ADD | Action.UPDATE_NODE_LABEL)),
    EventHint(ClusterEvent(Resource.CSI_NODE, _CHANGED), _drivers_took_over),
    EventHint(ClusterEvent(Resource.CSI_DRIVER, Action.UPDATE), _reports_no_more),
    EventHint(ClusterEvent(Resource.CSI_STORAGE_CAPACITY, _CHANGED), _has_more_room),
)
