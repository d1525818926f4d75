"""Printed tables and sentences as lines of text."""

from __future__ import annotations

import io
from collections.abc import Iterable

from rich.console import Console, RenderableType


def printed(*parts: RenderableType, width: int = 100) -> list[str]:
    """The lines as a terminal of that width shows them, without padding."""
    console = Console(file=io.StringIO(), width=width, highlight=False, color_system=None)
    for part in parts:
        console.print(part, markup=False)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def words(lines: Iterable[str]) -> list[list[str]]:
    """The cells of a table's lines."""
    return [line.split() for line in lines]
