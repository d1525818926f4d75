"""prometheus-api-client with bounded answers, in a thread per query, because it blocks.

A daemon thread that hangs (an unanswered name lookup, a trickling response) is abandoned with its client. Every
exception becomes a :class:`SourceError` with its cause.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from datetime import timedelta
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
import requests
from prometheus_api_client import PrometheusConnect
from requests.auth import AuthBase
from requests.exceptions import ChunkedEncodingError, ContentDecodingError
from urllib3.exceptions import ProtocolError, ReadTimeoutError, SSLError
from urllib3.util.retry import Retry

from berth.errors import TemporaryError
from berth.observability.logging import get_logger
from berth.tls import requests_adapter
from berth_metrics_collector.settings import PrometheusAccess

log = get_logger()
Cause = Literal["unreachable", "slow", "refused", "unavailable", "nonsense"]
# Longest wait for a whole response: 20 times the slowest query at 5,000 nodes, shorter than an interval.
TIMEOUT: Final = timedelta(seconds=10)
GRACE: Final = timedelta(seconds=2)  # extra time for the thread to report the error itself before it is abandoned
MAX_BYTES: Final = 64 * 1024 * 1024  # largest response, unpacked: 5,000 nodes with ten devices each are 7 MB
MAX_STUCK: Final = 4  # hanging threads at which no more queries are sent
_QUOTED: Final = 200  # characters of a response in an error
_MOST_BYTES_QUOTED: Final = 4096  # of which these are taken
_MOST_CHARACTERS: Final = 65_536  # characters read of a file with a token or headers
ANONYMOUS: Final = PrometheusAccess()  # no credentials, the system's authorities


class SourceError(TemporaryError):
    """No usable response, of Prometheus or the API server. ``cause`` labels the metric of rounds."""

    def __init__(self, message: str, *, cause: Cause) -> None:
        super().__init__(message)
        self.cause: Cause = cause


class SampleRow(msgspec.Struct, frozen=True):
    """One element of an instant vector: labels, and (time of the evaluation, value as text).

    Labels stay JSON, by which :func:`labels_of` and caches find what is known of a series: answers differ in values.
    """

    metric: bytes
    value: tuple[float, str]


def labels_of(metric: bytes) -> dict[str, str]:
    return _labels.decode(metric)


class _Row(msgspec.Struct):
    metric: msgspec.Raw
    value: tuple[float, str]


class _Data(msgspec.Struct):
    result: list[_Row]


class _Body(msgspec.Struct):
    data: _Data


_labels: Final = msgspec.json.Decoder(dict[str, str])
_bodies: Final = msgspec.json.Decoder(_Body)
# Labels that are known to be readable, the same object for equal ones: of 5,000 nodes with eight series each 14 MB.
_readable: Final[dict[bytes, bytes]] = {}
_MOST_READABLE: Final = 65_536


class Prometheus:
    """One server. Send one query at a time."""

    def __init__(
        self,
        url: str,
        *,
        timeout: timedelta = TIMEOUT,
        grace: timedelta = GRACE,
        access: PrometheusAccess = ANONYMOUS,
    ) -> None:
        self.url = url
        self._access = access
        self._timeout = timeout.total_seconds()
        self._grace = grace.total_seconds()
        self._client: PrometheusConnect | None = None
        self._stuck: list[threading.Thread] = []

    async def query(self, promql: str) -> Sequence[SampleRow]:
        """The rows of an instant query.

        Raises:
            SourceError: no usable response, for any cause.
        """
        self._stuck = [thread for thread in self._stuck if thread.is_alive()]
        if len(self._stuck) >= MAX_STUCK:
            raise SourceError(f"asking {self.url}: {MAX_STUCK} requests hang", cause="slow")
        # Reuse the client only after its thread has finished: an abandoned thread may still use the session.
        client, self._client = self._client or _client(self.url, self._timeout, self._access), None
        rows: Future[Sequence[SampleRow]] = Future()
        rows.set_running_or_notify_cancel()
        thread = threading.Thread(target=_settle, args=(rows, client, promql), name="prometheus", daemon=True)
        thread.start()
        try:
            async with asyncio.timeout(self._timeout + self._grace):
                return await asyncio.wrap_future(rows)
        except TimeoutError:
            log.warning("abandoning a thread whose request hangs", url=self.url, seconds=self._timeout)
            self._stuck.append(thread)
            raise SourceError(f"asking {self.url}: no answer in time", cause="slow") from None
        except SourceError as exc:
            raise SourceError(f"asking {self.url}: {exc}", cause=exc.cause) from exc
        finally:
            if rows.done():
                self._client = client

    def close(self) -> None:
        """Close the connection, unless a thread still uses it."""
        if self._client is not None:
            self._client.close()


def _client(url: str, timeout: float, access: PrometheusAccess) -> PrometheusConnect:
    """The library's client without its three retries, and with a time-out, which it lacks."""
    session = _BoundedSession(timeout)
    if access.ca_file is not None:
        session.verify = str(access.ca_file)
    no_retries = Retry(total=0, read=False)  # read=False: keep the time-out instead of "retries exceeded"
    credentials = _Credentials(access) if access.token_file or access.headers_file else None
    client = PrometheusConnect(url, retry=no_retries, auth=credentials, session=session, timeout=timeout)
    session.mount(url, requests_adapter(max_retries=no_retries))  # in place of the client's own
    return client


