"""Pods with volumes: the whole pipeline on a real API server, where the test acts as the volume controllers."""

import asyncio

import pytest

from harness.worlds.cluster_user import ClusterUser, eventually, node_of
from harness.worlds.pipeline import BerthUp
from harness.worlds.storage import HOSTNAME, SELECTED, Storage, controllers

pytestmark = [pytest.mark.requires("kubebuilder_assets", "nats-server"), pytest.mark.timeout(180)]


@pytest.fixture
def storage(pipeline: BerthUp, cluster_outside: ClusterUser) -> Storage:
    return Storage(cluster_outside)


async def test_a_pod_waits_for_its_claim_and_its_volume_is_provisioned(storage: Storage):
    await storage.add_class("disks.example.com")
    nodes = await storage.seen.add_nodes(3)
    await storage.add_pod("web-0", "data")

    async def refused() -> bool:
        message = (await storage.seen.condition("web-0")).get("message", "")
        return 'persistentvolumeclaim "data" not found' in message

    await eventually(refused, "the pod to be refused")
    async with controllers(storage):
        await storage.add_claim("data")
        placed = await storage.seen.all_bound(["web-0"])
    assert placed["web-0"] in nodes
    claim = (await storage.api.get(f"{storage.claims}/data")).body
    assert claim["metadata"]["annotations"][SELECTED] == placed["web-0"]


async def test_each_pod_gets_its_own_local_volume_and_that_volumes_node(storage: Storage):
    await storage.add_class("kubernetes.io/no-provisioner")
    nodes = await storage.seen.add_nodes(5)
    labels = [storage.api.patch(f"/api/v1/nodes/{n}", {"metadata": {"labels": {HOSTNAME: n}}}) for n in nodes]
    await asyncio.gather(*labels)
    homes = nodes[:4]
    for node in homes:
        await storage.add_volume(f"local-{node}", node)
    names = [f"db-{number}" for number in range(4)]
    for name in names:
        await storage.add_claim(name)
    async with controllers(storage):
        for name in names:
            await storage.add_pod(name, name)
        placed = await storage.seen.all_bound(names)
    assert sorted(placed.values()) == sorted(homes)
    pods = await storage.seen.pods()
    for name in names:
        claim = (await storage.api.get(f"{storage.claims}/{name}")).body
        assert claim["spec"]["volumeName"] == f"local-{node_of(pods[name])}"


async def test_a_pod_that_waits_for_its_volume_is_nominated_and_keeps_others_out_like_a_bound_pod(storage: Storage):
    seen = storage.seen
    await storage.add_class("silent.example.com")
    (node,) = await seen.add_nodes(1, cpu="4")
    await storage.add_claim("data")
    volume = {"name": "v", "persistentVolumeClaim": {"claimName": "data"}}
    await seen.create([seen.pod("first", cpu="3", spec={"volumes": [volume]})])

    async def nominated() -> str:
        return (await seen.pods())["first"]["status"].get("nominatedNodeName", "")

    assert await eventually(nominated, "the waiting pod to be nominated") == node
    (second,) = await seen.add_pods(1, "second", cpu="2")
    condition = await eventually(lambda: seen.condition(second), "the second pod to be told")
    assert (condition["status"], condition["reason"]) == ("False", "Unschedulable")
    assert condition["message"].startswith("0/1 nodes are available: 1 Insufficient cpu.")
    await seen.delete_pod("first")
    assert (await seen.all_bound([second]))[second] == node
