"""A running cluster is exported into a file, and simulated on as it is."""

from __future__ import annotations

import asyncio
import json
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from harness.servers.control_plane import ControlPlane
from harness.worlds.kubernetes_api import KubernetesApi, kubernetes_api, minimal_pod

pytestmark = pytest.mark.requires("kubebuilder_assets")


@pytest.fixture
async def api(real_control_plane: ControlPlane) -> AsyncIterator[KubernetesApi]:
    trust = ssl.create_default_context(cafile=str(real_control_plane.ca_path))
    compact = lambda: asyncio.to_thread(real_control_plane.compact)  # noqa: E731 - a name for what follows
    async with kubernetes_api(real_control_plane.url, compact, token=real_control_plane.token, trust=trust) as api:
        yield api


async def berth(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "berth_cli", *words]
    return await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=60, check=False)


async def test_a_running_cluster_is_read_and_named(
    api: KubernetesApi, real_control_plane: ControlPlane, tmp_path: Path
):
    await api.add_pod("waits")
    node = await api.add_node({"its": api.namespace})
    capacity = {"status": {"allocatable": {"cpu": "2", "memory": "8Gi", "pods": "110"}}}
    assert (await api.patch(f"/api/v1/nodes/{node}/status", capacity)).code == 200
    assert (await api.patch(f"/api/v1/nodes/{node}", {"spec": {"taints": None}})).code == 200
    kubeconfig = ("--kubeconfig", str(real_control_plane.kubeconfig_path))
    exported, pods = tmp_path / "cluster.json", tmp_path / "pods.json"
    pods.write_text(json.dumps(minimal_pod("asks", nodeSelector={"its": api.namespace})))

    written = await berth("export", *kubeconfig, "-o", str(exported))
    assert written.returncode == 0, written.stderr
    assert f" objects of the cluster at {real_control_plane.url}\n" in written.stderr
    found = {(each["kind"], each["metadata"]["name"]) for each in json.loads(exported.read_bytes())["items"]}
    assert {("Pod", "waits"), ("Node", node), ("Namespace", api.namespace)} <= found

    for cluster in (("--cluster", str(exported)), kubeconfig):
        answer = await berth("simulate", *cluster, "--pods", str(pods), "-o", "json")
        assert answer.returncode == 0, answer.stderr
        assert f'"{node}"' in answer.stdout
    assert f" objects of the cluster at {real_control_plane.url}\n" in answer.stderr
