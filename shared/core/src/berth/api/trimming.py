"""Reduces objects: fields without readers, and smaller forms of objects that are too large for the bus.

The decoded types have only the fields that scheduling reads; ``trim`` drops fields that only some readers need, and the
longest annotations above a limit, because anybody who may create objects could fill streams and buckets with them.

A large object has smaller forms, the fullest first. Of a pod on a node, plugins read its requests, host ports, labels,
volumes, affinity and priority; other fields matter only while a pod waits (``as_placed``). The last form of a pod
always fits into 48 KiB, so that every pod on a node counts; of a claim the status, so that its devices count. Any other
object that does not fit without its long annotations is left out.

Of a ResourceClaim, DeviceClass, ResourceSlice or PodGroup that cannot be read there is what can (``readable_rest``).
Pods that need it get the reason as a condition.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate, chain, islice
from typing import Any, Final, TypeVar

import msgspec

from berth.api.devices import (
    UNREADABLE,
    ClaimMeta,
    DeviceClass,
    DeviceClassSpec,
    ResourceClaim,
    ResourceClaimSpec,
    ResourceClaimStatus,
    ResourcePool,
    ResourceSlice,
    ResourceSliceSpec,
)
from berth.api.meta import NOT_KEPT, KubernetesObject, ObjectMeta, Trimmed
from berth.api.node import Node
from berth.api.pod import (
    DISRUPTION_TARGET,
    READ_CONDITIONS,
    RESIZE_PENDING,
    Affinity,
    Container,
    ContainerPort,
    NodeSelector,
    Pod,
    PodAffinity,
    PodCondition,
    PodFailure,
    PodSpec,
    PodStatus,
    Quantities,
    ResourceRequirements,
    unix_seconds,
)
from berth.api.podgroups import CoschedulingPodGroup, CoschedulingSpec, UpstreamPodGroup, UpstreamSpec
from berth.api.podlimits import MOST_BYTES
from berth.api.resources import CPU, MEMORY, Amounts, is_counted, is_scalar, is_sidecar, pod_requests, read_amounts

T = TypeVar("T", bound=KubernetesObject)

_encode: Final = msgspec.json.Encoder().encode

WHOLE: Final = "whole"  # the field of a pod and a node with its complete JSON
# kubectl's copy of the whole object; often the largest part of a trimmed pod.
LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"
# Bytes of an object's annotations as JSON. Usual ones take some KiB; at this size 8,000 waiting pods fill RANKED, where
# 500 did with all annotations that the API server takes.
ANNOTATION_BYTES: Final = 16 * 1024
CONDITION_BYTES: Final = 16 * 1024  # of a pod's conditions as JSON; usual ones take 1 KiB
CONDITION_TEXT: Final = 1024  # characters of each text of a condition in a pod with more; berth writes no longer ones
# Characters of an annotation that is left out first; annotations that plugins read are shorter.
LONG: Final = 256
# Host ports in the smallest form of a pod, about 80 bytes each.
MOST_PORTS: Final = 256
MOST_RESOURCES: Final = 32  # resources in it, with names of up to 317 characters
MOST_LABELS: Final = 24  # labels in it, with up to 380 characters each
_NOTHING: Final = ResourceRequirements()
_ODD_PARAMETERS: Final = "are nested more than 500 levels deep, or have half a surrogate pair"


def trim(thing: T, size: int | None = None) -> T:
    """The object without kubectl's annotation and without owners but its controller; itself if it has neither.

    Above ANNOTATION_BYTES the longest annotations are left out, except of a node, whose annotations an administrator
    wrote. Above CONDITION_BYTES a pod keeps only the conditions that berth reads. ``size``: the object's bytes as JSON,
    if known: in a small object neither is measured.
    """
    if isinstance(thing, Pod) and thing.status.conditions and (size is None or size > CONDITION_BYTES):
        thing = _with_fewer_conditions(thing, thing.status.conditions)  # type: ignore[assignment]  # T is Pod here
    annotations, owners = thing.metadata.annotations, thing.metadata.owner_references
    has_last_applied = annotations is not None and LAST_APPLIED in annotations
    has_other_owners = owners is not None and not all(owner.controller for owner in owners)
    may_be_long = annotations is not None and (size is None or size > ANNOTATION_BYTES)
    if not has_last_applied and not has_other_owners and not may_be_long:
        return thing
    kept = {key: value for key, value in (annotations or {}).items() if key != LAST_APPLIED}
    if may_be_long and not isinstance(thing, Node):
        kept = _shortest(kept)
    if not has_other_owners and kept == (annotations or {}):
        return thing
    metadata = msgspec.structs.replace(
        thing.metadata,
        annotations=kept or None,
        owner_references=[owner for owner in owners or () if owner.controller] or None,
    )
    return _with_metadata(thing, metadata)


def _with_fewer_conditions(pod: Pod, conditions: list[PodCondition]) -> Pod:
    if sum(len(_encode(each)) for each in conditions) <= CONDITION_BYTES:
        return pod
    first: dict[str, PodCondition] = {}
    for each in conditions:
        if each.type in READ_CONDITIONS:
            first.setdefault(each.type, _with_short_texts(each))
    status = msgspec.structs.replace(pod.status, conditions=list(first.values()))
    return msgspec.structs.replace(pod, status=status)


def _with_short_texts(condition: PodCondition) -> PodCondition:
    return msgspec.structs.replace(
        condition,
        status=condition.status[:CONDITION_TEXT],
        reason=condition.reason[:CONDITION_TEXT],
        message=condition.message[:CONDITION_TEXT],
    )


def _shortest(annotations: dict[str, str]) -> dict[str, str]:
    # As many annotations as fit, shortest first. The choice depends on nothing else, so all readers agree.
    sizes = {name: len(_encode((name, text))) for name, text in annotations.items()}
    if sum(sizes.values()) <= ANNOTATION_BYTES:
        return annotations
    order = sorted(sizes, key=lambda name: (sizes[name], name))
    taken = accumulate(sizes[name] for name in order)
    kept = {name for name, together in zip(order, taken, strict=True) if together <= ANNOTATION_BYTES}
    return {name: text for name, text in annotations.items() if name in kept}


def with_whole(thing: T, raw: bytes | msgspec.Raw) -> T:
    """The object with its complete JSON, as kube-scheduler sends it to extenders: pods without managedFields."""
    document = msgspec.json.decode(raw)
    for name in ("apiVersion", "kind", WHOLE):
        document.pop(name, None)
    if isinstance(thing, Pod):
        document.get("metadata", {}).pop("managedFields", None)
    whole = msgspec.Raw(msgspec.json.encode(document))
    return msgspec.structs.replace(thing, whole=whole)  # type: ignore[type-var]  # every KubernetesObject is a Struct


def without_whole(pod: Pod) -> Pod:
    """The trimmed pod alone."""
    return msgspec.structs.replace(pod, whole=NOT_KEPT) if pod.whole else pod


def smaller_forms(thing: KubernetesObject) -> Iterator[tuple[str, KubernetesObject]]:
    """The fields left out and the object without them. An empty result means that the object is left out."""
    if isinstance(thing, Pod):
        yield from _smaller_pods(thing)
        return
    if isinstance(thing, Node):
        if thing.whole:
            thing = msgspec.structs.replace(thing, whole=NOT_KEPT)
            yield "what only extenders read", thing
        status = msgspec.structs.replace(thing.status, images=None)
        yield (
            "its images and long annotations",
            _without_long_annotations(msgspec.structs.replace(thing, status=status)),
        )
    else:
        thing = _without_long_annotations(thing)
        yield "its long annotations", thing
        if isinstance(thing, ResourceClaim):
            spec = ResourceClaimSpec(left_out=f"is too large: more than {MOST_BYTES} bytes of requests")
            yield "its spec", msgspec.structs.replace(thing, spec=spec)


def as_placed(pod: Pod) -> Pod:
    """The fields that plugins read of a placed or nominated pod, without long annotations."""
    return _without_long_annotations(msgspec.structs.replace(pod, spec=_placed_spec(pod.spec)))


def _smaller_pods(pod: Pod) -> Iterator[tuple[str, Pod]]:
    placed = as_placed(pod)
    yield "its long annotations and what only a waiting pod needs", placed
    counted = msgspec.structs.replace(
        placed,
        metadata=msgspec.structs.replace(placed.metadata, annotations=None),
        spec=msgspec.structs.replace(placed.spec, affinity=_required_anti_affinity(pod.spec.affinity)),
    )
    counted = _with_summed_requests(counted)
    yield "its annotations, containers, and all affinity but the required anti-affinity", counted
    yield f"all but its requests, and at most {MOST_PORTS} ports and {MOST_LABELS} labels", _minimal(counted)


def _without_long_annotations(thing: T) -> T:
    short = {name: text for name, text in (thing.metadata.annotations or {}).items() if len(text) <= LONG}
    return _with_metadata(thing, msgspec.structs.replace(thing.metadata, annotations=short or None))


def _with_metadata(thing: T, metadata: ObjectMeta) -> T:
    return msgspec.structs.replace(thing, metadata=metadata)  # type: ignore[type-var]  # every KubernetesObject is a Struct


def _placed_spec(spec: PodSpec) -> PodSpec:
    affinity = spec.affinity
    return msgspec.structs.replace(
        spec,
        containers=[_placed_container(each) for each in spec.containers or ()] or None,
        init_containers=[_placed_container(each) for each in spec.init_containers or ()] or None,
        node_selector=None,
        affinity=msgspec.structs.replace(affinity, node_affinity=None) if affinity is not None else None,
        tolerations=None,
        topology_spread_constraints=None,
        scheduling_gates=None,
    )


def _placed_container(container: Container) -> Container:
    # Requests, host ports, and the limits by which use is estimated until a sample shows it.
    given = container.resources or _NOTHING
    limits = {name: amount for name, amount in (given.limits or {}).items() if name in {CPU, MEMORY}}
    counted = ResourceRequirements(requests=given.requests or None, limits=limits or None)
    return Container(
        resources=None if counted == _NOTHING else counted,
        ports=_host_ports([container]) or None,
        restart_policy=container.restart_policy,
    )


def _host_ports(containers: list[Container]) -> list[ContainerPort]:
    """The distinct host ports of the containers."""
    ports = [port for container in containers for port in container.ports or () if port.host_port > 0]
    found = {(port.protocol, port.host_port, port.host_ip): port for port in ports}
    return [msgspec.structs.replace(port, container_port=0) for port in found.values()]


def _required_anti_affinity(affinity: Affinity | None) -> Affinity | None:
    anti = affinity.pod_anti_affinity if affinity is not None else None
    required = anti.required_during_scheduling_ignored_during_execution if anti is not None else None
    if not required:
        return None
    return Affinity(pod_anti_affinity=PodAffinity(required_during_scheduling_ignored_during_execution=required))


def _with_summed_requests(pod: Pod) -> Pod:
    spec = pod.spec
    amounts = pod_requests(spec).amounts
    names = sorted(amounts, key=lambda name: (not is_counted(name), is_scalar(name), name))
    requests = {name: f"{amounts[name]}m" if name == CPU else amounts[name] for name in names}
    sidecars = [each for each in spec.init_containers or () if each.restart_policy == "Always"]
    whole = Container(
        resources=ResourceRequirements(requests=dict(requests)),
        ports=_host_ports([*sidecars, *(spec.containers or ())]) or None,
    )
    summed = msgspec.structs.replace(spec, containers=[whole], init_containers=None, overhead=None, resources=None)
    return msgspec.structs.replace(pod, spec=summed)


def _minimal(pod: Pod) -> Pod:
    # Always fits: a pod with one container and bounded lists.
    metadata, spec, status = pod.metadata, pod.spec, pod.status
    [whole] = spec.containers or [Container()]
    requests = whole.resources.requests if whole.resources is not None else None
    return Pod(
        metadata=ObjectMeta(
            name=metadata.name,
            namespace=metadata.namespace,
            uid=metadata.uid,
            creation_timestamp=metadata.creation_timestamp,
            deletion_timestamp=metadata.deletion_timestamp,
            labels=dict(islice((metadata.labels or {}).items(), MOST_LABELS)) or None,
        ),
        spec=PodSpec(
            scheduler_name=spec.scheduler_name,
            node_name=spec.node_name,
            priority=spec.priority,
            preemption_policy=spec.preemption_policy,
            scheduling_group=spec.scheduling_group,
            containers=[
                Container(
                    resources=ResourceRequirements(requests=dict(islice((requests or {}).items(), MOST_RESOURCES))),
                    ports=(whole.ports or [])[:MOST_PORTS] or None,
                )
            ],
        ),
        status=msgspec.structs.replace(
            status,
            nominated_node_name=status.nominated_node_name[:LONG],
            conditions=[msgspec.structs.replace(each, message="") for each in (status.conditions or ())[:1]] or None,
        ),
    )


class _ClaimWithoutSpec(Trimmed, frozen=True, kw_only=True):
    metadata: ClaimMeta
    status: ResourceClaimStatus = ResourceClaimStatus()


class _WithoutSpec(Trimmed, frozen=True, kw_only=True):
    metadata: ObjectMeta


class _SlicePlace(Trimmed, frozen=True, kw_only=True):
    driver: str = ""
    pool: ResourcePool = ResourcePool()
    node_name: str | None = None
    node_selector: NodeSelector | None = None
    all_nodes: bool | None = None


class _SliceWithoutDevices(Trimmed, frozen=True, kw_only=True):
    metadata: ObjectMeta
    spec: _SlicePlace


_without_spec: Final = msgspec.json.Decoder(_WithoutSpec)
_rests: Final[dict[type[Any], msgspec.json.Decoder[Any]]] = {
    ResourceClaim: msgspec.json.Decoder(_ClaimWithoutSpec),
    DeviceClass: _without_spec,
    ResourceSlice: msgspec.json.Decoder(_SliceWithoutDevices),
    CoschedulingPodGroup: _without_spec,
    UpstreamPodGroup: _without_spec,
}

_SPECS: Final[dict[type[Any], type[Any]]] = {
    DeviceClass: DeviceClassSpec,
    CoschedulingPodGroup: CoschedulingSpec,
    UpstreamPodGroup: UpstreamSpec,
}

Rest = ResourceClaim | DeviceClass | ResourceSlice | CoschedulingPodGroup | UpstreamPodGroup


def readable_rest(struct: type[Any], raw: bytes, reason: str) -> Rest | None:
    """The object without the part that cannot be read for this reason; ``None`` if too little is left.

    Raises:
        MsgspecError: the rest cannot be read either.
    """
    decoder = _rests.get(struct)
    rest = None if decoder is None else decoder.decode(raw)
    text = f"cannot be read: {reason}"
    if isinstance(rest, _ClaimWithoutSpec):
        return ResourceClaim(metadata=rest.metadata, spec=ResourceClaimSpec(left_out=text), status=rest.status)
    if isinstance(rest, _WithoutSpec):
        without_spec: Rest = struct(metadata=rest.metadata, spec=_SPECS[struct](left_out=text))
        return without_spec
    if isinstance(rest, _SliceWithoutDevices):
        place = {name: getattr(rest.spec, name) for name in _SlicePlace.__struct_fields__}
        return ResourceSlice(metadata=rest.metadata, spec=ResourceSliceSpec(left_out=text, **place))
    return None


def without_unreadable(thing: T) -> T:
    """The object itself; a claim or class with unreadable parameters, which an allocation would repeat, says so."""
    if not isinstance(thing, ResourceClaim | DeviceClass):
        return thing
    configs = thing.spec.devices.config if isinstance(thing, ResourceClaim) else thing.spec.config
    if not any(each.opaque is not None and UNREADABLE in bytes(each.opaque.parameters) for each in configs or ()):
        return thing
    spec = msgspec.structs.replace(thing.spec, left_out=f"cannot be read: its parameters {_ODD_PARAMETERS}")
    return msgspec.structs.replace(thing, spec=spec)


_INFEASIBLE: Final = "Infeasible"


class _Actual(Trimmed, frozen=True, kw_only=True):
    requests: Quantities | None = None


class _Waiting(Trimmed, frozen=True, kw_only=True):
    reason: str = ""


class _Terminated(Trimmed, frozen=True, kw_only=True):
    finished_at: str | None = None


class ContainerState(Trimmed, frozen=True, kw_only=True):
    """Why a container waits, or when it ended; a running one has neither."""

    waiting: _Waiting | None = None
    terminated: _Terminated | None = None


class ContainerStatus(Trimmed, frozen=True, kw_only=True):
    """The allocated resources of a container and the actual ones, and how it fares."""

    name: str = ""
    allocated_resources: Quantities | None = None
    resources: _Actual | None = None
    state: ContainerState | None = None
    last_state: ContainerState | None = None


class ReportedStatus(PodStatus, frozen=True, kw_only=True):
    """A pod's status with what its kubelet reports: the reason of a failure, resources, and how containers fare."""

    reason: str = ""
    container_statuses: list[ContainerStatus] | None = None
    init_container_statuses: list[ContainerStatus] | None = None
    allocated_resources: Quantities | None = None
    resources: _Actual | None = None


