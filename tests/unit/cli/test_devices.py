"""`berth devices`, and what would help a pod without devices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from berth.api.devices import (
    AllocationResult,
    DeviceAllocationResult,
    DeviceClass,
    DeviceRequestAllocationResult,
    ResourceClaim,
    ResourceSlice,
)
from berth.api.pod import Pod, PodResourceClaim
from berth.cluster.snapshot import Snapshot
from berth_cli.commands.devices import device_lines, device_list, device_numbers, devices_of_pod
from berth_cli.options import NotFoundError
from berth_cli.remedies.rejections import remedies_of
from harness.builders.objects import a_node, a_pod
from harness.builders.profiles import default_profile
from harness.worlds.printed import printed, words

Json = dict[str, Any]
NODES = ("node-1", "node-2")
SELECTOR = 'device.attributes["d"].model == "h100"'


def a_cluster(*claims: Json, taints: bool = False) -> Snapshot:
    """Two nodes with two GPUs each; of the second another model."""
    snapshot = Snapshot()
    snapshot.objects(DeviceClass).set("gpu", msgspec.convert({"metadata": {"name": "gpu"}}, DeviceClass))
    for node, model in zip(NODES, ("h100", "a100"), strict=True):
        snapshot.set_node(a_node(node, cpu="9"))
        tainted = {"taints": [{"key": "worn", "effect": "NoSchedule"}]} if taints else {}
        devices = [{"name": f"gpu-{i}", "attributes": {"model": {"string": model}}, **tainted} for i in range(2)]
        pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
        body = {"metadata": {"name": node}, "spec": {"driver": "d", "pool": pool, "nodeName": node, "devices": devices}}
        snapshot.objects(ResourceSlice).set(node, msgspec.convert(body, ResourceSlice))
    for each in claims:
        snapshot.objects(ResourceClaim).set(each["metadata"]["uid"], msgspec.convert(each, ResourceClaim))
    return snapshot


def a_claim(name: str, *, count: int = 1, selector: str = "", device: str = "", pods: tuple[str, ...] = ()) -> Json:
    exactly: Json = {"deviceClassName": "gpu", "count": count}
    if selector:
        exactly["selectors"] = [{"cel": {"expression": selector}}]
    status: Json = {}
    if device:
        pool, _, named = device.partition("/")
        result = {"request": "r", "driver": "d", "pool": pool, "device": named}
        only = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [pool]}]}
        allocation = {"devices": {"results": [result]}, "nodeSelector": {"nodeSelectorTerms": [only]}}
        reserved = [{"resource": "pods", "name": pod, "uid": f"uid-{pod}"} for pod in pods]
        status = {"allocation": allocation, "reservedFor": reserved}
    metadata = {"name": name, "namespace": "default", "uid": f"uid-{name}"}
    return {
        "metadata": metadata,
        "spec": {"devices": {"requests": [{"name": "r", "exactly": exactly}]}},
        "status": status,
    }


USED = (
    a_claim("a", device="node-1/gpu-0", pods=("train-1", "train-2")),
    a_claim("idle", device="node-1/gpu-1"),
)


def a_pod_with(claim: str, **spec: Any) -> Pod:
    return a_pod("web", resource_claims=[PodResourceClaim(name="gpu", resource_claim_name=claim)], **spec)


def advice(snapshot: Snapshot, pod: Pod) -> list[str]:
    return [each.text for each in remedies_of(pod, snapshot, default_profile())]


def test_each_device_has_its_node_and_its_users():
    found = device_list(a_cluster(*USED))
    assert [(each.driver, each.pool, each.device, each.node, each.used_by) for each in found.devices] == [
        ("d", "node-1", "gpu-0", "node-1", ["default/train-1", "default/train-2"]),
        ("d", "node-1", "gpu-1", "node-1", ["claim default/idle"]),
        ("d", "node-2", "gpu-0", "node-2", []),
        ("d", "node-2", "gpu-1", "node-2", []),
    ]
    lines = printed(*device_lines(found, rows=3))
    assert lines[0] == "4 devices, 2 in use"
    assert ["d", "node-1", "gpu-1", "node-1", "model", "h100", "claim", "default/idle"] in words(lines)
    assert "1 more" in lines[-1]


def test_devices_have_attributes_and_what_keeps_pods_from_them():
    snapshot = a_cluster()
    large = {"capacity": {"d/memory": {"value": "80Gi"}}, "taints": [WORN, {"key": "noted", "effect": "None"}]}
    change_devices(snapshot, "node-1", lambda i: large if i else {})
    change(snapshot, "node-2", lambda body: body["spec"]["pool"].update(resourceSliceCount=2))
    take(snapshot, "node-1/gpu-9")
    found = device_list(snapshot)
    assert [(each.device, each.attributes, each.capacity, each.taints, each.state) for each in found.devices] == [
        ("gpu-9", {}, {}, [], "in no slice"),
        ("gpu-0", {"model": "h100"}, {}, [], ""),
        ("gpu-1", {"model": "h100"}, {"memory": "80Gi"}, ["worn=much:NoExecute"], ""),
        ("gpu-0", {"model": "a100"}, {}, [], "its pool is being updated"),
        ("gpu-1", {"model": "a100"}, {}, [], "its pool is being updated"),
    ]
    lines = "\n".join(printed(*device_lines(found, rows=None), width=200))
    assert "model h100, memory 80Gi" in lines
    assert "taint worn=much:NoExecute" in lines
    assert "default/user-of-gpu-9" in lines
    of_node = device_list(snapshot, "node-1").devices
    assert [(each.device, each.node, each.state) for each in of_node] == [
        ("gpu-0", "node-1", ""),
        ("gpu-1", "node-1", ""),
        ("gpu-9", "node-1", "in no slice"),
    ]
    with pytest.raises(NotFoundError, match="the mirror has no such node"):
        device_list(snapshot, "node-9")


def test_top_counts_the_devices_of_a_nodes_own_pools():
    snapshot = a_cluster(*USED)
    assert [device_numbers(snapshot, snapshot.node_at(snapshot.rows.of(node))) for node in NODES] == [(2, 2), (0, 2)]
    change(snapshot, "node-2", lambda body: body["spec"].update(nodeName=None, allNodes=True))
    assert device_numbers(snapshot, snapshot.node_at(snapshot.rows.of("node-2"))) == (0, 0)


def test_a_pods_devices_are_those_of_its_claims_and_else_those_of_its_decision():
    snapshot = a_cluster(*USED)
    (found,) = devices_of_pod(snapshot, "uid-train-2", {})
    assert (found.claim, found.request, found.pool, found.device) == ("default/a", "r", "node-1", "gpu-0")
    assert (found.used_by, found.attributes) == (["default/train-1", "default/train-2"], {"model": "h100"})
    result = DeviceRequestAllocationResult(request="r", driver="d", pool="gone", device="gpu-7")
    decided = {"uid-deleted": AllocationResult(devices=DeviceAllocationResult(results=[result]))}
    (found,) = devices_of_pod(snapshot, "uid-nobody", decided)
    assert (found.claim, found.pool, found.device, found.state) == ("", "gone", "gpu-7", "in no slice")
    assert devices_of_pod(snapshot, "uid-nobody", {}) == []


def test_devices_of_one_node_and_a_slice_that_is_left_out():
    snapshot = a_cluster()
    devices = [{"name": f"gpu-{i}"} for i in range(129)]
    body = {"metadata": {"name": "s"}, "spec": {"driver": "d", "pool": {"name": "p"}, "devices": devices}}
    snapshot.objects(ResourceSlice).set("s", msgspec.convert(body, ResourceSlice))
    found = device_list(snapshot, "node-2")
    assert {each.node for each in found.devices} == {"node-2"}
    assert found.refused == ["slice s: the slice has more than the API allows: 129 devices (at most 128)"]


def test_a_node_whose_slice_is_deleted_shows_the_devices_that_claims_still_have():
    snapshot = a_cluster(*USED, a_claim("b", device="node-2/gpu-0"))
    snapshot.objects(ResourceSlice).remove("node-1")
    of_node = [(each.device, each.node, each.used_by, each.state) for each in device_list(snapshot, "node-1").devices]
    assert of_node == [
        ("gpu-0", "node-1", ["default/train-1", "default/train-2"], "in no slice"),
        ("gpu-1", "node-1", ["claim default/idle"], "in no slice"),
    ]
    assert {each.state for each in device_list(snapshot, "node-2").devices} == {""}


def test_a_pool_with_a_slice_that_is_left_out_is_named_with_the_reason():
    snapshot = a_cluster(a_claim("c", selector=SELECTOR))
    change(snapshot, "node-1", lambda body: body["spec"].update(leftOut="cannot be read: Expected `array`"))
    [text] = [text for text in advice(snapshot, a_pod_with("c")) if "(node-1)" in text]
    assert "where pool d/node-1 is incomplete (slice node-1: the slice cannot be read: Expected `array`)" in text


def test_a_cluster_without_devices_says_so():
    assert printed(*device_lines(device_list(Snapshot()), rows=None)) == ["0 devices, 0 in use"]


ASKED = "asks for 1 device of class gpu (claim c, request r);"
ALONE = "nothing else refuses it there"


def test_a_pod_that_waits_is_told_which_devices_match_and_who_has_them():
    texts = advice(a_cluster(*USED, a_claim("c", selector=SELECTOR)), a_pod_with("c"))
    users = "gpu-0 is taken by default/train-1 and default/train-2, gpu-1 is taken by claim default/idle"
    assert texts == [
        f"{ASKED} 2 of 2 match on 1 node (node-1) where {users}; {ALONE}",
        f"{ASKED} none of 2 matches on 1 node (node-2) where 2 do not meet {SELECTOR}; {ALONE}",
    ]


def test_a_device_of_several_is_named_with_its_taint():
    snapshot = a_cluster(USED[0], a_claim("c", selector=SELECTOR))
    change_devices(snapshot, "node-1", lambda i: {"taints": [WORN]} if i else {})
    texts = advice(snapshot, a_pod_with("c"))
    users = "gpu-0 is taken by default/train-1 and default/train-2"
    assert f"2 of 2 match on 1 node (node-1) where {users}, gpu-1 has the taint worn=much:NoExecute; " in texts[0]


def test_a_selector_that_fails_is_named_with_the_device_though_the_cycle_ends_in_an_error():
    """kube-scheduler's message, which Event and condition have, names no device."""
    expression = 'device.attributes["d"].serial == "1"'
    snapshot = a_cluster(a_claim("c", selector=expression))
    change_devices(snapshot, "node-1", lambda i: {"attributes": {"d/serial": {"string": "1"}}} if not i else {})
    error = "CEL runtime error: no such key: serial"
    assert advice(snapshot, a_pod_with("c")) == [
        f"{ASKED} a selector cannot be evaluated on 1 node (node-2) where {expression} fails on gpu-0: {error}; {ALONE}"
    ]


