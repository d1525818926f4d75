"""The result of a cycle."""

from __future__ import annotations

from dataclasses import dataclass

from berth.api.messages import Candidate, Rejection
from berth.framework.interface import Nomination


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """The best nodes, or why there is none, or why ranking failed: exactly one of candidates, message, error.

    When a single node is feasible it is not scored, as in kube-scheduler: its candidate has total 0 and no scores.
    ``blockers`` are the plugins that refused nodes: events that they name may help. ``nomination`` is what PostFilter
    found when there is no candidate; ``clears_nomination``: the node that is kept for the pod is of no use to it.
    ``untouched_first`` is False where more pods make a node better.
    """

    candidates: tuple[Candidate, ...] = ()
    evaluated: int = 0
    feasible: int = 0
    rejections: tuple[Rejection, ...] = ()
    blockers: tuple[str, ...] = ()
    message: str = ""
    error: str = ""
    nomination: Nomination | None = None
    clears_nomination: bool = False
    untouched_first: bool = True
