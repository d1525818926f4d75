"""Explains a pod's placement from its last Decision, as text and as JSON."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from string import ascii_uppercase

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from berth.errors import DecodeError
from berth.messages.attempts import Candidate, Decision, Outcome, Rejection
from berth.messages.subjects import Attempt
from berth.settings.settings import short_identity
from berth_cli.pods.choice import choice_lines, devices_by_claim, devices_text, possible_nodes, shown_candidates
from berth_cli.pods.lookup import EvictionRecord, ExplainedDecision
from berth_cli.pods.timeline import OUTCOME_STYLES, reason_text
from berth_cli.rendering import WideOrNarrow, and_more, clock, duration, indented, is_current, new_table, plain

Weights = Mapping[str, int]  # the weight of each score plugin; empty if unknown
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z][a-z0-9]+|[^A-Z_]+")
_BECAME = {
    Outcome.BOUND: "is on {node}",
    Outcome.UNSCHEDULABLE: "waits, no node is possible",
    Outcome.CONFLICT: "is ranked again after a conflict",
    Outcome.PREEMPTING: "waits for evicted pods to end on {node}",
    Outcome.GONE: "is gone: deleted, or bound by another client",
    Outcome.WAITING: "waits to be bound to {node}",
    Outcome.ERROR: "failed and is tried again",
}


def decision_lines(
    decided: ExplainedDecision, *, has_details: bool = True, every_row: bool = False
) -> Iterator[RenderableType]:
    """Outcome, times, the best nodes, and the plugins that rejected the others.

    ``has_details``: with the plugins' explanations of their points. ``every_row``: all nodes of the Decision.
    """
    decision = decided.decision
    yield headline(decided)
    yield from map(indented, _circumstances(decided))
    yield ""
    if decision.candidates and not decision.of_group:  # the plan has no points
        shown = decision.candidates if every_row else shown_candidates(decision.candidates, decision.node)
        yield candidates_table(shown, weights=decision.weights, chosen=decision.node, among=decision.candidates)
        if has_details:
            yield from and_more(len(decision.candidates) - len(shown))
            yield from legend(shown, has_weights=bool(decision.weights))
        if decision.outcome is Outcome.BOUND:
            yield from map(plain, choice_lines(decision))
            if has_details and (devices := devices_text(decision.devices)):
                yield plain(f"its devices: {devices}")
        yield from candidate_details(shown) if has_details else ()
    if decision.rejections:
        yield rejections_table(decision.rejections)
    if decided.preemption is not None:
        yield plain(_preemption_line(decided, decided.preemption))
    if decision.blockers and decision.outcome is Outcome.UNSCHEDULABLE:
        yield plain(f"rejected by {', '.join(decision.blockers)}: requeued when a change may make the pod fit")


def _circumstances(decided: ExplainedDecision) -> Iterator[str]:
    yield _when(decided)
    if decided.decision.evaluated:
        yield _evaluated(decided.decision)
    if decided.decision.of_group:
        yield "placed with its PodGroup, all members in one plan"
    if decided.group is not None:
        yield f"`berth why --group {decided.group}` shows its group"


def headline(decided: ExplainedDecision) -> Text:
    decision = decided.decision
    line = plain(f"{decision.namespace}/{decision.pod} ", "bold")
    style = OUTCOME_STYLES.get(decision.outcome, "") or "not bold"
    return line.append_text(plain(_evicted(decided) or _left(decided) or _became(decision), style))


def _evicted(decided: ExplainedDecision) -> str:
    found = decided.evicted_for
    return (
        "" if found is None else f"was evicted from {found.preemption.node} for {found.pod} {decided.since(found.at)}"
    )


def _left(decided: ExplainedDecision) -> str:
    return f"was on {decided.decision.node}; it was deleted, or has finished" if decided.has_left else ""


def _became(decision: Decision) -> str:
    reason = reason_text(decision)
    words = _BECAME[decision.outcome].format(node=decision.node)
    return f"{words}: {reason}" if reason else words


def _when(decided: ExplainedDecision) -> str:
    decision = decided.decision
    by = f"attempt {_number(decision.attempt)} by {short_identity(decision.scorer)}" if decision.scorer else ""
    parts = [f"decided {decided.since(decided.at)} at {clock(decided.at)}", *_times(decided), by]
    return ", ".join(filter(None, parts))


def _times(decided: ExplainedDecision) -> Iterator[str]:
    asked, ranked = decided.decision.asked_at, decided.decision.ranked_at
    if asked is not None and ranked is not None:
        yield f"ranked {_took(asked, ranked)} after the request"
    if ranked is not None:
        yield f"decided {_took(ranked, decided.at)} later"


def _took(begin: datetime, end: datetime) -> str:
    return duration(max(0.0, (end - begin).total_seconds()))


def _number(attempt: str) -> str:
    try:
        return str(Attempt.parse(attempt).n)
    except DecodeError:
        return attempt


def _evaluated(decision: Decision) -> str:
    return f"{possible_nodes(decision, 'were')}{_data(decision.view_age_seconds)}"


def _data(age: float | None) -> str:
    """The age of the view. A view confirmed a short while ago is taken as the newest state."""
    if age is None:
        return ""
    if is_current(age):
        return "; the data was current when it was decided"
    return f"; the data was {duration(age)} old when it was decided, so a watcher or a scorer was behind"


def _preemption_line(decided: ExplainedDecision, record: EvictionRecord) -> str:
    names = ", ".join(f"{victim.namespace}/{victim.name}" for victim in record.preemption.victims)
    return f"preempted pods on {record.preemption.node} {decided.since(record.at)}: {names}"


def decision_json(decided: ExplainedDecision) -> dict[str, object]:
    """Scores are unweighted."""
    decision = decided.decision
    return {
        "pod": f"{decision.namespace}/{decision.pod}",
        "uid": decision.uid,
        "outcome": decision.outcome,
        "node": decision.node,
        "reason": decision.reason,
        "message": decision.message,
        "attempt": decision.attempt,
        "of_group": decision.of_group,
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
        "nodes": decision.nodes,
        "nominated_first": decision.nominated_first,
        "candidates": [candidate_json(candidate, decision.weights) for candidate in decision.candidates],
        "rejections": decision.rejections,
        "blockers": decision.blockers,
        "preemption": None if decided.preemption is None else _preemption_json(decided.preemption),
        "devices": devices_by_claim(decision.devices),
        "evicted_for": None if decided.evicted_for is None else _evicted_json(decided.evicted_for),
        "has_left": decided.has_left,
    }


def _preemption_json(record: EvictionRecord) -> dict[str, object]:
    preemption = record.preemption
    return {
        "node": preemption.node,
        "victims": preemption.victims,
        "violations": preemption.violations,
        "at": record.at,
    }


def _evicted_json(evicted: EvictionRecord) -> dict[str, object]:
    return {"pod": str(evicted.pod), "uid": evicted.uid, "node": evicted.preemption.node, "at": evicted.at}


def candidates_table(
    candidates: Sequence[Candidate],
    *,
    weights: Weights | None = None,
    chosen: str = "",
    among: Sequence[Candidate] | None = None,
) -> WideOrNarrow:
    """A line a node: place, name, total, each plugin's score x weight, pods, loss. The chosen node is green.

    ``among``: the whole list, in which places count, if these are only a part of it. A further column has the pods that
    the binder counted in addition. In a narrow terminal plugins are letters, with their names below.
    """
    places = {each.node: each.place or place for place, each in enumerate(among or candidates, start=1)}
    last = ("PODS", "LOSS", "NEWCOMERS")[: 2 + any(each.newcomers for each in candidates)]

    def table(headings: Mapping[str, str], weights: Weights) -> Table:
        made = new_table("", "NODE", "TOTAL", *headings.values(), *last)
        for column in made.columns[2:]:
            column.justify = "right"
        for each in candidates:
            points = (_points(each.scores.get(plugin), weights.get(plugin)) for plugin in headings)
            counts = (str(each.pods), f"{each.loss:g}", str(each.newcomers))[: len(last)]
            cells = (str(places[each.node]), each.node, str(each.total), *points, *counts)
            made.add_row(*map(plain, cells), style="green" if each.node == chosen else "")
        return made

    plugins, known = score_plugins(candidates), weights or {}
    wide = table({plugin: _heading(plugin) for plugin in plugins}, known)
    letters = dict(zip(plugins, ascii_uppercase, strict=False))
    if len(letters) < len(plugins):
        return WideOrNarrow(wide, wide)
    names = (f"{letter} {plugin}{_factor(known.get(plugin, 1))}" for plugin, letter in letters.items())
    return WideOrNarrow(wide, Group(table(letters, {}), plain(", ".join(names))))


def _factor(weight: int) -> str:
    return f" (x {weight})" if weight != 1 else ""


def legend(candidates: Sequence[Candidate], *, has_weights: bool = True) -> Iterator[Text]:
    """The meaning of the table's numbers."""
    points = "points (score x weight)" if has_weights else "points (score x weight; the weights are unknown)"
    yield plain(f"TOTAL: sum of the {points}. LOSS: points one more such pod costs.", "dim")
    if any(each.newcomers for each in candidates):
        yield plain("NEWCOMERS: pods that came since the ranking; highest TOTAL - LOSS x NEWCOMERS wins.", "dim")


