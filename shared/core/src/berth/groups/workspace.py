"""A Snapshot on which the members of a group are placed one after the other, and from which they are taken again.

Alike members of which each placed one changes its own node alone cost one cycle together: filters and scores are
computed for one, two, three more pods on a node, and the members go where each would have gone by itself. All others
are ranked one by one, by the ordinary cycle.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

import numpy as np

from berth.api.devices import Allocations
from berth.api.pod import Pod
from berth.cluster.columns import hash_of
from berth.cluster.devices.ledger import DeviceLedger
from berth.cluster.nodes import Amount, AnotherPod, Mask, Nodes, NodesWithAnother, RowIndex
from berth.cluster.pods import PlacedPod
from berth.cluster.snapshot import Snapshot
from berth.errors import BerthError
from berth.framework.cycle import RankOptions, rank, unreadable
from berth.framework.equivalencecache import ClassResults, EquivalenceCache
from berth.framework.extending import Extension
from berth.framework.filtering import FeasibleNodes, PreFiltered, pre_filter
from berth.framework.interface import NormalizePlugin, Scores, VectorFilterPlugin
from berth.framework.plugincalls import (
    PluginFailure,
    Timing,
    call,
    check_range,
    no_clock,
    run_filter_on_all,
    run_score_on_all,
)
from berth.framework.profile import Profile, WeightedScore
from berth.framework.scoring import best_first, order_keys, score, seeded_hashes
from berth.messages.earmarks import Earmark
from berth.messages.subjects import Attempt

T = TypeVar("T")

# One step: a cycle for one member or for several that are alike. The planner looks at the clock between steps.
Steps = Generator[None, None, None]
CountedSteps = Generator[None, None, int]


# Alike members that are placed in one step: 15 ms of a scorer's 30.
AT_ONCE: Final = 250
# What is left over on nodes is compared in whole numbers.
_LEFT_SCALE: Final = 2**30


class MemberError(BerthError):
    """A member cannot be ranked: a plugin failed for it, or it exceeds a limit. The text begins with its name."""


@dataclass(frozen=True, slots=True)
class PlacedMember:
    pod: Pod
    node: str
    devices: Allocations


@dataclass(slots=True)
class Workspace:
    """Members are placed as if none of them were there before. At the end all are where they were.

    ``snapshot`` is somebody else's until ``detach``, after which they may change it.
    """

    snapshot: Snapshot
    profile: Profile
    attempt: Attempt  # of the group: orders equally good nodes
    placed: list[PlacedMember] = field(default_factory=list)
    is_detached: bool = False
    _before: list[tuple[PlacedPod, str]] = field(default_factory=list)  # members that were placed at the start
    _earmarks: Mapping[str, Earmark] = field(default_factory=dict)  # that do not count for the group

    def begin(self, members: Iterable[Pod]) -> None:
        """Take off the members that are placed: bound ones of which the message does not know."""
        for pod in members:
            placed, node = self.snapshot.placed(pod.uid), self.snapshot.node_of(pod.uid)
            if placed is not None and node is not None:
                self._before.append((placed, node))
                self.snapshot.remove_pod(pod.uid)

    def lift_earmarks(self) -> None:
        """The rest of a begun group is no newcomer."""
        self._earmarks, self.snapshot.earmarks = self.snapshot.earmarks, {}

    def end(self) -> None:
        """Leave the Snapshot as it was."""
        self.undo()
        if not self.is_detached:
            self._restore(self.snapshot)

    def place(self, pod: Pod, node: str, devices: Allocations | None = None) -> None:
        self.snapshot.place(pod, node)
        for claim, allocation in (devices or {}).items():
            DeviceLedger.of(self.snapshot).assume(claim, allocation, pod.uid)
        self.placed.append(PlacedMember(pod, node, devices or {}))

    def undo(self, placed: int = 0) -> None:
        """Take members off, the last first, until so many are left."""
        while len(self.placed) > placed:
            self._take_off(self.placed.pop())

    def detach(self) -> None:
        """Go on with a copy, and leave the Snapshot as it was."""
        if self.is_detached:
            return
        original, self.snapshot, self.is_detached = self.snapshot, self.snapshot.copied(), True
        for each in reversed(self.placed):
            original.remove_pod(each.pod.uid)
        self._restore(original)

    def _restore(self, snapshot: Snapshot) -> None:
        for placed, node in self._before:
            snapshot.place(placed.pod, node, bound_at=placed.bound_at)
        self._before.clear()
        if self._earmarks:
            snapshot.earmarks = self._earmarks

    def _take_off(self, placement: PlacedMember) -> None:
        self.snapshot.remove_pod(placement.pod.uid)
        for claim in placement.devices:
            DeviceLedger.of(self.snapshot).forget(claim, placement.pod.uid)

    def unplaced(self, pod: Pod) -> Pod:
        """One more pod like this one: a placed pod would not count against itself."""
        return AnotherPod(pod, self.snapshot).pod

    def cycle_of(self, pod: Pod) -> ClassCycle:
        """PreFilter of a cycle.

        Raises:
            MemberError: the pod cannot be ranked.
        """
        pod_class = self.snapshot.class_of(pod)
        reason = pod_class.refusal(pod) or (
            unreadable(pod_class.requests.problems) if pod_class.requests.problems else ""
        )
        if reason:
            raise MemberError(f"{pod.key}: {reason}")
        return self.guarded(pod, lambda: ClassCycle.of(pod, self.snapshot, self.profile))

    def guarded(self, pod: Pod, work: Callable[[], T]) -> T:
        """Do this work of plugins for the pod.

        Raises:
            MemberError: a plugin failed.
        """
        try:
            return work()
        except PluginFailure as failure:
            raise MemberError(f"{pod.key}: {failure}") from failure

    def place_alike(self, pods: Sequence[Pod], allowed: Mask, extension: Extension | None = None) -> CountedSteps:
        """Place members that are alike on allowed rows, the first first; returns how many have a place.

        ``extension``: the extenders' answers about one of them.

        Raises:
            MemberError: one of them cannot be ranked.
        """
        done = 0
        while extension is None and len(pods) - done > 1:
            some = pods[done : done + AT_ONCE]
            nodes = self._together(some, allowed)
            if nodes is None:
                break
            for pod, node in zip(some, nodes, strict=False):
                self.place(pod, node)
            done += len(nodes)
            yield
            if len(nodes) < len(some):
                return done
        options = RankOptions(best=1, explained=0, may_preempt=False, only=allowed, extension=extension)
        for count, pod in enumerate(pods[done:], done):
            ranking = rank(pod, self.snapshot, self.profile, attempt=self.attempt, options=options)
            if ranking.error:
                raise MemberError(f"{pod.key}: {ranking.error}")
            if not ranking.candidates:
                yield
                return count
            self.place(pod, ranking.candidates[0].node, ranking.devices)
            yield
        return len(pods)

    def place_tightly(
        self, pods: Sequence[Pod], allowed: Mask, scarcity: Mapping[str, float], extension: Extension | None = None
    ) -> CountedSteps:
        """Place them as ``place_alike`` does, each on the node with the least left over, whatever its scores.

        ``scarcity``: by resource, how much a unit of it counts in what is left over.

        Raises:
            MemberError: one of them cannot be ranked.
        """
        if extension is not None:
            allowed = allowed & extension.mask(self.snapshot)
        done = 0
        while done < len(pods):
            placed = yield from self._fill(pods[done : done + AT_ONCE], allowed, scarcity, extension)
            if not placed:
                break
            done += placed
        return done

    def _fill(
        self, pods: Sequence[Pod], allowed: Mask, scarcity: Mapping[str, float], extension: Extension | None
    ) -> CountedSteps:
        """Place the first of them, and if their sums are all that counts the others too."""
        cycle = self.cycle_of(pods[0])
        rows = self.guarded(pods[0], lambda: cycle.tightest(len(pods), allowed, scarcity, self.attempt))
        if not cycle.is_countable:
            only = np.zeros(self.snapshot.size, dtype=np.bool_)
            only[rows] = True
            return (yield from self.place_alike(pods[:1], only, extension))
        for pod, row in zip(pods, rows, strict=False):
            self.place(pod, self.snapshot.rows.names[row])
        yield
        return len(rows)

    def _together(self, pods: Sequence[Pod], allowed: Mask) -> list[str] | None:
        """A node for each of the first pods that fit; None if they must be ranked one by one."""
        cycle = self.cycle_of(pods[0])
        if not cycle.is_countable:
            return None
        rows = self.guarded(pods[0], lambda: cycle.rows_for(len(pods), allowed, self.attempt))
        return None if rows is None else [self.snapshot.rows.names[row] for row in rows]


class ClassCycle:
    """A cycle for all alike pods at once, after PreFilter. Valid until the Snapshot changes."""

    def __init__(
        self, pod: Pod, snapshot: Snapshot, profile: Profile, results: ClassResults, found: PreFiltered
    ) -> None:
        self._pod = pod
        self._snapshot = snapshot
        self._profile = profile
        self._results = results
        self.found = found
        self._filters = [plugin for plugin in profile.filters if plugin.name not in found.skipped]
        self._sums = [plugin for plugin in self._filters if isinstance(plugin, VectorFilterPlugin) and plugin.sums_only]
        self._another = AnotherPod(pod, snapshot)

    @classmethod
    def of(cls, pod: Pod, snapshot: Snapshot, profile: Profile) -> ClassCycle:
        """Run PreFilter.

        Raises:
            PluginFailure: a plugin failed.
        """
        results = EquivalenceCache.of(snapshot, profile).results_of(pod)
        found = pre_filter(pod, snapshot, profile, results.new_state(), results.pre_filtered)
        return cls(pod, snapshot, profile, results, found)

    @property
    def is_countable(self) -> bool:
        """Whether filters answer for a node with some more of these pods by its sums, whatever is on other nodes."""
        # Columns round the room in large amounts; nominated pods are added to nodes one by one.
        if self._snapshot.columns.large or self._snapshot.nominated_nodes:
            return False
        return all(each.is_row_local and (not each.reads_pods or each in self._sums) for each in self._filters)

    def feasible(self) -> FeasibleNodes:
        """The nodes that pass all filters now; after a rejection in PreFilter none is in its mask.

        Raises:
            PluginFailure: a plugin failed.
        """
        cached = self._results.refresh_filters()
        feasible = FeasibleNodes(self._pod, self._snapshot, self._profile, self.found, cached)
        if self.found.rejection is None:
            feasible.find()
        else:
            feasible.mask = np.zeros(self._snapshot.size, dtype=np.bool_)
        return feasible

    def static(self) -> Mask:
        """bool[rows]: the nodes that pass every filter that no pod placed anywhere can change.

        Raises:
            PluginFailure: a plugin failed.
        """
        mask = self._snapshot.columns.exists[: self._snapshot.size].copy()
        columns = self._results.refresh_filters().columns
        for plugin in self._filters:
            if plugin.is_row_local and not plugin.reads_pods and plugin.name in columns:
                mask &= columns[plugin.name].codes[: len(mask)] == 0
        return mask

    def room(self, among: Mask, most: int) -> Amount:
        """float64[rows]: how many of the pods the sums of each node leave room for, counted up to ``most``.

        Raises:
            PluginFailure: a plugin failed.
        """
        rows = np.flatnonzero(among)
        low, high = np.zeros(len(rows)), np.full(len(rows), float(most))
        while (undecided := low < high).any():
            middle = np.ceil((low + high) / 2)
            fits = self._fits(rows, middle - 1)
            low = np.where(undecided & fits, middle, low)
            high = np.where(undecided & ~fits, middle - 1, high)
        room = np.zeros(len(among))
        room[rows] = low
        return room

    def loose_room(self, among: Mask) -> Amount:
        """float64[rows]: the same by requests as scores count them, without a limit."""
        room = self._another.room_on_each(Nodes(self._snapshot))
        return np.where(among, np.maximum(room, 0), 0)

    def counted_amounts(self) -> dict[str, int]:
        """By resource, what must be free for each of the pods.

        Raises:
            PluginFailure: a plugin failed.
        """
        amounts: dict[str, int] = {}
        for plugin in self._sums:
            amounts.update(call(plugin, "Filter", plugin.counted_amounts, dict, self._results.state))
        return amounts

    def rows_for(self, count: int, allowed: Mask, attempt: Attempt) -> list[int] | None:
        """A row for each of so many pods, as far as they fit; None if scores need the pods one by one.

        Raises:
            PluginFailure: a plugin failed.
        """
        rows = np.flatnonzero(self.feasible().mask & allowed)
        if not len(rows):
            return []
        nodes = Nodes(self._snapshot, rows)
        scored = score(self._pod, nodes, self._profile, self.found, self._results, timing=Timing(no_clock))
        moving = [entry for entry in self._profile.scores_that_read_pods if scored.has(entry.plugin.name)]
        if any(not each.plugin.is_row_local or isinstance(each.plugin, NormalizePlugin) for each in moving):
            return None
        best = best_first(
            scored.totals,
            nodes,
            attempt,
            min(count, len(rows)),
            fewer_pods_first=self._profile.fewer_pods_first,
            keys=scored.keys,
        )
        points = scored.by_plugin(nodes, best)
        constant = scored.totals[best]
        for entry in moving:
            constant = constant - points[entry.plugin.name]
        return self._spread(rows[best], constant, moving, count, attempt)

    def tightest(self, count: int, allowed: Mask, scarcity: Mapping[str, float], attempt: Attempt) -> list[int]:
        """The allowed rows with the least left over, each as often as it takes one of ``count`` pods.

        If the pods do not count by the sums of each row, it is one row for the first pod.

        Raises:
            PluginFailure: a plugin failed.
        """
        rows = np.flatnonzero(self.feasible().mask & allowed)
        if not len(rows):
            return []
        nodes = Nodes(self._snapshot, rows)
        left = np.zeros(len(rows))
        for resource, weight in scarcity.items():
            left += (nodes.allocatable(resource) - nodes.requested(resource)) * weight
        order = best_first(-np.rint(left * _LEFT_SCALE).astype(np.int64), nodes, attempt, count, fewer_pods_first=False)
        if self.is_countable:
            among = np.zeros(self._snapshot.size, dtype=np.bool_)
            among[rows[order]] = True
            room = self.room(among, count)[rows[order]]
            chosen = np.repeat(rows[order], room.astype(np.intp))[:count]
        else:
            chosen = rows[order[:1]]
        found: list[int] = chosen.tolist()
        return found

    def _spread(
        self, rows: RowIndex, constant: Scores, moving: Sequence[WeightedScore], count: int, attempt: Attempt
    ) -> list[int]:
        """Give each pod the node that is best with those before it. ``rows`` are the best ``count`` for the first.

        No other row can be chosen: of rows without one of the pods always the best is taken.
        """

        def keys_of(indices: RowIndex, counts: Amount) -> tuple[list[int], list[bool]]:
            nodes = NodesWithAnother(self._snapshot, rows[indices], self._another, counts)
            totals = constant[indices]
            for entry in moving:
                points = run_score_on_all(entry.plugin, self._results.state, self._pod, nodes)
                check_range(entry.plugin, points)
                totals = totals + points * entry.weight
            keys = order_keys(totals, nodes, fewer_pods_first=self._profile.fewer_pods_first)
            return keys.tolist(), self._fits(rows[indices], counts).tolist()

        ties = seeded_hashes(self._snapshot.columns.tie_hash[rows], np.uint64(hash_of(str(attempt)))).tolist()
        levels = _Levels(keys_of, len(rows), count)
        heap = [(-levels.of_row[place][0], ties[place], place) for place in range(len(rows))]
        heapq.heapify(heap)
        taken, chosen = [0] * len(rows), list[int]()
        while heap and len(chosen) < count:
            _, tie, place = heap[0]
            chosen.append(place)
            taken[place] += 1
            key = levels.at(place, taken[place])
            if key is None:
                heapq.heappop(heap)
            else:
                heapq.heapreplace(heap, (-key, tie, place))
        found: list[int] = rows[np.array(chosen, dtype=np.intp)].tolist()
        return found

    def _fits(self, rows: RowIndex, counts: Amount) -> Mask:
        """bool[rows]: whether one of the pods fits the sums of each row beside ``counts`` others."""
        nodes = NodesWithAnother(self._snapshot, rows, self._another, counts)
        fits = np.ones(len(rows), dtype=np.bool_)
        for plugin in self._sums:
            fits &= run_filter_on_all(plugin, self._results.state, self._pod, nodes).codes == 0
        return fits


class _Levels:
    """The sort keys of rows with none, one, two, ... of the pods, up to the first that does not fit."""

    def __init__(
        self, keys_of: Callable[[RowIndex, Amount], tuple[list[int], list[bool]]], rows: int, count: int
    ) -> None:
        self._keys_of = keys_of
        # Twice as many as each row gets on average: most rows need no second look.
        levels = min(count, 2 * count // rows + 2)
        indices = np.repeat(np.arange(rows, dtype=np.intp), levels)
        counts = np.tile(np.arange(levels, dtype=np.float64), rows)
        keys, fits = keys_of(indices, counts)
        self.of_row: list[list[int]] = []
        self._is_whole: list[bool] = []
        for begin in range(0, rows * levels, levels):
            self._add(keys[begin : begin + levels], fits[begin : begin + levels])

    def at(self, row: int, level: int) -> int | None:
        """The key with so many of the pods there; None if one more does not fit."""
        while level >= len(self.of_row[row]):
            if self._is_whole[row]:
                return None
            self._extend(row)
        return self.of_row[row][level]

    def _add(self, keys: list[int], fits: list[bool]) -> None:
        last = fits.index(False) if False in fits else len(fits)
        # The first fits: the filters have accepted the row.
        self.of_row.append(keys[: max(1, last)])
        self._is_whole.append(last < len(fits))

    def _extend(self, row: int) -> None:
        known = len(self.of_row[row])
        counts = np.arange(known, 2 * known + 1, dtype=np.float64)
        keys, fits = self._keys_of(np.full(len(counts), row, dtype=np.intp), counts)
        last = fits.index(False) if False in fits else len(fits)
        self.of_row[row] += keys[:last]
        self._is_whole[row] = last < len(fits)
