"""InterPodAffinity: required and preferred pod affinity and anti-affinity, by topology.

Filter: in the node's domain, every required affinity term has a pod that matches all of them (the first pod of a group
that matches its own terms may go anywhere), no required anti-affinity term has a matching pod, and no existing pod has
required anti-affinity to this one. Score: see ``counts``; normalized so that the least is 0 and the most 100. As
kube-scheduler 1.36's plugin of that name.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import ClassVar, Final

import numpy as np

from berth.api.config.types import Point
from berth.api.meta import LabelSelector
from berth.api.node import Node
from berth.api.pod import Affinity, Pod, PodAffinity, PodAffinityTerm
from berth.api.selectors import (
    MATCHES_NOTHING,
    AffinityTerm,
    AffinityTermKind,
    AffinityTerms,
    compile_affinity_terms,
    in_words,
)
from berth.api.workloads import Namespace
from berth.cluster.nodes import NodeInfo, Nodes, NodesWithAnother, RejectedNodes, RemovedPods
from berth.cluster.pods import Trait
from berth.cluster.snapshot import Snapshot
from berth.framework.events import Action, ClusterEvent, EventHint, IdentityCache, Resource, ValueIndex, Values, encoded
from berth.framework.interface import (
    MAX_SCORE,
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
from berth.plugins.domains import DomainSums
from berth.plugins.factory import Args, PluginFactory, with_args
from berth.plugins.interpodaffinity.counts import (
    AffinityCounts,
    count_affinity,
    own_points,
    scored_terms,
    topology_scores,
)

NAME: Final = "InterPodAffinity"
AFFINITY_NOT_MATCHED: Final = Status.unresolvable("node(s) didn't match pod affinity rules")
ANTI_AFFINITY_NOT_MATCHED: Final = Status.unschedulable("node(s) didn't match pod anti-affinity rules")
EXISTING_ANTI_AFFINITY_NOT_MATCHED: Final = Status.unschedulable(
    "node(s) didn't satisfy existing pods anti-affinity rules"
)
AFFINITY_COUNTS: Final = StateKey[AffinityCounts]("InterPodAffinity.affinity_counts")
TOPOLOGY_SCORES: Final = StateKey[list[DomainSums]]("InterPodAffinity.topology_scores")


class InterPodAffinityArgs(Args, frozen=True, kw_only=True):
    """Weights of placed pods' terms."""

    hard_pod_affinity_weight: int = 1
    """Weight of placed pods' required affinity terms in Score, 0..100."""
    ignore_preferred_terms_of_existing_pods: bool = False
    """Skips Score for pods without preferred terms of their own."""


_FILTERED_BY: Final = (AffinityTermKind.REQUIRED_ANTI_AFFINITY,)
# Placed pods' terms that matter to a pod without terms. Asked first, because most clusters have few or none.
_SCORED_BY: Final = (
    AffinityTermKind.REQUIRED_AFFINITY,
    AffinityTermKind.PREFERRED_AFFINITY,
    AffinityTermKind.PREFERRED_ANTI_AFFINITY,
)


