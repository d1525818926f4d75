"""Every pod is bound although NATS is killed, restarted, or has lost its store."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from berth.bus.session import NatsBus
from berth.bus.settings import BusSettings
from harness.plugins.fixtures_bus import TEST_TOPOLOGY
from harness.plugins.fixtures_kube import Cluster
from harness.servers.nats_server import NatsServer
from harness.worlds.watcher_service import WatcherWorld, watcher_world


@pytest.fixture
async def world(simulated_cluster: Cluster, own_nats_server: NatsServer) -> AsyncIterator[WatcherWorld]:
    bus = NatsBus(BusSettings(servers=(own_nats_server.address,), topology=TEST_TOPOLOGY))
    async with watcher_world(simulated_cluster, bus) as world:
        await world.add_node("n1")
        yield world


async def test_restart_of_nats_loses_no_pod(world, own_nats_server):
    await world.leading_watcher()
    adding = asyncio.create_task(world.add_pods("web", 60))
    await world.until(lambda: len(world.names) > 10)

    own_nats_server.kill()
    await adding
    own_nats_server.start()

    await world.until(world.all_bound)


async def test_loss_of_the_nats_store_loses_no_pod(world, own_nats_server):
    watcher = await world.leading_watcher()
    adding = asyncio.create_task(world.add_pods("web", 60))
    await world.until(lambda: len(world.names) > 10)

    own_nats_server.kill()
    await adding
    own_nats_server.lose_store()
    own_nats_server.start()

    await world.until(world.all_bound)
    await world.until(lambda: watcher.leads)
    session = await world.session()
    assert (await session.get("cluster", "node.n1")) is not None
    await session.close()
