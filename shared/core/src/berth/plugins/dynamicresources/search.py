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
from berth.cluster.devices.pools import PoolState
from berth.plugins.dynamicresources.candidates import Candidates
from berth.plugins.dynamicresources.requests import CLAIM, Plan, Request
from berth.plugins.dynamicresources.usage import Choice, Free, SearchError, Usage

# Devices looked at in the search of one node, 20 to 60 ms of work. The usual search looks at some tens. The same
# number everywhere, so that every scorer, the binder and a replay end a search at the same place.
MOST_STEPS: Final = 10_000
# Points of the first alternative of a request; each later one has one less.
MOST_POINTS: Final = 8

CANNOT_ALLOCATE: Final = "cannot allocate all claims"
INVALID_POOLS: Final = "invalid resource pools were encountered"
TOO_MANY_STEPS: Final = "gave up allocating claims after looking at too many devices"


@dataclass(frozen=True, slots=True)
class Rejected:
    """No solution on this node. The reason may have CLAIM for the claim's name."""

    reason: str


@dataclass(frozen=True, slots=True)
class Solution:
    """The choices by claim, and the number of the alternative chosen by (claim, step)."""

    choices: tuple[tuple[Choice, ...], ...]
    alternatives: dict[tuple[int, int], int]

    def points_of(self, claim: int) -> int:
        return sum(MOST_POINTS - number for (of, _), number in self.alternatives.items() if of == claim)


@dataclass(slots=True)
class _Place:
    """Where the search goes on: device ``number`` of a request, from a position on. No request: any of the step's."""

    claim: int
    step: int = 0
    request: Request | None = None
    number: int = 0
    start: int = 0


class _Frame:
    """A choice that can be undone: a device of a request, or (``request`` is None) one of the step's alternatives."""

    __slots__ = ("claim", "failed", "index", "number", "request", "step", "too_many")

    def __init__(self, place: _Place, request: Request | None, index: int) -> None:
        self.claim = place.claim
        self.step = place.step
        self.request = request
        self.number = place.number
        self.index = index  # in the request's positions, or among the alternatives
        self.failed: set[object] = set()  # devices alike to these fail here
        self.too_many = True  # every alternative so far needed more devices than a claim may have


