"""Pods with claims, on the real and the simulated API server: bound with their devices, taken over, given back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from berth.api.kinds import WATCHED_KINDS
from berth.api.pod import Pod
from berth.bus.topology import CONTROL
from berth.kube.client import KubeClient
from berth.kube.errors import ApiUnreachableError
from berth.messages.attempts import Outcome
from berth_binder.takeover import FENCED_KEY
from berth_sim.faults import Clear, Reject
from harness.plugins.fixtures_bus import BusUnderTest
from harness.plugins.fixtures_kube import Cluster
from harness.worlds.binder_world import QUICK, BinderWorld, binder_world

RESOURCES = "/apis/resource.k8s.io/v1"
DRIVER = "gpu.example.com"
NOW = "2026-01-01T00:00:00Z"


class DeviceWorld(BinderWorld):
    """With a class, and nodes with devices."""

    @property
    def claims(self) -> str:
        return f"{RESOURCES}/namespaces/{self.cluster.api.namespace}/resourceclaims"

    @property
    def device_class(self) -> str:
        return f"gpu-{self.cluster.api.namespace}"

    async def made(self, path: str, body: dict[str, Any]) -> None:
        answer = await self.cluster.api.post(path, body)
        assert answer.code == 201, answer.body

    async def add_node_with_devices(self, count: int) -> str:
        node = await self.add_node()
        pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
        devices = [{"name": f"gpu-{number}"} for number in range(count)]
        spec = {"driver": DRIVER, "nodeName": node, "pool": pool, "devices": devices}
        await self.made(f"{RESOURCES}/resourceslices", {"metadata": {"name": node}, "spec": spec})
        return node

    async def add_claim(self, name: str) -> None:
        request = {"name": "r", "exactly": {"deviceClassName": self.device_class}}
        await self.made(self.claims, {"metadata": {"name": name}, "spec": {"devices": {"requests": [request]}}})

    async def using(self, name: str, claim: str) -> Pod:
        return await self.add_pod(name, cpu="10m", resourceClaims=[{"name": "gpu", "resourceClaimName": claim}])

    async def claim(self, name: str) -> dict[str, Any]:
        return (await self.cluster.api.get(f"{self.claims}/{name}")).body

    async def state(self, name: str) -> tuple[list[str], list[str]]:
        """The claim's devices, and the pods that have reserved it."""
        status = (await self.claim(name)).get("status") or {}
        results = status.get("allocation", {}).get("devices", {}).get("results", [])
        return [each["device"] for each in results], [each["name"] for each in status.get("reservedFor", [])]


@pytest.fixture
async def world(cluster: Cluster, nats_bus_under_test: BusUnderTest) -> AsyncIterator[DeviceWorld]:
    async with binder_world(cluster, nats_bus_under_test.bus, DeviceWorld) as world:
        await world.made(f"{RESOURCES}/deviceclasses", {"metadata": {"name": world.device_class}, "spec": {}})
        yield world


class WithoutBindings(KubeClient):
    """Bindings get no answer, and never arrive."""

    async def request(self, method: str, path: str, **parts: Any) -> Any:
        if path.endswith("/binding"):
            raise ApiUnreachableError("no answer")
        return await super().request(method, path, **parts)


async def test_pod_is_bound_once_its_claim_is_reserved(world):
    node = await world.add_node_with_devices(1)
    await world.add_claim("a")
    pod = await world.using("web", "a")
    await world.leading_binder()
    await world.rank(pod, node)
    decision = await world.decision(pod)
    assert (decision.outcome, decision.node) == (Outcome.BOUND, node)
    assert [each.device for given in decision.devices.values() for each in given.devices.results] == ["gpu-0"]
    assert await world.state("a") == (["gpu-0"], ["web"])
    assert (await world.claim("a"))["metadata"]["finalizers"] == ["resource.kubernetes.io/delete-protection"]
    await world.nothing_ranked_is_left()


async def test_no_device_is_given_twice_when_all_are_wanted_at_once(world):
    node = await world.add_node_with_devices(3)
    names = [f"p{number}" for number in range(6)]
    for name in names:
        await world.add_claim(name)
    pods = [await world.using(name, name) for name in names]
    await world.leading_binder()
    for pod in pods:
        await world.rank(pod, node)
    outcomes = [(await world.decision(pod)).outcome for pod in pods]
    assert sorted(outcomes) == [Outcome.BOUND] * 3 + [Outcome.CONFLICT] * 3
    states = [await world.state(name) for name in names]
    assert sorted(device for devices, _ in states for device in devices) == ["gpu-0", "gpu-1", "gpu-2"]


