"""The fields of a pod that are filled in when it is created: requests from limits, ports of the host, tolerations."""

from __future__ import annotations

from typing import Final

import msgspec

from berth.api.node import NO_EXECUTE
from berth.api.pod import Container, ContainerPort, Pod, PodSpec, Quantities, ResourceRequirements, Toleration
from berth.api.resources import CPU, MEMORY, Amounts
from berth.simulate.creation.amounts import containers_limit, containers_request, quantities

_SCHEDULER: Final = "default-scheduler"
GRACE_SECONDS: Final = 30
_HUGE_PAGES: Final = "hugepages-"
_TOLERATED: Final = tuple(
    Toleration(key=f"node.kubernetes.io/{problem}", operator="Exists", effect=NO_EXECUTE)
    for problem in ("not-ready", "unreachable")
)
"""Which every pod puts up with, for five minutes: such nodes may still be chosen for it."""


def scheduler_of(pod: Pod) -> str:
    """The scheduler that the pod is for; one that names none, or an empty name, is for Kubernetes' own."""
    return pod.spec.scheduler_name or _SCHEDULER


def with_defaults(spec: PodSpec) -> PodSpec:
    """Everything that the API server fills in without looking at other objects, but the tolerations."""
    grace = spec.termination_grace_period_seconds
    spec = msgspec.structs.replace(
        spec,
        scheduler_name=spec.scheduler_name or _SCHEDULER,
        containers=spec.containers and [_container(one, spec) for one in spec.containers],
        init_containers=spec.init_containers and [_container(one, spec) for one in spec.init_containers],
        termination_grace_period_seconds=GRACE_SECONDS if grace is None else grace,
    )
    if spec.resources is None:
        return spec
    return msgspec.structs.replace(spec, resources=_of_pod(spec, spec.resources))


def with_tolerations(spec: PodSpec) -> PodSpec:
    """With those that every pod gets, unless it says itself what it does about such nodes."""
    given = spec.tolerations or []
    more = [one for one in _TOLERATED if not any(_speaks_of(own, one.key) for own in given)]
    return msgspec.structs.replace(spec, tolerations=[*given, *more]) if more else spec


def _speaks_of(toleration: Toleration, key: str) -> bool:
    return toleration.key in ("", key) and toleration.effect in ("", NO_EXECUTE)


def _container(container: Container, spec: PodSpec) -> Container:
    if container.resources is not None and container.resources.limits:
        container = msgspec.structs.replace(container, resources=_requested(container.resources))
    if spec.host_network and container.ports:
        container = msgspec.structs.replace(container, ports=[_on_host(port) for port in container.ports])
    return container


def _requested(resources: ResourceRequirements) -> ResourceRequirements:
    return msgspec.structs.replace(resources, requests={**(resources.limits or {}), **(resources.requests or {})})


def _on_host(port: ContainerPort) -> ContainerPort:
    return port if port.host_port else msgspec.structs.replace(port, host_port=port.container_port)


def _of_pod(spec: PodSpec, own: ResourceRequirements) -> ResourceRequirements:
    """Of the pod as a whole: huge pages are limited as in its containers; requests are theirs, else the limits."""
    if not own.requests and not own.limits:
        return own
    limits = {**_huge_pages(spec, own.requests or {}), **(own.limits or {})}
    if not limits:
        return own
    containers = {name: n for name, n in containers_request(spec).items() if name in (CPU, MEMORY)}
    limited = {name: limit for name, limit in limits.items() if name in (CPU, MEMORY) or name.startswith(_HUGE_PAGES)}
    return ResourceRequirements(requests={**limited, **quantities(containers), **(own.requests or {})}, limits=limits)


def _huge_pages(spec: PodSpec, requested: Quantities) -> Quantities:
    limits: Amounts = containers_limit(spec)
    return quantities({name: n for name, n in limits.items() if name.startswith(_HUGE_PAGES) and name not in requested})
