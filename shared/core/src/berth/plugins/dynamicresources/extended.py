"""The claim of a pod for its extended resources that DeviceClasses serve on a node (KEP 5004)."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from berth.api.devices import (
    EXTENDED_RESOURCE_CLAIM,
    ContainerExtendedResourceRequest,
    DeviceClaim,
    DeviceRequest,
    ExactDeviceRequest,
    ResourceClaim,
    ResourceClaimSpec,
)
from berth.api.meta import ObjectMeta, OwnerReference
from berth.api.pod import Container, Pod
from berth.api.resources import QuantityError, is_sidecar, value
from berth.cluster.devices.extended import ExtendedResources
from berth.cluster.snapshot import Snapshot

# The name of the claim until it is written: no name of the API.
IN_MEMORY: str = "<extended-resources>"


@dataclass(frozen=True, slots=True)
class ExtendedClaim:
    """The claim for some of the pod's resources, and the requests that serve its containers."""

    claim: ResourceClaim
    mappings: tuple[ContainerExtendedResourceRequest, ...]


def stale_claim_of(pod: Pod, snapshot: Snapshot) -> ResourceClaim | None:
    """The claim that an earlier cycle made for the pod's extended resources."""
    return next(
        (
            claim
            for claim in snapshot.objects(ResourceClaim).in_namespace(pod.metadata.namespace)
            if (claim.metadata.annotations or {}).get(EXTENDED_RESOURCE_CLAIM) == "true"
            and any(owner.controller and owner.uid == pod.uid for owner in claim.metadata.owner_references or ())
        ),
        None,
    )


def extended_claim(pod: Pod, resources: Collection[str], classes: ExtendedResources) -> ExtendedClaim:
    """The claim for these resources: a request for each container and resource.

    An init container uses again what later containers keep; all init containers share one request for the most that is
    missing then.
    """
    requests: list[DeviceRequest] = []
    mappings: list[ContainerExtendedResourceRequest] = []
    containers = [*(pod.spec.init_containers or ()), *(pod.spec.containers or ())]
    inits = len(pod.spec.init_containers or ())
    lasting = [i >= inits or is_sidecar(each) for i, each in enumerate(containers)]
    for resource in sorted(resources):
        device_class = classes.class_of(resource)
        if device_class is None:
            continue
        kept: dict[int, DeviceRequest] = {}
        for i, container in enumerate(containers):
            asked = _asked(container, resource)
            if lasting[i] and asked:
                kept[i] = _request(i, container, resource, device_class.metadata.name, asked)
                mappings.append(_mapping(container, resource, kept[i].name))
        largest: DeviceRequest | None = None
        of_inits: list[tuple[Container, str]] = []
        own: set[str] = set()
        for i, container in enumerate(containers):
            asked = _asked(container, resource)
            if lasting[i] or not asked:
                continue
            for n, request in kept.items():
                if n > i and asked > 0:
                    of_inits.append((container, request.name))
                    asked -= _count(request)
            if asked > 0:
                request = _request(i, container, resource, device_class.metadata.name, asked)
                own.add(request.name)
                of_inits.append((container, request.name))
                if largest is None or _count(largest) < asked:
                    largest = request
        mappings += [
            _mapping(container, resource, largest.name if largest is not None and name in own else name)
            for container, name in of_inits
        ]
        requests += [*([] if largest is None else [largest]), *kept.values()]
    owner = OwnerReference(kind="Pod", name=pod.metadata.name, uid=pod.uid, api_version="v1", controller=True)
    metadata = ObjectMeta(
        name=IN_MEMORY,
        namespace=pod.metadata.namespace,
        uid=f"{IN_MEMORY}{pod.uid}",
        annotations={EXTENDED_RESOURCE_CLAIM: "true"},
        owner_references=[owner],
    )
    spec = ResourceClaimSpec(devices=DeviceClaim(requests=sorted(requests, key=lambda each: each.name)))
    return ExtendedClaim(ResourceClaim(metadata=metadata, spec=spec), tuple(mappings))


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
    return ContainerExtendedResourceRequest(
        container_name=container.name, resource_name=resource, request_name=request
    )
