"""The names, labels and selectors of random clusters: so few that objects often match.

Random volumes, claims, classes, drivers, budgets, services and controllers: every kind that only plugins read.

Names are few, so that pods, claims and volumes often refer to each other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
from hypothesis import strategies as st

from berth.api.devices import (
    AllocationResult,
    CelSelector,
    ClaimMeta,
    DeviceAllocationResult,
    DeviceClaim,
    DeviceClass,
    DeviceClassSpec,
    DeviceRequest,
    DeviceRequestAllocationResult,
    ExactDeviceRequest,
    ExpressionSelector,
    ResourceClaim,
    ResourceClaimSpec,
    ResourceClaimStatus,
    ResourcePool,
    ResourceSlice,
    ResourceSliceSpec,
    SliceDevice,
)
from berth.api.kinds import PLUGIN_KINDS
from berth.api.meta import LabelSelector, ObjectMeta, SelectorRequirement
from berth.api.pod import (
    ISCSI,
    RBD,
    AWSElasticBlockStore,
    AzureDisk,
    Cinder,
    ClaimSource,
    CSISource,
    EphemeralSource,
    GCEPersistentDisk,
    NodeSelector,
    NodeSelectorTerm,
    PortworxVolume,
    Volume,
)
from berth.api.podgroups import (
    CoschedulingPodGroup,
    CoschedulingSpec,
    GangPolicy,
    SchedulingPolicy,
    UpstreamPodGroup,
    UpstreamSpec,
)
from berth.api.volumes import (
    BIND_COMPLETED,
    MIGRATED_PLUGINS,
    AttachedSource,
    ClaimReference,
    ClaimResources,
    CSIDriver,
    CSIDriverSpec,
    CSINode,
    CSINodeDriver,
    CSINodeSpec,
    CSIStorageCapacity,
    PersistentVolume,
    PersistentVolumeClaim,
    PersistentVolumeClaimSpec,
    PersistentVolumeSpec,
    PhaseStatus,
    StorageClass,
    TopologyLabel,
    TopologyTerm,
    VolumeAttachment,
    VolumeAttachmentSpec,
    VolumeCount,
    VolumeNodeAffinity,
)
from berth.api.workloads import (
    BudgetStatus,
    LabelsSpec,
    PodDisruptionBudget,
    ReplicaSet,
    ReplicationController,
    SelectorSpec,
    Service,
    StatefulSet,
)

NODE_NAMES = [f"n{i}" for i in range(6)]

UIDS = [f"u{i}" for i in range(8)]

NODE_ZONES = ["a", "b", "1"]

HOSTNAME = "kubernetes.io/hostname"

ZONE = "topology.kubernetes.io/zone"


some_namespace = st.sampled_from(["default", "default", "other"])

_values = st.sampled_from(["a", "b", "1", "5", "x9"])

labels = st.dictionaries(st.sampled_from(["zone", "disk", "tier", HOSTNAME, ZONE]), _values)

node_labels = st.fixed_dictionaries(
    {},
    optional={"zone": st.sampled_from(NODE_ZONES), "disk": _values, "tier": _values, HOSTNAME: _values, ZONE: _values},
) | st.fixed_dictionaries({"zone": st.sampled_from(NODE_ZONES), "disk": _values, HOSTNAME: _values, ZONE: _values})

pod_labels = st.none() | labels | st.sampled_from([{"tier": "a"}, {"tier": "b"}, {"tier": "a", "disk": "1"}])

expressions = st.builds(
    SelectorRequirement,
    key=st.sampled_from(["zone", "disk", "tier", "nowhere"]),
    operator=st.sampled_from(["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt", "Odd"]),
    values=st.none() | st.lists(st.sampled_from(["a", "b", "1", "3", "x9"]), max_size=2),
)

fields = st.builds(
    SelectorRequirement,
    key=st.just("metadata.name"),
    operator=st.sampled_from(["In", "NotIn"]),
    values=st.lists(st.sampled_from(NODE_NAMES), min_size=1, max_size=1),
)

node_selector_terms = st.builds(
    NodeSelectorTerm,
    match_expressions=st.none() | st.lists(expressions, max_size=2),
    match_fields=st.none() | st.lists(fields, max_size=1),
)

selectors = st.sampled_from([None, *[LabelSelector(match_labels={"tier": tier}) for tier in "ab"]]) | st.builds(
    LabelSelector,
    match_labels=st.none() | labels | st.just({"tier": "a"}),
    match_expressions=st.none() | st.lists(expressions, max_size=1),
)


CLAIMS = ["c0", "c0", "c1"]

VOLUMES = ["v0", "v0", "v1"]

OWNERS = ["own0", "own1"]

_DRIVERS = ["disk.example.com", "ebs.csi.aws.com", "pd.csi.storage.gke.io"]

_IN_TREE = ["kubernetes.io/aws-ebs", "kubernetes.io/gce-pd", "kubernetes.io/no-provisioner"]

_ZONE_LABELS = ["topology.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/zone"]

_MODES = ["ReadWriteOnce", "ReadOnlyMany", "ReadWriteOncePod"]

_storage = st.sampled_from(["1Gi", "5Gi", "10Gi"])

_class_name = st.sampled_from(["slow", "slow", "fast", ""])

_disk = st.sampled_from(["d0", "d1"])

_driver = st.sampled_from(_DRIVERS)


csi_sources = st.builds(CSISource, driver=_driver, volume_handle=_disk)

disks: dict[str, st.SearchStrategy[Any]] = {
    "gce_persistent_disk": st.builds(GCEPersistentDisk, pd_name=_disk, read_only=st.booleans()),
    "aws_elastic_block_store": st.builds(AWSElasticBlockStore, volume_id=_disk),
    "azure_disk": st.builds(AzureDisk, disk_name=_disk, disk_uri=_disk),
    "cinder": st.builds(Cinder, volume_id=_disk),
    "portworx_volume": st.builds(PortworxVolume, volume_id=_disk),
    "csi": csi_sources,
}

shared_disks: dict[str, st.SearchStrategy[Any]] = {
    "rbd": st.builds(RBD, monitors=st.just(["m0", "m1"]), image=_disk, read_only=st.booleans()),
    "iscsi": st.builds(ISCSI, iqn=_disk, read_only=st.booleans()),
}


def _one_of(sources: Mapping[str, st.SearchStrategy[Any]]) -> st.SearchStrategy[dict[str, Any]]:
    return st.one_of(*(st.fixed_dictionaries({field: source}) for field, source in sources.items()))


_claimed = st.builds(ClaimSource, claim_name=st.sampled_from(CLAIMS), read_only=st.booleans())

_volume = st.one_of(
    st.builds(lambda claim: Volume(name="data", persistent_volume_claim=claim), _claimed),
    st.builds(lambda claim: Volume(name="data", persistent_volume_claim=claim), _claimed),
    st.builds(lambda source: Volume(name="disk", **source), _one_of({**disks, **shared_disks})),
    st.just(Volume(name="scratch", ephemeral=EphemeralSource())),
    st.builds(lambda name: Volume(name=name), st.sampled_from(["token-1", "token-2"])),
)

_LIMITED = ("aws_elastic_block_store", "azure_disk", "gce_persistent_disk")

disks_of_a_kind = st.sampled_from([*_LIMITED, *disks, *shared_disks]).flatmap(
    lambda kind: st.lists(
        {**disks, **shared_disks}[kind].map(lambda source: Volume(name="disk", **{kind: source})),
        min_size=1,
        max_size=2,
    )
)

the_claim = st.just([Volume(name="data", persistent_volume_claim=ClaimSource(claim_name="c0"))])

pod_volumes = st.lists(_volume, min_size=1, max_size=3)


_bound = st.sampled_from([None, {BIND_COMPLETED: "yes"}])

claims = st.builds(
    lambda name, namespace, annotations, spec, phase: PersistentVolumeClaim(
        metadata=ObjectMeta(name=name, namespace=namespace, uid=f"{namespace}-{name}", annotations=annotations),
        spec=spec,
        status=PhaseStatus(phase=phase),
    ),
    st.sampled_from([*CLAIMS, "u0-scratch"]),
    some_namespace,
    _bound,
    st.builds(
        PersistentVolumeClaimSpec,
        access_modes=st.lists(st.sampled_from(_MODES), min_size=1, max_size=1),
        resources=st.builds(ClaimResources, requests=st.fixed_dictionaries({"storage": _storage})),
        selector=st.none() | selectors,
        storage_class_name=st.none() | _class_name,
        volume_name=st.sampled_from(["", "", *VOLUMES]),
    ),
    st.sampled_from(["Pending", "Bound", "Lost"]),
)

_node_affinity = st.builds(
    VolumeNodeAffinity,
    required=st.none() | st.builds(NodeSelector, node_selector_terms=st.lists(node_selector_terms, max_size=2)),
)

_promised = st.builds(
    lambda namespace, name, known: ClaimReference(
        namespace=namespace, name=name, uid=f"{namespace}-{name}" if known else ""
    ),
    some_namespace,
    st.sampled_from(CLAIMS),
    st.booleans(),
)

volumes = st.builds(
    lambda name, zones, source, **spec: PersistentVolume(
        metadata=ObjectMeta(name=name, labels=zones), spec=PersistentVolumeSpec(**source, **spec)
    ),
    st.sampled_from(VOLUMES),
    st.none() | st.dictionaries(st.sampled_from(_ZONE_LABELS), st.sampled_from([*NODE_ZONES, "a__b"]), min_size=1),
    _one_of(disks) | st.just({}),
    capacity=st.fixed_dictionaries({"storage": _storage}),
    access_modes=st.lists(st.sampled_from(_MODES), min_size=1, max_size=2, unique=True),
    claim_ref=st.none() | _promised,
    storage_class_name=_class_name,
    node_affinity=st.none() | _node_affinity,
)

_topology = st.builds(
    TopologyTerm,
    match_label_expressions=st.none()
    | st.lists(
        st.builds(
            TopologyLabel,
            key=st.sampled_from(["zone", "disk"]),
            values=st.lists(st.sampled_from(NODE_ZONES), max_size=2),
        ),
        max_size=2,
    ),
)

classes = st.builds(
    lambda name, provisioner, mode, topologies: StorageClass(
        metadata=ObjectMeta(name=name),
        provisioner=provisioner,
        volume_binding_mode=mode,
        allowed_topologies=topologies,
    ),
    st.sampled_from(["slow", "slow", "fast"]),
    st.sampled_from([*_DRIVERS, *_IN_TREE]),
    st.sampled_from([None, "Immediate", "WaitForFirstConsumer", "WaitForFirstConsumer"]),
    st.none() | st.lists(_topology, max_size=2),
)

csi_nodes = st.builds(
    lambda name, migrated, drivers: CSINode(
        metadata=ObjectMeta(name=name, annotations={MIGRATED_PLUGINS: migrated} if migrated else None),
        spec=CSINodeSpec(drivers=drivers),
    ),
    st.sampled_from(NODE_NAMES),
    st.sampled_from(["", ",".join(_IN_TREE)]),
    st.none()
    | st.lists(
        st.builds(
            CSINodeDriver,
            name=_driver,
            allocatable=st.none() | st.builds(VolumeCount, count=st.none() | st.integers(0, 2)),
        ),
        max_size=2,
        unique_by=lambda driver: driver.name,
    ),
)

csi_drivers = st.builds(
    lambda name, tells: CSIDriver(metadata=ObjectMeta(name=name), spec=CSIDriverSpec(storage_capacity=tells)),
    _driver,
    st.sampled_from([None, False, True]),
)

capacities = st.builds(
    lambda name, topology, amount, most, of: CSIStorageCapacity(
        metadata=ObjectMeta(name=name, namespace="default"),
        storage_class_name=of,
        node_topology=topology,
        capacity=amount,
        maximum_volume_size=most,
    ),
    st.sampled_from(["cap0", "cap1"]),
    st.none() | st.builds(LabelSelector, match_labels=labels),
    st.none() | _storage,
    st.none() | _storage,
    _class_name,
)

attachments = st.builds(
    lambda name, driver, node, volume: VolumeAttachment(
        metadata=ObjectMeta(name=name),
        spec=VolumeAttachmentSpec(
            attacher=driver, node_name=node, source=AttachedSource(persistent_volume_name=volume)
        ),
    ),
    st.sampled_from(["a0", "a1"]),
    _driver,
    st.sampled_from(NODE_NAMES),
    st.none() | st.sampled_from(VOLUMES),
)

budgets = st.builds(
    lambda namespace, selector, allowed, disrupted: PodDisruptionBudget(
        metadata=ObjectMeta(name="b", namespace=namespace),
        spec=SelectorSpec(selector=selector),
        status=BudgetStatus(disruptions_allowed=allowed, disrupted_pods=disrupted),
    ),
    some_namespace,
    selectors,
    st.integers(-1, 2),
    st.none() | st.just({"u1": "2026-01-01T00:00:00Z"}),
)


_DEVICES = ["gpu-0", "gpu-1"]

device_classes = st.builds(
    lambda name, expression: DeviceClass(
        metadata=ObjectMeta(name=name),
        spec=DeviceClassSpec(selectors=[ExpressionSelector(cel=CelSelector(expression=expression))]),
    ),
    st.sampled_from(["gpu", "nic"]),
    st.sampled_from(["true", 'device.driver == "d"', "device.attributes"]),
)

resource_slices = st.builds(
    lambda name, node, devices, generation: ResourceSlice(
        metadata=ObjectMeta(name=name),
        spec=ResourceSliceSpec(
            driver="d",
            pool=ResourcePool(name="p", generation=generation, resource_slice_count=1),
            node_name=node,
            devices=[SliceDevice(name=device) for device in devices],
        ),
    ),
    st.sampled_from(["s0", "s1"]),
    st.sampled_from(NODE_NAMES),
    st.lists(st.sampled_from(_DEVICES), max_size=2, unique=True),
    st.integers(1, 2),
)

resource_claims = st.builds(
    lambda name, device: ResourceClaim(
        metadata=ClaimMeta(name=name, namespace="default", uid=f"uid-{name}"),
        spec=ResourceClaimSpec(
            devices=DeviceClaim(requests=[DeviceRequest(name="r", exactly=ExactDeviceRequest(device_class_name="gpu"))])
        ),
        status=ResourceClaimStatus() if device is None else ResourceClaimStatus(allocation=_allocation(device)),
    ),
    st.sampled_from(["rc0", "rc1"]),
    st.none() | st.sampled_from(_DEVICES),
)


def _allocation(device: str) -> AllocationResult:
    result = DeviceRequestAllocationResult(request="r", driver="d", pool="p", device=device)
    return AllocationResult(devices=DeviceAllocationResult(results=[result]))


def _with_labels(struct: type) -> st.SearchStrategy[Any]:
    return st.builds(
        lambda name, namespace, selector: struct(
            metadata=ObjectMeta(name=name, namespace=namespace), spec=LabelsSpec(selector=selector)
        ),
        st.sampled_from(OWNERS),
        some_namespace,
        st.none() | labels,
    )


def _with_selector(struct: type) -> st.SearchStrategy[Any]:
    return st.builds(
        lambda name, namespace, selector: struct(
            metadata=ObjectMeta(name=name, namespace=namespace), spec=SelectorSpec(selector=selector)
        ),
        st.sampled_from(OWNERS),
        some_namespace,
        selectors,
    )


pod_groups = st.builds(
    lambda name, namespace, minimum: UpstreamPodGroup(
        metadata=ObjectMeta(name=name, namespace=namespace),
        spec=UpstreamSpec(scheduling_policy=SchedulingPolicy(gang=GangPolicy(min_count=minimum))),
    ),
    st.sampled_from(OWNERS),
    some_namespace,
    st.integers(1, 4),
)
coscheduling_pod_groups = st.builds(
    lambda name, namespace, minimum: CoschedulingPodGroup(
        metadata=ObjectMeta(name=name, namespace=namespace), spec=CoschedulingSpec(min_member=minimum)
    ),
    st.sampled_from(OWNERS),
    some_namespace,
    st.integers(1, 4),
)

BY_KIND: Mapping[str, st.SearchStrategy[Any]] = {
    "service": _with_labels(Service),
    "replicationcontroller": _with_labels(ReplicationController),
    "replicaset": _with_selector(ReplicaSet),
    "statefulset": _with_selector(StatefulSet),
    "pv": volumes,
    "pvc": claims,
    "storageclass": classes,
    "csinode": csi_nodes,
    "csidriver": csi_drivers,
    "csistoragecapacity": capacities,
    "volumeattachment": attachments,
    "poddisruptionbudget": budgets,
    "deviceclass": device_classes,
    "resourceslice": resource_slices,
    "resourceclaim": resource_claims,
    "podgroup": pod_groups,
    "coschedulingpodgroup": coscheduling_pod_groups,
}
"""A strategy for the objects of each kind, by berth's name of the kind."""

