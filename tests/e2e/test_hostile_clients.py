"""The pipeline under its accounts and least rights on a real API server, and a hostile client of each other account."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from berth.bus.accounts import nats_conf
from berth.bus.session import NatsBus, NatsSession
from berth.bus.settings import BusSettings, NatsCredentials
from harness.servers.bus_users import USERS, inbox_of, password_of, services
from harness.servers.control_plane import ControlPlane
from harness.servers.nats_server import NatsServer, nats_server
from harness.worlds.accounts import grant, kubeconfig_of
from harness.worlds.cluster_user import ClusterUser
from harness.worlds.hostile_clients import (
    OUTSIDE,
    ask_at_random,
    ask_to_manage,
    ask_with_foreign_replies,
    client_of,
    content,
    roll_up,
)

pytestmark = [pytest.mark.requires("kubebuilder_assets", "nats-server"), pytest.mark.timeout(240)]

ADMIN = NatsCredentials(user="admin", password="admin-of-a-test")  # noqa: S106 - of a throw-away server
CONFIGURATION = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"


@pytest.fixture
def server() -> Iterator[NatsServer]:
    passwords = "".join(f'{user}_PASSWORD: "{password_of(user)}"\n' for user in USERS)
    admin = "{ user: admin, password: admin-of-a-test }"
    with nats_server(passwords + nats_conf().replace("users: [", f"users: [ {admin}", 1)) as server:
        yield server


@pytest.fixture
async def admin(server: NatsServer) -> AsyncIterator[NatsSession]:
    session = await NatsBus(BusSettings(servers=(server.address,), credentials=ADMIN)).connect(name="admin")
    await session.apply()
    yield session
    await session.close()


async def settled(admin: NatsSession, user: str) -> dict[str, list[tuple[str, int, bytes]]]:
    """What is in the streams, but for what the user may write and what a pipeline without work writes by itself."""
    return {
        stream: [one for one in stored if not one[0].startswith("$KV.cluster.watermark.")]
        for stream, stored in (await content(admin, user)).items()
    }


async def test_nothing_outside_its_part_changes_while_the_pipeline_runs(
    server: NatsServer,
    admin: NatsSession,
    own_control_plane: ControlPlane,
    cluster_outside: ClusterUser,
    tmp_path: Path,
):
    await grant(cluster_outside.api)
    kubeconfig = await kubeconfig_of(own_control_plane, cluster_outside.api, "berth")
    config = tmp_path / "berth.yaml"
    config.write_text(CONFIGURATION)
    with services(server, kubeconfig, config, tmp_path):
        await cluster_outside.add_nodes(2, cpu="8")
        placed = await cluster_outside.all_bound(await cluster_outside.add_pods(5, "before"))
        for user in OUTSIDE:
            client = await client_of(server, user, password_of(user), inbox_of(user))
            before = await settled(admin, user)
            await ask_with_foreign_replies(client, user)
            await ask_at_random(client, user)
            await ask_to_manage(client)
            await roll_up(client, user)
            assert await settled(admin, user) == before
            await client.close()
        now = await cluster_outside.all_bound(await cluster_outside.add_pods(5, "after"))
        assert placed.items() <= now.items()
