"""A pod in the queue or in flight, its stages, and the clock of its timers."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from types import MappingProxyType
from typing import Final

import msgspec

from berth.api.pod import Pod, is_gone_while_unbound
from berth.api.podlimits import refusal
from berth.framework.plugincalls import PluginFailure, PluginTimeout
from berth.messages.attempts import DecisionSummary, Outcome, Positions
from berth.messages.subjects import Attempt, PodSubject, Uid

POD_ADDED: Final = "UnschedulablePodAdd"
"""kube-scheduler's name for the event that puts a new pod into the queue."""


class Stage(StrEnum):
    """Where a pod waits, which decides what its timer means."""

    RECOVERING = "recovering"
    """A takeover has not yet found out whether the pod is in flight. No timer."""
    GATED = "gated"
    """A PreEnqueue plugin rejects it. No timer."""
    ACTIVE = "active"
    """For its turn and a free slot in the window. No timer."""
    AWAITING_VERSIONS = "awaiting versions"
    """After a conflict, until the reflectors reach the resourceVersions named. Timer: stop waiting for them."""
    AWAITING_MIRROR = "awaiting mirror"
    """Until the mirror's writes are stored, so that the next ranking sees them. No timer: every write is answered."""
    BACKOFF = "backoff"
    """Timer: the end of its back-off, or of the pause before it may end early."""
    UNSCHEDULABLE = "unschedulable"
    """For an event that may help. Timer: tried again without one."""
    IN_FLIGHT = "in flight"
    """For the Decision of its latest attempt. Timer: look the attempt up."""
    AWAITING_WATCH = "awaiting watch"
    """The binder decided that it is bound or gone; until the watch shows that. Timer: read the pod from the API."""


WAITING_FOR_EVENT: Final = frozenset({Stage.UNSCHEDULABLE, Stage.GATED})
"""The stages that a cluster event may end."""

QUEUES: Final = {
    Stage.RECOVERING: "active",
    Stage.GATED: "gated",
    Stage.ACTIVE: "active",
    Stage.AWAITING_VERSIONS: "active",
    Stage.AWAITING_MIRROR: "active",
    Stage.BACKOFF: "backoff",
    Stage.UNSCHEDULABLE: "unschedulable",
}
"""kube-scheduler's queue for each stage, for ``scheduler_pending_pods``. Pods of other stages are not pending."""

INCOMING_QUEUES: Final[Mapping[Stage, str]] = {
    **{stage: queue for stage, queue in QUEUES.items() if stage is not Stage.RECOVERING},
    Stage.GATED: "unschedulable",
}
"""The same for ``scheduler_queue_incoming_pods_total``, which has no queue of gated pods."""


DO_NOT_ASK_SECONDS: Final = 300.0
"""How long a plugin that took too long is not asked again about a pod that has not changed, and a pod that has too much
of something is not tried again: as long as an unschedulable pod waits."""


NEVER: Final = float("-inf")
"""As a time in the past."""

# One for all pods: 200,000 that wait would take 27 MB with their own.
_NO_VERSIONS: Final[Mapping[str, int]] = MappingProxyType({})
_NO_POSITIONS: Final = Positions()


