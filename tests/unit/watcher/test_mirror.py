"""What the bucket ``cluster`` holds, and how the watcher corrects other clients' writes."""

from __future__ import annotations

import random
import sys

import msgspec
import pytest

from berth.api.devices import ResourceClaim, ResourceSlice
from berth.api.meta import ObjectMeta
from berth.api.node import Node
from berth.api.pod import Pod, PodCondition, PodSpec, PodStatus, Toleration
from berth.bus.interface import Entry
from berth.cluster.buckets import MirroredSnapshot
from berth.cluster.devices.pools import DevicePools
from berth.cluster.snapshot import Snapshot
from berth.kube.listwatch import Current, Listed, ListedPart
from berth.messages.mirror import decode_entry, decode_watermark
from berth.messages.subjects import Term
from berth_watcher.events import (
    BucketEntryRead,
    KeyLookedUp,
    KeyWriteFailed,
    KeyWritten,
    LookUpKey,
    PurgeKey,
    StepDown,
    Warn,
    WriteKey,
)
from berth_watcher.mirror import NO_CHANGE, DesiredEntry, Mirror, Watermarks, trimmed
from harness.builders.devices import the_largest_slice
from harness.plugins.long_runs import often
from harness.worlds.watcher_world import EPOCH, KINDS, WatcherUnderTest, a_namespace, a_node, a_pod, foreign_value


def test_mirror_holds_nodes_namespaces_bound_and_nominated_pods():
    watcher = WatcherUnderTest().lead(
        a_node("n1"), a_namespace("default"), a_pod("web"), a_pod("bound", node="n1"), a_pod("nominee", nominated="n1")
    )

    keys = {key for key in watcher.bucket if not key.startswith("watermark.")}
    assert keys == {"node.n1", "namespace.default", "pod.uid-bound", "pod.uid-nominee"}


def test_heartbeat_writes_nothing():
    watcher = WatcherUnderTest().lead(a_node("n1"))
    sequence = watcher.bucket["node.n1"].sequence

    watcher.show(a_node("n1", version=2))

    assert watcher.bucket["node.n1"].sequence == sequence


def test_bound_pod_that_starts_to_run_is_not_written_again():
    watcher = WatcherUnderTest().lead(a_node("n1"), a_pod("web", node="n1"))
    sequence = watcher.bucket["pod.uid-web"].sequence

    running = a_pod("web", node="n1", phase="Running", version=2)
    status = PodStatus(phase="Running", start_time="2026-01-01T00:00:09Z")
    watcher.show(Pod(metadata=running.metadata, spec=running.spec, status=status))

    assert watcher.bucket["pod.uid-web"].sequence == sequence


def test_entry_of_a_bound_pod_has_the_time_of_the_binding():
    watcher = WatcherUnderTest().lead(a_node("n1"))
    condition = PodCondition(type="PodScheduled", status="True", last_transition_time="2026-01-01T00:00:07Z")
    pod = a_pod("web", node="n1")
    bound = Pod(metadata=pod.metadata, spec=pod.spec, status=PodStatus(conditions=[condition]))

    watcher.show(bound)

    data = watcher.bucket["pod.uid-web"].data
    assert data is not None
    assert decode_entry(data).bound_at == "2026-01-01T00:00:07Z"


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_finished_pod_is_removed(phase):
    watcher = WatcherUnderTest().lead(a_node("n1"), a_pod("web", node="n1"))

    watcher.show(a_pod("web", node="n1", phase=phase, version=2))

    assert watcher.mirrored("pod.uid-web") is None


def test_object_missing_in_a_new_list_is_removed():
    watcher = WatcherUnderTest().lead(a_node("n1"), a_node("n2"))

    watcher.send(Listed(kind="node", objects=[a_node("n2")], resource_version="20"))

    assert watcher.mirrored("node.n1") is None
    assert watcher.mirrored("node.n2") is not None


