"""Groups that are bound in part: since when, what each lacks, and which one is evicted (docs/protocol.md, 5.24). Pure.

A group is evicted only if this epoch has begun it and has never seen it whole: after a failover a damaged
job looks like an unfinished start.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from itertools import islice
from typing import Final, NamedTuple

from berth.api.pod import POD_SCHEDULED, Pod, priority_of
from berth.api.podgroups import GroupKey, Members, PodGroup, missing_members
from berth_binder.cache import Cache

# For so long a group is partial at least before it is evicted, and between two evictions: of two groups that are
# evicted together each may take half of the other's room again.
EVICTION_SECONDS: Final = 60.0
# Members that are named.
NAMED: Final = 8


class PartialGroup(NamedTuple):
    group: PodGroup
    bound: list[Pod]


class PartialGroups:
    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self._since: dict[GroupKey, float] = {}
        self._overdue: set[GroupKey] = set()
        self._next_eviction = 0.0

    def __len__(self) -> int:
        """The number of groups that are partial for longer than their timeout."""
        return len(self._overdue)

    def look_at(self, key: GroupKey, group: PodGroup | None, members: Members, now: float) -> None:
        """Note the state of a group that has changed."""
        if group is not None and members.bound and members.need(group):
            self._since.setdefault(key, now)
        else:
            self._since.pop(key, None)
            self._overdue.discard(key)

    def take_overdue(self, now: float) -> list[GroupKey]:
        """The groups whose timeout has ended since the last call."""
        found = [key for key, since in self._since.items() if key not in self._overdue and now >= self._end(key, since)]
        self._overdue.update(found)
        return found

    def to_evict(self, now: float, begun: Container[str], is_tried: Callable[[str], bool]) -> PartialGroup | None:
        """The least important group whose time is over, at most one a minute.

        ``begun``: uids of PodGroups that this epoch has begun and not seen whole; ``is_tried``: whether there is an
        attempt for the PodGroup of this uid, which may make it whole.
        """
        if now < self._next_eviction:
            return None
        found = [
            PartialGroup(group, self._cache.members_of(key).bound)
            for key in self._overdue
            if now >= self._since[key] + EVICTION_SECONDS
            and (group := self._cache.groups.get(key)) is not None
            and group.uid in begun
            and not is_tried(group.uid)
        ]
        if not found:
            return None
        self._next_eviction = now + EVICTION_SECONDS
        # Of equals the youngest.
        found.sort(key=lambda each: (each.group.created, each.group.uid), reverse=True)
        return min(found, key=lambda each: max(map(priority_of, each.bound)))

    def _end(self, key: GroupKey, since: float) -> float:
        group = self._cache.groups.get(key)
        return since + (0 if group is None else group.timeout_seconds)


def lacking(group: PodGroup, members: Members) -> str:
    """Who is missing, and why, as the condition of one of them says."""
    there = len(members.bound) + members.succeeded
    text = f"{there} of {group.minimum} members are bound"
    if not members.pending:
        return f"{text}; {missing_members(group, members)}"
    names = ", ".join(pod.metadata.name for pod in islice(members.pending, NAMED))
    more = f" and {len(members.pending) - NAMED} more" if len(members.pending) > NAMED else ""
    why = next(filter(None, map(_reason, members.pending)), "")
    return f"{text}; without a node: {names}{more}{f' ({why})' if why else ''}"


def _reason(pod: Pod) -> str:
    return next((each.message for each in pod.status.conditions or () if each.type == POD_SCHEDULED), "")
