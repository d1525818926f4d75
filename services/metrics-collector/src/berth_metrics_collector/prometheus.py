"""The Prometheus client, in a thread of its own: it blocks, and the service never waits longer than its time-out.

A thread that hangs (a name server without an answer, a response that trickles) is left alone and replaced together with
its session; as a daemon it does not keep the process from ending. Whatever ``requests`` and prometheus-api-client raise
on a bad response becomes a :class:`PrometheusError` with its cause, here and nowhere else.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
import requests
import requests.auth
from prometheus_api_client import PrometheusConnect
from prometheus_api_client.exceptions import PrometheusApiClientException
from urllib3.exceptions import DecodeError, HTTPError, ProtocolError, ReadTimeoutError
from urllib3.util.retry import Retry

from berth.api.errors import TemporaryError
from berth.process.logging import get_logger
from berth.tls import requests_adapter
from berth_metrics_collector.settings import PrometheusAccess

log = get_logger()
Cause = Literal["unreachable", "slow", "refused", "unavailable", "nonsense"]
TIMEOUT: Final = timedelta(seconds=10)
"""For one response as a whole: twenty times what the slowest query takes at 5,000 nodes, shorter than an interval."""
GRACE: Final = timedelta(seconds=2)
"""How much later the thread may return by itself before it is replaced."""
MAX_BYTES: Final = 64 * 1024 * 1024
"""Bytes of a response: 5,000 nodes with ten devices each are 7 MB."""
MAX_STUCK: Final = 4
"""Threads that may hang at once; with so many, no query is sent until one returns."""
_QUOTED: Final = 200
"""Characters of a response that an error quotes."""
_CHUNK: Final = 65_536
_MOST_CHARACTERS: Final = 65_536
"""Of a file with a token or headers."""
ANYBODY: Final = PrometheusAccess()
"""Without credentials."""


class PrometheusError(TemporaryError):
    """No usable response. ``cause`` is a label of the metric that counts rounds."""

    def __init__(self, message: str, *, cause: Cause) -> None:
        super().__init__(message)
        self.cause: Cause = cause


class SampleRow(msgspec.Struct, frozen=True):
    """One element of an instant vector: labels, and (time of the evaluation, value as text)."""

    metric: dict[str, str]
    value: tuple[float, str]


class Prometheus:
    """One server. Queries run one after the other."""

    def __init__(
        self,
        url: str,
        *,
        timeout: timedelta = TIMEOUT,
        grace: timedelta = GRACE,
        access: PrometheusAccess = ANYBODY,
    ) -> None:
        self.url = url
        self._access = access
        self._timeout = timeout.total_seconds()
        self._grace = grace.total_seconds()
        self._worker: _Worker | None = None
        self._stuck: list[_Worker] = []

    async def query(self, promql: str) -> Sequence[SampleRow]:
        """The rows of an instant query.

        Raises:
            PrometheusError: there was no usable response, for whatever reason.
        """
        worker = self._working()
        answer = worker.ask(promql)
        try:
            async with asyncio.timeout(self._timeout + self._grace):
                return await answer
        except TimeoutError:
            self._replace(worker)
            raise PrometheusError(f"asking {self.url}: no answer in time", cause="slow") from None
        except PrometheusError as exc:
            raise PrometheusError(f"asking {self.url}: {exc}", cause=exc.cause) from exc

    def close(self) -> None:
        """Let the thread end, without waiting for it."""
        if self._worker is not None:
            self._worker.end()

    def _working(self) -> _Worker:
        self._stuck = [worker for worker in self._stuck if worker.is_alive]
        if self._worker is None:
            if len(self._stuck) >= MAX_STUCK:
                raise PrometheusError(f"asking {self.url}: {MAX_STUCK} requests hang", cause="slow")
            self._worker = _Worker(self.url, self._timeout, self._access)
        return self._worker

    def _replace(self, worker: _Worker) -> None:
        if self._worker is worker:
            log.warning("replacing a thread whose request hangs", url=self.url, seconds=self._timeout)
            worker.end()
            self._stuck.append(worker)
            self._worker = None


@dataclass(slots=True, kw_only=True)
class _Query:
    promql: str
    answer: asyncio.Future[Sequence[SampleRow]]
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)

    def settle(self, set_it: Callable[[], None]) -> None:
        """Set the result in the loop, unless the query was cancelled or the loop has ended."""
        try:
            self.loop.call_soon_threadsafe(lambda: None if self.answer.done() else set_it())
        except RuntimeError:
            return


class _Worker:
    """A thread with one session."""

    def __init__(self, url: str, timeout: float, access: PrometheusAccess) -> None:
        self._queries: queue.SimpleQueue[_Query | None] = queue.SimpleQueue()
        self._session = BoundedSession(timeout, access)
        self._client = _client(url, timeout, self._session)
        self._thread = threading.Thread(target=self._work, name="prometheus", daemon=True)
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def ask(self, promql: str) -> asyncio.Future[Sequence[SampleRow]]:
        query = _Query(promql=promql, answer=asyncio.get_running_loop().create_future())
        self._queries.put(query)
        return query.answer

    def end(self) -> None:
        self._queries.put(None)

    def _work(self) -> None:
        while (query := self._queries.get()) is not None:
            self._answer(query)
        self._session.close()

    def _answer(self, query: _Query) -> None:
        set_it: Callable[[], None]
        try:
            rows = query_rows(lambda: self._client.custom_query(query.promql))
        except Exception as exc:  # noqa: BLE001 - any exception is the query's; the thread and the process go on
            failure = _as_failure(exc)

            def set_it() -> None:
                query.answer.set_exception(failure)

        else:

            def set_it() -> None:
                query.answer.set_result(rows)

        query.settle(set_it)


def query_rows(query: Callable[[], Any]) -> Sequence[SampleRow]:
    """Call the client; the rows of the instant vector that it returns.

    Raises:
        PrometheusError: there was no response, or another one.
    """
    try:
        return _rows(query())
    except PrometheusError:
        raise
    except requests.exceptions.JSONDecodeError as exc:
        raise PrometheusError(f"want JSON, got something else ({exc})", cause="nonsense") from exc
    except requests.exceptions.ContentDecodingError as exc:
        raise PrometheusError(f"the answer cannot be unpacked: {_shortened(exc)}", cause="nonsense") from exc
    except requests.exceptions.ChunkedEncodingError as exc:
        raise PrometheusError("the answer was cut off", cause="unavailable") from exc
    except requests.Timeout as exc:
        raise PrometheusError(f"no answer in time: {_shortened(exc)}", cause="slow") from exc
    except requests.ConnectionError as exc:
        raise PrometheusError(f"not reachable: {_root(exc)}", cause="unreachable") from exc
    except requests.RequestException as exc:
        raise PrometheusError(f"{type(exc).__name__}: {_shortened(exc)}", cause="nonsense") from exc
    except PrometheusApiClientException as exc:
        raise _refusal(str(exc)) from exc
    except (KeyError, TypeError, AttributeError, ValueError) as exc:
        raise PrometheusError(
            f"want data.result of an instant vector, got another shape ({type(exc).__name__}: {_shortened(exc)})",
            cause="nonsense",
        ) from exc


def _as_failure(error: Exception) -> PrometheusError:
    """The error of a query that failed, also of one that failed as none is known to."""
    if isinstance(error, PrometheusError):
        return error
    failure = PrometheusError(f"{type(error).__name__}: {_shortened(error)}", cause="nonsense")
    failure.__cause__ = error
    return failure


def _rows(result: Any) -> Sequence[SampleRow]:
    if result is None:
        raise PrometheusError("want an instant vector, got null", cause="nonsense")
    try:
        return msgspec.convert(result, list[SampleRow])
    except msgspec.ValidationError as exc:
        raise PrometheusError(f"want an instant vector: {exc}", cause="nonsense") from exc


def _refusal(text: str) -> PrometheusError:
    """The client's only exception of its own: an HTTP status other than 200, as text."""
    status = next((int(word) for word in text.split() if word.isdigit()), 0)
    cause: Cause = "refused" if status < HTTPStatus.INTERNAL_SERVER_ERROR else "unavailable"
    return PrometheusError(_shortened(text), cause=cause)


