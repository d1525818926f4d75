"""When a pod is tried again after an attempt without a Binding, and which waiting pods an event may help.

The core passes in what happened and gets a ``Wait``, or ``None`` if the pod is to be tried at once. ``changes`` is the
number of the mirror's latest change, which the pod's next ranking must see.

A Decision has the positions at which it was made. An event counts as seen by the scorer if the mirror's write of it is
known to be stored at or below that position. An object rewritten later, and an unknown one, count as missed: an attempt
too many is better than a pod that waits for a past event. Positions above what the watcher knows to be stored are those
of a deleted stream, so any event may have been missed (docs/adr/0029-a-lost-position-takes-its-messages-along.md).
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from berth.api.node import Node
from berth.api.pod import Pod, priority_of
from berth.decoding import version_number
from berth.framework.events import Action, ClusterEvent, LiveDataUpdate, Resource, bytes_of, node_update_actions
from berth.messages.attempts import DecisionSummary, Outcome, Positions, Reason
from berth.messages.livedata import BANDWIDTH, FACTS
from berth_watcher.queue.hints import QueueingHints, Step, UnschedulablePods
from berth_watcher.queue.queuedpod import WAITING_FOR_EVENT, EventClock, QueuedPod, Stage, Timestamp
from berth_watcher.settings import RequeueSettings
from berth_watcher.store import LIVE_DATA_EVENTS, label_of

# kube-scheduler's names of the reasons, beside cluster events, that bring a pod to a queue.
ATTEMPT_FAILED: Final = "ScheduleAttemptFailure"
BACKOFF_COMPLETE: Final = "BackoffComplete"
FORCE_ACTIVATE: Final = "ForceActivate"
POP_FROM_BACKOFF: Final = "PopFromBackoffQ"
UNSCHEDULABLE_TIMEOUT: Final = "UnschedulableTimeout"

# Consecutive conflicts after which a pod backs off, because each conflict puts it before other pods.
MAX_CONFLICTS: Final = 3

# Events kept per log: more than a busy cluster has in a second. A Decision made before the oldest counts as having
# missed an event. If more events than this await their hints, hints are skipped and the oldest event counts as helping.
MAX_EVENTS: Final = 2048
# Bytes of the objects in each log, as JSON: MAX_EVENTS of 16 KB. An event keeps objects that are deleted, and a pod may
# have a megabyte. Above it the oldest events are dropped; if more await their hints, hints are skipped too.
MAX_EVENT_BYTES: Final = 32 * 1024 * 1024

# Events that a Decision is always compared with. Further ones only while the slice has time, else it counts as having
# missed one: the hints of a pod with thousands of terms take milliseconds each.
EVENTS_AT_ONCE: Final = 16

# Of a pod whose wait ended without a Binding. As kube-scheduler, which reports the end of an assumption so.
ROOM_FREED: Final = ClusterEvent(Resource.POD, Action.DELETE)
# Of a pod that begins to wait: rankings count it as bound.
ROOM_HELD: Final = ClusterEvent(Resource.POD, Action.ADD)

# Pods requeued by one event between two looks at the clock: about 5 ms.
PODS_AT_ONCE: Final = 256


class Wait(NamedTuple):
    """The stage in which a pod waits next, and until when."""

    stage: Stage
    due: float  # monotonic time of its timer
    early: bool = False  # its back-off may end before `due`


class Requeue:
    def __init__(
        self,
        *,
        clock: EventClock,
        hints: QueueingHints,
        waiting: UnschedulablePods,
        kinds: Iterable[str],
        settings: RequeueSettings,
    ) -> None:
        self._clock = clock
        self._hints = hints
        self._waiting = waiting
        self._settings = settings
        self._versions = VersionGate(kinds)
        self._cluster_log = EventLog()
        self._live_logs = {BANDWIDTH: EventLog(), FACTS: EventLog()}
        self._held_log = EventLog()
        self.unchecked: deque[_UncheckedEvent] = deque()  # events that may help a pod: ``helped`` has work
        self._unchecked_bytes = 0
        self._unchecked_nodes: dict[str, _UncheckedEvent] = {}

    def begin(self, changes: int, position: int) -> None:
        """The log lacks events up to now: those below a position of the bucket, and changes not stored yet."""
        self._cluster_log.begin(changes, position)

    # --- the next stage of a pod

    def on_unschedulable(
        self, pod: QueuedPod, decision: DecisionSummary, decided_at: Timestamp, changes: int, known: Positions
    ) -> Wait:
        """No node fits, or the victims are terminating: the pod waits for an event, unless its ranking missed one.

        ``known``: the highest positions of ``cluster`` and DECISIONS that the watcher knows; 0 for none yet.
        """
        self._fail(pod, decided_at)
        if decision.reason == Reason.PREEMPTED:  # not before the pod that gets its room
            return self.back_off(pod)
        missed = self._missed_change(pod, decision.positions, changes, known)
        if missed is not None:
            pod.mirror_change = missed.change
            return self._back_off_after_event(pod) if missed.is_known else self.back_off(pod)
        wait = min(self._settings.max_unschedulable_seconds, self._hints.rejected_for(pod))
        if decision.outcome is Outcome.PREEMPTING:
            wait = self._settings.preemption_seconds
        return Wait(Stage.UNSCHEDULABLE, decided_at.monotonic + wait)

    def on_error(self, pod: QueuedPod, failed_at: Timestamp) -> Wait:
        """Back off; no event ends this."""
        self._fail(pod, failed_at)
        return self.back_off(pod)

    def back_off(self, pod: QueuedPod) -> Wait:
        """Wait until the back-off ends and plugins may be called for the pod again."""
        return Wait(Stage.BACKOFF, max(pod.backoff_until, pod.no_retry_until))

    def on_conflict(
        self, pod: QueuedPod, decision: DecisionSummary, decided_at: Timestamp, changes: int
    ) -> Wait | None:
        """Other pods took the nodes: go to the front of the priority once the named versions are seen, or back off.

        If only proposals of other pods keep it out, it backs off at once
        (docs/adr/0028-a-pod-that-proposals-keep-out-backs-off.md).
        """
        if decision.reason == Reason.PROPOSALS:
            self._fail(pod, decided_at)
            pod.awaited_versions = {}
            return self._back_off_after_event(pod)
        pod.awaited_versions = _versions(decision)
        return self._retry_soon(pod, decided_at, changes)

    def on_still_unbound(self, pod: QueuedPod, changes: int) -> Wait | None:
        """The binder decided ``gone`` or ``bound``, but the API shows the pod unbound: a conflict without versions."""
        pod.awaited_versions = {}
        return self._retry_soon(pod, self._clock.timestamp(), changes)

    def on_helped(self, pod: QueuedPod) -> Wait | None:
        """An event may help the pod: try it again, after its back-off or when no other pod is active."""
        return self._back_off_after_event(pod) if self._clock.now < pod.backoff_until else None

    def on_timer(self, pod: QueuedPod, changes: int) -> Wait | None:
        if pod.stage is Stage.AWAITING_VERSIONS:
            self._versions.end(pod.uid)
            pod.mirror_change = changes
            return None
        if pod.stage is Stage.BACKOFF and self._clock.now < pod.backoff_until:
            return self._back_off_after_event(pod)
        pod.incoming_event = BACKOFF_COMPLETE if pod.stage is Stage.BACKOFF else UNSCHEDULABLE_TIMEOUT
        return None

    def end_back_off(self, pod: QueuedPod) -> None:
        """End the back-off early, because no other pod is active."""
        pod.end_early(self._clock.now)
        pod.incoming_event = POP_FROM_BACKOFF

    def on_retry_requested(self, pod: QueuedPod) -> None:
        """A person fixed the cause: forget the pod's failures and its plugins' timeouts."""
        self._versions.end(pod.uid)
        pod.failures = pod.conflicts = pod.lost_attempts = 0
        pod.backoff_until = pod.no_retry_until = 0.0
        pod.awaited_versions, pod.at_front, pod.incoming_event = {}, False, FORCE_ACTIVATE

    def on_version(self, kind: str, version: int, *, listed: bool) -> list[str]:
        """Returns the uids of pods that waited for this version."""
        return self._versions.on_list(kind, version) if listed else self._versions.on_version(kind, version)

    def passes_or_awaits_versions(self, pod: QueuedPod, changes: int) -> bool:
        """Whether the pod may be ranked now: its next ranking must see the conflict's versions too."""
        if not self._versions.pass_or_wait(pod.uid, pod.awaited_versions):
            return False
        pod.mirror_change = changes
        return True

    def on_moved(self, pod: QueuedPod) -> None:
        """Add the pod to those that wait for an event, or remove it, after it moved to another stage."""
        self._waiting.discard(pod)
        if pod.stage in WAITING_FOR_EVENT:
            self._waiting.add(pod)

    def on_removed(self, pod: QueuedPod) -> None:
        self._versions.end(pod.uid)
        self._waiting.discard(pod)

    # --- which pods an event may help

    def on_cluster_event(
        self, event: ClusterEvent, old: object, new: object, change: int, *, above: int | None = None
    ) -> None:
        """``above``: it may help only pods of a higher priority, until ``on_late_event``."""
        if self._hints.is_event_registered(event):
            size = bytes_of(old, new)
            self._cluster_log.record(event, old, new, change=change, size=size, above=above)
            self._check_later(event, old, new, change, size, above=above)

    def on_late_event(self, event: ClusterEvent, old: object, new: object, change: int) -> None:
        """An event of some time ago may help every pod now, also those whose attempt under way has missed it."""
        if self._hints.is_event_registered(event):
            self._cluster_log.help_all(event, change)
            self._check_later(event, old, new, change, bytes_of(old, new))

    def on_rewritten(self, event: ClusterEvent, old: object, new: object, change: int) -> None:
        """Record an object as new, for scorers that have not read its former version. It helps no waiting pod."""
        if self._hints.is_event_registered(event):
            self._cluster_log.record(event, old, new, change=change, size=bytes_of(old, new))

    def on_held_room(self, event: ClusterEvent, pod: Pod, sequence: int, changes: int) -> None:
        """Record the begin or end of a wait, stored in DECISIONS: to plugins, the pod came to its node or left it.

        ``changes``: the next ranking of a pod that it concerns must have read DECISIONS, so it names its positions.
        """
        size = bytes_of(pod)
        old, new = (pod, None) if event is ROOM_FREED else (None, pod)
        self._held_log.record(event, old, new, change=changes, sequence=sequence, size=size)
        self._check_later(event, old, new, changes, size)

    def on_group_ended(self, sequence: int, changes: int) -> None:
        """A group that waited is not bound: its room is free, on nodes that only the binder knew, since ``sequence``.

        So no hints are asked, and every Decision before counts as having missed an event.
        """
        self._held_log.lack_below(sequence)
        if len(self._waiting):
            last = self._waiting.last_added
            unchecked = _UncheckedEvent(event=ROOM_FREED, old=None, new=None, change=changes, last_waiting=last, size=0)
            unchecked.steps = self._waiting.waiting_for(ROOM_FREED)
            self.unchecked.append(unchecked)

    def on_live_data(self, event: ClusterEvent, news: LiveDataUpdate, sequence: int) -> None:
        """The live data are stored already."""
        if self._hints.is_event_registered(event):
            size = len(news.data or b"")
            self._live_logs[news.source.bucket].record(event, None, news, sequence=sequence, size=size)
            self._check_later(event, None, news, 0, size)

    def on_settled(self, change: int, position: int) -> None:
        """The mirror has stored every change up to ``change``, at or below ``position``."""
        self._cluster_log.on_settled(change, position)

    def helped(self) -> Iterator[QueuedPod]:
        """Waiting pods that an event may help, while the slice has time. The caller must move each."""
        while self.unchecked:
            unchecked = self.unchecked[0]
            if len(self.unchecked) > MAX_EVENTS or self._unchecked_bytes > MAX_EVENT_BYTES:
                unchecked.steps = self._waiting.waiting_for(unchecked.event)
            for pods in self._helped_by(unchecked):
                yield from pods
                if unchecked.is_done:
                    self._forget(unchecked)
                if not self._clock.may_continue():
                    return

    def _check_later(  # noqa: PLR0913 - an event, and whom it may help
        self, event: ClusterEvent, old: object, new: object, change: int, size: int, *, above: int | None = None
    ) -> None:
        """Queue an event whose hints run at the end of the slice, or later. Updates of one node merge.

        They do not merge if a pod began to wait in between: it has seen the first only.
        """
        if not len(self._waiting):
            return
        last_waiting = self._waiting.last_added
        if isinstance(old, Node) and isinstance(new, Node):
            earlier = self._unchecked_nodes.get(new.metadata.name)
            if earlier is not None and last_waiting == earlier.last_waiting and earlier.merge(new, change):
                self._unchecked_bytes += size - earlier.size
                earlier.size = size
                return
        unchecked = _UncheckedEvent(
            event=event, old=old, new=new, change=change, last_waiting=last_waiting, size=size, above=above
        )
        self.unchecked.append(unchecked)
        self._unchecked_bytes += size
        if isinstance(new, Node):
            self._unchecked_nodes[new.metadata.name] = unchecked

    def _helped_by(self, unchecked: _UncheckedEvent) -> Iterator[list[QueuedPod]]:
        """Pods that an event may help, in parts of at most PODS_AT_ONCE, each oldest first."""
        found: dict[str, QueuedPod] = {}
        if unchecked.steps is None:
            unchecked.steps = self._waiting.helped_by(unchecked.event, unchecked.old, unchecked.new)
        for pod in unchecked.steps:
            if pod is not None and pod.stage in WAITING_FOR_EVENT and unchecked.may_help(pod):
                found[pod.uid] = pod
            if len(found) >= PODS_AT_ONCE or not self._clock.may_continue():
                yield self._requeued(found, unchecked)
                found = {}
        unchecked.is_done = True
        yield self._requeued(found, unchecked)

    def _forget(self, unchecked: _UncheckedEvent) -> None:
        self.unchecked.popleft()
        self._unchecked_bytes -= unchecked.size
        if self._unchecked_nodes.get(unchecked.node) is unchecked:
            del self._unchecked_nodes[unchecked.node]

    def _requeued(self, found: Mapping[str, QueuedPod], unchecked: _UncheckedEvent) -> list[QueuedPod]:
        pods = sorted(found.values(), key=lambda pod: pod.timestamp)
        for pod in pods:
            pod.mirror_change = max(pod.mirror_change, unchecked.change)
            pod.incoming_event = label_of(unchecked.event)
        return pods

    def _retry_soon(self, pod: QueuedPod, failed_at: Timestamp, changes: int) -> Wait | None:
        pod.conflicts += 1
        pod.incoming_event = ATTEMPT_FAILED
        if pod.conflicts >= MAX_CONFLICTS:
            return self.on_error(pod, failed_at)
        pod.at_front = True
        if self.passes_or_awaits_versions(pod, changes):
            return None
        return Wait(Stage.AWAITING_VERSIONS, self._clock.now + self._settings.versions_seconds)

    def _fail(self, pod: QueuedPod, failed_at: Timestamp) -> None:
        pod.failures += 1
        pod.conflicts = 0
        pod.incoming_event = ATTEMPT_FAILED
        pod.at_front = False
        pod.timestamp = failed_at.wall
        pod.backoff_until = failed_at.monotonic + self._settings.backoff.after(pod.failures)

    def _back_off_after_event(self, pod: QueuedPod) -> Wait:
        """The back-off of a pod that an event may help may end early, but not often (``early_from``)."""
        early_from = pod.early_from(self._settings.backoff.initial.total_seconds())
        if self._clock.now >= early_from:
            return Wait(Stage.BACKOFF, pod.backoff_until, early=True)
        return Wait(Stage.BACKOFF, min(early_from, pod.backoff_until))

    def _missed_change(
        self, pod: QueuedPod, positions: Positions, changes: int, known: Positions
    ) -> _MissedChange | None:
        """The mirror's change of a helping event that the ranking had not seen; ``None`` if there is no such event."""
        unknown = _MissedChange(change=changes, is_known=False)
        if self._may_lack_events(positions, known):
            return unknown
        if self._may_lack_live_data(pod, positions):
            return _MissedChange(change=0, is_known=False)
        live = ((log, position) for _, log, position in self._live_logs_since(positions))
        checked = 0
        stored = ((self._cluster_log, positions.cluster), (self._held_log, positions.decisions))
        for log, position in (*stored, *live):
            for event, old, new, change in log.since(position, priority_of(pod.pod)):
                checked += 1
                if log is self._held_log and any(isinstance(each, Pod) and each.uid == pod.uid for each in (old, new)):
                    continue  # its own wait
                if checked > EVENTS_AT_ONCE and not self._clock.may_continue():
                    return unknown
                if self._hints.may_help(pod, event, old, new):
                    return _MissedChange(change=change, is_known=True)
        return None

    def _may_lack_events(self, positions: Positions, known: Positions) -> bool:
        if positions.cluster > known.cluster or 0 < known.decisions < positions.decisions:
            return True  # numbers of a deleted stream
        lacks_changes = self._cluster_log.may_lack_events_since(positions.cluster)
        return lacks_changes or self._held_log.may_lack_events_since(positions.decisions)

    def _may_lack_live_data(self, pod: QueuedPod, positions: Positions) -> bool:
        """Whether a sample or fact that could help may have left its log since the pod's ranking.

        A pass of a collector may write more than a log keeps.
        """
        return any(
            position > 0 and log.may_lack_events_since(position) and self._hints.awaits(pod, event)
            for event, log, position in self._live_logs_since(positions)
        )

    def _live_logs_since(self, positions: Positions) -> Iterator[tuple[ClusterEvent, EventLog, int]]:
        """Each log of live data, with its event and the position up to which the ranking has read its bucket."""
        yield LIVE_DATA_EVENTS[BANDWIDTH], self._live_logs[BANDWIDTH], positions.bandwidth
        yield LIVE_DATA_EVENTS[FACTS], self._live_logs[FACTS], positions.facts


