"""The claims of a pod, and the state of their allocations."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from hashlib import blake2b

import msgspec

from berth.api.devices import AllocationResult, DeviceClass, ResourceClaim, ResourceSlice
from berth.api.pod import Pod, PodResourceClaim, unix_seconds
from berth.api.resources import may_be_served, pod_requests
from berth.cluster.objects import Objects
from berth.cluster.snapshot import Snapshot
from berth.framework.status import Status


def unread_reason(snapshot: Snapshot) -> str:
    """Why no devices can be given, empty if they can: with one of the kinds unread, used devices may seem free."""
    kinds = (ResourceClaim, DeviceClass, ResourceSlice)
    return next((reason for kind in kinds if (reason := snapshot.objects(kind).unread)), "")


def resolved_claims(pod: Pod, claims: Objects[ResourceClaim]) -> tuple[ResourceClaim, ...] | Status:
    """The pod's claims in its order, each once, or why the pod must wait for one of them."""
    found: dict[str, ResourceClaim] = {}
    for entry in pod.spec.resource_claims or ():
        name, is_generated = _name_of(pod, entry)
        if name is None:
            # The template is a reason of its own, because the first one is kube-scheduler's.
            missing = f'ResourceClaimTemplate "{entry.resource_claim_template_name}" may be missing'
            return Status.unresolvable(f'pod "{pod.key}": ResourceClaim not created yet', missing)
        if not name:
            continue
        claim = claims.named(name, pod.metadata.namespace)
        if claim is None:
            return Status.unresolvable(f'could not find ResourceClaim "{pod.metadata.namespace}/{name}"')
        if claim.metadata.deletion_timestamp is not None:
            return Status.unresolvable(f'resourceclaim "{name}" is being deleted')
        if is_generated and not _is_controlled_by(claim, pod):
            return Status.unresolvable(
                f"ResourceClaim {claim.key} was not created for Pod {pod.key} (Pod is not owner)"
            )
        found[claim.metadata.uid] = claim
    return tuple(found.values())


def known_claims(pod: Pod, claims: Objects[ResourceClaim]) -> Iterator[ResourceClaim]:
    """The pod's claims that are there, whether it can use them or not."""
    found = (claims.named(name, namespace) for namespace, name in names_of_claims(pod))
    return (claim for claim in found if claim is not None)


def digest_of_requests(pod: Pod, claims: Objects[ResourceClaim]) -> str:
    """Equal for pods that wait for the same: by their claims' specs and allocations, and extended resources."""
    found = [(claim.spec, claim.status.allocation) for claim in known_claims(pod, claims)]
    amounts = pod_requests(pod.spec).amounts
    extended = sorted((name, amount) for name, amount in amounts.items() if amount and may_be_served(name))
    return blake2b(msgspec.json.encode((found, extended)), digest_size=8).hexdigest()


def claim_names(pod: Pod) -> Iterator[str]:
    """The names of the pod's claims that are known so far."""
    names = (_name_of(pod, entry)[0] for entry in pod.spec.resource_claims or ())
    return (name for name in names if name)


def _name_of(pod: Pod, entry: PodResourceClaim) -> tuple[str | None, bool]:
    """The claim's name and whether it is made of a template; None if it is not made yet, empty if none is needed."""
    if entry.resource_claim_name:
        return entry.resource_claim_name, False
    for status in pod.status.resource_claim_statuses or ():
        if status.name == entry.name:
            return status.resource_claim_name or "", True
    return None, True


def _is_controlled_by(claim: ResourceClaim, pod: Pod) -> bool:
    return any(owner.controller and owner.uid == pod.uid for owner in claim.metadata.owner_references or ())


def check_requests(claim: ResourceClaim, snapshot: Snapshot) -> Status | None:
    """Why the claim cannot be allocated on any node."""
    if claim.spec.left_out:
        return Status.unresolvable(f"resource claim {claim.key} {claim.spec.left_out}")
    for request in claim.spec.devices.requests or ():
        if request.exactly is not None:
            named = [(request.name, request.exactly.device_class_name)]
        else:
            named = [(f"{request.name}/{each.name}", each.device_class_name) for each in request.first_available or ()]
        if not named:
            return Status.unresolvable(f"resource claim {claim.key}, request {request.name}: unknown request type")
        for name, device_class in named:
            if not device_class:
                return Status.error(f"request {name}: unsupported request type")
            found = snapshot.objects(DeviceClass).named(device_class)
            if found is None or found.spec.left_out:
                problem = "does not exist" if found is None else found.spec.left_out
                return Status.unresolvable(f"request {name}: device class {device_class} {problem}")
    return None


def may_be_freed_for(claim: ResourceClaim, pod: Pod) -> bool:
    """Whether the claim is reserved for no other pod."""
    return all(each.uid == pod.uid for each in claim.status.reserved_for or ())


def may_be_left_by(claim: ResourceClaim, pod: Pod) -> bool:
    """Whether the pod may give up the claim: it has reserved it, or nobody has."""
    return not claim.status.reserved_for or is_reserved_for(claim, pod)


def is_reserved_for(claim: ResourceClaim, pod: Pod) -> bool:
    return any(each.uid == pod.uid for each in claim.status.reserved_for or ())


class BindingState(Enum):
    """The state of the binding conditions of a claim's devices."""

    DONE = "done"
    PENDING = "pending"
    FAILED = "failed"


def binding_of(claim: ResourceClaim, allocation: AllocationResult) -> tuple[BindingState, str]:
    """The state, and the error if a device has failed."""
    is_pending = False
    for result in allocation.devices.results or ():
        if not result.binding_conditions:
            continue
        conditions = {
            condition.type: condition
            for each in claim.status.devices or ()
            if (each.driver, each.pool, each.device, each.share_id)
            == (result.driver, result.pool, result.device, result.share_id)
            for condition in each.conditions or ()
        }
        for name in result.binding_failure_conditions or ():
            failure = conditions.get(name)
            if failure is not None and failure.status == "True":
                return BindingState.FAILED, (
                    f"device binding failed: claim={claim.metadata.name}, reason={failure.reason}, "
                    f'message="{failure.message}"'
                )
        is_pending = is_pending or not all(
            name in conditions and conditions[name].status == "True" for name in result.binding_conditions
        )
    return (BindingState.PENDING if is_pending else BindingState.DONE), ""


def is_too_late(allocation: AllocationResult, now: float, timeout_seconds: float) -> bool:
    """Whether the devices should have been bound by now. ``now`` is 0 where time is unknown."""
    if not allocation.allocation_timestamp or not now:
        return False
    return now > unix_seconds(allocation.allocation_timestamp) + timeout_seconds


def names_of_claims(pod: Pod) -> list[tuple[str, str]]:
    """Namespace and name of each claim that the pod names, as far as they are made."""
    named = [_name_of(pod, entry)[0] for entry in pod.spec.resource_claims or ()]
    return [(pod.metadata.namespace, name) for name in named if name]
