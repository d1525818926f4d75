"""Two berths on one NATS server, each with a prefix of its own, schedule two clusters and cannot reach each other.

And a berth whose streams are in another JetStream domain than its server's own.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg

from berth.bus.interface import MissingError
from berth.bus.session import NatsBus, NatsSession
from berth.bus.settings import BusSettings, NatsCredentials, TopologySettings
from berth.bus.topology import BUCKETS, declared_streams
from berth_cli.pipeline.accounts import OWN, publishes, subscribes, users
from berth_cli.pipeline.natsconf import nats_conf
from berth_sim.cluster import SimulatedCluster
from harness.servers.bus_users import Services, bus_of_users, inbox_of, password_of, passwords_of, services, settings_of
from harness.servers.child_processes import free_ports
from harness.servers.nats_server import NatsServer, nats_server
from harness.worlds.cluster_user import cluster_user, eventually
from harness.worlds.hostile_clients import client_of

pytestmark = [pytest.mark.requires("nats-server"), pytest.mark.timeout(420)]

CONFIGURATION = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"
STARTED_SECONDS = 150.0
"""Eight processes start at once, and the collector need not have started when pods are bound."""
STAGES = ("pending", "ranked", "decision", "dead")


@pytest.fixture
async def clusters(tmp_path: Path) -> AsyncIterator[dict[str, Path]]:
    """The kubeconfigs of two clusters, by name."""
    async with AsyncExitStack() as stack:
        found = {}
        for name in ("east", "west"):
            (tmp_path / name).mkdir()
            cluster = SimulatedCluster(kubeconfig_path=tmp_path / name / "kubeconfig")
            found[name] = (await stack.enter_async_context(cluster)).kubeconfig_path
        yield found


async def schedule(kubeconfig: Path, pods: int, name: str) -> list[str]:
    """Have a berth place pods in its cluster; the nodes have the cluster's name too. Returns the pods' names."""
    async with cluster_user(kubeconfig) as user:
        await user.add_nodes(2)
        names = await user.add_pods(pods, name)
        await user.all_bound(names, STARTED_SECONDS)
    return names


async def one_of_each(session: NatsSession) -> set[str] | None:
    """The identities of the berth's processes, when it has one of each service and no other."""
    processes = await session.services()
    found = sorted(one.service for one in processes)
    wanted = ["berth-binder", "berth-metrics-collector", "berth-scorer", "berth-watcher"]
    return {one.identity for one in processes} if found == wanted else None


async def decided(session: NatsSession) -> set[str]:
    """The pods of the berth's Decisions."""
    return {one.subject.rpartition(".")[2] async for one in session.scan("DECISIONS", "berth.decision.>")}


@pytest.mark.parametrize(
    ("prefixes", "users"),
    [
        pytest.param(("east", "west"), "with users", id="own accounts"),
        pytest.param(("", "west"), "without users", id="one account", marks=pytest.mark.long(only=True)),
    ],
)
async def test_two_berths_on_one_server_schedule_two_clusters(
    clusters: dict[str, Path], prefixes: tuple[str, str], users: str, tmp_path: Path
):
    config = tmp_path / "config.yaml"
    config.write_text(CONFIGURATION)
    own: dict[str, Services] = {}
    one_account = users == "without users"
    async with AsyncExitStack() as stack:
        server = stack.enter_context(nats_server() if one_account else bus_of_users(*prefixes))
        for prefix, name in zip(prefixes, clusters, strict=True):
            own[name] = stack.enter_context(
                services(server, clusters[name], config, tmp_path / name, prefix=prefix, users=not one_account)
            )
        pods = await asyncio.gather(schedule(clusters["east"], 12, "of-east"), schedule(clusters["west"], 5, "of-west"))
        seen = []
        for prefix, names in zip(prefixes, pods, strict=True):
            settings = (
                BusSettings(servers=(server.address,), topology=TopologySettings(prefix=prefix))
                if one_account
                else settings_of(server, "people", prefix)
            )
            session = await NatsBus(settings).connect(name="test")
            assert await decided(session) == set(names)
            seen.append(await eventually(partial(one_of_each, session), "one process of each service", STARTED_SECONDS))
            await session.close()
        assert not seen[0] & seen[1]
        for running in own.values():
            for user in ("watcher", "binder", "scorer", "collector"):
                assert not [line for line in running.log(user) if "ermission" in line or "differs" in line]


