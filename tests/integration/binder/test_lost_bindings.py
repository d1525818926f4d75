"""A Binding without an answer, whose node is deleted before it arrives, on the real and the simulated API server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from berth.cluster.nodes import node_info
from berth.kube.client import KubeClient
from berth.kube.errors import ApiUnreachableError
from berth.kube.http1 import Response
from berth.messages.attempts import Outcome
from berth_binder import service
from berth_binder.cache import Cache
from harness.plugins.fixtures_bus import BusUnderTest
from harness.plugins.fixtures_kube import Cluster
from harness.worlds.binder_world import BinderWorld, binder_world


class LosingClient:
    """A client that keeps the first Binding back as the network would, and reports that no answer came."""

    def __init__(self, client: KubeClient) -> None:
        self.kept: tuple[str, bytes] | None = None
        self.lost = asyncio.Event()
        self.may_go_on = asyncio.Event()
        self._client = client

    def checking(self, check: Any) -> LosingClient:
        self._client = self._client.checking(check)
        return self

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    async def request(self, method: str, path: str, **parts: Any) -> Response:
        if path.endswith("/binding") and self.kept is None:
            self.kept = path, parts["body"]
            self.lost.set()
            await self.may_go_on.wait()
            raise ApiUnreachableError("the answer is lost")
        return await self._client.request(method, path, **parts)


class LostWorld(BinderWorld):
    def prepare(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.client = LosingClient(self.cluster.client)
        self.caches: list[Cache] = []

        def remember(**parts: Any) -> Cache:
            self.caches.append(Cache(**parts))
            return self.caches[-1]

        monkeypatch.setattr(service, "Cache", remember)

    async def delete(self, node: str) -> None:
        """Delete the node; the binder has seen it when this returns."""
        assert (await self.cluster.api.delete(f"/api/v1/nodes/{node}")).code == 200
        await self.until(lambda: node_info(self.caches[0].snapshot, node) is None)

    async def arrival_of_the_lost(self) -> int:
        path, body = self.client.kept
        return (await self.cluster.client.request("POST", path, body=body)).status


@pytest.fixture
async def world(
    cluster: Cluster, nats_bus_under_test: BusUnderTest, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[LostWorld]:
    async with binder_world(cluster, nats_bus_under_test.bus, LostWorld) as world:
        world.prepare(monkeypatch)
        yield world


async def lose_the_first_binding(world: LostWorld, *nodes: str, then: Callable[[], Any]):
    pod = await world.add_pod("web")
    await world.leading_binder()
    await world.rank(pod, *nodes)
    async with asyncio.timeout(20):
        await world.client.lost.wait()
    await then()
    world.client.may_go_on.set()
    return pod


async def test_pod_goes_to_another_node_once_the_lost_binding_cannot_arrive_any_more(world: LostWorld):
    first, second = await world.add_node(), await world.add_node()
    pod = await lose_the_first_binding(world, first, second, then=lambda: world.delete(first))
    decision = await world.decision(pod)
    assert (decision.outcome, decision.node) == (Outcome.BOUND, second)
    assert await world.arrival_of_the_lost() == 409
    assert (await world.pod("web")).spec.node_name == second


async def test_without_another_node_it_is_a_conflict_and_the_lost_binding_cannot_arrive_any_more(world: LostWorld):
    only = await world.add_node()
    pod = await lose_the_first_binding(world, only, then=lambda: world.delete(only))
    assert (await world.decision(pod)).outcome is Outcome.CONFLICT
    assert await world.arrival_of_the_lost() == 409
    assert (await world.pod("web")).spec.node_name == ""


async def test_binding_that_has_arrived_is_bound_though_its_node_is_gone(world: LostWorld):
    first, second = await world.add_node(), await world.add_node()

    async def arrives() -> None:
        assert await world.arrival_of_the_lost() == 201
        await world.delete(first)

    pod = await lose_the_first_binding(world, first, second, then=arrives)
    decision = await world.decision(pod)
    assert (decision.outcome, decision.node) == (Outcome.BOUND, first)