def test_a_misspelt_domain_is_named_with_that_of_the_device():
    expression = 'device.attributes["gpu.examples.com"].model == "h100"'
    (text,) = advice(a_cluster(a_claim("c", selector=expression)), a_pod_with("c"))
    assert "no such key: model (it has no attributes of gpu.examples.com, but of d); " in text


def test_of_many_devices_each_kind_of_hindrance_is_named():
    snapshot = a_cluster(a_claim("c"))
    change_devices(snapshot, "node-1", lambda i: {"taints": [WORN]} if i == 7 else {}, number=8)
    change_devices(snapshot, "node-2", lambda _: {}, number=0)
    for i in range(7):
        take(snapshot, f"node-1/gpu-{i}")
    texts = advice(snapshot, a_pod_with("c"))
    taken = ", ".join(f"gpu-{i} is taken by default/user-of-gpu-{i}" for i in range(2))
    worn = "gpu-7 has the taint worn=much:NoExecute"
    assert texts == [
        f"{ASKED} 8 of 8 match on 1 node (node-1) where {taken}, {worn}, and 5 more; {ALONE}",
        f"{ASKED} there is none on 1 node (node-2); {ALONE}",
    ]


def test_more_devices_than_a_node_has():
    (text,) = advice(a_cluster(a_claim("c", count=3)), a_pod_with("c"))
    match = "4 of 4 match, at most 2 together, on 2 nodes (node-1, node-2)"
    assert text == f"asks for 3 devices of class gpu (claim c, request r); {match}; {ALONE}"


