"""Which groups have waited long, and the nodes that are earmarked for them in this epoch (ADR 74). Pure.

A group waits from its first attempt without a place in this epoch. One group a profile has an earmark; the next one may
have it once that is over. One that has not helped its group in time, or finds no nodes, is not given again before the
group has waited as long once more.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Final

import msgspec

from berth.api.podgroups import Members, PodGroup
from berth.messages.attempts import Outcome, Reason
from berth.messages.earmarks import EARMARK_SECONDS, Earmark
from berth.messages.groups import GroupPlan
from berth_binder.cache import Cache
from berth_binder.decisions.verdict import Verdict

# Seconds between two looks at which groups there still are, and at the members of those with an earmark.
LOOK_SECONDS: Final = 1.0

# Reasons of conflicts that say no more than that others have the room.
_TAKEN: Final = frozenset({Reason.PROPOSALS, Reason.NO_CANDIDATE})


@dataclass(slots=True, kw_only=True)
class _Given:
    earmark: Earmark
    form: PodGroup
    ends: float  # monotonic seconds


class Earmarks:
    def __init__(self, cache: Cache, wait_seconds: float) -> None:
        """``wait_seconds``: how long a group waits for an earmark; 0: none is given."""
        self._cache = cache
        self._wait = wait_seconds
        self._waits_since: dict[str, float] = {}  # by uid of the PodGroup, monotonic seconds
        self._given: dict[str, _Given] = {}  # by profile
        self._looked_at = self._now = 0.0
        cache.snapshot.earmarks = {}  # of former epochs

    def __len__(self) -> int:
        return len(self._waits_since)

    def is_due(self, group: PodGroup, profile: str, verdict: Verdict, now: float) -> bool:
        """Whether nodes are to be found for a group that is not bound for this verdict."""
        is_taken = verdict.outcome is Outcome.CONFLICT and verdict.reason in _TAKEN
        if not self._wait or not (is_taken or verdict.outcome is Outcome.UNSCHEDULABLE):
            return False
        since = self._waits_since.setdefault(group.uid, now)
        return now - since >= self._wait and profile not in self._given

    def give(self, group: PodGroup, profile: str, members: Members, plan: GroupPlan | None, now: float) -> None:
        """Earmark the plan's nodes; without a plan the group waits anew."""
        self._waits_since[group.uid] = self._now = now
        if plan is None:
            return
        earmark = Earmark(
            dialect=group.dialect,
            namespace=group.namespace,
            name=group.name,
            uid=group.uid,
            profile=profile,
            priority=members.priority(group),
            nodes=sorted({plan.nodes[member.node] for member in plan.members}),
        )
        self._given[profile] = _Given(earmark=earmark, form=_without_version(group), ends=now + EARMARK_SECONDS)
        self._show()

    def of(self, uid: str) -> Earmark | None:
        """The group's earmark, with the seconds that are left at the last review, for its Decision."""
        given = next((each for each in self._given.values() if each.earmark.uid == uid), None)
        return None if given is None else msgspec.structs.replace(given.earmark, seconds=ceil(given.ends - self._now))

    def due(self) -> float | None:
        """When to review, monotonic seconds."""
        if not self._waits_since:
            return None
        return min([self._looked_at + LOOK_SECONDS, *(each.ends for each in self._given.values())])

    def bound(self, uid: str) -> None:
        """The group has its minimum: it waits no more."""
        self._waits_since.pop(uid, None)
        self._end([profile for profile, each in self._given.items() if each.earmark.uid == uid])

    def review(self, now: float) -> None:
        """End earmarks whose time is over, or whose group is not the one that it was."""
        self._now, looks = now, now - self._looked_at >= LOOK_SECONDS
        if looks:
            self._looked_at = now
            known = {group.uid for group in self._cache.groups.known.values()}
            self._waits_since = {uid: since for uid, since in self._waits_since.items() if uid in known}
        over = [profile for profile, each in self._given.items() if each.ends <= now]
        self._waits_since.update((self._given[profile].earmark.uid, now) for profile in over)
        self._end(over)
        self._end([profile for profile, each in self._given.items() if not self._holds(each, looks=looks)])

    def _holds(self, given: _Given, *, looks: bool) -> bool:
        shown = self._cache.groups.get(given.earmark.group)
        if shown is None or _without_version(shown) != given.form:
            return False
        if not looks:
            return True
        members = self._cache.members_of(given.earmark.group)
        return members.wanted(shown) > 0 and (members.is_begun or members.are_enough(shown))

    def _end(self, profiles: list[str]) -> None:
        for profile in profiles:
            del self._given[profile]
        if profiles:
            self._show()

    def _show(self) -> None:
        self._cache.snapshot.earmarks = {profile: each.earmark for profile, each in self._given.items()}


def _without_version(group: PodGroup) -> PodGroup:
    return msgspec.structs.replace(group, resource_version="")
