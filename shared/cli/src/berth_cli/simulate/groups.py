"""PodGroups of a simulation: the pods that are placed together, and what is decided about them.

A group whose PodGroup or whose members are missing waits, in the words of the watcher. One that is complete gets the
plan of a scorer, or the evictions that make room for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from berth.api.pod import Pod
from berth.api.podgroups import (
    GroupKey,
    Members,
    PodGroup,
    group_of,
    in_order,
    missing_members,
    refusal_of,
    with_untried,
)
from berth.api.resources import pod_requests
from berth.cluster.podgroups import PodGroups
from berth.cluster.snapshot import Snapshot
from berth.framework.profile import Profile
from berth.groups.evictions import GroupEvictions, may_help, plan_evictions
from berth.groups.planner import at_once, plan
from berth.groups.question import GroupQuestion
from berth.messages.attempts import ClassResult
from berth.messages.groups import GroupPlan
from berth.messages.subjects import Attempt, Term, Uid


class PodGroupReport(msgspec.Struct, frozen=True, kw_only=True):
    """The result for a PodGroup: a line of ``-o json`` before those of its members.

    ``bound``: members that have nodes before; ``members``: those to place, ``placed`` of them with a node. ``message``
    is the reason for waiting, ``None`` if the minimum is placed. ``classes``: kinds of members, and why the example of
    one without a place has none. ``victims`` would be evicted for the group.
    """

    group: str
    dialect: str
    profile: str
    minimum: int = 0
    bound: int = 0
    members: int = 0
    placed: int = 0
    topology_key: str = ""
    domain: str = ""
    note: str = ""
    message: str | None = None
    classes: list[ClassResult] = []
    victims: list[str] = []


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingGroup:
    """A group whose pods are placed together or not at all.

    ``pods``: all to place that name it. ``members``: with those pending ones that may be tried. ``refusal``: why none
    of them is.
    """

    key: GroupKey
    group: PodGroup | None
    pods: Sequence[Pod]
    members: Members
    refusal: str = ""

    @property
    def representative(self) -> Pod:
        """The pod in whose place the group is in the queue, with the group's priority."""
        first = next(iter(in_order(self.members.pending)), self.pods[0])
        if self.group is None:
            return first
        priority = self.members.priority(self.group)
        return msgspec.structs.replace(first, spec=msgspec.structs.replace(first.spec, priority=priority))

    def report(self, **values: object) -> PodGroupReport:
        return PodGroupReport(
            group=str(self.key),
            dialect=self.key.dialect.value,
            profile=self.pods[0].spec.scheduler_name,
            minimum=0 if self.group is None else self.group.minimum,
            bound=len(self.members.bound),
            members=len(self.pods),
            **values,  # type: ignore[arg-type]  # each caller names fields of PodGroupReport
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupAnswer:
    """``plan`` has members, or says why there is none; ``evictions`` that would make room."""

    plan: GroupPlan
    evictions: GroupEvictions | None = None


def units_of(
    pods: Sequence[Pod], groups: PodGroups, profiles: Mapping[str, Profile], is_admitted: Callable[[Pod], bool]
) -> list[Pod | WaitingGroup]:
    """The pods in their order, each group in the place of its first pod.

    A dialect without a PodGroup counts as absent from the API server. Pods of groups whose minimum is placed are
    ordinary pods.
    """
    served = {key.dialect for key in groups.known}
    naming: dict[GroupKey, list[Pod]] = {}
    for pod in pods:
        key = group_of(pod)
        if key is not None and key.dialect in served:
            naming.setdefault(key, []).append(pod)
    waiting = {key: _waiting(key, named, groups, profiles, is_admitted) for key, named in naming.items()}
    units: list[Pod | WaitingGroup] = []
    for pod in pods:
        key = group_of(pod)
        group = None if key is None else waiting.get(key)
        if group is None:
            units.append(pod)
        elif pod is group.pods[0]:
            units.append(group)
    return units


def _waiting(
    key: GroupKey,
    pods: Sequence[Pod],
    groups: PodGroups,
    profiles: Mapping[str, Profile],
    is_admitted: Callable[[Pod], bool],
) -> WaitingGroup | None:
    """The group; None if its pods are scheduled one by one."""
    group = groups.get(key)
    members = Members.of((*groups.pods(key).values(), *pods), profiles)
    refusal = refusal_of(key, group, members, {key.dialect})
    if group is None or refusal:
        return WaitingGroup(key=key, group=group, pods=pods, members=members, refusal=refusal)
    if not members.need(group) or _is_ordinary(group, members):
        return None
    pending, members.pending = members.pending, [pod for pod in members.pending if is_admitted(pod)]
    if not members.pending or not (members.is_begun or members.are_enough(group)):
        refusal = with_untried(missing_members(group, members), len(pending) - len(members.pending))
    return WaitingGroup(key=key, group=group, pods=pods, members=members, refusal=refusal)


def _is_ordinary(group: PodGroup, members: Members) -> bool:
    return all(group.is_ordinary(pod_requests(pod.spec).amounts) for pod in members.pending[:1])


def answer_of(waiting: WaitingGroup, group: PodGroup, snapshot: Snapshot, profile: Profile) -> GroupAnswer:
    """Plan a complete group on the Snapshot, which stays as it is."""
    members = waiting.members
    question = GroupQuestion(
        group=group,
        attempt=Attempt(uid=Uid(group.uid), term=Term(1), n=1),
        members=in_order(members.pending),
        need=members.wanted(group),
        bound=[pod.uid for pod in members.bound],
    )
    found = at_once(plan(question, snapshot, profile))
    priority = members.priority(group)
    if found.is_found or found.error or not may_help(snapshot, priority):
        return GroupAnswer(plan=found)
    evicting = plan_evictions(question, snapshot, profile, priority=priority, groups=PodGroups.of(snapshot).known)
    return GroupAnswer(plan=found, evictions=at_once(evicting))


def nodes_in(found: GroupPlan) -> dict[str, str]:
    """By uid of a member, its node, in the order in which they were placed."""
    return {member.uid: found.nodes[member.node] for member in found.members}
