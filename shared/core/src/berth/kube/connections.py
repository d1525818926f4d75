"""Connections to the API server (addresses, TLS, proxies), kept open and reused, each for one request at a time.

Requests need no task and no timer of their own: an idle connection sends the bytes at once, the answer resolves one
future, and one timer for the pool finds overdue requests and connections.
"""

from __future__ import annotations

import asyncio
import base64
import socket
import ssl
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, cast
from urllib.parse import SplitResult, unquote, urlsplit

from berth.errors import cause_of
from berth.kube.credentials import Access
from berth.kube.http1 import ANSWER_BYTES, HEAD_BYTES, Answer, AnswerReader, BadAnswerError, fields, parse_head
from berth.tls import client_context

# Time limit of connecting, TLS included: a renewal of a Lease has time for two tries.
CONNECT_SECONDS: Final = 5.0
# Seconds that an idle connection is kept: less than the API server's 90 s, so that the client closes it first.
IDLE_SECONDS: Final = 60.0
# Maximum connections: 32 Bindings, Events, a LIST per kind, and spare ones. Further requests wait.
CONNECTIONS: Final = 64
# Connections that are opened at a time. Further requests wait for one of these, or for any that is free: with TLS, one
# takes 6 ms of CPU of both sides, and a request 1 ms.
OPENED_AT_ONCE: Final = 4
# Seconds that a timer may fire too early: the event loop counts milliseconds.
CLOCK_STEP: Final = 0.002

# Raises if a request must not be sent.
Check = Callable[[], None]

UNKNOWN_AUTHORITY: Final = ": the kubeconfig must have the authority of its certificate (certificate-authority-data)"


class NoAnswerError(Exception):
    """No complete answer: the server may have executed the request."""


class _StaleError(NoAnswerError):
    """An idle connection was closed without an answer, most likely while the request was on its way."""


class Call(NamedTuple):
    """A request with its limits and check."""

    request: bytes
    seconds: float  # Until the whole answer, connecting included.
    largest: int = ANSWER_BYTES  # Maximum bytes of the answer's body.
    # Called right before the request is sent, without a wait in between. If it raises, nothing is sent.
    check: Check | None = None
    # Whether it changes no object: it is sent once more if an idle connection was closed.
    is_repeatable: bool = False


