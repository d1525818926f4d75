"""An attempt to bind a group, from its first RANKED message to the PubAck of its Decision."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from berth.api.podgroups import GroupKey
from berth.cluster.pods import has_source
from berth.messages.attempts import Decision, Preemption
from berth_binder.attempts.attempt import MOST_HELD, BindingAttempt
from berth_binder.decisions.verdict import Verdict
from berth_binder.events import GroupDelivery


class GroupPhase(Enum):
    """The event for which a group waits."""

    AWAITING = "the watch, or the end of a pause"
    COUNTING = "the count of how often it was begun"
    EXAMINING = "its turn, and the check of its members"
    PREPARING = "what its members reserve, write and wait for"
    REHEARSING = "the answers to dry runs of Bindings"
    POSTING = "the answers to Bindings"
    READING = "the reads of its members before evictions"
    EVICTING = "the answers to evictions for it"
    UNDOING = "the answers to what takes back its members' writes"
    DECIDING = "the PubAck of its Decision"


@dataclass(slots=True, kw_only=True, eq=False)
class GroupAttempt:
    """An attempt to bind a group, by its PodGroup's uid; messages of later attempts join it."""

    latest: GroupDelivery
    deliveries: list[GroupDelivery]
    phase: GroupPhase = GroupPhase.EXAMINING
    began: float
    due: float = 0.0  # while it awaits something
    awaited: set[str] = field(default_factory=set)  # uids of pods and of the group, until the watch shows them
    need: int = 0
    is_fresh: bool = False  # no member was bound before this attempt
    members: dict[str, BindingAttempt] = field(default_factory=dict)  # undecided ones, by uid
    classes: dict[str, int] = field(default_factory=dict)  # by uid
    todo: deque[BindingAttempt] = field(default_factory=deque)  # members whose next step may begin
    ready: set[str] = field(default_factory=set)
    rehearsing: set[str] = field(default_factory=set)
    publishing: set[str] = field(default_factory=set)  # members whose Decision is not stored yet
    version: int = 0  # of the Snapshot on which all members passed
    bound: int = 0
    others: list[Verdict] = field(default_factory=list)  # on members that are not bound
    missing: list[str] = field(default_factory=list)  # their names
    verdict: Verdict | None = None  # why nothing of it is bound
    preemption: Preemption | None = None
    read: set[str] = field(default_factory=set)  # members that the API server has shown as they were planned
    exceptions: int = 0
    has_dead_letter: bool = False
    waiting_from: float | None = None  # when ``waiting`` is published next; None before the first one
    repeats: int = 0
    decision: Decision | None = None
    decided: GroupDelivery | None = None
    numbers: Mapping[str, int] = field(init=False)  # by uid, the n of each member's attempt
    done: set[str] = field(default_factory=set)  # members with a Decision of their own
    uid: str = field(init=False)

    def __post_init__(self) -> None:
        self.uid = self.latest.attempt.uid
        self.numbers = _numbers(self.latest)

    @property
    def key(self) -> GroupKey:
        return self.latest.ranked.group.key

    @property
    def is_posting(self) -> bool:
        return self.phase is GroupPhase.POSTING

    def join(self, delivery: GroupDelivery) -> GroupDelivery | None:
        """Hold another message of the group. Returns one that is held no longer."""
        if delivery.attempt.order > self.latest.attempt.order:
            self.latest, self.repeats = delivery, 0
            self.numbers = {**self.numbers, **_numbers(delivery)}
        for place, held in enumerate(self.deliveries):
            if held.sequence == delivery.sequence and self.latest is not held and self.decided is not held:
                self.deliveries[place] = delivery
                return None
        self.deliveries.append(delivery)
        if len(self.deliveries) <= MOST_HELD:
            return None
        kept = (self.deliveries[0], self.latest, self.decided, delivery)
        surplus = next(each for each in self.deliveries if each not in kept)
        self.deliveries.remove(surplus)
        return surplus

    def in_order(self) -> list[BindingAttempt]:
        """Members with volumes first, then those of scarce classes, which were placed first; then by name."""
        places: dict[int, int] = {}
        for member in self.latest.ranked.plan.members:
            places.setdefault(member.of_class, len(places))

        def place(member: BindingAttempt) -> tuple[bool, int, str]:
            volumes = member.pod.spec.volumes or ()
            of_class = self.classes[member.uid]
            return not any(map(has_source, volumes)), places.get(of_class, of_class), member.pod.metadata.name

        return sorted(self.members.values(), key=place)


def _numbers(delivery: GroupDelivery) -> dict[str, int]:
    return {member.uid: member.n for member in delivery.ranked.bundle.members}
