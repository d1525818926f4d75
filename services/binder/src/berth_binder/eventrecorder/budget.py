"""The pending records of Decisions, and the order and rate in which they are sent. Pure: the clock is injected.

A budget limits the rate, the requests in flight and the pending records, of which the oldest is dropped
(docs/protocol.md, 5). Records of unbound pods cost two requests, so they have a rate of their own, and namespaces take
turns.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from berth.api.pod import Pod
from berth.api.podgroups import Dialect, PodGroup
from berth.messages.attempts import Decision, Outcome
from berth_binder.eventrecorder.records import (
    FAILED,
    FALSE,
    GATED,
    REASONS,
    REASONS_OF_STATES,
    ConditionRecord,
    EventRecord,
    GroupConditionRecord,
    Record,
    condition_of,
    event_of,
    event_of_group,
    event_of_state,
    event_text,
    event_without_group,
    events_of_victims,
)
from berth_binder.events import GroupReport, GroupState
from berth_binder.settings import EventSettings

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
        reason = REASONS.get(decision.outcome)
        # Only of a group of which nothing is bound: upstream never takes the condition back either.
        is_fresh = decision.group is not None and decision.group.need >= group.minimum
        if group.dialect is Dialect.UPSTREAM and reason is not None and is_fresh:
            self._add_refused_group(GroupConditionRecord.of(group, FALSE, reason, event_text(decision.message)))
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
                condition = ConditionRecord(pod=pod, reason=GATED, message=event_text(report.message))
                if condition.changes_anything:
                    self._queue(self._refusals, (pod.uid, CONDITION), condition)
                    if group is None:
                        self._queue(self._refusals, (pod.uid, GATED), event_without_group(pod, report.message))
        if group is None:
            return
        if report.state is GroupState.WHOLE:
            self._add_group_condition(GroupConditionRecord.of(group, "True", "Scheduled", ""))
            return
        reason = REASONS_OF_STATES[report.state]
        if report.state is GroupState.PARTIAL and not report.was_whole:
            self._add_group_condition(GroupConditionRecord.of(group, FALSE, reason, event_text(report.message)))
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
