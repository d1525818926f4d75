"""Which pods wait for their group, and the entry of each group in the queue (ADR 72).

The core moves pods and entries; here is what a group needs for it. A group whose pods changed is reviewed at the end of
the slice, once for all changes.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from berth.api.meta import KubernetesObject
from berth.api.pod import Pod, priority_of
from berth.api.podgroups import (
    CoschedulingPodGroup,
    Dialect,
    GroupKey,
    Members,
    PodGroup,
    UpstreamPodGroup,
    group_of,
    in_order,
    of_coscheduling,
    of_upstream,
    with_untried,
)
from berth.cluster.podgroups import KINDS
from berth.messages.attempts import Outcome
from berth.messages.queue import WITH_GROUP
from berth.messages.subjects import Attempt
from berth_watcher.queue.groups import (
    REPLACEMENT_SECONDS,
    GroupEntry,
    GroupGate,
    Groups,
    QueuedGroup,
    Way,
)
from berth_watcher.queue.queuedpod import KUBE_QUEUES, EventClock, QueuedPod, Stage
from berth_watcher.queue.schedulingqueue import SchedulingQueue
from berth_watcher.store import ObjectStore

GROUP_KINDS: Final = frozenset(KINDS.values())

# Says why messages about groups of a profile would not be understood; empty if they are.
Lacking = Callable[[str], str]
# Waiting groups that go before a fresh one: each costs a plan, and the first may be one that fits nowhere.
HELPED_AT_ONCE: Final = 4
# The time of a creation has whole seconds.
CREATION_STEP: Final = timedelta(seconds=1)
# Seconds after which a gate is looked at again that such a reason closes.
LACKING_SECONDS: Final = 0.25

_NOTHING: Final[Mapping[str, int]] = {}

# Stages of a pod that waits by itself, from which it goes to its group.
_BY_ITSELF: Final = frozenset(
    {Stage.ACTIVE, Stage.BACKOFF, Stage.UNSCHEDULABLE, Stage.AWAITING_VERSIONS, Stage.AWAITING_MIRROR}
)
# Stages in which a pod may be bound already: its group is planned once the watch has shown what became of it.
_UNDECIDED: Final = frozenset({Stage.IN_FLIGHT, Stage.AWAITING_WATCH})


def form_of(thing: KubernetesObject | None) -> PodGroup | None:
    """The form of a PodGroup; None for other objects."""
    if isinstance(thing, UpstreamPodGroup):
        return of_upstream(thing)
    return of_coscheduling(thing) if isinstance(thing, CoschedulingPodGroup) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Review:
    """What a group's pods are to do.

    ``joining``: pods that waited by themselves and wait with the group now. ``leaving``: those that waited with it and
    are scheduled one by one. ``members``: with those pending members that the next attempt may place.
    ``seconds_to_whole``: of a group that is whole now.
    """

    gate: GroupGate
    members: Members
    joining: list[QueuedPod]
    leaving: list[QueuedPod]
    seconds_to_whole: float | None = None


class Grouping:
    def __init__(
        self,
        profiles: Collection[str],
        *,
        clock: EventClock,
        queue: SchedulingQueue,
        store: ObjectStore,
        lacking: Lacking,
    ) -> None:
        self._profiles = profiles
        self._clock = clock
        self._queue = queue
        self._store = store
        self._lacking = lacking
        self._groups = Groups()
        self._entries: dict[GroupKey, GroupEntry] = {}
        self._helped: dict[GroupEntry, None] = {}  # that an event may help, while their back-off may not end early yet
        self._last: dict[str, Attempt] = {}  # by uid of a PodGroup, the attempt of an entry that left the queue
        # By dialect that was not served, groups with pods that came since the API server was last asked for PodGroups,
        # and those for which it is being asked.
        self._unsought: dict[Dialect, set[GroupKey]] = {}
        self._seeking: dict[Dialect, set[GroupKey]] = {}
        # Groups to be reviewed; true: what happened may help the group.
        self.changed: dict[QueuedGroup, bool] = {}

    def __len__(self) -> int:
        return len(self._groups)

    def counts(self) -> dict[str, int]:
        """The groups with pods that wait: in flight; begun, of which the rest waits; and those that have not begun."""
        found = {"waiting": 0, "begun": 0, "in flight": 0}
        for entry in self._entries.values():
            group = entry.group
            found["in flight" if group.is_in_flight else "begun" if group.is_begun else "waiting"] += 1
        # Pods that name a PodGroup which is not there wait without an entry of it.
        nameless = (each for each in self._groups if each.group is None and each.way is Way.GATED)
        found["waiting"] += sum(any(map(self._queue.get, each.pods)) for each in nameless)
        return found if any(found.values()) else {}

    def pending(self, waiting: Mapping[str, int]) -> dict[str, int]:
        """Pods by kube-scheduler's queue: a group's are in its queue. ``waiting``: by people's queue."""
        found = {queue: pods for queue, pods in waiting.items() if queue != WITH_GROUP}
        found["gated"] += waiting[WITH_GROUP]
        for entry in self._entries.values():
            queue = KUBE_QUEUES.get(entry.stage)
            if queue is None:  # in flight with these pods, some of which may be gone
                found["gated"] -= sum(self._is_with_group(pod.uid) for pod in entry.members)
            elif entry.stage not in {Stage.GROUPED, Stage.RECOVERING}:
                found["gated"] -= len(entry.members)
                found[queue] += len(entry.members)
        return found

    # --- what happens to pods and PodGroups

    def observe_pod(self, uid: str, pod: Pod | None) -> None:
        now = self._clock.now
        if pod is None:
            self._mark(self._groups.remove_pod(uid, now))
            return
        key = group_of(pod)
        if key is not None and KINDS[key.dialect] in self._store.absent and not self._groups.has(key, uid):
            self._unsought.setdefault(key.dialect, set()).add(key)
        self._mark(self._groups.observe_pod(pod, now))

    def observe_group(self, form: PodGroup) -> None:
        self._mark(self._groups.observe_group(form))

    def remove_group(self, form: PodGroup) -> None:
        self._last.pop(form.uid, None)
        self._mark(self._groups.remove_group(form.key, form.uid))

    def take_unsought(self) -> list[Dialect]:
        """Dialects for whose PodGroups the API server is to be asked now, before pods are taken for ordinary ones."""
        found = [dialect for dialect in self._unsought if dialect not in self._seeking]
        for dialect in found:
            self._seeking[dialect] = self._unsought.pop(dialect)
        return found

    def on_sought(self, dialect: Dialect) -> None:
        for key in self._seeking.pop(dialect, ()):
            if (group := self._groups.get(key)) is not None:
                self.mark(group, helps=True)

    def mark_all(self, *, helps: bool = True) -> None:
        for group in self._groups:
            self.mark(group, helps=helps)

    def mark(self, group: QueuedGroup, *, helps: bool) -> None:
        """Have a group reviewed."""
        self.changed[group] = helps or self.changed.get(group, False)

    def take_changed(self) -> dict[QueuedGroup, bool]:
        changed, self.changed = self.changed, {}
        return changed

    def landed(self, entry: GroupEntry, *, helps: bool) -> None:
        """The group's attempt has ended."""
        self.mark(entry.group, helps=helps)
        self._mark(self._groups.landed(entry.group, self._clock.now))

    def _mark(self, groups: Iterable[QueuedGroup]) -> None:
        for group in groups:
            self.mark(group, helps=True)

    # --- pods and their groups

    def keeps(self, queued: QueuedPod) -> bool:
        """Whether the pod waits with its group."""
        group = None if isinstance(queued, GroupEntry) else self._groups.of(queued.uid)
        return group is not None and group.way is not Way.ONE_BY_ONE

    def takes(self, queued: QueuedPod) -> bool:
        """The same for a pod that could be tried by itself: then its group is reviewed."""
        group = self._groups.of(queued.uid)
        if group is None or not self.keeps(queued):
            return False
        self.mark(group, helps=True)
        return True

    def queued_members(self, group: QueuedGroup) -> list[QueuedPod]:
        """Without gated ones, which wait for a reason of their own."""
        found = map(self._queue.get, group.pods)
        return [queued for queued in found if queued is not None and queued.stage is not Stage.GATED]

    def _is_with_group(self, uid: str) -> bool:
        queued = self._queue.get(uid)
        return queued is not None and queued.stage is Stage.GROUPED

    def take_left(self) -> list[QueuedPod]:
        """Pods that waited with a group which they name no more, and wait with no other one."""
        found = [queued for uid in self._groups.take_left() if (queued := self._queue.get(uid)) is not None]
        return [queued for queued in _in(found, Stage.GROUPED) if not self.keeps(queued)]

    def broken(self, uid: str) -> QueuedGroup | None:
        """The begun group of a bound pod that leaves its node, if it has fewer than its minimum without the pod."""
        group = self._groups.of(uid)
        if group is None or group.group is None or not group.is_begun or group.group.is_ordinary(_NOTHING):
            return None
        if self._clock.now >= group.broken_until:
            others = Members.of((pod for pod in group.pods.values() if pod.uid != uid), self._profiles)
            if group.way is not Way.ONE_BY_ONE or not others.need(group.group):
                return None
            group.broken_until = self._clock.now + REPLACEMENT_SECONDS
        return group

    def review(self, group: QueuedGroup) -> Review:
        """Look at the gate of a group that is not in flight, and note the way of its pods."""
        if group.way is Way.ONE_BY_ONE and group.group is not None and group.group.is_ordinary(_NOTHING):
            return Review(gate=GroupGate(Way.ONE_BY_ONE), members=Members(), joining=[], leaving=[])
        members = Members.of(group.pods.values(), self._profiles)
        group.is_begun = members.is_begun
        gate = self._gate(group, members)
        group.way = gate.way
        seconds = group.seconds_to_whole(gate, members, self._clock.now)
        queued = [each for pod in members.pending if (each := self._queue.get(pod.uid)) is not None]
        if gate.way is Way.ONE_BY_ONE:
            leaving = _in(queued, Stage.GROUPED)
            return Review(gate=gate, members=members, joining=[], leaving=leaving, seconds_to_whole=seconds)
        joining = [each for each in queued if each.stage in _BY_ITSELF and not _backs_off(each)]
        ready = {each.uid for each in (*joining, *_in(queued, Stage.GROUPED, Stage.RECOVERING))}
        waiting = len(members.pending) - len(ready)
        members.pending = [pod for pod in members.pending if pod.uid in ready]
        if gate.way is Way.TOGETHER:
            gate = self._gate(group, members)
        if any(each.stage in _UNDECIDED for each in queued):
            gate = GroupGate(Way.GATED, "an attempt of one of its pods has not ended")
        elif gate.way is Way.GATED:
            gate = GroupGate(Way.GATED, with_untried(gate.message, waiting), gate.due)
        elif gate.way is Way.TOGETHER and (lacking := self._lacking(members.profiles[0])):
            gate = GroupGate(Way.GATED, lacking, self._clock.now + LACKING_SECONDS)
        group.way = Way.GATED if gate.way is Way.GATED else Way.TOGETHER
        return Review(gate=gate, members=members, joining=joining, leaving=[])

    def _gate(self, group: QueuedGroup, members: Members) -> GroupGate:
        absent = self._store.absent
        if KINDS[group.key.dialect] in absent and not self._is_unsought(group.key):
            return GroupGate(Way.ONE_BY_ONE)
        read = set(self._store.kinds).difference(self._store.unread, absent)
        known = [dialect for dialect, kind in KINDS.items() if kind in read]
        return group.gate(members, known, self._clock.now)

    def _is_unsought(self, key: GroupKey) -> bool:
        """Whether the API server has still to be asked for PodGroups since a pod of the group came."""
        return any(key in keys.get(key.dialect, ()) for keys in (self._unsought, self._seeking))

    # --- the entry of a group

    def entry_for(self, group: QueuedGroup, review: Review) -> tuple[GroupEntry | None, GroupEntry | None]:
        """The entry that leaves the queue, and the one that stands for the group, which is new if need be."""
        entry, form = self._entries.get(group.key), group.group
        if form is None or review.gate.way is Way.ONE_BY_ONE or not group.pods:
            return entry, None
        if entry is not None and entry.uid == form.uid:
            return None, entry
        # Nothing of a group without pending members can be in flight any more.
        return entry, self._make_entry(group, form, review.members) if review.members.pending else None

    def _make_entry(self, group: QueuedGroup, form: PodGroup, members: Members) -> GroupEntry:
        pod = group.representative(form, members)
        timestamp = group.complete_since(form, members) or self._clock.timestamp().wall
        entry = GroupEntry(pod=pod, timestamp=timestamp, group=group, form=form)
        entry.attempt = self._last.pop(form.uid, None)
        self.update_entry(entry, members)  # no review has those of one that a takeover finds in flight
        self._entries[group.key] = entry
        self._queue.add(entry)
        return entry

    def note_wait(self, entry: GroupEntry, *, is_helped: bool) -> None:
        """The group waits. ``is_helped``: an event may help it, but its back-off may not end early yet."""
        if is_helped:
            self._helped[entry] = None
        else:
            self._helped.pop(entry, None)

    def take_helped(self, fresh: GroupEntry) -> list[GroupEntry]:
        """The groups that an event may help and that go before a fresh one of their profile: the first few."""
        for gone in [each for each in self._helped if each.stage is not Stage.BACKOFF]:
            del self._helped[gone]
        now = self._clock.now
        equals = [each for each in self._helped if each.rests_until <= now and _goes_before(each, fresh)]
        first = heapq.nsmallest(HELPED_AT_ONCE, equals, key=lambda each: each.timestamp)
        for each in first:
            del self._helped[each]
            each.timestamp = min(each.timestamp, fresh.timestamp)
        return first

    def forget_entry(self, entry: GroupEntry) -> None:
        """The entry leaves the queue. Numbers of attempts are not used again while there is the PodGroup."""
        self._helped.pop(entry, None)
        if self._entries.get(entry.group.key) is entry:
            del self._entries[entry.group.key]
        form = self._groups.named(entry.group.key)
        if entry.attempt is not None and form is not None and form.uid == entry.uid:
            self._last[entry.uid] = entry.attempt

    def update_entry(self, entry: GroupEntry, members: Members) -> bool:
        """Take in the group's present members. Returns whether its place in the queue is another one."""
        form = entry.group.group or entry.form
        before = entry.pod.spec.priority, entry.at_front, entry.pod.spec.scheduler_name
        entry.form, entry.pod = form, entry.group.representative(form, members)
        entry.members, entry.need = in_order(members.pending), members.wanted(form)
        entry.bound = [pod.uid for pod in members.bound]
        entry.at_front = entry.at_front or members.is_begun
        return before != (entry.pod.spec.priority, entry.at_front, entry.pod.spec.scheduler_name)


def _goes_before(waiting: GroupEntry, fresh: GroupEntry) -> bool:
    is_earlier = waiting.timestamp < fresh.timestamp + CREATION_STEP
    return is_earlier and waiting.profile == fresh.profile and priority_of(waiting.pod) >= priority_of(fresh.pod)


def _in(queued: Iterable[QueuedPod], *stages: Stage) -> list[QueuedPod]:
    return [each for each in queued if each.stage in stages]


def _backs_off(queued: QueuedPod) -> bool:
    """Whether the API server or a plugin refused this pod: then the others go on without it."""
    return queued.stage is Stage.BACKOFF and (queued.outcome is Outcome.ERROR or bool(queued.failure))
