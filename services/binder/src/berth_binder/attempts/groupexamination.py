"""The examination of a group's message on the newest state: which members count, and where they go (ADR 72).

One group is examined at a time, some members at once, while other pods go on. What comes of it is a placement in which
the members are assumed, evictions that make room for all that is needed, or a verdict.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from berth.api.pod import Pod
from berth.api.podgroups import Members, PodGroup
from berth.api.trimming import without_whole
from berth.cluster.podgroups import KINDS
from berth.decoding import version_number
from berth.framework.profile import Profile
from berth.framework.status import Status
from berth.groups.earmarks import plan_earmark
from berth.groups.evictions import GroupEvictions, plan_evictions
from berth.groups.question import GroupQuestion
from berth.messages.attempts import Reason
from berth.messages.subjects import Attempt
from berth_binder.attempts.attempt import PluginSteps
from berth_binder.attempts.earmarks import Earmarks
from berth_binder.attempts.groupattempt import GroupAttempt
from berth_binder.cache import Cache
from berth_binder.decisions.groupcheck import GroupCheck, GroupPlacement, MembersNow, Reservations
from berth_binder.decisions.groupverdict import (
    NOT_SHOWN,
    changed_members,
    conflict,
    verdict_of_plan,
    verdict_on_group,
)
from berth_binder.decisions.verdict import Verdict, failed

# Members that are checked in one go, between which other pods have their turns: about 2 ms.
AT_ONCE: Final = 32
# Seconds for which the watch may be behind what a message was made of.
WATCH_SECONDS: Final = 1.0

Found = GroupPlacement | GroupEvictions | Verdict


class ReservedSteps(Reservations):
    """The plugins' steps of members that are assumed."""

    def __init__(self, cache: Cache, profile: Profile) -> None:
        self.steps: dict[str, PluginSteps] = {}
        self._cache = cache
        self._profile = profile

    def reserve(self, pod: Pod, node: str) -> Status:
        steps = self.steps[pod.uid] = PluginSteps.on(node, pod, self._cache.snapshot, self._profile)
        return steps.reserve()

    def undo(self, uid: str) -> None:
        self.steps.pop(uid).undo()


@dataclass(slots=True)
class Examination:
    """Of one group: ``run`` yields after each member; ``reserved`` has what the assumed ones got."""

    group: GroupAttempt
    pods: Mapping[str, Pod]
    reserved: ReservedSteps
    run: Generator[None, None, Found]
    is_about_evictions: bool = False

    def go_on(self) -> Found | None:
        """Check some members; None: there are more."""
        for _ in range(AT_ONCE):
            try:
                next(self.run)
            except StopIteration as end:
                found: Found = end.value
                return found
        return None


