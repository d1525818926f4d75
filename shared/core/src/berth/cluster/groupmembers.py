"""Where the placed members of each group are, and the domain of a topology label that they make the group's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from berth.api.pod import Pod
from berth.api.podgroups import GroupKey, group_of
from berth.cluster.columns import ABSENT

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


def home_domain(
    rows: Mapping[int, int], codes: npt.NDArray[np.int32], names: Sequence[str], key: str
) -> tuple[int | None, str]:
    """The domain of a group's members, the one with most of them; None without one. And what is odd about it.

    ``rows``: the number of members on each row. ``codes``: int32[rows], each row's domain, or ABSENT.
    """
    counts: dict[int, int] = {}
    for row, count in rows.items():
        code = int(codes[row])
        counts[code] = counts.get(code, 0) + count
    outside = counts.pop(ABSENT, 0)
    notes = [f"{outside} bound members are on nodes without the label {key}"] if outside else []
    if not counts:
        return None, "; ".join(notes)
    home = min(counts, key=lambda code: (-counts[code], names[code]))
    if len(counts) > 1:
        listed = ", ".join(f"{counts[code]} in {names[code]}" for code in sorted(counts, key=lambda code: names[code]))
        notes.append(f"its bound members are in {len(counts)} domains of {key}: {listed}")
    return home, "; ".join(notes)
