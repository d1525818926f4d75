"""PreScore, Score and NormalizeScore of one cycle, the order of nodes, and the data for the binder's correction.

Best first: more points, then fewer pods, then a hash that differs by pod and attempt.

The binder corrects a ranking for pods that came later (docs/protocol.md, 5.8). ``counted_pods``: the pods on a node
that count for a pod. ``losses``: the points that one more equal pod costs there. The scorer writes both on each
candidate.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from berth.api.pod import Pod
from berth.cluster.columns import hash_of
from berth.cluster.nodes import AnotherPod, Nodes, NodesWithAnother, RowIndex
from berth.cluster.snapshot import Snapshot
from berth.framework.equivalencecache import ClassResults, LocalScores
from berth.framework.filtering import PreFiltered
from berth.framework.interface import (
    MAX_SCORE,
    MIN_SCORE,
    NormalizePlugin,
    Scores,
)
from berth.framework.plugincalls import (
    Timing,
    check_range,
    run_counted_pods,
    run_normalize,
    run_pre_score,
    run_score_on_all,
    run_score_with_another,
)
from berth.framework.profile import Profile, WeightedScore
from berth.framework.status import CycleState
from berth.messages.subjects import Attempt


def default_normalize(scores: Scores, *, reverse: bool = False) -> Scores:
    """``100 * score / largest`` in whole numbers, counted from the other end when reversed.

    If all scores are 0: unchanged, or all 100 when reversed. Scores are 0 or more.
    """
    largest = int(scores.max(initial=0))
    if largest == 0:
        return scores + MAX_SCORE if reverse else scores
    stretched = MAX_SCORE * scores // largest
    return MAX_SCORE - stretched if reverse else stretched


def normalize_by_rank(scores: Scores) -> Scores:
    """100 for the largest score, 99 for the next smaller one that occurs, and so on; never below 0.

    For scores in which one unit matters: in proportion, 100,001 and 100,000 would be equal.
    """
    _, places = np.unique(scores, return_inverse=True)
    normalized: Scores = np.maximum(MAX_SCORE - (places.max(initial=0) - places), MIN_SCORE).astype(np.int64)
    return normalized


_POD_BITS = 20


_MAX_PODS = (1 << _POD_BITS) - 1


@dataclass(slots=True)
class Scored:
    """``totals``: int64[nodes]. ``keys``: their sort keys, if known. The arrays are read in this cycle only.

    ``local``: the scores of row-local plugins, by row. ``parts``: what each other plugin that did not skip, or one with
    NormalizeScore, adds to the totals, weighted. ``raw``: the same before NormalizeScore and without the weight.
    """

    totals: Scores
    keys: Scores | None = None
    parts: dict[str, Scores] = field(default_factory=dict)
    raw: dict[str, Scores] = field(default_factory=dict)
    local: ClassResults | None = None

    def add_constants(self, parts: Mapping[str, Scores]) -> None:
        """Add points that pods on the nodes do not move."""
        for name, points in parts.items():
            self.totals, self.keys = self.totals + points, None
            self.parts[name] = points

    def has(self, plugin: str) -> bool:
        """Whether the plugin did not skip."""
        return plugin in self.parts or (self.local is not None and plugin in self.local.score_columns)

    def by_plugin(self, nodes: Nodes, indices: RowIndex) -> dict[str, list[int]]:
        """The points of each position, by plugin."""
        points: dict[str, list[int]] = {}
        if self.local is not None:
            weighted = self.local.scores[:, nodes.rows_at(indices)] * self.local.weights[:, np.newaxis]
            points.update(zip(self.local.score_columns, weighted.tolist(), strict=True))
        for name, scores in self.parts.items():
            points[name] = scores[indices].tolist()
        return points

    def of(self, nodes: Nodes, indices: RowIndex) -> list[dict[str, int]]:
        """The points by plugin, for each position."""
        points = self.by_plugin(nodes, indices)
        rows = zip(*points.values(), strict=True) if points else [()] * len(indices)
        return [dict(zip(points, row, strict=True)) for row in rows]


def score(  # noqa: PLR0913 - the parts of one cycle
    pod: Pod, nodes: Nodes, profile: Profile, found: PreFiltered, results: ClassResults, *, timing: Timing
) -> Scored:
    """Score the feasible nodes. Without a score plugin every node gets 1, as in kube-scheduler.

    Raises:
        PluginFailure: a plugin failed, or a normalized score is not within 0..100.
    """
    if not profile.scores:
        return Scored(np.ones(nodes.size, dtype=np.int64))
    state, skipped = found.state, set(found.left_out)
    timing.begin("PreScore")
    pre_scores = (p for p in profile.pre_scores if not p.is_row_local and p.name not in skipped)
    skipped.update([p.name for p in pre_scores if run_pre_score(p, state, pod, nodes)])
    timing.end()
    timing.begin("Score")
    local = _local_scores(pod, nodes, state, results)
    scored = Scored(local.totals, local.keys, local.parts.copy(), local.raw.copy(), results)
    for entry in profile.scores:
        name = entry.plugin.name
        if not entry.plugin.is_row_local and name not in skipped:
            raw = run_score_on_all(entry.plugin, state, pod, nodes)
            points, highest = _points(entry, raw, pod, nodes, state)
            scored.raw[name], scored.parts[name] = raw, points
            if highest:
                scored.totals, scored.keys = scored.totals + points, None
    timing.end()
    return scored


def best_first(  # noqa: PLR0913 - the scores, and how equal ones are ordered
    totals: Scores,
    nodes: Nodes,
    attempt: Attempt,
    count: int,
    *,
    fewer_pods_first: bool,
    keys: Scores | None = None,
) -> RowIndex:
    """Positions in ``nodes`` of the best ``count``, best first.

    Equal totals: fewer pods first if wanted, then by a hash of (uid, attempt, node): the order looks random and is the
    same in every process. ``keys`` are the sort keys of the totals, if known.
    """
    if keys is None:
        keys = order_keys(totals, nodes, fewer_pods_first=fewer_pods_first)
    above, tied = _around_the_last(keys, count)
    tie_hash, seed = nodes.take(nodes.snapshot.columns.tie_hash), np.uint64(hash_of(str(attempt)))
    if len(above) + len(tied) > count:
        chosen = seeded_hashes(tie_hash[tied], seed).argpartition(count - len(above) - 1)
        tied = tied[chosen[: count - len(above)]]
    best = np.concatenate((above, tied))
    return best[np.lexsort((seeded_hashes(tie_hash[best], seed), -keys[best]))]


def order_keys(totals: Scores, nodes: Nodes, *, fewer_pods_first: bool) -> Scores:
    """One number per node, the largest first."""
    keys = totals << _POD_BITS
    if fewer_pods_first:
        keys -= np.minimum(nodes.pods, _MAX_PODS).astype(np.int64)
    return keys


def _local_scores(pod: Pod, nodes: Nodes, state: CycleState, results: ClassResults) -> LocalScores:
    """The sum of the row-local plugins for the feasible nodes.

    On the nodes of the last pod of the class, only rows changed since are added up again.
    """
    before, known = results.score_refreshes, results.local_scores
    changed, columns = results.refresh_scores(), results.score_columns.values()
    if known is None or changed is None or known.refreshes != before or not known.can_follow(changed, nodes, columns):
        known = results.local_scores = _add_up(pod, nodes, state, results)
    else:
        _follow(known, changed.pods, nodes, results)
    known.refreshes = results.score_refreshes
    return known


def _add_up(pod: Pod, nodes: Nodes, state: CycleState, results: ClassResults) -> LocalScores:
    totals = np.zeros(nodes.size, dtype=np.int64)
    all_raw, parts = dict[str, Scores](), dict[str, Scores]()
    for name, column in results.score_columns.items():
        raw = nodes.take(column.scores)
        if column.in_range and not column.normalizes:
            points = raw if column.entry.weight == 1 else raw * column.entry.weight
        else:
            points, _ = _points(column.entry, raw, pod, nodes, state)
            if column.normalizes:
                all_raw[name], parts[name] = raw, points
        np.add(totals, points, out=totals)
    keys = order_keys(totals, nodes, fewer_pods_first=results.fewer_pods_first)
    return LocalScores(nodes=nodes, totals=totals, keys=keys, parts=parts, raw=all_raw)


def _follow(local: LocalScores, rows: Iterable[int], nodes: Nodes, results: ClassResults) -> None:
    # Normalized scores do not read pods, so they are unchanged.
    pods = nodes.snapshot.columns.pods
    for row in rows:
        position = nodes.position_of(row)
        if position is None:
            continue
        total = int(results.weights @ results.scores[:, row]) + sum(
            [int(points[position]) for points in local.parts.values()]
        )
        local.totals[position] = total
        fewer = min(int(pods[row]), _MAX_PODS) if results.fewer_pods_first else 0
        local.keys[position] = (total << _POD_BITS) - fewer


def _points(entry: WeightedScore, raw: Scores, pod: Pod, nodes: Nodes, state: CycleState) -> tuple[Scores, int]:
    """The raw scores of one plugin, normalized and weighted, and the highest normalized one."""
    plugin, scores = entry.plugin, raw
    if isinstance(plugin, NormalizePlugin):
        scores = run_normalize(plugin, state, pod, raw, nodes)
    highest = check_range(plugin, scores)
    return scores if entry.weight == 1 else scores * entry.weight, highest


def _around_the_last(keys: Scores, count: int) -> tuple[RowIndex, RowIndex]:
    """Positions of keys above the ``count``-th largest (fewer than ``count``), and of those equal to it."""
    last = _last_of_best(keys, count) if len(keys) > count else int(keys.min())
    return (keys > last).nonzero()[0], (keys == last).nonzero()[0]


def _last_of_best(keys: Scores, count: int) -> int:
    """The ``count``-th largest key; there are more than ``count`` keys."""
    if len(keys) <= _PARTITIONED_AT_ONCE:
        ordered = keys.copy()
        ordered.partition(-count)
        return int(ordered[-count])
    part = len(keys) // count
    # The smallest of ``count`` parts' maxima is a lower bound of the result, because at least ``count`` keys are as
    # large. Few keys are usually larger, and only those need to be partitioned.
    bound = int(keys[: part * count].reshape(count, part).max(axis=1).min())
    above = keys[keys > bound]
    return bound if len(above) < count else int(np.partition(above, -count)[-count])


def seeded_hashes(hashes: npt.NDArray[np.uint64], seed: np.uint64) -> npt.NDArray[np.uint64]:
    """Hashes mixed with a seed (the finalizer of splitmix64): each seed gives another order."""
    x = hashes ^ seed
    x ^= x >> _SHIFTS[0]
    x *= _FACTORS[0]
    x ^= x >> _SHIFTS[1]
    x *= _FACTORS[1]
    x ^= x >> _SHIFTS[2]
    return x


def unseeded_hashes(seeded: npt.NDArray[np.uint64], seed: np.uint64) -> npt.NDArray[np.uint64]:
    """The inverse of ``seeded_hashes``."""
    x: npt.NDArray[np.uint64] = seeded ^ (seeded >> _SHIFTS[2]) ^ (seeded >> (2 * _SHIFTS[2]))
    x *= _INVERSES[1]
    x ^= (x >> _SHIFTS[1]) ^ (x >> (2 * _SHIFTS[1]))
    x *= _INVERSES[0]
    x ^= (x >> _SHIFTS[0]) ^ (x >> (2 * _SHIFTS[0]))
    return x ^ seed


# Up to this many keys numpy's partition of all is as quick: 7 µs for 1,000, but 32 to 58 for 5,000 instead of 6 to 12.
_PARTITIONED_AT_ONCE: Final = 1000
_SHIFTS: Final = tuple(np.array(bits, dtype=np.uint64) for bits in (30, 27, 31))
# Arrays without a dimension: an operation takes half as long as with numbers.
_FACTORS: Final = tuple(np.array(each, dtype=np.uint64) for each in (0xBF58476D1CE4E5B9, 0x94D049BB133111EB))
_INVERSES: Final = tuple(np.array(pow(int(each), -1, 2**64), dtype=np.uint64) for each in _FACTORS)


_DECIMALS: Final = 3


def counted_pods(pod: Pod, nodes: Nodes, profile: Profile) -> Scores:
    """int64[nodes]: the pods on each node that count for the pod; itself and nominated pods never do.

    All pods count, unless the profile keeps pods of a kind apart (``Profile.spreading``): then only pods of its kind.

    Raises:
        PluginFailure: a plugin failed.
    """
    if profile.spreading is not None:
        return run_counted_pods(profile.spreading, pod, nodes)
    counts = nodes.pods.astype(np.int64)
    itself = nodes.snapshot.placed(pod.uid)
    if itself is not None:
        counts -= nodes.rows == itself.row
    return counts


def counted_pods_of(pod: Pod, names: Sequence[str], snapshot: Snapshot, profile: Profile) -> list[int]:
    """The same for nodes by name, in their order; 0 for a node that does not exist.

    Raises:
        PluginFailure: a plugin failed.
    """
    rows = snapshot.rows.of_all(names)
    there = [row for row in rows if row is not None]
    counts: list[int] = counted_pods(pod, Nodes(snapshot, np.array(there, dtype=np.intp)), profile).tolist()
    if len(there) < len(rows):
        known = iter(counts)
        counts = [0 if row is None else next(known) for row in rows]
    return counts


@dataclass(frozen=True, slots=True, kw_only=True)
class BestNodes:
    """``indices``: the best of the scored nodes, best first."""

    pod: Pod
    nodes: Nodes
    scored: Scored
    indices: RowIndex


def losses(best: BestNodes, profile: Profile, state: CycleState, results: ClassResults) -> list[float]:
    """Each best node's total minus its total with one more equal pod.

    0 where pods do not move the total, negative where they make the node better.

    Raises:
        PluginFailure: a plugin failed.
    """
    pod, raw, indices = best.pod, best.scored.raw, best.indices
    rows, snapshot = best.nodes.rows_at(indices), best.nodes.snapshot
    lost = results.losses_on(rows)
    for entry in profile.scores_that_read_pods if raw else ():
        plugin = entry.plugin
        if plugin.name not in raw:
            continue
        if plugin.is_row_local:
            after = results.score_columns[plugin.name].with_another[rows]
        else:
            nodes = NodesWithAnother(snapshot, rows, AnotherPod(pod, snapshot))
            after = run_score_with_another(plugin, state, pod, nodes)
        less = raw[plugin.name][indices] - after
        if not isinstance(plugin, NormalizePlugin):
            lost += less if entry.weight == 1 else less * entry.weight
        elif less.any():
            lost += _normalized_losses(plugin, entry.weight, best, after, state)
    whole = lost.astype(np.int64)
    if (whole == lost).all():
        return list(whole.tolist())
    return list(lost.round(_DECIMALS).tolist())


def _normalized_losses(
    plugin: NormalizePlugin, weight: int, best: BestNodes, after: Scores, state: CycleState
) -> list[float]:
    """The points with NormalizeScore as in the ranking: interpolated between the scores of these nodes."""
    raw, indices = best.scored.raw[plugin.name], best.indices
    points: list[int] = best.scored.parts[plugin.name][indices].tolist()
    scores_after: list[int] = after.tolist()
    known: dict[int, float | None] = {**_points_by_score(raw[indices].tolist(), points)}
    missing = set(scores_after).difference(known)
    if missing:
        # Interpolated, because a rank has no value in between, and a node with 2 pods beside nodes with 7 must not lose
        # its lead by its first newcomer. A score beyond these gets the points of other nodes with the same score.
        scores, follows, all_points = sorted(known), bool(known), best.scored.parts[plugin.name]
        for score in missing:
            given = _in_between(score, scores, known)
            known[score] = _given_elsewhere(score, raw, all_points) if given is None and follows else given
    expected = [known[score] for score in scores_after]
    if None in expected:
        extended = Nodes(best.nodes.snapshot, np.concatenate((best.nodes.rows, best.nodes.rows_at(indices))))
        normalized = run_normalize(plugin, state, best.pod, np.concatenate((raw, after)), extended)
        beyond = ((normalized[: len(raw)][indices] - normalized[len(raw) :]) * weight).tolist()
        return [less if then is None else now - then for now, then, less in zip(points, expected, beyond, strict=True)]
    return [now - then for now, then in zip(points, expected, strict=True) if then is not None]


def _points_by_score(raw: Sequence[int], points: Sequence[int]) -> Mapping[int, int]:
    """The points of each raw score; empty if they do not follow from the raw score alone."""
    known = dict(zip(raw, points, strict=True))
    return known if [known[score] for score in raw] == points else {}


def _in_between(score: int, scores: Sequence[int], known: Mapping[int, float | None]) -> float | None:
    """The points of a score, interpolated between its neighbours in ``scores``; None beyond the first and the last."""
    place = bisect(scores, score)
    if not 0 < place < len(scores):
        return None
    below, above = scores[place - 1], scores[place]
    from_points, to_points = known[below] or 0, known[above] or 0
    return from_points + (to_points - from_points) * (score - below) / (above - below)


def _given_elsewhere(score: int, raw: Scores, points: Scores) -> int | None:
    """The points of all nodes with this raw score; None without one, or if they differ."""
    there = points[raw == score]
    if not len(there):
        return None
    low, high = int(there.min()), int(there.max())
    return low if low == high else None
