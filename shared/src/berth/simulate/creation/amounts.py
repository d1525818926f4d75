"""What a pod's containers ask for together, resource by resource: of requests, and of limits."""

from __future__ import annotations

import msgspec

from berth.api.pod import Container, PodSpec, Quantities, ResourceRequirements
from berth.api.resources import CPU, Amounts, pod_requests


def containers_request(spec: PodSpec) -> Amounts:
    """The most that its containers request at once; what the pod asks for as a whole is left out."""
    return pod_requests(msgspec.structs.replace(spec, resources=None, overhead=None)).amounts


def pod_request(spec: PodSpec) -> Amounts:
    """The same, and what the pod requests as a whole counts in their place."""
    return pod_requests(msgspec.structs.replace(spec, overhead=None)).amounts


def containers_limit(spec: PodSpec) -> Amounts:
    """The most that its containers may use at once."""
    return containers_request(_with_limits_as_requests(spec))


def pod_limit(spec: PodSpec) -> Amounts:
    """The same, and the limits of the pod as a whole count in their place."""
    return pod_request(_with_limits_as_requests(spec))


def quantities(amounts: Amounts) -> Quantities:
    """Amounts as they are written in objects."""
    return {name: _cores(amount) if name == CPU else str(amount) for name, amount in amounts.items()}


def _cores(millicores: int) -> str:
    return f"{millicores}m" if millicores % 1000 else str(millicores // 1000)


def _with_limits_as_requests(spec: PodSpec) -> PodSpec:
    return msgspec.structs.replace(
        spec,
        containers=_each(spec.containers),
        init_containers=_each(spec.init_containers),
        resources=_limits(spec.resources),
    )


def _each(containers: list[Container] | None) -> list[Container]:
    return [msgspec.structs.replace(one, resources=_limits(one.resources)) for one in containers or ()]


def _limits(resources: ResourceRequirements | None) -> ResourceRequirements:
    return ResourceRequirements(requests=resources.limits if resources else None)
