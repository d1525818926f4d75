"""What may help a pod that waits for its claims: nodes, its own status, claims, classes and slices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from berth.api.devices import ResourceClaim
from berth.api.pod import Pod, bound_by_condition
from berth.cluster.devices.extended import extended_pod
from berth.framework.events import Action, ClusterEvent, EventHint, Resource, ValueIndex, Values, nothing
from berth.plugins.dynamicresources.claims import names_of_claims


def _after_claim_change(pod: Pod, old: object, new: object) -> bool:
    """A claim is deallocated, whosever it is, or a claim of the pod is new or has another status.

    That of its extended resources rejects it until it is gone.
    """
    if _frees_devices(old, new) or (new is None and isinstance(old, ResourceClaim) and extended_pod(old) == pod.uid):
        return True
    if not isinstance(new, ResourceClaim) or (new.metadata.namespace, new.metadata.name) not in names_of_claims(pod):
        return False
    return not isinstance(old, ResourceClaim) or old.status != new.status


def _frees_devices(old: object, new: object) -> bool:
    # After a gap of the watch, a claim may have other devices than before.
    if not isinstance(old, ResourceClaim) or old.status.allocation is None:
        return False
    return not isinstance(new, ResourceClaim) or new.status.allocation != old.status.allocation


def _claims_of(old: object, new: object) -> Values:
    if _frees_devices(old, new):
        return None
    claims = [each for each in (old, new) if isinstance(each, ResourceClaim)]
    return {
        *((each.metadata.namespace, each.metadata.name) for each in claims),
        *(pod for each in claims if (pod := extended_pod(each))),
    }


def _claim_index() -> ValueIndex:
    return ValueIndex(lambda pod: {*names_of_claims(pod), pod.uid}, _claims_of)


def _is_itself(pod: Pod, _: object, new: object) -> bool:
    return isinstance(new, Pod) and new.uid == pod.uid


def _has_waited(_: Pod, old: object, __: object) -> bool:
    """A pod's wait has ended: until then scorers count its devices, whatever its claims show."""
    return isinstance(old, Pod) and bound_by_condition(old) is None


_CHANGED: Final = Action.ADD | Action.UPDATE
EVENTS: Final[Sequence[EventHint]] = (
    EventHint(ClusterEvent(Resource.NODE, Action.ADD | Action.UPDATE_NODE_LABEL | Action.UPDATE_NODE_ALLOCATABLE)),
    EventHint(ClusterEvent(Resource.POD, Action.UPDATE_POD_GENERATED_RESOURCE_CLAIM), _is_itself, key=nothing),
    EventHint(ClusterEvent(Resource.POD, Action.DELETE), _has_waited, key=nothing),
    EventHint(ClusterEvent(Resource.RESOURCE_CLAIM, _CHANGED | Action.DELETE), _after_claim_change, index=_claim_index),
    # A class that is gone may leave a resource to another, and a slice a pool that is valid.
    EventHint(ClusterEvent(Resource.DEVICE_CLASS, _CHANGED | Action.DELETE)),
    EventHint(ClusterEvent(Resource.RESOURCE_SLICE, _CHANGED | Action.DELETE)),
)
