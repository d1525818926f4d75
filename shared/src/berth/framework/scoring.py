"""PreScore, Score and NormalizeScore of one cycle: how good the feasible nodes are."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from berth.api.pod import Pod
from berth.cluster.nodes import Nodes, RowIndex
from berth.framework.classmemory import WeightedScore
from berth.framework.evaluate import evaluate_score
from berth.framework.filtering import PreFiltered
from berth.framework.guard import call, check_range, checked_scores, says_skip
from berth.framework.interface import NormalizePlugin, PreScorePlugin, Scores
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
