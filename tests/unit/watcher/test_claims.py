"""Pods that wait for their ResourceClaims, and the events that requeue pods without devices."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from berth.api.devices import DeviceClass, DeviceClassSpec, ResourceClaim, ResourceClaimSpec, ResourceSlice
from berth.api.meta import ObjectMeta
from berth.api.pod import Pod, PodResourceClaim, PodResourceClaimStatus, PodSchedulingGate, ResourceRequirements
from berth.kube.listwatch import Current
from berth.messages.attempts import Outcome, Positions
from berth.messages.mirror import Watermark, decode_watermark, encode_watermark
from berth.messages.queue import PageRequest
from berth_watcher.events import StreamsRead
from berth_watcher.queue.queuedpod import Stage
from berth_watcher.stages.pods import CLAIM_SECONDS
from harness.worlds.watcher_world import WatcherUnderTest, a_node, a_pod

NOT_SERVED = Current(kind="resourceclaim", resource_version="0", unread="not served")
READ = Current(kind="resourceclaim", resource_version="7")
KINDS = ("node", "resourceclaim", "resourceslice", "deviceclass", "pod")


def with_claim(name: str, *, template: bool = False, version: int = 1, made: str = "", gates: bool = False) -> Pod:
    """A pod with one claim; ``made``: the claim that its status names for the template."""
    entry = (
        PodResourceClaim(name="gpu", resource_claim_template_name="t")
        if template
        else PodResourceClaim(name="gpu", resource_claim_name=name)
    )
    pod = a_pod(f"of-{name}", version=version)
    gated = [PodSchedulingGate(name="wait")] if gates else None
    spec = msgspec.structs.replace(pod.spec, resource_claims=[entry], scheduling_gates=gated)
    status = PodResourceClaimStatus(name="gpu", resource_claim_name=made)
    statuses = msgspec.structs.replace(pod.status, resource_claim_statuses=[status] if made else None)
    return msgspec.structs.replace(pod, spec=spec, status=statuses)


def a_claim(
    name: str, *, version: int = 1, device: str = "", owner: Pod | None = None, **metadata: Any
) -> ResourceClaim:
    meta: dict[str, Any] = {"name": name, "namespace": "default", "uid": f"uid-{name}", "resourceVersion": str(version)}
    if owner is not None:
        meta["ownerReferences"] = [{"kind": "Pod", "name": "x", "uid": owner.uid, "controller": True}]
    result = {"request": "gpu", "driver": "d", "pool": "p", "device": device}
    status = {"allocation": {"devices": {"results": [result]}}} if device else {}
    return msgspec.convert({"metadata": {**meta, **metadata}, "status": status}, ResourceClaim)


def stage_of(watcher: WatcherUnderTest, pod: Pod) -> Stage:
    queued = watcher.core.find(pod.uid)
    assert queued is not None
    return queued.stage


def why(watcher: WatcherUnderTest, pod: Pod) -> str:
    queued = watcher.core.find(pod.uid)
    assert queued is not None
    return queued.message


def published(watcher: WatcherUnderTest) -> list[str]:
    return [each.message.pod.metadata.name for each in watcher.published]


def reject(watcher: WatcherUnderTest, name: str) -> None:
    """By a ranking that has read everything."""
    positions = Positions(cluster=watcher.sequence)
    watcher.decide(name, Outcome.UNSCHEDULABLE, blockers=["DynamicResources"], positions=positions)
    watcher.advance(30)


def leading(*things: Any) -> WatcherUnderTest:
    return WatcherUnderTest(kinds=KINDS).lead(a_node("n1"), *things)


def test_a_pod_whose_claim_is_there_is_published_at_once_and_after_the_claim():
    watcher = leading()
    watcher.show(a_claim("a"))
    pod = with_claim("a")
    watcher.show(pod)
    assert published(watcher) == ["of-a"]
    assert watcher.published[0].message.after.cluster >= watcher.bucket["resourceclaim.uid-a"].sequence


def test_a_pod_without_its_claim_waits_with_a_reason_and_goes_on_when_the_claim_comes():
    watcher, pod = leading(), with_claim("a")
    watcher.show(pod)
    assert (stage_of(watcher, pod), why(watcher, pod)) == (Stage.GATED, 'could not find ResourceClaim "default/a"')
    watcher.show(a_claim("b"))
    assert stage_of(watcher, pod) is Stage.GATED
    watcher.show(a_claim("a"))
    assert published(watcher) == ["of-a"]
    assert watcher.published[0].message.after.cluster >= watcher.bucket["resourceclaim.uid-a"].sequence


def test_a_claim_of_a_template_is_awaited_in_both_orders():
    for status_first in (True, False):
        watcher, pod = leading(), with_claim("a", template=True)
        watcher.show(pod)
        lacks = 'ResourceClaimTemplate "t" may be missing'
        assert why(watcher, pod) == f'pod "default/of-a": ResourceClaim not created yet; {lacks}'
        steps = [lambda w=watcher: w.show(with_claim("a", template=True, version=2, made="a-gpu-x"))]
        steps.append(lambda w=watcher, p=pod: w.show(a_claim("a-gpu-x", owner=p)))
        for step in steps if status_first else reversed(steps):
            assert published(watcher) == []
            step()
        assert published(watcher) == ["of-a"]


def test_a_claim_that_is_being_deleted_or_of_another_pod_is_awaited():
    pod = with_claim("a", template=True, made="a-gpu-x")
    for claim, reason in (
        (a_claim("a-gpu-x", owner=pod, deletionTimestamp="2026-01-01T00:00:00Z"), "is being deleted"),
        (a_claim("a-gpu-x", owner=a_pod("other")), "was not created for Pod default/of-a (Pod is not owner)"),
    ):
        watcher = leading(claim)
        watcher.show(pod)
        assert why(watcher, pod).endswith(reason)
        watcher.delete(claim)
        watcher.show(a_claim("a-gpu-x", version=4, owner=pod, uid="uid-later"))
        assert published(watcher) == ["of-a"]


def test_after_some_seconds_it_is_ranked_all_the_same_so_that_it_gets_a_condition():
    watcher, pod = leading(), with_claim("a")
    watcher.show(pod)
    watcher.advance(CLAIM_SECONDS)
    assert published(watcher) == ["of-a"]
    reject(watcher, "of-a")
    assert (stage_of(watcher, pod), published(watcher)) == (Stage.UNSCHEDULABLE, ["of-a"])
    watcher.show(a_claim("a"))
    assert published(watcher) == ["of-a", "of-a"]


def test_a_gated_pod_without_its_claim_stays_gated():
    watcher, pod = leading(), with_claim("a", gates=True)
    watcher.show(pod)
    watcher.advance(CLAIM_SECONDS)
    assert (stage_of(watcher, pod), published(watcher)) == (Stage.GATED, [])


def test_a_pod_whose_status_names_a_claim_after_its_rejection_is_tried_again():
    pod = with_claim("a", template=True)
    watcher = leading(a_claim("a-gpu-x", owner=pod))
    watcher.show(pod)
    watcher.advance(CLAIM_SECONDS)
    reject(watcher, "of-a")
    watcher.show(with_claim("a", template=True, version=2, made="a-gpu-x"))
    assert published(watcher) == ["of-a", "of-a"]


def test_a_pod_in_flight_is_published_again_when_its_status_names_a_claim():
    pod = with_claim("a", template=True)
    watcher = leading(a_claim("a-gpu-x", owner=pod))
    watcher.show(pod)
    watcher.advance(CLAIM_SECONDS)
    watcher.show(with_claim("a", template=True, version=2, made="a-gpu-x"))
    assert published(watcher) == ["of-a", "of-a"]


def waiting_for_devices(*names: str) -> WatcherUnderTest:
    """Pods whose unallocated claims no node can serve; another claim has a device."""
    watcher = leading(a_claim("other", device="gpu-0"), *map(a_claim, names))
    for name in names:
        watcher.show(with_claim(name))
        reject(watcher, f"of-{name}")
    watcher.published.clear()
    return watcher


SLICE = ResourceSlice(metadata=ObjectMeta(name="s", uid="s", resource_version="1"))
CLASS = DeviceClass(metadata=ObjectMeta(name="gpu", uid="gpu", resource_version="1"))


@pytest.mark.parametrize(
    ("happens", "tried"),
    [
        pytest.param(lambda w: w.show(a_claim("other", version=2)), ["of-a", "of-b"], id="a claim is deallocated"),
        pytest.param(lambda w: w.delete(a_claim("other", device="gpu-0")), ["of-a", "of-b"], id="and deleted"),
        pytest.param(lambda w: w.show(a_claim("c")), [], id="a claim of another pod is new"),
        pytest.param(lambda w: w.show(a_claim("c", device="gpu-1")), [], id="and allocated"),
        pytest.param(lambda w: w.show(a_claim("a", version=2, device="gpu-1")), ["of-a"], id="its own is allocated"),
        pytest.param(lambda w: w.show(a_claim("a", version=2, finalizers=["f"])), [], id="its own gets a finalizer"),
        pytest.param(lambda w: w.show(SLICE), ["of-a", "of-b"], id="a slice"),
        pytest.param(lambda w: w.show(CLASS), ["of-a", "of-b"], id="a class"),
        pytest.param(lambda w: w.show(a_node("n2")), ["of-a", "of-b"], id="a node"),
        pytest.param(lambda w: w.show(a_pod("bound", node="n1")), [], id="a pod"),
    ],
)
def test_events_that_may_free_devices_requeue_pods_without_devices(happens, tried):
    watcher = waiting_for_devices("a", "b")
    happens(watcher)
    assert sorted(published(watcher)) == tried


def test_a_pod_waits_with_the_reason_while_claims_cannot_be_read_and_others_go_on():
    watcher, pod = leading(), with_claim("a")
    watcher.send(NOT_SERVED)
    watcher.show(pod, a_pod("plain"))
    assert (stage_of(watcher, pod), why(watcher, pod)) == (Stage.GATED, "not served")
    assert published(watcher) == ["plain"]
    watcher.show(a_claim("a"))
    assert why(watcher, pod) == "not served"
    watcher.send(READ)
    assert published(watcher) == ["plain", "of-a"]


def test_a_pod_that_was_rejected_because_claims_cannot_be_read_is_requeued_once_they_can():
    watcher, pod = leading(a_claim("a")), with_claim("a")
    watcher.send(NOT_SERVED)
    watcher.show(pod)
    watcher.advance(CLAIM_SECONDS + 1)
    reject(watcher, "of-a")
    assert stage_of(watcher, pod) is Stage.UNSCHEDULABLE
    watcher.send(READ)
    watcher.advance(30)
    assert published(watcher) == ["of-a", "of-a"]
    mirrored = watcher.bucket["watermark.resourceclaim"]
    assert decode_watermark(mirrored.data).unread == ""
    assert watcher.published[1].message.after.cluster >= 1


@pytest.mark.parametrize(("former", "now"), [("", NOT_SERVED), ("not served", READ)], ids=["lost", "gained"])
def test_a_new_watcher_mirrors_whether_claims_can_be_read_before_it_publishes(former: str, now: Current):
    watcher = WatcherUnderTest(kinds=KINDS, hold_writes=True)
    watcher.put("watermark.resourceclaim", encode_watermark(Watermark(term=1, resource_version="5", unread=former)))
    watcher.store.apply(now)
    watcher.list_objects(a_node("n1"), a_pod("plain"))
    watcher.take_over()
    watcher.read_bucket()
    watcher.send(StreamsRead())
    while not published(watcher):
        for effect in list(watcher.held_writes):
            watcher.answer_write(effect.key)
    assert decode_watermark(watcher.bucket["watermark.resourceclaim"].data).unread == now.unread


def test_room_on_a_node_without_the_resource_helps_a_pod_that_a_class_may_serve_there():
    bound = a_pod("bound", node="n1", cpu="4")
    watcher = leading(bound)
    pod = a_pod("asking", cpu="2")
    requests = {**(pod.spec.containers[0].resources.requests or {}), "example.com/gpu": "1"}
    container = msgspec.structs.replace(pod.spec.containers[0], resources=ResourceRequirements(requests=requests))
    spec = msgspec.structs.replace(pod.spec, containers=[container])
    watcher.show(msgspec.structs.replace(pod, spec=spec))
    positions = Positions(cluster=watcher.sequence)
    watcher.decide("asking", Outcome.UNSCHEDULABLE, blockers=["NodeResourcesFit"], positions=positions)
    watcher.advance(30)
    assert published(watcher) == ["asking"]
    watcher.delete(bound)
    watcher.advance(30)
    assert published(watcher) == ["asking", "asking"]


def test_pods_that_wait_for_unlike_devices_are_told_apart_however_they_name_their_claims():
    def asking(claim: ResourceClaim, device_class: str) -> ResourceClaim:
        requests = [{"name": "r", "exactly": {"deviceClassName": device_class}}]
        return msgspec.structs.replace(
            claim, spec=msgspec.convert({"devices": {"requests": requests}}, ResourceClaimSpec)
        )

    made_of_template = with_claim("c", template=True, made="c-gpu-x")
    watcher = leading(
        *(asking(a_claim(name), device_class) for name, device_class in (("a", "gpu"), ("b", "nic"))),
        asking(a_claim("c-gpu-x", owner=made_of_template), "gpu"),
    )
    watcher.show(with_claim("a"), with_claim("b"), made_of_template)
    for name in ("of-a", "of-b", "of-c"):
        reject(watcher, name)
    devices = {row.name: row.devices for row in watcher.core.answers.page(PageRequest(), watcher.now).pods}
    assert devices["of-a"] == devices["of-c"] != ""
    assert devices["of-b"] not in ("", devices["of-a"])


def test_configurations_of_claims_and_classes_are_neither_kept_nor_mirrored():
    config = b'[{"opaque":{"driver":"d","parameters":{"k":1}}}]'
    spec = msgspec.json.decode(b'{"devices":{"config":%b}}' % config, type=ResourceClaimSpec)
    metadata = ObjectMeta(name="gpu", resource_version="2")
    of_class = msgspec.json.decode(b'{"config":%b}' % config, type=DeviceClassSpec)
    watcher = leading(msgspec.structs.replace(a_claim("a"), spec=spec), DeviceClass(metadata=metadata, spec=of_class))
    for kind in ("resourceclaim", "deviceclass"):
        (kept,) = watcher.store.of(kind).values()
        assert b"parameters" not in msgspec.json.encode(kept)
    assert not [name for name, entry in watcher.bucket.items() if b"parameters" in entry.data]
