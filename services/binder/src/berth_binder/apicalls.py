"""The binder's requests to the API server, and their answers in the core's own words.

The requests by which pods are evicted for a more important one, in order, and what their answers come to.

Each may be repeated: a binder that is killed in between, or has no answer, begins again and does what is left.


What plugins want written before a Binding: the requests, in order, and what their answers come to.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from typing import Final

import msgspec

from berth.api.errors import DecodeError
from berth.api.meta import ObjectMeta, version_number
from berth.api.pod import Pod, is_marked_for_preemption
from berth.framework.interface import KeepVolume
from berth.framework.interface import Write as Request
from berth.kube.client import KubeClient
from berth.kube.errors import ApiUnreachableError, Response, missing_right
from berth.kube.pods import (
    bind,
    decode_pod,
    delete_victim,
    mark_victim,
    nominate,
    unmark_victim,
)
from berth.kube.volumes import keep_volume, select_node
from berth_binder.effects import (
    NO_ANSWER,
    Answer,
    Demote,
    Evict,
    Evicted,
    GetPod,
    PodAnswer,
    Post,
    WriteVolumes,
    Written,
)

_encoder = msgspec.json.Encoder()


async def post_binding(client: KubeClient, post: Post, timeout: timedelta) -> Answer:  # noqa: ASYNC109 - handed on to the client
    """POST the Binding; no answer is an answer too."""
    metadata = post.pod.metadata
    try:
        response = await bind(
            client,
            namespace=metadata.namespace,
            name=metadata.name,
            uid=metadata.uid,
            resource_version=metadata.resource_version,
            node=post.node,
            timeout=timeout,
        )
    except ApiUnreachableError as error:
        return Answer(status=NO_ANSWER, message=str(error))
    return failure_of(response)


async def read_pod(client: KubeClient, read: GetPod) -> PodAnswer:
    """GET the pod. One of another shape is a refusal: somebody must mend it."""
    metadata = read.pod.metadata
    try:
        response = await client.request("GET", f"/api/v1/namespaces/{metadata.namespace}/pods/{metadata.name}")
    except ApiUnreachableError as error:
        return PodAnswer(status=NO_ANSWER, message=str(error))
    if not response.succeeded:
        failure = failure_of(response)
        return PodAnswer(status=failure.status, message=failure.message, retry_after=failure.retry_after)
    try:
        return PodAnswer(status=response.status, pod=decode_pod(response.body))
    except DecodeError as error:
        return PodAnswer(status=HTTPStatus.UNPROCESSABLE_ENTITY, message=str(error))


def failure_of(response: Response) -> Answer:
    """The answer, with why it is a refusal where it is one."""
    if response.succeeded:
        return Answer(status=response.status)
    failure = response.failure()
    return Answer(
        status=response.status,
        message=failure.message or failure.reason,
        retry_after=response.retry_after,
        missing_right=missing_right(failure) or "",
    )


_NOT_THERE: Final = frozenset({HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT, HTTPStatus.UNPROCESSABLE_ENTITY})
"""To a request about a victim with its uid: it is gone, or another pod has its name."""


async def evict(client: KubeClient, evict: Evict, may_go_on: Callable[[], None]) -> Evicted:
    """Evict, one after another, then keep the node. ``may_go_on`` raises when this binder leads no longer."""
    try:
        for victim in evict.victims:
            may_go_on()
            answer = await _evict_one(client, victim, evict.pod.spec.scheduler_name)
            if answer is not None:
                return answer
        may_go_on()
        return _of_nomination(await nominate(client, evict.pod, evict.node))
    except ApiUnreachableError as error:
        return Evicted(status=NO_ANSWER, message=str(error))


async def demote(client: KubeClient, demoted: Demote) -> Answer:
    """No node is kept for the pod any more. When that gets lost, its next attempt says so again."""
    try:
        return failure_of(await nominate(client, demoted.pod, None))
    except ApiUnreachableError as error:
        return Answer(status=NO_ANSWER, message=str(error))


async def _evict_one(client: KubeClient, victim: Pod, scheduler_name: str) -> Evicted | None:
    """None when the pod is on its way, or gone."""
    if victim.metadata.deletion_timestamp is not None:
        return None
    if not is_marked_for_preemption(victim):
        marked = await mark_victim(client, victim, scheduler_name=scheduler_name, time=datetime.now(UTC))
        if not marked.succeeded:
            return None if marked.status in _NOT_THERE else _refused(marked)
    deleted = await delete_victim(client, victim)
    if deleted.succeeded or deleted.status in _NOT_THERE:
        return None
    refused = _refused(deleted)
    if not refused.is_open:
        await unmark_victim(client, victim, time=datetime.now(UTC))  # it stays: nobody must wait for it to go
    return refused


def _of_nomination(response: Response) -> Evicted:
    if not response.succeeded:
        return _refused(response)
    try:
        return Evicted(status=response.status, pod=decode_pod(response.body))
    except DecodeError as error:
        return Evicted(status=HTTPStatus.UNPROCESSABLE_ENTITY, message=str(error))


def _refused(response: Response) -> Evicted:
    failure = failure_of(response)
    return Evicted(
        status=failure.status,
        message=failure.message,
        retry_after=failure.retry_after,
        missing_right=failure.missing_right,
    )


VOLUMES: Final = "pv"

CLAIMS: Final = "pvc"


class _Object(msgspec.Struct, frozen=True):
    metadata: ObjectMeta = ObjectMeta()


_decoder = msgspec.json.Decoder(_Object)


async def write_before_binding(client: KubeClient, write: WriteVolumes, may_go_on: Callable[[], None]) -> Written:
    """Write one after another, up to the first failure. ``may_go_on`` raises when this binder leads no longer."""
    versions: dict[str, int] = {}
    try:
        for request in write.requests:
            may_go_on()
            response = await _send(client, request)
            if not response.succeeded:
                return _refused_prewriting(response)
            kind = VOLUMES if isinstance(request, KeepVolume) else CLAIMS
            versions[kind] = max(versions.get(kind, 0), _version(response))
    except ApiUnreachableError as error:
        return Written(status=NO_ANSWER, message=str(error))
    return Written(status=response.status, versions=versions)


async def _send(client: KubeClient, request: Request) -> Response:
    return await (keep_volume(client, request) if isinstance(request, KeepVolume) else select_node(client, request))


def _version(response: Response) -> int:
    return version_number(_decoder.decode(response.body).metadata.resource_version)


def _refused_prewriting(response: Response) -> Written:
    failure = failure_of(response)
    return Written(
        status=failure.status,
        message=failure.message,
        retry_after=failure.retry_after,
        missing_right=failure.missing_right,
    )
