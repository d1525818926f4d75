"""Exit codes of a process (docs/design.md, 7)."""

from __future__ import annotations

from enum import IntEnum

from berth.api.errors import BerthError, TemporaryError
from berth.kube.errors import KubeconfigError


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
    """What reads its output has ended. It is the code that a shell gives to a program that SIGPIPE has ended."""


class UsageError(BerthError):
    """Invalid input from the user; the text names what to change."""


def exit_for(error: BaseException) -> Exit:
    """The exit code for an error."""
    if isinstance(error, UsageError | KubeconfigError):
        return Exit.USAGE
    if isinstance(error, TemporaryError):
        return Exit.UNREACHABLE
    return Exit.NO
