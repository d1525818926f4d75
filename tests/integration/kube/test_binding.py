"""A Binding is for one pod in one state, on an API server, real and simulated."""

import pytest

from berth.kube.writes import bind
from harness.plugins.fixtures_kube import Cluster

CONTAINERS = [{"name": "c", "image": "nginx"}]


async def made(cluster: Cluster, kind: str, body: dict) -> dict:
    return (await cluster.api.post(kind, body)).body["metadata"]


@pytest.mark.parametrize(
    ("uid", "version", "status"),
    [
        pytest.param("own", "own", 201, id="the pod as it is"),
        pytest.param("another", "own", 409, id="a namesake"),
        pytest.param("own", "another", 409, id="another state"),
    ],
)
async def test_binding_lands_on_the_pod_and_the_state_that_it_names(cluster, uid, version, status):
    namespace = cluster.api.namespace
    pods = f"/api/v1/namespaces/{namespace}/pods"
    spec = {"schedulerName": "berth", "containers": CONTAINERS}
    other = await made(cluster, pods, {"metadata": {"name": "other"}, "spec": spec})
    own = await made(cluster, pods, {"metadata": {"name": "web"}, "spec": spec})
    of = {"own": own, "another": other}
    answer = await bind(
        cluster.client,
        namespace=namespace,
        name="web",
        uid=of[uid]["uid"],
        resource_version=of[version]["resourceVersion"],
        node="n0",
    )
    assert answer.status == status
