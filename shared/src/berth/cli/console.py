"""How the command speaks: lines and tables for people, JSON for machines, errors on one line."""

from __future__ import annotations

import sys
from typing import Final

from rich.console import Console

out: Final = Console(highlight=False, soft_wrap=True)
"""What was asked for."""
err: Final = Console(stderr=True, highlight=False, soft_wrap=True)
"""What a person should know besides."""


def say(line: str) -> None:
    """One plain line on standard output, at once: whoever waits for it may be a program."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def note(line: str) -> None:
    """One line about how things go, on standard error."""
    sys.stderr.write(f"berth: {line}\n")
    sys.stderr.flush()
