"""Requests about single objects: pods, Bindings, evictions, volumes, Events.

Each function returns the answer of any status; the caller decides by the status.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import quote

import msgspec

from berth.api.kinds import POD, Kind
from berth.api.pod import (
    CONDITION_FENCE,
    DISRUPTION_TARGET,
    PREEMPTION_BY_SCHEDULER,
    ContainerExtendedResourceRequest,
    Pod,
    PodCondition,
)
from berth.api.volumes import PersistentVolume, PersistentVolumeClaim
from berth.clock import whole_seconds
from berth.errors import DecodeError
from berth.framework.interface import ClaimName, KeepVolume, SelectNode
from berth.kube.client import DEFAULT_TIMEOUT, MERGE_PATCH, STRATEGIC_MERGE_PATCH, KubeClient
from berth.kube.errors import refusal
from berth.kube.http1 import Response
from berth.kube.listwatch import ObjectDecoder, Undecodable

_decoder = ObjectDecoder(POD)


_encoder = msgspec.json.Encoder()


def pod_path(namespace: str, name: str, *below: str) -> str:
    """Path of a pod, or of a subresource. A name stays one segment with any characters."""
    return "/".join(("/api/v1/namespaces", quote(namespace, safe=""), "pods", quote(name, safe=""), *below))


async def get_pod(client: KubeClient, namespace: str, name: str) -> Pod | None:
    """Read a pod, trimmed as by the reflector; ``None`` if it does not exist.

    Raises:
        ApiUnreachableError: no answer.
        ApiRefusedError: an answer other than 200 and 404.
        DecodeError: an invalid pod.
    """
    doing = f"reading pod {f'{namespace}/{name}'!r}"
    response = await client.call("GET", pod_path(namespace, name))
    if response.status == HTTPStatus.NOT_FOUND:
        return None
    if response.status != HTTPStatus.OK:
        raise refusal(doing, response)
    return decode_pod(response.body, doing)


def decode_pod(body: bytes, doing: str = "reading a pod") -> Pod:
    """Decode the pod in an answer.

    Raises:
        DecodeError: an invalid pod.
    """
    pod = _decoder.one(body)
    if isinstance(pod, Undecodable):
        raise DecodeError(f"{doing}: {pod.reason}")
    return pod


async def patch_pod_status(client: KubeClient, namespace: str, name: str, body: bytes) -> Response:
    """Patch the status by strategic merge: conditions are merged by type. The answer holds the patched pod.

    Raises:
        ApiUnreachableError: no answer; the patch may have been applied.
    """
    path = pod_path(namespace, name, "status")
    return await client.request("PATCH", path, body=body, content_type=STRATEGIC_MERGE_PATCH)


async def patch_pod_group_status(
    client: KubeClient, kind: Kind[Any], namespace: str, name: str, body: bytes
) -> Response:
    """Patch the status of a PodGroup. Raises as :func:`patch_pod_status`."""
    place = f"namespaces/{quote(namespace, safe='')}/{kind.plural}/{quote(name, safe='')}/status"
    path = f"/apis/{kind.api_version}/{place}"
    return await client.request("PATCH", path, body=body, content_type=STRATEGIC_MERGE_PATCH)


def condition_patch(
    condition: PodCondition | Mapping[str, str], *, uid: str | None = None, resource_version: str = ""
) -> bytes:
    """Patch that sets one condition.

    The API server answers 422 if another pod has the name (``uid``), 409 if the pod has changed (``resource_version``).
    """
    preconditions = {"uid": uid, "resourceVersion": resource_version}
    metadata = {name: value for name, value in preconditions.items() if value}
    return _encoder.encode({**({"metadata": metadata} if metadata else {}), "status": {"conditions": [condition]}})


async def fence(client: KubeClient, pod: Pod, epoch: int) -> Response:
    """Write the fence of an epoch, so that a Binding with an earlier resourceVersion is refused.

    The answer holds the patched pod.

    Raises:
        ApiUnreachableError: no answer; it may have been written.
    """
    # A patch without a change keeps the resourceVersion. The random token makes each fence a change, even if another
    # client has already written the epoch's number.
    token = uuid.uuid4().hex[:12]
    condition = PodCondition(type=CONDITION_FENCE, status="True", reason=f"Fence_{token}", message=str(epoch))
    body = condition_patch(condition, uid=pod.uid)
    return await patch_pod_status(client, pod.metadata.namespace, pod.metadata.name, body)


class _Preconditions(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    name: str
    namespace: str
    uid: str
    resource_version: str


class _Target(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    name: str
    kind: str = "Node"
    api_version: str = "v1"


class _Binding(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    metadata: _Preconditions
    target: _Target
    kind: str = "Binding"
    api_version: str = "v1"


def binding_body(*, namespace: str, name: str, uid: str, resource_version: str, node: str) -> bytes:
    """Body of a Binding. The API server answers 409 if the pod's uid or resourceVersion differ."""
    metadata = _Preconditions(name=name, namespace=namespace, uid=uid, resource_version=resource_version)
    return _encoder.encode(_Binding(metadata=metadata, target=_Target(name=node)))


