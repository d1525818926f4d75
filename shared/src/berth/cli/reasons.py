"""Why a pod is on its node, or on none: a Decision told to people and to programs. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from berth.api.errors import DecodeError
from berth.api.identity import Attempt
from berth.api.messages import Candidate, Decision, Outcome, Rejection
from berth.cli.console import below, columns, plain
from berth.cli.journey import OUTCOME_STYLES, why_in_words
from berth.cli.preemptions import Eviction
from berth.cli.scores import Weights, best_nodes, candidate_json, details
from berth.cli.shown import ago, clock, duration, is_current, short_identity

_BECAME = {
    Outcome.BOUND: "is on {node}",
    Outcome.UNSCHEDULABLE: "waits, no node is possible",
    Outcome.CONFLICT: "is ranked again",
    Outcome.PREEMPTING: "waits for room that is being made on {node}",
    Outcome.GONE: "is gone, deleted or bound by somebody else",
    Outcome.WAITING: "waits to be bound to {node}",
    Outcome.ERROR: "failed and is tried again",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    """A Decision as it stands in its stream. Both times are of NATS's clock.

    ``room_made`` is the last time that others were evicted for the pod; ``evicted`` is for whom it was itself.
    """

    decision: Decision
    at: datetime
    now: datetime
    room_made: Eviction | None = None
    evicted: Eviction | None = None


def told(decided: Decided, weights: Weights) -> Iterator[RenderableType]:
    """The Decision for people: what, when, the best nodes, or who refused and why."""
    decision = decided.decision
    yield headline(decided)
    yield below(_when(decided))
    if decision.evaluated:
        yield below(_looked_at(decision))
    yield ""
    if decision.candidates:
        yield best_nodes(decision.candidates, weights=weights, chosen=decision.node)
        yield from details(decision.candidates)
        yield plain(_choice(decision))
    if decision.rejections:
        yield rejections_table(decision.rejections)
    if decided.room_made is not None:
        yield plain(_room_made(decided, decided.room_made))
    if decision.blockers and decision.outcome is Outcome.UNSCHEDULABLE:
        yield plain(f"refused by {', '.join(decision.blockers)}: tried again when something changes that may help them")


def headline(decided: Decided) -> Text:
    """What became of the pod, in a sentence."""
    decision = decided.decision
    line = plain(f"{decision.namespace}/{decision.pod} ", "bold")
    return line.append(
        _evicted(decided) or _became(decision), style=OUTCOME_STYLES.get(decision.outcome, "") or "not bold"
    )


def _evicted(decided: Decided) -> str:
    found = decided.evicted
    return (
        ""
        if found is None
        else f"was evicted from {found.preemption.node} for {found.pod} {ago(found.at, decided.now)}"
    )


def _room_made(decided: Decided, made: Eviction) -> str:
    names = ", ".join(f"{victim.namespace}/{victim.name}" for victim in made.preemption.victims)
    return f"room was made for it on {made.preemption.node} {ago(made.at, decided.now)}: evicted {names}"


def _became(decision: Decision) -> str:
    said = why_in_words(decision)
    words = _BECAME[decision.outcome].format(node=decision.node)
    return f"{words}: {said}" if said else words


def _when(decided: Decided) -> str:
    decision = decided.decision
    by = f"attempt {_number(decision.attempt)} by {short_identity(decision.scorer)}" if decision.scorer else ""
    parts = [f"decided {ago(decided.at, decided.now)} at {clock(decided.at)}", *_times(decided), by]
    return ", ".join(filter(None, parts))


def _times(decided: Decided) -> Iterator[str]:
    """How long each step took, as far as the Decision knows."""
    asked, ranked = decided.decision.asked_at, decided.decision.ranked_at
    if asked is not None and ranked is not None:
        yield f"ranked {_took(asked, ranked)} after it was asked for"
    if ranked is not None:
        yield f"decided {_took(ranked, decided.at)} later"


def _took(begin: datetime, end: datetime) -> str:
    return duration(max(0.0, (end - begin).total_seconds()))


def _number(attempt: str) -> str:
    try:
        return str(Attempt.parse(attempt).n)
    except DecodeError:
        return attempt


def _looked_at(decision: Decision) -> str:
    age = decision.view_age_seconds
    view = "" if age is None else f", on {_view(age)}"
    return f"{decision.feasible} of {decision.evaluated} nodes were possible{view}"


def _view(age: float) -> str:
    if is_current(age):
        return f"a current view of the cluster (confirmed {duration(age)} before)"
    return f"a view of the cluster {duration(age)} old"


def _choice(decision: Decision) -> str:
    """The runner-up of the node that was taken, or why a later one was taken."""
    names = [candidate.node for candidate in decision.candidates]
    if decision.outcome is not Outcome.BOUND or decision.node not in names:
        return ""
    place = names.index(decision.node)
    if place:
        before = "the node before it" if place == 1 else f"the {place} nodes before it"
        return f"{decision.node} was taken: {before} had changed since they were ranked"
    return _runner_up(decision.candidates) if len(names) > 1 else f"{decision.node} was the only one possible"


def _runner_up(candidates: Sequence[Candidate]) -> str:
    first, second, *_ = candidates
    if first.total == second.total:
        equal = "as many pods: chance (a hash) decided" if first.pods == second.pods else f"{second.pods} pods"
        return f"runner-up: {second.node} with {second.total} as well, and {equal}"
    better = ", ".join(_advantages(first, second))
    return f"runner-up: {second.node} with {second.total}, {first.total - second.total} less ({better})"


def _advantages(first: Candidate, second: Candidate) -> Iterator[str]:
    for plugin, points in first.scores.items():
        other = second.scores.get(plugin, 0)
        if points != other:
            yield f"{plugin} {points} against {other}"


def rejections_table(rejections: Iterable[Rejection]) -> Table:
    """How many nodes were refused, by whom, why, and some of them by name."""
    table = columns("NODES", "PLUGIN", "REASON", "FOR EXAMPLE", numbers=("NODES",))
    for rejection in rejections:
        cells = (str(rejection.nodes), rejection.plugin, rejection.reason, ", ".join(rejection.examples))
        table.add_row(*map(plain, cells))
    return table


def as_json(decided: Decided, weights: Weights) -> dict[str, object]:
    """The Decision for programs, with what only the reader knows: ages, and scores without their weights."""
    decision = decided.decision
    return {
        "pod": f"{decision.namespace}/{decision.pod}",
        "uid": decision.uid,
        "outcome": decision.outcome,
        "node": decision.node,
        "reason": decision.reason,
        "message": decision.message,
        "attempt": decision.attempt,
        "epoch": decision.epoch,
        "profile": decision.profile,
        "config": decision.config,
        "scorer": decision.scorer,
        "asked_at": decision.asked_at,
        "ranked_at": decision.ranked_at,
        "decided_at": decided.at,
        "age_seconds": (decided.now - decided.at).total_seconds(),
        "view_age_seconds": decision.view_age_seconds,
        "evaluated": decision.evaluated,
        "feasible": decision.feasible,
        "candidates": [candidate_json(candidate, weights) for candidate in decision.candidates],
        "rejections": decision.rejections,
        "blockers": decision.blockers,
        "preemption": None if decided.room_made is None else _room_json(decided.room_made),
        "evicted_for": None if decided.evicted is None else _evicted_json(decided.evicted),
    }


def _room_json(made: Eviction) -> dict[str, object]:
    preemption = made.preemption
    return {
        "node": preemption.node,
        "victims": preemption.victims,
        "violations": preemption.violations,
        "at": made.at,
    }


def _evicted_json(evicted: Eviction) -> dict[str, object]:
    return {"pod": str(evicted.pod), "uid": evicted.uid, "node": evicted.preemption.node, "at": evicted.at}
