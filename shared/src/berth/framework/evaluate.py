"""Asking one plugin about many nodes: by its vector form where it has one, one node after another otherwise."""

from __future__ import annotations

import numpy as np

from berth.api.pod import Pod
from berth.cluster.nodes import Nodes
from berth.framework.guard import call, checked_scores, checked_verdicts, limited, whole_numbers
from berth.framework.interface import FilterPlugin, ScorePlugin, Scores, VectorFilterPlugin, VectorScorePlugin
from berth.framework.state import CycleState
from berth.framework.status import SUCCESS, Status
from berth.framework.verdicts import Verdicts


def evaluate_filter(plugin: FilterPlugin, state: CycleState, pod: Pod, nodes: Nodes) -> Verdicts:
    """One verdict a node; rows without a node get success, which nobody looks at.

    Raises:
        PluginFailure: the plugin raised or answered in a wrong form.
    """
    if isinstance(plugin, VectorFilterPlugin):
        verdicts = call(plugin, "Filter", plugin.filter_all, Verdicts, state, pod, nodes)
        return checked_verdicts(plugin, verdicts, len(nodes))

    def one_by_one() -> Verdicts:
        return Verdicts.of(
            SUCCESS if info is None else call(plugin, "Filter", plugin.filter, Status, state, pod, info)
            for info in nodes.infos()
        )

    return limited(plugin, "Filter", one_by_one)


def evaluate_score(plugin: ScorePlugin, state: CycleState, pod: Pod, nodes: Nodes) -> Scores:
    """One raw score a node; rows without a node get 0, which nobody looks at.

    Raises:
        PluginFailure: the plugin raised or answered in a wrong form.
    """
    if isinstance(plugin, VectorScorePlugin):
        scores = call(plugin, "Score", plugin.score_all, np.ndarray, state, pod, nodes)
        return checked_scores(plugin, scores, len(nodes))

    def one_by_one() -> list[int]:
        return [
            0 if info is None else call(plugin, "Score", plugin.score, int, state, pod, info) for info in nodes.infos()
        ]

    return whole_numbers(plugin, limited(plugin, "Score", one_by_one))
