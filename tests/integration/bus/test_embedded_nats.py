"""The embedded NATS server: on the default port, and never confused with another server."""

import os
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from berth.bus.interface import BusRefusedError
from berth.bus.session import NatsBus
from berth.bus.settings import BusSettings
from berth.errors import TemporaryError
from berth.exits import UsageError
from berth_cli.bus import connect_bus
from berth_cli.pipeline.access import FOLDER_PREFIX, find_folder
from berth_cli.pipeline.pipeline import working_folder
from berth_cli.pipeline.programs import nats_server
from berth_cli.pipeline.servers import ANY_PORT, check_nats_server, embedded_nats, is_free
from berth_cli.pipeline.supervisor import Supervisor
from harness.servers.child_processes import free_ports
from harness.servers.nats_server import NatsServer

pytestmark = pytest.mark.requires("nats-server")

START = timedelta(seconds=20)


@pytest.fixture
def folder() -> Iterator[Path]:
    with working_folder() as made:
        yield made


async def started(ports: tuple[int, ...], folder: Path) -> str:
    """Start it, see that clients are served, end it; where it was."""
    async with Supervisor(print) as supervisor:
        url = await embedded_nats(ports, folder, supervisor, within=START)
        await (await connect_bus(url)).close()
        return url


async def test_the_first_port_is_taken_when_nobody_listens_there(folder: Path):
    (port,) = free_ports(1)
    assert await started((port, ANY_PORT), folder) == f"nats://127.0.0.1:{port}"


async def test_the_port_is_free_again_at_once_when_the_server_has_ended(folder: Path):
    (port,) = free_ports(1)
    await started((port,), folder)
    assert await started((port,), folder) == f"nats://127.0.0.1:{port}"


async def test_another_port_is_taken_when_somebody_listens_on_the_first(own_nats_server: NatsServer, folder: Path):
    taken = own_nats_server.settings.port
    assert not is_free(taken)
    assert await started((taken, ANY_PORT), folder) not in {own_nats_server.address, ""}


async def test_a_port_that_was_asked_for_and_is_taken_is_refused(own_nats_server: NatsServer, folder: Path):
    with pytest.raises(ExceptionGroup) as raised:
        await started((own_nats_server.settings.port,), folder)
    (error,) = raised.value.exceptions
    assert isinstance(error, TemporaryError)
    assert "already in use" in str(error)


async def test_a_server_that_took_the_port_at_the_same_moment_is_not_taken_for_ours(own_nats_server: NatsServer):
    with pytest.raises(TemporaryError, match="another server took it"):
        await check_nats_server(own_nats_server.settings.port, "berth-ours")


async def test_nobody_gets_in_without_a_password(folder: Path):
    async with Supervisor(print) as supervisor:
        url = await embedded_nats((ANY_PORT,), folder, supervisor, within=START)
        with pytest.raises(BusRefusedError, match="refuses a client without credentials"):
            await NatsBus(BusSettings(servers=(url,))).connect(name="anybody")
        for user in ("apply", "watcher", "binder", "scorer", "collector", "people"):
            await (await connect_bus(url, user=user)).close()


async def test_without_an_address_ones_own_pipeline_is_found_on_any_port(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("BERTH_NATS_URL", raising=False)
    (folder := tmp_path / f"{FOLDER_PREFIX}{os.getpid()}-own").mkdir(mode=0o700)
    async with Supervisor(print) as supervisor:
        await embedded_nats((ANY_PORT,), folder, supervisor, within=START)
        await (await connect_bus(None, place=tmp_path)).close()


async def test_whoever_says_who_they_are_is_not_taken_for_somebody_else(folder: Path, monkeypatch: pytest.MonkeyPatch):
    async with Supervisor(print) as supervisor:
        url = await embedded_nats((ANY_PORT,), folder, supervisor, within=START)
        monkeypatch.setenv("BERTH_NATS_USER", "joe")
        monkeypatch.setenv("BERTH_NATS_PASSWORD", "of-joe")
        with pytest.raises(UsageError, match="refuses user 'joe'"):
            await connect_bus(url)
        await (await connect_bus(url, is_own=True)).close()


def test_only_the_owner_can_read_the_passwords(folder: Path):
    nats_server(folder, 4222, name="berth-test")
    assert folder.stat().st_mode & 0o077 == 0
    files = [folder / "nats-server.conf", *(folder / "credentials").iterdir()]
    assert [file.name for file in files if file.stat().st_mode & 0o077] == []


async def test_a_folder_of_another_user_is_not_trusted(folder: Path, monkeypatch: pytest.MonkeyPatch):
    async with Supervisor(print) as supervisor:
        url = await embedded_nats((ANY_PORT,), folder, supervisor, within=START)
        assert find_folder(url) == folder
        monkeypatch.setattr("os.getuid", lambda: folder.stat().st_uid + 1)
        assert find_folder(url) is None
