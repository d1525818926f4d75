"""A client of NATS that sends lines of the protocol as they are, and keeps all that comes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Final, NamedTuple

from harness.servers.nats_server import NatsServer

WAIT_SECONDS: Final = 60.0
LINE_BYTES: Final = 2**24


class Received(NamedTuple):
    sid: int
    subject: str
    reply: str
    headers: Mapping[str, str]
    data: bytes


class RawClient:
    """One connection. What is published or subscribed to is sent by `settle`."""

    def __init__(self) -> None:
        self.received: list[Received] = []
        self._pongs = asyncio.Queue[None]()
        self._lines: list[bytes] = []

    async def connect(self, server: NatsServer, user: str, password: str) -> None:
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", server.settings.port, limit=LINE_BYTES)
        await self._reader.readline()
        hello = {"user": user, "pass": password, "verbose": False, "headers": True, "no_responders": True}
        self._lines.append(b"CONNECT %s\r\n" % json.dumps(hello).encode())
        self._reading = asyncio.create_task(self._read())
        await self.settle()

    async def close(self) -> None:
        self._writer.close()
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)

    def publish(
        self, subject: str, data: bytes = b"", reply: str = "", headers: Mapping[str, str] | None = None
    ) -> None:
        lines = "".join(f"{name}: {text}\r\n" for name, text in (headers or {}).items())
        block = f"NATS/1.0\r\n{lines}\r\n".encode()
        place = f"{subject} {reply}" if reply else subject
        command = f"HPUB {place} {len(block)} {len(block) + len(data)}\r\n"
        self._lines.append(command.encode() + block + data + b"\r\n")

    def subscribe(self, subject: str, sid: int, queue: str = "") -> None:
        self._lines.append(f"SUB {subject} {f'{queue} ' if queue else ''}{sid}\r\n".encode())

    async def settle(self) -> None:
        """Send, and wait until the server has read all of it and sent what it had for this client."""
        self._writer.write(b"".join(self._lines) + b"PING\r\n")
        self._lines.clear()
        async with asyncio.timeout(WAIT_SECONDS):
            await self._pongs.get()

    async def _read(self) -> None:
        while line := await self._reader.readline():
            verb, *words = line.split()
            if verb in (b"MSG", b"HMSG"):
                await self._keep(words, has_headers=verb == b"HMSG")
            elif verb == b"PING":
                self._writer.write(b"PONG\r\n")
            elif verb == b"PONG":
                self._pongs.put_nowait(None)

    async def _keep(self, words: list[bytes], *, has_headers: bool) -> None:
        subject, sid, *rest = words
        *reply, size = (rest[:-2] + rest[-1:]) if has_headers else rest
        body = (await self._reader.readexactly(int(size) + 2))[:-2]
        block = body[: int(rest[-2])] if has_headers else b""
        pairs = (text.split(": ", 1) for text in block.decode().split("\r\n") if ": " in text)
        named = reply[0].decode() if reply else ""
        self.received.append(Received(int(sid), subject.decode(), named, dict(pairs), body[len(block) :]))
