"""PreScore, Score and NormalizeScore of one cycle, which nodes come first, and what the binder needs to correct that.

Best first: more points, then fewer pods, then a hash that differs by pod and attempt. Plugins can normalize in two
ways: in proportion, or by rank.

The binder corrects a ranking for pods that came later (docs/protocol.md, 5, *Best estimate*). ``counted_pods``: which
pods on a node count for a pod. ``losses``: the points that one more pod like it costs there. The scorer writes both on
each candidate. The binder counts again and takes the node with the most of ``total - loss x (pods by its own count -
pods counted)``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from berth.api.pod import Pod
from berth.api.subjects import Attempt
from berth.cluster.columns import hash_of
from berth.cluster.nodes import AnotherPod, Nodes, NodesWithAnother, RowIndex
from berth.cluster.snapshot import Snapshot
from berth.framework.equivalencecache import ClassResults
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


def default_normalize(scores: Scores, *, reverse: bool = False) -> Scores:
    """``100 * score / largest`` in whole numbers, counted from the other end when reversed.

    All scores 0: unchanged, or all 100 when reversed. Scores are 0 or more.
    """
    largest = int(scores.max(initial=0))
    if largest == 0:
        return scores + MAX_SCORE if reverse else scores
    stretched = MAX_SCORE * scores // largest
    return MAX_SCORE - stretched if reverse else stretched


def normalize_by_rank(scores: Scores) -> Scores:
    """100 for the largest score, 99 for the next smaller one that occurs, and so on; never below 0.

    For scores where one unit matters: in proportion, 100,001 and 100,000 would be equal.
    """
    _, places = np.unique(scores, return_inverse=True)
    normalized: Scores = np.maximum(MAX_SCORE - (places.max(initial=0) - places), MIN_SCORE).astype(np.int64)
    return normalized


_POD_BITS = 20


_MAX_PODS = (1 << _POD_BITS) - 1


@dataclass(frozen=True, slots=True)
class Scored:
    """``totals``: int64[nodes]. ``parts``: what each plugin that did not skip adds to them, weighted. ``raw``: the same
    before NormalizeScore and without the weight.
    """  # noqa: D205 - one paragraph

    totals: Scores
    parts: dict[str, Scores] = field(default_factory=dict)
    raw: dict[str, Scores] = field(default_factory=dict)

    def of(self, positions: RowIndex) -> list[dict[str, int]]:
        """For each position, the points by plugin."""
        columns = [scores[positions].tolist() for scores in self.parts.values()]
        rows = zip(*columns, strict=True) if columns else [()] * len(positions)
        return [dict(zip(self.parts, row, strict=True)) for row in rows]


def score(  # noqa: PLR0913 - the parts of one cycle
    pod: Pod, nodes: Nodes, profile: Profile, state: CycleState, results: ClassResults, *, timing: Timing
) -> Scored:
    """Score the feasible nodes. Without any score plugin every node gets 1, as in kube-scheduler.

    Raises:
        PluginFailure: a plugin failed, or a normalized score is not within 0..100.
    """
    if not profile.scores:
        return Scored(np.ones(len(nodes), dtype=np.int64))
    timing.begin("PreScore")
    skipped = {p.name for p in profile.pre_scores if not p.is_row_local and run_pre_score(p, state, pod, nodes)}
    timing.end()
    timing.begin("Score")
    results.refresh_scores()
    scored = Scored(np.zeros(len(nodes), dtype=np.int64))
    for entry in profile.scores:
        if entry.plugin.name not in skipped:
            _add_points(scored, entry, pod, nodes, state, results)
    timing.end()
    return scored


def best_first(totals: Scores, nodes: Nodes, attempt: Attempt, count: int, *, fewer_pods_first: bool) -> RowIndex:
    """Positions in ``nodes`` of the best ``count``, best first.

    Equal totals: fewer pods first if wanted, then by a hash of (uid, attempt, node): the order looks random and is the
    same in every process.
    """
    contenders = _with_most_points(totals, count)
    rows, columns = nodes.rows_at(contenders), nodes.snapshot.columns
    keys = totals[contenders] << _POD_BITS
    if fewer_pods_first:
        keys -= np.minimum(columns.pods[rows], _MAX_PODS).astype(np.int64)
    above, tied = _around_the_last(keys, count)
    seed = np.uint64(hash_of(str(attempt)))
    if len(above) + len(tied) > count:
        chosen = np.argpartition(seeded_hashes(columns.name_hash[rows[tied]], seed), count - len(above) - 1)
        tied = tied[chosen[: count - len(above)]]
    best = np.concatenate((above, tied))
    return contenders[best[np.lexsort((seeded_hashes(columns.name_hash[rows[best]], seed), -keys[best]))]]


def _add_points(  # noqa: PLR0913, PLR0917 - the parts of one cycle
    scored: Scored, entry: WeightedScore, pod: Pod, nodes: Nodes, state: CycleState, results: ClassResults
) -> None:
    """Add one plugin, normalized and weighted; nothing for a row-local one that is skipped."""
    plugin = entry.plugin
    in_range = False
    if plugin.is_row_local:
        column = results.score_columns.get(plugin.name)
        if column is None:
            return
        raw, in_range = nodes.take(column.scores), column.in_range
    else:
        raw = run_score_on_all(plugin, state, pod, nodes)
    scores = raw
    if isinstance(plugin, NormalizePlugin):
        scores, in_range = run_normalize(plugin, state, pod, raw, nodes), False
    if not in_range:
        check_range(plugin, scores)
    points = scores if entry.weight == 1 else scores * entry.weight
    scored.raw[plugin.name], scored.parts[plugin.name] = raw, points
    np.add(scored.totals, points, out=scored.totals)


def _with_most_points(totals: Scores, count: int) -> RowIndex:
    """Positions of the ``count`` largest totals and of all that are equal to the least of them."""
    if len(totals) <= count:
        return np.arange(len(totals))
    return np.flatnonzero(totals >= _last_of_best(totals, count))


def _around_the_last(keys: Scores, count: int) -> tuple[RowIndex, RowIndex]:
    """Positions of keys above the ``count``-th largest (fewer than ``count``), and of those equal to it."""
    last = _last_of_best(keys, count) if len(keys) > count else int(keys.min())
    return np.flatnonzero(keys > last), np.flatnonzero(keys == last)


def _last_of_best(keys: Scores, count: int) -> int:
    """The ``count``-th largest key; there are more than ``count`` keys.

    The keys are divided into ``count`` parts. The smallest of the parts' maxima is a lower bound of the result, since
    at least ``count`` keys are as large. Usually few keys are larger, and only those have to be partitioned.
    """
    part = len(keys) // count
    bound = int(keys[: part * count].reshape(count, part).max(axis=1).min())
    above = keys[keys > bound]
    return bound if len(above) < count else int(np.partition(above, -count)[-count])


def seeded_hashes(hashes: npt.NDArray[np.uint64], seed: np.uint64) -> npt.NDArray[np.uint64]:
    """Hashes mixed with a seed (the finalizer of splitmix64): each seed gives another order."""
    x = hashes ^ seed
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


Points = npt.NDArray[np.float64]
_DECIMALS: Final = 3


def counted_pods(pod: Pod, nodes: Nodes, profile: Profile) -> Scores:
    """int64[nodes]: how many pods on each node count for the pod; itself and nominated pods never do.

    All pods count, unless the profile keeps pods of a kind apart (``Profile.spreading``): then those of its kind do.

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


