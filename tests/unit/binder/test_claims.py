"""Pods with ResourceClaims: devices are held in stream order, written before the Binding, and taken back (ADR 67)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from berth.api.devices import (
    AllocationResult,
    ClaimConsumer,
    DeviceClaimConfiguration,
    DeviceClass,
    ResourceClaim,
    ResourceClaimStatus,
    ResourceSlice,
)
from berth.api.kinds import DEVICE_CLASS, RESOURCE_CLAIM, RESOURCE_SLICE
from berth.api.pod import Container, Pod, PodResourceClaim, ResourceRequirements
from berth.framework.interface import ClaimName, FreeClaim, ReleaseClaim
from berth.kube.listwatch import Deleted, Listed, Upserted
from berth.messages.attempts import Outcome, Reason
from berth_binder.attempts.queue import ClaimTurns
from berth_binder.eventrecorder.records import event_of
from berth_binder.events import (
    NO_ANSWER,
    PodShown,
    PostBinding,
    RecordEvent,
    ReleaseAnswer,
    ReleaseClaims,
    RequestFailed,
    WriteObjects,
    WritesAnswer,
)
from berth_binder.settings import CoreSettings
from harness.builders.objects import a_node
from harness.worlds.binder_bench import Bench, make_pod, nominated, on_node, ranked

DRIVER = "gpu.example.com"


def claim_of(name: str, version: int = 2, **status: Any) -> ResourceClaim:
    request = {"name": "r", "exactly": {"deviceClassName": "gpu"}}
    metadata = {"name": name, "namespace": "default", "uid": f"uid-{name}", "resourceVersion": str(version)}
    body = {"metadata": metadata, "spec": {"devices": {"requests": [request]}}, "status": status}
    return msgspec.convert(body, ResourceClaim)


def using(name: str, *claims: str, **given: Any) -> Pod:
    entries = [PodResourceClaim(name=each, resource_claim_name=each) for each in claims]
    return make_pod(name, spec={"resource_claims": entries}, **given)


def name_of(claim: str) -> ClaimName:
    return ClaimName(namespace="default", name=claim, uid=f"uid-{claim}")


class World(Bench):
    """A bench with devices: one GPU on each of the first two nodes, unless told otherwise."""

    def add_devices(self, **devices: int) -> None:
        for node, count in devices.items():
            self.show_slice(node, [{"name": f"gpu-{i}"} for i in range(count)])
        made = msgspec.convert({"metadata": {"name": "gpu", "resourceVersion": "2"}}, DeviceClass)
        self.observe(Upserted(kind=DEVICE_CLASS.name, object=made))

    def show_slice(self, node: str, devices: list[Any]) -> None:
        pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
        spec = {"driver": DRIVER, "nodeName": node, "pool": pool, "devices": devices}
        made = msgspec.convert({"metadata": {"name": node, "resourceVersion": "2"}, "spec": spec}, ResourceSlice)
        self.observe(Upserted(kind=RESOURCE_SLICE.name, object=made))

    def show_claim(self, claim: ResourceClaim) -> list[Any]:
        self.observe(Upserted(kind=RESOURCE_CLAIM.name, object=claim))
        told, self.shown[:] = list(self.shown), []
        return [effect for uid in told for effect in self.handle(PodShown(uid=uid))]

    def allocated(self, name: str, allocation: AllocationResult | None, version: int, *pods: Pod) -> list[Any]:
        """The watch shows the claim with this allocation, reserved for the pods."""
        users = [{"resource": "pods", "name": pod.metadata.name, "uid": pod.uid} for pod in pods]
        return self.show_claim(
            claim_of(name, version, allocation=msgspec.to_builtins(allocation), reservedFor=users or None)
        )

    def written(self, pod: Pod, version: int = 0, status: int = 200) -> list[Any]:
        versions = {RESOURCE_CLAIM.name: version} if version else {}
        conflict = Reason.CLAIMS
        return self.handle(
            WritesAnswer(uid=pod.uid, status=status, message="so it is", versions=versions, conflict=conflict)
        )

    def released(self, pod: Pod, version: int = 0, status: int = 200) -> list[Any]:
        return self.handle(ReleaseAnswer(uid=pod.uid, status=status, version=version))

    def writes(self, pod: Pod) -> list[Any]:
        sent = [each for each in self.effects if isinstance(each, WriteObjects) and each.pod.uid == pod.uid]
        return [*sent[-1].requests] if sent else []

    def releases(self, pod: Pod) -> list[ReleaseClaims]:
        return [each for each in self.effects if isinstance(each, ReleaseClaims) and each.pod.uid == pod.uid]

    def devices(self, pod: Pod) -> list[str]:
        found = [each.allocation for each in self.writes(pod)]
        return [result.key for each in found if each is not None for result in each.devices.results or ()]

    @property
    def posts(self) -> list[tuple[str, str]]:
        return [(each.pod.metadata.name, each.node) for each in self.effects if isinstance(each, PostBinding)]

    def owners(self, device: str) -> tuple[str, ...]:
        return self.cache.devices.owners_of(f"{DRIVER}/{device}")


@pytest.fixture
def world() -> World:
    world = World()
    world.add_devices(n1=1, n2=1)
    for name in ("a", "b"):
        world.show_claim(claim_of(name))
    return world


def test_a_claim_is_written_seen_and_then_the_pod_is_bound(world):
    pod = world.show(using("web", "a"))
    world.take(ranked(pod, "n1"))
    assert (world.devices(pod), world.posts) == ([f"{DRIVER}/n1/gpu-0"], [])
    world.written(pod, version=7)
    assert (world.posts, world.outcomes) == ([], [])
    (write,) = world.writes(pod)
    world.allocated("a", write.allocation, 7, pod)
    assert (world.posts, world.outcomes) == ([("web", "n1")], [])
    world.answer(pod, 201)
    assert world.outcomes == ["bound"]
    assert [*world.decisions[-1].devices] == ["uid-a"]
    assert world.owners("n1/gpu-0") == ("uid-a",)
    assert world.cache.devices.assumed("uid-a") is None


def test_a_wait_for_the_watch_is_reported_when_it_lasts(world):
    pod = world.show(using("web", "a"))
    world.take(ranked(pod, "n1"))
    world.written(pod, version=7)
    world.wait(1)
    assert world.decisions[-1].message == (
        "waiting for the API server: the watch has not shown the writes before the Binding yet"
    )
    world.allocated("a", world.writes(pod)[0].allocation, 7, pod)
    assert world.posts == [("web", "n1")]


def test_the_binders_own_ledger_decides_in_stream_order(world):
    one, two = world.show(using("one", "a")), world.show(using("two", "b"))
    world.take(ranked(one, "n1"))
    world.take(ranked(two, "n1", "n2"))
    assert (world.devices(one), world.devices(two)) == ([f"{DRIVER}/n1/gpu-0"], [f"{DRIVER}/n2/gpu-0"])
    three = world.show(using("three", "b"))
    world.take(ranked(three, "n1"))
    assert world.outcomes == ["conflict"]


def test_a_refused_binding_gives_the_devices_back_before_the_decision(world):
    pod, other = world.show(using("web", "a")), world.show(using("other", "b"))
    world.take(ranked(pod, "n1"))
    world.written(pod, version=7)
    world.allocated("a", world.writes(pod)[0].allocation, 7, pod)
    world.answer(pod, 422)
    (release,) = world.releases(pod)
    assert release.requests == (ReleaseClaim(claim=name_of("a")),)
    assert world.outcomes == []
    world.take(ranked(other, "n1"))
    assert [str(each.outcome) for each in world.decisions] == ["conflict"], "they are in use until then"
    world.released(pod, version=9)
    assert world.outcomes[-1] == "error"


def test_a_release_is_repeated_until_it_is_answered(world):
    pod = world.show(using("web", "a"))
    world.take(ranked(pod, "n1"))
    world.written(pod, status=409)
    world.released(pod, status=NO_ANSWER)
    world.handle(RequestFailed(uid=pod.uid, error="odd"))
    assert world.outcomes == []
    world.wait(5)
    assert len(world.releases(pod)) == 2
    assert [each.voids for each in world.releases(pod)] == [False, True]
    world.handle(RequestFailed(uid=pod.uid, error="odd"))
    for _ in range(10):
        world.wait(5)
        world.handle(RequestFailed(uid=pod.uid, error="odd"))
    assert set(world.outcomes) == {"waiting"}
    world.wait(5)
    world.released(pod, version=9)
    assert (world.decisions[-1].outcome, world.decisions[-1].reason) == (Outcome.CONFLICT, Reason.CLAIMS)
    assert world.owners("n1/gpu-0") == ()


def test_a_write_without_an_answer_is_sent_again_and_voided_at_the_end(world):
    pod = world.show(using("web", "a"))
    world.take(ranked(pod, "n1"))
    first = world.writes(pod)
    world.written(pod, status=NO_ANSWER)
    world.wait(1)
    assert world.writes(pod) == first
    world.written(pod, status=409)
    (release,) = world.releases(pod)
    assert release.voids


def test_a_node_that_goes_takes_the_devices_back(world):
    pod = world.show(using("web", "a"))
    world.take(ranked(pod, "n1", "n2"))
    world.observe(Deleted(kind="node", object=a_node("n1")))
    world.written(pod, version=7)
    assert [each.requests for each in world.releases(pod)] == [(ReleaseClaim(claim=name_of("a")),)]
    world.released(pod, version=9)
    assert (world.outcomes, world.owners("n1/gpu-0")) == (["conflict"], ())


def test_nothing_is_released_before_anything_was_sent(world):
    pod = world.show(using("web", "a"))
    world.take(ranked(pod, "n3"))
    assert (world.outcomes, world.releases(pod)) == (["conflict"], [])


def test_a_pod_that_another_client_has_bound_keeps_its_claims(world):
    pod = world.show(using("web", "a"))
    world.take(ranked(pod, "n1"))
    world.written(pod, version=7)
    world.allocated("a", world.writes(pod)[0].allocation, 7, pod)
    world.answer(pod, 409)
    world.reading(pod, on_node(pod, "n2"))
    assert (world.outcomes, world.releases(pod)) == (["gone"], [])


def test_a_deleted_pod_gives_its_devices_back(world):
    pod = world.show(using("web", "a"))
    world.take(ranked(pod, "n1"))
    world.written(pod, version=7)
    world.allocated("a", world.writes(pod)[0].allocation, 7, pod)
    world.answer(pod, 404)
    assert len(world.releases(pod)) == 1
    world.released(pod)
    assert world.outcomes == ["gone"]


def test_no_pod_finds_an_allocation_that_is_gone(world):
    """Its watch shows the claim as reserved for the pod until it has reached the release."""
    pod = world.show(using("web", "a"))
    world.take(ranked(pod, "n1"))
    world.written(pod, version=7)
    allocation = world.writes(pod)[0].allocation
    world.allocated("a", allocation, 7, pod)
    world.answer(pod, 422)
    world.released(pod, version=9)
    world.take(ranked(pod, "n1", n=2))
    assert len(world.posts) == 1
    effects = world.allocated("a", None, 9)
    assert [type(each) for each in effects if isinstance(each, WriteObjects | PostBinding)] == [WriteObjects]


def test_pods_with_extended_resources_wait_for_releases_too(world):
    gpu = {"metadata": {"name": "gpu", "resourceVersion": "3"}, "spec": {"extendedResourceName": "example.com/gpu"}}
    world.observe(Upserted(kind=DEVICE_CLASS.name, object=msgspec.convert(gpu, DeviceClass)))
    other = world.show(using("other", "b"))
    world.take(ranked(other, "n2"))
    world.written(other, status=409)
    world.released(other, version=9)
    resources = ResourceRequirements(requests={"example.com/gpu": "1"})
    pod = world.show(make_pod("web", spec={"containers": [Container(name="c", resources=resources)]}))
    world.take(ranked(pod, "n1"))
    assert world.writes(pod) == []
    world.show_claim(claim_of("a", 9))
    assert len(world.writes(pod)) == 1


def test_a_release_of_another_pod_does_not_shorten_the_wait_for_the_own_write(world):
    one, two = world.show(using("one", "a")), world.show(using("two", "b"))
    world.take(ranked(one, "n1"))
    world.take(ranked(two, "n2"))
    world.written(two, version=12)
    world.written(one, status=409)
    world.released(one, version=9)
    world.wait(1)
    world.allocated("a", None, 9)
    assert world.posts == []
    world.allocated("b", world.writes(two)[0].allocation, 12, two)
    assert world.posts == [("two", "n2")]


def test_two_pods_share_a_claim_that_is_in_flight(world):
    one, two = world.show(using("one", "a")), world.show(using("two", "a"))
    world.take(ranked(one, "n1"))
    world.take(ranked(two, "n1", "n2"))
    assert world.devices(one) == world.devices(two) == [f"{DRIVER}/n1/gpu-0"]
    allocation = world.writes(one)[0].allocation
    world.written(one, status=409)
    world.released(one, version=5)
    assert world.owners("n1/gpu-0") == ("uid-a",), "the other one still needs it"
    world.written(two, version=7)
    world.allocated("a", allocation, 7, two)
    assert world.posts == [("two", "n1")]


def test_a_device_that_another_scheduler_gave_first_is_given_back(world):
    pod = world.show(using("web", "a"))
    world.take(ranked(pod, "n1"))
    allocation = world.writes(pod)[0].allocation
    world.allocated("b", allocation, 6, using("foreign", "b"))
    world.written(pod, version=7)
    world.allocated("a", allocation, 7, pod)
    assert (world.posts, len(world.releases(pod))) == ([], 1)
    world.released(pod, version=8)
    assert world.decisions[-1].outcome is Outcome.UNSCHEDULABLE
    assert world.decisions[-1].message == f"device {DRIVER}/n1/gpu-0 was given to another claim by another scheduler"
    assert world.cache.devices.take_conflicts() == [(f"{DRIVER}/n1/gpu-0", ("uid-b", "uid-a"))]


def test_of_two_allocations_in_one_list_ours_is_given_back(world):
    pod = world.show(using("web", "a"))
    world.take(ranked(pod, "n1"))
    allocation = world.writes(pod)[0].allocation
    world.written(pod, version=7)
    users = [{"resource": "pods", "name": "web", "uid": pod.uid}]
    status = {"allocation": msgspec.to_builtins(allocation), "reservedFor": users}
    claims = [claim_of("a", 7, **status), claim_of("b", 8, allocation=status["allocation"])]
    world.observe(Listed(kind=RESOURCE_CLAIM.name, objects=claims, resource_version="9"))
    world.tell_of_shown()
    assert (world.posts, len(world.releases(pod))) == ([], 1)


def test_a_device_given_again_after_us_does_not_stop_the_pod(world):
    pod = world.show(using("web", "a"))
    world.take(ranked(pod, "n1"))
    allocation = world.writes(pod)[0].allocation
    world.allocated("a", allocation, 7, pod)
    world.allocated("b", allocation, 8, using("foreign", "b"))
    world.written(pod, version=7)
    assert world.posts == [("web", "n1")]


def test_a_successor_goes_on_with_a_claim_that_is_reserved_for_the_pod(world):
    pod = world.show(using("web", "a"))
    world.take(ranked(pod, "n1"))
    allocation = world.writes(pod)[0].allocation
    world.allocated("a", allocation, 7, pod)
    world.succeed()
    world.effects.clear()
    world.take(ranked(pod, "n2", "n1"))
    assert (world.writes(pod), world.posts) == ([], [("web", "n1")])
    world.answer(pod, 422)
    assert [each.requests for each in world.releases(pod)] == [(ReleaseClaim(claim=name_of("a")),)]


def test_claims_that_keep_the_pod_out_are_freed_by_the_binders_own_cache(world):
    pod, allocation = world.show(using("web", "a")), None
    world.take(ranked(pod, "n1"))
    allocation = world.writes(pod)[0].allocation
    world.succeed()
    world.allocated("a", allocation, 7)
    world.take(ranked(pod, n=2, message="0/3 nodes are available", feasible=0))
    assert (world.outcomes[-1:], world.releases(pod)) == (["unschedulable"], []), "n1 fits by the own cache"
    world.observe(Deleted(kind="node", object=a_node("n1")))
    world.take(ranked(pod, n=3, message="0/2 nodes are available", feasible=0))
    assert [each.requests for each in world.releases(pod)] == [(FreeClaim(claim=name_of("a")),)]
    world.released(pod, version=9)
    assert world.decisions[-1].message == "0/2 nodes are available"


def test_an_unschedulable_pod_gives_back_a_claim_that_has_rejected_no_node(world):
    """A former leader has reserved it, and its node has no room any more: others may use the devices."""
    pod = world.show(using("web", "a"))
    world.take(ranked(pod, "n1"))
    allocation = world.writes(pod)[0].allocation
    world.succeed()
    world.allocated("a", allocation, 7, pod)
    for name in ("n1", "n2", "n3"):
        world.observe(Upserted(kind="node", object=a_node(name, unschedulable=True)))
    world.take(ranked(pod, n=3, message="0/3 nodes are available", feasible=0))
    assert [each.requests for each in world.releases(pod)] == [(FreeClaim(claim=name_of("a")),)]


def test_an_unschedulable_pod_gives_back_the_reservation_that_another_pod_shares(world):
    """A former leader has reserved it for both, and each would wait for the other."""
    pod, other = world.show(using("web", "a")), using("other", "a")
    world.take(ranked(pod, "n1"))
    allocation = world.writes(pod)[0].allocation
    world.succeed()
    world.allocated("a", allocation, 7, pod, other)
    world.observe(Deleted(kind="node", object=a_node("n1")))
    world.take(ranked(pod, n=3, message="0/2 nodes are available", feasible=0))
    assert [each.requests for each in world.releases(pod)] == [(FreeClaim(claim=name_of("a")),)]


@pytest.mark.parametrize("deleted", [False, True])
def test_a_pod_that_lacks_another_claim_gives_back_the_one_that_a_former_leader_has_reserved(world, deleted):
    pod, other = world.show(using("web", "a", "b", "c")), using("other", "a")
    result = {"request": "r", "driver": DRIVER, "pool": "n1", "device": "gpu-0"}
    allocation = msgspec.convert({"devices": {"results": [result]}}, AllocationResult)
    world.allocated("a", allocation, 7, other)
    world.allocated("b", allocation, 8, pod)
    gone = claim_of("c", 9)
    if deleted:
        metadata = msgspec.structs.replace(gone.metadata, deletion_timestamp="2026-01-01T00:00:00Z")
        world.show_claim(msgspec.structs.replace(gone, metadata=metadata))
    else:
        world.observe(Deleted(kind=RESOURCE_CLAIM.name, object=gone))
    world.take(ranked(pod, n=3, message="could not find it", feasible=0))
    assert [each.requests for each in world.releases(pod)] == [(FreeClaim(claim=name_of("b")),)]


def test_nothing_is_freed_while_claims_cannot_be_read(world):
    pod = world.show(using("web", "a"))
    world.take(ranked(pod, "n1"))
    allocation = next(each.allocation for each in world.writes(pod))
    world.succeed()
    world.allocated("a", allocation, 7, pod)
    world.cache.snapshot.objects(ResourceClaim).unread = "forbidden"
    before = len(world.releases(pod))
    world.take(ranked(pod, n=3, message="forbidden", feasible=0))
    assert (len(world.releases(pod)), world.outcomes[-1]) == (before, "unschedulable")


def test_a_claim_that_is_reserved_for_another_pod_is_not_freed(world):
    pod, other = world.show(using("web", "a")), using("other", "a")
    world.take(ranked(pod, "n1"))
    allocation = world.writes(pod)[0].allocation
    world.succeed()
    world.allocated("a", allocation, 7, other)
    world.observe(Deleted(kind="node", object=a_node("n1")))
    world.take(ranked(pod, n=3, message="0/2 nodes are available", feasible=0))
    assert (world.releases(pod), world.outcomes[-1]) == ([], "unschedulable")


def conditional(world: World) -> None:
    device = {"name": "nic", "bindingConditions": ["ready"], "bindingFailureConditions": ["broken"]}
    world.show_slice("n3", [device])


def condition(kind: str, version: int, allocation: AllocationResult, pod: Pod) -> ResourceClaim:
    users = [{"resource": "pods", "name": pod.metadata.name, "uid": pod.uid}]
    conditions = [{"type": kind, "status": "True", "reason": "R", "message": "M"}] if kind else []
    device = {"driver": DRIVER, "pool": "n3", "device": "nic", "conditions": conditions}
    return claim_of("a", version, allocation=msgspec.to_builtins(allocation), reservedFor=users, devices=[device])


@pytest.mark.parametrize(
    ("kind", "outcome"), [pytest.param("ready", None, id="ready"), pytest.param("broken", "error", id="broken")]
)
def test_the_binding_waits_for_conditions_of_devices(world, kind, outcome):
    conditional(world)
    pod = world.show(using("web", "a"))
    world.take(ranked(pod, "n3"))
    allocation = world.writes(pod)[0].allocation
    world.written(pod, version=7)
    world.show_claim(condition("", 7, allocation, pod))
    world.show(nominated(pod, "n3", 11))
    assert (world.outcomes, world.posts) == (["waiting"], [])
    assert world.decisions[-1].message == "waiting for DynamicResources: its devices are not bound yet"
    (recorded,) = [event_of(each.decision, each.pod) for each in world.effects if isinstance(each, RecordEvent)]
    assert (recorded.type, recorded.reason, recorded.action) == ("Normal", "BindingConditionsPending", "Scheduling")
    assert recorded.note == "waiting for binding conditions for device on node n3"
    world.show_claim(condition(kind, 8, allocation, pod))
    world.wait(1)
    assert world.posts == ([] if outcome else [("web", "n3")])
    if outcome:
        world.released(pod, version=9)
        assert world.decisions[-1].outcome is Outcome.ERROR
        assert 'device binding failed: claim=a, reason=R, message="M"' in world.decisions[-1].message


def test_devices_that_are_not_bound_in_time_are_an_error(world):
    conditional(world)
    pod = world.show(using("web", "a"))
    world.take(ranked(pod, "n3"))
    allocation = world.writes(pod)[0].allocation
    world.written(pod, version=7)
    world.show_claim(condition("", 7, allocation, pod))
    world.show(nominated(pod, "n3", 11))
    began = world.now
    while not world.releases(pod):
        world.wait(1)
    assert world.now - began == 600
    world.released(pod, version=9)
    assert world.decisions[-1].outcome is Outcome.ERROR
    assert "device binding timeout" in world.decisions[-1].message


def test_pods_that_share_a_claim_leave_room_for_others(world):
    """The claim's other pods wait for the first one's write, and take no place among the requests in flight."""
    many, most = 40, CoreSettings().max_in_flight
    sharing = [world.show(using(f"web-{i}", "a", cpu="10m")) for i in range(many)]
    others = [world.show(make_pod(f"other-{i}", cpu="10m")) for i in range(many)]
    for pod in (*sharing, *others):
        world.take(ranked(pod, "n1"))
    assert [pod for pod in sharing if not world.writes(pod)] == []
    assert len(world.posts) == most - 1
    world.written(sharing[0], version=7)  # the second one's write begins, which takes the place
    assert len(world.posts) == most - 1
    for pod in sharing[1:]:
        world.written(pod, version=7)
    assert len(world.posts) == most


def test_a_pod_is_behind_until_it_is_first_in_each_of_its_claims():
    a, b, c = (("default", name) for name in "abc")
    turns = ClaimTurns()
    turns.join("one", {a})
    turns.join("two", {a, b})
    turns.join("three", {b, c})
    turns.join("none", set())
    assert turns.behind == {"two", "three"}
    turns.leave("none")
    turns.leave("two")
    assert turns.behind == set()
    turns.join("four", {a, c})
    turns.leave("one")
    assert turns.behind == {"four"}
    turns.leave("three")
    turns.leave("four")
    assert (turns.behind, turns.is_empty) == (set(), True)


def with_parameters(claim: ResourceClaim) -> ResourceClaim:
    """The claim with a configuration for the driver."""
    config = msgspec.json.decode(
        b'[{"opaque":{"driver":"d","parameters":{"k":1}}}]', type=list[DeviceClaimConfiguration]
    )
    devices = msgspec.structs.replace(claim.spec.devices, config=config)
    return msgspec.structs.replace(claim, spec=msgspec.structs.replace(claim.spec, devices=devices))


def test_configurations_are_kept_until_they_are_written(world):
    def kept() -> bool:
        (claim,) = (each for each in world.cache.snapshot.objects(ResourceClaim) if each.metadata.name == "a")
        return b"parameters" in msgspec.json.encode(claim)

    def shown(allocation: AllocationResult | None, version: int, *pods: Pod) -> None:
        users = [ClaimConsumer(resource="pods", name=pod.metadata.name, uid=pod.uid) for pod in pods]
        status = ResourceClaimStatus(allocation=allocation, reserved_for=users or None)
        world.show_claim(msgspec.structs.replace(with_parameters(claim_of("a", version)), status=status))

    shown(None, 3)
    one, two = world.show(using("one", "a")), world.show(using("two", "a"))
    world.take(ranked(one, "n1"))
    (write,) = world.writes(one)
    assert [(each.source, bytes(each.opaque.parameters)) for each in write.allocation.devices.config] == [
        ("FromClaim", b'{"k":1}')
    ]
    assert kept()
    world.written(one, version=7)
    shown(write.allocation, 7, one)
    assert not kept()
    world.take(ranked(two, "n1"))
    assert world.cache.devices.holds("uid-a", two.uid), "it may be given back by the first one"
    shown(None, 9)
    assert kept()
