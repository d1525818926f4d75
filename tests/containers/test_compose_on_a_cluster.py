"""The profile `cluster`: the pipeline on an existing cluster, with a kubeconfig that containers can use."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from berth_sim.cluster import SimulatedCluster, kubeconfig
from harness.servers.compose import ComposeProject, require_project
from harness.servers.docker_engine import DockerError
from harness.worlds.cluster_user import ClusterUser, cluster_user

pytestmark = pytest.mark.timeout(1500)  # the image may have to be built first

SECONDS = 120.0


@pytest.fixture
def project(tmp_path: Path) -> Iterator[ComposeProject]:
    require_project()
    project = ComposeProject(told={"COMPOSE_PROFILES": "cluster", "KUBECONFIG_FILE": str(tmp_path / "given")})
    try:
        yield project
    finally:
        project.down()
        assert project.left() == []


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[SimulatedCluster]:
    """An existing cluster, with a kubeconfig that only its owner can read, as kubectl writes it."""
    async with SimulatedCluster(host="0.0.0.0") as cluster:  # noqa: S104 - containers come from other addresses
        port = cluster.url.rpartition(":")[2]
        given = tmp_path / "given"
        given.write_text(json.dumps(kubeconfig(f"http://host.docker.internal:{port}")))
        given.chmod(0o400)
        yield cluster


@pytest.fixture
async def pods(cluster: SimulatedCluster) -> AsyncIterator[ClusterUser]:
    async with cluster_user(cluster.kubeconfig_path) as seen:
        await seen.add_nodes(5)
        yield seen


async def test_it_schedules_only_the_pods_that_name_it(project, pods):
    await asyncio.to_thread(project.compose, "up", "--wait", "--no-build")
    assert "simulated-cluster" not in project.compose("ps", "--services").split()
    others = await pods.add_pods(3, "others", scheduler="default-scheduler")
    await pods.all_bound(await pods.add_pods(20), SECONDS)
    assert not (await pods.placed()).keys() & set(others)


@pytest.mark.parametrize(
    ("cluster", "user", "problem"),
    [
        pytest.param({"server": "https://127.0.0.1:6443"}, {}, "an address of this machine", id="loopback"),
        pytest.param({"server": "https://localhost:6443"}, {}, "an address of this machine", id="localhost"),
        pytest.param(
            {"server": "https://c:6443", "certificate-authority": "/home/me/ca.crt"},
            {},
            "names other files",
            id="files",
        ),
        pytest.param({"server": "https://c:6443"}, {"exec": {"command": "aws"}}, "runs a program", id="program"),
    ],
)
def test_an_unusable_kubeconfig_is_refused_with_a_hint(project, tmp_path, cluster, user, problem):
    given = {"apiVersion": "v1", "kind": "Config", "clusters": [{"name": "c", "cluster": cluster}]}
    (tmp_path / "given").write_text(json.dumps({**given, "users": [{"name": "u", "user": user}]}, indent=1))
    with pytest.raises(DockerError, match=problem):
        project.compose("run", "--rm", "--no-deps", "cluster-given")


def test_a_missing_kubeconfig_is_not_created(project, tmp_path):
    with pytest.raises(DockerError, match="given"):
        project.compose("run", "--rm", "--no-deps", "cluster-given")
    assert not (tmp_path / "given").exists()