_STORAGE = ("pv", "pvc", "storageclass")


@dataclass(frozen=True, slots=True)
class Known:
    """An object, its kind, and its key. No two objects have the same key."""

    kind: str
    thing: Any

    @property
    def key(self) -> str:
        return f"{self.thing.metadata.namespace}/{self.thing.metadata.name}"

    @property
    def struct(self) -> type[Any]:
        return PLUGIN_KINDS[self.kind].struct


def objects_of(kind: str) -> st.SearchStrategy[Known]:
    """Objects of one kind."""
    return BY_KIND[kind].map(lambda thing: Known(kind, msgspec.structs.replace(thing)))


objects = st.one_of(*(objects_of(kind) for kind in BY_KIND))


def _in_zone(zone: str) -> NodeSelectorTerm:
    return NodeSelectorTerm(match_expressions=[SelectorRequirement(key="zone", operator="In", values=[zone])])


_reached_from = st.sampled_from(NODE_ZONES).map(
    lambda zone: [
        Known(
            "pv",
            PersistentVolume(
                metadata=ObjectMeta(name="v0", labels={_ZONE_LABELS[0]: zone}),
                spec=PersistentVolumeSpec(
                    node_affinity=VolumeNodeAffinity(required=NodeSelector(node_selector_terms=[_in_zone(zone)]))
                ),
            ),
        ),
        Known(
            "pvc",
            PersistentVolumeClaim(
                metadata=ObjectMeta(name="c0", namespace="default", annotations={BIND_COMPLETED: "yes"}),
                spec=PersistentVolumeClaimSpec(volume_name="v0"),
            ),
        ),
    ]
)
"""A claim that is bound to a volume of a zone: random objects alone would rarely have one."""

some_of_each_kind: st.SearchStrategy[list[Known]] = st.tuples(
    *(st.lists(objects_of(kind), max_size=3 if kind in _STORAGE else 1) for kind in BY_KIND),
    st.just([]) | _reached_from,
).map(lambda lists: [known for each in lists for known in each])
"""More of the kinds that a pod needs to get its volume."""
