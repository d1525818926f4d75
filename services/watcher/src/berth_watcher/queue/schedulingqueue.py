"""The scheduling queue: all waiting pods, their order, and their timers.

Active pods are ordered by the profile's QueueSort plugin. Pods whose sort keys are equal at a fixed timestamp have the
same rank (with PrioritySort: the same priority). Within a rank, pods that lost a conflict go first; then namespaces
take turns (docs/adr/0020-namespaces-take-turns.md). Within a namespace the plugin's order counts.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sized
from datetime import datetime
from functools import partial
from itertools import count
from operator import itemgetter
from typing import Final, NamedTuple, TypeVar

from berth.api.devices import ResourceClaim
from berth.api.pod import Pod
from berth.cluster.objects import Objects
from berth.framework.interface import Plugin, QueueSortPlugin
from berth.framework.plugincalls import (
    ONE_TIME,
    PluginFailure,
    PluginTimeout,
    SortKey,
    default_sort_key,
    run_pre_enqueue,
    run_sort_key,
)
from berth.framework.profile import Profile
from berth.framework.status import SUCCESS, Status
from berth.messages.subjects import Uid
from berth_watcher.events import Warn
from berth_watcher.queue.queuedpod import INCOMING_QUEUES, KUBE_QUEUES, QUEUES, EventClock, QueuedPod, Stage

UNKNOWN_PLUGIN: Final = "(unknown)"  # in place of names in Decisions that are not plugins of the profile


class ActiveEntry(NamedTuple):
    """An active pod at its place. Generations differ, so that comparisons never reach the uids."""

    key: SortKey
    timestamp: datetime
    generation: int
    uid: str


IsCurrent = Callable[[ActiveEntry], bool]  # false for the stale entry of a pod that moved since

FRONT: Final = ""  # in place of a namespace: before all other pods of the rank


class ActivePods:
    """The active pods of a profile. Adding and removing one costs O(log n)."""

    def __init__(self, is_current: IsCurrent) -> None:
        self._is_current = is_current
        self._ranks: dict[SortKey, _Rank] = {}
        self._order: list[SortKey] = []
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def add(self, rank: SortKey, namespace: str, entry: ActiveEntry) -> None:
        """Add a pod of a rank and namespace, or at the FRONT of the rank."""
        of_rank = self._ranks.get(rank)
        if of_rank is None:
            of_rank = self._ranks[rank] = _Rank()
            heapq.heappush(self._order, rank)
        of_rank.add(namespace, entry)
        self._size += 1

    def first(self) -> tuple[SortKey, ActiveEntry] | None:
        """The rank and entry of the pod whose turn it is."""
        while self._order:
            rank = self._order[0]
            of_rank = self._ranks[rank]
            while (entry := of_rank.first()) is not None:
                if self._is_current(entry):
                    return rank, entry
                of_rank.drop()
                self._size -= 1
            heapq.heappop(self._order)
            del self._ranks[rank]
        return None

    def pop(self, turns: int = 1) -> ActiveEntry:
        """Remove and return the entry of the pod whose turn it is; its namespace pays so many turns.

        Raises:
            LookupError: there is no active pod.
        """
        found = self.first()
        if found is None:
            raise LookupError("there is no active pod")
        rank, entry = found
        self._ranks[rank].take(turns)
        self._size -= 1
        return entry

    def compact(self) -> None:
        self._size = sum(rank.compact(self._is_current) for rank in self._ranks.values())


class _Rank:
    """Pods of one rank. A namespace that is added gets its turn at the end of the present round."""

    def __init__(self) -> None:
        self._front: list[ActiveEntry] = []
        self._by_namespace: dict[str, list[ActiveEntry]] = {}
        self._turns: list[tuple[int, int, str]] = []  # round, number and namespace, one per namespace with entries
        self._numbers = count()
        self._round = 0
        # The last round for which a namespace has paid, until that round has passed.
        self._paid: dict[str, int] = {}

    def add(self, namespace: str, entry: ActiveEntry) -> None:
        if namespace == FRONT:
            heapq.heappush(self._front, entry)
            return
        entries = self._by_namespace.get(namespace)
        if entries is None:
            entries = self._by_namespace[namespace] = []
            self._line_up(namespace)
        heapq.heappush(entries, entry)

    def first(self) -> ActiveEntry | None:
        if self._front:
            return self._front[0]
        return self._by_namespace[self._turns[0][2]][0] if self._turns else None

    def take(self, turns: int) -> None:
        if self._front:
            heapq.heappop(self._front)
            return
        turn, _, namespace = heapq.heappop(self._turns)
        if turn > self._round:
            self._round = turn
            self._paid = {name: paid for name, paid in self._paid.items() if paid >= turn}
        self._paid[namespace] = turn + turns - 1
        heapq.heappop(self._by_namespace[namespace])
        self._line_up_again(namespace)

    def drop(self) -> None:
        """Remove the first entry, which is stale: its namespace keeps its turn while it has other pods."""
        if self._front:
            heapq.heappop(self._front)
            return
        namespace = self._turns[0][2]
        heapq.heappop(self._by_namespace[namespace])
        if not self._by_namespace[namespace]:
            heapq.heappop(self._turns)
            del self._by_namespace[namespace]

    def compact(self, is_current: IsCurrent) -> int:
        """Drop stale entries. Returns the number of entries left."""
        for entries in self._lists():
            entries[:] = filter(is_current, entries)
            heapq.heapify(entries)
        self._by_namespace = {name: entries for name, entries in self._by_namespace.items() if entries}
        self._turns = [turn for turn in self._turns if turn[2] in self._by_namespace]
        heapq.heapify(self._turns)
        return sum(map(len, self._lists()))

    def _lists(self) -> Iterator[list[ActiveEntry]]:
        yield self._front
        yield from self._by_namespace.values()

    def _line_up(self, namespace: str) -> None:
        turn = max(self._round, self._paid.get(namespace, -1) + 1)
        heapq.heappush(self._turns, (turn, next(self._numbers), namespace))

    def _line_up_again(self, namespace: str) -> None:
        if self._by_namespace[namespace]:
            self._line_up(namespace)
        else:
            del self._by_namespace[namespace]


# Compact a heap above this many entries per pod: the rest is stale. A pod requeued every ten seconds would leave thirty
# timers of five minutes behind, a gigabyte for 200,000 pods.
MAX_STALE: Final = 3
MIN_COMPACTED: Final = 1024  # smaller heaps are not compacted


class SchedulingQueue:
    """All waiting pods. A move costs O(log n)."""

    def __init__(self, profiles: Iterable[str], clock: EventClock) -> None:
        self.incoming: Counter[tuple[str, str]] = Counter()  # by kube-scheduler's queue and event
        self._clock = clock
        self._pods: dict[str, QueuedPod] = {}
        self._names: dict[str, dict[str, Uid]] = {}  # uids by namespace and name
        self._active = {profile: ActivePods(self._is_current_entry) for profile in profiles}
        # Pods whose back-off may end early.
        self._early = {profile: ActivePods(self._is_current_entry) for profile in self._active}
        self._timers: list[tuple[float, int, str]] = []
        self._awaiting_mirror: list[tuple[int, int, str]] = []  # by the mirror's change that they wait for
        self._generation = 0  # of the last move
        self._stage_sizes: Counter[Stage] = Counter()
        self._group_sizes: Counter[Stage] = Counter()  # how many of these entries are groups
        self._rejected: Counter[tuple[str, frozenset[str]]] = Counter()
        self._rejected_as: dict[str, tuple[str, frozenset[str]]] = {}

    def __len__(self) -> int:
        return len(self._pods)

    @property
    def entries(self) -> int:
        return len(self._timers) + sum(map(len, (*self._active.values(), *self._early.values())))

    def get(self, uid: str) -> QueuedPod | None:
        return self._pods.get(uid)

    def pods(self) -> Iterator[QueuedPod]:
        return iter(self._pods.values())

    @property
    def active(self) -> int:
        """Entries of the active queue, groups among them."""
        return sum(self._stage_sizes[stage] for stage, queue in KUBE_QUEUES.items() if queue == "active")

    def waiting_pods(self) -> dict[str, int]:
        """Pods by the queue that people see."""
        pods = dict.fromkeys(QUEUES.values(), 0)
        for stage, queue in QUEUES.items():
            pods[queue] += self._stage_sizes[stage] - self._group_sizes[stage]
        return pods

    def unschedulable(self, known: Mapping[str, Container[str]]) -> dict[tuple[str, str], int]:
        """Rejected pods not tried again since, by plugin and profile.

        ``known``: the plugins of each profile. Others count as one, because their names come from messages.
        """
        pods_by_plugin: Counter[tuple[str, str]] = Counter()
        for (profile, plugins), pods in self._rejected.items():
            for plugin in {name if name in known[profile] else UNKNOWN_PLUGIN for name in plugins}:
                pods_by_plugin[plugin, profile] += pods
        return pods_by_plugin

    def named(self, namespace: str, name: str) -> QueuedPod | None:
        """The pod of this name; the later one while a pod is being replaced."""
        return self._pods.get(self._names.get(namespace, {}).get(name, ""))

    def add(self, pod: QueuedPod) -> None:
        self._pods[pod.uid] = pod
        self._names.setdefault(pod.pod.metadata.namespace, {})[pod.pod.metadata.name] = pod.uid
        self._count(pod, 1)

    def remove(self, pod: QueuedPod) -> None:
        if self._pods.pop(pod.uid, None) is None:
            return
        self._forget_name(pod)
        self._count(pod, -1)
        self._clear_rejection(pod)
        pod.generation = self._next_generation()

    def move(self, pod: QueuedPod, stage: Stage, *, due: float | None = None, place: Place | None = None) -> None:
        """Put a pod into a stage, with a timer if ``due`` is given.

        ``place`` is needed if the pod becomes active or its back-off may end early.
        """
        self._count(pod, -1)
        self._update_metrics(pod, stage)
        pod.stage, pod.generation, pod.due = stage, self._next_generation(), None
        self._count(pod, 1)
        if place is not None:
            self._push(pod, place, self._active if stage is Stage.ACTIVE else self._early)
        if stage is Stage.AWAITING_MIRROR:
            heapq.heappush(self._awaiting_mirror, (pod.mirror_change, pod.generation, pod.uid))
        if due is not None:
            self.set_timer(pod, due)

    def _count(self, pod: QueuedPod, by: int) -> None:
        self._stage_sizes[pod.stage] += by
        if pod.is_group:
            self._group_sizes[pod.stage] += by

    def _forget_name(self, pod: QueuedPod) -> None:
        metadata = pod.pod.metadata
        of_namespace = self._names.get(metadata.namespace, {})
        if of_namespace.get(metadata.name) == pod.uid:
            del of_namespace[metadata.name]
            if not of_namespace:
                del self._names[metadata.namespace]

    def _push(self, pod: QueuedPod, place: Place, by_profile: Mapping[str, ActivePods]) -> None:
        active = by_profile[pod.pod.spec.scheduler_name]
        namespace = FRONT if pod.at_front else pod.pod.metadata.namespace
        active.add(place.rank, namespace, ActiveEntry(place.key, pod.timestamp, pod.generation, pod.uid))
        if self._is_mostly_stale(active):  # pods come and go while the window is full
            active.compact()

    def set_timer(self, pod: QueuedPod, due: float) -> None:
        """Set the stage's timer, in monotonic seconds. The next move drops it."""
        pod.due = due
        heapq.heappush(self._timers, (due, pod.generation, pod.uid))
        if self._is_mostly_stale(self._timers):
            self._timers = [entry for entry in self._timers if self._current(entry[1], entry[2]) is not None]
            heapq.heapify(self._timers)

    def pop(self, free: Mapping[str, int], admit: Callable[[QueuedPod], int]) -> QueuedPod | None:
        """The active pod whose turn it is, of profiles with free slots. The caller must move it.

        ``admit``: the turns that its namespace pays; 0 if the pod waits for more slots, and its profile with it.
        """
        heads = [
            (*found, active)
            for profile, active in self._active.items()
            if free[profile] > 0 and (found := active.first())
        ]
        for _, entry, active in sorted(heads, key=itemgetter(0, 1)):
            pod = self._pods[entry.uid]
            if turns := admit(pod):
                active.pop(turns)
                return pod
        return None

    @property
    def has_early(self) -> bool:
        """Whether a back-off may end early, unless its pod has moved since."""
        return any(map(len, self._early.values()))

    def pop_early(self, room: Mapping[str, int], settled: int) -> QueuedPod | None:
        """A pod whose back-off may end early, of a profile with room and without active pods. The caller must move it.

        Only pods whose next ranking needs no change of the mirror above ``settled``.
        """
        for profile, early in self._early.items():
            if room[profile] > 0 and self._active[profile].first() is None and (found := early.first()) is not None:
                pod = self._pods[found[1].uid]
                if pod.mirror_change <= settled:
                    early.pop()
                    return pod
        return None

    def pop_stored(self, settled: int) -> Iterator[QueuedPod]:
        """Pods that wait for a change up to ``settled``: at least one, then while the slice has time.

        The caller must move each before it takes the next.
        """
        while self.has_stored(settled):
            _, generation, uid = heapq.heappop(self._awaiting_mirror)
            pod = self._current(generation, uid)
            if pod is not None:
                yield pod
            if not self._clock.may_continue():
                return

    def has_stored(self, settled: int) -> bool:
        return bool(self._awaiting_mirror) and self._awaiting_mirror[0][0] <= settled

    def pop_due(self) -> Iterator[QueuedPod]:
        """Pods whose timer is due. The caller must move each, or set its timer, before it takes the next."""
        while self._timers and self._timers[0][0] <= self._clock.now:
            _, generation, uid = heapq.heappop(self._timers)
            pod = self._current(generation, uid)
            if pod is not None:
                yield pod

    def next_due(self) -> float | None:
        """Monotonic time of the next timer; ``None`` if no pod has one."""
        while self._timers and self._current(self._timers[0][1], self._timers[0][2]) is None:
            heapq.heappop(self._timers)
        return self._timers[0][0] if self._timers else None

    def _is_mostly_stale(self, heap: Sized) -> bool:
        return len(heap) > MAX_STALE * len(self._pods) + MIN_COMPACTED

    def _is_current_entry(self, entry: ActiveEntry) -> bool:
        return self._current(entry.generation, entry.uid) is not None

    def _next_generation(self) -> int:
        self._generation += 1
        return self._generation

    def _current(self, generation: int, uid: str) -> QueuedPod | None:
        """The entry's pod; ``None`` if the entry is stale."""
        pod = self._pods.get(uid)
        return pod if pod is not None and pod.generation == generation else None

    def _update_metrics(self, pod: QueuedPod, stage: Stage) -> None:
        queue = INCOMING_QUEUES.get(stage)
        if queue is not None and queue != INCOMING_QUEUES.get(pod.stage):
            self.incoming[queue, pod.incoming_event] += 1
        if KUBE_QUEUES.get(stage) != "active":
            pod.active_since = None
        elif pod.active_since is None:
            pod.active_since = self._clock.now
            if pod.first_active_at is None:
                pod.first_active_at = self._clock.now
        self._clear_rejection(pod)
        if pod.unschedulable_plugins and stage in KUBE_QUEUES:
            rejected = self._rejected_as[pod.uid] = (pod.profile, pod.unschedulable_plugins)
            self._rejected[rejected] += 1

    def _clear_rejection(self, pod: QueuedPod) -> None:
        rejected = self._rejected_as.pop(pod.uid, None)
        if rejected is not None:
            self._rejected[rejected] -= 1
            if not self._rejected[rejected]:
                del self._rejected[rejected]


