"""The core's requests to the API server; each returns its answer as an event of the core.

Every request may be repeated: after a kill or without an answer the binder starts over and does what is left.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from typing import Final, TypeVar

import msgspec

from berth.api.decoding import version_number
from berth.api.errors import DecodeError
from berth.api.meta import ObjectMeta
from berth.api.pod import Pod, is_marked_for_preemption
from berth.framework.interface import KeepVolume, Write
from berth.kube.client import KubeClient
from berth.kube.errors import ApiUnreachableError, Response, missing_right
from berth.kube.writes import (
    bind,
    condition_patch,
    decode_pod,
    delete_victim,
    fence_condition,
    fence_token,
    keep_volume,
    mark_victim,
    nominate,
    patch_pod_status,
    select_node,
    unmark_victim,
)
from berth_binder.events import (
    NO_ANSWER,
    BindingAnswer,
    ClearNomination,
    EvictionAnswer,
    EvictPods,
    GetPod,
    PodAnswer,
    PostBinding,
    RequestAnswer,
    VoidBindings,
    VolumesAnswer,
    WriteVolumes,
    leaves_open,
)

VOLUMES: Final = "pv"
CLAIMS: Final = "pvc"

_NOT_THERE: Final = frozenset({HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT, HTTPStatus.UNPROCESSABLE_ENTITY})
"""Answers to a request with a victim's uid when the victim is deleted, or another pod has its name."""

A = TypeVar("A", bound=RequestAnswer)


class _Object(msgspec.Struct, frozen=True):
    metadata: ObjectMeta = ObjectMeta()


_decoder = msgspec.json.Decoder(_Object)


async def post_binding(client: KubeClient, effect: PostBinding, timeout: timedelta) -> BindingAnswer:  # noqa: ASYNC109 - handed on to the client
    metadata = effect.pod.metadata
    try:
        response = await bind(
            client,
            namespace=metadata.namespace,
            name=metadata.name,
            uid=metadata.uid,
            resource_version=metadata.resource_version,
            node=effect.node,
            timeout=timeout,
        )
    except ApiUnreachableError as error:
        return BindingAnswer(uid=metadata.uid, status=NO_ANSWER, message=str(error))
    return _answer(BindingAnswer, metadata.uid, response)


async def get_pod(client: KubeClient, effect: GetPod) -> PodAnswer:
    """GET the pod. One that cannot be decoded counts as rejected: a retry would fail too."""
    metadata = effect.pod.metadata
    try:
        response = await client.request("GET", f"/api/v1/namespaces/{metadata.namespace}/pods/{metadata.name}")
    except ApiUnreachableError as error:
        return PodAnswer(uid=metadata.uid, status=NO_ANSWER, message=str(error))
    return _pod_answer(metadata.uid, response)


async def void_bindings(client: KubeClient, effect: VoidBindings, epoch: int) -> PodAnswer:
    """Patch the pod's status with a fence of its own: a Binding with the resourceVersion of before is then refused."""
    metadata = effect.pod.metadata
    body = condition_patch(fence_condition(epoch, fence_token()), uid=metadata.uid)
    try:
        response = await patch_pod_status(client, metadata.namespace, metadata.name, body)
    except ApiUnreachableError as error:
        return PodAnswer(uid=metadata.uid, status=NO_ANSWER, message=str(error))
    return _pod_answer(metadata.uid, response)


async def evict_pods(client: KubeClient, effect: EvictPods) -> EvictionAnswer:
    """Evict one victim after another, then nominate the node."""
    preemptor = effect.pod
    try:
        for victim in effect.victims:
            failure = await _evict(client, victim, preemptor.spec.scheduler_name)
            if failure is not None:
                return _answer(EvictionAnswer, preemptor.uid, failure)
        response = await nominate(client, preemptor, effect.node)
    except ApiUnreachableError as error:
        return EvictionAnswer(uid=preemptor.uid, status=NO_ANSWER, message=str(error))
    if not response.succeeded:
        return _answer(EvictionAnswer, preemptor.uid, response)
    try:
        return EvictionAnswer(uid=preemptor.uid, status=response.status, pod=decode_pod(response.body))
    except DecodeError as error:
        return EvictionAnswer(uid=preemptor.uid, status=HTTPStatus.UNPROCESSABLE_ENTITY, message=str(error))


async def _evict(client: KubeClient, victim: Pod, scheduler_name: str) -> Response | None:
    """Mark and delete the victim; returns the response that failed, ``None`` when the pod terminates or is gone."""
    if victim.metadata.deletion_timestamp is not None:
        return None
    if not is_marked_for_preemption(victim):
        marked = await mark_victim(client, victim, scheduler_name=scheduler_name, time=datetime.now(UTC))
        if not marked.succeeded:
            return None if marked.status in _NOT_THERE else marked
    deleted = await delete_victim(client, victim)
    if deleted.succeeded or deleted.status in _NOT_THERE:
        return None
    if not leaves_open(deleted.status):
        await unmark_victim(client, victim, time=datetime.now(UTC))  # it stays: no pod must wait for it
    return deleted


async def clear_nomination(client: KubeClient, effect: ClearNomination) -> RequestAnswer:
    """Clear the pod's nominated node. If the request is lost, the pod's next attempt sends it again."""
    uid = effect.pod.uid
    try:
        return _answer(RequestAnswer, uid, await nominate(client, effect.pod, None))
    except ApiUnreachableError as error:
        return RequestAnswer(uid=uid, status=NO_ANSWER, message=str(error))


async def write_volumes(client: KubeClient, effect: WriteVolumes) -> VolumesAnswer:
    """Send the writes in order, up to the first failure."""
    uid = effect.pod.uid
    versions: dict[str, int] = {}
    try:
        for request in effect.requests:
            response = await _write(client, request)
            if not response.succeeded:
                return _answer(VolumesAnswer, uid, response)
            kind = VOLUMES if isinstance(request, KeepVolume) else CLAIMS
            version = version_number(_decoder.decode(response.body).metadata.resource_version)
            versions[kind] = max(versions.get(kind, 0), version)
    except ApiUnreachableError as error:
        return VolumesAnswer(uid=uid, status=NO_ANSWER, message=str(error))
    return VolumesAnswer(uid=uid, status=response.status, versions=versions)


async def _write(client: KubeClient, request: Write) -> Response:
    return await (keep_volume(client, request) if isinstance(request, KeepVolume) else select_node(client, request))


def _pod_answer(uid: str, response: Response) -> PodAnswer:
    if not response.succeeded:
        return _answer(PodAnswer, uid, response)
    try:
        return PodAnswer(uid=uid, status=response.status, pod=decode_pod(response.body))
    except DecodeError as error:
        return PodAnswer(uid=uid, status=HTTPStatus.UNPROCESSABLE_ENTITY, message=str(error))


def _answer(kind: type[A], uid: str, response: Response) -> A:
    """The response as an event, with the reason where it is a rejection."""
    if response.succeeded:
        return kind(uid=uid, status=response.status)
    failure = response.failure()
    return kind(
        uid=uid,
        status=response.status,
        message=failure.message or failure.reason,
        retry_after=response.retry_after,
        missing_right=missing_right(failure) or "",
    )
