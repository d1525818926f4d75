"""Rules of groups taken away one by one, as of ``mutations``."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import msgspec

from berth.api.pod import is_gated, is_gone_while_unbound, priority_of
from berth.api.podgroups import Members, group_of, refusal_of
from berth.framework.events import NO_ACTION, ClusterEvent, Resource
from berth.framework.plugincalls import ONE_TIME, default_sort_key
from berth.groups import domains as domains_of_groups
from berth.groups import evictions as evictions_of_groups
from berth.groups import planner
from berth.messages.earmarks import Earmark
from berth.messages.groupattempts import GroupMessage
from berth.plugins import podgrouptopology
from berth.ranking import groupranker
from berth_binder import takeover
from berth_binder.attempts import groupexamination
from berth_binder.attempts import groups as groups_of_binder
from berth_binder.core import BinderCore
from berth_binder.decisions import groupcheck, groupreports
from berth_watcher import core as watcher_core
from berth_watcher import grouping
from berth_watcher.attempts import Attempts
from berth_watcher.queue import groups as groups_of_queue
from berth_watcher.queue.groups import GroupEntry, GroupGate, Groups, Way
from berth_watcher.queue.queuedpod import Stage
from berth_watcher.queue.requeue import Requeue, Wait
from berth_watcher.queue.schedulingqueue import Place, SchedulingQueue
from simulation.faults import GROUP_LOST, GROUP_STOPPED
from simulation.mutation import Mutation, Replacement
from simulation.simulate import GROUPS

# --- the watcher


def _open_gates() -> list[Replacement]:
    gate = groups_of_queue.QueuedGroup.gate

    def opened(self: Any, members: Any, known: Any, now: float) -> Any:
        found = gate(self, members, known, now)
        is_short = found.way is Way.GATED and not refusal_of(self.key, self.group, members, known)
        return GroupGate(Way.TOGETHER) if is_short and members.pending else found

    return [(groups_of_queue.QueuedGroup, "gate", opened)]


def _begun_groups_wait() -> list[Replacement]:
    return [(groups_of_queue, "BEGUN_SECONDS", float("inf"))]


def _gates_say_nothing() -> list[Replacement]:
    return [(groupreports.GroupReports, "_why_gated", lambda *_: "")]


def _losses_help_at_once() -> list[Replacement]:
    return [(grouping, "REPLACEMENT_SECONDS", 0.0)]


def _failures_keep_their_place() -> list[Replacement]:
    fail = Requeue._fail

    def failed(self: Any, pod: Any, *rest: Any) -> None:
        before = pod.timestamp
        fail(self, pod, *rest)
        pod.timestamp = before

    return [(Requeue, "_fail", failed)]


def _pods_join_in_flight() -> list[Replacement]:
    """A pod is published with its group while an attempt of its own is under way."""
    by_itself = grouping._BY_ITSELF | {Stage.IN_FLIGHT}
    return [(grouping, "_BY_ITSELF", by_itself), (grouping, "_UNDECIDED", frozenset())]


def _pods_leave_in_flight() -> list[Replacement]:
    """A pod is tried alone while the group that it named before is in flight with it."""
    observe = Groups.observe_pod

    def observed(self: Any, pod: Any, now: float) -> Any:
        group = self.of(pod.uid)
        if group is None or not group.is_in_flight:
            return observe(self, pod, now)
        group.is_in_flight = False
        changed = observe(self, pod, now)
        group.is_in_flight, group.has_changed = True, bool(changed)
        return changed

    return [(Groups, "observe_pod", observed)]


def _members_have_no_numbers() -> list[Replacement]:
    """A message of a group counts as no attempt of its members."""
    publish = Attempts.publish_group

    def published(self: Any, entry: Any, members: Any, **more: Any) -> Any:
        before = [(member, member.attempt) for member in members]
        effects = publish(self, entry, members, **more)
        for member, attempt in before:
            member.attempt = attempt
        return effects

    return [(Attempts, "publish_group", published)]


def _highest_priority_counts() -> list[Replacement]:
    def priority(self: Any, group: Any) -> int:
        return max([*([] if group.priority is None else [group.priority]), *map(priority_of, self.pending)], default=0)

    def of_message(self: Any) -> int:
        of_group = [] if self.group.priority is None else [self.group.priority]
        return max([*of_group, *map(priority_of, self.bundle.classes)], default=0)

    return [(Members, "priority", priority), (GroupMessage, "priority", property(of_message))]


def _begun_groups_are_as_others() -> list[Replacement]:
    """The rest of a begun group waits in the order of all groups."""
    update = grouping.Grouping.update_entry

    def updated(self: Any, entry: Any, members: Any) -> bool:
        before = entry.pod.spec.priority, entry.at_front, entry.pod.spec.scheduler_name
        update(self, entry, members)
        entry.at_front = before[1]
        return before != (entry.pod.spec.priority, entry.at_front, entry.pod.spec.scheduler_name)

    return [(grouping.Grouping, "update_entry", updated)]


def _groups_do_not_back_off() -> list[Replacement]:
    on_error = Requeue.on_error

    def at_once(self: Any, pod: Any, failed_at: Any) -> Any:
        found = on_error(self, pod, failed_at)
        if not isinstance(pod, GroupEntry):
            return found
        pod.backoff_until = 0.0
        return Wait(Stage.BACKOFF, self._clock.now)

    return [(Requeue, "on_error", at_once)]


def _groups_need_no_slots() -> list[Replacement]:
    def admit(self: Any, used: int, size: int) -> int:
        return max(1, min(len(self.members), size))

    return [(GroupEntry, "admit", admit)]


def _small_pods_pass_a_group() -> list[Replacement]:
    """What is behind a group that waits for its slots goes before it."""
    pop = SchedulingQueue.pop

    def popped(self: Any, free: Any, admit: Any) -> Any:
        waiting = []
        while (found := pop(self, free, lambda pod: admit(pod) or isinstance(pod, GroupEntry))) is not None:
            if admit(found):
                break
            waiting.append((found, found.active_since))
            self.move(found, Stage.GROUPED)
        for entry, since in waiting:
            place = Place(default_sort_key(entry.pod, ONE_TIME), default_sort_key(entry.pod, entry.timestamp))
            self.move(entry, Stage.ACTIVE, place=place)
            entry.active_since = since
        return found

    return [(SchedulingQueue, "pop", popped)]


def _nobody_is_none() -> list[Replacement]:
    """What a begun group needs is its minimum, whether its members exist or not."""
    return [(Members, "wanted", Members.need)]


def _new_members_wake_nobody() -> list[Replacement]:
    def observe(self: Any, uid: str, pod: Any) -> None:
        now = self._clock.now
        if pod is None:
            self._groups.remove_pod(uid, now)
        else:
            self._groups.observe_pod(pod, now)

    return [(grouping.Grouping, "observe_pod", observe)]


def _pod_groups_wake_nobody() -> list[Replacement]:
    return [(grouping.Grouping, "observe_group", lambda self, form: self._groups.observe_group(form) and None)]


def _earmarks_wake_nobody() -> list[Replacement]:
    return [(watcher_core, "EARMARK_ENDED", ClusterEvent(Resource.EARMARK, NO_ACTION))]


# --- the scorer


def _domains_do_not_count() -> list[Replacement]:
    """Scorer and binder take any node."""
    domains = planner.domains_of

    def found(question: Any, classes: Any, snapshot: Any) -> Any:
        group = msgspec.structs.replace(question.group, topology=None)
        return domains(replace(question, group=group), classes, snapshot)

    begin = groupcheck._Examining.__init__

    def begun(self: Any, *parts: Any) -> None:
        begin(self, *parts)
        self._domain = None

    return [(planner, "domains_of", found), (groupcheck._Examining, "__init__", begun)]


def _further_pods_go_anywhere() -> list[Replacement]:
    """Pods beyond the minimum are kept to no domain."""
    return [(podgrouptopology, "home_of", lambda *_: None)]


def _min_resources_do_not_count() -> list[Replacement]:
    return [
        (domains_of_groups._Bounds, "shortage_in", lambda *_: ""),
        (groupcheck.GroupCheck, "lacking", lambda *_: ""),
    ]


def _evicts_for_one_member() -> list[Replacement]:
    """Scorer and binder are content with evictions that make room for one."""
    evictions = groupranker.plan_evictions

    def for_one(question: Any, *rest: Any, **more: Any) -> Any:
        return evictions(replace(question, need=1), *rest, **more)

    return [(groupranker, "plan_evictions", for_one), (groupexamination, "plan_evictions", for_one)]


def _what_is_going_stays() -> list[Replacement]:
    """Pods that are being deleted keep their room in the search for evictions."""

    def plan(self: Any) -> Any:
        terminating = [
            placed
            for row in range(self._snapshot.size)
            for placed in self._snapshot.placed_on_row(row)
            if placed.pod.metadata.deletion_timestamp is not None
        ]
        self._snapshot.remove_pod = lambda uid: None if uid in going else remove(uid)
        going, remove = {each.pod.uid for each in terminating}, type(self._snapshot).remove_pod.__get__(self._snapshot)
        return (yield from plan_of_dry_run(self))

    plan_of_dry_run = evictions_of_groups.GroupDryRun.plan
    return [(evictions_of_groups.GroupDryRun, "plan", plan)]


# --- the binder


def _members_alone_are_bound() -> list[Replacement]:
    """A ranking of a member alone is believed."""
    return [(groupcheck, "refuses_single", lambda *_: False)]


def _minimums_of_messages_are_believed() -> list[Replacement]:
    """The minimum is that of the message."""
    examine = groupexamination.GroupExaminer._examination

    def examined(self: Any, group: Any, _shown: Any, ready: Any) -> Any:
        return examine(self, group, group.latest.ranked.group, ready)

    return [
        (groupexamination.GroupExaminer, "_examination", examined),
        (groups_of_binder.GroupBinding, "_check_again", lambda *_: None),
    ]


def _changed_members_are_bound() -> list[Replacement]:
    """A member that still waits with its group counts, whatever has changed of it."""

    def is_as_planned(self: Any, pod: Any, _digest: str, key: Any, profile: str) -> bool:
        return not (is_gated(pod) or is_gone_while_unbound(pod)) and group_of(pod) == key

    return [(groupcheck.GroupCheck, "_is_as_planned", is_as_planned)]


def _volumes_of_groups_are_not_awaited() -> list[Replacement]:
    go_on = groups_of_binder.GroupBinding._go_on_if_all_are_ready

    def with_some(self: Any, group: Any) -> Any:
        if group.ready:
            group.ready |= group.members.keys()
        return go_on(self, group)

    return [(groups_of_binder.GroupBinding, "_go_on_if_all_are_ready", with_some)]


def _groups_take_all_requests() -> list[Replacement]:
    return [(groups_of_binder, "SHARE_IN_FLIGHT", 1)]


def _members_are_not_fenced() -> list[Replacement]:
    return [(takeover, "_group_in", lambda _data: None)]


def _begun_groups_are_not_first() -> list[Replacement]:
    return [(BinderCore, "examine_first", lambda *_: None)]


def _groups_begin_after_the_stop() -> list[Replacement]:
    def close(self: Any) -> None:
        self._is_closed = True

    return [(BinderCore, "close", close)]


def _begun_groups_end_with_the_stop() -> list[Replacement]:
    has_work = groups_of_binder.GroupBinding.has_work

    def is_open(self: Any) -> bool:
        return not self.is_closed and has_work.fget(self)

    return [(groups_of_binder.GroupBinding, "has_work", property(is_open))]


def _one_member_is_unschedulable() -> list[Replacement]:
    record = groups_of_binder.RecordGroup

    def of_one(**parts: Any) -> Any:
        return record(**{**parts, "pods": parts["pods"][:1]})

    return [(groups_of_binder, "RecordGroup", of_one)]


def _some_members_are_enough() -> list[Replacement]:
    return [
        (groupcheck._Examining, "is_enough", property(lambda self: bool(self.nodes))),
        (groups_of_binder.GroupBinding, "_check_again", lambda *_: None),
    ]


def _groups_hold_their_room() -> list[Replacement]:
    """A group that cannot be bound keeps what it has assumed until it can be."""

    def fail(self: Any, group: Any, verdict: Any) -> Any:
        group.verdict, group.phase = verdict, groups_of_binder.GroupPhase.UNDOING
        group.todo.clear()
        group.members.clear()
        return self._finish(group)

    return [(groups_of_binder.GroupBinding, "_fail", fail)]


def _no_rehearsal() -> list[Replacement]:
    return [(groups_of_binder.GroupBinding, "_rehearsed_members", lambda *_: [])]


# --- several services


def _members_go_alone() -> list[Replacement]:
    return [
        (grouping.Grouping, "_gate", lambda *_: GroupGate(Way.ONE_BY_ONE)),
        (groupcheck, "refuses_single", lambda *_: False),
    ]


def _newcomers_take_earmarked_nodes() -> list[Replacement]:
    return [(Earmark, "keeps_out", lambda *_: False)]


# --- the table

CALM: Final = replace(
    GROUPS,
    fault_counts=(0,),
    rough=0.0,
    pods=(0, 0),
    nodes=(2, 3),
    gangs=(1, 2),
    acts=(2, 4),
    watchers=(1,),
    binders=(1,),
    scorers=(1,),
    seconds=(1.0, 3.0),
    warm_up=(1.0, 2.0),
    habits=(0.0,),
    empties=10**6,
)
GATES: Final = replace(CALM, things=("add_gang", "delete_member", "remake_group"))
LOSSES: Final = replace(CALM, things=("lose_two",), acts=(1, 2), gangs=(2, 3), warm_up=(2.0, 3.0), nodes=(4, 5))
PLACES: Final = replace(CALM, things=("lose_place",), acts=(1,), nodes=(2, 3), gangs=(0, 1))
IMPORTANT_GANGS: Final = replace(
    CALM, things=("add_gang", "add_important_gang"), acts=(6, 8), nodes=(2, 2), gangs=(3, 4), graces=(0, 1)
)
FORBIDDEN: Final = replace(CALM, things=("forbid_leader",), acts=(1, 2), nodes=(4, 5), gangs=(0, 1))
CROWDS: Final = replace(
    CALM, things=("add_gang", "add_pod"), acts=(6, 8), window_floors=(2, 4), gangs=(2, 3), pods=(2, 4)
)
ZONES: Final = replace(CALM, things=("add_gang",), acts=(5,), nodes=(3, 4))
WAVES: Final = replace(CALM, things=("add_gang",), acts=(2,), in_flight=(4,), nodes=(4, 5))
LOST: Final = replace(
    CALM,
    faults=(GROUP_LOST,),
    fault_counts=(1, 2),
    things=("add_gang", "add_gang", "add_pod"),
    acts=(6, 8),
    binders=(2,),
    in_flight=(1, 2),
    nodes=(3, 5),
    seconds=(3.0, 6.0),
)
STOPPED: Final = replace(LOST, faults=(GROUP_STOPPED,), fault_counts=(2,), binders=(1,))

STREAMS: Final = replace(
    CALM, things=("add_large_gang",), acts=(1, 2), window_floors=(2, 4), gangs=(0, 1), nodes=(4, 5), seconds=(0.5, 1.0),
    warm_up=(6.0, 6.0),
)  # fmt: skip
MOVED: Final = replace(STREAMS, things=("add_large_gang", *("move_member",) * 6), acts=(12, 20), seconds=(6.0, 8.0))
JOINED: Final = replace(
    MOVED,
    things=("add_stream", "add_gang", "add_gang", *("move_member",) * 6),
    window_floors=(64,),
    gangs=(2, 3),
    nodes=(2, 2),
)
ORDERS: Final = replace(
    MOVED, things=("add_large_gang", "add_gang", "add_gang", "delete_member", "delete_gang"), gangs=(3, 4), nodes=(2, 2)
)
"""Groups that find no room, and wait for slots together when there is some."""
FURTHER: Final = replace(ZONES, things=("add_gang", "delete_member", "delete_pod"), acts=(8, 12), gangs=(3, 4))
VICTIMS: Final = replace(IMPORTANT_GANGS, kinds=("plain",), pods=(4, 6), graces=(30,))
CHANGES: Final = replace(CALM, things=("add_gang", "change_in_flight", "change_in_flight"), acts=(8, 12), nodes=(2, 3))
RELABELLED: Final = replace(CHANGES, things=("add_gang", "relabel_in_flight", "relabel_in_flight"))
RACES: Final = replace(GROUPS, gangs=(4, 6), nodes=(2, 3), scorers=(4, 8), fault_counts=(0,), window_floors=(64,))
"""Several groups that want the same nodes, planned by scorers that do not know of each other yet."""
LEADERS: Final = replace(GROUPS, gangs=(3, 5), things=("add_gang", "forbid_leader"), acts=(6, 10))
GROUPS_WITHOUT_FAULTS: Final = replace(GROUPS, fault_counts=(0,))

EARMARKED: Final = replace(
    GROUPS,
    things=(*("add_pod",) * 6, *("delete_pod",) * 6, "add_gang", "delete_gang"),
    kinds=("plain",),
    acts=(20, 30),
    nodes=(1, 2),
    pods=(4, 8),
    gangs=(2, 3),
    fault_counts=(0, 0, 1),
    earmark_seconds=(1, 2),
)
"""Groups that wait beside pods that come and go."""

GROUP_MUTATIONS: Final[dict[str, Mutation]] = {
    "open-gates": Mutation("a fresh group waits for its minimum (3.17)", 50, _open_gates, GATES),
    "begun-groups-wait": Mutation(
        "a begun group goes on with the members that exist (3.17)", 100, _begun_groups_wait, LOSSES
    ),
    "gates-say-nothing": Mutation("a gate says what is missing", 50, _gates_say_nothing, GATES),
    "losses-help-at-once": Mutation(
        "the room of a lost member is left to its replacement for a second", 200, _losses_help_at_once, PLACES
    ),
    "failures-keep-their-place": Mutation(
        "a group that fails falls behind its equals (3.18)", 100, _failures_keep_their_place, ORDERS
    ),
    "highest-priority-counts": Mutation(
        "a group has the lowest priority of its members (3.18)", 200, _highest_priority_counts, IMPORTANT_GANGS
    ),
    "begun-groups-are-as-others": Mutation(
        "a group of which some are bound goes before its equals (3.18)", 50, _begun_groups_are_as_others, ORDERS
    ),
    "groups-do-not-back-off": Mutation(
        "a group backs off after an error (3.20)", 100, _groups_do_not_back_off, FORBIDDEN
    ),
    "groups-need-no-slots": Mutation("a group takes a slot for each member (3.18)", 100, _groups_need_no_slots, CROWDS),
    "volumes-of-groups-not-awaited": Mutation(
        "all members are ready before the first Binding (5.20)", 100, _volumes_of_groups_are_not_awaited, ZONES
    ),
    "all-requests-for-groups": Mutation(
        "groups leave a quarter of the requests to others (5.20)", 50, _groups_take_all_requests, WAVES
    ),
    "members-not-fenced": Mutation(
        "a takeover fences the members of groups in RANKED (5.21)", 100, _members_are_not_fenced, LOST
    ),
    "begun-groups-not-first": Mutation(
        "begun groups are examined first after a takeover (5.21)", 300, _begun_groups_are_not_first, LOST
    ),
    "groups-begin-after-the-stop": Mutation(
        "after the stop no group is begun (5.21)", 300, _groups_begin_after_the_stop, STOPPED
    ),
    "begun-groups-end-with-the-stop": Mutation(
        "after the stop a begun group goes on (5.21)", 200, _begun_groups_end_with_the_stop, STOPPED
    ),
    "one-member-is-unschedulable": Mutation(
        "all members that wait for room are Unschedulable, or none", 50, _one_member_is_unschedulable, CROWDS
    ),
    "small-pods-pass-a-group": Mutation(
        "what is behind a group at the head waits with it (3.18)", 20, _small_pods_pass_a_group, STREAMS
    ),
    "nobody-is-none": Mutation("a begun group needs no more members than exist (5.21)", 20, _nobody_is_none, LOSSES),
    "domains-do-not-count": Mutation(
        "the members of a group are in one required domain (ADR 72)", 100, _domains_do_not_count, ZONES
    ),
    "further-pods-go-anywhere": Mutation(
        "pods beyond the minimum go to the domain of their group (4.9)", 50, _further_pods_go_anywhere, FURTHER
    ),
    "min-resources-do-not-count": Mutation(
        "minResources are free when a group is begun (ADR 72)", 200, _min_resources_do_not_count, CROWDS
    ),
    "evicts-for-one-member": Mutation(
        "evictions make room for all that a group needs (5.23)", 50, _evicts_for_one_member, IMPORTANT_GANGS
    ),
    "what-is-going-stays": Mutation(
        "no second victims while the first are going (5.23)", 50, _what_is_going_stays, VICTIMS
    ),
    "pods-join-in-flight": Mutation(
        "a pod joins a group when its own attempt has ended (3.16)", 50, _pods_join_in_flight, JOINED
    ),
    "pods-leave-in-flight": Mutation(
        "a pod leaves a group that is not in flight (3.16)", 20, _pods_leave_in_flight, MOVED
    ),
    "members-have-no-numbers": Mutation(
        "a member has an n of its own in each message of its group (3.19)", 20, _members_have_no_numbers, MOVED
    ),
    "minimums-of-messages-are-believed": Mutation(
        "the binder's own PodGroup and pods decide (5.20)", 50, _minimums_of_messages_are_believed, CHANGES
    ),
    "changed-members-are-bound": Mutation(
        "a member that has changed since the plan is not bound by it (5.20)", 50, _changed_members_are_bound, RELABELLED
    ),
    "members-alone-are-bound": Mutation(
        "a ranking of a member alone is a conflict (5.22)", 50, _members_alone_are_bound, MOVED
    ),
    "members-go-alone": Mutation(
        "members of a group are published and bound together (ADR 72)", 40, _members_go_alone, GROUPS, is_quick=True
    ),
    "some-members-are-enough": Mutation(
        "all that a group needs is assumed, or nothing (5.21)", 200, _some_members_are_enough, RACES
    ),
    "no-rehearsal": Mutation(
        "a Binding of each class is rehearsed before the first one is sent (5.22)",
        200,
        _no_rehearsal,
        LEADERS,
        is_quick=True,
    ),
    "groups-hold-their-room": Mutation(
        "what a group has assumed ends with its attempt (5.21)", 200, _groups_hold_their_room, GROUPS
    ),
    "newcomers-take-earmarked-nodes": Mutation(
        "newcomers of equal or lower priority keep off earmarked nodes (5.25)",
        200,
        _newcomers_take_earmarked_nodes,
        EARMARKED,
    ),
    "earmarks-wake-nobody": Mutation(
        "the end of an earmark wakes the pods that it kept out (3.22)", 400, _earmarks_wake_nobody, EARMARKED
    ),
    "new-members-wake-nobody": Mutation(
        "a group is tried again when its members change (ADR 72)", 100, _new_members_wake_nobody, GROUPS_WITHOUT_FAULTS
    ),
    "pod-groups-wake-nobody": Mutation(
        "a group is tried again when its PodGroup changes (ADR 72)", 100, _pod_groups_wake_nobody, GROUPS_WITHOUT_FAULTS
    ),
}
