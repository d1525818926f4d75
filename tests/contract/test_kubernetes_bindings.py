"""Contract of the API server, real and simulated: Binding and delete."""

from harness.worlds.kubernetes_api import MERGE_PATCH, STRATEGIC_PATCH, KubernetesApi

ZONE, REGION = "topology.kubernetes.io/zone", "topology.kubernetes.io/region"


def conditions_of(pod: dict) -> dict[str, str]:
    return {entry["type"]: entry["status"] for entry in pod["status"].get("conditions", [])}


async def test_binding_puts_the_pod_on_the_node(kubernetes_api: KubernetesApi):
    node = await kubernetes_api.add_node()
    created = await kubernetes_api.add_pod("web")
    answer = await kubernetes_api.bind("web", node)
    assert answer.code == 201
    assert answer.body == {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}
    bound = await kubernetes_api.get(f"{kubernetes_api.pods}/web")
    assert bound.body["spec"]["nodeName"] == node
    assert conditions_of(bound.body) == {"PodScheduled": "True"}
    assert int(bound.version) > int(created.version)
    assert bound.body["metadata"]["generation"] == created.body["metadata"]["generation"]


async def test_binding_to_a_missing_node_is_accepted(kubernetes_api: KubernetesApi):
    await kubernetes_api.add_pod("web")
    assert (await kubernetes_api.bind("web", "nowhere")).code == 201
    assert (await kubernetes_api.get(f"{kubernetes_api.pods}/web")).body["spec"]["nodeName"] == "nowhere"


async def test_binding_of_a_bound_pod_is_a_conflict_also_to_the_same_node(kubernetes_api: KubernetesApi):
    await kubernetes_api.add_pod("web")
    await kubernetes_api.bind("web", "first")
    for node in ("first", "second"):
        refused = await kubernetes_api.bind("web", node)
        assert (refused.code, refused.body["reason"]) == (409, "Conflict")
        assert refused.body["message"] == (
            'Operation cannot be fulfilled on pods/binding "web": pod web is already assigned to node "first"'
        )


async def test_binding_of_a_missing_pod_is_not_found(kubernetes_api: KubernetesApi):
    refused = await kubernetes_api.bind("none", "node")
    assert (refused.code, refused.body["message"]) == (404, 'pods "none" not found')


async def test_binding_of_a_terminating_pod_is_a_conflict(kubernetes_api: KubernetesApi):
    await kubernetes_api.add_pod("web")
    await kubernetes_api.patch(f"{kubernetes_api.pods}/web", {"metadata": {"finalizers": ["example.com/hold"]}})
    await kubernetes_api.delete(f"{kubernetes_api.pods}/web")
    refused = await kubernetes_api.bind("web", "node")
    assert (refused.code, refused.body["reason"]) == (409, "Conflict")
    assert refused.body["message"].endswith("pod web is being deleted, cannot be assigned to a host")


async def test_binding_of_a_gated_pod_is_a_conflict(kubernetes_api: KubernetesApi):
    await kubernetes_api.add_pod("web", schedulingGates=[{"name": "example.com/wait"}])
    refused = await kubernetes_api.bind("web", "node")
    assert refused.code == 409
    assert refused.body["message"].endswith("pod web has non-empty .spec.schedulingGates")


async def test_binding_checks_the_uid_of_the_pod(kubernetes_api: KubernetesApi):
    created = await kubernetes_api.add_pod("web")
    refused = await kubernetes_api.bind("web", "node", uid="00000000-0000-0000-0000-000000000000")
    assert (refused.code, refused.body["reason"]) == (409, "Conflict")
    assert "UID in precondition: 00000000-0000-0000-0000-000000000000" in refused.body["message"]
    assert (await kubernetes_api.bind("web", "node", uid=created.body["metadata"]["uid"])).code == 201


async def test_binding_checks_the_resource_version_of_the_pod(kubernetes_api: KubernetesApi):
    created = await kubernetes_api.add_pod("web")
    fence = {"status": {"conditions": [{"type": "berth/fence", "status": "True", "message": "8"}]}}
    fenced = await kubernetes_api.patch(f"{kubernetes_api.pods}/web/status", fence, STRATEGIC_PATCH)
    refused = await kubernetes_api.bind("web", "node", resourceVersion=created.version)
    assert (refused.code, refused.body["reason"]) == (409, "Conflict")
    assert f"ResourceVersion in precondition: {created.version}" in refused.body["message"]
    assert (await kubernetes_api.bind("web", "node", resourceVersion=fenced.version)).code == 201


async def test_binding_copies_zone_and_region_of_the_node(kubernetes_api: KubernetesApi):
    node = await kubernetes_api.add_node({ZONE: "zone-a", REGION: "region-1", "rack": "r7"})
    await kubernetes_api.add_pod("web", labels={"app": "web"})
    await kubernetes_api.bind("web", node)
    labels = (await kubernetes_api.get(f"{kubernetes_api.pods}/web")).body["metadata"]["labels"]
    assert labels == {"app": "web", ZONE: "zone-a", REGION: "region-1"}


async def test_binding_copies_its_annotations_to_the_pod(kubernetes_api: KubernetesApi):
    await kubernetes_api.add_pod("web")
    await kubernetes_api.bind("web", "node", annotations={"example.com/by": "berth"})
    metadata = (await kubernetes_api.get(f"{kubernetes_api.pods}/web")).body["metadata"]
    assert metadata["annotations"] == {"example.com/by": "berth"}


