"""The device ledger: which claims have which devices, shares and capacities.

A claim counts once: by the allocation in its status, else by the one that this process has assumed for pods (an
allocation in flight, or in a scorer a proposal). An assumption ends when the last of these pods forgets it, or with the
claim. Nothing that a watch shows in between ends it: berth's own finalizer write is a change of the claim, and a pod
that fails may take back the allocation that another one still needs. Devices given for administration do not count.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from berth.api.devices import AllocationResult, DeviceRequestAllocationResult, ResourceClaim
from berth.api.resources import exact_or_zero
from berth.cluster.devices.changes import Changes
from berth.cluster.objects import Objects
from berth.cluster.snapshot import Snapshot

Consumed = dict[str, int | Fraction]  # by capacity
_NOTHING: Final[Consumed] = {}


@dataclass(slots=True)
class _Assumed:
    allocation: AllocationResult
    pods: set[str]  # uids


class DeviceLedger:
    """The allocations of all claims. ``changes``: (driver, pool) of the devices concerned."""

    def __init__(self, claims: Objects[ResourceClaim]) -> None:
        self.changes = Changes[tuple[str, str]]()
        # The resourceVersions between which the claim was changed that is set next, as far as known; a binder sets it.
        self.changed_between = (0, 0)
        # Devices that a second claim's status shows, until one of both loses it; within a LIST the first one's may be
        # out of date.
        self._doubtful: set[str] = set()
        self._shown: dict[str, AllocationResult] = {}
        self._shown_at: dict[str, tuple[int, int]] = {}
        self._assumed: dict[str, _Assumed] = {}
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

    def assume(self, uid: str, allocation: AllocationResult, pod: str = "") -> None:
        """Count an allocation that is to be written, until the pod (by uid) forgets it."""
        known = self._assumed.get(uid)
        pods = {pod} if known is None else known.pods | {pod}
        if uid not in self._shown:
            if known is not None:
                self._count(uid, known.allocation, add=False)
            self._count(uid, allocation, add=True)
        self._assumed[uid] = _Assumed(allocation, pods)

    def forget(self, uid: str, pod: str = "") -> None:
        """End the pod's assumption, if it has one."""
        known = self._assumed.get(uid)
        if known is None:
            return
        known.pods.discard(pod)
        if not known.pods:
            self._drop(uid)

    def forget_pod(self, pod: str) -> None:
        """End all assumptions of the pod."""
        for uid in [uid for uid, known in self._assumed.items() if pod in known.pods]:
            self.forget(uid, pod)

    def forget_all(self) -> None:
        """End all assumptions."""
        for uid in list(self._assumed):
            self._drop(uid)

    def assumed(self, uid: str) -> AllocationResult | None:
        """The allocation that is assumed for the claim, whatever its status shows."""
        known = self._assumed.get(uid)
        return None if known is None else known.allocation

    def holds(self, uid: str, pod: str) -> bool:
        """Whether the allocation is assumed for this pod too."""
        known = self._assumed.get(uid)
        return known is not None and pod in known.pods

    @property
    def doubtful(self) -> frozenset[str]:
        """Devices that more than one claim's status shows, and that ``take_conflicts`` has not returned yet."""
        return frozenset(self._doubtful)

    def take_conflicts(self) -> list[tuple[str, tuple[str, ...]]]:
        """Devices that more than one claim's status shows since the last call, and the uids of these claims."""
        devices, self._doubtful = sorted(self._doubtful), set()
        shown = ((key, tuple(uid for uid in self.owners_of(key) if uid in self._shown)) for key in devices)
        return [(key, uids) for key, uids in shown if len(uids) > 1]

    def earlier_owner(self, uid: str) -> tuple[str, str] | None:
        """A device of the claim's status that another claim got first, or may have got, and that claim's uid."""
        shown = self._shown.get(uid)
        for result in (shown.devices.results if shown is not None else None) or ():
            if result.admin_access:
                continue
            others = self.owners_of(result.key)
            if result.share_id is None:
                others += self.sharers_of(result.key)
            for other in others:
                began = self._shown_at.get(other)
                if other != uid and began is not None and began[0] <= self._shown_at[uid][1]:
                    return result.key, other
        return None

    def allocation_of(self, claim: ResourceClaim) -> AllocationResult | None:
        """The allocation that counts: from the status, else the assumed one."""
        return claim.status.allocation or self.assumed(claim.metadata.uid)

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

    def is_used(self, device: str) -> bool:
        """Whether a claim has the device, or a share of it."""
        return device in self._owners or device in self._sharers

    def consumed(self, device: str) -> Mapping[str, int | Fraction]:
        """The capacities that shares of the device take together."""
        return self._consumed.get(device, _NOTHING)

    @property
    def pools_in_use(self) -> Collection[tuple[str, str]]:
        """The pools, by driver and name, of which devices are owned or shared."""
        return self._in_pool.keys()

    def in_use(self, pool: tuple[str, str]) -> Collection[str]:
        """The names of the pool's devices that are owned or shared."""
        return self._in_pool.get(pool, {}).values()

    def _show(self, before: ResourceClaim | None, now: ResourceClaim | None) -> None:
        # A change of the API server's object: of its parts only the allocation counts.
        if before is not None and now is not None and _has_same_allocation(before, now):
            return
        if before is not None:
            self._hide(before.metadata.uid)
        if now is None:
            if before is not None:
                self._drop(before.metadata.uid)
        elif now.status.allocation is not None:
            uid, allocation = now.metadata.uid, now.status.allocation
            assumed = self.assumed(uid)
            if assumed is not None:
                self._count(uid, assumed, add=False)
            self._note_conflicts(allocation)
            self._shown[uid], self._shown_at[uid] = allocation, self.changed_between
            self._count(uid, allocation, add=True)

    def _hide(self, uid: str) -> None:
        """The status shows no allocation any more: the assumed one counts again."""
        shown = self._shown.pop(uid, None)
        if shown is None:
            return
        del self._shown_at[uid]
        self._count(uid, shown, add=False)
        assumed = self.assumed(uid)
        if assumed is not None:
            self._count(uid, assumed, add=True)

    def _drop(self, uid: str) -> None:
        known = self._assumed.pop(uid, None)
        if known is not None and uid not in self._shown:
            self._count(uid, known.allocation, add=False)

    def _note_conflicts(self, allocation: AllocationResult) -> None:
        for result in allocation.devices.results or ():
            if result.admin_access or result.share_id is not None:
                continue
            if any(other in self._shown for other in self.owners_of(result.key)):
                self._doubtful.add(result.key)

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
        if len(uids) < 2:
            self._doubtful.discard(key)
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
