"""Output of commands: lines and tables for people, JSON for programs; formats of names, times and amounts.

Results go to standard output, progress and errors to standard error. Control characters are escaped, because names and
messages come from others (:mod:`berth.safetext`).
"""

from __future__ import annotations

import io
import math
import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, Self

import msgspec
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement, measure_renderables
from rich.padding import Padding
from rich.segment import Segment
from rich.table import Column, Table
from rich.text import Text

from berth.errors import TemporaryError
from berth.safetext import in_json, lines, one_line, without_passwords

# Width of a table without a terminal, in columns: long names stay whole for ``grep``.
WIDE: Final = 240


def print_line(line: str) -> None:
    print_text(one_line(line))


def print_text(text: str) -> None:
    """Print lines on standard output and flush, because a program may wait for them."""
    sys.stdout.write(f"{lines(text)}\n")
    sys.stdout.flush()


def note(line: str, *, by: str = "berth") -> None:
    with suppress(OSError):  # a closed terminal must not keep a command from ending normally
        sys.stderr.write(f"{by}: {without_passwords(one_line(line))}\n")
        sys.stderr.flush()


class OutputError(TemporaryError):
    """Standard output cannot be written, for example on a full disk."""


class ReaderGoneError(Exception):
    """The reader of standard output has ended, as ``head`` does after its last line."""


class StandardOutput(io.TextIOWrapper):
    """Standard output with errors of its own types. After the first error, all output is dropped."""

    @classmethod
    def of(cls, stream: io.TextIOWrapper) -> Self:
        form = {"encoding": stream.encoding, "errors": stream.errors}
        line_buffering, write_through = bool(stream.line_buffering), bool(stream.write_through)
        return cls(stream.detach(), **form, line_buffering=line_buffering, write_through=write_through)

    def write(self, text: str, /) -> int:
        if text == "":  # the parser of flags probes it this way and swallows an error
            return 0
        with self._checked():
            return super().write(text)

    def flush(self) -> None:
        with self._checked():
            super().flush()

    @contextmanager
    def _checked(self) -> Iterator[None]:
        try:
            yield
        except OSError as exc:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.fileno())
            os.close(nowhere)
            if isinstance(exc, BrokenPipeError):
                raise ReaderGoneError from exc
            raise OutputError(f"writing to standard output: {exc.strerror or exc}") from exc


def print_json(value: object, *, indent: int = 2) -> None:
    """One JSON document; without an indent, on one line, for a stream of documents."""
    data = msgspec.json.encode(value)
    print_text(in_json((msgspec.json.format(data, indent=indent) if indent else data).decode()))


def print_yaml(value: object, *, one_of_many: bool = False) -> None:
    """One YAML document with the values of its JSON form; one of many starts with a document marker."""
    import yaml  # noqa: PLC0415 - most commands print none

    from berth.api.config.yamlreader import YamlDumper  # noqa: PLC0415 - as well

    # Through JSON, so that times and other types are written in the same form.
    plain_value = msgspec.json.decode(in_json(msgspec.json.encode(value).decode()))
    text = yaml.dump(plain_value, Dumper=YamlDumper, sort_keys=False, allow_unicode=True, width=WIDE)
    print_text(f"---\n{text.rstrip()}" if one_of_many else text.rstrip())


def open_console() -> Console:
    """A console that wraps at the terminal's width; without a terminal it does not wrap."""
    console = _SafeConsole(highlight=False)
    return console if console.is_terminal else _SafeConsole(highlight=False, width=WIDE)


