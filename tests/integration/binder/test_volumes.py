"""Claims with WaitForFirstConsumer, on the real and the simulated API server; the test acts as the controllers."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from berth.messages.attempts import Outcome
from harness.plugins.fixtures_bus import BusUnderTest
from harness.plugins.fixtures_kube import Cluster
from harness.worlds.binder_world import SELECTED, VolumeWorld, binder_world


@pytest.fixture
async def world(cluster: Cluster, nats_bus_under_test: BusUnderTest) -> AsyncIterator[VolumeWorld]:
    async with binder_world(cluster, nats_bus_under_test.bus, VolumeWorld) as world:
        yield world


async def test_pod_is_bound_once_its_volume_is_provisioned(world):
    await world.add_class("disks.example.com")
    await world.add_claim()
    node, pod = await world.add_node(), await world.using("web")
    await world.leading_binder()
    await world.rank(pod, node)

    async def is_selected() -> bool:
        return await world.selected_node("data") == node

    await world.until(is_selected)
    await world.until(lambda: world.is_waiting(pod))
    assert (await world.pod("web")).spec.node_name == ""
    volume = f"made-{world.cluster.api.namespace}"
    await world.add_volume(volume)
    await world.bind_claim("data", volume)
    assert (await world.decision(pod)).outcome is Outcome.BOUND
    assert (await world.pod("web")).spec.node_name == node
    await world.nothing_ranked_is_left()


async def test_free_volume_is_bound_to_one_claim(world):
    await world.add_class("kubernetes.io/no-provisioner")
    claim, _ = await world.add_claim("data"), await world.add_claim("other")
    volume = f"disk-{world.cluster.api.namespace}"
    await world.add_volume(volume)
    node = await world.add_node()
    first, second = await world.using("first"), await world.using("second", "other")
    await world.leading_binder()
    await world.rank(first, node)
    await world.rank(second, node)

    async def is_kept() -> bool:
        return "claimRef" in (await world.seen(f"/api/v1/persistentvolumes/{volume}"))["spec"]

    await world.until(is_kept)
    kept = await world.seen(f"/api/v1/persistentvolumes/{volume}")
    assert (kept["spec"]["claimRef"]["uid"], kept["spec"]["claimRef"]["kind"]) == (
        claim["metadata"]["uid"],
        "PersistentVolumeClaim",
    )
    assert kept["metadata"]["annotations"] == {"pv.kubernetes.io/bound-by-controller": "yes"}
    assert (await world.decision(second)).outcome is Outcome.CONFLICT
    await world.bind_claim("data", volume)
    assert (await world.decision(first)).outcome is Outcome.BOUND


async def test_prebound_volume_is_not_changed(world):
    await world.add_class("kubernetes.io/no-provisioner")
    claim = await world.add_claim()
    volume = f"disk-{world.cluster.api.namespace}"
    promise = {"kind": "PersistentVolumeClaim", "namespace": world.cluster.api.namespace, "name": "data"}
    await world.add_volume(volume, claimRef=promise)
    node, pod = await world.add_node(), await world.using("web")
    await world.leading_binder()
    await world.rank(pod, node)
    await world.until(lambda: world.is_waiting(pod))
    kept = await world.seen(f"/api/v1/persistentvolumes/{volume}")
    assert kept["spec"]["claimRef"]["uid"] == claim["metadata"]["uid"]
    assert "annotations" not in kept["metadata"]


async def test_rejected_provisioning_has_the_pod_ranked_again(world):
    await world.add_class("disks.example.com")
    await world.add_claim()
    node, pod = await world.add_node(), await world.using("web")
    await world.leading_binder()
    await world.rank(pod, node)
    await world.until(lambda: world.is_waiting(pod))
    await world.patched(f"{world.claims}/data", {"metadata": {"annotations": {SELECTED: None}}})
    decision = await world.decision(pod)
    assert (decision.outcome, decision.message) == (
        Outcome.UNSCHEDULABLE,
        'binding volumes: provisioning failed for PVC "data"',
    )


async def test_successor_binds_the_pod_whose_volume_is_provisioned(world):
    await world.add_class("disks.example.com")
    await world.add_claim()
    node, other, pod = await world.add_node(), await world.add_node(), await world.using("web")
    killed = await world.leading_binder()
    await world.rank(pod, node, other)
    await world.until(lambda: world.is_waiting(pod))
    await killed.kill()
    volume = f"made-{world.cluster.api.namespace}"
    await world.add_volume(volume)
    await asyncio.gather(world.bind_claim("data", volume), world.start_binder())
    assert (await world.decision(pod)).outcome is Outcome.BOUND
    assert (await world.pod("web")).spec.node_name == node
