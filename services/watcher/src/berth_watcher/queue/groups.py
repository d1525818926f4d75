"""Groups in the queue: each is one entry, gated until its PodGroup and enough of its members are there (ADR 72).

A pod belongs to the group that it names. While the group is in flight nothing moves: what changes is noted, and the
next attempt follows the Decision. Pods of a group whose minimum is bound are ordinary pods, and so are those of a group
that asks for no more than each of them does.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum, auto
from typing import ClassVar, Final

import msgspec

from berth.api.pod import Pod
from berth.api.podgroups import (
    Dialect,
    GroupKey,
    Members,
    PodGroup,
    group_of,
    in_order,
    missing_members,
    refusal_of,
)
from berth.api.resources import pod_requests
from berth.messages.attempts import DecisionSummary, Outcome
from berth.messages.groupattempts import subject_name
from berth_watcher.queue.queuedpod import NEVER, QueuedPod, created_at, time_in

# Seconds for which the room of a lost member is left to its replacement: a fresh group would have it some milliseconds
# before the replacement exists.
REPLACEMENT_SECONDS: Final = 1.0
# Seconds without news of its members after which a begun group goes on with those that exist. A half-finished Job, or
# an elastic one, never has its minimum again.
BEGUN_SECONDS: Final = 10.0
# Back-off in relation to the last plan: else one group has all scorers.
PLAN_SHARE: Final = 10
MOST_BACKOFF_SECONDS: Final = 60.0
# Seconds after which a back-off that ended early may end early once more: a Job's end is many events, and at the first
# there is too little room.
BURST_SECONDS: Final = 0.1
# Conflicts in a row after which a group goes alone: a plan that takes a second loses to a stream of single pods every
# time.
CONFLICTS_TO_GO_ALONE: Final = 2


class Way(Enum):
    """How the pending pods of a group are scheduled."""

    GATED = auto()
    TOGETHER = auto()
    ONE_BY_ONE = auto()


@dataclass(frozen=True, slots=True)
class GroupGate:
    """``message``: why it is closed. ``due``: monotonic time at which it may open without an event."""

    way: Way
    message: str = ""
    due: float | None = None


@dataclass(slots=True, kw_only=True, eq=False)
class QueuedGroup:
    """A group with pods, or one in flight."""

    key: GroupKey
    group: PodGroup | None = None  # None: the API server has shown none of this name
    pods: dict[str, Pod] = field(default_factory=dict)  # all that name it, by uid
    changed_at: float = 0.0  # monotonic time of the last news of a member
    way: Way = Way.GATED  # by its last review
    is_begun: bool = False  # the same: some of its members are bound
    complete_at: float | None = None  # monotonic; since when its minimum exists, of a group that is not whole yet
    broken_until: float = 0.0  # monotonic; room that its lost members leave helps others after that
    is_in_flight: bool = False
    has_changed: bool = False  # while it is in flight

    def members(self, profiles: Collection[str]) -> Members:
        return Members.of(self.pods.values(), profiles)

    def gate(self, members: Members, known: Collection[Dialect], now: float) -> GroupGate:
        """Whether its pending pods may be tried, and how. ``known``: dialects whose PodGroups are watched."""
        group = self.group
        refusal = refusal_of(self.key, group, members, known)
        if group is None or refusal:
            return GroupGate(Way.GATED, refusal)
        if not members.need(group) or self._is_ordinary(group, members):
            return GroupGate(Way.ONE_BY_ONE)
        if members.pending and members.are_enough(group):
            return GroupGate(Way.TOGETHER)
        due = self.changed_at + BEGUN_SECONDS if members.is_begun and members.pending else None
        if due is not None and now >= due:
            return GroupGate(Way.TOGETHER)
        return GroupGate(Way.GATED, missing_members(group, members), due)

    def representative(self, group: PodGroup, members: Members) -> Pod:
        """A pod with the group's name, uid and priority, for plugins: else as the most important, oldest member."""
        first = in_order(members.pending)[0]
        spec = msgspec.structs.replace(first.spec, priority=members.priority(group))
        metadata = msgspec.structs.replace(first.metadata, name=subject_name(group.key), uid=group.uid)
        return msgspec.structs.replace(first, metadata=metadata, spec=spec)

    def complete_since(self, group: PodGroup, members: Members) -> datetime | None:
        """When the last of PodGroup and needed members was created, by the clock that gives pods their places.

        Not when the gate opened: it closes for others' reasons too, and a new leader opens all gates anew.
        """
        there = sorted(at for pod in members.pending if (at := created_at(pod)) is not None)
        times = [*there[: members.need(group)][-1:], time_in(group.created)]
        return max((at for at in times if at is not None), default=None)

    def _is_ordinary(self, group: PodGroup, members: Members) -> bool:
        return all(group.is_ordinary(pod_requests(pod.spec).amounts) for pod in members.pending[:1])

    def seconds_to_whole(self, gate: GroupGate, members: Members, now: float) -> float | None:
        """How long a group took that is whole since its last review, from its being complete; otherwise None."""
        if not members.is_begun:
            self.complete_at = (self.complete_at or now) if gate.way is Way.TOGETHER else None
            return None
        if gate.way is not Way.ONE_BY_ONE:
            return None
        began, self.complete_at = self.complete_at, None
        return None if began is None else now - began

    def published(self) -> None:
        self.is_in_flight, self.has_changed = True, False


