"""The requests of a pod, summed over its containers as kubelet and kube-scheduler do it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from berth.api.pod import Container, PodSpec, Quantities, ResourceRequirements
from berth.api.quantity import QuantityError, of_resource

CPU: Final = "cpu"
MEMORY: Final = "memory"
EPHEMERAL_STORAGE: Final = "ephemeral-storage"
PODS: Final = "pods"

DEFAULT_CPU_MILLICORES: Final = 100
"""What scores count for a container without a cpu request."""
DEFAULT_MEMORY_BYTES: Final = 200 * 1024 * 1024
"""The same for memory."""
_DEFAULTS: Final[Mapping[str, int]] = {CPU: DEFAULT_CPU_MILLICORES, MEMORY: DEFAULT_MEMORY_BYTES}

Amounts = dict[str, int]
"""Resource to amount: cpu in millicores, everything else in base units."""
ReportProblem = Callable[[str], None]
"""Called with a sentence, path first, for each quantity that cannot be read; it counts as 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Requests:
    """A pod's requests.

    ``amounts`` is what must fit. ``nonzero_cpu`` and ``nonzero_memory`` (millicores, bytes) are what scores count: a
    container that names no request counts with a default there. ``problems`` lists quantities that cannot be read.
    """

    amounts: Amounts = field(default_factory=dict)
    nonzero_cpu: int = 0
    nonzero_memory: int = 0
    problems: tuple[str, ...] = ()


def pod_requests(spec: PodSpec) -> Requests:
    """The pod's requests; a quantity that cannot be read counts as 0 and is named in ``problems``."""
    problems: list[str] = []
    containers = _requests_of(spec.containers, "spec.containers", problems.append)
    init_containers = _requests_of(spec.init_containers, "spec.initContainers", problems.append)
    sidecars = [_is_sidecar(container) for container in spec.init_containers or ()]
    pod_level = _pod_level(spec.resources, problems.append)
    overhead = read_amounts(spec.overhead, "spec.overhead", problems.append)

    def total(defaults: Mapping[str, int]) -> Amounts:
        amounts = _over_time(_defaulted(containers, defaults), _defaulted(init_containers, defaults), sidecars)
        return _sum(amounts | pod_level, overhead)

    amounts = total({})
    missing = {name: amount for name, amount in _DEFAULTS.items() if not (pod_level and name in amounts)}
    nonzero = total(missing)
    return Requests(
        amounts=amounts,
        nonzero_cpu=nonzero.get(CPU, 0),
        nonzero_memory=nonzero.get(MEMORY, 0),
        problems=tuple(problems),
    )


def is_scalar(resource: str) -> bool:
    """Whether the resource is an extended one, huge pages or attachable volumes: counted only where it is named."""
    return ("/" in resource and not resource.startswith("requests.")) or resource.startswith(
        ("hugepages-", "attachable-volumes-")
    )


def is_extended(resource: str) -> bool:
    """Whether the resource is an extended one, such as ``example.com/gpu``."""
    return "/" in resource and "kubernetes.io/" not in resource and not resource.startswith("requests.")


def is_counted(resource: str) -> bool:
    """Whether scheduling counts the resource at all: cpu, memory, ephemeral storage and scalars."""
    return resource in (CPU, MEMORY, EPHEMERAL_STORAGE) or is_scalar(resource)


def read_amounts(quantities: Quantities | None, path: str, report: ReportProblem) -> Amounts:
    """Quantities as amounts; one that cannot be read counts as 0 and is reported. Negative ones count as 0."""
    amounts: Amounts = {}
    for resource, quantity in (quantities or {}).items():
        try:
            amounts[resource] = max(0, of_resource(resource, quantity))
        except QuantityError as exc:
            amounts[resource] = 0
            report(f"{path}.{resource}: {exc}")
    return amounts


def _is_sidecar(container: Container) -> bool:
    return container.restart_policy == "Always"


def _requests_of(containers: list[Container] | None, path: str, report: ReportProblem) -> list[Amounts]:
    return [
        read_amounts(
            container.resources.requests if container.resources else None, f"{path}[{i}].resources.requests", report
        )
        for i, container in enumerate(containers or ())
    ]


def _pod_level(resources: ResourceRequirements | None, report: ReportProblem) -> Amounts:
    """Requests of the pod as a whole take the place of its containers': of cpu, memory and huge pages, no others."""
    amounts = read_amounts(resources.requests if resources else None, "spec.resources.requests", report)
    return {name: n for name, n in amounts.items() if name in _DEFAULTS or name.startswith("hugepages-")}


def _defaulted(containers: Iterable[Amounts], defaults: Mapping[str, int]) -> list[Amounts]:
    """A default counts where the key is absent; an explicit 0 stays 0."""
    return [{**defaults, **amounts} for amounts in containers]


def _over_time(containers: Iterable[Amounts], init_containers: Iterable[Amounts], sidecars: Iterable[bool]) -> Amounts:
    """The most that runs at once: init containers in turn beside the sidecars before them, then all containers."""
    running: Amounts = {}
    peak: Amounts = {}
    for amounts, sidecar in zip(init_containers, sidecars, strict=True):
        if sidecar:
            running = _sum(running, amounts)
            peak = _max(peak, running)
        else:
            peak = _max(peak, _sum(running, amounts))
    for amounts in containers:
        running = _sum(running, amounts)
    return _max(peak, running)


def _sum(left: Amounts, right: Amounts) -> Amounts:
    return {name: left.get(name, 0) + right.get(name, 0) for name in left.keys() | right.keys()}


def _max(left: Amounts, right: Amounts) -> Amounts:
    return {name: max(left.get(name, 0), right.get(name, 0)) for name in left.keys() | right.keys()}
