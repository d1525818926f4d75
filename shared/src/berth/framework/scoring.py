"""PreScore, Score and NormalizeScore of one cycle: how good the feasible nodes are.

From raw scores to 0..100: in proportion (DefaultNormalizeScore), or by their place among the others.

Which of the feasible nodes come first: more points, then fewer pods, then a hash that differs by pod and attempt.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from berth.api.pod import Pod
from berth.api.subjects import Attempt
from berth.cluster.columns import hash_of
from berth.cluster.nodes import Nodes, RowIndex
from berth.framework.equivalencecache import WeightedScore
from berth.framework.filtering import PreFiltered
from berth.framework.interface import MAX_SCORE, MIN_SCORE, NormalizePlugin, PreScorePlugin, Scores
from berth.framework.plugincalls import call, check_range, checked_scores, evaluate_score, says_skip
from berth.framework.profile import Profile
from berth.framework.status import Status
from berth.framework.timing import Timing


@dataclass(frozen=True, slots=True)
class Scored:
    """``totals``: int64[nodes]. ``parts``: what each plugin that did not skip adds to them, weighted."""

    totals: Scores
    parts: dict[str, Scores]

    def of(self, positions: RowIndex) -> list[dict[str, int]]:
        """The points of some nodes by plugin."""
        columns = [scores[positions].tolist() for scores in self.parts.values()]
        rows = zip(*columns, strict=True) if columns else [()] * len(positions)
        return [dict(zip(self.parts, row, strict=True)) for row in rows]


def score(pod: Pod, nodes: Nodes, profile: Profile, found: PreFiltered, timing: Timing) -> Scored:
    """Score the feasible nodes. Without any score plugin every node gets 1, as in kube-scheduler.

    Raises:
        PluginFailure: a plugin failed, or a normalized score is not within 0..100.
    """
    if not profile.scores:
        return Scored(np.ones(len(nodes), dtype=np.int64), {})
    timing.begin("PreScore")
    skipped = {p.name for p in profile.pre_scores if not p.is_row_local and _skips(p, pod, nodes, found)}
    timing.end()
    timing.begin("Score")
    found.view.refresh_scores()
    parts: dict[str, Scores] = {}
    totals: Scores = np.zeros(len(nodes), dtype=np.int64)
    for entry in profile.scores:
        points = _points(entry, pod, nodes, found) if entry.plugin.name not in skipped else None
        if points is not None:
            parts[entry.plugin.name] = points
            totals += points
    timing.end()
    return Scored(totals, parts)


def _skips(plugin: PreScorePlugin, pod: Pod, nodes: Nodes, found: PreFiltered) -> bool:
    return says_skip(plugin, call(plugin, "PreScore", plugin.pre_score, Status, found.state, pod, nodes))


def _points(entry: WeightedScore, pod: Pod, nodes: Nodes, found: PreFiltered) -> Scores | None:
    plugin, state = entry.plugin, found.state
    trusted = False
    if plugin.is_row_local:
        column = found.view.score_columns.get(plugin.name)
        if column is None:
            return None
        scores, trusted = nodes.take(column.scores), column.in_range
    else:
        scores = evaluate_score(plugin, state, pod, nodes)
    if isinstance(plugin, NormalizePlugin):
        normalized = call(plugin, "NormalizeScore", plugin.normalize, np.ndarray, state, pod, scores, nodes)
        scores, trusted = checked_scores(plugin, normalized, len(nodes)), False
    if not trusted:
        check_range(plugin, scores)
    return scores if entry.weight == 1 else scores * entry.weight  # not to be changed: it may be what is remembered


def default_normalize(scores: Scores, *, reverse: bool = False) -> Scores:
    """``100 * score / largest`` in whole numbers, counted from the other end when reversed.

    All scores 0: unchanged, or all 100 when reversed. Scores are 0 or more.
    """
    largest = int(scores.max(initial=0))
    if largest == 0:
        return scores + MAX_SCORE if reverse else scores
    stretched = MAX_SCORE * scores // largest
    return MAX_SCORE - stretched if reverse else stretched


def normalize_by_place(scores: Scores) -> Scores:
    """100 for the largest number, 99 for the next smaller one that occurs, and so on; never below 0.

    For what must be kept in order to the last unit: in proportion, 100,001 and 100,000 would be equal.
    """
    _, places = np.unique(scores, return_inverse=True)
    normalized: Scores = np.maximum(MAX_SCORE - (places.max(initial=0) - places), MIN_SCORE).astype(np.int64)
    return normalized


_POD_BITS = 20

_MAX_PODS = (1 << _POD_BITS) - 1


def best_first(totals: Scores, nodes: Nodes, attempt: Attempt, count: int, *, fewer_pods_first: bool) -> RowIndex:
    """Positions in ``nodes`` of the best ``count``, best first.

    Equal totals: fewer pods first, unless that is switched off, then by a hash of (uid, attempt, node): spread like
    chance, and the same input gives the same order in every process.
    """
    contenders = _with_most_points(totals, count)
    rows, columns = nodes.rows_at(contenders), nodes.snapshot.columns
    keys = totals[contenders] << _POD_BITS
    if fewer_pods_first:
        keys -= np.minimum(columns.pods[rows], _MAX_PODS).astype(np.int64)
    above, tied = _around_the_last(keys, count)
    seed = np.uint64(hash_of(str(attempt)))
    if len(above) + len(tied) > count:
        places = np.argpartition(mixed(columns.name_hash[rows[tied]], seed), count - len(above) - 1)
        tied = tied[places[: count - len(above)]]
    best = np.concatenate((above, tied))
    return contenders[best[np.lexsort((mixed(columns.name_hash[rows[best]], seed), -keys[best]))]]


def _with_most_points(totals: Scores, count: int) -> RowIndex:
    """Positions of the ``count`` largest totals and of all that are equal to the least of them: nobody else is one."""
    if len(totals) <= count:
        return np.arange(len(totals))
    return np.flatnonzero(totals >= _last_of_best(totals, count))


def _around_the_last(keys: Scores, count: int) -> tuple[RowIndex, RowIndex]:
    """Positions of keys above the ``count``-th largest (fewer than ``count``), and of those equal to it."""
    last = _last_of_best(keys, count) if len(keys) > count else int(keys.min())
    return np.flatnonzero(keys > last), np.flatnonzero(keys == last)


def _last_of_best(keys: Scores, count: int) -> int:
    """The ``count``-th largest of more than so many.

    The largest of each of ``count`` parts: so many are at least as large as the least of these. Mostly few are larger,
    and only those have to be partitioned.
    """
    part = len(keys) // count
    bound = int(keys[: part * count].reshape(count, part).max(axis=1).min())
    above = keys[keys > bound]
    return bound if len(above) < count else int(np.partition(above, -count)[-count])


def mixed(hashes: npt.NDArray[np.uint64], seed: np.uint64) -> npt.NDArray[np.uint64]:
    """Hashes stirred with a seed (the finalizer of splitmix64): each seed gives another order."""
    x = hashes ^ seed
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
