"""Requests to the API server: bytes in, status and bytes out.

An HTTP status is a value, since callers decide by 404 and 409. Only a missing answer is an error. No models are built.
On a pod's way ``request`` uses connections of our own (``berth.kube.connections``), for half of the CPU time of
aiohttp, and a watch, whose answer does not end, is a stream of aiohttp. Everything else is a ``call`` by
kubernetes_asyncio (``berth.kube.library``). All three share the credentials. The rate of requests is limited only when
``clientConnection.qps`` is set.
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
from berth.kube.connecting import Server
from berth.kube.connections import CONNECT_SECONDS, IDLE_SECONDS, Call, Check, ConnectionPool, NoAnswerError
from berth.kube.credentials import KubeCredentials
from berth.kube.errors import ApiUnreachableError, KubeconfigError, Response, parse_retry_after
from berth.kube.http1 import ANSWER_BYTES, Answer, fields, request
from berth.kube.kubeconfig import source_for
from berth.kube.library import LibraryCall, LibraryClient


class TokenBucket:
    """Limits requests: ``burst`` at once and ``qps`` per second in the long run, first come, first served."""

    def __init__(self, *, qps: float, burst: int, clock: Callable[[], float] = time.monotonic) -> None:
        if qps <= 0 or burst < 1:
            raise ValueError(f"limiting requests: want qps above 0 and burst of at least 1, got {qps} and {burst}")
        self._interval = 1 / qps
        self._slack = (burst - 1) * self._interval
        self._clock = clock
        self._next = clock() - self._slack

    def reserve(self) -> float:
        """Take the next slot; returns the seconds until it."""
        now = self._clock()
        self._next = max(self._next, now - self._slack)
        wait = max(0.0, self._next - now)
        self._next += self._interval
        return wait

    async def wait(self) -> None:
        """Wait for the next slot."""
        seconds = self.reserve()
        if seconds > 0:
            await asyncio.sleep(seconds)


DEFAULT_TIMEOUT = timedelta(seconds=10)
"""How long an answer may take, connecting included. The API server's own limit is 60 s."""


STREAMS = 64
"""The most watches at once: one for each kind and Lease."""


READ_BUFFER_BYTES = 256 * 1024
"""Read-ahead buffer of a watch: a burst of about a hundred pods."""


TURNS_TO_CLOSE = 4
"""Iterations of the event loop that a TLS connection needs to close."""


JSON = "application/json"


MERGE_PATCH = "application/merge-patch+json"


STRATEGIC_MERGE_PATCH = "application/strategic-merge-patch+json"


Headers = dict[str, str]


ACCEPTED = {"Accept": JSON, "Accept-Encoding": "identity"}
"""Compressing a LIST costs the API server more than sending it uncompressed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """One request and its answer, for the metrics and the log."""

    method: str
    path: str
    """With its query, as it was sent."""
    host: str
    """The API server's host and port."""
    status: int
    """The HTTP status; 0 when no answer came."""
    seconds: float
    """From sending the request, connecting included, to its answer; to the head of a streamed one."""


