"""DefaultPodTopologySpread: pods of one service or controller lie evenly over nodes and zones.

Raw: the pods on the node that are the pod's like (likepods), in its namespace and not being deleted. Normalized: with
``max`` the most of any node, ``100 * (max - raw) / max``, 100 where max is 0; a node in a zone has one third of that
and two thirds of the same for the zone's sum over the feasible nodes, without the fraction. A pod with spread
constraints of its own is not scored. As kube-scheduler 1.18's plugin of that name (SelectorSpread from 1.19 on).
"""

from __future__ import annotations

from typing import ClassVar, Final

import numpy as np
import numpy.typing as npt

from berth.api.config.types import Point
from berth.api.pod import Pod
from berth.api.podterms import PodSelector
from berth.api.selectors import NOTHING
from berth.cluster.nodeinfo import NodeInfo
from berth.cluster.nodes import Nodes
from berth.cluster.snapshot import Snapshot
from berth.cluster.tallies import PodKind
from berth.cluster.tally import Counts
from berth.framework.interface import MAX_SCORE, NormalizePlugin, PreScorePlugin, Scores, VectorScorePlugin
from berth.framework.state import CycleState, StateKey
from berth.framework.status import SKIP, SUCCESS, Status
from berth.plugins.factory import PluginFactory, no_args
from berth.plugins.v1_18.likepods import LikePods
from berth.plugins.v1_18.zones import zones_of

NAME: Final = "DefaultPodTopologySpread"
LIKE_PODS: Final = StateKey[Counts]("DefaultPodTopologySpread.like pods")
OF_ZONE: Final = 2.0 / 3.0
"""How much of the points a zone decides; the node itself has the rest."""


class DefaultPodTopologySpread(PreScorePlugin, VectorScorePlugin, NormalizePlugin):
    """Scores by how many pods like this one are there."""

    name: ClassVar[str] = NAME

    def pre_score(self, state: CycleState, pod: Pod, nodes: Nodes) -> Status:
        """Skip for a pod that says itself how it is to be spread."""
        if pod.spec.topology_spread_constraints:
            return SKIP
        state.write(LIKE_PODS, like_pods(pod, nodes.snapshot))
        return SUCCESS

    def score(self, state: CycleState, pod: Pod, node: NodeInfo) -> int:
        """How many of them the node has."""
        return int(state.read(LIKE_PODS)[node.row])

    def score_all(self, state: CycleState, pod: Pod, nodes: Nodes) -> Scores:
        """The same for all nodes."""
        return nodes.take(state.read(LIKE_PODS)).astype(np.int64)

    def normalize(self, state: CycleState, pod: Pod, scores: Scores, nodes: Nodes) -> Scores:
        """Fewest on the node and in its zone first."""
        points, zones = _fewest_first(scores), zones_of(nodes)
        if zones.any():
            sums = np.bincount(zones, weights=scores)
            sums[0] = 0  # number 0 is no zone
            of_zone = _fewest_first(sums)[zones]
            points = np.where(zones > 0, points * (1.0 - OF_ZONE) + OF_ZONE * of_zone, points)
        normalized: Scores = points.astype(np.int64)
        return normalized


def like_pods(pod: Pod, snapshot: Snapshot) -> Counts:
    """int32[capacity]: how many pods like this one are on each row; nobody is when nothing selects the pod."""
    labels = snapshot.live.derived(NAME, lambda: LikePods(snapshot)).of(pod)
    if labels is None:
        return np.zeros(snapshot.columns.capacity, dtype=np.int32)
    selector = PodSelector(frozenset((pod.metadata.namespace,)), NOTHING, labels)
    return snapshot.groups.tally(PodKind((selector,), living=True)).counts


def _fewest_first(counts: npt.NDArray[np.generic]) -> npt.NDArray[np.float64]:
    """100 for none, 0 for the most; divided first, then times 100, as in kube-scheduler."""
    numbers = counts.astype(np.float64)
    most = numbers.max(initial=0.0)
    return np.full(len(numbers), float(MAX_SCORE)) if most == 0 else MAX_SCORE * ((most - numbers) / most)


FACTORY: Final = PluginFactory(
    name=NAME, points=(Point.PRE_SCORE, Point.SCORE), build=no_args(DefaultPodTopologySpread), only_in_presets=True
)
