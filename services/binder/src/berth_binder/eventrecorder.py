"""Sends Events and PodScheduled conditions of Decisions, in tasks that delay no Binding.

Records have kube-scheduler's words. A budget limits the rate, the requests in flight and the pending records, of which
the oldest is dropped (docs/protocol.md, 5). Records of unbound pods cost two requests, so they have a rate of their
own, and namespaces take turns.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from hashlib import blake2b
from http import HTTPStatus
from typing import Any, Final

import msgspec

from berth.api.kinds import COSCHEDULING_POD_GROUP, POD_GROUP
from berth.api.meta import ObjectMeta
from berth.api.pod import POD_SCHEDULED, Pod, PodCondition
from berth.api.podgroups import SCHEDULED, Dialect, PodGroup
from berth.clock import micro_time, whole_seconds
from berth.errors import BerthError
from berth.kube.client import KubeClient
from berth.kube.errors import missing_right
from berth.kube.http1 import Response
from berth.kube.writes import (
    condition_patch,
    create_event,
    cut,
    get_pod,
    patch_event,
    patch_pod_group_status,
    patch_pod_status,
)
from berth.lifecycle.process import Process
from berth.messages.attempts import Decision, Outcome, Reason
from berth.observability.logging import get_logger
from berth.safetext import one_line
from berth_binder.events import GroupReport, GroupState
from berth_binder.settings import EventSettings

log = get_logger()

_encoder = msgspec.json.Encoder()

# Patches of a condition if the pod changes at the same time, for example by a nomination.
CONDITION_TRIES: Final = 3


class EventRecorder:
    """Sends records. It lives as long as the process, because the leadership may end before the last record."""

    def __init__(self, client: KubeClient, process: Process, budget: EventBudget | None = None) -> None:
        self._client = client
        self._process = process
        self._instance = process.identity
        self._budget = budget or EventBudget()
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


# A series ends after this time without a repeat, as in client-go. An unschedulable pod is tried again after 300 s at
# the latest.
SERIES_SECONDS: Final = 360.0

Key = tuple[str, str]  # a pod's uid, and the Event's reason or CONDITION
CONDITION: Final = "condition"


class EventBudget:
    """The pending records, and whether one may be sent: their order and rate. Pure: the clock is injected."""

    def __init__(self, settings: EventSettings | None = None) -> None:
        self._settings = settings = settings or EventSettings()
        self._refusals, self._others = WaitingRecords(), WaitingRecords()
        self._rate = Rate(settings.per_second, settings.burst)
        self._refusal_rate = Rate(settings.refusals_per_second, settings.refusals_burst)
        self._series: OrderedDict[tuple[str, str, str], _EventSeries] = OrderedDict()  # longest ago counted first
        # By uid, the message of the last condition of a group that waits: written again only if it changes.
        self._group_conditions: OrderedDict[str, str] = OrderedDict()
        self._in_flight = 0
        self.dropped = 0  # records dropped because too many were pending

    def add(self, decision: Decision, pod: Pod) -> None:
        """Queue the Decision's records. A newer record of a pod replaces its pending one."""
        uid, condition, event = decision.uid, condition_of(decision, pod), event_of(decision, pod)
        if condition is not None and condition.changes_anything:
            self._queue(self._refusals, (uid, CONDITION), condition)
        if decision.outcome is Outcome.BOUND:
            self._refusals.discard(uid)
        if event is not None:
            self._queue(self._refusals if event.type == "Warning" else self._others, (uid, event.reason), event)
        for victim in events_of_victims(decision, pod):
            self._queue(self._others, (victim.pod.uid, victim.reason), victim)

    def add_group(self, decision: Decision, group: PodGroup, pods: Iterable[Pod]) -> None:
        """Queue the records of a group's Decision.

        All pods that wait for it get the condition, also those that had a place: an autoscaler would otherwise take
        their room for that of the others.
        """
        for pod in pods:
            condition = condition_of(decision, pod)
            if condition is not None and condition.changes_anything:
                self._queue(self._refusals, (pod.uid, CONDITION), condition)
        reason = _REASONS.get(decision.outcome)
        # Only of a group of which nothing is bound: upstream never takes the condition back either.
        is_fresh = decision.group is not None and decision.group.need >= group.minimum
        if group.dialect is Dialect.UPSTREAM and reason is not None and is_fresh:
            self._add_refused_group(GroupConditionRecord.of(group, _FALSE, reason, _text(decision.message)))
        event = event_of_group(decision, group)
        if event is not None:
            self._queue(
                self._refusals if event.type == "Warning" else self._others, (decision.uid, event.reason), event
            )
        for victim in events_of_victims(decision, None):
            self._queue(self._others, (victim.pod.uid, victim.reason), victim)

    def add_state(self, report: GroupReport) -> None:
        """Queue the records of a group's state."""
        group = report.group
        if report.state is GroupState.GATED:
            for pod in report.pods:
                condition = ConditionRecord(pod=pod, reason=GATED, message=_text(report.message))
                if condition.changes_anything:
                    self._queue(self._refusals, (pod.uid, CONDITION), condition)
        if group is None:
            return
        if report.state is GroupState.WHOLE:
            self._add_group_condition(GroupConditionRecord.of(group, "True", "Scheduled", ""))
            return
        reason = _REASONS_OF_STATES[report.state]
        if report.state is GroupState.PARTIAL and not report.was_whole:
            self._add_group_condition(GroupConditionRecord.of(group, _FALSE, reason, _text(report.message)))
        controller = report.pods[0].spec.scheduler_name if report.pods else "berth"
        event = event_of_state(group, controller, reason, report.message)
        self._queue(self._refusals, (group.uid, reason), event)

    def _add_refused_group(self, record: GroupConditionRecord) -> None:
        if self._group_conditions.get(record.pod.uid) == record.message:
            return
        self._group_conditions[record.pod.uid] = record.message
        if len(self._group_conditions) > self._settings.series:
            self._group_conditions.popitem(last=False)
        self._add_group_condition(record)

    def _add_group_condition(self, record: GroupConditionRecord) -> None:
        self._queue(self._refusals, (record.pod.uid, CONDITION), record)

    def next(self, now: float, *, bindings_wait: bool) -> Record | None:
        """The record that may be sent now. Call ``done`` after its answer."""
        limit = self._settings.in_flight_behind_bindings if bindings_wait else self._settings.in_flight
        self._rate.fill(now)
        self._refusal_rate.fill(now)
        if self._in_flight >= limit or not self._rate.has_one:
            return None
        if len(self._refusals) and self._refusal_rate.has_one:
            self._refusal_rate.take()
            record = self._refusals.pop()
        elif len(self._others):
            record = self._others.pop()
        else:
            return None
        self._rate.take()
        self._in_flight += 1
        return self._counted(record, now) if isinstance(record, EventRecord) else record

    def done(self) -> None:
        self._in_flight -= 1

    def end_series(self, event: EventRecord) -> None:
        """The API has no such Event: create the next of its kind instead of counting it."""
        self._series.pop(event.key, None)

    def due(self, now: float) -> float | None:
        """When the rates allow the next record; ``None`` if no record waits for that."""
        waits = []
        if len(self._others):
            waits.append(self._rate.wait)
        if len(self._refusals):
            waits.append(max(self._rate.wait, self._refusal_rate.wait))
        return now + min(waits) if waits and min(waits) > 0 else None

    @property
    def is_busy(self) -> bool:
        return bool(self.waiting) or self._in_flight > 0

    @property
    def waiting(self) -> int:
        return len(self._refusals) + len(self._others)

    def _queue(self, records: WaitingRecords, key: Key, record: Record) -> None:
        if key not in records and self.waiting >= self._settings.queued:
            max(self._refusals, self._others, key=len).drop()
            self.dropped += 1
        records.put(key, record)

    def _counted(self, event: EventRecord, now: float) -> EventRecord:
        if event.type != "Warning":
            return event
        self._end_series_before(now - SERIES_SECONDS)
        last = self._series.pop(event.key, None)
        if last is not None:
            event = replace(event, name=last.name, count=last.count + 1)
        self._series[event.key] = _EventSeries(event.name, event.count, now)
        if len(self._series) > self._settings.series:
            self._series.popitem(last=False)
        return event

    def _end_series_before(self, time: float) -> None:
        while self._series and next(iter(self._series.values())).counted_at < time:
            self._series.popitem(last=False)


