"""The claim of a pod for its extended resources that DeviceClasses serve on a node (KEP 5004)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Final

from berth.api.devices import (
    EXTENDED_RESOURCE_CLAIM,
    ClaimMeta,
    DeviceClaim,
    DeviceRequest,
    ExactDeviceRequest,
    ResourceClaim,
    ResourceClaimSpec,
)
from berth.api.meta import OwnerReference
from berth.api.pod import Container, ContainerExtendedResourceRequest, Pod
from berth.api.resources import QuantityError, is_sidecar, value
from berth.cluster.devices.extended import ExtendedResources

# The name of the claim until it is written: no name of the API.
IN_MEMORY: Final = "<extended-resources>"
# Characters of the pod's name in the claim's, as in names that the API server makes.
_MOST_CHARACTERS: Final = 58


@dataclass(frozen=True, slots=True)
class ExtendedClaim:
    """The claim for some of the pod's resources, and the requests that serve its containers."""

    claim: ResourceClaim
    mappings: tuple[ContainerExtendedResourceRequest, ...]


def extended_claim(pod: Pod, resources: Collection[str], classes: ExtendedResources) -> ExtendedClaim:
    """The claim for these resources: a request for each container and resource.

    An init container uses again what later containers keep; all init containers share one request for the most that is
    missing then.
    """
    requests: list[DeviceRequest] = []
    mappings: list[ContainerExtendedResourceRequest] = []
    for resource in sorted(resources):
        device_class = classes.class_of(resource)
        if device_class is not None:
            _add_requests(pod, resource, device_class.metadata.name, requests, mappings)
    owner = OwnerReference(kind="Pod", name=pod.metadata.name, uid=pod.uid, api_version="v1", controller=True)
    metadata = ClaimMeta(
        name=IN_MEMORY,
        namespace=pod.metadata.namespace,
        uid=f"{IN_MEMORY}{pod.uid}",
        annotations={EXTENDED_RESOURCE_CLAIM: "true"},
        owner_references=[owner],
    )
    spec = ResourceClaimSpec(devices=DeviceClaim(requests=sorted(requests, key=lambda each: each.name)))
    return ExtendedClaim(ResourceClaim(metadata=metadata, spec=spec), tuple(mappings))


def extended_claim_name(pod: Pod) -> str:
    """The name under which the claim is written: the pod's own, so that a repeated request makes no second claim."""
    suffix = sha256(pod.uid.encode()).hexdigest()[:5]
    return f"{f'{pod.metadata.name}-extended-resources-'[:_MOST_CHARACTERS]}{suffix}"


def _add_requests(
    pod: Pod,
    resource: str,
    device_class: str,
    requests: list[DeviceRequest],
    mappings: list[ContainerExtendedResourceRequest],
) -> None:
    inits = len(pod.spec.init_containers or ())
    containers = [*enumerate((*(pod.spec.init_containers or ()), *(pod.spec.containers or ())))]
    asking = [(i, each, asked) for i, each in containers if (asked := _asked(each, resource))]
    kept: dict[int, DeviceRequest] = {}
    for i, container, asked in asking:
        if i >= inits or is_sidecar(container):
            kept[i] = _request(i, container, resource, device_class, asked)
            mappings.append(_mapping(container, resource, kept[i].name))
    shared: list[DeviceRequest] = []
    used: list[tuple[Container, DeviceRequest]] = []
    for i, container, asked in asking:
        if i in kept:
            continue
        again, missing = _used_again(asked, [request for n, request in kept.items() if n > i])
        used += [(container, request) for request in again]
        if missing > 0:
            shared.append(_request(i, container, resource, device_class, missing))
            used.append((container, shared[-1]))
    largest = max(shared, key=_count, default=None)
    for container, request in used:
        name = largest.name if largest is not None and request in shared else request.name
        mappings.append(_mapping(container, resource, name))
    requests += [*([] if largest is None else [largest]), *kept.values()]


def _used_again(asked: int, kept: Sequence[DeviceRequest]) -> tuple[list[DeviceRequest], int]:
    """The requests of later containers that an init container uses before them, and how many devices it lacks then."""
    used: list[DeviceRequest] = []
    for request in kept:
        if asked <= 0:
            break
        used.append(request)
        asked -= _count(request)
    return used, asked


def _asked(container: Container, resource: str) -> int:
    requests = (container.resources.requests if container.resources is not None else None) or {}
    try:
        return value(requests.get(resource, 0))
    except QuantityError:
        return 0


def _request(i: int, container: Container, resource: str, device_class: str, count: int) -> DeviceRequest:
    names: Iterable[str] = (container.resources.requests if container.resources is not None else None) or ()
    return DeviceRequest(
        name=f"container-{i}-request-{sorted(names).index(resource)}",
        exactly=ExactDeviceRequest(device_class_name=device_class, count=count),
    )


def _count(request: DeviceRequest) -> int:
    return 0 if request.exactly is None else request.exactly.count


def _mapping(container: Container, resource: str, request: str) -> ContainerExtendedResourceRequest:
    return ContainerExtendedResourceRequest(container_name=container.name, resource_name=resource, request_name=request)
