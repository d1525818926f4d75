"""The picture of berth's main dashboard (SVG), from a run's answers to its panels' queries.

`python -m bench.dashboard` writes them. Grafana draws the same numbers in its own way: this is no screenshot.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from html import escape
from pathlib import Path
from typing import Any, Final, NamedTuple

from plots import COLOURS

COLUMN, UNIT, GAP = 50, 26, 8  # pixels of Grafana's grid
WIDTH: Final = 24 * COLUMN
LEGENDS: Final = 6
STEPS: Final = {"text": "#8b949e", "green": "#10a37f", "orange": "#f97316", "red": "#e5484d"}
STYLE: Final = """
text { font: 12px system-ui, sans-serif; fill: #1f2328; }
.title { font-weight: 600; font-size: 12px; }
.row { font-weight: 600; font-size: 14px; }
.small { font-size: 10px; fill: #59636e; }
.single { font-weight: 600; font-size: 30px; }
.paper { fill: #f4f6f8; }
.panel { fill: #ffffff; stroke: #d1d9e0; }
.grid { stroke: #e6eaef; }
@media (prefers-color-scheme: dark) {
  text { fill: #f0f6fc; }
  .small { fill: #9198a1; }
  .paper { fill: #0d1117; }
  .panel { fill: #161b22; stroke: #3d444d; }
  .grid { stroke: #2b3138; }
}
"""
Panel = Mapping[str, Any]


class Box(NamedTuple):
    x: float
    y: float
    width: float
    height: float


def files(docs: Path) -> Mapping[str, str]:
    """The picture, if a run's answers are there, by its path below docs/."""
    answers = docs / "performance" / "dashboard.json"
    return {"pictures/dashboard.svg": picture(json.loads(answers.read_text()))} if answers.exists() else {}


def picture(run: Mapping[str, Any]) -> str:
    height = max((each["place"]["y"] + each["place"]["h"]) * UNIT for each in run["panels"]) + GAP
    drawn = "".join(line for panel in run["panels"] for line in _panel(panel, run))
    view = f'viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}"'
    label = escape(f"The dashboard of berth over {run['seconds']} s of a run")
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {view} role="img" aria-label="{label}">\n<style>{STYLE}</style>\n'
        f'<rect class="paper" width="{WIDTH}" height="{height}"/>\n{drawn}</svg>\n'
    )


def _panel(panel: Panel, run: Mapping[str, Any]) -> Iterator[str]:
    place = panel["place"]
    x, y = place["x"] * COLUMN + GAP / 2, place["y"] * UNIT + GAP / 2
    width, height = place["w"] * COLUMN - GAP, place["h"] * UNIT - GAP
    if panel["type"] == "row":
        yield _text(x + 4, y + 14, panel["title"], "row")
        return
    yield f'<rect class="panel" x="{x}" y="{y}" width="{width}" height="{height}" rx="4"/>\n'
    yield _text(x + 10, y + 18, panel["title"], "title")
    if panel["type"] == "stat":
        yield from _single(panel, x, y, height)
    else:
        yield from _graph(panel, Box(x + 46, y + 30, width - 58, height - 68), max(1, run["seconds"] // run["step"]))


def _single(panel: Panel, x: float, y: float, height: float) -> Iterator[str]:
    values = [value for line in panel["series"].values() for value in line if value is not None]
    last = values[-1] if values else None
    passed = [step["color"] for step in panel["steps"] if last is not None and last >= (step["value"] or 0)]
    colour = STEPS[passed[-1] if passed else "text"]
    words = "No data" if last is None else _amount(last, panel["unit"])
    is_plain = passed[-1:] in ([], ["text"])
    yield _text(x + 10, y + height - 16, words, "single", "" if is_plain else f' style="fill:{colour}"')


def _graph(panel: Panel, box: Box, steps: int) -> Iterator[str]:
    x, y, width, height = box
    lines = dict(sorted(panel["series"].items()))
    most = max((value for line in lines.values() for value in line if value is not None), default=0.0) or 1.0
    for part in (0.0, 0.5, 1.0):
        at = y + height * (1 - part)
        yield f'<line class="grid" x1="{x}" x2="{x + width}" y1="{at:.1f}" y2="{at:.1f}"/>\n'
        yield _text(x - 6, at + 3, _amount(most * part, panel["unit"]), "small", ' text-anchor="end"')
    for colour, line in zip(_colours(), lines.values(), strict=False):
        for part in _connected(line):
            points = " ".join(
                f"{x + width * at / steps:.1f},{y + height * (1 - value / most):.1f}" for at, value in part
            )
            yield f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.5"/>\n'
    across = 0.0
    for colour, legend in list(zip(_colours(), lines, strict=False))[:LEGENDS]:
        if across + 6.0 * len(legend) > width:
            break
        yield f'<rect x="{x + across - 36}" y="{y + height + 15}" width="8" height="8" fill="{colour}"/>\n'
        yield _text(x + across - 24, y + height + 23, legend, "small")
        across += 6.0 * len(legend) + 24


def _connected(line: list[float | None]) -> Iterator[list[tuple[int, float]]]:
    """The parts of a line between missing values."""
    part: list[tuple[int, float]] = []
    for at, value in [*enumerate(line), (len(line), None)]:
        if value is not None:
            part.append((at, value))
        elif part:
            yield part
            part = []


def _colours() -> Iterator[str]:
    while True:
        yield from COLOURS


def _amount(value: float, unit: str) -> str:
    if unit == "s":
        return f"{value * 1000:.3g} ms" if value < 1 else f"{value:.3g} s"
    if unit == "percentunit":
        return f"{value * 100:.3g} %"
    return f"{value:.3g} /s" if unit in {"cps", "reqps"} else f"{value:.3g}"


def _text(x: float, y: float, words: str, kind: str, more: str = "") -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}"{more}>{escape(words)}</text>\n'
