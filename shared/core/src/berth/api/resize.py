"""In-place resize: the requests with which a pod counts on its node while the kubelet changes its resources.

A container, a sidecar, and the pod as a whole request, per resource, the most of three: the spec, which is the wish;
the allocated resources, which the kubelet has admitted; and the actual ones. The spec does not count once the kubelet
has called the resize infeasible. As kube-scheduler 1.36: only resources that the spec has count for the pod as a whole,
and a container without actual resources, an init container and a waiting pod count with their spec.
"""

from __future__ import annotations

from typing import Final

import msgspec

from berth.api.meta import Trimmed
from berth.api.pod import Container, Pod, PodSpec, PodStatus, Quantities, ResourceRequirements
from berth.api.resources import Amounts, is_sidecar, read_amounts

_PENDING: Final = "PodResizePending"
_INFEASIBLE: Final = "Infeasible"


class _Actual(Trimmed, frozen=True, kw_only=True):
    requests: Quantities | None = None


class ContainerStatus(Trimmed, frozen=True, kw_only=True):
    """The allocated resources of a container, and the actual ones."""

    name: str = ""
    allocated_resources: Quantities | None = None
    resources: _Actual | None = None


class ReportedStatus(PodStatus, frozen=True, kw_only=True):
    """A pod's status with the resources that its kubelet reports, of the containers and of the pod as a whole."""

    container_statuses: list[ContainerStatus] | None = None
    init_container_statuses: list[ContainerStatus] | None = None
    allocated_resources: Quantities | None = None
    resources: _Actual | None = None


class ReportedPod(Pod, frozen=True, kw_only=True):
    """A pod as the API server has it. Only its decoders see one: everything else reads ``with_effective_requests``."""

    status: ReportedStatus = ReportedStatus()


def with_effective_requests(pod: Pod) -> Pod:
    """The pod with a spec that has the requests with which it counts, and without reported resources."""
    if not isinstance(pod, ReportedPod):
        return pod
    spec, reported = pod.spec, pod.status
    if spec.node_name and not _has_its_spec(spec, reported):
        spec = _effective_spec(spec, reported)
    status = PodStatus(
        phase=reported.phase,
        nominated_node_name=reported.nominated_node_name,
        start_time=reported.start_time,
        conditions=reported.conditions,
    )
    return Pod(metadata=pod.metadata, spec=spec, status=status, whole=pod.whole)


def _has_its_spec(spec: PodSpec, reported: ReportedStatus) -> bool:
    """Whether everything reported repeats the spec, as written. The hot path: nearly all pods of a cluster."""
    statuses = (reported.container_statuses or []) + (reported.init_container_statuses or [])
    if statuses:
        containers = (spec.containers or []) + (spec.init_containers or [])
        own = {each.name: each.resources.requests if each.resources is not None else None for each in containers}
        for status in statuses:
            if not _repeats(own.get(status.name), status.resources, status.allocated_resources):
                return False
    whole = spec.resources
    return whole is None or _repeats(whole.requests, reported.resources, reported.allocated_resources)


def _repeats(requests: Quantities | None, actual: _Actual | None, allocated: Quantities | None) -> bool:
    return actual is None or (actual.requests == requests and allocated in (None, requests))


def _effective_spec(spec: PodSpec, reported: ReportedStatus) -> PodSpec:
    infeasible = _is_infeasible(reported)
    # Names are unique among all containers of a pod.
    both = [*(reported.container_statuses or ()), *(reported.init_container_statuses or ())]
    statuses = {each.name: each for each in both}

    def effective(container: Container) -> Container:
        status = statuses.get(container.name)
        if status is None or status.resources is None:
            return container
        own = container.resources or ResourceRequirements()
        requests = _most(own.requests, status.resources.requests, status.allocated_resources, infeasible=infeasible)
        resources = msgspec.structs.replace(own, requests=requests or None)
        return container if resources == own else msgspec.structs.replace(container, resources=resources)

    init_containers = [effective(each) if is_sidecar(each) else each for each in spec.init_containers or ()]
    return msgspec.structs.replace(
        spec,
        containers=[effective(each) for each in spec.containers or ()] or None,
        init_containers=init_containers or None,
        resources=_effective_whole(spec.resources, reported, infeasible=infeasible),
    )


def _effective_whole(
    own: ResourceRequirements | None, reported: ReportedStatus, *, infeasible: bool
) -> ResourceRequirements | None:
    if own is None or not own.requests or reported.resources is None:
        return own
    most = _most(own.requests, reported.resources.requests, reported.allocated_resources, infeasible=infeasible)
    return msgspec.structs.replace(own, requests={resource: most.get(resource, 0) for resource in own.requests})


def _most(spec: Quantities | None, *reported: Quantities | None, infeasible: bool) -> Quantities:
    """Per resource the largest quantity, as written; of equal ones the first."""
    lists = [each for each in (reported if infeasible else (spec, *reported)) if each]
    if not lists or all(each == lists[0] for each in lists):
        return lists[0] if lists else {}
    most: Quantities = {}
    amounts: Amounts = {}
    for quantities in lists:
        for resource, amount in read_amounts(quantities, "", lambda _: None).items():
            if amount > amounts.get(resource, -1):
                most[resource], amounts[resource] = quantities[resource], amount
    return most


def _is_infeasible(status: PodStatus) -> bool:
    pending = next((each for each in status.conditions or () if each.type == _PENDING), None)
    return pending is not None and pending.reason == _INFEASIBLE
