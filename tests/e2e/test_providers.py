"""The algorithm providers of 1.18 in the whole pipeline, on the real API server."""

from collections import Counter
from pathlib import Path

import pytest

from harness.servers.control_plane import ControlPlane
from harness.worlds.cluster_user import ClusterUser, eventually
from harness.worlds.pipeline import berth_up

pytestmark = [pytest.mark.requires("kubebuilder_assets", "nats-server"), pytest.mark.timeout(240)]

DEPRECATED = "--algorithm-provider: DEPRECATED: the scheduling algorithm provider to use, "


@pytest.mark.parametrize(
    ("provider", "expected"),
    [
        # 16 cpu and 32Gi each: cpu and memory are used alike, so that the balance is the same everywhere
        pytest.param("ClusterAutoscalerProvider", [12], id="ClusterAutoscalerProvider packs"),
        pytest.param("DefaultProvider", [4, 4, 4], id="DefaultProvider spreads"),
    ],
)
async def test_a_provider_places_pods_by_its_name(
    own_control_plane: ControlPlane, cluster_outside: ClusterUser, tmp_path: Path, provider: str, expected: list[int]
):
    flags = ("--kubeconfig", own_control_plane.kubeconfig_path, "--algorithm-provider", provider)
    with berth_up(*flags, folder=tmp_path) as berth:
        berth.wait_until_ready()
        await cluster_outside.add_nodes(3, cpu="16", memory="32Gi")
        names = await cluster_outside.add_pods(12, cpu="1", memory="2Gi")
        placed = await cluster_outside.all_bound(names)
        assert sorted(Counter(placed.values()).values()) == expected
        assert berth.said.count(DEPRECATED) == 1


async def test_disks_of_a_cloud_are_counted_and_the_message_says_so(
    own_control_plane: ControlPlane, cluster_outside: ClusterUser, tmp_path: Path
):
    flags = ("--kubeconfig", own_control_plane.kubeconfig_path, "--algorithm-provider=DefaultProvider")
    with berth_up(*flags, folder=tmp_path) as berth:
        berth.wait_until_ready()
        await cluster_outside.add_nodes(1, extended={"attachable-volumes-aws-ebs": "2"})
        for disk in ("vol-1", "vol-2", "vol-3"):
            volume = {"name": "data", "awsElasticBlockStore": {"volumeID": disk}}
            await cluster_outside.create([cluster_outside.pod(disk, spec={"volumes": [volume]})])
            if disk != "vol-3":
                await cluster_outside.all_bound([disk])
        condition = await eventually(lambda: cluster_outside.condition("vol-3"), "a condition on the pod")
        assert condition["message"].startswith("0/1 nodes are available: 1 node(s) exceed max volume count.")
        await cluster_outside.delete_pod("vol-1")
        await cluster_outside.all_bound(["vol-3"])


async def test_without_even_pods_spread_constraints_mean_nothing(
    own_control_plane: ControlPlane, cluster_outside: ClusterUser, tmp_path: Path
):
    provider = ("--algorithm-provider", "ClusterAutoscalerProvider", "--feature-gates", "EvenPodsSpread=false")
    with berth_up("--kubeconfig", own_control_plane.kubeconfig_path, *provider, folder=tmp_path) as berth:
        berth.wait_until_ready()
        await cluster_outside.add_nodes(3, cpu="16", memory="32Gi")
        constraint = {
            "maxSkew": 1,
            "topologyKey": "kubernetes.io/hostname",
            "whenUnsatisfiable": "DoNotSchedule",
            "labelSelector": {"matchLabels": {"app": "web"}},
        }
        names = await cluster_outside.add_pods(
            6, cpu="1", memory="2Gi", labels={"app": "web"}, spec={"topologySpreadConstraints": [constraint]}
        )
        assert len(set((await cluster_outside.all_bound(names)).values())) == 1
