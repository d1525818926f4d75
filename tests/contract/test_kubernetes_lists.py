"""Contract of the API server, real and simulated: LIST, pages and selectors."""

from collections.abc import Sequence

import pytest

from harness.worlds.kubernetes_api import KubernetesApi


async def test_list_has_its_revision(kubernetes_api: KubernetesApi):
    created = await kubernetes_api.add_pod("web")
    listed = await kubernetes_api.get(kubernetes_api.pods)
    assert (listed.code, listed.body["kind"], listed.body["apiVersion"]) == (200, "PodList", "v1")
    assert int(listed.version) >= int(created.version)
    assert "kind" not in listed.body["items"][0]
    assert listed.body["items"][0]["metadata"] == created.body["metadata"]


async def test_list_of_nothing_is_an_empty_list(kubernetes_api: KubernetesApi):
    listed = await kubernetes_api.get(kubernetes_api.pods)
    assert listed.body["items"] == []
    assert int(listed.version) > 0


async def test_list_over_all_namespaces_has_each(kubernetes_api: KubernetesApi):
    await kubernetes_api.add_pod("web")
    listed = await kubernetes_api.get("/api/v1/pods")
    assert kubernetes_api.namespace in {item["metadata"]["namespace"] for item in listed.body["items"]}


async def test_pages_show_the_state_of_the_first_one(kubernetes_api: KubernetesApi):
    path = kubernetes_api.pods
    for name in "abcde":
        await kubernetes_api.add_pod(name)
    first = await kubernetes_api.get(path, limit=2)
    assert (first.names, first.body["metadata"]["remainingItemCount"]) == (["a", "b"], 3)
    await kubernetes_api.delete(f"{path}/d")
    await kubernetes_api.add_pod("cc")
    second = await kubernetes_api.get(path, limit=2, **{"continue": first.body["metadata"]["continue"]})
    assert (second.names, second.version) == (["c", "d"], first.version)
    assert second.body["metadata"]["remainingItemCount"] == 1
    third = await kubernetes_api.get(path, limit=2, **{"continue": second.body["metadata"]["continue"]})
    assert (third.names, third.version) == (["e"], first.version)
    assert "continue" not in third.body["metadata"]
    assert "remainingItemCount" not in third.body["metadata"]


async def test_pages_continue_across_namespaces(kubernetes_api: KubernetesApi):
    for name in "abc":
        await kubernetes_api.add_pod(name)
    seen, token = [], ""
    while True:
        page = await kubernetes_api.get("/api/v1/pods", limit=1, **{"continue": token} if token else {})
        seen += [(item["metadata"]["namespace"], item["metadata"]["name"]) for item in page.body["items"]]
        token = page.body["metadata"].get("continue", "")
        if not token:
            break
    assert [name for namespace, name in seen if namespace == kubernetes_api.namespace] == ["a", "b", "c"]
    assert len(seen) == len(set(seen))


async def test_pages_of_a_selection_have_no_remaining_count(kubernetes_api: KubernetesApi):
    for name in "abc":
        await kubernetes_api.add_pod(name, labels={"tier": "front"})
    page = await kubernetes_api.get(kubernetes_api.pods, limit=2, labelSelector="tier=front")
    assert page.names == ["a", "b"]
    assert page.body["metadata"]["continue"]
    assert "remainingItemCount" not in page.body["metadata"]


async def test_list_from_revision_zero_ignores_the_limit(kubernetes_api: KubernetesApi):
    for name in "abc":
        await kubernetes_api.add_pod(name)
    listed = await kubernetes_api.get(kubernetes_api.pods, limit=2, resourceVersion=0)
    assert "continue" not in listed.body["metadata"]


async def test_list_at_an_exact_revision_shows_the_past(kubernetes_api: KubernetesApi):
    created = await kubernetes_api.add_pod("a")
    await kubernetes_api.add_pod("b")
    query = {"resourceVersion": created.version, "resourceVersionMatch": "Exact", "limit": 10}
    past = await kubernetes_api.get(kubernetes_api.pods, **query)
    assert (past.names, past.version) == (["a"], created.version)


async def test_list_not_older_than_a_revision_shows_at_least_that(kubernetes_api: KubernetesApi):
    created = await kubernetes_api.add_pod("a")
    query = {"resourceVersion": created.version, "resourceVersionMatch": "NotOlderThan"}
    assert (await kubernetes_api.get(kubernetes_api.pods, **query)).names == ["a"]


async def test_list_at_a_future_revision_times_out(kubernetes_api: KubernetesApi):
    refused = await kubernetes_api.get(kubernetes_api.pods, resourceVersion=999_999_999)
    assert (refused.code, refused.body["reason"]) == (504, "Timeout")
    assert refused.body["details"]["causes"][0]["reason"] == "ResourceVersionTooLarge"


async def test_page_after_a_compaction_is_expired_with_a_new_token(kubernetes_api: KubernetesApi):
    for name in "abc":
        await add_event(kubernetes_api, name)
    first = await kubernetes_api.get(kubernetes_api.events, limit=1)
    await add_event(kubernetes_api, "d")
    await kubernetes_api.compact()
    expired = await kubernetes_api.get(
        kubernetes_api.events, limit=1, **{"continue": first.body["metadata"]["continue"]}
    )
    assert (expired.code, expired.body["code"], expired.body["reason"]) == (410, 410, "Expired")
    rest = await kubernetes_api.get(kubernetes_api.events, **{"continue": expired.body["metadata"]["continue"]})
    assert rest.names == ["b", "c", "d"]