def counted_pods_by_node(pod: Pod, names: Iterable[str], snapshot: Snapshot, profile: Profile) -> dict[str, int]:
    """The same by node name; 0 for a node that does not exist.

    Raises:
        PluginFailure: a plugin failed.
    """
    rows = {name: row for name in names if (row := snapshot.rows.of(name)) is not None}
    counts = counted_pods(pod, Nodes(snapshot, np.array(list(rows.values()), dtype=np.intp)), profile)
    return defaultdict(int, zip(rows, counts.tolist(), strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class BestNodes:
    """``positions``: which of the scored nodes are the best, best first."""

    pod: Pod
    nodes: Nodes
    scored: Scored
    positions: RowIndex


def losses(best: BestNodes, profile: Profile, state: CycleState, results: ClassResults) -> list[float]:
    """Of each best node, its total minus what that would be if one more pod like this one were there.

    0 where pods do not move the total, negative where they make the node better. Only these nodes are scored again,
    each by itself.

    Raises:
        PluginFailure: a plugin failed.
    """
    pod, raw, positions = best.pod, best.scored.raw, best.positions
    rows, snapshot = best.nodes.rows_at(positions), best.nodes.snapshot
    local = results.scores_with_another(rows)
    whole: Scores = np.zeros(len(rows), dtype=np.int64)
    normalized: Points | None = None
    for entry in profile.scores_that_read_pods:
        plugin = entry.plugin
        before = raw.get(plugin.name)
        if before is None:
            continue
        if plugin.is_row_local:
            after = local[plugin.name]
        else:
            nodes = NodesWithAnother(snapshot, rows, AnotherPod(pod, snapshot))
            after = run_score_with_another(plugin, state, pod, nodes)
        if not isinstance(plugin, NormalizePlugin):
            whole += (before[positions] - after) * entry.weight
        elif (after != before[positions]).any():
            lost = _normalized_loss(plugin, entry.weight, best, after, state)
            normalized = lost if normalized is None else normalized + lost
    if normalized is None:
        whole_points: list[float] = whole.tolist()
        return whole_points
    return [int(loss) if loss.is_integer() else loss for loss in np.round(whole + normalized, _DECIMALS).tolist()]


def _normalized_loss(plugin: NormalizePlugin, weight: int, best: BestNodes, after: Scores, state: CycleState) -> Points:
    """With NormalizeScore as in the ranking: what it gave to these nodes is read off in between.

    A rank has no value in between, and a node with 2 pods beside nodes with 7 must not lose to them by its first
    newcomer. Beyond these scores NormalizeScore is called again, with the changed scores in addition to all others.
    """
    raw, points = best.scored.raw[plugin.name], best.scored.parts[plugin.name][best.positions]
    known, first, inverse = np.unique(raw[best.positions], return_index=True, return_inverse=True)
    follows: bool = bool((points[first][inverse] == points).all())  # the points follow from the raw score alone
    inside = (known[0] <= after) & (after <= known[-1]) & follows
    lost = points - np.interp(after, known, points[first])
    if not inside.all():
        extended = Nodes(best.nodes.snapshot, np.concatenate((best.nodes.rows, best.nodes.rows_at(best.positions))))
        normalized = run_normalize(plugin, state, best.pod, np.concatenate((raw, after)), extended)
        beyond = (normalized[: len(raw)][best.positions] - normalized[len(raw) :]) * weight
        lost = np.where(inside, lost, beyond)
    return np.asarray(lost, dtype=np.float64)
