"""Fixtures that give a test a Kubernetes cluster, real or simulated, with a client of `berth.kube` and a plain one."""

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from berth.kube.client import KubeClient
from berth_sim.cluster import SimulatedCluster, kubeconfig
from berth_sim.faults import Compact
from harness.worlds.kubernetes_api import KubernetesApi
from harness.worlds.kubernetes_api import kubernetes_api as connected


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """`api` is the test's plain client, `client` the one under test; tests inject faults into `simulated`."""

    api: KubernetesApi
    client: KubeClient
    kubeconfig_path: Path
    simulated: SimulatedCluster | None = None


@pytest.fixture
async def cluster(
    request: pytest.FixtureRequest, kubernetes_api: KubernetesApi, tmp_path: Path
) -> AsyncIterator[Cluster]:
    """The real API server, then the simulated one."""
    url = str(kubernetes_api._session._base_url).rstrip("/")
    if url.startswith("https"):
        path = request.getfixturevalue("real_control_plane").kubeconfig_path
    else:
        path = tmp_path / "kubeconfig"
        path.write_text(json.dumps(kubeconfig(url)))
    async with await KubeClient.connect(path) as client:
        yield Cluster(api=kubernetes_api, client=client, kubeconfig_path=path)


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
