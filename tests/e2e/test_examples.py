"""The examples of docs/examples: each configuration schedules its pods on its cluster, as its page says."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import nats
import pytest
import yaml
from nats.js.kv import KeyValue

from harness.worlds.cluster_user import ClusterUser, cluster_user, eventually, node_of
from harness.worlds.pipeline import BerthUp, berth_up
from harness.worlds.plugin_site import installed_plugin

pytestmark = [pytest.mark.requires("nats-server"), pytest.mark.timeout(180)]

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
FLAGS = {"cluster": "cluster", "pods": "pods", "config": "scheduler"}
PODS = "/api/v1/namespaces/default/pods"


def objects(example: str, name: str) -> list[dict]:
    return list(yaml.safe_load_all((EXAMPLES / example / f"{name}.yaml").read_text()))


@contextmanager
def berth_of(example: str, folder: Path) -> Iterator[BerthUp]:
    """`berth up` with the example's configuration, on a cluster without nodes."""
    configuration = EXAMPLES / example / "scheduler.yaml"
    with berth_up("--nodes", 0, "--config", configuration, folder=folder) as berth:
        berth.wait_until_ready()
        yield berth


@asynccontextmanager
async def cluster_of(example: str, berth: BerthUp) -> AsyncIterator[ClusterUser]:
    """The example's nodes."""
    async with cluster_user(berth.kubeconfig) as cluster:
        for node in objects(example, "cluster"):
            assert (await cluster.api.post("/api/v1/nodes", node)).code == 201
        yield cluster


async def create(cluster: ClusterUser, example: str, *, unplaced: frozenset[str] = frozenset()) -> dict[str, str]:
    """Create the example's pods one after another; return the node of each that gets one."""
    for pod in objects(example, "pods"):
        name = pod["metadata"]["name"]
        assert (await cluster.api.post(PODS, pod)).code == 201
        if name not in unplaced:
            await eventually(lambda name=name: place(cluster, name), f"{name} to be placed")
    return {name: await place(cluster, name) for name in (pod["metadata"]["name"] for pod in objects(example, "pods"))}


async def place(cluster: ClusterUser, name: str) -> str:
    return node_of((await cluster.api.get(f"{PODS}/{name}")).body)


def simulated(example: str) -> dict[str, str]:
    """The node of each pod, by the page's command."""
    files = (f"--{flag}={EXAMPLES / example / name}.yaml" for flag, name in FLAGS.items())
    command = [sys.executable, "-m", "berth_cli", "simulate", *files, "-o", "json"]
    done = subprocess.run(command, capture_output=True, check=True, timeout=60)
    found = map(json.loads, done.stdout.splitlines())
    return {each["pod"].removeprefix("default/"): each["bound"] or "" for each in found if "pod" in each}


def test_pods_with_a_gpu_are_packed_and_leave_a_node_whole():
    nodes = simulated("gpu")
    assert nodes["train-1"] == nodes["train-2"]
    assert {nodes["train-1"], nodes["train-whole"]} == {"gpu-1", "gpu-2"}
    assert nodes["web"] == "plain-1"
    assert nodes["train-huge"] == ""


def test_the_page_about_devices_shows_what_its_command_prints():
    command = [sys.executable, "-m", "berth_cli", "simulate", "--cluster", "cluster.yaml", "--pods", "pods.yaml"]
    done = subprocess.run(command, capture_output=True, check=True, timeout=60, text=True, cwd=EXAMPLES / "devices")
    assert done.stdout.strip() in (EXAMPLES.parent / "devices.md").read_text(encoding="utf-8")


def test_pods_are_spread_over_zones_though_one_zone_has_most_of_the_room():
    assert Counter(node.split("-")[1] for node in simulated("zones").values()) == {"a": 2, "b": 2, "c": 2}


async def test_two_schedulers_place_side_by_side_and_leave_others_pods_alone(tmp_path: Path):
    with berth_of("two-schedulers", tmp_path) as berth:
        async with cluster_of("two-schedulers", berth) as cluster:
            nodes = await create(cluster, "two-schedulers", unplaced=frozenset({"other"}))
            assert len({nodes[f"web-{number}"] for number in (1, 2, 3)}) == 3
            assert len({nodes[f"batch-{number}"] for number in (1, 2, 3)}) == 1
            assert nodes["other"] == ""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The plugin of the example, as pip leaves it."""
    source = (EXAMPLES / "facts" / "free_disk.py").read_text()
    site = installed_plugin(tmp_path / "site", "FreeDisk", source)
    monkeypatch.setenv("PYTHONPATH", str(site), prepend=":")


async def test_an_outside_system_says_by_facts_where_pods_go(installed, tmp_path: Path):
    with berth_of("facts", tmp_path) as berth:
        async with cluster_of("facts", berth) as cluster, writer_of_facts(berth) as facts:
            for fullest, emptiest in (("node-1", "node-2"), ("node-2", "node-1")):
                await facts.put(f"disks.{fullest}", b'{"free_percent": 5}')
                await facts.put(f"disks.{emptiest}", b'{"free_percent": 80, "other": "text"}')
                await asyncio.sleep(1)  # a scorer reads facts as they come; nothing says that it has
                assert set((await create(cluster, "facts")).values()) == {emptiest}
                for pod in objects("facts", "pods"):
                    assert (await cluster.api.call("DELETE", f"{PODS}/{pod['metadata']['name']}")).code == 200
                await eventually(lambda: gone(cluster), "the pods to be gone")


@asynccontextmanager
async def writer_of_facts(berth: BerthUp) -> AsyncIterator[KeyValue]:
    """The bucket as a program of its own has it, with NATS's client."""
    async with await nats.connect(berth.nats, user="facts", password=berth.password("facts")) as client:
        yield await client.jetstream(domain="berth").key_value("facts")


async def gone(cluster: ClusterUser) -> bool:
    return not (await cluster.api.get(PODS)).body["items"]
