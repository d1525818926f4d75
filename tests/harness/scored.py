"""What one score plugin gives to the nodes of a Snapshot, from PreScore to NormalizeScore."""

from __future__ import annotations

from berth.api.pod import Pod
from berth.cluster.nodes import Nodes
from berth.cluster.snapshot import Snapshot
from berth.framework.interface import NormalizePlugin, PreScorePlugin, VectorScorePlugin
from berth.framework.state import CycleState


def points(plugin: VectorScorePlugin, pod: Pod, snapshot: Snapshot) -> dict[str, int] | None:
    """Node to points before the weight; None when the plugin leaves the pod out."""
    state, nodes = CycleState(snapshot.class_of(pod)), Nodes(snapshot)
    if isinstance(plugin, PreScorePlugin) and plugin.pre_score(state, pod, nodes).is_skip:
        return None
    scores = plugin.score_all(state, pod, nodes)
    if isinstance(plugin, NormalizePlugin):
        scores = plugin.normalize(state, pod, scores, nodes)
    return dict(zip(nodes.names, scores.tolist(), strict=True))