async def test_services_at_a_leaf_node_use_the_streams_of_the_hubs_domain(
    clusters: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    config = tmp_path / "config.yaml"
    config.write_text(CONFIGURATION)
    (port,) = free_ports(1)
    store = tmp_path / "hub"
    hub_conf = f'jetstream {{ store_dir: "{store}", domain: hub }}\nleafnodes {{ listen: "127.0.0.1:{port}" }}\n'
    leaf_conf = f'jetstream: disabled\nleafnodes {{ remotes: [ {{ url: "nats://127.0.0.1:{port}" }} ] }}\n'
    monkeypatch.setenv("BERTH_NATS_DOMAIN", "hub")
    with nats_server(hub_conf, name="hub") as hub, nats_server(leaf_conf, name="leaf") as leaf:
        settings = BusSettings(servers=(hub.address,), topology=TopologySettings(prefix="east"))
        session = await NatsBus(settings).connect(name="test")
        await session.apply()  # at the hub: a leaf node does not say that there are no streams
        with services(leaf, clusters["east"], config, tmp_path / "east", prefix="east", users=False):
            names = await schedule(clusters["east"], 6, "of-east")
            assert await decided(session) == set(names)
        await session.close()


async def test_at_the_hub_each_berth_at_a_leaf_node_is_reached_by_its_domain_and_prefix(tmp_path: Path):
    (port,) = free_ports(1)
    hub_conf = f'jetstream: disabled\nleafnodes {{ listen: "127.0.0.1:{port}" }}\n'
    remotes = f'leafnodes {{ remotes: [ {{ url: "nats://127.0.0.1:{port}" }} ] }}\n'
    async with AsyncExitStack() as stack:

        async def connected(server: NatsServer, name: str, domain: str = "") -> NatsSession:
            topology = TopologySettings(prefix=name)
            settings = BusSettings(servers=(server.address,), domain=domain, topology=topology)
            session = await NatsBus(settings).connect(name="test")
            stack.push_async_callback(session.close)
            return session

        hub = stack.enter_context(nats_server(hub_conf, name="hub"))
        for name, keys in (("east", 1), ("west", 2)):
            jetstream = f'jetstream {{ store_dir: "{tmp_path / name}", domain: {name} }}\n'
            leaf = stack.enter_context(nats_server(jetstream + remotes, name=name))
            there = await connected(leaf, name)
            await there.apply()
            for number in range(keys):
                await there.put("cluster", f"node.n{number}", b"{}")
        for name, keys in (("east", 1), ("west", 2)):
            assert (await (await connected(hub, name, name)).state("KV_cluster")).messages == keys


def permissions(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "berth_cli", "bus", "permissions", *arguments]
    environment = {**os.environ, **variables}
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=environment)


def test_permissions_are_printed_of_the_berths_that_are_named():
    assert permissions().stdout == nats_conf()
    assert permissions(BERTH_NATS_PREFIX="east").stdout == nats_conf("east")
    assert permissions("--prefix", "", "--prefix", "west").stdout == nats_conf("", "west")
    refused = permissions("--prefix", "stored")
    assert (refused.returncode, "--prefix" in refused.stderr) == (2, True)


# --- a hostile client of one berth


@pytest.fixture(scope="module")
def server() -> Iterator[NatsServer]:
    """Accounts of two berths; in each account that has streams also an admin without limits."""
    conf = nats_conf("east", "west")
    for prefix in ("east", "west"):
        opening = f"  {prefix}-{OWN}: {{\n    jetstream: enabled\n    users: ["
        assert opening in conf
        admin = f"{prefix}-admin"
        conf = conf.replace(opening, f"{opening} {{ user: {admin}, password: {password_of(admin)} }}")
    with nats_server(passwords_of("east", "west") + conf) as server:
        yield server


@pytest.fixture
async def west(server: NatsServer) -> AsyncIterator[NatsSession]:
    """West's streams with something in each, as an admin sees them."""
    who = NatsCredentials(user="west-admin", password=password_of("west-admin"))
    settings = BusSettings(servers=(server.address,), credentials=who, topology=TopologySettings(prefix="west"))
    session = await NatsBus(settings).connect(name="admin")
    await session.apply()
    for stage in STAGES:
        await session.publish(f"berth.{stage}.berth.default.web-0", b"{}")
    for bucket in BUCKETS:
        await session.put(bucket, "known.key", b"{}")
    yield session
    await session.close()


