"""The arguments of DefaultPreemption and what is wrong with them."""

from __future__ import annotations

from typing import Final

from berth.plugins.factory import Args

_MAX_PERCENT: Final = 100


class DefaultPreemptionArgs(Args, frozen=True, kw_only=True):
    """How many nodes that evictions would help are enough to choose from: the greater of the two.

    ``minCandidateNodesPercentage``: 0..100, of the nodes on which evictions may help at all.
    ``minCandidateNodesAbsolute``: a number of nodes. Not both are 0.
    """

    min_candidate_nodes_percentage: int = 10
    min_candidate_nodes_absolute: int = 100

    def enough(self, nodes: int) -> int:
        """How many candidates are enough where evictions may help on this many nodes."""
        least = max(nodes * self.min_candidate_nodes_percentage // 100, self.min_candidate_nodes_absolute)
        return min(least, nodes)


def validate(args: DefaultPreemptionArgs, path: str) -> list[str]:
    """Every problem, with its path."""
    percent, absolute = args.min_candidate_nodes_percentage, args.min_candidate_nodes_absolute
    problems = []
    if not 0 <= percent <= _MAX_PERCENT:
        problems.append(f"{path}.minCandidateNodesPercentage: want 0..{_MAX_PERCENT}, got {percent}")
    if absolute < 0:
        problems.append(f"{path}.minCandidateNodesAbsolute: want 0 or more, got {absolute}")
    if percent == absolute == 0:
        wanted = "more than 0, or minCandidateNodesAbsolute more than 0"
        problems.append(f"{path}.minCandidateNodesPercentage: want {wanted}, got 0")
    return problems
