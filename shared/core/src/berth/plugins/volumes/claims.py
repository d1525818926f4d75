"""The PersistentVolumeClaims of a pod's volumes, and the messages for missing or unusable claims."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from berth.api.pod import Pod, Volume
from berth.api.volumes import WAIT_FOR_FIRST_CONSUMER, PersistentVolume, PersistentVolumeClaim, StorageClass
from berth.cluster.snapshot import Snapshot
from berth.framework.events import ValueIndex, Values
from berth.framework.status import Status

LOST: Final = "Lost"  # phase of a claim after its volume was deleted


@dataclass(frozen=True, slots=True)
class ClaimUse:
    """A volume's claim. The claim of an ephemeral volume must be owned by the pod."""

    name: str
    is_ephemeral: bool = False

    def find(self, pod: Pod, snapshot: Snapshot) -> PersistentVolumeClaim | None:
        return snapshot.objects(PersistentVolumeClaim).named(self.name, pod.metadata.namespace)


def claim_of(volume: Volume, pod: Pod) -> ClaimUse | None:
    if volume.persistent_volume_claim is not None:
        return ClaimUse(volume.persistent_volume_claim.claim_name)
    if volume.ephemeral is not None:
        return ClaimUse(f"{pod.metadata.name}-{volume.name}", is_ephemeral=True)
    return None


def claims_of(pod: Pod) -> Iterator[ClaimUse]:
    uses = (claim_of(volume, pod) for volume in pod.spec.volumes or ())
    return (use for use in uses if use is not None)


def has_claims(pod: Pod) -> bool:
    volumes = pod.spec.volumes
    if not volumes:
        return False
    return any(volume.persistent_volume_claim is not None or volume.ephemeral is not None for volume in volumes)


def named_claims(pod: Pod) -> Iterator[str]:
    """The claims that the pod names, without ephemeral volumes' claims."""
    return (use.name for use in claims_of(pod) if not use.is_ephemeral)


def uses_claim(pod: Pod, claim: object, *, also_ephemeral: bool = True) -> bool:
    """Whether the pod uses this claim; for queueing hints, which get any object."""
    if not isinstance(claim, PersistentVolumeClaim) or claim.metadata.namespace != pod.metadata.namespace:
        return False
    return any(use.name == claim.metadata.name and (also_ephemeral or not use.is_ephemeral) for use in claims_of(pod))


def is_reserved_for(pod: Pod, volume: object) -> bool:
    """Whether the volume's claimRef is one of the pod's claims; for queueing hints, which get any object."""
    return not names_of_claims(pod).isdisjoint(reserved_for(volume))


def reserved_for(volume: object) -> set[tuple[str, str]]:
    """Namespace and name of the claim in the volume's claimRef."""
    reference = volume.spec.claim_ref if isinstance(volume, PersistentVolume) else None
    return set() if reference is None else {(reference.namespace, reference.name)}


def claim_index() -> ValueIndex:
    """Finds the pods that use the claim of an event."""
    return ValueIndex(names_of_claims, _name_of_claim)


def names_of_claims(pod: Pod) -> set[tuple[str, str]]:
    return {(pod.metadata.namespace, use.name) for use in claims_of(pod)}


def _name_of_claim(_: object, claim: object) -> Values:
    if not isinstance(claim, PersistentVolumeClaim):
        return ()
    return ((claim.metadata.namespace, claim.metadata.name),)


@dataclass(frozen=True, slots=True)
class PodVolumeClaims:
    """A pod's claims: ``bound``; unbound and ``delayed`` until their first consumer; unbound and ``immediate``."""

    bound: tuple[PersistentVolumeClaim, ...] = ()
    delayed: tuple[PersistentVolumeClaim, ...] = ()
    immediate: tuple[PersistentVolumeClaim, ...] = ()


def pod_volume_claims(pod: Pod, snapshot: Snapshot) -> PodVolumeClaims | Status:
    """The pod's claims by state; a Status if one is missing, lost, being deleted or owned by another pod."""
    claims: list[PersistentVolumeClaim] = []
    for use in claims_of(pod):
        claim = use.find(pod, snapshot)
        reason = _why_not(pod, use, claim)
        if claim is None or reason:
            return Status.unresolvable(reason)
        claims.append(claim)
    return PodVolumeClaims(
        bound=tuple(claim for claim in claims if claim.is_fully_bound),
        delayed=tuple(claim for claim in claims if not claim.is_fully_bound and _delays_binding(claim, snapshot)),
        immediate=tuple(claim for claim in claims if not claim.is_fully_bound and not _delays_binding(claim, snapshot)),
    )


def _why_not(pod: Pod, use: ClaimUse, claim: PersistentVolumeClaim | None) -> str:
    if claim is None:
        waits = f'waiting for ephemeral volume controller to create the persistentvolumeclaim "{use.name}"'
        return waits if use.is_ephemeral else claim_not_found(use.name)
    if claim.status.phase == LOST:
        return f'persistentvolumeclaim "{use.name}" bound to non-existent persistentvolume "{claim.spec.volume_name}"'
    if claim.metadata.deletion_timestamp is not None:
        return f'persistentvolumeclaim "{use.name}" is being deleted'
    return why_not_owned(pod, claim) if use.is_ephemeral else ""


def _delays_binding(claim: PersistentVolumeClaim, snapshot: Snapshot) -> bool:
    """Whether the claim is bound only with its first consumer (kube-scheduler's IsDelayBindingMode)."""
    storage_class = snapshot.objects(StorageClass).named(claim.class_name) if claim.class_name else None
    waits = storage_class is not None and storage_class.volume_binding_mode == WAIT_FOR_FIRST_CONSUMER
    return waits and not claim.spec.volume_name


def why_not_owned(pod: Pod, claim: PersistentVolumeClaim) -> str:
    """Why the claim of an ephemeral volume cannot be used; empty if the pod owns it."""
    owners = claim.metadata.owner_references or ()
    if any(owner.controller and owner.uid == pod.uid for owner in owners):
        return ""
    meta = claim.metadata
    return f"PVC {meta.namespace}/{meta.name} was not created for pod {pod.key} (pod is not owner)"


def not_found(kind: str, name: str) -> str:
    """The API server's message."""
    return f'{kind} "{name}" not found'


def claim_not_found(name: str) -> str:
    return not_found("persistentvolumeclaim", name)
