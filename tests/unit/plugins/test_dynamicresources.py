"""DynamicResources: claims that a pod waits for, Reserve and what it has written, PostFilter, events, and differences.

The differences are bugs of kube-scheduler 1.36.3 that berth does not repeat.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from berth.api.devices import EXTENDED_RESOURCE_CLAIM, DeviceClass, DeviceClassSpec, ResourceClaim, ResourceSlice
from berth.api.meta import ObjectMeta
from berth.api.pod import Pod, PodCondition, PodResourceClaim, PodResourceClaimStatus
from berth.cluster.devices.ledger import DeviceLedger
from berth.framework.cycle import rank
from berth.framework.events import Action, ClusterEvent, Resource
from berth.framework.interface import SNAPSHOT, ClaimName, CreateClaim, ReleaseClaim, ReserveClaim
from berth.framework.status import Code, CycleState
from berth.plugins.dynamicresources.plugin import DEALLOCATED, STILL_NOT, DynamicResources, DynamicResourcesArgs
from harness.builders.objects import a_node, a_pod, first_attempt, pod_requesting
from harness.builders.profiles import default_profile
from harness.worlds.queueing_hints import may_help
from harness.worlds.recorded_devices import DeviceWorld

Json = dict[str, Any]
DRIVER = "gpu.example.com"


def slice_of(node: str, devices: list[Json], driver: str = DRIVER, count: int = 1, **fields: Any) -> Json:
    pool = {"name": node, "generation": 1, "resourceSliceCount": count}
    name = fields.pop("name", f"{driver}-{node}")
    spec = {"driver": driver, "nodeName": node, "pool": pool, "devices": devices, **fields}
    return {"kind": "ResourceSlice", "metadata": {"name": name, "uid": name}, "spec": spec}


def gpus(count: int) -> list[Json]:
    return [{"name": f"gpu-{i}"} for i in range(count)]


def claim_of(name: str, *requests: Json, constraints: list[Json] | None = None, **metadata: Any) -> Json:
    metadata = {"name": name, "namespace": "default", "uid": f"uid-{name}", **metadata}
    devices = {"requests": [*requests] or [exactly("r")], "constraints": constraints or []}
    return {"kind": "ResourceClaim", "metadata": metadata, "spec": {"devices": devices}}


def exactly(name: str, **fields: Any) -> Json:
    return {"name": name, "exactly": {"deviceClassName": "gpu", **fields}}


def world_of(slices: list[Json], *claims: Json, **classes: Json) -> DeviceWorld:
    objects = {
        "namespaces": {"default": {}},
        "nodes": [
            {"kind": "Node", "metadata": {"name": name}, "status": {"allocatable": {"cpu": "9", "pods": "99"}}}
            for name in ("n1", "n2")
        ],
        "deviceclasses": [
            {
                "kind": "DeviceClass",
                "metadata": {"name": name, "creationTimestamp": "2026-01-01T00:00:00Z"},
                "spec": spec,
            }
            for name, spec in ({"gpu": {}} | classes).items()
        ],
        "resourceslices": slices,
        "resourceclaims": [*claims],
        "pods": [],
    }
    return DeviceWorld.of(objects)


def pod_with(*claims: str, name: str = "web", **spec: Any) -> Pod:
    entries = [PodResourceClaim(name=each, resource_claim_name=each) for each in claims]
    return a_pod(name, resource_claims=entries or None, **spec)


def ranked(world: DeviceWorld, pod: Pod) -> Any:
    return rank(pod, world.snapshot, default_profile(), attempt=first_attempt(pod))


def nodes_for(world: DeviceWorld, pod: Pod) -> list[str]:
    return sorted(each.node for each in ranked(world, pod).candidates)


def reserved(world: DeviceWorld, pod: Pod, node: str = "n1") -> tuple[DynamicResources, CycleState]:
    plugin = DynamicResources(DynamicResourcesArgs())
    state = CycleState(world.snapshot.class_of(pod))
    state.write(SNAPSHOT, world.snapshot)
    assert plugin.reserve(state, pod, node).is_success
    return plugin, state


# Claims that a pod waits for

TEMPLATE = PodResourceClaim(name="x", resource_claim_template_name="t")


@pytest.mark.parametrize(
    ("entry", "status", "claims", "text"),
    [
        pytest.param(TEMPLATE, None, [], 'pod "default/web": ResourceClaim not created yet', id="template"),
        pytest.param(TEMPLATE, "", [], "", id="no claim needed"),
        pytest.param(TEMPLATE, "c", [], 'could not find ResourceClaim "default/c"', id="unknown claim"),
        pytest.param(
            TEMPLATE,
            "c",
            [claim_of("c", deletionTimestamp="2026-01-01T00:00:00Z")],
            'resourceclaim "c" is being deleted',
            id="deleted claim",
        ),
        pytest.param(
            TEMPLATE,
            "c",
            [claim_of("c")],
            "ResourceClaim default/c was not created for Pod default/web (Pod is not owner)",
            id="claim of another pod",
        ),
    ],
)
def test_a_pod_is_held_until_its_claims_can_be_used(entry, status, claims, text):
    pod = a_pod("web", resource_claims=[entry])
    if status is not None:
        statuses = [PodResourceClaimStatus(name="x", resource_claim_name=status or None)]
        pod = msgspec.structs.replace(pod, status=msgspec.structs.replace(pod.status, resource_claim_statuses=statuses))
    held = DynamicResources(DynamicResourcesArgs()).pre_enqueue_with(
        pod, world_of([], *claims).snapshot.objects(ResourceClaim)
    )
    assert (held.reasons or ("",))[0] == text


@pytest.mark.parametrize("kind", [ResourceClaim, ResourceSlice, DeviceClass])
def test_no_device_is_given_while_a_kind_cannot_be_read(kind: type):
    """Else a device of a claim that is not read would seem free to a pod that asks for an extended resource."""
    spec = {"extendedResourceName": "example.com/gpu"}
    world = world_of([slice_of("n1", gpus(1))], claim_of("a"), gpu=spec)
    pods = [pod_with("a"), pod_requesting("extended", **{"example.com/gpu": "1"})]
    objects = world.snapshot.objects(kind)
    objects.unread = "not served"
    for pod in pods:
        ranking = ranked(world, pod)
        assert (ranking.candidates, "not served" in ranking.message) == ((), True), ranking.message
    assert nodes_for(world, a_pod("plain")) == ["n1", "n2"]
    held = DynamicResources(DynamicResourcesArgs()).pre_enqueue_with(pods[0], world.snapshot.objects(ResourceClaim))
    assert held.reasons == (("not served",) if kind is ResourceClaim else ())
    objects.unread = ""
    assert [nodes_for(world, pod) for pod in pods] == [["n1"], ["n1"]]


def test_a_claim_whose_spec_the_mirror_lacks_is_not_allocated():
    claim = claim_of("a")
    claim["spec"] = {"leftOut": "is too large for a message of NATS"}
    ranking = ranked(world_of([slice_of("n1", gpus(1))], claim), pod_with("a"))
    assert "resource claim default/a is too large for a message of NATS" in ranking.message


def test_a_class_that_cannot_be_read_says_why():
    world = world_of([slice_of("n1", gpus(1))], claim_of("a"))
    unreadable = {"metadata": {"name": "gpu"}, "spec": {"leftOut": "cannot be read: Expected `array`"}}
    world.snapshot.objects(DeviceClass).set("gpu", msgspec.convert(unreadable, DeviceClass))
    assert "request r: device class gpu cannot be read: Expected `array`" in ranked(world, pod_with("a")).message
    pod = pod_requesting("extended", **{"deviceclass.resource.kubernetes.io/gpu": 1})
    assert "device class gpu cannot be read: Expected `array`" in ranked(world, pod).error


# Reserve, and what it has written


def test_reserve_assumes_the_devices_until_unreserve():
    world = world_of([slice_of("n1", gpus(1))], claim_of("a"), claim_of("b"))
    plugin, state = reserved(world, pod_with("a"))
    assert nodes_for(world, pod_with("b", name="other")) == []
    plugin.unreserve(state, pod_with("a"), "n1")
    assert nodes_for(world, pod_with("b", name="other")) == ["n1"]


def test_reserve_fails_where_the_devices_are_gone():
    world = world_of([slice_of("n1", gpus(1))], claim_of("a"), claim_of("b"))
    reserved(world, pod_with("a"))
    plugin, pod = DynamicResources(DynamicResourcesArgs()), pod_with("b", name="other")
    state = CycleState(world.snapshot.class_of(pod))
    state.write(SNAPSHOT, world.snapshot)
    assert plugin.reserve(state, pod, "n1").reasons == ("cannot allocate all claims",)


def test_a_claim_in_flight_is_shared_by_the_next_pod():
    """kube-scheduler rejects it with `is in the process of being allocated` (137617)."""
    world = world_of([slice_of("n1", gpus(1)), slice_of("n2", gpus(1))], claim_of("a"))
    plugin, state = reserved(world, pod_with("a"))
    other = pod_with("a", name="other")
    assert nodes_for(world, other) == ["n1"]
    _, others_state = reserved(world, other)
    assert plugin.writes(state, pod_with("a"), "n1") == plugin.writes(others_state, other, "n1")
    plugin.unreserve(state, pod_with("a"), "n1")
    assert DeviceLedger.of(world.snapshot).is_owned(f"{DRIVER}/n1/gpu-0")
    plugin.unreserve(others_state, other, "n1")
    assert not DeviceLedger.of(world.snapshot).is_owned(f"{DRIVER}/n1/gpu-0")


def test_a_decision_has_the_devices_of_claims_that_were_allocated_before():
    world = world_of([slice_of("n1", gpus(2))], claim_of("a"), claim_of("b"))
    first = pod_with("a")
    plugin, state = reserved(world, first)
    (write,) = plugin.writes(state, first, "n1")
    show(world, "a", write.allocation, first)
    plugin.finish_binding(state, first, "n1")
    _, state = reserved(world, pod_with("a", "b", name="other"))
    given = {uid: [each.device for each in one.devices.results] for uid, one in plugin.reserved(state).items()}
    assert given == {"uid-a": ["gpu-0"], "uid-b": ["gpu-1"]}


def name_of(claim: str) -> ClaimName:
    return ClaimName(namespace="default", name=claim, uid=f"uid-{claim}")


def test_what_a_pod_has_reserved_is_released():
    world, pod = world_of([slice_of("n1", gpus(3))], claim_of("a"), claim_of("idle"), claim_of("used")), pod_with("a")
    owner = pod_with("idle", "used", name="owner")
    plugin, state = reserved(world, owner)
    idle, used = (each.allocation for each in plugin.writes(state, owner, "n1"))
    plugin.finish_binding(state, owner, "n1")
    world.set_status("default/idle", {"allocation": msgspec.to_builtins(idle), "reservedFor": []})
    show(world, "used", used, owner)
    pod = pod_with("a", "idle", "used")
    plugin, state = reserved(world, pod)
    assert [each.allocation is None for each in plugin.writes(state, pod, "n1")] == [False, True, True]
    assert plugin.releases(state, pod, "n1", sent=True) == (
        ReleaseClaim(claim=name_of("a")),
        ReleaseClaim(claim=name_of("idle")),
        ReleaseClaim(claim=name_of("used")),
    )
    assert plugin.releases(state, pod, "n1", sent=False) == ()


def test_an_allocation_that_is_reserved_for_the_pod_already_was_made_for_it():
    """By a former binder, which ended before the Binding."""
    world, pod = world_of([slice_of("n1", gpus(1))], claim_of("a")), pod_with("a")
    plugin, state = reserved(world, pod)
    (write,) = plugin.writes(state, pod, "n1")
    plugin.unreserve(state, pod, "n1")
    show(world, "a", write.allocation, pod)
    plugin, state = reserved(world, pod)
    assert plugin.writes(state, pod, "n1") == ()
    assert plugin.releases(state, pod, "n1", sent=False) == (ReleaseClaim(claim=name_of("a")),)


def test_a_device_that_another_scheduler_gave_first_is_not_used():
    world, pod = world_of([slice_of("n1", gpus(1))], claim_of("a"), claim_of("other")), pod_with("a")
    plugin, state = reserved(world, pod)
    (write,) = plugin.writes(state, pod, "n1")
    show(world, "other", write.allocation, pod_with("other", name="other"))
    show(world, "a", write.allocation, pod)
    status = plugin.pre_bind(state, pod, "n1")
    reason = f"device {DRIVER}/n1/gpu-0 was given to another claim by another scheduler"
    assert (status.code, status.reasons) == (Code.UNSCHEDULABLE, (reason,))


def test_claims_are_written_in_the_pods_order():
    world = world_of([slice_of("n1", gpus(2))], claim_of("a"), claim_of("b"))
    pod = pod_with("b", "a")
    plugin, state = reserved(world, pod)
    writes = plugin.writes(state, pod, "n1")
    devices = [each.allocation.devices.results[0].device for each in writes if each.allocation is not None]
    assert ([each.claim.name for each in writes], devices) == (["b", "a"], ["gpu-0", "gpu-1"])
    for each in writes:
        show(world, each.claim.name, each.allocation, pod)
    assert plugin.pre_bind(state, pod, "n1").is_success
    assert plugin.writes(state, pod, "n1") == ()
    world.apply({**claim_of("a"), "status": {}})
    assert plugin.pre_bind(state, pod, "n1").reasons == ("claim default/a got deallocated elsewhere in the meantime",)


def show(world: DeviceWorld, name: str, allocation: Any, pod: Pod, **status: Any) -> None:
    """The API server shows the claim as allocated and reserved for the pod."""
    user = {"resource": "pods", "name": pod.metadata.name, "uid": pod.uid}
    shown = {"allocation": msgspec.to_builtins(allocation), "reservedFor": [user], **status}
    world.set_status(f"default/{name}", shown)


def test_an_assumption_outlives_what_the_watch_shows_of_the_claim():
    world = world_of([slice_of("n1", gpus(2))], claim_of("a"))
    plugin, state = reserved(world, pod_with("a"))
    ledger = DeviceLedger.of(world.snapshot)
    world.apply(claim_of("a", annotations={"finalizer": "added"}))
    assert ledger.owners_of(f"{DRIVER}/n1/gpu-0") == ("uid-a",)
    (write,) = plugin.writes(state, pod_with("a"), "n1")
    show(world, "a", write.allocation, pod_with("a"))
    assert ledger.owners_of(f"{DRIVER}/n1/gpu-0") == ("uid-a",)
    world.apply({**claim_of("a"), "status": {}})
    assert ledger.owners_of(f"{DRIVER}/n1/gpu-0") == ("uid-a",)
    plugin.finish_binding(state, pod_with("a"), "n1")
    assert ledger.owners_of(f"{DRIVER}/n1/gpu-0") == ()


CONDITIONS = {"bindingConditions": ["ok"], "bindingFailureConditions": ["bad"], "bindsToNode": True}


@pytest.mark.parametrize(
    ("condition", "now", "code", "text"),
    [
        pytest.param(None, 0, Code.WAIT, "its devices are not bound yet", id="pending"),
        pytest.param(("ok", "True"), 0, Code.SUCCESS, "", id="bound"),
        pytest.param(
            ("bad", "True"), 0, Code.ERROR, 'device binding failed: claim=a, reason=R, message="M"', id="failed"
        ),
        pytest.param(None, 2_000_000_000, Code.ERROR, "device binding timeout: claim=a", id="too late"),
    ],
)
def test_pre_bind_waits_for_binding_conditions(condition, now, code, text):
    world, pod = world_of([slice_of("n1", [{"name": "gpu-0", **CONDITIONS}])], claim_of("a")), pod_with("a")
    plugin, state = reserved(world, pod)
    (write,) = plugin.writes(state, pod, "n1")
    found = [{"type": condition[0], "status": condition[1], "reason": "R", "message": "M"}] if condition else []
    device = {"driver": DRIVER, "pool": "n1", "device": "gpu-0", "conditions": found}
    show(world, "a", write.allocation, pod, devices=[device])
    world.snapshot.live.observe_time(now)
    status = plugin.pre_bind(state, pod, "n1")
    assert (status.code, ", ".join(status.reasons)) == (code, text)


# PostFilter


@pytest.mark.parametrize(("wanted", "freed"), [(1, DEALLOCATED), (2, STILL_NOT)])
def test_an_idle_claim_is_freed_only_where_the_other_claims_can_be_allocated(wanted, freed):
    world = world_of([slice_of("n2", gpus(1))], claim_of("idle"), claim_of("b", exactly("r", count=wanted)))
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["gone"]}]}
    world.set_status("default/idle", {"allocation": {"devices": {}, "nodeSelector": {"nodeSelectorTerms": [term]}}})
    assert f". {freed}, preemption: " in ranked(world, pod_with("idle", "b")).message


# Extended resources


def test_an_extended_resource_of_a_class_becomes_a_claim_of_the_pod():
    world = world_of([slice_of("n1", gpus(2))], gpu={"extendedResourceName": "example.com/gpu"})
    pod = pod_requesting(**{"example.com/gpu": "2"})
    assert nodes_for(world, pod) == ["n1"]
    plugin, state = reserved(world, pod)
    (write,) = plugin.writes(state, pod, "n1")
    assert isinstance(write, CreateClaim)
    assert [each.device for each in write.allocation.devices.results or ()] == ["gpu-0", "gpu-1"]
    assert [each.request_name for each in write.mappings] == ["container-0-request-0"]


def test_what_may_help_a_pod_that_lacks_a_resource_which_no_class_served_when_it_was_rejected():
    """NodeResourcesFit rejected it, so that events of DynamicResources do not help."""
    profile, pod = default_profile(), pod_requesting(**{"cpu": "2", "example.com/gpu": "1"})
    served, other = (
        DeviceClass(metadata=ObjectMeta(name="gpu"), spec=DeviceClassSpec(extended_resource_name=name))
        for name in ("example.com/gpu", "example.com/nic")
    )
    implicit = pod_requesting(**{"deviceclass.resource.kubernetes.io/gpu": "1"})

    def helps(event: ClusterEvent, old: object, new: object, pod: Pod = pod) -> bool:
        return may_help(profile, {"NodeResourcesFit"}, event, pod, old, new)

    added, updated = (ClusterEvent(Resource.DEVICE_CLASS, action) for action in (Action.ADD, Action.UPDATE))
    assert (helps(added, None, served), helps(added, None, other)) == (True, False)
    assert (helps(updated, other, served), helps(updated, None, None)) == (True, True)
    assert (helps(added, None, other, implicit), helps(added, None, other, pod_requesting(cpu="2"))) == (True, False)
    assert helps(updated, None, None, pod_requesting(cpu="2")) is False
    node = ClusterEvent(Resource.NODE, Action.ADD)
    assert helps(node, None, a_node("n", cpu="4", pods="9"))
    assert not helps(node, None, a_node("n", cpu="1", pods="9"))


def test_the_claim_for_extended_resources_has_one_name_and_its_devices_count_once():
    world = world_of([slice_of("n1", gpus(2))], gpu={"extendedResourceName": "example.com/gpu"})
    pod = pod_requesting(**{"example.com/gpu": "2"})
    plugin, state = reserved(world, pod)
    (write,) = plugin.writes(state, pod, "n1")
    assert isinstance(write, CreateClaim)
    assert nodes_for(world, pod) == ["n1"], "it keeps its node, though all devices are in use"
    made = msgspec.to_builtins(write.claim)
    made["metadata"] |= {"uid": "uid-made"}
    world.apply({"kind": "ResourceClaim", **made})
    assert nodes_for(world, pod) == ["n1"], "its own claim is not one of an earlier cycle"
    show(world, write.claim.metadata.name, write.allocation, pod)
    assert plugin.pre_bind(state, pod, "n1").is_success
    plugin.finish_binding(state, pod, "n1")
    assert DeviceLedger.of(world.snapshot).owners_of(f"{DRIVER}/n1/gpu-0") == ("uid-made",)
    name = ClaimName(namespace="default", name=write.claim.metadata.name, uid="")
    assert plugin.releases(state, pod, "n1", sent=True) == (ReleaseClaim(claim=name, is_deleted=True),)


def test_a_changed_class_is_seen_at_once():
    world = world_of([slice_of("n1", gpus(2))])
    pod = pod_requesting(**{"example.com/gpu": "2"})
    assert ranked(world, pod).message.startswith("0/2 nodes are available: 2 Insufficient example.com/gpu.")
    spec = {"extendedResourceName": "example.com/gpu"}
    world.apply({"kind": "DeviceClass", "metadata": {"name": "gpu"}, "spec": spec})
    assert nodes_for(world, pod) == ["n1"]


# Events


def test_a_deallocated_claim_of_any_pod_requeues():
    world = world_of([slice_of("n1", gpus(1))], claim_of("a"), claim_of("b"))
    allocated = msgspec.convert({**claim_of("b"), "status": {"allocation": {}}}, ResourceClaim)
    freed = msgspec.convert(claim_of("b"), ResourceClaim)
    update = ClusterEvent(Resource.RESOURCE_CLAIM, Action.UPDATE)
    profile, pod = default_profile(), pod_with("a")
    assert may_help(profile, {"DynamicResources"}, update, pod, allocated, freed) is True
    assert may_help(profile, {"DynamicResources"}, update, pod, freed, allocated) is False
    own = world.named("ResourceClaim", "a", "default")
    assert may_help(profile, {"DynamicResources"}, ClusterEvent(Resource.RESOURCE_CLAIM, Action.ADD), pod, None, own)


def test_a_claim_for_extended_resources_that_is_gone_requeues_its_pod():
    """One of an earlier cycle rejects every node, and may have no devices yet."""
    pod, other = pod_requesting(**{"example.com/gpu": "1"}), pod_with("a", name="other")
    owner = {"apiVersion": "v1", "kind": "Pod", "name": pod.metadata.name, "uid": pod.uid, "controller": True}
    made = claim_of("made", annotations={EXTENDED_RESOURCE_CLAIM: "true"}, ownerReferences=[owner])
    gone = msgspec.convert(made, ResourceClaim)
    profile, delete = default_profile(), ClusterEvent(Resource.RESOURCE_CLAIM, Action.DELETE)
    assert may_help(profile, {"DynamicResources"}, delete, pod, gone, None) is True
    assert may_help(profile, {"DynamicResources"}, delete, other, gone, None) is False


def test_the_end_of_another_pods_wait_requeues():
    """Until then scorers count its devices, though its claims may be free by now."""
    profile, pod, delete = default_profile(), pod_with("a"), ClusterEvent(Resource.POD, Action.DELETE)
    waited = pod_with("b", name="waited", node_name="n1")
    assert may_help(profile, {"DynamicResources"}, delete, pod, waited, None) is True
    scheduled = PodCondition(type="PodScheduled", status="True", last_transition_time="2026-01-01T00:00:00Z")
    bound = pod_with("b", name="bound", node_name="n1", status={"conditions": [scheduled]})
    assert may_help(profile, {"DynamicResources"}, delete, pod, bound, None) is False, "its claims say it"


# Differences


def test_each_device_has_its_own_value_of_a_distinct_attribute():
    """140438: kube-scheduler remembers the last value only, and gives 1, 2, 1."""
    devices = [{"name": f"gpu-{i}", "attributes": {"numa": {"int": numa}}} for i, numa in enumerate((1, 2, 1, 3))]
    request = exactly("r", count=3)
    constraints = [{"distinctAttribute": f"{DRIVER}/numa"}]
    world = world_of([slice_of("n1", devices)], claim_of("a", request, constraints=constraints))
    plugin, state = reserved(world, pod_with("a"))
    (write,) = plugin.writes(state, pod_with("a"), "n1")
    assert write.allocation is not None
    assert [each.device for each in write.allocation.devices.results or ()] == ["gpu-0", "gpu-1", "gpu-3"]


def partitioned(driver: str, node: str = "n1") -> list[Json]:
    """Two partitions that exclude each other."""
    consumed = [{"counterSet": "memory", "counters": {"slots": {"value": "1"}}}]
    devices = [{"name": f"half-{i}", "consumesCounters": consumed} for i in range(2)]
    counters = [{"name": "memory", "counters": {"slots": {"value": "1"}}}]
    of_counters = slice_of(node, [], driver, 2, name=f"{driver}-{node}-counters", sharedCounters=counters)
    del of_counters["spec"]["devices"]
    return [slice_of(node, devices, driver, 2), of_counters]


def test_counters_of_two_drivers_with_pools_of_one_name_are_apart():
    """140434: kube-scheduler keys counters by pool without the driver."""
    slices = [*partitioned("one.example.com"), *partitioned("two.example.com")]
    pod = pod_with("a", "b")
    assert nodes_for(world_of(slices, claim_of("a"), claim_of("b")), pod) == ["n1"]
    assert nodes_for(world_of(slices, claim_of("a", exactly("r", count=3))), pod_with("a")) == []


def test_all_devices_of_an_incomplete_pool_reject_only_its_node():
    """141829: kube-scheduler ends the cycle with an error."""
    slices = [slice_of("n1", gpus(1), count=2), slice_of("n2", gpus(1))]
    world = world_of(slices, claim_of("a", exactly("r", allocationMode="All")))
    assert nodes_for(world, pod_with("a")) == ["n2"]


def test_administrators_need_no_counters():
    """140729: kube-scheduler refuses admin access to a partition whose counters are used up."""
    request = exactly("r", adminAccess=True, count=2)
    world = world_of(partitioned(DRIVER), claim_of("a"), claim_of("admin", request))
    reserved(world, pod_with("a"))
    assert nodes_for(world, pod_with("admin", name="other")) == ["n1"]


def test_slices_that_disagree_on_their_number_are_invalid():
    slices = [slice_of("n1", gpus(1), name="a", count=2), slice_of("n1", [{"name": "x"}], name="b", count=3)]
    message = ranked(world_of(slices, claim_of("a")), pod_with("a")).message
    assert "1 invalid resource pools were encountered" in message


def test_counters_of_an_allocated_device_that_is_gone_are_not_given_again():
    """140806: kube-scheduler forgets them with the device."""
    world = world_of([*partitioned(DRIVER), *partitioned(DRIVER, "n2")], claim_of("a"), claim_of("b"))
    plugin, state = reserved(world, pod_with("a"))
    (write,) = plugin.writes(state, pod_with("a"), "n1")
    show(world, "a", write.allocation, pod_with("a"))
    plugin.finish_binding(state, pod_with("a"), "n1")
    halves, _ = partitioned(DRIVER)
    halves["spec"]["devices"] = [{**halves["spec"]["devices"][1], "name": "new"}, {"name": "plain"}]
    world.apply(halves)
    other = pod_with("b", name="other")
    assert nodes_for(world, other) == ["n1", "n2"], "without counters"
    _, state = reserved(world, other)
    assert [each.devices.results[0].device for each in plugin.reserved(state).values()] == ["plain"]


def test_a_claim_that_was_allocated_without_a_timestamp_is_shared():
    """kube-scheduler would add the time, and the API server refuses that."""
    world, pod = world_of([slice_of("n1", gpus(1))], claim_of("a")), pod_with("a", name="other")
    plugin, state = reserved(world, pod_with("a"))
    (write,) = plugin.writes(state, pod_with("a"), "n1")
    show(world, "a", write.allocation, pod_with("a"))
    plugin.finish_binding(state, pod_with("a"), "n1")
    claim = world.named("ResourceClaim", "a", "default")
    without = msgspec.structs.replace(claim.status.allocation, allocation_timestamp=None)
    status = msgspec.structs.replace(claim.status, allocation=without)
    world.snapshot.objects(ResourceClaim).set("uid-a", msgspec.structs.replace(claim, status=status))
    plugin, state = reserved(world, pod)
    assert plugin.writes(state, pod, "n1") == (ReserveClaim(claim=name_of("a"), allocation=None),)


def test_a_claim_beside_an_extended_resource_of_a_device_plugin():
    """kube-scheduler never binds such a pod: it misses requests of a claim that is not needed."""
    world = world_of([slice_of("n1", gpus(2))], claim_of("a"), gpu={"extendedResourceName": "example.com/gpu"})
    allocatable = {"cpu": "9", "pods": "99", "example.com/gpu": "1"}
    world.apply({"kind": "Node", "metadata": {"name": "n1"}, "status": {"allocatable": allocatable}})
    claims = [PodResourceClaim(name="a", resource_claim_name="a")]
    pod = pod_requesting(**{"example.com/gpu": "1"})
    pod = msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, resource_claims=claims))
    assert nodes_for(world, pod) == ["n1"]
    plugin, state = reserved(world, pod)
    (write,) = plugin.writes(state, pod, "n1")
    assert isinstance(write, ReserveClaim)


def test_shares_of_a_device_without_capacity_take_its_counters_once():
    """kube-scheduler 1.36.3 counts them for each share; 1.37 does not."""
    slices = partitioned(DRIVER)
    for each in slices[0]["spec"]["devices"]:
        each["allowMultipleAllocations"] = True
    world = world_of(slices, claim_of("a"), claim_of("b"))
    reserved(world, pod_with("a"))
    other = pod_with("b", name="other")
    assert nodes_for(world, other) == ["n1"]
    plugin, state = reserved(world, other)
    assert [each.devices.results[0].device for each in plugin.reserved(state).values()] == ["half-0"]


def test_a_slice_of_another_node_with_a_higher_generation_takes_no_counters_away():
    """Nodes see the newest generation of the slices that concern them."""
    newer = slice_of("n2", gpus(1), name="newer")
    newer["spec"]["pool"] = {"name": "n1", "generation": 2, "resourceSliceCount": 1}
    world = world_of([*partitioned(DRIVER), newer], claim_of("a"), claim_of("b"))
    assert nodes_for(world, pod_with("a")) == ["n1", "n2"]
    reserved(world, pod_with("a"))
    assert nodes_for(world, pod_with("b", name="other")) == ["n2"]


def test_a_claim_that_the_pod_names_twice_gets_its_devices_once():
    world = world_of([slice_of("n1", gpus(1))], claim_of("a"))
    pod = pod_with("a", "a")
    assert nodes_for(world, pod) == ["n1"]
    plugin, state = reserved(world, pod)
    assert len(plugin.writes(state, pod, "n1")) == 1


def test_a_claim_that_another_pod_has_in_flight_is_not_said_to_be_freed():
    world = world_of([slice_of("n1", gpus(1)), slice_of("n2", gpus(1))], claim_of("a"), claim_of("b"))
    reserved(world, pod_with("a"))
    message = ranked(world, pod_with("a", "b", name="other")).message
    assert "1 resourceclaim not available on the node" in message
    assert "still not schedulable" in message
