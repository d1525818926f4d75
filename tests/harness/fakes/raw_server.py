"""A TCP server whose every byte is the test's: for answers that an HTTP library would not send."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

Serve = Callable[["Peer"], Awaitable[None]]


@dataclass
class Peer:
    """One connection, seen from the server."""

    number: int
    """The how manieth connection it is, from 1."""
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def request(self) -> bytes:
        """The next request, head and body; empty at the end of the connection."""
        try:
            head = await self.reader.readuntil(b"\r\n\r\n")
        except (asyncio.IncompleteReadError, ConnectionError):
            return b""
        length = head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0]
        return head + (await self.reader.readexactly(int(length)) if length else b"")

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    def answer(self, body: bytes = b"", status: int = 200, head: bytes = b"") -> None:
        self.send(b"HTTP/1.1 %d X\r\n%bContent-Length: %d\r\n\r\n%b" % (status, head, len(body), body))

    def close(self) -> None:
        self.writer.close()

    def reset(self) -> None:
        self.writer.transport.abort()


@dataclass
class RawServer:
    """The server: where it listens, and what has been connected and asked for so far."""

    port: int = 0
    peers: list[Peer] = field(default_factory=list)
    requests: list[bytes] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@asynccontextmanager
async def raw_server(serve: Serve | None = None, tls: ssl.SSLContext | None = None) -> AsyncIterator[RawServer]:
    """Call ``serve`` for each connection. Without it every request gets an empty answer of 200."""
    raw, tasks = RawServer(), set()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        tasks.add(task)
        peer = Peer(len(raw.peers) + 1, reader, writer)
        raw.peers.append(peer)
        with suppress(ConnectionError, asyncio.CancelledError):
            await (serve or polite)(peer)
        writer.transport.abort()
        tasks.discard(task)

    async def polite(peer: Peer) -> None:
        while request := await peer.request():
            raw.requests.append(request)
            peer.answer()

    server = await asyncio.start_server(connected, "127.0.0.1", 0, ssl=tls)
    raw.port = server.sockets[0].getsockname()[1]
    try:
        yield raw
    finally:
        server.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0)
