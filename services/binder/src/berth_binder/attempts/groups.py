"""Groups in the binder: all that a group needs is bound, or nothing (docs/protocol.md, 5).

A group's message is one step in stream order: its members are assumed together, slice by slice, while other pods go on.
Each member then has a ``BindingAttempt`` of its own, which takes the same steps as a single pod's up to its Binding.
There it waits for the others; one Binding of each class is rehearsed; then all are posted. A failure before that undoes
all. After the first Binding there is no way back: what is left goes on as far as it can.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

import msgspec

from berth.api.pod import Pod
from berth.api.podgroups import GroupKey
from berth.framework.profile import Profile
from berth.groups.evictions import GroupEvictions
from berth.messages.attempts import Decision, Outcome, Preemption, Reason
from berth.messages.subjects import Attempt, Epoch, Uid
from berth_binder.attempts.attempt import (
    AttemptPhase,
    BindingAttempt,
    DecidedAttempts,
    PluginSteps,
    settles,
)
from berth_binder.attempts.earmarks import Earmarks
from berth_binder.attempts.groupattempt import GroupAttempt, GroupPhase
from berth_binder.attempts.groupexamination import WATCH_SECONDS, Examination, Found, GroupExaminer
from berth_binder.cache import Cache
from berth_binder.decisions.conflictcheck import ConflictCheck
from berth_binder.decisions.groupcheck import GroupCheck, GroupPlacement
from berth_binder.decisions.groupverdict import (
    changed_members,
    conflict,
    group_decision,
    ranking_of_member,
    verdict_after_binding,
    verdict_on_group,
)
from berth_binder.decisions.preemption import NOT_EVICTABLE, eviction_plans, victim_of
from berth_binder.decisions.verdict import Verdict, bound, bound_or_gone, failed, refused, waiting
from berth_binder.eventrecorder.records import FAILED
from berth_binder.events import (
    Ack,
    ApiRequest,
    ClearNomination,
    Effect,
    GroupDelivery,
    MemberDelivery,
    PublishDecision,
    RankedDelivery,
    RecordGroup,
    RehearsalAnswer,
    SetAside,
)
from berth_binder.settings import CoreSettings

# Groups that wait for their volumes or permissions. Each keeps a message of up to 512 KiB in RANKED.
MOST_WAITING: Final = 64
# The part of the requests in flight that groups may take: an urgent pod would wait for a wave of a thousand.
SHARE_IN_FLIGHT: Final = 3 / 4
_UNDOABLE: Final = frozenset({GroupPhase.PREPARING, GroupPhase.REHEARSING})
_ENDING: Final = frozenset({GroupPhase.POSTING, GroupPhase.EVICTING, GroupPhase.UNDOING})

UNDONE: Final = Verdict(outcome=Outcome.CONFLICT, message="its group is not bound")


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberCalls:
    """What ``PodBinding`` does with a member of a group, as with any pod."""

    begin: Callable[[BindingAttempt], None]
    prepare: Callable[[BindingAttempt, float], list[Effect]]  # the plugins' steps up to the Binding
    proceed: Callable[[BindingAttempt, float], list[Effect]]  # examine it again, then the same with the Binding
    request: Callable[[BindingAttempt, Iterable[ApiRequest]], list[Effect]]
    decide: Callable[[BindingAttempt, Verdict], list[Effect]]
    is_tried: Callable[[str], bool]  # whether the pod of this uid has an attempt
    is_in_flight: Callable[[str], bool]
    push: Callable[[GroupDelivery], None]  # back into the queue


class GroupBinding:
    """The groups of one epoch that are not decided yet."""

    def __init__(  # noqa: PLR0913 - an epoch begins with these
        self,
        *,
        cache: Cache,
        profiles: Mapping[str, Profile],
        calls: MemberCalls,
        check: ConflictCheck,
        decided: DecidedAttempts,
        settings: CoreSettings,
        epoch: Epoch,
        config: str,
    ) -> None:
        self._cache = cache
        self._calls = calls
        self._check = check
        self._group_check = GroupCheck(cache=cache, profiles=profiles)
        self.earmarks = Earmarks(cache, settings.group_earmark_seconds)
        self._examiner = GroupExaminer(
            cache=cache,
            profiles=profiles,
            group_check=self._group_check,
            is_tried=calls.is_tried,
            earmarks=self.earmarks,
        )
        self._decided = decided
        self._settings = settings
        self._epoch = epoch
        self._config = config
        self.undecided: dict[str, GroupAttempt] = {}  # by the uid of the PodGroup
        self._to_examine: deque[GroupAttempt] = deque()
        self._examination: Examination | None = None
        self._stepping: deque[GroupAttempt] = deque()  # groups with members whose next step may begin
        self._paused: dict[str, GroupAttempt] = {}
        self.in_flight: set[str] = set()  # uids of members with a request in flight
        self._begun: dict[str, GroupKey] = {}  # by uid of its PodGroup, groups that this epoch has begun
        self._most_in_flight = max(1, int(settings.max_in_flight * SHARE_IN_FLIGHT))
        self.is_closed = False

    def get(self, uid: str) -> GroupAttempt | None:
        """The attempt by the uid of its PodGroup."""
        return self.undecided.get(uid)

    def held(self) -> Iterator[GroupDelivery]:
        for group in self.undecided.values():
            yield from group.deliveries

    @property
    def is_posting(self) -> bool:
        """Whether a begun group has Bindings to send or answers to come."""
        posting = (group for group in self.undecided.values() if group.is_posting)
        return any(group.todo or group.publishing or not self.in_flight.isdisjoint(group.members) for group in posting)

    def unfinished(self) -> Collection[str]:
        """The uids of PodGroups that this epoch has begun. Those that are whole or gone by now are forgotten."""
        self._begun = {uid: key for uid, key in self._begun.items() if self._is_unfinished(uid, key)}
        return self._begun

    def _is_unfinished(self, uid: str, key: GroupKey) -> bool:
        shown = self._cache.groups.get(key)
        return shown is not None and shown.uid == uid and self._cache.members_of(key).need(shown) > 0

    def close(self) -> None:
        """Begin no group any more, also none whose members are all ready for their Bindings."""
        self.is_closed = True
        for group in self._stepping:
            if group.is_posting and len(group.todo) >= len(group.members):
                group.phase = GroupPhase.REHEARSING

    # Turns.

    @property
    def has_work(self) -> bool:
        """Whether ``step`` has something to do now."""
        if self._stepping and len(self.in_flight) < self._most_in_flight:
            return not self.is_closed or any(group.is_posting for group in self._stepping)
        return bool(self._examination or self._to_examine) and not self.is_closed

    def due(self) -> float | None:
        ends = self.earmarks.due()
        return min((*(group.due for group in self._paused.values()), *([] if ends is None else [ends])), default=None)

    def end_pauses(self, now: float) -> None:
        for group in [each for each in self._paused.values() if each.due <= now]:
            self._examine_later(group)

    def shown(self, uid: str) -> None:
        """The watch shows an awaited pod or PodGroup."""
        for group in [each for each in self._paused.values() if uid in each.awaited]:
            group.awaited.discard(uid)
            if not group.awaited:
                self._examine_later(group)

    def _examine_later(self, group: GroupAttempt) -> None:
        del self._paused[group.uid]
        group.phase = GroupPhase.EXAMINING
        self._to_examine.append(group)

    def step(self, now: float) -> list[Effect]:
        """Check some members, and begin the next step of one."""
        effects: list[Effect] = []
        if not self.is_closed:
            if self._examination is None and self._to_examine:
                group = self._to_examine.popleft()
                effects += self._guard(group, lambda: self._begin_examination(group, now), now)
            elif self._examination is not None:
                examination = self._examination
                effects += self._guard(examination.group, lambda: self._go_on_with(examination, now), now)
        if self._stepping and len(self.in_flight) < self._most_in_flight:
            effects += self._step_of_member(now)
        return effects

    def _step_of_member(self, now: float) -> list[Effect]:
        group = self._stepping.popleft()
        if self.is_closed and not group.is_posting:
            self._stepping.append(group)
            return []
        effects: list[Effect] = []
        while group.todo:
            member = group.todo.popleft()
            if group.members.get(member.uid) is member:
                effects += self._begin_step(group, member, now)
                break
        if group.todo and group.is_posting:
            self._stepping.appendleft(group)  # in turns, more groups would be bound in part at one time, and for longer
        elif group.todo:
            self._stepping.append(group)
        return effects

    def _begin_step(self, group: GroupAttempt, member: BindingAttempt, now: float) -> list[Effect]:
        match group.phase:
            case GroupPhase.PREPARING:
                return self._calls.prepare(member, now)
            case GroupPhase.REHEARSING:
                return self._calls.request(member, [member.begin_rehearsing()])
            case _:
                return self._proceed(group, member, now)

    def _step_members(self, group: GroupAttempt, members: Iterable[BindingAttempt]) -> None:
        group.todo.extend(members)
        if group not in self._stepping:
            self._stepping.append(group)

    # Messages.

    def receive(self, delivery: GroupDelivery) -> list[Effect] | None:
        """Join a message to its group's attempt; None if it has none."""
        group = self.undecided.get(delivery.attempt.uid)
        if group is None:
            return None
        surplus = group.join(delivery)
        aside: list[Effect] = [SetAside(held=delivery)] if group.waiting_from is not None else []
        return [*aside, Ack(held=surplus)] if surplus is not None else aside

    def begin(self, delivery: GroupDelivery, now: float) -> GroupAttempt:
        """The attempt, which is examined in its turn unless its phase is changed."""
        group = GroupAttempt(latest=delivery, deliveries=[delivery], began=now)
        self.undecided[group.uid] = group
        return group

    def examine(self, group: GroupAttempt) -> None:
        group.phase = GroupPhase.EXAMINING
        self._to_examine.append(group)

    # The check.

    def _begin_examination(self, group: GroupAttempt, now: float) -> list[Effect]:
        effects = self._decide_bound_members(group)
        begun = self._examiner.begin(group, now)
        if begun is None:
            self._pause(group, group.began + WATCH_SECONDS)
            return effects
        if isinstance(begun, Verdict):
            return [*effects, *self._fail_in_vain(group, begun, now)]
        unread = [uid for uid in begun.pods if uid not in group.read] if begun.is_about_evictions else []
        if unread:
            return [*effects, *self._read_members(group, begun.pods, unread)]
        self._examination = begun
        return [*effects, *self._go_on_with(begun, now)]

    def _read_members(self, group: GroupAttempt, pods: Mapping[str, Pod], uids: Iterable[str]) -> list[Effect]:
        """Ask the API server, not a watch: a group of which a member is gone must not evict others.

        Before the search for evictions, which takes the longest of all that the binder does, and would be repeated.
        """
        group.phase = GroupPhase.READING
        of_class = {each.uid: each.of_class for each in group.latest.ranked.bundle.members}
        self._step_members(group, [self._member(group, pods[uid], "", of_class[uid], None) for uid in uids])
        return []

    def _decide_bound_members(self, group: GroupAttempt) -> list[Effect]:
        """Members that are bound get their Decision first: by a former binder, or in an attempt before this one."""
        ranked, effects = group.latest.ranked, list[Effect]()
        nodes = {member.uid: (ranked.plan.nodes[member.node], member.of_class) for member in ranked.plan.members}
        for uid, (planned, of_class) in nodes.items():
            answered = self._cache.answered_node(uid)
            node = self._cache.bound_node(uid) if answered is None else answered
            placed = self._cache.snapshot.placed(uid) if node is not None else None
            if node is None or placed is None or uid in group.done or self._calls.is_tried(uid):
                continue
            member = self._member(group, placed.pod, planned, of_class, None)
            candidates = frozenset(each.node for each in member.latest.ranked.candidates)
            effects += self._calls.decide(member, bound_or_gone(node, candidates) if answered is None else bound(node))
        return effects

    def _pause(self, group: GroupAttempt, due: float) -> None:
        group.phase, group.due = GroupPhase.AWAITING, due
        self._paused[group.uid] = group

    def _go_on_with(self, examination: Examination, now: float) -> list[Effect]:
        found = examination.go_on()
        if found is None:
            return []
        self._examination = None
        return self._examined(examination, found, now)

    def _examined(self, examination: Examination, found: Found, now: float) -> list[Effect]:
        group = examination.group
        if isinstance(found, Verdict):
            return self._fail_in_vain(group, found, now)
        if isinstance(found, GroupEvictions):
            return self._evict(group, found, examination.pods)
        return self._prepare(group, found, examination)

    def _fail_in_vain(self, group: GroupAttempt, verdict: Verdict, now: float) -> list[Effect]:
        """Nothing of it is assumed. If it has waited long for room, find nodes to earmark before its Decision."""
        self._examination = self._examiner.for_earmark(group, verdict, now)
        return self._fail(group, verdict) if self._examination is None else []

    def _prepare(self, group: GroupAttempt, placement: GroupPlacement, examination: Examination) -> list[Effect]:
        of_class = {member.uid: member.of_class for member in group.latest.ranked.plan.members}
        steps = examination.reserved.steps
        members = [
            self._member(group, examination.pods[uid], node, of_class[uid], steps[uid])
            for uid, node in placement.nodes.items()
        ]
        group.missing = [pod.metadata.name for uid, pod in examination.pods.items() if uid not in placement.nodes]
        group.version = self._cache.snapshot.version
        group.phase = GroupPhase.PREPARING
        shown = self._cache.groups.get(group.key)
        placed = [examination.pods[uid] for uid in placement.nodes]
        if shown is not None and (lacking := self._group_check.lacking(shown, placed)):
            return self._fail(group, conflict(Reason.NO_CANDIDATE, lacking))
        self._step_members(group, members)
        return self._go_on_if_all_are_ready(group)

    def _member(
        self, group: GroupAttempt, pod: Pod, node: str, of_class: int, steps: PluginSteps | None
    ) -> BindingAttempt:
        """Begin the attempt of a member that is assumed on the node, or bound."""
        held = group.latest
        attempt = Attempt(uid=Uid(pod.uid), term=held.attempt.term, n=group.numbers[pod.uid])
        ranked = ranking_of_member(held.ranked, pod, attempt, node, of_class)
        delivery = RankedDelivery(
            ranked=ranked, attempt=attempt, sequence=held.sequence, delivery=MemberDelivery(held.delivery, pod.uid)
        )
        member = BindingAttempt(
            latest=delivery,
            deliveries=[delivery],
            phase=AttemptPhase.READY,
            pod=pod,
            node=node,
            candidates=ranked.candidates[:1],
            steps=steps,
            group=group.uid,
        )
        group.members[pod.uid] = member
        group.classes[pod.uid] = of_class
        self._calls.begin(member)
        return member

    # From the check to the Bindings.

    def attempt_of(self, member: BindingAttempt) -> str:
        """The group's attempt in which the member is bound, as text."""
        return str(self.undecided[member.group].latest.attempt)

    def may_post(self, member: BindingAttempt) -> bool:
        return self.undecided[member.group].is_posting

    def may_give_up(self, member: BindingAttempt) -> bool:
        """Whether it only waits for another member's volume or permission, so that its room may be given to others."""
        group = self.undecided[member.group]
        is_waiting = group.phase is GroupPhase.PREPARING and group.waiting_from is not None
        return is_waiting and member.phase is AttemptPhase.READY

    def is_undoing(self, member: BindingAttempt) -> bool:
        return self.undecided[member.group].phase is GroupPhase.UNDOING

    def made_ready(self, member: BindingAttempt) -> list[Effect]:
        """All steps of the member before its Binding are done."""
        group = self.undecided[member.group]
        member.phase = AttemptPhase.READY
        if member.uid in group.rehearsing:  # again after a pause
            self._step_members(group, [member])
            return []
        group.ready.add(member.uid)
        return self._go_on_if_all_are_ready(group)

    def _go_on_if_all_are_ready(self, group: GroupAttempt) -> list[Effect]:
        if group.phase is not GroupPhase.PREPARING or len(group.ready) < len(group.members) or self.is_closed:
            return []
        problem = self._check_again(group)
        if problem is not None:
            return self._fail(group, problem)
        group.phase = GroupPhase.REHEARSING
        rehearsed = self._rehearsed_members(group)
        group.rehearsing = {member.uid for member in rehearsed}
        self._step_members(group, rehearsed)
        return [] if rehearsed else self._begin_posting(group)

    def _rehearsed_members(self, group: GroupAttempt) -> list[BindingAttempt]:
        """One of each class: for equal pods admission answers alike."""
        in_order = group.in_order()
        return [*{group.classes[member.uid]: member for member in reversed(in_order)}.values()]

    def after_rehearsing(self, member: BindingAttempt, answer: RehearsalAnswer) -> list[Effect]:
        """The API server has an opinion on the Binding, which is not open."""
        group = self.undecided[member.group]
        group.rehearsing.discard(member.uid)
        member.phase = AttemptPhase.READY
        if answer.status in (HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT):
            return self._fail(group, conflict(Reason.CHANGED, f"{member.pod.key}: {answer.reason}"))
        if not answer.succeeded:
            return self._fail(group, refused(f"the Binding of {member.pod.key} was", answer.status, answer.reason))
        return [] if group.rehearsing or self.is_closed else self._begin_posting(group)

    def _begin_posting(self, group: GroupAttempt) -> list[Effect]:
        problem = self._check_again(group)
        if problem is not None:
            return self._fail(group, problem)
        group.phase = GroupPhase.POSTING
        self._step_members(group, group.in_order())
        return self._finish(group)

    def _check_again(self, group: GroupAttempt) -> Verdict | None:
        """The verdict if too few members are left: of those that have changed, or whose nodes an event has touched."""
        touched = self._group_check.touched_since(group.version)
        group.version = self._cache.snapshot.version

        def passes(member: BindingAttempt, pod: Pod) -> bool:
            is_touched = touched is None or member.node in touched
            return not is_touched or self._check.passes(member.latest.ranked, pod, member.node)

        return self._too_few_left(group, passes)

    def _too_few_left(
        self, group: GroupAttempt, passes: Callable[[BindingAttempt, Pod], bool] = lambda _member, _pod: True
    ) -> Verdict | None:
        """The verdict if the PodGroup is another one by now, or too few members are as they were planned."""
        shown = self._cache.groups.get(group.key)
        verdict = verdict_on_group(shown, group.latest.ranked.group)
        if verdict is not None or shown is None:
            return verdict
        group.need = self._cache.members_of(group.key).wanted(shown)
        left = 0
        for member in group.members.values():
            pod = self._check.current_pod(member.latest.ranked, member.latest.attempt, member.read)
            left += not isinstance(pod, Verdict) and passes(member, pod or member.pod)
        return None if left >= group.need else changed_members(left, group.need)

    def _proceed(self, group: GroupAttempt, member: BindingAttempt, now: float) -> list[Effect]:
        """Post the Binding, or evict, unless the PodGroup is gone: then nothing is begun any more."""
        shown = self._cache.groups.get(group.key)
        verdict = verdict_on_group(shown, group.latest.ranked.group)
        return self._calls.proceed(member, now) if verdict is None else self._calls.decide(member, verdict)

    # Evictions.

    def _evict(self, group: GroupAttempt, found: GroupEvictions, pods: Mapping[str, Pod]) -> list[Effect]:
        """Nominate the members on the victims' nodes, and evict; only what the scorer has proposed."""
        proposed = group.latest.ranked.preemption
        if proposed is None or {pod.uid for pod in found.victims} != {each.uid for each in proposed.victims}:
            return self._fail(group, conflict(Reason.VICTIMS, "other evictions would help the group by now"))
        if any(pod.uid in self._cache.assumed_pods for pod in found.victims):
            return self._fail(group, conflict(Reason.VICTIMS, NOT_EVICTABLE))
        group.preemption = Preemption(node="", victims=[*map(victim_of, found.victims)])
        if not found.victims:
            return self._fail(group, self._preempting(group) if self._any_terminating() else _FITS)
        of_class = {each.uid: each.of_class for each in found.plan.members}
        group.phase = GroupPhase.EVICTING
        members: list[BindingAttempt] = []
        for plan in eviction_plans(found, pods, self._cache.snapshot, group.preemption):
            uid = plan.pod.uid
            self._cache.nominate(plan.pod, plan.node, frozenset(each.uid for each in plan.victims))
            member = self._member(group, plan.pod, plan.node, of_class[uid], None)
            member.begin_evicting(plan)
            members.append(member)
        self._step_members(group, members)
        return []

    def is_reading(self, member: BindingAttempt) -> bool:
        """Whether the member is read before evictions for its group."""
        return self.undecided[member.group].phase is GroupPhase.READING

    def read(self, member: BindingAttempt) -> list[Effect]:
        """The API server shows the member as it was planned; once it has shown all, the group is examined again."""
        self.undecided[member.group].read.add(member.uid)
        return self._calls.decide(member, UNDONE)

    def _preempting(self, group: GroupAttempt) -> Verdict:
        message = group.latest.ranked.plan.message
        return Verdict(outcome=Outcome.PREEMPTING, message=message, preemption=group.preemption)

    def _any_terminating(self) -> bool:
        snapshot = self._cache.snapshot
        placed = (each for row in range(snapshot.size) for each in snapshot.placed_on_row(row))
        return any(each.pod.metadata.deletion_timestamp is not None for each in placed)

    # Ends.

    def ended(self, member: BindingAttempt, verdict: Verdict) -> list[Effect]:
        """The member is not assumed any more, and nothing of it is written."""
        group = self.undecided[member.group]
        self._take_out(group, member)
        if verdict is not UNDONE and verdict.outcome is not Outcome.PREEMPTING:
            group.others.append(verdict)
            group.missing.append(member.pod.metadata.name)
        if group.phase is GroupPhase.READING and verdict is UNDONE:
            if not group.members:
                self.examine(group)
            return []
        if group.phase is GroupPhase.READING:
            return self._fail(group, _because_of(member, verdict))
        if group.phase not in _UNDOABLE:
            return self._finish(group)
        if len(group.members) < group.need:
            return self._fail(group, _because_of(member, verdict))
        if group.phase is GroupPhase.REHEARSING and not group.rehearsing and not self.is_closed:
            return self._begin_posting(group)
        return self._go_on_if_all_are_ready(group)

    def publishing(self, member: BindingAttempt, verdict: Verdict) -> None:
        """The member has a Decision of its own, which is not stored yet."""
        group = self.undecided[member.group]
        self._take_out(group, member)
        group.publishing.add(member.uid)
        group.done.add(member.uid)
        if verdict.outcome is Outcome.BOUND:
            group.bound += 1
            if group.is_fresh:
                self._begun[group.uid] = group.key
        else:
            group.others.append(verdict)
            group.missing.append(member.pod.metadata.name)

    def stored(self, member: BindingAttempt) -> list[Effect]:
        """The member's Decision is stored."""
        group = self.undecided[member.group]
        group.publishing.discard(member.uid)
        return self._finish(group)

    def _take_out(self, group: GroupAttempt, member: BindingAttempt) -> None:
        group.members.pop(member.uid, None)
        group.ready.discard(member.uid)
        group.rehearsing.discard(member.uid)

    def _fail(self, group: GroupAttempt, verdict: Verdict) -> list[Effect]:
        """Nothing of it is bound: undo its members, then decide."""
        group.verdict, group.phase = verdict, GroupPhase.UNDOING
        group.todo.clear()
        effects: list[Effect] = []
        for member in reversed([*group.members.values()]):
            if member.postponed is None and not self._calls.is_in_flight(member.uid):
                effects += self._calls.decide(member, UNDONE)
        return [*effects, *self._finish(group)]

    def give_up(self, group: GroupAttempt, verdict: Verdict) -> list[Effect]:
        """It has ended too many binders, or raises again and again."""
        group.has_dead_letter = True
        return self._fail(group, verdict)

    def _finish(self, group: GroupAttempt) -> list[Effect]:
        """Publish the group's Decision once all members have ended."""
        if group.members or group.publishing or group.phase not in _ENDING:
            return []
        verdict = self._final_verdict(group)
        if verdict.outcome is Outcome.BOUND:
            self.earmarks.bound(group.uid)
        group.phase = GroupPhase.DECIDING
        group.decision, group.decided = self._decision(group, verdict), group.latest
        return [PublishDecision(decision=group.decision, held=group.latest, dead_letter=group.has_dead_letter)]

    def _final_verdict(self, group: GroupAttempt) -> Verdict:
        shown = self._cache.groups.get(group.key)
        if group.phase is GroupPhase.EVICTING:
            failure = next(iter(group.others), None)
            return self._preempting(group) if failure is None else _because(failure)
        if shown is None:
            return group.verdict or verdict_on_group(shown, group.latest.ranked.group) or UNDONE
        after = verdict_after_binding(group.bound, self._cache.members_of(group.key), shown, group.others)
        if group.verdict is not None and not (group.bound and after.outcome is Outcome.BOUND):
            return group.verdict
        return after

    def settle(self, decision: Decision, now: float) -> list[Effect]:
        """The group's Decision is stored: acknowledge the messages that it settles, and record it."""
        group = self.undecided.get(decision.uid)
        if group is None or group.decision is not decision or group.decided is None:
            return []
        del self.undecided[group.uid]
        for uid in (group.uid, *group.awaited):  # by a forged message, what never comes
            if not self._calls.is_tried(uid):
                self._cache.stop_awaiting(uid)
        if not self._is_unfinished(group.uid, group.key):
            self._begun.pop(group.uid, None)
        self._decided.add(group.decided, now)
        settled = [each for each in group.deliveries if settles(group.decided, each)]
        for delivery in group.deliveries:
            if delivery not in settled:
                self._calls.push(delivery)
        # Also those that its message does not have: there are too many of them, or they came later.
        waiting_ones = tuple(self._cache.members_of(group.key).pending)
        group_object = self._cache.groups.get(group.key) or group.decided.ranked.group
        is_useless = decision.outcome is Outcome.UNSCHEDULABLE  # else the room of victims that are going
        nominated = [pod for pod in waiting_ones if is_useless and pod.status.nominated_node_name]
        return [
            *(Ack(held=each) for each in settled),
            *(ClearNomination(pod=pod) for pod in nominated),
            RecordGroup(decision=decision, group=group_object, pods=waiting_ones),
        ]

    def publish_waiting(self, member: BindingAttempt, now: float) -> list[Effect]:
        """One message for all of its members."""
        group = self.undecided[member.group]
        is_first = group.waiting_from is None and not group.is_posting
        if is_first and sum(each.waiting_from is not None for each in self) >= MOST_WAITING:
            message = f"{MOST_WAITING} groups wait for volumes or permissions already"
            return self._fail(group, conflict(Reason.VOLUMES, message))
        if group.waiting_from is not None and now < group.waiting_from:
            return []
        if group.phase in _UNDOABLE and (problem := self._too_few_left(group)):
            return self._fail(group, problem)  # else it would keep its room until the volumes' deadline
        aside = [SetAside(held=each) for each in group.deliveries] if group.waiting_from is None else []
        group.waiting_from = now + self._settings.waiting_interval.total_seconds()
        group.repeats += 1
        return [*aside, PublishDecision(decision=self._waiting(group, member), held=group.latest)]

    def record_failing(self, member: BindingAttempt) -> RecordGroup:
        """Say on the PodGroup that requests for the member fail again and again."""
        group = self.undecided[member.group]
        shown = self._cache.groups.get(group.key) or group.latest.ranked.group
        return RecordGroup(decision=self._waiting(group, member, FAILED), group=shown, pods=())

    def _waiting(self, group: GroupAttempt, member: BindingAttempt, reason: str = "") -> Decision:
        return self._decision(group, waiting("", f"{member.pod.metadata.name}: {member.waits_for}", reason))

    def __iter__(self) -> Iterator[GroupAttempt]:
        return iter(self.undecided.values())

    def _decision(self, group: GroupAttempt, verdict: Verdict) -> Decision:
        is_conflict = verdict.outcome is Outcome.CONFLICT
        return group_decision(
            verdict,
            group.latest.ranked,
            need=group.need or group.latest.ranked.plan.need,
            bound=group.bound,
            missing=group.missing,
            epoch=self._epoch,
            config=self._config,
            resource_versions=self._cache.newest_resource_versions() if is_conflict else {},
            repeat=group.repeats - 1 if verdict.outcome is Outcome.WAITING else 0,
            earmark=self.earmarks.of(group.uid),
        )

    def _guard(self, group: GroupAttempt, step: Callable[[], list[Effect]], now: float) -> list[Effect]:
        """Count an exception against the group; it never stops the process."""
        try:
            return step()
        except Exception as exc:  # noqa: BLE001 - an exception of a plugin must not stop the queue
            self._examination = None
            group.exceptions += 1
            if group.exceptions < self._settings.max_exceptions:
                self._pause(group, now + self._settings.backoff.after(group.exceptions))
                return []
            failure = f"failed {group.exceptions} times: {type(exc).__name__}: {exc}"
            return self.give_up(group, failed(f"committing group {str(group.key)!r}: {failure}", reason="exception"))


_FITS: Final = conflict(Reason.FITS, "it fits without an eviction")


def _because_of(member: BindingAttempt, verdict: Verdict) -> Verdict:
    """The group's verdict where one of its members failed."""
    because = _because(verdict)
    message = f"{member.pod.metadata.name}: {because.message}" if because.message else member.pod.metadata.name
    return msgspec.structs.replace(because, node="", message=message)


def _because(verdict: Verdict) -> Verdict:
    return conflict(Reason.CHANGED, "a member is gone") if verdict.outcome is Outcome.GONE else verdict
