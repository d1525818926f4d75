"""What is said of groups between their attempts, for people and autoscalers.

A closed gate says what is missing: the watcher keeps the pods back and may not write to the API server. A group that is
bound in part for longer than its timeout is reported. A whole one of ``scheduling.k8s.io`` gets its condition.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Final

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
from berth_binder.cache import Cache
from berth_binder.events import GroupReport, GroupState

# Members come in batches: a gate says what is missing so long after it has closed, or changed.
GATE_SECONDS: Final = 5.0
# Until a condition is written again that the watch does not show.
CONDITION_SECONDS: Final = 5.0
# Members that are named.
NAMED: Final = 8


class GroupReports:
    """Follows the groups of a cache. Only groups that change are looked at again."""

    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self._changed: set[GroupKey] = set(cache.groups.named)
        self._gated: dict[GroupKey, float] = {}  # when a gate is to be reported, monotonic
        self._partial: dict[GroupKey, float | None] = {}  # when it is to be reported; None: it was
        self._whole: dict[GroupKey, float] = {}  # when a condition is to be written, unless the watch shows it
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
        for key in _due(self._partial, now):
            self._partial[key] = None
            group, members = self._cache.groups.get(key), self._cache.members_of(key)
            if group is not None:
                yield GroupReport(GroupState.PARTIAL, group, members.pending, _lacking(group, members))
        for key in _due(self._whole, now):
            group = self._cache.groups.get(key)
            if group is None or self._shows_condition(group):
                del self._whole[key]
            else:
                self._whole[key] = now + CONDITION_SECONDS
                yield GroupReport(GroupState.WHOLE, group, [])

    def _look_at(self, key: GroupKey, now: float) -> None:
        group, members = self._cache.groups.get(key), self._cache.members_of(key)
        if not self._why_gated(key, members):
            self._gated.pop(key, None)
        else:
            self._gated.setdefault(key, now + GATE_SECONDS)
        is_bound = group is not None and bool(members.bound)
        need = 0 if group is None else members.need(group)
        if group is None or not is_bound or not need:
            self._partial.pop(key, None)
        else:
            self._partial.setdefault(key, now + group.timeout_seconds)
        if group is not None and is_bound and not need and not self._shows_condition(group):
            self._whole.setdefault(key, now)

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


def _due(times: dict[GroupKey, float] | dict[GroupKey, float | None], now: float) -> list[GroupKey]:
    return [key for key, due in times.items() if due is not None and due <= now]


def _lacking(group: PodGroup, members: Members) -> str:
    there = len(members.bound) + members.succeeded
    text = f"{there} of {group.minimum} members are bound"
    names = ", ".join(pod.metadata.name for pod in islice(members.pending, NAMED))
    more = f" and {len(members.pending) - NAMED} more" if len(members.pending) > NAMED else ""
    return f"{text}; without a node: {names}{more}" if names else text
