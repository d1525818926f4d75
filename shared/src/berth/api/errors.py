"""The errors that decide what happens to a message: it is tried again, or it becomes a dead letter."""

from __future__ import annotations

from datetime import timedelta


class BerthError(Exception):
    """Any error that berth raises on purpose. Its text is one line: what was done, the value, the cause."""


class TemporaryError(BerthError):
    """It may work later: the message is redelivered after ``retry_after``."""

    def __init__(self, message: str, *, retry_after: timedelta = timedelta(seconds=1)) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class PermanentError(BerthError):
    """It will never work: the message becomes a dead letter with this text as its reason."""


class DecodeError(PermanentError):
    """Bytes or text that are not what they should be."""
