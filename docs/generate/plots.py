"""The plots of docs/performance.md and README (SVG), from the figures in docs/scale and of `make bench`.

They have a background of their own, light or dark as the reader's system is.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any, Final

WIDTH, HEIGHT = 440, 320
LEFT, RIGHT, TOP, BOTTOM = 56, 28, 62, 46
COLOURS: Final = ("#3b82f6", "#f97316", "#10a37f", "#a855f7", "#e5484d", "#8b949e")
STYLE: Final = """
text { font: 12px system-ui, sans-serif; fill: #1f2328; }
.title { font-weight: 600; font-size: 13px; }
.paper { fill: #ffffff; }
.grid { stroke: #d1d9e0; }
.goal { stroke: #59636e; stroke-dasharray: 5 4; }
@media (prefers-color-scheme: dark) {
  text { fill: #f0f6fc; }
  .paper { fill: #0d1117; }
  .grid { stroke: #3d444d; }
  .goal { stroke: #9198a1; }
}
"""
SERVICES: Final = ("binder", "scorer-1", "watcher", "nats-server")
MIB: Final = 1.048576
"""In MB."""
PEER, OURS = "kube-scheduler", "berth"

Row = Mapping[str, Any]
Points = list[tuple[float, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lines:
    """A panel with lines over an axis, logarithmic unless ``even``; ``goal``: a dashed line, with its words."""

    title: str
    x: str
    lines: Mapping[str, Points]
    goal: tuple[float, str] | None = None
    even: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Bars:
    """A panel with bars side by side: for each group one value of each name."""

    title: str
    names: Sequence[str]
    groups: Mapping[str, Sequence[float]]


Panel = Lines | Bars


def files(docs: Path) -> Mapping[str, str]:
    """The text of each plot whose figures are there, by its path below docs/."""
    made = {}
    for name, panels in PLOTS.items():
        path = docs / "scale" / f"{name}.json"
        if path.exists():
            made[f"pictures/scale-{name}.svg"] = picture(panels(json.loads(path.read_text())["rows"]))
    compared = sorted((docs.parent / "tests" / "bench" / "results").glob("comparison-*.json"))
    if compared:
        rows = json.loads(compared[-1].read_text())["rows"]
        made["pictures/beside-kube-scheduler.svg"] = picture(beside_kube_scheduler(rows))
    return made


def by_nodes(rows: Sequence[Row]) -> list[Panel]:
    return [
        Lines(title="CPU of a pod, ms", x="nodes", lines=_of_processes(rows, "nodes", "cpu_milliseconds", SERVICES)),
        Lines(title="pods bound per second", x="nodes", lines={"": _points(rows, "nodes", _rate)}),
    ]


def by_waiting(rows: Sequence[Row]) -> list[Panel]:
    memory = _of_processes(rows, "waiting", "peak_mebibytes", ("watcher",))
    return [
        Lines(title="pods bound per second", x="waiting pods", lines={"": _points(rows, "waiting", _rate)}),
        Lines(title="memory of the watcher, MiB", x="waiting pods", lines=memory, goal=(400 / MIB, "goal: 400 MB")),
    ]


def by_bound(rows: Sequence[Row]) -> list[Panel]:
    memory = _of_processes(rows, "bound", "peak_mebibytes", SERVICES)
    first = {"": _points(rows, "bound", lambda row: row["to_first_seconds"])}
    return [
        Lines(title="memory, MiB", x="bound pods", lines=memory, goal=(300 / MIB, "goal: 300 MB"), even=True),
        Lines(title="from the start to the first Binding, s", x="bound pods", lines=first, even=True),
    ]


def by_scorers(rows: Sequence[Row]) -> list[Panel]:
    measured = _points(rows, "scorers", _rate)
    in_proportion = [(count, measured[0][1] * count / measured[0][0]) for count, _ in measured]
    lines = {"measured": measured, "in proportion to the first": in_proportion}
    return [Lines(title="pods bound per second, 20 ms a ranking", x="scorers", lines=lines, even=True)]


def by_classes(rows: Sequence[Row]) -> list[Panel]:
    def over(figure: Callable[[Row], float]) -> Mapping[str, Points]:
        return {
            f"{nodes:,} nodes": _points([row for row in rows if row["nodes"] == nodes], "classes", figure)
            for nodes in sorted({row["nodes"] for row in rows})
        }

    return [
        Lines(title="CPU of a cycle, µs", x="classes in turn", lines=over(lambda row: row["mean_microseconds"])),
        Lines(title="memory of the caches, MiB", x="classes in turn", lines=over(lambda row: row["added_mebibytes"])),
    ]


def by_stage(rows: Sequence[Row]) -> list[Panel]:
    groups = {}
    for nodes, scorers in sorted({(row["nodes"], row["scorers"]) for row in rows}):
        mine = [row["cpu_milliseconds"] for row in rows if (row["nodes"], row["scorers"]) == (nodes, scorers)]
        name = f"{nodes:,} nodes, {scorers} scorer{'s' * (scorers > 1)}"
        groups[name] = [
            statistics.median(sum(stage.get(process, 0.0) for stage in run.values()) for run in mine)
            for process in ("watcher", "scorer", "binder", "nats-server")
        ]
    return [
        Bars(title="CPU of a pod in full streams, ms", names=("watcher", "scorers", "binder", "NATS"), groups=groups)
    ]


def beside_kube_scheduler(rows: Sequence[Row]) -> list[Panel]:
    """Of `bench.comparison`: the rates of drains, and the CPU of a pod."""

    def groups(unit: str) -> Mapping[str, Sequence[float]]:
        return {
            row["what"].replace(unit, "").strip(", "): [float(row["kube_scheduler"]), float(row["berth"])]
            for row in rows
            if unit in row["what"] and row["kube_scheduler"] != "-"
        }

    return [
        Bars(title="pods bound per second (more is better)", names=(PEER, OURS), groups=groups("bound/s")),
        Bars(title="CPU of a pod, ms (less is better)", names=(PEER, OURS), groups=groups("CPU ms a pod")),
    ]


PLOTS: Final[Mapping[str, Callable[[Sequence[Row]], list[Panel]]]] = {
    "nodes": by_nodes,
    "waiting": by_waiting,
    "bound": by_bound,
    "scorers": by_scorers,
    "classes": by_classes,
    "stages": by_stage,
}
"""By the name of the file with the figures."""


def _rate(row: Row) -> float:
    return row["bound_per_second"]


def _of_processes(rows: Sequence[Row], over: str, figure: str, names: Iterable[str]) -> Mapping[str, Points]:
    return {name.removesuffix("-1"): _points(rows, over, lambda row, name=name: row[figure][name]) for name in names}


def _points(rows: Iterable[Row], over: str, figure: Callable[[Row], float]) -> Points:
    """The medians of what was measured several times."""
    found: dict[float, list[float]] = {}
    for row in rows:
        found.setdefault(row[over], []).append(figure(row))
    return [(x, statistics.median(found[x])) for x in sorted(found)]


def picture(panels: Sequence[Panel]) -> str:
    """Panels side by side."""
    width = WIDTH * len(panels)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {HEIGHT}" width="{width}" height="{HEIGHT}">',
        f"<style>{STYLE}</style>",
        f'<rect class="paper" width="{width}" height="{HEIGHT}"/>',
    ]
    for number, panel in enumerate(panels):
        parts.append(f'<g transform="translate({number * WIDTH} 0)">')
        parts += _lines(panel) if isinstance(panel, Lines) else _bars(panel)
        parts.append("</g>")
    return "\n".join([*parts, "</svg>"]) + "\n"


def _lines(panel: Lines) -> Iterator[str]:
    every = [point for points in panel.lines.values() for point in points]
    top = _top([y for _, y in every] + ([panel.goal[0]] if panel.goal else []))
    xs = sorted({x for x, _ in every})
    scale: Callable[[float], float] = float if panel.even else math.log10
    low, high = scale(xs[0]), scale(xs[-1])

    def at(x: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * ((scale(x) - low) / (high - low) if high > low else 0.5)

    yield from _frame(panel.title, top)
    yield from _legend([name for name in panel.lines if name])
    shown = -math.inf
    for x in xs:
        if at(x) - shown >= 48:  # the width of a number
            yield _text(at(x), HEIGHT - BOTTOM + 18, _number(x))
            shown = at(x)
    yield _text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8, panel.x)
    if panel.goal:
        y, words = _height(panel.goal[0], top), panel.goal[1]
        yield f'<line class="goal" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield _text(LEFT + 4, y - 5, words, "start")
    for colour, points in zip(COLOURS, panel.lines.values(), strict=False):
        path = " ".join(f"{at(x):.1f},{_height(y, top):.1f}" for x, y in points)
        yield f'<polyline fill="none" stroke="{colour}" stroke-width="2" points="{path}"/>'
        for x, y in points:
            yield f'<circle fill="{colour}" cx="{at(x):.1f}" cy="{_height(y, top):.1f}" r="3"/>'


def _bars(panel: Bars) -> Iterator[str]:
    top = _top([value for values in panel.groups.values() for value in values])
    yield from _frame(panel.title, top)
    yield from _legend(panel.names)
    group = (WIDTH - LEFT - RIGHT) / len(panel.groups)
    bar = group * 0.8 / len(panel.names)
    for place, (name, values) in enumerate(panel.groups.items()):
        start = LEFT + group * (place + 0.1)
        for number, (value, colour) in enumerate(zip(values, COLOURS, strict=False)):
            x, y = start + bar * number, _height(value, top)
            yield (
                f'<rect fill="{colour}" x="{x + 1:.1f}" y="{y:.1f}" width="{bar - 2:.1f}" '
                f'height="{HEIGHT - BOTTOM - y:.1f}"/>'
            )
            yield _text(x + bar / 2, y - 4, _number(value))
        for line, words in enumerate(_wrapped(name, int(group / 6))):
            yield _text(start + group * 0.4, HEIGHT - BOTTOM + 16 + 14 * line, words)


def _frame(title: str, top: float) -> Iterator[str]:
    yield _text(LEFT, 22, title, "start", "title")
    step = _step(top)
    for number in range(round(top / step) + 1):
        y = _height(number * step, top)
        yield f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield _text(LEFT - 6, y + 4, _number(number * step), "end")


def _legend(names: Iterable[str]) -> Iterator[str]:
    x = LEFT
    for name, colour in zip(names, COLOURS, strict=False):
        yield f'<rect fill="{colour}" x="{x}" y="34" width="10" height="10"/>'
        yield _text(x + 15, 43, name, "start")
        x += 30 + 7 * len(name)


def _text(x: float, y: float, words: str, anchor: str = "middle", kind: str = "") -> str:
    styled = f' class="{kind}"' if kind else ""
    return f'<text{styled} x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'


def _wrapped(words: str, width: int) -> list[str]:
    lines = [""]
    for word in words.split():
        if lines[-1] and len(lines[-1]) + len(word) >= width:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return lines


def _height(value: float, top: float) -> float:
    return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * value / top


def _top(values: Iterable[float]) -> float:
    """The end of the axis: the next mark above all values."""
    highest = max(values) * 1.08
    step = _step(highest)
    return math.ceil(highest / step) * step


def _step(top: float) -> float:
    """Between two marks: 1, 2 or 5 times a power of ten, so that there are three to seven."""
    power = 10.0 ** math.floor(math.log10(top))
    return next(power * each for each in (0.2, 0.5, 1, 2) if top / (power * each) <= 7)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}".rstrip("0").rstrip(".")
