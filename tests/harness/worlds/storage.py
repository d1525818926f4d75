"""Claims and volumes of a test, which acts as the volume controllers: the clusters of tests have none."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from harness.worlds.cluster_user import ClusterUser

SELECTED = "volume.kubernetes.io/selected-node"
HOSTNAME = "kubernetes.io/hostname"
CLAIM = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}


class Storage:
    """A storage class of a test, with its claims and volumes, and the volume controllers."""

    def __init__(self, seen: ClusterUser) -> None:
        self.seen = seen
        self.api = seen.api
        self.name = f"slow-{seen.namespace}"
        self.claims = f"/api/v1/namespaces/{seen.namespace}/persistentvolumeclaims"
        self.withheld: set[str] = set()
        """Claims that get no volume."""

    async def add_class(self, provisioner: str) -> None:
        body = {"metadata": {"name": self.name}, "provisioner": provisioner}
        await self._made(
            "/apis/storage.k8s.io/v1/storageclasses", {**body, "volumeBindingMode": "WaitForFirstConsumer"}
        )

    async def add_claim(self, name: str) -> None:
        await self._made(self.claims, {"metadata": {"name": name}, "spec": {**CLAIM, "storageClassName": self.name}})

    async def add_volume(self, name: str, node: str) -> None:
        """A free volume of one node."""
        here = {"key": HOSTNAME, "operator": "In", "values": [node]}
        affinity = {"required": {"nodeSelectorTerms": [{"matchExpressions": [here]}]}}
        spec = {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "local": {"path": "/x"}}
        whole = {**spec, "storageClassName": self.name, "nodeAffinity": affinity}
        await self._made("/api/v1/persistentvolumes", {"metadata": {"name": name}, "spec": whole})
        await self._patched(f"/api/v1/persistentvolumes/{name}/status", {"status": {"phase": "Available"}})

    async def is_bound(self, claim: str) -> bool:
        return "volumeName" in (await self.api.get(f"{self.claims}/{claim}")).body["spec"]

    async def add_pod(self, name: str, claim: str) -> None:
        volume = {"name": "v", "persistentVolumeClaim": {"claimName": claim}}
        assert (await self.api.add_pod(name, volumes=[volume])).code == 201

    async def run_controllers(self) -> None:
        """Bind volumes that have a claimRef, and provision claims that have a selected node, until cancelled."""
        while True:
            for volume in (await self.api.get("/api/v1/persistentvolumes")).body["items"]:
                claim_ref = volume["spec"].get("claimRef", {})
                if claim_ref.get("namespace") == self.seen.namespace:
                    await self._bind(claim_ref["name"], volume["metadata"]["name"])
            for claim in (await self.api.get(self.claims)).body["items"]:
                await self._provision(claim)
            await asyncio.sleep(0.05)

    async def _provision(self, claim: dict) -> None:
        node = claim["metadata"].get("annotations", {}).get(SELECTED)
        is_withheld = claim["metadata"]["name"] in self.withheld
        if node and not is_withheld and not claim["spec"].get("volumeName"):
            name = f"made-{claim['metadata']['uid']}"
            await self.add_volume(name, node)
            await self._bind(claim["metadata"]["name"], name)

    async def _bind(self, claim: str, volume: str) -> None:
        annotations = {"pv.kubernetes.io/bind-completed": "yes"}
        body = {"metadata": {"annotations": annotations}, "spec": {"volumeName": volume}}
        await self._patched(f"{self.claims}/{claim}", body)

    async def _made(self, path: str, body: dict) -> None:
        answer = await self.api.post(path, body)
        assert answer.code == 201, answer.body

    async def _patched(self, path: str, body: dict) -> None:
        answer = await self.api.patch(path, body)
        assert answer.code == 200, answer.body


@asynccontextmanager
async def controllers(storage: Storage) -> AsyncIterator[None]:
    running = asyncio.create_task(storage.run_controllers())
    try:
        yield
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
