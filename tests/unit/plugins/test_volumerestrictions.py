"""VolumeRestrictions: a disk that allows one user, and a claim for one pod, have one."""

from __future__ import annotations

import msgspec
import pytest

from berth.api.pod import ISCSI, RBD, AWSElasticBlockStore, GCEPersistentDisk, Volume
from berth.cluster.nodes import node_info
from berth.cluster.snapshot import Snapshot
from berth.framework.cycle import check, rank
from berth.framework.events import Action, ClusterEvent, Resource
from berth.framework.status import CycleState
from berth.plugins.volumes.volumerestrictions import DISK_CONFLICT, READ_WRITE_ONCE_POD_CONFLICT, VolumeRestrictions
from harness.builders.objects import a_node, a_pod, first_attempt
from harness.builders.profiles import default_profile
from harness.builders.volumes import a_claim, a_volume, add_objects, pod_with_claims
from harness.worlds.queueing_hints import may_help


def with_disk(name: str, **source):
    return a_pod(name, volumes=[Volume(name="d", **source)])


def gce(name: str = "web", disk: str = "d1", *, read_only: bool = False):
    return with_disk(name, gce_persistent_disk=GCEPersistentDisk(pd_name=disk, read_only=read_only))


def ebs(name: str = "web", disk: str = "vol-1"):
    return with_disk(name, aws_elastic_block_store=AWSElasticBlockStore(volume_id=disk))


def iscsi(name: str = "web", *, read_only: bool = False):
    return with_disk(name, iscsi=ISCSI(iqn="iqn.a", read_only=read_only))


def rbd(name: str = "web", *monitors: str, pool: str = "rbd"):
    return with_disk(name, rbd=RBD(monitors=list(monitors), image="i", pool=pool))


def reasons(pod, other) -> tuple[str, ...]:
    """The reason why the pod cannot be on the node of the other one."""
    snapshot = Snapshot()
    for name in ("n0", "n1"):
        snapshot.set_node(a_node(name))
    snapshot.place(other, "n0")
    ranking = rank(pod, snapshot, default_profile(), attempt=first_attempt(pod))
    status = check(pod, "n0", snapshot, default_profile())
    assert {candidate.node for candidate in ranking.candidates} == ({"n1"} if status.reasons else {"n0", "n1"})
    return status.reasons


@pytest.mark.parametrize(
    ("wanted", "there", "refused"),
    [
        pytest.param(gce(), gce("o"), True, id="a disk of Google's"),
        pytest.param(gce(), gce("o", "d2"), False, id="another one"),
        pytest.param(gce(read_only=True), gce("o", read_only=True), False, id="both only read it"),
        pytest.param(gce(read_only=True), gce("o"), True, id="one writes it"),
        pytest.param(ebs(), ebs("o"), True, id="an EBS disk cannot be shared"),
        pytest.param(iscsi(), iscsi("o"), True, id="an iSCSI target"),
        pytest.param(iscsi(read_only=True), iscsi("o", read_only=True), False, id="a target that both only read"),
        pytest.param(rbd("web", "m1", "m2"), rbd("o", "m2", "m3"), True, id="an image of a cluster with one monitor"),
        pytest.param(rbd("web", "m1"), rbd("o", "m2"), False, id="an image of another cluster"),
        pytest.param(rbd("web", "m1"), rbd("o", "m1", pool="p"), False, id="an image of another pool"),
        pytest.param(gce(disk="x"), ebs("o", "x"), False, id="disks of two clouds"),
    ],
)
def test_a_disk_has_one_user_on_a_node_unless_all_are_read_only(wanted, there, refused):
    assert reasons(wanted, there) == (DISK_CONFLICT.reasons if refused else ())


def exclusive(*used_by):
    snapshot = Snapshot()
    for name in ("n0", "n1"):
        snapshot.set_node(a_node(name))
    add_objects(snapshot, a_claim(volume="disk", access_modes=["ReadWriteOncePod"]), a_volume("disk"))
    for pod in used_by:
        snapshot.place(pod, "n0")
    return snapshot


def test_a_read_write_once_pod_claim_rejects_a_second_pod_everywhere():
    snapshot = exclusive(pod_with_claims("first"))
    second = pod_with_claims("second")
    assert [check(second, n, snapshot, default_profile()).reasons for n in ("n0", "n1")] == [
        READ_WRITE_ONCE_POD_CONFLICT.reasons
    ] * 2
    snapshot.remove_pod("uid-first")
    assert check(second, "n0", snapshot, default_profile()).is_success


def test_a_pod_does_not_conflict_with_itself():
    assert check(pod_with_claims("first"), "n1", exclusive(pod_with_claims("first")), default_profile()).is_success


def test_a_claim_of_the_same_name_in_another_namespace_is_another_claim():
    other = pod_with_claims("first")
    other = msgspec.structs.replace(other, metadata=msgspec.structs.replace(other.metadata, namespace="elsewhere"))
    assert check(pod_with_claims("second"), "n0", exclusive(other), default_profile()).is_success


def test_removing_the_only_user_frees_the_claim_and_adding_one_takes_it():
    snapshot, pod, plugin = exclusive(pod_with_claims("first")), pod_with_claims("second"), VolumeRestrictions()
    state, node = CycleState(snapshot.class_of(pod)), node_info(snapshot, "n0")
    assert plugin.pre_filter(state, pod, snapshot).status.is_success
    changed = state.clone()
    plugin.remove_pod(changed, pod, pod_with_claims("first"), node)
    assert plugin.filter(changed, pod, node).is_success
    plugin.add_pod(changed, pod, pod_with_claims("third"), node)
    assert plugin.filter(changed, pod, node) == READ_WRITE_ONCE_POD_CONFLICT
    assert plugin.filter(state, pod, node) == READ_WRITE_ONCE_POD_CONFLICT


@pytest.mark.parametrize(
    ("pod", "gone", "helps"),
    [
        pytest.param(gce(), gce("o"), True, id="who has the disk"),
        pytest.param(gce(), gce("o", "d2"), False, id="who has another disk"),
        pytest.param(pod_with_claims(), pod_with_claims("o"), True, id="who has the claim"),
        pytest.param(pod_with_claims(), pod_with_claims("o", "other"), False, id="who has another claim"),
    ],
)
def test_only_deleting_a_user_helps(pod, gone, helps):
    event = ClusterEvent(Resource.POD, Action.DELETE)
    assert may_help(default_profile(), {"VolumeRestrictions"}, event, pod, gone, None) is helps