class ConnectionPool:
    """Sends requests to one server at a time. Create it inside a running event loop, and call ``close``."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._server: Server | None = None
        self._all: set[_Connection] = set()
        self._idle: list[_Connection] = []  # The last used first, so that surplus connections expire.
        self._connecting = 0
        self._waiting: deque[asyncio.Future[_Connection | None]] = deque()
        self._sweep: asyncio.TimerHandle | None = None
        self._sweep_time = 0.0
        self._is_closed = False

    async def exchange(self, server: Server, call: Call) -> Answer:
        """Send a request and wait for its whole answer.

        Raises:
            NoAnswerError: no valid answer in time.
        """
        deadline = self._loop.time() + call.seconds
        try:
            return await self._exchange(await self._connection(server, call, deadline), call, deadline)
        except _StaleError:
            if not call.is_repeatable:
                raise
        return await self._exchange(await self._connect(server, call, deadline), call, deadline)

    async def _exchange(self, connection: _Connection, call: Call, deadline: float) -> Answer:
        if call.check is not None:
            try:
                call.check()
            except BaseException:
                self.release(connection)
                raise
        answer = connection.send(call, deadline)
        self._sweep_by(deadline)
        try:
            return await answer
        except BaseException:
            connection.give_up(answer)
            raise

    def close(self) -> None:
        """Close all connections. Waiting requests get no answer."""
        self._is_closed = True
        if self._sweep is not None:
            self._sweep.cancel()
        for connection in list(self._all):
            connection.abort()
        self._wake()

    # Selecting a connection.

    async def _connection(self, server: Server, call: Call, deadline: float) -> _Connection:
        # Does not wait if a connection is idle.
        if server is not self._server:
            self._turn_to(server)
        has_waited = False
        while True:
            while self._idle:
                connection = self._idle.pop()
                if connection.is_open:
                    return connection
            if self._has_room:
                return await self._connect(server, call, deadline)
            freed = await self._wait(call, deadline, first=has_waited)
            if freed is not None and freed.is_open:
                if freed.server == server:
                    return freed
                freed.abort()
            has_waited = True

    @property
    def _has_room(self) -> bool:
        may_connect = self._connecting < OPENED_AT_ONCE and len(self._all) + self._connecting < CONNECTIONS
        return self._is_closed or may_connect

    def _turn_to(self, server: Server) -> None:
        # Connections to another server, or with other certificates, are not reused.
        if server != self._server:
            for connection in self._idle:
                connection.abort()
            self._idle.clear()
        self._server = server

    async def _wait(self, call: Call, deadline: float, *, first: bool) -> _Connection | None:
        # Waits until a connection is free, or (None) until another one may be opened.
        freed: asyncio.Future[_Connection | None] = self._loop.create_future()
        (self._waiting.appendleft if first else self._waiting.append)(freed)
        try:
            async with asyncio.timeout_at(deadline):
                return await freed
        except BaseException as exc:
            if freed.done() and not freed.cancelled() and (connection := freed.result()) is not None:
                self.release(connection)
            self._wake()
            if isinstance(exc, TimeoutError):
                raise NoAnswerError(f"no free connection within {call.seconds:g} s") from exc
            raise

    async def _connect(self, server: Server, call: Call, deadline: float) -> _Connection:
        if self._is_closed:
            raise NoAnswerError("the client is closed")
        connection = _Connection(self, server, self._loop)
        self._connecting += 1
        try:
            async with asyncio.timeout_at(min(deadline, self._loop.time() + CONNECT_SECONDS)):
                await connect(server, connection)
        except asyncio.CancelledError:
            connection.abort()
            raise
        except TimeoutError as exc:
            connection.abort()
            seconds = min(CONNECT_SECONDS, call.seconds)
            cause = f"no connection to {server.host}:{server.port} within {seconds:g} s"
            raise NoAnswerError(cause) from exc
        except (OSError, ValueError) as exc:
            remedy = UNKNOWN_AUTHORITY if isinstance(exc, ssl.SSLCertVerificationError) else ""
            cause = f"no connection to {server.host}:{server.port}: {cause_of(exc)}{remedy}"
            raise NoAnswerError(cause) from exc
        finally:
            self._connecting -= 1
            self._wake()
        if self._is_closed or not connection.is_open:
            connection.abort()
            raise NoAnswerError("the connection was closed before it was used")
        return connection

    def opened(self, connection: _Connection) -> None:
        self._all.add(connection)

    def release(self, connection: _Connection) -> None:
        """A connection is free: pass it to the longest waiting request, or keep it idle."""
        if not connection.is_open:
            return
        connection.deadline = self._loop.time() + IDLE_SECONDS
        while self._waiting:
            waiting = self._waiting.popleft()
            if not waiting.done():
                waiting.set_result(connection)
                return
        if connection.server != self._server:
            connection.abort()
            return
        self._idle.append(connection)
        self._sweep_by(connection.deadline)

    def lost(self, connection: _Connection) -> None:
        self._all.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)
        self._wake()

    def _wake(self) -> None:
        # Another connection may be opened: wake the longest waiting request.
        while self._waiting and self._has_room:
            waiting = self._waiting.popleft()
            if not waiting.done():
                waiting.set_result(None)
                if not self._is_closed:
                    return

    # The one timer.

    def _sweep_by(self, time: float) -> None:
        # Most requests have the same time limit, and then need no new timer.
        if self._is_closed or (self._sweep is not None and self._sweep_time <= time):
            return
        if self._sweep is not None:
            self._sweep.cancel()
        self._sweep, self._sweep_time = self._loop.call_at(time, self._give_up_overdue), time

    def _give_up_overdue(self) -> None:
        # Give up overdue requests and connections. A request without a byte of an answer suggests a dead peer:
        # connections idle for as long are closed too, because each would cost another request its time.
        self._sweep = None
        now = self._loop.time() + CLOCK_STEP
        silent = [each.since for each in self._all if each.is_overdue(now) and each.is_silent]
        for connection in list(self._all):
            if connection.is_overdue(now) or (silent and not connection.is_busy and connection.since <= max(silent)):
                connection.expire()
        left = [connection.deadline for connection in self._all if connection.is_open]
        if left:
            self._sweep_by(min(left))


class _Connection(asyncio.Protocol):
    """One connection, idle or with one request.

    Without flow control: one request or answer of limited size at a time.
    """

    def __init__(self, pool: ConnectionPool, server: Server, loop: asyncio.AbstractEventLoop) -> None:
        self.server = server
        self.since = loop.time()  # When the last request was sent, or its answer arrived.
        self.deadline = self.since + IDLE_SECONDS  # When to give up the request, or the idle connection.
        self._pool = pool
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._is_lost = False
        self._reader = AnswerReader()
        self._answer: asyncio.Future[Answer] | None = None
        self._seconds = 0.0
        self._has_served = False

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    @property
    def is_busy(self) -> bool:
        return self._answer is not None

    @property
    def is_silent(self) -> bool:
        """Whether no byte of an awaited answer has arrived."""
        return self._answer is not None and self._reader.is_empty

    def is_overdue(self, now: float) -> bool:
        return self.deadline <= now

    def send(self, call: Call, deadline: float) -> asyncio.Future[Answer]:
        """Send a request. The connection must be open and idle."""
        if self._transport is None or self._answer is not None:
            raise AssertionError("sending on a connection: want one that is open and idle")
        self._reader.expect(call.largest)
        self.since, self.deadline, self._seconds = self._loop.time(), deadline, call.seconds
        self._answer = answer = self._loop.create_future()
        self._transport.write(call.request)
        return answer

    def give_up(self, answer: asyncio.Future[Answer]) -> None:
        """The caller is gone: close the connection, because the answer may still arrive."""
        if self._answer is answer:
            self._answer = None
            self.abort()

    def expire(self) -> None:
        self._fail(NoAnswerError(f"no answer within {self._seconds:g} s"))
        self.abort()

    def abort(self) -> None:
        """Close without TLS's closing handshake, which would wait for the peer."""
        if self._transport is not None:
            self._transport.abort()

    # Callbacks of the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if not self._is_lost:
            self._transport = cast("asyncio.Transport", transport)
            self._pool.opened(self)

    def data_received(self, data: bytes) -> None:
        if self._answer is None:  # an answer without a request, such as a proxy's 408
            self.abort()
            return
        try:
            answer = self._reader.feed(data)
        except BadAnswerError as exc:
            self._fail(NoAnswerError(f"an answer that cannot be read: {exc}"))
            self.abort()
            return
        if answer is not None:
            self._resolve(answer)

    def eof_received(self) -> None:
        self._end(None)
        self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(exc)
        self._is_lost = True
        if self._transport is not None:
            self._transport = None
            self._pool.lost(self)

    def _end(self, exc: Exception | None) -> None:
        # The end of the connection may also be the end of an answer.
        if self._answer is None:
            return
        if exc is None and (answer := self._reader.end()) is not None:
            self._resolve(answer)
        elif self._has_served and self._reader.is_empty:
            self._fail(_StaleError("the server closed the connection"))
        else:
            cause = cause_of(exc) if exc else "the server closed the connection before its answer was complete"
            self._fail(NoAnswerError(cause))

    def _resolve(self, answer: Answer) -> None:
        # The connection is free for the next request before the caller continues.
        waiting, self._answer = self._answer, None
        self._has_served = True
        self.since = self._loop.time()
        if answer.keeps:
            self._pool.release(self)
        else:
            self.abort()
        if waiting is not None and not waiting.done():
            waiting.set_result(answer)

    def _fail(self, error: NoAnswerError) -> None:
        waiting, self._answer = self._answer, None
        if waiting is not None and not waiting.done():
            waiting.set_exception(error)


