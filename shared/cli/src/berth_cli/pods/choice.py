"""Why this node: the feasible nodes, the binder's estimate, the runner-up (docs/protocol.md, 5), and the devices."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, Protocol

from berth.api.devices import Allocations
from berth.messages.attempts import Candidate, Decision, by_best_estimate

# Longest list of nodes in a sentence; of more, it gives the number.
_NAMED: Final = 3
_DEVICES: Final = 8  # that a line names
_NOMINATED: Final = "nominated for the pod, and no other node was tried"


class TriedNodes(Protocol):
    """The nodes that a ranking tried, of a message or of a cycle."""

    @property
    def candidates(self) -> Sequence[Candidate]: ...
    @property
    def feasible(self) -> int: ...
    @property
    def evaluated(self) -> int: ...
    @property
    def nodes(self) -> int | None: ...
    @property
    def nominated_first(self) -> bool: ...


def possible_nodes(ranking: TriedNodes, be: str) -> str:
    """The number of feasible nodes among those tried. ``be``: are, were."""
    untried = (ranking.nodes or 0) - ranking.evaluated
    if untried > 0 and ranking.nominated_first and ranking.candidates:
        is_or_was = "is" if be == "are" else "was"
        others = "the other one" if untried == 1 else f"the {untried} others"
        return f"the nominated {ranking.candidates[0].node} {is_or_was} possible and was tried first, without {others}"
    possible = f"{ranking.feasible} of {ranking.evaluated} nodes {be} possible"
    return f"{possible}, enough without the {untried} others" if untried > 0 else possible


def chosen_candidate(decision: Decision) -> Candidate | None:
    return next((each for each in decision.candidates if decision.node and each.node == decision.node), None)


def shown_candidates(candidates: Sequence[Candidate], chosen: str = "") -> list[Candidate]:
    """Candidates with every plugin's points, the chosen one and the runner-up."""
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
    """Why the node was chosen; empty for a pod on no candidate."""
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
        alone = decision.nominated_first and (decision.nodes or 0) > 1
        yield f"{chosen.node} was {_NOMINATED if alone else 'the only one possible'}"


def devices_by_claim(given: Allocations) -> dict[str, list[str]]:
    """The devices as driver/pool/device, by the claim's uid."""
    return {uid: [each.key for each in found.devices.results or ()] for uid, found in given.items()}


def devices_text(given: Allocations) -> str:
    """The devices in a line; empty if there are none."""
    keys = [key for results in devices_by_claim(given).values() for key in results]
    more = len(keys) - _DEVICES
    return ", ".join(keys[:_DEVICES]) + (f" and {more} more" if more > 0 else "")


def _names(candidates: Sequence[Candidate]) -> str:
    if len(candidates) > _NAMED:
        return f"{len(candidates)} nodes"
    return ", ".join(each.node for each in candidates)


def _runner_up(chosen: Candidate, second: Candidate) -> str:
    if chosen.estimate == second.estimate:
        return f"runner-up: {second.node} with {estimate_text(second)} as well; {_behind(chosen, second)}"
    less = f"{chosen.estimate - second.estimate:g} less"
    better = "" if second.newcomers else ", ".join(_advantages(chosen, second))
    return f"runner-up: {second.node} with {estimate_text(second)}, {less}{f' ({better})' if better else ''}"


def _behind(chosen: Candidate, second: Candidate) -> str:
    if chosen.newcomers != second.newcomers:
        return "more pods came there"
    if chosen.total != second.total:
        return "it was ranked behind"
    if chosen.pods != second.pods:
        return f"it has {second.pods} pods, and {chosen.node} {chosen.pods}"
    return "the best nodes were equal, and a hash of the attempt chose one of them"


def _advantages(chosen: Candidate, second: Candidate) -> Iterator[str]:
    for plugin, points in chosen.scores.items() if second.scores else ():
        other = second.scores.get(plugin, 0)
        if points != other:
            yield f"{plugin} {points} against {other}"
