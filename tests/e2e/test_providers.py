"""The algorithm providers of 1.18 in the whole pipeline, on the real API server."""

from collections import Counter
from pathlib import Path

import pytest

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


async def test_the_autoscalers_provider_packs_pods_and_without_even_pods_spread_constraints_mean_nothing(
    own_control_plane: ControlPlane, cluster_outside: ClusterUser, tmp_path: Path
):
    provider = ("--algorithm-provider", "ClusterAutoscalerProvider", "--feature-gates", "EvenPodsSpread=false")
    with berth_up("--kubeconfig", own_control_plane.kubeconfig_path, *provider, folder=tmp_path) as berth:
        berth.wait_until_ready()
        await cluster_outside.add_nodes(3, cpu="16", memory="32Gi")
        names = await cluster_outside.add_pods(8, "plain", cpu="1", memory="2Gi")
        assert len(set((await cluster_outside.all_bound(names)).values())) == 1
        assert berth.said.count(DEPRECATED) == 1
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