def candidate_details(candidates: Sequence[Candidate]) -> list[Text]:
    """A line a node, or one line if all nodes have the same explanations."""
    nodes: dict[tuple[str, str], list[str]] = {}
    for candidate in candidates:
        for explanation in candidate.details.items():
            nodes.setdefault(explanation, []).append(candidate.node)
    of_all = [explanation for explanation, names in nodes.items() if len(names) == len(candidates) > 1]
    common = [plain(f"all {len(candidates)} nodes  {plugin}: {text}") for plugin, text in of_all]
    own = (
        plain(f"{candidate.node}  {plugin}: {text}")
        for candidate in candidates
        for plugin, text in candidate.details.items()
        if (plugin, text) not in of_all
    )
    return [*common, *own]


def score_plugins(candidates: Iterable[Candidate]) -> list[str]:
    return sorted({plugin for candidate in candidates for plugin in candidate.scores})


def _points(points: int | None, weight: int | None) -> str:
    if points is None:
        return "-"
    return f"{points // weight} x {weight}" if weight else str(points)


def _heading(plugin: str) -> str:
    """A plugin's name on several lines, because the column is as wide as its longest word."""
    return "\n".join(_WORDS.findall(plugin)) or plugin


def candidate_json(candidate: Candidate, weights: Weights) -> dict[str, object]:
    return {
        "node": candidate.node,
        **({"place": candidate.place} if candidate.place else {}),
        "total": candidate.total,
        "pods": candidate.pods,
        "loss": candidate.loss,
        "newcomers": candidate.newcomers,
        "estimate": candidate.estimate,
        "scores": {name: _scored(points, weights.get(name)) for name, points in candidate.scores.items()},
        "details": candidate.details,
    }


def _scored(points: int, weight: int | None) -> dict[str, int | None]:
    return {"points": points, "weight": weight, "score": points // weight if weight else None}


def rejections_table(rejections: Iterable[Rejection]) -> Table:
    """Rejected nodes by plugin and reason, with a few of their names."""
    table = new_table("NODES", "PLUGIN", "REASON", "FOR EXAMPLE", numbers=("NODES",))
    for rejection in rejections:
        cells = (str(rejection.nodes), rejection.plugin, rejection.reason, ", ".join(rejection.examples))
        table.add_row(*map(plain, cells))
    return table
