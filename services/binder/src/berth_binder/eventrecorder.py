"""Sends Events and conditions of Decisions in tasks of their own: they never delay a Binding (docs/protocol.md, 5)."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Final

import msgspec

from berth.api.errors import BerthError
from berth.api.messages import Decision
from berth.api.pod import Pod
from berth.kube.client import KubeClient
from berth.kube.errors import Response, missing_right
from berth.kube.writes import condition_patch, create_event, get_pod, patch_event, patch_pod_status
from berth.process.lifecycle import Process
from berth.process.logging import get_logger
from berth_binder.eventbudget import EventBudget
from berth_binder.eventrecords import ConditionRecord, EventRecord, Record, event_body, series_body

log = get_logger()

_encoder = msgspec.json.Encoder()


CONDITION_TRIES: Final = 3
"""How often a condition is patched when the pod changes at the same time, as by a nomination."""


class EventRecorder:
    """Records Decisions on pods. It lives as long as the process: Decisions are recorded after the leadership too."""

    def __init__(self, client: KubeClient, process: Process, budget: EventBudget | None = None) -> None:
        self._client = client
        self._process = process
        self._budget = budget or EventBudget()
        self._woken = asyncio.Event()
        self._answered = asyncio.Event()
        self._dropped = 0
        self._logged: set[str] = set()
        self.bindings_wait = False
        """Whether pods wait to be examined: then fewer requests are sent at once."""

    def record(self, decision: Decision, pod: Pod) -> None:
        """Send the Decision's Events and condition as soon as the budget allows."""
        self._budget.add(decision, pod)
        if self._budget.dropped > self._dropped:
            dropped = self._budget.dropped - self._dropped
            self._process.metrics.count("berth_api_events_total", dropped, result="dropped")
            self._dropped = self._budget.dropped
        self._woken.set()

    async def run(self) -> None:
        """Send until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                record = self._budget.next(self._process.clock.now(), bindings_wait=self.bindings_wait)
                if record is None:
                    await self._wait()
                else:
                    tasks.create_task(self._send(record))

    async def finish(self, seconds: float) -> None:
        """Wait until everything is sent, at most so long."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self._budget.is_busy:
                    self._answered.clear()
                    await self._answered.wait()

    async def _wait(self) -> None:
        now = self._process.clock.now()
        due = self._budget.due(now)
        self._woken.clear()
        try:
            async with asyncio.timeout(None if due is None else due - now):
                await self._woken.wait()
        except TimeoutError:
            return

    async def _send(self, record: Record) -> None:
        try:
            response = await self._request(record)
            status = response.status
            self._log_missing_right(response)
        except BerthError:
            status = 0
        finally:
            self._budget.done()
            self._woken.set()
            self._answered.set()
        if status == HTTPStatus.NOT_FOUND and isinstance(record, EventRecord):
            self._budget.end_series(record)
        sent = HTTPStatus.OK <= status < HTTPStatus.MULTIPLE_CHOICES or status == HTTPStatus.CONFLICT
        self._process.metrics.count("berth_api_events_total", result="sent" if sent else "failed")

    def _log_missing_right(self, response: Response) -> None:
        """Log once which rule berth's account lacks: without it no pod shows why it waits."""
        text = missing_right(response.failure()) if response.status == HTTPStatus.FORBIDDEN else None
        if text is not None and text not in self._logged:
            self._logged.add(text)
            log.error(text)

    async def _request(self, record: Record) -> Response:
        """Create an Event, count it in its series, or patch the condition.

        Raises:
            ApiUnreachableError: no answer.
        """
        wall = datetime.now(UTC)
        metadata = record.pod.metadata
        if isinstance(record, ConditionRecord):
            return await self._patch_condition(record, wall)
        if record.count == 1:
            event = event_body(record, instance=self._process.identity, wall=wall)
            return await create_event(self._client, metadata.namespace, _encoder.encode(event))
        series = _encoder.encode(series_body(record, wall))
        return await patch_event(self._client, metadata.namespace, record.name, series)

    async def _patch_condition(self, record: ConditionRecord, wall: datetime) -> Response:
        """Only while the pod is unbound: a patch that arrives after its Binding would say that it is unschedulable.

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
