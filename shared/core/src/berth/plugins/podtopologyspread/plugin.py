"""PodTopologySpread: spreads matching pods evenly over zones, hosts or other values of a node label.

Filter: rejects a node if ``pods in its domain + 1 - fewest pods in any domain > maxSkew``. Score: see ``counts``. Pods
without constraints get the default constraints of the arguments, with the selectors of their services and controller.
As kube-scheduler 1.36's plugin of that name.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar, Final

import msgspec
import numpy as np

from berth.api.config.types import Point
from berth.api.node import Node
from berth.api.pod import Pod, PodSpec, TopologySpreadConstraint
from berth.api.selectors import MATCHES_NOTHING
from berth.api.workloads import ReplicaSet, ReplicationController, Service, StatefulSet
from berth.cluster.nodes import NodeInfo, Nodes, NodesWithAnother, RejectedNodes, RemovedPods
from berth.cluster.pods import EquivalenceClass, Trait
from berth.cluster.snapshot import Snapshot
from berth.framework.events import Action, ClusterEvent, EventHint, IdentityCache, Resource, ValueIndex, Values, encoded
from berth.framework.interface import (
    PRE_FILTER_SKIPPED,
    EnqueueExtensions,
    NormalizePlugin,
    PreFilterExtensions,
    PreFilterResult,
    PreScorePlugin,
    RemedyPlugin,
    RemedySentence,
    Scores,
    VectorFilterPlugin,
    VectorScorePlugin,
)
from berth.framework.status import SKIP, SUCCESS, CycleState, StateKey, Status, Verdicts
from berth.plugins.factory import Args, PluginFactory, key_problems, with_args
from berth.plugins.podtopologyspread.constraints import (
    DO_NOT_SCHEDULE,
    HOSTNAME,
    SCHEDULE_ANYWAY,
    ZONE,
    Constraint,
    DefaultConstraints,
    compile_constraints,
)
from berth.plugins.podtopologyspread.counts import (
    ConstraintCounts,
    SpreadCounts,
    SpreadScores,
    count_matches,
    spread_scores,
)

NAME: Final = "PodTopologySpread"
CONSTRAINTS_NOT_MATCHED: Final = Status.unschedulable("node(s) didn't match pod topology spread constraints")
NODE_LABEL_NOT_MATCHED: Final = Status.unresolvable(
    "node(s) didn't match pod topology spread constraints (missing required label)"
)
SPREAD_COUNTS: Final = StateKey[SpreadCounts]("PodTopologySpread.spread_counts")
SPREAD_SCORES: Final = StateKey[SpreadScores]("PodTopologySpread.spread_scores")
SYSTEM: Final = "System"
LIST: Final = "List"
# The default constraints under `defaultingType: System`.
SYSTEM_CONSTRAINTS: Final = (
    TopologySpreadConstraint(max_skew=3, topology_key=HOSTNAME, when_unsatisfiable=SCHEDULE_ANYWAY),
    TopologySpreadConstraint(max_skew=5, topology_key=ZONE, when_unsatisfiable=SCHEDULE_ANYWAY),
)
_MAX_SHOWN: Final = 3  # domains in a sentence
_POD_CHANGES: Final = (
    Action.ADD | Action.DELETE | Action.UPDATE_POD_LABEL | Action.UPDATE_POD_TOLERATIONS | Action.UPDATE_POD_TERMINATING
)
SelectingObject = Service | ReplicationController | ReplicaSet | StatefulSet
_SELECTING: Final = (
    Resource.SERVICE,
    Resource.REPLICATION_CONTROLLER,
    Resource.REPLICA_SET,
    Resource.STATEFUL_SET,
)
_CONSTRAINT_BYTES: Final = 600  # of a compiled constraint
_NODE_CHANGES: Final = Action.ADD | Action.DELETE | Action.UPDATE_NODE_LABEL | Action.UPDATE_NODE_TAINT


class PodTopologySpreadArgs(Args, frozen=True, kw_only=True):
    """Spreading of pods without constraints of their own."""

    default_constraints: list[TopologySpreadConstraint] | None = None
    """Constraints of List: ``maxSkew`` above 0, ``topologyKey``, ``whenUnsatisfiable``; no selector, and no pair of the
    latter two twice."""
    defaulting_type: str = SYSTEM
    """System: softly over hosts and zones. List: by ``defaultConstraints``."""

    def __post_init__(self) -> None:
        if not self.defaulting_type:
            msgspec.structs.force_setattr(self, "defaulting_type", SYSTEM)


class PodTopologySpread(
    PreFilterExtensions,
    VectorFilterPlugin,
    RemedyPlugin,
    PreScorePlugin,
    VectorScorePlugin,
    NormalizePlugin,
    EnqueueExtensions,
):
    """Filters by DoNotSchedule, scores by ScheduleAnyway."""

    name: ClassVar[str] = NAME
    only_for = Trait.TOPOLOGY_SPREAD | Trait.SELECTED

    def __init__(self, args: PodTopologySpreadArgs) -> None:
        self._system = args.defaulting_type == SYSTEM
        self._defaults = SYSTEM_CONSTRAINTS if self._system else tuple(args.default_constraints or ())
        self._required_of = IdentityCache(
            self._required_constraints, weigh=lambda constraints: _CONSTRAINT_BYTES * len(constraints)
        )
        self._class_of = IdentityCache[PodSpec, EquivalenceClass](lambda spec: EquivalenceClass(b"", spec))

    def pre_filter(self, state: CycleState, pod: Pod, snapshot: Snapshot) -> PreFilterResult:
        constraints = self.constraints(pod, DO_NOT_SCHEDULE, snapshot)
        if not constraints:
            return PRE_FILTER_SKIPPED
        state.write(SPREAD_COUNTS, count_matches(constraints, pod, state.pod_class, snapshot))
        return PreFilterResult()

    def add_pod(self, state: CycleState, pod: Pod, added: Pod, node: NodeInfo) -> Status:
        state.read(SPREAD_COUNTS).update(added, node, 1)
        return SUCCESS

    def remove_pod(self, state: CycleState, pod: Pod, removed: Pod, node: NodeInfo) -> Status:
        state.read(SPREAD_COUNTS).update(removed, node, -1)
        return SUCCESS

    def rejected_without(self, state: CycleState, pod: Pod, nodes: Nodes, removed: RemovedPods) -> Verdicts | None:
        """Reject by the present minimum. Removing pods may lower it, so nodes may pass here that Filter rejects."""
        rejected = np.zeros(len(nodes), dtype=np.bool_)
        for counts in state.read(SPREAD_COUNTS).constraints:
            rejected |= counts.domains.of_nodes(nodes) - counts.removed(removed, nodes.snapshot) > counts.max_count
        return Verdicts.refusing(rejected, CONSTRAINTS_NOT_MATCHED)

    def filter(self, state: CycleState, pod: Pod, node: NodeInfo) -> Status:
        for counts in state.read(SPREAD_COUNTS).constraints:
            if not counts.domains.has(node.row):
                return NODE_LABEL_NOT_MATCHED
            if counts.domains.at(node.row) > counts.max_count:
                return CONSTRAINTS_NOT_MATCHED
        return SUCCESS

    def filter_all(self, state: CycleState, pod: Pod, nodes: Nodes) -> Verdicts:
        codes = np.zeros(len(nodes), dtype=np.int32)
        for counts in reversed(state.read(SPREAD_COUNTS).constraints):
            codes[counts.domains.of_nodes(nodes) > counts.max_count] = 1
            codes[~counts.domains.present(nodes)] = 2
        return Verdicts(codes, (SUCCESS, CONSTRAINTS_NOT_MATCHED, NODE_LABEL_NOT_MATCHED))

    def remedy(self, state: CycleState, pod: Pod, nodes: RejectedNodes) -> Iterable[RemedySentence]:
        found = state.find(SPREAD_COUNTS)
        for counts in found.constraints if found is not None else ():
            key, lacking = counts.constraint.key, ~counts.domains.present(nodes)
            before = f"is spread over {key}, a label that"
            yield RemedySentence(about=key, nodes=lacking, before=before, after="lack")
            full = counts.domains.of_nodes(nodes) > counts.max_count
            before = f"may be placed {_where(counts, nodes)}, by its maxSkew of {counts.constraint.max_skew}, and"
            yield RemedySentence(about=key, nodes=full, before=before, after="are elsewhere")

    def pre_score(self, state: CycleState, pod: Pod, nodes: Nodes) -> Status:
        constraints = self.constraints(pod, SCHEDULE_ANYWAY, nodes.snapshot)
        if not constraints:
            return SKIP
        all_keys = bool(pod.spec.topology_spread_constraints) or not self._system
        state.write(SPREAD_SCORES, spread_scores(constraints, pod, state.pod_class, nodes, all_keys=all_keys))
        return SUCCESS

    def score(self, state: CycleState, pod: Pod, node: NodeInfo) -> int:
        return state.read(SPREAD_SCORES).raw(node.row)

    def score_all(self, state: CycleState, pod: Pod, nodes: Nodes) -> Scores:
        return state.read(SPREAD_SCORES).all_raw(nodes)

    def score_with_another(self, state: CycleState, pod: Pod, nodes: NodesWithAnother) -> Scores:
        """One pod more in the node's domains if the constraint's selector matches the pod itself."""
        return state.read(SPREAD_SCORES).all_raw(nodes, others=1)

    def normalize(self, state: CycleState, pod: Pod, scores: Scores, nodes: Nodes) -> Scores:
        return state.read(SPREAD_SCORES).normalized(scores, nodes)

    def events(self) -> Sequence[EventHint]:
        hints = [
            EventHint(ClusterEvent(Resource.POD, _POD_CHANGES), self._after_pod_change, _counted_by, _namespace_index),
            EventHint(ClusterEvent(Resource.NODE, _NODE_CHANGES), self._after_node_change, _nodes_read_by),
            EventHint(
                ClusterEvent(Resource.NOMINATION, Action.DELETE), self._after_pod_change, _counted_by, _namespace_index
            ),
        ]
        if any(constraint.when_unsatisfiable == DO_NOT_SCHEDULE for constraint in self._defaults):
            changed = Action.ADD | Action.UPDATE | Action.DELETE
            hints += [
                EventHint(ClusterEvent(resource, changed), _after_selector_change, _counted_by, _namespace_index)
                for resource in _SELECTING
            ]
        return hints

    def constraints(self, pod: Pod, action: str, snapshot: Snapshot) -> tuple[Constraint, ...]:
        """The pod's own constraints, else the default ones if a service or controller selects the pod."""
        own = pod.spec.topology_spread_constraints
        if own:
            return compile_constraints(own, pod, action)
        if not any(constraint.when_unsatisfiable == action for constraint in self._defaults):
            return ()
        return snapshot.derived((NAME, self), lambda: DefaultConstraints(snapshot, self._defaults)).of(pod, action)

    def _after_pod_change(self, pod: Pod, old: object, new: object) -> bool:
        """A pod of the namespace starts or stops to count; with default constraints any pod may."""
        known = [other for other in (old, new) if isinstance(other, Pod)]
        if any(other.uid == pod.uid for other in known):
            return True
        if any(other.metadata.namespace != pod.metadata.namespace for other in known):
            return False
        if not pod.spec.topology_spread_constraints:
            return bool(self._defaults)
        return any(_counts(constraint, old) != _counts(constraint, new) for constraint in self._required_of(pod))

    def _after_node_change(self, pod: Pod, old: object, new: object) -> bool:
        """A node with all topology keys starts or stops to count for a constraint, or changes its domain."""
        return self._domains(pod, old) != self._domains(pod, new)

    def _domains(self, pod: Pod, node: object) -> list[str | None] | None:
        """The node's domain for each constraint that counts it; None if none does."""
        constraints = self._required_of(pod)
        labels = (node.metadata.labels or {}) if isinstance(node, Node) else {}
        if not isinstance(node, Node) or not all(constraint.key in labels for constraint in constraints):
            return None
        pod_class = self._class_of(pod.spec)
        domains = [labels[each.key] if each.is_eligible(node, pod_class) else None for each in constraints]
        return domains if any(domains) else None

    def _required_constraints(self, pod: Pod) -> tuple[Constraint, ...]:
        """The constraints that reject nodes; the default ones without a selector, which depends on other objects."""
        own = pod.spec.topology_spread_constraints
        if own:
            return compile_constraints(own, pod, DO_NOT_SCHEDULE)
        return compile_constraints(self._defaults, pod, DO_NOT_SCHEDULE, selector=MATCHES_NOTHING)


