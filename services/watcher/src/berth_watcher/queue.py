"""The scheduling queue: every waiting pod in one stage, the active ones by priority and age, and what is due when.

The window: how many pods may be on their way at once, and who has a place.
"""

from __future__ import annotations

import heapq
import itertools
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final, Protocol

from berth.api.pod import Pod
from berth.framework.events import ClusterEvent
from berth_watcher.hints import QueueingHints, UnschedulablePlugins, unschedulable_plugins_of
from berth_watcher.queuedpod import INCOMING, QUEUES, Stage, WaitingPod

HEAD: Final = datetime.min.replace(tzinfo=UTC)
"""An age above all others: whoever waits since then is at the head of its priority."""

Refused = tuple[str, frozenset[str]]
"""Profile and plugins."""

ASLEEP: Final = frozenset({Stage.UNSCHEDULABLE, Stage.GATED})
"""The stages that events may end."""


class QueueSort(Protocol):
    """What the queue asks of a profile."""

    def sort_key(self, pod: Pod, since: datetime) -> tuple[Any, ...]:
        """The smaller, the sooner."""
        ...


class SchedulingQueue:
    """All pods that wait. Costs O(log n) a move; an event that nobody waits for costs nothing by pod."""

    def __init__(self, profiles: Mapping[str, QueueSort], interest: QueueingHints) -> None:
        self.now = 0.0
        """The moment that is being handled, in monotonic seconds."""
        self.entered: Counter[tuple[str, str]] = Counter()
        """Pods that came to a queue so far, by queue and event in kube-scheduler's words."""
        self._profiles = profiles
        self._interest = interest
        self._pods: dict[str, WaitingPod] = {}
        self._active: list[tuple[Any, datetime, int, str]] = []
        self._timers: list[tuple[float, int, str]] = []
        self._tickets = itertools.count(1)
        self._counts: Counter[Stage] = Counter()
        self._sleepers: dict[UnschedulablePlugins, dict[str, WaitingPod]] = {}
        self._asleep_as: dict[str, UnschedulablePlugins] = {}
        self._refused: Counter[Refused] = Counter()
        self._refused_by: dict[str, Refused] = {}

    def get(self, uid: str) -> WaitingPod | None:
        """The pod of a uid, whatever its stage."""
        return self._pods.get(uid)

    def pods(self) -> Iterator[WaitingPod]:
        """Every pod."""
        return iter(self._pods.values())

    def counts(self) -> dict[str, int]:
        """How many wait, in kube-scheduler's words."""
        found = dict.fromkeys(QUEUES.values(), 0)
        for stage, queue in QUEUES.items():
            found[queue] += self._counts[stage]
        return found

    def refused(self) -> dict[tuple[str, str], int]:
        """Pods that were refused and not tried again since, by plugin that refused them and profile."""
        found: Counter[tuple[str, str]] = Counter()
        for (profile, blockers), pods in self._refused.items():
            for plugin in blockers:
                found[plugin, profile] += pods
        return found

    def add(self, pod: WaitingPod) -> None:
        """Take in a pod that is new."""
        self._pods[pod.uid] = pod
        self._counts[pod.stage] += 1

    def remove(self, pod: WaitingPod) -> None:
        """Forget a pod: it is bound or gone."""
        if self._pods.pop(pod.uid, None) is None:
            return
        self._leave(pod)
        self._forget_refusal(pod)
        pod.ticket = next(self._tickets)

    def move(self, pod: WaitingPod, stage: Stage, *, due: float | None = None) -> None:
        """Put a pod into a stage, with a timer where the stage has one."""
        self._leave(pod)
        self._note(pod, stage)
        pod.stage, pod.ticket = stage, next(self._tickets)
        self._counts[stage] += 1
        if stage in ASLEEP:
            self._asleep_as[pod.uid] = refusal = unschedulable_plugins_of(pod)
            self._sleepers.setdefault(refusal, {})[pod.uid] = pod
        if stage is Stage.ACTIVE:
            self._push(pod)
        if due is not None:
            heapq.heappush(self._timers, (due, pod.ticket, pod.uid))

    def remind(self, pod: WaitingPod, due: float) -> None:
        """Set the timer of the stage anew, after it has gone off."""
        heapq.heappush(self._timers, (due, pod.ticket, pod.uid))

    def pop(self) -> WaitingPod | None:
        """The pod whose turn it is; it stays active until it is moved."""
        while self._active:
            pod = self._valid(self._active[0][2], self._active[0][3])
            heapq.heappop(self._active)
            if pod is not None:
                return pod
        return None

    def due(self, now: float) -> Iterator[WaitingPod]:
        """The pods whose timer has gone off, each to be moved or reminded before the next is asked for."""
        while self._timers and self._timers[0][0] <= now:
            _, ticket, uid = heapq.heappop(self._timers)
            pod = self._valid(ticket, uid)
            if pod is not None:
                yield pod

    def next_due(self) -> float | None:
        """When the next timer goes off."""
        while self._timers and self._valid(self._timers[0][1], self._timers[0][2]) is None:
            heapq.heappop(self._timers)
        return self._timers[0][0] if self._timers else None

    def helped_by(self, event: ClusterEvent, old: object, new: object) -> list[WaitingPod]:
        """The unschedulable and gated pods that an event may help."""
        helped: list[WaitingPod] = []
        for refusal, pods in self._sleepers.items():
            if self._interest.listens(refusal, event):
                helped += [pod for pod in pods.values() if self._interest.may_help(pod, event, old, new)]
        return helped

    def _note(self, pod: WaitingPod, stage: Stage) -> None:
        """Keep what metrics tell of the move."""
        queue = INCOMING.get(stage)
        if queue is not None and queue != INCOMING.get(pod.stage):
            self.entered[queue, pod.event] += 1
        if QUEUES.get(stage) != "active":
            pod.active_since = None
        elif pod.active_since is None:
            pod.active_since = self.now
            pod.entered_at = self.now if pod.entered_at is None else pod.entered_at
        self._forget_refusal(pod)
        if pod.blockers and stage in QUEUES:
            refused = self._refused_by[pod.uid] = (pod.profile, pod.blockers)
            self._refused[refused] += 1

    def _forget_refusal(self, pod: WaitingPod) -> None:
        refused = self._refused_by.pop(pod.uid, None)
        if refused is not None:
            self._refused[refused] -= 1
            if not self._refused[refused]:
                del self._refused[refused]

    def _push(self, pod: WaitingPod) -> None:
        key = self._profiles[pod.profile].sort_key(pod.pod, HEAD if pod.first else pod.since)
        heapq.heappush(self._active, (key, pod.since, pod.ticket, pod.uid))

    def _valid(self, ticket: int, uid: str) -> WaitingPod | None:
        pod = self._pods.get(uid)
        return pod if pod is not None and pod.ticket == ticket else None

    def _leave(self, pod: WaitingPod) -> None:
        self._counts[pod.stage] -= 1
        refusal = self._asleep_as.pop(pod.uid, None)
        if refusal is None:
            return
        del self._sleepers[refusal][pod.uid]
        if not self._sleepers[refusal]:
            del self._sleepers[refusal]