class InterPodAffinity(
    PreFilterExtensions,
    VectorFilterPlugin,
    RemedyPlugin,
    PreScorePlugin,
    VectorScorePlugin,
    NormalizePlugin,
    EnqueueExtensions,
):
    name: ClassVar[str] = NAME
    only_for = Trait.POD_AFFINITY | Trait.PLACED_AFFINITY

    def __init__(self, args: InterPodAffinityArgs) -> None:
        self._hard_weight = args.hard_pod_affinity_weight
        self._own_only = args.ignore_preferred_terms_of_existing_pods

    def pre_filter(self, state: CycleState, pod: Pod, snapshot: Snapshot) -> PreFilterResult:
        """Skip for a pod without required terms to which no existing pod has anti-affinity."""
        terms = _compiled_once(state, pod)
        if not terms.are_required and not snapshot.groups.have_terms(_FILTERED_BY):
            return PRE_FILTER_SKIPPED
        found = count_affinity(pod, terms, snapshot)
        if found.is_empty:
            return PRE_FILTER_SKIPPED
        state.write(AFFINITY_COUNTS, found)
        return PreFilterResult()

    def add_pod(self, state: CycleState, pod: Pod, added: Pod, node: NodeInfo) -> Status:
        state.read(AFFINITY_COUNTS).update(pod, added, node.row, 1, node.snapshot)
        return SUCCESS

    def remove_pod(self, state: CycleState, pod: Pod, removed: Pod, node: NodeInfo) -> Status:
        state.read(AFFINITY_COUNTS).update(pod, removed, node.row, -1, node.snapshot)
        return SUCCESS

    def rejected_without(self, state: CycleState, pod: Pod, nodes: Nodes, removed: RemovedPods) -> Verdicts | None:
        """Reject by the remaining anti-affinity. With affinity terms try each node: victims may match them."""
        counts = state.read(AFFINITY_COUNTS)
        if counts.terms.required_affinity:
            return None
        codes = np.where(counts.existing_anti_affinity_violated_without(pod, nodes, removed), 2, 0)
        codes = np.where(counts.anti_affinity_violated_without(nodes, removed), 1, codes).astype(np.int32)
        return Verdicts(codes, (SUCCESS, ANTI_AFFINITY_NOT_MATCHED, EXISTING_ANTI_AFFINITY_NOT_MATCHED))

    def filter(self, state: CycleState, pod: Pod, node: NodeInfo) -> Status:
        """Affinity first, because evictions cannot help there."""
        counts = state.read(AFFINITY_COUNTS)
        if not counts.satisfies_affinity(node.row):
            return AFFINITY_NOT_MATCHED
        if not counts.satisfies_anti_affinity(node.row):
            return ANTI_AFFINITY_NOT_MATCHED
        return SUCCESS if counts.satisfies_existing_anti_affinity(node.row) else EXISTING_ANTI_AFFINITY_NOT_MATCHED

    def filter_all(self, state: CycleState, pod: Pod, nodes: Nodes) -> Verdicts:
        counts = state.read(AFFINITY_COUNTS)
        codes = np.where(counts.existing_anti_affinity_mask(nodes), 0, 3)
        codes = np.where(counts.anti_affinity_mask(nodes), codes, 2)
        codes = np.where(counts.affinity_mask(nodes), codes, 1).astype(np.int32)
        return Verdicts(
            codes, (SUCCESS, AFFINITY_NOT_MATCHED, ANTI_AFFINITY_NOT_MATCHED, EXISTING_ANTI_AFFINITY_NOT_MATCHED)
        )

    def remedy(self, state: CycleState, pod: Pod, nodes: RejectedNodes) -> Iterable[RemedySentence]:
        counts = state.find(AFFINITY_COUNTS)
        if counts is None:
            return
        for term, domains in zip(counts.terms.required_affinity, counts.affinity, strict=True):
            key, lonely = term.topology_key, domains.of_nodes(nodes) <= 0
            before, after = f"asks to be beside pods with {_pods(term)}, and", f"have none in their {key}"
            if not domains.any():
                before, after = f"asks to be beside pods with {_pods(term)}, of which there is none, on", ""
            yield RemedySentence(about=key, nodes=lonely, before=before, after=after)
        for term, domains in zip(counts.terms.required_anti_affinity, counts.anti_affinity, strict=True):
            key, shared = term.topology_key, domains.of_nodes(nodes) > 0
            before = f"asks to be apart from pods with {_pods(term)}, and"
            yield RemedySentence(about=key, nodes=shared, before=before, after=f"have one in their {key}")
        for key, domains in counts.existing_anti_affinity.items():
            before, after = "pods that ask to be apart from this one are on", f"or in their {key}"
            yield RemedySentence(about=key, nodes=domains.of_nodes(nodes) > 0, before=before, after=after)

    def pre_score(self, state: CycleState, pod: Pod, nodes: Nodes) -> Status:
        terms = _compiled_once(state, pod)
        if not terms.are_preferred and (self._own_only or not nodes.snapshot.groups.have_terms(_SCORED_BY)):
            return SKIP
        scored = scored_terms(pod, terms, nodes.snapshot, hard_weight=self._hard_weight)
        state.write(TOPOLOGY_SCORES, topology_scores(scored, nodes.snapshot))
        return SUCCESS if state.read(TOPOLOGY_SCORES) else SKIP

    def score(self, state: CycleState, pod: Pod, node: NodeInfo) -> int:
        return int(sum(domains.at(node.row) for domains in state.read(TOPOLOGY_SCORES)))

    def score_all(self, state: CycleState, pod: Pod, nodes: Nodes) -> Scores:
        total = np.zeros(len(nodes), dtype=np.float64)
        for domains in state.read(TOPOLOGY_SCORES):
            total += domains.of_nodes(nodes)
        return total.astype(np.int64)

    def score_with_another(self, state: CycleState, pod: Pod, nodes: NodesWithAnother) -> Scores:
        """Terms of the pod that match the pod itself: a preferred one counts for both pods."""
        scores = self.score_all(state, pod, nodes)
        for key, points in own_points(pod, _compiled_once(state, pod), nodes.snapshot, hard_weight=self._hard_weight):
            scores += points * (nodes.label(key)[0] >= 0)
        return scores

    def normalize(self, state: CycleState, pod: Pod, scores: Scores, nodes: Nodes) -> Scores:
        """Divide first, then multiply by 100: 29 of 50 is 57 and not 58, as in kube-scheduler."""
        least, most = int(scores.min()), int(scores.max())
        if least == most:
            return np.zeros(len(scores), dtype=np.int64)
        normalized: Scores = (MAX_SCORE * ((scores - least) / float(most - least))).astype(np.int64)
        return normalized

    def events(self) -> Sequence[EventHint]:
        return EVENTS