def test_part_of_a_list_is_written_at_once_and_the_kind_is_complete_with_the_rest():
    watcher = WatcherUnderTest().lead(a_node("n1"))
    watcher.advance(2)
    watcher.send(ListedPart(kind="node", objects=[a_node("n2")]))
    watcher.advance(2)
    assert watcher.mirrored("node.n1") is not None
    assert watcher.mirrored("node.n2") is not None
    assert watcher.store.versions["node"] == 10
    watcher.send(Listed(kind="node", objects=[a_node("n2"), a_node("n3")], resource_version="20", passed_on=1))
    assert watcher.mirrored("node.n1") is None
    assert watcher.mirrored("node.n3") is not None
    assert watcher.store.versions["node"] == 20


def test_node_without_status_is_mirrored():
    watcher = WatcherUnderTest().lead()

    watcher.show(Node(metadata=ObjectMeta(name="bare", uid="u", resource_version="2")))

    assert watcher.mirrored("node.bare") == {"metadata": {"name": "bare", "uid": "u"}}


def test_changes_during_a_write_are_written_together():
    watcher = WatcherUnderTest().lead(a_node("n1"))
    watcher.hold_writes = True

    for number in range(2, 6):
        watcher.show(a_node("n1", cpu=str(number), version=number))
    assert len([effect for effect in watcher.held_writes if effect.key == "node.n1"]) == 1
    watcher.answer_writes()
    watcher.answer_writes()

    assert watcher.mirrored("node.n1")["status"]["allocatable"]["cpu"] == "5"
    assert watcher.core.figures(watcher.now).unsettled_keys == 0


def test_key_with_a_wrong_last_sequence_is_read_and_written_again():
    watcher = WatcherUnderTest().lead(a_node("n1"))
    watcher.hold_writes = True
    watcher.put("node.n1", foreign_value(a_node("n1", cpu="77")))

    watcher.show(a_node("n1", cpu="8", version=2))
    watcher.answer_writes()
    assert [type(effect) for effect in watcher.held_writes] == [LookUpKey]
    watcher.answer_writes()
    watcher.answer_writes()

    assert watcher.mirrored("node.n1")["status"]["allocatable"]["cpu"] == "8"


def test_foreign_write_read_during_a_look_up_is_overwritten():
    watcher = WatcherUnderTest().lead(a_node("n1"))
    watcher.hold_writes = True
    watcher.show(a_node("n1", cpu="8", version=2))
    (write,) = watcher.held_writes
    watcher.held_writes = []
    landed = watcher.put("node.n1", write.data)
    watcher.send(KeyWriteFailed(key="node.n1"))  # its answer is lost
    watcher.put("node.n1", foreign_value(a_node("n1", cpu="77")))
    watcher.read_back()

    watcher.held_writes = []
    watcher.send(KeyLookedUp(key="node.n1", entry=landed))
    watcher.answer_writes()

    assert watcher.mirrored("node.n1")["status"]["allocatable"]["cpu"] == "8"


def test_write_of_a_lower_term_is_overwritten():
    watcher = WatcherUnderTest().lead(a_node("n1"))

    watcher.put("node.n1", foreign_value(a_node("n1", cpu="77"), term=6))
    watcher.read_back()

    assert watcher.mirrored("node.n1")["status"]["allocatable"]["cpu"] == "4"


def test_own_write_stored_after_the_removal_is_removed_again():
    watcher = WatcherUnderTest().lead(a_node("n1"), a_pod("web", node="n1"))
    late = watcher.bucket["pod.uid-web"].data
    watcher.delete(a_pod("web", node="n1", version=2))
    watcher.read_back()

    watcher.put("pod.uid-web", late)
    watcher.read_back()

    assert watcher.mirrored("pod.uid-web") is None


def test_foreign_keys_are_removed_and_foreign_values_overwritten():
    watcher = WatcherUnderTest().lead(a_node("n1"))

    watcher.put("node.made-up", b"hello")
    watcher.put("node.n1", b"{}")
    watcher.read_back()

    assert watcher.mirrored("node.made-up") is None
    assert watcher.mirrored("node.n1") is not None


def test_foreign_removal_is_undone():
    watcher = WatcherUnderTest().lead(a_node("n1"))

    watcher.put("node.n1", None)
    watcher.read_back()

    assert watcher.mirrored("node.n1") is not None


