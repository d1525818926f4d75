"""Verdicts and solutions of every node, kept for the plans used last; only changed nodes are searched again."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from berth.api.devices import DeviceClass, ResourceClaim
from berth.cluster.devices.columns import UsedDevices, distinct
from berth.cluster.devices.ledger import DeviceLedger
from berth.cluster.devices.pools import DevicePools, NodePool, PoolKey
from berth.cluster.devices.views import NodeViews
from berth.cluster.nodes import RowIndex
from berth.cluster.snapshot import Snapshot
from berth.framework.status import Code
from berth.plugins.dynamicresources.candidates import NO_CANDIDATES, Candidates, DeviceTraits, candidates_of
from berth.plugins.dynamicresources.requests import Plan, compile_plan
from berth.plugins.dynamicresources.search import MOST_STEPS, TOO_MANY_STEPS, Rejected, Search, Solution
from berth.plugins.dynamicresources.selectors import MOST_EXPRESSIONS, SelectorAnswers
from berth.plugins.dynamicresources.usage import Free, SearchError, Usage

_encode: Final = msgspec.json.Encoder().encode
# Plans whose answers are kept: up to 0.3 KB for each node and plan.
_MOST_PLANS: Final = 32
_MOST_ALIKE: Final = 10_000  # states of alike nodes whose outcome a plan keeps

# Above this many unknown nodes, devices are looked at by columns.
_FEW: Final = 64
# Between two looks at the clock: nodes, a millisecond if their outcome is known, and devices that searches look at.
_AT_ONCE: Final = 256
_STEPS_AT_ONCE: Final = 2000

# Nodes on which a plan's searches may be given up; searches on the others then end early. Without it, claims that keep
# every search to its end would take minutes of a scorer's time at 5,000 nodes.
_MOST_GIVEN_UP: Final = 16
_FEW_STEPS: Final = MOST_STEPS // 10
# Devices looked at in all searches of one cycle, 100 ms of work or more. ``prepare`` usually leaves few.
_MOST_STEPS_IN_A_CYCLE: Final = 5 * MOST_STEPS

NOT_SEARCHED: Final = "gave up allocating claims: searches on other nodes took too long"

_UNKNOWN: Final = 0
_NO_ROWS: Final[RowIndex] = np.zeros(0, dtype=np.intp)
FITS: Final = 1

Outcome = Solution | Rejected | str  # text: an error that ends the cycle


@dataclass(slots=True)
class Budget:
    """What is left of the devices that the searches of a cycle may look at."""

    steps: int = _MOST_STEPS_IN_A_CYCLE

    @property
    def is_left(self) -> bool:
        return self.steps > 0


class NodeAnswers:
    """The outcome of one plan on every node.

    ``codes``: int32[capacity], FITS or an index into ``statuses``, after ``find``. ``points``: int64[capacity, claims].
    """

    def __init__(self, plan: Plan, allocator: Allocator) -> None:
        self.plan = plan
        self.codes: npt.NDArray[np.int32] = np.zeros(0, dtype=np.int32)
        self.statuses: list[tuple[Code, str]] = [(Code.SUCCESS, ""), (Code.SUCCESS, "")]
        self.points: npt.NDArray[np.int64] = np.zeros((0, 0), dtype=np.int64)
        self.snapshot = allocator.snapshot
        self._pools = allocator.pools
        self._ledger = allocator.ledger
        self._views = allocator.views
        self._used = allocator.used
        self._columns = allocator.columns
        self._traits = DeviceTraits(plan, self._pools, self._columns)
        self._takes_all = any(each.takes_all for each in plan.requests)
        self._numbers: dict[tuple[Code, str], int] = {}
        self._candidates: dict[int, Candidates] = {}
        self._solutions: dict[int, Solution] = {}
        self._alike: dict[object, Outcome] = {}
        self._seen_pools: set[PoolKey] = set()  # with candidates
        self._versions = (-1, -1, -1)
        self._steps = 0  # of all searches
        self._given_up = 0
        self._not_searched: RowIndex = _NO_ROWS

    def find(
        self, rows: RowIndex, may_continue: Callable[[], bool] | None = None, budget: Budget | None = None
    ) -> bool:
        """Bring ``codes`` and ``points`` of these rows up to date; returns whether all are.

        Without ``may_continue``, nodes that are left when the budget is spent are rejected until the next call.
        """
        self._forget_changed()
        unknown = rows[self.codes[rows] == _UNKNOWN]
        if not len(unknown):
            return True
        if len(unknown) > _FEW and not self._read(unknown, may_continue or _always):
            return False
        groups = self._alike_rows(unknown) if len(unknown) > _FEW else [[row] for row in unknown.tolist()]
        free = Free(self._pools, self._ledger)
        outcomes: dict[Candidates, Outcome] = {}  # nodes may have the same candidates
        budget = budget or Budget()
        looks_at = 0
        for i, group in enumerate(groups):
            if i % _AT_ONCE == 0 or self._steps >= looks_at:
                looks_at = self._steps + _STEPS_AT_ONCE
                if may_continue is None and not budget.is_left:
                    self._not_searched = np.array([row for rest in groups[i:] for row in rest], dtype=np.intp)
                    self.codes[self._not_searched] = self._number_of(Rejected(NOT_SEARCHED))
                    return False
                if i and may_continue is not None and not may_continue():
                    return False
            before = self._steps
            candidates = self.candidates(group[0])
            outcome = outcomes.get(candidates)
            if outcome is None:
                outcome = outcomes[candidates] = self._outcome(candidates, free)
            self._note(group, outcome)
            budget.steps -= self._steps - before
        return True

    def _read(self, rows: RowIndex, may_continue: Callable[[], bool]) -> bool:
        """Look at all devices, and at the nodes of these rows, while it may continue; returns whether it is done."""
        return (
            all(each.fill(may_continue) for each in self.plan.expressions)
            and self._traits.fill(may_continue)
            and self._views.read(rows, may_continue)
        )

    def _alike_rows(self, rows: RowIndex) -> list[list[int]]:
        """The nodes by their devices: those of one list have the same outcome. In order of the first of each list."""
        kinds = self._traits.kinds
        of_devices = np.where(kinds < 0, -1, 2 * kinds + self._used.column() + 1)
        # The numbers NOT_PLAIN and NO_DEVICE are the last two places.
        table = np.append(of_devices, (-1, 0))[self._views.numbers(rows)]
        is_known = (table >= 0).all(axis=1)
        groups = [[row] for row in rows[~is_known].tolist()]
        known = rows[is_known]
        if len(known):
            _, kind_of = distinct([np.zeros(len(known), dtype=np.int32), *table[is_known].T])
            ends = np.cumsum(np.bincount(kind_of)).tolist()
            by_kind = known[np.argsort(kind_of, kind="stable")].tolist()
            groups += [by_kind[begin:end] for begin, end in pairwise((0, *ends))]
        return sorted(groups)

    def solution(self, row: int) -> tuple[Solution, Candidates] | None:
        """The solution for the node of a row that fits, after ``find``."""
        solution = self._solutions.get(row)
        return None if solution is None else (solution, self.candidates(row))

    def candidates(self, row: int) -> Candidates:
        """The node's candidates, after ``find``."""
        return self._candidates.get(row) or self._find_candidates(row)

    def views(self, row: int) -> tuple[NodePool, ...]:
        """The pools that the node sees."""
        return self._views.of(row)

    def usage(self, candidates: Candidates) -> Usage:
        """What other claims leave of the candidates."""
        free = Free(self._pools, self._ledger)
        return Usage(self.plan, candidates, free, free.busy(candidates))

    def _forget_changed(self) -> None:
        if len(self._not_searched):
            self.codes[self._not_searched] = _UNKNOWN
            self._not_searched = _NO_ROWS
        snapshot = self.snapshot
        versions = snapshot.version, self._pools.changes.version, self._ledger.changes.version
        if versions == self._versions and len(self.codes) == snapshot.columns.capacity:
            return
        known, self._versions = self._versions, versions
        changed = snapshot.changed_since(known[0]) if known[0] >= 0 else None
        slices = self._pools.changes.since(known[1]) if known[1] >= 0 else None
        devices = self._ledger.changes.since(known[2]) if known[2] >= 0 else None
        is_full = len(self.codes) != snapshot.columns.capacity or len(self.statuses) > _MOST_ALIKE
        if changed is None or slices is None or devices is None or is_full:
            self._clear()
            return
        rows = set(changed.nodes)
        for nodes in slices:
            if nodes is None:
                self._clear()
                return
            rows |= self._rows_of(nodes)
        for row in rows:
            self._candidates.pop(row, None)
            self.codes[row] = _UNKNOWN
        self._search_again(set(devices))

    def _search_again(self, pools: set[PoolKey]) -> None:
        # Devices of these pools were given or became free: the candidates stay the same.
        for pool in pools:
            nodes = self._pools.nodes_of(pool)
            if nodes is not None:
                for row in self._rows_of(nodes):
                    self.codes[row] = _UNKNOWN
            elif pool in self._seen_pools:
                self.codes[:] = _UNKNOWN
                return

    def _rows_of(self, nodes: frozenset[str]) -> set[int]:
        return {row for name in nodes if (row := self.snapshot.rows.of(name)) is not None}

    def _clear(self) -> None:
        capacity = self.snapshot.columns.capacity
        self.codes = np.zeros(capacity, dtype=np.int32)
        self.points = np.zeros((capacity, len(self.plan.steps)), dtype=np.int64)
        del self.statuses[2:]
        self._numbers.clear()
        self._candidates.clear()
        self._solutions.clear()
        self._alike.clear()
        self._seen_pools.clear()
        self._traits = DeviceTraits(self.plan, self._pools, self._columns)

    def _find_candidates(self, row: int) -> Candidates:
        node = self.snapshot.node_at(row)
        candidates = NO_CANDIDATES if node is None else candidates_of(node, self._views.of(row), self._traits)
        self._candidates[row] = candidates
        self._seen_pools.update({device.part.pool for device in candidates.devices})
        return candidates

    def _note(self, rows: list[int], outcome: Outcome) -> None:
        if isinstance(outcome, Solution):
            self._solutions.update(dict.fromkeys(rows, outcome))
            self.codes[rows] = FITS
            if outcome.alternatives:
                self.points[rows] = [outcome.points_of(claim) for claim in range(len(self.plan.steps))]
            return
        for row in rows:
            self._solutions.pop(row, None)
        self.codes[rows] = self._number_of(outcome)

    def _number_of(self, outcome: Rejected | str) -> int:
        if isinstance(outcome, Rejected):
            status = Code.UNSCHEDULABLE_AND_UNRESOLVABLE, outcome.reason
        else:
            status = Code.ERROR, outcome
        number = self._numbers.get(status)
        if number is None:
            number = self._numbers[status] = len(self.statuses)
            self.statuses.append(status)
        return number

    def _outcome(self, candidates: Candidates, free: Free) -> Outcome:
        busy = free.busy(candidates)
        if not candidates.is_simple:
            return self._run(Search(self.plan, candidates, free, busy))
        trouble = candidates.trouble if self._takes_all else None
        # A pool in trouble is named in the rejection.
        key = (candidates.traits, busy, trouble and (trouble.key, trouble.state), candidates.has_invalid)
        known = self._alike.get(key)
        if known is None:
            if len(self._alike) > _MOST_ALIKE:
                self._alike.clear()
            known = self._alike[key] = self._run(Search(self.plan, candidates, free, busy))
        return known

    def _run(self, search: Search) -> Outcome:
        try:
            outcome = search.run(MOST_STEPS if self._given_up < _MOST_GIVEN_UP else _FEW_STEPS)
        except SearchError as exc:
            return str(exc)
        finally:
            self._steps += search.steps
        if isinstance(outcome, Rejected) and outcome.reason == TOO_MANY_STEPS:
            self._given_up += 1
        return outcome


