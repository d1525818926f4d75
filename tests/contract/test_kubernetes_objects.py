"""Contract of the API server, real and simulated: create, read, update and patch."""

import pytest

from harness.worlds.kubernetes_api import JSON_PATCH, MERGE_PATCH, STRATEGIC_PATCH, KubernetesApi, minimal_pod


async def test_created_pod_gets_identity_and_defaults(kubernetes_api: KubernetesApi):
    created = await kubernetes_api.add_pod("web")
    assert created.code == 201
    assert (created.body["kind"], created.body["apiVersion"]) == ("Pod", "v1")
    metadata, spec, status = (created.body[part] for part in ("metadata", "spec", "status"))
    assert metadata["uid"]
    assert int(metadata["resourceVersion"]) > 0
    assert metadata["generation"] == 1
    assert metadata["namespace"] == kubernetes_api.namespace
    assert metadata["creationTimestamp"].endswith("Z")
    assert (spec["priority"], spec["preemptionPolicy"]) == (0, "PreemptLowerPriority")
    assert (spec["restartPolicy"], spec["terminationGracePeriodSeconds"]) == ("Always", 30)
    assert status == {"phase": "Pending", "qosClass": "Burstable"}
    assert (await kubernetes_api.get(f"{kubernetes_api.pods}/web")).body == created.body


async def test_pod_without_scheduler_name_is_for_the_default_scheduler(kubernetes_api: KubernetesApi):
    body = minimal_pod("web")
    del body["spec"]["schedulerName"]
    assert (await kubernetes_api.post(kubernetes_api.pods, body)).body["spec"]["schedulerName"] == "default-scheduler"


async def test_missing_requests_default_to_limits(kubernetes_api: KubernetesApi):
    container = {"name": "main", "image": "pause", "resources": {"limits": {"cpu": "1", "memory": "1Gi"}}}
    created = await kubernetes_api.add_pod("web", containers=[container])
    assert created.body["spec"]["containers"][0]["resources"]["requests"] == {"cpu": "1", "memory": "1Gi"}
    assert created.body["status"]["qosClass"] == "Guaranteed"


async def test_pod_without_requests_is_best_effort(kubernetes_api: KubernetesApi):
    created = await kubernetes_api.add_pod("web", containers=[{"name": "main", "image": "pause"}])
    assert created.body["status"]["qosClass"] == "BestEffort"


async def test_pods_tolerate_failing_nodes_for_five_minutes(kubernetes_api: KubernetesApi):
    created = await kubernetes_api.add_pod("web", tolerations=[{"key": "dedicated", "operator": "Exists"}])
    tolerations = [(entry["key"], entry.get("tolerationSeconds")) for entry in created.body["spec"]["tolerations"]]
    assert tolerations == [
        ("dedicated", None),
        ("node.kubernetes.io/not-ready", 300),
        ("node.kubernetes.io/unreachable", 300),
    ]


async def test_priority_is_that_of_the_priority_class(kubernetes_api: KubernetesApi):
    name = f"urgent-{kubernetes_api.namespace}"
    body = {"metadata": {"name": name}, "value": 1000, "preemptionPolicy": "Never"}
    assert (await kubernetes_api.post("/apis/scheduling.k8s.io/v1/priorityclasses", body)).code == 201
    spec = (await kubernetes_api.add_pod("web", priorityClassName=name)).body["spec"]
    assert (spec["priority"], spec["preemptionPolicy"], spec["priorityClassName"]) == (1000, "Never", name)


async def test_unknown_priority_class_is_forbidden(kubernetes_api: KubernetesApi):
    refused = await kubernetes_api.add_pod("web", priorityClassName="none")
    assert (refused.code, refused.body["reason"]) == (403, "Forbidden")
    assert refused.body["message"] == 'pods "web" is forbidden: no PriorityClass with name none was found'


