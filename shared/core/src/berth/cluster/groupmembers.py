"""Where the placed members of each group are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from berth.api.pod import Pod
from berth.api.podgroups import GroupKey, group_of

_NO_ROWS: Final[Mapping[int, int]] = {}


class GroupMembers:
    """By group, the number of its placed pods on each row; terminating ones do not count."""

    def __init__(self) -> None:
        self._rows: dict[GroupKey, dict[int, int]] = {}

    def copied(self) -> GroupMembers:
        copy = GroupMembers()
        copy._rows = {key: rows.copy() for key, rows in self._rows.items()}
        return copy

    def rows(self, key: GroupKey) -> Mapping[int, int]:
        return self._rows.get(key, _NO_ROWS)

    def count(self, pod: Pod, row: int, by: int) -> None:
        """Add a pod to a row (1) or remove it (-1)."""
        key = group_of(pod)
        if key is None or pod.metadata.deletion_timestamp is not None:
            return
        rows = self._rows.setdefault(key, {})
        rows[row] = rows.get(row, 0) + by
        if not rows[row]:
            del rows[row]
            if not rows:
                del self._rows[key]