# Pause before the host's next address is tried in parallel (RFC 8305).
NEXT_ADDRESS_SECONDS: Final = 0.25
_PORTS: Final = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """Address, TLS and proxy of a server. A connection belongs to one Server, so that credentials reach no other."""

    host: str
    port: int
    tls: ssl.SSLContext | None
    name: str  # The name in the certificate.
    proxy: str | None
    # Stands before the path in the request line: the path of the URL, or the whole URL for a forwarding proxy.
    prefix: str
    # Header lines from the URL: Host, and the credentials for a forwarding proxy.
    shared: bytes

    @classmethod
    def of(cls, access: Access) -> Server:
        """The server of these credentials.

        Raises:
            ValueError: invalid URL.
        """
        url = urlsplit(access.server)
        host, port = _address(url)
        if url.scheme == "https" and access.tls is None:
            raise ValueError(f"connecting to {access.server}: want its certificates")
        origin = _bracketed(host)
        origin = origin if port == _PORTS[url.scheme] else f"{origin}:{port}"
        shared, prefix = fields({"Host": origin}), url.path
        if access.proxy is not None:
            proxy = urlsplit(access.proxy)
            _address(proxy)
            if access.tls is None:
                prefix = f"http://{origin}{prefix}"
                shared += _proxy_fields(proxy)
        name = access.server_name or host.rstrip(".")
        return cls(host=host, port=port, tls=access.tls, name=name, proxy=access.proxy, prefix=prefix, shared=shared)


