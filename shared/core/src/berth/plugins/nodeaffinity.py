"""NodeAffinity: nodeSelector and required node affinity filter, preferred node affinity scores.

Score: the sum of the weights of the preferred terms that a node satisfies, normalized so that the largest is 100.
``addedAffinity`` of the arguments applies to every pod in addition to its own. As kube-scheduler's plugin of that name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from heapq import nlargest
from typing import ClassVar, Final

import numpy as np

from berth.api.config.types import Point
from berth.api.meta import SelectorRequirement
from berth.api.node import Node
from berth.api.pod import NodeAffinity as Affinity
from berth.api.pod import NodeSelectorTerm, Pod, PodSpec
from berth.api.selectors import (
    NAME_FIELD,
    NodeTerm,
    Requirement,
    WeightedNodeTerm,
    compile_node_selector,
    compile_preferred,
    in_words,
    is_valid_term,
    named_nodes,
)
from berth.cluster.nodes import Mask, NodeInfo, Nodes, RejectedNodes
from berth.cluster.pods import EquivalenceClass, Trait
from berth.cluster.snapshot import Snapshot
from berth.framework.events import Action, ClusterEvent, EventHint, IdentityCache, Resource, ValueIndex, Values, encoded
from berth.framework.interface import (
    PRE_FILTER_SKIPPED,
    EnqueueExtensions,
    NormalizePlugin,
    PreFilterPlugin,
    PreFilterResult,
    PreScorePlugin,
    Reads,
    RemedyPlugin,
    RemedySentence,
    Scores,
    VectorFilterPlugin,
    VectorScorePlugin,
)
from berth.framework.scoring import default_normalize
from berth.framework.status import SKIP, SUCCESS, CycleState, Status, Verdicts
from berth.plugins.factory import Args, PluginFactory, key_problems, value_problems, with_args
from berth.plugins.matching import EligibleNodes, term_mask, terms_mask

NAME: Final = "NodeAffinity"
NO_MATCH: Final = Status.unresolvable("node(s) didn't match Pod's node affinity/selector")
NO_ADDED_MATCH: Final = Status.unresolvable("node(s) didn't match scheduler-enforced node affinity")
CONFLICT: Final = Status.unresolvable("pod affinity terms conflict")
_TERM_BYTES: Final = 500  # of a compiled term
_MAX_SENTENCES: Final = 2  # sets of expressions with a sentence: those of most nodes, in all and per term
# Terms compared with each node to find the closest one; a pod with more gets no sentence.
_MAX_COMPARED: Final = 16
# Indexed terms of a pod: as many as it may have (docs/configuration.md). Pods with more are found by every event,
# and together may have more terms than are kept.
_MAX_INDEXED: Final = 1000


class NodeAffinityArgs(Args, frozen=True, kw_only=True):
    """Requirements for all pods of the profile."""

    added_affinity: Affinity | None = None
    """A node affinity that every pod of the profile has in addition to its own."""


class NodeAffinityPlugin(
    PreFilterPlugin,
    VectorFilterPlugin,
    RemedyPlugin,
    PreScorePlugin,
    VectorScorePlugin,
    NormalizePlugin,
    EnqueueExtensions,
):
    name: ClassVar[str] = NAME
    reads = Reads.NODE

    def __init__(self, args: NodeAffinityArgs) -> None:
        self.only_for = Trait.NODE_AFFINITY if args.added_affinity is None else None
        added = args.added_affinity or Affinity()
        required = added.required_during_scheduling_ignored_during_execution
        self._required = compile_node_selector(required) if required is not None else None
        self._preferred = compile_preferred(added.preferred_during_scheduling_ignored_during_execution)
        self._class_of = IdentityCache(_compiled, weigh=_bytes_of_terms)

    def pre_filter(self, state: CycleState, pod: Pod, snapshot: Snapshot) -> PreFilterResult:
        wanted = state.pod_class
        if wanted.node_labels is None and wanted.required_nodes is None and self._required is None:
            return PRE_FILTER_SKIPPED
        affinity = pod.spec.affinity.node_affinity if pod.spec.affinity else None
        nodes = named_nodes(affinity.required_during_scheduling_ignored_during_execution if affinity else None)
        return PreFilterResult(CONFLICT) if nodes is not None and not nodes else PreFilterResult(SUCCESS, nodes)

    def filter(self, state: CycleState, pod: Pod, node: NodeInfo) -> Status:
        """The added affinity first, then the pod's own."""
        if self._required is not None and not self._required.matches(node.name, node.labels):
            return NO_ADDED_MATCH
        return SUCCESS if state.pod_class.allows(node.name, node.labels) else NO_MATCH

    def filter_all(self, state: CycleState, pod: Pod, nodes: Nodes) -> Verdicts:
        fits = nodes.take(EligibleNodes.of(nodes.snapshot).allowed(state.pod_class))
        added = np.ones(len(nodes), dtype=np.bool_) if self._required is None else terms_mask(self._required, nodes)
        codes = np.where(added, np.where(fits, 0, 2), 1).astype(np.int32)
        return Verdicts(codes, (SUCCESS, NO_ADDED_MATCH, NO_MATCH))

    def remedy(self, state: CycleState, pod: Pod, nodes: RejectedNodes) -> Iterable[RemedySentence]:
        """The unsatisfied expressions of the pod's own requirements on the nodes closest to a match."""
        groups = _closest_nodes(state.pod_class, nodes)
        alone = nodes.alone
        largest = nlargest(
            _MAX_SENTENCES, groups, key=lambda each: (np.sum(groups[each] & alone), np.sum(groups[each]))
        )
        for failing in largest:
            yield RemedySentence(
                about=", ".join(requirement.key for requirement in failing),
                nodes=groups[failing],
                before=f"asks for nodes with {in_words(failing)}, and",
                after="would match but for that",
            )

    def pre_score(self, state: CycleState, pod: Pod, nodes: Nodes) -> Status:
        return SUCCESS if self._preferred or state.pod_class.preferred_nodes else SKIP

    def score(self, state: CycleState, pod: Pod, node: NodeInfo) -> int:
        return sum(w.weight for w in self.preferred(state) if w.term.matches(node.name, node.labels))

    def score_all(self, state: CycleState, pod: Pod, nodes: Nodes) -> Scores:
        scores = np.zeros(len(nodes), dtype=np.int64)
        for weighted in self.preferred(state):
            scores += weighted.weight * term_mask(weighted.term, nodes)
        return scores

    def normalize(self, state: CycleState, pod: Pod, scores: Scores, nodes: Nodes) -> Scores:
        return default_normalize(scores)

    def preferred(self, state: CycleState) -> Sequence[WeightedNodeTerm]:
        return (*self._preferred, *state.pod_class.preferred_nodes)

    def events(self) -> Sequence[EventHint]:
        changes = ClusterEvent(Resource.NODE, Action.ADD | Action.UPDATE_NODE_LABEL)
        return (EventHint(changes, self._matches_now, key=_required_of, index=self._index),)

    def _index(self) -> ValueIndex:
        return ValueIndex(lambda pod: _indexed_values(EquivalenceClass(b"", pod.spec)), _values_of)

    def _matches_now(self, pod: Pod, old: object, new: object) -> bool:
        pod_class = self._class_of(pod.spec)
        if not isinstance(new, Node) or not self._allows(pod_class, new):
            return False
        return not (isinstance(old, Node) and self._allows(pod_class, old))

    def _allows(self, pod_class: EquivalenceClass, node: Node) -> bool:
        added = self._required
        name, labels = node.metadata.name, node.metadata.labels or {}
        return (added is None or added.matches(name, labels)) and pod_class.allows(name, labels)


