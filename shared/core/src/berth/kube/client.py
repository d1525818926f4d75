"""Requests to the API server: bytes in, status and bytes out.

A status is a value, because callers decide by 404 and 409; only a missing answer is an error. List, Binding, Event and
condition use ``request`` on berth's own connections, for half of aiohttp's CPU time; a watch is a ``stream`` of
aiohttp; every other request is a ``call`` by kubernetes_asyncio. All three share the credentials. The rate is limited
only when ``clientConnection.qps`` is set.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from copy import copy
from dataclasses import dataclass
from datetime import timedelta
from http import HTTPStatus
from pathlib import Path
from typing import Any, NamedTuple, Self
from urllib.parse import urlencode, urlsplit

import aiohttp
from yarl import URL

from berth.errors import cause_of
from berth.kube.connections import CONNECT_SECONDS, IDLE_SECONDS, Call, Check, ConnectionPool, NoAnswerError, Server
from berth.kube.credentials import KubeCredentials
from berth.kube.errors import ApiUnreachableError, KubeconfigError
from berth.kube.http1 import ANSWER_BYTES, Answer, Response, fields, parse_retry_after, request
from berth.kube.kubeconfig import source_for
from berth.kube.library import LibraryCall, LibraryClient


class TokenBucket:
    """Token bucket: ``burst`` requests at once, ``qps`` per second in the long run, first come, first served."""

    def __init__(self, *, qps: float, burst: int, clock: Callable[[], float] = time.monotonic) -> None:
        if qps <= 0 or burst < 1:
            raise ValueError(f"limiting requests: want qps above 0 and burst of at least 1, got {qps} and {burst}")
        self._interval = 1 / qps
        self._slack = (burst - 1) * self._interval
        self._clock = clock
        self._next = clock() - self._slack

    def reserve(self) -> float:
        """Take the next slot; return the seconds until it."""
        now = self._clock()
        self._next = max(self._next, now - self._slack)
        wait = max(0.0, self._next - now)
        self._next += self._interval
        return wait

    async def wait(self) -> None:
        seconds = self.reserve()
        if seconds > 0:
            await asyncio.sleep(seconds)


# Time limit of a request, connecting included. The API server's own limit is 60 s.
DEFAULT_TIMEOUT = timedelta(seconds=10)


# Maximum number of concurrent watches: one per kind and Lease.
STREAMS = 64


# Read-ahead buffer of a watch: a burst of about 100 pods.
READ_BUFFER_BYTES = 256 * 1024


# Iterations of the event loop that a TLS connection needs to close.
TURNS_TO_CLOSE = 4


JSON = "application/json"


MERGE_PATCH = "application/merge-patch+json"


STRATEGIC_MERGE_PATCH = "application/strategic-merge-patch+json"


Headers = dict[str, str]


# Uncompressed: compressing a LIST costs the API server more than sending it.
ACCEPTED = {"Accept": JSON, "Accept-Encoding": "identity"}


_ACCEPT_JSON = f"Accept: {JSON}\r\n".encode()


def _accept(form: str) -> bytes:
    return f"Accept: {form}\r\n".encode()


# Gets of each request its method, its path with the query, the API server's host and port, the status (0: no answer),
# and the seconds from sending it, connecting included, to its answer, or to the head of a streamed one.
Listener = Callable[[str, str, str, int, float], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseStream:
    """A streamed answer: status, and bytes as they arrive."""

    status: int
    retry_after: timedelta | None
    chunks: AsyncIterator[bytes]

    async def whole(self) -> Response:
        """Read the rest of the body of an error."""
        body = b"".join([chunk async for chunk in self.chunks])
        return Response(status=self.status, body=body, retry_after=self.retry_after)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shared:
    """Parts common to all requests until the credentials change."""

    headers: Headers  # The credentials' own object: another one means a change.
    server: Server
    lines: bytes  # Encoded header lines.


class KubeClient:
    """A client of one API server with a pool of connections. Use ``async with``, or call ``close``.

    Create it inside a running event loop.
    """

    # Called right before a write is sent.
    _check: Check | None = None

    def __init__(
        self,
        credentials: KubeCredentials,
        *,
        user_agent: str = "berth",
        rate_limit: TokenBucket | None = None,
        listener: Listener | None = None,
    ) -> None:
        self._credentials = credentials
        self._rate_limit = rate_limit
        self._listener = listener
        self._user_agent = user_agent
        self._pool = ConnectionPool()
        self._session = _session(user_agent)
        self._library = LibraryClient(user_agent, ACCEPTED)
        self._shared: _Shared | None = None

    @property
    def refused_credentials(self) -> str:
        """Sentence about a 401 that is repeated after the credentials were read again."""
        return f"{self.server} refuses the credentials of {self._credentials} (401): renew them, or name another file"

    def checking(self, check: Check) -> Self:
        """A copy of the client that calls ``check`` right before each write is sent.

        The check follows every wait: rate limit, credentials, connection. If it raises, nothing is sent.
        """
        checking = copy(self)
        checking._check = check  # noqa: SLF001 - of a copy of itself
        return checking

    @classmethod
    async def connect(
        cls,
        kubeconfig: str | Path | None = None,
        *,
        user_agent: str = "berth",
        qps: float | None = None,
        burst: int | None = None,
        listener: Listener | None = None,
    ) -> Self:
        """Read the kubeconfig or, without one, the pod's service account. Without qps the rate is unlimited.

        ``listener`` is called after each request, answered or failed.

        Raises:
            KubeconfigError: unusable configuration. No request was sent.
        """
        limit = TokenBucket(qps=qps, burst=burst or max(1, round(2 * qps))) if qps else None
        credentials = await KubeCredentials.from_source(source_for(kubeconfig))
        return cls(credentials, user_agent=user_agent, rate_limit=limit, listener=listener)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    async def close(self) -> None:
        self._pool.close()
        await self._session.close()
        await self._library.close()
        for _ in range(TURNS_TO_CLOSE):
            await asyncio.sleep(0)

    @property
    def server(self) -> str:
        return self._credentials.server

    async def request(  # noqa: PLR0913 - the parts of an HTTP request
        self,
        method: str,
        path: str,
        *,
        body: bytes | None = None,
        params: Mapping[str, str] | None = None,
        content_type: str = JSON,
        accept: str = JSON,
        timeout: timedelta = DEFAULT_TIMEOUT,  # noqa: ASYNC109 - the pool's one timer is cheaper than asyncio.timeout
        largest: int = ANSWER_BYTES,
    ) -> Response:
        """Send a request and read the whole answer, at most ``largest`` bytes.

        ``path`` is sent unchanged. Redirects are not followed. ``accept``: the form of the answer.

        Raises:
            ApiUnreachableError: no complete answer.
        """
        if params:
            path = f"{path}?{urlencode(params)}"
        if self._rate_limit is not None:
            await self._rate_limit.wait()
        headers = await self._credentials.headers()
        sent = _Request(method, path, body, content_type, accept, timeout.total_seconds(), largest)
        answer = await self._send(sent, headers)
        if answer.status == HTTPStatus.UNAUTHORIZED:
            answer = await self._send(sent, await self._other_headers(method, path, headers))
        return Response(status=answer.status, body=answer.body, retry_after=parse_retry_after(answer.retry_after))

    async def call(
        self,
        method: str,
        path: str,
        *,
        body: Mapping[str, Any] | None = None,
        content_type: str = JSON,
        timeout: timedelta = DEFAULT_TIMEOUT,  # noqa: ASYNC109 - handed on to aiohttp
    ) -> Response:
        """Send a request by kubernetes_asyncio; otherwise as ``request``.

        Raises:
            ApiUnreachableError: no complete answer.
        """
        if self._rate_limit is not None:
            await self._rate_limit.wait()
        check = None if method == "GET" else self._check
        call = LibraryCall(method, path, body, content_type, timeout.total_seconds(), check)
        headers = await self._credentials.headers()
        answer = await self._call(call, headers)
        if answer.status == HTTPStatus.UNAUTHORIZED:
            answer = await self._call(call, await self._other_headers(method, path, headers))
        return answer

    async def _call(self, call: LibraryCall, headers: Headers) -> Response:
        began, status = time.monotonic(), 0
        try:
            answer = await self._library.call(self._credentials.access, headers, call)
            status = answer.status
        except NoAnswerError as exc:
            text = f"{call.method} {self.server}{call.path}: {exc}"
            raise ApiUnreachableError(text) from exc
        finally:
            self._report(call.method, call.path, status, time.monotonic() - began)
        return answer

    async def _send(self, sent: _Request, headers: Headers) -> Answer:
        method = sent.method
        began, status = time.monotonic(), 0
        try:
            shared = self._shared_for(headers)
            lines = shared.lines if sent.accept == JSON else shared.lines.replace(_ACCEPT_JSON, _accept(sent.accept))
            call = Call(
                request(method, shared.server.prefix + sent.path, lines, sent.body, sent.content_type),
                sent.seconds,
                sent.largest,
                None if method == "GET" else self._check,
                method == "GET",
            )
            answer = await self._pool.exchange(shared.server, call)
            status = answer.status
        except NoAnswerError as exc:
            text = f"{method} {self.server}{sent.path}: {exc}"
            raise ApiUnreachableError(text) from exc
        finally:
            self._report(method, sent.path, status, time.monotonic() - began)
        return answer

    def _shared_for(self, headers: Headers) -> _Shared:
        shared = self._shared
        if shared is None or shared.headers is not headers:
            try:
                server = Server.of(self._credentials.access)
                lines = server.shared + fields({"User-Agent": self._user_agent, **ACCEPTED, **headers})
            except ValueError as exc:
                raise ApiUnreachableError(f"using the credentials for {self.server}: {exc}") from exc
            shared = self._shared = _Shared(headers=headers, server=server, lines=lines)
        return shared

    @asynccontextmanager
    async def stream(
        self, path: str, *, params: Mapping[str, str], read_timeout: timedelta
    ) -> AsyncIterator[ResponseStream]:
        """GET a streamed answer, such as a watch. ``read_timeout``: maximum time without data.

        Raises:
            ApiUnreachableError: no answer, a broken connection, or no data in time, at the start or while reading.
        """
        silence = read_timeout.total_seconds()
        where = f"GET {self.server}{path}"
        try:
            async with asyncio.timeout(min(DEFAULT_TIMEOUT.total_seconds(), silence)):
                answer = await self._open_stream(path, params)
        except (aiohttp.ClientError, OSError) as exc:
            raise _unreachable(where, exc, silence) from exc
        timer = _SilenceTimer(answer, silence)
        try:
            retry_after = parse_retry_after(answer.headers.get("Retry-After"))
            chunks = _chunks(answer, where, silence, timer)
            yield ResponseStream(status=answer.status, retry_after=retry_after, chunks=chunks)
        finally:
            timer.stop()
            _abort(answer)

    async def _open_stream(self, path: str, params: Mapping[str, str]) -> aiohttp.ClientResponse:
        if self._rate_limit is not None:
            await self._rate_limit.wait()
        headers = await self._credentials.headers()
        answer = await self._get_stream(path, params, headers)
        if answer.status != HTTPStatus.UNAUTHORIZED:
            return answer
        answer.release()
        return await self._get_stream(path, params, await self._other_headers("GET", path, headers))

    async def _get_stream(self, path: str, params: Mapping[str, str], headers: Headers) -> aiohttp.ClientResponse:
        began, status = time.monotonic(), 0
        access, path = self._credentials.access, f"{path}?{urlencode(params)}"
        try:
            answer = await self._session.get(
                URL(f"{access.server}{path}", encoded=True),
                headers=headers,
                timeout=aiohttp.ClientTimeout(sock_connect=CONNECT_SECONDS),
                ssl=access.tls or True,
                server_hostname=access.server_name,
                proxy=access.proxy,
                allow_redirects=False,
            )
            status = answer.status
        finally:
            self._report("GET", path, status, time.monotonic() - began)
        return answer

    async def _other_headers(self, method: str, path: str, refused: Headers) -> Headers:
        try:
            return await self._credentials.renew(refused)
        except KubeconfigError as exc:
            text = f"{method} {self.server}{path}: 401, and no other credentials: {exc}"
            raise ApiUnreachableError(text) from exc

    def _report(self, method: str, path: str, status: int, seconds: float) -> None:
        if self._listener is not None:
            host = urlsplit(self._credentials.server).netloc
            self._listener(method, path, host, status, seconds)


class _Request(NamedTuple):
    method: str
    path: str
    body: bytes | None
    content_type: str
    accept: str
    seconds: float
    largest: int


def _session(user_agent: str) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=STREAMS, keepalive_timeout=IDLE_SECONDS),
        headers={"User-Agent": user_agent, **ACCEPTED},
        cookie_jar=aiohttp.DummyCookieJar(),
        read_bufsize=READ_BUFFER_BYTES,
    )


def _abort(answer: aiohttp.ClientResponse) -> None:
    # Abort: TLS's closing handshake would wait for the peer.
    if answer.connection is not None and answer.connection.transport is not None:
        answer.connection.transport.abort()
    answer.close()


async def _chunks(
    answer: aiohttp.ClientResponse, where: str, silence: float, timer: _SilenceTimer
) -> AsyncIterator[bytes]:
    try:
        async for chunk in answer.content.iter_any():
            timer.data_arrived()
            yield chunk
    except (aiohttp.ClientError, OSError) as exc:
        raise _unreachable(where, exc, silence) from exc


class _SilenceTimer:
    """Ends a stream that delivers no data for too long.

    aiohttp's own limit costs a fifth of the watcher's CPU time per watch event.
    """

    def __init__(self, answer: aiohttp.ClientResponse, seconds: float) -> None:
        self._content = answer.content
        self._seconds = seconds
        self._loop = asyncio.get_running_loop()
        self._data_at = self._loop.time()
        self._timer = self._loop.call_later(seconds, self._check_silence)

    def data_arrived(self) -> None:
        self._data_at = self._loop.time()

    def stop(self) -> None:
        self._timer.cancel()

    def _check_silence(self) -> None:
        left = self._data_at + self._seconds - self._loop.time()
        if left > 0:
            self._timer = self._loop.call_later(left, self._check_silence)
        else:
            self._content.set_exception(aiohttp.SocketTimeoutError("no data in time"))


def _unreachable(where: str, exc: Exception, silence: float) -> ApiUnreachableError:
    return ApiUnreachableError(f"{where}: {_cause(exc, silence)}")


def _cause(exc: Exception, silence: float) -> str:
    if isinstance(exc, TimeoutError):
        is_silent = isinstance(exc, aiohttp.SocketTimeoutError)
        return f"no answer within {silence if is_silent else DEFAULT_TIMEOUT.total_seconds():g} s"
    if isinstance(exc, aiohttp.ClientConnectorError):  # its own text prints the TLS context as an object
        return f"no connection to {exc.host}:{exc.port}: {cause_of(exc.os_error)}"
    return cause_of(exc)
