"""Fixtures that give a test a Kubernetes cluster, real or simulated, with a client of `berth.kube` and a plain one."""

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from berth.kube.client import KubeClient
from berth_sim.cluster import SimulatedCluster, kubeconfig
from berth_sim.faults import Compact
from harness.plugins.fixtures_cluster import api_of
from harness.servers.control_plane import assets_folder
from harness.worlds.kubernetes_api import KubernetesApi
from harness.worlds.kubernetes_api import kubernetes_api as connected


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """`api` is the test's plain client, `client` the one under test; tests inject faults into `simulated`."""

    api: KubernetesApi
    client: KubeClient
    kubeconfig_path: Path
    simulated: SimulatedCluster | None = None


SIMULATED = [pytest.mark.slow, *([pytest.mark.long(only=True)] if assets_folder() else [])]


@pytest.fixture(params=[pytest.param("real", marks=pytest.mark.slow), pytest.param("simulated", marks=SIMULATED)])
async def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Cluster]:
    """The real API server; where it is not there, and in `make test-long`, the simulated one.

    `tests/contract` holds both to one contract in every run.
    """
    async with api_of(request) as api:
        url = str(api._session._base_url).rstrip("/")
        if request.param == "real":
            path = request.getfixturevalue("real_control_plane").kubeconfig_path
        else:
            path = tmp_path / "kubeconfig"
            path.write_text(json.dumps(kubeconfig(url)))
        async with await KubeClient.connect(path) as client:
            yield Cluster(api=api, client=client, kubeconfig_path=path)


@pytest.fixture
async def simulated_cluster() -> AsyncIterator[Cluster]:
    """The simulated API server, whose faults the test may use."""
    async with SimulatedCluster(kubelet=None) as simulated:

        async def forget() -> None:
            simulated.faults.inject(Compact())

        async with (
            connected(simulated.url, forget) as api,
            await KubeClient.connect(simulated.kubeconfig_path) as client,
        ):
            yield Cluster(api=api, client=client, kubeconfig_path=simulated.kubeconfig_path, simulated=simulated)
