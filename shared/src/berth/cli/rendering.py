"""How the command speaks: lines and tables for people, JSON for machines, errors on one line.

How identities, times and amounts are shown to people: short, and the same everywhere.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterable
from datetime import datetime, timedelta
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


CONFIRMED_WITHIN: Final = timedelta(seconds=35)
"""How long ago the quietest kind may have been confirmed where all is well: what changes is told at once, and where
nothing does, every watch says so once in 20 to 30 s; then that takes its way."""

_UUID: Final = "[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"

_IDENTITY: Final = re.compile(f"(?P<host>.+)_{_UUID}(?:_(?P<name>.+))?")

_UID_SHOWN: Final = 4

_MINUTE: Final = 60

_HOUR: Final = 3600

_TEN: Final = 10

_AMOUNTS: Final = ("B", "kB", "MB", "GB", "TB", "PB")

_THOUSAND: Final = 1000


def short_identity(identity: str) -> str:
    """Who a process is, without what only makes it unique: ``scorer-2``, or the host that it runs on."""
    found = _IDENTITY.fullmatch(identity)
    return (found["name"] or found["host"]) if found else identity


def short_attempt(attempt: str) -> str:
    """An attempt with its uid cut: ``0f8f...1.1``."""
    uid, *rest = attempt.rsplit(".", 2)
    return f"{uid[:_UID_SHOWN]}...{'.'.join(rest)}" if len(uid) > 2 * _UID_SHOWN else attempt


def duration(seconds: float) -> str:
    """A length of time with the unit that suits it: ``3.1 ms``, ``4.2 s``, ``2 min 5 s``, ``1 h 3 min``."""
    if seconds < 1:
        return f"{seconds * 1000:.1f} ms"
    if seconds < _MINUTE:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < _HOUR:
        return f"{whole // _MINUTE} min {whole % _MINUTE} s"
    return f"{whole // _HOUR} h {whole % _HOUR // _MINUTE} min"


def ago(then: datetime, now: datetime) -> str:
    """How long ago something was; what clocks disagree about is now."""
    return f"{duration(max(0.0, (now - then).total_seconds()))} ago"


def is_current(age: float) -> bool:
    """Whether a view that was last confirmed so many seconds ago may well be the newest state."""
    return age <= CONFIRMED_WITHIN.total_seconds()


def clock(at: datetime) -> str:
    """The time of day where the reader is, to the millisecond."""
    return at.astimezone().strftime("%H:%M:%S.%f")[:-3]


def per_second(amount: float | None) -> str:
    """Bytes per second: ``12.3 MB/s``; nothing for what is not known."""
    return "" if amount is None else f"{_scaled(amount)}/s"


def amount_of_bytes(amount: float) -> str:
    """Bytes: ``1.4 GB``."""
    return _scaled(amount)


def _scaled(amount: float) -> str:
    step = min(len(_AMOUNTS) - 1, int(math.log(amount, _THOUSAND))) if amount >= 1 else 0
    value = amount / _THOUSAND**step
    return f"{value:.1f} {_AMOUNTS[step]}" if step and value < _TEN else f"{value:.0f} {_AMOUNTS[step]}"
