"""PodTopologySpread: pods of a kind lie evenly over zones, hosts or any other values of a node label.

Filter: ``pods in the domain + 1 - pods in the emptiest domain > maxSkew`` refuses the node. Score: see spreadscore.
Pods without constraints have those of the arguments, about the pods of their services and their controller. As
kube-scheduler 1.36's plugin of that name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Final

import numpy as np

from berth.api.config.types import Point
from berth.api.pod import Pod
from berth.cluster.nodeinfo import NodeInfo
from berth.cluster.nodes import Nodes
from berth.cluster.nodeswithout import Gone
from berth.cluster.snapshot import Snapshot
from berth.framework.events import EventHint
from berth.framework.interface import (
    EnqueueExtensions,
    NormalizePlugin,
    PreFilterExtensions,
    PreFilterResult,
    PreScorePlugin,
    Scores,
    VectorFilterPlugin,
    VectorScorePlugin,
)
from berth.framework.state import CycleState, StateKey
from berth.framework.status import SKIP, SUCCESS, Status
from berth.framework.verdicts import Verdicts
from berth.plugins.factory import PluginFactory
from berth.plugins.podtopologyspreadargs import SYSTEM, SYSTEM_CONSTRAINTS, PodTopologySpreadArgs, validate
from berth.plugins.spreadconstraints import DO_NOT_SCHEDULE, SCHEDULE_ANYWAY, Constraint, compile_constraints
from berth.plugins.spreadevents import events_of
from berth.plugins.spreadfilter import Skews, skews_of
from berth.plugins.spreadscore import Spread, spread_of
from berth.plugins.spreadselector import DefaultSelectors

NAME: Final = "PodTopologySpread"
TOO_MANY: Final = Status.unschedulable("node(s) didn't match pod topology spread constraints")
NO_LABEL: Final = Status.unresolvable("node(s) didn't match pod topology spread constraints (missing required label)")
SKEWS: Final = StateKey[Skews]("PodTopologySpread.skews")
SPREAD: Final = StateKey[Spread]("PodTopologySpread.spread")


class PodTopologySpread(
    PreFilterExtensions, VectorFilterPlugin, PreScorePlugin, VectorScorePlugin, NormalizePlugin, EnqueueExtensions
):
    """Filters by DoNotSchedule, scores by ScheduleAnyway."""

    name: ClassVar[str] = NAME

    def __init__(self, args: PodTopologySpreadArgs) -> None:
        self._system = args.defaulting_type == SYSTEM
        self._defaults = SYSTEM_CONSTRAINTS if self._system else tuple(args.default_constraints or ())

    def pre_filter(self, state: CycleState, pod: Pod, snapshot: Snapshot) -> PreFilterResult:
        """Skip without constraints that must hold."""
        constraints = self.constraints(pod, DO_NOT_SCHEDULE, snapshot)
        if not constraints:
            return PreFilterResult(SKIP)
        state.write(SKEWS, skews_of(constraints, pod, state.pod_class, snapshot))
        return PreFilterResult()

    def add_pod(self, state: CycleState, pod: Pod, added: Pod, node: NodeInfo) -> Status:
        """One more in the domains of the node."""
        state.read(SKEWS).change(added, node, 1)
        return SUCCESS

    def remove_pod(self, state: CycleState, pod: Pod, removed: Pod, node: NodeInfo) -> Status:
        """One less."""
        state.read(SKEWS).change(removed, node, -1)
        return SUCCESS

    def refused_without(self, state: CycleState, pod: Pod, nodes: Nodes, gone: Gone) -> Verdicts | None:
        """Domains that have too many all the same; that the emptiest may have fewer then is left out."""
        refused = np.zeros(len(nodes), dtype=np.bool_)
        for skew in state.read(SKEWS).every:
            refused |= skew.domains.on(nodes) - skew.gone(gone, nodes.snapshot) > skew.most
        return Verdicts.refusing(refused, TOO_MANY)

    def filter(self, state: CycleState, pod: Pod, node: NodeInfo) -> Status:
        """The first constraint that does not hold decides."""
        for skew in state.read(SKEWS).every:
            if not skew.domains.has(node.row):
                return NO_LABEL
            if skew.domains.at(node.row) > skew.most:
                return TOO_MANY
        return SUCCESS

    def filter_all(self, state: CycleState, pod: Pod, nodes: Nodes) -> Verdicts:
        """The same for all nodes."""
        codes = np.zeros(len(nodes), dtype=np.int32)
        for skew in reversed(state.read(SKEWS).every):
            codes[skew.domains.on(nodes) > skew.most] = 1
            codes[~skew.domains.present(nodes)] = 2
        return Verdicts(codes, (SUCCESS, TOO_MANY, NO_LABEL))

    def pre_score(self, state: CycleState, pod: Pod, nodes: Nodes) -> Status:
        """Skip without constraints that would rather hold."""
        constraints = self.constraints(pod, SCHEDULE_ANYWAY, nodes.snapshot)
        if not constraints:
            return SKIP
        all_keys = bool(pod.spec.topology_spread_constraints) or not self._system
        state.write(SPREAD, spread_of(constraints, state.pod_class, nodes, all_keys=all_keys))
        return SUCCESS

    def score(self, state: CycleState, pod: Pod, node: NodeInfo) -> int:
        """The more pods in the node's domains, the more."""
        return state.read(SPREAD).raw(node.row)

    def score_all(self, state: CycleState, pod: Pod, nodes: Nodes) -> Scores:
        """The same for all nodes."""
        return state.read(SPREAD).all_raw(nodes)

    def normalize(self, state: CycleState, pod: Pod, scores: Scores, nodes: Nodes) -> Scores:
        """Fewest pods first."""
        return state.read(SPREAD).normalized(scores, nodes)

    def events(self) -> Sequence[EventHint]:
        """Pods of its kind come, go or change; nodes come, go or come to other domains."""
        return events_of(self._defaults)

    def constraints(self, pod: Pod, action: str, snapshot: Snapshot) -> tuple[Constraint, ...]:
        """What holds for the pod: its own constraints, else the default ones where something selects it."""
        own = pod.spec.topology_spread_constraints
        if own:
            return compile_constraints(own, pod, action)
        if not any(constraint.when_unsatisfiable == action for constraint in self._defaults):
            return ()
        selector = snapshot.live.derived(NAME, lambda: DefaultSelectors(snapshot)).of(pod)
        return () if selector is None else compile_constraints(self._defaults, pod, action, selector=selector)


def _build(args: Any) -> PodTopologySpread:
    return PodTopologySpread(args or PodTopologySpreadArgs())


FACTORY: Final = PluginFactory(
    name=NAME,
    points=(Point.PRE_FILTER, Point.FILTER, Point.PRE_SCORE, Point.SCORE),
    build=_build,
    args_type=PodTopologySpreadArgs,
    validate=validate,
)