async def test_list_at_an_exact_compacted_revision_is_expired(kubernetes_api: KubernetesApi):
    await add_event(kubernetes_api, "a")
    old = await kubernetes_api.get(kubernetes_api.events)
    await add_event(kubernetes_api, "b")
    await kubernetes_api.compact()
    query = {"resourceVersion": old.version, "resourceVersionMatch": "Exact"}
    expired = await kubernetes_api.get(kubernetes_api.events, **query)
    assert (expired.code, expired.body["reason"]) == (410, "Expired")


async def add_event(kubernetes_api: KubernetesApi, name: str) -> None:
    # Of events the real server keeps no watch cache, so that etcd's compaction shows at once.
    subject = {"kind": "Pod", "namespace": kubernetes_api.namespace, "name": "web"}
    body = {"metadata": {"name": name}, "involvedObject": subject, "reason": "Scheduled", "type": "Normal"}
    assert (await kubernetes_api.post(kubernetes_api.events, body)).code == 201


@pytest.mark.parametrize(
    "query",
    [
        pytest.param({"limit": "many"}, id="limit"),
        pytest.param({"resourceVersion": "new"}, id="resourceVersion"),
        pytest.param({"continue": "nonsense"}, id="continue"),
        pytest.param({"fieldSelector": "spec.colour=red"}, id="field"),
        pytest.param({"labelSelector": "a in b"}, id="label"),
    ],
)
async def test_invalid_query_is_a_bad_request(kubernetes_api: KubernetesApi, query: dict):
    refused = await kubernetes_api.get(kubernetes_api.pods, **query)
    assert (refused.code, refused.body["reason"]) == (400, "BadRequest")


async def test_match_without_a_revision_is_invalid(kubernetes_api: KubernetesApi):
    refused = await kubernetes_api.get(kubernetes_api.pods, resourceVersionMatch="Exact")
    assert (refused.code, refused.body["reason"]) == (422, "Invalid")


SELECTIONS = [
    pytest.param({"labelSelector": "tier=front"}, "ab", id="equal"),
    pytest.param({"labelSelector": "tier==front"}, "ab", id="double equal"),
    pytest.param({"labelSelector": "tier!=front"}, "cd", id="not equal, also without the label"),
    pytest.param({"labelSelector": "tier in (front, back)"}, "abc", id="in"),
    pytest.param({"labelSelector": "tier notin (front)"}, "cd", id="not in, also without the label"),
    pytest.param({"labelSelector": "tier"}, "abc", id="exists"),
    pytest.param({"labelSelector": "!tier"}, "d", id="does not exist"),
    pytest.param({"labelSelector": "tier in (front,back),track!=canary"}, "ac", id="two requirements"),
    pytest.param({"labelSelector": "tier="}, "", id="empty value"),
    pytest.param({"fieldSelector": "metadata.name=a"}, "a", id="name"),
    pytest.param({"fieldSelector": "metadata.name!=a"}, "bcd", id="not the name"),
    pytest.param({"fieldSelector": "spec.nodeName="}, "abc", id="waiting"),
    pytest.param({"fieldSelector": "spec.nodeName=node-1"}, "d", id="on a node"),
    pytest.param({"fieldSelector": "spec.nodeName!="}, "d", id="bound"),
    pytest.param({"fieldSelector": "spec.schedulerName=berth"}, ("a", "b", "d"), id="ours"),
    pytest.param({"fieldSelector": "status.phase=Pending,spec.schedulerName!=berth"}, "c", id="two fields"),
    pytest.param({"fieldSelector": "status.phase!=Pending"}, "", id="phase"),
    pytest.param({"fieldSelector": "spec.nodeName=", "labelSelector": "track"}, "b", id="field and label"),
]


@pytest.mark.parametrize(("query", "names"), SELECTIONS)
async def test_selectors_choose_objects(kubernetes_api: KubernetesApi, query: dict, names: Sequence[str]):
    await kubernetes_api.add_pod("a", labels={"tier": "front"})
    await kubernetes_api.add_pod("b", labels={"tier": "front", "track": "canary"})
    await kubernetes_api.add_pod("c", labels={"tier": "back"}, schedulerName="other")
    await kubernetes_api.add_pod("d")
    await kubernetes_api.bind("d", "node-1")
    assert (await kubernetes_api.get(kubernetes_api.pods, **query)).names == list(names)


async def test_namespace_is_a_selectable_field(kubernetes_api: KubernetesApi):
    await kubernetes_api.add_pod("web")
    selected = await kubernetes_api.get("/api/v1/pods", fieldSelector=f"metadata.namespace={kubernetes_api.namespace}")
    assert selected.names == ["web"]


async def test_nodes_are_selected_by_whether_they_are_cordoned(kubernetes_api: KubernetesApi):
    name = await kubernetes_api.add_node()
    open_ones = {"fieldSelector": "spec.unschedulable=false"}
    assert name in (await kubernetes_api.get("/api/v1/nodes", **open_ones)).names
    await kubernetes_api.patch(f"/api/v1/nodes/{name}", {"spec": {"unschedulable": True}})
    assert name not in (await kubernetes_api.get("/api/v1/nodes", **open_ones)).names
