"""LimitRanges: what the containers of a namespace ask for when they do not say it, and what they may not ask for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from berth.api.meta import ObjectMeta, Trimmed
from berth.api.pod import Container, PodSpec, Quantities, ResourceRequirements
from berth.api.quantity import milli_value
from berth.simulate.creation.amounts import pod_limit, pod_request, quantities

_CONTAINER: Final = "Container"
_POD: Final = "Pod"


class Limit(Trimmed, frozen=True, kw_only=True):
    """What holds for each container, or for each pod as a whole, as ``type`` says."""

    type: str = ""
    default: Quantities | None = None
    default_request: Quantities | None = None
    min: Quantities | None = None
    max: Quantities | None = None
    max_limit_request_ratio: Quantities | None = None


class LimitRangeSpec(Trimmed, frozen=True, kw_only=True):
    """All of them."""

    limits: list[Limit] | None = None


class LimitRange(Trimmed, frozen=True, kw_only=True):
    """The limits of a namespace."""

    metadata: ObjectMeta
    spec: LimitRangeSpec = LimitRangeSpec()


def with_limits(spec: PodSpec, limits: LimitRange) -> PodSpec:
    """The pod, whose containers have the namespace's limits and requests where they name none."""
    given = ResourceRequirements(requests={}, limits={})
    for limit in limits.spec.limits or ():
        if limit.type == _CONTAINER:
            of_limit = _defaults(limit)
            given = ResourceRequirements(
                requests={**(given.requests or {}), **(of_limit.requests or {})},
                limits={**(given.limits or {}), **(of_limit.limits or {})},
            )
    if not given.requests and not given.limits:
        return spec
    return msgspec.structs.replace(
        spec, containers=_each(spec.containers, given), init_containers=_each(spec.init_containers, given)
    )


def refused(spec: PodSpec, limits: LimitRange) -> Iterator[str]:
    """What the namespace does not allow, as the API server says it."""
    for limit in limits.spec.limits or ():
        if limit.type == _CONTAINER:
            for container in (*(spec.containers or ()), *(spec.init_containers or ())):
                yield from _against(limit, container.resources or ResourceRequirements())
        elif limit.type == _POD:
            asked = ResourceRequirements(requests=quantities(pod_request(spec)), limits=quantities(pod_limit(spec)))
            yield from _against(limit, asked)


def _defaults(limit: Limit) -> ResourceRequirements:
    """With what the API server gives a LimitRange: limits from the most, requests from limits, then from the least."""
    limits = {**(limit.max or {}), **(limit.default or {})}
    return ResourceRequirements(
        requests={**(limit.min or {}), **limits, **(limit.default_request or {})}, limits=limits
    )


def _each(containers: list[Container] | None, given: ResourceRequirements) -> list[Container] | None:
    return containers and [_defaulted(container, given) for container in containers]


def _defaulted(container: Container, given: ResourceRequirements) -> Container:
    own = container.resources or ResourceRequirements()
    resources = ResourceRequirements(
        requests={**(given.requests or {}), **(own.requests or {})},
        limits={**(given.limits or {}), **(own.limits or {})},
    )
    return msgspec.structs.replace(container, resources=resources)


def _against(limit: Limit, asked: ResourceRequirements) -> Iterator[str]:
    requests, limits = asked.requests or {}, asked.limits or {}
    for resource, least in (limit.min or {}).items():
        yield from _too_little(f"minimum {resource} usage per {limit.type} is {least}", resource, least, asked)
    for resource, most in (limit.max or {}).items():
        yield from _too_much(f"maximum {resource} usage per {limit.type} is {most}", resource, most, asked)
    for resource, ratio in (limit.max_limit_request_ratio or {}).items():
        rule = f"{resource} max limit to request ratio per {limit.type} is {ratio}"
        request, most = milli_value(requests.get(resource, 0)), milli_value(limits.get(resource, 0))
        if not request:
            yield f"{rule}, but no request is specified or request is 0"
        elif not most:
            yield f"{rule}, but no limit is specified or limit is 0"
        elif most * 1000 > request * milli_value(ratio):
            yield f"{rule}, but provided ratio is {most / request:.6f}"


def _too_little(rule: str, resource: str, least: str | float, asked: ResourceRequirements) -> Iterator[str]:
    request, limit = (asked.requests or {}).get(resource), (asked.limits or {}).get(resource)
    if request is None:
        yield f"{rule}.  No request is specified"
    elif milli_value(request) < milli_value(least):
        yield f"{rule}, but request is {request}"
    elif limit is not None and milli_value(limit) < milli_value(least):
        yield f"{rule}, but limit is {limit}"


def _too_much(rule: str, resource: str, most: str | float, asked: ResourceRequirements) -> Iterator[str]:
    request, limit = (asked.requests or {}).get(resource), (asked.limits or {}).get(resource)
    if limit is None:
        yield f"{rule}.  No limit is specified"
    elif milli_value(limit) > milli_value(most):
        yield f"{rule}, but limit is {limit}"
    elif request is not None and milli_value(request) > milli_value(most):
        yield f"{rule}, but request is {request}"