def _root(error: BaseException) -> str:
    """The innermost exception: those around it quote it at length."""
    while (inner := error.__cause__ or error.__context__) is not None:
        error = inner
    return _shortened(error)


def _shortened(error: object) -> str:
    text = " ".join(str(error).split())
    return text if len(text) <= _QUOTED else f"{text[: _QUOTED - 3]}..."


def _client(url: str, timeout: float, session: requests.Session) -> PrometheusConnect:
    """The client without retries and with a time-out; the library's defaults are three retries and no time-out."""
    no_retries = Retry(total=0, read=False)  # read=False: keep the time-out instead of "retries exceeded"
    client = PrometheusConnect(url, retry=no_retries, session=session, timeout=timeout)
    session.mount(url, requests_adapter(max_retries=no_retries))  # in place of the client's own
    return client


class AnswerTooSlowError(requests.Timeout):
    """The response as a whole took too long, though every piece of it came in time."""


class AnswerTooLargeError(requests.RequestException):
    """More bytes than any response to the collector's queries has."""


class BoundedSession(requests.Session):
    """A session that limits a request's whole time and size; requests' own time-out is for each piece."""

    def __init__(self, timeout: float, access: PrometheusAccess = ANYBODY) -> None:
        super().__init__()
        self._timeout = timeout
        self._credentials = _Credentials(access) if access.token_file or access.headers_file else None
        if access.ca_file is not None:
            self.verify = str(access.ca_file)

    def request(self, *args: Any, **kwargs: Any) -> Any:
        """Send and read to the end. Redirects are not followed: only the configured server may answer."""
        ends = time.monotonic() + self._timeout
        kwargs.update(stream=True, allow_redirects=False)
        if self._credentials is not None:
            kwargs["auth"] = self._credentials  # also instead of a .netrc
        with super().request(*args, **kwargs) as response:
            return BoundedResponse(status_code=response.status_code, content=_read(response, ends))