async def test_one_claim_is_shared_by_pods_that_come_at_once(world):
    node = await world.add_node_with_devices(1)
    await world.add_claim("a")
    pods = [await world.using(f"p{number}", "a") for number in range(8)]
    await world.leading_binder()
    for pod in pods:
        await world.rank(pod, node)
    assert {(await world.decision(pod)).outcome for pod in pods} == {Outcome.BOUND}
    devices, users = await world.state("a")
    assert (devices, sorted(users)) == (["gpu-0"], sorted(pod.metadata.name for pod in pods))


async def test_a_successor_binds_the_pod_with_the_devices_that_it_has(world):
    node = await world.add_node_with_devices(2)
    await world.add_claim("a")
    pod = await world.using("web", "a")
    async with await WithoutBindings.connect(world.cluster.kubeconfig_path) as client:
        world.client = client
        first = await world.leading_binder()
        await world.rank(pod, node)

        async def is_reserved() -> bool:
            return (await world.state("a"))[1] == ["web"]

        await world.until(is_reserved)
        before = await world.claim("a")
        await first.kill()
    world.client = None
    await world.leading_binder()
    assert (await world.decision(pod)).outcome is Outcome.BOUND
    after = await world.claim("a")
    assert after["status"] == before["status"]
    assert "berth/fence" in after["metadata"]["annotations"]


async def test_a_pod_that_is_deleted_meanwhile_gives_its_devices_back(world):
    node = await world.add_node_with_devices(1)
    for name in ("a", "b"):
        await world.add_claim(name)
    pod, other = await world.using("web", "a"), await world.using("other", "b")
    async with await WithoutBindings.connect(world.cluster.kubeconfig_path) as client:
        world.client = client
        await world.leading_binder()
        await world.rank(pod, node)

        async def is_reserved() -> bool:
            return (await world.state("a"))[1] == ["web"]

        await world.until(is_reserved)
        await world.cluster.api.delete(f"{world.cluster.api.pods}/web")
        assert (await world.decision(pod)).outcome is Outcome.GONE
        assert await world.state("a") == ([], [])
        await world.rank(other, node)

        async def is_given() -> bool:
            return (await world.state("b"))[0] == ["gpu-0"]

        await world.until(is_given)


async def test_a_claim_that_keeps_its_pod_out_is_freed(world):
    node = await world.add_node_with_devices(1)
    await world.add_claim("a")
    pod = await world.using("web", "a")
    result = {"request": "r", "driver": DRIVER, "pool": "gone", "device": "gpu-0"}
    terms = [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["gone"]}]}]
    allocation = {"devices": {"results": [result]}, "nodeSelector": {"nodeSelectorTerms": terms}}
    answer = await world.cluster.api.patch(f"{world.claims}/a/status", {"status": {"allocation": allocation}})
    assert answer.code == 200, answer.body
    await world.leading_binder()
    await world.rank(pod, message="0/1 nodes are available", nodes=1, evaluated=1, feasible=0)
    assert (await world.decision(pod)).outcome is Outcome.UNSCHEDULABLE
    assert await world.state("a") == ([], [])
    await world.rank(pod, node, n=2)
    assert (await world.decision(pod, n=2)).outcome is Outcome.BOUND