async def test_binding_ends_a_nomination_and_the_waiting_condition(kubernetes_api: KubernetesApi):
    await kubernetes_api.add_pod("web")
    waiting = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    status = {"status": {"nominatedNodeName": "other", "conditions": [waiting]}}
    await kubernetes_api.patch(f"{kubernetes_api.pods}/web/status", status, MERGE_PATCH)
    await kubernetes_api.bind("web", "node")
    bound = (await kubernetes_api.get(f"{kubernetes_api.pods}/web")).body
    assert "nominatedNodeName" not in bound["status"]
    assert conditions_of(bound) == {"PodScheduled": "True"}


async def test_binding_of_another_name_is_refused(kubernetes_api: KubernetesApi):
    await kubernetes_api.add_pod("web")
    binding = {"metadata": {"name": "other"}, "target": {"kind": "Node", "name": "node"}}
    assert (await kubernetes_api.post(f"{kubernetes_api.pods}/web/binding", binding)).code == 400


async def test_binding_without_a_node_is_refused(kubernetes_api: KubernetesApi):
    await kubernetes_api.add_pod("web")
    refused = await kubernetes_api.bind("web", "")
    assert (refused.code, refused.body["message"]) == (500, "target.name: Required value")


async def test_deleted_pending_pod_is_removed_at_once(kubernetes_api: KubernetesApi):
    await kubernetes_api.add_pod("web")
    deleted = await kubernetes_api.delete(f"{kubernetes_api.pods}/web")
    assert (deleted.code, deleted.body["kind"]) == (200, "Pod")
    assert (await kubernetes_api.get(f"{kubernetes_api.pods}/web")).code == 404


async def test_bound_pod_stays_terminating_for_its_grace_period(kubernetes_api: KubernetesApi):
    await kubernetes_api.add_pod("web")
    await kubernetes_api.bind("web", "node")
    await kubernetes_api.delete(f"{kubernetes_api.pods}/web")
    terminating = (await kubernetes_api.get(f"{kubernetes_api.pods}/web")).body["metadata"]
    assert terminating["deletionGracePeriodSeconds"] == 30
    assert terminating["deletionTimestamp"] > terminating["creationTimestamp"]
    assert terminating["generation"] == 2


async def test_second_delete_only_shortens_the_grace(kubernetes_api: KubernetesApi):
    path = f"{kubernetes_api.pods}/web"
    await kubernetes_api.add_pod("web")
    await kubernetes_api.bind("web", "node")
    first = await kubernetes_api.delete(path)
    again = await kubernetes_api.delete(path)
    assert again.version == first.version
    shorter = await kubernetes_api.delete(path, gracePeriodSeconds=5)
    assert shorter.body["metadata"]["deletionGracePeriodSeconds"] == 5
    longer = await kubernetes_api.delete(path, gracePeriodSeconds=60)
    assert longer.version == shorter.version


async def test_grace_of_zero_removes_a_bound_pod(kubernetes_api: KubernetesApi):
    path = f"{kubernetes_api.pods}/web"
    await kubernetes_api.add_pod("web")
    assert (await kubernetes_api.bind("web", "node")).code == 201
    terminating = await kubernetes_api.delete(path)
    assert terminating.body["metadata"]["deletionGracePeriodSeconds"] == 30
    assert (await kubernetes_api.delete(path, {"gracePeriodSeconds": 0})).code == 200
    assert (await kubernetes_api.get(path)).code == 404


async def test_deleted_finished_pod_is_removed_at_once(kubernetes_api: KubernetesApi):
    path = f"{kubernetes_api.pods}/web"
    await kubernetes_api.add_pod("web")
    await kubernetes_api.bind("web", "node")
    await kubernetes_api.patch(f"{path}/status", {"status": {"phase": "Succeeded"}})
    await kubernetes_api.delete(path)
    assert (await kubernetes_api.get(path)).code == 404


async def test_delete_checks_uid_and_resource_version(kubernetes_api: KubernetesApi):
    path = f"{kubernetes_api.pods}/web"
    created = await kubernetes_api.add_pod("web")
    for preconditions in ({"uid": "other"}, {"resourceVersion": "1"}):
        refused = await kubernetes_api.delete(path, {"preconditions": preconditions})
        assert (refused.code, refused.body["reason"]) == (409, "Conflict")
        assert refused.body["details"] == {"name": "web", "kind": "Pod"}
    right = {"uid": created.body["metadata"]["uid"], "resourceVersion": created.version}
    assert (await kubernetes_api.delete(path, {"preconditions": right})).code == 200


async def test_deleted_node_is_answered_with_a_status(kubernetes_api: KubernetesApi):
    name = await kubernetes_api.add_node()
    deleted = await kubernetes_api.delete(f"/api/v1/nodes/{name}")
    assert (deleted.code, deleted.body["status"]) == (200, "Success")
    assert deleted.body["details"]["name"] == name


async def test_object_with_a_finalizer_is_removed_with_the_finalizer(kubernetes_api: KubernetesApi):
    path = f"{kubernetes_api.pods}/web"
    await kubernetes_api.add_pod("web")
    await kubernetes_api.patch(path, {"metadata": {"finalizers": ["example.com/hold"]}})
    await kubernetes_api.delete(path)
    assert "deletionTimestamp" in (await kubernetes_api.get(path)).body["metadata"]
    assert (await kubernetes_api.patch(path, {"metadata": {"finalizers": None}})).code == 200
    assert (await kubernetes_api.get(path)).code == 404


async def test_collection_is_deleted_by_selector(kubernetes_api: KubernetesApi):
    for name, tier in (("a", "front"), ("b", "back"), ("c", "front")):
        await kubernetes_api.add_pod(name, labels={"tier": tier})
    assert (await kubernetes_api.delete(kubernetes_api.pods, labelSelector="tier=front")).code == 200
    assert (await kubernetes_api.get(kubernetes_api.pods)).names == ["b"]