class _Credentials(requests.auth.AuthBase):
    """Adds what the files have at the time of the request."""

    def __init__(self, access: PrometheusAccess) -> None:
        self._access = access

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        for line in _start_of(self._access.headers_file).splitlines():
            name, colon, value = line.partition(":")
            if not colon or not name.strip():
                raise PrometheusError(f"{self._access.headers_file}: want lines 'Name: value'", cause="refused")
            request.headers[name.strip()] = value.strip()
        token = "".join(_start_of(self._access.token_file).split())
        if token:
            request.headers["Authorization"] = f"Bearer {token}"
        return request


def _start_of(path: Path | None) -> str:
    if path is None:
        return ""
    try:
        with path.open(encoding="ascii") as file:
            return file.read(_MOST_CHARACTERS)
    except (OSError, UnicodeDecodeError) as exc:
        raise PrometheusError(f"reading {path}: {type(exc).__name__}", cause="refused") from exc


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundedResponse:
    """The part of an HTTP response that the client uses."""

    status_code: int
    content: bytes

    def json(self) -> Any:
        """Decoded by msgspec, which holds the GIL for a third of the time of the standard library's decoder.

        Raises:
            JSONDecodeError: that of requests, as its own responses do.
        """
        try:
            return msgspec.json.decode(self.content)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
            raise requests.exceptions.JSONDecodeError(str(exc), repr(self.content[:80]), 0) from exc


def _read(response: requests.Response, ends: float) -> bytes:
    """The body, in whatever pieces it comes."""
    body = bytearray()
    for piece in _pieces(response):
        body += piece
        if len(body) > MAX_BYTES:
            raise AnswerTooLargeError(f"more than {MAX_BYTES} bytes")
        if time.monotonic() > ends:
            raise AnswerTooSlowError("the response trickles")
    return bytes(body)


def _pieces(response: requests.Response) -> Iterator[bytes]:
    """What has arrived, without waiting for full pieces; errors are those of requests, or PrometheusError."""
    try:
        while piece := response.raw.read1(_CHUNK, decode_content=True):
            yield piece
    except ReadTimeoutError as exc:
        raise requests.ReadTimeout("the response stopped in the middle") from exc
    except ProtocolError as exc:
        raise requests.exceptions.ChunkedEncodingError(exc) from exc
    except DecodeError as exc:
        raise requests.exceptions.ContentDecodingError(exc) from exc
    except HTTPError as exc:  # such as an SSLError amid the body
        raise PrometheusError(f"the answer broke off: {_root(exc)}", cause="unavailable") from exc
