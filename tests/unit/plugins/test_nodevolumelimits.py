"""NodeVolumeLimits: the number of volumes of each CSI driver on a node."""

from __future__ import annotations

import pytest

from berth.api.pod import AWSElasticBlockStore, CSISource, GCEPersistentDisk, Volume
from berth.cluster.nodes import Nodes, node_info
from berth.cluster.snapshot import Snapshot
from berth.framework.events import Action, ClusterEvent, Resource
from berth.framework.status import SUCCESS, CycleState
from berth.plugins.volumes.nodevolumelimits import MAX_VOLUME_COUNT_EXCEEDED, NodeVolumeLimits
from harness.builders.objects import a_node, a_pod
from harness.builders.profiles import default_profile
from harness.builders.volumes import (
    DRIVER,
    a_claim,
    a_class,
    a_csi_node,
    a_volume,
    add_objects,
    attached,
    pod_with_claims,
    pod_with_ephemeral_claim,
)
from harness.worlds.queueing_hints import may_help

EBS = "ebs.csi.aws.com"


def of_driver(name: str, driver: str = DRIVER, handle: str = ""):
    return a_volume(name, csi=CSISource(driver=driver, volume_handle=handle or name))


def cluster(*things, pods=()) -> Snapshot:
    snapshot = Snapshot()
    snapshot.set_node(a_node("n0"))
    add_objects(snapshot, *things)
    for pod in pods:
        snapshot.place(pod, "n0")
    return snapshot


def answer(pod, snapshot):
    """The status of both forms."""
    plugin, state = NodeVolumeLimits(), CycleState(snapshot.class_of(pod))
    if plugin.pre_filter(state, pod, snapshot).status.is_skip:
        return SUCCESS
    verdicts = plugin.filter_all(state, pod, Nodes(snapshot))
    status = verdicts.statuses[verdicts.codes[0]]
    assert status == plugin.filter(state, pod, node_info(snapshot, "n0"))
    return status


def bound(*names: str):
    return [thing for name in names for thing in (a_claim(name, volume=f"v-{name}"), of_driver(f"v-{name}"))]


def test_new_and_present_volumes_must_fit():
    limit = a_csi_node(disks_example_com=2)
    snapshot = cluster(limit, *bound("a", "b", "c"), pods=[pod_with_claims("o", "a")])
    assert answer(pod_with_claims("web", "b"), snapshot) == SUCCESS  # 1 + 1 = 2
    assert answer(pod_with_claims("web", "b", "c"), snapshot) == MAX_VOLUME_COUNT_EXCEEDED  # 1 + 2 = 3


def test_a_present_volume_is_counted_once():
    snapshot = cluster(a_csi_node(disks_example_com=1), *bound("a"), pods=[pod_with_claims("o", "a")])
    assert answer(pod_with_claims("web", "a"), snapshot) == SUCCESS


def test_a_node_without_a_limit_has_none():
    claims = bound("a", "b")
    assert answer(pod_with_claims("web", "a", "b"), cluster(*claims)) == SUCCESS
    assert answer(pod_with_claims("web", "a", "b"), cluster(a_csi_node(other=0), *claims)) == SUCCESS


def test_attached_volumes_count_without_a_pod():
    limit = a_csi_node(disks_example_com=1)
    assert (
        answer(pod_with_claims("web", "a"), cluster(limit, *bound("a", "b"), attached("v-b", "n0")))
        == MAX_VOLUME_COUNT_EXCEEDED
    )
    assert answer(pod_with_claims("web", "a"), cluster(limit, *bound("a", "b"), attached("v-b", "n9"))) == SUCCESS


def test_a_deleted_attachment_no_longer_counts():
    snapshot, plugin, pod = (
        cluster(a_csi_node(disks_example_com=1), *bound("a", "b")),
        NodeVolumeLimits(),
        pod_with_claims("web", "a"),
    )
    statuses = []
    for change in (attached("v-b", "n0"), attached("v-b", "n9")):
        snapshot.objects(type(change)).set("it", change)
        statuses.append(plugin.filter(CycleState(snapshot.class_of(pod)), pod, node_info(snapshot, "n0")))
    assert statuses == [MAX_VOLUME_COUNT_EXCEEDED, SUCCESS]


def test_an_unprovisioned_volume_counts_for_the_driver_of_its_class():
    full = a_csi_node(disks_example_com=0)
    assert answer(pod_with_claims(), cluster(full, a_class(), a_claim())) == MAX_VOLUME_COUNT_EXCEEDED
    assert answer(pod_with_claims(), cluster(full, a_class("other.example.com"), a_claim())) == SUCCESS
    assert answer(pod_with_claims(), cluster(full, a_claim())) == SUCCESS