def test_reading_own_writes_back_writes_nothing():
    watcher = WatcherUnderTest().lead(a_node("n1"), a_pod("web", node="n1"))
    watcher.delete(a_pod("web", node="n1", version=2))
    sequence = watcher.sequence

    watcher.read_back()

    assert watcher.sequence == sequence


def test_own_write_may_be_read_back_before_its_ack():
    watcher = WatcherUnderTest().lead()
    watcher.hold_writes = True
    watcher.show(a_node("n1"))
    (write,) = (effect for effect in watcher.held_writes if effect.key == "node.n1")

    entry = watcher.put(write.key, write.data)
    watcher.send(BucketEntryRead(entry=entry))
    watcher.held_writes = [effect for effect in watcher.held_writes if effect is not write]
    watcher.send(KeyWritten(key=entry.key, sequence=entry.sequence))

    assert not [effect for effect in watcher.held_writes if effect.key == "node.n1"]


def test_returning_node_is_written_over_the_delete_marker():
    watcher = WatcherUnderTest().lead(a_node("n1"))
    watcher.delete(a_node("n1", version=2))
    watcher.read_back()

    watcher.show(a_node("n1", version=3))

    assert watcher.mirrored("node.n1") is not None


def test_returning_node_is_written_after_the_marker_has_expired():
    watcher = WatcherUnderTest().lead(a_node("n1"))
    watcher.delete(a_node("n1", version=2))
    del watcher.bucket["node.n1"]

    watcher.show(a_node("n1", version=3))

    assert watcher.mirrored("node.n1") is not None


def test_write_of_a_higher_term_ends_the_term():
    watcher = WatcherUnderTest().lead(a_node("n1"))

    watcher.put("node.n1", foreign_value(a_node("n1"), term=8))
    watcher.read_back()

    assert [effect.term for effect in watcher.of(StepDown)] == [8]


def test_watermark_is_written_at_most_once_a_second():
    watcher = WatcherUnderTest().lead()
    watcher.advance(1)
    sequence = watcher.sequence

    for version in range(20, 30):
        watcher.send(Current(kind="node", resource_version=str(version)))
    watcher.advance(0.5)
    assert watcher.sequence <= sequence + 1
    watcher.advance(0.5)

    data = watcher.bucket["watermark.node"].data
    assert data is not None
    assert decode_watermark(data).resource_version == "29"


def test_watermark_is_due_when_it_says_it_is():
    """Where ``t + 1`` is rounded, ``(t + 1) - t`` may be below 1: the core would be called in vain without end."""
    chance = random.Random(1)
    for _ in range(1000):
        watermarks = Watermarks(["node"])
        watermarks.on_version("node", "1", 0)
        watermarks.pop_due(chance.uniform(0, 64), 0)
        watermarks.on_version("node", "2", 0)
        due = watermarks.next_due(0)
        assert due is not None
        assert watermarks.pop_due(due, 0) == [("node", "2")]


def test_watermark_of_a_quiet_kind_is_written_again():
    watcher = WatcherUnderTest().lead(a_node("n1"))
    watcher.send(Current(kind="node", resource_version="30"))
    watcher.advance(2)
    sequence = watcher.bucket["watermark.node"].sequence

    watcher.send(Current(kind="node", resource_version="30"))
    watcher.advance(2)

    assert watcher.bucket["watermark.node"].sequence > sequence


def test_watermark_is_written_after_the_changes_that_it_includes():
    watcher = WatcherUnderTest().lead()
    watcher.advance(2)
    watcher.hold_writes = True

    watcher.show(a_node("n1", version=50))
    watcher.advance(2)
    assert [effect.key for effect in watcher.held_writes] == ["node.n1"]
    watcher.answer_writes()

    assert "watermark.node" in [effect.key for effect in watcher.held_writes]


def test_removal_expects_the_keys_last_sequence():
    watcher = WatcherUnderTest().lead(a_node("n1"))
    sequence = watcher.bucket["node.n1"].sequence
    watcher.hold_writes = True

    watcher.delete(a_node("n1", version=2))

    assert watcher.held_writes == [PurgeKey(key="node.n1", expected=sequence)]
    assert not [effect for effect in watcher.held_writes if isinstance(effect, WriteKey)]


