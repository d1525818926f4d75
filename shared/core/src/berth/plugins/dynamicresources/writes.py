"""What is written for devices: to claims before a pod's Binding, and to claims that no longer help their pod."""

from __future__ import annotations

from dataclasses import dataclass

from berth.api.devices import AllocationResult, ResourceClaim
from berth.api.pod import ContainerExtendedResourceRequest
from berth.framework.interface import ClaimName


@dataclass(frozen=True, slots=True, kw_only=True)
class ReserveClaim:
    """Add the finalizer, the allocation (unless the claim has one already) and the pod's reservation."""

    claim: ClaimName
    allocation: AllocationResult | None
    pod: ClaimName


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateClaim:
    """Create the claim for extended resources, reserve it, and report the mappings in the pod's status."""

    claim: ResourceClaim
    allocation: AllocationResult
    pod: ClaimName
    mappings: tuple[ContainerExtendedResourceRequest, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FreeClaim:
    """Clear the claim's allocation and reservations; ``is_deleted``: then delete it, without its finalizer."""

    claim: ClaimName
    is_deleted: bool = False


ClaimWrite = ReserveClaim | CreateClaim
