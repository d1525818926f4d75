"""docs/nats.md: a berth for each group of nodes, on one cluster."""

import asyncio
from pathlib import Path

import pytest

from berth_sim.cluster import SimulatedCluster
from harness.worlds.cluster_user import cluster_user
from harness.worlds.pipeline import berth_up

pytestmark = [pytest.mark.requires("nats-server"), pytest.mark.timeout(180)]

CONFIGURATIONS = Path(__file__).parents[2] / "docs" / "scale"
GROUPS = ("east", "west")


async def test_each_berth_places_its_own_pods_on_its_own_group_of_nodes(tmp_path: Path):
    async with SimulatedCluster() as simulated, cluster_user(simulated.kubeconfig_path) as user:
        groups = {group: await user.add_nodes(3, labels={"example.com/group": group}) for group in GROUPS}
        with started(simulated, "east", tmp_path) as east, started(simulated, "west", tmp_path) as west:
            for berth in (east, west):
                await asyncio.to_thread(berth.wait_until_ready)  # the cluster is in this process
            pods = {group: await user.add_pods(20, group, scheduler=f"berth-{group}") for group in GROUPS}
            placed = await user.all_bound([*pods["east"], *pods["west"]])
    for group in GROUPS:
        assert {placed[name] for name in pods[group]} == set(groups[group])


def started(simulated: SimulatedCluster, group: str, folder: Path):
    (folder / group).mkdir()
    arguments = ("--kubeconfig", simulated.kubeconfig_path, "--config", CONFIGURATIONS / f"{group}.yaml")
    return berth_up(*arguments, folder=folder / group)
