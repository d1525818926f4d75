"""``percentageOfNodesToScore``: how many feasible nodes are enough, and which they are.

Filters run on all nodes at once, which costs less than stopping early; the percentage saves scoring. Which nodes are
scored is as if they had been filtered one after another, beginning where the last pod's search ended, so that all nodes
have their turn.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from berth.api.config.configuration import EVERY_NODE
from berth.cluster.nodes import Mask, RowIndex

MIN_FEASIBLE_NODES: Final = 100
"""As kube-scheduler's minFeasibleNodesToFind: a choice among fewer nodes is no choice."""


def nodes_to_find(count: int, percentage: int) -> int:
    """How many feasible nodes end the search among ``count`` nodes."""
    if percentage == EVERY_NODE or count < MIN_FEASIBLE_NODES:
        return count
    return min(count, max(MIN_FEASIBLE_NODES, count * percentage // 100))


@dataclass(frozen=True, slots=True)
class FoundNodes:
    """``rows``: feasible nodes, ascending. ``evaluated``: how many nodes had to be filtered to find them."""

    rows: RowIndex
    evaluated: int


@dataclass(slots=True)
class NodeSearch:
    """Where the next search begins; one for all profiles of a process, as in kube-scheduler."""

    next_row: int = 0

    def find(self, feasible: Mask, exists: Mask, wanted: int) -> FoundNodes:
        """The first ``wanted`` feasible rows from where the last search ended, around the end of the rows."""
        rows, count = np.flatnonzero(feasible), int(np.count_nonzero(exists))
        if len(rows) <= wanted:
            return FoundNodes(rows, count)  # all were filtered: the next search begins where this one did
        begin = self.next_row if self.next_row < len(feasible) else 0
        in_turn = np.roll(rows, -int(np.searchsorted(rows, begin)))[:wanted]
        last = int(in_turn[-1])
        self.next_row = last + 1
        passed = exists[begin : last + 1] if last >= begin else np.concatenate((exists[begin:], exists[: last + 1]))
        return FoundNodes(np.sort(in_turn), int(np.count_nonzero(passed)))
