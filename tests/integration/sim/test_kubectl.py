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
WHOLE_FILE = """
apiVersion: v1
kind: ConfigMap
metadata: {name: settings}
data: {a: b}
---
apiVersion: v1
kind: Secret
metadata: {name: login}
data: {word: cGFzcw==}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: bot}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: "system:bot"}
rules: [{apiGroups: [""], resources: [pods], verbs: [get]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: bot}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: "system:bot"}
subjects: [{kind: ServiceAccount, name: bot}]
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: web}
spec:
  rules:
  - host: a.example
    http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: web, port: {number: 80}}}}]}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: web}
spec: {podSelector: {}}
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {selector: {app: api}, ports: [{port: 80}]}
---
""" + DEPLOYMENT.lstrip()
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


@pytest.mark.parametrize("way", [(), ("--server-side",)], ids=["client", "server"])
async def test_a_file_with_all_that_an_application_has(kubectl: Kubectl, way: tuple[str, ...]):
    assert (await kubectl("apply", *way, file=WHOLE_FILE)).count("\n") == 9
    again = await kubectl("apply", *way, file=WHOLE_FILE)
    assert again.count("serverside-applied" if way else "unchanged") == 9
    services = await kubectl("get", "services", "web")
    assert services.split()[-6:-1] == ["web", "ClusterIP", "<none>", "<none>", "80/TCP"]
    assert (await kubectl("delete", file=WHOLE_FILE)).count("deleted") == 9


async def test_what_needs_a_container_or_is_not_simulated_is_refused_with_a_sentence(kubectl: Kubectl):
    await kubectl("run", "web", "--image=nginx")
    await kubectl("create", "deployment", "api", "--image=nginx")
    for words, sentence in (
        (("logs", "web"), "there are no logs"),
        (("exec", "web", "--", "ls"), "there is none to run a command in"),
        (("attach", "web"), "there is none to attach to"),
        (("port-forward", "web", "18080:80"), "there are no ports to forward"),
        (("cp", "web:/etc/hosts", "/dev/null"), "there is none to run a command in"),
        (("debug", "web", "--image=busybox"), "there is none to debug"),
        (("get", "--raw", "/api/v1/nodes/node-1/proxy/metrics"), "no kubelet that answers"),
        (("create", "token", "default"), "no token is needed"),
        (("autoscale", "deployment", "api", "--max=3"), "use `kubectl scale`"),
        (("delete", "namespace", "default"), "this namespace may not be deleted"),
        (("patch", "pod", "web", "--type=json", "-p", '[{"op":"remove","path":"/spec/a"}]'), "operation at '/spec/a'"),
    ):
        assert sentence in await kubectl(*words, fails=True)


async def test_who_asks_what_he_may_do_may_do_all(kubectl: Kubectl):
    assert await kubectl("auth", "can-i", "create", "pods") == "yes\n"
    assert "*.*" in await kubectl("auth", "can-i", "--list")
    assert "simulated" in await kubectl("auth", "whoami")
    assert "Server Version: v1.36" in await kubectl("version")


async def test_tables_are_sorted_by_any_field(kubectl: Kubectl):
    for name in ("b", "a"):
        await kubectl("create", "configmap", name, f"--from-literal=key={name}")
        await kubectl("create", "priorityclass", name, f"--value={ord(name)}")
    for kind, field in (("configmaps", ".data.key"), ("priorityclasses", ".value"), ("nodes", ".status.capacity.cpu")):
        names = [line.split()[0] for line in (await kubectl("get", kind, f"--sort-by={field}")).splitlines()[1:]]
        assert [name for name in names if name in ("a", "b", "node-1")] == (
            ["node-1"] if kind == "nodes" else ["a", "b"]
        )


async def test_the_cause_of_a_change_is_in_the_history(kubectl: Kubectl):
    await kubectl("create", "deployment", "web", "--image=nginx")
    await kubectl("annotate", "deployment", "web", "kubernetes.io/change-cause=newer nginx")
    await kubectl("set", "image", "deployment/web", "nginx=nginx:2")
    await kubectl("rollout", "status", "deployment/web", "--timeout=30s")
    assert "newer nginx" in await kubectl("rollout", "history", "deployment/web")
