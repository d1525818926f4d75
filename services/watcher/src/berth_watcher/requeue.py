"""When a pod is tried again whose attempt ended without a Binding, and what its next ranking must see.

Decisions name the positions at which they were made. An event counts as seen by the scorer if the mirror's write of it
is known to be at or below the position, and as missed otherwise. Whatever is not known counts as missed: one attempt
too many is better than a pod that waits for an event of the past.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from berth.api.livedata import BANDWIDTH, FACTS
from berth.api.messages import Decision, Outcome, Positions, Reason
from berth.api.meta import version_number
from berth.framework.events import ClusterEvent, LiveDataUpdate
from berth_watcher.hints import QueueingHints, label_of
from berth_watcher.mirror import Mirror
from berth_watcher.queue import EventClock, QueuedPod, SchedulingQueue, Stage, Timestamp
from berth_watcher.settings import RequeueSettings

ATTEMPT_FAILED: Final = "ScheduleAttemptFailure"
BACKOFF_COMPLETE: Final = "BackoffComplete"
UNSCHEDULABLE_TIMEOUT: Final = "UnschedulableTimeout"
"""kube-scheduler's names for what brings a pod to a queue, beside cluster events."""

MAX_CONFLICTS: Final = 3
"""Consecutive conflicts after which a pod backs off: one that loses so often is in the way of others."""

MAX_EVENTS: Final = 2048
"""Events that a log keeps: more than a busy cluster has in a second. A Decision made before the oldest of them counts
as having missed something."""


