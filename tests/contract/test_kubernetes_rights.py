"""Contract of the API server, real and simulated: the message about a missing right."""

import pytest

from harness.worlds.kubernetes_api import KubernetesApi

MISSING_RIGHTS = [
    pytest.param(
        "GET",
        "/api/v1/nodes",
        'nodes is forbidden: User "nobody" cannot list resource "nodes" in API group "" at the cluster scope',
        {"kind": "nodes"},
        id="list of nodes",
    ),
    pytest.param(
        "POST",
        "/api/v1/namespaces/default/pods/web/binding",
        'pods "web" is forbidden: User "nobody" cannot create resource "pods/binding" in API group "" in the '
        'namespace "default"',
        {"name": "web", "kind": "pods"},
        id="binding",
    ),
    pytest.param(
        "PUT",
        "/apis/coordination.k8s.io/v1/namespaces/berth/leases/berth-binder",
        'leases.coordination.k8s.io "berth-binder" is forbidden: User "nobody" cannot update resource "leases" in API '
        'group "coordination.k8s.io" in the namespace "berth"',
        {"name": "berth-binder", "group": "coordination.k8s.io", "kind": "leases"},
        id="lease",
    ),
]


@pytest.mark.parametrize(("method", "path", "message", "details"), MISSING_RIGHTS)
async def test_missing_right_names_user_verb_and_resource(
    rightless_api: KubernetesApi, method: str, path: str, message: str, details: dict
):
    refused = await rightless_api.call(method, path, {} if method != "GET" else None)
    assert (refused.code, refused.body["reason"]) == (403, "Forbidden")
    assert refused.body["message"] == message
    assert refused.body["details"] == details


async def test_missing_right_to_watch_is_an_http_status(rightless_api: KubernetesApi):
    refused = await rightless_api.get("/api/v1/pods", watch="true")
    assert (refused.code, refused.body["details"]) == (403, {"kind": "pods"})
    assert 'cannot watch resource "pods"' in refused.body["message"]