def test_an_object_that_went_before_it_was_written_has_its_removal_written_and_leaves_nothing():
    """Scorers know a pod that was bound from DECISIONS: they would count it until the next watermark."""
    mirror = Mirror(Term(7), max_writes=8)
    mirror.start_writing(position=0)
    mirror.set_desired("pod.u", DesiredEntry(object=bound()))
    gone = mirror.set_desired("pod.u", None)
    assert mirror.take_writes() == [PurgeKey(key="pod.u", expected=0)]
    assert mirror.settled < gone
    mirror.on_written("pod.u", 5)
    assert mirror.settled == gone
    mirror.on_read(Entry(key="pod.u", sequence=5, data=None, time=EPOCH))
    assert mirror.take_writes() == []
    assert "pod.u" not in mirror._keys


def test_a_full_bucket_that_takes_no_end_of_what_was_never_written_holds_nothing_up():
    """Its markers would be tried for hours before those that make room, and a takeover would wait for them."""
    mirror = Mirror(Term(7), max_writes=8)
    mirror.start_writing(position=0)
    mirror.set_desired("pod.u", DesiredEntry(object=bound()))
    gone = mirror.set_desired("pod.u", None)
    mirror.take_writes()
    assert mirror.on_write_failed("pod.u") == [LookUpKey(key="pod.u")]
    mirror.on_looked_up("pod.u", None)
    assert (mirror.take_writes(), mirror.settled) == ([], gone)
    assert "pod.u" not in mirror._keys


EVICTED = PodCondition(type="DisruptionTarget", status="True", reason="PreemptionByScheduler")
SCHEDULED = PodCondition(type="PodScheduled", status="True", last_transition_time="2026-01-01T00:00:05Z")


def bound(*conditions: PodCondition, deleted: str | None = None) -> Pod:
    return Pod(
        metadata=ObjectMeta(name="web", namespace="default", uid="u", deletion_timestamp=deleted),
        spec=PodSpec(node_name="n1"),
        status=PodStatus(phase="Running", start_time="2026-01-01T00:00:09Z", conditions=[SCHEDULED, *conditions]),
    )


def test_preempted_pod_keeps_its_condition_while_it_is_deleted():
    assert trimmed(bound(EVICTED, deleted="2026-01-01T01:00:00Z")).status.conditions == [EVICTED]


def test_other_conditions_are_trimmed():
    other = msgspec.structs.replace(EVICTED, reason="DeletionByTaintManager")
    for pod in (bound(), bound(EVICTED), bound(other, deleted="2026-01-01T01:00:00Z")):
        assert trimmed(pod).status.conditions is None


def test_start_time_is_the_time_of_the_binding():
    assert trimmed(bound()).status.start_time == "2026-01-01T00:00:05Z"


def annotated(thing: Pod | Node, size: int, version: int = 1) -> Pod | Node:
    metadata = msgspec.structs.replace(
        thing.metadata, annotations={"note": "x" * size} if size else None, resource_version=str(version)
    )
    return msgspec.structs.replace(thing, metadata=metadata)


def reduced(watcher: WatcherUnderTest) -> list[tuple[str, str, str]]:
    """Kind, name and missing parts of each object that the watcher warned about."""
    fields = [each.fields for each in watcher.of(Warn) if each.message == "object is too large for the mirror"]
    return [(each["kind"], each["name"], each["left_out"]) for each in fields]


def asking_for_nodes(pod: Pod, size: int) -> Pod:
    """A pod with so many bytes of what matters only while it waits."""
    tolerations = [Toleration(key=f"{number:063}", value="x" * 63) for number in range(size // 150)]
    return msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, tolerations=tolerations))


def labelled(name: str, number: int, **more: object) -> Pod:
    """A bound pod with labels, which count, of 60 bytes each."""
    return a_pod(name, node="n1", labels={f"label-{each:05}": "x" * 43 for each in range(number)}, **more)