class Requeue:
    """Puts pods whose attempt failed where they wait, and makes them active again."""

    def __init__(  # noqa: PLR0913 - the parts of the core that it works on
        self,
        *,
        clock: EventClock,
        queue: SchedulingQueue,
        hints: QueueingHints,
        mirror: Mirror,
        kinds: Iterable[str],
        settings: RequeueSettings,
    ) -> None:
        self._clock = clock
        self._queue = queue
        self._hints = hints
        self._mirror = mirror
        self._settings = settings
        self._versions = VersionGate(kinds)
        self._cluster_log = EventLog()
        self._live_logs = {BANDWIDTH: EventLog(), FACTS: EventLog()}
        self._awaiting_mirror: list[tuple[int, int, QueuedPod]] = []
        self.last_decision = 0
        """The sequence of the last Decision received."""

    def begin(self, position: int) -> None:
        """Events up to now are not in the log: those below a position of the bucket, and those not yet stored."""
        self._cluster_log.begin(self._mirror.changes, position)

    def on_unschedulable(self, pod: QueuedPod, decision: Decision, decided_at: Timestamp) -> None:
        """No node fits, or the victims are leaving: the pod waits for an event, unless its ranking missed one."""
        self._fail(pod, decided_at)
        missed = self._missed_change(pod, decision.positions)
        if missed is not None:
            pod.mirror_change = missed
            self._queue.move(pod, Stage.BACKOFF, due=pod.backoff_until)
            return
        preempting = decision.outcome is Outcome.PREEMPTING
        wait = self._settings.preemption_seconds if preempting else self._settings.max_unschedulable_seconds
        self._queue.move(pod, Stage.UNSCHEDULABLE, due=decided_at.monotonic + wait)

    def on_error(self, pod: QueuedPod, failed_at: Timestamp) -> None:
        """The pod backs off. No event ends that."""
        self._fail(pod, failed_at)
        self._queue.move(pod, Stage.BACKOFF, due=pod.backoff_until)

    def on_conflict(self, pod: QueuedPod, decision: Decision, decided_at: Timestamp) -> None:
        """Other pods took the nodes: to the front of its priority once everything named is seen, or back-off."""
        pod.awaited_versions = _versions(decision)
        self._retry_soon(pod, decided_at, counts=decision.reason != Reason.STALE)

    def on_still_unbound(self, pod: QueuedPod) -> None:
        """The binder decided that it is gone or bound, but the API shows it unbound: a conflict without versions."""
        pod.awaited_versions = {}
        self._retry_soon(pod, self._clock.timestamp(), counts=True)

    def on_cluster_event(self, event: ClusterEvent, old: object, new: object, change: int) -> list[QueuedPod]:
        """Record an event that the mirror is storing. Returns the waiting pods that it may help."""
        if self._hints.is_event_of_interest(event):
            self._cluster_log.record(event, old, new, change=change)
        pods = self._hints.pods_worth_requeuing(self._queue.waiting_for_event(), event, old, new)
        for pod in pods:
            pod.mirror_change, pod.incoming_event = change, label_of(event)
        return pods

    def on_live_data(self, news: LiveDataUpdate, event: ClusterEvent, sequence: int) -> list[QueuedPod]:
        """The same for live data, which is already stored."""
        if self._hints.is_event_of_interest(event):
            self._live_logs[news.source.bucket].record(event, None, news, sequence=sequence)
        pods = self._hints.pods_worth_requeuing(self._queue.waiting_for_event(), event, None, news)
        for pod in pods:
            pod.incoming_event = label_of(event)
        return pods

    def on_version(self, kind: str, version: int, *, listed: bool) -> None:
        """A reflector has reached a version: pods that waited for it go on."""
        ready = self._versions.on_list(kind, version) if listed else self._versions.on_version(kind, version)
        for uid in ready:
            pod = self._queue.get(uid)
            if (
                pod is not None
                and pod.stage is Stage.AWAITING_VERSIONS
                and self._versions.pass_or_wait(uid, pod.awaited_versions)
            ):
                self._activate_after_mirror(pod)

    def on_mirror_settled(self) -> None:
        """The mirror may have stored something: pods that waited for it go on."""
        settled = self._mirror.settled
        self._cluster_log.on_settled(settled, self._mirror.position)
        while self._awaiting_mirror and self._awaiting_mirror[0][0] <= settled:
            _, generation, pod = heapq.heappop(self._awaiting_mirror)
            if pod.generation == generation:
                self._activate(pod)

    def on_timer(self, pod: QueuedPod) -> None:
        """The timer of a pod that waits here has gone off."""
        if pod.stage is Stage.AWAITING_VERSIONS:
            self._activate_after_mirror(pod)
        else:
            pod.incoming_event = BACKOFF_COMPLETE if pod.stage is Stage.BACKOFF else UNSCHEDULABLE_TIMEOUT
            self._activate(pod)

    def requeue(self, pod: QueuedPod) -> None:
        """An event may help the pod: it is tried again, after its back-off."""
        if self._clock.now < pod.backoff_until:
            self._queue.move(pod, Stage.BACKOFF, due=pod.backoff_until)
        else:
            self._activate(pod)

    def _retry_soon(self, pod: QueuedPod, failed_at: Timestamp, *, counts: bool) -> None:
        pod.conflicts += counts
        pod.incoming_event = ATTEMPT_FAILED
        if pod.conflicts >= MAX_CONFLICTS:
            self.on_error(pod, failed_at)
            return
        pod.at_front = True
        self._queue.move(pod, Stage.AWAITING_VERSIONS, due=self._clock.now + self._settings.versions_seconds)
        if self._versions.pass_or_wait(pod.uid, pod.awaited_versions):
            self._activate_after_mirror(pod)

    def _fail(self, pod: QueuedPod, failed_at: Timestamp) -> None:
        pod.failures += 1
        pod.conflicts = 0
        pod.incoming_event = ATTEMPT_FAILED
        pod.at_front = False
        pod.timestamp = failed_at.wall
        pod.backoff_until = failed_at.monotonic + self._settings.backoff.after(pod.failures)

    def _activate_after_mirror(self, pod: QueuedPod) -> None:
        """The reflectors have shown what the conflict was about. The scorer must read it from the mirror."""
        pod.mirror_change = self._mirror.changes
        self._activate(pod)

    def _activate(self, pod: QueuedPod) -> None:
        """Make a pod active, once the mirror has stored what its ranking must see."""
        if pod.mirror_change > self._mirror.settled:
            self._queue.move(pod, Stage.AWAITING_MIRROR)
            heapq.heappush(self._awaiting_mirror, (pod.mirror_change, pod.generation, pod))
            return
        if pod.mirror_change or pod.at_front:
            pod.required_positions = Positions(cluster=self._mirror.position, decisions=self.last_decision)
        pod.mirror_change = 0
        self._queue.move(pod, Stage.ACTIVE)

    def _missed_change(self, pod: QueuedPod, positions: Positions) -> int | None:
        """The mirror's change of an event that may help and that the ranking had not seen; ``None`` for no event.

        A pod that no plugin rejected always counts as having missed something, since any event may help it.
        """
        if not pod.unschedulable_plugins or self._cluster_log.may_lack_events_since(positions.cluster):
            return self._mirror.changes
        logs = (
            (self._cluster_log, positions.cluster),
            (self._live_logs[BANDWIDTH], positions.bandwidth),
            (self._live_logs[FACTS], positions.facts),
        )
        for log, position in logs:
            for event, old, new, change in log.since(position):
                if self._hints.is_worth_requeuing(pod, event, old, new):
                    return change
        return None