async def test_selectors_get_the_labels_that_match_label_keys_name(kubernetes_api: KubernetesApi):
    """An empty selector too: without keys of its labels it stays empty, and selects every pod."""
    term = {
        "topologyKey": "zone",
        "labelSelector": {},
        "matchLabelKeys": ["app", "absent"],
        "mismatchLabelKeys": ["of"],
    }
    spread = {"topologyKey": "zone", "labelSelector": {}, "maxSkew": 1, "whenUnsatisfiable": "ScheduleAnyway"}
    apart = {"requiredDuringSchedulingIgnoredDuringExecution": [term]}
    spreads = [{**spread, "matchLabelKeys": ["app"]}, {**spread, "topologyKey": "rack", "matchLabelKeys": ["absent"]}]
    wanted = {"affinity": {"podAntiAffinity": apart}, "topologySpreadConstraints": spreads}
    spec = (await kubernetes_api.add_pod("web", labels={"app": "web", "of": "one"}, **wanted)).body["spec"]
    [stored] = spec["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    same = {"key": "app", "operator": "In", "values": ["web"]}
    other = {"key": "of", "operator": "NotIn", "values": ["one"]}
    assert stored["labelSelector"] == {"matchExpressions": [same, other]}
    selectors = [constraint["labelSelector"] for constraint in spec["topologySpreadConstraints"]]
    assert selectors == [{"matchExpressions": [same]}, {}]


async def test_gated_pod_has_a_condition(kubernetes_api: KubernetesApi):
    created = await kubernetes_api.add_pod("web", schedulingGates=[{"name": "example.com/wait"}])
    (condition,) = created.body["status"]["conditions"]
    assert (condition["type"], condition["status"], condition["reason"]) == ("PodScheduled", "False", "SchedulingGated")


async def test_generate_name_gives_names_of_their_own(kubernetes_api: KubernetesApi):
    body = minimal_pod("")
    body["metadata"] = {"generateName": "web-"}
    names = {(await kubernetes_api.post(kubernetes_api.pods, body)).body["metadata"]["name"] for _ in range(3)}
    assert len(names) == 3
    assert all(name.startswith("web-") and len(name) == len("web-") + 5 for name in names)


async def test_status_of_a_new_node_is_kept(kubernetes_api: KubernetesApi):
    name = f"node-{kubernetes_api.namespace}"
    body = {"metadata": {"name": name}, "status": {"allocatable": {"cpu": "4"}}}
    created = await kubernetes_api.post("/api/v1/nodes", body)
    assert created.body["status"]["allocatable"] == {"cpu": "4"}
    assert created.body["status"]["nodeInfo"]["bootID"] == ""
    assert "namespace" not in created.body["metadata"]


REFUSED_CREATES = [
    pytest.param(minimal_pod("web") | {"metadata": {}}, 422, "Invalid", id="no name"),
    pytest.param(minimal_pod("Not_A_Name"), 422, "Invalid", id="bad name"),
    pytest.param(minimal_pod("web") | {"spec": {}}, 422, "Invalid", id="no containers"),
    pytest.param(minimal_pod("web") | {"kind": "Node"}, 400, "BadRequest", id="other kind"),
    pytest.param(
        minimal_pod("web") | {"metadata": {"name": "web", "namespace": "other"}},
        400,
        "BadRequest",
        id="other namespace",
    ),
]


@pytest.mark.parametrize(("body", "code", "reason"), REFUSED_CREATES)
async def test_create_is_refused_with_a_reason(kubernetes_api: KubernetesApi, body: dict, code: int, reason: str):
    refused = await kubernetes_api.post(kubernetes_api.pods, body)
    assert (refused.code, refused.body["kind"], refused.body["status"]) == (code, "Status", "Failure")
    assert (refused.body["code"], refused.body["reason"]) == (code, reason)


async def test_create_of_a_name_that_is_taken_is_a_conflict(kubernetes_api: KubernetesApi):
    await kubernetes_api.add_pod("web")
    refused = await kubernetes_api.add_pod("web")
    assert (refused.code, refused.body["reason"]) == (409, "AlreadyExists")
    assert refused.body["message"] == 'pods "web" already exists'
    assert refused.body["details"] == {"name": "web", "kind": "pods"}


async def test_create_with_a_resource_version_is_refused(kubernetes_api: KubernetesApi):
    body = minimal_pod("web")
    body["metadata"]["resourceVersion"] = "4"
    refused = await kubernetes_api.post(kubernetes_api.pods, body)
    assert (refused.code, refused.body["message"]) == (
        500,
        "resourceVersion should not be set on objects to be created",
    )


async def test_create_in_an_unknown_namespace_is_not_found(kubernetes_api: KubernetesApi):
    refused = await kubernetes_api.post("/api/v1/namespaces/nowhere/pods", minimal_pod("web"))
    assert (refused.code, refused.body["message"]) == (404, 'namespaces "nowhere" not found')


async def test_create_in_a_terminating_namespace_is_forbidden(kubernetes_api: KubernetesApi):
    terminating = await kubernetes_api.delete(f"/api/v1/namespaces/{kubernetes_api.namespace}")
    assert terminating.body["status"]["phase"] == "Terminating"
    refused = await kubernetes_api.add_pod("web")
    assert (refused.code, refused.body["details"]["causes"][0]["reason"]) == (403, "NamespaceTerminating")


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/api/v1/namespaces/default/pods/none", 'pods "none" not found'),
        ("/api/v1/nodes/none", 'nodes "none" not found'),
        (
            "/apis/coordination.k8s.io/v1/namespaces/default/leases/none",
            'leases.coordination.k8s.io "none" not found',
        ),
        ("/api/v1/nonsense", "the server could not find the requested resource"),
    ],
)
async def test_missing_objects_are_not_found(kubernetes_api: KubernetesApi, path: str, message: str):
    answer = await kubernetes_api.get(path)
    assert (answer.code, answer.body["reason"], answer.body["message"]) == (404, "NotFound", message)


