"""What a Prometheus server answers, and every way in which it does not: one error of ours, with its cause.

prometheus-api-client lets through whatever ``requests`` and Python raise on a bad answer; here, and nowhere else, that
becomes a :class:`PrometheusError`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import Any, Final, Literal

import msgspec
import requests
from prometheus_api_client.exceptions import PrometheusApiClientException

from berth.api.errors import TemporaryError

Cause = Literal["unreachable", "slow", "refused", "unavailable", "nonsense"]
_SHOWN: Final = 200
"""Characters of an answer that an error quotes."""


class PrometheusError(TemporaryError):
    """No usable answer. ``cause`` is its kind, for counting; the last samples stay as they are."""

    def __init__(self, message: str, *, cause: Cause) -> None:
        super().__init__(message)
        self.cause: Cause = cause


class Row(msgspec.Struct, frozen=True):
    """One element of an instant vector: labels, and (time of the evaluation, value as text)."""

    metric: dict[str, str]
    value: tuple[float, str]


class AnswerTooSlowError(requests.Timeout):
    """The answer as a whole took longer than it may, though every piece of it came in time."""


class AnswerTooLargeError(requests.RequestException):
    """More bytes than any answer to our questions has."""


def ask(query: Callable[[], Any]) -> Sequence[Row]:
    """Call the client; the rows of the instant vector that it answers with.

    Raises:
        PrometheusError: anything else came, or nothing.
    """
    try:
        return _rows(query())
    except PrometheusError:
        raise
    except requests.exceptions.JSONDecodeError as exc:
        raise PrometheusError(f"want JSON, got something else ({exc})", cause="nonsense") from exc
    except requests.exceptions.ContentDecodingError as exc:
        raise PrometheusError(f"the answer cannot be unpacked: {_shown(exc)}", cause="nonsense") from exc
    except requests.exceptions.ChunkedEncodingError as exc:
        raise PrometheusError("the answer was cut off", cause="unavailable") from exc
    except requests.Timeout as exc:
        raise PrometheusError(f"no answer in time: {_shown(exc)}", cause="slow") from exc
    except requests.ConnectionError as exc:
        raise PrometheusError(f"not reachable: {_root(exc)}", cause="unreachable") from exc
    except requests.RequestException as exc:
        raise PrometheusError(f"{type(exc).__name__}: {_shown(exc)}", cause="nonsense") from exc
    except PrometheusApiClientException as exc:
        raise _refusal(str(exc)) from exc
    except (KeyError, TypeError, AttributeError, ValueError) as exc:
        raise PrometheusError(
            f"want data.result of an instant vector, got another shape ({type(exc).__name__}: {_shown(exc)})",
            cause="nonsense",
        ) from exc


def _rows(result: Any) -> Sequence[Row]:
    if result is None:
        raise PrometheusError("want an instant vector, got null", cause="nonsense")
    try:
        return msgspec.convert(result, list[Row])
    except msgspec.ValidationError as exc:
        raise PrometheusError(f"want an instant vector: {exc}", cause="nonsense") from exc


def _refusal(text: str) -> PrometheusError:
    """The client's only own exception: an HTTP status that is not 200, in words."""
    status = next((int(word) for word in text.split() if word.isdigit()), 0)
    cause: Cause = "refused" if status < HTTPStatus.INTERNAL_SERVER_ERROR else "unavailable"
    return PrometheusError(_shown(text), cause=cause)


def _root(error: BaseException) -> str:
    """The innermost reason: the layers of the client quote each other at length."""
    while (inner := error.__cause__ or error.__context__) is not None:
        error = inner
    return _shown(error)


def _shown(error: object) -> str:
    text = " ".join(str(error).split())
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."
