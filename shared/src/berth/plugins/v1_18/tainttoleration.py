"""TaintToleration: keeps pods off nodes whose taints they do not tolerate, and prefers nodes with fewer mild ones.

Filter and score: as today's plugin of that name. PreScore: picks the tolerations that count against mild taints, which
kube-scheduler 1.18 lists as a point of the plugin's own.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from berth.api.config.types import Point
from berth.api.pod import Pod, Toleration
from berth.api.taints import PREFER_NO_SCHEDULE, discouraging
from berth.cluster.nodeinfo import NodeInfo
from berth.cluster.nodes import Nodes
from berth.framework.interface import PreScorePlugin, Scores
from berth.framework.state import CycleState, StateKey
from berth.framework.status import SUCCESS, Status
from berth.plugins import tainttoleration
from berth.plugins.factory import no_args
from berth.plugins.matching import by_taints

MILD: Final = StateKey[tuple[Toleration, ...]]("TaintToleration.mild")


class TaintToleration(tainttoleration.TaintToleration, PreScorePlugin):
    """Filters by NoSchedule and NoExecute, scores by PreferNoSchedule."""

    def pre_score(self, state: CycleState, pod: Pod, nodes: Nodes) -> Status:
        """The tolerations of every effect and of PreferNoSchedule; never Skip."""
        state.write(MILD, tuple(t for t in state.pod_class.tolerations if t.effect in ("", PREFER_NO_SCHEDULE)))
        return SUCCESS

    def score(self, state: CycleState, pod: Pod, node: NodeInfo) -> int:
        """How many mild taints the pod does not tolerate."""
        tolerations = state.read(MILD)
        return discouraging(node.taints, tolerations)

    def score_all(self, state: CycleState, pod: Pod, nodes: Nodes) -> Scores:
        """The same for all nodes."""
        tolerations = state.read(MILD)
        return by_taints(nodes, lambda taints: discouraging(taints, tolerations))


FACTORY: Final = replace(
    tainttoleration.FACTORY,
    points=(Point.FILTER, Point.PRE_SCORE, Point.SCORE),
    build=no_args(TaintToleration),
)
