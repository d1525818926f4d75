"""The requests by which pods are evicted for a more important one, in order, and what their answers come to.

Each may be repeated: a binder that is killed in between, or has no answer, begins again and does what is left.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Final

from berth.api.errors import DecodeError
from berth.api.eviction import is_marked
from berth.api.pod import Pod
from berth.kube.client import KubeClient
from berth.kube.errors import ApiUnreachableError
from berth.kube.evictions import delete_victim, mark_victim, nominate, unmark_victim
from berth.kube.pods import decode_pod
from berth.kube.response import Response
from binder.answers import NO_ANSWER, Answer, Evicted
from binder.effects import Demote, Evict
from binder.requests import failure_of

_NOT_THERE: Final = frozenset({HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT, HTTPStatus.UNPROCESSABLE_ENTITY})
"""To a request about a victim with its uid: it is gone, or another pod has its name."""


async def carry_out(client: KubeClient, evict: Evict, may_go_on: Callable[[], None]) -> Evicted:
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
    if not is_marked(victim):
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
