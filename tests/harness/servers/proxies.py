"""Proxies that break connections: one for the HTTP of an API server, one for the bytes of any TCP server.

    with proxies() as start:
        api = start.api(plane.url, plane.ca_path, plane.token)      # api.kubeconfig(path), api.answer(429, count=10)
        nats = start.tcp(server.port)                               # nats.port, nats.cut(), nats.half_open()

They run in a thread with an event loop of its own, so that a test that waits for a process does not stop them. All
methods may be called from any thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import aiohttp
from aiohttp import web

from harness.servers.child_processes import free_ports

T = TypeVar("T")

LOOPBACK = "127.0.0.1"
CHUNK = 64 * 1024
OWN_HEADERS = frozenset({"host", "connection", "transfer-encoding", "content-length", "keep-alive"})
"""Headers of a hop, which a proxy does not pass on."""
REASONS = {409: "Conflict", 429: "TooManyRequests", 500: "InternalError"}
WRITES = frozenset({"POST", "PUT", "PATCH", "DELETE"})


class Line:
    """What is wrong with the connections of one proxy at this moment; both proxies ask it before they pass bytes on."""

    def __init__(self) -> None:
        self.delay_seconds = 0.0
        self._silent = False
        self._never = asyncio.Event()  # keeps hold of the tasks that wait for it
        self._dead: set[asyncio.BaseTransport] = set()
        self._open: set[asyncio.Transport] = set()

    def entered(self, transport: asyncio.Transport) -> None:
        self._open.add(transport)

    def left(self, transport: asyncio.Transport) -> None:
        self._open.discard(transport)
        self._dead.discard(transport)

    def cut(self) -> None:
        """Reset every connection; new ones are accepted."""
        for transport in list(self._open):
            reset(transport)

    def half_open(self) -> None:
        """Swallow everything from now on, without closing; `heal` ends it for new connections only."""
        self._silent = True
        self._dead |= self._open

    def heal(self) -> None:
        """New connections work again. Those that went silent stay so until their client closes them."""
        self._silent, self.delay_seconds = False, 0.0

    async def passes(self, transport: asyncio.BaseTransport) -> None:
        """Wait until bytes of this connection may be passed on; on a silent one this never returns."""
        if self._silent:
            self._dead.add(transport)
        if transport in self._dead:
            await self._never.wait()
        if self.delay_seconds:
            await asyncio.sleep(self.delay_seconds)


def reset(transport: asyncio.Transport) -> None:
    """Close so that the other end reads a reset (ECONNRESET) and not an orderly end."""
    if transport.is_closing():
        return
    if (connection := transport.get_extra_info("socket")) is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()


class Proxy:
    """What every proxy can be told from another thread."""

    def __init__(self, loop: ProxyLoop) -> None:
        self._loop = loop
        self._line = Line()

    def cut(self) -> None:
        """Reset every connection; new ones are accepted."""
        self._loop.call(self._line.cut)

    def half_open(self) -> None:
        """Pass nothing on, and close nothing; also for connections that are made meanwhile."""
        self._loop.call(self._line.half_open)

    def delay(self, seconds: float) -> None:
        """Hold each piece of data for this long, in both directions."""
        self._loop.call(lambda: setattr(self._line, "delay_seconds", seconds))


class TcpProxy(Proxy):
    """Passes bytes between clients and one server."""

    def __init__(self, loop: ProxyLoop, port: int, to_port: int) -> None:
        super().__init__(loop)
        self.port = port
        self._to_port = to_port

    async def start(self) -> None:
        await asyncio.start_server(self._serve, LOOPBACK, self.port)

    def heal(self) -> None:
        """End delay and silence; a connection that went silent stays so."""
        self._loop.call(self._line.heal)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        client = writer.transport
        self._line.entered(client)
        with contextlib.suppress(
            OSError, asyncio.CancelledError
        ):  # cancelled at the end only, and asyncio would log it
            await self._line.passes(client)
            await self._connect(client, reader, writer)
        client.abort()
        self._line.left(client)

    async def _connect(
        self, client: asyncio.Transport, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        to_reader, to_writer = await asyncio.open_connection(LOOPBACK, self._to_port)
        try:
            up = asyncio.ensure_future(self._pump(client, reader, to_writer))
            down = asyncio.ensure_future(self._pump(client, to_reader, writer))
            closed = asyncio.ensure_future(_closed(reader))
            await asyncio.wait({up, down, closed}, return_when=asyncio.FIRST_COMPLETED)
            for task in (up, down, closed):
                task.cancel()
        finally:
            to_writer.transport.abort()

    async def _pump(
        self, client: asyncio.Transport, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(CHUNK):
                await self._line.passes(client)
                writer.write(data)
                await writer.drain()


async def _closed(reader: asyncio.StreamReader) -> None:
    """Return when the client of a silent connection has closed it."""
    while not reader._eof and reader.exception() is None:  # noqa: ASYNC110 - StreamReader has no event for it
        await asyncio.sleep(0.2)


@dataclass(slots=True, kw_only=True)
class Misbehaviour:
    """What happens to the next `count` requests that match."""

    code: int | None
    """The answer in place of the server's; None: the request is passed on and its connection reset afterwards."""
    count: int
    matches: Callable[[str, str], bool]


def is_write(method: str, path: str) -> bool:
    return method in WRITES


def is_binding(method: str, path: str) -> bool:
    return method == "POST" and path.endswith("/binding")


