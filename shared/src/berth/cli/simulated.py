"""What a simulation decided, told to people: a line a pod, and the sum of it. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from rich.table import Table
from rich.text import Text

from berth.cli.console import columns, plain
from berth.cli.simulation import Simulated

_PLUGINS: Final = 3
"""How many plugins are named of those that scored."""


@dataclass(slots=True)
class Sums:
    """How many pods there were, and what became of them."""

    pods: int = 0
    placed: int = 0
    nominated: int = 0
    nodes: set[str] = field(default_factory=set)

    def add(self, one: Simulated) -> None:
        """One more."""
        self.pods += 1
        self.nominated += one.nominated is not None
        if one.bound is not None:
            self.placed += 1
            self.nodes.add(one.bound)

    def told(self) -> Text:
        """In a sentence."""
        nowhere = self.pods - self.placed - self.nominated
        parts = [f"{self.placed} of {self.pods} pods have a node, on {len(self.nodes)} nodes"]
        parts += [f"{self.nominated} would wait for room to be made"] if self.nominated else []
        parts += [f"{nowhere} fit nowhere"] if nowhere else []
        return plain("; ".join(parts), "bold")


@dataclass(frozen=True, slots=True)
class Row:
    """What is told of a pod: far less than what was decided, which says something of every node."""

    pod: str
    profile: str
    node: Text
    possible: str
    because: Text


def row_of(one: Simulated) -> Row:
    """A pod's node and what made it the best one, or why it has none."""
    looked_at = len(one.feasible) + len(one.rejections)
    possible = f"{len(one.feasible)} of {looked_at}" if looked_at else ""
    return Row(one.pod, one.profile, _node(one), possible, _because(one))


def table_of(rows: list[Row]) -> Table:
    """A line a pod; the profile is named where there are several."""
    several = len({row.profile for row in rows}) > 1
    headings = ("POD", *(("PROFILE",) if several else ()), "NODE", "POSSIBLE", "BECAUSE")
    table = columns(*headings, numbers=("POSSIBLE",))
    for row in rows:
        profile = (plain(row.profile),) if several else ()
        table.add_row(plain(row.pod), *profile, row.node, plain(row.possible), row.because)
    return table


def _node(one: Simulated) -> Text:
    if one.bound is not None:
        return plain(one.bound, "green")
    return plain(f"({one.nominated})", "yellow") if one.nominated is not None else plain("-", "red")


def _because(one: Simulated) -> Text:
    if one.nominated is not None:
        return plain(f"evicting {', '.join(one.victims) or 'nobody'}: {one.message}", "yellow")
    if one.bound is None:
        return plain(one.message or "", "red")
    if len(one.feasible) == 1:
        return plain("the only one possible")
    return plain(f"{one.totals[one.bound]}{_runner_up(one)}: {_points(one, one.bound)}")


def _runner_up(one: Simulated) -> str:
    others = ((total, node) for node, total in one.totals.items() if node != one.bound)
    total, node = max(others, key=lambda other: other[0])
    return f" ({node} {total})"


def _points(one: Simulated, node: str) -> str:
    points = sorted(((by_node[node], plugin) for plugin, by_node in one.scores.items()), key=lambda x: (-x[0], x[1]))
    more = ", ..." if len(points) > _PLUGINS else ""
    return ", ".join(f"{plugin} {score}" for score, plugin in points[:_PLUGINS]) + more
