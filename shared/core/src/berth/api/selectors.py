"""Label selectors, node selectors and pod affinity terms, compiled once and matched often."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from berth.api.meta import LabelSelector, SelectorRequirement
from berth.api.pod import (
    Affinity,
    NodeSelector,
    NodeSelectorTerm,
    PodAffinity,
    PodAffinityTerm,
    PreferredNodeTerm,
    WeightedPodAffinityTerm,
)

NAME_FIELD: Final = "metadata.name"  # the only field that a node selector can name

_INVALID: Final = "invalid"

# Values of one expression that its text lists.
_MAX_SHOWN: Final = 3

_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,64}")

_INT64: Final = range(-(2**63), 2**63)


@dataclass(frozen=True, slots=True)
class Requirement:
    """``key operator values`` on one label; an invalid one has the operator ``invalid`` and never holds."""

    key: str
    operator: str
    values: frozenset[str] = frozenset()

    def holds(self, value: str | None) -> bool:
        """Whether a label of this value satisfies it; None means that the label is absent."""
        return _OPERATORS[self.operator](value, self.values)

    def __str__(self) -> str:
        """``disktype=ssd``, ``zone in (a, b)``, ``no spot``, ``cores > 8``."""
        values = sorted(self.values)
        among = f"({', '.join([*values[:_MAX_SHOWN], *(['...'] if len(values) > _MAX_SHOWN else [])])})"
        match self.operator:
            case "In":
                return f"{self.key}={values[0]}" if len(values) == 1 else f"{self.key} in {among}"
            case "NotIn":
                return f"{self.key} not in {among}"
            case "Exists":
                return self.key
            case "DoesNotExist":
                return f"no {self.key}"
            case "Gt" | "Lt":
                return f"{self.key} {'>' if self.operator == 'Gt' else '<'} {values[0]}"
            case _:
                return f"an invalid expression on {self.key}" if self.key else "an invalid expression"


def in_words(requirements: Iterable[Requirement]) -> str:
    """``disktype=ssd, no spot and cores > 8``."""
    *others, last = [*map(str, requirements)] or [""]
    return f"{', '.join(others)} and {last}" if others else last


@dataclass(frozen=True, slots=True)
class NodeTerm:
    """Expressions on labels and on the node's name, all of which must hold."""

    labels: tuple[Requirement, ...]
    names: tuple[Requirement, ...] = ()

    def matches(self, name: str, labels: Mapping[str, str]) -> bool:
        return all(r.holds(labels.get(r.key)) for r in self.labels) and all(r.holds(name) for r in self.names)


@dataclass(frozen=True, slots=True)
class NodeTerms:
    """Terms of which one must hold; no terms match nothing."""

    terms: tuple[NodeTerm, ...]

    def matches(self, name: str, labels: Mapping[str, str]) -> bool:
        return any(term.matches(name, labels) for term in self.terms)


@dataclass(frozen=True, slots=True)
class WeightedNodeTerm:
    """A preference: the weight counts on nodes that satisfy the term."""

    weight: int
    term: NodeTerm


@dataclass(frozen=True, slots=True)
class LabelMatcher:
    """A compiled label selector; no requirements match everything."""

    requirements: tuple[Requirement, ...]

    def matches(self, labels: Mapping[str, str]) -> bool:
        return all(r.holds(labels.get(r.key)) for r in self.requirements)


MATCHES_NOTHING: Final = LabelMatcher((Requirement("", _INVALID),))

MATCHES_EVERYTHING: Final = LabelMatcher(())


def compile_label_selector(selector: LabelSelector | None) -> LabelMatcher:
    """Absent selects nothing, empty selects everything."""
    if selector is None:
        return MATCHES_NOTHING
    expressions = [_label_requirement(r) for r in selector.match_expressions or ()]
    return LabelMatcher((*_equalities(selector.match_labels), *expressions))


def compile_node_labels(labels: Mapping[str, str] | None) -> NodeTerm:
    """A pod's nodeSelector: every label must have its value."""
    return NodeTerm(tuple(_equalities(labels)))


def compile_node_selector(selector: NodeSelector) -> NodeTerms:
    """Required terms; an empty term selects nothing and is left out."""
    return NodeTerms(tuple(_node_term(t) for t in selector.node_selector_terms or () if not _is_empty(t)))


