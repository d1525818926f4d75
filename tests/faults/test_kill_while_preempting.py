"""kill -9 of the binder as soon as it evicts: the next binder completes the preemption and evicts no further pod."""

import asyncio
import os
from collections.abc import Iterator

import pytest

from harness.servers.control_plane import ControlPlane
from harness.worlds.cluster_user import ClusterUser, eventually
from harness.worlds.pipeline import BerthUp, berth_up

pytestmark = [pytest.mark.requires("kubebuilder_assets", "nats-server"), pytest.mark.timeout(300)]

ROUNDS = int(os.environ.get("BERTH_FAULTS_ROUNDS", "3"))
"""Important pods, one after another; the binder is killed during each preemption."""
NODES = 4
RECOVERED_SECONDS = 60.0


@pytest.fixture(scope="module")
def victim(own_control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BerthUp]:
    """A pipeline with two scorers."""
    arguments = ("--kubeconfig", own_control_plane.kubeconfig_path, "--scorers", 2)
    with berth_up(*arguments, folder=tmp_path_factory.mktemp("berth-up")) as berth:
        berth.wait_until_ready()
        yield berth
        assert berth.interrupt() == 0


@pytest.mark.parametrize("grace", [0, 3600], ids=["gone at once", "with grace"])
async def test_important_pods_are_bound_and_no_further_pod_is_evicted(
    grace: int, victim: BerthUp, cluster_outside: ClusterUser
):
    await cluster_outside.add_nodes(NODES, cpu="1")
    spec = {"terminationGracePeriodSeconds": grace}
    low = await cluster_outside.add_pods(NODES, "low", cpu="1", spec=spec)
    await cluster_outside.all_bound(low)
    priority = await cluster_outside.add_priority_class("vip", 100_000)
    for number in range(ROUNDS):
        await cluster_outside.create([cluster_outside.pod(f"vip-{number}", cpu="1", priority_class=priority)])
        await evicted(cluster_outside, low, number + 1)
        before = victim.kill("binder")
        await end_those_that_go(cluster_outside, low, number + 1)
        await cluster_outside.all_bound([f"vip-{number}"], RECOVERED_SECONDS)
        await eventually(lambda before=before: back(victim, before), "the binder to be back")
    assert len(await left(cluster_outside, low)) == NODES - ROUNDS


async def left(seen: ClusterUser, names: list[str]) -> list[str]:
    """The pods that are not being deleted."""
    pods = await seen.pods()
    return [name for name in names if name in pods and "deletionTimestamp" not in pods[name]["metadata"]]


async def evicted(seen: ClusterUser, names: list[str], count: int) -> None:
    async def so_many() -> bool:
        return len(names) - len(await left(seen, names)) >= count

    await eventually(so_many, f"eviction {count}", RECOVERED_SECONDS)


async def end_those_that_go(seen: ClusterUser, names: list[str], count: int) -> None:
    """Remove the pods that are being deleted, as kubelets do."""
    staying = await left(seen, names)
    assert len(staying) == len(names) - count
    await asyncio.gather(*(seen.delete_pod(name) for name in names if name not in staying))


async def back(victim: BerthUp, before: int) -> bool:
    return victim.pids.get("binder", before) != before
