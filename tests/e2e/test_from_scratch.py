"""The article about a scheduler written from scratch: by `berth simulate`, and in the whole pipeline for tenants."""

import json
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path

import pytest
import yaml

from berth_sim.nodes import node_manifest, node_manifests, pod_manifest
from harness.plugins.long_runs import IS_LONG
from harness.servers.control_plane import ControlPlane
from harness.worlds.cluster_user import ClusterUser, eventually
from harness.worlds.pipeline import berth_up

pytestmark = [pytest.mark.requires("kubebuilder_assets", "nats-server"), pytest.mark.timeout(240)]

CONFIG = Path(__file__).parents[1] / "data/articles/from-scratch.yaml"
TENANTS = ("red", "green", "blue")
PODS_OF_A_TENANT = 100
NODES = 10
MISPLACED_PERCENT = 3.0
"""Of the pods that may be elsewhere than one scorer with the newest state puts them (ADR 22)."""


def test_the_scheduler_from_scratch_takes_the_freest_ready_node(tmp_path: Path):
    nodes = [*node_manifests(3, cpu="2"), node_manifest("freest", cpu="16")]
    pods = [pod_manifest(f"web-{number}", cpu="1", scheduler="my-custom-scheduler") for number in range(4)]
    for name, objects in (("nodes", nodes), ("pods", pods)):
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump_all(objects))
    flags = ("--config", CONFIG, "--algorithm-provider", "FromScratch", "-o", "json")
    files = ("--cluster", tmp_path / "nodes.yaml", "--pods", tmp_path / "pods.yaml")
    command = [sys.executable, "-m", "berth_cli", "simulate", *files, *flags]
    done = subprocess.run(command, capture_output=True, check=True, timeout=60)
    placed = [each["bound"] for each in map(json.loads, done.stdout.splitlines()) if "pod" in each]
    assert placed == ["freest"] * 4


@pytest.mark.long
@pytest.mark.parametrize("scorers", [1, 2] if IS_LONG else [2])
async def test_each_tenants_pods_spread_evenly_also_when_created_again(
    own_control_plane: ControlPlane, cluster_outside: ClusterUser, tmp_path: Path, scorers: int
):
    """The bound is for one scorer too: while pods are under way, the binder counts others than the scorer."""
    kubeconfig, config = own_control_plane.kubeconfig_path, CONFIG
    flags = ("--kubeconfig", kubeconfig, "--config", config, "--algorithm-provider", "FromScratchMultiTenant")
    with berth_up(*flags, "--scorers", scorers, folder=tmp_path) as berth:
        berth.wait_until_ready()
        nodes = await cluster_outside.add_nodes(NODES, cpu="32")
        await cluster_outside.create(
            tenants_pod(cluster_outside, f"{tenant}-{number}", tenant)
            for number in range(PODS_OF_A_TENANT)
            for tenant in TENANTS
        )
        assert misplaced_percent(await all_of(cluster_outside, 300), nodes) <= MISPLACED_PERCENT
        for number in range(PODS_OF_A_TENANT):
            await cluster_outside.delete_pod(f"red-{number}")
        await cluster_outside.create(
            tenants_pod(cluster_outside, f"red-again-{number}", "red") for number in range(PODS_OF_A_TENANT)
        )
        # The first of them may be ranked while the removal of the old ones is still on its way to the scorers.
        assert misplaced_percent(await all_of(cluster_outside, 300), nodes) <= MISPLACED_PERCENT
        await cluster_outside.create([tenants_pod(cluster_outside, "nobodys", "")])
        condition = await eventually(lambda: cluster_outside.condition("nobodys"), "a condition on the pod")
        assert "pod has no label tenant, which names the tenant it belongs to" in condition["message"]
        patch = {"metadata": {"labels": {"tenant": "blue"}}}
        await cluster_outside.api.patch(f"{cluster_outside.api.pods}/nobodys", patch)
        await cluster_outside.all_bound(["nobodys"])


def tenants_pod(seen: ClusterUser, name: str, tenant: str) -> dict:
    labels = {"tenant": tenant} if tenant else {}
    return seen.pod(name, labels=labels, scheduler="my-custom-scheduler", cpu="10m", memory="16Mi")


async def all_of(seen: ClusterUser, count: int) -> dict[str, str]:
    """Wait until this number of pods is bound; return their nodes."""

    async def placed() -> dict[str, str] | None:
        found = await seen.placed()
        return found if len(found) == count else None

    return await eventually(placed, f"{count} pods to be bound", 60)


def misplaced_percent(placed: dict[str, str], nodes: list[str]) -> float:
    """How many of the pods are on a node that has more of their tenant's than an even spread has anywhere."""
    counts: dict[str, Counter[str]] = defaultdict(lambda: Counter(dict.fromkeys(nodes, 0)))
    for name, node in placed.items():
        counts[name.split("-")[0]][node] += 1
    most = {tenant: -(-of.total() // len(nodes)) for tenant, of in counts.items()}
    above = sum(max(0, number - most[tenant]) for tenant, of in counts.items() for number in of.values())
    return 100 * above / len(placed)
