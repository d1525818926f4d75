"""EBSLimits, GCEPDLimits, AzureDiskLimits: disks of a cloud are counted on the volumes that name them."""

import pytest

from berth.api.meta import ObjectMeta
from berth.api.pod import (
    AWSElasticBlockStore,
    AzureDisk,
    ClaimSource,
    CSISource,
    EphemeralSource,
    GCEPersistentDisk,
    Pod,
    Volume,
)
from berth.api.volumes import (
    PersistentVolume,
    PersistentVolumeClaim,
    PersistentVolumeClaimSpec,
    PersistentVolumeSpec,
    StorageClass,
)
from berth.cluster.nodes import Nodes, node_info
from berth.cluster.snapshot import Snapshot
from berth.framework.status import CycleState
from berth_plugins_1_18.disklimits import AzureDiskLimits, DiskLimits, EBSLimits, GCEPDLimits
from harness.builders.objects import a_node, a_pod

SOURCES = {
    EBSLimits: lambda disk: {"aws_elastic_block_store": AWSElasticBlockStore(volume_id=disk)},
    GCEPDLimits: lambda disk: {"gce_persistent_disk": GCEPersistentDisk(pd_name=disk)},
    AzureDiskLimits: lambda disk: {"azure_disk": AzureDisk(disk_name=disk, disk_uri=f"/{disk}")},
}
KEYS = {
    EBSLimits: "attachable-volumes-aws-ebs",
    GCEPDLimits: "attachable-volumes-gce-pd",
    AzureDiskLimits: "attachable-volumes-azure-disk",
}


def using(*volumes: Volume, name: str = "web") -> Pod:
    return a_pod(name, volumes=list(volumes))


def claiming(claim: str) -> Volume:
    return Volume(name="data", persistent_volume_claim=ClaimSource(claim_name=claim))


def inline(plugin: type[DiskLimits], *disks: str, name: str = "web") -> Pod:
    return using(*(Volume(name=disk, **SOURCES[plugin](disk)) for disk in disks), name=name)


def a_claim(name: str, *, volume: str = "", storage: str | None = None) -> PersistentVolumeClaim:
    spec = PersistentVolumeClaimSpec(volume_name=volume, storage_class_name=storage)
    return PersistentVolumeClaim(metadata=ObjectMeta(name=name, namespace="default"), spec=spec)


def a_volume(name: str, **source) -> PersistentVolume:
    return PersistentVolume(metadata=ObjectMeta(name=name), spec=PersistentVolumeSpec(**source))


def a_class(name: str, provisioner: str) -> StorageClass:
    return StorageClass(metadata=ObjectMeta(name=name), provisioner=provisioner)


def refused(plugin: DiskLimits, pod: Pod, node, placed=(), things=()) -> bool:
    """Whether the plugin rejects the node, by both of its forms."""
    snapshot = Snapshot()
    snapshot.set_node(node)
    for number, thing in enumerate(things):
        snapshot.objects(type(thing)).set(f"u{number}", thing)
    for other in placed:
        snapshot.place(other, node.metadata.name)
    state = CycleState(snapshot.class_of(pod))
    status = plugin.filter(state, pod, node_info(snapshot, node.metadata.name))
    verdicts = plugin.filter_all(state, pod, Nodes(snapshot))
    assert verdicts.statuses[verdicts.codes[0]] == status
    assert status.reasons in ((), ("node(s) exceed max volume count",))
    return not status.is_success


def room_for(plugin: type[DiskLimits], count: int):
    return a_node("n", **{KEYS[plugin]: str(count)})


@pytest.mark.parametrize("plugin", SOURCES)
@pytest.mark.parametrize(
    ("disks", "there", "is_refused"),
    [
        pytest.param(["a"], ["b"], False, id="the last place"),
        pytest.param(["a", "b"], ["c"], True, id="one too many"),
        pytest.param(["a", "c"], ["c"], False, id="a disk that is there already"),
        pytest.param(["a", "a"], ["c"], False, id="a disk that is named twice"),
        pytest.param(["c"], ["c", "d", "e"], True, id="nothing new on a node that has too many"),
        pytest.param([], ["c", "d", "e"], False, id="no disk at all"),
    ],
)
def test_different_disks_count_up_to_the_limit(plugin, disks, there, is_refused):
    placed = [inline(plugin, disk, name=f"p-{disk}") for disk in there]
    assert refused(plugin(), inline(plugin, *disks), room_for(plugin, 2), placed) is is_refused


