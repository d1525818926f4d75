"""Every overlay of deploy/kubernetes as the real API server sees it."""

from __future__ import annotations

import json

import pytest

from harness.servers.control_plane import ControlPlane
from harness.worlds import manifests
from harness.worlds.cluster_user import ClusterUser
from harness.worlds.manifests import Object, overlay, overlays, pod_templates, secrets

pytestmark = pytest.mark.requires("kubectl", "kubebuilder_assets")

RESTRICTED = "restricted"


def namespaces_of(objects: tuple[Object, ...]) -> set[str]:
    return {each["metadata"]["namespace"] for each in objects if "namespace" in each["metadata"]}


async def add_namespace(seen: ClusterUser, name: str, **labels: str) -> None:
    body = {"metadata": {"name": name, "labels": {f"pod-security.kubernetes.io/{key}": labels[key] for key in labels}}}
    answer = await seen.api.post("/api/v1/namespaces", body)
    assert answer.code in {201, 409}, answer.body


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


async def test_a_field_that_does_not_exist_is_refused(own_control_plane: ControlPlane, cluster_outside: ClusterUser):
    """So that being accepted says something."""
    await add_namespace(cluster_outside, "berth")
    watcher = json.loads(json.dumps(manifests.named(overlay("minimal"), "Deployment", "berth-watcher")))
    watcher["spec"]["template"]["spec"]["priorityClass"] = "system-cluster-critical"
    with pytest.raises(AssertionError, match="priorityClass"):
        manifests.apply(own_control_plane, [watcher], "--dry-run=server")


@pytest.mark.parametrize("name", overlays())
async def test_every_pod_satisfies_the_restricted_profile(name: str, cluster_outside: ClusterUser):
    await add_namespace(cluster_outside, RESTRICTED, enforce="restricted")
    for owner, template in pod_templates(overlay(name)):
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "tried"}, "spec": template["spec"]}
        answer = await cluster_outside.api.call(
            "POST", f"/api/v1/namespaces/{RESTRICTED}/pods", pod, query={"dryRun": "All"}
        )
        assert answer.code == 201, f"{owner}: {answer.body['message']}"
