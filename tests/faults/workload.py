"""The pods and nodes of a run, as users, kubelets and node controllers treat them.

On the nodes of the pool `main` every pod fits, so that no eviction is needed there. The nodes of the pool `tight` are
full of unimportant pods, each as large as a node: an important pod for it needs exactly one eviction. The nodes of the
pool `exact` have room for the last pod that is meant for them and no more, so that one too many anywhere is noticed.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from berth_sim.nodes import node_manifest, pod_manifest
from faults.world import World
from harness.worlds.cluster_user import NO_GRACE
from harness.worlds.kubernetes_api import STRATEGIC_PATCH

if TYPE_CHECKING:
    from faults.devices import Devices
    from faults.gangs import Gangs

POOL = "berth.test/pool"
ZONE = "berth.test/zone"
ZONES = ("x", "y")
OF_ANOTHER_SCHEDULER = 0.08
IMPORTANT = 0.1
NODE_CPU = "1100m"
"""Eleven pods of 100m."""
EXACT_CPU = "1"
EXACT_PODS = 10
AT_ONCE = 16
GRACE_SECONDS = 30
"""Of every second pod in the pool `tight`; the kubelet of the run ends such a pod sooner."""


@dataclass(kw_only=True)
class Workload:
    """Creates and deletes; `chance` decides about each pod."""

    world: World
    chance: random.Random
    nodes: list[str] = field(default_factory=list)
    busy_nodes: set[str] = field(default_factory=set)
    """Nodes with a fault under way."""
    tight: list[str] = field(default_factory=list)
    exact: list[str] = field(default_factory=list)
    unimportant: str = ""
    important: str = ""
    vips: int = 0
    devices: Devices | None = None
    gangs: Gangs | None = None
    _count: int = 0
    _left_in_exact: int = 0
    _stride: int = 0
    _ending: set[str] = field(default_factory=set)

    async def prepare(self, *, nodes: int, tight: int, pods: int) -> None:
        """Create the nodes, the priority classes, and the pods that fill the pool `tight`.

        `pods` are those that will arrive; some of them, evenly, are for the pool `exact`, as large as the pool `tight`.
        """
        user = self.world.user
        self.unimportant = await user.add_priority_class("low", -10)
        self.important = await user.add_priority_class("vip", 100_000)
        self.nodes = [f"main-{number:03}" for number in range(nodes)]
        self.tight = [f"tight-{number:03}" for number in range(tight)]
        self.exact = [f"exact-{number:03}" for number in range(min(tight, pods // EXACT_PODS))]
        self._left_in_exact = len(self.exact) * EXACT_PODS
        self._stride = pods // self._left_in_exact if self.exact else 0
        await each([self.create_node(name) for name in (*self.nodes, *self.tight)])
        await each([self.create_node(name, EXACT_CPU) for name in self.exact])
        await each([self.create(self._filler(number)) for number in range(tight)])

    def _filler(self, number: int) -> dict:
        spec = {"nodeSelector": {POOL: "tight"}, "terminationGracePeriodSeconds": GRACE_SECONDS * (number % 2)}
        return self.pod(f"filler-{number}", spec, cpu="1", priority_class=self.unimportant)

    async def create_node(self, name: str, cpu: str = NODE_CPU) -> None:
        """Create a node of the pool that its name begins with."""
        pool, _, number = name.partition("-")
        made = node_manifest(name, cpu=cpu, labels={POOL: pool, ZONE: ZONES[int(number) % 2]})
        await self.insist_created("/api/v1/nodes", made)

    def pod(self, name: str, spec: dict, **form: object) -> dict:
        """Return a pod of the run."""
        return pod_manifest(name, namespace=self.world.user.namespace, spec=spec, **form)

    async def create(self, pod: dict) -> None:
        """Create a pod, also while the API server comes and goes."""
        await self.insist_created(self.world.user.api.pods, pod)

    async def insist_created(self, path: str, made: dict) -> None:
        """Create an object, also while the API server comes and goes."""
        while (answer := await self.world.insist(lambda: self.world.user.api.post(path, made))).code not in {201, 409}:
            assert answer.code in {403, 429, 500, 503, 504}, answer.body  # it has just started
            await asyncio.sleep(0.2)

    async def add_pods(self, count: int) -> None:
        """Create pods for the pool `main`, some of them important, some for another scheduler."""
        await each([self.create(self._any_pod()) for _ in range(count)])

    def _any_pod(self) -> dict:
        self._count += 1
        if self._left_in_exact and not self._count % self._stride:
            self._left_in_exact -= 1
            return self.pod(f"exact-{self._count:05}", {"nodeSelector": {POOL: "exact"}})
        spec = {"nodeSelector": {POOL: "main"}}
        drawn = self.chance.random()
        if drawn < OF_ANOTHER_SCHEDULER:
            return self.pod(f"other-{self._count:05}", spec, scheduler="default-scheduler")
        priority = {"priority_class": self.important} if drawn < OF_ANOTHER_SCHEDULER + IMPORTANT else {}
        return self.pod(f"web-{self._count:05}", spec, **priority)

    async def add_vip(self) -> None:
        """Create a pod that needs one eviction in the pool `tight`."""
        self.vips += 1
        await self.create(
            self.pod(f"vip-{self.vips}", {"nodeSelector": {POOL: "tight"}}, cpu="1", priority_class=self.important)
        )

    def picked_pods(self, count: int, chance: random.Random, prefix: str = "web-") -> list[str]:
        """Names of some pods that are there, bound or not."""
        names = sorted(_short(pod.name) for pod in self.world.judge.pods.values() if not pod.is_going)
        names = [name for name in names if name.startswith(prefix)]
        return chance.sample(names, min(count, len(names)))

    async def delete_pod(self, name: str) -> None:
        """Delete a pod at once."""
        for pod in self.world.judge.pods.values():
            if _short(pod.name) == name:
                self.world.judge.deleted_by_user.add(pod.uid)
        path = f"{self.world.user.api.pods}/{name}"
        await self.insist(lambda: self.world.user.api.delete(path, NO_GRACE))

    async def delete_pods(self, names: Sequence[str]) -> None:
        await each([self.delete_pod(name) for name in names])

    async def replace_by_namesake(self, name: str, zone: str) -> None:
        """Delete a pod, and create another one of its name at once, which only the nodes of a zone suit."""
        await self.delete_pod(name)
        await self.create(self.pod(name, {"nodeSelector": {POOL: "main", ZONE: zone}}))

    async def delete_node(self, name: str) -> int:
        """Delete a node, and its pods as the pod garbage collector does; how many those were."""
        await self.insist(lambda: self.world.user.api.delete(f"/api/v1/nodes/{name}"))
        return await self.remove_orphans(name)

    async def remove_orphans(self, node: str) -> int:
        """Delete the pods of a node that is gone."""
        names = [_short(pod.name) for pod in self.world.judge.pods.values() if pod.node == node and not pod.left_at]
        await self.delete_pods(names)
        return len(names)

    async def recreate_node(self, name: str) -> None:
        await self.create_node(name)

    async def cordon(self, name: str, *, unschedulable: bool) -> None:
        body = {"spec": {"unschedulable": unschedulable}}
        await self.insist(lambda: self.world.user.api.patch(f"/api/v1/nodes/{name}", body))

    async def resize(self, name: str, cpu: str = NODE_CPU) -> None:
        body = {"status": {"allocatable": {"cpu": cpu}}}
        path = f"/api/v1/nodes/{name}/status"
        await self.insist(lambda: self.world.user.api.patch(path, body, STRATEGIC_PATCH))

    async def insist(self, call: Callable) -> None:
        while (answer := await self.world.insist(call)).code not in {200, 404}:
            assert answer.code in {403, 409, 429, 500, 503, 504}, answer.body
            await asyncio.sleep(0.2)

    async def end_evicted_pods(self) -> None:
        """End pods that are being deleted, a little later, as their kubelet does."""
        while True:
            for pod in list(self.world.judge.evicted.values()):
                if not pod.left_at and pod.uid not in self._ending:
                    self._ending.add(pod.uid)
                    await asyncio.sleep(self.chance.uniform(0, 0.5))
                    path = f"{self.world.user.api.pods}/{_short(pod.name)}"
                    body = {**NO_GRACE, "preconditions": {"uid": pod.uid}}
                    await self.insist(lambda path=path, body=body: self.world.user.api.delete(path, body))
            await asyncio.sleep(0.2)


async def each(calls: Sequence) -> None:
    """Wait for all, some at a time."""
    limit = asyncio.Semaphore(AT_ONCE)

    async def one(call) -> None:
        async with limit:
            await call

    await asyncio.gather(*(one(call) for call in calls))


def _short(name: str) -> str:
    """A pod's name without its namespace."""
    return name.rpartition("/")[2]
