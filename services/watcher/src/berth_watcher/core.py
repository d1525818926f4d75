"""Objects that cannot be decoded: who owns them hears of it, in a sentence and, for a pod of ours, in ``dead``.

The watcher's core: every event in, every effect out, the clock handed in. No I/O, so that a simulation can run it.

It composes the mirror (what ``cluster`` must hold), the queue (who waits for what), the window (who is on the way) and
the requeue (what becomes of those that come back).
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import msgspec

from berth.api.errors import DecodeError
from berth.api.livedata import BANDWIDTH, FACTS, LiveBucket, LiveSource
from berth.api.messages import DeadLetter
from berth.api.meta import KubernetesObject
from berth.api.mirror import watermark_key
from berth.api.pod import Pod, bound_at_text, is_bound
from berth.api.subjects import PodSubject, Term, key, parse_key
from berth.framework.events import Action, ClusterEvent, LiveNews, Resource
from berth.framework.profile import Profile
from berth.kube.watch import Current, Deleted, Listed, Undecodable, Upserted
from berth_watcher.attempts import Attempts
from berth_watcher.events import (
    BucketComplete,
    BucketRead,
    DecisionReceived,
    Effect,
    Event,
    KeyLookedUp,
    KeyRefused,
    KeyWritten,
    LiveDataReceived,
    LookedUp,
    PodRead,
    PublishDeadLetter,
    PublishRefused,
    StagesRead,
    Tick,
    Warn,
)
from berth_watcher.hints import QueueingHints, happenings
from berth_watcher.mirror import Mirror, WantedEntry, Watermarks, held
from berth_watcher.queue import SchedulingQueue
from berth_watcher.queuedpod import Stage, WaitingPod
from berth_watcher.requeue import Requeue
from berth_watcher.settings import AttemptSettings
from berth_watcher.store import ObjectChange, ObjectStore, ReflectorNews

PAYLOAD_CHARACTERS = 4096
"""Of the object, in the dead letter: enough to find what is wrong with it."""


class _Spec(msgspec.Struct, rename="camel"):
    scheduler_name: str = "default-scheduler"
    node_name: str = ""


class _Pod(msgspec.Struct):
    spec: _Spec = msgspec.field(default_factory=_Spec)


class BadInput:
    """Says each thing once: an object that stays as it is comes again with every LIST."""

    def __init__(self, profiles: Container[str]) -> None:
        self._profiles = profiles
        self._said: dict[tuple[str, str, str], str] = {}

    def take(self, thing: Undecodable) -> list[Effect]:
        """What is to be said of an object."""
        key = (thing.kind, thing.namespace, thing.name)
        if thing.deleted:
            self._said.pop(key, None)
            return []
        if self._said.get(key) == thing.resource_version:
            return []
        self._said[key] = thing.resource_version
        profile = self._asked_for(thing)
        return [_warning(thing), *([_letter(thing, profile)] if profile else [])]

    def _asked_for(self, thing: Undecodable) -> str:
        """The profile of ours that an unbound pod asks for, as far as it can be read; empty for none."""
        if thing.kind != "pod":
            return ""
        try:
            spec = msgspec.json.decode(thing.raw, type=_Pod).spec
        except msgspec.MsgspecError:
            return ""
        return spec.scheduler_name if spec.scheduler_name in self._profiles and not spec.node_name else ""


def _name(thing: Undecodable) -> str:
    return f"{thing.namespace}/{thing.name}" if thing.namespace else thing.name


def _warning(thing: Undecodable) -> Warn:
    sentence = f"{thing.kind} {_name(thing)!r} cannot be read and is left out: {thing.reason}"
    return Warn(sentence=sentence, fields={"uid": thing.uid, "resource_version": thing.resource_version})


def _letter(thing: Undecodable, profile: str) -> PublishDeadLetter:
    subject = PodSubject(stage="pending", profile=profile, namespace=thing.namespace, pod=thing.name)
    payload = thing.raw[:PAYLOAD_CHARACTERS].decode("utf-8", "replace")
    reason = f"pod {_name(thing)!r} cannot be read and is not scheduled: {thing.reason}"
    return PublishDeadLetter(letter=DeadLetter(subject=str(subject), reason=reason, service="watcher", payload=payload))


LIVE_RESOURCES: Mapping[LiveBucket, Resource] = {BANDWIDTH: Resource.BANDWIDTH, FACTS: Resource.FACTS}


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """How things stand, for metrics."""

    pending: Mapping[str, int]
    """By kube-scheduler's names of queues."""
    refused: Mapping[tuple[str, str], int]
    """Pods that were refused and not tried again since, by plugin and profile; one that two refused counts for both."""
    entered: Mapping[tuple[str, str], int]
    """Pods that came to a queue since the leadership began, by queue and event, in kube-scheduler's words."""
    in_flight: int
    """Places of the window that are taken."""
    window: int
    """Places that there are."""
    objects: Mapping[str, int]
    """Objects known, by kind."""
    mirror_behind: int
    """Keys of ``cluster`` that are not yet as they should be."""