def test_nodes_with_devices_come_before_more_nodes_that_have_none():
    snapshot = a_cluster(*USED, a_claim("c", selector=SELECTOR))
    for number in range(3, 9):
        snapshot.set_node(a_node(f"node-{number}", cpu="9"))
    first, *others = advice(snapshot, a_pod_with("c"))
    assert first.startswith(f"{ASKED} 2 of 2 match on 1 node (node-1) where gpu-0 is taken by ")
    assert [text.split(" on ")[0] for text in others] == [f"{ASKED} there is none", f"{ASKED} none of 2 matches"]


def test_devices_of_several_nodes_are_named_with_their_pools():
    (text,) = advice(a_cluster(a_claim("c"), taints=True), a_pod_with("c"))
    assert (
        f"{ASKED} 4 of 4 match on 2 nodes (node-1, node-2) where node-1/gpu-0 has the taint worn:NoSchedule, " in text
    )


def test_a_pool_that_is_being_updated_is_named():
    snapshot = a_cluster(a_claim("c", selector=SELECTOR))
    change(snapshot, "node-1", lambda body: body["spec"]["pool"].update(resourceSliceCount=2))
    texts = advice(snapshot, a_pod_with("c"))
    assert f"{ASKED} there is none on 1 node (node-1) where pool d/node-1 is being updated; {ALONE}" in texts


