"""DefaultPodTopologySpread: spreads the pods of one service or controller evenly over nodes and zones.

Raw: the matching pods on the node, in the pod's namespace and not being deleted. A pod matches if the combined
selectors of all services, replication controllers, replica sets and stateful sets of this pod select it too.
Normalized: with ``max`` the most of any node, ``100 * (max - raw) / max``, 100 if max is 0; for a node in a zone one
third of this and two thirds of the same for the zone's sum over the feasible nodes, in whole numbers. A zone is region
and zone together, the beta labels first. A pod with topology spread constraints is not scored. As kube-scheduler 1.18's
plugin of that name (SelectorSpread from 1.19 on).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar, Final

import numpy as np
import numpy.typing as npt

from berth.api.config.types import Point
from berth.api.pod import Pod
from berth.api.selectors import MATCHES_NOTHING, LabelMatcher, PodSelector, Requirement, compile_label_selector
from berth.api.workloads import ReplicaSet, ReplicationController, Service, StatefulSet
from berth.cluster.nodes import NodeInfo, Nodes, NodesWithAnother
from berth.cluster.snapshot import Snapshot
from berth.cluster.topologycounts import Counts, LabelItems, PodsMatching, label_items
from berth.framework.interface import MAX_SCORE, NormalizePlugin, PreScorePlugin, Scores, VectorScorePlugin
from berth.framework.status import SKIP, SUCCESS, CycleState, StateKey, Status
from berth.plugins.factory import PluginFactory, no_args
from berth.plugins.podtopologyspread.constraints import SelectorCache

NAME: Final = "DefaultPodTopologySpread"
MATCHING_PODS: Final = StateKey[Counts]("DefaultPodTopologySpread.matching_pods")
OF_ZONE: Final = 2.0 / 3.0  # weight of the zone in the score; the node has the rest (kube-scheduler's zoneWeighting)
ZONE_LABELS: Final = ("failure-domain.beta.kubernetes.io/zone", "topology.kubernetes.io/zone")
REGION_LABELS: Final = ("failure-domain.beta.kubernetes.io/region", "topology.kubernetes.io/region")


class DefaultPodTopologySpread(PreScorePlugin, VectorScorePlugin, NormalizePlugin):
    """Scores by the number of matching pods."""

    name: ClassVar[str] = NAME

    def pre_score(self, state: CycleState, pod: Pod, nodes: Nodes) -> Status:
        if pod.spec.topology_spread_constraints:
            return SKIP
        state.write(MATCHING_PODS, count_matching_pods(pod, nodes.snapshot))
        return SUCCESS

    def score(self, state: CycleState, pod: Pod, node: NodeInfo) -> int:
        return int(state.read(MATCHING_PODS)[node.row])

    def score_all(self, state: CycleState, pod: Pod, nodes: Nodes) -> Scores:
        return nodes.take(state.read(MATCHING_PODS)).astype(np.int64)

    def score_with_another(self, state: CycleState, pod: Pod, nodes: NodesWithAnother) -> Scores:
        """One matching pod more, if the pod has a selector."""
        return self.score_all(state, pod, nodes) + int(selectors_of(nodes.snapshot).of(pod) is not None)

    def normalize(self, state: CycleState, pod: Pod, scores: Scores, nodes: Nodes) -> Scores:
        points, zones = _fewest_first(scores), zones_of(nodes)
        if zones.any():
            sums = np.bincount(zones, weights=scores)
            sums[0] = 0  # number 0: no zone
            of_zone = _fewest_first(sums)[zones]
            points = np.where(zones > 0, points * (1.0 - OF_ZONE) + OF_ZONE * of_zone, points)
        normalized: Scores = points.astype(np.int64)
        return normalized


def count_matching_pods(pod: Pod, snapshot: Snapshot) -> Counts:
    """int32[capacity]: the matching pods on each row; 0 without a selector."""
    labels = selectors_of(snapshot).of(pod)
    if labels is None:
        return np.zeros(snapshot.columns.capacity, dtype=np.int32)
    selector = PodSelector(frozenset((pod.metadata.namespace,)), MATCHES_NOTHING, labels)
    return snapshot.groups.count_pods(PodsMatching((selector,), living=True)).counts


def selectors_of(snapshot: Snapshot) -> SpreadSelectors:
    return snapshot.derived(NAME, lambda: SpreadSelectors(snapshot))


class SpreadSelectors:
    """The combined selectors in one Snapshot; cached until a service or a controller changes."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._cache = SelectorCache[tuple[str, LabelItems], LabelMatcher | None](snapshot)

    def of(self, pod: Pod) -> LabelMatcher | None:
        namespace, labels = pod.metadata.namespace, pod.metadata.labels or {}
        return self._cache.get((namespace, label_items(labels)), lambda: self._selector(namespace, labels))

    def _selector(self, namespace: str, labels: Mapping[str, str]) -> LabelMatcher | None:
        equal: dict[str, str] = {}
        for selector in self._equality_selectors(namespace):
            if selector.items() <= labels.items():
                equal.update(selector)
        own = [Requirement(key, "In", frozenset((value,))) for key, value in equal.items()]
        sets = [
            r for selector in self._set_selectors(namespace) if selector.matches(labels) for r in selector.requirements
        ]
        return LabelMatcher(tuple(dict.fromkeys((*own, *sets)))) if own or sets else None

    def _equality_selectors(self, namespace: str) -> Iterator[Mapping[str, str]]:
        for service in self._snapshot.objects(Service).in_namespace(namespace):
            yield service.spec.selector or {}
        for controller in self._snapshot.objects(ReplicationController).in_namespace(namespace):
            yield controller.spec.selector or {}

    def _set_selectors(self, namespace: str) -> Iterator[LabelMatcher]:
        for replicas in self._snapshot.objects(ReplicaSet).in_namespace(namespace):
            yield compile_label_selector(replicas.spec.selector)
        for stateful in self._snapshot.objects(StatefulSet).in_namespace(namespace):
            yield compile_label_selector(stateful.spec.selector)


def _fewest_first(counts: npt.NDArray[np.generic]) -> npt.NDArray[np.float64]:
    """100 for 0 pods, 0 for the most; divided first, then times 100, as in kube-scheduler."""
    numbers = counts.astype(np.float64)
    most = numbers.max(initial=0.0)
    return np.full(len(numbers), float(MAX_SCORE)) if most == 0 else MAX_SCORE * ((most - numbers) / most)


Numbers = npt.NDArray[np.intp]


def zones_of(nodes: Nodes) -> Numbers:
    regions, zones = _values(REGION_LABELS, nodes), _values(ZONE_LABELS, nodes)
    pairs = regions * (int(zones.max(initial=0)) + 1) + zones
    present = np.bincount(pairs, minlength=1) > 0
    present[0] = False
    numbers: Numbers = np.cumsum(present)[pairs]
    return numbers


def _values(keys: tuple[str, str], nodes: Nodes) -> Numbers:
    """A number for each value of the first label that the node has; 0 for the empty value and for no label."""
    known: dict[str, int] = {"": 0}
    numbers = np.zeros(len(nodes), dtype=np.intp)
    for key in reversed(keys):
        codes, column = nodes.label(key)
        table = np.array([known.setdefault(value, len(known)) for value in (*column.values, "")], dtype=np.intp)
        numbers = np.where(codes >= 0, table[codes], numbers)
    return numbers


FACTORY: Final = PluginFactory(
    name=NAME, points=(Point.PRE_SCORE, Point.SCORE), build=no_args(DefaultPodTopologySpread), only_in_presets=True
)
