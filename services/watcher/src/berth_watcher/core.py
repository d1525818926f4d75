"""The watcher's core: events in, effects out, with an injected clock and no I/O, so that the simulation runs it too.

The core passes values between its parts: store, mirror, requeue, and what moves pods and groups between the stages of
the queue (``stages``). Each of these returns its effects.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any, Final

from berth.api.kinds import DEVICE_KINDS, OPTIONAL_KINDS
from berth.api.meta import KubernetesObject
from berth.api.pod import Pod, changed, priority_of
from berth.cluster.failures import NodeFailureLog
from berth.errors import DecodeError
from berth.framework.events import EARMARK_ENDED, Action, ClusterEvent, LiveDataUpdate, Resource
from berth.framework.profile import Profile
from berth.kube.listwatch import Listed, ListedPart, ReflectorEvent, Undecodable
from berth.messages.earmarks import EARMARK, Earmark
from berth.messages.livedata import FACTS, POD_FAILURES, LiveBucket, decode_failures
from berth.messages.mirror import watermark_key
from berth.messages.subjects import Attempt, Term, key
from berth.plugins.additional.nodefailures import NodeFailures
from berth_watcher.attempts import Attempts, HeldRooms
from berth_watcher.events import (
    REFLECTOR_EVENTS,
    AttemptLookedUp,
    BucketComplete,
    BucketEntryRead,
    DecisionReceived,
    DrainRead,
    Effect,
    Event,
    FactNotWritten,
    KeyLookedUp,
    KeyTooLarge,
    KeyWriteFailed,
    KeyWritten,
    LiveDataComplete,
    LiveDataReceived,
    Note,
    PodGroupsSought,
    PodRead,
    PublishNotStored,
    PublishRefused,
    QueueStarted,
    RetryRequested,
    SeekPodGroups,
    StreamsRead,
    WriteFailures,
)
from berth_watcher.grouping import GROUP_KINDS, Grouping, Lacking, form_of
from berth_watcher.metrics import Figures
from berth_watcher.mirror import (
    NO_CHANGE,
    UNKNOWN_VERSION,
    DesiredEntry,
    Mirror,
    Watermarks,
    affinity_warnings,
    desired_entry,
)
from berth_watcher.queue.answers import QueueAnswers
from berth_watcher.queue.earmarks import ShownEarmarks
from berth_watcher.queue.groups import GroupEntry, QueuedGroup
from berth_watcher.queue.hints import QueueingHints, UnschedulablePods
from berth_watcher.queue.nominatednodes import POD_LEAVES
from berth_watcher.queue.queuedpod import EventClock, QueuedPod, Stage, Timestamp, always
from berth_watcher.queue.requeue import Requeue
from berth_watcher.queue.schedulingqueue import QueuePlugins, SchedulingQueue
from berth_watcher.settings import AttemptSettings
from berth_watcher.stages.decisions import Decisions
from berth_watcher.stages.groups import GroupStages
from berth_watcher.stages.pods import PodStages, QueueParts
from berth_watcher.store import (
    LIVE_DATA_EVENTS,
    ObjectChange,
    ObjectStore,
    UndecodableObjects,
    as_new,
    cluster_events,
    live_data_event,
)
from berth_watcher.takeover import FormerState, TakeoverState

# Events with which a takeover makes progress.
TAKEOVER_STEPS: Final = (BucketEntryRead, BucketComplete, StreamsRead, KeyWritten, KeyTooLarge, KeyLookedUp)

# Stages of a pod whose latest attempt may have no Decision yet; it is active once its slots were given back.
UNDECIDED: Final = frozenset({Stage.RECOVERING, Stage.IN_FLIGHT, Stage.ACTIVE, Stage.AWAITING_MIRROR})

# Objects taken in between two renewals of the Lease: a few milliseconds, where a large cluster takes seconds.
OBJECTS_IN_A_STEP: Final = 250

# Events are gathered this long while pods wait for a slot of the window, otherwise handled at once: a call of the core
# costs 30 µs for one event or twenty, and pods published together stay together in scorer and binder (ADR 33). Filling
# a slot that much later delays no pod.
GATHER_SECONDS: Final = 0.02

# Requeues every pod that waits for devices.
DEVICES_READ: Final = ClusterEvent(Resource.DEVICE_CLASS, Action.UPDATE)


class WatcherCore:
    """One term of a watcher: call ``begin`` once, then ``handle`` repeatedly.

    The queue runs once the bus has been read and the bucket ``cluster`` holds every difference found.
    """

    def __init__(  # noqa: PLR0913 - what a term begins with
        self,
        *,
        term: Term,
        store: ObjectStore,
        profiles: Mapping[str, Profile],
        settings: AttemptSettings,
        started: Timestamp,
        max_writes: int,
        lacks_groups: Lacking = lambda _profile: "",
    ) -> None:
        """``lacks_groups``: why messages about groups of a profile would not be understood; empty if they are."""
        self._store = store
        self._profiles = profiles
        self._clock = clock = EventClock(started)
        self._mirror = Mirror(term, max_writes=max_writes)
        self._watermarks = Watermarks(store.kinds)
        self._undecodable = UndecodableObjects(profiles)
        self._queue = SchedulingQueue(profiles, clock)
        self._plugins = plugins = QueuePlugins(profiles, clock)
        self._hints = hints = QueueingHints(profiles, plugins, store.is_placed)
        self._attempts = Attempts(term=term, clock=clock, profiles=profiles, settings=settings)
        self._requeue = Requeue(
            clock=clock,
            hints=hints,
            waiting=UnschedulablePods(profiles, hints, store.room_of),
            kinds=store.kinds,
            settings=settings.requeue,
        )
        self._grouping = Grouping(profiles, clock=clock, queue=self._queue, store=store, lacking=lacks_groups)
        self.answers: Final = QueueAnswers(self._queue, self._attempts, profiles, self._store.claims, clock)
        # Room of lost members that helps others later, with their group.
        self._late: list[tuple[QueuedGroup, Callable[[], None]]] = []
        self._failures = NodeFailureLog(end for profile in profiles.values() for end in failure_ends(profile))
        self._held_rooms = HeldRooms()
        self._earmarks = ShownEarmarks(self._show_earmark)
        parts = QueueParts(
            profiles=profiles,
            settings=settings,
            clock=clock,
            store=store,
            mirror=self._mirror,
            queue=self._queue,
            plugins=plugins,
            hints=hints,
            requeue=self._requeue,
            attempts=self._attempts,
            grouping=self._grouping,
            held_rooms=self._held_rooms,
            earmarks=self._earmarks,
        )
        self._pods = PodStages(parts)
        self._groups = GroupStages(parts, self._pods)
        self._decisions = Decisions(parts, self._pods)
        self._takeover = TakeoverState()
        self._drain_read = -1  # sequence of the last entry read from the key drain
        self._steps = 0
        self._settled = -1  # the mirror's last change of which the requeue knows that it is stored
        self._handlers = self._routes()

    def begin(self, now: float) -> Iterator[list[Effect]]:
        """Take in the store, one step per item; the store must not change until the last step.

        Does not write or publish. In one step 200,000 pods would take as long as a Lease.
        """
        self._clock.now = now
        taken, effects = 0, list[Effect]()
        for kind in self._store.kinds:
            for name, thing in self._store.of(kind).items():
                effects += self._mirror_object(kind, name, thing)[1]
                if (form := form_of(thing)) is not None:
                    self._grouping.observe_group(form)
                if isinstance(thing, Pod):
                    effects += self._on_pod(name, thing)
                taken += 1
                if taken % OBJECTS_IN_A_STEP == 0:
                    yield effects
                    effects = []
            effects += self._pods.on_version(kind, self._store.versions[kind], listed=True)
            self._watermarks.on_version(kind, str(self._store.versions[kind]), self._mirror.changes)
            if kind in OPTIONAL_KINDS:  # the former watcher may have read what this one cannot, or the reverse
                self._mirror_unread(kind)
        for undecodable in self._store.undecodable.values():
            effects += self._undecodable.report(undecodable)
        self._groups.review_changed()
        self._requeue.begin(self._mirror.changes, position=0)
        yield [*effects, *self._plugins.take_warnings()]

    def handle(self, events: Iterable[Event], now: float, may_continue: Callable[[], bool] = always) -> list[Effect]:
        """Handle events in order, then requeue pods they may help, run timers, and publish active pods.

        ``now`` is in monotonic seconds. Once ``may_continue`` is false, remaining work waits for the next call.
        """
        self._clock.now, self._clock.may_continue = now, may_continue
        effects: list[Effect] = []
        for event in events:
            effects += self._handlers[type(event)](event)
            # Failed writes count, because a full bus keeps pods waiting without a failure of this watcher.
            if isinstance(event, KeyWriteFailed) or (not self._pods.is_running and isinstance(event, TAKEOVER_STEPS)):
                self._steps += 1
        if self._late:
            self._end_delays()
        if self._earmarks:
            self._earmarks.end_due(now)
        if self._requeue.unchecked:
            for queued in self._requeue.helped():
                effects += self._pods.try_again(queued)
        effects += self._mirror.take_writes()
        settled = self._mirror.settled
        watermarks: list[Effect] = []
        for kind, version in self._watermarks.pop_due(now, settled):
            desired = DesiredEntry(watermark=version, unread=self._store.unread.get(kind, ""))
            self._mirror.set_desired(watermark_key(kind), desired, numbered=False)
            watermarks += self._mirror.take_writes()
        if settled != self._settled:
            self._settled = settled
            self._requeue.on_settled(settled, self._mirror.position)
        effects += self._write_failures()  # before the pods that replace those that failed
        effects += self._run_queue(settled)
        effects += watermarks
        return [*effects, *self._plugins.take_warnings()] if self._plugins.warnings else effects

    @property
    def is_queue_running(self) -> bool:
        return self._pods.is_running

    @property
    def waiting(self) -> int:
        """Pods whose next step is this watcher's: they wait for their turn, the takeover or the mirror."""
        return 0 if self._attempts.window.is_closed else self._queue.active

    @property
    def progress(self) -> int:
        """A counter of progress: if it stops rising for half a minute, waiting pods are stuck."""
        return self._attempts.progress + self._steps

    def due(self) -> float | None:
        """Monotonic seconds at which work is due without an event; ``None`` for never."""
        settled = self._mirror.settled
        if self._mirror.may_write or self._requeue.unchecked or self._takeover.left:
            return self._clock.now
        mark = self._watermarks.next_due(settled)
        if self._queue.has_stored(settled):
            return self._clock.now
        late = (each.broken_until if each.is_begun else self._clock.now for each, _ in self._late)
        failures = self._failures.next_due()
        of_failures = None if failures is None else self._clock.now + failures - self._unix_seconds()
        timers = (mark, of_failures, self._queue.next_due(), self._earmarks.due(), self._pods.held_back_until, *late)
        return min((each for each in timers if each is not None), default=None)

    def gather_seconds(self) -> float:
        return GATHER_SECONDS if self._pods.is_running and self.waiting else 0.0

    def recovering_pods(self) -> list[QueuedPod]:
        """Pods whose messages the takeover must find on the bus."""
        return [pod for pod in self._queue.pods() if pod.stage is Stage.RECOVERING]

    def live_buckets(self) -> list[LiveBucket]:
        """Buckets of live data whose events a plugin registered, and those in which this watcher writes."""
        written = [FACTS] if self._failures.is_kept else []
        return [
            bucket
            for bucket, event in LIVE_DATA_EVENTS.items()
            if bucket in written or self._hints.is_event_registered(event)
        ]

    @property
    def queue_entries(self) -> int:
        """Entries in the queue's heaps, stale ones included."""
        return self._queue.entries

    def find(self, uid: str) -> QueuedPod | None:
        return self._queue.get(uid)

    def needs(self, attempt: Attempt) -> bool:
        """Whether PENDING must keep the attempt's message: it is its pod's latest one, and not decided."""
        queued = self._queue.get(attempt.uid)
        return queued is not None and queued.attempt == attempt and queued.stage in UNDECIDED

    def figures(self, now: float) -> Figures:
        window, queues = self._attempts.window, self._queue.waiting_pods()
        left_out = Counter(kind for kind, _, _ in self._store.undecodable)
        queues["active"] += self._attempts.not_stored
        return Figures(
            pending=self._grouping.pending(queues),
            queues=queues,
            unschedulable=self._queue.unschedulable({name: each.rejecting for name, each in self._profiles.items()}),
            incoming=self._queue.incoming,
            in_flight=window.used(),
            window_size=window.sizes(now),
            groups=self._grouping.counts(),
            is_draining=window.is_closed,
            stalled=self._attempts.stalled.pods(),
            objects={kind: len(self._store.of(kind)) for kind in self._store.kinds},
            unsettled_keys=self._mirror.unsettled_keys,
            reduced=self._mirror.reduced() + self._undecodable.counts() + left_out,
        )

    def _routes(self) -> Mapping[type, Callable[[Any], Sequence[Effect]]]:
        mirror = self._mirror
        return {
            **dict.fromkeys(REFLECTOR_EVENTS, self._on_reflector),
            DecisionReceived: self._on_decision,
            BucketEntryRead: self._on_entry_read,
            BucketComplete: self._on_bucket_complete,
            KeyWritten: lambda event: mirror.on_written(event.key, event.sequence),
            KeyWriteFailed: lambda event: mirror.on_write_failed(event.key),
            KeyTooLarge: lambda event: mirror.on_too_large(event.key, event.reason),
            KeyLookedUp: self._on_key_looked_up,
            PodRead: self._decisions.on_pod_read,
            AttemptLookedUp: self._decisions.on_looked_up,
            PublishRefused: self._decisions.on_publish_refused,
            PublishNotStored: self._decisions.on_publish_not_stored,
            LiveDataReceived: self._on_live_data,
            LiveDataComplete: self._on_live_data_complete,
            FactNotWritten: self._on_fact_not_written,
            StreamsRead: self._on_streams_read,
            DrainRead: self._on_drain_read,
            RetryRequested: self._pods.on_retry_requested,
            PodGroupsSought: self._on_pod_groups_sought,
        }

    def _on_reflector(self, event: ReflectorEvent[KubernetesObject]) -> Sequence[Effect]:
        effects: list[Effect] = []
        before, was_absent = self._store.unread.get(event.kind, ""), event.kind in self._store.absent
        for change in self._store.apply(event):
            effects += self._on_change(change)
        if self._store.unread.get(event.kind, "") != before:
            number = self._mirror_unread(event.kind)
            if event.kind in DEVICE_KINDS:
                self._requeue.on_cluster_event(DEVICES_READ, None, None, number)
            else:
                self._grouping.mark_all()
        if was_absent is not (event.kind in self._store.absent):
            self._grouping.mark_all()
        if isinstance(event, ListedPart):
            return effects  # the kind is complete up to a version again only after the last part of the LIST
        if isinstance(event, Undecodable):
            effects += self._undecodable.report(event)
        version = self._store.versions[event.kind]
        self._watermarks.on_version(event.kind, str(version), self._mirror.changes)
        return [*effects, *self._pods.on_version(event.kind, version, listed=isinstance(event, Listed))]

    def _on_pod_groups_sought(self, event: PodGroupsSought) -> Sequence[Effect]:
        self._grouping.on_sought(event.dialect)
        return ()

    def _on_change(self, change: ObjectChange) -> Sequence[Effect]:
        number, effects = self._mirror_object(change.kind, change.name, change.new)
        if number != NO_CHANGE:
            for event, old, new in cluster_events(change):
                self._on_cluster_event(event, old, new, number)
            if (rewritten := as_new(change)) is not None:
                self._requeue.on_rewritten(*rewritten, number)
        if change.kind in GROUP_KINDS:
            self._groups.on_pod_group(change)
        if change.kind != "pod":
            return effects
        pod = change.new if isinstance(change.new, Pod) else None
        if self._held_rooms.rooms:
            self._decisions.pod_shown(change.name, pod)
        return [*effects, *self._on_pod(change.name, pod)]

    def _on_pod(self, uid: str, pod: Pod | None) -> Sequence[Effect]:
        if pod is not None and pod.status.failure is not None:
            self._failures.observe(pod, self._unix_seconds())
        return self._pods.on_pod(uid, pod)

    def _on_cluster_event(self, event: ClusterEvent, old: object, new: object, number: int) -> None:
        broken = None
        # A pod that begins to terminate wakes too, and may be gone by the time of the attempt.
        if POD_LEAVES.matches(event) and len(self._grouping) and isinstance(old, Pod):
            broken = self._grouping.broken(old.uid)
        if broken is None:
            self._requeue.on_cluster_event(event, old, new, number)
            return
        self._requeue.on_cluster_event(event, old, new, number, above=priority_of(old) if isinstance(old, Pod) else 0)
        self._late.append((broken, partial(self._requeue.on_late_event, event, old, new, number)))

    def _end_delays(self) -> None:
        """Let the room of lost members help others once it is not left to replacements any more."""
        late, self._late = self._late, []
        for group, helps in late:
            if group.is_begun and self._clock.now < group.broken_until:
                self._late.append((group, helps))
            else:
                helps()

    def _show_earmark(self, profile: str, earmark: Earmark | None) -> None:
        """Mirror a profile's earmark. Its end may help the pods that it kept out."""
        desired = None if earmark is None else DesiredEntry(object=earmark)
        number = self._mirror.set_desired(key(EARMARK, profile), desired)
        if earmark is None:
            self._requeue.on_cluster_event(EARMARK_ENDED, None, None, number)

    def _mirror_object(self, kind: str, name: str, thing: KubernetesObject | None) -> tuple[int, Sequence[Effect]]:
        """Mirror the object. Returns the change's number, and warnings about the object."""
        desired = desired_entry(thing)
        number = self._mirror.set_desired(key(kind, name), desired)
        warnings = affinity_warnings(thing) if number != NO_CHANGE and desired is not None else []
        return number, [*warnings, *self._undecodable.look_at(kind, name, thing)]

    def _mirror_unread(self, kind: str) -> int:
        """Mirror whether the kind can be read before the pods for which that matters are published."""
        desired = DesiredEntry(watermark=UNKNOWN_VERSION, unread=self._store.unread.get(kind, ""))
        return self._mirror.set_desired(watermark_key(kind), desired)

    def _on_entry_read(self, event: BucketEntryRead) -> Sequence[Effect]:
        self._mirror.on_read(event.entry)
        return ()

    def _on_key_looked_up(self, event: KeyLookedUp) -> Sequence[Effect]:
        self._mirror.on_looked_up(event.key, event.entry)
        return ()

    def _on_bucket_complete(self, event: BucketComplete) -> Sequence[Effect]:
        self._mirror.start_writing(event.position)
        self._requeue.begin(self._mirror.changes, event.position)
        self._settled = -1
        self._takeover.last_difference = self._mirror.changes
        return ()

    def _on_live_data(self, event: LiveDataReceived) -> Sequence[Effect]:
        found = live_data_event(event)
        if found is not None:
            self._requeue.on_live_data(*found, event.sequence)
            if found[1].source == POD_FAILURES:
                self._adopt_failures(found[1])
        return ()

    # --- failures of pods on their nodes, for NodeFailures

    def _adopt_failures(self, former: LiveDataUpdate) -> None:
        with suppress(DecodeError):  # users who write facts may write any
            if former.data is not None:
                self._failures.adopt(former.node, decode_failures(former.data), self._unix_seconds())

    def _on_live_data_complete(self, event: LiveDataComplete) -> Sequence[Effect]:
        if event.bucket == FACTS:
            self._failures.begin()
        return ()

    def _on_fact_not_written(self, event: FactNotWritten) -> Sequence[Effect]:
        self._failures.on_not_written(event.node, self._unix_seconds())
        return ()

    def _write_failures(self) -> Sequence[Effect]:
        if self._failures.next_due() is None:
            return ()
        due = self._failures.take_due(self._unix_seconds())
        return [WriteFailures(node=node, fact=fact) for node, fact in due]

    def _unix_seconds(self) -> float:
        return self._clock.timestamp().wall.timestamp()

    # --- a takeover

    def _on_streams_read(self, event: StreamsRead) -> Sequence[Effect]:
        self._takeover.streams, self._takeover.streams_read_at = event, self._clock.now
        return ()

    def _start_queue(self) -> Sequence[Effect]:
        """Continue every pod from its former state, in slices; the mirror has stored every difference."""
        takeover, effects = self._takeover, list[Effect]()
        self._attempts.takeover_position = self._mirror.position
        if not takeover.left:
            takeover.left.extend(self.recovering_pods())
        while takeover.left:
            queued = takeover.left.popleft()
            if self._queue.get(queued.uid) is queued and queued.stage is Stage.RECOVERING:
                effects += self._continue(queued)
            if takeover.left and not self._clock.may_continue():
                return effects
        self._pods.is_running = True
        for queued in self.recovering_pods():  # pods added or changed in earlier slices
            effects += self._continue(queued)
        self._grouping.mark_all(helps=False)
        for event in takeover.decisions:
            effects += self._decisions.decide(event)
        self._takeover = TakeoverState()
        return [*effects, QueueStarted()]

    def _continue(self, queued: QueuedPod) -> Sequence[Effect]:
        """Continue the pod in flight (after ``waiting`` without a slot in the window), or handle its Decision."""
        state = self._takeover.former_state(queued.uid)
        if (last := self._takeover.last_decision(queued.uid)) is not None:
            self._held_rooms.decided(last.decision, queued.pod)
            if last.decision.earmark is not None:
                age = last.age_seconds + self._clock.now - self._takeover.streams_read_at
                self._earmarks.decided(last.decision, last.time, self._clock.now, age)
        return [*self._attempts.restore(queued, state), *self._go_on_from(queued, state)]

    def _go_on_from(self, queued: QueuedPod, state: FormerState) -> Sequence[Effect]:
        if state.final_decision is not None:
            last = state.final_decision
            since_read = self._clock.now - self._takeover.streams_read_at
            return self._decisions.conclude(queued, last.decision, last.time, last.age_seconds + since_read)
        if state.in_flight is None:
            grouped = isinstance(queued, GroupEntry) or self._grouping.keeps(queued)
            return self._pods.move(queued, Stage.GROUPED if grouped else Stage.ACTIVE)
        if state.has_slot:
            self._attempts.acquire(queued)
        if isinstance(queued, GroupEntry):
            self._attempts.restore_members(state.members, self._queue)
            queued.group.published()
            queued.group.has_changed = True  # its members may be others now: the next attempt follows the Decision
            return self._pods.await_decision(queued)
        if queued.refusal or changed(state.in_flight, queued.pod):
            return self._pods.publish(queued)
        return self._pods.await_decision(queued)

    # --- the queue

    def _run_queue(self, settled: int) -> Sequence[Effect]:
        """Move the pods whose changes are stored (up to ``settled``) or whose timer is due; publish active pods."""
        effects: list[Effect] = []
        for queued in self._queue.pop_stored(settled):
            effects += self._pods.activate(queued)
        if not self._pods.is_running and self._takeover.may_start_queue(settled):
            effects += self._start_queue()
        for queued in self._queue.pop_due():
            effects += self._pods.on_timer(queued)
            if not self._clock.may_continue():
                break
        if self._held_rooms.deleted:
            self._held_rooms.forget_deleted(self._clock.now)
        if self._grouping.changed:
            effects += self._groups.review_changed()
        effects += [SeekPodGroups(dialect=dialect) for dialect in self._grouping.take_unsought()]
        return [*effects, *self._pods.publish_active(settled)] if self._pods.is_running else effects

    def _on_decision(self, event: DecisionReceived) -> Sequence[Effect]:
        self._pods.last_decision = max(self._pods.last_decision, event.sequence)
        if not self._pods.is_running:
            self._takeover.decisions.append(event)
            return ()
        return self._decisions.on_decision(event)

    def _on_drain_read(self, event: DrainRead) -> Sequence[Effect]:
        if event.sequence < self._drain_read:
            return ()
        window, self._drain_read = self._attempts.window, event.sequence
        if window.is_closed is event.is_draining:
            return ()
        window.is_closed = event.is_draining
        return [Note(message="draining: no pod is published" if event.is_draining else "draining ended")]


def failure_ends(profile: Profile) -> Iterator[timedelta]:
    """The ages of a failure at which an answer of the profile's NodeFailures changes."""
    for plugin in (*profile.filters, *(score.plugin for score in profile.scores)):
        if isinstance(plugin, NodeFailures):
            yield from plugin.ends
