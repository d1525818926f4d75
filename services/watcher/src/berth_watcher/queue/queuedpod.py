"""A pod in the queue or in flight, its stages, and the clock of its timers."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from types import MappingProxyType
from typing import ClassVar, Final

import msgspec

from berth.api.pod import Pod, is_gone_while_unbound
from berth.api.podlimits import refusal
from berth.framework.plugincalls import PluginFailure, PluginTimeout
from berth.messages.attempts import DecisionSummary, Outcome, Positions, Reason
from berth.messages.queue import WITH_GROUP
from berth.messages.subjects import Attempt, PodSubject, Uid

# kube-scheduler's name of the event that adds a new pod to the queue.
POD_ADDED: Final = "UnschedulablePodAdd"


class Stage(StrEnum):
    """Where a pod waits. The stage decides the effect of the pod's timer."""

    # A takeover has not found out yet whether the pod is in flight. No timer.
    RECOVERING = "recovering"
    # Rejected by a PreEnqueue plugin. No timer.
    GATED = "gated"
    # A pod: waits with its group. A group: waits for members, with a timer if its gate may open without an event.
    GROUPED = "grouped"
    # Waits for its turn and a free slot of the window. No timer.
    ACTIVE = "active"
    # After a conflict, until the reflectors reach the named resourceVersions. Timer: stop waiting.
    AWAITING_VERSIONS = "awaiting versions"
    # Until the mirror's writes are stored, so that the next ranking sees them. No timer: every write is answered.
    AWAITING_MIRROR = "awaiting mirror"
    # Timer: the end of the back-off, or the time from which it may end early.
    BACKOFF = "backoff"
    # Waits for an event that may help. Timer: try again without one.
    UNSCHEDULABLE = "unschedulable"
    # Waits for the Decision of its latest attempt. Timer: look the attempt up.
    IN_FLIGHT = "in flight"
    # Decided bound or gone, until the watch shows it. Timer: read the pod from the API.
    AWAITING_WATCH = "awaiting watch"


WAITING_FOR_EVENT: Final = frozenset({Stage.UNSCHEDULABLE, Stage.GATED})  # stages that a cluster event may end

# kube-scheduler's queue per stage, for scheduler_pending_pods. Pods in other stages are not pending.
KUBE_QUEUES: Final = {
    Stage.RECOVERING: "active",
    Stage.GATED: "gated",
    Stage.GROUPED: "gated",
    Stage.ACTIVE: "active",
    Stage.AWAITING_VERSIONS: "active",
    Stage.AWAITING_MIRROR: "active",
    Stage.BACKOFF: "backoff",
    Stage.UNSCHEDULABLE: "unschedulable",
}

# The same for people, who look for scheduling gates where a pod is gated.
QUEUES: Final[Mapping[Stage, str]] = {**KUBE_QUEUES, Stage.GROUPED: WITH_GROUP}

# The same for scheduler_queue_incoming_pods_total, which has no queue of gated pods.
INCOMING_QUEUES: Final[Mapping[Stage, str]] = {
    **{stage: queue for stage, queue in KUBE_QUEUES.items() if stage is not Stage.RECOVERING},
    Stage.GATED: "unschedulable",
    Stage.GROUPED: "unschedulable",
}


# Seconds without a try, unless the pod changes, after a plugin timed out for it or if it exceeds a limit: as long as an
# unschedulable pod waits.
NO_RETRY_SECONDS: Final = 300.0


NEVER: Final = float("-inf")  # as a time in the past

# Shared by all pods: 200,000 waiting pods would take 27 MB with their own.
_NO_VERSIONS: Final[Mapping[str, int]] = MappingProxyType({})
_NO_POSITIONS: Final = Positions()


