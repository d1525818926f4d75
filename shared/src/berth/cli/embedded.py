"""The embedded NATS server of a pipeline: on the port where everybody looks first, if that is free."""

from __future__ import annotations

import asyncio
import json
import socket
import uuid
from datetime import timedelta
from pathlib import Path
from typing import Final

from berth.api.errors import TemporaryError
from berth.bus.server import LOOPBACK
from berth.cli.programs import nats_server
from berth.cli.reachable import answers, free_port
from berth.cli.supervisor import Supervisor

DEFAULT_PORT: Final = 4222
"""Where the NATS CLI, and every command here, looks unless told otherwise."""
ANY_PORT: Final = 0
_HELLO_SECONDS: Final = 2.0


async def embedded_nats(ports: tuple[int, ...], folder: Path, supervisor: Supervisor, *, within: timedelta) -> str:
    """Start the server; its address, once it is known that this very server answers there.

    Raises:
        TemporaryError: none of the ports is free, or somebody else answers on the one that was.
    """
    port, name = _first_free(ports), f"berth-{uuid.uuid4().hex}"
    supervisor.start(nats_server(folder, port, name=name))
    await answers(lambda: _is_ours(port, name), within=within)
    return f"nats://{LOOPBACK}:{port}"


def _first_free(ports: tuple[int, ...]) -> int:
    for port in ports:
        if port == ANY_PORT:
            return free_port()
        if is_free(port):
            return port
    raise TemporaryError(f"starting NATS on port {', '.join(map(str, ports))} of {LOOPBACK}: somebody listens there")


def is_free(port: int) -> bool:
    """Whether nobody listens on this port of the loopback address."""
    with socket.socket() as probe:
        # Connections of a server that has just ended linger for a minute and are in nobody's way.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
        return True


async def _is_ours(port: int, name: str) -> None:
    """Two pipelines that start at once may both have found the port free: they must not share one server.

    Raises:
        TemporaryError: nobody answers yet, or somebody else does.
    """
    try:
        async with asyncio.timeout(_HELLO_SECONDS):
            reader, writer = await asyncio.open_connection(LOOPBACK, port)
            try:
                hello = await reader.readline()
            finally:
                writer.transport.abort()
        found = json.loads(hello.partition(b" ")[2])["server_name"]
    except (OSError, TimeoutError, ValueError, LookupError, TypeError) as exc:
        raise TemporaryError(f"starting NATS on port {port}: it does not answer yet ({exc})") from exc
    if found != name:
        raise TemporaryError(f"starting NATS on port {port}: another server took it at the same moment: try again")
