"""What can go wrong between berth and the API server, apart from its answers: those are values."""

from __future__ import annotations

from datetime import timedelta

from berth.api.errors import BerthError, TemporaryError


class KubeconfigError(BerthError):
    """There is no usable way to an API server; the text is one sentence that says what to do."""


class ApiUnreachableError(TemporaryError):
    """The API server gave no answer. ``maybe_sent``: the request may have been carried out all the same."""

    def __init__(self, message: str, *, maybe_sent: bool, retry_after: timedelta = timedelta(seconds=1)) -> None:
        super().__init__(message, retry_after=retry_after)
        self.maybe_sent = maybe_sent


class ApiRefusedError(TemporaryError):
    """The API server answered with a status that the caller has no use for; the text quotes its words."""

    def __init__(self, message: str, *, status: int, retry_after: timedelta = timedelta(seconds=1)) -> None:
        super().__init__(message, retry_after=retry_after)
        self.status = status
