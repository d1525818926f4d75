"""Objects of a small cluster in which almost every change matters to a waiting pod, by a seeded chance.

Names, labels and keys are from sets of two or three. A theme is the plugin whose verdicts a cluster is about: its
waiting pods have something for that plugin, and little else keeps them from a node.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

from berth.api.devices import (
    AllocationResult,
    CelSelector,
    ClaimMeta,
    DeviceAllocationResult,
    DeviceAttribute,
    DeviceClaim,
    DeviceClass,
    DeviceClassSpec,
    DeviceRequest,
    DeviceRequestAllocationResult,
    DeviceTaint,
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
from berth.api.meta import LabelSelector, ObjectMeta, OwnerReference, SelectorRequirement
from berth.api.node import ContainerImage, Node, NodeCondition, NodeSpec, NodeStatus, Taint
from berth.api.pod import (
    Affinity,
    AWSElasticBlockStore,
    ClaimSource,
    Container,
    ContainerPort,
    CSISource,
    EphemeralSource,
    GCEPersistentDisk,
    NodeAffinity,
    NodeSelector,
    NodeSelectorTerm,
    Pod,
    PodAffinity,
    PodAffinityTerm,
    PodResourceClaim,
    PodSchedulingGate,
    PodSpec,
    PodStatus,
    ResourceRequirements,
    Toleration,
    TopologySpreadConstraint,
    Volume,
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
    Namespace,
    PodDisruptionBudget,
    ReplicaSet,
    ReplicationController,
    SelectorSpec,
    Service,
    StatefulSet,
)
from berth.plugins.nodedeclaredfeatures import USERS_WITH_HOST_NETWORK

NODES: Final = ("n0", "n1", "n2")
NAMESPACES: Final = ("left", "right")
ZONE: Final = "topology.kubernetes.io/zone"
HOST: Final = "kubernetes.io/hostname"
GPU: Final = "example.com/gpu"
LEAVING: Final = "2026-01-01T00:00:00Z"
THEMES: Final = (
    "NodeResourcesFit",
    "NodePorts",
    "NodeAffinity",
    "TaintToleration",
    "NodeUnschedulable",
    "NodeDeclaredFeatures",
    "PodTopologySpread",
    "default constraints",
    "InterPodAffinity",
    "VolumeBinding",
    "VolumeRestrictions",
    "VolumeZone",
    "NodeVolumeLimits",
    "DynamicResources",
    "additional",
    "everything",
)
STORAGE_THEMES: Final = ("VolumeBinding", "VolumeRestrictions", "VolumeZone", "NodeVolumeLimits")
_DRIVERS: Final = ("disk.example.com", "ebs.csi.aws.com")
_IN_TREE: Final = "kubernetes.io/aws-ebs"
_CLASSES: Final = ("slow", "fast")
_VOLUMES: Final = ("v0", "v1", "v2")
_CLAIMS: Final = ("c0", "c1")
_SLICES: Final = ("s0", "s1", "s2")
_DEVICE_CLASSES: Final = ("gpu", "other")
_DEVICE_CLAIMS: Final = ("rc0", "rc1", "rc2")


@dataclass
class DenseObjects:
    """Makes random objects of one theme. Each has a uid of its own, whatever its name."""

    chance: Random
    theme: str
    preempting: bool = False  # waiting pods may evict most placed pods
    made: int = field(default=0, init=False)

    def is_about(self, *themes: str) -> bool:
        """Whether the cluster is about one of these, or about everything and chance says so."""
        return self.theme in themes or (self.theme == "everything" and self.chance.random() < 0.4)

    def maybe(self, share: float = 0.5) -> bool:
        return self.chance.random() < share

    def one(self, *choices: Any) -> Any:
        return self.chance.choice(choices)

    def meta(self, name: str, namespace: str = "", **more: Any) -> ObjectMeta:
        self.made += 1
        return ObjectMeta(name=name, namespace=namespace, uid=f"uid-{self.made}", **more)

    # --- nodes and namespaces

    def node(self, name: str) -> Node:
        taints = [Taint(key=self.one("k", "l"), effect=self.one("NoSchedule", "NoExecute", "PreferNoSchedule"))]
        cordoned = self.is_about("NodeUnschedulable") and self.maybe()
        tainted = self.is_about("TaintToleration", "PodTopologySpread") and self.maybe(0.6)
        return Node(
            metadata=self.meta(name, labels=self._node_labels(name), annotations=self.one(None, {"a": "1"})),
            spec=NodeSpec(unschedulable=cordoned, taints=taints if tainted else None),
            status=NodeStatus(
                allocatable=self._allocatable(),
                conditions=[NodeCondition(type="Ready", status=self.one("True", "False"))]
                if self.is_about("additional")
                else None,
                declared_features=self.one(None, [USERS_WITH_HOST_NETWORK])
                if self.theme == "NodeDeclaredFeatures"
                else None,
                images=self.one(None, [ContainerImage(names=["app"], size_bytes=1 << 30)]),
            ),
        )

    def _node_labels(self, name: str) -> dict[str, str]:
        every = {
            "zone": self.one("a", "b"),
            ZONE: self.one("a", "b"),
            HOST: name,
            "disk": self.one("ssd", "hdd"),
            "cpu": self.one("true", "false"),
        }
        return {key: value for key, value in every.items() if self.maybe(0.8)}

    def _allocatable(self) -> dict[str, str]:
        few = self.is_about("NodeResourcesFit")
        amounts = {"cpu": self.one("1", "2", "3") if few else "64", "memory": "64Gi"}
        if few and self.maybe():
            amounts[GPU] = self.one("0", "1", "2")
        return {**amounts, "pods": self.one("1", "2", "3") if few and self.maybe() else "110"}

    def namespace(self, name: str) -> Namespace:
        return Namespace(metadata=self.meta(name, labels=self.one(None, {"team": "x"}, {"team": "y"})))

    # --- pods

    def pod(self, name: str, node: str = "") -> Pod:
        """A waiting pod, or one that is placed on a node."""
        leaves = bool(node) and self.maybe(0.1)
        metadata = self.meta(
            name,
            self.some_namespace(),
            labels=self.pod_labels(),
            deletion_timestamp=LEAVING if leaves else None,
            owner_references=[self._owner()] if self.is_about("default constraints") else None,
        )
        priority = self.one(0, 0, 5) if self.is_about("NodeResourcesFit", "everything") else 0
        if self.preempting:
            priority = self.one(0, 0, 20) if node else 10
        gated = not node and self.theme == "everything" and self.maybe(0.1)
        spec = PodSpec(
            scheduler_name="berth",
            node_name=node,
            priority=priority,
            preemption_policy=None if self.preempting else self.one(None, "Never"),
            containers=[self._container()],
            node_selector=self.one({"disk": "ssd"}, {"zone": "a"}) if self._selects_nodes() else None,
            affinity=self._affinity(),
            tolerations=self.tolerations(),
            topology_spread_constraints=self._constraints(),
            scheduling_gates=[PodSchedulingGate(name="g")] if gated else None,
            volumes=self._volumes() or None,
            resource_claims=self._resource_claims(),
            **({"host_network": True, "host_users": False} if self.theme == "NodeDeclaredFeatures" else {}),
        )
        return Pod(metadata=metadata, spec=spec, status=PodStatus(phase="Running" if node else ""))

    def some_namespace(self) -> str:
        """Mostly the same where claims matter, because pods use those of their own."""
        has_claims = self.theme in (*STORAGE_THEMES, "DynamicResources")
        return NAMESPACES[0] if has_claims and self.maybe(0.8) else self.one(*NAMESPACES)

    def pod_labels(self) -> dict[str, str] | None:
        return self.one(None, {"app": "web"}, {"app": "web"}, {"app": "db"}, {"tenant": "t", "app": "web"})

    def tolerations(self) -> list[Toleration] | None:
        if not self.is_about("TaintToleration", "NodeUnschedulable", "PodTopologySpread") or self.maybe():
            return None
        return [Toleration(key=self.one("k", "l", "node.kubernetes.io/unschedulable"), operator="Exists")]

    def _container(self) -> Container:
        requests = {"cpu": "100m"}
        if self.is_about("NodeResourcesFit"):
            requests = {"cpu": self.one("500m", "1", "2"), **({GPU: "1"} if self.maybe(0.2) else {})}
        ports = [ContainerPort(host_port=self.one(80, 81), host_ip=self.one("", "10.0.0.1", "10.0.0.2"))]
        taken = ports if self.is_about("NodePorts") else None
        return Container(name="c", image="app", resources=ResourceRequirements(requests=requests), ports=taken)

    def _owner(self) -> OwnerReference:
        kind, version = self.one(("ReplicaSet", "apps/v1"), ("StatefulSet", "apps/v1"), ("ReplicationController", "v1"))
        return OwnerReference(kind=kind, name="o", uid="uid-o", api_version=version, controller=True)

    def _selects_nodes(self) -> bool:
        return self.is_about("NodeAffinity", "PodTopologySpread") and self.maybe()

    def selector(self) -> LabelSelector | None:
        web = LabelSelector(match_labels={"app": "web"})
        expression = SelectorRequirement(key="app", operator=self.one("In", "NotIn"), values=["db"])
        exists = SelectorRequirement(key=self.one("app", "tenant"), operator=self.one("Exists", "DoesNotExist"))
        by_expression = LabelSelector(match_expressions=[self.one(expression, exists)])
        return self.one(web, web, by_expression, LabelSelector(), None)

    def _team(self) -> LabelSelector | None:
        expression = SelectorRequirement(key="team", operator=self.one("Exists", "DoesNotExist"))
        by_expression = LabelSelector(match_expressions=[expression])
        return self.one(None, LabelSelector(match_labels={"team": "x"}), by_expression, LabelSelector())

    def _term(self) -> PodAffinityTerm:
        return PodAffinityTerm(
            topology_key=self.one("zone", HOST, "disk"),
            label_selector=self.selector(),
            namespaces=self.one(None, None, list(NAMESPACES[:1])),
            namespace_selector=self._team(),
        )

    def _affinity(self) -> Affinity | None:
        of_nodes = None
        if self.is_about("NodeAffinity", "PodTopologySpread") and self.maybe():
            terms = [self._node_term() for _ in range(self.one(1, 2))]
            of_nodes = NodeAffinity(
                required_during_scheduling_ignored_during_execution=NodeSelector(node_selector_terms=terms)
            )
        together = apart = None
        if self.is_about("InterPodAffinity"):
            together = self._terms() if self.maybe(0.4) else None
            apart = self._terms() if self.maybe(0.4) else None
        return Affinity(node_affinity=of_nodes, pod_affinity=together, pod_anti_affinity=apart)

    def _terms(self) -> PodAffinity:
        terms = [self._term() for _ in range(self.one(1, 1, 2))]
        return PodAffinity(required_during_scheduling_ignored_during_execution=terms)

    def _node_term(self) -> NodeSelectorTerm:
        if self.maybe(0.2):
            by_name = SelectorRequirement(
                key="metadata.name", operator=self.one("In", "NotIn"), values=[self.one(*NODES)]
            )
            return NodeSelectorTerm(match_fields=[by_name])
        operator = self.one("In", "NotIn", "Exists", "DoesNotExist")
        key, values = self.one(("disk", ["ssd"]), ("zone", ["a"]))
        values = values if operator in ("In", "NotIn") else None
        return NodeSelectorTerm(match_expressions=[SelectorRequirement(key=key, operator=operator, values=values)])

    def _constraints(self) -> list[TopologySpreadConstraint] | None:
        if not self.is_about("PodTopologySpread"):
            return None
        return [self._constraint() for _ in range(self.one(1, 1, 2))]

    def _constraint(self) -> TopologySpreadConstraint:
        return TopologySpreadConstraint(
            max_skew=self.one(1, 1, 2),
            topology_key=self.one("zone", HOST, "disk"),
            when_unsatisfiable="DoNotSchedule",
            label_selector=self.selector(),
            min_domains=self.one(None, None, 2),
            node_affinity_policy=self.one(None, "Ignore"),
            node_taints_policy=self.one(None, "Honor"),
            match_label_keys=self.one(None, None, ["tenant"]),
        )

    def _volumes(self) -> list[Volume]:
        found: list[Volume] = []
        if self.is_about("VolumeRestrictions") and self.maybe():
            disk = GCEPersistentDisk(pd_name=self.one("d0", "d1"), read_only=self.maybe(0.3))
            found.append(Volume(name="disk", gce_persistent_disk=disk))
        if self.is_about("NodeVolumeLimits") and self.maybe(0.6):
            csi = CSISource(driver=self.one(*_DRIVERS), volume_handle=self.one("h0", "h1"))
            ebs = AWSElasticBlockStore(volume_id=self.one("d0", "d1"))
            found.append(self.one(Volume(name="csi", csi=csi), Volume(name="ebs", aws_elastic_block_store=ebs)))
        if not found and self.is_about(*STORAGE_THEMES):
            claim = Volume(name="claim", persistent_volume_claim=ClaimSource(claim_name=self.one(*_CLAIMS)))
            found.append(self.one(claim, claim, claim, Volume(name="e", ephemeral=EphemeralSource())))
        return found

    # --- storage

    def pv(self, name: str) -> PersistentVolume:
        zones = {ZONE: self.one("a", "b", "a__b")} if self.is_about("VolumeZone") else None
        in_zone = SelectorRequirement(key="zone", operator="In", values=[self.one("a", "b")])
        terms = [NodeSelectorTerm(match_expressions=[in_zone])]
        required = VolumeNodeAffinity(required=NodeSelector(node_selector_terms=terms))
        csi = CSISource(driver=self.one(*_DRIVERS), volume_handle=self.one("h0", "h1"))
        ebs = AWSElasticBlockStore(volume_id=self.one("d0", "d1"))
        source = self.one({}, {"csi": csi}, {"aws_elastic_block_store": ebs})
        reference = ClaimReference(namespace=self.one(*NAMESPACES), name=self.one(*_CLAIMS))
        return PersistentVolume(
            metadata=self.meta(name, labels=zones or self.one(None, {"app": "web"})),
            spec=PersistentVolumeSpec(
                capacity={"storage": self.one("1Gi", "5Gi")},
                access_modes=["ReadWriteOnce", "ReadWriteOncePod"],
                storage_class_name=self.one(*_CLASSES),
                claim_ref=self.one(None, None, reference),
                node_affinity=required if self.is_about("VolumeBinding") and self.maybe(0.7) else None,
                **source,
            ),
            status=PhaseStatus(phase=self.one("Available", "Available", "Released")),
        )

    def pvc(self, name: str, owner: Pod | None = None) -> PersistentVolumeClaim:
        """A claim, of this pod's ephemeral volume if it is given."""
        bound = self.maybe(0.8 if self.theme in ("VolumeZone", "NodeVolumeLimits") else 0.5)
        mode = self.one("ReadWriteOnce", "ReadWriteOncePod")
        namespace = self.some_namespace() if owner is None else owner.metadata.namespace
        owners = None if owner is None else [OwnerReference(kind="Pod", name="p", uid=owner.uid, controller=True)]
        annotations = {BIND_COMPLETED: "yes"} if bound else None
        return PersistentVolumeClaim(
            metadata=self.meta(name, namespace, annotations=annotations, owner_references=owners),
            spec=PersistentVolumeClaimSpec(
                access_modes=[mode],
                resources=ClaimResources(requests={"storage": self.one("1Gi", "5Gi")}),
                storage_class_name=self.one(*_CLASSES),
                volume_name=self.one(*_VOLUMES) if bound else "",
                selector=self.one(None, None, LabelSelector(match_labels={"app": "web"})),
            ),
            status=PhaseStatus(phase="Lost" if self.maybe(0.1) else "Bound" if bound else "Pending"),
        )

    def storageclass(self, name: str) -> StorageClass:
        label = TopologyLabel(key="zone", values=[self.one("a", "b")])
        return StorageClass(
            metadata=self.meta(name),
            provisioner=self.one(*_DRIVERS, _IN_TREE, "kubernetes.io/no-provisioner"),
            volume_binding_mode=self.one("WaitForFirstConsumer", "WaitForFirstConsumer", "Immediate"),
            allowed_topologies=self.one(None, [TopologyTerm(match_label_expressions=[label])]),
        )

    def csinode(self, name: str) -> CSINode:
        drivers = [
            CSINodeDriver(
                name=driver,
                allocatable=self.one(None, VolumeCount(count=0), VolumeCount(count=1), VolumeCount(count=1)),
            )
            for driver in _DRIVERS
            if self.maybe(0.8)
        ]
        migrated = {MIGRATED_PLUGINS: _IN_TREE} if self.maybe() else None
        return CSINode(metadata=self.meta(name, annotations=migrated), spec=CSINodeSpec(drivers=drivers))

    def csidriver(self, name: str) -> CSIDriver:
        return CSIDriver(metadata=self.meta(name), spec=CSIDriverSpec(storage_capacity=self.one(None, True, True)))

    def csistoragecapacity(self, name: str) -> CSIStorageCapacity:
        zone = LabelSelector(match_labels={"zone": self.one("a", "b")})
        return CSIStorageCapacity(
            metadata=self.meta(name, "left"),
            storage_class_name=self.one(*_CLASSES),
            node_topology=self.one(zone, zone, LabelSelector(), None),
            capacity=self.one(None, "1Gi", "9Gi"),
            maximum_volume_size=self.one(None, None, "1Gi"),
        )

    def volumeattachment(self, name: str) -> VolumeAttachment:
        source = AttachedSource(persistent_volume_name=self.one(*_VOLUMES))
        spec = VolumeAttachmentSpec(attacher=self.one(*_DRIVERS), node_name=self.one(*NODES), source=source)
        return VolumeAttachment(metadata=self.meta(name), spec=spec)

    # --- devices

    def _resource_claims(self) -> list[PodResourceClaim] | None:
        if not self.is_about("DynamicResources"):
            return None
        named = self.one(_DEVICE_CLAIMS[:1], _DEVICE_CLAIMS[1:2], _DEVICE_CLAIMS[2:], _DEVICE_CLAIMS[:2])
        return [PodResourceClaim(name=name, resource_claim_name=name) for name in named]

    def deviceclass(self, name: str) -> DeviceClass:
        expression = self.one("true", 'device.driver == "d"', 'device.attributes["d"].model == "a"')
        selectors = [ExpressionSelector(cel=CelSelector(expression=expression))]
        return DeviceClass(metadata=self.meta(name), spec=DeviceClassSpec(selectors=selectors))

    def resourceslice(self, name: str) -> ResourceSlice:
        devices = [
            SliceDevice(
                name=f"d{number}",
                attributes={"model": DeviceAttribute(string_value=self.one("a", "b"))},
                taints=[DeviceTaint(key="k", effect="NoSchedule")] if self.maybe(0.2) else None,
            )
            for number in range(self.one(1, 1, 2))
        ]
        pool = ResourcePool(
            name=self.one(name, "s0"), generation=self.one(1, 1, 2), resource_slice_count=self.one(1, 1, 2)
        )
        where = self.one({"node_name": self.one(*NODES)}, {"node_name": self.one(*NODES)}, {"all_nodes": True})
        return ResourceSlice(
            metadata=self.meta(name), spec=ResourceSliceSpec(driver="d", pool=pool, devices=devices, **where)
        )

    def resourceclaim(self, name: str) -> ResourceClaim:
        exactly = ExactDeviceRequest(device_class_name=self.one(*_DEVICE_CLASSES), count=self.one(1, 1, 2))
        status = ResourceClaimStatus()
        if self.maybe():
            result = DeviceRequestAllocationResult(
                request="r", driver="d", pool=self.one(*_SLICES), device=self.one("d0", "d1")
            )
            term = NodeSelectorTerm(
                match_fields=[SelectorRequirement(key="metadata.name", operator="In", values=[self.one(*NODES)])]
            )
            allocation = AllocationResult(
                devices=DeviceAllocationResult(results=[result]),
                node_selector=self.one(None, NodeSelector(node_selector_terms=[term])),
            )
            status = ResourceClaimStatus(allocation=allocation)
        meta = self.meta(name, NAMESPACES[0])
        return ResourceClaim(
            metadata=ClaimMeta(name=name, namespace=NAMESPACES[0], uid=meta.uid),
            spec=ResourceClaimSpec(devices=DeviceClaim(requests=[DeviceRequest(name="r", exactly=exactly)])),
            status=status,
        )

    # --- workloads

    def poddisruptionbudget(self, name: str) -> PodDisruptionBudget:
        return PodDisruptionBudget(
            metadata=self.meta(name, self.one(*NAMESPACES)),
            spec=SelectorSpec(selector=self.selector()),
            status=BudgetStatus(disruptions_allowed=self.one(0, 1)),
        )

    def service(self, name: str) -> Service:
        return Service(metadata=self.meta(name, self.one(*NAMESPACES)), spec=LabelsSpec(selector=self._labels()))

    def replicationcontroller(self, name: str) -> ReplicationController:
        spec = LabelsSpec(selector=self._labels())
        return ReplicationController(metadata=self.meta(name, self.one(*NAMESPACES)), spec=spec)

    def replicaset(self, name: str) -> ReplicaSet:
        return ReplicaSet(metadata=self.meta(name, self.one(*NAMESPACES)), spec=SelectorSpec(selector=self.selector()))

    def statefulset(self, name: str) -> StatefulSet:
        return StatefulSet(metadata=self.meta(name, self.one(*NAMESPACES)), spec=SelectorSpec(selector=self.selector()))

    def _labels(self) -> dict[str, str] | None:
        return self.one({"app": "web"}, {"app": "db"}, {}, None)