class GroupExaminer:
    def __init__(
        self,
        *,
        cache: Cache,
        profiles: Mapping[str, Profile],
        group_check: GroupCheck,
        is_tried: Callable[[str], bool],
        earmarks: Earmarks,
    ) -> None:
        """``is_tried``: whether the pod of this uid has an attempt."""
        self._cache = cache
        self._profiles = profiles
        self._check = group_check
        self._is_tried = is_tried
        self._earmarks = earmarks

    def begin(self, group: GroupAttempt, now: float) -> Examination | Verdict | None:
        """The examination, or why there is none. None: the watch lacks what ``group.awaited`` has."""
        ranked = group.latest.ranked
        shown = self._cache.groups.get(group.key)
        may_await = now < group.began + WATCH_SECONDS
        if not self._is_shown(group, shown):
            if not may_await:
                return conflict(Reason.BEHIND, NOT_SHOWN)
            self._await_group(group)
            return None
        verdict = verdict_on_group(shown, ranked.group)
        if verdict is not None or shown is None:
            return verdict or conflict(Reason.BEHIND, NOT_SHOWN)
        # A group without a plan waits for its members too: each gets the condition that says why it is not placed.
        members = self._members_now(group)
        if members.is_behind:
            return conflict(Reason.BEHIND, NOT_SHOWN)
        if members.unknown and may_await:
            self._await_pods(group, members.unknown)
            return None
        return verdict_of_plan(ranked) or self._examination(group, shown, members.ready)

    def _is_shown(self, group: GroupAttempt, shown: PodGroup | None) -> bool:
        """Whether the watch has the PodGroup as the watcher saw it, or a later state."""
        planned = group.latest.ranked.group
        reached = self._cache.reached(KINDS[planned.dialect])
        return reached >= version_number(planned.resource_version) and (shown is not None or reached > 0)

    def _await_group(self, group: GroupAttempt) -> None:
        planned = group.latest.ranked.group
        self._cache.await_version(group.uid, KINDS[planned.dialect], version_number(planned.resource_version))
        group.awaited.add(group.uid)

    def _await_pods(self, group: GroupAttempt, uids: Iterable[str]) -> None:
        for uid in uids:
            group.awaited.add(uid)
            self._cache.await_pod(uid)

    def _members_now(self, group: GroupAttempt) -> MembersNow:
        ranked = group.latest.ranked
        planned = {each.uid: (each.digest, version_number(each.resource_version)) for each in ranked.bundle.members}
        # Without a plan it may be about evictions for any of them.
        uids = [each.uid for each in ranked.plan.members] or [*planned]
        there = self._check.members_now(
            [uid for uid in uids if not self._is_tried(uid)], planned, group.key, ranked.profile
        )
        there.changed += [uid for uid in uids if self._is_tried(uid) and uid not in group.publishing]
        return there

    def _examination(self, group: GroupAttempt, shown: PodGroup, ready: dict[str, Pod]) -> Examination | Verdict:
        ranked = group.latest.ranked
        members = self._cache.members_of(group.key)
        group.need, group.is_fresh = members.wanted(shown), not members.is_begun
        if len(ready) < group.need:
            return changed_members(len(ready), group.need)
        if too_much := next(filter(None, map(self._refusal, ready.values())), ""):
            return failed(too_much)
        pods = {uid: without_whole(pod) for uid, pod in ready.items()}
        reserved = ReservedSteps(self._cache, self._profiles[ranked.profile])
        is_found = ranked.plan.is_found
        run = self._placing(group, shown, pods, reserved) if is_found else self._evicting(group, shown, pods)
        return Examination(group, pods, reserved, run, is_about_evictions=not is_found)

    def _refusal(self, pod: Pod) -> str:
        return self._cache.snapshot.class_of(pod).refusal(pod)

    def _placing(
        self, group: GroupAttempt, shown: PodGroup, pods: Mapping[str, Pod], reserved: ReservedSteps
    ) -> Generator[None, None, Found]:
        ranked = group.latest.ranked
        found = yield from self._check.examine(
            ranked.plan,
            shown,
            pods,
            group.need,
            ranked.profile,
            may_continue=lambda: False,
            reservations=reserved,
        )
        return found

    def _evicting(self, group: GroupAttempt, shown: PodGroup, pods: Mapping[str, Pod]) -> Generator[None, None, Found]:
        """Repeat the search for evictions on the newest state: none is made unless all that is needed fits with it."""
        ranked = group.latest.ranked
        members = self._cache.members_of(group.key)
        found = yield from plan_evictions(
            _question(group, shown, members, [*pods.values()]),
            self._cache.snapshot,
            self._profiles[ranked.profile],
            priority=members.priority(shown),
            groups=self._cache.groups.known,
            may_continue=lambda: False,
        )
        return conflict(Reason.VICTIMS, "no possible evictions help the group by now") if found is None else found

    def for_earmark(self, group: GroupAttempt, verdict: Verdict, now: float) -> Examination | None:
        """The search for nodes to earmark, after which the verdict stands; None: the group gets none now."""
        shown, profile = self._cache.groups.get(group.key), group.latest.ranked.profile
        if shown is None or not self._earmarks.is_due(shown, profile, verdict, now):
            return None
        run = self._earmarking(group, shown, verdict, now)
        return Examination(group, {}, ReservedSteps(self._cache, self._profiles[profile]), run)

    def _earmarking(
        self, group: GroupAttempt, shown: PodGroup, verdict: Verdict, now: float
    ) -> Generator[None, None, Found]:
        members, profile = self._cache.members_of(group.key), group.latest.ranked.profile
        group.need, found = members.wanted(shown), None
        if 0 < group.need <= len(members.pending) and members.profiles == [profile]:
            found = yield from plan_earmark(
                _question(group, shown, members, [*map(without_whole, members.pending)]),
                self._cache.snapshot,
                self._profiles[profile],
                priority=members.priority(shown),
                groups=self._cache.groups.known,
                may_continue=lambda: False,
            )
        self._earmarks.give(shown, profile, members, found, now)
        return verdict


def _question(group: GroupAttempt, shown: PodGroup, members: Members, pods: list[Pod]) -> GroupQuestion:
    return GroupQuestion(
        group=shown,
        attempt=Attempt.parse(group.latest.ranked.attempt),
        members=pods,
        need=group.need,
        bound=[pod.uid for pod in members.bound],
    )
