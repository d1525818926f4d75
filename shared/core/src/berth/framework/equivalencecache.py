"""The equivalence cache: answers of row-local plugins per class of pods with an equal spec (docs/design.md, 5).

Where plugins read more of a pod than its spec (``KeyedPlugin``), pods of a class with different keys are kept apart.
Only rows that changed since the class's last cycle are evaluated again; on a row that keeps getting pods of the class
the scores are foreseen (ADR 77). The cache never changes a result.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from berth.api.pod import Pod
from berth.cluster.nodes import (
    AnotherPod,
    NodeInfo,
    NodeInfoWithAnother,
    Nodes,
    NodesWithAnother,
    RowIndex,
    info_of_row,
)
from berth.cluster.pods import EquivalenceClass, Trait
from berth.cluster.snapshot import ChangedRows, Snapshot
from berth.framework.interface import (
    MAX_SCORE,
    MIN_SCORE,
    FilterPlugin,
    LivePlugin,
    NormalizePlugin,
    Plugin,
    RowChanges,
    ScorePlugin,
    Scores,
)
from berth.framework.plugincalls import (
    PluginFailure,
    highest,
    run_filter,
    run_filter_on_all,
    run_pod_keys,
    run_pre_filter,
    run_pre_score,
    run_row_changes,
    run_score,
    run_score_on_all,
)
from berth.framework.profile import Profile, WeightedScore
from berth.framework.status import CachedVerdicts, Code, CycleState, FilterColumn, Mask

Plug = TypeVar("Plug", bound=Plugin)

# Bytes that the cached classes of one cache may use together.
_MAX_BYTES: Final = 64 * 1024 * 1024

_MIN_CLASSES: Final = 4
_EXTENDED_RESOURCES: Final = int(Trait.EXTENDED_RESOURCES)
# Bytes of the specs of all classes, as JSON: 8,000 ordinary ones. On few nodes the columns of a class are small, but
# its spec may have 64 KiB.
_MAX_SPEC_BYTES: Final = 16 * 1024 * 1024

# Up to this many rows scalar forms are quicker than vector forms: placing a pod changes one row.
_FEW: Final = 5

# Up to this many rows, adding up each one again is quicker than adding up all of 1,000.
_FEW_TO_FOLLOW: Final = 8

# Number of extra pods over which the score loss per pod is averaged, if that many fit. Scores are whole numbers:
# measured with one pod, the loss of a small pod is off by up to a point, and by as many points as there are newcomers
# (ADR 2).
SEVERAL: Final = 4

# Scores of a row that are foreseen together: with 0 to 23 further pods.
_AHEAD: Final = 24
# Forecasts of all classes, 3 KB each, after which all are forgotten.
_MOST_FORESEEN: Final = 2048

# Statuses of a filter kept in addition to one per row: reasons that contain numbers would accumulate.
_MAX_STATUSES: Final = 1024


class EquivalenceCache:
    """The classes ranked last on one Snapshot by one profile, within the memory bound."""

    def __init__(self, snapshot: Snapshot, profile: Profile) -> None:
        self.snapshot = snapshot
        self.profile = profile
        # Of scores also their sum and the losses.
        self._row_bytes = 2 + 4 * len(profile.local_filters) + 8 * (len(profile.local_scores) + 2)
        self._classes: OrderedDict[tuple[EquivalenceClass, Hashable], ClassResults] = OrderedDict()
        self._spec_bytes = 0
        self._foreseen = 0  # forecasts since all were forgotten last

    @classmethod
    def of(cls, snapshot: Snapshot, profile: Profile) -> EquivalenceCache:
        """The cache of the profile; it lives as long as the Snapshot."""
        return snapshot.derived(("equivalence cache", profile), lambda: cls(snapshot, profile))

    def __len__(self) -> int:
        return len(self._classes)

    @property
    def bound(self) -> int:
        """The number of classes kept; those with several keys count as many."""
        return max(_MIN_CLASSES, _MAX_BYTES // (self._row_bytes * self.snapshot.columns.capacity))

    def results_of(self, pod: Pod) -> ClassResults:
        """The results of the pod's class and keys; for uncached ones, row-local PreFilter plugins run first.

        Raises:
            PluginFailure: one of them failed; the class is not cached.
        """
        pod_class = self.snapshot.class_of(pod)
        keys = run_pod_keys(self.profile.keyed, pod)
        key = pod_class, keys
        traits = pod_class.traits | self.snapshot.traits_of_nodes
        results = self._classes.get(key)
        classes = self.snapshot.version_of_classes if traits & _EXTENDED_RESOURCES else 0
        if results is not None and (results.traits, results.device_classes) != (traits, classes):
            # Other plugins are left out now, or other classes serve the pod's extended resources.
            del self._classes[key]
            self._spec_bytes -= len(pod_class.key)
            results = None
        if results is None:
            results = self._classes[key] = ClassResults(self, pod, pod_class, keys, traits)
            results.device_classes = classes
            self._spec_bytes += len(pod_class.key)
            while len(self._classes) > self.bound or (self._spec_bytes > _MAX_SPEC_BYTES and len(self._classes) > 1):
                (dropped, _), _ = self._classes.popitem(last=False)
                self._spec_bytes -= len(dropped.key)
        else:
            self._classes.move_to_end(key)
        return results

    def count_foreseen(self) -> None:
        """Count a forecast; above the bound, those of all classes are forgotten."""
        self._foreseen += 1
        if self._foreseen > _MOST_FORESEEN:
            self._foreseen = 0
            for results in self._classes.values():
                results.further_pods.forget_foreseen()


class ClassResults:
    """The cached answers for one equivalence class: PreFilter, PreScore, and a column per row-local plugin."""

    def __init__(
        self, cache: EquivalenceCache, pod: Pod, pod_class: EquivalenceClass, keys: Hashable, traits: int
    ) -> None:
        self._cache = cache
        self._pod = pod
        self.state = CycleState(pod_class)
        self.traits = traits  # of the class and of the nodes
        self.device_classes = 0  # their version, for a pod with extended resources
        self._left_out = cache.profile.left_out(traits)
        self.pre_filtered = {
            p.name: run_pre_filter(p, self.state, pod, cache.snapshot)
            for p in cache.profile.local_pre_filters
            if p.name not in self._left_out
        }
        skipped = {name for name, answer in self.pre_filtered.items() if answer.status.code is Code.SKIP}
        self._filters = [
            f for f in cache.profile.local_filters if f.name not in skipped and f.name not in self._left_out
        ]
        self._filters_of_pods = [f for f in self._filters if f.reads_pods]
        self._filters_of_nodes = [f for f in self._filters if not f.reads_pods]
        self._live_filters = _LiveChanges("Filter", self._filters)
        self._live_scores: _LiveChanges[ScorePlugin] = _LiveChanges("Score", ())
        self._scores: list[WeightedScore] | None = None
        self._filtered = self._scored = -1
        self.score_refreshes = 0  # how often the scores were brought up to date
        self.local_scores: LocalScores | None = None  # of the last cycle
        self.further_pods = FurtherPods(cache, self.state, pod, keys)
        self._codes: npt.NDArray[np.int32]
        self._fits: Mask
        self._columns: dict[str, FilterColumn]
        self._verdicts: CachedVerdicts
        self.scores: Scores  # int64[plugins, capacity], the raw scores of row-local plugins
        self.weights: Scores  # of these plugins; 0 where scores are normalized
        self._score_columns: dict[str, ScoreColumn]
        self._clear()

    def new_state(self) -> CycleState:
        """The state of a new cycle, with the values that row-local plugins stored for the class."""
        return CycleState(self.state.pod_class, self.state)

    @property
    def score_columns(self) -> dict[str, ScoreColumn]:
        return self._score_columns

    @property
    def fewer_pods_first(self) -> bool:
        return self._cache.profile.fewer_pods_first

    def refresh_filters(self) -> CachedVerdicts:
        """Run the filters again on rows that changed since the last time; return the verdicts on all rows."""
        snapshot = self._cache.snapshot
        most = _MAX_STATUSES + snapshot.size
        if self._capacity != snapshot.columns.capacity or any(len(c.statuses) > most for c in self._columns.values()):
            self._clear()
        changed = snapshot.changed_since(self._filtered) if self._filtered >= 0 else None
        live = self._live_filters.read(snapshot)
        if changed is None:
            self._evaluate_filters(None, self._filters)
        else:
            moved = changed.nodes | changed.pods
            self._evaluate_filters(moved, self._filters_of_pods)
            self._evaluate_filters(changed.nodes, self._filters_of_nodes)
            for plugin, found in live:
                known = moved if plugin.reads_pods else changed.nodes
                self._evaluate_filters(_others(found.rows, known), (plugin,))
        self._filtered = snapshot.version
        self._live_filters.keep(live)
        return self._verdicts

    def refresh_scores(self) -> ChangedRows | None:
        """Run the scores again on rows that changed since the last time and return these rows; None means all rows."""
        snapshot = self._cache.snapshot
        changed = snapshot.changed_since(self._scored) if self._scored >= 0 else None
        if self._scores is None:
            self._pre_score()
        live = self._live_scores.read(snapshot)
        if changed is None:
            self._evaluate_scores(None, list(self._score_columns.values()))
        else:
            foreseen = self.further_pods.come(changed, live)
            moved = changed.nodes | changed.pods
            self._evaluate_scores(moved - foreseen if foreseen else moved, self._columns_of_pods)
            self._evaluate_scores(changed.nodes, self._columns_of_nodes)
            for plugin, found in live:
                known = moved if plugin.reads_pods else changed.nodes
                self._evaluate_scores(_others(found.rows, known), (self._score_columns[plugin.name],))
            changed = _with_live(changed, live)
            if changed is not None:
                self.further_pods.forget((changed.nodes | changed.pods) - foreseen)
        if changed is None:
            self.further_pods.forget_all()
        self._scored = snapshot.version
        self._live_scores.keep(live)
        self.score_refreshes += 1
        return changed

    def losses_on(self, rows: RowIndex) -> npt.NDArray[np.float64]:
        """As :meth:`FurtherPods.losses_on`. Call after ``refresh_scores``."""
        return self.further_pods.losses_on(rows)

    def _clear(self) -> None:
        self._capacity = self._cache.snapshot.columns.capacity
        self._filtered = self._scored = -1
        self._codes = np.zeros((len(self._filters), self._capacity), dtype=np.int32)
        self._fits = np.zeros(self._capacity, dtype=np.bool_)
        self._columns = {f.name: FilterColumn(f.name, self._codes[i]) for i, f in enumerate(self._filters)}
        self._verdicts = CachedVerdicts(self._columns, self._fits)
        self._make_score_columns()

    def _make_score_columns(self) -> None:
        entries = self._scores or ()
        self.scores = np.zeros((len(entries), self._capacity), dtype=np.int64)
        self._score_columns = {e.plugin.name: ScoreColumn(e, self.scores[i]) for i, e in enumerate(entries)}
        weights = [0 if column.normalizes else column.entry.weight for column in self._score_columns.values()]
        self.weights = np.array(weights, dtype=np.int64)
        self._columns_of_pods = [column for column in self._score_columns.values() if column.reads_pods]
        self._columns_of_nodes = [column for column in self._score_columns.values() if not column.reads_pods]
        plugins = [column.plugin for column in self._score_columns.values()]
        self._live_scores = _LiveChanges("Score", plugins)
        self.further_pods.start(self._columns_of_pods)
        self.local_scores = None

    def _pre_score(self) -> None:
        nodes = Nodes(self._cache.snapshot)
        pre_scores = [p for p in self._cache.profile.local_pre_scores if p.name not in self._left_out]
        skipped = self._left_out.union(p.name for p in pre_scores if run_pre_score(p, self.state, self._pod, nodes))
        self._scores = [entry for entry in self._cache.profile.local_scores if entry.plugin.name not in skipped]
        self._make_score_columns()

    def _evaluate_filters(self, changed: frozenset[int] | None, filters: Sequence[FilterPlugin]) -> None:
        if changed is not None and len(changed) <= _FEW:
            for row in changed:
                self._filter_one(row, filters)
            return
        index, nodes = self._view(changed)
        for plugin in filters:
            self._columns[plugin.name].write(index, run_filter_on_all(plugin, self.state, self._pod, nodes))
        self._fits[index] = nodes.exists & ~self._codes[:, index].any(axis=0)

    def _evaluate_scores(self, changed: frozenset[int] | None, columns: Sequence[ScoreColumn]) -> None:
        if changed is not None and len(changed) <= _FEW:
            for row in changed:
                self._score_one(row, columns)
            return
        index, nodes = self._view(changed)
        for column in columns:
            column.write(index, run_score_on_all(column.plugin, self.state, self._pod, nodes))

    def _filter_one(self, row: int, filters: Sequence[FilterPlugin]) -> None:
        info = info_of_row(self._cache.snapshot, row)
        if info is None:
            self._fits[row] = False
            return
        for plugin in filters:
            self._columns[plugin.name].write_one(row, run_filter(plugin, self.state, self._pod, info))
        self._fits[row] = not any(self._codes[:, row].tolist())

    def _score_one(self, row: int, columns: Sequence[ScoreColumn]) -> None:
        info = info_of_row(self._cache.snapshot, row)
        if info is None:
            return
        for column in columns:
            score = column.scores[row] = run_score(column.plugin, self.state, self._pod, info)
            if not MIN_SCORE <= score <= MAX_SCORE:
                column.in_range = False

    def _view(self, changed: frozenset[int] | None) -> tuple[RowIndex | slice, Nodes]:
        snapshot = self._cache.snapshot
        if changed is None:
            return slice(0, snapshot.size), Nodes(snapshot)
        rows = _row_index(changed)
        return rows, Nodes(snapshot, rows)


@dataclass(frozen=True, slots=True)
class Forecast:
    """The scores of one row with 0, 1, 2, ... more pods of the class than ``pods``, by plugin, and the losses there."""

    pods: int
    scores: list[list[int]]
    losses: list[float]


class FurtherPods:
    """What further pods of a class change on a row: what one more costs there, and the scores that are to come.

    A row that is among the best, gets a pod of the class and is still among them will mostly get more. So its scores
    with several further pods are computed at once, and taken as the pods come, until anything else changes the row.
    """

    def __init__(self, cache: EquivalenceCache, state: CycleState, pod: Pod, keys: Hashable) -> None:
        self._cache = cache
        self._snapshot = cache.snapshot
        self._state = state
        self._pod = pod
        self._keys = keys
        self._another = AnotherPod(pod, cache.snapshot)
        self._columns: Sequence[ScoreColumn] = ()
        self._may_foresee = False
        self._has_loss: Mask = np.zeros(0, dtype=np.bool_)
        self._losses: npt.NDArray[np.float64] = np.zeros(0)
        self._forecasts: dict[int, Forecast] = {}  # by row
        self._came: Mapping[int, int] = {}  # how many pods came to a row since the last cycle
        self._shared: set[int] = set()  # rows among the best to which other pods came last

    def start(self, columns: Sequence[ScoreColumn]) -> None:
        """Begin anew with these columns, of all plugins that read pods."""
        self._columns = columns
        self._may_foresee = all(each.plugin.counts_others and not each.normalizes for each in columns)
        capacity = self._snapshot.columns.capacity
        self._has_loss, self._losses = np.zeros(capacity, dtype=np.bool_), np.zeros(capacity)

    def come(self, changed: ChangedRows, live: Sequence[tuple[Plugin, RowChanges]]) -> AbstractSet[int]:
        """Write the foreseen scores of rows to which nothing but pods of the class came; returns these rows."""
        rows, forecasts, came = set[int](), self._forecasts, changed.came
        self._came = came
        if not forecasts:
            return rows
        for _, found in live:
            for row in () if found.rows is None else found.rows:  # if it may be any row, all are forgotten
                forecasts.pop(row, None)
        for row in changed.nodes | changed.pods:
            forecast = forecasts.get(row)
            if forecast is None:
                continue
            if row in came and self._come_to(row, came[row], forecast):
                rows.add(row)
            else:
                del forecasts[row]
        return rows

    def _come_to(self, row: int, count: int, forecast: Forecast) -> bool:
        # All that came, not those of this time alone: after a plugin's failure the same pods come again.
        came = len(self._snapshot.placed_on_row(row)) - forecast.pods
        if came >= len(forecast.losses) or not self._are_alike(row, count):
            return False
        for column, score in zip(self._columns, forecast.scores[came], strict=True):
            column.scores[row] = score
        self._losses[row] = forecast.losses[came]
        return True

    def _are_alike(self, row: int, count: int) -> bool:
        """Whether the newest pods of the row are of the class, and their keys equal."""
        pod_class, keyed = self._state.pod_class, self._cache.profile.keyed
        try:
            return all(
                placed.pod_class is pod_class and (not keyed or run_pod_keys(keyed, placed.pod) == self._keys)
                for placed in self._snapshot.newest_on_row(row, count)
            )
        except PluginFailure:  # a pod without a key may have come by another scheduler
            return False

    def forget(self, rows: Collection[int]) -> None:
        """Losses on these rows have changed."""
        if rows:
            self._has_loss[list(rows)] = False

    def forget_all(self) -> None:
        self._came = {}
        self._shared.clear()
        self._has_loss[:] = False
        self._forecasts.clear()

    def forget_foreseen(self) -> None:
        self._forecasts.clear()

    def losses_on(self, rows: RowIndex) -> npt.NDArray[np.float64]:
        """The points that one more pod of the class costs on each of these rows, by row-local plugins.

        The mean over up to ``SEVERAL`` more pods that fit beside the incoming one. Plugins that normalize are not in
        it: ``with_another`` of their columns has the raw scores with one more pod.
        """
        # Only for these rows: the best nodes of one cycle are mostly the previous one's.
        missing = rows[~self._has_loss[rows]]
        if len(missing) and self._columns:
            if self._came and self._may_foresee:
                missing = missing[[not self._try_to_foresee(row) for row in missing.tolist()]]
            if len(missing) <= _FEW or self._snapshot.columns.large:  # columns round the room in large amounts
                self._score_few(missing)
            else:
                self._score(missing)
            self._has_loss[missing] = True
        return self._losses[rows]

    def _try_to_foresee(self, row: int) -> bool:
        """Foresee the scores of a row that got pods of the class, after other pods twice; returns whether it did so."""
        count, shared = self._came.get(row, 0), self._shared
        if not count:
            return False
        if not self._are_alike(row, count):
            shared.add(row)
            return False
        if row in shared:
            shared.remove(row)
            return False
        return self._foresee(row)

    def _foresee(self, row: int) -> bool:
        snapshot, node = self._snapshot, self._snapshot.node_at(row)
        room = 0 if node is None else self._another.room_on(NodeInfo(snapshot, row, node))
        if room < 1:
            return False
        further = np.arange(min(_AHEAD, room + 1) + SEVERAL, dtype=np.float64)
        nodes = NodesWithAnother(snapshot, np.full(len(further), row), self._another, further)
        scores = np.empty((len(self._columns), len(further)), dtype=np.int64)
        try:
            for place, column in enumerate(self._columns):
                scores[place] = run_score_on_all(column.plugin, self._state, self._pod, nodes)
        except PluginFailure:  # maybe for pods that never come
            return False
        if highest(scores.ravel()) > MAX_SCORE:
            return False
        totals = (np.array([column.entry.weight for column in self._columns]) @ scores).tolist()
        losses = []
        for came in range(len(further) - SEVERAL):
            count = min(max(1, room - came - 1), SEVERAL)
            losses.append((totals[came] - totals[came + count]) / count)
        self._forecasts[row] = Forecast(len(snapshot.placed_on_row(row)), scores.T.tolist(), losses)
        self._losses[row], self._has_loss[row] = losses[0], True
        self._cache.count_foreseen()
        return True

    def _score(self, rows: RowIndex) -> None:
        snapshot = self._snapshot
        counts = np.minimum(np.maximum(self._another.room_on_each(Nodes(snapshot, rows)) - 1, 1), SEVERAL)
        several = NodesWithAnother(snapshot, rows, self._another, counts)
        lost = np.zeros(len(rows), dtype=np.int64)
        for column in self._columns:
            nodes = NodesWithAnother(snapshot, rows, self._another) if column.normalizes else several
            after = run_score_on_all(column.plugin, self._state, self._pod, nodes)
            if column.normalizes:
                column.with_another[rows] = after
            else:
                lost += (column.scores[rows] - after) * column.entry.weight
        self._losses[rows] = lost / counts

    def _score_few(self, rows: RowIndex) -> None:
        snapshot, another = self._snapshot, self._another
        for row in rows.tolist():
            node = snapshot.node_at(row)
            if node is None:
                continue
            count = min(max(1, another.room_on(NodeInfo(snapshot, row, node)) - 1), SEVERAL)
            several = NodeInfoWithAnother(snapshot, row, node, another, count)
            lost = 0
            for column in self._columns:
                info = NodeInfoWithAnother(snapshot, row, node, another) if column.normalizes else several
                after = run_score(column.plugin, self._state, self._pod, info)
                if column.normalizes:
                    column.with_another[row] = after
                else:
                    lost += (column.scores.item(row) - after) * column.entry.weight
            self._losses[row] = lost / count


class _LiveChanges(Generic[Plug]):
    """What the plugins with live data among some have reported so far."""

    def __init__(self, point: str, plugins: Sequence[Plug]) -> None:
        self._point = point
        self._plugins: list[tuple[Plug, LivePlugin]] = [
            (plugin, plugin) for plugin in plugins if isinstance(plugin, LivePlugin)
        ]
        self._seen = {plugin.name: -1 for plugin, _ in self._plugins}

    def read(self, snapshot: Snapshot) -> Sequence[tuple[Plug, RowChanges]]:
        """The changes since those that were kept."""
        seen = self._seen
        return [
            (plugin, run_row_changes(live, self._point, snapshot, seen[plugin.name])) for plugin, live in self._plugins
        ]

    def keep(self, changes: Sequence[tuple[Plug, RowChanges]]) -> None:
        """The rows are evaluated: they are not read again."""
        for plugin, found in changes:
            self._seen[plugin.name] = found.version


def _others(rows: Collection[int] | None, known: frozenset[int]) -> frozenset[int] | None:
    return None if rows is None else frozenset(rows) - known


def _with_live(changed: ChangedRows, live: Sequence[tuple[Plugin, RowChanges]]) -> ChangedRows | None:
    """The rows that live data has changed as if by their pods; None for all rows."""
    for _, found in live:
        if found.rows is None:
            return None
        if not changed.pods.issuperset(found.rows):
            changed = ChangedRows(changed.nodes, changed.pods.union(found.rows), changed.pods_updated)
    return changed


class ScoreColumn:
    """One plugin's raw score per row: ``scores`` int64[capacity]. ``in_range``: no row was ever outside 0..100.

    ``with_another``: int64[capacity], the same with one more pod of the class on the row, if pods move the score and
    it is normalized.
    """

    def __init__(self, entry: WeightedScore, scores: Scores) -> None:
        self.plugin = entry.plugin
        self.entry = entry
        self.reads_pods = entry.plugin.reads_pods  # another pod on the row may change the score
        self.normalizes = isinstance(entry.plugin, NormalizePlugin)  # raw scores are normalized later
        self.scores = scores
        self.with_another: Scores = np.empty(len(scores) if self.reads_pods and self.normalizes else 0, dtype=np.int64)
        self.in_range = True

    @property
    def may_follow(self) -> bool:
        """Whether a row's points follow from its raw score alone if only pods changed."""
        return not self.reads_pods if self.normalizes else self.in_range

    def write(self, rows: RowIndex | slice, scores: Scores) -> None:
        """Keep raw scores, one per row."""
        self.scores[rows] = scores
        if self.in_range and len(scores):
            self.in_range = highest(scores) <= MAX_SCORE


@dataclass(slots=True, kw_only=True)
class LocalScores:
    """The sums of a class's row-local scores in its last cycle. ``keys``: sort keys, largest first.

    ``raw`` and ``parts``: of plugins with NormalizeScore, the scores before it, and after it, weighted.
    """

    nodes: Nodes
    totals: Scores
    keys: Scores
    parts: dict[str, Scores]
    raw: dict[str, Scores]
    refreshes: int = -1  # of the class's scores, up to the one that is added up

    def can_follow(self, changed: ChangedRows, nodes: Nodes, columns: Iterable[ScoreColumn]) -> bool:
        """Whether only a few rows need to be added up again for these nodes."""
        return (
            not changed.nodes
            and len(changed.pods) <= _FEW_TO_FOLLOW
            and nodes.are_same_rows(self.nodes)
            and all(column.may_follow for column in columns)
        )


def _row_index(rows: frozenset[int]) -> RowIndex:
    return np.fromiter(rows, dtype=np.intp, count=len(rows))
