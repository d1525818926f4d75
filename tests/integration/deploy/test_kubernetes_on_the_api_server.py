"""Every overlay of deploy/kubernetes as the real API server sees it."""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
from collections.abc import Iterator
from itertools import product

import pytest

from harness.servers.control_plane import ControlPlane
from harness.worlds import manifests
from harness.worlds.cluster_user import ClusterUser
from harness.worlds.manifests import RIGHTS, Object, decoded, of_kind, overlay, overlays, pod_templates, secrets

pytestmark = pytest.mark.requires("kubectl", "kubebuilder_assets")

RESTRICTED = "restricted"
REFUSED = re.compile(r"(?:\"restricted:latest\": |, )([a-zA-Z !=]+) \(")
"""What a message of the Pod Security admission names, one after the other."""


def namespaces_of(objects: tuple[Object, ...]) -> set[str]:
    return {each["metadata"]["namespace"] for each in objects if "namespace" in each["metadata"]}


async def add_namespace(seen: ClusterUser, name: str, **labels: str) -> None:
    body = {"metadata": {"name": name, "labels": {f"pod-security.kubernetes.io/{key}": labels[key] for key in labels}}}
    answer = await seen.api.post("/api/v1/namespaces", body)
    assert answer.code in {201, 409}, answer.body


@pytest.fixture(scope="module", autouse=True)
def custom_kinds(own_control_plane: ControlPlane) -> None:
    manifests.add_custom_kinds(own_control_plane)


@pytest.mark.parametrize("name", overlays())
async def test_every_object_is_accepted(name: str, own_control_plane: ControlPlane, cluster_outside: ClusterUser):
    """A dry run needs the namespaces to exist."""
    for namespace in namespaces_of(overlay(name)):
        await add_namespace(cluster_outside, namespace)
    manifests.apply(own_control_plane, overlay(name), "--dry-run=server", "--force-conflicts")


async def test_the_secrets_of_the_documented_command_are_accepted(
    own_control_plane: ControlPlane, cluster_outside: ClusterUser
):
    await add_namespace(cluster_outside, "berth")
    manifests.apply(own_control_plane, secrets(), "--dry-run=server")


def add_the_user(control_plane: ControlPlane) -> None:
    page = (manifests.ROOT / "docs/operating.md").read_text(encoding="utf-8")
    (commands,) = re.findall(r"```sh\n(user=facts.*?)```", page, re.DOTALL)
    script = ["sh", "-eu", "-c", commands.replace("-n berth", "-n upgraded")]
    environment = {**os.environ, "KUBECONFIG": str(control_plane.kubeconfig_path)}
    subprocess.run(script, env=environment, check=True, capture_output=True, timeout=60)


async def test_a_user_that_a_version_adds_gets_a_password_by_the_commands_of_the_page(
    own_control_plane: ControlPlane, cluster_outside: ClusterUser
):
    """The others keep theirs."""
    await add_namespace(cluster_outside, "upgraded")
    made = {each["metadata"]["name"]: each for each in json.loads(json.dumps(secrets("upgraded")))}
    del made["berth-nats-facts"]
    before = decoded(made["berth-nats-server"])
    passwords = "".join(line for line in before["passwords.conf"].splitlines(True) if not line.startswith("facts_"))
    made["berth-nats-server"]["data"]["passwords.conf"] = base64.b64encode(passwords.encode()).decode()
    manifests.apply(own_control_plane, list(made.values()))
    add_the_user(own_control_plane)
    found = (await cluster_outside.api.get("/api/v1/namespaces/upgraded/secrets")).body["items"]
    after = {each["metadata"]["name"]: decoded(each) for each in found}
    password = after["berth-nats-facts"].pop("password")
    assert len(password) == 48
    assert after["berth-nats-facts"] == {"ca.crt": before["ca.crt"].rstrip()}
    assert after["berth-nats-server"] == {**before, "passwords.conf": f'{passwords}facts_PASSWORD: "{password}"\n'}


