"""ImageLocality: prefers nodes that have the pod's images already, those of its containers.

Score: as today's plugin of that name, but init containers and volumes do not count: neither their images nor, for the
most that counts, their number. As in kube-scheduler 1.18.


InterPodAffinity: pods that must, or would rather, be together with other pods or apart from them, by topology.

Filter and raw score: as today's plugin of that name. Normalized so that the least, but not more than 0, is 0, and the
most, but not less than 0, is 100: when every node has something that is wished for, the least of them is not 0. As in
kube-scheduler 1.18.


NodeAffinity: nodeSelector and required terms decide where a pod may run, preferred terms where it would rather.

Filter: as today's plugin of that name. Score: of preferred terms only expressions on labels count, those on the node's
name (matchFields) do not; a term without any expression on labels holds nowhere. As in kube-scheduler 1.18.


TaintToleration: keeps pods off nodes whose taints they do not tolerate, and prefers nodes with fewer mild ones.

Filter and score: as today's plugin of that name. PreScore: picks the tolerations that count against mild taints, which
kube-scheduler 1.18 lists as a point of the plugin's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from berth.api.config.types import Point
from berth.api.node import PREFER_NO_SCHEDULE, count_untolerated_prefer_no_schedule
from berth.api.pod import Pod, Toleration
from berth.api.selectors import NodeTerm, WeightedNodeTerm
from berth.cluster.nodes import NodeInfo, Nodes
from berth.framework.interface import MAX_SCORE, PreScorePlugin, Scores
from berth.framework.state import CycleState, StateKey
from berth.framework.status import SUCCESS, Status
from berth.plugins import imagelocality, nodeaffinity, tainttoleration
from berth.plugins.factory import PluginFactory, no_args
from berth.plugins.interpodaffinity import plugin as interpodaffinity
from berth.plugins.interpodaffinity.plugin import InterPodAffinityArgs
from berth.plugins.matching import by_taints
from berth.plugins.nodeaffinity import NodeAffinityArgs


class ImageLocalityV118(imagelocality.ImageLocality):
    """Scores by the images of containers."""

    def images(self, pod: Pod) -> list[str]:
        """Of containers, as nodes write them: with a tag."""
        return [imagelocality.tagged(container.image) for container in pod.spec.containers or ()]

    def most(self, pod: Pod) -> int:
        """Bytes from which on a node is as good as can be."""
        return imagelocality.MOST * max(1, len(pod.spec.containers or ()))


IMAGE_LOCALITY_FACTORY: Final = PluginFactory(
    name=imagelocality.NAME, points=(Point.SCORE,), build=no_args(ImageLocalityV118)
)


class InterPodAffinityV118(interpodaffinity.InterPodAffinity):
    """Filters and scores by who is where."""

    def normalize(self, state: CycleState, pod: Pod, scores: Scores, nodes: Nodes) -> Scores:
        """Divided first, then times 100, as in kube-scheduler."""
        least, most = min(0, int(scores.min())), max(0, int(scores.max()))
        if least == most:
            return np.zeros(len(scores), dtype=np.int64)
        normalized: Scores = (MAX_SCORE * ((scores - least) / float(most - least))).astype(np.int64)
        return normalized


def _build(args: Any) -> InterPodAffinityV118:
    return InterPodAffinityV118(args or InterPodAffinityArgs())


INTER_POD_AFFINITY_FACTORY: Final = replace(interpodaffinity.FACTORY, build=_build)


class NodeAffinityV118(nodeaffinity.NodeAffinityPlugin):
    """Filters by required terms, scores by the labels that preferred ones name."""

    def preferred(self, state: CycleState) -> Sequence[WeightedNodeTerm]:
        """The preferred terms without what they say of names."""
        return [WeightedNodeTerm(w.weight, NodeTerm(w.term.labels)) for w in super().preferred(state) if w.term.labels]


def _build_node_affinity(args: Any) -> NodeAffinityV118:
    return NodeAffinityV118(args or NodeAffinityArgs())


NODE_AFFINITY_FACTORY: Final = replace(nodeaffinity.FACTORY, build=_build_node_affinity)


MILD: Final = StateKey[tuple[Toleration, ...]]("TaintToleration.mild")


class TaintTolerationV118(tainttoleration.TaintToleration, PreScorePlugin):
    """Filters by NoSchedule and NoExecute, scores by PreferNoSchedule."""

    def pre_score(self, state: CycleState, pod: Pod, nodes: Nodes) -> Status:
        """The tolerations of every effect and of PreferNoSchedule; never Skip."""
        state.write(MILD, tuple(t for t in state.pod_class.tolerations if t.effect in ("", PREFER_NO_SCHEDULE)))
        return SUCCESS

    def score(self, state: CycleState, pod: Pod, node: NodeInfo) -> int:
        """How many mild taints the pod does not tolerate."""
        tolerations = state.read(MILD)
        return count_untolerated_prefer_no_schedule(node.taints, tolerations)

    def score_all(self, state: CycleState, pod: Pod, nodes: Nodes) -> Scores:
        """The same for all nodes."""
        tolerations = state.read(MILD)
        return by_taints(nodes, lambda taints: count_untolerated_prefer_no_schedule(taints, tolerations))


TAINT_TOLERATION_FACTORY: Final = replace(
    tainttoleration.FACTORY,
    points=(Point.FILTER, Point.PRE_SCORE, Point.SCORE),
    build=no_args(TaintTolerationV118),
)
