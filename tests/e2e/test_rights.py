"""The accounts of docs/rights/berth.yaml on the real API server: they allow all that berth does, and nothing more."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest

from harness.servers.child_processes import spawn, stop
from harness.servers.control_plane import ControlPlane
from harness.servers.nats_server import nats_server
from harness.worlds.accounts import grant, kubeconfig_of, token_of
from harness.worlds.cluster_user import ClusterUser, eventually, trust_of
from harness.worlds.kubernetes_api import Answer, bare_api
from harness.worlds.pipeline import berth_up

pytestmark = [pytest.mark.requires("kubebuilder_assets", "nats-server"), pytest.mark.timeout(240)]

PAGE = Path(__file__).parents[2] / "docs/kubernetes.md"
HEADING = "\n## An account for `berth up`\n"
READY_SECONDS = 60.0
SELECTED = "volume.kubernetes.io/selected-node"
CLAIM = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
LEASES = "/apis/coordination.k8s.io/v1/namespaces/berth/leases"
THEIRS = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases"
CLAIMS = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"
PODS = "/api/v1/namespaces/default/pods"


@contextmanager
def services(nats: str, kubeconfigs: dict[str, Path], folder: Path) -> Iterator[Path]:
    """Run watcher, binder and a scorer, each with its own kubeconfig; each writes its ready file into the folder."""
    running: list[subprocess.Popen[bytes]] = []
    try:
        applied = [sys.executable, "-m", "berth_cli", "bus", "apply", "--nats", nats]
        subprocess.run(applied, check=True, capture_output=True, timeout=READY_SECONDS)
        for name in ("watcher", "binder", "scorer"):
            access = ["--kubeconfig", str(kubeconfigs[name])] if name in kubeconfigs else []
            flags = ["--nats", nats, "--ready-file", str(folder / f"{name}.ready"), *access]
            running.append(spawn([sys.executable, "-m", f"berth_{name}", *flags], folder / f"{name}.log"))
        yield folder
    finally:
        stop(running)


async def all_ready(folder: Path) -> None:
    async def ready() -> bool:
        return all((folder / f"{name}.ready").exists() for name in ("watcher", "binder", "scorer"))

    await eventually(ready, f"the services of {folder} to be ready", READY_SECONDS)


def log_text(folder: Path) -> str:
    logs = [*folder.glob("*.log"), *folder.glob("stderr")]
    return "\n".join(log.read_text(errors="replace") for log in logs)


@asynccontextmanager
async def accounts_of_their_own(plane: ControlPlane, seen: ClusterUser, folder: Path) -> AsyncIterator[None]:
    """A process for each service, with separate accounts for watcher and binder."""
    kubeconfigs = {name: await kubeconfig_of(plane, seen.api, f"berth-{name}") for name in ("watcher", "binder")}
    with nats_server() as nats, services(nats.address, kubeconfigs, folder):
        await all_ready(folder)
        yield


async def everything_that_berth_does(seen: ClusterUser, folder: Path) -> None:
    await pods_are_bound_and_evicted(seen)
    await volumes_are_found_and_requested(seen)
    await devices_are_given_and_given_back(seen)
    for lease in ("berth-watcher", "berth-binder"):
        held = await seen.api.get(f"{LEASES}/{lease}")
        assert held.body["spec"]["holderIdentity"]
    assert "may not" not in log_text(folder)
    assert "forbidden" not in log_text(folder)


async def test_accounts_of_their_own_may_do_everything_that_berth_does(
    own_control_plane: ControlPlane, cluster_outside: ClusterUser, tmp_path: Path
):
    await grant(cluster_outside.api)
    async with accounts_of_their_own(own_control_plane, cluster_outside, tmp_path):
        await everything_that_berth_does(cluster_outside, tmp_path)


@pytest.mark.requires("kubectl")
async def test_one_account_whose_kubeconfig_the_documented_commands_make_may_do_everything_that_berth_does(
    own_control_plane: ControlPlane, cluster_outside: ClusterUser, tmp_path: Path
):
    """The commands start from a kubeconfig whose CA is a file."""
    await grant(cluster_outside.api)
    mine = own_control_plane.kubeconfig_path
    assert "certificate-authority-data" not in mine.read_text()
    section = PAGE.read_text().split(HEADING)[1]
    _applying, making = re.findall(r"^```sh\n(.*?)^```", section, re.DOTALL | re.MULTILINE)
    *commands, starting = making.splitlines()
    environment = {**os.environ, "KUBECONFIG": str(mine)}
    shell = ["bash", "-euo", "pipefail", "-c", "\n".join(commands)]
    await asyncio.to_thread(subprocess.run, shell, cwd=tmp_path, env=environment, check=True)

    assert starting == "berth up --kubeconfig berth.kubeconfig"
    with berth_up("--kubeconfig", tmp_path / "berth.kubeconfig", folder=tmp_path) as berth:
        berth.wait_until_ready()
        await everything_that_berth_does(cluster_outside, tmp_path)


async def pods_are_bound_and_evicted(seen: ClusterUser) -> None:
    await seen.add_nodes(1, cpu="1")
    await seen.all_bound(await seen.add_pods(1, "low", cpu="1", spec={"terminationGracePeriodSeconds": 0}))
    vip = await seen.add_priority_class("vip", 100_000)
    placed = await seen.all_bound(await seen.add_pods(1, "vip", cpu="1", priority_class=vip))
    assert placed.keys() == {"vip-0"}
    for reason in ("Scheduled", "FailedScheduling", "Preempted"):
        await eventually(lambda reason=reason: seen.events(reason), f"an Event {reason}")
    await seen.delete_pod("vip-0")


async def volumes_are_found_and_requested(seen: ClusterUser) -> None:
    """One claim gets an existing volume, the other is to be provisioned. No controller completes either here."""
    (node,) = seen.nodes
    claims = f"/api/v1/namespaces/{seen.namespace}/persistentvolumeclaims"
    for name, provisioner in (("local", "kubernetes.io/no-provisioner"), ("made", "disks.example.com")):
        storage_class = f"{name}-{seen.namespace}"
        body = {"metadata": {"name": storage_class}, "provisioner": provisioner}
        await made(
            seen, "/apis/storage.k8s.io/v1/storageclasses", {**body, "volumeBindingMode": "WaitForFirstConsumer"}
        )
        await made(seen, claims, {"metadata": {"name": name}, "spec": {**CLAIM, "storageClassName": storage_class}})
    volume = await add_volume(seen, f"local-{seen.namespace}")
    for name in ("local", "made"):
        mount = {"name": "v", "persistentVolumeClaim": {"claimName": name}}
        await seen.create([seen.pod(name, spec={"volumes": [mount], "terminationGracePeriodSeconds": 0})])

    async def is_prebound() -> bool:
        kept = (await seen.api.get(f"/api/v1/persistentvolumes/{volume}")).body["spec"].get("claimRef", {})
        return kept.get("name") == "local"

    async def has_selected_node() -> bool:
        claim = (await seen.api.get(f"{claims}/made")).body
        return claim["metadata"].get("annotations", {}).get(SELECTED) == node

    await eventually(is_prebound, "the volume to be reserved for its claim")
    await eventually(has_selected_node, "the claim to get a selected node")


async def devices_are_given_and_given_back(seen: ClusterUser) -> None:
    """A claim of one pod, one whose parameters no JSON patch can keep, and an extended resource."""
    node, resources = seen.nodes[0], "/apis/resource.k8s.io/v1"
    name, extended_name = f"gpu-{seen.namespace}", f"example.com/gpu-{seen.namespace}"
    device_class = {"metadata": {"name": name}, "spec": {"extendedResourceName": extended_name}}
    await made(seen, f"{resources}/deviceclasses", device_class)
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    spec = {
        "driver": "d.example.com",
        "nodeName": node,
        "pool": pool,
        "devices": [{"name": f"gpu-{i}"} for i in range(3)],
    }
    await made(seen, f"{resources}/resourceslices", {"metadata": {"name": node}, "spec": spec})
    claims = f"{resources}/namespaces/{seen.namespace}/resourceclaims"
    request = {"name": "r", "exactly": {"deviceClassName": name}}
    opaque = {"driver": "d.example.com", "parameters": {"note": "a < b"}}
    for claim, config in (("plain", []), ("odd", [{"opaque": opaque}])):
        body = {"metadata": {"name": claim}, "spec": {"devices": {"requests": [request], "config": config}}}
        await made(seen, claims, body)
    pods = [("one", "plain"), ("two", "odd"), ("three", "odd")]
    for pod, claim in pods:
        entry = {"name": "gpu", "resourceClaimName": claim}
        await seen.create(
            [seen.pod(pod, cpu="1m", spec={"resourceClaims": [entry], "terminationGracePeriodSeconds": 0})]
        )
    extended = seen.pod("extended", cpu="1m", spec={"terminationGracePeriodSeconds": 0})
    for amounts in ("requests", "limits"):
        extended["spec"]["containers"][0]["resources"].setdefault(amounts, {})[extended_name] = "1"
    await seen.create([extended])
    await seen.all_bound(["one", "two", "three", "extended"])
    found = {each["metadata"]["name"]: each for each in (await seen.api.get(claims)).body["items"]}
    users = {name: {user["name"] for user in claim["status"]["reservedFor"]} for name, claim in found.items()}
    assert sorted(map(sorted, users.values())) == [["extended"], ["one"], ["three", "two"]]
    given = [
        result["device"] for claim in found.values() for result in claim["status"]["allocation"]["devices"]["results"]
    ]
    assert sorted(given) == ["gpu-0", "gpu-1", "gpu-2"]
    shown = (await seen.api.get(f"/api/v1/namespaces/{seen.namespace}/pods/extended")).body
    assert shown["status"]["extendedResourceClaimStatus"]["resourceClaimName"] in found


async def add_volume(seen: ClusterUser, name: str) -> str:
    spec = {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "hostPath": {"path": "/x"}}
    volume = {"metadata": {"name": name}, "spec": {**spec, "storageClassName": name}}
    await made(seen, "/api/v1/persistentvolumes", volume)
    answer = await seen.api.patch(f"/api/v1/persistentvolumes/{name}/status", {"status": {"phase": "Available"}})
    assert answer.code == 200, answer.body
    return name


async def made(seen: ClusterUser, path: str, body: dict) -> None:
    answer = await seen.api.post(path, body)
    assert answer.code == 201, answer.body


ONE_THING_MORE = [
    pytest.param("berth-watcher", "POST", f"{PODS}/web/binding", id="watcher binds"),
    pytest.param("berth-watcher", "PATCH", f"{PODS}/web/status", id="watcher writes a status"),
    pytest.param("berth-watcher", "DELETE", f"{PODS}/web", id="watcher evicts"),
    pytest.param("berth-watcher", "PUT", f"{LEASES}/berth-binder", id="watcher takes the binder's Lease"),
    pytest.param("berth-binder", "PUT", f"{LEASES}/berth-watcher", id="binder takes the watcher's Lease"),
    pytest.param("berth-binder", "POST", PODS, id="binder creates a pod"),
    pytest.param("berth-binder", "PATCH", f"{PODS}/web", id="binder changes a pod"),
    pytest.param("berth-binder", "PATCH", "/api/v1/nodes/n1", id="binder changes a node"),
    pytest.param("berth-binder", "GET", "/api/v1/namespaces/default/secrets", id="binder reads secrets"),
    pytest.param("berth-watcher", "PATCH", f"{CLAIMS}/c/status", id="watcher gives devices"),
    pytest.param("berth-watcher", "POST", CLAIMS, id="watcher creates a claim"),
    pytest.param("berth-binder", "PATCH", "/apis/resource.k8s.io/v1/deviceclasses/c", id="binder changes a class"),
    pytest.param("berth-binder", "POST", f"{CLAIMS}templates", id="binder creates a template"),
    pytest.param("berth-binder", "DELETE", "/apis/resource.k8s.io/v1/resourceslices/s", id="binder deletes a slice"),
    pytest.param("berth", "PUT", f"{LEASES}/kube-scheduler", id="the account for all takes kube-scheduler's Lease"),
    pytest.param("berth-watcher", "PUT", f"{THEIRS}/kube-scheduler", id="watcher takes kube-scheduler's Lease"),
    pytest.param("berth-watcher", "GET", f"{THEIRS}/kube-controller-manager", id="watcher reads another's Lease"),
    pytest.param("berth-binder", "GET", f"{THEIRS}/kube-scheduler", id="binder reads kube-scheduler's Lease"),
    pytest.param("berth", "GET", "/api/v1/secrets", id="the account for all reads secrets"),
    pytest.param("berth", "DELETE", "/api/v1/nodes/n1", id="the account for all deletes a node"),
]


@pytest.mark.parametrize(("account", "method", "path"), ONE_THING_MORE)
async def test_the_accounts_may_do_nothing_more(
    own_control_plane: ControlPlane, cluster_outside: ClusterUser, account: str, method: str, path: str
):
    await grant(cluster_outside.api)
    token = await token_of(cluster_outside.api, account)
    assert (await call(own_control_plane, token, method, path)).code == 403


@pytest.mark.parametrize("account", ["berth", "berth-watcher"])
async def test_who_leads_as_watcher_sees_kube_schedulers_lease(
    own_control_plane: ControlPlane, cluster_outside: ClusterUser, account: str
):
    await grant(cluster_outside.api)
    token = await token_of(cluster_outside.api, account)
    assert (await call(own_control_plane, token, "GET", f"{THEIRS}/kube-scheduler")).code == 404


async def call(plane: ControlPlane, token: str, method: str, path: str) -> Answer:
    async def nothing() -> None:
        """No test needs to clear the server."""

    trust = trust_of({"certificate-authority": str(plane.ca_path)})
    async with bare_api(plane.url, nothing, token=token, trust=trust) as api:
        content = {"content_type": "application/merge-patch+json"} if method == "PATCH" else {}
        return await api.call(method, path, None if method == "GET" else {}, **content)