def _where(counts: ConstraintCounts, nodes: Nodes) -> str:
    key, column = counts.constraint.key, nodes.snapshot.label_column(counts.constraint.key)
    codes = np.flatnonzero((counts.domains.numbers <= counts.max_count) & counts.is_domain)
    values = sorted(column.values[code - 1] for code in codes.tolist() if code)
    shown = [*values[:_MAX_SHOWN], *(["..."] if len(values) > _MAX_SHOWN else [])]
    return f"only where {key} is {', '.join(shown)}" if values else f"in no domain of {key}"


def _counted_by(pod: Pod) -> bytes:
    constraints = pod.spec.topology_spread_constraints
    return encoded(pod.metadata.namespace, pod.metadata.labels if constraints else None, constraints)


def _nodes_read_by(pod: Pod) -> bytes:
    """The inputs of the hint for nodes."""
    spec, of_nodes = pod.spec, pod.spec.affinity.node_affinity if pod.spec.affinity else None
    return encoded(spec.topology_spread_constraints, spec.node_selector, of_nodes, spec.tolerations)


def _after_selector_change(pod: Pod, old: object, new: object) -> bool:
    """A service or controller in the namespace of a pod without constraints of its own gets or loses a selector."""
    known = [each for each in (old, new) if isinstance(each, SelectingObject)]
    if pod.spec.topology_spread_constraints or any(each.metadata.namespace != pod.metadata.namespace for each in known):
        return False
    return len(known) == 1 or known[0].spec != known[1].spec


