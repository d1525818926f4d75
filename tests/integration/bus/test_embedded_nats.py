"""The embedded NATS server: on the default port, and never confused with another server."""

from datetime import timedelta
from pathlib import Path

import pytest

from berth.api.errors import TemporaryError
from berth.cli.pipeline.servers import ANY_PORT, check_nats_server, connect_bus, embedded_nats, is_free
from berth.cli.pipeline.supervisor import Supervisor
from harness.servers.child_processes import free_ports
from harness.servers.nats_server import NatsServer

pytestmark = pytest.mark.requires("nats-server")

START = timedelta(seconds=20)


async def started(ports: tuple[int, ...], folder: Path) -> str:
    """Start it, see that clients are served, end it; where it was."""
    async with Supervisor(print) as supervisor:
        url = await embedded_nats(ports, folder, supervisor, within=START)
        await (await connect_bus(url)).close()
        return url


async def test_the_first_port_is_taken_when_nobody_listens_there(tmp_path: Path):
    (port,) = free_ports(1)
    assert await started((port, ANY_PORT), tmp_path) == f"nats://127.0.0.1:{port}"


async def test_the_port_is_free_again_at_once_when_the_server_has_ended(tmp_path: Path):
    (port,) = free_ports(1)
    await started((port,), tmp_path)
    assert await started((port,), tmp_path) == f"nats://127.0.0.1:{port}"


async def test_another_port_is_taken_when_somebody_listens_on_the_first(own_nats_server: NatsServer, tmp_path: Path):
    taken = own_nats_server.settings.port
    assert not is_free(taken)
    assert await started((taken, ANY_PORT), tmp_path) not in {own_nats_server.address, ""}


async def test_a_port_that_was_asked_for_and_is_taken_is_refused(own_nats_server: NatsServer, tmp_path: Path):
    with pytest.raises(ExceptionGroup) as raised:
        await started((own_nats_server.settings.port,), tmp_path)
    (error,) = raised.value.exceptions
    assert isinstance(error, TemporaryError)
    assert "already in use" in str(error)


async def test_a_server_that_took_the_port_at_the_same_moment_is_not_taken_for_ours(own_nats_server: NatsServer):
    with pytest.raises(TemporaryError, match="another server took it"):
        await check_nats_server(own_nats_server.settings.port, "berth-ours")
