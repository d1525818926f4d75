"""The Events (events.k8s.io/v1) and PodScheduled conditions of a Decision, in kube-scheduler's words."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from hashlib import blake2b
from typing import Any, Final

from berth.api.meta import ObjectMeta
from berth.api.pod import Pod, PodCondition
from berth.clock import micro_time, whole_seconds
from berth.kube.writes import cut
from berth.messages.attempts import Decision, Outcome
from berth.safetext import one_line

NAME_LIMIT: Final = 253  # characters of an object's name
INSTANCE_LIMIT: Final = 128  # characters of reportingInstance

FAILED: Final = "FailedScheduling"  # reason of the Event of an unbound pod

_SCHEDULED: Final = "PodScheduled"
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
        """The condition as the API server takes it. Its time is the last change of its status."""
        present = self._present()
        since = present.last_transition_time if present is not None and present.status == _FALSE else None
        return PodCondition(
            type=_SCHEDULED,
            status=_FALSE,
            reason=self.reason,
            message=self.message,
            last_transition_time=since or whole_seconds(wall),
            observed_generation=self.pod.metadata.generation,
        )

    def _present(self) -> PodCondition | None:
        return next((each for each in self.pod.status.conditions or () if each.type == _SCHEDULED), None)


Record = EventRecord | ConditionRecord


def event_of(decision: Decision, pod: Pod) -> EventRecord | None:
    """The Event of a Decision; ``None`` for outcomes that only the services need."""
    if decision.outcome is Outcome.BOUND:
        note = f"Successfully assigned {decision.namespace}/{decision.pod} to {decision.node}"
        type_, reason, action = "Normal", "Scheduled", "Binding"
    elif decision.outcome in _REASONS:
        note = decision.message
        type_, reason, action = "Warning", FAILED, "Scheduling"
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


def events_of_victims(decision: Decision, pod: Pod) -> list[EventRecord]:
    if decision.preemption is None:
        return []
    note = f"Preempted by pod {decision.uid} on node {decision.preemption.node}"
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
    """The condition of a Decision; ``None`` if it has none (a Binding sets PodScheduled itself)."""
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
        "regarding": _reference(event.pod),
        "note": event.note,
        "type": event.type,
    }


def series_body(event: EventRecord, wall: datetime) -> dict[str, Any]:
    """The patch that counts a repeat."""
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
