"""Contract of the API server, real and simulated: WATCH, bookmarks and expired revisions."""

import pytest

from harness.worlds.kubernetes_api import STRATEGIC_PATCH, KubernetesApi


async def test_watch_from_a_list_shows_later_changes(kubernetes_api: KubernetesApi):
    await kubernetes_api.add_pod("before")
    listed = await kubernetes_api.get(kubernetes_api.pods)
    async with kubernetes_api.watch(kubernetes_api.pods, resourceVersion=listed.version) as events:
        await kubernetes_api.add_pod("web")
        await kubernetes_api.patch(f"{kubernetes_api.pods}/web", {"metadata": {"labels": {"a": "b"}}})
        assert await events.names(2) == [("ADDED", "web"), ("MODIFIED", "web")]


@pytest.mark.parametrize("value", ["1", "true", "True"])
async def test_watch_is_switched_on_by_any_true_value(kubernetes_api: KubernetesApi, value: str):
    await kubernetes_api.add_pod("web")
    async with kubernetes_api.watch(kubernetes_api.pods, watch=value) as events:
        assert await events.names(1) == [("ADDED", "web")]


async def test_watch_switched_off_is_a_list(kubernetes_api: KubernetesApi):
    for value in ("0", "false", "False"):
        assert (await kubernetes_api.get(kubernetes_api.pods, watch=value)).body["kind"] == "PodList"


async def test_watch_shows_whole_objects_with_their_kind(kubernetes_api: KubernetesApi):
    listed = await kubernetes_api.get(kubernetes_api.pods)
    async with kubernetes_api.watch(kubernetes_api.pods, resourceVersion=listed.version) as events:
        created = await kubernetes_api.add_pod("web")
        assert await events.next() == {"type": "ADDED", "object": created.body}


async def test_watch_resumes_after_the_last_revision_seen(kubernetes_api: KubernetesApi):
    first = await kubernetes_api.add_pod("a")
    await kubernetes_api.add_pod("b")
    await kubernetes_api.add_pod("c")
    async with kubernetes_api.watch(kubernetes_api.pods, resourceVersion=first.version) as events:
        assert await events.names(2) == [("ADDED", "b"), ("ADDED", "c")]


async def test_watch_without_a_revision_begins_with_existing_objects(kubernetes_api: KubernetesApi):
    await kubernetes_api.add_pod("a")
    for query in ({}, {"resourceVersion": "0"}):
        async with kubernetes_api.watch(kubernetes_api.pods, **query) as events:
            assert await events.names(1) == [("ADDED", "a")]


async def test_watch_of_one_object_by_its_name(kubernetes_api: KubernetesApi):
    await kubernetes_api.add_pod("a")
    await kubernetes_api.add_pod("b")
    async with kubernetes_api.watch(kubernetes_api.pods, fieldSelector="metadata.name=b") as events:
        assert await events.names(1) == [("ADDED", "b")]


async def test_pod_that_gets_its_node_leaves_the_watch_of_waiting_ones(kubernetes_api: KubernetesApi):
    listed = await kubernetes_api.get(kubernetes_api.pods)
    query = {"resourceVersion": listed.version, "fieldSelector": "spec.nodeName="}
    async with kubernetes_api.watch(kubernetes_api.pods, **query) as events:
        await kubernetes_api.add_pod("web")
        await kubernetes_api.bind("web", "node-1")
        bound = await kubernetes_api.get(f"{kubernetes_api.pods}/web")
        assert (await events.next())["type"] == "ADDED"
        left = await events.next()
    assert left["type"] == "DELETED"
    assert "nodeName" not in left["object"]["spec"]
    assert left["object"]["metadata"]["resourceVersion"] == bound.version


async def test_pod_that_gets_its_node_enters_the_watch_of_that_node(kubernetes_api: KubernetesApi):
    listed = await kubernetes_api.get(kubernetes_api.pods)
    query = {"resourceVersion": listed.version, "fieldSelector": "spec.nodeName=node-1"}
    async with kubernetes_api.watch(kubernetes_api.pods, **query) as events:
        await kubernetes_api.add_pod("web")
        await kubernetes_api.bind("web", "node-1")
        entered = await events.next()
    assert (entered["type"], entered["object"]["spec"]["nodeName"]) == ("ADDED", "node-1")


async def test_relabelled_object_enters_and_leaves_a_watch_by_label(kubernetes_api: KubernetesApi):
    await kubernetes_api.add_pod("web")
    listed = await kubernetes_api.get(kubernetes_api.pods)
    path = f"{kubernetes_api.pods}/web"
    query = {"resourceVersion": listed.version, "labelSelector": "tier in (front)"}
    async with kubernetes_api.watch(kubernetes_api.pods, **query) as events:
        for tier in ("front", "back", "front"):
            await kubernetes_api.patch(path, {"metadata": {"labels": {"tier": tier}}})
        await kubernetes_api.delete(path)
        seen = [(await events.next())["type"] for _ in range(3)]
    assert seen == ["ADDED", "DELETED", "ADDED"]