@dataclass(frozen=True, slots=True)
class _EventSeries:
    name: str
    count: int
    counted_at: float


class WaitingRecords:
    """Pending records: the oldest of each namespace, in turns."""

    def __init__(self) -> None:
        self._by_namespace: OrderedDict[str, OrderedDict[Key, Record]] = OrderedDict()
        self._namespaces: dict[Key, str] = {}

    def __len__(self) -> int:
        return len(self._namespaces)

    def __contains__(self, key: Key) -> bool:
        return key in self._namespaces

    def put(self, key: Key, record: Record) -> None:
        """Add a record, or replace the one with its key, which keeps its place."""
        namespace = self._namespaces[key] = record.pod.metadata.namespace
        self._by_namespace.setdefault(namespace, OrderedDict())[key] = record

    def pop(self) -> Record:
        """Remove and return the next record. Raises StopIteration if empty."""
        namespace = next(iter(self._by_namespace))
        record = self._take_oldest(namespace)
        if namespace in self._by_namespace:
            self._by_namespace.move_to_end(namespace)
        return record

    def drop(self) -> None:
        """Remove the oldest record of the namespace that has the most."""
        self._take_oldest(max(self._by_namespace, key=lambda namespace: len(self._by_namespace[namespace])))

    def discard(self, uid: str) -> None:
        for key in ((uid, CONDITION), (uid, FAILED)):
            namespace = self._namespaces.pop(key, None)
            if namespace is not None:
                del self._by_namespace[namespace][key]
                self._forget_empty(namespace)

    def _take_oldest(self, namespace: str) -> Record:
        of_namespace = self._by_namespace[namespace]
        key, record = of_namespace.popitem(last=False)
        del self._namespaces[key]
        self._forget_empty(namespace)
        return record

    def _forget_empty(self, namespace: str) -> None:
        if not self._by_namespace[namespace]:
            del self._by_namespace[namespace]