@pytest.mark.parametrize("where", [{"node": "n1"}, {"nominated": "n1"}], ids=str)
def test_large_pod_is_mirrored_without_what_no_plugin_reads_of_it_there(where):
    """A tenant's 400 pods of 1.3 MB filled the bucket, and nothing was written any more."""
    small, large = (asking_for_nodes(a_pod(f"pod-{size}", **where), size) for size in (14_000, 1_300_000))
    watcher = WatcherUnderTest().lead(a_node("n1"), small, large)
    assert "tolerations" in watcher.mirrored("pod.uid-pod-14000")["spec"]
    mirrored = watcher.mirrored("pod.uid-pod-1300000")
    assert "tolerations" not in mirrored["spec"]
    assert mirrored["spec"]["containers"][0]["resources"]["requests"] == {"cpu": "1"}
    assert (watcher.of(Warn), watcher.core.figures(watcher.now).reduced) == ([], {})


def test_large_pod_that_the_former_leader_has_mirrored_is_not_written_again():
    watcher = WatcherUnderTest()
    large = asking_for_nodes(a_pod("web", node="n1"), 20_000)
    watcher.put("pod.uid-web", DesiredEntry(object=large).encoded(Term(6)))
    watcher.lead(large)
    assert watcher.bucket["pod.uid-web"].sequence == 1


def test_bound_pod_that_is_too_large_without_that_is_mirrored_in_a_smaller_form_and_named_once():
    """Somebody has bound it: berth binds none of that size."""
    watcher = WatcherUnderTest().lead(a_node("n1"), labelled("web", 2000), labelled("fine", 500))
    watcher.show(labelled("web", 2001, version=2))

    assert len(watcher.bucket["pod.uid-web"].data) < 48 * 1024
    assert watcher.mirrored("pod.uid-web")["spec"]["containers"][0]["resources"]["requests"] == {"cpu": "1000m"}
    assert len(watcher.mirrored("pod.uid-fine")["metadata"]["labels"]) == 500
    [(kind, name, left_out)] = reduced(watcher)
    assert (kind, name) == ("pod", "default/web")
    assert left_out.startswith("all but its requests")
    assert watcher.core.figures(watcher.now).reduced == {"pod": 1}


def test_bound_pod_that_is_larger_than_the_bus_takes_is_mirrored_in_a_smaller_form_and_named():
    watcher = WatcherUnderTest(max_message_bytes=20_000).lead(labelled("web", 500))
    assert len(watcher.bucket["pod.uid-web"].data) < 20_000
    assert len(reduced(watcher)) == 1


def test_pod_whose_smaller_form_is_mirrored_is_not_written_again_when_the_same_comes():
    watcher = WatcherUnderTest().lead(labelled("web", 2000))
    sequence = watcher.bucket["pod.uid-web"].sequence
    watcher.show(labelled("web", 2000, phase="Running", version=2))
    assert watcher.bucket["pod.uid-web"].sequence == sequence


def test_pod_that_fits_again_is_mirrored_whole():
    watcher = WatcherUnderTest().lead(labelled("web", 2000))
    watcher.show(annotated(a_pod("web", node="n1"), 5, version=2))
    assert watcher.mirrored("pod.uid-web")["metadata"]["annotations"] == {"note": "xxxxx"}
    assert watcher.core.figures(watcher.now).reduced == {}


def test_object_of_which_no_form_fits_is_left_out_and_the_mirror_goes_on():
    labels = {str(i): "x" * 60 for i in range(20_000)}
    watcher = WatcherUnderTest().lead(a_node("n1", labels=labels), a_node("n2"))
    assert watcher.mirrored("node.n1") is None
    assert watcher.mirrored("node.n2") is not None
    assert reduced(watcher) == [("node", "n1", "the whole object")]
    assert watcher.core.figures(watcher.now).unsettled_keys == NO_CHANGE

    watcher.show(a_node("n1", version=2))
    assert watcher.mirrored("node.n1") is not None
    watcher.show(a_node("n1", labels=labels, version=3))
    assert watcher.mirrored("node.n1") is None
    watcher.delete(a_node("n1", labels=labels, version=4))
    assert watcher.core.figures(watcher.now).reduced == {}


def _a_claim(version: int = 1, **status: object) -> ResourceClaim:
    metadata = {"name": "c", "namespace": "default", "uid": "u", "resourceVersion": str(version), "finalizers": ["f"]}
    config = {"opaque": {"driver": "d", "parameters": {"k": version}}}
    body = {"metadata": metadata, "spec": {"devices": {"config": [config]}}, "status": status}
    return msgspec.json.decode(msgspec.json.encode(body), type=ResourceClaim)