@dataclass(frozen=True, slots=True, kw_only=True)
class _MissedChange:
    """The mirror's change that the next ranking must see. Not ``is_known``: perhaps no event helps."""

    change: int
    is_known: bool


@dataclass(slots=True, kw_only=True, eq=False)
class _UncheckedEvent:
    """An event whose hints have not all run. ``change`` is 0 if it is stored already."""

    event: ClusterEvent
    old: object
    new: object
    change: int
    last_waiting: int  # generation of the last waiting pod then; later pods do not wait for it
    size: int  # bytes of the objects as JSON
    above: int | None = None  # only pods of a higher priority are helped; None: all
    steps: Iterator[Step] | None = None  # work left; None before the first step
    is_done: bool = False

    @property
    def node(self) -> str:
        return self.new.metadata.name if isinstance(self.new, Node) else ""

    def may_help(self, pod: QueuedPod) -> bool:
        # A later generation was rejected with the event in view, or has been compared with the log.
        return pod.generation <= self.last_waiting and (self.above is None or priority_of(pod.pod) > self.above)

    def merge(self, new: Node, change: int) -> bool:
        """Merge a later update of the node into this one, unless its hints have begun to run."""
        if self.steps is not None or not isinstance(self.old, Node):
            return False
        self.event = ClusterEvent(self.event.resource, node_update_actions(self.old, new))
        self.new, self.change = new, change
        return True