async def connect(server: Server, protocol: asyncio.Protocol) -> None:
    """Connect the protocol to the server, directly or through its proxy: a tunnel (CONNECT) for TLS, else forwarding.

    Raises:
        OSError, ValueError: no connection, TLS included.
    """
    loop = asyncio.get_running_loop()
    if server.proxy is None:
        await _connect_to(server.host, server.port, protocol, server.tls, server.name)
        return
    proxy = urlsplit(server.proxy)
    host, port = _address(proxy)
    tls_to_proxy = client_context() if proxy.scheme == "https" else None
    if server.tls is None:
        await _connect_to(host, port, protocol, tls_to_proxy, host)
        return
    tunnel = _Tunnel(loop)
    outer = await _connect_to(host, port, tunnel, tls_to_proxy, host)
    try:
        await tunnel.establish(outer, server, proxy)
        inner = await loop.start_tls(outer, protocol, server.tls, server_hostname=server.name)
    except BaseException:
        outer.abort()
        raise
    if inner is None:
        raise ConnectionResetError("the proxy closed the connection")
    protocol.connection_made(inner)


async def _connect_to(
    host: str, port: int, protocol: asyncio.Protocol, tls: ssl.SSLContext | None, name: str
) -> asyncio.Transport:
    loop = asyncio.get_running_loop()
    sock = await _connected_socket(loop, host, port)
    name_to_check = name if tls else None
    transport, _ = await loop.create_connection(lambda: protocol, sock=sock, ssl=tls, server_hostname=name_to_check)
    return transport


class _Tunnel(asyncio.Protocol):
    """The connection to a proxy, until the proxy has connected it to the server."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._head: asyncio.Future[bytes] = loop.create_future()
        self._received = b""

    async def establish(self, transport: asyncio.Transport, server: Server, proxy: SplitResult) -> None:
        """Ask the proxy to connect to the server.

        Raises:
            OSError, BadAnswerError: it does not.
        """
        to = f"{_bracketed(server.host)}:{server.port}"
        transport.write(b"CONNECT %b HTTP/1.1\r\n%b%b\r\n" % (to.encode(), fields({"Host": to}), _proxy_fields(proxy)))
        status = parse_head(await self._head).status
        if status // 100 != 2:  # 2xx is success
            raise ConnectionRefusedError(f"the proxy {proxy.hostname} answered {status}")

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, end, rest = self._received.partition(b"\r\n\r\n")
        if self._head.done():
            return
        if rest or len(self._received) > HEAD_BYTES:  # a server of TLS waits for the client to begin
            self._head.set_exception(ConnectionResetError("the proxy sent more than an answer"))
        elif end:
            self._head.set_result(head)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._head.done():
            self._head.set_exception(exc or ConnectionResetError("the proxy closed the connection"))


async def _connected_socket(loop: asyncio.AbstractEventLoop, host: str, port: int) -> socket.socket:
    """A socket to the address of the host that connects first, each tried a little after the one before.

    Raises:
        OSError: the last failure.
    """
    addresses = deque(await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM))
    trying: set[asyncio.Task[socket.socket]] = set()
    failure: BaseException = OSError("its name has no address")
    try:
        while addresses or trying:
            if addresses:
                family, kind, protocol, _, address = addresses.popleft()
                trying.add(loop.create_task(_connect_socket(loop, socket.socket(family, kind, protocol), address)))
            pause = NEXT_ADDRESS_SECONDS if addresses else None
            done, trying = await asyncio.wait(trying, timeout=pause, return_when=asyncio.FIRST_COMPLETED)
            connected = [each.result() for each in done if each.exception() is None]
            for other in connected[1:]:
                other.close()
            if connected:
                return connected[0]
            failure = next((error for each in done if (error := each.exception())), failure)
    finally:
        for each in trying:
            each.cancel()
    raise failure


async def _connect_socket(loop: asyncio.AbstractEventLoop, sock: socket.socket, address: Any) -> socket.socket:
    try:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        await loop.sock_connect(sock, address)
    except BaseException:
        sock.close()
        raise
    return sock


def _address(url: SplitResult) -> tuple[str, int]:
    if url.scheme not in _PORTS or not url.hostname:
        raise ValueError(f"connecting to {url.scheme}://{url.hostname or ''}: want http:// or https:// and a host")
    return url.hostname, url.port or _PORTS[url.scheme]


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host.encode("idna").decode()


def _proxy_fields(proxy: SplitResult) -> bytes:
    return b"" if proxy.username is None else fields({"Proxy-Authorization": _basic(proxy)})


def _basic(url: SplitResult) -> str:
    user = f"{unquote(url.username or '')}:{unquote(url.password or '')}"
    return f"Basic {base64.b64encode(user.encode()).decode()}"
