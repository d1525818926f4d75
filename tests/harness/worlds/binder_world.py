"""A running binder between a cluster and a bus, with RANKED published by the test and Decisions read back."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, TypeVar
from unittest.mock import patch

from berth.api.config.configuration import KubeSchedulerConfiguration
from berth.api.pod import Pod
from berth.bus.interface import Bus, Session
from berth.bus.stages import publish_ranked
from berth.clock import Backoff
from berth.kube.client import KubeClient
from berth.kube.writes import get_pod
from berth.leader.onecluster import claim_cluster, read_cluster_id
from berth.leader.session import LeaderSession
from berth.lifecycle.process import Process
from berth.messages.attempts import Candidate, Decision, Outcome, Ranked
from berth.messages.encoding import decode
from berth.messages.subjects import Attempt, Term, Uid
from berth.profiles.configuration import read_configuration
from berth.settings.settings import LeaderElectionSettings, Settings
from berth_binder.service import Clients, serve
from berth_binder.settings import BinderSettings, CoreSettings
from harness.fakes.recording_meter import RecordingMeter
from harness.plugins.fixtures_kube import Cluster

SECONDS = 40.0
SELECTED = "volume.kubernetes.io/selected-node"
QUICK = BinderSettings(
    core=CoreSettings(backoff=Backoff(initial=timedelta(milliseconds=50), maximum=timedelta(milliseconds=200))),
    keep_alive=timedelta(milliseconds=200),
    binding_timeout=timedelta(seconds=2),
)


@dataclass
class RunningBinder:
    """One binder, in a task of the test's process."""

    process: Process
    task: asyncio.Task[None]

    async def stop(self) -> None:
        """As on SIGTERM."""
        self.process.stopping.set()
        await asyncio.wait_for(self.task, SECONDS)

    async def kill(self) -> None:
        """As on SIGKILL, except that the Lease is released."""
        with patch.object(LeaderSession, "settled"):
            self.task.cancel()
            await asyncio.gather(self.task, return_exceptions=True)


@dataclass
class BinderWorld:
    """The cluster, the bus and the running binders of a test."""

    cluster: Cluster
    bus: Bus
    session: Session
    decisions: list[Decision] = field(default_factory=list)
    lease: str = field(default_factory=lambda: f"binder-test-{uuid.uuid4().hex[:8]}")
    configuration: KubeSchedulerConfiguration = field(default_factory=lambda: read_configuration(None))
    binders: list[RunningBinder] = field(default_factory=list)
    client: KubeClient | None = None
    """The binders' client, when it is not the cluster's."""

    async def start_binder(self, settings: BinderSettings = QUICK, **election: timedelta) -> RunningBinder:
        """Start one more binder."""
        chosen = LeaderElectionSettings(resource_name=self.lease, retry_period=timedelta(seconds=0.2))
        process = Process(
            name="binder", metrics=RecordingMeter(), settings=Settings(leader_election=replace(chosen, **election))
        )
        clients = Clients(bus=self.bus, api=self.client or self.cluster.client, events=self.cluster.client)
        work = serve(clients, process, self.configuration, settings)
        binder = RunningBinder(process=process, task=asyncio.create_task(work))
        self.binders.append(binder)
        return binder

    async def leading_binder(self, settings: BinderSettings = QUICK) -> RunningBinder:
        """Start a binder and wait until it takes messages."""
        binder = await self.start_binder(settings)

        async def consumes() -> bool:
            number = binder.process.metrics.value("berth_leadership_number", role="binder")
            return bool(number) and f"binder-{number:g}" in await self.session.consumers("RANKED")

        await self.until(consumes)
        return binder

    async def _has_consumer(self) -> bool:
        return bool(await self.session.consumers("RANKED"))

    async def add_node(self, cpu: str = "4", labels: dict[str, str] | None = None) -> str:
        """A ready node with a new name."""
        name = f"node-{uuid.uuid4().hex[:10]}"
        resources = {"cpu": cpu, "memory": "8Gi", "pods": "110"}
        node = {
            "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, **(labels or {})}},
            "status": {"allocatable": resources, "capacity": resources},
        }
        assert (await self.cluster.api.post("/api/v1/nodes", node)).code == 201
        assert (await self.cluster.api.patch(f"/api/v1/nodes/{name}", {"spec": {"taints": None}})).code == 200
        return name

    async def add_pod(self, name: str, cpu: str = "1", **spec: object) -> Pod:
        """A pending pod."""
        container = {"name": "main", "image": "pause", "resources": {"requests": {"cpu": cpu}}}
        answer = await self.cluster.api.add_pod(name, containers=[container], **spec)
        assert answer.code == 201, answer.body
        return await self.pod(name)

    async def pod(self, name: str) -> Pod:
        """The pod as the API shows it."""
        pod = await get_pod(self.cluster.client, self.cluster.api.namespace, name)
        assert pod is not None
        return pod

    async def rank(self, pod: Pod, *nodes: str, n: int = 1, counted: int = 0, **parts: Any) -> Ranked:
        """Publish RANKED for the pod."""
        candidates = [Candidate(node=node, total=100, pods=counted) for node in nodes]
        attempt = Attempt(uid=Uid(pod.uid), term=Term(1), n=n)
        whole = {"feasible": len(nodes), "evaluated": len(nodes), **parts}
        message = Ranked(attempt=str(attempt), profile="berth", pod=pod, candidates=candidates, **whole)
        await publish_ranked(self.session, message)
        return message

    async def decision(self, pod: Pod, n: int = 1) -> Decision:
        """The first final Decision on an attempt."""
        attempt = f"{pod.uid}.1.{n}"
        await self.until(lambda: self._finals(attempt))
        return self._finals(attempt)[0]

    def _finals(self, attempt: str) -> list[Decision]:
        return [decision for decision in self.decisions if decision.attempt == attempt and decision.outcome.final]

    async def events(self, name: str) -> list[dict]:
        """The pod's Events."""
        items = (await self.cluster.api.get(self.cluster.api.new_events)).body["items"]
        return [item for item in items if item["regarding"]["name"] == name]

    async def until(self, holds: Callable[[], Any], seconds: float = SECONDS) -> None:
        """Wait until the condition holds."""
        async with asyncio.timeout(seconds):
            while True:
                found = holds()
                if await found if asyncio.iscoroutine(found) else found:
                    return
                await asyncio.sleep(0.01)

    async def nothing_ranked_is_left(self) -> None:
        """Wait until every message of RANKED is acknowledged."""

        async def none() -> bool:
            return [one async for one in self.session.scan("RANKED", "berth.ranked.>")] == []

        await self.until(none)

    async def read_decisions(self) -> None:
        """Keep reading DECISIONS into ``decisions``."""
        async with self.session.read_stream("DECISIONS") as following:
            async for batch in following.batches():
                self.decisions += [decode(stored.data, Decision) for stored in batch]


