"""Device pools as nodes see them, the ledger's counts, and classes of extended resources."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from berth.api.devices import AllocationResult, DeviceClass, ResourceClaim, ResourceSlice
from berth.api.meta import ObjectMeta
from berth.api.node import Node
from berth.api.pod import Pod
from berth.api.resources import exact, quantity_text
from berth.cluster.buckets import MirroredSnapshot
from berth.cluster.devices.extended import ExtendedClaims, ExtendedResources
from berth.cluster.devices.ledger import DeviceLedger
from berth.cluster.devices.pools import DevicePools, PoolState
from berth.cluster.snapshot import Snapshot
from berth.messages.mirror import MirrorEntry, encode_entry
from berth.messages.subjects import Term

Json = dict[str, Any]


def slice_named(name: str, *devices: str, pool: str = "p", generation: int = 1, count: int = 1, **spec: Any) -> Json:
    where = spec or {"nodeName": "n"}
    pools = {"name": pool, "generation": generation, "resourceSliceCount": count}
    body = {"driver": "d", "pool": pools, "devices": [{"name": each} for each in devices], **where}
    return {"metadata": {"name": name}, "spec": body}


def seen(slices: list[Json], node: str = "n", **labels: str) -> list[tuple[str, PoolState, list[str]]]:
    snapshot = Snapshot()
    pools = DevicePools.of(snapshot)
    for each in msgspec.convert(slices, list[ResourceSlice]):
        snapshot.objects(ResourceSlice).set(each.metadata.name, each)
    views = pools.seen_from(msgspec.convert({"metadata": {"name": node, "labels": labels}}, Node))
    return [(view.key[1], view.state, [each.device.name for each in view.devices]) for view in views]


USABLE, INCOMPLETE, INVALID = PoolState.USABLE, PoolState.INCOMPLETE, PoolState.INVALID
ZONE_A = {
    "nodeSelector": {"nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}]}
}


@pytest.mark.parametrize(
    ("slices", "expected"),
    [
        pytest.param(
            [slice_named("b", "x"), slice_named("a", "y", pool="o")],
            [("o", USABLE, ["y"]), ("p", USABLE, ["x"])],
            id="by pool",
        ),
        pytest.param(
            [slice_named("b", "x", count=2), slice_named("a", "y", count=2)],
            [("p", USABLE, ["y", "x"])],
            id="by name of the slice",
        ),
        pytest.param(
            [slice_named("a", "x"), slice_named("b", "y", generation=2)], [("p", USABLE, ["y"])], id="newest generation"
        ),
        pytest.param([slice_named("a", "x", count=2)], [("p", INCOMPLETE, [])], id="a slice is missing"),
        pytest.param(
            [slice_named("a", "x", count=2), slice_named("b", "y", count=2, nodeName="m")],
            [("p", USABLE, ["x"])],
            id="a slice of another node",
        ),
        pytest.param(
            [
                slice_named("a", "x"),
                slice_named("b", "y", generation=2, count=2, nodeName="m"),
            ],
            [("p", USABLE, ["x"])],
            id="complete, though newer elsewhere",
        ),
        pytest.param(
            [slice_named("a", "x", count=2), slice_named("b", "y", generation=2, nodeName="m")], [], id="being replaced"
        ),
        pytest.param(
            [slice_named("a", "x", count=2), slice_named("b", "x", count=2)], [("p", INVALID, [])], id="a name twice"
        ),
        pytest.param([slice_named("a", "x", **ZONE_A)], [("p", USABLE, ["x"])], id="by labels"),
        pytest.param([slice_named("a", "x", allNodes=True)], [("p", USABLE, ["x"])], id="all nodes"),
        pytest.param(
            [slice_named("a", "x", nodeName="n", leftOut="cannot be read")],
            [("p", INCOMPLETE, [])],
            id="a slice is left out",
        ),
        pytest.param([slice_named("a", "x", nodeName="m")], [], id="another node"),
    ],
)
def test_a_node_sees_the_pools_in_order_and_with_their_state(slices, expected):
    assert seen(slices, zone="a") == expected


def mirrored(mirror: MirroredSnapshot, kind: str, key: str, thing: Json) -> None:
    entry = MirrorEntry(term=Term(1), object=msgspec.Raw(msgspec.json.encode(thing)))
    mirror.apply(f"{kind}.{key}", encode_entry(entry))


def test_the_mirror_brings_pools_allocations_and_classes_to_a_scorer():
    mirror = MirroredSnapshot(Snapshot())
    pools, ledger = DevicePools.of(mirror.snapshot), DeviceLedger.of(mirror.snapshot)
    mirrored(mirror, "resourceslice", "s", slice_named("s", "x", "y"))
    mirrored(mirror, "deviceclass", "gpu", {"metadata": {"name": "gpu"}, "spec": {"extendedResourceName": "e.com/gpu"}})
    result = {"request": "r", "driver": "d", "pool": "p", "device": "x"}
    claim = {"metadata": {"name": "c", "namespace": "default", "uid": "u"}}
    mirrored(mirror, "resourceclaim", "u", {**claim, "status": {"allocation": {"devices": {"results": [result]}}}})
    assert [each.device.name for each in pools] == ["x", "y"]
    assert ledger.owners_of("d/p/x") == ("u",)
    assert ExtendedResources.of(mirror.snapshot).class_of("e.com/gpu").metadata.name == "gpu"
    mirrored(mirror, "resourceclaim", "u", claim)
    mirror.apply("resourceslice.s", None)
    assert (list(pools), ledger.owners_of("d/p/x")) == ([], ())


def test_equal_parts_of_devices_are_kept_once_and_the_device_is_not_copied():
    snapshot = Snapshot()
    pools = DevicePools.of(snapshot)
    raw = slice_named("s", "x", "y")
    for device in raw["spec"]["devices"]:
        device |= {"attributes": {"model": {"string": "A100"}}, "capacity": {"memory": {"value": "80Gi"}}}
    decoded = msgspec.convert(raw, ResourceSlice)
    snapshot.objects(ResourceSlice).set("s", decoded)
    x, y = (each.device for each in pools)
    assert x is decoded.spec.devices[0]
    assert x.attributes["model"] is y.attributes["model"]
    assert x.capacity is y.capacity


def test_changes_name_the_nodes_that_they_concern():
    snapshot = Snapshot()
    pools, slices = DevicePools.of(snapshot), snapshot.objects(ResourceSlice)
    for each in (slice_named("a", "x"), slice_named("b", "y", pool="o", allNodes=True)):
        slices.set(each["metadata"]["name"], msgspec.convert(each, ResourceSlice))
    slices.remove("a")
    assert pools.changes.since(0) == [frozenset({"n"}), None, frozenset({"n"})]


def test_slices_above_the_apis_limits_are_left_out():
    assert seen([slice_named("a", *(f"d{i}" for i in range(129)))]) == [("p", INCOMPLETE, [])]


def claim_with(*devices: str, name: str = "c", **result: Any) -> ResourceClaim:
    results = [{"request": "r", "driver": "d", "pool": "p", "device": each, **result} for each in devices]
    body = {"metadata": {"name": name, "uid": name, "namespace": "x"}}
    return msgspec.convert(body | {"status": {"allocation": {"devices": {"results": results}}}}, ResourceClaim)


def ledger_with(*claims: ResourceClaim) -> tuple[DeviceLedger, Snapshot]:
    snapshot = Snapshot()
    ledger = DeviceLedger.of(snapshot)
    for claim in claims:
        snapshot.objects(ResourceClaim).set(claim.metadata.uid, claim)
    return ledger, snapshot


def test_a_claim_counts_once_and_until_it_goes():
    ledger, snapshot = ledger_with(claim_with("x"), claim_with("x", name="other"))
    assert (ledger.owners_of("d/p/x"), [*ledger.in_use(("d", "p"))]) == (("c", "other"), ["x"])
    snapshot.objects(ResourceClaim).remove("c")
    snapshot.objects(ResourceClaim).remove("other")
    assert (ledger.is_owned("d/p/x"), [*ledger.in_use(("d", "p"))]) == (False, [])


def test_shares_add_up():
    shares = [
        claim_with("x", name=name, shareID=name, consumedCapacity={"memory": amount})
        for name, amount in (("a", "1Gi"), ("b", "512Mi"))
    ]
    ledger, snapshot = ledger_with(*shares)
    assert ledger.consumed("d/p/x") == {"memory": 3 << 29}
    snapshot.objects(ResourceClaim).remove("a")
    assert (ledger.sharers_of("d/p/x"), ledger.consumed("d/p/x")) == (("b",), {"memory": 1 << 29})


def test_devices_given_to_administrators_are_free():
    assert not ledger_with(claim_with("x", adminAccess=True))[0].is_owned("d/p/x")


def allocation(*devices: str) -> AllocationResult:
    return claim_with(*devices).status.allocation or AllocationResult()


def test_a_status_counts_in_place_of_an_assumption_as_long_as_it_shows_an_allocation():
    ledger, snapshot = ledger_with()
    claims = snapshot.objects(ResourceClaim)
    ledger.assume("c", allocation("y"), "pod")
    assert ledger.owners_of("d/p/y") == ("c",)
    claims.set("c", claim_with("x"))
    assert (ledger.owners_of("d/p/x"), ledger.owners_of("d/p/y")) == (("c",), ())
    claims.set("c", without_allocation("c"))
    assert (ledger.owners_of("d/p/x"), ledger.owners_of("d/p/y")) == ((), ("c",))
    claims.remove("c")
    assert (ledger.owners_of("d/p/y"), ledger.assumed("c")) == ((), None)


def without_allocation(name: str) -> ResourceClaim:
    return msgspec.convert({"metadata": {"name": name, "uid": name, "namespace": "x"}}, ResourceClaim)


def test_an_assumption_ends_with_the_last_pod_that_holds_it():
    ledger, _ = ledger_with()
    for pod in ("one", "two"):
        ledger.assume("c", allocation("y"), pod)
    assert ledger.owners_of("d/p/y") == ("c",)
    ledger.forget("c", "one")
    assert ledger.owners_of("d/p/y") == ("c",)
    ledger.forget("c", "two")
    assert (ledger.owners_of("d/p/y"), ledger.assumed("c")) == ((), None)


def test_the_claim_that_the_watch_has_shown_first_has_the_device():
    ledger, snapshot = ledger_with()
    for version, name in ((5, "first"), (6, "second")):
        ledger.changed_between = (version, version)
        snapshot.objects(ResourceClaim).set(name, claim_with("x", name=name))
    assert (ledger.earlier_owner("first"), ledger.earlier_owner("second")) == (None, ("d/p/x", "first"))
    assert ledger.take_conflicts() == [("d/p/x", ("first", "second"))]
    assert ledger.take_conflicts() == []


def test_a_device_that_goes_from_one_claim_to_another_within_a_list_is_no_conflict():
    ledger, snapshot = ledger_with(claim_with("x", name="b"))
    snapshot.objects(ResourceClaim).set("a", claim_with("x", name="a"))
    snapshot.objects(ResourceClaim).set("b", without_allocation("b"))
    assert ledger.take_conflicts() == []


def test_after_a_restore_no_claim_of_the_former_store_comes_before_others():
    """What a LIST lacks, or shows without devices, is forgotten, however high its version was."""
    ledger, snapshot = ledger_with()
    claims = snapshot.objects(ResourceClaim)
    ledger.changed_between = (100, 100)
    for name in ("gone", "older"):
        claims.set(name, claim_with("x", name=name))
    ledger.changed_between = (50, 50)
    claims.set("older", without_allocation("older"))
    claims.remove("gone")
    ledger.changed_between = (60, 60)
    claims.set("new", claim_with("x", name="new"))
    assert (ledger.earlier_owner("new"), ledger.take_conflicts()) == (None, [])
    ledger.changed_between = (70, 70)
    claims.set("older", claim_with("x", name="older"))
    assert (ledger.earlier_owner("new"), ledger.earlier_owner("older")) == (None, ("d/p/x", "new"))


def test_no_device_is_remembered_as_doubtful_once_one_claim_has_it():
    """Scorers and standbys never take conflicts, and read entries of the mirror in another order."""
    ledger, snapshot = ledger_with()
    claims = snapshot.objects(ResourceClaim)
    for version in range(1, 5):
        ledger.changed_between = (version, version)
        device = f"x-{version}"
        claims.set("a", claim_with(device, name="a"))
        claims.set("b", claim_with(device, name="b"))
        claims.set("a", without_allocation("a"))
    assert ledger.doubtful == frozenset()
    claims.set("a", claim_with("x-4", name="a"))
    assert ledger.doubtful == {"d/p/x-4"}
    assert ledger.take_conflicts() == [("d/p/x-4", ("b", "a"))]
    claims.remove("b")
    assert (ledger.doubtful, ledger.earlier_owner("a")) == (frozenset(), None)


def test_of_two_claims_whose_order_is_unknown_none_is_the_first():
    ledger, _ = ledger_with(claim_with("x", name="a"), claim_with("x", name="b"))
    assert (ledger.earlier_owner("a"), ledger.earlier_owner("b")) == (("d/p/x", "b"), ("d/p/x", "a"))


def test_what_is_only_assumed_is_no_earlier_owner():
    ledger, _ = ledger_with(claim_with("x", name="a"))
    ledger.assume("b", allocation("x"), "pod")
    assert ledger.earlier_owner("a") is None


def class_named(name: str, made: str, resource: str) -> DeviceClass:
    metadata = {"name": name, "creationTimestamp": f"2026-01-01T00:00:{made}Z"}
    return msgspec.convert({"metadata": metadata, "spec": {"extendedResourceName": resource}}, DeviceClass)


def test_the_newest_class_serves_a_resource_then_the_lower_name():
    snapshot = Snapshot()
    table = ExtendedResources.of(snapshot)
    for name, made in (("b", "02"), ("c", "02"), ("a", "01")):
        snapshot.objects(DeviceClass).set(name, class_named(name, made, "example.com/gpu"))
    found = [table.class_of(each) for each in ("example.com/gpu", "deviceclass.resource.kubernetes.io/a", "x.com/y")]
    assert [each and each.metadata.name for each in found] == ["b", "a", None]


@pytest.mark.parametrize("text", ["0", "3Gi", "1500m", "400", "100u", "1Mi", "12345678901234567890"])
def test_amounts_are_written_as_quantities(text):
    assert quantity_text(exact(text)) == text


def test_the_claims_for_extended_resources_are_found_by_their_pod():
    """A claim in another namespace is not the pod's, whatever owner it names."""
    snapshot = Snapshot()
    claims, table = snapshot.objects(ResourceClaim), ExtendedClaims.of(snapshot)
    mark = {"resource.kubernetes.io/extended-resource-claim": "true"}
    owner = {"kind": "Pod", "name": "web", "uid": "uid-web", "controller": True}
    pod, other = (Pod(metadata=ObjectMeta(name="web", namespace="x", uid=uid)) for uid in ("uid-web", "uid-x"))
    for name, namespace, marks in (("foreign", "y", mark), ("other", "x", {}), ("made", "x", mark)):
        metadata = {"name": name, "uid": name, "namespace": namespace, "annotations": marks, "ownerReferences": [owner]}
        claims.set(name, msgspec.convert({"metadata": metadata}, ResourceClaim))
    found = table.of_pod(pod)
    assert (found and found.metadata.name, table.of_pod(other)) == ("made", None)
    assert ExtendedClaims(claims).of_pod(pod) == found
    claims.remove("made")
    assert table.of_pod(pod) is None
    claims.remove("foreign")
