"""PodTopologySpread: pods of a kind lie evenly over zones, hosts or any other values of a node label.

Filter: as today's plugin of that name. Raw: the pods of the node's domains, added up over the constraints. Normalized:
with the sum over the feasible nodes that have all the labels and the least of them, ``100 * (sum - raw) / (sum -
least)``, without the fraction, 0 for other nodes, 100 for all when there is nothing to divide by. An empty selector
means every pod of the namespace, and pods without constraints have none by default. As in kube-scheduler 1.18.


In which zone a node is, as kube-scheduler 1.18 read it: region and zone together, the beta labels first.

Which pods are a pod's like, as kube-scheduler 1.18 found them: every service, controller and set that selects it.

The selectors of all services, replication controllers, replica sets and stateful sets of the namespace that mean the
pod's labels, taken together. Today's plugins ask the pod's owner instead (spreadselector).


DefaultPodTopologySpread: pods of one service or controller lie evenly over nodes and zones.

Raw: the pods on the node that are the pod's like (likepods), in its namespace and not being deleted. Normalized: with
``max`` the most of any node, ``100 * (max - raw) / max``, 100 where max is 0; a node in a zone has one third of that
and two thirds of the same for the zone's sum over the feasible nodes, without the fraction. A pod with spread
constraints of its own is not scored. As kube-scheduler 1.18's plugin of that name (SelectorSpread from 1.19 on).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Final

import numpy as np
import numpy.typing as npt

from berth.api.config.types import Point
from berth.api.pod import Pod
from berth.api.selectors import MATCHES_NOTHING, LabelMatcher, PodSelector, Requirement, compile_label_selector
from berth.api.workloads import ReplicaSet, ReplicationController, Service, StatefulSet
from berth.cluster.equivalence import EquivalenceClass
from berth.cluster.nodes import NodeInfo, Nodes
from berth.cluster.snapshot import Snapshot
from berth.cluster.topologycounts import Counts, LabelItems, PodKind, label_items
from berth.framework.interface import MAX_SCORE, NormalizePlugin, PreScorePlugin, Scores, VectorScorePlugin
from berth.framework.state import CycleState, StateKey
from berth.framework.status import SKIP, SUCCESS, Status
from berth.plugins.domains import Domains
from berth.plugins.factory import PluginFactory, no_args
from berth.plugins.podtopologyspread import plugin as podtopologyspread
from berth.plugins.podtopologyspread.constraints import SCHEDULE_ANYWAY, Constraint, with_all_keys
from berth.plugins.podtopologyspread.counts import Part, Spread
from berth.plugins.podtopologyspread.plugin import LIST, PodTopologySpreadArgs, validate


class SpreadArgs(PodTopologySpreadArgs, frozen=True, kw_only=True):
    """``defaultConstraints``: for pods that have none of their own; without them these pods are not spread."""

    defaulting_type: str = LIST


@dataclass(frozen=True, slots=True, kw_only=True)
class WideConstraint(Constraint):
    """A constraint of which an empty selector means every pod of the namespace."""

    def counts(self, snapshot: Snapshot) -> Counts:
        """int32[capacity]: the pods on each row."""
        return snapshot.groups.tally(self.pods).counts

    def counts_pod(self, pod: Pod) -> bool:
        """Whether a pod is one of those that are counted."""
        return pod.metadata.deletion_timestamp is None and self.means(pod)


class PodTopologySpreadV118(podtopologyspread.PodTopologySpread):
    """Filters by DoNotSchedule, scores by ScheduleAnyway."""

    def pre_score(self, state: CycleState, pod: Pod, nodes: Nodes) -> Status:
        """Skip without constraints that would rather hold."""
        constraints = self.constraints(pod, SCHEDULE_ANYWAY, nodes.snapshot)
        if not constraints:
            return SKIP
        state.write(podtopologyspread.SPREAD, _spread_of(constraints, state.pod_class, nodes))
        return SUCCESS

    def normalize(self, state: CycleState, pod: Pod, scores: Scores, nodes: Nodes) -> Scores:
        """Fewest pods first."""
        ignored = nodes.take(state.read(podtopologyspread.SPREAD).ignored)
        counted = scores[~ignored]
        if not len(counted):
            return np.zeros(len(scores), dtype=np.int64)
        total, least = int(counted.sum()), int(counted.min())
        if total == least:
            return np.full(len(scores), MAX_SCORE, dtype=np.int64)
        points = (MAX_SCORE * ((total - scores) / float(total - least))).astype(np.int64)
        return np.where(ignored, 0, points)

    def constraints(self, pod: Pod, action: str, snapshot: Snapshot) -> tuple[Constraint, ...]:
        """What holds for the pod, read as that release did."""
        return tuple(_wide(constraint) for constraint in super().constraints(pod, action, snapshot))


def _wide(constraint: Constraint) -> WideConstraint:
    return WideConstraint(**{field.name: getattr(constraint, field.name) for field in fields(Constraint)})


def _spread_of(constraints: tuple[Constraint, ...], pod_class: EquivalenceClass, nodes: Nodes) -> Spread:
    every = Nodes(nodes.snapshot)
    complete = with_all_keys(constraints, every)
    counted = [(c, c.counts(nodes.snapshot), complete & c.matching(every, pod_class)) for c in constraints]
    parts = (Part(Domains.adding(nodes.snapshot, c.key, counts, among), None, 1.0, 0) for c, counts, among in counted)
    return Spread(tuple(parts), ~complete)


def _build(args: Any) -> PodTopologySpreadV118:
    return PodTopologySpreadV118(args or SpreadArgs())


POD_TOPOLOGY_SPREAD_FACTORY: Final = replace(
    podtopologyspread.FACTORY, build=_build, args_type=SpreadArgs, validate=validate
)


ZONE_LABELS: Final = ("failure-domain.beta.kubernetes.io/zone", "topology.kubernetes.io/zone")

REGION_LABELS: Final = ("failure-domain.beta.kubernetes.io/region", "topology.kubernetes.io/region")

Numbers = npt.NDArray[np.intp]


def zones_of(nodes: Nodes) -> Numbers:
    """intp[nodes]: a number for each zone that occurs, from 1; 0 for nodes that are in none."""
    regions, zones = _values(REGION_LABELS, nodes), _values(ZONE_LABELS, nodes)
    pairs = regions * (int(zones.max(initial=0)) + 1) + zones
    present = np.bincount(pairs, minlength=1) > 0
    present[0] = False
    numbers: Numbers = np.cumsum(present)[pairs]
    return numbers


def _values(keys: tuple[str, str], nodes: Nodes) -> Numbers:
    """A number for each value of the first of the labels that a node has; 0 for the empty value and for none."""
    known: dict[str, int] = {"": 0}
    numbers = np.zeros(len(nodes), dtype=np.intp)
    for key in reversed(keys):
        codes, column = nodes.label(key)
        table = np.array([known.setdefault(value, len(known)) for value in (*column.values, "")], dtype=np.intp)
        numbers = np.where(codes >= 0, table[codes], numbers)
    return numbers


KINDS: Final = (Service, ReplicationController, ReplicaSet, StatefulSet)

_MAX_REMEMBERED: Final = 4096


class LikePods:
    """The selectors on one Snapshot, remembered until one of the objects that they come from changes."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._remembered: dict[tuple[str, LabelItems], LabelMatcher | None] = {}
        self._seen = -1

    def of(self, pod: Pod) -> LabelMatcher | None:
        """The selector; None when nothing selects the pod."""
        version = sum(self._snapshot.objects(kind).version for kind in KINDS)
        if version != self._seen or len(self._remembered) > _MAX_REMEMBERED:
            self._remembered.clear()
            self._seen = version
        namespace, labels = pod.metadata.namespace, pod.metadata.labels or {}
        key = (namespace, label_items(labels))
        if key not in self._remembered:
            self._remembered[key] = self._found(namespace, labels)
        return self._remembered[key]

    def _found(self, namespace: str, labels: Mapping[str, str]) -> LabelMatcher | None:
        equal: dict[str, str] = {}
        for selector in self._maps(namespace):
            if selector.items() <= labels.items():
                equal.update(selector)
        own = [Requirement(key, "In", frozenset((value,))) for key, value in equal.items()]
        sets = [r for selector in self._sets(namespace) if selector.matches(labels) for r in selector.requirements]
        return LabelMatcher(tuple(dict.fromkeys((*own, *sets)))) if own or sets else None

    def _maps(self, namespace: str) -> Iterator[Mapping[str, str]]:
        for service in self._snapshot.objects(Service).in_namespace(namespace):
            yield service.spec.selector or {}
        for controller in self._snapshot.objects(ReplicationController).in_namespace(namespace):
            yield controller.spec.selector or {}

    def _sets(self, namespace: str) -> Iterator[LabelMatcher]:
        for replicas in self._snapshot.objects(ReplicaSet).in_namespace(namespace):
            yield compile_label_selector(replicas.spec.selector)
        for stateful in self._snapshot.objects(StatefulSet).in_namespace(namespace):
            yield compile_label_selector(stateful.spec.selector)


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
    selector = PodSelector(frozenset((pod.metadata.namespace,)), MATCHES_NOTHING, labels)
    return snapshot.groups.tally(PodKind((selector,), living=True)).counts


def _fewest_first(counts: npt.NDArray[np.generic]) -> npt.NDArray[np.float64]:
    """100 for none, 0 for the most; divided first, then times 100, as in kube-scheduler."""
    numbers = counts.astype(np.float64)
    most = numbers.max(initial=0.0)
    return np.full(len(numbers), float(MAX_SCORE)) if most == 0 else MAX_SCORE * ((most - numbers) / most)


SELECTOR_SPREAD_FACTORY: Final = PluginFactory(
    name=NAME, points=(Point.PRE_SCORE, Point.SCORE), build=no_args(DefaultPodTopologySpread), only_in_presets=True
)
