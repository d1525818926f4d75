"""Informers at the beginning of a leadership: what is current is not listed a second time."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest

from berth.api.kinds import NODE, POD
from berth.kube.informers import FRESH_SECONDS, Informers
from berth.kube.listwatch import Upserted
from harness.fakes.ticking_clock import TickingClock
from harness.plugins.fixtures_kube import Cluster


class CountingClient:
    """A client that counts the objects' LISTs by path."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self.lists: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    async def request(self, method: str, path: str, **parts: Any) -> Any:
        self.lists[path] += 1
        return await self._client.request(method, path, **parts)


@pytest.fixture
def client(simulated_cluster: Cluster) -> CountingClient:
    return CountingClient(simulated_cluster.client)


@pytest.fixture
async def world(client: CountingClient) -> AsyncIterator[tuple[Informers, TickingClock, asyncio.Queue[Any]]]:
    clock, events = TickingClock(), asyncio.Queue[Any]()
    informers: Any = Informers(
        client, (NODE, POD), events.put_nowait, on_complete=list, on_relist=lambda _kind: None, clock=clock
    )
    running = asyncio.create_task(informers.run())
    await informers.listed()
    yield informers, clock, events
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_what_was_just_listed_is_not_listed_again(world, client):
    informers, clock, _ = world
    clock.jump(FRESH_SECONDS)
    await informers.refresh()
    assert set(client.lists.values()) == {1}


async def test_only_a_kind_of_which_nothing_was_heard_is_listed_again(world, client, simulated_cluster):
    informers, clock, events = world
    while not events.empty():
        events.get_nowait()
    clock.jump(FRESH_SECONDS + 1)
    await simulated_cluster.api.add_pod("web")
    while not isinstance(await events.get(), Upserted):
        pass
    await informers.refresh()
    assert (client.lists[NODE.path], client.lists[POD.path]) == (2, 1)
