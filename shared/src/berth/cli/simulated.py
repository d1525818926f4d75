"""What a simulation decided, told to people: a line a pod, and the sum of it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rich.table import Table
from rich.text import Text

from berth.cli.console import columns, plain
from berth.cli.simulation import Simulated

_PLUGINS: Final = 3
"""How many plugins are named of those that scored."""


def table_of(decided: Sequence[Simulated]) -> Table:
    """A line a pod: its node and what made it the best one, or why it has none."""
    several = len({one.profile for one in decided}) > 1
    headings = ("POD", *(("PROFILE",) if several else ()), "NODE", "POSSIBLE", "BECAUSE")
    table = columns(*headings, numbers=("POSSIBLE",))
    for one in decided:
        profile = (plain(one.profile),) if several else ()
        table.add_row(plain(one.pod), *profile, _node(one), plain(_possible(one)), _because(one))
    return table


def summary(decided: Sequence[Simulated]) -> Text:
    """How many pods have a node, and how many nodes got pods."""
    placed = [one.bound for one in decided if one.bound is not None]
    waiting = sum(one.nominated is not None for one in decided)
    parts = [f"{len(placed)} of {len(decided)} pods have a node, on {len(set(placed))} nodes"]
    parts += [f"{waiting} would wait for room to be made"] if waiting else []
    nowhere = len(decided) - len(placed) - waiting
    parts += [f"{nowhere} fit nowhere"] if nowhere else []
    return plain("; ".join(parts), "bold")


def _node(one: Simulated) -> Text:
    if one.bound is not None:
        return plain(one.bound, "green")
    return plain(f"({one.nominated})", "yellow") if one.nominated is not None else plain("-", "red")


def _possible(one: Simulated) -> str:
    looked_at = len(one.feasible) + len(one.rejections)
    return f"{len(one.feasible)} of {looked_at}" if looked_at else ""


def _because(one: Simulated) -> Text:
    if one.nominated is not None:
        return plain(f"evicting {', '.join(one.victims) or 'nobody'}: {one.message}", "yellow")
    if one.bound is None:
        return plain(one.message or "", "red")
    if len(one.feasible) == 1:
        return plain("the only one possible")
    return plain(f"{one.totals[one.bound]}{_runner_up(one)}: {_points(one, one.bound)}")


def _runner_up(one: Simulated) -> str:
    node, total = max(((node, total) for node, total in one.totals.items() if node != one.bound), key=lambda x: x[1])
    return f" ({node} {total})"


def _points(one: Simulated, node: str) -> str:
    points = sorted(((by_node[node], plugin) for plugin, by_node in one.scores.items()), key=lambda x: (-x[0], x[1]))
    more = ", ..." if len(points) > _PLUGINS else ""
    return ", ".join(f"{plugin} {score}" for score, plugin in points[:_PLUGINS]) + more