class ReportedPod(Pod, frozen=True, kw_only=True):
    """A pod as the API server has it. Only its decoders see one: everything else reads ``with_effective_requests``."""

    status: ReportedStatus = ReportedStatus()


def with_effective_requests(pod: Pod) -> Pod:
    """The pod with the requests in its spec with which it counts, and without reported resources (ADR 45).

    A container, a sidecar, and the pod as a whole request, per resource, the most of three: the spec, which is the
    wish; the allocated resources, which the kubelet has admitted; and the actual ones. The spec does not count once the
    kubelet has called the resize infeasible. As kube-scheduler 1.36: only resources that the spec has count for the pod
    as a whole, and a container without actual resources, an init container and a waiting pod count with their spec.
    """
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
        resource_claim_statuses=reported.resource_claim_statuses,
        extended_resource_claim_status=reported.extended_resource_claim_status,
        failure=None if pod.metadata.deletion_timestamp is not None else _failure_of(reported),
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
    pending = next((each for each in status.conditions or () if each.type == RESIZE_PENDING), None)
    return pending is not None and pending.reason == _INFEASIBLE


# Reasons of a container that waits which may be the node's fault. Not CreateContainerConfigError: a ConfigMap that is
# missing is missing on every node.
_CANNOT_START: Final = frozenset(
    {"CrashLoopBackOff", "CreateContainerError", "RunContainerError", "ImagePullBackOff", "ErrImageNeverPull"}
)
# The reason of a pod that ran for longer than its own activeDeadlineSeconds.
_OWN_DEADLINE: Final = "DeadlineExceeded"
# Seconds after its start within which a pod whose containers failed has failed at once: what it runs hardly began.
_AT_ONCE_SECONDS: Final = 60.0
FAILED_AT_ONCE: Final = "failed at once"