def _namespace_index() -> ValueIndex:
    return ValueIndex(_namespace_of, _namespaces_of)


def _namespace_of(pod: Pod) -> Values:
    return (pod.metadata.namespace,)


def _namespaces_of(old: object, new: object) -> Values:
    """The namespaces of the event's objects; None, so any, without one."""
    known = [other.metadata.namespace for other in (old, new) if isinstance(other, Pod | SelectingObject)]
    return set(known) or None


def _counts(constraint: Constraint, pod: object) -> bool:
    return isinstance(pod, Pod) and constraint.counts_pod(pod)


def validate(args: PodTopologySpreadArgs, path: str) -> list[str]:
    constraints, where = args.default_constraints or [], f"{path}.defaultConstraints"
    problems = []
    if args.defaulting_type not in (SYSTEM, LIST):
        problems.append(f"{path}.defaultingType: want {SYSTEM} or {LIST}, got {args.defaulting_type!r}")
    if args.defaulting_type == SYSTEM and constraints:
        problems.append(f"{path}.defaultingType: want {LIST} where there are defaultConstraints, got {SYSTEM!r}")
    problems += [problem for i, c in enumerate(constraints) for problem in _problems_of(c, f"{where}[{i}]")]
    pairs = [(constraint.topology_key, constraint.when_unsatisfiable) for constraint in constraints]
    return problems + [
        f"{where}[{i}]: want a constraint of its own, got {key!r} with {action!r} once more"
        for i, (key, action) in enumerate(pairs)
        if (key, action) in pairs[:i]
    ]


def _problems_of(constraint: TopologySpreadConstraint, path: str) -> list[str]:
    problems = key_problems(constraint.topology_key, f"{path}.topologyKey")
    if constraint.max_skew <= 0:
        problems.append(f"{path}.maxSkew: want more than 0, got {constraint.max_skew}")
    if constraint.when_unsatisfiable not in (DO_NOT_SCHEDULE, SCHEDULE_ANYWAY):
        got = constraint.when_unsatisfiable
        problems.append(f"{path}.whenUnsatisfiable: want {DO_NOT_SCHEDULE} or {SCHEDULE_ANYWAY}, got {got!r}")
    if constraint.label_selector is not None:
        problems.append(f"{path}.labelSelector: want none, it follows from the pod's services and its controller")
    return problems


FACTORY: Final = PluginFactory(
    name=NAME,
    points=(Point.PRE_FILTER, Point.FILTER, Point.PRE_SCORE, Point.SCORE),
    build=with_args(PodTopologySpread, PodTopologySpreadArgs),
    args_type=PodTopologySpreadArgs,
    validate=validate,
)
