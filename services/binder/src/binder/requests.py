"""The binder's requests to the API server, and their answers in the core's own words."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from http import HTTPStatus

import msgspec

from berth.api.errors import DecodeError
from berth.kube.bindings import bind
from berth.kube.client import MERGE_PATCH, KubeClient
from berth.kube.errors import ApiUnreachableError
from berth.kube.events import create_event
from berth.kube.pods import condition_patch, decode_pod, patch_pod_status
from berth.kube.rbac import missing_right
from berth.kube.response import Response
from binder.announcements import ConditionNote, EventNote, event_body, series_body
from binder.answers import NO_ANSWER, Answer, Reading
from binder.effects import Post, Read

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


async def read_pod(client: KubeClient, read: Read) -> Reading:
    """GET the pod. One of another shape is a refusal: somebody must mend it."""
    metadata = read.pod.metadata
    try:
        response = await client.request("GET", f"/api/v1/namespaces/{metadata.namespace}/pods/{metadata.name}")
    except ApiUnreachableError as error:
        return Reading(status=NO_ANSWER, message=str(error))
    if not response.succeeded:
        failure = failure_of(response)
        return Reading(status=failure.status, message=failure.message, retry_after=failure.retry_after)
    try:
        return Reading(status=response.status, pod=decode_pod(response.body))
    except DecodeError as error:
        return Reading(status=HTTPStatus.UNPROCESSABLE_ENTITY, message=str(error))


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


async def tell(client: KubeClient, note: EventNote | ConditionNote, *, instance: str) -> Response:
    """Write an Event, count it in its series, or patch the condition.

    Raises:
        ApiUnreachableError: no answer.
    """
    wall = datetime.now(UTC)
    metadata = note.pod.metadata
    if isinstance(note, ConditionNote):
        body = condition_patch(note.condition(wall), uid=metadata.uid)
        return await patch_pod_status(client, metadata.namespace, metadata.name, body)
    if note.count == 1:
        return await create_event(
            client, metadata.namespace, _encoder.encode(event_body(note, instance=instance, wall=wall))
        )
    path = f"/apis/events.k8s.io/v1/namespaces/{metadata.namespace}/events/{note.name}"
    return await client.request("PATCH", path, body=_encoder.encode(series_body(note, wall)), content_type=MERGE_PATCH)