async def content(session: NatsSession) -> dict[str, object]:
    """Everything in the streams of a berth, and their consumers."""
    found: dict[str, object] = {}
    for stream in declared_streams(TopologySettings()):
        stored = [(one.subject, one.sequence, one.data) async for one in session.scan(stream.name, ">")]
        state = await session.state(stream.name)
        found[stream.name] = (stored, state.created, await session.consumers(stream.name), state.consumers)
    return found


def subjects_of(prefix: str) -> list[str]:
    """Every subject that a user of the berth may publish to, and the requests that change its streams."""
    allowed = {subject for user in users(prefix) for subject in publishes(user)}
    streams = [stream.name for stream in declared_streams(TopologySettings(prefix=prefix))]
    verbs = ("PURGE", "DELETE", "UPDATE", "MSG.DELETE", "SNAPSHOT", "LEADER.STEPDOWN")
    managed = {f"{api}.STREAM.{verb}.{one}" for api in APIS for verb in verbs for one in streams}
    consumers = {f"{api}.CONSUMER.{verb}.{prefix}-PENDING.scorer" for api in APIS for verb in ("DELETE", "PAUSE")}
    return sorted(subject.replace("*", "x").replace(">", "known.key") for subject in allowed | managed | consumers)


APIS = ("$JS.API", "$JS.berth.API")
BODIES = (b"", b'{"seq":1}', b'{"pause_until":"2099-01-01T00:00:00Z"}')


async def attack(server: NatsServer, user: str, west: NatsSession) -> list[str]:
    """Subscribe to all of west, then publish everywhere in west with replies everywhere in west.

    Returns the subjects on which the client received what west has published meanwhile.
    """
    client = await client_of(server, user, password_of(user), inbox_of(user))
    received: list[str] = []

    async def receive(message: Msg) -> None:
        if message.data == OF_WEST:
            received.append(message.subject)

    try:
        for subject in sorted(
            {"west.>", "stored.>", "$KV.>", *(one for who in users("west") for one in subscribes(who))}
        ):
            await client.subscribe(subject, cb=receive)
        await client.flush()
        await west.publish("berth.decision.berth.default.web-0", OF_WEST)
        await west.put("facts", "of.west", OF_WEST)
        before = await content(west)
        await write_everywhere(client)
        assert await content(west) == before
    finally:
        await client.close()
    return received


async def write_everywhere(client: Client) -> None:
    """Publish to everything of west, and have the server publish there what the client reads of its own."""
    for subject in subjects_of("west"):
        for body in BODIES:
            await client.publish(subject, body)
    await client.publish("$KV.east-facts.evil.key", b"9")
    for reply in subjects_of("west"):
        for api in APIS:
            await client.publish(f"{api}.DIRECT.GET.KV_east-facts.$KV.east-facts.evil.key", b"", reply=reply)
    await client.flush()
    await asyncio.sleep(0.3)


OF_WEST = b'"of west"'


async def test_no_client_of_one_berth_reaches_the_other(server: NatsServer, west: NatsSession):
    """The admin of an account may do everything there, so nothing but the account keeps it from the other berth.

    tests/integration/bus/test_rights_by_attack.py has all users try it.
    """
    who = NatsCredentials(user="east-admin", password=password_of("east-admin"))
    settings = BusSettings(servers=(server.address,), credentials=who, topology=TopologySettings(prefix="east"))
    east = await NatsBus(settings).connect(name="admin")
    await east.apply()
    assert await attack(server, "east-admin", west) == []
    await east.close()


async def test_the_same_client_in_the_same_account_reaches_everything(server: NatsServer, west: NatsSession):
    """What the test above would see."""
    with pytest.raises(MissingError):  # it has deleted the streams
        await attack(server, "west-admin", west)
    client = await client_of(server, "west-admin", password_of("west-admin"))
    received = await client.subscribe("stored.west.>")
    await client.flush()
    await west.apply()
    await west.publish("berth.decision.berth.default.web-0", OF_WEST)
    assert (await received.next_msg(timeout=5)).subject == "stored.west.berth.decision.berth.default.web-0"
    await client.close()
