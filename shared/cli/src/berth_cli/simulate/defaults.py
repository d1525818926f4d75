"""A new pod's defaults that depend on the pod alone, as far as plugins read them.

Requests from limits, host ports, tolerations, and selectors completed by ``matchLabelKeys`` and ``mismatchLabelKeys``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from berth.api.meta import LabelSelector, SelectorRequirement
from berth.api.node import NO_EXECUTE
from berth.api.pod import (
    DEFAULT_SCHEDULER,
    Affinity,
    Container,
    ContainerPort,
    Pod,
    PodAffinity,
    PodAffinityTerm,
    PodSpec,
    Quantities,
    ResourceRequirements,
    Toleration,
    TopologySpreadConstraint,
    WeightedPodAffinityTerm,
)
from berth.api.resources import CPU, MEMORY, Amounts, pod_requests

_GRACE_SECONDS: Final = 30
# Every pod tolerates these taints for five minutes, so nodes with them stay feasible.
_TOLERATED: Final = tuple(
    Toleration(key=f"node.kubernetes.io/{problem}", operator="Exists", effect=NO_EXECUTE)
    for problem in ("not-ready", "unreachable")
)


def scheduler_of(pod: Pod) -> str:
    return pod.spec.scheduler_name or DEFAULT_SCHEDULER


def with_defaults(spec: PodSpec, labels: Mapping[str, str]) -> PodSpec:
    spec = _with_tolerations(_with_requests_and_ports(spec))
    return _with_label_keys(spec, labels)


def _with_requests_and_ports(spec: PodSpec) -> PodSpec:
    grace = spec.termination_grace_period_seconds
    spec = msgspec.structs.replace(
        spec,
        scheduler_name=spec.scheduler_name or DEFAULT_SCHEDULER,
        containers=spec.containers and [_container(one, spec) for one in spec.containers],
        init_containers=spec.init_containers and [_container(one, spec) for one in spec.init_containers],
        termination_grace_period_seconds=_GRACE_SECONDS if grace is None else grace,
    )
    if spec.resources is None:
        return spec
    return msgspec.structs.replace(spec, resources=_pod_resources(spec, spec.resources))


def _with_tolerations(spec: PodSpec) -> PodSpec:
    """Add the default tolerations, unless the spec has its own for these taints."""
    own = spec.tolerations or []
    added = [one for one in _TOLERATED if not any(_covers(toleration, one.key) for toleration in own)]
    return msgspec.structs.replace(spec, tolerations=[*own, *added]) if added else spec


def _with_label_keys(spec: PodSpec, labels: Mapping[str, str]) -> PodSpec:
    """Complete selectors by ``matchLabelKeys`` and ``mismatchLabelKeys``.

    Keys without a label on the pod are ignored.
    """
    if spec.affinity is None and not spec.topology_spread_constraints:
        return spec
    return msgspec.structs.replace(
        spec,
        affinity=spec.affinity and _affinity(spec.affinity, labels),
        topology_spread_constraints=spec.topology_spread_constraints
        and [_constraint(one, labels) for one in spec.topology_spread_constraints],
    )


def _container(container: Container, spec: PodSpec) -> Container:
    if container.resources is not None and container.resources.limits:
        container = msgspec.structs.replace(container, resources=_with_requests(container.resources))
    if spec.host_network and container.ports:
        container = msgspec.structs.replace(container, ports=[_on_host(port) for port in container.ports])
    return container


def _with_requests(resources: ResourceRequirements) -> ResourceRequirements:
    return msgspec.structs.replace(resources, requests={**(resources.limits or {}), **(resources.requests or {})})


def _on_host(port: ContainerPort) -> ContainerPort:
    return port if port.host_port else msgspec.structs.replace(port, host_port=port.container_port)


def _pod_resources(spec: PodSpec, own: ResourceRequirements) -> ResourceRequirements:
    """Requests of the whole pod are the sum over containers, else its limits."""
    if not own.limits:
        return own
    containers = pod_requests(msgspec.structs.replace(spec, resources=None, overhead=None)).amounts
    requests = _quantities({name: n for name, n in containers.items() if name in (CPU, MEMORY)})
    return msgspec.structs.replace(own, requests={**own.limits, **requests, **(own.requests or {})})


def _quantities(amounts: Amounts) -> Quantities:
    return {name: f"{amount}m" if name == CPU else str(amount) for name, amount in amounts.items()}


def _covers(toleration: Toleration, key: str) -> bool:
    return toleration.key in ("", key) and toleration.effect in ("", NO_EXECUTE)


def _affinity(affinity: Affinity, labels: Mapping[str, str]) -> Affinity:
    return msgspec.structs.replace(
        affinity,
        pod_affinity=affinity.pod_affinity and _terms(affinity.pod_affinity, labels),
        pod_anti_affinity=affinity.pod_anti_affinity and _terms(affinity.pod_anti_affinity, labels),
    )


def _terms(terms: PodAffinity, labels: Mapping[str, str]) -> PodAffinity:
    required = terms.required_during_scheduling_ignored_during_execution
    preferred = terms.preferred_during_scheduling_ignored_during_execution
    return PodAffinity(
        required_during_scheduling_ignored_during_execution=required and [_term(one, labels) for one in required],
        preferred_during_scheduling_ignored_during_execution=preferred
        and [_weighted_term(one, labels) for one in preferred],
    )


def _weighted_term(weighted: WeightedPodAffinityTerm, labels: Mapping[str, str]) -> WeightedPodAffinityTerm:
    return msgspec.structs.replace(weighted, pod_affinity_term=_term(weighted.pod_affinity_term, labels))


def _term(term: PodAffinityTerm, labels: Mapping[str, str]) -> PodAffinityTerm:
    added = (
        *_requirements("In", term.match_label_keys, labels),
        *_requirements("NotIn", term.mismatch_label_keys, labels),
    )
    return msgspec.structs.replace(term, label_selector=_completed(term.label_selector, added))


def _constraint(constraint: TopologySpreadConstraint, labels: Mapping[str, str]) -> TopologySpreadConstraint:
    added = tuple(_requirements("In", constraint.match_label_keys, labels))
    return msgspec.structs.replace(constraint, label_selector=_completed(constraint.label_selector, added))


def _requirements(operator: str, keys: list[str] | None, labels: Mapping[str, str]) -> Iterator[SelectorRequirement]:
    for key in keys or ():
        if key in labels:
            yield SelectorRequirement(key=key, operator=operator, values=[labels[key]])


def _completed(selector: LabelSelector | None, added: tuple[SelectorRequirement, ...]) -> LabelSelector | None:
    if selector is None or not added:
        return selector
    return msgspec.structs.replace(selector, match_expressions=[*(selector.match_expressions or ()), *added])
