"""The watcher's core: events in, effects out, the clock handed in. No I/O, so that a simulation can run it.

It routes events to its parts: the mirror (what ``cluster`` must hold), the queue (which pods wait for what), the
attempts (what is in flight) and the requeue (when a pod is tried again).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from berth.api.decoding import check_size
from berth.api.errors import DecodeError
from berth.api.livedata import BANDWIDTH, FACT_BYTES, FACTS, LiveBucket, LiveSource
from berth.api.messages import watermark_key
from berth.api.meta import KubernetesObject
from berth.api.pod import Pod
from berth.api.subjects import Term, key, parse_key
from berth.framework.events import Action, ClusterEvent, LiveDataUpdate, Resource
from berth.framework.profile import Profile
from berth.kube.listwatch import Listed, ListedPart, Undecodable
from berth_watcher.attempts import Attempts
from berth_watcher.events import (
    AttemptLookedUp,
    BucketComplete,
    BucketEntryRead,
    DecisionReceived,
    Effect,
    Event,
    KeyLookedUp,
    KeyTooLarge,
    KeyWriteFailed,
    KeyWritten,
    LiveDataReceived,
    PodRead,
    PublishNotStored,
    PublishRefused,
    StreamsRead,
    Warn,
)
from berth_watcher.hints import QueuePlugins, UnschedulablePods
from berth_watcher.metrics import Figures
from berth_watcher.mirror import NO_CHANGE, DesiredEntry, Mirror, Watermarks, desired_entry, left_out
from berth_watcher.queue import EventClock, QueuedPod, SchedulingQueue, Stage, Timestamp, always
from berth_watcher.requeue import Requeue
from berth_watcher.settings import AttemptSettings
from berth_watcher.store import (
    REFLECTOR_NEWS,
    ObjectChange,
    ObjectStore,
    ReflectorNews,
    UndecodableObjects,
    cluster_events,
)

LIVE_DATA_EVENTS: Final[Mapping[LiveBucket, ClusterEvent]] = {
    BANDWIDTH: ClusterEvent(Resource.BANDWIDTH, Action.UPDATE),
    FACTS: ClusterEvent(Resource.FACTS, Action.UPDATE),
}


TAKEOVER_STEPS: Final = (BucketEntryRead, BucketComplete, StreamsRead, KeyWritten, KeyTooLarge, KeyLookedUp)
"""The events by which a takeover goes on."""


OBJECTS_IN_A_STEP: Final = 250
"""Some milliseconds, of the seconds in which a term takes in a large cluster."""


class WatcherCore:
    """One term of a watcher: call ``begin`` once, then ``handle`` for ever.

    The queue runs once the bus has been read and the bucket holds every difference that was found.
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
    ) -> None:
        self._store = store
        self._effects: list[Effect] = []
        self._mirror = Mirror(term, max_writes=max_writes)
        self._clock = clock = EventClock(started)
        self._plugins = plugins = QueuePlugins(profiles, clock, self._warn_of_plugin)
        waiting = UnschedulablePods(profiles, plugins, store.room_of)
        self._queue = SchedulingQueue(profiles, clock, plugins.sort_key, waiting)
        self._watermarks = Watermarks(store.kinds)
        self._undecodable = UndecodableObjects(profiles)
        self._requeue = Requeue(
            clock=clock,
            queue=self._queue,
            plugins=plugins,
            waiting=waiting,
            mirror=self._mirror,
            kinds=store.kinds,
            settings=settings.requeue,
        )
        self._attempts = Attempts(
            term=term,
            clock=clock,
            queue=self._queue,
            requeue=self._requeue,
            plugins=plugins,
            profiles=profiles,
            settings=settings,
            emit=self._effects.append,
        )
        self._takeover = TakeoverState()
        self._steps = 0
        self._handlers = self._routes()

    def begin(self, now: float) -> Iterator[list[Effect]]:
        """Take in what the reflectors have shown, step by step: the store must not change before it is done.

        Nothing is written or published until the bus has been read. In one step 200,000 pods took as long as a Lease.
        """
        self._clock.now = now
        taken = 0
        for kind in self._store.kinds:
            for name, thing in self._store.of(kind).items():
                self._mirror_object(kind, name, thing)
                if isinstance(thing, Pod):
                    self._attempts.on_pod(thing)
                taken += 1
                if taken % OBJECTS_IN_A_STEP == 0:
                    yield self._take_effects()
            self._requeue.on_version(kind, self._store.versions[kind], listed=True)
            self._watermarks.on_version(kind, str(self._store.versions[kind]), self._mirror.changes)
        for undecodable in self._store.undecodable.values():
            self._effects += self._undecodable.report(undecodable)
        self._requeue.begin(position=0)
        yield self._take_effects()

    def handle(self, events: Iterable[Event], now: float, may_continue: Callable[[], bool] = always) -> list[Effect]:
        """Handle events in order, then the pods they may help, then timers, and publish what may go.

        ``now`` is in monotonic seconds. Once ``may_continue`` is false, work that is left waits for the next call.
        """
        self._clock.now, self._clock.may_continue = now, may_continue
        for event in events:
            self._handlers[type(event)](event)
            self._count_step(event)
        self._attempts.requeue(self._requeue.pods_to_requeue())
        self._effects += self._mirror.take_writes()
        self._requeue.on_mirror_settled()
        self._start_queue()
        self._attempts.run_timers()
        self._attempts.publish_active()
        for kind, version in self._watermarks.pop_due(now, self._mirror.settled):
            self._mirror.set_desired(watermark_key(kind), DesiredEntry(watermark=version), numbered=False)
        self._effects += self._mirror.take_writes()
        return self._take_effects()

    @property
    def is_queue_running(self) -> bool:
        """Whether the takeover is complete."""
        return self._attempts.running

    @property
    def waiting(self) -> int:
        """Pods that wait for nothing but this watcher: for their turn, for a takeover, or for the mirror."""
        return self._queue.pending()["active"]

    @property
    def looked_at(self) -> int:
        """Rises with whatever is done about pods: with 0 more in half a minute, pods that wait are stuck."""
        return self._attempts.looked_at + self._steps

    def next_wakeup(self) -> float | None:
        """When something is due without any event, in monotonic seconds; ``None`` for never."""
        if self._mirror.may_write or self._requeue.has_more or self._attempts.is_starting:
            return self._clock.now
        times = (self._queue.next_due(), self._watermarks.next_due(self._mirror.settled))
        return min((time for time in times if time is not None), default=None)

    def recovering_pods(self) -> list[QueuedPod]:
        """The pods that the takeover must look for on the bus."""
        return [pod for pod in self._queue.pods() if pod.stage is Stage.RECOVERING]

    def live_buckets(self) -> list[LiveBucket]:
        """The buckets of live data whose events a plugin has registered for."""
        return [bucket for bucket, event in LIVE_DATA_EVENTS.items() if self._plugins.is_event_of_interest(event)]

    @property
    def queue_entries(self) -> int:
        """How much the queue's heaps hold."""
        return self._queue.entries

    def find(self, uid: str) -> QueuedPod | None:
        """A waiting pod."""
        return self._queue.get(uid)

    def figures(self, now: float) -> Figures:
        """The state for metrics."""
        window, pending = self._attempts.window, self._queue.pending()
        pending["active"] += self._attempts.not_stored
        return Figures(
            pending=pending,
            unschedulable=self._queue.unschedulable(),
            incoming=self._queue.incoming,
            in_flight=window.used(),
            window_size=window.sizes(now),
            stalled=self._attempts.stalled.pods(),
            objects={kind: len(self._store.of(kind)) for kind in self._store.kinds},
            unsettled_keys=self._mirror.unsettled_keys,
            reduced=self._mirror.reduced(),
        )

    def _routes(self) -> Mapping[type, Callable[[Any], None]]:
        mirror = self._mirror
        return {
            **dict.fromkeys(REFLECTOR_NEWS, self._on_reflector),
            DecisionReceived: self._on_decision,
            BucketEntryRead: lambda event: mirror.on_read(event.entry),
            BucketComplete: self._on_bucket_complete,
            KeyWritten: lambda event: self._effects.extend(mirror.on_written(event.key, event.sequence)),
            KeyWriteFailed: lambda event: self._effects.extend(mirror.on_write_failed(event.key)),
            KeyTooLarge: lambda event: self._effects.extend(mirror.on_too_large(event.key, event.reason)),
            KeyLookedUp: lambda event: mirror.on_looked_up(event.key, event.entry),
            PodRead: self._attempts.on_pod_read,
            AttemptLookedUp: self._attempts.on_looked_up,
            PublishRefused: self._attempts.on_publish_refused,
            PublishNotStored: self._attempts.on_publish_not_stored,
            LiveDataReceived: self._on_live_data,
            StreamsRead: self._on_streams_read,
        }

    def _count_step(self, event: Event) -> None:
        """A bus that stores nothing keeps pods waiting and is no failure of this watcher; a takeover goes in steps."""
        if isinstance(event, KeyWriteFailed) or (not self._attempts.running and isinstance(event, TAKEOVER_STEPS)):
            self._steps += 1

    def _on_reflector(self, event: ReflectorNews) -> None:
        for change in self._store.apply(event):
            self._on_change(change)
        if isinstance(event, ListedPart):
            return  # the kind is complete up to a version again when all of the LIST has come
        if isinstance(event, Undecodable):
            self._effects += self._undecodable.report(event)
        version = self._store.versions[event.kind]
        self._watermarks.on_version(event.kind, str(version), self._mirror.changes)
        self._requeue.on_version(event.kind, version, listed=isinstance(event, Listed))

    def _on_change(self, change: ObjectChange) -> None:
        number = self._mirror_object(change.kind, change.name, change.new)
        if number != NO_CHANGE:
            for event, old, new in cluster_events(change):
                self._requeue.on_cluster_event(event, old, new, number)
        if isinstance(change.new, Pod):
            self._attempts.on_pod(change.new)
        elif change.kind == "pod":
            self._attempts.on_pod_deleted(change.name)

    def _mirror_object(self, kind: str, name: str, thing: KubernetesObject | None) -> int:
        """Set what the mirror must hold of an object. Returns the number of the change."""
        desired = desired_entry(thing)
        number = self._mirror.set_desired(key(kind, name), desired)
        if number != NO_CHANGE:
            self._effects += left_out(thing, desired)
        return number

    def _on_bucket_complete(self, event: BucketComplete) -> None:
        self._mirror.start_writing(event.position)
        self._requeue.begin(event.position)
        self._takeover.last_difference = self._mirror.changes

    def _on_decision(self, event: DecisionReceived) -> None:
        self._requeue.last_decision = max(self._requeue.last_decision, event.sequence)
        if self._attempts.running:
            self._attempts.count_decision(event)
            self._attempts.on_decision(event)
        else:
            self._takeover.decisions.append(event)

    def _on_streams_read(self, event: StreamsRead) -> None:
        self._takeover.streams, self._takeover.streams_read_at = event, self._clock.now

    def _start_queue(self) -> None:
        """Start the queue once the bus has been read and every difference is stored (docs/protocol.md, 3).

        Otherwise pods would be ranked on a part of the cluster: rejected, or at the cost of others, though a node fits.
        """
        takeover = self._takeover
        if self._attempts.running or takeover.streams is None or takeover.last_difference is None:
            return
        if takeover.last_difference > self._mirror.settled:
            return
        since_read = self._clock.now - takeover.streams_read_at
        self._attempts.start(takeover.streams, position=self._mirror.position, since_read=since_read)
        if not self._attempts.running:
            return
        for decision in takeover.decisions:
            self._attempts.on_decision(decision)
        self._takeover = TakeoverState()

    def _on_live_data(self, event: LiveDataReceived) -> None:
        try:
            name, node = parse_key(event.key)
            if event.data is not None:
                check_size(event.data, "live data", most=FACT_BYTES)
        except DecodeError:
            return  # any client may put facts, and no plugin reads one without source and node, or one too large
        news = LiveDataUpdate(source=LiveSource(bucket=event.bucket, name=name), node=node, data=event.data)
        self._requeue.on_live_data(news, LIVE_DATA_EVENTS[event.bucket], event.sequence)

    def _warn_of_plugin(self, failure: str, pod: str) -> None:
        self._effects.append(Warn(message=failure, fields={"pod": pod}))

    def _take_effects(self) -> list[Effect]:
        effects = self._effects.copy()
        self._effects.clear()
        return effects


@dataclass(slots=True)
class TakeoverState:
    """What the beginning of a term waits for, and what arrived meanwhile."""

    last_difference: int | None = None
    """The mirror's change up to which the queue waits; ``None`` before the bucket has been read."""
    streams: StreamsRead | None = None
    streams_read_at: float = 0.0
    """Monotonic seconds."""
    decisions: list[DecisionReceived] = field(default_factory=list)
