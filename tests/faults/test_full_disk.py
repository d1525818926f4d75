"""The disk of NATS is full under the whole pipeline: it is said, no pod is lost, and berth goes on by itself."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator

import pytest

from berth.bus.settings import TopologySettings
from berth.bus.topology import reserved_bytes
from harness.servers.nats_server import NatsServer, nats_server
from harness.servers.small_disk import SmallDisk, small_disk
from harness.worlds.cluster_user import ClusterUser, eventually
from harness.worlds.pipeline import BerthUp

pytestmark = [pytest.mark.requires("kubebuilder_assets", "nats-server", "small-disk"), pytest.mark.timeout(300)]

PODS = 200
AGAIN_SECONDS = 60.0
"""After there is room: 10 s until a stream counts as given up, a takeover of all, the look-up of silent attempts."""


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SmallDisk]:
    with small_disk(tmp_path_factory.mktemp("full") / "disk", 64) as disk:
        yield disk


@pytest.fixture(scope="module")
def bus(disk: SmallDisk) -> Iterator[NatsServer]:
    limit = 2 * reserved_bytes(TopologySettings())  # the disk is what runs out, not NATS's own limit
    with nats_server(store=disk.folder / "store", store_bytes=limit) as server:
        yield server


async def run(*arguments: object) -> str:
    """The output of the command."""
    command = (sys.executable, "-m", "berth_cli", *map(str, arguments))
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=False)
    return " ".join((done.stdout + done.stderr).split())


async def test_a_full_disk_of_nats_is_said_and_costs_time_and_no_pod(
    berth: BerthUp, bus: NatsServer, disk: SmallDisk, cluster_outside: ClusterUser
):
    await cluster_outside.add_nodes(10, cpu="8")
    disk.fill()
    names = await cluster_outside.add_pods(PODS, cpu="100m")

    async def is_said() -> bool:
        return "NATS stores nothing" in berth.said

    await eventually(is_said, "the log to say it", 60)
    bound = await cluster_outside.placed()
    waiting = next(name for name in names if name not in bound)
    why = await run("why", f"{cluster_outside.namespace}/{waiting}", "--nats", bus.address)
    assert "NATS stores nothing in" in why

    disk.free()
    await cluster_outside.all_bound(names, AGAIN_SECONDS)

    async def is_over() -> bool:
        return "everything" in berth.said or "stores again" in berth.said

    await eventually(is_over, "the log to say that it is over")