@dataclass(slots=True, kw_only=True, eq=False)
class GroupEntry(QueuedPod):
    """A group as one entry of the queue. ``pod`` is its representative.

    ``members`` are those that the next attempt places, ``need`` of them together; ``bound``: uids of bound members;
    ``victims``: uids of the pods that are evicted for it.
    """

    is_group: ClassVar[bool] = True
    group: QueuedGroup
    form: PodGroup
    members: list[Pod] = field(default_factory=list)
    need: int = 0
    bound: list[str] = field(default_factory=list)
    victims: frozenset[str] = frozenset()
    rests_until: float = 0.0  # for what its last plan took, monotonic
    ended_early_before: float = NEVER  # monotonic time of the last but one early end of its back-off
    gives_way_until: float = 0.0  # to groups that have waited longer, monotonic

    def record_decision(self, decision: DecisionSummary) -> None:
        QueuedPod.record_decision(self, decision)
        if decision.outcome is not Outcome.PREEMPTING:
            self.victims = frozenset()
        elif decision.preemption is not None and decision.preemption.victims:  # without, former victims still terminate
            self.victims = frozenset(victim.uid for victim in decision.preemption.victims)

    @property
    def is_uniform(self) -> bool:
        """Whether what helps the member that the Decision is about helps all.

        Where members must be together it need not: the Decision is about the best domain, and others may get room.
        """
        first = self.members[0].spec
        near = first.affinity and first.affinity.pod_affinity
        if self.form.topology is not None or (near and near.required_during_scheduling_ignored_during_execution):
            return False
        return all(pod.spec == first for pod in self.members)

    def admit(self, used: int, size: int) -> int:
        """The turns that its namespace pays for it at the head of the queue; 0 if it must wait for slots.

        Until then what is not of higher priority waits behind it: let past, small pods would keep it out for ever.
        """
        slots, alone = len(self.members), self.conflicts >= CONFLICTS_TO_GO_ALONE
        may_go = used == 0 if alone or slots > size else slots <= size - used
        # Free of charge it would beat pods of other namespaces, and at its full size its own namespace would starve.
        return max(1, min(slots, size)) if may_go else 0

    def early_from(self, pause: float) -> float:
        """As of a pod, though twice within the pause, and not while it rests."""
        return max(self.ended_early_before + pause, self.ended_early_at + BURST_SECONDS, self.rests_until)

    def end_early(self, now: float) -> None:
        self.ended_early_before, self.ended_early_at = self.ended_early_at, now

    def back_off_for(self, plan_seconds: float, failed_at: float) -> None:
        """Lengthen the back-off of a failed attempt by what its plan took; events do not end this part early."""
        self.rests_until = failed_at + min(PLAN_SHARE * plan_seconds, MOST_BACKOFF_SECONDS)
        self.backoff_until = max(self.backoff_until, self.rests_until)


