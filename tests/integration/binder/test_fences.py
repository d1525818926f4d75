"""Fences on the real and the simulated API server: a number that somebody writes on a pod deposes no binder."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from berth.messages.attempts import Outcome
from harness.fakes.memory_bus import MemoryBus
from harness.plugins.fixtures_kube import Cluster
from harness.worlds.binder_world import BinderWorld, binder_world, has_fence
from harness.worlds.kubernetes_api import STRATEGIC_PATCH


def memory_bus() -> MemoryBus:
    bus = MemoryBus()
    bus.apply()
    return bus


@pytest.fixture
async def world(cluster: Cluster) -> AsyncIterator[BinderWorld]:
    async with binder_world(cluster, memory_bus()) as world:
        yield world


async def write_fence(world: BinderWorld, name: str, text: str) -> None:
    """As anybody can who may patch the status of pods."""
    fence = {"type": "berth/fence", "status": "True", "reason": "Fence", "message": text}
    path = f"{world.cluster.api.pods}/{name}/status"
    answer = await world.cluster.api.patch(path, {"status": {"conditions": [fence]}}, STRATEGIC_PATCH)
    assert answer.code == 200, answer.body


@pytest.mark.parametrize("text", ["50", "9" * 19, "9" * 5000])
@pytest.mark.parametrize("scheduler", ["berth", "other"])
async def test_number_that_somebody_writes_deposes_no_binder(world: BinderWorld, text: str, scheduler: str):
    node = await world.add_node()
    await world.add_pod("web", schedulerName=scheduler)
    await world.leading_binder()
    await write_fence(world, "web", text)
    fenced, plain = await world.pod("web"), await world.add_pod("plain")
    if scheduler == "berth":
        await world.rank(fenced, node)
        decision = await world.decision(fenced)
        assert (decision.outcome, decision.epoch) == (Outcome.BOUND, 1)
    await world.rank(plain, node)
    decision = await world.decision(plain)
    assert (decision.outcome, decision.epoch) == (Outcome.BOUND, 1)


async def test_two_berths_with_leases_of_their_own_do_not_depose_each_other(world: BinderWorld):
    node = await world.add_node(cpu="100")
    async with binder_world(world.cluster, memory_bus()) as other:
        for _ in range(3):
            await (await other.leading_binder()).kill()
        await world.leading_binder()
        await other.leading_binder()
        for number in range(5):
            for each in (world, other):
                pod = await each.add_pod(f"{each.lease}-{number}", cpu="100m")
                await world.rank(pod, node)
                await other.rank(pod, node)
                assert (await each.decision(pod)).outcome in {Outcome.BOUND, Outcome.GONE}
        assert {decision.epoch for decision in world.decisions} == {1}
        assert len({decision.epoch for decision in other.decisions}) == 1
        led = [
            each.binders[-1].process.metrics.value("berth_leaderships_total", role="binder") for each in (world, other)
        ]
        assert led == [1, 1]


async def test_fence_whose_epoch_the_lease_has_too_ends_the_lead(world: BinderWorld):
    node, pod = await world.add_node(), await world.add_pod("web")
    await world.leading_binder()
    await write_fence(world, "web", "50")
    lease = f"/apis/coordination.k8s.io/v1/namespaces/berth/leases/{world.lease}-binder"
    await world.cluster.api.patch(lease, {"metadata": {"annotations": {"berth/term": "50"}}})
    await world.rank(await world.pod("web"), node)
    decision = await world.decision(pod)
    assert (decision.outcome, decision.epoch > 50) == (Outcome.BOUND, True)


# What a leader leaves behind.


async def test_successor_of_a_clean_stop_fences_nothing(world: BinderWorld):
    pods = [await world.add_pod(f"p{number}") for number in range(3)]
    await (await world.leading_binder()).stop()
    for pod in pods:
        await world.rank(pod, "no-such-node")
    await world.leading_binder()
    await world.decision(pods[-1])
    fenced = [await has_fence(world, pod.metadata.name) for pod in pods]
    assert sum(fenced) <= 1, "one pod of the cluster, so that the watch has a version to reach"


async def test_successor_of_a_killed_leader_fences(world: BinderWorld):
    pods = [await world.add_pod(f"p{number}") for number in range(3)]
    await (await world.leading_binder()).stop()
    await (await world.leading_binder()).kill()
    for pod in pods:
        await world.rank(pod, "no-such-node")
    await world.leading_binder()
    await world.decision(pods[-1])
    assert all([await has_fence(world, pod.metadata.name) for pod in pods])
