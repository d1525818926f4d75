"""PreScore, Score and NormalizeScore of one cycle, and which of the scored nodes come first.

Best first: more points, then fewer pods, then a hash that differs by pod and attempt. Plugins can normalize in two
ways: in proportion, or by rank.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from berth.api.pod import Pod
from berth.api.subjects import Attempt
from berth.cluster.columns import hash_of
from berth.cluster.nodes import Nodes, RowIndex
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
    run_normalize,
    run_pre_score,
    run_score_on_all,
)
from berth.framework.profile import Profile, WeightedScore
from berth.framework.state import CycleState


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
