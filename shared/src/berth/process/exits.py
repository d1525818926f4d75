"""What a process's exit code says (docs/design.md, 7)."""

from __future__ import annotations

from enum import IntEnum

from berth.api.errors import BerthError, TemporaryError
from berth.kube.errors import KubeconfigError


class Exit(IntEnum):
    """The codes of every command and service."""

    DONE = 0
    NO = 1
    """The answer is no, or it broke: the log's last line says what."""
    USAGE = 2
    """It was told something that cannot be used."""
    UNREACHABLE = 3
    """Something that it needs is not reachable."""


class UsageError(BerthError):
    """What the process was told cannot be used; the text says what to change."""


def exit_for(error: BaseException) -> Exit:
    """The code that an error ends with."""
    if isinstance(error, UsageError | KubeconfigError):
        return Exit.USAGE
    if isinstance(error, TemporaryError):
        return Exit.UNREACHABLE
    return Exit.NO
