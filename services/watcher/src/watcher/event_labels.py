"""What brought a pod to its queue, in the words of kube-scheduler's metric ``scheduler_queue_incoming_pods_total``."""

from __future__ import annotations

from typing import Final

from berth.framework.events import Action, ClusterEvent, Resource

POD_ADDED: Final = "UnschedulablePodAdd"
ATTEMPT_FAILED: Final = "ScheduleAttemptFailure"
BACKOFF_COMPLETE: Final = "BackoffComplete"
TIMEOUT: Final = "UnschedulableTimeout"

_RESOURCES: Final = {
    Resource.POD: "AssignedPod",
    Resource.CSI_NODE: "storage.k8s.io/CSINode",
    Resource.CSI_DRIVER: "storage.k8s.io/CSIDriver",
    Resource.CSI_STORAGE_CAPACITY: "storage.k8s.io/CSIStorageCapacity",
    Resource.STORAGE_CLASS: "storage.k8s.io/StorageClass",
    Resource.VOLUME_ATTACHMENT: "storage.k8s.io/VolumeAttachment",
}
"""Where kube-scheduler says otherwise than the kind alone. Pods of which plugins hear are assigned ones."""
_ACTIONS: Final = {Action.UPDATE_POD_TOLERATIONS: "UpdatePodToleration"}


def label_of(event: ClusterEvent) -> str:
    """The event's name; of several things that changed at once the first."""
    return f"{_RESOURCES.get(event.resource, event.resource.value)}{_action(event.action)}"


def label_of_own_update(action: Action) -> str:
    """The name of a change of the waiting pod itself."""
    return f"UnschedulablePod{_action(action) or 'Update'}"


def _action(actions: Action) -> str:
    for action in actions:
        return _ACTIONS.get(action) or "".join(word.capitalize() for word in (action.name or "").split("_"))
    return ""
