"""The algorithm providers of 1.18: one in the whole pipeline, on the real API server, the other by `berth simulate`."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import yaml

from berth_sim.nodes import node_manifests, pod_manifest
from harness.servers.control_plane import ControlPlane
from harness.worlds.cluster_user import ClusterUser, eventually
from harness.worlds.pipeline import berth_up

pytestmark = [pytest.mark.requires("kubebuilder_assets", "nats-server"), pytest.mark.timeout(240)]

DEPRECATED = "--algorithm-provider: DEPRECATED: the scheduling algorithm provider to use, "


async def test_the_default_provider_spreads_pods_and_counts_the_disks_of_a_cloud(
    own_control_plane: ControlPlane, cluster_outside: ClusterUser, tmp_path: Path
):
    flags = ("--kubeconfig", own_control_plane.kubeconfig_path, "--algorithm-provider=DefaultProvider")
    with berth_up(*flags, folder=tmp_path) as berth:
        berth.wait_until_ready()
        await cluster_outside.add_nodes(3, cpu="16", memory="32Gi")  # so that the balance is the same everywhere
        placed = await cluster_outside.all_bound(await cluster_outside.add_pods(12, cpu="1", memory="2Gi"))
        assert sorted(Counter(placed.values()).values()) == [4, 4, 4]
        assert berth.said.count(DEPRECATED) == 1
        await cluster_outside.add_nodes(1, extended={"attachable-volumes-aws-ebs": "2"}, labels={"disks": "two"})
        for disk in ("vol-1", "vol-2", "vol-3"):
            volume = {"name": "data", "awsElasticBlockStore": {"volumeID": disk}}
            spec = {"volumes": [volume], "nodeSelector": {"disks": "two"}}
            await cluster_outside.create([cluster_outside.pod(disk, spec=spec)])
            if disk != "vol-3":
                await cluster_outside.all_bound([disk])
        condition = await eventually(lambda: cluster_outside.condition("vol-3"), "a condition on the pod")
        assert "1 node(s) exceed max volume count" in condition["message"]
        await cluster_outside.delete_pod("vol-1")
        await cluster_outside.all_bound(["vol-3"])


def test_the_autoscalers_provider_packs_pods_and_without_even_pods_spread_constraints_mean_nothing(tmp_path: Path):
    constraint = {
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"app": "web"}},
    }
    size = {"cpu": "1", "memory": "2Gi"}
    pods = [
        *(pod_manifest(f"plain-{number}", **size) for number in range(8)),
        *(
            pod_manifest(
                f"web-{number}", **size, labels={"app": "web"}, spec={"topologySpreadConstraints": [constraint]}
            )
            for number in range(6)
        ),
    ]
    for name, objects in (("nodes", node_manifests(3, cpu="16", memory="32Gi")), ("pods", pods)):
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump_all(objects))
    provider = ("--algorithm-provider", "ClusterAutoscalerProvider", "--feature-gates", "EvenPodsSpread=false")
    files = ("--cluster", tmp_path / "nodes.yaml", "--pods", tmp_path / "pods.yaml")
    command = [sys.executable, "-m", "berth_cli", "simulate", *files, *provider, "-o", "json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert done.stderr.count(DEPRECATED) == 1
    placed = {each["pod"]: each["bound"] for each in map(json.loads, done.stdout.splitlines()) if "pod" in each}
    assert len(placed) == len(pods)
    assert len(set(placed.values())) == 1