# An expression, and whether it concerns the node's name.
Expression = tuple[Requirement, bool]


def _closest_nodes(pod_class: EquivalenceClass, nodes: Nodes) -> dict[tuple[Requirement, ...], Mask]:
    """The nodes that fail in the fewest expressions of one term, by these expressions."""
    terms = pod_class.required_nodes.terms if pod_class.required_nodes is not None else (NodeTerm(()),)
    if not 0 < len(terms) <= _MAX_COMPARED:
        return {}
    selector = _expressions(pod_class.node_labels or NodeTerm(()))
    failing = [_failing([*selector, *_expressions(term)], nodes) for term in terms]
    numbers = np.array([each.sum(axis=0) for each in failing], dtype=np.int64)
    fewest, best = numbers.min(axis=0), numbers.argmin(axis=0)
    if not fewest.any():
        return {}
    closest = fewest == fewest[fewest > 0].min()
    groups: dict[tuple[Requirement, ...], Mask] = {}
    for number, term in enumerate(terms):
        requirements = [requirement for requirement, _ in (*selector, *_expressions(term))]
        for columns, mask in _largest_groups(failing[number], closest & (best == number)):
            key = tuple(requirement for requirement, fails in zip(requirements, columns, strict=True) if fails)
            groups[key] = groups.get(key, np.zeros_like(mask)) | mask
    return groups


def _largest_groups(failing: Mask, among: Mask) -> Iterator[tuple[list[bool], Mask]]:
    """The largest groups of nodes that fail in the same expressions: bool[expressions], bool[nodes]."""
    if not among.any():
        return
    columns, group_of = np.unique(failing[:, among], axis=1, return_inverse=True)
    group_of, sizes = group_of.reshape(-1), np.bincount(group_of.reshape(-1))
    for group in nlargest(_MAX_SENTENCES, range(len(sizes)), key=sizes.__getitem__):
        mask: Mask = np.zeros(len(among), dtype=np.bool_)
        mask[np.flatnonzero(among)[group_of == group]] = True
        yield columns[:, group].tolist(), mask