async def test_unsupported_method_of_a_resource_is_not_allowed(kubernetes_api: KubernetesApi):
    answer = await kubernetes_api.put(kubernetes_api.pods, {})
    assert (answer.code, answer.body["reason"]) == (405, "MethodNotAllowed")


async def test_put_with_the_newest_resource_version_moves_it(kubernetes_api: KubernetesApi):
    created = await kubernetes_api.add_pod("web")
    created.body["metadata"]["labels"] = {"tier": "front"}
    updated = await kubernetes_api.put(f"{kubernetes_api.pods}/web", created.body)
    assert updated.code == 200
    assert updated.body["metadata"]["labels"] == {"tier": "front"}
    assert int(updated.version) > int(created.version)


async def test_put_with_an_old_resource_version_is_a_conflict(kubernetes_api: KubernetesApi):
    created = await kubernetes_api.add_pod("web")
    await kubernetes_api.patch(f"{kubernetes_api.pods}/web", {"metadata": {"labels": {"tier": "front"}}})
    refused = await kubernetes_api.put(f"{kubernetes_api.pods}/web", created.body)
    assert (refused.code, refused.body["reason"]) == (409, "Conflict")
    assert refused.body["message"] == (
        'Operation cannot be fulfilled on pods "web": the object has been modified; please apply your changes to the '
        "latest version and try again"
    )


async def test_put_of_another_name_is_refused(kubernetes_api: KubernetesApi):
    await kubernetes_api.add_pod("web")
    assert (await kubernetes_api.put(f"{kubernetes_api.pods}/web", minimal_pod("other"))).code == 400


async def test_put_of_another_uid_is_a_conflict(kubernetes_api: KubernetesApi):
    created = await kubernetes_api.add_pod("web")
    created.body["metadata"]["uid"] = "other"
    assert (await kubernetes_api.put(f"{kubernetes_api.pods}/web", created.body)).code == 409


async def test_node_of_a_pod_cannot_be_set_by_an_update(kubernetes_api: KubernetesApi):
    await kubernetes_api.add_pod("web")
    refused = await kubernetes_api.patch(f"{kubernetes_api.pods}/web", {"spec": {"nodeName": "n"}})
    assert (refused.code, refused.body["details"]["causes"][0]["field"]) == (422, "spec")


async def test_scheduling_gates_can_only_be_removed(kubernetes_api: KubernetesApi):
    path = f"{kubernetes_api.pods}/web"
    gate = {"name": "example.com/wait"}
    created = await kubernetes_api.add_pod("web", schedulingGates=[gate])
    freed = await kubernetes_api.patch(path, {"spec": {"schedulingGates": None}})
    assert freed.code == 200
    assert "schedulingGates" not in freed.body["spec"]
    assert freed.body["metadata"]["generation"] == created.body["metadata"]["generation"] + 1
    assert (await kubernetes_api.patch(path, {"spec": {"schedulingGates": [gate]}})).code == 422


async def test_merge_patch_merges_objects_and_null_removes(kubernetes_api: KubernetesApi):
    await kubernetes_api.add_pod("web", labels={"tier": "front", "track": "stable"})
    patch = {"metadata": {"labels": {"track": None, "zone": "a"}}}
    patched = await kubernetes_api.patch(f"{kubernetes_api.pods}/web", patch)
    assert (patched.code, patched.body["metadata"]["labels"]) == (200, {"tier": "front", "zone": "a"})