class Rate:
    """A token bucket with a rate per second and a burst."""

    def __init__(self, per_second: float, burst: int) -> None:
        self._per_second = per_second
        self._burst = float(burst)
        self._tokens = float(burst)
        self._filled_at: float | None = None

    def fill(self, now: float) -> None:
        if self._filled_at is not None:
            self._tokens = min(self._burst, self._tokens + (now - self._filled_at) * self._per_second)
        self._filled_at = now

    def take(self) -> None:
        self._tokens -= 1

    @property
    def has_one(self) -> bool:
        return self._tokens >= 1

    @property
    def wait(self) -> float:
        return max(0.0, (1 - self._tokens) / self._per_second)


NAME_LIMIT: Final = 253  # characters of an object's name
INSTANCE_LIMIT: Final = 128  # characters of reportingInstance

# By dialect, the version by which Events name a PodGroup.
_VERSIONS: Final = {Dialect.COSCHEDULING: COSCHEDULING_POD_GROUP.version, Dialect.UPSTREAM: POD_GROUP.version}

FAILED: Final = "FailedScheduling"  # reason of the Event of an unbound pod

GATED: Final = "WaitingForPodGroup"  # reason of Event and condition while members or the PodGroup are missing

PARTIAL: Final = "GroupPartial"  # reason of the Event on a group that is bound in part for longer than its timeout

EARMARKED: Final = "GroupEarmarked"  # of the Event on a group that has nodes earmarked

EVICTED: Final = "GroupEvicted"  # the same for a group whose bound members are evicted for that

_REASONS_OF_STATES: Final = {
    GroupState.GATED: GATED,
    GroupState.PARTIAL: PARTIAL,
    GroupState.EVICTED: EVICTED,
    GroupState.EARMARKED: EARMARKED,
}

