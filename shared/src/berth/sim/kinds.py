"""The kinds that the simulated API server knows: one literal table, no discovery, nothing generic beyond it."""

import dataclasses
from collections.abc import Mapping

FieldPath = tuple[str, ...]
"""Where in an object a field selector's label points."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SimulatedKind:
    """One resource of the API: how it is addressed, which selectors it takes, and how its writes behave."""

    group: str = ""
    """API group; empty is the core group."""
    version: str = "v1"
    plural: str
    name: str
    """The `kind` of its objects."""
    short_names: tuple[str, ...] = ()
    namespaced: bool = True
    has_status: bool = False
    """Writes to the object leave its status alone and writes to /status leave all else alone."""
    has_generation: bool = False
    """metadata.generation counts the changes of the spec."""
    is_graceful: bool = False
    """A DELETE may leave the object with a deletionTimestamp for a while (pods)."""
    creates_on_update: bool = False
    """A PUT of an object that does not exist creates it."""
    updates_need_version: bool = False
    """A PUT without metadata.resourceVersion is refused."""
    fields: Mapping[str, FieldPath] = dataclasses.field(default_factory=dict)
    """Labels for field selectors besides metadata.name and metadata.namespace."""
    bookmark: bytes = b""
    """What kube-apiserver writes into a bookmark besides its metadata: `"containers":null` trips strict decoders."""
    stored_as: str = ""
    """Plural in the core group whose objects this kind shows in another form (events)."""

    @property
    def api_version(self) -> str:
        """The `apiVersion` of its objects."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def resource(self) -> str:
        """The name that error messages use: `leases.coordination.k8s.io`."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def preamble(self) -> bytes:
        """The first members of an encoded object; its body follows without its opening brace."""
        return f'{{"kind":"{self.name}","apiVersion":"{self.api_version}",'.encode()


_POD_FIELDS = {
    "spec.nodeName": ("spec", "nodeName"),
    "spec.restartPolicy": ("spec", "restartPolicy"),
    "spec.schedulerName": ("spec", "schedulerName"),
    "spec.serviceAccountName": ("spec", "serviceAccountName"),
    "status.phase": ("status", "phase"),
    "status.podIP": ("status", "podIP"),
    "status.nominatedNodeName": ("status", "nominatedNodeName"),
}
_OBJECT_REFERENCE = ("kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath")
_CORE_EVENT_FIELDS = {
    **{f"involvedObject.{field}": ("involvedObject", field) for field in _OBJECT_REFERENCE},
    "reason": ("reason",),
    "reportingComponent": ("reportingComponent",),
    "source": ("source", "component"),
    "type": ("type",),
}
_NEW_EVENT_FIELDS = {
    **{f"regarding.{field}": ("involvedObject", field) for field in _OBJECT_REFERENCE},
    "reason": ("reason",),
    "reportingController": ("reportingComponent",),
    "type": ("type",),
}
NODE_INFO_FIELDS = (
    "machineID",
    "systemUUID",
    "bootID",
    "kernelVersion",
    "osImage",
    "containerRuntimeVersion",
    "kubeletVersion",
    "kubeProxyVersion",
    "operatingSystem",
    "architecture",
)
_NODE_BOOKMARK = (
    b',"spec":{},"status":{"daemonEndpoints":{"kubeletEndpoint":{"Port":0}},"nodeInfo":{'
    + ",".join(f'"{field}":""' for field in NODE_INFO_FIELDS).encode()
    + b"}}"
)

PODS = SimulatedKind(
    plural="pods",
    name="Pod",
    short_names=("po",),
    has_status=True,
    has_generation=True,
    is_graceful=True,
    fields=_POD_FIELDS,
    bookmark=b',"spec":{"containers":null},"status":{}',
)
NODES = SimulatedKind(
    plural="nodes",
    name="Node",
    short_names=("no",),
    namespaced=False,
    has_status=True,
    fields={"spec.unschedulable": ("spec", "unschedulable")},
    bookmark=_NODE_BOOKMARK,
)
NAMESPACES = SimulatedKind(
    plural="namespaces",
    name="Namespace",
    short_names=("ns",),
    namespaced=False,
    has_status=True,
    fields={"status.phase": ("status", "phase")},
    bookmark=b',"spec":{},"status":{}',
)
EVENTS = SimulatedKind(
    plural="events",
    name="Event",
    short_names=("ev",),
    creates_on_update=True,
    fields=_CORE_EVENT_FIELDS,
    bookmark=b',"involvedObject":{},"source":{},"firstTimestamp":null,"lastTimestamp":null,"eventTime":null',
)
NEW_EVENTS = SimulatedKind(
    group="events.k8s.io",
    plural="events",
    name="Event",
    short_names=("ev",),
    creates_on_update=True,
    fields=_NEW_EVENT_FIELDS,
    bookmark=b',"eventTime":null,"regarding":{},"deprecatedSource":{}',
    stored_as="events",
)
LEASES = SimulatedKind(
    group="coordination.k8s.io",
    plural="leases",
    name="Lease",
    creates_on_update=True,
    updates_need_version=True,
    bookmark=b',"spec":{}',
)
PRIORITY_CLASSES = SimulatedKind(
    group="scheduling.k8s.io", plural="priorityclasses", name="PriorityClass", short_names=("pc",), namespaced=False
)
SPEC_AND_STATUS = b',"spec":{},"status":{}'
_WORKLOAD_SPEC = b'"replicas":0,"selector":null,"template":{"metadata":{},"spec":{"containers":null}}'
_REPLICA_SET_BOOKMARK = b',"spec":{' + _WORKLOAD_SPEC + b'},"status":{"replicas":0}'
_STATEFUL_SET_BOOKMARK = (
    b',"spec":{'
    + _WORKLOAD_SPEC
    + b',"serviceName":"","updateStrategy":{}},"status":{"replicas":0,"availableReplicas":0}'
)
_BUDGET_BOOKMARK = (
    b',"spec":{},"status":{"disruptionsAllowed":0,"currentHealthy":0,"desiredHealthy":0,"expectedPods":0}'
)

PERSISTENT_VOLUMES = SimulatedKind(
    plural="persistentvolumes",
    name="PersistentVolume",
    short_names=("pv",),
    namespaced=False,
    has_status=True,
    bookmark=SPEC_AND_STATUS,
)
PERSISTENT_VOLUME_CLAIMS = SimulatedKind(
    plural="persistentvolumeclaims",
    name="PersistentVolumeClaim",
    short_names=("pvc",),
    has_status=True,
    bookmark=b',"spec":{"resources":{}},"status":{}',
)
STORAGE_CLASSES = SimulatedKind(
    group="storage.k8s.io",
    plural="storageclasses",
    name="StorageClass",
    short_names=("sc",),
    namespaced=False,
    bookmark=b',"provisioner":""',
)

KINDS: tuple[SimulatedKind, ...] = (
    PODS,
    NODES,
    NAMESPACES,
    SimulatedKind(
        plural="services",
        name="Service",
        short_names=("svc",),
        has_status=True,
        bookmark=b',"spec":{},"status":{"loadBalancer":{}}',
    ),
    EVENTS,
    PERSISTENT_VOLUMES,
    PERSISTENT_VOLUME_CLAIMS,
    SimulatedKind(
        plural="replicationcontrollers",
        name="ReplicationController",
        short_names=("rc",),
        has_status=True,
        has_generation=True,
        bookmark=b',"spec":{},"status":{"replicas":0}',
    ),
    SimulatedKind(
        group="apps",
        plural="replicasets",
        name="ReplicaSet",
        short_names=("rs",),
        has_status=True,
        has_generation=True,
        bookmark=_REPLICA_SET_BOOKMARK,
    ),
    SimulatedKind(
        group="apps",
        plural="statefulsets",
        name="StatefulSet",
        short_names=("sts",),
        has_status=True,
        has_generation=True,
        bookmark=_STATEFUL_SET_BOOKMARK,
    ),
    LEASES,
    NEW_EVENTS,
    STORAGE_CLASSES,
    SimulatedKind(
        group="storage.k8s.io",
        plural="csinodes",
        name="CSINode",
        namespaced=False,
        bookmark=b',"spec":{"drivers":null}',
    ),
    SimulatedKind(
        group="storage.k8s.io", plural="csidrivers", name="CSIDriver", namespaced=False, bookmark=b',"spec":{}'
    ),
    SimulatedKind(
        group="storage.k8s.io",
        plural="csistoragecapacities",
        name="CSIStorageCapacity",
        bookmark=b',"storageClassName":""',
    ),
    SimulatedKind(
        group="storage.k8s.io",
        plural="volumeattachments",
        name="VolumeAttachment",
        namespaced=False,
        has_status=True,
        bookmark=b',"spec":{"attacher":"","source":{},"nodeName":""},"status":{"attached":false}',
    ),
    SimulatedKind(
        group="policy",
        plural="poddisruptionbudgets",
        name="PodDisruptionBudget",
        short_names=("pdb",),
        has_status=True,
        has_generation=True,
        bookmark=_BUDGET_BOOKMARK,
    ),
    PRIORITY_CLASSES,
)

BY_ADDRESS: Mapping[tuple[str, str, str], SimulatedKind] = {
    (kind.group, kind.version, kind.plural): kind for kind in KINDS
}
BY_NAME: Mapping[tuple[str, str], SimulatedKind] = {(kind.api_version, kind.name): kind for kind in KINDS}
