"""What ``cluster`` holds: what plugins read, written once, and held against everybody else's writes."""

import pytest

from berth.api.meta import ObjectMeta
from berth.api.mirror import decode_entry, decode_watermark
from berth.api.node import Node
from berth.api.pod import Pod, PodCondition, PodStatus
from berth.kube.watch import Current, Listed
from berth_watcher.events import (
    BucketEntryRead,
    KeyLookedUp,
    KeyWriteFailed,
    KeyWritten,
    LookUpKey,
    PurgeKey,
    StepDown,
    WriteKey,
)
from harness.worlds.watcher_world import WatcherUnderTest, a_namespace, a_node, a_pod, foreign_value


def test_nodes_namespaces_bound_and_nominated_pods_are_there_and_pending_pods_are_not():
    world = WatcherUnderTest().lead(
        a_node("n1"), a_namespace("default"), a_pod("web"), a_pod("bound", node="n1"), a_pod("nominee", nominated="n1")
    )

    keys = {key for key in world.bucket if not key.startswith("watermark.")}
    assert keys == {"node.n1", "namespace.default", "pod.uid-bound", "pod.uid-nominee"}


def test_a_heartbeat_writes_nothing():
    world = WatcherUnderTest().lead(a_node("n1"))
    stands_at = world.bucket["node.n1"].sequence

    world.show(a_node("n1", version=2))

    assert world.bucket["node.n1"].sequence == stands_at


def test_a_bound_pod_that_starts_to_run_is_not_written_again():
    world = WatcherUnderTest().lead(a_node("n1"), a_pod("web", node="n1"))
    stands_at = world.bucket["pod.uid-web"].sequence

    running = a_pod("web", node="n1", phase="Running", version=2)
    status = PodStatus(phase="Running", start_time="2026-01-01T00:00:09Z")
    world.show(Pod(metadata=running.metadata, spec=running.spec, status=status))

    assert world.bucket["pod.uid-web"].sequence == stands_at


def test_a_bound_pod_carries_the_time_at_which_the_api_took_its_binding():
    world = WatcherUnderTest().lead(a_node("n1"))
    condition = PodCondition(type="PodScheduled", status="True", last_transition_time="2026-01-01T00:00:07Z")
    pod = a_pod("web", node="n1")
    bound = Pod(metadata=pod.metadata, spec=pod.spec, status=PodStatus(conditions=[condition]))

    world.show(bound)

    data = world.bucket["pod.uid-web"].data
    assert data is not None
    assert decode_entry(data).bound_at == "2026-01-01T00:00:07Z"


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_pod_that_has_finished_is_as_if_deleted(phase):
    world = WatcherUnderTest().lead(a_node("n1"), a_pod("web", node="n1"))

    world.show(a_pod("web", node="n1", phase=phase, version=2))

    assert world.mirrored("pod.uid-web") is None


def test_what_a_new_list_lacks_is_removed():
    world = WatcherUnderTest().lead(a_node("n1"), a_node("n2"))

    world.send(Listed(kind="node", objects=[a_node("n2")], resource_version="20"))

    assert world.mirrored("node.n1") is None
    assert world.mirrored("node.n2") is not None


def test_a_node_without_status_is_mirrored_as_it_is():
    world = WatcherUnderTest().lead()

    world.show(Node(metadata=ObjectMeta(name="bare", uid="u", resource_version="2")))

    assert world.mirrored("node.bare") == {"metadata": {"name": "bare", "uid": "u"}}


def test_changes_while_a_write_is_under_way_are_written_together_when_it_is_answered():
    world = WatcherUnderTest().lead(a_node("n1"))
    world.hold_writes = True

    for number in range(2, 6):
        world.show(a_node("n1", cpu=str(number), version=number))
    assert len([effect for effect in world.held_writes if effect.key == "node.n1"]) == 1
    world.answer_writes()
    world.answer_writes()

    assert world.mirrored("node.n1")["status"]["allocatable"]["cpu"] == "5"
    assert world.core.figures(world.now).unsettled_keys == 0


def test_a_key_that_somebody_wrote_in_between_is_read_and_written_again():
    world = WatcherUnderTest().lead(a_node("n1"))
    world.hold_writes = True
    world.put("node.n1", foreign_value(a_node("n1", cpu="77")))

    world.show(a_node("n1", cpu="8", version=2))
    world.answer_writes()
    assert [type(effect) for effect in world.held_writes] == [LookUpKey]
    world.answer_writes()
    world.answer_writes()

    assert world.mirrored("node.n1")["status"]["allocatable"]["cpu"] == "8"


def test_a_foreign_write_that_is_read_while_its_predecessor_is_looked_up_is_written_over():
    world = WatcherUnderTest().lead(a_node("n1"))
    world.hold_writes = True
    world.show(a_node("n1", cpu="8", version=2))
    (write,) = world.held_writes
    world.held_writes = []
    landed = world.put("node.n1", write.data)
    world.send(KeyWriteFailed(key="node.n1"))  # its answer got lost
    world.put("node.n1", foreign_value(a_node("n1", cpu="77")))
    world.read_back()

    world.held_writes = []
    world.send(KeyLookedUp(key="node.n1", entry=landed))
    world.answer_writes()

    assert world.mirrored("node.n1")["status"]["allocatable"]["cpu"] == "8"


