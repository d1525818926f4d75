"""Requests to the API server over plain aiohttp: bytes in, status and bytes out.

An HTTP status is a value, since callers decide by 404 and 409. Only a missing answer is an error. No models are built:
a Binding takes 0.2 ms CPU here and 0.9-1.3 ms through a generated client. The rate of requests is limited only when
``clientConnection.qps`` is set.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from contextvars import ContextVar
from copy import copy
from dataclasses import dataclass
from datetime import timedelta
from http import HTTPStatus
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlencode, urlsplit

import aiohttp
from yarl import URL

from berth.kube.credentials import KubeCredentials, source_for
from berth.kube.errors import ApiUnreachableError, KubeconfigError, Response, parse_retry_after


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


CONNECT_TIMEOUT = timedelta(seconds=5)
"""How long connecting may take, TLS included. One renewal of a Lease has time for two tries."""


KEEP_ALIVE = timedelta(seconds=60)
"""How long an idle connection is kept: less than the API server's 90 s, so that the client closes it first."""


CONNECTIONS = 256
"""The most open connections: 32 Bindings, Events, patches, and one for each watched kind."""


READ_BUFFER_BYTES = 256 * 1024
"""Read-ahead buffer of a watch: a burst of about a hundred pods."""


TURNS_TO_CLOSE = 4
"""Iterations of the event loop that a TLS connection needs to close."""


JSON = "application/json"


MERGE_PATCH = "application/merge-patch+json"


STRATEGIC_MERGE_PATCH = "application/strategic-merge-patch+json"


Headers = dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """One request and the head of its answer, for the metrics."""

    method: str
    host: str
    """The API server's host and port."""
    status: int
    """The HTTP status; 0 when no answer came."""
    seconds: float
    """From sending the request to the head of its answer."""


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


Check = Callable[[], None]
"""Raises when a request must not be sent."""

_check: ContextVar[Check | None] = ContextVar("check", default=None)
"""What is called right before the bytes of this task's request go out."""


class _CheckingConnector(aiohttp.TCPConnector):
    """Runs the request's check once it has a connection: from there on nothing is waited for until it is sent."""

    async def connect(
        self,
        req: aiohttp.ClientRequest,
        traces: list[Any],
        timeout: aiohttp.ClientTimeout,  # noqa: ASYNC109 - as the method that it extends
    ) -> aiohttp.connector.Connection:
        connection = await super().connect(req, traces, timeout)
        check = _check.get()
        if check is not None:
            try:
                check()
            except BaseException:
                connection.release()
                raise
        return connection


