"""Fixtures that give a test a cluster."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest

from berth_sim.cluster import SimulatedCluster
from berth_sim.faults import Compact, Reject
from harness.plugins.left_out import require
from harness.servers.control_plane import NOBODY, ControlPlane, assets_folder, control_plane
from harness.worlds.kubernetes_api import KubernetesApi, bare_api
from harness.worlds.kubernetes_api import kubernetes_api as connected

BOTH = [pytest.param(name, marks=pytest.mark.slow) for name in ("real", "simulated")]  # both listen on a socket


@pytest.fixture(scope="session")
def real_control_plane() -> Iterator[ControlPlane]:
    """A real API server on its etcd, started once for the whole run; each test has its own namespace.

    A file of tests with a pipeline, which schedules all pods of its cluster, takes `own_control_plane`.
    """
    require("kubebuilder_assets")
    assets = assets_folder()
    assert assets is not None
    with control_plane(assets) as plane:
        yield plane


@pytest.fixture(params=BOTH)
async def kubernetes_api(request: pytest.FixtureRequest) -> AsyncIterator[KubernetesApi]:
    """The real API server and the simulated one, both without kubelets: one contract for both."""
    async with api_of(request) as api:
        yield api


@asynccontextmanager
async def api_of(request: pytest.FixtureRequest) -> AsyncIterator[KubernetesApi]:
    """The API server that the fixture's parameter names."""
    if request.param == "real":
        plane = request.getfixturevalue("real_control_plane")
        trust = ssl.create_default_context(cafile=str(plane.ca_path))
        compact = lambda: asyncio.to_thread(plane.compact)  # noqa: E731 - one name for both servers
        async with connected(plane.url, compact, token=plane.token, trust=trust) as api:
            yield api
        return
    async with SimulatedCluster(kubelet=None) as cluster:

        async def forget() -> None:
            cluster.faults.inject(Compact())

        async with connected(cluster.url, forget) as api:
            yield api


@pytest.fixture(params=BOTH)
async def rightless_api(request: pytest.FixtureRequest) -> AsyncIterator[KubernetesApi]:
    """Both API servers, used by the user `nobody`, who has no rights."""
    if request.param == "real":
        plane = request.getfixturevalue("real_control_plane")
        trust = ssl.create_default_context(cafile=str(plane.ca_path))
        async with bare_api(plane.url, _nothing, token=NOBODY.token, trust=trust) as api:
            yield api
        return
    async with SimulatedCluster(kubelet=None) as cluster, bare_api(cluster.url, _nothing) as api:
        cluster.faults.inject(Reject(user=NOBODY.name, count=None))
        yield api


async def _nothing() -> None:
    """In the place of a compaction, which no test of rights needs."""
