"""Pods one at a time: read one, and write into its status."""

from __future__ import annotations

from http import HTTPStatus

import msgspec

from berth.api.errors import DecodeError
from berth.api.pod import Pod, PodCondition
from berth.kube.client import STRATEGIC_MERGE_PATCH, KubeClient
from berth.kube.decoding import ObjectDecoder
from berth.kube.kinds import POD
from berth.kube.port import Undecodable
from berth.kube.refusal import refusal
from berth.kube.response import Response

CONDITION_FENCE = "berth/fence"
"""The condition by which a new binder makes its predecessor's Bindings void; its message is the epoch (PROTOCOL 5)."""

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