class _SafeConsole(Console):
    """A console that escapes control characters in text, but keeps its own control codes."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else lines(text), style and style.update_link(None), control)


def print_rich(*parts: RenderableType) -> None:
    console = open_console()
    if console.is_terminal:
        _print(console, parts)
        return
    with console.capture() as captured:
        _print(console, parts)
    for line in captured.get().split("\n")[:-1]:
        print_line(line.rstrip())  # without the padding of table cells


def _print(console: Console, parts: Iterable[RenderableType]) -> None:
    for part in parts:
        console.print(plain(part) if isinstance(part, str) else part)


_GAP: Final = 2  # spaces between two columns


class FittingTable(Table):
    """A table that cuts names only if the longest words of all columns do not fit.

    Each column shrinks to its longest word; in a narrow terminal gaps shrink and units wrap below their numbers first.
    """

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for gap, parts_numbers in ((_GAP, False), (1, True)):
            room = options.max_width - gap * (len(self.columns) - 1)
            measured = [_measured(console, options, column, parts_numbers=parts_numbers) for column in self.columns]
            if sum(each.minimum for each in measured) <= room:
                break
        self.padding = (0, gap, 0, 0)
        for column, width in zip(self.columns, fitting_widths(measured, room), strict=True):
            column.width = width
        # Rich counts a gap after the last column, but does not print it.
        yield from super().__rich_console__(console, options.update_width(options.max_width + gap))


@dataclass(frozen=True, slots=True)
class WideOrNarrow:
    """A table if its lines fit the terminal whole, else another form of it."""

    wide: Table
    narrow: RenderableType

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        columns = self.wide.columns
        widths = (_measured(console, options, column, parts_numbers=False).maximum for column in columns)
        yield self.wide if sum(widths) + len(columns) - 1 <= options.max_width else self.narrow


def _measured(console: Console, options: ConsoleOptions, column: Column, *, parts_numbers: bool) -> Measurement:
    found = measure_renderables(console, options, (column.header, *column.cells))
    keeps_lines = column.justify == "right" and not parts_numbers
    return Measurement(found.maximum, found.maximum) if keeps_lines else found


def fitting_widths(measured: Sequence[Measurement], room: int) -> list[int]:
    """The widths of columns in this room: the widest lines wrap first, words only if they do not all fit."""
    if sum(each.minimum for each in measured) > room:
        measured = [Measurement(1, each.minimum) for each in measured]
    level = max((each.maximum for each in measured), default=0)
    while sum(widths := [max(each.minimum, min(each.maximum, level)) for each in measured]) > room and level > 1:
        level -= 1
    return widths


def new_table(*names: str, numbers: tuple[str, ...] = ()) -> Table:
    """A table without lines; numbers are right-aligned."""
    table = FittingTable(box=None, padding=(0, _GAP, 0, 0), pad_edge=False, header_style="bold")
    for name in names:
        table.add_column(stacked(name.split("\n")), justify="right" if name in numbers else "left", overflow="fold")
    return table


MOST_ROWS: Final = 10  # nodes or pods in a table, unless --all is given


def and_more(left_out: int, *, is_complete: bool = True) -> list[Text]:
    """The line after a table from which rows are left out. ``is_complete``: there are no others that were not read."""
    number = str(left_out) if is_complete else f"more than {left_out}"
    return [plain(f"and {number} more (--all)")] if left_out > 0 else []


def plain(text: str, style: str = "") -> Text:
    """A text that is printed unchanged, even if it looks like markup."""
    return Text(one_line(text), style=style)


def stacked(parts: Iterable[str]) -> Text:
    """One cell with a line for each part."""
    return Text("\n".join(map(one_line, parts)))


def indented(text: str, style: str = "") -> Padding:
    return Padding(plain(text, style), (0, 0, 0, 2))


# Age of the oldest watermark up to which a mirror is current: for a kind without changes, the watch sends a bookmark
# only every 20 to 30 s.
CURRENT_WITHIN: Final = timedelta(seconds=35)

_UID_SHOWN: Final = 4
_AMOUNTS: Final = ("B", "kB", "MB", "GB", "TB", "PB")
_DIGITS: Final = re.compile(r"(\d+)")


def natural(name: str) -> list[tuple[int, str]]:
    """A sort key: ``node-9`` comes before ``node-10``."""
    return [(int(part), "") if part.isdigit() else (0, part) for part in _DIGITS.split(name)]


def short_attempt(attempt: str) -> str:
    """An attempt with a shortened uid: ``0f8f...1.1``."""
    uid, *rest = attempt.rsplit(".", 2)
    return f"{uid[:_UID_SHOWN]}...{'.'.join(rest)}" if len(uid) > 2 * _UID_SHOWN else attempt


def duration(seconds: float) -> str:
    """A duration in a suitable unit: ``3.1 ms``, ``4.2 s``, ``2 min 5 s``, ``1 h 3 min``."""
    if seconds < 1:
        return f"{seconds * 1000:.1f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def ago(then: datetime, now: datetime) -> str:
    """The time since then; 0 if clocks differ."""
    return f"{duration(max(0.0, (now - then).total_seconds()))} ago"


def is_current(age: float) -> bool:
    """Whether a mirror is current; ``age``: seconds since it was confirmed."""
    return age <= CURRENT_WITHIN.total_seconds()


def clock(at: datetime) -> str:
    """The local time of day, to the millisecond."""
    return at.astimezone().strftime("%H:%M:%S.%f")[:-3]


def per_second(amount: float | None) -> str:
    """Bytes per second: ``12.3 MB/s``; empty if unknown."""
    return "" if amount is None else f"{_scaled(amount)}/s"


def amount_of_bytes(amount: float) -> str:
    return _scaled(amount)


def _scaled(amount: float) -> str:
    step = min(len(_AMOUNTS) - 1, int(math.log(amount, 1000))) if amount >= 1 else 0
    value = amount / 1000**step
    return f"{value:.1f} {_AMOUNTS[step]}" if step and value < 10 else f"{value:.0f} {_AMOUNTS[step]}"
