"""What people are told of a Decision: an Event (events.k8s.io/v1) and the PodScheduled condition.

The words are kube-scheduler's. Pure: decisions and a wall clock in, request bodies out.


When an announcement may go out: behind every Binding, a few at once, so many a second.

They are never in the way (PROTOCOL 5). The oldest is dropped when too many wait. Pure: the clock is handed in.


Tells people: sends Events and conditions as their budget allows, in tasks of its own.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from hashlib import blake2b
from http import HTTPStatus
from typing import Any, Final

from berth.api.errors import BerthError
from berth.api.messages import Decision, Outcome
from berth.api.meta import ObjectMeta
from berth.api.pod import Pod, PodCondition
from berth.kube.client import MERGE_PATCH, KubeClient
from berth.kube.clock import micro_time, whole_seconds
from berth.kube.errors import Response
from berth.kube.events import create_event, cut
from berth.kube.pods import condition_patch, patch_pod_status
from berth.process.lifecycle import Process
from berth_binder.apicalls import _encoder

NAME_LIMIT: Final = 253

INSTANCE_LIMIT: Final = 128

_SCHEDULED: Final = "PodScheduled"

_FALSE: Final = "False"

_REASONS: Final = {
    Outcome.UNSCHEDULABLE: "Unschedulable",
    Outcome.PREEMPTING: "Unschedulable",
    Outcome.ERROR: "SchedulerError",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class EventNote:
    """An Event as it is told: once with a name of its own, then counted as a series."""

    pod: Pod
    name: str
    controller: str
    """The profile's schedulerName, as kube-scheduler reports itself."""
    type: str
    reason: str
    action: str
    note: str
    related: Pod | None = None
    """For whose sake it happened."""
    count: int = 1

    @property
    def key(self) -> tuple[str, str, str]:
        """What repeats of an Event share."""
        return (self.pod.uid, self.reason, self.note)

    def repeated(self) -> EventNote:
        """The same once more."""
        return replace(self, count=self.count + 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConditionNote:
    """The PodScheduled condition that tells why the pod waits."""

    pod: Pod
    reason: str
    message: str

    @property
    def changes_anything(self) -> bool:
        """Whether the pod does not say so already."""
        said = self._said()
        return said is None or (said.status, said.reason, said.message) != (_FALSE, self.reason, self.message)

    def condition(self, wall: datetime) -> PodCondition:
        """The condition as the API server takes it. Its time is that of the change from or to True."""
        said = self._said()
        since = said.last_transition_time if said is not None and said.status == _FALSE else None
        return PodCondition(
            type=_SCHEDULED,
            status=_FALSE,
            reason=self.reason,
            message=self.message,
            last_transition_time=since or whole_seconds(wall),
        )

    def _said(self) -> PodCondition | None:
        return next((each for each in self.pod.status.conditions or () if each.type == _SCHEDULED), None)


def event_of(said: Decision, pod: Pod) -> EventNote | None:
    """The Event of a Decision; ``None`` for outcomes that are the services' own affair."""
    if said.outcome is Outcome.BOUND:
        note = f"Successfully assigned {said.namespace}/{said.pod} to {said.node}"
        type_, reason, action = "Normal", "Scheduled", "Binding"
    elif said.outcome in _REASONS:
        note = said.message
        type_, reason, action = "Warning", "FailedScheduling", "Scheduling"
    else:
        return None
    return EventNote(
        pod=pod,
        name=_name(said, note),
        controller=said.profile,
        type=type_,
        reason=reason,
        action=action,
        note=cut(note),
    )


def events_of_victims(said: Decision, pod: Pod) -> list[EventNote]:
    """The Events of the pods that were evicted for this one."""
    if said.preemption is None:
        return []
    note = f"Preempted by pod {said.uid} on node {said.preemption.node}"
    return [
        EventNote(
            pod=Pod(metadata=ObjectMeta(name=victim.name, namespace=victim.namespace, uid=victim.uid)),
            name=_named_after(victim.name, f"{victim.uid} {note}"),
            controller=said.profile,
            type="Normal",
            reason="Preempted",
            action="Preempting",
            note=note,
            related=pod,
        )
        for victim in said.preemption.victims
    ]


def condition_of(said: Decision, pod: Pod) -> ConditionNote | None:
    """The condition of a Decision; ``None`` when it has none (a Binding sets PodScheduled itself)."""
    reason = _REASONS.get(said.outcome)
    return None if reason is None else ConditionNote(pod=pod, reason=reason, message=cut(said.message))


def event_body(event: EventNote, *, instance: str, wall: datetime) -> dict[str, Any]:
    """The Event as the API server takes it."""
    related = {} if event.related is None else {"related": _reference(event.related)}
    return {
        **related,
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"name": event.name, "namespace": event.pod.metadata.namespace},
        "eventTime": micro_time(wall),
        "reportingController": event.controller,
        "reportingInstance": f"{event.controller}-{instance}"[:INSTANCE_LIMIT],
        "action": event.action,
        "reason": event.reason,
        "regarding": _reference(event.pod),
        "note": event.note,
        "type": event.type,
    }


