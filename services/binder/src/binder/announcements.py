"""What people are told of a Decision: an Event (events.k8s.io/v1) and the PodScheduled condition.

The words are kube-scheduler's. Pure: decisions and a wall clock in, request bodies out.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from hashlib import blake2b
from typing import Any, Final

from berth.api.messages import Decision, Outcome
from berth.api.meta import ObjectMeta
from berth.api.pod import Pod, PodCondition
from berth.kube.events import cut
from berth.kube.timestamps import micro_time, whole_seconds

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