def test_a_constraint_that_free_devices_do_not_meet_is_named():
    claim = a_claim("c", count=2)
    claim["spec"]["devices"]["constraints"] = [{"distinctAttribute": "d/model"}]
    (text,) = advice(a_cluster(claim), a_pod_with("c"))
    match = "4 of 4 match, but not with all else that the pod asks for, on 2 nodes (node-1, node-2)"
    assert f"{match} where they must have different values of d/model" in text


def test_a_long_expression_is_shortened():
    selector = f"{SELECTOR} &&\n  {' && '.join(['true'] * 20)}"
    texts = advice(a_cluster(*USED, a_claim("c", selector=selector)), a_pod_with("c"))
    assert "where 2 do not meet " in "".join(texts)
    assert all(len(text) < 250 and "\n" not in text for text in texts)


@pytest.mark.parametrize("kind", ["capacity", "counters"])
def test_what_is_left_of_shared_devices(kind: str):
    snapshot = a_cluster(a_claim("c"))
    change_devices(snapshot, "node-2", lambda _: {}, number=0)
    if kind == "capacity":
        change_devices(snapshot, "node-1", lambda _: SHARED, number=1)
        take(snapshot, "node-1/gpu-0", shareID="1", consumedCapacity={"memory": "80Gi"})
        told = "gpu-0 has too little capacity left beside default/user-of-gpu-0"
    else:
        change_devices(snapshot, "node-1", lambda _: PART, number=2, more=COUNTERS)
        take(snapshot, "node-1/gpu-0")
        told = "gpu-0 is taken by default/user-of-gpu-0, gpu-1 shares what others of its pool have taken"
    assert f" where {told}; " in advice(snapshot, a_pod_with("c"))[0]


def test_a_claim_with_devices_elsewhere():
    texts = advice(a_cluster(a_claim("c", device="node-1/gpu-0")), a_pod_with("c", node_selector={"nowhere": "x"}))
    assert any("its claim c has node-1/gpu-0, which cannot be used from 1 node (node-2)" in text for text in texts)


def test_devices_that_were_not_bound():
    claim = a_claim("c", device="node-1/gpu-0")
    (result,) = claim["status"]["allocation"]["devices"]["results"]
    result |= {"bindingConditions": ["attached"], "bindingFailureConditions": ["broken"]}
    failed = {"type": "broken", "status": "True", "reason": "Cable", "message": "loose"}
    claim["status"]["devices"] = [{"driver": "d", "pool": "node-1", "device": "gpu-0", "conditions": [failed]}]
    (text,) = advice(a_cluster(claim), a_pod_with("c"))
    assert text == 'its claim c has node-1/gpu-0: device binding failed: claim=c, reason=Cable, message="loose"'


WORN = {"key": "worn", "value": "much", "effect": "NoExecute"}
SHARED = {"allowMultipleAllocations": True, "capacity": {"memory": {"value": "80Gi"}}}
PART = {"consumesCounters": [{"counterSet": "whole", "counters": {"memory": {"value": "80Gi"}}}]}
COUNTERS = {"name": "node-1-counters", "sharedCounters": [{"name": "whole", "counters": {"memory": {"value": "80Gi"}}}]}


def change(snapshot: Snapshot, name: str, edit: Callable[[Json], object]) -> None:
    slices = snapshot.objects(ResourceSlice)
    body = msgspec.to_builtins(slices.named(name))
    edit(body)
    slices.set(name, msgspec.convert(body, ResourceSlice))


def change_devices(
    snapshot: Snapshot, node: str, of: Callable[[int], Json], *, number: int = 2, more: Json | None = None
) -> None:
    """Other devices of the node, and a slice more."""

    def edit(body: Json) -> None:
        old = body["spec"]["devices"][0]
        body["spec"]["devices"] = [{**old, "name": f"gpu-{i}", **of(i)} for i in range(number)]
        body["spec"]["pool"]["resourceSliceCount"] = 1 + bool(more)

    change(snapshot, node, edit)
    if more is not None:
        pool = {"name": node, "generation": 1, "resourceSliceCount": 2}
        spec = {"driver": "d", "pool": pool, "nodeName": node, "sharedCounters": more["sharedCounters"]}
        body = {"metadata": {"name": more["name"]}, "spec": spec}
        snapshot.objects(ResourceSlice).set(more["name"], msgspec.convert(body, ResourceSlice))


def take(snapshot: Snapshot, device: str, **result: Any) -> None:
    name = device.rpartition("/")[2]
    claim = a_claim(f"of-{name}", device=device, pods=(f"user-of-{name}",))
    claim["status"]["allocation"]["devices"]["results"][0] |= result
    snapshot.objects(ResourceClaim).set(claim["metadata"]["uid"], msgspec.convert(claim, ResourceClaim))
