"""A group of eight beside a stream of small pods: it starves, unless nodes are earmarked for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import pytest

from harness.servers.control_plane import assets_folder, control_plane
from harness.worlds.cluster_user import ClusterUser, cluster_user, condition_of, eventually, node_of
from harness.worlds.pipeline import berth_up
from harness.worlds.podgroups import add_podgroup, define_podgroups_for_good, in_podgroup

pytestmark = [pytest.mark.requires("kubebuilder_assets", "nats-server"), pytest.mark.timeout(300)]

SMALL: Final = 12
"""Small pods that run or wait, for eight places."""
STARVES_SECONDS: Final = 20.0


@asynccontextmanager
async def a_stream_of_small_pods(seen: ClusterUser) -> AsyncIterator[None]:
    """Two small pods end every moment, and two others come."""

    async def flow() -> None:
        made = 0
        while True:
            there = {name: pod for name, pod in (await seen.pods()).items() if name.startswith("small")}
            ended = sorted(name for name, pod in there.items() if node_of(pod))[:2]
            for name in ended:
                await seen.delete_pod(name)
            made += 1
            await seen.add_pods(max(0, SMALL - len(there) + len(ended)), f"small{made}", cpu="1")
            await asyncio.sleep(0.3)

    async with asyncio.TaskGroup() as tasks:
        flowing = tasks.create_task(flow())
        try:
            yield
        finally:
            flowing.cancel()


async def members(seen: ClusterUser) -> list[dict]:
    return [pod for name, pod in (await seen.pods()).items() if name.startswith("gang")]


async def is_whole(seen: ClusterUser) -> bool:
    return all(map(node_of, await members(seen)))


async def is_kept_out(seen: ClusterUser) -> bool:
    reason = f"earmarked for group {seen.namespace}/gang"
    return any(reason in condition_of(pod).get("message", "") for pod in (await seen.pods()).values())


@pytest.mark.parametrize("seconds", [0, 3])
async def test_a_group_beside_a_stream_of_small_pods_is_placed_once_nodes_are_earmarked(seconds: int, tmp_path: Path):
    folder = assets_folder()
    assert folder is not None
    setting = {"BERTH_GROUP_EARMARK_SECONDS": str(seconds)}
    with (
        control_plane(folder) as plane,
        berth_up("--kubeconfig", plane.kubeconfig_path, folder=tmp_path, environment=setting) as berth,
    ):
        async with cluster_user(plane.kubeconfig_path) as seen:
            await define_podgroups_for_good(seen.api)
            berth.wait_until_ready()
            await seen.add_nodes(2, cpu="4")
            async with a_stream_of_small_pods(seen):
                await eventually(seen.placed, "small pods to be bound")
                await add_podgroup(seen, "gang", 8)
                await seen.add_pods(8, "gang", cpu="1", labels=in_podgroup("gang"))
                if seconds:
                    await eventually(lambda: is_kept_out(seen), "a small pod to say what keeps it out", 60.0)
                    await eventually(lambda: is_whole(seen), "the group to be placed", 60.0)
                    events = await seen.events("GroupEarmarked")
                    assert "2 nodes are earmarked for it for 5 minutes" in events[0]["note"]
                else:
                    await asyncio.sleep(STARVES_SECONDS)
                    assert not any(map(node_of, await members(seen)))
