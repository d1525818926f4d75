"""The users of deploy/compose/nats: each has what it needs, through failures too."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from berth.bus.interface import BusRefusedError
from berth.bus.session import NatsBus, NatsSession
from berth.bus.topology import COMPARED
from berth_cli.pipeline.accounts import users
from berth_cli.pipeline.natsconf import SUBSCRIPTIONS, nats_conf
from berth_cli.pipeline.natsserver import find_nats_server
from berth_sim.cluster import SimulatedCluster
from harness.servers.bus_users import (
    SERVICES,
    USERS,
    Services,
    bus_of_users,
    inbox_of,
    password_of,
    services,
    settings_of,
)
from harness.servers.nats_server import NatsServer
from harness.worlds.cluster_user import ClusterUser, cluster_user, eventually

pytestmark = pytest.mark.requires("nats-server")

SECONDS = 60.0
SCHEDULER = """\
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles:
- schedulerName: berth
  plugins: {{multiPoint: {{enabled: [{{name: NetworkTraffic}}]}}}}
  pluginConfig: [{{name: NetworkTraffic, args: {{url: "{url}", devices: [eth0], range: 30s}}}}]
"""


CONFIGURATION = Path(__file__).parents[3] / "deploy/compose/nats"


@pytest.fixture(scope="module")
def server() -> Iterator[NatsServer]:
    with bus_of_users() as server:
        yield server


async def session_of(server: NatsServer, user: str) -> NatsSession:
    return await NatsBus(settings_of(server, user)).connect(name=user)


@pytest.fixture
async def applied(server: NatsServer) -> NatsServer:
    """The server with the topology applied by the user that is there for it."""
    session = await session_of(server, "apply")
    await session.apply()
    await session.close()
    return server


def test_the_committed_file_is_the_one_that_berth_prints():
    committed = (CONFIGURATION / "accounts.conf").read_text(encoding="utf-8")
    _, _, accounts = committed.partition("include credentials/nats.conf\n\n")
    assert accounts == nats_conf(), (
        "run: berth bus permissions, and replace the accounts in deploy/compose/nats/accounts.conf"
    )


async def test_the_server_refuses_more_connections_and_subscriptions_than_it_has_memory_for(server: NatsServer):
    (person,) = (user for user in users() if user.is_person)
    opened = [await _greeted(server, b"".join(b"SUB _INBOX.x.%d %d\r\n" % (one, one) for one in range(1, 301)))]
    assert opened[0][1].count(b"maximum subscriptions exceeded") == 300 - SUBSCRIPTIONS
    opened += [await _greeted(server) for _ in range(person.connections)]
    assert b"maximum account active connections exceeded" in opened[-1][1]
    for writer, _ in opened:
        writer.close()


async def _greeted(server: NatsServer, lines: bytes = b"") -> tuple[asyncio.StreamWriter, bytes]:
    """A connection of `people` that sends these lines, and what the server has answered."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.settings.port)
    hello = json.dumps({"user": "people", "pass": password_of("people"), "verbose": False})
    writer.write(f"CONNECT {hello}\r\n".encode() + lines + b"PING\r\n")
    answered = b""
    async with asyncio.timeout(SECONDS):
        while b"PONG" not in answered and (more := await reader.read(2**16)):
            answered += more
    return writer, answered


def test_the_file_is_one_that_a_server_takes(tmp_path: Path):
    shutil.copytree(CONFIGURATION, tmp_path, dirs_exist_ok=True)
    (tmp_path / "credentials").mkdir()
    (tmp_path / "credentials" / "nats.conf").write_text("".join(f'{user}_PASSWORD: "x"\n' for user in USERS))
    command = [str(find_nats_server()), "-t", "-c", str(tmp_path / "nats.conf")]
    subprocess.run(command, check=True, capture_output=True, timeout=20)


def ask(server: NatsServer, user: str, **settings: str) -> subprocess.CompletedProcess[str]:
    """`berth queue` as this user, with these settings besides."""
    told = {"BERTH_NATS_URL": server.address, "BERTH_NATS_USER": user, "BERTH_NATS_PASSWORD": password_of(user)}
    told |= {"BERTH_NATS_INBOX_PREFIX": inbox_of(user)}
    plain = {name: text for name, text in os.environ.items() if not name.startswith("BERTH_")}
    command = [sys.executable, "-m", "berth_cli", "queue"]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=SECONDS, check=False, env=plain | told | settings
    )


@pytest.mark.parametrize("settings", [{}, {"BERTH_NATS_DOMAIN": "hub"}], ids=["none", "another"])
async def test_a_command_without_the_domain_of_its_account_is_told_to_set_it(applied, settings: dict[str, str]):
    without = await asyncio.to_thread(ask, applied, "people", **settings)
    assert without.returncode == 2
    assert without.stderr == (
        "berth: reading NATS: the account of user 'people' has no streams; it imports those of berth, under the "
        "JetStream domain 'berth': set BERTH_NATS_DOMAIN=berth\n"
    )
    with_it = await asyncio.to_thread(ask, applied, "people", BERTH_NATS_DOMAIN="berth")
    assert "no watcher leads" in with_it.stderr  # it reads NATS


