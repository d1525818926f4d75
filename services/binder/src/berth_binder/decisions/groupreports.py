"""What is said of groups between their attempts, for people and autoscalers.

A closed gate says what is missing: the watcher keeps the pods back and may not write to the API server. A group that is
bound in part for longer than its timeout is reported, and one that gets nodes earmarked. A whole one of
``scheduling.k8s.io`` gets its condition.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, TypeVar

from berth.api.podgroups import (
    Dialect,
    GroupKey,
    Members,
    PodGroup,
    UpstreamPodGroup,
    is_scheduled,
    missing_members,
    refusal_of,
)
from berth.api.resources import pod_requests
from berth.cluster.podgroups import STRUCTS
from berth.messages.earmarks import EARMARK_SECONDS
from berth_binder.cache import Cache
from berth_binder.decisions.groupverdict import earmarked_text
from berth_binder.decisions.partialgroups import NAMED, PartialGroups, lacking
from berth_binder.events import GroupReport, GroupState

# Members come in batches: a gate says what is missing so long after it has closed, or changed.
GATE_SECONDS: Final = 5.0
# Until a condition is written again that the watch does not show.
CONDITION_SECONDS: Final = 5.0

T = TypeVar("T")


class GroupReports:
    """Follows the groups of a cache. Only groups that change are looked at again."""

    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self.partial = PartialGroups(cache)
        self._changed: set[GroupKey] = set(cache.groups.named)
        self._gated: dict[GroupKey, float] = {}  # when a gate is to be reported, monotonic
        self._earmarked: set[str] = set()  # uids of groups whose earmark was reported
        # By name and uid, when a condition is to be written, unless the watch shows it.
        self._whole: dict[tuple[GroupKey, str], float] = {}
        cache.groups.notify(self._changed.add)

    def close(self) -> None:
        self._cache.groups.notify(None)

    def report(self, now: float) -> Iterator[GroupReport]:
        """What is to be said now."""
        changed = set(self._changed)
        self._changed.clear()
        for key in changed:
            self._look_at(key, now)
        for key in _due(self._gated, now):
            del self._gated[key]
            if message := self._why_gated(key, self._cache.members_of(key)):
                pods = self._cache.members_of(key).pending
                yield GroupReport(GroupState.GATED, self._cache.groups.get(key), pods, message)
        for key in self.partial.take_overdue(now):
            group, members = self._cache.groups.get(key), self._cache.members_of(key)
            if group is not None:
                was_whole = self._shows_condition(group)
                yield GroupReport(
                    GroupState.PARTIAL, group, members.pending, lacking(group, members), was_whole=was_whole
                )
        yield from self._newly_earmarked()
        for key, uid in _due(self._whole, now):
            group = self._cache.groups.get(key)
            if group is None or group.uid != uid or self._shows_condition(group):
                del self._whole[key, uid]
            else:
                self._whole[key, uid] = now + CONDITION_SECONDS
                yield GroupReport(GroupState.WHOLE, group, [])

    def _newly_earmarked(self) -> Iterator[GroupReport]:
        earmarks = self._cache.snapshot.earmarks.values()
        for earmark in earmarks:
            if earmark.uid not in self._earmarked:
                named = f"{', '.join(earmark.nodes[:NAMED])}{', ...' if len(earmark.nodes) > NAMED else ''}"
                message = f"has waited long: {earmarked_text(earmark)} for {EARMARK_SECONDS // 60} minutes: {named}"
                members = self._cache.members_of(earmark.group)
                yield GroupReport(GroupState.EARMARKED, self._cache.groups.get(earmark.group), members.pending, message)
        self._earmarked = {earmark.uid for earmark in earmarks}

    def _look_at(self, key: GroupKey, now: float) -> None:
        group, members = self._cache.groups.get(key), self._cache.members_of(key)
        if not self._why_gated(key, members):
            self._gated.pop(key, None)
        else:
            self._gated.setdefault(key, now + GATE_SECONDS)
        self.partial.look_at(key, group, members, now)
        is_whole = group is not None and bool(members.bound) and not members.need(group)
        if group is not None and is_whole and not self._shows_condition(group):
            self._whole.setdefault((key, group.uid), now)

    def _why_gated(self, key: GroupKey, members: Members) -> str:
        """Empty if the gate is open, or nothing waits behind it."""
        groups = self._cache.groups
        if not members.pending or key.dialect in groups.absent:
            return ""
        group = groups.get(key)
        known = [each for each in Dialect if not self._cache.snapshot.objects(STRUCTS[each]).unread]
        refusal = refusal_of(key, group, members, known)
        if refusal or group is None:
            return refusal
        requests = pod_requests(members.pending[0].spec).amounts
        is_open = members.is_begun or members.are_enough(group) or group.is_ordinary(requests)
        return "" if is_open else missing_members(group, members)

    def _shows_condition(self, group: PodGroup) -> bool:
        """Whether the group has its condition, or none is written: of the other dialect a controller has the status."""
        if group.dialect is not Dialect.UPSTREAM:
            return True
        shown = self._cache.snapshot.objects(UpstreamPodGroup).api_object(group.uid)
        return shown is None or is_scheduled(shown)


def _due(times: dict[T, float], now: float) -> list[T]:
    return [key for key, due in times.items() if due <= now]