SHARE_OF_A_SECOND: Final = 4
"""A quarter of the Decisions of the last second: so an important pod waits for a quarter second of work at most."""


class InFlightWindow:
    """Places for pods in flight: at least the floor, above it a quarter second of work."""

    def __init__(self, floor: int) -> None:
        self._floor = floor
        self._places: set[str] = set()
        self._decided: deque[tuple[float, int]] = deque()
        self._rate = 0

    @property
    def taken(self) -> int:
        """Places taken."""
        return len(self._places)

    def size(self, now: float) -> int:
        """Places that there are."""
        while self._decided and self._decided[0][0] <= now - 1.0:
            self._rate -= self._decided.popleft()[1]
        return max(self._floor, self._rate // SHARE_OF_A_SECOND)

    def room(self, now: float) -> int:
        """Places that are free; none when a takeover found more in flight than there are places."""
        return max(0, self.size(now) - len(self._places))

    def enter(self, uid: str) -> None:
        """A pod takes a place; it may have it already."""
        self._places.add(uid)

    def leave(self, uid: str) -> None:
        """A pod gives its place back, if it has one."""
        self._places.discard(uid)

    def decided(self, now: float) -> None:
        """A final Decision was heard: the pipeline gets through so much work."""
        if self._decided and self._decided[-1][0] == now:
            self._decided[-1] = (now, self._decided[-1][1] + 1)
        else:
            self._decided.append((now, 1))
        self._rate += 1