class VolumeWorld(BinderWorld):
    """With a StorageClass of its own."""

    @property
    def claims(self) -> str:
        return f"/api/v1/namespaces/{self.cluster.api.namespace}/persistentvolumeclaims"

    @property
    def storage_class(self) -> str:
        return f"slow-{self.cluster.api.namespace}"

    async def made(self, path: str, body: dict) -> dict:
        answer = await self.cluster.api.post(path, body)
        assert answer.code == 201, answer.body
        return answer.body

    async def add_class(self, provisioner: str) -> None:
        mode = {"provisioner": provisioner, "volumeBindingMode": "WaitForFirstConsumer"}
        await self.made("/apis/storage.k8s.io/v1/storageclasses", {"metadata": {"name": self.storage_class}, **mode})

    async def add_claim(self, name: str = "data") -> dict:
        spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
        body = {"metadata": {"name": name}, "spec": {**spec, "storageClassName": self.storage_class}}
        return await self.made(self.claims, body)

    async def add_volume(self, name: str, **spec: object) -> dict:
        """A volume that no claim is bound to."""
        whole = {"capacity": {"storage": "2Gi"}, "accessModes": ["ReadWriteOnce"], "hostPath": {"path": "/x"}}
        body = {"metadata": {"name": name}, "spec": {**whole, "storageClassName": self.storage_class, **spec}}
        await self.made("/api/v1/persistentvolumes", body)
        await self.patched(f"/api/v1/persistentvolumes/{name}/status", {"status": {"phase": "Available"}})
        return await self.seen(f"/api/v1/persistentvolumes/{name}")

    async def using(self, name: str, claim: str = "data"):
        volume = {"name": "v", "persistentVolumeClaim": {"claimName": claim}}
        container = {"name": "main", "image": "pause", "resources": {"requests": {"cpu": "1"}}}
        answer = await self.cluster.api.add_pod(name, containers=[container], volumes=[volume])
        assert answer.code == 201, answer.body
        return await self.pod(name)

    async def seen(self, path: str) -> dict:
        return (await self.cluster.api.get(path)).body

    async def patched(self, path: str, body: dict) -> None:
        answer = await self.cluster.api.patch(path, body)
        assert answer.code == 200, answer.body

    async def bind_claim(self, claim: str, volume: str) -> None:
        """Bind the claim to the volume as the volume controller does."""
        annotations = {"pv.kubernetes.io/bind-completed": "yes"}
        body = {"metadata": {"annotations": annotations}, "spec": {"volumeName": volume}}
        await self.patched(f"{self.claims}/{claim}", body)

    async def selected_node(self, claim: str) -> str:
        found = await self.seen(f"{self.claims}/{claim}")
        return found["metadata"].get("annotations", {}).get(SELECTED, "")

    def is_waiting(self, pod) -> bool:
        return any(decision.outcome is Outcome.WAITING and decision.uid == pod.uid for decision in self.decisions)


W = TypeVar("W", bound=BinderWorld)


@asynccontextmanager
async def binder_world(cluster: Cluster, bus: Bus, kind: type[W] = BinderWorld) -> AsyncIterator[W]:
    """A bus that serves the cluster, with no service on it yet."""
    session = await bus.connect(name="test")
    world = kind(cluster=cluster, bus=bus, session=session)
    await claim_cluster(session, await read_cluster_id(cluster.client))
    reading = asyncio.create_task(world.read_decisions())
    try:
        yield world
    finally:
        for binder in world.binders:
            await binder.kill()
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        await session.close()


async def has_fence(world: BinderWorld, name: str) -> bool:
    """Whether a binder has fenced the pod."""
    conditions = (await world.pod(name)).status.conditions or ()
    return any(each.type == "berth/fence" for each in conditions)
