"""The errors that decide whether a message is redelivered or becomes a dead letter."""

from __future__ import annotations

import os


class BerthError(Exception):
    """An error raised by berth. Its text is one line: action, value, cause."""


class TemporaryError(BerthError):
    """A retry may succeed: the message is redelivered."""


class PermanentError(BerthError):
    """A retry cannot succeed: the message becomes a dead letter with this text as its reason."""


class DecodeError(PermanentError):
    """Bytes or text that cannot be decoded."""


def cause_of(exc: BaseException) -> str:
    """Why a connection failed: the system's text without number and address, else the error in one line."""
    if isinstance(exc, ConnectionError) and exc.errno:
        return os.strerror(exc.errno)
    return " ".join(str(exc).split()) or type(exc).__name__


def first_error(group: BaseException) -> BaseException:
    error = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