def _versions(decision: DecisionSummary) -> dict[str, int]:
    """The Decision's resourceVersions that are numbers, by kind."""
    versions = {kind: version_number(text) for kind, text in decision.resource_versions.items()}
    return {kind: version for kind, version in versions.items() if version}


@dataclass(slots=True, kw_only=True)
class _LoggedEvent:
    event: ClusterEvent
    old: object
    new: object
    change: int
    stored_by: int | None  # it is stored at or below this sequence; None if unknown
    size: int  # bytes of the objects as JSON
    above: int | None  # only pods of a higher priority are helped; None: all


class EventLog:
    """The latest events of one source (``cluster``, ``bandwidth``, ``facts`` or DECISIONS), in order."""

    def __init__(self, *, max_events: int = MAX_EVENTS, max_bytes: int = MAX_EVENT_BYTES) -> None:
        self._max_events = max_events
        self._max_bytes = max_bytes
        self._bytes = 0
        self._events: deque[_LoggedEvent] = deque()
        self._unstored: deque[_LoggedEvent] = deque()
        # The log lacks the events up to this change, which is not stored yet, so their positions are unknown.
        self._begins_after_change: int | None = None
        self._begins_at_position = 0  # it may lack events below this position

    def begin(self, change: int, position: int) -> None:
        """The log lacks events below a position, and up to a change that is not stored."""
        self._begins_after_change, self._begins_at_position = change, position

    def lack_below(self, position: int) -> None:
        """The log lacks events below a position."""
        self._begins_at_position = max(self._begins_at_position, position)

    def record(  # noqa: PLR0913 - an event, and where it is stored
        self,
        event: ClusterEvent,
        old: object,
        new: object,
        *,
        change: int = 0,
        sequence: int | None = None,
        size: int = 0,
        above: int | None = None,
    ) -> None:
        """Add an event: of a change that the mirror is storing, or stored at ``sequence`` already.

        ``size``: bytes of its objects as JSON. ``above``: it helps only pods of a higher priority.
        """
        logged = _LoggedEvent(event=event, old=old, new=new, change=change, stored_by=sequence, size=size, above=above)
        self._events.append(logged)
        self._bytes += size
        if sequence is None:
            self._unstored.append(logged)
        while len(self._events) > self._max_events or self._bytes > self._max_bytes:
            self._drop_oldest()

    def help_all(self, event: ClusterEvent, change: int) -> None:
        """From now on an event that has helped only pods of a higher priority helps all."""
        for logged in reversed(self._events):
            if logged.change == change and logged.event == event:
                logged.above = None

    def _drop_oldest(self) -> None:
        # Unstored events go too, because a full bucket may refuse writes for hours.
        oldest = self._events.popleft()
        self._bytes -= oldest.size
        if oldest.stored_by is not None:
            self._begins_at_position = max(self._begins_at_position, oldest.stored_by)
        else:
            self._unstored.popleft()  # the same one: both are in order
            self._begins_after_change = max(self._begins_after_change or 0, oldest.change)

    def on_settled(self, change: int, position: int) -> None:
        """Every change up to ``change`` is stored, at or below ``position``."""
        while self._unstored and self._unstored[0].change <= change:
            self._unstored.popleft().stored_by = position
        if self._begins_after_change is not None and self._begins_after_change <= change:
            self._begins_after_change = None
            self._begins_at_position = max(self._begins_at_position, position)

    def may_lack_events_since(self, position: int) -> bool:
        """Whether events after this position may be missing in the log."""
        return self._begins_after_change is not None or position < self._begins_at_position

    def since(self, position: int, priority: int) -> Iterator[tuple[ClusterEvent, object, object, int]]:
        """Events not known to be stored at or below a position, newest first, with their change.

        Without those that help no pod of this priority.
        """
        for logged in reversed(self._events):
            if logged.stored_by is not None and logged.stored_by <= position:
                return
            if logged.above is None or priority > logged.above:
                yield logged.event, logged.old, logged.new, logged.change