class WatcherCore:
    """One leadership of a watcher: ``begin``, then ``handle_all`` for ever."""

    def __init__(
        self,
        *,
        term: Term,
        store: ObjectStore,
        profiles: Mapping[str, Profile],
        settings: AttemptSettings,
        started: tuple[float, datetime],
    ) -> None:
        """``started``: one moment by the monotonic clock and by the wall's, so that one can be told from the other."""
        self._store = store
        self._effects: list[Effect] = []
        self._interest = interest = QueueingHints(profiles)
        self._mirror = Mirror(term)
        self._queue = SchedulingQueue(profiles, interest)
        self._watermarks = Watermarks(store.kinds)
        self._bad_input = BadInput(profiles)
        self._requeue = Requeue(
            queue=self._queue, interest=interest, mirror=self._mirror, kinds=store.kinds, patience=settings.patience
        )
        self._attempts = Attempts(
            term=term,
            queue=self._queue,
            requeue=self._requeue,
            interest=interest,
            profiles=profiles,
            settings=settings,
            emit=self._effects.append,
            wall_clock=_wall_clock(started),
        )
        self._early: list[DecisionReceived] = []
        self._handlers = self._routes()

    def begin(self, now: float) -> list[Effect]:
        """Take over what the reflectors have shown. Nothing is written or published until the bus has been read."""
        self._queue.now = now
        for kind in self._store.kinds:
            for name, thing in self._store.of(kind).items():
                self._mirror_object(kind, name, thing)
                if isinstance(thing, Pod):
                    self._attempts.saw(thing, now)
            self._requeue.reached(kind, self._store.versions[kind], listed=True)
            self._watermarks.reached(kind, str(self._store.versions[kind]), self._mirror.changes)
        for left_out in self._store.left_out.values():
            self._effects += self._bad_input.take(left_out)
        self._requeue.log.begin(self._mirror.changes, 0)
        return self._taken()

    def handle(self, event: Event, now: float) -> list[Effect]:
        """One event; see :meth:`handle_all`."""
        return self.handle_all((event,), now)

    def handle_all(self, events: Iterable[Event], now: float) -> list[Effect]:
        """Take events in, in order, then do what is due and release what may go. ``now`` is monotonic, in seconds."""
        self._queue.now = now
        for event in events:
            self._handlers[type(event)](event, now)
        self._requeue.settled()
        self._attempts.timers(now)
        self._attempts.release(now)
        for kind, version in self._watermarks.due(now, self._mirror.settled):
            self._effects += self._mirror.want(watermark_key(kind), WantedEntry(watermark=version), quietly=True)[1]
        return self._taken()

    def next_wakeup(self) -> float | None:
        """When something is due without any event, in monotonic seconds; ``None`` for never."""
        times = (self._queue.next_due(), self._watermarks.next_due(self._mirror.settled))
        return min((time for time in times if time is not None), default=None)

    def held(self) -> list[WaitingPod]:
        """The pods of which the takeover must find out where they stand."""
        return [pod for pod in self._queue.pods() if pod.stage is Stage.HELD]

    def live_buckets(self) -> list[LiveBucket]:
        """The buckets of live data whose news a plugin listens to."""
        return [
            bucket for bucket, resource in LIVE_RESOURCES.items() if self._interest.anybody_listens(_update(resource))
        ]

    def find(self, uid: str) -> WaitingPod | None:
        """A waiting pod, for people and tests."""
        return self._queue.get(uid)

    def figures(self, now: float) -> Figures:
        """How things stand."""
        window = self._attempts.window
        return Figures(
            pending=self._queue.counts(),
            refused=self._queue.refused(),
            entered=self._queue.entered,
            in_flight=window.taken,
            window=window.size(now),
            objects={kind: len(self._store.of(kind)) for kind in self._store.kinds},
            mirror_behind=self._mirror.under_way,
        )

    def _routes(self) -> Mapping[type, Callable[[Any, float], None]]:
        mirror, take = self._mirror, self._effects.extend
        return {
            **dict.fromkeys((Listed, Upserted, Deleted, Current, Undecodable), self._on_reflector),
            DecisionReceived: self._on_decision,
            BucketRead: lambda event, _: take(mirror.read(event.entry)),
            BucketComplete: self._on_bucket_complete,
            KeyWritten: lambda event, _: take(mirror.written(event.key, event.sequence)),
            KeyRefused: lambda event, _: take(mirror.refused(event.key)),
            KeyLookedUp: lambda event, _: take(mirror.looked_up(event.key, event.entry)),
            PodRead: self._attempts.read,
            LookedUp: self._attempts.looked_up,
            PublishRefused: self._attempts.publish_refused,
            LiveDataReceived: self._on_live_data,
            StagesRead: self._on_stages_read,
            Tick: lambda _event, _now: None,
        }

    def _on_reflector(self, event: ReflectorNews, now: float) -> None:
        for change in self._store.apply(event):
            self._on_change(change, now)
        if isinstance(event, Undecodable):
            self._effects += self._bad_input.take(event)
        version = self._store.versions[event.kind]
        self._watermarks.reached(event.kind, str(version), self._mirror.changes)
        self._requeue.reached(event.kind, version, listed=isinstance(event, Listed))

    def _on_change(self, change: ObjectChange, now: float) -> None:
        number = self._mirror_object(change.kind, change.name, change.new)
        if number:
            for event, old, new in happenings(change):
                self._attempts.woken(self._requeue.happened(event, old, new, number), now)
        if isinstance(change.new, Pod):
            self._attempts.saw(change.new, now)
        elif change.kind == "pod":
            self._attempts.saw_deleted(change.name)

    def _mirror_object(self, kind: str, name: str, thing: KubernetesObject | None) -> int:
        """Have the mirror hold an object; the number of the change, 0 for none."""
        kept = held(thing) if thing is not None else None
        since = bound_at_text(thing) if isinstance(thing, Pod) and is_bound(thing) else None
        wanted = WantedEntry(object=kept, bound_at=since) if kept is not None else None
        number, effects = self._mirror.want(key(kind, name), wanted)
        self._effects += effects
        return number

    def _on_bucket_complete(self, event: BucketComplete, _now: float) -> None:
        self._effects += self._mirror.begin(event.position)
        self._requeue.log.begin(self._mirror.changes, event.position)

    def _on_decision(self, event: DecisionReceived, now: float) -> None:
        self._requeue.decisions = max(self._requeue.decisions, event.sequence)
        if self._attempts.running:
            self._attempts.heard(event, now)
        else:
            self._early.append(event)

    def _on_stages_read(self, event: StagesRead, now: float) -> None:
        self._attempts.start(event.in_flight, event.decisions, now)
        for decision in self._early:
            self._attempts.heard(decision, now)
        self._early.clear()

    def _on_live_data(self, event: LiveDataReceived, now: float) -> None:
        try:
            name, node = parse_key(event.key)
        except DecodeError:
            return  # anybody may put facts: what has no source and node is read by nobody
        news = LiveNews(source=LiveSource(bucket=event.bucket, name=name), node=node, data=event.data)
        happened = _update(LIVE_RESOURCES[event.bucket])
        self._attempts.woken(self._requeue.heard_live(news, happened, event.sequence), now)

    def _taken(self) -> list[Effect]:
        effects = self._effects.copy()
        self._effects.clear()
        return effects


def _update(resource: Resource) -> ClusterEvent:
    return ClusterEvent(resource, Action.UPDATE)


def _wall_clock(started: tuple[float, datetime]) -> Callable[[float], datetime]:
    monotonic, wall = started
    return lambda now: wall + timedelta(seconds=now - monotonic)
