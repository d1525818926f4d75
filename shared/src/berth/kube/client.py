"""Requests to the API server over plain aiohttp: bytes in, status and bytes out.

An HTTP status is a value, since 409 and 404 are decisions here and not accidents. Only the lack of an answer is an
error. No models are built: a Binding takes 0.2 ms CPU here and 0.9-1.3 ms through a generated client. The rate of
requests is limited for those who set ``clientConnection.qps``.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from http import HTTPStatus
from pathlib import Path
from typing import Self
from urllib.parse import urlencode, urlsplit

import aiohttp
from yarl import URL

from berth.kube.credentials import KubeCredentials, source_for
from berth.kube.errors import ApiUnreachableError, KubeconfigError, Response, parse_retry_after


class TokenBucket:
    """Lets ``burst`` requests through at once and ``qps`` a second in the long run, in the order in which they came."""

    def __init__(self, *, qps: float, burst: int, clock: Callable[[], float] = time.monotonic) -> None:
        if qps <= 0 or burst < 1:
            raise ValueError(f"limiting requests: want qps above 0 and burst of at least 1, got {qps} and {burst}")
        self._interval = 1 / qps
        self._slack = (burst - 1) * self._interval
        self._clock = clock
        self._next = clock() - self._slack

    def reserve(self) -> float:
        """Take the next place; returns the seconds to wait for it."""
        now = self._clock()
        self._next = max(self._next, now - self._slack)
        wait = max(0.0, self._next - now)
        self._next += self._interval
        return wait

    async def wait(self) -> None:
        """Wait for the next place."""
        seconds = self.reserve()
        if seconds > 0:
            await asyncio.sleep(seconds)


DEFAULT_TIMEOUT = timedelta(seconds=10)
"""How long an answer may take, connecting included. The API server itself gives up on a request after 60 s."""


CONNECT_TIMEOUT = timedelta(seconds=5)
"""How long a connection may take, TLS included; within one renewal of a Lease there is room for two."""


KEEP_ALIVE = timedelta(seconds=60)
"""How long an idle connection is kept: less than the API server's 90 s, so that the server does not hang up first."""


CONNECTIONS = 256
"""The most connections at once: 32 Bindings, Events, patches, and one for each watched kind."""


READ_BUFFER_BYTES = 256 * 1024
"""What is read ahead of a watch: a burst of about a hundred pods."""


TURNS_TO_CLOSE = 4
"""Turns of the event loop until a TLS connection that was told to close is closed."""


JSON = "application/json"


MERGE_PATCH = "application/merge-patch+json"


STRATEGIC_MERGE_PATCH = "application/strategic-merge-patch+json"


Headers = dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """One request and how it began to be answered: for whoever counts them."""

    method: str
    host: str
    """Of the API server, with its port."""
    status: int
    """HTTP; 0 when no answer came."""
    seconds: float
    """From sending it to the head of its answer."""


Listener = Callable[[Exchange], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseStream:
    """An answer that goes on: its status, and its bytes as they come."""

    status: int
    retry_after: timedelta | None
    chunks: AsyncIterator[bytes]

    async def whole(self) -> Response:
        """All that is left of it, for an answer that turns out not to go on."""
        body = b"".join([chunk async for chunk in self.chunks])
        return Response(status=self.status, body=body, retry_after=self.retry_after)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Call:
    method: str
    path: str
    timeout: aiohttp.ClientTimeout
    params: Mapping[str, str] | None = None
    body: bytes | None = None
    content_type: str = JSON


class KubeClient:
    """One API server with a pool of connections. ``async with`` it, or ``close`` it.

    Must be made inside a running event loop.
    """

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
        """Read the kubeconfig, or the account of the pod when there is none. Without qps there is no limit.

        ``listener`` is told of every request once its answer has begun, or has not come.

        Raises:
            KubeconfigError: what is there cannot be used; the API server itself is not asked yet.
        """
        limit = TokenBucket(qps=qps, burst=burst or max(1, round(2 * qps))) if qps else None
        credentials = await KubeCredentials.from_source(source_for(kubeconfig))
        return cls(credentials, user_agent=user_agent, rate_limit=limit, listener=listener)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close every connection."""
        await self._session.close()
        for _ in range(TURNS_TO_CLOSE):
            await asyncio.sleep(0)

    @property
    def server(self) -> str:
        """The API server's URL."""
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
        """Send a request and read the whole answer. ``path`` goes on the wire as it is.

        Raises:
            ApiUnreachableError: there was no answer, or not all of it.
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
        """GET an answer that goes on, such as a watch. ``read_timeout`` is the longest silence once it has begun.

        Raises:
            ApiUnreachableError: no answer, a broken connection, or silence; at the start or while reading.
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
            _hang_up(answer)

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
            answer = await self._send_unheard(call, headers)
            status = answer.status
        finally:
            self._tell(call.method, status, time.monotonic() - began)
        return answer

    async def _send_unheard(self, call: _Call, headers: Headers) -> aiohttp.ClientResponse:
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

    def _tell(self, method: str, status: int, seconds: float) -> None:
        if self._listener is not None:
            host = urlsplit(self._credentials.server).netloc
            self._listener(Exchange(method=method, host=host, status=status, seconds=seconds))

    def _unreachable(self, call: _Call, exc: Exception) -> ApiUnreachableError:
        text = f"{call.method} {self.server}{call.path}: {_cause(call, exc)}"
        never_sent = isinstance(exc, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError)
        return ApiUnreachableError(text, maybe_sent=not never_sent)


def _session(user_agent: str) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=CONNECTIONS, keepalive_timeout=KEEP_ALIVE.total_seconds()),
        # Compressing a LIST costs the API server more than sending it does.
        headers={"User-Agent": user_agent, "Accept": JSON, "Accept-Encoding": "identity"},
        cookie_jar=aiohttp.DummyCookieJar(),
        read_bufsize=READ_BUFFER_BYTES,
    )


def _hang_up(answer: aiohttp.ClientResponse) -> None:
    """End an answer that goes on: at once, since a farewell by TLS would wait for one in return."""
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
    if isinstance(exc, aiohttp.ClientConnectorError):  # whose own words print the TLS context as an object
        return f"no connection to {exc.host}:{exc.port}: {_words(exc.os_error)}"
    return _words(exc)


def _words(exc: BaseException) -> str:
    if isinstance(exc, ConnectionError) and exc.errno:
        return os.strerror(exc.errno)
    return " ".join(str(exc).split()) or type(exc).__name__