def test_a_lower_terms_write_is_written_over():
    world = WatcherUnderTest().lead(a_node("n1"))

    world.put("node.n1", foreign_value(a_node("n1", cpu="77"), term=6))
    world.read_back()

    assert world.mirrored("node.n1")["status"]["allocatable"]["cpu"] == "4"


def test_ones_own_write_that_landed_after_the_pod_was_removed_is_removed_again():
    world = WatcherUnderTest().lead(a_node("n1"), a_pod("web", node="n1"))
    late = world.bucket["pod.uid-web"].data
    world.delete(a_pod("web", node="n1", version=2))
    world.read_back()

    world.put("pod.uid-web", late)
    world.read_back()

    assert world.mirrored("pod.uid-web") is None


def test_a_key_that_nobody_of_berths_wrote_is_removed_and_garbage_on_a_node_is_written_over():
    world = WatcherUnderTest().lead(a_node("n1"))

    world.put("node.made-up", b"hello")
    world.put("node.n1", b"{}")
    world.read_back()

    assert world.mirrored("node.made-up") is None
    assert world.mirrored("node.n1") is not None


def test_a_removal_by_somebody_else_is_undone():
    world = WatcherUnderTest().lead(a_node("n1"))

    world.put("node.n1", None)
    world.read_back()

    assert world.mirrored("node.n1") is not None


def test_reading_ones_own_writes_back_writes_nothing():
    world = WatcherUnderTest().lead(a_node("n1"), a_pod("web", node="n1"))
    world.delete(a_pod("web", node="n1", version=2))
    stands_at = world.sequence

    world.read_back()

    assert world.sequence == stands_at


def test_reading_a_write_back_before_its_ack_is_harmless():
    world = WatcherUnderTest().lead()
    world.hold_writes = True
    world.show(a_node("n1"))
    (write,) = (effect for effect in world.held_writes if effect.key == "node.n1")

    entry = world.put(write.key, write.data)
    world.send(BucketEntryRead(entry=entry))
    world.held_writes = [effect for effect in world.held_writes if effect is not write]
    world.send(KeyWritten(key=entry.key, sequence=entry.sequence))

    assert not [effect for effect in world.held_writes if effect.key == "node.n1"]


def test_a_node_that_comes_back_after_its_removal_is_written_over_the_marker():
    world = WatcherUnderTest().lead(a_node("n1"))
    world.delete(a_node("n1", version=2))
    world.read_back()

    world.show(a_node("n1", version=3))

    assert world.mirrored("node.n1") is not None


def test_a_node_that_comes_back_after_the_marker_has_expired_is_written():
    world = WatcherUnderTest().lead(a_node("n1"))
    world.delete(a_node("n1", version=2))
    del world.bucket["node.n1"]

    world.show(a_node("n1", version=3))

    assert world.mirrored("node.n1") is not None


def test_a_higher_term_ends_the_leadership():
    world = WatcherUnderTest().lead(a_node("n1"))

    world.put("node.n1", foreign_value(a_node("n1"), term=8))
    world.read_back()

    assert [effect.term for effect in world.of(StepDown)] == [8]


def test_watermarks_are_written_once_a_second_at_most():
    world = WatcherUnderTest().lead()
    world.advance(1)
    stands_at = world.sequence

    for version in range(20, 30):
        world.send(Current(kind="node", resource_version=str(version)))
    world.advance(0.5)
    assert world.sequence <= stands_at + 1
    world.advance(0.5)

    data = world.bucket["watermark.node"].data
    assert data is not None
    assert decode_watermark(data).resource_version == "29"


def test_a_quiet_kinds_watermark_is_written_again_so_that_its_time_says_it_is_current():
    world = WatcherUnderTest().lead(a_node("n1"))
    world.send(Current(kind="node", resource_version="30"))
    world.advance(2)
    stands_at = world.bucket["watermark.node"].sequence

    world.send(Current(kind="node", resource_version="30"))
    world.advance(2)

    assert world.bucket["watermark.node"].sequence > stands_at


def test_a_watermark_is_not_written_before_everything_that_it_speaks_of():
    world = WatcherUnderTest().lead()
    world.advance(2)
    world.hold_writes = True

    world.show(a_node("n1", version=50))
    world.advance(2)
    assert [effect.key for effect in world.held_writes] == ["node.n1"]
    world.answer_writes()

    assert "watermark.node" in [effect.key for effect in world.held_writes]


def test_a_removal_expects_the_sequence_of_what_it_removes():
    world = WatcherUnderTest().lead(a_node("n1"))
    stands_at = world.bucket["node.n1"].sequence
    world.hold_writes = True

    world.delete(a_node("n1", version=2))

    assert world.held_writes == [PurgeKey(key="node.n1", expected=stands_at)]
    assert not [effect for effect in world.held_writes if isinstance(effect, WriteKey)]
