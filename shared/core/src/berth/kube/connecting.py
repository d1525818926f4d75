"""Connecting to the API server: addresses, TLS, proxies."""

from __future__ import annotations

import asyncio
import base64
import socket
import ssl
from collections import deque
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import SplitResult, unquote, urlsplit

from berth.kube.credentials import Access
from berth.kube.http1 import HEAD_BYTES, fields, parse_head
from berth.tls import client_context

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