def _always() -> bool:
    return True


class Allocator:
    """The plans used last on one Snapshot, with its pools and ledger."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.pools = DevicePools.of(snapshot)
        self.ledger = DeviceLedger.of(snapshot)
        self.snapshot = snapshot
        self._classes = snapshot.objects(DeviceClass)
        self._version = -1
        self._selectors = SelectorAnswers(self.pools)
        self.columns = self._selectors.columns
        self.views = NodeViews(snapshot, self.pools)
        self.used = UsedDevices(self.pools, self.ledger)
        self._plans: OrderedDict[tuple[bytes, ...], NodeAnswers] = OrderedDict()

    @classmethod
    def of(cls, snapshot: Snapshot) -> Allocator:
        """The allocator of a Snapshot, which lives as long as it does."""
        return snapshot.derived("device allocator", lambda: cls(snapshot))

    def answers(self, claims: Sequence[ResourceClaim]) -> NodeAnswers:
        """The answers for claims with these specs.

        Raises:
            PlanError: a claim asks for something that this release does not know.
        """
        if self._version != self._classes.version:
            self._plans.clear()
            self._version = self._classes.version
        key = tuple(_encode(claim.spec) for claim in claims)
        known = self._plans.get(key)
        if known is None:
            plan = compile_plan(claims, self._classes.named, self._selectors)
            known = self._plans[key] = NodeAnswers(plan, self)
            while len(self._plans) > 1 and (
                len(self._plans) > _MOST_PLANS or self._selectors_kept() > MOST_EXPRESSIONS
            ):
                self._plans.popitem(last=False)
        else:
            self._plans.move_to_end(key)
        return known

    def _selectors_kept(self) -> int:
        return sum(len(each.plan.expressions) for each in self._plans.values())