def test_a_claim_is_mirrored_without_what_only_drivers_and_the_binder_read():
    watcher = WatcherUnderTest(kinds=("resourceclaim",)).lead(_a_claim(1))
    first = watcher.bucket["resourceclaim.u"]
    watcher.show(_a_claim(2))
    assert watcher.bucket["resourceclaim.u"] == first
    assert b"opaque" not in first.data
    assert b"finalizers" not in first.data
    allocation = {"devices": {"results": [{"request": "r", "driver": "d", "pool": "p", "device": "x"}]}}
    watcher.show(_a_claim(3, allocation=allocation))
    assert b'"device":"x"' in watcher.bucket["resourceclaim.u"].data


def test_a_slice_of_any_size_reaches_the_devices_of_a_scorer():
    large = the_largest_slice()
    watcher = WatcherUnderTest(kinds=("resourceslice",)).lead(large)
    entry = watcher.bucket["resourceslice.large"]
    mirrored = MirroredSnapshot(Snapshot())
    mirrored.apply(entry.key, entry.data)
    assert len(entry.data) < 300_000
    assert list(mirrored.snapshot.objects(ResourceSlice)) == [large]
    assert [each.device.name for each in DevicePools.of(mirrored.snapshot)][::127] == ["device-0", "device-127"]


def test_a_slice_that_another_leader_mirrored_is_not_written_again():
    watcher = WatcherUnderTest(kinds=("resourceslice",))
    watcher.put("resourceslice.large", DesiredEntry(object=the_largest_slice()).encoded(Term(6)))
    watcher.lead(the_largest_slice())
    assert watcher.bucket["resourceslice.large"].sequence == 1


def test_change_during_the_refusal_of_a_large_pod_is_written():
    watcher = WatcherUnderTest(hold_writes=True, max_message_bytes=20_000).lead(labelled("web", 500))
    watcher.show(annotated(a_pod("web", node="n1"), 5, version=2))
    while watcher.held_writes:
        watcher.answer_writes()
    assert watcher.mirrored("pod.uid-web")["metadata"]["annotations"] == {"note": "xxxxx"}
    assert watcher.of(Warn) == []


@pytest.mark.parametrize("order", [("copy", "answer"), ("answer", "copy")], ids=" before ".join)
def test_copy_of_an_own_write_leaves_nothing_to_do(order: tuple[str, ...]):
    mirror = Mirror(Term(7), max_writes=8)
    mirror.start_writing(position=0)
    mirror.set_desired("node.n1", DesiredEntry(object=a_node("n1")))
    (write,) = mirror.take_writes()
    copy = Entry(key="node.n1", sequence=5, data=write.data, time=EPOCH)
    steps = {"copy": lambda: mirror.on_read(copy), "answer": lambda: mirror.on_written("node.n1", 5)}
    for step in order:
        steps[step]()
    assert (mirror.settled, mirror.may_write) == (mirror.changes, False)
    mirror.on_read(Entry(key="node.n1", sequence=6, data=b"{}", time=EPOCH))
    assert [again.expected for again in mirror.take_writes()] == [6]


def test_version_that_is_the_same_to_the_mirror_does_not_stand_for_one_that_waits_to_be_written():
    mirror = Mirror(Term(7), max_writes=1)
    mirror.start_writing(position=0)
    mirror.set_desired("node.n1", DesiredEntry(object=a_node("n1", version=1, cpu="1")))
    mirror.take_writes()
    mirror.on_written("node.n1", 1)
    mirror.set_desired("node.n2", DesiredEntry(object=a_node("n2")))
    mirror.take_writes()  # the only one that may be in flight
    mirror.set_desired("node.n1", DesiredEntry(object=a_node("n1", version=2, cpu="2")))
    assert mirror.set_desired("node.n1", DesiredEntry(object=a_node("n1", version=3, cpu="2"))) == NO_CHANGE
    mirror.on_written("node.n2", 2)
    (write,) = mirror.take_writes()
    assert bytes(decode_entry(write.data).object) == msgspec.json.encode(trimmed(a_node("n1", cpu="2")))