def series_body(event: EventNote, wall: datetime) -> dict[str, Any]:
    """The patch by which a repeat is counted."""
    return {"series": {"count": event.count, "lastObservedTime": micro_time(wall)}}


def _name(said: Decision, note: str) -> str:
    """Made from what is said, so that saying it twice (a redelivery, another epoch) makes one Event."""
    about = said.node if said.outcome is Outcome.BOUND else f"{said.attempt} {note}"
    return _named_after(said.pod, f"{said.uid} {said.outcome} {about}")


def _named_after(pod: str, told: str) -> str:
    digest = blake2b(told.encode(), digest_size=8).hexdigest()
    return f"{pod[: NAME_LIMIT - len(digest) - 1].rstrip('.-')}.{digest}"


def _reference(pod: Pod) -> dict[str, str]:
    metadata = pod.metadata
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "namespace": metadata.namespace,
        "name": metadata.name,
        "uid": metadata.uid,
        "resourceVersion": metadata.resource_version,
    }


Note = EventNote | ConditionNote


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetSettings:
    """How much is said."""

    per_second: float = 1000.0
    """Requests a second, above 0. An Event costs the API server about 1 ms of CPU: this is one core of it at most."""
    burst: int = 200
    """Requests that may go out at once after a quiet time, 1 or more."""
    queued: int = 10_000
    """Announcements that may wait, 1 or more: about 30 MB of pods. The oldest is dropped for a new one."""
    at_once: int = 16
    """On the wire at once while no Binding waits."""
    at_once_behind_bindings: int = 8
    """On the wire at once while Bindings wait: in a long drain Events must go on too, or all come at its end."""
    series: int = 10_000
    """Waiting pods whose last Event is remembered, so that a repeat is counted in it and does not make another."""