def _failing(wanted: Sequence[Expression], nodes: Nodes) -> Mask:
    terms = (NodeTerm((), (each,)) if is_name else NodeTerm((each,)) for each, is_name in wanted)
    failing: Mask = np.array([~term_mask(term, nodes) for term in terms], dtype=np.bool_)
    return failing.reshape(-1, len(nodes))


def _expressions(term: NodeTerm) -> list[Expression]:
    return [*((each, False) for each in term.labels), *((each, True) for each in term.names)]


def _compiled(spec: PodSpec) -> EquivalenceClass:
    return EquivalenceClass(b"", spec)


def _bytes_of_terms(pod_class: EquivalenceClass) -> int:
    return _TERM_BYTES * len(pod_class.required_nodes.terms if pod_class.required_nodes is not None else ())


def _required_of(pod: Pod) -> bytes:
    affinity = pod.spec.affinity.node_affinity if pod.spec.affinity else None
    required = affinity.required_during_scheduling_ignored_during_execution if affinity else None
    return encoded(pod.spec.node_selector, required)


def _indexed_values(pod_class: EquivalenceClass) -> Values:
    """Labels and names of which a node must have one; None if some term names none."""
    terms = [pod_class.node_labels] if pod_class.node_labels is not None else None
    if terms is None and pod_class.required_nodes is not None:
        terms = list(pod_class.required_nodes.terms)
    if terms is None or len(terms) > _MAX_INDEXED:
        return None
    values: set[tuple[str, str]] = set()
    for term in terms:
        named = _named_by(term)
        if named is None:
            return None
        values |= named
    return values


def _named_by(term: NodeTerm) -> set[tuple[str, str]] | None:
    for requirement in term.labels:
        if requirement.operator == "In":
            return {(requirement.key, value) for value in requirement.values}
    for requirement in term.names:
        if requirement.operator == "In":
            return {(NAME_FIELD, value) for value in requirement.values}
    return None


def _values_of(_: object, new: object) -> Values:
    """The node's labels and name. A label with the name's key only makes the answer larger."""
    if not isinstance(new, Node):
        return ()
    return [*(new.metadata.labels or {}).items(), (NAME_FIELD, new.metadata.name)]


_EXPRESSION: Final = (
    "In or NotIn with values, Exists or DoesNotExist without any, or Gt or Lt with one value, a whole number"
)
_FIELD: Final = "metadata.name with In or NotIn and one value"
_OF_VALUES: Final = ("In", "NotIn")
_KINDS: Final = ("required", "preferred")


def validate(args: NodeAffinityArgs, path: str) -> list[str]:
    """Every expression of addedAffinity must be valid, every weight 1..100."""
    added = args.added_affinity or Affinity()
    required = added.required_during_scheduling_ignored_during_execution
    preferred = added.preferred_during_scheduling_ignored_during_execution or []
    hard, soft = (f"{path}.addedAffinity.{kind}DuringSchedulingIgnoredDuringExecution" for kind in _KINDS)
    terms = [
        (f"{hard}.nodeSelectorTerms[{i}]", term)
        for i, term in enumerate((required.node_selector_terms if required else None) or [])
    ]
    terms += [(f"{soft}[{i}].preference", term.preference) for i, term in enumerate(preferred)]
    problems = [problem for place, term in terms for problem in _problems_of(term, place)]
    return problems + [
        f"{soft}[{i}].weight: want 1..100, got {term.weight}"
        for i, term in enumerate(preferred)
        if not 1 <= term.weight <= 100
    ]


def _problems_of(term: NodeSelectorTerm, path: str) -> list[str]:
    problems = []
    for i, expression in enumerate(term.match_expressions or ()):
        place = f"{path}.matchExpressions[{i}]"
        problems += key_problems(expression.key, f"{place}.key")
        if expression.operator in _OF_VALUES:
            values = enumerate(expression.values or ())
            problems += [problem for j, value in values for problem in value_problems(value, f"{place}.values[{j}]")]
        if not is_valid_term(NodeSelectorTerm(match_expressions=[expression])):
            problems.append(f"{place}: want {_EXPRESSION}, got {_written(expression)}")
    return problems + [
        f"{path}.matchFields[{i}]: want {_FIELD}, got {field.key!r} with {_written(field)}"
        for i, field in enumerate(term.match_fields or ())
        if not is_valid_term(NodeSelectorTerm(match_fields=[field]))
    ]


def _written(expression: SelectorRequirement) -> str:
    return f"{expression.operator!r} with {expression.values or []}"


FACTORY: Final = PluginFactory(
    name=NAME,
    points=(Point.PRE_FILTER, Point.FILTER, Point.PRE_SCORE, Point.SCORE),
    build=with_args(NodeAffinityPlugin, NodeAffinityArgs),
    args_type=NodeAffinityArgs,
    validate=validate,
)
