"""The devices, capacities and counters that a search has taken so far, and whether a device can be taken too."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from berth.cluster.devices.ledger import DeviceLedger
from berth.cluster.devices.pools import Amount, Counters, DevicePools, PooledDevice, PooledSlice, PoolKey
from berth.plugins.dynamicresources.candidates import Candidates
from berth.plugins.dynamicresources.requests import CLAIM, Plan, Request


class SearchError(Exception):
    """Ends the cycle of the pod; the text has CLAIM for the claim's name."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A device for a request: its position among the candidates, and the capacity if it is shared."""

    request: Request
    position: int
    consumed: dict[str, Amount] | None = None
    takes_counters: bool = False


class Free:
    """The ledger, and what it leaves of the shared counters of pools, as long as it does not change.

    No counters are left of a pool of which an allocated device is gone.
    """

    def __init__(self, pools: DevicePools, ledger: DeviceLedger) -> None:
        self.ledger = ledger
        self._pools = pools
        self._counters: dict[tuple[PoolKey, int], Counters] = {}  # by pool and generation

    def counters_of(self, part: PooledSlice) -> Counters:
        known = self._counters.get((part.pool, part.generation))
        if known is None:
            known = self._counters[part.pool, part.generation] = dict(self._pools.counters_of(part))
            for name in self.ledger.in_use(part.pool):
                device = self._pools.device(part.pool, name, part.generation)
                if device is None:  # gone from its slice, and with it the counters that it takes
                    known.clear()
                    break
                for counter, amount in (device.consumes or {}).items():
                    if counter in known:
                        known[counter] -= amount
        return known

    def busy(self, candidates: Candidates) -> tuple[bool, ...]:
        """Which of the candidates no other claim can take."""
        is_owned, is_shared = self.ledger.is_owned, self.ledger.is_shared
        return tuple(
            [
                is_owned(device.key) or (not device.is_shareable and is_shared(device.key))
                for device in candidates.devices
            ]
        )


class Usage:
    """``choices``: by claim, the devices taken so far. ``busy``: the candidates that no other claim can take."""

    def __init__(self, plan: Plan, candidates: Candidates, free: Free, busy: Sequence[bool]) -> None:
        self.choices: list[list[Choice]] = [[] for _ in plan.steps]
        self._constraints = plan.constraints
        self._devices = candidates.devices
        self._traits = candidates.traits
        self._free = free
        self._busy = busy
        self._takers: dict[int, list[int]] = {}  # by position of a device that is not shared, the claims
        self._shares: dict[int, int] = {}
        self._consumed: dict[int, dict[str, Amount]] = {}
        self._counters: dict[PoolKey, Counters] = {}
        self._values: list[list[object]] = [[] for _ in plan.constraints]

    def alike(self, position: int) -> object:
        """Equal for devices of which one is as good as another."""
        trait, device = self._traits[position], self._devices[position]
        if trait.consumed is not None or self._busy[position] or position in self._takers:
            return position
        if device.consumes:
            return trait, device.part.pool, frozenset(device.consumes.items())
        return trait

    def has_capacity(self, request: Request, position: int) -> bool:
        """Whether a shareable device has enough left; others are taken whole."""
        needed = self._traits[position].consumed
        if needed is None:
            return True
        device = self._devices[position]
        given, chosen = self._free.ledger.consumed(device.key), self._consumed.get(position, {})
        return all(
            amount + given.get(name, 0) + chosen.get(name, 0) <= device.capacities[name]
            for name, amount in needed.get(request.number, {}).items()
        )

    def is_busy(self, request: Request, position: int) -> bool:
        """Whether another claim has the whole device; administrators get it all the same."""
        return self._busy[position] and not request.is_admin

    def has_counters(self, request: Request, position: int) -> bool:
        """Whether the counters that the device would consume are left."""
        return not self._takes_counters(request, position) or self._has_counters(position)

    def take(self, request: Request, position: int, *, must: bool = False) -> bool:
        """Take the device if it can be had. ``must``: the request has no other device to try.

        Raises:
            SearchError: a selector fails on the device, or a constraint rules it out though it must be taken.
        """
        if self._is_taken(request, position):
            return False
        trait = self._traits[position]
        if trait.errors is not None and request.number in trait.errors:
            raise SearchError(trait.errors[request.number])
        takes_counters = self._takes_counters(request, position)
        if not (
            self.has_capacity(request, position)
            and (not takes_counters or self._has_counters(position))
            and trait.usable >> request.number & 1
        ):
            return False
        if self._meets_constraints(request, trait.values):
            self._add(request, position, takes_counters=takes_counters)
            return True
        if must:
            raise SearchError(
                f"claim {CLAIM.format(request.claim)}, request {request.local_name}: cannot add device "
                f"{self._devices[position].key} because a claim constraint would not be satisfied"
            )
        return False

    def undo(self, claim: int) -> None:
        """Put the device back that the claim took last."""
        choice = self.choices[claim].pop()
        position, device = choice.position, self._devices[choice.position]
        for number in choice.request.constraints:
            self._values[number].pop()
        if choice.takes_counters:
            self._count_counters(device, -1)
        if choice.consumed is None:
            self._takers[position].pop()
            if not self._takers[position]:
                del self._takers[position]
            return
        for name, amount in choice.consumed.items():
            self._consumed[position][name] -= amount
        if not choice.request.is_admin:
            self._shares[position] -= 1

    def _is_taken(self, request: Request, position: int) -> bool:
        # Administrators get devices in use too, but none twice in a claim.
        takers = self._takers.get(position, ())
        return request.claim in takers if request.is_admin else bool(takers) or self._busy[position]

    def _takes_counters(self, request: Request, position: int) -> bool:
        """A shared device takes its counters once; administrators take none."""
        device = self._devices[position]
        if device.consumes is None or request.is_admin:
            return False
        return not device.is_shareable or not (self._free.ledger.is_shared(device.key) or self._shares.get(position))

    def _has_counters(self, position: int) -> bool:
        device = self._devices[position]
        free, used = self._free.counters_of(device.part), self._counters.get(device.part.pool, {})
        return all(
            counter in free and amount + used.get(counter, 0) <= free[counter]
            for counter, amount in (device.consumes or {}).items()
        )

    def _meets_constraints(self, request: Request, values: tuple[object, ...]) -> bool:
        for number in request.constraints:
            value, others = values[number], self._values[number]
            if value is None:
                return False
            if value in others if self._constraints[number].distinct else others and others[0] != value:
                return False
        return True

    def _add(self, request: Request, position: int, *, takes_counters: bool) -> None:
        device, trait = self._devices[position], self._traits[position]
        for number in request.constraints:
            self._values[number].append(trait.values[number])
        if takes_counters:
            self._count_counters(device, 1)
        consumed = None
        if device.is_shareable:
            consumed = (trait.consumed or {})[request.number]
            together = self._consumed.setdefault(position, {})
            for name, amount in consumed.items():
                together[name] = together.get(name, 0) + amount
            if not request.is_admin:
                self._shares[position] = self._shares.get(position, 0) + 1
        else:
            self._takers.setdefault(position, []).append(request.claim)
        self.choices[request.claim].append(Choice(request, position, consumed, takes_counters))

    def _count_counters(self, device: PooledDevice, by: int) -> None:
        used = self._counters.setdefault(device.part.pool, {})
        for counter, amount in (device.consumes or {}).items():
            used[counter] = used.get(counter, 0) + by * amount