NAMES: Final[Mapping[str, Sequence[str]]] = {
    "node": NODES,
    "namespace": NAMESPACES,
    "service": ("s",),
    "replicationcontroller": ("o",),
    "replicaset": ("o",),
    "statefulset": ("o",),
    "pv": _VOLUMES,
    "pvc": _CLAIMS,
    "storageclass": _CLASSES,
    "csinode": NODES,
    "csidriver": _DRIVERS,
    "csistoragecapacity": ("cap",),
    "volumeattachment": ("a0", "a1"),
    "poddisruptionbudget": ("b",),
    "deviceclass": _DEVICE_CLASSES,
    "resourceslice": _SLICES,
    "resourceclaim": _DEVICE_CLAIMS,
}
"""The names of the objects of each kind but pods. ``DenseObjects`` has a method of the kind's name."""
_STORAGE: Final = ("pv", "pvc", "storageclass", "csinode", "csidriver", "csistoragecapacity", "volumeattachment")
KINDS_OF: Final[Mapping[str, Sequence[str]]] = {
    **dict.fromkeys(THEMES, ()),
    "InterPodAffinity": ("namespace",),
    "default constraints": ("service", "replicationcontroller", "replicaset", "statefulset"),
    **dict.fromkeys(STORAGE_THEMES, _STORAGE),
    "NodeResourcesFit": ("poddisruptionbudget",),
    "DynamicResources": ("deviceclass", "resourceslice", "resourceclaim"),
    "everything": tuple(kind for kind in NAMES if kind != "node"),
}
"""The kinds beside nodes and pods that matter in a theme."""
