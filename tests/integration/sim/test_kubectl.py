"""kubectl on the simulated cluster: the commands that people type every day, each once."""

import asyncio
import subprocess
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest

from berth_sim.apiserver.kinds import PODS
from berth_sim.apiserver.resources import bind
from berth_sim.apiserver.store import StoreEvent
from berth_sim.cluster import SimulatedCluster
from berth_sim.nodes import KubeletSettings, node_manifest

pytestmark = pytest.mark.requires("kubectl")

QUICK = KubeletSettings(start_delay=timedelta(0), longest_grace=timedelta(0), job_duration=timedelta(0))
DEPLOYMENT = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: api}
spec:
  replicas: 2
  selector: {matchLabels: {app: api}}
  template:
    metadata: {labels: {app: api}}
    spec: {containers: [{name: c, image: "nginx:1", ports: [{containerPort: 80}]}]}
"""
LIST = """
apiVersion: v1
kind: List
items:
- {apiVersion: v1, kind: Namespace, metadata: {name: team}}
- {apiVersion: v1, kind: Pod, metadata: {name: web, namespace: team}, spec: {containers: [{name: c, image: x}]}}
"""


class Kubectl:
    """Runs kubectl against one cluster."""

    def __init__(self, cluster: SimulatedCluster, folder: Path) -> None:
        self._cluster = cluster
        self._folder = folder

    async def __call__(self, *words: str, file: str = "", fails: bool = False) -> str:
        """Return what it prints; `file` is the contents of the file that the command gets by -f."""
        if file:
            path = self._folder / "objects.yaml"
            path.write_text(file, encoding="utf-8")
            words = (*words, "-f", str(path))
        command = ["kubectl", "--kubeconfig", self._cluster.kubeconfig_path, *words]
        done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=60, check=False)
        assert (done.returncode != 0) is fails, done.stderr
        return done.stderr if fails else done.stdout + done.stderr


@pytest.fixture
async def kubectl(tmp_path: Path) -> AsyncIterator[Kubectl]:
    """A cluster of one node that every pod is bound to."""
    async with SimulatedCluster(nodes=[node_manifest("node-1")], kubelet=QUICK) as cluster:

        def to_the_node(change: StoreEvent) -> None:
            if change.before is None:
                binding = {"metadata": {"name": change.key[1]}, "target": {"name": "node-1"}}
                asyncio.get_running_loop().call_soon(bind, cluster.resources, *change.key, binding)

        cluster.resources.store.table(PODS).listen(to_the_node)
        yield Kubectl(cluster, tmp_path)


async def test_a_deployment_by_typed_commands(kubectl: Kubectl):
    assert (
        await kubectl("create", "deployment", "web", "--image=nginx", "--replicas=2") == "deployment.apps/web created\n"
    )
    await kubectl("wait", "--for=condition=Available", "deployment/web", "--timeout=30s")
    assert "2/2" in await kubectl("get", "deployments")
    assert await kubectl("scale", "deployment/web", "--replicas=3") == "deployment.apps/web scaled\n"
    assert "successfully rolled out" in await kubectl("rollout", "status", "deployment/web", "--timeout=30s")
    await kubectl("set", "image", "deployment/web", "nginx=nginx:2")
    assert "successfully rolled out" in await kubectl("rollout", "status", "deployment/web", "--timeout=30s")
    await kubectl("rollout", "undo", "deployment/web")
    assert "3 desired | 3 updated" in await kubectl("describe", "deployment", "web")
    assert await kubectl("delete", "deployment", "web") == 'deployment.apps "web" deleted\n'
    await kubectl("wait", "--for=delete", "pods", "-l", "app=web", "--timeout=30s")
    assert "No resources found" in await kubectl("get", "replicasets,pods")


async def test_a_deployment_applied_by_the_client(kubectl: Kubectl):
    assert await kubectl("apply", file=DEPLOYMENT) == "deployment.apps/api created\n"
    assert await kubectl("apply", file=DEPLOYMENT) == "deployment.apps/api unchanged\n"
    assert await kubectl("diff", file=DEPLOYMENT) == ""
    changed = DEPLOYMENT.replace("replicas: 2", "replicas: 1")
    assert (
        await kubectl("apply", "--dry-run=server", file=changed) == "deployment.apps/api configured (server dry run)\n"
    )
    assert await kubectl("apply", file=changed) == "deployment.apps/api configured\n"
    refused = await kubectl("apply", file=DEPLOYMENT.replace("replicas:", "replicaz:"), fails=True)
    assert 'unknown field "spec.replicaz"' in refused


async def test_a_deployment_applied_by_the_server(kubectl: Kubectl):
    assert await kubectl("apply", "--server-side", file=DEPLOYMENT) == "deployment.apps/api serverside-applied\n"
    changed = DEPLOYMENT.replace("replicas: 2", "replicas: 1")
    refused = await kubectl("apply", "--server-side", "--field-manager=other", file=changed, fails=True)
    assert 'conflict with "kubectl": .spec.replicas' in refused
    await kubectl("apply", "--server-side", "--field-manager=other", "--force-conflicts", file=changed)
    assert await kubectl("get", "deployment", "api", "-o", "jsonpath={.spec.replicas}") == "1"


async def test_what_kubectl_creates_by_name(kubectl: Kubectl):
    for words in (
        ("namespace", "team"),
        ("job", "sum", "--image=x"),
        ("priorityclass", "high", "--value=100"),
        ("poddisruptionbudget", "most", "--selector=app=web", "--min-available=50%"),
        ("service", "clusterip", "web", "--tcp=80:80"),
    ):
        assert (await kubectl("create", *words)).endswith(" created\n")
    assert (
        await kubectl("get", "pdb", "most", "-o", "jsonpath={.spec}")
        == '{"minAvailable":"50%","selector":{"matchLabels":{"app":"web"}}}'
    )
    await kubectl("wait", "--for=condition=complete", "job/sum", "--timeout=30s")
    assert "Completed" in await kubectl("get", "pods")
    assert await kubectl("delete", "namespace", "team") == 'namespace "team" deleted\n'
    refused = await kubectl("create", "cronjob", "x", "--image=x", "--schedule=* * * * *", fails=True)
    assert "no controller for a CronJob" in refused


async def test_a_list_is_created_explained_and_watched(kubectl: Kubectl):
    assert await kubectl("create", file=LIST) == "namespace/team created\npod/web created\n"
    await kubectl("wait", "--for=jsonpath={.status.phase}=Running", "pod/web", "-n", "team", "--timeout=30s")
    watched = await kubectl("get", "pods", "-n", "team", "--watch", "--request-timeout=1s", "--output-watch-events")
    assert watched.split()[:6] == ["EVENT", "NAME", "READY", "STATUS", "RESTARTS", "AGE"]
    assert "Node:" in await kubectl("describe", "pod", "web", "-n", "team")
    explained = await kubectl("explain", "deployment.spec.strategy")
    assert "rollingUpdate\t<RollingUpdateDeployment>" in explained
