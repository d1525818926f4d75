"""What a pod may say of where it goes, as the API server takes it: affinities, spread, tolerations."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from berth.api.meta import LabelSelector
from berth.api.node import NO_EXECUTE, NO_SCHEDULE, PREFER_NO_SCHEDULE
from berth.api.pod import (
    Affinity,
    NodeAffinity,
    PodAffinity,
    PodAffinityTerm,
    PodSpec,
    Toleration,
    TopologySpreadConstraint,
)
from berth.simulate.creation.namerules import is_label_key, refused_labels
from berth.simulate.creation.selectorrules import refused_node_term, refused_selector

EFFECTS: Final = (NO_SCHEDULE, PREFER_NO_SCHEDULE, NO_EXECUTE)
_DO_NOT_SCHEDULE: Final = "DoNotSchedule"
_UNSATISFIABLE: Final = (_DO_NOT_SCHEDULE, "ScheduleAnyway")
_POLICIES: Final = ("Honor", "Ignore")
_WEIGHTS: Final = range(1, 101)
_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED: Final = "preferredDuringSchedulingIgnoredDuringExecution"


def refused_placement(spec: PodSpec) -> Iterator[str]:
    """What is wrong with it."""
    yield from refused_labels(spec.node_selector, "spec.nodeSelector")
    yield from _affinity(spec.affinity or Affinity())
    for at, constraint in enumerate(spec.topology_spread_constraints or ()):
        yield from _constraint(constraint, f"spec.topologySpreadConstraints[{at}]")
    for at, toleration in enumerate(spec.tolerations or ()):
        yield from _toleration(toleration, f"spec.tolerations[{at}]")


def _affinity(affinity: Affinity) -> Iterator[str]:
    path = "spec.affinity"
    yield from _of_nodes(affinity.node_affinity or NodeAffinity(), f"{path}.nodeAffinity")
    yield from _of_pods(affinity.pod_affinity or PodAffinity(), f"{path}.podAffinity")
    yield from _of_pods(affinity.pod_anti_affinity or PodAffinity(), f"{path}.podAntiAffinity")


def _of_nodes(affinity: NodeAffinity, path: str) -> Iterator[str]:
    required = affinity.required_during_scheduling_ignored_during_execution
    if required is not None and not required.node_selector_terms:
        yield f"{path}.{_REQUIRED}.nodeSelectorTerms: want at least one term"
    for at, term in enumerate((required.node_selector_terms if required else None) or ()):
        yield from refused_node_term(term, f"{path}.{_REQUIRED}.nodeSelectorTerms[{at}]")
    for at, preferred in enumerate(affinity.preferred_during_scheduling_ignored_during_execution or ()):
        below = f"{path}.{_PREFERRED}[{at}]"
        yield from _weight(preferred.weight, below)
        yield from refused_node_term(preferred.preference, f"{below}.preference")


def _of_pods(affinity: PodAffinity, path: str) -> Iterator[str]:
    for at, term in enumerate(affinity.required_during_scheduling_ignored_during_execution or ()):
        yield from _term(term, f"{path}.{_REQUIRED}[{at}]")
    for at, weighted in enumerate(affinity.preferred_during_scheduling_ignored_during_execution or ()):
        below = f"{path}.{_PREFERRED}[{at}]"
        yield from _weight(weighted.weight, below)
        yield from _term(weighted.pod_affinity_term, f"{below}.podAffinityTerm")


def _weight(weight: int, path: str) -> Iterator[str]:
    if weight not in _WEIGHTS:
        yield f"{path}.weight: want {_WEIGHTS[0]}..{_WEIGHTS[-1]}, got {weight}"


def _term(term: PodAffinityTerm, path: str) -> Iterator[str]:
    yield from _topology(term.topology_key, path)
    yield from refused_selector(term.label_selector, f"{path}.labelSelector")
    yield from refused_selector(term.namespace_selector, f"{path}.namespaceSelector")
    for name, keys in (("matchLabelKeys", term.match_label_keys), ("mismatchLabelKeys", term.mismatch_label_keys)):
        yield from _label_keys(name, keys, path, term.label_selector)
    for key in sorted(set(term.match_label_keys or ()).intersection(term.mismatch_label_keys or ())):
        yield f"{path}.mismatchLabelKeys: {key!r} is in matchLabelKeys too: leave it to one of the two"


def _constraint(constraint: TopologySpreadConstraint, path: str) -> Iterator[str]:
    if constraint.max_skew < 1:
        yield f"{path}.maxSkew: want 1 or more, got {constraint.max_skew}"
    yield from _topology(constraint.topology_key, path)
    yield from _one_of(_UNSATISFIABLE, constraint.when_unsatisfiable, f"{path}.whenUnsatisfiable")
    if constraint.min_domains is not None:
        if constraint.min_domains < 1:
            yield f"{path}.minDomains: want 1 or more, got {constraint.min_domains}"
        if constraint.when_unsatisfiable != _DO_NOT_SCHEDULE:
            yield f"{path}.minDomains: goes with whenUnsatisfiable {_DO_NOT_SCHEDULE} only: take it out"
    for name, policy in (
        ("nodeAffinityPolicy", constraint.node_affinity_policy),
        ("nodeTaintsPolicy", constraint.node_taints_policy),
    ):
        if policy is not None:
            yield from _one_of(_POLICIES, policy, f"{path}.{name}")
    yield from refused_selector(constraint.label_selector, f"{path}.labelSelector")
    yield from _label_keys("matchLabelKeys", constraint.match_label_keys, path, constraint.label_selector)


def _label_keys(name: str, keys: list[str] | None, path: str, selector: LabelSelector | None) -> Iterator[str]:
    if keys and selector is None:
        yield f"{path}.{name}: goes with a labelSelector only: add one"
        return
    named = _named_in(selector or LabelSelector())
    for key in keys or ():
        if not is_label_key(key):
            yield f"{path}.{name}: want keys of labels, got {key!r}"
        elif key in named:
            yield f"{path}.{name}: {key!r} is in labelSelector too: leave it to one of the two"


def _named_in(selector: LabelSelector) -> set[str]:
    return {*(selector.match_labels or ()), *(one.key for one in selector.match_expressions or ())}


def _topology(key: str, path: str) -> Iterator[str]:
    if not is_label_key(key):
        yield f"{path}.topologyKey: want the key of a label that nodes have, got {key!r}"


def _toleration(toleration: Toleration, path: str) -> Iterator[str]:
    yield from _one_of(("Equal", "Exists"), toleration.operator or "Equal", f"{path}.operator")
    if not toleration.key and toleration.operator != "Exists":
        yield f"{path}.key: missing: only the operator Exists goes without"
    if toleration.key and not is_label_key(toleration.key):
        yield f"{path}.key: want the key of a taint, got {toleration.key!r}"
    if toleration.operator == "Exists" and toleration.value:
        yield f"{path}.value: the operator Exists has none: take it out"
    if toleration.effect:
        yield from _one_of(EFFECTS, toleration.effect, f"{path}.effect")


def _one_of(known: tuple[str, ...], given: str, path: str) -> Iterator[str]:
    if given not in known:
        yield f"{path}: want {', '.join(known)}, got {given!r}"
