"""The servers of a pipeline: their ports, and checks that they answer.

An embedded NATS server gets port 4222, every client's default, if it is free.
"""

from __future__ import annotations

import asyncio
import json
import socket
import uuid
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from http import HTTPStatus
from pathlib import Path
from typing import Final, TypeVar

from berth.errors import BerthError, TemporaryError
from berth.kube.credentials import KubeCredentials
from berth.kube.errors import ApiUnreachableError, KubeconfigError
from berth.kube.kubeconfig import source_for
from berth.leader.samepods import LeaseName
from berth.settings.settings import NatsSettings
from berth_cli.pipeline import access
from berth_cli.pipeline.natsserver import LOOPBACK
from berth_cli.pipeline.programs import nats_server
from berth_cli.pipeline.supervisor import Report, Supervisor

T = TypeVar("T")
DEFAULT_PORT: Final = 4222  # of NATS, also in the NATS CLI
MOST_NODES: Final = 100_000  # of a simulated cluster: each takes 3 KB there, and more in each service
ANY_PORT: Final = 0
_REPORTED_AFTER: Final = timedelta(seconds=1)  # silence of a given server before a line reports the wait
_RETRY_INTERVAL: Final = timedelta(seconds=0.1)
_HELLO_SECONDS: Final = 2.0
_LOOK_SECONDS: Final = 0.5  # between two looks at another scheduler's Lease, which is renewed every 2 s
_OWN_PORTS: Final = range(20_000, 32_768)  # below the range of ports for outgoing connections


async def embedded_nats(
    ports: tuple[int, ...],
    folder: Path,
    supervisor: Supervisor,
    *,
    within: timedelta,
    settings: NatsSettings | None = None,
) -> str:
    """Start a NATS server on the first free port; return its address when it answers.

    Raises:
        TemporaryError: no port is free, or another server answers.
    """
    port, name = _first_free(ports), f"berth-{uuid.uuid4().hex}"
    supervisor.start(nats_server(folder, port, name=name, settings=settings))
    await retry(lambda: check_nats_server(port, name), within=within)
    address = f"nats://{LOOPBACK}:{port}"
    access.announce_address(folder, address)
    return address


async def check_nats_server(port: int, name: str) -> None:
    """Check the server's name, because two pipelines that start at once may choose the same port.

    Raises:
        TemporaryError: no server answers yet, or another one does.
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


async def check_api(kubeconfig: Path) -> None:
    """Ask the API server of a kubeconfig for its version, which needs no further rights.

    Raises:
        ApiUnreachableError: it does not answer.
        KubeconfigError: it refuses the credentials.
    """
    from berth.kube.client import KubeClient  # noqa: PLC0415 - aiohttp, as in berth_cli.bus

    credentials = await KubeCredentials.from_source(source_for(str(kubeconfig)))
    async with KubeClient(credentials, user_agent="berth") as client:
        try:
            answer = await client.call("GET", "/version")
        except ApiUnreachableError as error:
            text = f"{error}: does it run, and is the server's address in the file right?"
            raise ApiUnreachableError(text) from error
        if answer.status == HTTPStatus.UNAUTHORIZED:
            raise KubeconfigError(client.refused_credentials)


async def check_simulated_cluster(kubeconfig: Path) -> None:
    """A simulated cluster writes its kubeconfig when it listens.

    Raises:
        TemporaryError: it does not listen yet.
    """
    if not await asyncio.to_thread(kubeconfig.exists):
        raise TemporaryError("starting the simulated cluster: it does not listen yet")
    await check_api(kubeconfig)


async def retry(check: Callable[[], Awaitable[T]], *, within: timedelta) -> T:
    """Repeat a check until it passes.

    Raises:
        TemporaryError: it still fails at the deadline.
    """
    loop = asyncio.get_running_loop()
    end = loop.time() + within.total_seconds()
    while True:
        try:
            return await check()
        except TemporaryError:
            if loop.time() >= end:
                raise
            await asyncio.sleep(_RETRY_INTERVAL.total_seconds())


async def retry_aloud(check: Callable[[], Awaitable[T]], *, within: timedelta, what: str, report: Report) -> T:
    """:func:`retry`, reporting the wait: after a second, when the cause changes, and at its end."""
    cause, reported = "no answer yet", ""

    async def report_causes() -> None:
        nonlocal reported
        while True:
            await asyncio.sleep(_REPORTED_AFTER.total_seconds())
            if cause != reported:
                reported = cause
                report(f"waiting for {what}: {cause}")

    async def noting_the_cause() -> T:
        nonlocal cause
        try:
            return await check()
        except TemporaryError as error:
            cause = str(error)
            raise

    reporting = asyncio.create_task(report_causes())
    try:
        result = await retry(noting_the_cause, within=within)
    finally:
        reporting.cancel()
    if reported:
        report(f"{what} is there")
    return result


def _first_free(ports: tuple[int, ...]) -> int:
    for port in ports:
        if port == ANY_PORT:
            return free_port()
        if is_free(port):
            return port
    raise TemporaryError(f"starting NATS on port {', '.join(map(str, ports))} of {LOOPBACK}: already in use")


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        # Connections of a server that has just ended stay for a minute in TIME_WAIT and do not matter.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
        return True


def free_port() -> int:
    for port in range(_first_port(), _OWN_PORTS.stop):
        with socket.socket() as probe:
            try:
                probe.bind((LOOPBACK, port))
            except OSError:
                continue
            return port
    raise TemporaryError(
        f"finding a free TCP port on {LOOPBACK}: all of {_OWN_PORTS.start}-{_OWN_PORTS.stop - 1} are taken"
    )


def _first_port() -> int:
    # Differs between processes, so that two that start at once do not choose the same port.
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return _OWN_PORTS.start + int(probe.getsockname()[1]) % 12_000


class OtherSchedulerError(BerthError):
    """Another scheduler of the same pods leads in the cluster (docs/adr/0027): the text names it and the remedy."""


async def check_other_schedulers(
    kubeconfig: Path, leases: Sequence[LeaseName], *, is_allowed: bool, report: Report
) -> None:
    """Check that no scheduler leads by one of these Leases. An unreleased Lease is watched until it expires.

    Raises:
        OtherSchedulerError: one leads, and that is not allowed.
        TemporaryError: no answer.
    """
    from berth.kube.client import KubeClient  # noqa: PLC0415 - aiohttp, as in berth_cli.bus
    from berth.leader.otherschedulers import OtherSchedulers  # noqa: PLC0415 - the same

    async with await KubeClient.connect(str(kubeconfig)) as client:
        others = OtherSchedulers(client, leases, is_allowed=is_allowed, warn=lambda text: report(f"warning: {text}"))
        if (other := await others.blocking()) is not None:
            report(str(other))
            other = await others.living(_LOOK_SECONDS)
    if other is not None:
        raise OtherSchedulerError(str(other))
