"""`berth devices`, and what would help a pod without devices."""

from __future__ import annotations

from typing import Any

import msgspec

from berth.api.devices import DeviceClass, ResourceClaim, ResourceSlice
from berth.api.pod import Pod, PodResourceClaim
from berth.cluster.snapshot import Snapshot
from berth_cli.commands.devices import device_lines, device_list
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
    assert ["d", "node-1", "gpu-1", "node-1", "claim", "default/idle"] in words(lines)
    assert "1 more" in lines[-1]


def test_devices_of_one_node_and_a_slice_that_is_left_out():
    snapshot = a_cluster()
    devices = [{"name": f"gpu-{i}"} for i in range(129)]
    body = {"metadata": {"name": "s"}, "spec": {"driver": "d", "pool": {"name": "p"}, "devices": devices}}
    snapshot.objects(ResourceSlice).set("s", msgspec.convert(body, ResourceSlice))
    found = device_list(snapshot, "node-2")
    assert {each.node for each in found.devices} == {"node-2"}
    assert found.refused == ["slice s: the slice has more than the API allows: 129 devices (at most 128)"]


def test_a_cluster_without_devices_says_so():
    assert printed(*device_lines(device_list(Snapshot()), rows=None)) == ["0 devices, 0 in use"]


def test_devices_that_match_are_in_use_and_others_do_not_match():
    texts = advice(a_cluster(*USED, a_claim("c", selector=SELECTOR)), a_pod_with("c"))
    asked = "asks for 1 device of class gpu (claim c, request r);"
    users = "default/train-1, default/train-2, claim default/idle"
    assert texts == [
        f"{asked} none matches on 1 node (node-2); nothing else refuses it there",
        f"{asked} 2 match, in use by {users}, on 1 node (node-1); nothing else refuses it there",
    ]


def test_more_devices_than_a_node_has():
    (text,) = advice(a_cluster(a_claim("c", count=3)), a_pod_with("c"))
    begin = "asks for 3 devices of class gpu (claim c, request r); 4 match, too few, on 2 nodes (node-1, node-2)"
    assert text == f"{begin}; nothing else refuses it there"


def test_devices_with_taints():
    (text,) = advice(a_cluster(a_claim("c"), taints=True), a_pod_with("c"))
    assert "4 match, with taints that it does not tolerate, on 2 nodes" in text


def test_a_claim_with_devices_elsewhere():
    texts = advice(a_cluster(a_claim("c", device="node-1/gpu-0")), a_pod_with("c", node_selector={"nowhere": "x"}))
    assert any("its claim c has node-1/gpu-0, which cannot be used from 1 node (node-2)" in text for text in texts)
