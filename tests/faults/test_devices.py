"""kill -9 of services while all devices of a cluster are wanted at once: no device is given twice, and none is lost."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from harness.servers.control_plane import ControlPlane
from harness.worlds.cluster_user import ClusterUser, eventually
from harness.worlds.pipeline import BerthUp, berth_up

pytestmark = [pytest.mark.requires("kubebuilder_assets", "nats-server"), pytest.mark.timeout(300)]

ROUNDS = int(os.environ.get("BERTH_FAULTS_ROUNDS", "3"))
"""How often all devices become free, and services are killed while the next pods get them."""
NODES = 3
DEVICES = 4
"""On each node."""
RECOVERED_SECONDS = 60.0
RESOURCES = "/apis/resource.k8s.io/v1"


@pytest.fixture(scope="module")
def victim(own_control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BerthUp]:
    """A pipeline with two scorers."""
    arguments = ("--kubeconfig", own_control_plane.kubeconfig_path, "--scorers", 2)
    with berth_up(*arguments, folder=tmp_path_factory.mktemp("berth-up")) as berth:
        berth.wait_until_ready()
        yield berth
        assert berth.interrupt() == 0


async def test_no_device_is_given_twice_or_lost(victim: BerthUp, cluster_outside: ClusterUser):
    seen, chance = cluster_outside, random.Random(7)
    for node in await seen.add_nodes(NODES, cpu="32"):
        await add_devices(seen, node)
    await made(seen, f"{RESOURCES}/deviceclasses", {"metadata": {"name": seen.namespace}, "spec": {}})
    number = 0
    async with judged(seen) as problems:
        for _ in range(ROUNDS):
            names = [f"p{number + each}" for each in range(NODES * DEVICES)]
            number += len(names)
            for name in names:
                await add_claim(seen, name)
                entry = {"name": "gpu", "resourceClaimName": name}
                spec = {"resourceClaims": [entry], "terminationGracePeriodSeconds": 0}
                await seen.create([seen.pod(name, cpu="10m", spec=spec)])
            for service in ("binder", chance.choice(("watcher", "scorer", "binder"))):
                await asyncio.sleep(chance.uniform(0.0, 0.3))
                if service in victim.pids:
                    victim.kill(service)
            await seen.all_bound(names, RECOVERED_SECONDS)
            used = [device for name in names for device in devices_of(await claim(seen, name))]
            assert len(set(used)) == len(used) == NODES * DEVICES
            for name in names:
                await seen.delete_pod(name)
                await free(seen, name)
    assert problems == []


@asynccontextmanager
async def judged(seen: ClusterUser) -> AsyncIterator[list[str]]:
    """The API server shows no device in two claims at any time."""
    problems: list[str] = []

    async def look() -> None:
        while True:
            items = (await seen.api.get(f"{RESOURCES}/namespaces/{seen.namespace}/resourceclaims")).body["items"]
            given = [device for each in items for device in devices_of(each)]
            problems.extend(f"{device} is given twice" for device in set(given) if given.count(device) > 1)
            await asyncio.sleep(0.05)

    looking = asyncio.create_task(look())
    try:
        yield problems
    finally:
        looking.cancel()
        await asyncio.gather(looking, return_exceptions=True)


async def add_devices(seen: ClusterUser, node: str) -> None:
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    devices = [{"name": f"gpu-{number}"} for number in range(DEVICES)]
    spec = {"driver": "gpu.example.com", "nodeName": node, "pool": pool, "devices": devices}
    await made(seen, f"{RESOURCES}/resourceslices", {"metadata": {"name": node}, "spec": spec})


async def add_claim(seen: ClusterUser, name: str) -> None:
    request = {"name": "r", "exactly": {"deviceClassName": seen.namespace}}
    body = {"metadata": {"name": name}, "spec": {"devices": {"requests": [request]}}}
    await made(seen, f"{RESOURCES}/namespaces/{seen.namespace}/resourceclaims", body)


async def claim(seen: ClusterUser, name: str) -> dict[str, Any]:
    return (await seen.api.get(f"{RESOURCES}/namespaces/{seen.namespace}/resourceclaims/{name}")).body


async def free(seen: ClusterUser, name: str) -> None:
    """What the claim controller does when the pod is gone."""
    path = f"{RESOURCES}/namespaces/{seen.namespace}/resourceclaims/{name}/status"

    async def is_free() -> bool:
        return (await seen.api.patch(path, {"status": {"allocation": None, "reservedFor": None}})).code == 200

    await eventually(is_free, f"claim {name} to be free")


def devices_of(found: dict[str, Any]) -> list[tuple[str, str]]:
    results = (found.get("status") or {}).get("allocation", {}).get("devices", {}).get("results", [])
    return [(each["pool"], each["device"]) for each in results]


async def made(seen: ClusterUser, path: str, body: dict[str, Any]) -> None:
    answer = await seen.api.post(path, body)
    assert answer.code == 201, answer.body