async def test_json_patch_changes_one_place(kubernetes_api: KubernetesApi):
    await kubernetes_api.add_pod("web", labels={"tier": "front"})
    operations = [
        {"op": "test", "path": "/metadata/labels/tier", "value": "front"},
        {"op": "replace", "path": "/metadata/labels/tier", "value": "back"},
        {"op": "add", "path": "/metadata/labels/example.com~1track", "value": "stable"},
    ]
    patched = await kubernetes_api.patch(f"{kubernetes_api.pods}/web", operations, JSON_PATCH)
    assert patched.body["metadata"]["labels"] == {"tier": "back", "example.com/track": "stable"}


@pytest.mark.parametrize(
    ("operations", "code"),
    [
        ([{"op": "replace", "path": "/spec/none/here", "value": 1}], 422),
        ([{"op": "test", "path": "/metadata/name", "value": "other"}], 422),
        ([{"op": "add", "path": "/spec/containers/9", "value": {}}], 422),
        ({"op": "remove", "path": "/spec"}, 400),
        ([{"op": "copy", "from": "/metadata/name", "path": "/metadata/labels/a"}], 200),
    ],
)
async def test_json_patch_applies_or_is_refused(kubernetes_api: KubernetesApi, operations: object, code: int):
    await kubernetes_api.add_pod("web", labels={"app": "web"})
    patched = await kubernetes_api.patch(f"{kubernetes_api.pods}/web", operations, JSON_PATCH)
    assert patched.code == code
    if code == 200:
        assert patched.body["metadata"]["labels"] == {"app": "web", "a": "web"}


async def test_a_namespace_of_every_cluster_cannot_be_deleted(kubernetes_api: KubernetesApi):
    for name in ("default", "kube-system", "kube-public"):
        refused = await kubernetes_api.delete(f"/api/v1/namespaces/{name}")
        assert (refused.code, refused.body["reason"]) == (403, "Forbidden")
        assert refused.body["message"] == f'namespaces "{name}" is forbidden: this namespace may not be deleted'


async def test_a_secret_has_its_text_encoded(kubernetes_api: KubernetesApi):
    body = {"metadata": {"name": "login"}, "data": {"user": "bWU="}, "stringData": {"word": "pass"}}
    created = await kubernetes_api.post(f"/api/v1/namespaces/{kubernetes_api.namespace}/secrets", body)
    assert (created.code, created.body["type"]) == (201, "Opaque")
    assert created.body["data"] == {"user": "bWU=", "word": "cGFzcw=="}
    assert "stringData" not in created.body
    path = f"/api/v1/namespaces/{kubernetes_api.namespace}/secrets/login"
    changed = await kubernetes_api.patch(path, {"stringData": {"word": "past"}})
    assert changed.body["data"] == {"user": "bWU=", "word": "cGFzdA=="}
    assert "stringData" not in changed.body


async def test_text_of_a_secret_that_is_null_is_empty_and_another_value_is_refused(kubernetes_api: KubernetesApi):
    secrets = f"/api/v1/namespaces/{kubernetes_api.namespace}/secrets"
    body = {"metadata": {"name": "login"}, "stringData": {"word": None}}
    created, put = await kubernetes_api.post(secrets, body), await kubernetes_api.put(f"{secrets}/login", body)
    assert (created.code, created.body["data"], put.code, put.body["data"]) == (201, {"word": ""}, 200, {"word": ""})
    for text in ({"word": 5}, {"word": ["a"]}, 5):
        refused = await kubernetes_api.patch(f"{secrets}/login", {"stringData": text})
        assert refused.code in (400, 422), text


async def test_patch_with_an_old_resource_version_is_a_conflict(kubernetes_api: KubernetesApi):
    await kubernetes_api.add_pod("web")
    patch = {"metadata": {"resourceVersion": "1", "labels": {"a": "b"}}}
    refused = await kubernetes_api.patch(f"{kubernetes_api.pods}/web", patch)
    assert (refused.code, refused.body["reason"]) == (409, "Conflict")


async def test_patch_of_the_uid_is_invalid(kubernetes_api: KubernetesApi):
    await kubernetes_api.add_pod("web")
    refused = await kubernetes_api.patch(f"{kubernetes_api.pods}/web", {"metadata": {"uid": "other"}})
    assert (refused.code, refused.body["details"]["causes"][0]["field"]) == (422, "metadata.uid")


async def test_patch_that_changes_nothing_moves_no_resource_version(kubernetes_api: KubernetesApi):
    created = await kubernetes_api.add_pod("web", labels={"tier": "front"})
    patched = await kubernetes_api.patch(f"{kubernetes_api.pods}/web", {"metadata": {"labels": {"tier": "front"}}})
    assert patched.version == created.version


