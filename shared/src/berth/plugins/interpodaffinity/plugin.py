"""The arguments of InterPodAffinity and what is wrong with them.

Which events may help a pod that InterPodAffinity refused.

InterPodAffinity: pods that must, or would rather, be together with other pods or apart from them, by topology.

Filter: every required term must have a pod that satisfies them all in the node's domain (the first of a group that
satisfies its own terms may go anywhere), no term of anti-affinity may, and no pod there may keep apart from this one.
Score: see interpodaffinityscore; normalized so that the least is 0 and the most 100. As kube-scheduler 1.36's plugin.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

import numpy as np

from berth.api.config.types import Point
from berth.api.node import Node
from berth.api.pod import Pod
from berth.api.selectors import AffinityTerm, compile_affinity_terms
from berth.cluster.nodes import Gone, NodeInfo, Nodes
from berth.cluster.snapshot import Snapshot
from berth.framework.events import Action, ClusterEvent, EventHint, Resource
from berth.framework.interface import (
    MAX_SCORE,
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
from berth.framework.status import SKIP, SUCCESS, Status, Verdicts
from berth.plugins.domains import Domains
from berth.plugins.factory import Args, PluginFactory
from berth.plugins.interpodaffinity.counts import Meetings, added_up, meetings_of, wishes_of

_MAX_WEIGHT: Final = 100


class InterPodAffinityArgs(Args, frozen=True, kw_only=True):
    """``hardPodAffinityWeight``: what a required term of a placed pod counts with in scores, 0..100.

    ``ignorePreferredTermsOfExistingPods``: pods without preferences of their own are not scored.
    """

    hard_pod_affinity_weight: int = 1
    ignore_preferred_terms_of_existing_pods: bool = False


def validate(args: InterPodAffinityArgs, path: str) -> list[str]:
    """The weight must be one that a preference can have, or 0."""
    weight = args.hard_pod_affinity_weight
    return [] if 0 <= weight <= _MAX_WEIGHT else [f"{path}.hardPodAffinityWeight: want 0..100, got {weight}"]


def _pod_helps(pod: Pod, old: object, new: object) -> bool:
    """It comes and satisfies the affinity; it goes, or is not meant any more, and stood against the anti-affinity."""
    was, now = old if isinstance(old, Pod) else None, new if isinstance(new, Pod) else None
    if now is not None and now.uid == pod.uid:
        return True
    terms = compile_affinity_terms(pod.spec.affinity, pod.metadata.namespace)
    if (
        now is not None
        and _all_mean(terms.required_affinity, now)
        and not (was and _all_mean(terms.required_affinity, was))
    ):
        return True
    if was is None:
        return False
    freed = any(_means(term, was) and not (now and _means(term, now)) for term in terms.required_anti_affinity)
    return freed or (now is None and _kept_apart_from(was, pod))


def _kept_apart_from(gone: Pod, pod: Pod) -> bool:
    terms = compile_affinity_terms(gone.spec.affinity, gone.metadata.namespace)
    return any(_means(term, pod) for term in terms.required_anti_affinity)


def _node_helps(pod: Pod, old: object, new: object) -> bool:
    """It is new and in the domains that are asked for, or it comes to one, or it leaves one that was to be avoided.

    A pod that asks for nothing was refused by terms of placed pods, whose labels are not known here.
    """
    if not isinstance(new, Node):
        return False
    terms = compile_affinity_terms(pod.spec.affinity, pod.metadata.namespace)
    now = new.metadata.labels or {}
    if not isinstance(old, Node):
        return all(term.topology_key in now for term in terms.required_affinity)
    was = old.metadata.labels or {}
    if not terms.required_affinity and not terms.required_anti_affinity:
        return was != now
    comes = any(term.topology_key in now and _moves(term, was, now) for term in terms.required_affinity)
    return comes or any(term.topology_key in was and _moves(term, was, now) for term in terms.required_anti_affinity)


def _moves(term: AffinityTerm, was: Mapping[str, str], now: Mapping[str, str]) -> bool:
    return was.get(term.topology_key) != now.get(term.topology_key)


def _namespace_helps(pod: Pod, _: object, __: object) -> bool:
    """A namespace that other terms select now: only terms of the pod itself are known here."""
    terms = compile_affinity_terms(pod.spec.affinity, pod.metadata.namespace)
    return any(
        term.selector.uses_namespace_labels for term in (*terms.required_affinity, *terms.required_anti_affinity)
    )


def _all_mean(terms: Sequence[AffinityTerm], pod: Pod) -> bool:
    return bool(terms) and all(_means(term, pod) for term in terms)


def _means(term: AffinityTerm, pod: Pod) -> bool:
    """What selects namespaces by labels is taken to select all of them: better one try too many."""
    selector, meta = term.selector, pod.metadata
    covered = selector.uses_namespace_labels or meta.namespace in selector.namespaces
    return covered and selector.labels.matches(meta.labels or {})


EVENTS: Final[Sequence[EventHint]] = (
    EventHint(ClusterEvent(Resource.POD, Action.ADD | Action.DELETE | Action.UPDATE_POD_LABEL), _pod_helps),
    EventHint(ClusterEvent(Resource.NODE, Action.ADD | Action.UPDATE_NODE_LABEL), _node_helps),
    EventHint(ClusterEvent(Resource.NAMESPACE, Action.ADD | Action.UPDATE), _namespace_helps),
    EventHint(ClusterEvent(Resource.NOMINATION, Action.DELETE), _pod_helps),
)


NAME: Final = "InterPodAffinity"

NOT_TOGETHER: Final = Status.unresolvable("node(s) didn't match pod affinity rules")

NOT_APART: Final = Status.unschedulable("node(s) didn't match pod anti-affinity rules")

NOT_LET_IN: Final = Status.unschedulable("node(s) didn't satisfy existing pods anti-affinity rules")

MEETINGS: Final = StateKey[Meetings]("InterPodAffinity.meetings")

SUMS: Final = StateKey[list[Domains]]("InterPodAffinity.sums")


class InterPodAffinity(
    PreFilterExtensions, VectorFilterPlugin, PreScorePlugin, VectorScorePlugin, NormalizePlugin, EnqueueExtensions
):
    """Filters and scores by who is where."""

    name: ClassVar[str] = NAME

    def __init__(self, args: InterPodAffinityArgs) -> None:
        self._hard_weight = args.hard_pod_affinity_weight
        self._own_only = args.ignore_preferred_terms_of_existing_pods

    def pre_filter(self, state: CycleState, pod: Pod, snapshot: Snapshot) -> PreFilterResult:
        """Skip for a pod that requires nothing and that nobody keeps apart from."""
        found = meetings_of(pod, snapshot)
        if found.is_empty:
            return PreFilterResult(SKIP)
        state.write(MEETINGS, found)
        return PreFilterResult()

    def add_pod(self, state: CycleState, pod: Pod, added: Pod, node: NodeInfo) -> Status:
        """One more in the domains of the node."""
        state.read(MEETINGS).change(pod, added, node.row, 1, node.snapshot)
        return SUCCESS

    def remove_pod(self, state: CycleState, pod: Pod, removed: Pod, node: NodeInfo) -> Status:
        """One less."""
        state.read(MEETINGS).change(pod, removed, node.row, -1, node.snapshot)
        return SUCCESS

    def refused_without(self, state: CycleState, pod: Pod, nodes: Nodes, gone: Gone) -> Verdicts | None:
        """Where somebody is left to be apart from. A pod that must be with others has to be tried: they may go."""
        meetings = state.read(MEETINGS)
        if meetings.terms.required_affinity:
            return None
        codes = np.where(meetings.still_refusing(pod, nodes, gone), 2, 0)
        codes = np.where(meetings.still_apart(nodes, gone), 1, codes).astype(np.int32)
        return Verdicts(codes, (SUCCESS, NOT_APART, NOT_LET_IN))

    def filter(self, state: CycleState, pod: Pod, node: NodeInfo) -> Status:
        """Affinity first, since no eviction helps there."""
        meetings = state.read(MEETINGS)
        if not meetings.is_together(node.row):
            return NOT_TOGETHER
        if not meetings.is_apart(node.row):
            return NOT_APART
        return SUCCESS if meetings.is_let_in(node.row) else NOT_LET_IN

    def filter_all(self, state: CycleState, pod: Pod, nodes: Nodes) -> Verdicts:
        """The same for all nodes."""
        meetings = state.read(MEETINGS)
        codes = np.where(meetings.let_in(nodes), 0, 3)
        codes = np.where(meetings.kept_apart(nodes), codes, 2)
        codes = np.where(meetings.together(nodes), codes, 1).astype(np.int32)
        return Verdicts(codes, (SUCCESS, NOT_TOGETHER, NOT_APART, NOT_LET_IN))

    def pre_score(self, state: CycleState, pod: Pod, nodes: Nodes) -> Status:
        """Skip when no placed pod counts for or against any node."""
        terms = compile_affinity_terms(pod.spec.affinity, pod.metadata.namespace)
        if self._own_only and not terms.preferred_affinity and not terms.preferred_anti_affinity:
            return SKIP
        wishes = wishes_of(pod, terms, nodes.snapshot, hard_weight=self._hard_weight)
        state.write(SUMS, added_up(wishes, nodes.snapshot))
        return SUCCESS if state.read(SUMS) else SKIP

    def score(self, state: CycleState, pod: Pod, node: NodeInfo) -> int:
        """What is wished for in the node's domains, less what is not."""
        return int(sum(domains.at(node.row) for domains in state.read(SUMS)))

    def score_all(self, state: CycleState, pod: Pod, nodes: Nodes) -> Scores:
        """The same for all nodes."""
        total = np.zeros(len(nodes), dtype=np.float64)
        for domains in state.read(SUMS):
            total += domains.on(nodes)
        return total.astype(np.int64)

    def normalize(self, state: CycleState, pod: Pod, scores: Scores, nodes: Nodes) -> Scores:
        """Divided first, then times 100: 29 of 50 is 57 and not 58, as in kube-scheduler."""
        least, most = int(scores.min()), int(scores.max())
        if least == most:
            return np.zeros(len(scores), dtype=np.int64)
        normalized: Scores = (MAX_SCORE * ((scores - least) / float(most - least))).astype(np.int64)
        return normalized

    def events(self) -> Sequence[EventHint]:
        """Pods that come, go or change their labels; nodes that are added or change theirs."""
        return EVENTS


def _build(args: Any) -> InterPodAffinity:
    return InterPodAffinity(args or InterPodAffinityArgs())


FACTORY: Final = PluginFactory(
    name=NAME,
    points=(Point.PRE_FILTER, Point.FILTER, Point.PRE_SCORE, Point.SCORE),
    build=_build,
    args_type=InterPodAffinityArgs,
    validate=validate,
)