def _pods(term: AffinityTerm) -> str:
    if term.selector.labels == MATCHES_NOTHING:
        return "labels that no labelSelector names"
    return in_words(term.selector.labels.requirements) or "any labels"


def _compiled_once(state: CycleState, pod: Pod) -> AffinityTerms:
    return state.pod_class.affinity_terms(pod.metadata.namespace)


def _after_pod_change(pod: Pod, old: object, new: object) -> bool:
    """A pod now matches the affinity terms; or one that violated anti-affinity is deleted or no longer matches.

    A pod that matches its own affinity terms may go anywhere once no other pod matches them.
    """
    was, now = old if isinstance(old, Pod) else None, new if isinstance(new, Pod) else None
    if now is not None and now.uid == pod.uid:
        return True
    terms = _terms_of(pod)
    together = terms.required_affinity
    matched, matches = (each is not None and _all_match(together, each) for each in (was, now))
    if matches != matched and (matches or _all_match(together, pod)):
        return True
    if was is None:
        return False
    freed = any(_matches(term, was) and not (now and _matches(term, now)) for term in terms.required_anti_affinity)
    return freed or (now is None and _has_anti_affinity_to(was, pod))


def _has_anti_affinity_to(deleted: Pod, pod: Pod) -> bool:
    terms = _terms_of(deleted)
    return any(_matches(term, pod) for term in terms.required_anti_affinity)


def _after_node_change(pod: Pod, old: object, new: object) -> bool:
    """A node is added that has the topology keys of the affinity terms, or a node leaves or enters a domain.

    Leaving any domain may help, because the topology keys of existing pods' anti-affinity are unknown here.
    """
    together = _affinity_keys_of(pod)
    was, now = _labels_of(old), _labels_of(new)
    if not isinstance(old, Node):
        return not together or not together.isdisjoint(now)
    entered = (key for key in together if key not in was and key in now)
    return any(now.get(key) != value for key, value in was.items()) or any(entered)


def _labels_of(thing: object) -> Mapping[str, str]:
    return thing.metadata.labels or {} if isinstance(thing, Node | Namespace) else {}


def _after_namespace_change(pod: Pod, old: object, new: object) -> bool:
    """The namespace starts or stops to match a namespaceSelector of the pod.

    Or it is the pod's own: the namespaceSelectors of existing pods' anti-affinity are unknown here.
    """
    was, now = _labels_of(old), _labels_of(new)
    namespace = new if isinstance(new, Namespace) else old
    if not isinstance(namespace, Namespace) or (isinstance(old, Namespace) and was == now):
        return False
    if namespace.metadata.name == pod.metadata.namespace:
        return True
    terms = _terms_of(pod)
    selectors = (term.selector.namespace_selector for term in (*terms.required_affinity, *terms.required_anti_affinity))
    return any(selector.matches(was) != selector.matches(now) for selector in selectors)


def _namespaces_read_by(pod: Pod) -> bytes:
    selectors = [term.namespace_selector for terms in _required_of(pod) for term in terms if term.namespace_selector]
    return encoded(pod.metadata.namespace, selectors)


def _namespace_index() -> ValueIndex:
    return ValueIndex(_own_namespace, _namespace_of_event)


def _own_namespace(pod: Pod) -> Values:
    selects = any(term.namespace_selector is not None for terms in _required_of(pod) for term in terms)
    return None if selects else (pod.metadata.namespace,)


def _namespace_of_event(old: object, new: object) -> Values:
    return {each.metadata.name for each in (old, new) if isinstance(each, Namespace)}


def _all_match(terms: Sequence[AffinityTerm], pod: Pod) -> bool:
    return bool(terms) and all(_matches(term, pod) for term in terms)


def _matches(term: AffinityTerm, pod: Pod) -> bool:
    """Assume that a namespaceSelector matches every namespace, because a vain attempt is better than a missed one."""
    selector, meta = term.selector, pod.metadata
    covered = selector.uses_namespace_labels or meta.namespace in selector.namespaces
    return covered and selector.labels.matches(meta.labels or {})


