"""VolumeZone: a volume with zone labels is accessible only from nodes in these zones."""

from __future__ import annotations

import pytest

from berth.cluster.nodes import Nodes, node_info
from berth.cluster.snapshot import Snapshot
from berth.framework.events import Action, ClusterEvent, Resource
from berth.framework.status import CycleState
from berth.plugins.volumes.volumezone import ZONE_CONFLICT, VolumeZone
from harness.builders.objects import a_node
from harness.builders.profiles import default_profile
from harness.builders.volumes import ZONE, a_claim, a_class, a_volume, add_objects, pod_with_claims
from harness.worlds.queueing_hints import may_help

BETA = "failure-domain.beta.kubernetes.io/zone"
REGION = "topology.kubernetes.io/region"


def is_refused(labels: dict[str, str], node_labels: dict[str, str]) -> bool:
    snapshot, plugin, pod = Snapshot(), VolumeZone(), pod_with_claims()
    snapshot.set_node(a_node("n0", labels=node_labels))
    add_objects(snapshot, a_claim(volume="disk"), a_volume("disk", labels=labels))
    state = CycleState(snapshot.class_of(pod))
    if plugin.pre_filter(state, pod, snapshot).status.is_skip:
        return False
    verdicts = plugin.filter_all(state, pod, Nodes(snapshot))
    status = verdicts.statuses[verdicts.codes[0]]
    assert status == plugin.filter(state, pod, node_info(snapshot, "n0"))
    return status == ZONE_CONFLICT


@pytest.mark.parametrize(
    ("labels", "node", "refused"),
    [
        pytest.param({ZONE: "a"}, {ZONE: "a"}, False, id="the same zone"),
        pytest.param({ZONE: "a"}, {ZONE: "b"}, True, id="another zone"),
        pytest.param({ZONE: "a__b"}, {ZONE: "b"}, False, id="one of several zones"),
        pytest.param({ZONE: "a"}, {}, False, id="a node that is nowhere"),
        pytest.param({ZONE: "a"}, {REGION: "r"}, True, id="a node that has only a region"),
        pytest.param({BETA: "a"}, {ZONE: "a"}, False, id="the old name matches the new one"),
        pytest.param({ZONE: "a"}, {BETA: "a"}, True, id="the new name does not match the old one"),
        pytest.param({ZONE: "a", REGION: "r"}, {ZONE: "a", REGION: "s"}, True, id="another region"),
        pytest.param({ZONE: "a__"}, {ZONE: "b"}, False, id="a label that cannot be read"),
        pytest.param({}, {ZONE: "b"}, False, id="a volume that is anywhere"),
    ],
)
def test_a_node_must_be_in_the_zone_of_the_volume(labels, node, refused):
    assert is_refused(labels, node) is refused


@pytest.mark.parametrize(
    ("things", "reason"),
    [
        pytest.param([], 'persistentvolumeclaim "data" not found', id="no claim"),
        pytest.param([a_claim(volume="disk")], 'persistentvolume "disk" not found', id="no volume"),
        pytest.param([a_claim()], 'storageclass.storage.k8s.io "slow" not found', id="no class"),
        pytest.param(
            [a_claim(storage_class_name=None)], "PersistentVolumeClaim had no pv name and storageClass name", id="none"
        ),
        pytest.param([a_claim(), a_class(mode="Immediate")], "PersistentVolume had no name", id="not bound yet"),
    ],
)
def test_a_claim_without_volume_or_class_rejects_the_pod(things, reason):
    snapshot, pod = Snapshot(), pod_with_claims()
    add_objects(snapshot, *things)
    answer = VolumeZone().pre_filter(CycleState(snapshot.class_of(pod)), pod, snapshot)
    assert answer.status.reasons == (reason,)


def test_filter_without_pre_filter_gives_the_same_reasons():
    snapshot, pod = Snapshot(), pod_with_claims()
    snapshot.set_node(a_node("n0"))
    status = VolumeZone().filter(CycleState(snapshot.class_of(pod)), pod, node_info(snapshot, "n0"))
    assert status.reasons == ('persistentvolumeclaim "data" not found',)


@pytest.mark.parametrize(
    ("old", "new", "helps"),
    [
        pytest.param(None, a_volume("disk"), True, id="it is there"),
        pytest.param(a_volume("disk"), a_volume("disk", labels={ZONE: "a"}), True, id="it is elsewhere"),
        pytest.param(a_volume("disk"), a_volume("disk", size="9Gi"), False, id="it grows"),
    ],
)
def test_a_volume_in_another_zone_helps(old, new, helps):
    event = ClusterEvent(Resource.PERSISTENT_VOLUME, Action.ADD if old is None else Action.UPDATE)
    assert may_help(default_profile(), {"VolumeZone"}, event, pod_with_claims(), old, new) is helps


@pytest.mark.parametrize(("mode", "helps"), [("WaitForFirstConsumer", True), ("Immediate", False)])
def test_a_class_with_delayed_binding_helps(mode, helps):
    event = ClusterEvent(Resource.STORAGE_CLASS, Action.ADD)
    assert may_help(default_profile(), {"VolumeZone"}, event, pod_with_claims(), None, a_class(mode=mode)) is helps
