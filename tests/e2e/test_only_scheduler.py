"""A cluster whose only scheduler is berth comes up from nothing: the overlay `only-scheduler` on a real API server.

There are no kubelets and no controllers: the test makes the pods that the Deployments would have, and runs as processes
those that a kubelet starts because they have its node's name.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from berth_sim.nodes import node_manifest
from harness.servers.control_plane import ControlPlane
from harness.worlds import manifests
from harness.worlds.cluster_user import ClusterUser, eventually, node_of
from harness.worlds.installation import Installation
from harness.worlds.manifests import Object, of_kind, overlay, pod_templates

pytestmark = [
    pytest.mark.requires("kubebuilder_assets", "kubectl", "nats-server"),
    pytest.mark.skipif(sys.platform != "linux", reason="only Linux has every address of 127.0.0.0/8"),
    pytest.mark.timeout(300),
]

READY_SECONDS = 90.0
PODS = "/api/v1/namespaces/berth/pods"
SERVERS = ("10.0.0.11", "10.0.0.12", "10.0.0.13")
NODES = ("control-plane-1", "control-plane-2", "control-plane-3", "worker-1", "worker-2")


def pods_of(objects: tuple[Object, ...]) -> Iterator[Object]:
    """The pods that the Deployments' controllers make."""
    replicas = {each["metadata"]["name"]: each["spec"]["replicas"] for each in of_kind(objects, "Deployment")}
    for owner, template in pod_templates(objects):
        name = owner.partition("/")[2]
        for number in range(replicas[name]):
            metadata = {**template["metadata"], "name": f"{name}-{number}", "namespace": "berth"}
            yield {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}


async def placed(seen: ClusterUser) -> dict[str, str]:
    answer = await seen.api.get(PODS)
    return {pod["metadata"]["name"]: node_of(pod) for pod in answer.body["items"]}


def is_on_the_first_node(deployment: Object) -> bool:
    return bool(deployment["spec"]["template"]["spec"].get("nodeName") == "control-plane-1")


async def test_what_has_a_node_of_its_own_binds_all_other_pods(
    own_control_plane: ControlPlane, cluster_outside: ClusterUser, tmp_path: Path
):
    objects = overlay("only-scheduler")
    await cluster_outside.create(node_manifest(name, cpu="8") for name in NODES)
    manifests.apply(own_control_plane, objects)
    for pod in pods_of(objects):
        answer = await cluster_outside.api.post(PODS, pod)
        assert answer.code == 201, answer.body
    dns = cluster_outside.pod("coredns", scheduler="default-scheduler", spec={"nodeSelector": {}})
    await cluster_outside.create([dns])

    before = await placed(cluster_outside)
    waiting = {name for name, node in before.items() if not node}
    assert waiting == {"berth-scorer-0", "berth-scorer-1", "berth-metrics-collector-0"}
    assert len(before) == len(waiting) + 12

    with Installation(objects, own_control_plane, tmp_path, SERVERS, is_on_the_first_node) as installed:
        await installed.start(cluster_outside.api)

        async def all_placed() -> bool:
            return all((await placed(cluster_outside)).values())

        await eventually(all_placed, "the other pods of berth to be bound", READY_SECONDS)
        await cluster_outside.all_bound(["coredns"], READY_SECONDS)
    after = await placed(cluster_outside)
    assert after["berth-scorer-0"] != after["berth-scorer-1"]
    assert {name: after[name] for name in before.keys() - waiting} == {
        name: before[name] for name in before.keys() - waiting
    }
    assert "may not" not in installed.logs()