async def test_a_field_that_does_not_exist_is_refused(own_control_plane: ControlPlane, cluster_outside: ClusterUser):
    """So that being accepted says something."""
    await add_namespace(cluster_outside, "berth")
    watcher = json.loads(json.dumps(manifests.named(overlay("minimal"), "Deployment", "berth-watcher")))
    watcher["spec"]["template"]["spec"]["priorityClass"] = "system-cluster-critical"
    with pytest.raises(AssertionError, match="priorityClass"):
        manifests.apply(own_control_plane, [watcher], "--dry-run=server")


@pytest.mark.parametrize("name", overlays())
async def test_every_pod_satisfies_the_restricted_profile(name: str, cluster_outside: ClusterUser):
    """Those that run before there is a pod network use the node's, and static pods its files; nothing else."""
    await add_namespace(cluster_outside, RESTRICTED, enforce="restricted")
    for owner, template in pod_templates(overlay(name)):
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "tried"}, "spec": template["spec"]}
        answer = await cluster_outside.api.call(
            "POST", f"/api/v1/namespaces/{RESTRICTED}/pods", pod, query={"dryRun": "All"}
        )
        refused = set(REFUSED.findall(answer.body["message"])) if answer.code == 403 else set()
        assert answer.code == 201 or refused, f"{owner}: {answer.body['message']}"
        has_its_node = name in ("only-scheduler", "static-pod")
        on_its_node = {"host namespaces", "probe or lifecycle host"} if has_its_node else set()
        files = {"hostPath volumes", "restricted volume types"} if name == "static-pod" else set()
        assert refused <= on_its_node | files, f"{owner}: {answer.body['message']}"


async def test_the_clusters_own_roles_allow_what_those_of_the_page_allow(
    own_control_plane: ControlPlane, cluster_outside: ClusterUser
):
    """The overlay `system` has no ClusterRoles of its own."""
    accounts_and_roles = of_kind(
        overlay("system"), "ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding"
    )
    assert of_kind(accounts_and_roles, "ClusterRole") == []
    manifests.apply(own_control_plane, accounts_and_roles)
    for account, role in (
        ("berth-watcher", "berth-reads"),
        ("berth-binder", "berth-reads"),
        ("berth-binder", "berth-commits"),
        ("berth-watcher", "berth-leases"),
        ("berth-binder", "berth-leases"),
        ("berth-watcher", "berth-watcher-leads"),
        ("berth-binder", "berth-binder-leads"),
    ):
        for request in requests(role):
            who = f"system:serviceaccount:kube-system:{account}"
            if request["resource"] == "podgroups":  # of a gate that is off, and of a CRD
                continue
            assert await is_allowed(cluster_outside, who, request), f"{account}: {request}"
    written = {"namespace": "default", "verb": "create", "resource": "pods", "subresource": "binding"}
    assert not await is_allowed(cluster_outside, "system:serviceaccount:kube-system:berth-scorer", written)


def requests(role: str) -> Iterator[dict[str, str]]:
    """Every request that a role of the page allows, in kube-system where it is bound to a namespace."""
    found = next(each for each in RIGHTS if each["kind"].endswith("Role") and each["metadata"]["name"] == role)
    place = {"namespace": "kube-system"} if found["kind"] == "Role" else {}
    for rule in found["rules"]:
        for group, resource, verb, name in product(
            rule["apiGroups"], rule["resources"], rule["verbs"], rule.get("resourceNames", [""])
        ):
            kind, _, subresource = resource.partition("/")
            asked = {"group": group, "resource": kind, "subresource": subresource, "verb": verb, "name": name}
            yield {**place, **asked}


async def is_allowed(seen: ClusterUser, user: str, request: dict[str, str]) -> bool:
    review = {"spec": {"user": user, "resourceAttributes": request}}
    answer = await seen.api.post("/apis/authorization.k8s.io/v1/subjectaccessreviews", review)
    assert answer.code == 201, answer.body
    return bool(answer.body["status"]["allowed"])