class EventBudget:
    """Announcements that wait, and whether one may go."""

    def __init__(self, settings: BudgetSettings | None = None) -> None:
        self._settings = settings or BudgetSettings()
        self._waiting: OrderedDict[tuple[str, str], Note] = OrderedDict()
        self._told: OrderedDict[tuple[str, str, str], EventNote] = OrderedDict()
        self._tokens = float(self._settings.burst)
        self._filled_at: float | None = None
        self._on_wire = 0
        self.dropped = 0
        """How many announcements were dropped for want of room."""

    def offer(self, said: Decision, pod: Pod) -> None:
        """Tell people of this Decision when there is room. A newer word on a pod takes the place of one that waits."""
        condition = condition_of(said, pod)
        if condition is not None and condition.changes_anything:
            self._queue((pod.uid, "condition"), condition)
        event = event_of(said, pod)
        if event is not None:
            self._queue((pod.uid, event.reason), event)
        for victim in events_of_victims(said, pod):
            self._queue((victim.pod.uid, victim.reason), victim)

    def next(self, now: float, *, bindings_wait: bool) -> Note | None:
        """The announcement that may go out now; whoever takes it says ``done`` after its answer."""
        limit = self._settings.at_once_behind_bindings if bindings_wait else self._settings.at_once
        self._fill(now)
        if not self._waiting or self._on_wire >= limit or self._tokens < 1:
            return None
        self._tokens -= 1
        self._on_wire += 1
        _, note = self._waiting.popitem(last=False)
        return self._counted(note) if isinstance(note, EventNote) else note

    def done(self) -> None:
        """One is answered."""
        self._on_wire -= 1

    def forget(self, event: EventNote) -> None:
        """The Event is not there (any more): the next of its kind is told anew."""
        self._told.pop(event.key, None)

    def due(self, now: float) -> float | None:
        """When the rate allows the next one; ``None`` when nothing waits for that."""
        if not self._waiting or self._tokens >= 1:
            return None
        return now + (1 - self._tokens) / self._settings.per_second

    @property
    def is_busy(self) -> bool:
        """Whether anything waits or is on the wire."""
        return bool(self._waiting) or self._on_wire > 0

    @property
    def waiting(self) -> int:
        """How many wait."""
        return len(self._waiting)

    def _queue(self, key: tuple[str, str], note: Note) -> None:
        if key not in self._waiting and len(self._waiting) >= self._settings.queued:
            self._waiting.popitem(last=False)
            self.dropped += 1
        self._waiting[key] = note

    def _counted(self, event: EventNote) -> EventNote:
        """The Event itself, or the next of a series that was begun."""
        told = self._told.pop(event.key, None)
        event = event if told is None else told.repeated()
        if event.type == "Warning":
            self._told[event.key] = event
        if len(self._told) > self._settings.series:
            self._told.popitem(last=False)
        return event

    def _fill(self, now: float) -> None:
        if self._filled_at is not None:
            gained = (now - self._filled_at) * self._settings.per_second
            self._tokens = min(float(self._settings.burst), self._tokens + gained)
        self._filled_at = now


class EventRecorder:
    """Lives as long as the process: what a leader decided is still told when it no longer leads."""

    def __init__(self, client: KubeClient, process: Process, budget: EventBudget | None = None) -> None:
        self._client = client
        self._process = process
        self._budget = budget or EventBudget()
        self._woken = asyncio.Event()
        self._answered = asyncio.Event()
        self._dropped = 0
        self.bindings_wait = False
        """Whether pods wait for a place on the wire: then less is said at once."""

    def offer(self, said: Decision, pod: Pod) -> None:
        """Tell people of this Decision when there is room."""
        self._budget.offer(said, pod)
        if self._budget.dropped > self._dropped:
            dropped = self._budget.dropped - self._dropped
            self._process.metrics.count("berth_api_events_total", dropped, result="dropped")
            self._dropped = self._budget.dropped
        self._woken.set()

    async def run(self) -> None:
        """Send until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                note = self._budget.next(self._process.clock.now(), bindings_wait=self.bindings_wait)
                if note is None:
                    await self._rest()
                else:
                    tasks.create_task(self._send(note))

    async def finish(self, seconds: float) -> None:
        """Give what waits so much time to go out."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self._budget.is_busy:
                    self._answered.clear()
                    await self._answered.wait()

    async def _rest(self) -> None:
        now = self._process.clock.now()
        due = self._budget.due(now)
        self._woken.clear()
        try:
            async with asyncio.timeout(None if due is None else due - now):
                await self._woken.wait()
        except TimeoutError:
            return

    async def _send(self, note: Note) -> None:
        try:
            status = (await tell(self._client, note, instance=self._process.identity)).status
        except BerthError:
            status = 0
        finally:
            self._budget.done()
            self._woken.set()
            self._answered.set()
        if status == HTTPStatus.NOT_FOUND and isinstance(note, EventNote):
            self._budget.forget(note)
        sent = HTTPStatus.OK <= status < HTTPStatus.MULTIPLE_CHOICES or status == HTTPStatus.CONFLICT
        self._process.metrics.count("berth_api_events_total", result="sent" if sent else "failed")


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