@dataclass(slots=True, kw_only=True, eq=False)
class QueuedPod:
    """A waiting pod, or one in flight.

    Only the queue writes ``stage``, ``generation`` and ``due``; core, attempts, requeue and hints write the other
    fields.
    """

    is_group: ClassVar[bool] = False
    pod: Pod  # its newest state at the API
    timestamp: datetime  # created or last rejected; older pods go first within a priority
    stage: Stage = Stage.RECOVERING
    generation: int = 0  # changes with each move: heap entries of earlier stages are stale
    due: float | None = None  # monotonic time of the stage's timer; None without one

    incoming_event: str = POD_ADDED  # kube-scheduler's name of the event that brings it into its queue
    first_active_at: float | None = None  # monotonic; None if it was always gated
    active_since: float | None = None  # monotonic; None unless it is in the active queue

    attempt: Attempt | None = None  # the latest one
    published: Pod | None = None  # the pod as its latest attempt carries it
    epoch: int = 0  # of the binder that decided the latest attempt; 0 without a Decision
    outcome: Outcome | None = None  # of its last final Decision
    reason: str = ""  # of that Decision, by ``Reason``
    message: str = ""  # why it waits, from that Decision
    unschedulable_plugins: frozenset[str] = frozenset()  # that rejected it
    decisions_read: int = 0  # sequence up to which its last ranking had read DECISIONS
    node: str = ""  # of the last Decision; after `preempting`, where the victims are

    failures: int = 0  # consecutive attempts that ended in back-off; they set its length
    conflicts: int = 0  # consecutive
    lost_attempts: int = 0  # consecutive attempts without any message left

    backoff_until: float = 0.0  # monotonic; also set while the pod is unschedulable
    ended_early_at: float = NEVER  # monotonic time at which its back-off last ended early
    at_front: bool = False  # first within its priority, after a conflict
    # Why the pod cannot be tried: a plugin failed for it, or it exceeds a limit. Published in place of a try.
    failure: str = ""
    # Monotonic time before which an unchanged pod is not tried: after a plugin timed out for it, which may take as long
    # again, or if it exceeds a limit.
    no_retry_until: float = 0.0
    # By kind, the resourceVersion that the reflectors must have reached.
    awaited_versions: Mapping[str, int] = field(default_factory=lambda: _NO_VERSIONS)
    mirror_change: int = 0  # the mirror's change that its next ranking must see; 0 for none
    required_positions: Positions = _NO_POSITIONS  # that the scorer of its next attempt must have read
    uid: Uid = field(init=False)
    _checked: Pod | None = field(default=None, init=False, repr=False)  # the state that _refusal is about
    _refusal: str = field(default="", init=False, repr=False)

    @property
    def refusal(self) -> str:
        """Why the pod is not scheduled as it is now (``berth.api.podlimits``); empty if it may be.

        Cached per state: a check encodes the pod, and there are three on its way into flight.
        """
        if self._checked is not self.pod:
            self._checked, self._refusal = self.pod, refusal(self.pod)
        return self._refusal

    def __post_init__(self) -> None:
        self.uid = Uid(self.pod.metadata.uid)

    @property
    def awaits_nodes(self) -> bool:
        """Whether there was no node to try, so that only other nodes may help."""
        return self.reason == Reason.NO_NODES and not self.unschedulable_plugins

    @property
    def profile(self) -> str:
        return self.pod.spec.scheduler_name

    def record_decision(self, decision: DecisionSummary) -> None:
        self.epoch = decision.epoch
        self.outcome = decision.outcome
        self.reason = decision.reason
        self.message = decision.message
        self.unschedulable_plugins = frozenset(decision.blockers)
        self.node = decision.node
        self.decisions_read = decision.positions.decisions
        self.lost_attempts = 0
        self.required_positions = _NO_POSITIONS

    def positions_after(self, cluster: int) -> Positions:
        """The positions that the scorer of its next attempt must have read: at least ``cluster`` of that bucket."""
        required = self.required_positions
        return required if required.cluster >= cluster else msgspec.structs.replace(required, cluster=cluster)

    def early_from(self, pause: float) -> float:
        """The monotonic time from which its back-off may end early: ``pause`` seconds after it last did."""
        return self.ended_early_at + pause

    def end_early(self, now: float) -> None:
        self.ended_early_at = now

    def record_failure(self, failure: PluginFailure, now: float) -> None:
        self.failure = str(failure)
        if isinstance(failure, PluginTimeout):
            self.no_retry_until = now + NO_RETRY_SECONDS

    def subject(self, stage: str) -> PodSubject:
        meta = self.pod.metadata
        return PodSubject(stage=stage, profile=self.profile, namespace=meta.namespace, pod=meta.name)


def waits(pod: Pod, profiles: Container[str]) -> bool:
    """Whether a profile must schedule the pod: it is unbound, not being deleted and not finished."""
    return not pod.spec.node_name and pod.spec.scheduler_name in profiles and not is_gone_while_unbound(pod)


def created_at(pod: Pod) -> datetime | None:
    return time_in(pod.metadata.creation_timestamp)


def time_in(text: str | None) -> datetime | None:
    """The time that an object's text says; ``None`` if it says none."""
    try:
        return datetime.fromisoformat(text) if text else None
    except ValueError:
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Timestamp:
    """One moment by two clocks: monotonic seconds for timers, wall time for the ages of pods."""

    monotonic: float
    wall: datetime


def always() -> bool:
    return True


class EventClock:
    """The time of the events being handled. The core sets it; its parts read it."""

    def __init__(self, started: Timestamp) -> None:
        self._started = started
        self.now = started.monotonic
        # Whether this slice has time left. Long work calls it after each step, and continues in the next slice if not.
        self.may_continue: Callable[[], bool] = always

    def timestamp(self) -> Timestamp:
        return self.at(self.now)

    def at(self, now: float) -> Timestamp:
        since_start = timedelta(seconds=now - self._started.monotonic)
        return Timestamp(monotonic=now, wall=self._started.wall + since_start)
