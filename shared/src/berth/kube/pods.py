"""Pods one at a time: read one, bind it, write into its status, evict it for a more important one.

A Binding has the pod's uid and resourceVersion as preconditions (docs/protocol.md, 5). Rights: ``delete`` on pods and
``patch`` on pods/status, as system:kube-scheduler has them.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from http import HTTPStatus
from typing import Final

import msgspec

from berth.api.errors import DecodeError
from berth.api.kinds import POD
from berth.api.pod import DISRUPTION_TARGET, PREEMPTION_BY_SCHEDULER, Pod, PodCondition
from berth.kube.client import DEFAULT_TIMEOUT, STRATEGIC_MERGE_PATCH, KubeClient
from berth.kube.clock import whole_seconds
from berth.kube.errors import Response, refusal
from berth.kube.listwatch import ObjectDecoder
from berth.kube.watch import Undecodable

CONDITION_FENCE = "berth/fence"
"""The condition by which a new binder makes its predecessor's Bindings void; its message is the epoch.

The rule: docs/protocol.md, 5.
"""


_decoder = ObjectDecoder(POD)

_encoder = msgspec.json.Encoder()


async def get_pod(client: KubeClient, namespace: str, name: str) -> Pod | None:
    """The pod as it is now, trimmed as the reflector does it; ``None`` when there is none.

    Raises:
        ApiUnreachableError: no answer.
        ApiRefusedError: an answer other than 200 and 404.
        DecodeError: a pod of another shape.
    """
    doing = f"reading pod {f'{namespace}/{name}'!r}"
    response = await client.request("GET", f"/api/v1/namespaces/{namespace}/pods/{name}")
    if response.status == HTTPStatus.NOT_FOUND:
        return None
    if response.status != HTTPStatus.OK:
        raise refusal(doing, response)
    return decode_pod(response.body, doing)


def decode_pod(body: bytes, doing: str = "reading a pod") -> Pod:
    """A pod in an answer, such as that to a patch of its status.

    Raises:
        DecodeError: a pod of another shape.
    """
    pod = _decoder.one(body)
    if isinstance(pod, Undecodable):
        raise DecodeError(f"{doing}: {pod.reason}")
    return pod


async def patch_pod_status(client: KubeClient, namespace: str, name: str, body: bytes) -> Response:
    """Patch the status by strategic merge: conditions are merged by their type. The answer holds the pod after it.

    Raises:
        ApiUnreachableError: no answer; the patch may have been made.
    """
    path = f"/api/v1/namespaces/{namespace}/pods/{name}/status"
    return await client.request("PATCH", path, body=body, content_type=STRATEGIC_MERGE_PATCH)


def condition_patch(condition: PodCondition, *, uid: str | None = None) -> bytes:
    """The patch that sets one condition. With a uid the API server answers 422 when the pod is another of that name."""
    metadata = {"metadata": {"uid": uid}} if uid else {}
    return _encoder.encode({**metadata, "status": {"conditions": [condition]}})


def fence_condition(epoch: int) -> PodCondition:
    """The fence of an epoch. Each writes another message: a patch that changes nothing moves no resourceVersion."""
    return PodCondition(type=CONDITION_FENCE, status="True", reason="Fence", message=str(epoch))


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
    """The Binding as it goes on the wire. The API server answers 409 when uid or resourceVersion are not the pod's."""
    metadata = _Preconditions(name=name, namespace=namespace, uid=uid, resource_version=resource_version)
    return _encoder.encode(_Binding(metadata=metadata, target=_Target(name=node)))


async def bind(  # noqa: PLR0913 - each says which pod, as which state of it, or where to
    client: KubeClient,
    *,
    namespace: str,
    name: str,
    uid: str,
    resource_version: str,
    node: str,
    timeout: timedelta = DEFAULT_TIMEOUT,  # noqa: ASYNC109 - handed on to the client
) -> Response:
    """Bind the pod, if it is still the one of this uid and resourceVersion. 201 is success.

    A node that does not exist is accepted as well: whether it does is for the caller to know.

    Raises:
        ApiUnreachableError: no answer; with ``maybe_sent`` the pod may be bound, now or later.
    """
    body = binding_body(namespace=namespace, name=name, uid=uid, resource_version=resource_version, node=node)
    path = f"/api/v1/namespaces/{namespace}/pods/{name}/binding"
    return await client.request("POST", path, body=body, timeout=timeout)


REFUSED: Final = "EvictionRefused"


async def mark_victim(client: KubeClient, victim: Pod, *, scheduler_name: str, time: datetime) -> Response:
    """Say on the pod why it is about to go, before it does.

    Raises:
        ApiUnreachableError: no answer; it may have been said.
    """
    message = f"{scheduler_name}: preempting to accommodate a higher priority pod"
    said = PodCondition(type=DISRUPTION_TARGET, status="True", reason=PREEMPTION_BY_SCHEDULER, message=message)
    return await _say(client, victim, said, time)


async def unmark_victim(client: KubeClient, victim: Pod, *, time: datetime) -> Response:
    """Take it back: the pod was not evicted. Kubernetes' own disruption controller would after two minutes.

    Raises:
        ApiUnreachableError: no answer; it may have been taken back.
    """
    said = PodCondition(type=DISRUPTION_TARGET, status="False", reason=REFUSED, message="the eviction was refused")
    return await _say(client, victim, said, time)


async def _say(client: KubeClient, pod: Pod, condition: PodCondition, time: datetime) -> Response:
    said = msgspec.structs.replace(condition, last_transition_time=whole_seconds(time))
    body = condition_patch(said, uid=pod.uid)
    return await patch_pod_status(client, pod.metadata.namespace, pod.metadata.name, body)


async def delete_victim(client: KubeClient, victim: Pod) -> Response:
    """Delete the pod, with the time that it has asked for; 409 when another pod has its name by now.

    Raises:
        ApiUnreachableError: no answer; it may be going.
    """
    body = _encoder.encode({"kind": "DeleteOptions", "apiVersion": "v1", "preconditions": {"uid": victim.uid}})
    path = f"/api/v1/namespaces/{victim.metadata.namespace}/pods/{victim.metadata.name}"
    return await client.request("DELETE", path, body=body)


async def nominate(client: KubeClient, pod: Pod, node: str | None) -> Response:
    """Write on the pod which node is kept for it; ``None``: no node is. The answer holds the pod after it.

    Raises:
        ApiUnreachableError: no answer; it may have been written.
    """
    body = _encoder.encode({"metadata": {"uid": pod.uid}, "status": {"nominatedNodeName": node}})
    return await patch_pod_status(client, pod.metadata.namespace, pod.metadata.name, body)
