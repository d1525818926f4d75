"""Which groups wait for members or their PodGroup, and what is missing, for people and autoscalers.

The watcher keeps their pods back and may not write to the API server; the binder sees the same objects. A gate says
why it is closed after some seconds, because members come in batches.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from berth.api.pod import Pod
from berth.api.podgroups import Dialect, GroupKey, PodGroup, missing_members, refusal_of
from berth.api.resources import pod_requests
from berth.cluster.podgroups import STRUCTS
from berth_binder.cache import Cache

REPORTED_AFTER_SECONDS: Final = 5.0


class ClosedGate(NamedTuple):
    """A group whose pending pods wait; ``group`` is None without a PodGroup."""

    group: PodGroup | None
    pods: list[Pod]
    message: str


class ClosedGates:
    """Follows the groups of a cache. Only groups that change are looked at again."""

    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self._changed: set[GroupKey] = set(cache.groups.named)
        self._since: dict[GroupKey, float] = {}  # closed gates to be reported: when they changed, oldest first
        cache.groups.notify(self._changed.add)

    def close(self) -> None:
        self._cache.groups.notify(None)

    def report(self, now: float) -> Iterator[ClosedGate]:
        """The gates that have been closed for some seconds since they changed."""
        changed = set(self._changed)
        self._changed.clear()
        for key in changed:
            if self._gate_of(key) is None:
                self._since.pop(key, None)
            else:
                self._since.setdefault(key, now)
        for key, since in list(self._since.items()):
            if now - since < REPORTED_AFTER_SECONDS:
                break
            del self._since[key]
            if (gate := self._gate_of(key)) is not None:
                yield gate

    def _gate_of(self, key: GroupKey) -> ClosedGate | None:
        """None if the gate is open, or nothing waits behind it."""
        groups, members = self._cache.groups, self._cache.members_of(key)
        if not members.pending or key.dialect in groups.absent:
            return None
        group = groups.get(key)
        known = [each for each in Dialect if not self._cache.snapshot.objects(STRUCTS[each]).unread]
        message = refusal_of(key, group, members, known)
        if not message and group is not None:
            requests = pod_requests(members.pending[0].spec).amounts
            if members.is_begun or members.are_enough(group) or group.is_ordinary(requests):
                return None
            message = missing_members(group, members)
        return ClosedGate(group, members.pending, message)