def _failure_of(reported: ReportedStatus) -> PodFailure | None:
    """The pod's failure on its node. A terminating pod has none: its containers end with an error because of that."""
    statuses = chain(reported.container_statuses or (), reported.init_container_statuses or ())
    if reported.phase == "Failed":
        return _failure_of_ended(reported, list(statuses))
    for status in statuses:  # the hot path: of nearly all pods, no container waits
        waiting = status.state.waiting if status.state is not None else None
        if waiting is not None and waiting.reason in _CANNOT_START:
            return _failure(waiting.reason, _latest_end([status]), reported.start_time)
    return None


def _failure_of_ended(reported: ReportedStatus, statuses: list[ContainerStatus]) -> PodFailure | None:
    ended = _latest_end(statuses)
    if reported.reason and reported.reason != _OWN_DEADLINE:
        disrupted = next((each for each in reported.conditions or () if each.type == DISRUPTION_TARGET), None)
        evicted = None if disrupted is None else disrupted.last_transition_time
        return _failure(reported.reason, ended, evicted, reported.start_time)
    is_at_once = unix_seconds(ended) - unix_seconds(reported.start_time) <= _AT_ONCE_SECONDS
    if reported.reason or ended is None or reported.start_time is None or not is_at_once:
        return None
    return _failure(FAILED_AT_ONCE, ended)


def _failure(reason: str, *times: str | None) -> PodFailure | None:
    """``times``: candidates, of which the latest counts (RFC 3339 in UTC, so text order is time order)."""
    at = max((time for time in times if time), default=None)
    return None if at is None else PodFailure(reason=reason[:LONG], at=at)


def _latest_end(statuses: list[ContainerStatus]) -> str | None:
    states = [state for status in statuses for state in (status.state, status.last_state) if state is not None]
    ends = [state.terminated.finished_at for state in states if state.terminated is not None]
    return max((end for end in ends if end), default=None)