R = TypeVar("R")

MAX_TIMEOUTS: Final = 3  # consecutive timeouts of a plugin after which it is suspended
SUSPENDED_SECONDS: Final = 60.0  # also the interval between two warnings about a plugin, which may fail for every pod


class Place(NamedTuple):
    rank: SortKey  # its sort key at a fixed timestamp: equal for pods that only their age separates
    key: SortKey  # orders pods within their namespace


def _place(plugin: QueueSortPlugin, pod: QueuedPod) -> Place:
    return Place(run_sort_key(plugin, pod.pod, ONE_TIME), run_sort_key(plugin, pod.pod, pod.timestamp))


class QueuePlugins:
    """Calls QueueSort, PreEnqueue and queueing hints for one pod at a time.

    An exception or a timeout fails one pod: it is published with the reason, which the binder records for its owner. A
    plugin that times out for several pods in a row is not called for a minute. ``take_warnings`` returns the failures.
    """

    def __init__(self, profiles: Mapping[str, Profile], clock: EventClock) -> None:
        self._profiles = profiles
        self._clock = clock
        self.warnings: list[Warn] = []  # for the next ``take_warnings``
        self._timeouts: Counter[str] = Counter()
        self._suspended: dict[str, float] = {}
        self._warned: dict[str, float] = {}

    def place(self, pod: QueuedPod) -> Place:
        """The pod's place in the queue, by the default plugin if the pod's own fails."""
        if not pod.failure:
            try:
                plugin = self._profiles[pod.pod.spec.scheduler_name].queue_sort
                return self.call(plugin, pod.pod, partial(_place, plugin, pod))
            except PluginFailure as failure:
                pod.record_failure(failure, self._clock.now)
        return Place(default_sort_key(pod.pod, ONE_TIME), default_sort_key(pod.pod, pod.timestamp))

    def pre_enqueue(self, pod: Pod, claims: Objects[ResourceClaim] | None) -> Status:
        """Run the PreEnqueue plugins until one rejects the pod. Without ``claims``, none rejects it for a claim.

        Raises:
            PluginFailure: one of them failed for this pod.
        """
        for plugin in self._profiles[pod.spec.scheduler_name].pre_enqueues_of(pod):
            status = self.call(plugin, pod, partial(run_pre_enqueue, plugin, pod, claims))
            if not status.is_success:
                return status
        return SUCCESS

    def take_warnings(self) -> list[Warn]:
        """Warnings about failures since the last call, at most one per plugin and minute."""
        warnings, self.warnings = self.warnings, []
        return warnings

    def call(self, plugin: Plugin, pod: Pod, work: Callable[[], R]) -> R:
        """Do this work of the plugin for the pod.

        Raises:
            PluginFailure: the plugin failed for this pod, or is suspended.
        """
        if self._suspended and self._clock.now < self._suspended.get(plugin.name, 0.0):
            raise PluginTimeout(f'plugin "{plugin.name}" is not called, since it took too long for several pods')
        try:
            result = work()
        except PluginTimeout as failure:
            self._timeouts[plugin.name] += 1
            if self._timeouts[plugin.name] >= MAX_TIMEOUTS:
                del self._timeouts[plugin.name]
                self._suspended[plugin.name] = self._clock.now + SUSPENDED_SECONDS
            self._report(plugin, pod, failure)
            raise
        except PluginFailure as failure:
            self._report(plugin, pod, failure)
            raise
        if self._timeouts:
            self._timeouts.pop(plugin.name, None)
        return result

    def _report(self, plugin: Plugin, pod: Pod, failure: PluginFailure) -> None:
        if self._clock.now >= self._warned.get(plugin.name, 0.0):
            self._warned[plugin.name] = self._clock.now + SUSPENDED_SECONDS
            self.warnings.append(Warn(message="a plugin failed", fields={"pod": pod.key, "error": str(failure)}))