@pytest.mark.parametrize("plugin", SOURCES)
def test_disks_of_other_clouds_are_not_counted(plugin):
    others = [inline(other, "x", name=f"p-{other.name}") for other in SOURCES if other is not plugin]
    assert not refused(plugin(), inline(plugin, "a"), room_for(plugin, 1), others)


EBS_VOLUME = SOURCES[EBSLimits]("vol-1")
SLOW, FAST = a_class("slow", "kubernetes.io/aws-ebs"), a_class("fast", "ebs.csi.aws.com")


@pytest.mark.parametrize(
    ("claim", "volume", "counts"),
    [
        pytest.param(a_claim("c", volume="v"), a_volume("v", **EBS_VOLUME), True, id="bound to a disk"),
        pytest.param(
            a_claim("c", volume="v", storage="slow"),
            a_volume("v", csi=CSISource(driver="ebs.csi.aws.com", volume_handle="vol-1")),
            False,
            id="bound to a volume of a CSI driver",
        ),
        pytest.param(a_claim("c", storage="slow"), None, True, id="to be made by the cloud's provisioner"),
        pytest.param(a_claim("c", storage="fast"), None, False, id="to be made by another"),
        pytest.param(a_claim("c"), None, False, id="of no class"),
        pytest.param(a_claim("c", storage="unheard"), None, False, id="of a class that is not there"),
        pytest.param(a_claim("c", volume="gone", storage="slow"), None, True, id="bound to a volume that is gone"),
        pytest.param(a_claim("other", storage="slow"), None, False, id="not there"),
    ],
)
def test_a_claim_counts_when_its_class_is_of_the_cloud(claim, volume, counts):
    things = [SLOW, FAST, claim, *([volume] if volume else [])]
    assert refused(EBSLimits(), using(claiming("c")), room_for(EBSLimits, 0), things=things) is counts


def test_a_disk_is_the_same_by_claim_and_by_name():
    things = [a_claim("c", volume="v"), a_volume("v", **EBS_VOLUME)]
    placed = [inline(EBSLimits, "vol-1", name="p")]
    assert not refused(EBSLimits(), using(claiming("c")), room_for(EBSLimits, 1), placed, things)


def test_two_pods_that_wait_for_one_claim_need_one_disk():
    placed = [using(claiming("c"), name="p")]
    assert not refused(
        EBSLimits(), using(claiming("c")), room_for(EBSLimits, 1), placed, [SLOW, a_claim("c", storage="slow")]
    )


def test_the_claim_of_an_ephemeral_volume_counts():
    pod = using(Volume(name="scratch", ephemeral=EphemeralSource()))
    things = [SLOW, a_claim("web-scratch", storage="slow")]
    assert refused(EBSLimits(), pod, room_for(EBSLimits, 0), things=things)


@pytest.mark.parametrize(
    ("plugin", "labels", "most", "limit"),
    [
        pytest.param(EBSLimits, {}, None, 39, id="EBS"),
        pytest.param(EBSLimits, {"node.kubernetes.io/instance-type": "m5.large"}, None, 25, id="EBS on a newer kind"),
        pytest.param(EBSLimits, {"beta.kubernetes.io/instance-type": "t3.nano"}, None, 25, id="by the old label"),
        pytest.param(EBSLimits, {"node.kubernetes.io/instance-type": "m4.large"}, None, 39, id="EBS on an older kind"),
        pytest.param(GCEPDLimits, {}, None, 16, id="GCE"),
        pytest.param(AzureDiskLimits, {}, None, 16, id="Azure"),
        pytest.param(EBSLimits, {"node.kubernetes.io/instance-type": "m5.large"}, 3, 3, id="one number for all"),
    ],
)
def test_without_allocatable_the_limit_is_the_clouds(plugin, labels, most, limit):
    node = a_node("n", labels=labels)
    placed = [inline(plugin, f"d{number}", name=f"p{number}") for number in range(limit - 1)]
    assert not refused(plugin(most=most), inline(plugin, "new"), node, placed)
    assert refused(plugin(most=most), inline(plugin, "new", "newer"), node, placed)


def test_the_nodes_allocatable_beats_the_number_for_all():
    assert not refused(EBSLimits(most=1), inline(EBSLimits, "a", "b"), room_for(EBSLimits, 2))
