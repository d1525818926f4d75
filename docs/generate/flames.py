"""The flame graphs of docs/performance.md (SVG), from sampled stacks in docs/performance.

    py-spy record -p PID -r 250 -d 20 --function -f raw -o binder.raw
    .venv/bin/python docs/generate/flames.py < binder.raw > docs/performance/binder.folded

keeps of the samples what a graph shows: a line for each stack, without what is below three thousandths. Callers are
above what they call, the widest first; a box is as wide as its share of the samples.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Final

WIDTH: Final = 1200
ROW: Final = 18
HEAD: Final = 56
LETTER: Final = 6.3
"""The mean width of a letter."""
LEAST: Final = 0.003
"""Of all samples, what a box has that is kept: on a screen it is 4 pixels wide."""
STYLE: Final = """
text { font: 11px system-ui, sans-serif; fill: #1f2328; }
.title { font-weight: 600; font-size: 14px; }
.paper { fill: #ffffff; }
rect { stroke: #ffffff; stroke-width: 0.5; }
.service { fill: #93c5fd; } .shared { fill: #86efac; } .plugins { fill: #fdba74; } .library { fill: #d4d4d8; }
@media (prefers-color-scheme: dark) {
  .title, .legend { fill: #f0f6fc; }
  .paper { fill: #0d1117; }
  rect { stroke: #0d1117; }
}
"""
KINDS: Final[Mapping[str, str]] = {
    "service": "the service",
    "shared": "berth's other packages",
    "plugins": "plugins and framework",
    "library": "Python and libraries",
}
FRAME: Final = re.compile(r"(?P<function>.*) \((?P<file>[^():]+)(:\d+)?\)$")
LOOP: Final = "Runner.run (asyncio/runners.py)"
"""What is above it says how the process was started; other threads, which watch over it, have no such frame."""
IN_LOOP: Final = "event loop: sockets, timers (uvloop)"


@dataclass(slots=True)
class Box:
    """A function in its place: the samples in which it was on the stack, and what it called."""

    samples: int = 0
    inner: dict[str, Box] = field(default_factory=dict)


def files(docs: Path) -> Mapping[str, str]:
    """The text of each graph whose stacks are there, by its path below docs/."""
    return {
        f"pictures/flame-{path.stem}.svg": graph(path.stem, tree(path.read_text().splitlines()))
        for path in sorted((docs / "performance").glob("*.folded"))
    }


def tree(lines: Iterable[str]) -> Box:
    """Stacks, each with its samples, as one tree."""
    root = Box()
    for line in lines:
        stack, _, count = line.rpartition(" ")
        samples, box = int(count), root
        root.samples += samples
        for frame in stack.split(";"):
            box = box.inner.setdefault(frame, Box())
            box.samples += samples
    return root


def folded(raw: Iterable[str]) -> Iterator[str]:
    """What py-spy has written, without lines of code, other threads and boxes too narrow to be seen."""
    root = Box()
    for line in raw:
        stack, _, count = line.strip().rpartition(" ")
        frames = [_named(frame) for frame in stack.split(";")]
        if LOOP not in frames:
            continue
        frames = frames[frames.index(LOOP) + 1 :] or [IN_LOOP]
        samples, box = int(count), root
        root.samples += samples
        for frame in frames:
            box = box.inner.setdefault(frame, Box())
            box.samples += samples
    yield from _stacks(root, (), root.samples * LEAST)


def _named(frame: str) -> str:
    """The function and its file, from the package on."""
    found = FRAME.match(frame)
    if found is None:
        return frame
    path = re.sub(r".*(site-packages|src|lib/python3\.\d+)/", "", found["file"])
    return f"{found['function']} ({path})"


def _stacks(box: Box, above: tuple[str, ...], least: float) -> Iterator[str]:
    kept = {name: inner for name, inner in box.inner.items() if inner.samples >= least}
    own = box.samples - sum(inner.samples for inner in kept.values())
    if above and own > 0:
        yield f"{';'.join(above)} {own}"
    for name, inner in sorted(kept.items()):
        yield from _stacks(inner, (*above, name), least)


def graph(service: str, root: Box) -> str:
    """The graph of one service."""
    boxes = list(_boxes(root, 0.0, 0, root.samples))
    height = HEAD + ROW * (1 + max(depth for depth, *_ in boxes))
    title = f"{service}: {root.samples:,} samples in a drain, callers above what they call"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}">',
        f"<style>{STYLE}</style>",
        f'<rect class="paper" width="{WIDTH}" height="{height}"/>',
        f'<text class="title" x="4" y="18">{escape(title)}</text>',
    ]
    x = 4.0
    for kind, words in KINDS.items():
        parts.append(f'<rect class="{kind}" x="{x:.0f}" y="28" width="12" height="12"/>')
        parts.append(f'<text class="legend" x="{x + 17:.0f}" y="38">{escape(words)}</text>')
        x += 40 + LETTER * len(words)
    for depth, left, width, name, samples in boxes:
        y, share = HEAD + ROW * depth, samples / root.samples
        parts.append(
            f'<g><title>{escape(name)}: {share:.1%}</title><rect class="{_kind(name, service)}" x="{left:.1f}" y="{y}" '
            f'width="{width:.1f}" height="{ROW - 1}"/>{_label(name, left, width, y)}</g>'
        )
    return "\n".join([*parts, "</svg>"]) + "\n"


def _boxes(box: Box, left: float, depth: int, total: int) -> Iterator[tuple[int, float, float, str, int]]:
    for name, inner in sorted(box.inner.items(), key=lambda item: -item[1].samples):
        width = WIDTH * inner.samples / total
        yield depth, left, width, name, inner.samples
        yield from _boxes(inner, left, depth + 1, total)
        left += width


def _label(name: str, left: float, width: float, y: int) -> str:
    function = name.partition(" (")[0]
    letters = int((width - 6) / LETTER)
    if letters < 3:  # less says nothing
        return ""
    words = name if len(name) <= letters else function if len(function) <= letters else function[: letters - 1] + "…"
    return f'<text x="{left + 3:.1f}" y="{y + 13}">{escape(words)}</text>'


def _kind(name: str, service: str) -> str:
    if f"berth_{service}" in name:
        return "service"
    if "berth/plugins" in name or "berth/framework" in name or "berth/cluster" in name:
        return "plugins"
    return "shared" if "(berth/" in name else "library"


if __name__ == "__main__":
    sys.stdout.writelines(f"{line}\n" for line in folded(sys.stdin))