async def test_where_it_may_be_the_domain_or_a_permission_the_refusal_names_both(applied):
    """A service does not look where else its streams might be."""
    settings = replace(settings_of(applied, "scorer"), domain="")
    with pytest.raises(BusRefusedError, match=r"give this user the permission, or, if .*: BERTH_NATS_DOMAIN=berth"):
        await NatsBus(settings).connect(name="scorer")


async def test_an_admin_with_the_domain_of_people_is_told_to_leave_it_away(applied):
    done = await asyncio.to_thread(ask, applied, "apply", BERTH_NATS_DOMAIN="berth")
    assert done.returncode == 2
    assert done.stderr.endswith("has berth's streams itself: leave BERTH_NATS_DOMAIN=berth away\n")


@pytest.mark.parametrize("user", SERVICES)
async def test_every_service_may_see_that_the_bus_is_as_declared(applied, user):
    session = await session_of(applied, user)
    await session.verify(COMPARED.get(user, ()))
    await session.close()


async def test_people_see_pods_and_services_and_may_not_write_facts(applied):
    session = await session_of(applied, "people")
    await session.subscribe("berth.*.*.default.web-0", print)
    with pytest.raises(BusRefusedError, match="give this user the permission"):
        await session.put("facts", "rack.node-1", b"{}")
    assert await session.get("facts", "rack.node-1") is None
    assert await session.services() == []
    assert (await session.state("PENDING")).messages == 0
    await session.close()


async def test_people_and_nobody_else_hear_what_a_shadow_says(applied):
    shadow, people = await session_of(applied, "shadow"), await session_of(applied, "people")
    await shadow.verify(COMPARED["shadow"])
    heard: asyncio.Queue[tuple[str, bytes]] = asyncio.Queue()
    await people.subscribe("berth.shadow.>", lambda subject, data, _: heard.put_nowait((subject, data)))
    await shadow.broadcast("berth.shadow.packed.berth.default.web-0", b"{}")
    async with asyncio.timeout(SECONDS):
        assert await heard.get() == ("berth.shadow.packed.berth.default.web-0", b"{}")
    for user in ("watcher", "binder", "scorer", "collector"):
        other = await session_of(applied, user)
        with pytest.raises(BusRefusedError, match="give this user the permission"):
            await other.subscribe("berth.shadow.>", print)
        await other.close()
    await people.close()
    await shadow.close()


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[SimulatedCluster]:
    async with SimulatedCluster(kubeconfig_path=tmp_path / "kubeconfig") as cluster:
        yield cluster


@pytest.fixture
async def pods(cluster: SimulatedCluster) -> AsyncIterator[ClusterUser]:
    async with cluster_user(cluster.kubeconfig_path) as seen:
        await seen.add_nodes(5)
        yield seen


@pytest.fixture
def running(cluster: SimulatedCluster, tmp_path: Path) -> Iterator[Services]:
    config = tmp_path / "scheduler.yaml"
    config.write_text(SCHEDULER.format(url=cluster.prometheus_url))
    with bus_of_users() as server, services(server, cluster.kubeconfig_path, config, tmp_path) as running:
        yield running


def refusals(running: Services) -> list[str]:
    """What the server said of users who wanted more than they may."""
    log = (running.server.folder / "nats-server.log").read_text()
    return [line for line in log.splitlines() if "violation" in line.lower()]


async def bandwidths(running: Services) -> int:
    """How many nodes the collector has written of."""
    session = await session_of(running.server, "people")
    found: list[object] = []
    async with session.read_bucket("bandwidth") as following:
        while not following.caught_up.is_set():
            found = await anext(following.batches())
    await session.close()
    return len(found)


@pytest.mark.timeout(180)
async def test_each_service_works_with_its_own_user_also_after_failures(running: Services, pods: ClusterUser):
    await pods.all_bound(await pods.add_pods(20, "first"), SECONDS)
    await eventually(lambda: bandwidths(running), "the bandwidth of the nodes", SECONDS)
    for user in SERVICES:
        running.kill(user)
        running.start(user)
    await pods.all_bound(await pods.add_pods(20, "second"), SECONDS)
    running.server.lose_store()
    running.server.start()
    await pods.all_bound(await pods.add_pods(20, "third"), SECONDS)
    session = await session_of(running.server, "people")
    services = {"berth-watcher", "berth-scorer", "berth-binder", "berth-metrics-collector"}

    async def are_registered() -> bool:
        return {one.service for one in await session.services()} == services

    await eventually(are_registered, "each service to register itself", SECONDS)
    await session.close()
    assert refusals(running) == []