class ApiProxy(Proxy):
    """Plain HTTP in front of an API server."""

    def __init__(self, loop: ProxyLoop, port: int, server: str, ca_path: Path | None, token: str) -> None:
        super().__init__(loop)
        self.url = f"http://{LOOPBACK}:{port}"
        self._port = port
        self._server = server
        self._trust = ssl.create_default_context(cafile=str(ca_path)) if ca_path is not None else False
        self._token = token
        self._pending: list[Misbehaviour] = []

    async def start(self) -> None:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=self._trust, limit=0),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=10),
            auto_decompress=False,
        )
        handler = web.Server(self._serve, handler_cancellation=True, access_log=None, keepalive_timeout=3600)
        await asyncio.get_running_loop().create_server(handler, LOOPBACK, self._port)

    async def close(self) -> None:
        await self._session.close()

    def write_kubeconfig(self, path: Path) -> Path:
        """Write a kubeconfig that leads through the proxy, with all rights."""
        cluster = {"name": "proxied", "cluster": {"server": self.url}}
        user = {"name": "admin", "user": {"token": self._token}}
        context = {"name": "admin", "context": {"cluster": "proxied", "user": "admin"}}
        content = {"apiVersion": "v1", "kind": "Config", "current-context": "admin"}
        path.write_text(json.dumps({**content, "clusters": [cluster], "users": [user], "contexts": [context]}))
        return path

    def answer(self, code: int, count: int, matches: Callable[[str, str], bool] = is_write) -> None:
        """Answer the next `count` matching requests with this code, without passing them on."""
        self._loop.call(lambda: self._pending.append(Misbehaviour(code=code, count=count, matches=matches)))

    def reset_after(self, count: int, matches: Callable[[str, str], bool] = is_write) -> None:
        """Pass the next `count` matching requests on and reset the connection in place of the answer."""
        self._loop.call(lambda: self._pending.append(Misbehaviour(code=None, count=count, matches=matches)))

    def heal(self) -> None:
        """End everything; a connection that went silent stays so."""
        self._loop.call(self._line.heal)
        self._loop.call(self._pending.clear)

    async def _serve(self, request: web.BaseRequest) -> web.StreamResponse:
        transport = request.transport
        assert transport is not None
        self._line.entered(transport)
        try:
            body = await request.read()
            await self._line.passes(transport)
            fault = self._next(request.method, request.path)
            if fault is not None and fault.code is not None:
                return _refusal(fault.code)
            return await self._pass(request, body, resets=fault is not None)
        except (aiohttp.ClientError, OSError):
            transport.abort()
            return web.Response(status=502)
        finally:
            if transport.is_closing():
                self._line.left(transport)

    def _next(self, method: str, path: str) -> Misbehaviour | None:
        for each in self._pending:
            if each.matches(method, path):
                each.count -= 1
                if not each.count:
                    self._pending.remove(each)
                return each
        return None

    async def _pass(self, request: web.BaseRequest, body: bytes, *, resets: bool) -> web.StreamResponse:
        transport = request.transport
        assert transport is not None
        headers = {name: value for name, value in request.headers.items() if name.lower() not in OWN_HEADERS}
        async with self._session.request(
            request.method, f"{self._server}{request.raw_path}", headers=headers, data=body or None
        ) as answer:
            if resets:
                await answer.read()
                reset(transport)
                return web.Response(status=502)
            passed = {name: value for name, value in answer.headers.items() if name.lower() not in OWN_HEADERS}
            response = web.StreamResponse(status=answer.status, reason=answer.reason, headers=passed)
            if answer.content_length is not None:
                response.content_length = answer.content_length
            await self._line.passes(transport)
            await response.prepare(request)
            async for data in answer.content.iter_any():
                await self._line.passes(transport)
                await response.write(data)
            return response


def _refusal(code: int) -> web.Response:
    status = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "code": code}
    status |= {"reason": REASONS[code], "message": f"the proxy answers {code}"}
    headers = {"Retry-After": "1"} if code == 429 else {}
    return web.json_response(status, status=code, headers=headers)


class ProxyLoop:
    """The thread in which proxies run."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxies", daemon=True)
        self._thread.start()
        self._closing: list[Callable[[], Coroutine[object, object, None]]] = []

    def tcp(self, to_port: int) -> TcpProxy:
        """Start a proxy in front of a port of the loopback address."""
        proxy = TcpProxy(self, free_ports(1)[0], to_port)
        self._run(proxy.start())
        return proxy

    def api(self, server: str, ca_path: Path | None, token: str) -> ApiProxy:
        """Start a proxy in front of an API server."""
        proxy = ApiProxy(self, free_ports(1)[0], server, ca_path, token)
        self._run(proxy.start())
        self._closing.append(proxy.close)
        return proxy

    def call(self, do: Callable[[], object]) -> None:
        """Do something in the thread of the proxies."""
        self._loop.call_soon_threadsafe(do)

    def _run(self, work: Coroutine[object, object, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(10)

    def end(self) -> None:
        """Drop everything."""
        self._run(self._drop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)
        self._loop.close()

    async def _drop(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        for close in self._closing:
            await close()


@contextmanager
def proxies() -> Iterator[ProxyLoop]:
    """The thread of the proxies; it has ended when the block has."""
    loop = ProxyLoop()
    try:
        yield loop
    finally:
        loop.end()