@dataclass(slots=True, kw_only=True, eq=False)
class QueuedPod:
    """One pod that waits, or is in flight.

    Only the queue changes ``stage``, ``generation`` and ``due``; core, attempts, requeue and hints write the others.
    """

    pod: Pod
    """Its newest state at the API."""
    timestamp: datetime
    """When it was created or last rejected. Older pods go first within a priority."""
    stage: Stage = Stage.RECOVERING
    generation: int = 0
    """Changes with each move, so that heap entries of earlier stages are recognised as stale."""
    due: float | None = None
    """Monotonic seconds: when the timer of its stage goes off. None: it has none."""

    incoming_event: str = POD_ADDED
    """What brought it into its queue, or will, in the words of ``scheduler_queue_incoming_pods_total``."""
    first_active_at: float | None = None
    """Monotonic seconds. None for a pod that has been gated all the time."""
    active_since: float | None = None
    """Monotonic seconds. None while it is not in the active queue."""

    attempt: Attempt | None = None
    """The latest one."""
    published: Pod | None = None
    """The pod as its latest attempt carries it."""
    epoch: int = 0
    """Of the binder that decided the latest attempt; 0 while there is no Decision."""
    outcome: Outcome | None = None
    """Of its last final Decision."""
    message: str = ""
    """Why it waits, from that Decision."""
    unschedulable_plugins: frozenset[str] = frozenset()
    """The plugins that rejected it."""
    node: str = ""
    """The node of the last Decision. After ``preempting`` this is where the victims are."""

    failures: int = 0
    """Consecutive attempts that ended in back-off. They decide how long it is."""
    conflicts: int = 0
    """Consecutive conflicts."""
    lost_attempts: int = 0
    """Consecutive attempts of which no message was found any more."""

    backoff_until: float = 0.0
    """Monotonic seconds. Also set while the pod is unschedulable."""
    ended_early_at: float = NEVER
    """Monotonic seconds. When its back-off was last ended early."""
    at_front: bool = False
    """After a conflict it goes first within its priority."""
    failure: str = ""
    """Why the pod cannot be tried: a plugin failed for it, or it has too much of something. It is
    published in place of a try."""
    do_not_ask_until: float = 0.0
    """Monotonic seconds: not tried before, unless it changes. After a plugin took too long for the pod, which may take
    as long again, and for a pod that has too much of something."""
    awaited_versions: Mapping[str, int] = field(default_factory=lambda: _NO_VERSIONS)
    """By kind, the resourceVersion that the reflectors must have reached."""
    mirror_change: int = 0
    """The mirror's change that its next ranking must see; 0 for none."""
    required_positions: Positions = _NO_POSITIONS
    """What the scorer of its next attempt must have read."""
    uid: Uid = field(init=False)
    _checked: Pod | None = field(default=None, init=False, repr=False)
    """The state whose refusal is known."""
    _refusal: str = field(default="", init=False, repr=False)

    @property
    def refusal(self) -> str:
        """Why the pod is not scheduled as it is now (``berth.api.podlimits``); empty when it may be.

        It is asked three times on the way into flight, and each state is encoded for it once.
        """
        if self._checked is not self.pod:
            self._checked, self._refusal = self.pod, refusal(self.pod)
        return self._refusal

    def __post_init__(self) -> None:
        self.uid = Uid(self.pod.metadata.uid)

    @property
    def profile(self) -> str:
        return self.pod.spec.scheduler_name

    def record_decision(self, decision: DecisionSummary) -> None:
        """Keep what a final Decision says about why the pod waits."""
        self.epoch = decision.epoch
        self.outcome = decision.outcome
        self.message = decision.message
        self.unschedulable_plugins = frozenset(decision.blockers)
        self.node = decision.node
        self.lost_attempts = 0
        self.required_positions = _NO_POSITIONS

    def positions_after(self, cluster: int) -> Positions:
        """What the scorer of its next attempt must have read: of ``cluster`` this much at least."""
        required = self.required_positions
        return required if required.cluster >= cluster else msgspec.structs.replace(required, cluster=cluster)

    def record_failure(self, failure: PluginFailure, now: float) -> None:
        """A plugin failed for the pod."""
        self.failure = str(failure)
        if isinstance(failure, PluginTimeout):
            self.do_not_ask_until = now + DO_NOT_ASK_SECONDS

    def subject(self, stage: str) -> PodSubject:
        """Its subject on the bus at ``pending``, ``ranked`` or ``decision``."""
        meta = self.pod.metadata
        return PodSubject(stage=stage, profile=self.profile, namespace=meta.namespace, pod=meta.name)


def waits(pod: Pod, profiles: Container[str]) -> bool:
    """Whether the pod is to be scheduled by one of the profiles: unbound, not being deleted and not finished."""
    return not pod.spec.node_name and pod.spec.scheduler_name in profiles and not is_gone_while_unbound(pod)


def created_at(pod: Pod) -> datetime | None:
    text = pod.metadata.creation_timestamp
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
    """Work without a limit."""
    return True


class EventClock:
    """The time of the events that are being handled. The core sets it; all its parts read it."""

    def __init__(self, started: Timestamp) -> None:
        self._started = started
        self.now = started.monotonic
        """Monotonic seconds."""
        self.may_continue: Callable[[], bool] = always
        """Whether this slice has time left. Long work asks after each step, and goes on in the next slice."""

    def timestamp(self) -> Timestamp:
        return self.at(self.now)

    def at(self, now: float) -> Timestamp:
        """A moment in monotonic seconds, by both clocks."""
        since_start = timedelta(seconds=now - self._started.monotonic)
        return Timestamp(monotonic=now, wall=self._started.wall + since_start)