_FALSE: Final = "False"
_REASONS: Final = {
    Outcome.UNSCHEDULABLE: "Unschedulable",
    Outcome.PREEMPTING: "Unschedulable",
    Outcome.ERROR: "SchedulerError",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class EventRecord:
    """An Event to create, or to count in its series if it exists."""

    pod: Pod
    name: str
    controller: str  # the profile's schedulerName, as kube-scheduler reports itself
    type: str
    reason: str
    action: str
    note: str
    related: Pod | None = None  # the pod for which this one was evicted
    count: int = 1
    kind: str = "Pod"  # of the object, which ``pod`` only names if it is a PodGroup
    api_version: str = "v1"

    @property
    def key(self) -> tuple[str, str, str]:
        return (self.pod.uid, self.reason, self.note)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConditionRecord:
    """The PodScheduled condition with the reason why the pod is not bound."""

    pod: Pod
    reason: str
    message: str

    @property
    def changes_anything(self) -> bool:
        """Whether the pod has another condition, or the same of another generation."""
        present = self._present()
        if present is None:
            return True
        shown = (present.status, present.reason, present.message)
        kept = present.observed_generation  # 0 if the API server is older than the field
        return shown != (_FALSE, self.reason, self.message) or kept not in {0, self.pod.metadata.generation}

    def condition(self, wall: datetime) -> PodCondition:
        """The condition to write. Its time is the last change of its status."""
        present = self._present()
        since = present.last_transition_time if present is not None and present.status == _FALSE else None
        return PodCondition(
            type=POD_SCHEDULED,
            status=_FALSE,
            reason=self.reason,
            message=self.message,
            last_transition_time=since or whole_seconds(wall),
            observed_generation=self.pod.metadata.generation,
        )

    def _present(self) -> PodCondition | None:
        return next((each for each in self.pod.status.conditions or () if each.type == POD_SCHEDULED), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupConditionRecord:
    """The condition of a PodGroup, which ``pod`` names."""

    pod: Pod
    status: str
    reason: str
    message: str

    @classmethod
    def of(cls, group: PodGroup, status: str, reason: str, message: str) -> GroupConditionRecord:
        return cls(pod=_named(group), status=status, reason=reason, message=message)


Record = EventRecord | ConditionRecord | GroupConditionRecord


def event_of(decision: Decision, pod: Pod) -> EventRecord | None:
    """The Event of a Decision; ``None`` for outcomes that only the services need."""
    if decision.outcome is Outcome.BOUND:
        note = f"Successfully assigned {decision.namespace}/{decision.pod} to {decision.node}"
        type_, reason, action = "Normal", "Scheduled", "Binding"
    elif decision.outcome in _REASONS:
        note = decision.message
        type_, reason, action = "Warning", FAILED, "Scheduling"
    elif decision.outcome is Outcome.WAITING and decision.reason:
        note = decision.message
        type_, reason, action = "Normal", decision.reason, "Scheduling"
    else:
        return None
    return EventRecord(
        pod=pod,
        name=_name(decision, note),
        controller=decision.profile,
        type=type_,
        reason=reason,
        action=action,
        note=_text(note),
    )


def event_of_group(decision: Decision, group: PodGroup) -> EventRecord | None:
    """The Event on the PodGroup."""
    bound = 0 if decision.group is None else decision.group.bound
    if decision.outcome is Outcome.BOUND and bound:
        note, type_, reason, action = f"Successfully assigned {bound} pods", "Normal", "Scheduled", "Binding"
    elif decision.outcome in _REASONS or decision.reason == Reason.BEGUN:
        note, type_, reason, action = decision.message, "Warning", FAILED, "Scheduling"
    else:
        return None
    return EventRecord(
        **_about_group(group, f"{decision.uid} {decision.outcome} {decision.attempt} {note}"),
        controller=decision.profile,
        type=type_,
        reason=reason,
        action=action,
        note=_text(note),
    )


def event_of_state(group: PodGroup, controller: str, reason: str, message: str) -> EventRecord:
    """The Event on a PodGroup that is gated, bound in part, evicted, or has nodes earmarked."""
    return EventRecord(
        **_about_group(group, f"{group.uid} {reason} {message}"),
        controller=controller,
        type="Warning",
        reason=reason,
        action="Scheduling",
        note=_text(message),
    )


def _named(group: PodGroup) -> Pod:
    return Pod(metadata=ObjectMeta(name=group.name, namespace=group.namespace, uid=group.uid))


def _about_group(group: PodGroup, content: str) -> dict[str, Any]:
    """Which object an Event is about, and a name from its content."""
    return {
        "pod": _named(group),
        "name": _name_from(group.name, content),
        "kind": "PodGroup",
        "api_version": f"{group.dialect.value}/{_VERSIONS[group.dialect]}",
    }


def events_of_victims(decision: Decision, pod: Pod | None) -> list[EventRecord]:
    """``pod``: the preemptor; None for a group."""
    if decision.preemption is None:
        return []
    what, where = ("pod", decision.preemption.node) if pod is not None else ("podgroup", "cluster")
    note = f"Preempted by {what} {decision.uid} on node {where}"
    return [
        EventRecord(
            pod=Pod(metadata=ObjectMeta(name=victim.name, namespace=victim.namespace, uid=victim.uid)),
            name=_name_from(victim.name, f"{victim.uid} {note}"),
            controller=decision.profile,
            type="Normal",
            reason="Preempted",
            action="Preempting",
            note=note,
            related=pod,
        )
        for victim in decision.preemption.victims
    ]


def condition_of(decision: Decision, pod: Pod) -> ConditionRecord | None:
    """The condition of a Decision; ``None`` for a Binding, which sets PodScheduled itself."""
    reason = _REASONS.get(decision.outcome)
    return None if reason is None else ConditionRecord(pod=pod, reason=reason, message=_text(decision.message))


def _text(message: str) -> str:
    # kubectl prints it as it is, and a scorer's text is part of it.
    return cut(one_line(message))


def event_body(event: EventRecord, *, instance: str, wall: datetime) -> dict[str, Any]:
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
        "regarding": {**_reference(event.pod), "kind": event.kind, "apiVersion": event.api_version},
        "note": event.note,
        "type": event.type,
    }


def series_body(event: EventRecord, wall: datetime) -> dict[str, Any]:
    return {"series": {"count": event.count, "lastObservedTime": micro_time(wall)}}


def _name(decision: Decision, note: str) -> str:
    """A name from the content: an Event recorded twice (a redelivery, another epoch) is created once."""
    about = decision.node if decision.outcome is Outcome.BOUND else f"{decision.attempt} {note}"
    return _name_from(decision.pod, f"{decision.uid} {decision.outcome} {about}")


def _name_from(pod: str, content: str) -> str:
    digest = blake2b(content.encode(), digest_size=8).hexdigest()
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
