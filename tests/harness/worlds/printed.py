"""Printed tables and sentences as lines of text."""

from __future__ import annotations

import fcntl
import io
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from collections.abc import Iterable, Mapping, Sequence

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


def on_terminal(words: Sequence[object], columns: int, environment: Mapping[str, str] | None = None) -> list[str]:
    """The lines that ``berth`` prints on a terminal of that width, as it ends with 0; without colours and padding."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    unset = {"COLUMNS", "LINES", "FORCE_COLOR", "TTY_COMPATIBLE"}
    inherited = {name: value for name, value in (environment or os.environ).items() if name not in unset}
    command = [sys.executable, "-m", "berth_cli", *map(str, words)]
    with subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=subprocess.STDOUT, env={**inherited, "TERM": "xterm"}
    ) as process:
        os.close(theirs)
        text = "".join(_read(ours)).replace("\r\n", "\n")
    os.close(ours)
    assert process.returncode == 0, text
    return [line.rstrip() for line in re.sub(r"\x1b\[[0-9;]*m", "", text).splitlines()]


def _read(terminal: int) -> Iterable[str]:
    while True:
        try:
            data = os.read(terminal, 65_536)
        except OSError:  # Linux's end of a terminal
            return
        if not data:
            return
        yield data.decode()