async def test_deleted_object_has_the_revision_of_its_deletion(kubernetes_api: KubernetesApi):
    created = await kubernetes_api.add_pod("web")
    async with kubernetes_api.watch(kubernetes_api.pods, resourceVersion=created.version) as events:
        await kubernetes_api.delete(f"{kubernetes_api.pods}/web")
        marked, gone = await events.next(), await events.next()
    assert (marked["type"], gone["type"]) == ("MODIFIED", "DELETED")
    assert marked["object"]["metadata"]["deletionGracePeriodSeconds"] == 0
    assert int(gone["object"]["metadata"]["resourceVersion"]) > int(marked["object"]["metadata"]["resourceVersion"])


async def test_patch_that_changes_nothing_is_no_event(kubernetes_api: KubernetesApi):
    condition = {"type": "berth/fence", "status": "True", "message": "1"}
    patch = {"status": {"conditions": [condition]}}
    await kubernetes_api.add_pod("web")
    path = f"{kubernetes_api.pods}/web/status"
    first = await kubernetes_api.patch(path, patch, STRATEGIC_PATCH)
    async with kubernetes_api.watch(kubernetes_api.pods, resourceVersion=first.version) as events:
        await kubernetes_api.patch(path, patch, STRATEGIC_PATCH)
        await kubernetes_api.add_pod("next")
        assert await events.names(1) == [("ADDED", "next")]


async def test_watch_ends_by_itself_after_its_timeout(kubernetes_api: KubernetesApi):
    async with kubernetes_api.watch(kubernetes_api.pods, timeoutSeconds=1) as events:
        assert await events.to_end() == []


async def test_bookmark_comes_shortly_before_a_watch_ends(kubernetes_api: KubernetesApi):
    listed = await kubernetes_api.get("/api/v1/nodes")
    query = {"resourceVersion": listed.version, "allowWatchBookmarks": "true", "timeoutSeconds": 4}
    async with kubernetes_api.watch("/api/v1/nodes", **query) as events:
        node = await kubernetes_api.add_node()
        added, *bookmarks = await events.to_end()
    assert (added["type"], added["object"]["metadata"]["name"]) == ("ADDED", node)
    assert {event["type"] for event in bookmarks} == {"BOOKMARK"}
    assert bookmarks[-1]["object"]["kind"] == "Node"
    version = int(added["object"]["metadata"]["resourceVersion"])
    assert int(bookmarks[-1]["object"]["metadata"]["resourceVersion"]) >= version


async def test_bookmark_of_a_quiet_selection_moves_on_with_its_kind(kubernetes_api: KubernetesApi):
    listed = await kubernetes_api.get(kubernetes_api.pods)
    query = {"resourceVersion": listed.version, "allowWatchBookmarks": "true", "timeoutSeconds": 4}
    async with kubernetes_api.watch(kubernetes_api.pods, labelSelector="none", **query) as events:
        created = await kubernetes_api.add_pod("web")
        bookmark = await events.next()
    assert bookmark["type"] == "BOOKMARK"
    assert int(bookmark["object"]["metadata"]["resourceVersion"]) >= int(created.version)
    assert bookmark["object"]["spec"] == {"containers": None}


async def test_watch_list_marks_the_end_of_existing_objects(kubernetes_api: KubernetesApi):
    await kubernetes_api.add_pod("web")
    query = {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan", "allowWatchBookmarks": "true"}
    async with kubernetes_api.watch(kubernetes_api.pods, **query) as events:
        added, end = await events.next(), await events.next()
    assert (added["type"], end["type"]) == ("ADDED", "BOOKMARK")
    assert end["object"]["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}


async def test_watch_from_a_compacted_revision_is_an_error_event(kubernetes_api: KubernetesApi):
    subject = {"kind": "Pod", "namespace": kubernetes_api.namespace, "name": "web"}
    versions = []
    for name in ("a", "b"):
        body = {"metadata": {"name": name}, "involvedObject": subject, "reason": "Scheduled", "type": "Normal"}
        versions.append((await kubernetes_api.post(kubernetes_api.events, body)).version)
    await kubernetes_api.compact()
    async with kubernetes_api.watch(kubernetes_api.events, resourceVersion=int(versions[0]) - 1) as events:
        error = await events.next()
        assert await events.to_end() == []
    assert error["type"] == "ERROR"
    status = error["object"]
    assert (status["kind"], status["status"], status["code"], status["reason"]) == ("Status", "Failure", 410, "Expired")