async def test_patch_in_an_unknown_format_is_unsupported(kubernetes_api: KubernetesApi):
    await kubernetes_api.add_pod("web")
    refused = await kubernetes_api.patch(f"{kubernetes_api.pods}/web", {}, "application/nonsense")
    assert (refused.code, refused.body["reason"]) == (415, "UnsupportedMediaType")


async def test_status_patch_merges_conditions_by_type(kubernetes_api: KubernetesApi):
    await kubernetes_api.add_pod("web")
    path = f"{kubernetes_api.pods}/web/status"
    waiting = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/0 nodes"}
    await kubernetes_api.patch(path, {"status": {"conditions": [waiting]}}, STRATEGIC_PATCH)
    fence = {"type": "berth/fence", "status": "True", "message": "7"}
    patched = await kubernetes_api.patch(path, {"status": {"conditions": [fence]}}, STRATEGIC_PATCH)
    assert patched.code == 200
    conditions = {entry["type"]: (entry["status"], entry["message"]) for entry in patched.body["status"]["conditions"]}
    assert conditions == {"PodScheduled": ("False", "0/0 nodes"), "berth/fence": ("True", "7")}
    again = await kubernetes_api.patch(path, {"status": {"conditions": [fence | {"message": "8"}]}}, STRATEGIC_PATCH)
    assert int(again.version) > int(patched.version)
    assert len(again.body["status"]["conditions"]) == 2


async def test_unset_times_of_conditions_are_null(kubernetes_api: KubernetesApi):
    await kubernetes_api.add_pod("web")
    node = await kubernetes_api.add_node()
    conditions = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
    pod_status = await kubernetes_api.patch(f"{kubernetes_api.pods}/web/status", conditions, STRATEGIC_PATCH)
    node_status = await kubernetes_api.patch(f"/api/v1/nodes/{node}/status", conditions, STRATEGIC_PATCH)
    ready = {"type": "Ready", "status": "True", "lastTransitionTime": None}
    assert pod_status.body["status"]["conditions"] == [ready | {"lastProbeTime": None}]
    assert node_status.body["status"]["conditions"] == [ready | {"lastHeartbeatTime": None}]


async def test_status_patch_leaves_the_spec_alone_and_the_other_way_round(kubernetes_api: KubernetesApi):
    path = f"/api/v1/nodes/{await kubernetes_api.add_node()}"
    both = {"spec": {"unschedulable": True}, "status": {"allocatable": {"cpu": "9"}}}
    by_status = await kubernetes_api.patch(f"{path}/status", both, STRATEGIC_PATCH)
    assert by_status.body["spec"] == {}
    assert by_status.body["status"]["allocatable"] == {"cpu": "9"}
    both["status"]["allocatable"] = {"cpu": "1"}
    by_spec = await kubernetes_api.patch(path, both, STRATEGIC_PATCH)
    assert by_spec.body["spec"]["unschedulable"] is True
    assert by_spec.body["status"]["allocatable"] == {"cpu": "9"}


async def test_nominated_node_is_set_and_cleared_by_status_patch(kubernetes_api: KubernetesApi):
    await kubernetes_api.add_pod("web")
    path = f"{kubernetes_api.pods}/web/status"
    nominated = await kubernetes_api.patch(path, {"status": {"nominatedNodeName": "n"}}, MERGE_PATCH)
    assert nominated.body["status"]["nominatedNodeName"] == "n"
    cleared = await kubernetes_api.patch(path, {"status": {"nominatedNodeName": None}}, MERGE_PATCH)
    assert "nominatedNodeName" not in cleared.body["status"]


async def test_status_put_with_an_old_resource_version_is_a_conflict(kubernetes_api: KubernetesApi):
    created = await kubernetes_api.add_pod("web")
    await kubernetes_api.patch(f"{kubernetes_api.pods}/web", {"metadata": {"labels": {"tier": "front"}}})
    created.body["status"]["phase"] = "Running"
    assert (await kubernetes_api.put(f"{kubernetes_api.pods}/web/status", created.body)).code == 409


async def test_cluster_is_identified_by_the_uid_of_kube_system(kubernetes_api: KubernetesApi):
    first = await kubernetes_api.get("/api/v1/namespaces/kube-system")
    assert first.body["metadata"]["uid"]
    assert first.body["status"]["phase"] == "Active"
