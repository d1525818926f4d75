"""The order of nodes by their estimates. Apart from ``scoring``, since commands show it and load no NumPy for that."""

from __future__ import annotations

from collections.abc import Iterable

from berth.messages.attempts import Candidate


def by_best_estimate(candidates: Iterable[Candidate]) -> list[Candidate]:
    """The order in which the binder tries the nodes (docs/protocol.md, 5): the highest estimate first.

    Equal ones: the fewest newcomers first, then the scorer's order, as in ``candidates``.
    """
    return sorted(candidates, key=lambda each: (each.loss * each.newcomers - each.total, each.newcomers))