def test_object_that_the_store_has_replaced_is_not_kept():
    mirror = Mirror(Term(7), max_writes=8)
    mirror.start_writing(position=0)
    first = a_node("n1", version=1)
    references = sys.getrefcount(first)
    mirror.set_desired("node.n1", DesiredEntry(object=first))
    mirror.take_writes()
    mirror.on_written("node.n1", 1)
    assert mirror.set_desired("node.n1", DesiredEntry(object=a_node("n1", version=2))) == NO_CHANGE
    assert sys.getrefcount(first) == references


def test_changes_that_a_full_bucket_does_not_store_do_not_pile_up():
    """It refuses everything for hours, while a few objects change all the time."""
    mirror = Mirror(Term(7), max_writes=8)
    mirror.start_writing(position=0)
    for number in range(5000):
        mirror.set_desired(f"node.n{number % 10}", DesiredEntry(object=a_node(f"n{number % 10}", cpu=str(number + 1))))
        for write in mirror.take_writes():
            mirror.on_write_failed(write.key)
            mirror.on_looked_up(write.key, None)
    assert mirror.settled == 0
    assert mirror.entries < 2000


@pytest.mark.parametrize("seed", range(often(5)))
def test_settled_is_the_same_however_many_changes_are_dropped(seed, monkeypatch):
    """A mirror that drops as early as it may, and one that never does, over random writes, answers and failures."""
    chance = random.Random(seed)
    eager, patient = Mirror(Term(7), max_writes=3), Mirror(Term(7), max_writes=3)
    in_flight: list[str] = []
    for mirror in (eager, patient):
        mirror.start_writing(position=0)
    for sequence in range(1, 400):
        name, cpu, step = f"n{chance.randrange(6)}", str(chance.randrange(9)), chance.random()
        desired = None if step < 0.05 else DesiredEntry(object=a_node(name, cpu=cpu))
        written = in_flight.pop(chance.randrange(len(in_flight))) if in_flight and chance.random() < 0.4 else ""
        for mirror, is_eager in ((eager, True), (patient, False)):
            monkeypatch.setattr("berth_watcher.mirror.MIN_COMPACTED", -1_000_000 if is_eager else 1_000_000)
            mirror.set_desired(f"node.{name}", desired)
            if written and step < 0.7:
                mirror.on_written(written, sequence)
            elif written:
                mirror.on_write_failed(written)
                mirror.on_looked_up(written, None)
        writes = [mirror.take_writes() for mirror in (eager, patient)]
        assert writes[0] == writes[1]
        in_flight += [write.key for write in writes[0]]
        assert eager.settled == patient.settled


def test_a_claim_of_too_many_bytes_takes_few_in_the_bucket_and_keeps_its_devices():
    """A tenant's claims of 1 MB would fill it after a few hundred, and keep every pod waiting."""
    selectors = [{"cel": {"expression": f"device.driver != '{i}{'x' * 10_000}'"}} for i in range(100)]
    requests = [{"name": "r", "exactly": {"deviceClassName": "gpu", "selectors": selectors}}]
    results = [{"request": "r", "driver": "d", "pool": "p", "device": "gpu-0"}]
    conditions = [{"type": "t" * 300, "status": "True", "message": "m" * 30_000}] * 8
    reported = [{"driver": "d", "pool": "p", "device": "gpu-0", "conditions": conditions}]
    metadata = {"name": "c", "namespace": "default", "uid": "u", "labels": {str(i): "x" * 60 for i in range(2_000)}}
    status = {"allocation": {"devices": {"results": results}}, "devices": reported}
    body = {"metadata": metadata, "spec": {"devices": {"requests": requests}}, "status": status}
    watcher = WatcherUnderTest(kinds=(*KINDS, "resourceclaim")).lead(msgspec.convert(body, ResourceClaim))
    assert len(watcher.bucket["resourceclaim.u"].data) < 1_000
    mirrored = watcher.mirrored("resourceclaim.u")
    assert mirrored["spec"]["leftOut"] == "is too large: more than 65536 bytes of requests"
    assert mirrored["status"]["allocation"] == status["allocation"]
    assert reduced(watcher) == [("resourceclaim", "default/c", "its spec")]