def _versions(decision: Decision) -> dict[str, int]:
    """The resourceVersions that a conflict names. One that is not a number is not waited for."""
    versions = {kind: version_number(text) for kind, text in decision.resource_versions.items()}
    return {kind: version for kind, version in versions.items() if version}


@dataclass(slots=True, kw_only=True)
class _LoggedEvent:
    event: ClusterEvent
    old: object
    new: object
    change: int
    stored_by: int | None
    """A sequence of the bucket at or below which the event is stored; ``None`` while that is not known."""


class EventLog:
    """The latest events of one bucket (``cluster``, ``bandwidth`` or ``facts``), in order."""

    def __init__(self, *, max_events: int = MAX_EVENTS) -> None:
        self._max_events = max_events
        self._events: deque[_LoggedEvent] = deque()
        self._unstored: deque[_LoggedEvent] = deque()
        self._begins_after_change: int | None = None
        """A change that is not stored yet. The log lacks the events up to it, at positions not known yet."""
        self._begins_at_position = 0
        """The log may lack events below this position."""

    def begin(self, change: int, position: int) -> None:
        """The log lacks all events up to now: those below a position, and those up to a change that is not stored."""
        self._begins_after_change, self._begins_at_position = change, position

    def record(
        self, event: ClusterEvent, old: object, new: object, *, change: int = 0, sequence: int | None = None
    ) -> None:
        """Add an event: of a change that the mirror is storing, or one that is stored at a sequence already."""
        logged = _LoggedEvent(event=event, old=old, new=new, change=change, stored_by=sequence)
        self._events.append(logged)
        if sequence is None:
            self._unstored.append(logged)
        while len(self._events) > self._max_events and self._events[0].stored_by is not None:
            self._begins_at_position = max(self._begins_at_position, self._events.popleft().stored_by or 0)

    def on_settled(self, change: int, position: int) -> None:
        """Everything up to a change is stored, at or below a position."""
        while self._unstored and self._unstored[0].change <= change:
            self._unstored.popleft().stored_by = position
        if self._begins_after_change is not None and self._begins_after_change <= change:
            self._begins_after_change = None
            self._begins_at_position = max(self._begins_at_position, position)

    def may_lack_events_since(self, position: int) -> bool:
        """Whether events after this position may be missing in the log."""
        return self._begins_after_change is not None or position < self._begins_at_position

    def since(self, position: int) -> Iterator[tuple[ClusterEvent, object, object, int]]:
        """The events that are not known to be stored at or below a position, newest first, with their change."""
        for logged in reversed(self._events):
            if logged.stored_by is not None and logged.stored_by <= position:
                return
            yield logged.event, logged.old, logged.new, logged.change


class VersionGate:
    """Which version each kind has reached, and which pods wait for more.

    A wait costs O(log n); an event that no pod waits for costs O(1).
    """

    def __init__(self, kinds: Iterable[str]) -> None:
        self._reached: dict[str, int] = dict.fromkeys(kinds, 0)
        self._waiting: dict[str, list[tuple[int, int, str]]] = {kind: [] for kind in self._reached}
        self._order = itertools.count()

    def pass_or_wait(self, uid: str, versions: Mapping[str, int]) -> bool:
        """True if all versions are reached; otherwise a later call returns the uid. Unknown kinds are ignored."""
        for kind, version in versions.items():
            if self._reached.get(kind, version) < version:
                heapq.heappush(self._waiting[kind], (version, next(self._order), uid))
                return False
        return True

    def on_version(self, kind: str, version: int) -> list[str]:
        """A kind has reached a version. Returns the pods that waited for it, some of which may be gone."""
        if version <= self._reached[kind]:
            return []
        self._reached[kind] = version
        ready, waiting = [], self._waiting[kind]
        while waiting and waiting[0][0] <= version:
            ready.append(heapq.heappop(waiting)[2])
        return ready

    def on_list(self, kind: str, version: int) -> list[str]:
        """The same after a LIST, whose version may be lower: then the API server has another store that counts anew."""
        ready = self.on_version(kind, version)
        self._reached[kind] = version
        return ready