async def bind(  # noqa: PLR0913 - the pod, its state, the node
    client: KubeClient,
    *,
    namespace: str,
    name: str,
    uid: str,
    resource_version: str,
    node: str,
    timeout: timedelta = DEFAULT_TIMEOUT,  # noqa: ASYNC109 - handed on to the client
    is_rehearsal: bool = False,
) -> Response:
    """Bind the pod if its uid and resourceVersion are unchanged. 201 is success.

    The API server also accepts a node that does not exist; the caller checks it. ``is_rehearsal``: it answers as it
    would, with admission, and binds nothing.

    Raises:
        ApiUnreachableError: no answer; the pod may be bound now or later.
    """
    body = binding_body(namespace=namespace, name=name, uid=uid, resource_version=resource_version, node=node)
    path, params = pod_path(namespace, name, "binding"), {"dryRun": "All"} if is_rehearsal else None
    return await client.request("POST", path, body=body, params=params, timeout=timeout)


REFUSED: Final = "EvictionRefused"


async def mark_victim(client: KubeClient, victim: Pod, *, why: str, time: datetime) -> Response:
    """Set the condition DisruptionTarget before the pod is evicted.

    Raises:
        ApiUnreachableError: no answer; it may have been set.
    """
    condition = PodCondition(type=DISRUPTION_TARGET, status="True", reason=PREEMPTION_BY_SCHEDULER, message=why)
    return await _set_condition(client, victim, condition, time)


async def unmark_victim(client: KubeClient, victim: Pod, *, why: str, time: datetime) -> Response:
    """Reset the condition of a pod that was not evicted, two minutes before Kubernetes' disruption controller would.

    Raises:
        ApiUnreachableError: no answer; it may have been reset.
    """
    condition = PodCondition(type=DISRUPTION_TARGET, status="False", reason=REFUSED, message=why)
    return await _set_condition(client, victim, condition, time)


async def _set_condition(client: KubeClient, pod: Pod, condition: PodCondition, time: datetime) -> Response:
    condition = msgspec.structs.replace(
        condition, last_transition_time=whole_seconds(time), observed_generation=pod.metadata.generation
    )
    body = condition_patch(condition, uid=pod.uid)
    return await patch_pod_status(client, pod.metadata.namespace, pod.metadata.name, body)


async def delete_victim(client: KubeClient, victim: Pod) -> Response:
    """Delete the pod, with its own grace period; 409 if another pod has its name.

    Raises:
        ApiUnreachableError: no answer; it may have been deleted.
    """
    body = {"kind": "DeleteOptions", "apiVersion": "v1", "preconditions": {"uid": victim.uid}}
    path = pod_path(victim.metadata.namespace, victim.metadata.name)
    return await client.request("DELETE", path, body=msgspec.json.encode(body))


async def nominate(client: KubeClient, pod: Pod, node: str | None) -> Response:
    """Write the pod's nominated node; ``None`` removes it. The answer holds the patched pod.

    Raises:
        ApiUnreachableError: no answer; it may have been written.
    """
    body = _encoder.encode({"metadata": {"uid": pod.uid}, "status": {"nominatedNodeName": node}})
    return await patch_pod_status(client, pod.metadata.namespace, pod.metadata.name, body)


async def report_extended_claim(
    client: KubeClient, pod: Pod, claim: str, mappings: tuple[ContainerExtendedResourceRequest, ...]
) -> Response:
    """Name the claim that serves the pod's extended resources; 409 if the pod has changed.

    The answer holds the patched pod.

    Raises:
        ApiUnreachableError: no answer; it may have been written.
    """
    reported = {"resourceClaimName": claim, "requestMappings": mappings}
    metadata = {"uid": pod.uid, "resourceVersion": pod.metadata.resource_version}
    body = _encoder.encode({"metadata": metadata, "status": {"extendedResourceClaimStatus": reported}})
    return await patch_pod_status(client, pod.metadata.namespace, pod.metadata.name, body)


SELECTED_NODE: Final = "volume.kubernetes.io/selected-node"

# Marks a volume whose claim was set by a controller: it is released when the claim is deleted.
BOUND_BY_CONTROLLER: Final = "pv.kubernetes.io/bound-by-controller"

# Maximum reads and writes when another client writes the object in between.
TRIES: Final = 3

_volumes = msgspec.json.Decoder(PersistentVolume)