def compile_preferred(terms: list[PreferredNodeTerm] | None) -> tuple[WeightedNodeTerm, ...]:
    """Preferred terms, except empty ones and ones of weight 0, which have no effect."""
    return tuple(
        WeightedNodeTerm(t.weight, _node_term(t.preference))
        for t in terms or ()
        if t.weight and not _is_empty(t.preference)
    )


def named_nodes(selector: NodeSelector | None) -> frozenset[str] | None:
    """The nodes that the selector names by metadata.name, or None if some term names none."""
    terms = selector.node_selector_terms if selector else None
    if not terms:
        return None
    named: frozenset[str] = frozenset()
    for term in terms:
        sets = [
            frozenset(r.values or ()) for r in term.match_fields or () if r.key == NAME_FIELD and r.operator == "In"
        ]
        if not sets:
            return None
        named |= frozenset.intersection(*sets)
    return named


def is_valid_term(term: NodeSelectorTerm) -> bool:
    """Whether every expression of the term can hold."""
    compiled = _node_term(term)
    return all(requirement.operator != _INVALID for requirement in (*compiled.labels, *compiled.names))


def _equalities(labels: Mapping[str, str] | None) -> list[Requirement]:
    return [Requirement(key, "In", frozenset((value,))) for key, value in (labels or {}).items()]


def _is_empty(term: NodeSelectorTerm) -> bool:
    return not term.match_expressions and not term.match_fields


def _node_term(term: NodeSelectorTerm) -> NodeTerm:
    return NodeTerm(
        tuple(_node_requirement(r) for r in term.match_expressions or ()),
        tuple(_name_requirement(r) for r in term.match_fields or ()),
    )


def _label_requirement(r: SelectorRequirement) -> Requirement:
    return _checked(
        r, {"In": bool(r.values), "NotIn": bool(r.values), "Exists": not r.values, "DoesNotExist": not r.values}
    )


def _node_requirement(r: SelectorRequirement) -> Requirement:
    if r.operator in ("Gt", "Lt"):
        return _checked(r, {r.operator: len(r.values or ()) == 1 and whole_number((r.values or [""])[0]) is not None})
    return _label_requirement(r)


def _name_requirement(r: SelectorRequirement) -> Requirement:
    one = r.key == NAME_FIELD and len(r.values or ()) == 1
    return _checked(r, {"In": one, "NotIn": one})


def _checked(r: SelectorRequirement, well_formed: Mapping[str, bool]) -> Requirement:
    if not well_formed.get(r.operator, False):
        return Requirement(r.key, _INVALID)
    return Requirement(r.key, r.operator, frozenset(r.values or ()))


def whole_number(text: str) -> int | None:
    """A label's value as Gt and Lt read it; None if it is no whole number of 64 bits."""
    if _INTEGER.fullmatch(text) is None:
        return None
    number = int(text)
    return number if number in _INT64 else None


def _compare(value: str | None, values: frozenset[str], holds: Callable[[int, int], bool]) -> bool:
    bound = whole_number(next(iter(values)))
    number = whole_number(value) if value is not None else None
    return number is not None and bound is not None and holds(number, bound)


_OPERATORS: Final[Mapping[str, Callable[[str | None, frozenset[str]], bool]]] = {
    "In": lambda value, values: value is not None and value in values,
    "NotIn": lambda value, values: value is None or value not in values,
    "Exists": lambda value, _: value is not None,
    "DoesNotExist": lambda value, _: value is None,
    "Gt": lambda value, values: _compare(value, values, int.__gt__),
    "Lt": lambda value, values: _compare(value, values, int.__lt__),
    _INVALID: lambda *_: False,
}


LabelsOfNamespace = Callable[[str], Mapping[str, str]]


