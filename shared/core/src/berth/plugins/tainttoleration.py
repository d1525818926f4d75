"""TaintToleration: filters out nodes with untolerated taints, and prefers nodes with fewer untolerated mild ones.

Score: the number of PreferNoSchedule taints that the pod does not tolerate, normalized to 0..100 and reversed: a node
without any has 100, the node with the most has 0. As kube-scheduler's plugin of that name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Final

from berth.api.config.types import Point
from berth.api.node import Node, count_untolerated_prefer_no_schedule, first_untolerated
from berth.api.pod import Pod
from berth.cluster.nodes import NodeInfo, Nodes
from berth.framework.events import Action, ClusterEvent, EventHint, Resource, encoded, nothing
from berth.framework.interface import (
    EnqueueExtensions,
    NormalizePlugin,
    Reads,
    Scores,
    VectorFilterPlugin,
    VectorScorePlugin,
)
from berth.framework.scoring import default_normalize
from berth.framework.status import SUCCESS, CycleState, Status, Verdicts
from berth.plugins.factory import PluginFactory, no_args
from berth.plugins.matching import by_taints, untolerated_mask

NAME: Final = "TaintToleration"
UNTOLERATED: Final = Status.unresolvable("node(s) had untolerated taint(s)")


class TaintToleration(VectorFilterPlugin, VectorScorePlugin, NormalizePlugin, EnqueueExtensions):
    """Filters by NoSchedule and NoExecute, scores by PreferNoSchedule."""

    name: ClassVar[str] = NAME
    reads = Reads.NODE

    def filter(self, state: CycleState, pod: Pod, node: NodeInfo) -> Status:
        return SUCCESS if first_untolerated(node.taints, state.pod_class.tolerations) is None else UNTOLERATED

    def filter_all(self, state: CycleState, pod: Pod, nodes: Nodes) -> Verdicts:
        """Evaluated once for each different list of taints."""
        return Verdicts.refusing(untolerated_mask(state.pod_class.tolerations, nodes), UNTOLERATED)

    def score(self, state: CycleState, pod: Pod, node: NodeInfo) -> int:
        """The number of untolerated PreferNoSchedule taints."""
        return count_untolerated_prefer_no_schedule(node.taints, state.pod_class.tolerations)

    def score_all(self, state: CycleState, pod: Pod, nodes: Nodes) -> Scores:
        tolerations = state.pod_class.tolerations
        return by_taints(nodes, lambda taints: count_untolerated_prefer_no_schedule(taints, tolerations))

    def normalize(self, state: CycleState, pod: Pod, scores: Scores, nodes: Nodes) -> Scores:
        """Fewest taints first."""
        return default_normalize(scores, reverse=True)

    def events(self) -> Sequence[EventHint]:
        """A node is added or its taints change; the pod gets tolerations."""
        return (
            EventHint(
                ClusterEvent(Resource.NODE, Action.ADD | Action.UPDATE_NODE_TAINT),
                _is_tolerable_now,
                key=lambda pod: encoded(pod.spec.tolerations),
            ),
            EventHint(ClusterEvent(Resource.POD, Action.UPDATE_POD_TOLERATIONS), _is_itself, key=nothing),
        )


def _is_tolerable_now(pod: Pod, old: object, new: object) -> bool:
    tolerations = pod.spec.tolerations or []
    was = isinstance(old, Node) and first_untolerated(old.spec.taints or (), tolerations) is None
    return isinstance(new, Node) and not was and first_untolerated(new.spec.taints or (), tolerations) is None


def _is_itself(pod: Pod, _: object, new: object) -> bool:
    return isinstance(new, Pod) and new.uid == pod.uid


FACTORY: Final = PluginFactory(name=NAME, points=(Point.FILTER, Point.SCORE), build=no_args(TaintToleration))