@pytest.mark.parametrize(
    ("volume", "driver"),
    [
        pytest.param(
            Volume(aws_elastic_block_store=AWSElasticBlockStore(volume_id="aws://a/vol-1")), EBS, id="of Amazon's"
        ),
        pytest.param(
            Volume(gce_persistent_disk=GCEPersistentDisk(pd_name="d")), "pd.csi.storage.gke.io", id="of Google's"
        ),
    ],
)
def test_an_in_tree_disk_counts_for_its_csi_driver(volume, driver):
    snapshot = cluster(a_csi_node(**{driver.replace(".", "_"): 0}))
    assert answer(a_pod(volumes=[volume]), snapshot) == MAX_VOLUME_COUNT_EXCEEDED


def test_a_disk_is_one_whether_a_pod_names_it_or_claims_it():
    disk = a_volume("v-a", aws_elastic_block_store=AWSElasticBlockStore(volume_id="aws://zone/vol-1"))
    inline = a_pod("o", volumes=[Volume(aws_elastic_block_store=AWSElasticBlockStore(volume_id="vol-1"))])
    snapshot = cluster(a_csi_node(ebs_csi_aws_com=1), a_claim("a", volume="v-a"), disk, pods=[inline])
    assert answer(pod_with_claims("web", "a"), snapshot) == SUCCESS


def test_a_claim_that_is_missing_is_named():
    status = answer(pod_with_claims(), cluster(a_csi_node(disks_example_com=1)))
    assert status.reasons == ('looking up PVC default/data: persistentvolumeclaim "data" not found',)


def test_an_untranslatable_disk_is_an_error():
    odd = a_pod(volumes=[Volume(name="d", aws_elastic_block_store=AWSElasticBlockStore(volume_id="aws://z/odd"))])
    (reason,) = answer(odd, cluster(a_csi_node(ebs_csi_aws_com=1))).reasons
    assert reason.startswith("converting volume(d) from inline to csi: reading volumeID 'aws://z/odd'")


def test_an_untranslatable_disk_of_a_placed_pod_does_not_count():
    odd = a_pod("o", volumes=[Volume(aws_elastic_block_store=AWSElasticBlockStore(volume_id="aws://z/odd"))])
    snapshot = cluster(a_csi_node(disks_example_com=1), *bound("a"), attached("v-a", "n9"), pods=[odd])
    assert answer(pod_with_claims("web", "a"), snapshot) == SUCCESS


@pytest.mark.parametrize(
    ("resource", "action", "old", "new", "helps"),
    [
        pytest.param(Resource.CSI_NODE, Action.ADD, None, a_csi_node(), False, id="a CSINode, which only limits"),
        pytest.param(Resource.CSI_NODE, Action.DELETE, a_csi_node(d=1), None, True, id="a CSINode that limits goes"),
        pytest.param(Resource.CSI_NODE, Action.UPDATE, a_csi_node(d=1), a_csi_node(), True, id="it no longer limits"),
        pytest.param(Resource.CSI_NODE, Action.UPDATE, a_csi_node(d=1), a_csi_node(d=2), True, id="it allows more"),
        pytest.param(Resource.CSI_NODE, Action.UPDATE, a_csi_node(d=2), a_csi_node(d=1), False, id="it allows less"),
        pytest.param(
            Resource.POD,
            Action.DELETE,
            pod_with_claims("o", "x", node_name="n0"),
            None,
            True,
            id="a pod with volumes goes",
        ),
        pytest.param(Resource.POD, Action.DELETE, a_pod("o", node_name="n0"), None, False, id="one without goes"),
        pytest.param(
            Resource.POD, Action.DELETE, pod_with_ephemeral_claim("o"), None, False, id="one that was nowhere goes"
        ),
        pytest.param(
            Resource.VOLUME_ATTACHMENT, Action.DELETE, attached("v", "n0"), None, True, id="a volume is let go"
        ),
        pytest.param(Resource.NODE, Action.ADD, None, a_node("n"), True, id="a node without CSINode"),
    ],
)
def test_only_events_that_may_free_a_volume_requeue_the_pod(resource, action, old, new, helps):
    event = ClusterEvent(resource, action)
    assert may_help(default_profile(), {"NodeVolumeLimits"}, event, pod_with_claims(), old, new) is helps
