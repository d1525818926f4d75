"""Devices that berth may not read or write, or that an API server lacks: only pods that need them wait."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
import yaml

from harness.servers.child_processes import spawn, stop
from harness.servers.control_plane import ControlPlane, assets_folder, control_plane
from harness.servers.nats_server import nats_server
from harness.worlds.accounts import RIGHTS, grant, kubeconfig_of
from harness.worlds.cluster_user import ClusterUser, cluster_user, eventually

pytestmark = [pytest.mark.requires("kubebuilder_assets", "nats-server"), pytest.mark.timeout(300)]

GROUP = "resource.k8s.io"
RESOURCES = f"/apis/{GROUP}/v1"
ROLES = "/apis/rbac.authorization.k8s.io/v1/clusterroles"
FOUND_SECONDS = 90.0
"""An API server is asked every half minute at most for what it lacked, and each wait here may follow another one."""


async def test_without_the_rights_pods_with_claims_wait_until_the_rights_come(
    own_control_plane: ControlPlane, cluster_outside: ClusterUser, tmp_path: Path
):
    """As after an upgrade whose ClusterRole was not applied."""
    seen = cluster_outside
    await grant(seen.api)
    role = role_of("berth-reads")
    before = [rule for rule in role["rules"] if GROUP not in rule["apiGroups"]]
    await put_role(seen, {**role, "rules": before})
    accounts = {name: await kubeconfig_of(own_control_plane, seen.api, f"berth-{name}") for name in SERVICES[:2]}
    with ExitStack() as stack:
        nats = stack.enter_context(nats_server())
        await run_services(stack, nats.address, accounts, tmp_path)
        await add_devices(seen)
        await waits_with(seen, nats.address, f"berth may not read {GROUP}/v1")
        for name in SERVICES[:2]:
            lines = [line for line in log_of(tmp_path, name) if "may not" in line]
            assert len(lines) == 1, lines
            assert f"system:serviceaccount:berth:berth-{name}' may not list " in lines[0]
            assert "apply this version's ClusterRole berth-reads" in lines[0]
        await put_role(seen, role)
        await seen.all_bound(["plain", "claiming", "extended"], FOUND_SECONDS)
        assert any("an API group can be read again" in line for line in log_of(tmp_path, "watcher"))


async def test_without_a_right_to_write_claims_their_pods_wait_until_it_comes(
    own_control_plane: ControlPlane, cluster_outside: ClusterUser, tmp_path: Path
):
    seen = cluster_outside
    await grant(seen.api)
    await put_role(seen, role_of("berth-reads"))
    accounts = {name: await kubeconfig_of(own_control_plane, seen.api, f"berth-{name}") for name in SERVICES[:2]}
    with ExitStack() as stack:
        nats = stack.enter_context(nats_server())
        await run_services(stack, nats.address, accounts, tmp_path)
        await seen.add_nodes(1)
        await publish(seen)
        for resource in ("resourceclaims", "resourceclaims/status", "resourceclaims/binding"):
            role = role_of("berth-commits")
            for rule in role["rules"]:
                if GROUP in rule["apiGroups"] and resource in rule["resources"]:
                    rule["resources"].remove(resource)
            role["rules"] = [rule for rule in role["rules"] if rule["resources"]]
            await put_role(seen, role)
            plain, claiming = (f"{name}-{resource.replace('/', '-')}" for name in ("plain", "claiming"))
            entry = {"name": "gpu", "resourceClaimName": "c"}
            spec = {"resourceClaims": [entry], "terminationGracePeriodSeconds": 0}
            await seen.create([seen.pod(claiming, cpu="10m", spec=spec)])

            async def told(name: str = claiming, resource: str = resource) -> bool:
                message = (await seen.condition(name)).get("message", "")
                return any(
                    f"berth-binder' may not {verb} {resource}: add to the ClusterRole: " in message
                    for verb in ("patch", "update")
                )

            await eventually(told, f"the pod to be told of {resource}")
            await seen.create([seen.pod(plain, cpu="10m")])
            await seen.all_bound([plain])
            await put_role(seen, role_of("berth-commits"))
            await seen.all_bound([claiming], FOUND_SECONDS)
            await seen.delete_pod(claiming)
            path = f"{RESOURCES}/namespaces/{seen.namespace}/resourceclaims/c/status"
            assert (await seen.api.patch(path, {"status": {"allocation": None, "reservedFor": None}})).code == 200


async def test_an_api_server_that_learns_to_serve_devices_and_forgets_them_is_noticed(tmp_path: Path):
    assets = assets_folder()
    assert assets is not None
    with ExitStack() as stack:
        plane = stack.enter_context(control_plane(assets, api_flags=[f"--runtime-config={GROUP}/v1=false"]))
        nats = stack.enter_context(nats_server())
        async with cluster_user(plane.kubeconfig_path, cleans_up=False) as seen:
            accounts = dict.fromkeys(SERVICES[:2], plane.kubeconfig_path)
            await run_services(stack, nats.address, accounts, tmp_path)
            await seen.add_nodes(1)
            await add_pods(seen)
            await waits_with(seen, nats.address, f"the API server does not serve {GROUP}/v1")
            await asyncio.to_thread(plane.kill_api_server)
            await asyncio.to_thread(plane.start_api_server, f"--runtime-config={GROUP}/v1=true")
        async with cluster_user(plane.kubeconfig_path, cleans_up=False) as again:
            again.api.namespace, again.nodes = seen.namespace, seen.nodes
            await publish(again)
            await again.all_bound(["plain", "claiming", "extended"], FOUND_SECONDS)
            await asyncio.to_thread(plane.kill_api_server)
            await asyncio.to_thread(plane.start_api_server, f"--runtime-config={GROUP}/v1=false")
        async with cluster_user(plane.kubeconfig_path, cleans_up=False) as after:
            after.api.namespace, after.nodes = seen.namespace, seen.nodes
            # The Lease may be lost meanwhile: the next leadership does not wait for devices either.
            sharing = {"resourceClaims": [{"name": "gpu", "resourceClaimName": "c"}]}
            await after.create([after.pod("later", cpu="10m"), after.pod("sharing", cpu="10m", spec=sharing)])
            await after.all_bound(["later"], FOUND_SECONDS)
            reason = f"the API server no longer serves {GROUP}/v1"

            async def told() -> bool:
                return reason in (await after.condition("sharing")).get("message", "")

            await eventually(told, "the pod to be told")


SERVICES = ("watcher", "binder", "scorer")


async def run_services(stack: ExitStack, nats: str, kubeconfigs: dict[str, Path], folder: Path) -> None:
    """Run them until the end of the stack, and wait until they are ready."""
    berth("bus", "apply", "--nats", nats)
    running: list = []
    stack.callback(stop, running)
    for name in SERVICES:
        access = ["--kubeconfig", str(kubeconfigs[name])] if name in kubeconfigs else []
        flags = ["--nats", nats, "--ready-file", str(folder / f"{name}.ready"), *access]
        running.append(spawn([sys.executable, "-m", f"berth_{name}", *flags], folder / f"{name}.log"))

    async def ready() -> bool:
        return all((folder / f"{name}.ready").exists() for name in SERVICES)

    await eventually(ready, "the services to be ready")


def role_of(name: str) -> dict:
    return next(each for each in yaml.safe_load_all(RIGHTS.read_text()) if each["metadata"]["name"] == name)


async def put_role(seen: ClusterUser, role: dict) -> None:
    answer = await seen.api.put(f"{ROLES}/{role['metadata']['name']}", role)
    assert answer.code == 200, answer.body


async def add_devices(seen: ClusterUser) -> None:
    await seen.add_nodes(1)
    await publish(seen)
    await add_pods(seen)


async def publish(seen: ClusterUser) -> None:
    """A class, a device for each of two pods, and the claim of one of them."""
    (node,) = seen.nodes
    device_class = {"metadata": {"name": seen.namespace}, "spec": {"extendedResourceName": resource_of(seen)}}
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    devices = [{"name": f"gpu-{number}"} for number in range(2)]
    spec = {"driver": "d.example.com", "nodeName": node, "pool": pool, "devices": devices}
    request = {"name": "r", "exactly": {"deviceClassName": seen.namespace}}
    for path, body in (
        ("deviceclasses", device_class),
        ("resourceslices", {"metadata": {"name": node}, "spec": spec}),
        (
            f"namespaces/{seen.namespace}/resourceclaims",
            {"metadata": {"name": "c"}, "spec": {"devices": {"requests": [request]}}},
        ),
    ):
        answer = await seen.api.post(f"{RESOURCES}/{path}", body)
        assert answer.code == 201, answer.body


async def add_pods(seen: ClusterUser) -> None:
    claiming = seen.pod("claiming", spec={"resourceClaims": [{"name": "gpu", "resourceClaimName": "c"}]})
    extended = seen.pod("extended")
    for amounts in ("requests", "limits"):
        extended["spec"]["containers"][0]["resources"].setdefault(amounts, {})[resource_of(seen)] = "1"
    await seen.create([claiming, extended, seen.pod("plain")])


def resource_of(seen: ClusterUser) -> str:
    return f"example.com/{seen.namespace}"


async def waits_with(seen: ClusterUser, nats: str, reason: str) -> None:
    """A pod without claims is bound, and the others are not; the one with a claim and `berth why` say why."""
    await seen.all_bound(["plain"])

    async def told() -> bool:
        return reason in (await seen.condition("claiming")).get("message", "")

    await eventually(told, "the pod to be told")
    assert reason in berth("why", f"{seen.namespace}/claiming", "--nats", nats)
    assert (await seen.placed()).keys() == {"plain"}


def berth(*arguments: str) -> str:
    command = [sys.executable, "-m", "berth_cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout


def log_of(folder: Path, service: str) -> list[str]:
    return (folder / f"{service}.log").read_text(errors="replace").splitlines()
