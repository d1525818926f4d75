"""Why the binder took a candidate: its estimate, and the runner-up by the same order (docs/protocol.md, 5)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from berth.api.messages import Candidate, Decision, by_best_estimate

_NAMED: Final = 3
"""Nodes that a sentence names; of more, it has the number."""


def chosen_candidate(decision: Decision) -> Candidate | None:
    """The candidate that became the pod's node, if the Decision has one."""
    return next((each for each in decision.candidates if decision.node and each.node == decision.node), None)


def shown_candidates(candidates: Sequence[Candidate], chosen: str = "") -> list[Candidate]:
    """Those that a table shows: the ones with every plugin's points, the chosen one and the runner-up."""
    order = by_best_estimate(candidates)
    best = {each.node for each in order[:2]} | {chosen}
    return [each for each in candidates if each.scores or each.node in best or len(candidates) <= _NAMED]


def estimate_text(candidate: Candidate) -> str:
    """The estimate with its arithmetic: ``88 (90 - 1 x 2 newcomers)``."""
    number, loss = candidate.newcomers, candidate.loss
    if not number:
        return f"{candidate.total}"
    what = ("newcomer" if number == 1 else "newcomers") if number > 0 else ("pod gone" if number == -1 else "pods gone")
    sign = "-" if (loss < 0) == (number < 0) else "+"
    return f"{candidate.estimate:g} ({candidate.total} {sign} {abs(loss):g} x {abs(number)} {what})"


def choice_lines(decision: Decision) -> Iterator[str]:
    """Why this node and not another one, and the runner-up; nothing for a pod that is on none of the candidates."""
    chosen = chosen_candidate(decision)
    if chosen is None:
        return
    order = by_best_estimate(decision.candidates)
    place = order.index(chosen)
    if place:
        yield f"{_names(order[:place])} came first, but did not pass the filters any more"
    if chosen.newcomers or chosen is not decision.candidates[0]:
        yield f"{chosen.node} was taken with {estimate_text(chosen)}"
    if place + 1 < len(order):
        yield _runner_up(chosen, order[place + 1])
    elif len(order) == 1:
        yield f"{chosen.node} was the only one possible"


def _names(candidates: Sequence[Candidate]) -> str:
    if len(candidates) > _NAMED:
        return f"{len(candidates)} nodes"
    return ", ".join(each.node for each in candidates)


def _runner_up(chosen: Candidate, second: Candidate) -> str:
    if chosen.estimate == second.estimate:
        return f"runner-up: {second.node} with {estimate_text(second)} as well, and {_behind(chosen, second)}"
    less = f"{chosen.estimate - second.estimate:g} less"
    better = "" if second.newcomers else ", ".join(_advantages(chosen, second))
    return f"runner-up: {second.node} with {estimate_text(second)}, {less}{f' ({better})' if better else ''}"


def _behind(chosen: Candidate, second: Candidate) -> str:
    """What decided between equal estimates."""
    if chosen.newcomers != second.newcomers:
        return "more pods came there"
    if chosen.total != second.total:
        return "it was ranked behind"
    return "as many pods: a hash decided" if chosen.pods == second.pods else f"{second.pods} pods"


def _advantages(chosen: Candidate, second: Candidate) -> Iterator[str]:
    for plugin, points in chosen.scores.items() if second.scores else ():
        other = second.scores.get(plugin, 0)
        if points != other:
            yield f"{plugin} {points} against {other}"