def _settle(rows: Future[Sequence[SampleRow]], client: PrometheusConnect, promql: str) -> None:
    try:
        rows.set_result(query_rows(client, promql))
    except SourceError as exc:
        rows.set_exception(exc)


def query_rows(client: PrometheusConnect, promql: str) -> Sequence[SampleRow]:
    """The rows of an instant query, read by the library.

    Raises:
        SourceError: any failure.
    """
    try:
        return [SampleRow(metric=_checked(bytes(row.metric)), value=row.value) for row in client.custom_query(promql)]
    except Exception as exc:
        raise _failure(exc) from exc


def decode_rows(response: requests.Response) -> None:
    """Have the library read rows from this response in place of dictionaries, at an eighth of the cost."""

    def rows(**_options: Any) -> Any:
        return {"data": {"result": _bodies.decode(response.content).data.result}}

    response.json = rows  # type: ignore[method-assign]  # the library reads by it


def _checked(metric: bytes) -> bytes:
    """Raises as :func:`labels_of`."""
    found = _readable.get(metric)
    if found is None:
        labels_of(metric)
        if len(_readable) >= _MOST_READABLE:
            _readable.clear()
        found = _readable[metric] = metric
    return found


_FAILURES: Final[tuple[tuple[type[Exception], Cause, str], ...]] = (
    (msgspec.ValidationError, "nonsense", "want data.result of an instant vector, got another shape"),
    (msgspec.DecodeError, "nonsense", "want JSON, got something else"),
    (RecursionError, "nonsense", "want JSON, got something else"),
    (ContentDecodingError, "nonsense", "the answer cannot be unpacked"),
    (ChunkedEncodingError, "unavailable", "the answer was cut off"),
    (requests.Timeout, "slow", "no answer in time"),
    (requests.ConnectionError, "unreachable", "not reachable"),
)  # exceptions of requests and of the library; the first match counts


def _failure(error: Exception) -> SourceError:
    """Map any exception to SourceError; unknown ones get cause "nonsense"."""
    if isinstance(error, SourceError):
        return error
    known = (each for each in _FAILURES if isinstance(error, each[0]))
    _, cause, text = next(known, (Exception, "nonsense", type(error).__name__))
    return SourceError(f"{text}: {_shortened(str(_root(error)))}", cause=cause)


def _refusal(response: requests.Response) -> SourceError:
    # The library would quote the bytes of the whole answer.
    text = _shortened(response.content[:_MOST_BYTES_QUOTED].decode(errors="replace"))
    cause: Cause = "unavailable" if response.status_code >= HTTPStatus.INTERNAL_SERVER_ERROR else "refused"
    return SourceError(f"HTTP status {response.status_code}: {text or 'an empty answer'}", cause=cause)


def _root(error: BaseException) -> BaseException:
    """The innermost exception, because the outer ones quote it at length."""
    while (inner := error.__cause__ or error.__context__) is not None:
        error = inner
    return error


def _shortened(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _QUOTED else f"{text[: _QUOTED - 3]}..."


class _BoundedSession(requests.Session):
    """A session that limits the size and the total time of a response; the time-out of requests is per piece.

    It follows no redirect: only the configured server may answer.
    """

    def __init__(self, timeout: float) -> None:
        super().__init__()
        self._timeout = timeout
        self.hooks["response"].append(self._bound)

    def get_redirect_target(self, resp: requests.Response) -> None:
        """Return no target: the response counts as it is."""

    def _bound(self, response: requests.Response, **_options: Any) -> None:
        response.raw = _BoundedBody(response.raw, time.monotonic() + self._timeout)
        if response.status_code != HTTPStatus.OK:
            raise _refusal(response)
        decode_rows(response)


class _BoundedBody:
    """A body for ``requests``, delivered in the pieces that arrive."""

    def __init__(self, raw: Any, ends: float) -> None:
        self._raw = raw
        self._ends = ends
        self.close = raw.close
        self.release_conn = raw.release_conn

    def stream(self, most: int, *, decode_content: bool) -> Iterator[bytes]:
        size = 0
        try:
            while piece := self._raw.read1(most, decode_content=decode_content):  # does not wait for a full piece
                size += len(piece)
                if size > MAX_BYTES:
                    raise SourceError(f"more than {MAX_BYTES} bytes", cause="nonsense")
                if time.monotonic() > self._ends:
                    raise SourceError("no answer in time: the response trickles", cause="slow")
                yield piece
        except ReadTimeoutError as exc:  # requests would take these two for failures to connect
            raise requests.ReadTimeout("the response stopped in the middle") from exc
        except SSLError as exc:
            raise ProtocolError(str(exc)) from exc


class _Credentials(AuthBase):
    """Adds the files' current contents to a request. With it, requests ignores any .netrc."""

    def __init__(self, access: PrometheusAccess) -> None:
        self._access = access

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        for line in _start_of(self._access.headers_file).splitlines():
            name, colon, value = line.partition(":")
            if not colon or not name.strip():
                raise SourceError(f"{self._access.headers_file}: want lines 'Name: value'", cause="refused")
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
        raise SourceError(f"reading {path}: {type(exc).__name__}", cause="refused") from exc
