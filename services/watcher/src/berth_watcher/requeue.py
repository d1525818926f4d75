"""What happened while attempts were in flight, so that no event that may help is lost between two looks.

A Decision was made on positions: an event counts as seen by the scorer once the mirror's write of it is known to lie
at or below them, and as missed otherwise. What is not known counts as missed: a try too many beats a pod that sleeps.


Pods that wait for the watcher's reflectors to see what a conflict was about.

What becomes of a pod whose attempt ended without a Binding: when it is tried again, and what that try must see.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from berth.api.errors import DecodeError
from berth.api.livedata import BANDWIDTH, FACTS
from berth.api.messages import Decision, Outcome, Positions, Reason
from berth.api.meta import parse_resource_version
from berth.framework.events import ClusterEvent, LiveNews
from berth_watcher.hints import QueueingHints
from berth_watcher.mirror import Mirror
from berth_watcher.queue import SchedulingQueue
from berth_watcher.queuedpod import ATTEMPT_FAILED, BACKOFF_COMPLETE, TIMEOUT, Stage, WaitingPod, label_of
from berth_watcher.settings import RequeueSettings

LONGEST: Final = 2048
"""Events remembered. More than happen in a second of a busy cluster; a Decision older than all of them counts as one
that missed something."""


@dataclass(slots=True, kw_only=True)
class _Record:
    event: ClusterEvent
    old: object
    new: object
    change: int
    stored_by: int | None
    """A sequence of the source at or below which the event is stored; ``None`` while that is not known."""


class EventLog:
    """The events of one source (``cluster``, ``bandwidth``, ``facts``) in order."""

    def __init__(self, *, longest: int = LONGEST) -> None:
        self._longest = longest
        self._records: deque[_Record] = deque()
        self._unstored: deque[_Record] = deque()
        self._blind_change: int | None = None
        self._forgotten = 0
        """Decisions made on positions below this one may have missed what is not in the log."""

    def begin(self, change: int, position: int) -> None:
        """Nothing is known of what happened before: below a position, and up to a change that is not yet stored."""
        self._blind_change, self._forgotten = change, position

    def record(
        self, event: ClusterEvent, old: object, new: object, *, change: int = 0, sequence: int | None = None
    ) -> None:
        """An event: of a change that the mirror is about to store, or one that stands at a sequence already."""
        record = _Record(event=event, old=old, new=new, change=change, stored_by=sequence)
        self._records.append(record)
        if sequence is None:
            self._unstored.append(record)
        while len(self._records) > self._longest and self._records[0].stored_by is not None:
            self._forgotten = max(self._forgotten, self._records.popleft().stored_by or 0)

    def settled(self, change: int, position: int) -> None:
        """Everything up to a change is stored, at or below a position."""
        while self._unstored and self._unstored[0].change <= change:
            self._unstored.popleft().stored_by = position
        if self._blind_change is not None and self._blind_change <= change:
            self._blind_change, self._forgotten = None, max(self._forgotten, position)

    def is_blind(self, position: int) -> bool:
        """Whether a view at this position may have missed what is not in the log."""
        return self._blind_change is not None or position < self._forgotten

    def since(self, position: int) -> Iterator[tuple[ClusterEvent, object, object, int]]:
        """The events that a view at this position is not known to have seen, newest first, with their change."""
        for record in reversed(self._records):
            if record.stored_by is not None and record.stored_by <= position:
                return
            yield record.event, record.old, record.new, record.change


class VersionGate:
    """How far each kind has come, and who waits for more. A wait costs O(log n), an event that frees nobody O(1)."""

    def __init__(self, kinds: Iterable[str]) -> None:
        self._reached: dict[str, int] = dict.fromkeys(kinds, 0)
        self._waiting: dict[str, list[tuple[int, int, str]]] = {kind: [] for kind in self._reached}
        self._order = itertools.count()

    def wait(self, uid: str, wanted: Mapping[str, int]) -> bool:
        """Whether a pod may pass now; otherwise ``reach`` names it later. A kind that is not read is no obstacle."""
        for kind, version in wanted.items():
            if self._reached.get(kind, version) < version:
                heapq.heappush(self._waiting[kind], (version, next(self._order), uid))
                return False
        return True

    def reach(self, kind: str, version: int) -> list[str]:
        """A kind has come to a version; the pods that waited for it and may ask again. Some may have left meanwhile."""
        if version <= self._reached[kind]:
            return []
        self._reached[kind] = version
        passed, waiting = [], self._waiting[kind]
        while waiting and waiting[0][0] <= version:
            passed.append(heapq.heappop(waiting)[2])
        return passed

    def relisted(self, kind: str, version: int) -> list[str]:
        """As :meth:`reach`, but it may go back: then the API server has another store, and its numbers count."""
        passed = self.reach(kind, version)
        self._reached[kind] = version
        return passed


CONFLICTS_IN_A_ROW: Final = 3
"""After so many a pod backs off: whoever loses so often gets in the way of others."""

LIVE_DATA: Final = (BANDWIDTH, FACTS)


class Requeue:
    """Puts refused pods where they wait, and brings them back."""

    def __init__(
        self,
        *,
        queue: SchedulingQueue,
        interest: QueueingHints,
        mirror: Mirror,
        kinds: Iterable[str],
        patience: RequeueSettings,
    ) -> None:
        self._queue = queue
        self._interest = interest
        self._mirror = mirror
        self._patience = patience
        self.gate = VersionGate(kinds)
        self.log = EventLog()
        self._live = {bucket: EventLog() for bucket in LIVE_DATA}
        self._settling: list[tuple[int, int, WaitingPod]] = []
        self.decisions = 0
        """The sequence of the last Decision heard."""

    def refused(self, pod: WaitingPod, decision: Decision, now: float, decided_at: datetime, age: float = 0.0) -> None:
        """Unschedulable, or its victims are going: it sleeps until an event, one that it missed counts too."""
        self._fail(pod, now, decided_at, age)
        missed = self._missed(pod, decision.positions)
        if missed is not None:
            pod.change = missed
            self._queue.move(pod, Stage.BACKOFF, due=pod.not_before)
            return
        preempting = decision.outcome is Outcome.PREEMPTING
        sleep = self._patience.preemption_seconds if preempting else self._patience.longest_sleep_seconds
        self._queue.move(pod, Stage.UNSCHEDULABLE, due=now - age + sleep)

    def failed(self, pod: WaitingPod, now: float, decided_at: datetime, age: float = 0.0) -> None:
        """An error: it backs off, whatever happens meanwhile."""
        self._fail(pod, now, decided_at, age)
        self._queue.move(pod, Stage.BACKOFF, due=pod.not_before)

    def conflict(self, pod: WaitingPod, decision: Decision, now: float, decided_at: datetime, age: float = 0.0) -> None:
        """Somebody was faster: to the head of its priority once all that is named is seen; the third time back-off."""
        pod.wanted_versions = _versions(decision)
        self._lose(pod, now, decided_at, counts=decision.reason != Reason.STALE, age=age)

    def again(self, pod: WaitingPod, now: float, decided_at: datetime) -> None:
        """The API shows a pod unbound that the binder called gone: as after a conflict that names nothing."""
        pod.wanted_versions = {}
        self._lose(pod, now, decided_at, counts=True)

    def _lose(self, pod: WaitingPod, now: float, decided_at: datetime, *, counts: bool, age: float = 0.0) -> None:
        pod.conflicts += counts
        pod.event = ATTEMPT_FAILED
        if pod.conflicts >= CONFLICTS_IN_A_ROW:
            self.failed(pod, now, decided_at, age)
            return
        pod.first = True
        self._queue.move(pod, Stage.BEHIND, due=now + self._patience.versions_seconds)
        if self.gate.wait(pod.uid, pod.wanted_versions):
            self._seen(pod)

    def happened(self, event: ClusterEvent, old: object, new: object, change: int) -> list[WaitingPod]:
        """An event of a change that the mirror is storing; the unschedulable pods that it may help."""
        if self._interest.anybody_listens(event):
            self.log.record(event, old, new, change=change)
        helped = self._queue.helped_by(event, old, new)
        for pod in helped:
            pod.change, pod.event = change, label_of(event)
        return helped

    def heard_live(self, news: LiveNews, event: ClusterEvent, sequence: int) -> list[WaitingPod]:
        """Live data arrived; the unschedulable pods that it may help."""
        if self._interest.anybody_listens(event):
            self._live[news.source.bucket].record(event, None, news, sequence=sequence)
        helped = self._queue.helped_by(event, None, news)
        for pod in helped:
            pod.event = label_of(event)
        return helped

    def wake(self, pod: WaitingPod, now: float) -> None:
        """Something may help a pod: it is tried again, but not before its back-off is over."""
        if now < pod.not_before:
            self._queue.move(pod, Stage.BACKOFF, due=pod.not_before)
        else:
            self.ready(pod)

    def ready(self, pod: WaitingPod) -> None:
        """A pod may be tried: as soon as the mirror holds what its ranking must see."""
        if pod.change > self._mirror.settled:
            self._queue.move(pod, Stage.SETTLING)
            heapq.heappush(self._settling, (pod.change, pod.ticket, pod))
            return
        if pod.change or pod.first:
            pod.after = Positions(cluster=self._mirror.position, decisions=self.decisions)
        pod.change = 0
        self._queue.move(pod, Stage.ACTIVE)

    def reached(self, kind: str, version: int, *, listed: bool) -> None:
        """A reflector has come to a version: conflicts that waited for it go on."""
        passed = self.gate.relisted(kind, version) if listed else self.gate.reach(kind, version)
        for uid in passed:
            pod = self._queue.get(uid)
            if pod is not None and pod.stage is Stage.BEHIND and self.gate.wait(uid, pod.wanted_versions):
                self._seen(pod)

    def settled(self) -> None:
        """The mirror has stored something: pods that waited for it go on."""
        settled = self._mirror.settled
        self.log.settled(settled, self._mirror.position)
        while self._settling and self._settling[0][0] <= settled:
            _, ticket, pod = heapq.heappop(self._settling)
            if pod.ticket == ticket:
                self.ready(pod)

    def timer(self, pod: WaitingPod) -> None:
        """The timer of a pod that waits here has gone off."""
        if pod.stage is Stage.BEHIND:
            self._seen(pod)
        else:
            pod.event = BACKOFF_COMPLETE if pod.stage is Stage.BACKOFF else TIMEOUT
            self.ready(pod)

    def _seen(self, pod: WaitingPod) -> None:
        """What the conflict was about has come in; the scorer must see what the mirror makes of it."""
        pod.change = self._mirror.changes
        self.ready(pod)

    def _fail(self, pod: WaitingPod, now: float, decided_at: datetime, age: float) -> None:
        pod.failures += 1
        pod.conflicts = 0
        pod.event = ATTEMPT_FAILED
        pod.first = False
        pod.since = decided_at
        pod.not_before = now - age + self._patience.back_off.seconds(pod.failures)

    def _missed(self, pod: WaitingPod, positions: Positions) -> int | None:
        """The change of an event that may help and that its ranking had not seen; ``None`` when there is none.

        A refusal by nobody is helped by anything, so it always counts as having missed something.
        """
        if not pod.blockers or self.log.is_blind(positions.cluster):
            return self._mirror.changes
        logs = (
            (self.log, positions.cluster),
            (self._live[BANDWIDTH], positions.bandwidth),
            (self._live[FACTS], positions.facts),
        )
        for log, position in logs:
            for event, old, new, change in log.since(position):
                if self._interest.helps(pod, event, old, new):
                    return change
        return None


def _versions(decision: Decision) -> dict[str, int]:
    """The versions that a conflict names; one that is no number is not waited for."""
    found = {}
    for kind, text in decision.resource_versions.items():
        try:
            found[kind] = parse_resource_version(text)
        except DecodeError:
            continue
    return found
