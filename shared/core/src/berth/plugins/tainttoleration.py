"""TaintToleration: rejects nodes with untolerated taints, and prefers nodes with fewer untolerated mild ones.

Score: the number of untolerated PreferNoSchedule taints, normalized to 0..100 and reversed: a node without any has 100,
the node with the most has 0. As kube-scheduler's plugin of that name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from heapq import nlargest
from typing import ClassVar, Final

import numpy as np

from berth.api.config.types import Point
from berth.api.node import (
    NO_SCHEDULE_EFFECTS,
    UNSCHEDULABLE_TAINT,
    Node,
    Taint,
    count_untolerated_prefer_no_schedule,
    first_untolerated,
    is_tolerated,
)
from berth.api.pod import Pod
from berth.cluster.nodes import Mask, NodeInfo, Nodes, RejectedNodes
from berth.framework.events import Action, ClusterEvent, EventHint, Resource, encoded, nothing
from berth.framework.interface import (
    EnqueueExtensions,
    NormalizePlugin,
    Reads,
    RemedyPlugin,
    RemedySentence,
    Scores,
    VectorFilterPlugin,
    VectorScorePlugin,
)
from berth.framework.scoring import default_normalize
from berth.framework.status import SUCCESS, CycleState, Status, Verdicts
from berth.plugins import nodeunschedulable
from berth.plugins.factory import PluginFactory, no_args

NAME: Final = "TaintToleration"
UNTOLERATED: Final = Status.unresolvable("node(s) had untolerated taint(s)")
# Taints of these domains that people set and remove are left out, such as node.kubernetes.io/out-of-service.
# Keys of taints that Kubernetes sets on a node with a problem and removes by itself: a toleration is no remedy.
NODE_PROBLEMS: Final = frozenset(
    {
        "node.kubernetes.io/not-ready",
        "node.kubernetes.io/unreachable",
        "node.kubernetes.io/memory-pressure",
        "node.kubernetes.io/disk-pressure",
        "node.kubernetes.io/pid-pressure",
        "node.kubernetes.io/network-unavailable",
        "node.cloudprovider.kubernetes.io/uninitialized",
        "node.cloudprovider.kubernetes.io/shutdown",
    }
)
# Taints with a sentence: those of most nodes, because each node may have its own.
_MAX_SENTENCES: Final = 8


class TaintToleration(VectorFilterPlugin, RemedyPlugin, VectorScorePlugin, NormalizePlugin, EnqueueExtensions):
    """Filters by NoSchedule and NoExecute, scores by PreferNoSchedule."""

    name: ClassVar[str] = NAME
    reads = Reads.NODE

    def filter(self, state: CycleState, pod: Pod, node: NodeInfo) -> Status:
        taints = node.taints
        if not taints or first_untolerated(taints, state.pod_class.tolerations) is None:
            return SUCCESS
        return UNTOLERATED

    def filter_all(self, state: CycleState, pod: Pod, nodes: Nodes) -> Verdicts:
        """Evaluated once per distinct list of taints."""
        return Verdicts.refusing(nodes.untolerated(state.pod_class.tolerations), UNTOLERATED)

    def remedy(self, state: CycleState, pod: Pod, nodes: RejectedNodes) -> Iterable[RemedySentence]:
        """One sentence per taint; for the taint of a cordon only if NodeUnschedulable does not reject the node."""
        taints, tolerations = nodes.taints, state.pod_class.tolerations
        sizes = dict(zip(*(each.tolist() for each in np.unique(taints, return_counts=True)), strict=True))
        sets: dict[Taint, list[int]] = {}
        for number in sizes:
            for taint in dict.fromkeys(nodes.taint_sets[number]):
                if taint.effect in NO_SCHEDULE_EFFECTS and not is_tolerated(taint, tolerations):
                    sets.setdefault(taint, []).append(number)
        untolerated = Counter(number for having in sets.values() for number in having)
        only = nodes.alone & np.isin(taints, [number for number, count in untolerated.items() if count == 1])
        for taint in nlargest(_MAX_SENTENCES, sets, key=lambda each: sum(sizes[number] for number in sets[each])):
            having = np.isin(taints, sets[taint])
            if _is_of_a_cordon(taint):
                having &= ~nodes.rejected_by(nodeunschedulable.NAME)
            before, after = _in_words(taint)
            yield RemedySentence(about=_text(taint), nodes=having, only=only, before=before, after=after)

    def score(self, state: CycleState, pod: Pod, node: NodeInfo) -> int:
        return count_untolerated_prefer_no_schedule(node.taints, state.pod_class.tolerations)

    def score_all(self, state: CycleState, pod: Pod, nodes: Nodes) -> Scores:
        tolerations = state.pod_class.tolerations
        return nodes.by_taints(lambda taints: count_untolerated_prefer_no_schedule(taints, tolerations))

    def normalize(self, state: CycleState, pod: Pod, scores: Scores, nodes: Nodes) -> Scores:
        return default_normalize(scores, reverse=True)

    def events(self) -> Sequence[EventHint]:
        return (
            EventHint(
                ClusterEvent(Resource.NODE, Action.ADD | Action.UPDATE_NODE_TAINT),
                _is_tolerable_now,
                key=lambda pod: encoded(pod.spec.tolerations),
            ),
            EventHint(ClusterEvent(Resource.POD, Action.UPDATE_POD_TOLERATIONS), _is_itself, key=nothing),
        )


def tainted_by_a_cordon_only(state: CycleState, nodes: Nodes) -> Mask:
    """Nodes with no other untolerated taint than the one that Kubernetes gives to cordoned nodes."""
    tolerations = state.pod_class.tolerations
    others = nodes.by_taints(
        lambda taints: first_untolerated([t for t in taints if not _is_of_a_cordon(t)], tolerations) is not None,
    )
    return np.equal(others, 0)


def _is_of_a_cordon(taint: Taint) -> bool:
    return (taint.key, taint.effect) == (UNSCHEDULABLE_TAINT.key, UNSCHEDULABLE_TAINT.effect)


def _text(taint: Taint) -> str:
    return f"{taint.key}{f'={taint.value}' if taint.value else ''}:{taint.effect}"


def _in_words(taint: Taint) -> tuple[str, str]:
    text = _text(taint)
    if taint.key in NODE_PROBLEMS:
        return "", f"have {text}, a taint that Kubernetes takes away once the node is well"
    if _is_of_a_cordon(taint):
        return "", f"have {text}, a taint that Kubernetes takes away from nodes that are not cordoned"
    return f"has no toleration of the taint {text}, which", "have"


def _is_tolerable_now(pod: Pod, old: object, new: object) -> bool:
    tolerations = pod.spec.tolerations or []
    was = isinstance(old, Node) and first_untolerated(old.spec.taints or (), tolerations) is None
    return isinstance(new, Node) and not was and first_untolerated(new.spec.taints or (), tolerations) is None


def _is_itself(pod: Pod, _: object, new: object) -> bool:
    return isinstance(new, Pod) and new.uid == pod.uid


FACTORY: Final = PluginFactory(name=NAME, points=(Point.FILTER, Point.SCORE), build=no_args(TaintToleration))
