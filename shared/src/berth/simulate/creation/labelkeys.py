"""``matchLabelKeys`` and ``mismatchLabelKeys``: the pod's own values of these labels, written into the selectors.

The API server does it when a pod is created; a key that the pod has no label of says nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from berth.api.meta import LabelSelector, SelectorRequirement
from berth.api.pod import (
    Affinity,
    PodAffinity,
    PodAffinityTerm,
    PodSpec,
    TopologySpreadConstraint,
    WeightedPodAffinityTerm,
)

Labels = Mapping[str, str]


def with_label_keys(spec: PodSpec, labels: Labels) -> PodSpec:
    """The spec of a pod of these labels, selectors completed."""
    if spec.affinity is None and not spec.topology_spread_constraints:
        return spec
    return msgspec.structs.replace(
        spec,
        affinity=spec.affinity and _affinity(spec.affinity, labels),
        topology_spread_constraints=spec.topology_spread_constraints
        and [_constraint(one, labels) for one in spec.topology_spread_constraints],
    )


def _affinity(affinity: Affinity, labels: Labels) -> Affinity:
    return msgspec.structs.replace(
        affinity,
        pod_affinity=affinity.pod_affinity and _terms(affinity.pod_affinity, labels),
        pod_anti_affinity=affinity.pod_anti_affinity and _terms(affinity.pod_anti_affinity, labels),
    )


def _terms(terms: PodAffinity, labels: Labels) -> PodAffinity:
    required = terms.required_during_scheduling_ignored_during_execution
    preferred = terms.preferred_during_scheduling_ignored_during_execution
    return PodAffinity(
        required_during_scheduling_ignored_during_execution=required and [_term(one, labels) for one in required],
        preferred_during_scheduling_ignored_during_execution=preferred
        and [_weighted(one, labels) for one in preferred],
    )


def _weighted(weighted: WeightedPodAffinityTerm, labels: Labels) -> WeightedPodAffinityTerm:
    return msgspec.structs.replace(weighted, pod_affinity_term=_term(weighted.pod_affinity_term, labels))


def _term(term: PodAffinityTerm, labels: Labels) -> PodAffinityTerm:
    more = (*_own("In", term.match_label_keys, labels), *_own("NotIn", term.mismatch_label_keys, labels))
    return msgspec.structs.replace(term, label_selector=_completed(term.label_selector, more))


def _constraint(constraint: TopologySpreadConstraint, labels: Labels) -> TopologySpreadConstraint:
    more = tuple(_own("In", constraint.match_label_keys, labels))
    return msgspec.structs.replace(constraint, label_selector=_completed(constraint.label_selector, more))


def _own(operator: str, keys: list[str] | None, labels: Labels) -> Iterator[SelectorRequirement]:
    for key in keys or ():
        if key in labels:
            yield SelectorRequirement(key=key, operator=operator, values=[labels[key]])


def _completed(selector: LabelSelector | None, more: tuple[SelectorRequirement, ...]) -> LabelSelector | None:
    if selector is None or not more:
        return selector
    return msgspec.structs.replace(selector, match_expressions=[*(selector.match_expressions or ()), *more])