_TERM_BYTES: Final = 600  # of a compiled term
# Indexed terms of a pod: as many as it may have (docs/configuration.md). Every event about a pod finds pods with more:
# 300 with 256 terms each, more than are kept compiled, cost 950 ms an event instead of 0.05 ms.
_MAX_INDEXED: Final = 256


def _compiled(pod: Pod) -> AffinityTerms:
    return compile_affinity_terms(pod.spec.affinity, pod.metadata.namespace)


def _bytes_of_terms(terms: AffinityTerms) -> int:
    return _TERM_BYTES * sum(len(terms.at(kind)) for kind in AffinityTermKind)


_terms_of: Final = IdentityCache(_compiled, weigh=_bytes_of_terms)


def _required_of(pod: Pod) -> tuple[list[PodAffinityTerm], list[PodAffinityTerm]]:
    """Affinity and anti-affinity terms as written, because keys are computed once per pod without compiling."""
    affinity = pod.spec.affinity or Affinity()
    together, apart = affinity.pod_affinity or PodAffinity(), affinity.pod_anti_affinity or PodAffinity()
    return (
        together.required_during_scheduling_ignored_during_execution or [],
        apart.required_during_scheduling_ignored_during_execution or [],
    )


def _required_terms(pod: Pod) -> bytes:
    """The inputs of the hint for pods: the pod's own terms, and its labels for others' terms."""
    return encoded(pod.metadata.namespace, pod.metadata.labels, _required_of(pod))


def _affinity_keys(pod: Pod) -> frozenset[str]:
    together, _ = _required_of(pod)
    return frozenset(term.topology_key for term in together)


_affinity_keys_of: Final = IdentityCache(_affinity_keys)


def _index() -> ValueIndex:
    """Index a pod by the labels that its terms require, and by its own labels, which a deleted pod's terms require."""
    return ValueIndex(_values_of_pod, _values_of_event)


def _values_of_pod(pod: Pod) -> Values:
    together, apart = _required_of(pod)
    if max(len(together), len(apart)) > _MAX_INDEXED:
        return None
    values: set[Hashable] = {("own", *label) for label in (pod.metadata.labels or {}).items()}
    if together:  # all must match, so one is enough to find the pod
        labels = next(filter(None, map(_labels_named_by, together)), None)
        if labels is None:
            return None
        values.update(("term", *label) for label in labels)
    for term in apart:
        labels = _labels_named_by(term)
        if labels is None:
            return None
        values.update(("term", *label) for label in labels)
    return values


def _values_of_event(old: object, new: object) -> Values:
    known = [other for other in (old, new) if isinstance(other, Pod)]
    values: set[Hashable] = {("term", *label) for other in known for label in (other.metadata.labels or {}).items()}
    if isinstance(old, Pod) and not isinstance(new, Pod):
        for term in _required_of(old)[1]:
            labels = _labels_named_by(term)
            if labels is None:
                return None
            values.update(("own", *label) for label in labels)
    return values


def _labels_named_by(term: PodAffinityTerm) -> list[tuple[str, str]] | None:
    """Labels of which a pod must have one to match the term; None if it names none. Does not compile the term."""
    selector = term.label_selector or LabelSelector()
    for label in (selector.match_labels or {}).items():
        return [label]
    for requirement in selector.match_expressions or ():
        if requirement.operator == "In":
            return [(requirement.key, value) for value in requirement.values or ()]
    return None


EVENTS: Final[Sequence[EventHint]] = (
    EventHint(
        ClusterEvent(Resource.POD, Action.ADD | Action.DELETE | Action.UPDATE_POD_LABEL),
        _after_pod_change,
        key=_required_terms,
        index=_index,
    ),
    EventHint(
        ClusterEvent(Resource.NODE, Action.ADD | Action.DELETE | Action.UPDATE_NODE_LABEL),
        _after_node_change,
        _affinity_keys_of,
    ),
    EventHint(
        ClusterEvent(Resource.NAMESPACE, Action.ADD | Action.UPDATE | Action.DELETE),
        _after_namespace_change,
        _namespaces_read_by,
        _namespace_index,
    ),
    EventHint(ClusterEvent(Resource.NOMINATION, Action.DELETE), _after_pod_change, key=_required_terms, index=_index),
)


def validate(args: InterPodAffinityArgs, path: str) -> list[str]:
    weight = args.hard_pod_affinity_weight
    return [] if 0 <= weight <= 100 else [f"{path}.hardPodAffinityWeight: want 0..100, got {weight}"]


FACTORY: Final = PluginFactory(
    name=NAME,
    points=(Point.PRE_FILTER, Point.FILTER, Point.PRE_SCORE, Point.SCORE),
    build=with_args(InterPodAffinity, InterPodAffinityArgs),
    args_type=InterPodAffinityArgs,
    validate=validate,
)
