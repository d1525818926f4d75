"""Pod affinity terms, compiled once: which pods a term means, and over which topology."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from berth.api.pod import Affinity, PodAffinity, PodAffinityTerm, WeightedPodAffinityTerm
from berth.api.selectors import NOTHING, Labels, compile_label_selector

LabelsOfNamespace = Callable[[str], Mapping[str, str]]


@dataclass(frozen=True, slots=True)
class PodSelector:
    """Pods by labels, in the namespaces that are named or selected."""

    namespaces: frozenset[str]
    namespace_selector: Labels
    labels: Labels

    def matches(self, namespace: str, labels: Mapping[str, str], labels_of: LabelsOfNamespace) -> bool:
        """Whether it means a pod with these labels in this namespace; ``labels_of`` answers for namespaces."""
        return self.labels.matches(labels) and self.covers(namespace, labels_of)

    def covers(self, namespace: str, labels_of: LabelsOfNamespace) -> bool:
        """Whether it means pods of this namespace."""
        return namespace in self.namespaces or (
            self.looks_at_namespaces and self.namespace_selector.matches(labels_of(namespace))
        )

    @property
    def looks_at_namespaces(self) -> bool:
        """Whether the answer depends on namespaces' labels."""
        return self.namespace_selector is not NOTHING


@dataclass(frozen=True, slots=True)
class PodTerm:
    """Pods, and the node label of which the values are domains; ``weight`` is that of a preference, otherwise 0."""

    selector: PodSelector
    topology_key: str
    weight: int = 0


class Point(Enum):
    """Where a pod has a term: what it requires and what it would rather have, together with pods or apart from them."""

    REQUIRED = auto()
    REQUIRED_APART = auto()
    PREFERRED = auto()
    PREFERRED_APART = auto()


@dataclass(frozen=True, slots=True)
class PodTerms:
    """The terms of one pod."""

    required: tuple[PodTerm, ...] = ()
    required_apart: tuple[PodTerm, ...] = ()
    preferred: tuple[PodTerm, ...] = ()
    preferred_apart: tuple[PodTerm, ...] = ()

    def at(self, point: Point) -> tuple[PodTerm, ...]:
        """Those of one point."""
        match point:
            case Point.REQUIRED:
                return self.required
            case Point.REQUIRED_APART:
                return self.required_apart
            case Point.PREFERRED:
                return self.preferred
            case Point.PREFERRED_APART:
                return self.preferred_apart


NO_TERMS: Final = PodTerms()


def compile_pod_terms(affinity: Affinity | None, namespace: str) -> PodTerms:
    """The terms of a pod of this namespace.

    ``matchLabelKeys`` and ``mismatchLabelKeys`` say nothing here: the API server wrote them into the label selector
    when it took the pod.
    """
    if affinity is None or (affinity.pod_affinity is None and affinity.pod_anti_affinity is None):
        return NO_TERMS
    together, apart = affinity.pod_affinity or PodAffinity(), affinity.pod_anti_affinity or PodAffinity()
    return PodTerms(
        required=_required(together.required_during_scheduling_ignored_during_execution, namespace),
        required_apart=_required(apart.required_during_scheduling_ignored_during_execution, namespace),
        preferred=_preferred(together.preferred_during_scheduling_ignored_during_execution, namespace),
        preferred_apart=_preferred(apart.preferred_during_scheduling_ignored_during_execution, namespace),
    )


def _required(terms: Sequence[PodAffinityTerm] | None, namespace: str) -> tuple[PodTerm, ...]:
    return tuple(PodTerm(_selector(term, namespace), term.topology_key) for term in terms or ())


def _preferred(terms: Sequence[WeightedPodAffinityTerm] | None, namespace: str) -> tuple[PodTerm, ...]:
    given = ((weighted.pod_affinity_term, weighted.weight) for weighted in terms or ())
    return tuple(PodTerm(_selector(term, namespace), term.topology_key, weight) for term, weight in given)


def _selector(term: PodAffinityTerm, namespace: str) -> PodSelector:
    """Without namespaces and without a selector of them it is the pod's own."""
    own = not term.namespaces and term.namespace_selector is None
    selector = NOTHING if term.namespace_selector is None else compile_label_selector(term.namespace_selector)
    return PodSelector(
        namespaces=frozenset((namespace,)) if own else frozenset(term.namespaces or ()),
        namespace_selector=selector,
        labels=compile_label_selector(term.label_selector),
    )