class Groups:
    """The groups that pods name. Pods without a group cost two look-ups."""

    def __init__(self) -> None:
        self._groups: dict[GroupKey, QueuedGroup] = {}
        self._named: dict[GroupKey, PodGroup] = {}  # all PodGroups, also those that no pod names
        self._key_of: dict[str, GroupKey] = {}  # by uid of a pod
        self._moving: dict[str, Pod] = {}  # by uid, pods that name another group while theirs is in flight
        self._left: set[str] = set()  # uids of pods that named another group before, until ``take_left``

    def __len__(self) -> int:
        return len(self._groups)

    def __iter__(self) -> Iterator[QueuedGroup]:
        return iter(self._groups.values())

    def get(self, key: GroupKey) -> QueuedGroup | None:
        return self._groups.get(key)

    def named(self, key: GroupKey) -> PodGroup | None:
        """The PodGroup of this name, also if no pod names it."""
        return self._named.get(key)

    def has(self, key: GroupKey, uid: str) -> bool:
        """Whether the pod is one of the group."""
        return self._key_of.get(uid) == key

    def of(self, uid: str) -> QueuedGroup | None:
        """The group of a pod."""
        key = self._key_of.get(uid)
        return None if key is None else self._groups[key]

    def observe_pod(self, pod: Pod, now: float) -> list[QueuedGroup]:
        """The groups that changed by this state of the pod: none for a pod without a group."""
        wanted, current = group_of(pod), self._key_of.get(pod.uid)
        if wanted is None and current is None:
            return []
        if current is not None and current != wanted:
            group = self._groups[current]
            if group.is_in_flight:
                # Two messages of one pod would both be right.
                self._moving[pod.uid] = pod
                group.has_changed = True
                return []
            self._left.add(pod.uid)
            return [*self._leave(pod.uid, now), *(self._join(pod, wanted, now) if wanted is not None else ())]
        self._moving.pop(pod.uid, None)
        return self._join(pod, wanted, now) if wanted is not None else []

    def remove_pod(self, uid: str, now: float) -> list[QueuedGroup]:
        """The same for a pod that is gone."""
        self._moving.pop(uid, None)
        return self._leave(uid, now) if uid in self._key_of else []

    def observe_group(self, group: PodGroup) -> list[QueuedGroup]:
        """The groups that changed by this state of the PodGroup, which may be remade under another uid."""
        self._named[group.key] = group
        return self._set_group(group.key, group)

    def remove_group(self, key: GroupKey, uid: str) -> list[QueuedGroup]:
        """The same for a PodGroup that is gone, unless another one of its name has come meanwhile."""
        known = self._named.get(key)
        if known is None or known.uid != uid:
            return []
        del self._named[key]
        return self._set_group(key, None)

    def landed(self, group: QueuedGroup, now: float) -> list[QueuedGroup]:
        """The group is not in flight any more: pods that have named another one move. Returns all that changed."""
        group.is_in_flight = False
        changed = [group] if group.has_changed else []
        group.has_changed = False
        for uid in [uid for uid in group.pods if uid in self._moving]:
            changed += self.observe_pod(self._moving.pop(uid), now)
        self._forget_if_empty(group)
        return list(dict.fromkeys(changed))

    def take_left(self) -> set[str]:
        left, self._left = self._left, set()
        return left

    def _join(self, pod: Pod, key: GroupKey, now: float) -> list[QueuedGroup]:
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = QueuedGroup(key=key, group=self._named.get(key))
        before = group.pods.get(pod.uid)
        group.pods[pod.uid] = pod
        self._key_of[pod.uid] = key
        return self._changed(group, now) if before is None or _counts_otherwise(before, pod) else []

    def _leave(self, uid: str, now: float) -> list[QueuedGroup]:
        group = self._groups[self._key_of.pop(uid)]
        group.pods.pop(uid, None)
        changed = self._changed(group, now)
        self._forget_if_empty(group)
        return changed

    def _set_group(self, key: GroupKey, group: PodGroup | None) -> list[QueuedGroup]:
        queued = self._groups.get(key)
        if queued is None:
            return []
        former, queued.group = queued.group, group
        if _without_version(former) == _without_version(group):  # its status has changed, by berth perhaps
            return []
        queued.has_changed = queued.has_changed or queued.is_in_flight
        return [queued]

    def _changed(self, group: QueuedGroup, now: float) -> list[QueuedGroup]:
        group.changed_at = now
        group.has_changed = group.has_changed or group.is_in_flight
        return [group]

    def _forget_if_empty(self, group: QueuedGroup) -> None:
        if not group.pods and not group.is_in_flight:
            self._groups.pop(group.key, None)


def _without_version(group: PodGroup | None) -> PodGroup | None:
    return None if group is None else msgspec.structs.replace(group, resource_version="")


def _counts_otherwise(before: Pod, now: Pod) -> bool:
    """Whether the group may have another state with the pod as it is now."""
    return (
        before.spec != now.spec
        or before.status.phase != now.status.phase
        or before.metadata.deletion_timestamp != now.metadata.deletion_timestamp
        or before.metadata.labels != now.metadata.labels
    )
