"""The search for devices on one node: the first solution of kube-scheduler's depth-first search, in bounded work.

Claims, requests and devices are tried in order; a request takes each of its devices after the one before. On a dead end
the last choice is undone. Two things are left out that cannot change the first solution: devices alike to one that just
failed at the same place, and searches for which there are too few devices from the start.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from berth.api.devices import MOST_RESULTS
from berth.cluster.devices.ledger import DeviceLedger
from berth.cluster.devices.pools import Counters, DevicePools, PooledDevice, PoolKey, PoolState
from berth.plugins.dynamicresources.candidates import Candidates
from berth.plugins.dynamicresources.capacity import Amount
from berth.plugins.dynamicresources.requests import CLAIM, Plan, Request

# Devices looked at in the search of one node, about 20 ms of work. The usual search looks at some tens. The same number
# everywhere, so that every scorer, the binder and a replay end a search at the same place.
MOST_STEPS: Final = 20_000
# Points of the first alternative of a request; each later one has one less.
MOST_POINTS: Final = 8

CANNOT_ALLOCATE: Final = "cannot allocate all claims"
INVALID_POOLS: Final = "invalid resource pools were encountered"
TOO_MANY_STEPS: Final = f"gave up allocating claims after looking at {MOST_STEPS} devices"


class SearchError(Exception):
    """Ends the cycle of the pod; the text has CLAIM for the claim's name."""


@dataclass(frozen=True, slots=True)
class Rejected:
    """No solution on this node. The reason may have CLAIM for the claim's name."""

    reason: str


@dataclass(frozen=True, slots=True)
class Choice:
    """A device for a request: its position among the node's candidates, and the capacity if it is shared."""

    request: Request
    position: int
    consumed: dict[str, Amount] | None = None


@dataclass(frozen=True, slots=True)
class Solution:
    """The choices by claim, and the alternative chosen by (claim, step)."""

    choices: tuple[tuple[Choice, ...], ...]
    alternatives: dict[tuple[int, int], int]

    def points_of(self, claim: int) -> int:
        return sum(MOST_POINTS - number for (of, _), number in self.alternatives.items() if of == claim)


class FreeCounters:
    """What is left of the shared counters of pools, computed once while the ledger does not change."""

    def __init__(self, pools: DevicePools, ledger: DeviceLedger) -> None:
        self._pools = pools
        self._ledger = ledger
        self._known: dict[PoolKey, Counters] = {}

    def of(self, pool: PoolKey) -> Counters:
        known = self._known.get(pool)
        if known is None:
            known = self._known[pool] = dict(self._pools.counters_of(pool))
            for name in self._ledger.in_use(pool):
                device = self._pools.device(pool, name)
                for counter, amount in ((device.consumes if device is not None else None) or {}).items():
                    if counter in known:
                        known[counter] -= amount
        return known


class _Frame:
    """A place in the search: a device of a request, or (``request`` is None) the choice among alternatives."""

    __slots__ = ("chosen", "claim", "failed", "index", "number", "request", "step", "too_many")

    def __init__(self, claim: int, step: int, request: Request | None, number: int, index: int) -> None:
        self.claim = claim
        self.step = step
        self.request = request
        self.number = number  # of the device within the request
        self.index = index  # in the request's positions; among alternatives, the one in use
        self.chosen = -1
        self.failed: set[object] = set()  # devices alike to these fail here
        self.too_many = True  # every alternative so far needed more devices than a claim may have


