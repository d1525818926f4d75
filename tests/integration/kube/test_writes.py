"""Volumes for claims, on an API server, real and simulated: written once, and never over another's word."""

import pytest

from berth.framework.interface import ClaimName, KeepVolume, SelectNode
from berth.kube.writes import BOUND_BY_CONTROLLER, SELECTED_NODE, keep_volume, select_node
from harness.plugins.fixtures_kube import Cluster

SPEC = {"accessModes": ["ReadWriteOnce"], "storageClassName": "slow"}
PROMISE = {"kind": "PersistentVolumeClaim", "apiVersion": "v1"}


class Storage:
    """One volume and one claim of the test's own."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.volume = f"disk-{cluster.api.namespace}"
        self.claims = f"/api/v1/namespaces/{cluster.api.namespace}/persistentvolumeclaims"

    async def make(self, **spec: object) -> ClaimName:
        whole = {**SPEC, "capacity": {"storage": "1Gi"}, "hostPath": {"path": "/x"}, **spec}
        body = {"metadata": {"name": self.volume}, "spec": whole}
        assert (await self.cluster.api.post("/api/v1/persistentvolumes", body)).code == 201
        claim = {"metadata": {"name": "data"}, "spec": {**SPEC, "resources": {"requests": {"storage": "1Gi"}}}}
        made = await self.cluster.api.post(self.claims, claim)
        return ClaimName(namespace=self.cluster.api.namespace, name="data", uid=made.body["metadata"]["uid"])

    async def keep(self, claim: ClaimName):
        return await keep_volume(self.cluster.client, KeepVolume(volume=self.volume, claim=claim))

    async def select(self, claim: ClaimName, node: str = "n0"):
        return await select_node(self.cluster.client, SelectNode(claim=claim, node=node))

    async def shown(self) -> dict:
        return (await self.cluster.api.get(f"/api/v1/persistentvolumes/{self.volume}")).body


@pytest.fixture
def storage(cluster: Cluster) -> Storage:
    return Storage(cluster)


async def test_a_volume_is_kept_once_and_by_us(storage):
    claim = await storage.make()
    assert [(await storage.keep(claim)).status for _ in range(2)] == [200, 200]
    shown = await storage.shown()
    assert shown["spec"]["claimRef"] == {
        **PROMISE,
        "namespace": claim.namespace,
        "name": "data",
        "uid": claim.uid,
    }
    assert shown["metadata"]["annotations"] == {BOUND_BY_CONTROLLER: "yes"}


async def test_a_repeated_write_moves_nothing(storage):
    claim = await storage.make()
    await storage.keep(claim)
    before = (await storage.shown())["metadata"]["resourceVersion"]
    await storage.keep(claim)
    assert (await storage.shown())["metadata"]["resourceVersion"] == before


async def test_a_volume_that_is_kept_for_another_claim_is_refused_in_words(storage):
    claim = await storage.make(claimRef={**PROMISE, "namespace": "default", "name": "other"})
    refused = await storage.keep(claim)
    assert (refused.status, refused.reason) == (409, "Conflict")
    assert refused.message == f"persistentvolume {storage.volume!r} is kept for claim 'default/other'"


async def test_a_namesake_of_the_claim_is_not_taken_for_it(storage):
    claim = await storage.make()
    former = ClaimName(namespace=claim.namespace, name="data", uid="00000000-0000-0000-0000-000000000000")
    assert (await storage.select(former)).status == 409
    await storage.keep(former)
    assert (await storage.keep(claim)).status == 409


async def test_a_node_is_selected_once(storage):
    claim = await storage.make()
    assert [(await storage.select(claim)).status for _ in range(2)] == [200, 200]
    shown = (await storage.cluster.api.get(f"{storage.claims}/data")).body
    assert shown["metadata"]["annotations"] == {SELECTED_NODE: "n0"}
    refused = await storage.select(claim, "n1")
    assert (refused.status, refused.message) == (
        409,
        f"a volume is being made for claim '{claim.namespace}/data' on node 'n0'",
    )


async def test_what_is_not_there_is_not_found(storage):
    claim = ClaimName(namespace=storage.cluster.api.namespace, name="nobody", uid="u")
    assert (await storage.keep(claim)).status == 404
    assert (await storage.select(claim)).status == 404
