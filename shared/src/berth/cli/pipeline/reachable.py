"""Whether what a command needs answers: the bus, the API server."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Final, TypeVar

from berth.api.errors import TemporaryError
from berth.bus.interface import Session
from berth.kube.client import KubeClient
from berth.kube.credentials import KubeCredentials, source_for
from berth.process.exits import UsageError
from berth.process.sessions import nats_bus
from berth.process.sources import SettingsError, read_settings

T = TypeVar("T")
_AGAIN: Final = timedelta(seconds=0.1)


async def answers(ask: Callable[[], Awaitable[T]], *, within: timedelta) -> T:
    """Ask until there is an answer.

    Raises:
        TemporaryError: the last reason why there was none.
    """
    loop = asyncio.get_running_loop()
    end = loop.time() + within.total_seconds()
    while True:
        try:
            return await ask()
        except TemporaryError:
            if loop.time() >= end:
                raise
            await asyncio.sleep(_AGAIN.total_seconds())


async def open_bus(url: str, *, name: str = "berth") -> Session:
    """A session for a command; user, password and the like come from ``BERTH_NATS_*``, as for the services.

    Raises:
        UsageError: the address or what belongs to it cannot be used.
    """
    try:
        settings = read_settings(flags={"nats.url": url})
    except SettingsError as exc:
        raise UsageError("; ".join(exc.problems)) from exc
    return await nats_bus(settings).connect(name=name)


async def apply_bus(url: str) -> None:
    """Create or update what berth declares on the bus."""
    session = await open_bus(url)
    try:
        await session.apply()
    finally:
        await session.close()


async def ask_api(kubeconfig: Path) -> None:
    """Ask the API server of a kubeconfig for its version: it need not allow more than that."""
    credentials = await KubeCredentials.from_source(source_for(str(kubeconfig)))
    async with KubeClient(credentials, user_agent="berth") as client:
        await client.request("GET", "/version")


async def ask_simulated(kubeconfig: Path) -> None:
    """The same of a simulated cluster, which writes its kubeconfig once it listens.

    Raises:
        TemporaryError: it does not listen yet.
    """
    if not await asyncio.to_thread(kubeconfig.exists):
        raise TemporaryError("starting the simulated cluster: it does not listen yet")
    await ask_api(kubeconfig)


def free_port() -> int:
    """A TCP port of 127.0.0.1 that nobody listens on, below the range from which outgoing connections take theirs."""
    for port in range(_first_port(), 32_768):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise TemporaryError("finding a free TCP port on 127.0.0.1: all of 20000-32767 are taken")


def _first_port() -> int:
    """Somewhere else for each process, so that two that start at once do not look at the same port first."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return 20_000 + int(probe.getsockname()[1]) % 12_000