@dataclass(frozen=True, slots=True, kw_only=True)
class _Call:
    method: str
    path: str
    timeout: aiohttp.ClientTimeout
    params: Mapping[str, str] | None = None
    body: bytes | None = None
    content_type: str = JSON


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
        self._session = _session(user_agent)

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

        ``listener`` is called for every request, when the head of its answer has arrived or the request has failed.

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
        await self._session.close()
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
        timeout: timedelta = DEFAULT_TIMEOUT,  # noqa: ASYNC109 - aiohttp's own timer is cheaper than asyncio.timeout
    ) -> Response:
        """Send a request and read the whole answer. ``path`` is sent unchanged.

        Raises:
            ApiUnreachableError: no answer, or an incomplete one.
        """
        limit = aiohttp.ClientTimeout(total=timeout.total_seconds(), sock_connect=CONNECT_TIMEOUT.total_seconds())
        call = _Call(method=method, path=path, timeout=limit, params=params, body=body, content_type=content_type)
        try:
            answer = await self._answer(call)
            content = await answer.read()
        except (aiohttp.ClientError, OSError) as exc:
            raise self._unreachable(call, exc) from exc
        retry_after = parse_retry_after(answer.headers.get("Retry-After"))
        return Response(status=answer.status, body=content, retry_after=retry_after)

    @asynccontextmanager
    async def stream(
        self, path: str, *, params: Mapping[str, str], read_timeout: timedelta
    ) -> AsyncIterator[ResponseStream]:
        """GET a streamed answer, such as a watch. ``read_timeout`` is the longest silence after its start.

        Raises:
            ApiUnreachableError: no answer, a broken connection, or silence, at the start or while reading.
        """
        limit = aiohttp.ClientTimeout(
            sock_connect=CONNECT_TIMEOUT.total_seconds(), sock_read=read_timeout.total_seconds()
        )
        call = _Call(method="GET", path=path, timeout=limit, params=params)
        try:
            async with asyncio.timeout(DEFAULT_TIMEOUT.total_seconds()):
                answer = await self._answer(call)
        except (aiohttp.ClientError, OSError) as exc:
            raise self._unreachable(call, exc) from exc
        try:
            retry_after = parse_retry_after(answer.headers.get("Retry-After"))
            yield ResponseStream(status=answer.status, retry_after=retry_after, chunks=self._chunks(call, answer))
        finally:
            _abort(answer)

    async def _chunks(self, call: _Call, answer: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
        try:
            async for chunk in answer.content.iter_any():
                yield chunk
        except (aiohttp.ClientError, OSError) as exc:
            raise self._unreachable(call, exc) from exc

    async def _answer(self, call: _Call) -> aiohttp.ClientResponse:
        if self._rate_limit is not None:
            await self._rate_limit.wait()
        headers = await self._credentials.headers()
        _check.set(None if call.method == "GET" else self._check)
        answer = await self._send(call, headers)
        if answer.status != HTTPStatus.UNAUTHORIZED:
            return answer
        answer.release()
        return await self._send(call, await self._other_headers(call, headers))

    async def _other_headers(self, call: _Call, refused: Headers) -> Headers:
        try:
            return await self._credentials.renew(refused)
        except KubeconfigError as exc:
            text = f"{call.method} {self.server}{call.path}: 401, and no other credentials: {exc}"
            raise ApiUnreachableError(text, maybe_sent=False) from exc

    async def _send(self, call: _Call, headers: Headers) -> aiohttp.ClientResponse:
        began, status = time.monotonic(), 0
        try:
            answer = await self._send_once(call, headers)
            status = answer.status
        finally:
            self._report(call.method, status, time.monotonic() - began)
        return answer

    async def _send_once(self, call: _Call, headers: Headers) -> aiohttp.ClientResponse:
        access = self._credentials.access
        if call.body is not None:
            headers = {**headers, "Content-Type": call.content_type}
        return await self._session.request(
            call.method,
            _url(access.server, call),
            data=call.body,
            headers=headers,
            timeout=call.timeout,
            ssl=access.tls or True,
            server_hostname=access.server_name,
            proxy=access.proxy,
            allow_redirects=False,
        )

    def _report(self, method: str, status: int, seconds: float) -> None:
        if self._listener is not None:
            host = urlsplit(self._credentials.server).netloc
            self._listener(Exchange(method=method, host=host, status=status, seconds=seconds))

    def _unreachable(self, call: _Call, exc: Exception) -> ApiUnreachableError:
        text = f"{call.method} {self.server}{call.path}: {_cause(call, exc)}"
        never_sent = isinstance(exc, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError)
        return ApiUnreachableError(text, maybe_sent=not never_sent)


def _session(user_agent: str) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        connector=_CheckingConnector(limit=CONNECTIONS, keepalive_timeout=KEEP_ALIVE.total_seconds()),
        # Compressing a LIST costs the API server more than sending it uncompressed.
        headers={"User-Agent": user_agent, "Accept": JSON, "Accept-Encoding": "identity"},
        cookie_jar=aiohttp.DummyCookieJar(),
        read_bufsize=READ_BUFFER_BYTES,
    )


def _abort(answer: aiohttp.ClientResponse) -> None:
    """Abort a streamed answer, without TLS's closing handshake, which would wait for the peer."""
    if answer.connection is not None and answer.connection.transport is not None:
        answer.connection.transport.abort()
    answer.close()


def _url(server: str, call: _Call) -> URL:
    query = f"?{urlencode(call.params)}" if call.params else ""
    return URL(f"{server}{call.path}{query}", encoded=True)


def _cause(call: _Call, exc: Exception) -> str:
    if isinstance(exc, TimeoutError):
        silent = isinstance(exc, aiohttp.SocketTimeoutError) and call.timeout.sock_read
        seconds = silent or call.timeout.total or DEFAULT_TIMEOUT.total_seconds()
        return f"no answer within {seconds:g} s"
    if isinstance(exc, aiohttp.ClientConnectorError):  # its own text prints the TLS context as an object
        return f"no connection to {exc.host}:{exc.port}: {_words(exc.os_error)}"
    return _words(exc)


def _words(exc: BaseException) -> str:
    if isinstance(exc, ConnectionError) and exc.errno:
        return os.strerror(exc.errno)
    return " ".join(str(exc).split()) or type(exc).__name__
