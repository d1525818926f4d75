"""The claims of a pod in one cycle: those with an allocation, those without, and the answers of the nodes for these."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from berth.api.devices import AllocationResult, ClaimMeta, ResourceClaim
from berth.api.pod import Pod
from berth.api.resources import may_be_served
from berth.api.selectors import NodeTerms, compile_node_selector
from berth.cluster.devices.extended import ExtendedClaims, ExtendedResources
from berth.cluster.nodes import Mask, Nodes
from berth.cluster.pods import Trait
from berth.cluster.snapshot import Snapshot
from berth.framework.status import Status
from berth.plugins.dynamicresources.answers import Allocator, Budget, NodeAnswers
from berth.plugins.dynamicresources.claims import check_requests, resolved_claims, unread_reason
from berth.plugins.dynamicresources.extended import IN_MEMORY, ExtendedClaim, extended_claim


@dataclass(slots=True, eq=False)
class PodClaims:
    """The claims of the pod in one cycle. ``unavailable``: allocated claims that rejected a node, in order."""

    claims: tuple[ResourceClaim, ...]
    allocated: tuple[tuple[ResourceClaim, AllocationResult, NodeTerms | None], ...]
    to_allocate: tuple[ResourceClaim, ...]
    allocator: Allocator
    extended: dict[str, int] = field(default_factory=dict)  # resources that a class may serve, and amounts
    stale: ResourceClaim | None = None
    unavailable: dict[str, ResourceClaim] = field(default_factory=dict)
    budget: Budget = field(default_factory=Budget)
    unread: str = ""  # why no class can serve extended resources now

    @property
    def is_empty(self) -> bool:
        return not self.claims and not self.allocated and not self.extended

    @property
    def has_choices(self) -> bool:
        return any(request.first_available for claim in self.claims for request in claim.spec.devices.requests or ())

    def answers(self, pod: Pod, served: frozenset[str]) -> tuple[NodeAnswers | None, tuple[ResourceClaim, ...]]:
        """The answers where these extended resources are served by classes; None if nothing is to be allocated."""
        to_allocate = self.to_allocate
        if served:
            to_allocate = (*to_allocate, self.extended_claim(pod, served).claim)
        return (self.allocator.answers(to_allocate) if to_allocate else None), to_allocate

    def extended_claim(self, pod: Pod, served: frozenset[str]) -> ExtendedClaim:
        return extended_claim(pod, served, ExtendedResources.of(self.allocator.snapshot))

    def by_served(self, nodes: Nodes) -> list[tuple[Mask, frozenset[str] | None]]:
        """The nodes by the extended resources that classes serve there; None where a resource has no source."""
        every: Mask = np.ones(len(nodes), dtype=np.bool_)
        if not self.extended:
            return [(every, frozenset())]
        classes = ExtendedResources.of(nodes.snapshot)
        groups: list[tuple[Mask, frozenset[str] | None]] = [(every, frozenset())]
        for resource in sorted(self.extended):
            missing = nodes.allocatable(resource) == 0
            if not missing.any():
                continue
            has_class = not self.unread and classes.class_of(resource) is not None
            split: list[tuple[Mask, frozenset[str] | None]] = []
            for mask, served in groups:
                split.append((mask & ~missing, served))
                split.append((mask & missing, served | {resource} if has_class and served is not None else None))
            groups = [(mask, served) for mask, served in split if mask.any()]
        return groups


def pod_claims(pod: Pod, snapshot: Snapshot) -> PodClaims | Status:
    """The pod's claims as they stand, or why it cannot be placed anywhere."""
    unread = unread_reason(snapshot)
    if unread and pod.spec.resource_claims:
        return Status.unresolvable(unread)
    resolved = resolved_claims(pod, snapshot.objects(ResourceClaim))
    if isinstance(resolved, Status):
        return resolved
    allocator = Allocator.of(snapshot)
    allocated: list[tuple[ResourceClaim, AllocationResult, NodeTerms | None]] = []
    to_allocate: list[ResourceClaim] = []
    for claim in resolved:
        allocation = allocator.ledger.allocation_of(claim)
        if allocation is not None:
            selector = allocation.node_selector
            allocated.append((claim, allocation, None if selector is None else compile_node_selector(selector)))
            continue
        problem = check_requests(claim, snapshot)
        if problem is not None:
            return problem
        to_allocate.append(claim)
    held = allocator.ledger.assumed(f"{IN_MEMORY}{pod.uid}")
    if held is not None:
        # The claim for extended resources is being written.
        selector = held.node_selector
        claim = ResourceClaim(metadata=ClaimMeta(name=IN_MEMORY))
        allocated.append((claim, held, None if selector is None else compile_node_selector(selector)))
    claims = PodClaims(resolved, tuple(allocated), tuple(to_allocate), allocator, unread=unread)
    if held is None:
        _add_extended(claims, pod, snapshot)
    return claims


def _add_extended(claims: PodClaims, pod: Pod, snapshot: Snapshot) -> None:
    classes = ExtendedResources.of(snapshot)
    if not classes:
        return
    amounts = snapshot.class_of(pod).requests.amounts
    asked = {name: amount for name, amount in amounts.items() if amount and may_be_served(name)}
    if any(classes.class_of(name) is not None for name in asked):
        claims.extended = asked
        claims.stale = ExtendedClaims.of(snapshot).of_pod(pod)


def concerns(pod: Pod, snapshot: Snapshot) -> bool:
    """Whether the pod has claims, or asks for extended resources in a cluster with DeviceClasses."""
    if pod.spec.resource_claims:
        return True
    extended = snapshot.class_of(pod).traits & Trait.EXTENDED_RESOURCES
    return bool(extended and ExtendedResources.of(snapshot))
