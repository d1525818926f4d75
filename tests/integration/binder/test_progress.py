"""Nothing is stuck, on the real and the simulated API server: what some pods wait for delays no other pod."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from berth.kube.client import KubeClient
from berth.kube.http1 import Response
from berth.messages.attempts import Outcome, Preemption, Victim
from berth_binder import apicalls
from berth_binder.core import BinderCore
from harness.plugins.fixtures_bus import BusUnderTest
from harness.plugins.fixtures_kube import Cluster
from harness.worlds.binder_world import QUICK, VolumeWorld, binder_world

OWN_CLASS = {"priorityClassName": "system-node-critical", "priority": 2_000_001_000}


class FailingClient:
    """A client whose requests of one verb on one subresource are answered with 503 before they are sent."""

    def __init__(self, client: KubeClient, method: str, ending: str) -> None:
        self.answered = 0
        self._client = client
        self._fails = lambda called, path: called == method and path.endswith(ending)

    def checking(self, check: Any) -> FailingClient:
        self._client = self._client.checking(check)
        return self

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    async def request(self, method: str, path: str, **parts: Any) -> Response:
        if self._fails(method, path):
            self.answered += 1
            return Response(status=503, body=b'{"kind":"Status","message":"etcdserver: leader changed"}')
        return await self._client.request(method, path, **parts)

    async def call(self, method: str, path: str, **parts: Any) -> Response:
        if self._fails(method, path):
            return await self.request(method, path)
        return await self._client.call(method, path, **parts)


@pytest.fixture
async def world(cluster: Cluster, nats_bus_under_test: BusUnderTest) -> AsyncIterator[VolumeWorld]:
    async with binder_world(cluster, nats_bus_under_test.bus, VolumeWorld) as world:
        yield world


def places(count: int) -> Any:
    return replace(QUICK, core=replace(QUICK.core, max_in_flight=count))


@pytest.mark.parametrize("count", [1, 3])
async def test_pods_are_bound_after_preemptors_that_were_answered_503_are_deleted(world: VolumeWorld, count: int):
    failing = FailingClient(world.cluster.client, "DELETE", "")
    world.client = failing
    free = await world.add_node()
    await world.leading_binder(places(count))
    for number in range(count):
        node = await world.add_node(cpu="1", labels={"only": f"vip-{number}"})
        victim = await world.add_pod(f"low-{number}")
        assert (await world.cluster.api.bind(victim.metadata.name, node)).code == 201
        vip = await world.add_pod(f"vip-{number}", nodeSelector={"only": f"vip-{number}"}, **OWN_CLASS)
        named = Victim(uid=victim.uid, namespace=victim.metadata.namespace, name=victim.metadata.name)
        await world.rank(vip, preemption=Preemption(node=node, victims=[named]), evaluated=10**6, view_age_seconds=1.0)
    await world.until(lambda: failing.answered >= count)
    for number in range(count):
        deleted = await world.cluster.api.delete(f"{world.cluster.api.pods}/vip-{number}")
        assert deleted.code == 200
    pod = await world.add_pod("web")
    await world.rank(pod, free)
    assert (await world.decision(pod)).outcome is Outcome.BOUND


async def test_important_pod_is_bound_behind_more_waiting_pods_than_messages_are_held(world: VolumeWorld):
    await world.add_class("disks.example.com")
    node = await world.add_node(cpu="64")
    await world.leading_binder(replace(QUICK, max_unacked=4))
    for number in range(10):
        await world.add_claim(f"never-{number}")
        await world.rank(await world.using(f"waits-{number}", f"never-{number}"), node)
    vip = await world.add_pod("vip", **OWN_CLASS)
    await world.rank(vip, node)
    assert (await world.decision(vip)).outcome is Outcome.BOUND


async def test_leader_that_examines_nothing_is_not_ready_and_starts_anew(world: VolumeWorld, monkeypatch):
    node = await world.add_node()
    binder = await world.leading_binder(replace(QUICK, stalled=timedelta(seconds=0.5)))
    with monkeypatch.context() as stuck:
        stuck.setattr(BinderCore, "_may_start", False)
        pod = await world.add_pod("web")
        await world.rank(pod, node)
        await world.until(lambda: "1 messages of RANKED wait" in binder.process.health.summary())
        assert not binder.process.health.is_ready
    assert (await world.decision(pod)).outcome is Outcome.BOUND
    assert world.decisions[-1].epoch > 1
    await world.until(lambda: binder.process.health.is_working)


async def test_request_that_ends_in_an_exception_frees_its_place(world: VolumeWorld, monkeypatch):
    node = await world.add_node()
    await world.leading_binder(places(1))
    original, odd, fine = apicalls.post_binding, await world.add_pod("odd"), await world.add_pod("fine")

    async def post_binding(client, effect, limit):
        if effect.pod.uid == odd.uid:
            raise ValueError("an answer of another shape")
        return await original(client, effect, limit)

    monkeypatch.setattr(apicalls, "post_binding", post_binding)
    await world.rank(odd, node)
    await world.rank(fine, node)
    assert (await world.decision(fine)).outcome is Outcome.BOUND
    decision = await world.decision(odd)
    assert decision.outcome is Outcome.ERROR
    assert "an answer of another shape" in decision.message
