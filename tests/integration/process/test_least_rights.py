"""Every service with its own NATS user and no further rights: it starts, takes over, and binds what waited.

Tests of one service connect as a user that may do everything; what a service asks beyond its rights shows here.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from berth_sim.cluster import SimulatedCluster
from harness.servers.bus_users import SERVICES, bus_of_users, services
from harness.worlds.cluster_user import cluster_user

pytestmark = [pytest.mark.requires("nats-server"), pytest.mark.timeout(120)]


async def test_services_take_over_what_waits_with_the_rights_of_their_users(tmp_path: Path):
    config = tmp_path / "config.yaml"
    config.write_text("apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n")
    async with SimulatedCluster(kubeconfig_path=tmp_path / "kubeconfig") as cluster:
        with bus_of_users() as server, services(server, cluster.kubeconfig_path, config, tmp_path) as running:
            async with cluster_user(cluster.kubeconfig_path) as user:
                await user.add_nodes(2)
                await user.all_bound(await user.add_pods(3, "first"))
                running.kill("scorer")
                names = await user.add_pods(3, "waits")
                for service in ("watcher", "binder"):
                    running.kill(service)
                    running.start(service)
                running.start("scorer")
                await user.all_bound(names)
            for service in SERVICES:
                assert not [line for line in running.log(service) if "ermission" in line]
