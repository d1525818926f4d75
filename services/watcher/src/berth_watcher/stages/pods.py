"""Every way of a pod from one stage of the queue to another; only ``move`` changes a stage.

A pod enters with ``_add``, becomes active in ``_enqueue`` (or in ``activate`` when it is tried again) and goes into
flight in ``publish_active``. An entry of a group takes the same ways. What follows a Decision is said by ``Decisions``.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

from berth.api.devices import ResourceClaim
from berth.api.pod import Pod, changed, is_gone_while_unbound
from berth.cluster.objects import Objects
from berth.framework.events import has_other_claims, pod_update_actions
from berth.framework.plugincalls import PluginFailure
from berth.framework.status import SUCCESS, Status
from berth.messages.attempts import Outcome, Positions
from berth_watcher.attempts import Attempts, HeldRooms
from berth_watcher.events import Effect, Note, ReadPod, RetryRequested
from berth_watcher.grouping import Grouping
from berth_watcher.mirror import Mirror
from berth_watcher.queue.answers import RETRIED_FROM
from berth_watcher.queue.earmarks import ShownEarmarks
from berth_watcher.queue.groups import GroupEntry
from berth_watcher.queue.hints import QueueingHints
from berth_watcher.queue.queuedpod import (
    NO_RETRY_SECONDS,
    WAITING_FOR_EVENT,
    EventClock,
    QueuedPod,
    Stage,
    created_at,
    waits,
)
from berth_watcher.queue.requeue import Requeue, Wait
from berth_watcher.queue.schedulingqueue import QueuePlugins, SchedulingQueue
from berth_watcher.settings import AttemptSettings
from berth_watcher.store import ObjectStore, label_of_own_update

# Stages of a group that waits for its pods.
GATHERING: Final = frozenset({Stage.GROUPED, Stage.AWAITING_WATCH})

# Seconds for which a pod may lack a claim before it is published all the same: longer than the controller takes to make
# the claims of templates, so that these pods cost no attempt.
CLAIM_SECONDS: Final = 5.0

# Seconds after a Decision bound or gone until the API is asked about a pod that the watch still shows unbound.
WATCH_SECONDS: Final = 10.0
# Pods or groups that may want one room are published so far apart: an attempt takes less.
HEAD_START_SECONDS: Final = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueParts:
    """The parts of a term that a pod or a group passes on its way."""

    profiles: Collection[str]
    settings: AttemptSettings
    clock: EventClock
    store: ObjectStore
    mirror: Mirror
    queue: SchedulingQueue
    plugins: QueuePlugins
    hints: QueueingHints
    requeue: Requeue
    attempts: Attempts
    grouping: Grouping
    held_rooms: HeldRooms
    earmarks: ShownEarmarks


class PodStages:
    def __init__(self, parts: QueueParts) -> None:
        self._profiles = parts.profiles
        self._settings = parts.settings
        self._clock = parts.clock
        self._store = parts.store
        self._mirror = parts.mirror
        self._queue = parts.queue
        self._plugins = parts.plugins
        self._requeue = parts.requeue
        self._attempts = parts.attempts
        self._grouping = parts.grouping
        self._held_rooms = parts.held_rooms
        # Monotonic time at which a held back pod goes, however long those of higher priority take; None without one.
        self.held_back_until: float | None = None
        self.is_running = False  # false during a takeover: then pods that may be tried wait
        self.last_decision = 0  # sequence of the last Decision received

    # --- a pod enters the queue, changes and leaves

    def on_pod(self, uid: str, pod: Pod | None) -> Sequence[Effect]:
        """Take in the pod's newest state; ``None`` if it is deleted."""
        self._grouping.observe_pod(uid, pod)
        queued = self._queue.get(uid)
        if pod is not None and waits(pod, self._profiles):
            return self._add(pod) if queued is None else self._update(queued, pod)
        if queued is None:
            return ()
        if queued.stage is Stage.IN_FLIGHT and (pod is None or is_gone_while_unbound(pod)):
            self._held_rooms.left(queued.pod, self._clock.now)
        scheduled = () if pod is None else self._attempts.count_scheduled(queued, pod)
        return [*scheduled, *self.remove(queued)]

    def _add(self, pod: Pod) -> Sequence[Effect]:
        queued = QueuedPod(pod=pod, timestamp=created_at(pod) or self._clock.timestamp().wall)
        self._queue.add(queued)
        return self._enqueue(queued)

    def _enqueue(self, queued: QueuedPod, *, despite_claims: bool = False) -> Sequence[Effect]:
        """Make a pod active unless a PreEnqueue plugin rejects it.

        A pod that lacks a claim for some seconds becomes active despite it: PreFilter rejects it for the same reason,
        and the binder puts the reason into a condition.
        """
        if isinstance(queued, GroupEntry):
            queued.failure = ""
            return self.activate(queued)
        queued.failure, status = queued.refusal, SUCCESS
        if queued.failure:
            queued.no_retry_until = self._clock.now + NO_RETRY_SECONDS
        else:
            status = self._pre_enqueue(queued, None if despite_claims else self._store.claims)
        if not status.is_success:
            queued.unschedulable_plugins, queued.message = frozenset({status.plugin}), "; ".join(status.reasons)
            due = self._clock.now + CLAIM_SECONDS if queued.pod.spec.resource_claims and not despite_claims else None
            return self.move(queued, Stage.GATED, due=due)
        queued.unschedulable_plugins, queued.message = frozenset(), ""
        if not self.is_running:
            return self.move(queued, Stage.RECOVERING)
        if queued.pod.spec.resource_claims:
            queued.mirror_change = self._mirror.changes  # the claims that were just shown
        return self.activate(queued)

    def _pre_enqueue(self, queued: QueuedPod, claims: Objects[ResourceClaim] | None) -> Status:
        try:
            return self._plugins.pre_enqueue(queued.pod, claims)
        except PluginFailure as failure:
            queued.record_failure(failure, self._clock.now)
            return SUCCESS

    def _update(self, queued: QueuedPod, pod: Pod) -> Sequence[Effect]:
        before, queued.pod = queued.pod, pod
        if queued.failure and changed(before, pod):
            queued.no_retry_until = 0.0
        if queued.stage in WAITING_FOR_EVENT:
            queued.incoming_event = label_of_own_update(pod_update_actions(before, pod))
        if queued.stage is Stage.GATED:
            return self._enqueue(queued)
        if queued.stage is Stage.IN_FLIGHT and queued.published is not None and _is_other(queued.published, pod):
            return self.publish(queued)
        if queued.stage is Stage.UNSCHEDULABLE and _is_other(before, pod):
            return self.try_again(queued)
        if queued.stage is Stage.BACKOFF and queued.failure:
            return self.wait_or_activate(queued, self._requeue.back_off(queued))
        return ()

    def remove(self, queued: QueuedPod) -> Sequence[Effect]:
        effects = self._attempts.end(queued)
        if isinstance(queued, GroupEntry):
            self._grouping.forget_entry(queued)
        self._requeue.on_removed(queued)
        self._queue.remove(queued)
        return [*effects, note_on(queued, "pod left", node=queued.node)] if self._settings.logs_stages else effects

    # --- a pod goes into flight

    def publish_active(self, settled: int) -> Sequence[Effect]:
        """Publish active pods in order while their profile's window has a free slot.

        If no pod of a profile is active and most of its window is free, back-offs end early (docs/protocol.md, 3): only
        for pods that an event may help, and only once the mirror has stored the event.
        """
        window, now, effects = self._attempts.window, self._clock.now, list[Effect]()
        self.held_back_until = None
        free = window.free(now)
        while True:
            while (queued := self._queue.pop(free, self._admit)) is not None:
                free[queued.profile] -= self._attempts.acquire(queued)
                effects += self.publish(queued, waited=now - (queued.active_since or now))
            if not self._queue.has_early:
                return effects
            queued = self._queue.pop_early(window.free_for_early(now), settled)
            if queued is None:
                return effects
            self._requeue.end_back_off(queued)
            effects += self.activate(queued)

    def _admit(self, queued: QueuedPod) -> int:
        if self._is_held_back(queued):
            return 0
        if not isinstance(queued, GroupEntry):
            return 1
        window, profile = self._attempts.window, queued.profile
        return queued.admit(window.used()[profile], window.sizes(self._clock.now)[profile])

    def _is_held_back(self, queued: QueuedPod) -> bool:
        """Whether a pod that failed before waits for one of higher priority that did, because both may want one room.

        Published with it, it is placed first whenever its scorer is faster.
        """
        if not queued.failures or queued.active_since is None:
            return False
        until = queued.active_since + HEAD_START_SECONDS
        if self._clock.now >= until or not self._attempts.retries_before(queued):
            return False
        self.held_back_until = until if self.held_back_until is None else min(self.held_back_until, until)
        return True

    def publish(self, queued: QueuedPod, *, waited: float | None = None) -> Sequence[Effect]:
        """The caller has acquired the slots in the window."""
        if isinstance(queued, GroupEntry):
            members = [each for pod in queued.members if (each := self._queue.get(pod.uid)) is not None]
            queued.group.published()
            published = self._attempts.publish_group(queued, members, waited=waited)
            return [*published, *self.await_decision(queued)]
        return [*self._attempts.publish(queued, waited=waited), *self.await_decision(queued)]

    def await_decision(self, queued: QueuedPod) -> Sequence[Effect]:
        return self.move(queued, Stage.IN_FLIGHT, due=self._clock.now + self._settings.look_up_seconds)

    # --- a pod is tried again

    def try_again(self, queued: QueuedPod) -> Sequence[Effect]:
        if queued.stage is Stage.GATED:
            return self._enqueue(queued)
        return self.wait_or_activate(queued, self._requeue.on_helped(queued))

    def on_retry_requested(self, event: RetryRequested) -> Sequence[Effect]:
        queued = self._queue.get(event.uid)
        if queued is None or queued.stage not in RETRIED_FROM:
            return ()
        self._requeue.on_retry_requested(queued)
        return self._enqueue(queued)

    def on_timer(self, queued: QueuedPod) -> Sequence[Effect]:
        if queued.stage is Stage.IN_FLIGHT and queued.attempt is not None:
            self._queue.set_timer(queued, self._clock.now + self._settings.look_up_seconds)
            return self._attempts.look_up(queued, queued.attempt)
        if isinstance(queued, GroupEntry) and queued.stage in GATHERING:
            self._grouping.mark(queued.group, helps=True)
            return self.move(queued, Stage.GROUPED)
        if queued.stage is Stage.AWAITING_WATCH:
            return [self.read_pod(queued)]
        if queued.failure or queued.stage is Stage.GATED:
            return self._enqueue(queued, despite_claims=queued.stage is Stage.GATED)
        return self.wait_or_activate(queued, self._requeue.on_timer(queued, self._mirror.changes))

    def read_pod(self, queued: QueuedPod) -> Effect:
        meta = queued.pod.metadata
        self._queue.set_timer(queued, self._clock.now + WATCH_SECONDS)
        return ReadPod(uid=queued.uid, namespace=meta.namespace, name=meta.name)

    def on_version(self, kind: str, version: int, *, listed: bool) -> Sequence[Effect]:
        effects: list[Effect] = []
        for uid in self._requeue.on_version(kind, version, listed=listed):
            queued = self._queue.get(uid)
            if queued is None or queued.stage is not Stage.AWAITING_VERSIONS:
                continue
            if self._requeue.passes_or_awaits_versions(queued, self._mirror.changes):
                effects += self.activate(queued)
        return effects

    def wait_or_activate(self, queued: QueuedPod, wait: Wait | None) -> Sequence[Effect]:
        if wait is None:
            return self.activate(queued)
        if isinstance(queued, GroupEntry):
            is_helped = wait.stage is Stage.BACKOFF and wait.due < queued.backoff_until
            self._grouping.note_wait(queued, is_helped=is_helped)
        return self.move(queued, wait.stage, due=wait.due, early=wait.early)

    def activate(self, queued: QueuedPod) -> Sequence[Effect]:
        """Make a pod active once the mirror has stored the changes that its ranking must see.

        A pod of a group waits with it instead.
        """
        if len(self._grouping) and self._grouping.takes(queued):
            return self.move(queued, Stage.GROUPED)
        if queued.mirror_change and queued.mirror_change > self._mirror.settled:
            return self.move(queued, Stage.AWAITING_MIRROR)
        if queued.mirror_change or queued.at_front or queued.outcome is Outcome.CONFLICT:
            queued.required_positions = self.known
        queued.mirror_change = 0
        return self.move(queued, Stage.ACTIVE)

    @property
    def known(self) -> Positions:
        """The highest positions of ``cluster`` and DECISIONS that the watcher knows; 0 for none yet."""
        return Positions(cluster=self._mirror.position, decisions=self.last_decision)

    # --- its stage

    def await_watch(self, queued: QueuedPod) -> Sequence[Effect]:
        """The pod is bound, or its group decided: the watch shows what is left to do."""
        return self.move(queued, Stage.AWAITING_WATCH, due=self._clock.now + WATCH_SECONDS)

    def move(
        self, queued: QueuedPod, stage: Stage, *, due: float | None = None, early: bool = False
    ) -> Sequence[Effect]:
        """Put a pod into a stage, with a timer if ``due`` is given. If ``early``, its back-off may end earlier."""
        place = self._plugins.place(queued) if early or stage is Stage.ACTIVE else None
        awaited_event = queued.stage in WAITING_FOR_EVENT
        self._queue.move(queued, stage, due=due, place=place)
        if awaited_event or stage in WAITING_FOR_EVENT:
            self._requeue.on_moved(queued)
        if not self._settings.logs_stages:
            return ()
        return [note_on(queued, "pod moved", stage=stage.value, reason=queued.message)]


def _is_other(before: Pod, now: Pod) -> bool:
    return changed(before, now) or has_other_claims(before, now)


def note_on(queued: QueuedPod, message: str, **fields: str) -> Note:
    about = {"pod": queued.pod.key, "uid": queued.uid, "attempt": str(queued.attempt or "")}
    return Note(message=message, fields={**about, **fields})
