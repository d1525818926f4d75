"""What brought a pod to its queue, in the words of kube-scheduler's metric ``scheduler_queue_incoming_pods_total``.

A pod that waits for a node: where it stands between its first sight and its Binding.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Final

from berth.api.messages import Decision, Outcome, Positions, Rejection
from berth.api.pod import Pod
from berth.api.subjects import Attempt, PodSubject, Uid
from berth.framework.events import Action, ClusterEvent, Resource

POD_ADDED: Final = "UnschedulablePodAdd"

ATTEMPT_FAILED: Final = "ScheduleAttemptFailure"

BACKOFF_COMPLETE: Final = "BackoffComplete"

TIMEOUT: Final = "UnschedulableTimeout"


_RESOURCES: Final = {
    Resource.POD: "AssignedPod",
    Resource.CSI_NODE: "storage.k8s.io/CSINode",
    Resource.CSI_DRIVER: "storage.k8s.io/CSIDriver",
    Resource.CSI_STORAGE_CAPACITY: "storage.k8s.io/CSIStorageCapacity",
    Resource.STORAGE_CLASS: "storage.k8s.io/StorageClass",
    Resource.VOLUME_ATTACHMENT: "storage.k8s.io/VolumeAttachment",
}
"""Where kube-scheduler says otherwise than the kind alone. Pods of which plugins hear are assigned ones."""

_ACTIONS: Final = {Action.UPDATE_POD_TOLERATIONS: "UpdatePodToleration"}


def label_of(event: ClusterEvent) -> str:
    """The event's name; of several things that changed at once the first."""
    return f"{_RESOURCES.get(event.resource, event.resource.value)}{_action(event.action)}"


def label_of_own_update(action: Action) -> str:
    """The name of a change of the waiting pod itself."""
    return f"UnschedulablePod{_action(action) or 'Update'}"


def _action(actions: Action) -> str:
    for action in actions:
        return _ACTIONS.get(action) or "".join(word.capitalize() for word in (action.name or "").split("_"))
    return ""


class Stage(StrEnum):
    """Where a pod waits, and so what its timer means."""

    HELD = "held"
    """A takeover has not looked yet whether it is in flight."""
    GATED = "gated"
    """Until PreEnqueue lets it in: its gates go. No timer."""
    ACTIVE = "active"
    """For its turn and a place in the window. No timer."""
    BEHIND = "behind"
    """After a conflict, for the reflectors to reach the versions named. Timer: goes on anyway."""
    SETTLING = "settling"
    """For the mirror's writes, so that its next ranking sees them. No timer: writes are answered."""
    BACKOFF = "backoff"
    """Timer: the end of its back-off."""
    UNSCHEDULABLE = "unschedulable"
    """For an event that may help. Timer: tried again without one."""
    IN_FLIGHT = "in flight"
    """For the Decision of its latest attempt. Timer: it is looked up."""
    PARKED = "parked"
    """The binder says that it is bound or gone; for the reflector to show it. Timer: the API is asked."""


QUEUES = {
    Stage.HELD: "active",
    Stage.GATED: "gated",
    Stage.ACTIVE: "active",
    Stage.BEHIND: "active",
    Stage.SETTLING: "active",
    Stage.BACKOFF: "backoff",
    Stage.UNSCHEDULABLE: "unschedulable",
}
"""The stages in kube-scheduler's words, for ``scheduler_pending_pods``; the others are in flight or done."""

INCOMING: dict[Stage, str] = {
    **{stage: queue for stage, queue in QUEUES.items() if stage is not Stage.HELD},
    Stage.GATED: "unschedulable",
}
"""The same for ``scheduler_queue_incoming_pods_total``, which has no queue of gated pods."""


@dataclass(slots=True, kw_only=True, eq=False)
class WaitingPod:
    """One pod. Mutable, and owned by the queue: stage and ticket change only there."""

    pod: Pod
    """Its newest state at the API."""
    since: datetime
    """When it began to wait: created, or refused last. Its age in the queue."""
    stage: Stage = Stage.HELD
    ticket: int = 0
    """Changes with each stage, so that what an earlier stage left in a heap is known to be stale."""

    event: str = POD_ADDED
    """What brought it where it waits, or will."""
    entered_at: float | None = None
    """Monotonic seconds: when it first waited for its turn; None while gates have kept it from that."""
    active_since: float | None = None
    """Monotonic seconds: since when it waits for its turn; None while it does not."""

    attempt: Attempt | None = None
    """The latest one."""
    published: Pod | None = None
    """The pod as its latest attempt carries it."""
    epoch: int = 0
    """Of the binder that decided the latest attempt; 0 while nobody has."""
    outcome: Outcome | None = None
    """Of its last final Decision."""
    message: str = ""
    """Why it waits, in the words of that Decision."""
    rejections: list[Rejection] = field(default_factory=list)
    blockers: frozenset[str] = frozenset()
    """The plugins that refused it."""
    node: str = ""
    """The node that the last Decision names: where victims are going."""

    failures: int = 0
    """Attempts that ended in back-off, one after the other: its length."""
    conflicts: int = 0
    """Conflicts one after the other, ``stale`` ones not counted."""
    misses: int = 0
    """Attempts one after the other of which nothing was found any more."""

    not_before: float = 0.0
    """Monotonic seconds: the end of its back-off, also while it sleeps."""
    first: bool = False
    """At the head of its own priority, after a conflict."""
    wanted_versions: dict[str, int] = field(default_factory=dict)
    """By kind, what the reflectors must have reached."""
    change: int = 0
    """The mirror's change that its next ranking must see; 0 for none."""
    after: Positions = field(default_factory=Positions)
    """What the scorer of its next attempt must have reached."""

    @property
    def uid(self) -> Uid:
        """Who it is."""
        return Uid(self.pod.metadata.uid)

    @property
    def profile(self) -> str:
        """The profile that serves it."""
        return self.pod.spec.scheduler_name

    def note(self, decision: Decision) -> None:
        """Keep of a Decision what a person would ask: why it waits, and for whom."""
        self.epoch = decision.epoch
        self.outcome = decision.outcome
        self.message = decision.message
        self.rejections = decision.rejections
        self.blockers = frozenset(decision.blockers)
        self.node = decision.node
        self.misses = 0
        self.after = Positions()

    def subject(self, stage: str) -> PodSubject:
        """Its subject at a stage of its way."""
        meta = self.pod.metadata
        return PodSubject(stage=stage, profile=self.profile, namespace=meta.namespace, pod=meta.name)
