"""Nodes with their scores, one plugin a column: of a message, or of a cycle that ran just now.

Why a pod is on its node, or on none: a Decision told to people and to programs. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from berth.api.errors import DecodeError
from berth.api.messages import Candidate, Decision, Outcome, Rejection
from berth.api.subjects import Attempt
from berth.cli.decisions import EvictionRecord, ExplainedDecision
from berth.cli.journey import OUTCOME_STYLES, why_in_words
from berth.cli.rendering import ago, below, clock, columns, duration, is_current, plain, short_identity

Weights = Mapping[str, int]
"""The weight of each score plugin; empty when it is not known."""


_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z][a-z0-9]+|[^A-Z_]+")


def best_nodes(candidates: Sequence[Candidate], *, weights: Weights | None = None, chosen: str = "") -> Table:
    """A line a node: rank, name, total, each plugin's score x weight, pods; the chosen one stands out."""
    plugins = scorers_of(candidates)
    table = columns("", "NODE", "TOTAL", *map(_heading, plugins), "PODS")
    for column in table.columns[2:]:
        column.justify = "right"
    for place, candidate in enumerate(candidates, start=1):
        points = (_points(candidate.scores.get(plugin), (weights or {}).get(plugin)) for plugin in plugins)
        cells = (str(place), candidate.node, str(candidate.total), *points, str(candidate.pods))
        table.add_row(*map(plain, cells), style="green" if candidate.node == chosen else "")
    return table


def details(candidates: Iterable[Candidate]) -> list[Text]:
    """What plugins add to the points that they gave a node, a line each."""
    return [
        plain(f"{candidate.node}  {plugin}: {text}")
        for candidate in candidates
        for plugin, text in candidate.details.items()
    ]


def scorers_of(candidates: Iterable[Candidate]) -> list[str]:
    """The plugins that scored, by name."""
    return sorted({plugin for candidate in candidates for plugin in candidate.scores})


def candidate_json(candidate: Candidate, weights: Weights) -> dict[str, object]:
    """A node with its scores for programs."""
    return {
        "node": candidate.node,
        "total": candidate.total,
        "pods": candidate.pods,
        "scores": {name: _scored(points, weights.get(name)) for name, points in candidate.scores.items()},
        "details": candidate.details,
    }


def _scored(points: int, weight: int | None) -> dict[str, int | None]:
    return {"points": points, "weight": weight, "score": points // weight if weight else None}


def _points(points: int | None, weight: int | None) -> str:
    if points is None:
        return "-"
    return f"{points // weight} x {weight}" if weight else str(points)


def _heading(plugin: str) -> str:
    """A plugin's name on several lines, so that its column is no wider than its longest word."""
    return "\n".join(_WORDS.findall(plugin)) or plugin


_BECAME = {
    Outcome.BOUND: "is on {node}",
    Outcome.UNSCHEDULABLE: "waits, no node is possible",
    Outcome.CONFLICT: "is ranked again",
    Outcome.PREEMPTING: "waits for room that is being made on {node}",
    Outcome.GONE: "is gone, deleted or bound by somebody else",
    Outcome.WAITING: "waits to be bound to {node}",
    Outcome.ERROR: "failed and is tried again",
}


def told(decided: ExplainedDecision, weights: Weights) -> Iterator[RenderableType]:
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


def headline(decided: ExplainedDecision) -> Text:
    """What became of the pod, in a sentence."""
    decision = decided.decision
    line = plain(f"{decision.namespace}/{decision.pod} ", "bold")
    return line.append(
        _evicted(decided) or _became(decision), style=OUTCOME_STYLES.get(decision.outcome, "") or "not bold"
    )


def _evicted(decided: ExplainedDecision) -> str:
    found = decided.evicted
    return (
        ""
        if found is None
        else f"was evicted from {found.preemption.node} for {found.pod} {ago(found.at, decided.now)}"
    )


def _room_made(decided: ExplainedDecision, made: EvictionRecord) -> str:
    names = ", ".join(f"{victim.namespace}/{victim.name}" for victim in made.preemption.victims)
    return f"room was made for it on {made.preemption.node} {ago(made.at, decided.now)}: evicted {names}"


def _became(decision: Decision) -> str:
    said = why_in_words(decision)
    words = _BECAME[decision.outcome].format(node=decision.node)
    return f"{words}: {said}" if said else words


def _when(decided: ExplainedDecision) -> str:
    decision = decided.decision
    by = f"attempt {_number(decision.attempt)} by {short_identity(decision.scorer)}" if decision.scorer else ""
    parts = [f"decided {ago(decided.at, decided.now)} at {clock(decided.at)}", *_times(decided), by]
    return ", ".join(filter(None, parts))


def _times(decided: ExplainedDecision) -> Iterator[str]:
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


def as_json(decided: ExplainedDecision, weights: Weights) -> dict[str, object]:
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


def _room_json(made: EvictionRecord) -> dict[str, object]:
    preemption = made.preemption
    return {
        "node": preemption.node,
        "victims": preemption.victims,
        "violations": preemption.violations,
        "at": made.at,
    }


def _evicted_json(evicted: EvictionRecord) -> dict[str, object]:
    return {"pod": str(evicted.pod), "uid": evicted.uid, "node": evicted.preemption.node, "at": evicted.at}