class Search:
    """One search. ``busy``: which candidates no other claim can take. ``steps``: the devices looked at."""

    def __init__(
        self,
        plan: Plan,
        candidates: Candidates,
        busy: Sequence[bool],
        ledger: DeviceLedger,
        free: FreeCounters,
        most_steps: int = MOST_STEPS,
    ) -> None:
        self._plan = plan
        self._devices = candidates.devices
        self._traits = candidates.traits
        self._candidates = candidates
        self._ledger = ledger
        self._free = free
        self._most_steps = most_steps
        self.steps = 0
        self._busy = busy
        self._positions: dict[int, list[int]] = {}
        self._results: list[list[Choice]] = [[] for _ in plan.steps]
        self._takers: dict[int, list[int]] = {}  # by position of a device that is not shared, the claims
        self._shares: dict[int, int] = {}
        self._consumed: dict[int, dict[str, Amount]] = {}
        self._used_counters: dict[PoolKey, Counters] = {}
        self._values: list[list[object]] = [[] for _ in plan.constraints]
        self._alternatives: dict[tuple[int, int], int] = {}

    def run(self) -> Solution | Rejected:
        """Search for a solution.

        Raises:
            SearchError: the pod's cycle ends, also if it fits other nodes.
        """
        rejected = self._prepare()
        if rejected is not None:
            return rejected
        if self._has_too_few():
            return self._none()
        found = self._search()
        if found is None:
            return Rejected(TOO_MANY_STEPS)
        if not found:
            return self._none()
        return Solution(tuple(tuple(each) for each in self._results), dict(self._alternatives))

    def _none(self) -> Rejected:
        return Rejected(INVALID_POOLS if self._candidates.has_invalid else CANNOT_ALLOCATE)

    # Before the search

    def _prepare(self) -> Rejected | None:
        # Find each request's positions, and check the claims' numbers and constraints, in kube-scheduler's order.
        for claim, steps in enumerate(self._plan.steps):
            least = 0
            for step in steps:
                for request in step.choices:
                    if request.takes_all:
                        rejected = self._find_all(request)
                        if rejected is not None:
                            return rejected
                    else:
                        bit = 1 << request.number
                        self._positions[request.number] = [
                            i
                            for i, trait in enumerate(self._traits)
                            if trait.usable & bit or (trait.errors is not None and request.number in trait.errors)
                        ]
                least += min((self._count(request) for request in step.choices), default=0)
            if least > MOST_RESULTS:
                raise SearchError(
                    f"claim {CLAIM.format(claim)}: number of requested devices {least} exceeds the claim limit of "
                    f"{MOST_RESULTS}"
                )
            if self._plan.constraint_errors[claim]:
                raise SearchError(self._plan.constraint_errors[claim])
        return None

    def _find_all(self, request: Request) -> Rejected | None:
        trouble = self._candidates.trouble
        found: list[int] = []
        for i, trait in enumerate(self._traits):
            if trait.errors is not None and request.number in trait.errors:
                raise SearchError(trait.errors[request.number])
            if trait.selectable >> request.number & 1 and self._has_capacity(request, i):
                found.append(i)
        if trouble is not None:
            state = "invalid" if trouble.state is PoolState.INVALID else "being updated"
            return Rejected(
                f"claim {CLAIM.format(request.claim)}, request {request.local_name}: asks for all devices, but "
                f"resource pool {trouble.text} is currently {state}"
            )
        self._positions[request.number] = found
        return None

    def _count(self, request: Request) -> int:
        return len(self._positions[request.number]) if request.takes_all else request.count

    def _has_too_few(self) -> bool:
        """Whether some request cannot be met even alone. An error on the way would have to be found first."""
        if any(trait.errors for trait in self._traits):
            return False
        if self._plan.constraints and any(each.takes_all for each in self._plan.requests):
            return False
        return any(
            all(self._free_positions(request) < max(1, self._count(request)) for request in step.choices)
            for steps in self._plan.steps
            for step in steps
        )

    def _free_positions(self, request: Request) -> int:
        positions = self._positions[request.number]
        return len(positions) if request.is_admin else sum(1 for i in positions if not self._busy[i])

    # The search

    def _search(self) -> bool | None:
        """Whether there is a solution; None if the budget is used up."""
        stack: list[_Frame] = []
        claim = step = number = start = 0
        request: Request | None = None
        going = True  # into the next place; otherwise back from a dead end
        too_many = -1  # the claim that would get too many devices, while going back for that
        while True:
            if self.steps > self._most_steps:
                return None
            if going:
                if claim == len(self._plan.steps):
                    return True
                if step == len(self._plan.steps[claim]):
                    claim, step, request, number, start = claim + 1, 0, None, 0, 0
                    continue
                choices = self._plan.steps[claim][step]
                if request is None and choices.is_choice:
                    stack.append(_Frame(claim, step, None, 0, -1))
                    request = self._next_alternative(stack[-1])
                if request is None:
                    request = choices.choices[0]
                count = self._count(request)
                if request.takes_all and not count:
                    going, too_many = False, -1
                    continue
                if number >= count:
                    step, request, number, start = step + 1, None, 0, 0
                    continue
                if len(self._results[claim]) + count - number > MOST_RESULTS:
                    going, too_many = False, claim
                    continue
                frame = _Frame(claim, step, request, number, start - 1)
                if self._next_device(frame):
                    stack.append(frame)
                    number, start = number + 1, frame.index + 1
                else:
                    going, too_many = False, -1
                continue
            if not stack:
                return False
            frame = stack[-1]
            if too_many >= 0 and frame.claim != too_many:
                too_many = -1
            if frame.request is None:
                frame.too_many = frame.too_many and too_many >= 0
                request = self._next_alternative(frame)
                if request is None:
                    stack.pop()
                    too_many = frame.claim if frame.too_many else -1
                    continue
                claim, step, number, start, going = frame.claim, frame.step, 0, 0, True
                continue
            self._undo(frame)
            if too_many >= 0 or frame.request.takes_all or not self._next_device(frame):
                stack.pop()
                continue
            claim, step, request = frame.claim, frame.step, frame.request
            number, start, going = frame.number + 1, frame.index + 1, True

    def _next_alternative(self, frame: _Frame) -> Request | None:
        choices = self._plan.steps[frame.claim][frame.step].choices
        frame.index += 1
        if frame.index == len(choices):
            self._alternatives.pop((frame.claim, frame.step), None)
            return None
        self._alternatives[frame.claim, frame.step] = frame.index
        return choices[frame.index]

    def _next_device(self, frame: _Frame) -> bool:
        """Choose the next device that fits; False if there is none."""
        request = frame.request
        assert request is not None
        positions = self._positions[request.number]
        if request.takes_all:
            frame.index = frame.number
            frame.chosen = positions[frame.number]
            return self._choose(request, frame.chosen, must=True)
        missing = request.count - frame.number
        failed = frame.failed
        index = frame.index + 1
        while len(positions) - index >= missing or self._may_fail(positions, index):
            if index >= len(positions):
                break
            self.steps += 1
            if self.steps > self._most_steps:
                return True  # `_search` sees it
            position = positions[index]
            alike = self._alike(position)
            if alike not in failed:
                failed.add(alike)
                if self._choose(request, position, must=False):
                    frame.index, frame.chosen = index, position
                    return True
            index += 1
        return False

    def _may_fail(self, positions: list[int], index: int) -> bool:
        return any(self._traits[position].errors for position in positions[index:])

    def _alike(self, position: int) -> object:
        """Equal for devices of which one is as good as another, as long as both are free."""
        trait, device = self._traits[position], self._devices[position]
        if trait.consumed is not None or self._busy[position] or position in self._takers:
            return position
        if device.consumes:
            return trait, device.part.pool, frozenset(device.consumes.items())
        return trait

    def _choose(self, request: Request, position: int, *, must: bool) -> bool:
        """Take the device if it can be had."""
        device, trait = self._devices[position], self._traits[position]
        takers = self._takers.get(position, ())
        if request.is_admin:
            if request.claim in takers:
                return False
        elif takers or self._busy[position]:
            return False
        if trait.errors is not None and request.number in trait.errors:
            raise SearchError(trait.errors[request.number])
        if not self._has_capacity(request, position):
            return False
        counts = device.consumes is not None and not request.is_admin
        first_share = device.is_shareable and not (self._ledger.is_shared(device.key) or position in self._shares)
        counts = counts and (not device.is_shareable or first_share)
        if counts and not self._has_counters(device):
            return False
        if not trait.usable >> request.number & 1:
            return False
        if not self._meets_constraints(request, trait.values):
            if must:
                raise SearchError(
                    f"claim {CLAIM.format(request.claim)}, request {request.local_name}: cannot add device "
                    f"{device.key} because a claim constraint would not be satisfied"
                )
            return False
        for number in request.constraints:
            self._values[number].append(trait.values[number])
        consumed = None
        if device.is_shareable:
            consumed = (trait.consumed or {})[request.number]
            if not request.is_admin:
                self._shares[position] = self._shares.get(position, 0) + 1
            together = self._consumed.setdefault(position, {})
            for name, amount in consumed.items():
                together[name] = together.get(name, 0) + amount
        else:
            self._takers[position] = [*takers, request.claim]
        if counts:
            self._count_counters(device, 1)
        self._results[request.claim].append(Choice(request, position, consumed))
        return True

    def _undo(self, frame: _Frame) -> None:
        request, position = frame.request, frame.chosen
        if position < 0 or request is None:
            return
        frame.chosen = -1
        choice = self._results[request.claim].pop()
        device = self._devices[position]
        for number in request.constraints:
            self._values[number].pop()
        if device.is_shareable:
            for name, amount in (choice.consumed or {}).items():
                self._consumed[position][name] -= amount
            if request.is_admin:
                return
            left = self._shares[position] - 1
            if left:
                self._shares[position] = left
                return
            del self._shares[position]
            if device.consumes is not None and not self._ledger.is_shared(device.key):
                self._count_counters(device, -1)
            return
        takers = self._takers[position]
        takers.pop()
        if not takers:
            del self._takers[position]
        if device.consumes is not None and not request.is_admin:
            self._count_counters(device, -1)

    def _has_capacity(self, request: Request, position: int) -> bool:
        needed = self._traits[position].consumed
        if needed is None:
            return True
        device = self._devices[position]
        taken, chosen = self._ledger.consumed(device.key), self._consumed.get(position, {})
        return all(
            amount + taken.get(name, 0) + chosen.get(name, 0) <= device.capacities[name]
            for name, amount in needed.get(request.number, {}).items()
        )

    def _has_counters(self, device: PooledDevice) -> bool:
        free, used = self._free.of(device.part.pool), self._used_counters.get(device.part.pool, {})
        return all(
            counter in free and amount + used.get(counter, 0) <= free[counter]
            for counter, amount in (device.consumes or {}).items()
        )

    def _count_counters(self, device: PooledDevice, by: int) -> None:
        used = self._used_counters.setdefault(device.part.pool, {})
        for counter, amount in (device.consumes or {}).items():
            used[counter] = used.get(counter, 0) + by * amount

    def _meets_constraints(self, request: Request, values: tuple[object, ...]) -> bool:
        for number in request.constraints:
            value, others = values[number], self._values[number]
            if value is None:
                return False
            if self._plan.constraints[number].distinct:
                if value in others:
                    return False
            elif others and others[0] != value:
                return False
        return True


def busy_devices(candidates: Candidates, ledger: DeviceLedger) -> tuple[bool, ...]:
    """Which of the candidates no other claim can take."""
    return tuple(
        [
            ledger.is_owned(device.key) or (not device.is_shareable and ledger.is_shared(device.key))
            for device in candidates.devices
        ]
    )
