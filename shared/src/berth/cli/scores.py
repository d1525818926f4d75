"""Nodes with their scores, one plugin a column: of a message, or of a cycle that ran just now."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from rich.table import Table
from rich.text import Text

from berth.api.messages import Candidate
from berth.cli.console import columns, plain

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