Listener = Callable[[Exchange], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseStream:
    """A streamed answer: its status, and its bytes as they arrive."""

    status: int
    retry_after: timedelta | None
    chunks: AsyncIterator[bytes]

    async def whole(self) -> Response:
        """The rest of the body, for an answer that is not a stream (an error)."""
        body = b"".join([chunk async for chunk in self.chunks])
        return Response(status=self.status, body=body, retry_after=self.retry_after)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shared:
    """What all requests have in common as long as the credentials stay the same."""

    headers: Headers
    """The credentials' own, by which a change is seen."""
    server: Server
    lines: bytes
    """The header lines, encoded."""


class KubeClient:
    """A client of one API server with a pool of connections. Use ``async with``, or call ``close``.

    Create it inside a running event loop.
    """

    _check: Check | None = None
    """Called right before the bytes of a write go out."""

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
        """The sentence about a 401: they were read again after it, and are refused again."""
        return f"{self.server} refuses the credentials of {self._credentials} (401): renew them, or name another file"

    def checking(self, check: Check) -> Self:
        """The same client, which calls ``check`` right before the bytes of each write go out.

        That is after every wait: for the rate limit, for credentials, for a connection. What it raises is passed on,
        and nothing is sent.
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
        """Read the kubeconfig, or the pod's service account when there is none. Without qps there is no limit.

        ``listener`` is called for every request, when its answer has arrived or the request has failed.

        Raises:
            KubeconfigError: the configuration cannot be used. No request is sent yet.
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
        timeout: timedelta = DEFAULT_TIMEOUT,  # noqa: ASYNC109 - the pool's one timer is cheaper than asyncio.timeout
        largest: int = ANSWER_BYTES,
    ) -> Response:
        """Send a request and read the whole answer, ``largest`` bytes at most. ``path`` is sent unchanged.

        A redirect is an answer like any other: it is not followed.

        Raises:
            ApiUnreachableError: no answer, or an incomplete one.
        """
        if params:
            path = f"{path}?{urlencode(params)}"
        if self._rate_limit is not None:
            await self._rate_limit.wait()
        headers = await self._credentials.headers()
        wish = _Wish(method, path, body, content_type, timeout.total_seconds(), largest)
        answer = await self._send(wish, headers)
        if answer.status == HTTPStatus.UNAUTHORIZED:
            answer = await self._send(wish, await self._other_headers(method, path, headers))
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
        """As ``request``, by kubernetes_asyncio: for every request that is not on a pod's way.

        Raises:
            ApiUnreachableError: no answer, or an incomplete one.
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
            raise ApiUnreachableError(text, maybe_sent=exc.maybe_sent) from exc
        finally:
            self._report(call.method, call.path, status, time.monotonic() - began)
        return answer

    async def _send(self, wish: _Wish, headers: Headers) -> Answer:
        method = wish.method
        began, status = time.monotonic(), 0
        try:
            shared = self._shared_for(headers)
            call = Call(
                request(method, shared.server.prefix + wish.path, shared.lines, wish.body, wish.content_type),
                wish.seconds,
                wish.largest,
                None if method == "GET" else self._check,
                method == "GET",
            )
            answer = await self._pool.exchange(shared.server, call)
            status = answer.status
        except NoAnswerError as exc:
            text = f"{method} {self.server}{wish.path}: {exc}"
            raise ApiUnreachableError(text, maybe_sent=exc.maybe_sent) from exc
        finally:
            self._report(method, wish.path, status, time.monotonic() - began)
        return answer

    def _shared_for(self, headers: Headers) -> _Shared:
        """The server and header lines of these credentials; made anew when they have changed."""
        shared = self._shared
        if shared is None or shared.headers is not headers:
            try:
                server = Server.of(self._credentials.access)
                lines = server.shared + fields({"User-Agent": self._user_agent, **ACCEPTED, **headers})
            except ValueError as exc:
                raise ApiUnreachableError(f"using the credentials for {self.server}: {exc}", maybe_sent=False) from exc
            shared = self._shared = _Shared(headers=headers, server=server, lines=lines)
        return shared

    @asynccontextmanager
    async def stream(
        self, path: str, *, params: Mapping[str, str], read_timeout: timedelta
    ) -> AsyncIterator[ResponseStream]:
        """GET a streamed answer, such as a watch. ``read_timeout`` is the longest silence after its start.

        Raises:
            ApiUnreachableError: no answer, a broken connection, or silence, at the start or while reading.
        """
        silence = read_timeout.total_seconds()
        where = f"GET {self.server}{path}"
        try:
            async with asyncio.timeout(min(DEFAULT_TIMEOUT.total_seconds(), silence)):
                answer = await self._open_stream(path, params)
        except (aiohttp.ClientError, OSError) as exc:
            raise _unreachable(where, exc, silence) from exc
        alarm = _SilenceAlarm(answer, silence)
        try:
            retry_after = parse_retry_after(answer.headers.get("Retry-After"))
            chunks = _chunks(answer, where, silence, alarm)
            yield ResponseStream(status=answer.status, retry_after=retry_after, chunks=chunks)
        finally:
            alarm.stop()
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
            raise ApiUnreachableError(text, maybe_sent=False) from exc

    def _report(self, method: str, path: str, status: int, seconds: float) -> None:
        if self._listener is not None:
            host = urlsplit(self._credentials.server).netloc
            self._listener(Exchange(method=method, path=path, host=host, status=status, seconds=seconds))


class _Wish(NamedTuple):
    """A request as its caller asks for it."""

    method: str
    path: str
    body: bytes | None
    content_type: str
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
    """Abort a streamed answer, without TLS's closing handshake, which would wait for the peer."""
    if answer.connection is not None and answer.connection.transport is not None:
        answer.connection.transport.abort()
    answer.close()


async def _chunks(
    answer: aiohttp.ClientResponse, where: str, silence: float, alarm: _SilenceAlarm
) -> AsyncIterator[bytes]:
    try:
        async for chunk in answer.content.iter_any():
            alarm.heard()
            yield chunk
    except (aiohttp.ClientError, OSError) as exc:
        raise _unreachable(where, exc, silence) from exc


class _SilenceAlarm:
    """Ends a stream that is silent for too long.

    aiohttp's own limit sets a timer anew for each piece, which took a fifth of what a watch event costs a watcher.
    """

    def __init__(self, answer: aiohttp.ClientResponse, seconds: float) -> None:
        self._content = answer.content
        self._seconds = seconds
        self._loop = asyncio.get_running_loop()
        self._heard_at = self._loop.time()
        self._timer = self._loop.call_later(seconds, self._look)

    def heard(self) -> None:
        self._heard_at = self._loop.time()

    def stop(self) -> None:
        self._timer.cancel()

    def _look(self) -> None:
        left = self._heard_at + self._seconds - self._loop.time()
        if left > 0:
            self._timer = self._loop.call_later(left, self._look)
        else:
            self._content.set_exception(aiohttp.SocketTimeoutError("nothing was read in time"))


def _unreachable(where: str, exc: Exception, silence: float) -> ApiUnreachableError:
    never_sent = isinstance(exc, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError)
    return ApiUnreachableError(f"{where}: {_cause(exc, silence)}", maybe_sent=not never_sent)


def _cause(exc: Exception, silence: float) -> str:
    if isinstance(exc, TimeoutError):
        is_silent = isinstance(exc, aiohttp.SocketTimeoutError)
        return f"no answer within {silence if is_silent else DEFAULT_TIMEOUT.total_seconds():g} s"
    if isinstance(exc, aiohttp.ClientConnectorError):  # its own text prints the TLS context as an object
        return f"no connection to {exc.host}:{exc.port}: {cause_of(exc.os_error)}"
    return cause_of(exc)
