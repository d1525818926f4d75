"""Objects of other kinds in a Snapshot, and from the mirror."""

from __future__ import annotations

import msgspec
import pytest

from berth.api.devices import ResourceClaim
from berth.api.kinds import PLUGIN_KINDS
from berth.api.meta import LabelSelector, ObjectMeta
from berth.api.workloads import LabelsSpec, ReplicaSet, SelectorSpec, Service
from berth.cluster.buckets import KindComplete, MirroredSnapshot
from berth.cluster.objects import Objects
from berth.cluster.snapshot import Snapshot
from berth.errors import DecodeError
from berth.messages.mirror import MirrorEntry, Watermark, encode_entry, encode_watermark, watermark_key
from berth.messages.subjects import Term


def a_service(name: str, namespace: str = "default", version: str = "1", **selector: str) -> Service:
    metadata = ObjectMeta(name=name, namespace=namespace, resource_version=version)
    return Service(metadata=metadata, spec=LabelsSpec(selector=selector))


def test_objects_are_found_by_name_and_by_namespace():
    services = Objects(Service)
    for uid, service in {"u1": a_service("a"), "u2": a_service("b"), "u3": a_service("a", "other")}.items():
        services.set(uid, service)
    services.remove("u2")
    services.remove("never there")
    assert [service.metadata.name for service in services.in_namespace("default")] == ["a"]
    assert (services.named("a", "other") is not None, services.named("b", "default"), len(services)) == (True, None, 2)


def test_removing_an_object_keeps_a_later_one_of_its_name():
    services = Objects(Service)
    services.set("old", a_service("a", app="old"))
    services.set("new", a_service("a", app="new"))
    services.remove("old")
    assert services.named("a", "default").spec.selector == {"app": "new"}


@pytest.mark.parametrize("sets", [("new", "old"), ("old", "new"), ("new", "old", "new"), ("new", "old", "old")])
def test_removing_an_object_that_came_late_keeps_the_one_that_is_there(sets):
    services = Objects(Service)
    for number, uid in enumerate(sets):
        services.set(uid, a_service("a", app=uid, change=str(number)))
    services.remove("old")
    assert services.named("a", "default").spec.selector["app"] == "new"
    assert len(services.in_namespace("default")) == 1
    services.remove("new")
    assert (services.named("a", "default"), len(services)) == (None, 0)


def test_a_new_resource_version_alone_is_no_change():
    services, versions = Objects(Service), []
    for service in (a_service("a", app="x"), a_service("a", version="2", app="x"), a_service("a", app="y")):
        services.set("u", service)
        versions.append(services.version)
    assert versions[0] == versions[1] < versions[2]


def test_the_mirror_brings_workloads_and_takes_them_away():
    mirrored = MirroredSnapshot(Snapshot())
    made = ReplicaSet(
        metadata=ObjectMeta(name="rs", namespace="default", uid="u"),
        spec=SelectorSpec(selector=LabelSelector(match_labels={"app": "web"})),
    )
    entry = MirrorEntry(term=Term(1), object=msgspec.Raw(msgspec.json.encode(made)))
    assert mirrored.apply("replicaset.u", encode_entry(entry)) is None
    sets = mirrored.snapshot.objects(ReplicaSet)
    assert sets.named("rs", "default") == made
    mirrored.apply("replicaset.u", None)
    assert len(sets) == 0


@pytest.mark.parametrize("kind", PLUGIN_KINDS)
def test_an_object_that_cannot_be_read_changes_nothing(kind):
    mirrored = MirroredSnapshot(Snapshot())
    with pytest.raises(DecodeError):
        mirrored.apply(f"{kind}.u", encode_entry(MirrorEntry(term=Term(1), object=msgspec.Raw(b"[]"))))
    assert len(mirrored.snapshot.objects(PLUGIN_KINDS[kind].struct)) == 0


def test_the_mirror_says_why_a_kind_cannot_be_read():
    snapshot = Snapshot()
    mirrored = MirroredSnapshot(snapshot)
    for unread in ("not served", ""):
        watermark = Watermark(term=Term(1), resource_version="5", unread=unread)
        event = mirrored.apply(watermark_key("resourceclaim"), encode_watermark(watermark))
        assert (event, snapshot.objects(ResourceClaim).unread) == (KindComplete(kind="resourceclaim"), unread)