MIN_ENDED_WAITS: Final = 64  # a heap is compacted above this many ended waits


class VersionGate:
    """The version that each kind has reached, and the pods that wait for more.

    A wait costs O(log n), an event that no pod waits for O(1). A pod waits for one version at a time. Ended waits are
    removed when they are more than half of a heap.
    """

    def __init__(self, kinds: Iterable[str]) -> None:
        self._reached: dict[str, int] = dict.fromkeys(kinds, 0)
        self._waiting: dict[str, list[tuple[int, int, str]]] = {kind: [] for kind in self._reached}
        self._wait_of: dict[str, int] = {}
        self._waits = itertools.count()

    def __len__(self) -> int:
        """Entries kept, ended ones included."""
        return len(self._wait_of) + sum(len(waiting) for waiting in self._waiting.values())

    def pass_or_wait(self, uid: str, versions: Mapping[str, int]) -> bool:
        """Whether all versions are reached; if not, a later call returns the uid. Unknown kinds are ignored."""
        for kind, version in versions.items():
            if self._reached.get(kind, version) < version:
                self._wait_of[uid] = wait = next(self._waits)
                heapq.heappush(self._waiting[kind], (version, wait, uid))
                self._remove_ended(kind)
                return False
        self.end(uid)
        return True

    def end(self, uid: str) -> None:
        self._wait_of.pop(uid, None)

    def on_version(self, kind: str, version: int) -> list[str]:
        """Returns the pods that waited for this version."""
        if version <= self._reached[kind]:
            return []
        self._reached[kind] = version
        ready, waiting = [], self._waiting[kind]
        while waiting and waiting[0][0] <= version:
            _, wait, uid = heapq.heappop(waiting)
            if self._wait_of.get(uid) == wait:
                ready.append(uid)
        return ready

    def on_list(self, kind: str, version: int) -> list[str]:
        """The same after a LIST, whose version may be lower if the API server has a new store."""
        ready = self.on_version(kind, version)
        self._reached[kind] = version
        return ready

    def _remove_ended(self, kind: str) -> None:
        waiting = self._waiting[kind]
        if len(waiting) > 2 * len(self._wait_of) + MIN_ENDED_WAITS:
            waiting[:] = [entry for entry in waiting if self._wait_of.get(entry[2]) == entry[1]]
            heapq.heapify(waiting)
