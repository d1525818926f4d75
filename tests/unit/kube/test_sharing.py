"""Equal parts of pods are kept once, and nothing else about them changes."""

from __future__ import annotations

import json

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from berth.api.kinds import POD
from berth.api.pod import Pod
from berth.api.trimming import trim
from berth.kube import listwatch
from berth.kube.listwatch import LARGEST, WORKLOADS, ObjectDecoder, SharedParts
from harness.builders.random_clusters import pods


def written(number: int, *, cpu: str = "100m", node: str = "", labels: dict | None = None, owner: str = "rs") -> bytes:
    volumes = [{"name": f"kube-api-access-{number}"}]
    container = {"name": "main", "image": "web:1", "resources": {"requests": {"cpu": cpu}}}
    spec = {"containers": [container], "volumes": volumes, "tolerations": [{"key": "a"}], "nodeName": node}
    metadata = {
        "name": f"web-{number}",
        "namespace": "default",
        "uid": f"uid-{number}",
        "labels": labels or {"app": "web"},
        "ownerReferences": [{"kind": "ReplicaSet", "name": "web", "uid": owner, "controller": True}],
    }
    return json.dumps({"metadata": metadata, "spec": spec, "status": {"phase": "Pending"}}).encode()


def decoded(*bodies: bytes) -> list[Pod]:
    decoder = ObjectDecoder(POD)
    pods = [decoder.one(body) for body in bodies]
    assert all(isinstance(pod, Pod) for pod in pods)
    return pods


def test_pods_that_differ_in_their_volume_and_node_share_everything_else():
    first, second = decoded(written(1), written(2, node="n1"))
    assert second.spec.containers is first.spec.containers
    assert second.spec.tolerations is first.spec.tolerations
    assert second.metadata.labels is first.metadata.labels
    assert second.metadata.owner_references is first.metadata.owner_references
    assert second.status is first.status
    assert (second.spec.node_name, second.spec.volumes[0].name) == ("n1", "kube-api-access-2")


def test_a_part_that_differs_is_the_pods_own():
    first, second = decoded(written(1), written(2, cpu="200m", labels={"app": "other"}))
    assert first.spec.containers[0].resources.requests == {"cpu": "100m"}
    assert second.spec.containers[0].resources.requests == {"cpu": "200m"}
    assert (first.metadata.labels, second.metadata.labels) == ({"app": "web"}, {"app": "other"})


def test_pods_without_an_owner_are_of_a_workload_when_their_labels_are_equal():
    bodies = [written(number, labels={"app": f"app-{number % 2}"}, owner="") for number in range(4)]
    pods = [msgspec.json.decode(body.replace(b"ownerReferences", b"others"), type=Pod) for body in bodies]
    shared = SharedParts()
    for pod in pods:
        shared.share(pod, 1000)
    assert pods[2].metadata.labels is pods[0].metadata.labels
    assert pods[3].metadata.labels is pods[1].metadata.labels
    assert pods[1].spec.containers is pods[0].spec.containers


def test_the_name_of_a_node_is_kept_once():
    pods = decoded(*(written(number, node=f"node-{number % 2}") for number in range(1, 6)))
    assert pods[3].spec.node_name == "node-0"
    assert pods[3].spec.node_name is pods[1].spec.node_name
    assert pods[4].spec.node_name is pods[2].spec.node_name


def test_names_of_nodes_that_are_remembered_are_bounded(monkeypatch):
    monkeypatch.setattr(listwatch, "NODES", 1)
    pods = decoded(*(written(number, node=f"node-{number % 2}") for number in range(1, 6)))
    assert pods[3].spec.node_name is pods[1].spec.node_name
    assert pods[4].spec.node_name is not pods[2].spec.node_name


def test_pods_of_another_workload_in_between_do_not_matter():
    first, _, third = decoded(written(1), written(2, cpu="200m", owner="another"), written(3))
    assert third.spec.containers is first.spec.containers


@given(some=st.lists(pods, min_size=2, max_size=8))
def test_a_pod_is_equal_to_what_was_read(some: list[Pod]):
    bodies = [msgspec.json.encode(pod) for pod in some]
    assert decoded(*bodies) == [trim(msgspec.json.decode(body, type=Pod)) for body in bodies]


def test_workloads_and_sizes_that_are_remembered_are_bounded():
    shared = SharedParts()
    for number in range(WORKLOADS + 10):
        body = written(number, owner=f"rs-{number}")
        shared.share(msgspec.json.decode(body, type=Pod), len(body))
    assert len(shared) == WORKLOADS
    body = written(1, labels={"app": "x" * LARGEST}, owner="of a large pod")
    large = msgspec.json.decode(body, type=Pod)
    shared.share(large, len(body))
    again = msgspec.json.decode(body, type=Pod)
    shared.share(again, len(body))
    assert again.metadata.labels is not large.metadata.labels
