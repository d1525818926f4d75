"""Sends Events and PodScheduled conditions of Decisions, in tasks that delay no Binding."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Final

import msgspec

from berth.api.kinds import POD_GROUP
from berth.api.pod import Pod
from berth.api.podgroups import SCHEDULED, PodGroup
from berth.clock import whole_seconds
from berth.errors import BerthError
from berth.kube.client import KubeClient
from berth.kube.errors import missing_right
from berth.kube.http1 import Response
from berth.kube.writes import (
    condition_patch,
    create_event,
    get_pod,
    patch_event,
    patch_pod_group_status,
    patch_pod_status,
)
from berth.lifecycle.process import Process
from berth.messages.attempts import Decision
from berth.observability.logging import get_logger
from berth_binder.eventrecorder.budget import EventBudget
from berth_binder.eventrecorder.records import (
    ConditionRecord,
    EventRecord,
    GroupConditionRecord,
    Record,
    event_body,
    series_body,
)
from berth_binder.events import GroupReport

log = get_logger()

_encoder = msgspec.json.Encoder()

# Patches of a condition if the pod changes at the same time, for example by a nomination.
CONDITION_TRIES: Final = 3


class EventRecorder:
    """Sends records. It lives as long as the process, because the leadership may end before the last record."""

    def __init__(self, client: KubeClient, process: Process, budget: EventBudget) -> None:
        self._client = client
        self._process = process
        self._instance = process.identity
        self._budget = budget
        self._tasks: asyncio.TaskGroup | None = None  # the senders, while run() runs
        self._timer: asyncio.TimerHandle | None = None  # until the budget allows another record
        self._answered = asyncio.Event()
        self._dropped = 0
        self._logged: set[str] = set()
        self._bindings_wait: Callable[[], bool] | None = None

    def defer_to(self, bindings_wait: Callable[[], bool] | None) -> None:
        """Send fewer requests at once while ``bindings_wait`` is true: pods wait to be examined. ``None``: never."""
        self._bindings_wait = bindings_wait

    def record(self, decision: Decision, pod: Pod) -> None:
        """Send the Decision's Events and condition as soon as the budget allows."""
        self._budget.add(decision, pod)
        self._added()

    def record_group(self, decision: Decision, group: PodGroup, pods: Iterable[Pod]) -> None:
        """The same of a group: Events on it, and the condition of each pod that waits for it."""
        self._budget.add_group(decision, group, pods)
        self._added()

    def record_state(self, report: GroupReport) -> None:
        """Say on a group, and on the pods that wait for it, what state it is in."""
        self._budget.add_state(report)
        self._added()

    def _added(self) -> None:
        if self._budget.dropped > self._dropped:
            dropped = self._budget.dropped - self._dropped
            self._process.metrics.count("berth_api_events_total", dropped, result="dropped")
            self._dropped = self._budget.dropped
        self._send_more()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            try:
                self._send_more()
                await asyncio.get_running_loop().create_future()
            finally:
                self._tasks = None
                self._set_timer(None)

    async def finish(self, seconds: float) -> None:
        """Wait until every record is sent, at most this long."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self._budget.is_busy:
                    self._answered.clear()
                    await self._answered.wait()

    def _send_more(self) -> None:
        while self._tasks is not None and (record := self._next()) is not None:
            self._tasks.create_task(self._send_one_after_the_other(record))

    async def _send_one_after_the_other(self, record: Record) -> None:
        """Send a record and its successors in one task, which is cheaper than a task for each."""
        following: Record | None = record
        while following is not None:
            await self._send(following)
            following = self._next() if self._tasks is not None else None

    def _next(self) -> Record | None:
        """The record that may be sent now; if there is no such record, set the timer for the next one."""
        if not self._budget.waiting:
            self._set_timer(None)
            return None
        now = self._process.clock.now()
        bindings_wait = self._bindings_wait is not None and self._bindings_wait()
        record = self._budget.next(now, bindings_wait=bindings_wait)
        if record is None:
            due = self._budget.due(now)
            self._set_timer(None if due is None else due - now)
        return record

    def _set_timer(self, seconds: float | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if seconds is None else asyncio.get_running_loop().call_later(seconds, self._send_more)

    async def _send(self, record: Record) -> None:
        try:
            response = await self._request(record)
            status = response.status
            self._log_missing_right(response)
        except BerthError:
            status = 0
        finally:
            self._budget.done()
            self._answered.set()
        if status == HTTPStatus.NOT_FOUND and isinstance(record, EventRecord):
            self._budget.end_series(record)
        sent = HTTPStatus.OK <= status < HTTPStatus.MULTIPLE_CHOICES or status == HTTPStatus.CONFLICT
        self._process.metrics.count("berth_api_events_total", result="sent" if sent else "failed")

    def _log_missing_right(self, response: Response) -> None:
        """Log each missing right once: without it no pod shows why it is pending."""
        text = missing_right(response.failure()) if response.status == HTTPStatus.FORBIDDEN else None
        if text is not None and text not in self._logged:
            self._logged.add(text)
            log.error("berth's account lacks a right", reason=text)

    async def _request(self, record: Record) -> Response:
        """Create an Event, count it in its series, or patch the condition.

        Raises:
            ApiUnreachableError: no answer.
        """
        wall = datetime.now(UTC)
        metadata = record.pod.metadata
        if isinstance(record, ConditionRecord):
            return await self._patch_condition(record, wall)
        if isinstance(record, GroupConditionRecord):
            return await self._patch_group(record, wall)
        if record.count == 1:
            event = event_body(record, instance=self._instance, wall=wall)
            return await create_event(self._client, metadata.namespace, _encoder.encode(event))
        series = _encoder.encode(series_body(record, wall))
        return await patch_event(self._client, metadata.namespace, record.name, series)

    async def _patch_group(self, record: GroupConditionRecord, wall: datetime) -> Response:
        """Patch the PodGroup in the version that the API server serves.

        Raises:
            ApiUnreachableError: no answer.
        """
        metadata = record.pod.metadata
        for kind in POD_GROUP.versions:
            condition = {
                "type": SCHEDULED[kind.version],
                "status": record.status,
                "reason": record.reason,
                "message": record.message,  # also an empty one: a patch without it keeps the former one
                "lastTransitionTime": whole_seconds(wall),
            }
            body = condition_patch(condition, uid=metadata.uid)
            response = await patch_pod_group_status(self._client, kind, metadata.namespace, metadata.name, body)
            if response.status != HTTPStatus.NOT_FOUND:
                break
        return response

    async def _patch_condition(self, record: ConditionRecord, wall: datetime) -> Response:
        """Patch only an unbound pod: after its Binding, the condition would be false.

        Raises:
            ApiUnreachableError: no answer.
        """
        metadata = record.pod.metadata
        condition, version = record.condition(wall), metadata.resource_version
        for _ in range(CONDITION_TRIES):
            body = condition_patch(condition, uid=metadata.uid, resource_version=version)
            response = await patch_pod_status(self._client, metadata.namespace, metadata.name, body)
            if response.status != HTTPStatus.CONFLICT:
                break
            pod = await get_pod(self._client, metadata.namespace, metadata.name)
            if pod is None or pod.uid != metadata.uid or pod.spec.node_name:
                break
            version = pod.metadata.resource_version
        return response