@dataclass(frozen=True, slots=True)
class PodSelector:
    """Pods by labels, in named or selected namespaces."""

    namespaces: frozenset[str]
    namespace_selector: LabelMatcher
    labels: LabelMatcher

    def matches(self, namespace: str, labels: Mapping[str, str], labels_of: LabelsOfNamespace) -> bool:
        """Whether it selects a pod with these labels in this namespace; ``labels_of`` gives a namespace's labels."""
        return self.labels.matches(labels) and self.covers(namespace, labels_of)

    def covers(self, namespace: str, labels_of: LabelsOfNamespace) -> bool:
        return namespace in self.namespaces or (
            self.uses_namespace_labels and self.namespace_selector.matches(labels_of(namespace))
        )

    @property
    def uses_namespace_labels(self) -> bool:
        return self.namespace_selector is not MATCHES_NOTHING


@dataclass(frozen=True, slots=True)
class AffinityTerm:
    """Pods, and the node label whose values are the domains; ``weight`` of a preference, else 0."""

    selector: PodSelector
    topology_key: str
    weight: int = 0


class AffinityTermKind(Enum):
    """The four lists of terms that a pod can have."""

    REQUIRED_AFFINITY = auto()
    REQUIRED_ANTI_AFFINITY = auto()
    PREFERRED_AFFINITY = auto()
    PREFERRED_ANTI_AFFINITY = auto()


@dataclass(frozen=True, slots=True)
class AffinityTerms:
    required_affinity: tuple[AffinityTerm, ...] = ()
    required_anti_affinity: tuple[AffinityTerm, ...] = ()
    preferred_affinity: tuple[AffinityTerm, ...] = ()
    preferred_anti_affinity: tuple[AffinityTerm, ...] = ()

    @property
    def are_required(self) -> bool:
        return bool(self.required_affinity or self.required_anti_affinity)

    @property
    def are_preferred(self) -> bool:
        return bool(self.preferred_affinity or self.preferred_anti_affinity)

    def at(self, kind: AffinityTermKind) -> tuple[AffinityTerm, ...]:
        match kind:
            case AffinityTermKind.REQUIRED_AFFINITY:
                return self.required_affinity
            case AffinityTermKind.REQUIRED_ANTI_AFFINITY:
                return self.required_anti_affinity
            case AffinityTermKind.PREFERRED_AFFINITY:
                return self.preferred_affinity
            case AffinityTermKind.PREFERRED_ANTI_AFFINITY:
                return self.preferred_anti_affinity


NO_AFFINITY_TERMS: Final = AffinityTerms()


def compile_affinity_terms(affinity: Affinity | None, namespace: str) -> AffinityTerms:
    """The terms of a pod of this namespace.

    ``matchLabelKeys`` and ``mismatchLabelKeys`` are not read: the API server merged them into the label selector when
    it created the pod.
    """
    if affinity is None or (affinity.pod_affinity is None and affinity.pod_anti_affinity is None):
        return NO_AFFINITY_TERMS
    together, apart = affinity.pod_affinity or PodAffinity(), affinity.pod_anti_affinity or PodAffinity()
    return AffinityTerms(
        required_affinity=_required(together.required_during_scheduling_ignored_during_execution, namespace),
        required_anti_affinity=_required(apart.required_during_scheduling_ignored_during_execution, namespace),
        preferred_affinity=_preferred(together.preferred_during_scheduling_ignored_during_execution, namespace),
        preferred_anti_affinity=_preferred(apart.preferred_during_scheduling_ignored_during_execution, namespace),
    )


def _required(terms: Sequence[PodAffinityTerm] | None, namespace: str) -> tuple[AffinityTerm, ...]:
    return tuple(AffinityTerm(_selector(term, namespace), term.topology_key) for term in terms or ())


def _preferred(terms: Sequence[WeightedPodAffinityTerm] | None, namespace: str) -> tuple[AffinityTerm, ...]:
    given = ((weighted.pod_affinity_term, weighted.weight) for weighted in terms or ())
    return tuple(AffinityTerm(_selector(term, namespace), term.topology_key, weight) for term, weight in given)


def _selector(term: PodAffinityTerm, namespace: str) -> PodSelector:
    # Without namespaces and a namespace selector: the pod's own namespace.
    own = not term.namespaces and term.namespace_selector is None
    selector = MATCHES_NOTHING if term.namespace_selector is None else compile_label_selector(term.namespace_selector)
    return PodSelector(
        namespaces=frozenset((namespace,)) if own else frozenset(term.namespaces or ()),
        namespace_selector=selector,
        labels=compile_label_selector(term.label_selector),
    )
