"""The watcher's core: events in, effects out, with an injected clock and no I/O, so that the simulation runs it too.

The core passes values between its parts: store, mirror, queue, attempts and requeue.

A pod enters with ``_add``, becomes active in ``_enqueue`` (or in ``_activate`` when it is tried again) and goes into
flight in ``_publish_active``. ``_conclude`` handles each outcome of its Decision. Only ``_move`` changes a pod's stage.
Each of these returns its effects.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final

from berth.api.devices import ResourceClaim
from berth.api.kinds import DEVICE_KINDS, OPTIONAL_KINDS
from berth.api.meta import KubernetesObject
from berth.api.pod import Pod, changed, is_gone_while_unbound, priority_of
from berth.api.podgroups import Members
from berth.cluster.failures import NodeFailureLog
from berth.cluster.snapshot import Objects
from berth.errors import DecodeError
from berth.framework.events import (
    EARMARK_ENDED,
    Action,
    ClusterEvent,
    LiveDataUpdate,
    Resource,
    has_other_claims,
    pod_update_actions,
)
from berth.framework.plugincalls import PluginFailure
from berth.framework.profile import Profile
from berth.framework.status import SUCCESS, Status
from berth.kube.listwatch import Listed, ListedPart, ReflectorEvent, Undecodable
from berth.messages.attempts import DecisionSummary, Outcome, Positions, Reason, watermark_key
from berth.messages.earmarks import EARMARK, Earmark
from berth.messages.livedata import FACTS, POD_FAILURES, LiveBucket, decode_failures
from berth.messages.subjects import Attempt, Term, key
from berth.plugins.additional.nodefailures import NodeFailures
from berth_watcher.attempts import Attempts, HeldRooms, is_news
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
    PodRead,
    PublishNotStored,
    PublishRefused,
    QueueStarted,
    ReadPod,
    RetryRequested,
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
from berth_watcher.queue.answers import RETRIED_FROM, QueueAnswers
from berth_watcher.queue.earmarks import ShownEarmarks
from berth_watcher.queue.groups import GroupEntry, GroupGate, QueuedGroup, Way
from berth_watcher.queue.hints import QueueingHints, UnschedulablePods
from berth_watcher.queue.queuedpod import (
    NO_RETRY_SECONDS,
    WAITING_FOR_EVENT,
    EventClock,
    QueuedPod,
    Stage,
    Timestamp,
    always,
    created_at,
    waits,
)
from berth_watcher.queue.requeue import ROOM_FREED, ROOM_HELD, Requeue, Wait
from berth_watcher.queue.schedulingqueue import QueuePlugins, SchedulingQueue
from berth_watcher.settings import AttemptSettings
from berth_watcher.store import (
    LIVE_DATA_EVENTS,
    ObjectChange,
    ObjectStore,
    UndecodableObjects,
    as_new,
    cluster_events,
    label_of_own_update,
    live_data_event,
)
from berth_watcher.takeover import FormerState, TakeoverState

# Events with which a takeover makes progress.
TAKEOVER_STEPS: Final = (BucketEntryRead, BucketComplete, StreamsRead, KeyWritten, KeyTooLarge, KeyLookedUp)

# Stages of a pod whose latest attempt may have no Decision yet; it is active once its slots were given back.
UNDECIDED: Final = frozenset({Stage.RECOVERING, Stage.IN_FLIGHT, Stage.ACTIVE, Stage.AWAITING_MIRROR})

# Outcomes after which a pod is tried again by itself, or goes to its group.
TRIED_AGAIN: Final = frozenset({Outcome.UNSCHEDULABLE, Outcome.PREEMPTING, Outcome.CONFLICT})

# Stages of a group that waits for its pods, and of one whose last attempt failed.
GATHERING: Final = frozenset({Stage.GROUPED, Stage.AWAITING_WATCH})
WAITING_IN_VAIN: Final = frozenset({Stage.AWAITING_WATCH, Stage.BACKOFF, Stage.UNSCHEDULABLE})

# Objects taken in between two renewals of the Lease: a few milliseconds, where a large cluster takes seconds.
OBJECTS_IN_A_STEP: Final = 250

# Events are gathered this long while pods wait for a slot of the window, otherwise handled at once: a call of the core
# costs 30 µs for one event or twenty, and pods published together stay together in scorer and binder (ADR 33). Filling
# a slot that much later delays no pod.
GATHER_SECONDS: Final = 0.02

# Seconds for which a pod may lack a claim before it is published all the same: longer than the controller takes to make
# the claims of templates, so that these pods cost no attempt.
CLAIM_SECONDS: Final = 5.0

# Requeues every pod that waits for devices.
DEVICES_READ: Final = ClusterEvent(Resource.DEVICE_CLASS, Action.UPDATE)

# Seconds after a Decision bound or gone until the API is asked about a pod that the watch still shows unbound.
WATCH_SECONDS: Final = 10.0


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
        self._settings = settings
        self._clock = clock = EventClock(started)
        self._mirror = Mirror(term, max_writes=max_writes)
        self._watermarks = Watermarks(store.kinds)
        self._undecodable = UndecodableObjects(profiles)
        self._queue = SchedulingQueue(profiles, clock)
        self._plugins = plugins = QueuePlugins(profiles, clock)
        self._hints = hints = QueueingHints(profiles, plugins)
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
        self._takeover = TakeoverState()
        self._running = False
        self._drain_read = -1  # sequence of the last entry read from the key drain
        self._last_decision = 0  # sequence of the last Decision received
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
            effects += self._on_version(kind, self._store.versions[kind], listed=True)
            self._watermarks.on_version(kind, str(self._store.versions[kind]), self._mirror.changes)
            if kind in OPTIONAL_KINDS:  # the former watcher may have read what this one cannot, or the reverse
                self._mirror_unread(kind)
        for undecodable in self._store.undecodable.values():
            effects += self._undecodable.report(undecodable)
        self._review_groups()
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
            if isinstance(event, KeyWriteFailed) or (not self._running and isinstance(event, TAKEOVER_STEPS)):
                self._steps += 1
        if self._late:
            self._end_delays()
        if self._earmarks:
            self._earmarks.end_due(now)
        if self._requeue.unchecked:
            for queued in self._requeue.helped():
                effects += self._try_again(queued)
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
        return self._running

    @property
    def waiting(self) -> int:
        """Pods whose next step is this watcher's: they wait for their turn, the takeover or the mirror."""
        return 0 if self._attempts.window.is_closed else self._queue.pending()["active"]

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
        timers = (mark, of_failures, self._queue.next_due(), self._earmarks.due(), *late)
        return min((each for each in timers if each is not None), default=None)

    def gather_seconds(self) -> float:
        return GATHER_SECONDS if self._running and self.waiting else 0.0

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
        window, pending = self._attempts.window, self._queue.pending()
        left_out = Counter(kind for kind, _, _ in self._store.undecodable)
        pending["active"] += self._attempts.not_stored
        return Figures(
            pending=pending,
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
            PodRead: self._on_pod_read,
            AttemptLookedUp: self._on_looked_up,
            PublishRefused: self._on_publish_refused,
            PublishNotStored: self._on_publish_not_stored,
            LiveDataReceived: self._on_live_data,
            LiveDataComplete: self._on_live_data_complete,
            FactNotWritten: self._on_fact_not_written,
            StreamsRead: self._on_streams_read,
            DrainRead: self._on_drain_read,
            RetryRequested: self._on_retry_requested,
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
        return [*effects, *self._on_version(event.kind, version, listed=isinstance(event, Listed))]

    def _on_change(self, change: ObjectChange) -> Sequence[Effect]:
        number, effects = self._mirror_object(change.kind, change.name, change.new)
        if number != NO_CHANGE:
            for event, old, new in cluster_events(change):
                self._on_cluster_event(event, old, new, number)
            if (rewritten := as_new(change)) is not None:
                self._requeue.on_rewritten(*rewritten, number)
        if change.kind in GROUP_KINDS:
            self._on_pod_group(change)
        if change.kind != "pod":
            return effects
        pod = change.new if isinstance(change.new, Pod) else None
        if self._held_rooms.rooms:
            self._free(self._held_rooms.shown(change.name, pod))
        return [*effects, *self._on_pod(change.name, pod)]

    def _on_cluster_event(self, event: ClusterEvent, old: object, new: object, number: int) -> None:
        broken = None
        if event == ROOM_FREED and len(self._grouping) and isinstance(old, Pod):
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
        self._running = True
        for queued in self.recovering_pods():  # pods added or changed in earlier slices
            effects += self._continue(queued)
        self._grouping.mark_all(helps=False)
        for event in takeover.decisions:
            effects += self._decide(event)
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
            return self._conclude(queued, last.decision, last.time, last.age_seconds + since_read)
        if state.in_flight is None:
            grouped = isinstance(queued, GroupEntry) or self._grouping.keeps(queued)
            return self._move(queued, Stage.GROUPED if grouped else Stage.ACTIVE)
        if state.has_slot:
            self._attempts.acquire(queued)
        if isinstance(queued, GroupEntry):
            self._attempts.restore_members(state.members, self._queue)
            queued.group.published()
            queued.group.has_changed = True  # its members may be others now: the next attempt follows the Decision
            return self._await_decision(queued)
        if queued.refusal or changed(state.in_flight, queued.pod):
            return self._publish(queued)
        return self._await_decision(queued)

    # --- a pod enters the queue, changes and leaves

    def _on_pod(self, uid: str, pod: Pod | None) -> Sequence[Effect]:
        """Take in the pod's newest state; ``None`` if it is deleted."""
        self._grouping.observe_pod(uid, pod)
        if pod is not None and pod.status.failure is not None:
            self._failures.observe(pod, self._unix_seconds())
        queued = self._queue.get(uid)
        if pod is not None and waits(pod, self._profiles):
            return self._add(pod) if queued is None else self._update(queued, pod)
        if queued is None:
            return ()
        if queued.stage is Stage.IN_FLIGHT and (pod is None or is_gone_while_unbound(pod)):
            self._held_rooms.left(queued.pod, self._clock.now)
        scheduled = () if pod is None else self._attempts.count_scheduled(queued, pod)
        return [*scheduled, *self._remove(queued)]

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
            return self._activate(queued)
        queued.failure, status = queued.refusal, SUCCESS
        if queued.failure:
            queued.no_retry_until = self._clock.now + NO_RETRY_SECONDS
        else:
            status = self._pre_enqueue(queued, None if despite_claims else self._store.claims)
        if not status.is_success:
            queued.unschedulable_plugins, queued.message = frozenset({status.plugin}), "; ".join(status.reasons)
            due = self._clock.now + CLAIM_SECONDS if queued.pod.spec.resource_claims and not despite_claims else None
            return self._move(queued, Stage.GATED, due=due)
        queued.unschedulable_plugins, queued.message = frozenset(), ""
        if not self._running:
            return self._move(queued, Stage.RECOVERING)
        if queued.pod.spec.resource_claims:
            queued.mirror_change = self._mirror.changes  # the claims that were just shown
        return self._activate(queued)

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
            return self._publish(queued)
        if queued.stage is Stage.UNSCHEDULABLE and _is_other(before, pod):
            return self._try_again(queued)
        if queued.stage is Stage.BACKOFF and queued.failure:
            return self._wait_or_activate(queued, self._requeue.back_off(queued))
        return ()

    def _remove(self, queued: QueuedPod) -> Sequence[Effect]:
        effects = self._attempts.end(queued)
        if isinstance(queued, GroupEntry):
            self._grouping.forget_entry(queued)
        self._requeue.on_removed(queued)
        self._queue.remove(queued)
        return [*effects, note_on(queued, "pod left", node=queued.node)] if self._settings.logs_stages else effects

    # --- a pod goes into flight, and its attempt ends

    def _run_queue(self, settled: int) -> Sequence[Effect]:
        """Move the pods whose changes are stored (up to ``settled``) or whose timer is due; publish active pods."""
        effects: list[Effect] = []
        for queued in self._queue.pop_stored(settled):
            effects += self._activate(queued)
        if not self._running and self._takeover.may_start_queue(settled):
            effects += self._start_queue()
        for queued in self._queue.pop_due():
            effects += self._on_timer(queued)
            if not self._clock.may_continue():
                break
        if self._held_rooms.deleted:
            self._held_rooms.forget_deleted(self._clock.now)
        if self._grouping.changed:
            effects += self._review_groups()
        return [*effects, *self._publish_active(settled)] if self._running else effects

    def _publish_active(self, settled: int) -> Sequence[Effect]:
        """Publish active pods in order while their profile's window has a free slot.

        If no pod of a profile is active and most of its window is free, back-offs end early (docs/protocol.md, 3): only
        for pods that an event may help, and only once the mirror has stored the event.
        """
        window, now, effects = self._attempts.window, self._clock.now, list[Effect]()
        free = window.free(now)
        while True:
            while (queued := self._queue.pop(free, self._admit)) is not None:
                free[queued.profile] -= self._attempts.acquire(queued)
                effects += self._publish(queued, waited=now - (queued.active_since or now))
            if not self._queue.has_early:
                return effects
            queued = self._queue.pop_early(window.free_for_early(now), settled)
            if queued is None:
                return effects
            self._requeue.end_back_off(queued)
            effects += self._activate(queued)

    def _admit(self, queued: QueuedPod) -> int:
        if not isinstance(queued, GroupEntry):
            return 1
        window, profile = self._attempts.window, queued.profile
        return queued.admit(window.used()[profile], window.sizes(self._clock.now)[profile])

    def _publish(self, queued: QueuedPod, *, waited: float | None = None) -> Sequence[Effect]:
        """The caller has acquired the slots in the window."""
        if isinstance(queued, GroupEntry):
            members = [each for pod in queued.members if (each := self._queue.get(pod.uid)) is not None]
            queued.group.published()
            published = self._attempts.publish_group(queued, members, waited=waited)
            return [*published, *self._await_decision(queued)]
        return [*self._attempts.publish(queued, waited=waited), *self._await_decision(queued)]

    def _await_decision(self, queued: QueuedPod) -> Sequence[Effect]:
        return self._move(queued, Stage.IN_FLIGHT, due=self._clock.now + self._settings.look_up_seconds)

    def _on_decision(self, event: DecisionReceived) -> Sequence[Effect]:
        self._last_decision = max(self._last_decision, event.sequence)
        if not self._running:
            self._takeover.decisions.append(event)
            return ()
        if event.decision.outcome is Outcome.BOUND:
            self._hints.nominated_nodes.on_bound(event.decision.uid, event.sequence)
        if event.decision.outcome.final:  # of any attempt: the rate of Decisions sets the size of the window
            self._attempts.window.count_decision(event.decision.profile, self._clock.now)
        return self._decide(event)

    def _free(self, pod: Pod | None) -> None:
        """The binder no longer holds the room of a pod that waited."""
        if pod is not None:
            self._requeue.on_held_room(ROOM_FREED, pod, self._last_decision, self._mirror.changes)

    def _decide(self, event: DecisionReceived) -> Sequence[Effect]:
        decision = event.decision
        if self._earmarks or decision.earmark is not None:
            self._earmarks.decided(decision, event.time, self._clock.now)
        queued = self._queue.get(decision.uid)
        if self._held_rooms.rooms or self._held_rooms.deleted or decision.outcome is Outcome.WAITING:
            self._update_held_room(decision, queued)
        if queued is None or not is_news(queued, decision):
            return ()
        if decision.outcome.final:
            return self._conclude(queued, decision, event.time)
        if queued.stage is not Stage.IN_FLIGHT:
            return ()
        queued.epoch = decision.epoch
        return [*self._attempts.release(queued), *self._await_decision(queued)]

    def _update_held_room(self, decision: DecisionSummary, queued: QueuedPod | None) -> None:
        held = self._held_rooms.held(decision.uid)
        self._free(self._held_rooms.decided(decision, None if queued is None else queued.pod))
        holds = self._held_rooms.held(decision.uid)
        if holds is not None and (held is None or held.spec.node_name != holds.spec.node_name):
            self._requeue.on_held_room(ROOM_HELD, holds, self._last_decision, self._mirror.changes)

    def _conclude(
        self, queued: QueuedPod, decision: DecisionSummary, time: datetime, age_seconds: float = 0.0
    ) -> Sequence[Effect]:
        """Handle a final Decision, stored at ``time``, by its outcome (docs/protocol.md, 5)."""
        decided_at = Timestamp(monotonic=self._clock.now - age_seconds, wall=time)
        effects, has_waited = self._attempts.end(queued), queued.epoch > 0
        queued.record_decision(decision)
        if isinstance(queued, GroupEntry):
            if has_waited and decision.outcome is not Outcome.BOUND:
                self._requeue.on_group_ended(self._last_decision, self._mirror.changes)
            return [*effects, *self._conclude_group(queued, decision, decided_at)]
        if decision.outcome in TRIED_AGAIN and len(self._grouping) and self._grouping.takes(queued):
            return [*effects, *self._move(queued, Stage.GROUPED)]
        return [*effects, *self._conclude_pod(queued, decision, decided_at)]

    def _conclude_pod(self, queued: QueuedPod, decision: DecisionSummary, decided_at: Timestamp) -> Sequence[Effect]:
        wait: Wait | None
        changes = self._mirror.changes
        match decision.outcome:
            case Outcome.UNSCHEDULABLE | Outcome.PREEMPTING:
                wait = self._requeue.on_unschedulable(queued, decision, decided_at, changes)
                return self._wait_or_activate(queued, wait)
            case Outcome.CONFLICT:
                wait = self._requeue.on_conflict(queued, decision, decided_at, changes)
                return self._wait_or_activate(queued, wait)
            case Outcome.ERROR:
                return self._wait_or_activate(queued, self._requeue.on_error(queued, decided_at))
            case Outcome.GONE:
                return [*self._move(queued, Stage.AWAITING_WATCH), self._read_pod(queued)]
            case Outcome.BOUND:
                due = self._clock.now + WATCH_SECONDS
                return self._move(queued, Stage.AWAITING_WATCH, due=due)
            case Outcome.WAITING:
                raise ValueError(f"want a final outcome, got {decision.outcome.value!r}")

    def _on_looked_up(self, event: AttemptLookedUp) -> Sequence[Effect]:
        """Without a message or final Decision the attempt is lost: publish the next one, or give up after the third."""
        queued, decision = self._in_flight(event.attempt), event.decision
        if queued is None:
            return ()
        if event.held_by is not None:
            return self._on_held(queued, event)
        if decision is not None and decision.attempt == str(event.attempt) and decision.outcome.final:
            return self._conclude(queued, decision, event.time or self._clock.timestamp().wall)
        if reason := self._attempts.on_lost(queued):
            return self._give_up(queued, reason)
        if isinstance(queued, GroupEntry):
            return [*self._attempts.end(queued), *self._gather(queued)]
        return [*self._attempts.stalled.ended(queued.uid), *self._publish(queued)]

    def _on_held(self, queued: QueuedPod, event: AttemptLookedUp) -> Sequence[Effect]:
        """After some time, queue the pod behind its equals; the next attempt's message replaces the held one."""
        effects = self._attempts.on_held(queued, event)
        if not self._attempts.give_slot_back(queued):
            due = self._clock.now + self._attempts.seconds_to_look_up(queued)
            return [*effects, *self._move(queued, Stage.IN_FLIGHT, due=due)]
        queued.timestamp = self._clock.timestamp().wall
        if isinstance(queued, GroupEntry):
            return [*effects, *self._gather(queued)]
        return [*effects, *self._activate(queued)]

    def _on_publish_not_stored(self, event: PublishNotStored) -> Sequence[Effect]:
        queued = self._in_flight(event.attempt)
        if queued is not None:
            self._attempts.on_not_stored(queued)
        return ()

    def _on_publish_refused(self, event: PublishRefused) -> Sequence[Effect]:
        # The bus will never store this attempt: an error of its pod.
        queued = self._in_flight(event.attempt)
        return () if queued is None else self._give_up(queued, event.reason)

    def _in_flight(self, attempt: Attempt) -> QueuedPod | None:
        """The pod of an attempt in flight; ``None`` if a later attempt replaced it."""
        queued = self._queue.get(attempt.uid)
        if queued is None or queued.stage is not Stage.IN_FLIGHT or queued.attempt != attempt:
            return None
        return queued

    def _give_up(self, queued: QueuedPod, reason: str) -> Sequence[Effect]:
        effects = self._attempts.give_up(queued, reason)
        if isinstance(queued, GroupEntry):
            self._grouping.landed(queued, helps=False)
        wait = self._requeue.on_error(queued, self._clock.timestamp())
        return [*effects, *self._wait_or_activate(queued, wait)]

    def _read_pod(self, queued: QueuedPod) -> Effect:
        meta = queued.pod.metadata
        self._queue.set_timer(queued, self._clock.now + WATCH_SECONDS)
        return ReadPod(uid=queued.uid, namespace=meta.namespace, name=meta.name)

    def _on_pod_read(self, event: PodRead) -> Sequence[Effect]:
        """Handle the API's answer about a pod that the binder decided ``gone`` or ``bound``."""
        queued = self._queue.get(event.uid)
        if queued is None or queued.stage is not Stage.AWAITING_WATCH:
            return ()
        if event.pod is None or not waits(event.pod, self._profiles):
            return ()  # gone or bound: the watch will show it
        queued.pod = event.pod
        return self._wait_or_activate(queued, self._requeue.on_still_unbound(queued, self._mirror.changes))

    # --- a group

    def _on_pod_group(self, change: ObjectChange) -> None:
        form, former = form_of(change.new), form_of(change.old)
        if self._earmarks:
            self._earmarks.observe_group(former, form)
        if form is not None:
            self._grouping.observe_group(form)
        elif former is not None:
            self._grouping.remove_group(former)

    def _review_groups(self) -> Sequence[Effect]:
        """Look at the groups that have changed: their pods join or leave them, and their entries wait or go."""
        effects: list[Effect] = []
        while self._grouping.changed:
            for group, helps in self._grouping.take_changed().items():
                effects += self._review(group, helps=helps)
                if self._earmarks and group.way is not Way.TOGETHER:
                    self._earmarks.end_of(group.key)
        for queued in self._grouping.take_left():
            effects += self._activate(queued)
        return effects

    def _review(self, group: QueuedGroup, *, helps: bool) -> Sequence[Effect]:
        if group.is_in_flight:
            return ()
        review, effects = self._grouping.review(group), list[Effect]()
        former, entry = self._grouping.entry_for(group, review)
        if former is not None:
            effects += self._remove(former)
        if not self._running:  # a takeover looks for the messages of the entry too
            return effects
        for queued in review.joining:
            self._requeue.on_removed(queued)
            effects += self._move(queued, Stage.GROUPED)
        for queued in review.leaving:
            effects += self._activate(queued)
        if review.gate.way is Way.GATED:
            for queued in self._grouping.queued_members(group):
                queued.message = review.gate.message
        if entry is None:
            return effects
        if review.gate.way is Way.TOGETHER:
            return [*effects, *self._let_go(entry, review.members, helps=helps)]
        return [*effects, *self._close_gate(entry, review.gate)]

    def _close_gate(self, entry: GroupEntry, gate: GroupGate) -> Sequence[Effect]:
        entry.message, entry.unschedulable_plugins = gate.message, frozenset()
        if entry.stage is Stage.AWAITING_WATCH and gate.due is None:
            return ()  # its timer runs
        self._requeue.on_removed(entry)
        return self._move(entry, Stage.GROUPED, due=gate.due)

    def _let_go(self, entry: GroupEntry, members: Members, *, helps: bool) -> Sequence[Effect]:
        """The group may be tried: at once, unless it backs off or waits for an event."""
        if entry.stage in {Stage.GROUPED, Stage.RECOVERING} and not entry.failures:
            entry.timestamp = self._clock.timestamp().wall  # when its gate opened
        has_moved = self._grouping.update_entry(entry, members)
        if any(pod.spec.resource_claims for pod in entry.members):
            entry.mirror_change = self._mirror.changes
        if entry.stage in {Stage.GROUPED, Stage.RECOVERING} or (helps and entry.stage in WAITING_IN_VAIN):
            return self._try_again(entry)
        return self._move(entry, Stage.ACTIVE) if has_moved and entry.stage is Stage.ACTIVE else ()

    def _conclude_group(self, entry: GroupEntry, decision: DecisionSummary, decided_at: Timestamp) -> Sequence[Effect]:
        """Handle the final Decision of a group; those of its bound members have come before."""
        for queued in self._grouping.queued_members(entry.group):
            queued.message = decision.message
        has_changed, changes = entry.group.has_changed, self._mirror.changes
        wait: Wait | None
        match decision.outcome:
            case Outcome.UNSCHEDULABLE | Outcome.PREEMPTING:
                wait = self._requeue.on_unschedulable(entry, decision, decided_at, changes)
            case Outcome.CONFLICT:
                if decision.reason == Reason.BEGUN:
                    entry.conflicts = 0
                wait = self._requeue.on_conflict(entry, decision, decided_at, changes)
            case Outcome.ERROR:
                wait = self._requeue.on_error(entry, decided_at)
            case _:  # bound, or gone: the watch shows what is left to do
                self._grouping.landed(entry, helps=True)
                return self._move(entry, Stage.AWAITING_WATCH, due=self._clock.now + WATCH_SECONDS)
        if entry.backoff_until > self._clock.now:
            initial = self._settings.requeue.backoff.initial.total_seconds()
            entry.back_off_for(decision.plan_seconds, initial, decided_at.monotonic)
            if wait is not None and wait.early:
                wait = self._requeue.on_helped(entry)
            elif wait is not None:
                wait = wait._replace(due=max(wait.due, entry.backoff_until))
        self._grouping.landed(entry, helps=has_changed)
        return self._wait_or_activate(entry, wait)

    def _gather(self, entry: GroupEntry) -> Sequence[Effect]:
        """Begin anew with the group's present members, after an attempt without a Decision."""
        self._grouping.landed(entry, helps=True)
        return self._move(entry, Stage.GROUPED)

    # --- a pod is tried again

    def _try_again(self, queued: QueuedPod) -> Sequence[Effect]:
        if queued.stage is Stage.GATED:
            return self._enqueue(queued)
        return self._wait_or_activate(queued, self._requeue.on_helped(queued))

    def _on_retry_requested(self, event: RetryRequested) -> Sequence[Effect]:
        queued = self._queue.get(event.uid)
        if queued is None or queued.stage not in RETRIED_FROM:
            return ()
        self._requeue.on_retry_requested(queued)
        return self._enqueue(queued)

    def _on_drain_read(self, event: DrainRead) -> Sequence[Effect]:
        if event.sequence < self._drain_read:
            return ()
        window, self._drain_read = self._attempts.window, event.sequence
        if window.is_closed is event.is_draining:
            return ()
        window.is_closed = event.is_draining
        return [Note(message="draining: no pod is published" if event.is_draining else "draining ended")]

    def _on_timer(self, queued: QueuedPod) -> Sequence[Effect]:
        if queued.stage is Stage.IN_FLIGHT and queued.attempt is not None:
            self._queue.set_timer(queued, self._clock.now + self._settings.look_up_seconds)
            return self._attempts.look_up(queued, queued.attempt)
        if isinstance(queued, GroupEntry) and queued.stage in GATHERING:
            self._grouping.mark(queued.group, helps=True)
            return self._move(queued, Stage.GROUPED)
        if queued.stage is Stage.AWAITING_WATCH:
            return [self._read_pod(queued)]
        if queued.failure or queued.stage is Stage.GATED:
            return self._enqueue(queued, despite_claims=queued.stage is Stage.GATED)
        return self._wait_or_activate(queued, self._requeue.on_timer(queued, self._mirror.changes))

    def _on_version(self, kind: str, version: int, *, listed: bool) -> Sequence[Effect]:
        effects: list[Effect] = []
        for uid in self._requeue.on_version(kind, version, listed=listed):
            queued = self._queue.get(uid)
            if queued is None or queued.stage is not Stage.AWAITING_VERSIONS:
                continue
            if self._requeue.passes_or_awaits_versions(queued, self._mirror.changes):
                effects += self._activate(queued)
        return effects

    def _wait_or_activate(self, queued: QueuedPod, wait: Wait | None) -> Sequence[Effect]:
        if wait is None:
            return self._activate(queued)
        return self._move(queued, wait.stage, due=wait.due, early=wait.early)

    def _activate(self, queued: QueuedPod) -> Sequence[Effect]:
        """Make a pod active once the mirror has stored the changes that its ranking must see.

        A pod of a group waits with it instead.
        """
        if len(self._grouping) and self._grouping.takes(queued):
            return self._move(queued, Stage.GROUPED)
        if queued.mirror_change and queued.mirror_change > self._mirror.settled:
            return self._move(queued, Stage.AWAITING_MIRROR)
        if queued.mirror_change or queued.at_front or queued.outcome is Outcome.CONFLICT:
            queued.required_positions = Positions(cluster=self._mirror.position, decisions=self._last_decision)
        queued.mirror_change = 0
        return self._move(queued, Stage.ACTIVE)

    def _move(
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


def failure_ends(profile: Profile) -> Iterator[timedelta]:
    """The ages of a failure at which an answer of the profile's NodeFailures changes."""
    for plugin in (*profile.filters, *(score.plugin for score in profile.scores)):
        if isinstance(plugin, NodeFailures):
            yield from plugin.ends


def _is_other(before: Pod, now: Pod) -> bool:
    return changed(before, now) or has_other_claims(before, now)


def note_on(queued: QueuedPod, message: str, **fields: str) -> Note:
    about = {"pod": queued.pod.key, "uid": queued.uid, "attempt": str(queued.attempt or "")}
    return Note(message=message, fields={**about, **fields})