_claims = msgspec.json.Decoder(PersistentVolumeClaim)

Patch = Mapping[str, Any]


async def keep_volume(client: KubeClient, write: KeepVolume) -> Response:
    """Set the volume's claimRef to the claim; 409 if it has another. The answer of a success holds the volume.

    Raises:
        ApiUnreachableError: no answer; it may have been written.
    """
    path = f"/api/v1/persistentvolumes/{quote(write.volume, safe='')}"
    return await _write(client, path, lambda body: _promise(_volumes.decode(body), write.claim))


async def select_node(client: KubeClient, write: SelectNode) -> Response:
    """Select the node for the claim, so that a volume is provisioned.

    409 if the claim has another node, or another claim has its name.

    Raises:
        ApiUnreachableError: no answer; it may have been written.
    """
    namespace, name = quote(write.claim.namespace, safe=""), quote(write.claim.name, safe="")
    path = f"/api/v1/namespaces/{namespace}/persistentvolumeclaims/{name}"
    return await _write(client, path, lambda body: _selection(_claims.decode(body), write))


async def _write(client: KubeClient, path: str, patch_of: Callable[[bytes], Patch | str]) -> Response:
    # `patch_of` returns the patch (empty if none is needed), or the reason for a 409.
    response = await client.call("GET", path)
    for _ in range(TRIES):
        if not response.succeeded:
            return response
        patch = patch_of(response.body)
        if isinstance(patch, str):
            return conflict(patch)
        if not patch:
            return response
        written = await client.call("PATCH", path, body=patch, content_type=MERGE_PATCH)
        if written.status != HTTPStatus.CONFLICT:
            return written
        response = await client.call("GET", path)
    return written


def _promise(volume: PersistentVolume, claim: ClaimName) -> Patch | str:
    # A volume that a person has reserved for the claim's name stays without the annotation.
    promise, name = volume.spec.claim_ref, (claim.namespace, claim.name)
    if promise is not None and ((promise.namespace, promise.name) != name or promise.uid not in ("", claim.uid)):
        return f"persistentvolume {volume.metadata.name!r} is kept for claim {f'{promise.namespace}/{promise.name}'!r}"
    if promise is not None and promise.uid:
        return {}
    by_us = {"annotations": {BOUND_BY_CONTROLLER: "yes"}} if promise is None else {}
    reference = {"kind": "PersistentVolumeClaim", "apiVersion": "v1", "uid": claim.uid}
    reference |= {"namespace": claim.namespace, "name": claim.name}
    metadata = {"resourceVersion": volume.metadata.resource_version, **by_us}
    return {"metadata": metadata, "spec": {"claimRef": reference}}


def _selection(claim: PersistentVolumeClaim, write: SelectNode) -> Patch | str:
    meta, selected = claim.metadata, (claim.metadata.annotations or {}).get(SELECTED_NODE)
    if meta.uid != write.claim.uid:
        return (
            f"persistentvolumeclaim {f'{meta.namespace}/{meta.name}'!r} has been replaced by another one of that name"
        )
    if selected == write.node:
        return {}
    if selected is not None:
        return f"a volume is being made for claim {f'{meta.namespace}/{meta.name}'!r} on node {selected!r}"
    annotations = {SELECTED_NODE: write.node}
    return {"metadata": {"resourceVersion": meta.resource_version, "annotations": annotations}}


def conflict(message: str) -> Response:
    """A 409 of berth's own."""
    body = _encoder.encode({"kind": "Status", "reason": "Conflict", "message": message})
    return Response(status=HTTPStatus.CONFLICT, body=body)


# Maximum bytes of a note; the API server refuses longer ones.
MAX_NOTE_BYTES: Final = 1024


async def create_event(client: KubeClient, namespace: str, body: bytes) -> Response:
    """Create an Event; 201 is success.

    Raises:
        ApiUnreachableError: no answer; it may have been written.
    """
    return await client.request("POST", _path(namespace), body=body)


async def patch_event(client: KubeClient, namespace: str, name: str, body: bytes) -> Response:
    """Apply a merge patch to an Event, such as its series' count. Raises as :func:`create_event`."""
    return await client.request(
        "PATCH", f"{_path(namespace)}/{quote(name, safe='')}", body=body, content_type=MERGE_PATCH
    )


def cut(note: str, max_bytes: int = MAX_NOTE_BYTES) -> str:
    """The note, shortened to the API server's limit, with dots at its end if it was cut."""
    return note if len(note.encode()) <= max_bytes else note.encode()[: max_bytes - 3].decode(errors="ignore") + "..."


def _path(namespace: str) -> str:
    return f"/apis/events.k8s.io/v1/namespaces/{quote(namespace, safe='')}/events"