async def test_every_part_of_an_allocation_is_taken_by_the_api_server(world):
    node = await world.add_node()
    shared = {
        "name": "shared-0",
        "allowMultipleAllocations": True,
        "attributes": {"kind": {"string": "large"}},
        "capacity": {"memory": {"value": "10Gi"}},
        "taints": [{"key": "reserved", "value": "x", "effect": "NoExecute"}],
    }
    conditional = {
        "name": "nic-0",
        "bindsToNode": True,
        "bindingConditions": ["ready"],
        "bindingFailureConditions": ["broken"],
        "attributes": {"kind": {"string": "nic"}},
    }
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": DRIVER, "nodeName": node, "pool": pool, "devices": [shared, conditional]}
    await world.made(f"{RESOURCES}/resourceslices", {"metadata": {"name": node}, "spec": spec})
    opaque = {"opaque": {"driver": DRIVER, "parameters": {"note": "a < b & c"}}}
    rich = f"rich-{world.cluster.api.namespace}"
    await world.made(f"{RESOURCES}/deviceclasses", {"metadata": {"name": rich}, "spec": {"config": [opaque]}})

    def selector(kind: str) -> list[dict[str, Any]]:
        return [{"cel": {"expression": f'device.attributes["{DRIVER}"].kind == "{kind}"'}}]

    tolerations = [{"key": "reserved", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 60}]
    memory = {"deviceClassName": rich, "capacity": {"requests": {"memory": "4Gi"}}, "tolerations": tolerations}
    requests = [
        {"name": "memory", "exactly": {**memory, "selectors": selector("large")}},
        {
            "name": "nic",
            "firstAvailable": [
                {"name": "best", "deviceClassName": rich, "selectors": selector("none")},
                {"name": "any", "deviceClassName": rich, "selectors": selector("nic")},
            ],
        },
    ]
    devices = {"requests": requests, "config": [{"requests": ["memory"], **opaque}]}
    await world.made(world.claims, {"metadata": {"name": "a"}, "spec": {"devices": devices}})
    pod = await world.using("web", "a")
    await world.leading_binder()
    await world.rank(pod, node)

    async def is_allocated() -> bool:
        return (await world.state("a"))[1] == ["web"]

    await world.until(is_allocated)
    status = (await world.claim("a"))["status"]
    share, nic = status["allocation"]["devices"]["results"]
    assert (share["device"], share["consumedCapacity"], share["tolerations"]) == (
        "shared-0",
        {"memory": "4Gi"},
        tolerations,
    )
    assert (nic["request"], nic["bindingConditions"]) == ("nic/any", ["ready"])
    assert len(status["allocation"]["devices"]["config"]) == 2

    async def is_told() -> bool:
        events = (await world.cluster.api.get(world.cluster.api.events)).body["items"]
        note = f"waiting for binding conditions for device on node {node}"
        return ("BindingConditionsPending", note) in [(each["reason"], each["message"]) for each in events]

    await world.until(is_told)
    condition = {"type": "ready", "status": "True", "reason": "R", "message": "", "lastTransitionTime": NOW}
    reported = [{"driver": DRIVER, "pool": node, "device": "nic-0", "conditions": [condition]}]
    answer = await world.cluster.api.patch(f"{world.claims}/a/status", {"status": {"devices": reported}})
    assert answer.code == 200, answer.body
    assert (await world.decision(pod)).outcome is Outcome.BOUND


async def test_claims_that_can_be_read_only_later_are_fenced_by_a_new_leadership(
    simulated_cluster: Cluster, nats_bus_under_test: BusUnderTest
):
    """A former leader may have had the right, and a write of it may still land."""
    faults = simulated_cluster.simulated.faults
    async with binder_world(simulated_cluster, nats_bus_under_test.bus, DeviceWorld) as world:
        await world.made(f"{RESOURCES}/deviceclasses", {"metadata": {"name": world.device_class}, "spec": {}})
        node = await world.add_node_with_devices(1)
        await world.add_claim("a")
        plain, pod = await world.add_pod("plain", cpu="10m"), await world.using("web", "a")
        await (await world.leading_binder()).kill()
        for kind in WATCHED_KINDS:
            if kind.is_optional:
                faults.inject(Reject(verb="list", resource=kind.plural, count=None, user="berth"))
        await world.leading_binder()
        await world.rank(plain, node)
        first = await world.decision(plain)
        await world.rank(pod, node)
        refused = await world.decision(pod)
        faults.inject(Clear())

        async def has_taken_over() -> bool:
            entry = await world.session.get(CONTROL, FENCED_KEY)
            return entry is not None and int(entry.data or b"0") > first.epoch

        await world.until(has_taken_over)
        decision, n = refused, 1
        while decision.outcome is Outcome.CONFLICT:  # until the other kinds can be read too
            n += 1
            await world.rank(pod, node, n=n)
            decision = await world.decision(pod, n)
        assert (first.outcome, refused.outcome, decision.outcome) == (Outcome.BOUND, Outcome.CONFLICT, Outcome.BOUND)
        assert decision.epoch > first.epoch


class SlowClaims(KubeClient):
    """Each write to a claim takes long."""

    async def request(self, method: str, path: str, **parts: Any) -> Any:
        if "/resourceclaims/" in path and method != "GET":
            await asyncio.sleep(0.1)
        return await super().request(method, path, **parts)


async def test_a_stop_among_many_writes_to_one_claim_is_in_time_and_the_successor_completes_them(world):
    """100 pods write one after the other, for 10 seconds."""
    node = await world.add_node_with_devices(1)
    await world.add_claim("a")
    pods = [await world.using(f"p{number}", "a") for number in range(100)]
    async with await SlowClaims.connect(world.cluster.kubeconfig_path) as client:
        world.client = client
        first = await world.leading_binder(replace(QUICK, finish=timedelta(seconds=0.5)))
        for pod in pods:
            await world.rank(pod, node)

        async def has_begun() -> bool:
            return len((await world.state("a"))[1]) > 2

        await world.until(has_begun)
        await first.stop()
        assert len((await world.state("a"))[1]) < 40
        world.client = None
        await world.leading_binder()
        assert {(await world.decision(pod)).outcome for pod in pods} == {Outcome.BOUND}
    _, users = await world.state("a")
    assert sorted(users) == sorted(pod.metadata.name for pod in pods)
    await world.nothing_ranked_is_left()
