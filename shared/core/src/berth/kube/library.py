"""kubernetes_asyncio's ApiClient, for every request that is not on a pod's way (docs/adr/0007).

berth provides credentials, time limit and aiohttp session: the library's own session uses a proxy for the local machine
too, and passwords of a .netrc.

Importing the library takes 0.25 s of CPU and 37 MiB, so watcher and binder import it
before they freeze what the garbage collector need not scan (``gc.freeze``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import aiohttp
from kubernetes_asyncio.client import ApiClient, Configuration

from berth.errors import cause_of
from berth.kube.connections import CONNECT_SECONDS, UNKNOWN_AUTHORITY, Check, NoAnswerError
from berth.kube.credentials import Access
from berth.kube.http1 import ANSWER_BYTES, Response, parse_retry_after

# Seconds that an idle connection is kept: longer than the pause between two renewals of a Lease.
KEEP_SECONDS: Final = 15.0
_CHUNK: Final = 65_536


class LibraryCall(NamedTuple):
    """A request with its time limit and check."""

    method: str
    path: str
    body: Mapping[str, Any] | None
    content_type: str
    seconds: float  # Until the whole answer, connecting included.
    check: Check | None  # Called right before the request is sent. If it raises, nothing is sent.


@dataclass(slots=True, kw_only=True)
class _Sending:
    check: Check | None
    is_repeatable: bool
    has_begun: bool = False


_sending: ContextVar[_Sending] = ContextVar("sending")


async def _before_bytes(*_trace: object) -> None:
    sending = _sending.get()
    if sending.has_begun and not sending.is_repeatable:
        # aiohttp sends a PUT or DELETE again when the server has closed the connection.
        raise NoAnswerError("the server closed the connection")
    if sending.check is not None:
        sending.check()
    sending.has_begun = True


class _RedirectedError(Exception):
    """The answer is a redirect, which is not followed."""


async def _on_redirect(_session: object, _context: object, sent: aiohttp.TraceRequestRedirectParams) -> None:
    sent.response.close()
    raise _RedirectedError(sent.response.status)


@dataclass(slots=True, eq=False)
class _Connected:
    api: ApiClient
    place: tuple[object, ...]
    running: int = 0


class LibraryClient:
    """Sends requests to one server at a time. Create it inside a running event loop, and call ``close``."""

    def __init__(self, user_agent: str, headers: Mapping[str, str]) -> None:
        self._user_agent = user_agent
        self._headers = dict(headers)
        self._current: _Connected | None = None
        self._all: set[_Connected] = set()

    async def call(self, access: Access, headers: Mapping[str, str], call: LibraryCall) -> Response:
        """Send a request and read the whole answer of any status. Redirects are not followed.

        Raises:
            NoAnswerError: no valid answer in time.
        """
        connected = await self._connected(access)
        connected.running += 1
        sending = _Sending(check=call.check, is_repeatable=call.method == "GET")
        token = _sending.set(sending)
        try:
            return await _exchange(connected.api, headers, call)
        except TimeoutError as exc:
            if sending.has_begun and connected is self._current:
                self._current = None  # the peer may be dead: its idle connections are not used again
            raise NoAnswerError(_timeout_cause(exc, access, call)) from exc
        except (aiohttp.ClientError, OSError, ValueError) as exc:
            raise NoAnswerError(_cause(exc)) from exc
        finally:
            _sending.reset(token)
            connected.running -= 1
            await self._close_unused()

    async def close(self) -> None:
        """Close all connections. Running requests end without an answer."""
        for connected in list(self._all):
            self._all.discard(connected)
            await connected.api.close()

    async def _connected(self, access: Access) -> _Connected:
        place = (access.server, access.tls, access.server_name, access.proxy)
        if self._current is None or self._current.place != place:
            self._current = _Connected(await self._api(access), place)
            self._all.add(self._current)
            await self._close_unused()
        return self._current

    async def _close_unused(self) -> None:
        for connected in [each for each in self._all if each is not self._current and not each.running]:
            self._all.discard(connected)
            await connected.api.close()

    async def _api(self, access: Access) -> ApiClient:
        trace = aiohttp.TraceConfig()
        trace.on_request_headers_sent.append(_before_bytes)  # called before the headers are sent, despite its name
        trace.on_request_redirect.append(_on_redirect)
        api = ApiClient(Configuration(host=access.server))
        api.user_agent = self._user_agent
        await api.rest_client.close()
        api.rest_client.pool_manager = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=access.tls or True, keepalive_timeout=KEEP_SECONDS),
            headers=self._headers,
            cookie_jar=aiohttp.DummyCookieJar(),
            trace_configs=[trace],
        )
        if access.server_name:
            api.rest_client.server_hostname = access.server_name
        if access.proxy:
            api.rest_client.proxy = access.proxy
        return api


async def _exchange(api: ApiClient, headers: Mapping[str, str], call: LibraryCall) -> Response:
    connecting = min(CONNECT_SECONDS, call.seconds)
    # Without ceil_threshold aiohttp would round the seconds up, and a Lease would be renewed for too long.
    limit = aiohttp.ClientTimeout(total=call.seconds, connect=connecting, ceil_threshold=math.inf)
    try:
        answer: aiohttp.ClientResponse = await api.call_api(
            call.path,
            call.method,
            header_params={"Content-Type": call.content_type, **headers},
            body=call.body,
            _preload_content=False,
            _request_timeout=limit,
        )
    except _RedirectedError as exc:
        return Response(status=exc.args[0], body=b"")
    async with answer:
        body = bytearray()
        async for piece in answer.content.iter_chunked(_CHUNK):
            body += piece
            if len(body) > ANSWER_BYTES:
                answer.close()
                raise ValueError(f"an answer of more than {ANSWER_BYTES} bytes")
        retry_after = parse_retry_after(answer.headers.get("Retry-After"))
        return Response(status=answer.status, body=bytes(body), retry_after=retry_after)


def _timeout_cause(exc: TimeoutError, access: Access, call: LibraryCall) -> str:
    if isinstance(exc, aiohttp.ConnectionTimeoutError):
        host = access.server.partition("://")[2].partition("/")[0]
        return f"no connection to {host} within {min(CONNECT_SECONDS, call.seconds):g} s"
    return f"no answer within {call.seconds:g} s"


def _cause(exc: Exception) -> str:
    if isinstance(exc, aiohttp.ClientConnectorCertificateError):
        return f"no connection to {exc.host}:{exc.port}: {cause_of(exc.certificate_error)}{UNKNOWN_AUTHORITY}"
    if isinstance(exc, aiohttp.ClientConnectorError):  # its own text prints the TLS context as an object
        return f"no connection to {exc.host}:{exc.port}: {cause_of(exc.os_error)}"
    return cause_of(exc)
