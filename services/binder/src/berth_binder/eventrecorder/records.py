"""What is recorded of a Decision: Events, and conditions of pods and PodGroups, in kube-scheduler's words."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from hashlib import blake2b
from typing import Any, Final

from berth.api.kinds import COSCHEDULING_POD_GROUP, POD_GROUP
from berth.api.meta import ObjectMeta
from berth.api.pod import POD_SCHEDULED, Pod, PodCondition
from berth.api.podgroups import Dialect, PodGroup
from berth.clock import micro_time, whole_seconds
from berth.kube.writes import cut
from berth.messages.attempts import Decision, Outcome, Reason
from berth.safetext import one_line
from berth_binder.events import GroupState

NAME_LIMIT: Final = 253  # characters of an object's name
INSTANCE_LIMIT: Final = 128  # characters of reportingInstance

# By dialect, the version by which Events name a PodGroup.
_VERSIONS: Final = {Dialect.COSCHEDULING: COSCHEDULING_POD_GROUP.version, Dialect.UPSTREAM: POD_GROUP.version}

FAILED: Final = "FailedScheduling"  # reason of the Event of an unbound pod

GATED: Final = "WaitingForPodGroup"  # reason of Event and condition while members or the PodGroup are missing

PARTIAL: Final = "GroupPartial"  # reason of the Event on a group that is bound in part for longer than its timeout

EARMARKED: Final = "GroupEarmarked"  # of the Event on a group that has nodes earmarked

EVICTED: Final = "GroupEvicted"  # the same for a group whose bound members are evicted for that

REASONS_OF_STATES: Final = {
    GroupState.GATED: GATED,
    GroupState.PARTIAL: PARTIAL,
    GroupState.EVICTED: EVICTED,
    GroupState.EARMARKED: EARMARKED,
}

FALSE: Final = "False"
REASONS: Final = {
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
        return shown != (FALSE, self.reason, self.message) or kept not in {0, self.pod.metadata.generation}

    def condition(self, wall: datetime) -> PodCondition:
        """The condition to write. Its time is the last change of its status."""
        present = self._present()
        since = present.last_transition_time if present is not None and present.status == FALSE else None
        return PodCondition(
            type=POD_SCHEDULED,
            status=FALSE,
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
    elif decision.outcome in REASONS:
        note = decision.message
        type_, reason, action = "Warning", FAILED, "Scheduling"
    elif decision.outcome is Outcome.WAITING and decision.reason:
        note = decision.message
        type_, reason, action = "Warning" if decision.reason == FAILED else "Normal", decision.reason, "Scheduling"
    else:
        return None
    return EventRecord(
        pod=pod,
        name=_name(decision, note),
        controller=decision.profile,
        type=type_,
        reason=reason,
        action=action,
        note=event_text(note),
    )


def event_of_group(decision: Decision, group: PodGroup) -> EventRecord | None:
    """The Event on the PodGroup."""
    bound = 0 if decision.group is None else decision.group.bound
    if decision.outcome is Outcome.BOUND and bound:
        note, type_, reason, action = f"Successfully assigned {bound} pods", "Normal", "Scheduled", "Binding"
    elif decision.outcome in REASONS or decision.reason in {Reason.BEGUN, FAILED}:
        note, type_, reason, action = decision.message, "Warning", FAILED, "Scheduling"
    else:
        return None
    return EventRecord(
        **_about_group(group, f"{decision.uid} {decision.outcome} {decision.attempt} {note}"),
        controller=decision.profile,
        type=type_,
        reason=reason,
        action=action,
        note=event_text(note),
    )


def event_of_state(group: PodGroup, controller: str, reason: str, message: str) -> EventRecord:
    """The Event on a PodGroup that is gated, bound in part, evicted, or has nodes earmarked."""
    return _warning(_about_group(group, f"{group.uid} {reason} {message}"), controller, reason, message)


def event_without_group(pod: Pod, message: str) -> EventRecord:
    """The Event on a pod whose PodGroup does not exist."""
    about = {"pod": pod, "name": _name_from(pod.metadata.name, f"{pod.uid} {GATED} {message}")}
    return _warning(about, pod.spec.scheduler_name, GATED, message)


def _warning(about: dict[str, Any], controller: str, reason: str, message: str) -> EventRecord:
    return EventRecord(
        **about, controller=controller, type="Warning", reason=reason, action="Scheduling", note=event_text(message)
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
    reason = REASONS.get(decision.outcome)
    return None if reason is None else ConditionRecord(pod=pod, reason=reason, message=event_text(decision.message))


def event_text(message: str) -> str:
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