class Search:
    """One search. ``busy``: which candidates no other claim can take. ``steps``: the devices looked at."""

    def __init__(self, plan: Plan, candidates: Candidates, free: Free, busy: Sequence[bool]) -> None:
        self._plan = plan
        self._candidates = candidates
        self._traits = candidates.traits
        self._busy = busy
        self._usage = Usage(plan, candidates, free, busy)
        self._positions: dict[int, list[int]] = {}
        self._may_fail = any(trait.errors for trait in candidates.traits)
        self._stack: list[_Frame] = []
        self._alternatives: dict[tuple[int, int], int] = {}
        self._too_many = -1  # the claim that would get too many devices, while the search goes back because of it
        self.steps = 0

    def run(self, most_steps: int = MOST_STEPS) -> Solution | Rejected:
        """Search for a solution.

        Raises:
            SearchError: the pod's cycle ends, even if the pod fits other nodes.
        """
        rejected = self._prepare()
        if rejected is not None:
            return rejected
        if not self._has_too_few():
            place: _Place | None = _Place(0)
            while place is not None or self._stack:
                if place is not None and place.claim == len(self._plan.steps):
                    return Solution(tuple(map(tuple, self._usage.choices)), dict(self._alternatives))
                if self.steps > most_steps:
                    return Rejected(TOO_MANY_STEPS)
                place = self._back() if place is None else self._enter(place)
        return Rejected(INVALID_POOLS if self._candidates.has_invalid else CANNOT_ALLOCATE)

    # Before the search

    def _prepare(self) -> Rejected | None:
        # Find each request's positions, and check the claims' numbers and constraints, in kube-scheduler's order.
        for claim, steps in enumerate(self._plan.steps):
            for request in (request for step in steps for request in step.choices):
                if not request.takes_all:
                    self._find_some(request)
                elif (rejected := self._find_all(request)) is not None:
                    return rejected
            least = sum(min(self._count(request) for request in step.choices) for step in steps)
            if least > MOST_RESULTS:
                raise SearchError(
                    f"claim {CLAIM.format(claim)}: number of requested devices {least} exceeds the claim limit of "
                    f"{MOST_RESULTS}"
                )
            if self._plan.constraint_errors[claim]:
                raise SearchError(self._plan.constraint_errors[claim])
        return None

    def _find_some(self, request: Request) -> None:
        bit = 1 << request.number
        self._positions[request.number] = [
            i
            for i, trait in enumerate(self._traits)
            if trait.usable & bit or (trait.errors is not None and request.number in trait.errors)
        ]

    def _find_all(self, request: Request) -> Rejected | None:
        found: list[int] = []
        for i, trait in enumerate(self._traits):
            if trait.errors is not None and request.number in trait.errors:
                raise SearchError(trait.errors[request.number])
            if trait.selectable >> request.number & 1 and self._usage.has_capacity(request, i):
                found.append(i)
        self._positions[request.number] = found
        trouble = self._candidates.trouble
        if trouble is None:
            return None
        state = "invalid" if trouble.state is PoolState.INVALID else "being updated"
        return Rejected(
            f"claim {CLAIM.format(request.claim)}, request {request.local_name}: asks for all devices, but "
            f"resource pool {trouble.text} is currently {state}"
        )

    def _count(self, request: Request) -> int:
        return len(self._positions[request.number]) if request.takes_all else request.count

    def _has_too_few(self) -> bool:
        """Whether some request cannot be met even alone. An error on the way would have to be found first."""
        if self._may_fail or (self._plan.constraints and any(each.takes_all for each in self._plan.requests)):
            return False
        return any(
            all(self._free(request) < max(1, self._count(request)) for request in step.choices)
            for steps in self._plan.steps
            for step in steps
        )

    def _free(self, request: Request) -> int:
        positions = self._positions[request.number]
        return len(positions) if request.is_admin else sum(1 for i in positions if not self._busy[i])

    # The search. Each step returns the next place, or None at a dead end.

    def _enter(self, place: _Place) -> _Place | None:
        self._too_many = -1
        steps = self._plan.steps[place.claim]
        if place.step == len(steps):
            return _Place(place.claim + 1)
        if place.request is None and steps[place.step].is_choice:
            self._stack.append(_Frame(place, None, -1))
            return self._next_alternative(self._stack[-1])
        request = place.request or steps[place.step].choices[0]
        count = self._count(request)
        if not count:
            return None  # all devices, and there are none
        if place.number == count:
            return _Place(place.claim, place.step + 1)
        if len(self._usage.choices[place.claim]) + count - place.number > MOST_RESULTS:
            self._too_many = place.claim
            return None
        return self._next_device(_Frame(place, request, place.start - 1), request)

    def _back(self) -> _Place | None:
        frame = self._stack.pop()
        if frame.claim != self._too_many:
            self._too_many = -1
        if frame.request is None:
            frame.too_many = frame.too_many and self._too_many >= 0
            self._stack.append(frame)
            return self._next_alternative(frame)
        self._usage.undo(frame.claim)
        if self._too_many >= 0 or frame.request.takes_all:
            return None
        return self._next_device(frame, frame.request)

    def _next_alternative(self, frame: _Frame) -> _Place | None:
        choices = self._plan.steps[frame.claim][frame.step].choices
        frame.index += 1
        if frame.index < len(choices):
            self._alternatives[frame.claim, frame.step] = frame.index
            return _Place(frame.claim, frame.step, choices[frame.index])
        del self._alternatives[frame.claim, frame.step]
        self._stack.pop()
        # Another device of an earlier request of the claim would not help.
        self._too_many = frame.claim if frame.too_many else -1
        return None

    def _next_device(self, frame: _Frame, request: Request) -> _Place | None:
        """Take the next device that can be had, and keep the frame."""
        positions = self._positions[request.number]
        if request.takes_all:
            self.steps += 1
            frame.index = frame.number
            taken = self._usage.take(request, positions[frame.number], must=True)
        else:
            taken = self._take_some(frame, request, positions)
        if not taken:
            return None
        self._stack.append(frame)
        return _Place(frame.claim, frame.step, request, frame.number + 1, frame.index + 1)

    def _take_some(self, frame: _Frame, request: Request, positions: list[int]) -> bool:
        # With fewer devices left than are missing, only errors of their selectors can matter.
        last = len(positions) - (1 if self._may_fail else request.count - frame.number)
        for index in range(frame.index + 1, last + 1):
            self.steps += 1
            alike = self._usage.alike(positions[index])
            if alike not in frame.failed:
                frame.failed.add(alike)
                if self._usage.take(request, positions[index]):
                    frame.index = index
                    return True
        return False
