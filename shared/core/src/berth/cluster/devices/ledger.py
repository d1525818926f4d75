"""The device ledger: which claims have which devices, shares and capacities.

A claim counts once: by the allocation in its status, else by the one that this process has assumed (an allocation in
flight, or in a scorer a proposal). An assumption ends when the status shows an allocation, or when it is forgotten;
other changes of the claim leave it, because berth's own finalizer write is one. Devices given for administration do not
count.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from fractions import Fraction
from typing import Final

from berth.api.devices import AllocationResult, DeviceRequestAllocationResult, ResourceClaim
from berth.api.resources import exact_or_zero
from berth.cluster.devices.changes import Changes
from berth.cluster.snapshot import Objects, Snapshot

Consumed = dict[str, int | Fraction]  # by capacity
_NOTHING: Final[Consumed] = {}


class DeviceLedger:
    """The allocations of all claims. ``changes``: (driver, pool) of the devices concerned."""

    def __init__(self, claims: Objects[ResourceClaim]) -> None:
        self.changes = Changes[tuple[str, str]]()
        self._shown: dict[str, AllocationResult] = {}
        self._assumed: dict[str, AllocationResult] = {}
        # By device, the claims that have it, or a share of it; a claim may have several shares.
        self._owners: dict[str, tuple[str, ...]] = {}
        self._sharers: dict[str, tuple[str, ...]] = {}
        self._consumed: dict[str, Consumed] = {}
        self._in_pool: dict[tuple[str, str], dict[str, str]] = {}  # device key to name
        for claim in claims:
            self._show(None, claim)
        claims.follow(self._show)

    @classmethod
    def of(cls, snapshot: Snapshot) -> DeviceLedger:
        """The ledger of a Snapshot, which lives as long as it does."""
        return snapshot.derived("device ledger", lambda: cls(snapshot.objects(ResourceClaim)))

    def assume(self, uid: str, allocation: AllocationResult) -> None:
        """Count an allocation that will be written. The status, once it shows one, counts instead."""
        if uid in self._shown:
            return
        self.forget(uid)
        self._assumed[uid] = allocation
        self._count(uid, allocation, add=True)

    def forget(self, uid: str) -> None:
        """End an assumption, if there is one."""
        allocation = self._assumed.pop(uid, None)
        if allocation is not None:
            self._count(uid, allocation, add=False)

    def is_assumed(self, uid: str) -> bool:
        return uid in self._assumed

    def allocation_of(self, claim: ResourceClaim) -> AllocationResult | None:
        """The allocation that counts: from the status, else the assumed one."""
        return claim.status.allocation or self._assumed.get(claim.metadata.uid)

    def owners_of(self, device: str) -> tuple[str, ...]:
        """The uids of the claims with the whole device; more than one is a conflict of schedulers."""
        return self._owners.get(device, ())

    def sharers_of(self, device: str) -> tuple[str, ...]:
        """The uids of the claims with a share of the device, once for each share."""
        return self._sharers.get(device, ())

    def is_owned(self, device: str) -> bool:
        return device in self._owners

    def is_shared(self, device: str) -> bool:
        return device in self._sharers

    def consumed(self, device: str) -> Mapping[str, int | Fraction]:
        """The capacities that shares of the device take together."""
        return self._consumed.get(device, _NOTHING)

    def in_use(self, pool: tuple[str, str]) -> Collection[str]:
        """The names of the pool's devices that are owned or shared."""
        return self._in_pool.get(pool, {}).values()

    def _show(self, before: ResourceClaim | None, now: ResourceClaim | None) -> None:
        # A change of the API server's object: of its parts only the allocation counts.
        if before is not None and now is not None and _has_same_allocation(before, now):
            return
        if before is not None:
            shown = self._shown.pop(before.metadata.uid, None)
            if shown is not None:
                self._count(before.metadata.uid, shown, add=False)
        if now is not None and now.status.allocation is not None:
            uid = now.metadata.uid
            self.forget(uid)
            self._shown[uid] = now.status.allocation
            self._count(uid, now.status.allocation, add=True)
        elif now is None and before is not None:
            self.forget(before.metadata.uid)

    def _count(self, uid: str, allocation: AllocationResult, *, add: bool) -> None:
        for result in allocation.devices.results or ():
            if not result.admin_access:
                (self._take if add else self._release)(uid, result)
                self.changes.add((result.driver, result.pool))

    def _take(self, uid: str, result: DeviceRequestAllocationResult) -> None:
        key = result.key
        self._in_pool.setdefault((result.driver, result.pool), {})[key] = result.device
        if result.share_id is None:
            self._owners[key] = (*self._owners.get(key, ()), uid)
            return
        self._sharers[key] = (*self._sharers.get(key, ()), uid)
        consumed = self._consumed.setdefault(key, {})
        for name, amount in _amounts(result):
            consumed[name] = consumed.get(name, 0) + amount

    def _release(self, uid: str, result: DeviceRequestAllocationResult) -> None:
        key = result.key
        table = self._owners if result.share_id is None else self._sharers
        uids = [*table[key]]
        uids.remove(uid)
        table[key] = tuple(uids)
        if result.share_id is not None:
            consumed = self._consumed[key]
            for name, amount in _amounts(result):
                consumed[name] -= amount
        if not uids:
            del table[key]
            if result.share_id is not None:
                del self._consumed[key]
            if key not in self._owners and key not in self._sharers:
                pool = self._in_pool[result.driver, result.pool]
                del pool[key]
                if not pool:
                    del self._in_pool[result.driver, result.pool]


def _has_same_allocation(before: ResourceClaim, now: ResourceClaim) -> bool:
    return before.metadata.uid == now.metadata.uid and before.status.allocation == now.status.allocation


def _amounts(result: DeviceRequestAllocationResult) -> Iterable[tuple[str, int | Fraction]]:
    return ((name, exact_or_zero(amount)) for name, amount in (result.consumed_capacity or {}).items())
