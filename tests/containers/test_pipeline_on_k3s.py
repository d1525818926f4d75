"""The pipeline on a complete cluster with kubelet and controllers: k3s in a container, started by testcontainers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import msgspec
import pytest

from berth.kube.client import KubeClient
from berth.kube.credentials import KubeCredentials
from berth.kube.kubeconfig import source_for
from berth_sim.nodes import pod_manifest
from harness.plugins.left_out import require
from harness.servers.containers import deprecations_of_testcontainers, started
from harness.servers.docker_engine import compose_image
from harness.worlds.cluster_user import eventually, node_of
from harness.worlds.pipeline import BerthUp, berth_up

pytestmark = [pytest.mark.requires("nats-server"), pytest.mark.timeout(900)]  # the image may have to be pulled first

PODS = "/api/v1/namespaces/default/pods"
NAMES = [f"web-{number}" for number in range(10)]
SECONDS = 180.0


@pytest.fixture
def kubeconfig(tmp_path: Path) -> Iterator[Path]:
    require("docker")
    require(f"image:{compose_image('k3s')}")
    with deprecations_of_testcontainers():
        from testcontainers.community.k3s import K3SContainer  # noqa: PLC0415 - importing it may warn
    with started(K3SContainer(compose_image("k3s"))) as k3s:
        path = tmp_path / "kubeconfig"
        path.write_text(k3s.config_yaml())
        yield path


@pytest.fixture
def berth(kubeconfig: Path, tmp_path: Path) -> Iterator[BerthUp]:
    with berth_up("--kubeconfig", kubeconfig, folder=tmp_path) as berth:
        berth.wait_until_ready()
        yield berth


@pytest.fixture
async def client(kubeconfig: Path) -> AsyncIterator[KubeClient]:
    async with KubeClient(await KubeCredentials.from_source(source_for(str(kubeconfig)))) as client:
        yield client


async def test_pods_that_name_berth_get_a_node_of_k3s(berth: BerthUp, client: KubeClient):
    async def create(name: str) -> bool:
        """Return False until a controller has created the namespace's service account."""
        pod = pod_manifest(name, cpu="10m", memory="8Mi")
        return (await client.request("POST", PODS, body=msgspec.json.encode(pod))).succeeded

    async def all_placed() -> bool:
        answer = await client.request("GET", PODS)
        nodes = {pod["metadata"]["name"]: node_of(pod) for pod in msgspec.json.decode(answer.body)["items"]}
        return all(nodes.get(name) for name in NAMES)

    for name in NAMES:
        await eventually(lambda name=name: create(name), f"pod {name} to be created", SECONDS)
    await eventually(all_placed, "every pod to have a node", SECONDS)
