"""Today's plugins with kube-scheduler 1.18's scores; the filters are today's.

- ImageLocality: only containers count, not init containers and image volumes.
- InterPodAffinity: normalized so that min(least, 0) is 0 and max(most, 0) is 100.
- NodeAffinity: only label expressions of preferred terms count; a term without any matches no node.
- TaintToleration: PreScore selects the tolerations of PreferNoSchedule; 1.18 lists it as a point of the plugin.
- PodTopologySpread: raw is the number of pods in the node's domains, added up over the constraints. With the sum and
  the least over the feasible nodes that have all topology keys: ``100 * (sum - raw) / (sum - least)`` in whole numbers,
  0 for other nodes, 100 for all if the divisor is 0. The default constraints are empty.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from berth.api.config.types import Point
from berth.api.node import PREFER_NO_SCHEDULE, count_untolerated_prefer_no_schedule
from berth.api.pod import Pod, Toleration
from berth.api.selectors import (
    NodeTerm,
    WeightedNodeTerm,
)
from berth.cluster.nodes import NodeInfo, Nodes
from berth.cluster.pods import EquivalenceClass
from berth.framework.interface import MAX_SCORE, PreScorePlugin, Scores
from berth.framework.status import SKIP, SUCCESS, CycleState, StateKey, Status
from berth.plugins import imagelocality, nodeaffinity, tainttoleration
from berth.plugins.domains import DomainSums
from berth.plugins.factory import PluginFactory, no_args, with_args
from berth.plugins.interpodaffinity import plugin as interpodaffinity
from berth.plugins.podtopologyspread import plugin as podtopologyspread
from berth.plugins.podtopologyspread.constraints import SCHEDULE_ANYWAY, Constraint, has_all_keys
from berth.plugins.podtopologyspread.counts import ConstraintScore, SpreadScores
from berth.plugins.podtopologyspread.plugin import LIST, PodTopologySpreadArgs, validate


class ImageLocalityV118(imagelocality.ImageLocality):
    """Counts only the images of containers."""

    def images(self, pod: Pod) -> list[str]:
        return [imagelocality.tagged(container.image) for container in pod.spec.containers or ()]

    def most(self, pod: Pod) -> int:
        return imagelocality.MOST * max(1, len(pod.spec.containers or ()))


class InterPodAffinityV118(interpodaffinity.InterPodAffinity):
    """Normalizes with 0 within the range."""

    def normalize(self, state: CycleState, pod: Pod, scores: Scores, nodes: Nodes) -> Scores:
        # Divided first, then times 100, as in kube-scheduler.
        least, most = min(0, int(scores.min())), max(0, int(scores.max()))
        if least == most:
            return np.zeros(len(scores), dtype=np.int64)
        normalized: Scores = (MAX_SCORE * ((scores - least) / float(most - least))).astype(np.int64)
        return normalized


class NodeAffinityV118(nodeaffinity.NodeAffinityPlugin):
    """Ignores matchFields of preferred terms."""

    def preferred(self, state: CycleState) -> Sequence[WeightedNodeTerm]:
        return [WeightedNodeTerm(w.weight, NodeTerm(w.term.labels)) for w in super().preferred(state) if w.term.labels]


MILD: Final = StateKey[tuple[Toleration, ...]]("TaintToleration.mild")


class TaintTolerationV118(tainttoleration.TaintToleration, PreScorePlugin):
    """Selects the tolerations in PreScore."""

    def pre_score(self, state: CycleState, pod: Pod, nodes: Nodes) -> Status:
        """Never Skip, as in kube-scheduler 1.18."""
        state.write(MILD, tuple(t for t in state.pod_class.tolerations if t.effect in ("", PREFER_NO_SCHEDULE)))
        return SUCCESS

    def score(self, state: CycleState, pod: Pod, node: NodeInfo) -> int:
        tolerations = state.read(MILD)
        return count_untolerated_prefer_no_schedule(node.taints, tolerations)

    def score_all(self, state: CycleState, pod: Pod, nodes: Nodes) -> Scores:
        tolerations = state.read(MILD)
        return nodes.by_taints(lambda taints: count_untolerated_prefer_no_schedule(taints, tolerations))


class PodTopologySpreadArgsV118(PodTopologySpreadArgs, frozen=True, kw_only=True):
    """``defaultConstraints``: for pods without constraints of their own; empty by default."""

    defaulting_type: str = LIST


class PodTopologySpreadV118(podtopologyspread.PodTopologySpread):
    """Scores by the sum of the matching pods."""

    def pre_score(self, state: CycleState, pod: Pod, nodes: Nodes) -> Status:
        constraints = self.constraints(pod, SCHEDULE_ANYWAY, nodes.snapshot)
        if not constraints:
            return SKIP
        state.write(podtopologyspread.SPREAD_SCORES, _spread_scores(constraints, pod, state.pod_class, nodes))
        return SUCCESS

    def normalize(self, state: CycleState, pod: Pod, scores: Scores, nodes: Nodes) -> Scores:
        ignored = nodes.take(state.read(podtopologyspread.SPREAD_SCORES).ignored)
        counted = scores[~ignored]
        if not len(counted):
            return np.zeros(len(scores), dtype=np.int64)
        total, least = int(counted.sum()), int(counted.min())
        if total == least:
            return np.full(len(scores), MAX_SCORE, dtype=np.int64)
        points = (MAX_SCORE * ((total - scores) / float(total - least))).astype(np.int64)
        return np.where(ignored, 0, points)


def _spread_scores(
    constraints: tuple[Constraint, ...], pod: Pod, pod_class: EquivalenceClass, nodes: Nodes
) -> SpreadScores:
    every = Nodes(nodes.snapshot)
    complete = has_all_keys(constraints, every)
    counted = [
        (c, c.counts(nodes.snapshot), complete & c.eligible_mask(nodes.snapshot, pod_class)) for c in constraints
    ]
    scores = (
        ConstraintScore(
            DomainSums.of_column(nodes.snapshot, c.key, counts, among), None, 1.0, 0, int(c.counts_pod(pod))
        )
        for c, counts, among in counted
    )
    return SpreadScores(tuple(scores), ~complete)


IMAGE_LOCALITY_FACTORY: Final = PluginFactory(
    name=imagelocality.NAME, points=(Point.SCORE,), build=no_args(ImageLocalityV118)
)
INTER_POD_AFFINITY_FACTORY: Final = replace(
    interpodaffinity.FACTORY, build=with_args(InterPodAffinityV118, interpodaffinity.InterPodAffinityArgs)
)
NODE_AFFINITY_FACTORY: Final = replace(
    nodeaffinity.FACTORY, build=with_args(NodeAffinityV118, nodeaffinity.NodeAffinityArgs)
)
TAINT_TOLERATION_FACTORY: Final = replace(
    tainttoleration.FACTORY,
    points=(Point.FILTER, Point.PRE_SCORE, Point.SCORE),
    build=no_args(TaintTolerationV118),
)
POD_TOPOLOGY_SPREAD_FACTORY: Final = replace(
    podtopologyspread.FACTORY,
    build=with_args(PodTopologySpreadV118, PodTopologySpreadArgsV118),
    args_type=PodTopologySpreadArgsV118,
    validate=validate,
)
