"""What a process shares with the one that started it: exit codes (docs/design.md, 7), standard streams, ready file."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from enum import IntEnum
from pathlib import Path

from berth.errors import BerthError, TemporaryError


class Exit(IntEnum):
    """The exit codes of every command and service."""

    DONE = 0
    NO = 1
    """The answer is no, or an error occurred; the last log line names it."""
    USAGE = 2
    """A flag, setting or file is invalid."""
    UNREACHABLE = 3
    """A server that it needs is not reachable."""
    READER_GONE = 141
    """The reader of the output has ended: a shell's code for a program ended by SIGPIPE."""


class UsageError(BerthError):
    """Invalid input from the user; the text names what to change."""


def exit_for(error: BaseException) -> Exit:
    if isinstance(error, UsageError):
        return Exit.USAGE
    if isinstance(error, TemporaryError):
        return Exit.UNREACHABLE
    return Exit.NO


def open_closed_streams() -> None:
    """Open /dev/null in place of each standard stream that was closed at the start: Python has ``None`` for it."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode, encoding="utf-8"))  # noqa: SIM115 - until the end of the process


class ReadyFileError(OSError):
    """The ready file cannot be written.

    Not a BerthError: those end a leadership, which is then tried again. This one ends the process, as its starter sees.
    """


def write_ready_file(path: Path) -> None:
    """Write it whole or not at all.

    Raises:
        ReadyFileError: it cannot be written, as on a full disk.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        draft.unlink(missing_ok=True)
        with draft.open("x", encoding="utf-8") as file:  # in a shared folder, somebody may have put a link there
            file.write("ready\n")
        draft.replace(path)
    except OSError as error:
        with suppress(OSError):
            draft.unlink(missing_ok=True)
        raise ReadyFileError(f"writing the ready file {str(path)!r}: {error.strerror}") from error
