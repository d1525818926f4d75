"""How the command speaks: lines and tables for people, JSON for machines, errors on one line."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Final

import msgspec
from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

WIDE: Final = 240
"""Columns that a table may take where no terminal cuts it: long names stay whole for ``grep``."""


def say(line: str) -> None:
    """One plain line on standard output, at once: whoever waits for it may be a program."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def note(line: str) -> None:
    """One line about how things go, on standard error."""
    sys.stderr.write(f"berth: {line}\n")
    sys.stderr.flush()


def say_json(value: object, *, indent: int = 2) -> None:
    """One JSON document; without an indent on one line, for what goes on."""
    data = msgspec.json.encode(value)
    say((msgspec.json.format(data, indent=indent) if indent else data).decode())


def page() -> Console:
    """For tables and sentences: wrapped at the terminal's width, and not at all where there is no terminal."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=WIDE)


def show(*parts: RenderableType) -> None:
    """Print what was asked for, a part below the other."""
    console = page()
    if console.is_terminal:
        _print(console, parts)
        return
    with console.capture() as captured:
        _print(console, parts)
    for line in captured.get().splitlines():
        say(line.rstrip())  # a terminal's cells that are only filled up mean nothing to a program


def _print(console: Console, parts: Iterable[RenderableType]) -> None:
    for part in parts:
        console.print(part, markup=False)


def columns(*names: str, numbers: tuple[str, ...] = ()) -> Table:
    """A table without lines; columns that hold numbers stand to the right."""
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    for name in names:
        table.add_column(name, justify="right" if name in numbers else "left", overflow="fold")
    return table


def plain(text: str, style: str = "") -> Text:
    """Text that is shown as it is: what comes from elsewhere may look like markup."""
    return Text(text, style=style)


def below(text: str, style: str = "") -> Padding:
    """Text that belongs to the line above it, also where it is wrapped."""
    return Padding(plain(text, style), (0, 0, 0, 2))
