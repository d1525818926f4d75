"""Contract of the API server, real and simulated: Lease as compare-and-set, and both forms of Events."""

from harness.worlds.kubernetes_api import STRATEGIC_PATCH, KubernetesApi

RENEWED = "2026-01-02T03:04:05.678900Z"


def lease(holder: str, **metadata: object) -> dict:
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": "berth-binder", **metadata},
        "spec": {"holderIdentity": holder, "leaseDurationSeconds": 15, "acquireTime": RENEWED, "renewTime": RENEWED},
    }


def new_event(kubernetes_api: KubernetesApi, name: str = "web.1", **members: object) -> dict:
    return {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"name": name},
        "eventTime": RENEWED,
        "reportingController": "berth",
        "reportingInstance": "berth-binder-0",
        "action": "Binding",
        "reason": "Scheduled",
        "type": "Normal",
        "note": "Successfully assigned web to node-1",
        "regarding": {"kind": "Pod", "namespace": kubernetes_api.namespace, "name": "web", "uid": "u-1"},
        **members,
    }


async def test_lease_belongs_to_the_first_creator(kubernetes_api: KubernetesApi):
    assert (await kubernetes_api.post(kubernetes_api.leases, lease("a"))).code == 201
    refused = await kubernetes_api.post(kubernetes_api.leases, lease("b"))
    assert (refused.code, refused.body["reason"]) == (409, "AlreadyExists")
    assert refused.body["details"]["group"] == "coordination.k8s.io"


async def test_lease_is_taken_only_from_the_state_that_was_read(kubernetes_api: KubernetesApi):
    path = f"{kubernetes_api.leases}/berth-binder"
    read = (await kubernetes_api.post(kubernetes_api.leases, lease("a"))).version
    renewed = await kubernetes_api.put(path, lease("a", resourceVersion=read) | {"spec": {"holderIdentity": "a"}})
    assert renewed.code == 200
    stolen = await kubernetes_api.put(path, lease("b", resourceVersion=read))
    assert (stolen.code, stolen.body["reason"]) == (409, "Conflict")
    assert (await kubernetes_api.get(path)).body["spec"]["holderIdentity"] == "a"
    assert (await kubernetes_api.put(path, lease("b", resourceVersion=renewed.version))).code == 200


async def test_lease_keeps_microseconds_and_annotations(kubernetes_api: KubernetesApi):
    created = await kubernetes_api.post(kubernetes_api.leases, lease("a", annotations={"berth/term": "7"}))
    assert created.body["spec"]["renewTime"] == RENEWED
    assert created.body["metadata"]["annotations"] == {"berth/term": "7"}


async def test_lease_update_without_a_revision_is_invalid(kubernetes_api: KubernetesApi):
    await kubernetes_api.post(kubernetes_api.leases, lease("a"))
    refused = await kubernetes_api.put(f"{kubernetes_api.leases}/berth-binder", lease("b"))
    assert (refused.code, refused.body["details"]["causes"][0]["field"]) == (422, "metadata.resourceVersion")


async def test_lease_update_of_a_missing_lease_creates_it(kubernetes_api: KubernetesApi):
    created = await kubernetes_api.put(f"{kubernetes_api.leases}/berth-binder", lease("a"))
    assert (created.code, created.body["spec"]["holderIdentity"]) == (201, "a")


async def test_deleted_lease_is_not_created_again_by_a_renewal(kubernetes_api: KubernetesApi):
    held = await kubernetes_api.post(kubernetes_api.leases, lease("a"))
    await kubernetes_api.delete(f"{kubernetes_api.leases}/berth-binder")
    renewal = lease("a", resourceVersion=held.version, uid=held.body["metadata"]["uid"])
    refused = await kubernetes_api.put(f"{kubernetes_api.leases}/berth-binder", renewal)
    assert (refused.code, refused.body["reason"]) == (409, "Conflict")


async def test_identical_renewal_moves_no_resource_version(kubernetes_api: KubernetesApi):
    read = (await kubernetes_api.post(kubernetes_api.leases, lease("a"))).version
    same = await kubernetes_api.put(f"{kubernetes_api.leases}/berth-binder", lease("a", resourceVersion=read))
    assert same.version == read


async def test_event_can_be_read_in_both_forms(kubernetes_api: KubernetesApi):
    created = await kubernetes_api.post(kubernetes_api.new_events, new_event(kubernetes_api))
    assert created.code == 201
    core = (await kubernetes_api.get(f"{kubernetes_api.events}/web.1")).body
    assert (core["apiVersion"], core["message"]) == ("v1", "Successfully assigned web to node-1")
    assert core["involvedObject"]["uid"] == "u-1"
    assert core["reportingComponent"] == "berth"
    new = (await kubernetes_api.get(f"{kubernetes_api.new_events}/web.1")).body
    assert (new["apiVersion"], new["note"]) == ("events.k8s.io/v1", core["message"])
    assert new["reportingController"] == "berth"


async def test_repeated_event_is_counted_by_a_patch(kubernetes_api: KubernetesApi):
    await kubernetes_api.post(kubernetes_api.new_events, new_event(kubernetes_api))
    series = {"series": {"count": 2, "lastObservedTime": RENEWED}}
    for content_type in ("application/merge-patch+json", STRATEGIC_PATCH):
        patched = await kubernetes_api.patch(f"{kubernetes_api.new_events}/web.1", series, content_type)
        assert (patched.code, patched.body["series"]["count"]) == (200, 2)
        assert patched.body["note"] == "Successfully assigned web to node-1"


async def test_patch_of_a_deleted_event_is_not_found(kubernetes_api: KubernetesApi):
    assert (await kubernetes_api.patch(f"{kubernetes_api.new_events}/none", {"series": None})).code == 404


async def test_events_are_selected_by_their_object(kubernetes_api: KubernetesApi):
    await kubernetes_api.post(kubernetes_api.new_events, new_event(kubernetes_api))
    other = {"kind": "Pod", "namespace": kubernetes_api.namespace, "name": "other"}
    await kubernetes_api.post(kubernetes_api.new_events, new_event(kubernetes_api, "other.1", regarding=other))
    core = await kubernetes_api.get(kubernetes_api.events, fieldSelector="involvedObject.name=web,reason=Scheduled")
    new = await kubernetes_api.get(kubernetes_api.new_events, fieldSelector="regarding.name=web")
    assert core.names == new.names == ["web.1"]
    assert new.body["items"][0]["regarding"]["uid"] == "u-1"


async def test_core_event_about_another_namespace_is_invalid(kubernetes_api: KubernetesApi):
    elsewhere = {"kind": "Pod", "namespace": "kube-system", "name": "web"}
    body = {"metadata": {"name": "web.1"}, "involvedObject": elsewhere, "reason": "Scheduled", "type": "Normal"}
    refused = await kubernetes_api.post(kubernetes_api.events, body)
    assert (refused.code, refused.body["reason"]) == (422, "Invalid")
    new_form = new_event(kubernetes_api, regarding=elsewhere)
    assert (await kubernetes_api.post(kubernetes_api.new_events, new_form)).code == 201


async def test_events_are_watched_in_the_requested_form(kubernetes_api: KubernetesApi):
    async with kubernetes_api.watch(kubernetes_api.new_events) as events:
        await kubernetes_api.post(kubernetes_api.new_events, new_event(kubernetes_api))
        event = await events.next()
    assert (event["type"], event["object"]["regarding"]["name"]) == ("ADDED", "web")
