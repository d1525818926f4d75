"""The kinds of Kubernetes objects that berth reads: their address in the API and the type that each decodes to.

The only such table. Reflectors list and watch these kinds, the watcher mirrors them, a Snapshot holds them, `berth
simulate` reads them from files, and the simulated API server adds the properties that only a server knows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final, Generic, Self, TypeVar

from berth.api.devices import DeviceClass, ResourceClaim, ResourceClaimTemplate, ResourceSlice
from berth.api.meta import KubernetesObject
from berth.api.node import Node
from berth.api.pod import Pod
from berth.api.podgroups import CoschedulingPodGroup, UpstreamPodGroup
from berth.api.trimming import ReportedPod
from berth.api.volumes import (
    CSIDriver,
    CSINode,
    CSIStorageCapacity,
    PersistentVolume,
    PersistentVolumeClaim,
    StorageClass,
    VolumeAttachment,
)
from berth.api.workloads import (
    Lease,
    Namespace,
    PodDisruptionBudget,
    PriorityClass,
    ReplicaSet,
    ReplicationController,
    Service,
    StatefulSet,
)

T_co = TypeVar("T_co", bound=KubernetesObject, covariant=True)


@dataclass(frozen=True, kw_only=True)
class Kind(Generic[T_co]):
    """One kind of object."""

    name: str  # berth's name for the kind, as in the keys ``<name>.<object>`` and ``watermark.<name>`` of the mirror
    struct: type[T_co]  # the type that an object decodes to
    named: str = ""  # Kubernetes' name for the kind, if it is not the type's
    served: type[T_co] | None = None  # what an object of the API server or a file decodes to first, if that is more
    group: str = ""  # empty: the core group
    version: str = "v1"
    older_versions: tuple[str, ...] = ()  # read where the API server does not serve `version`, newest first
    plural: str
    is_namespaced: bool = True
    # Whether an API server may lack the kind, or keep it from berth. Then only pods that need it wait.
    is_optional: bool = False
    # Whether few API servers serve the kind: where it is absent, no pod waits for it.
    is_rare: bool = False
    # Whether an object keeps `whole`, for extenders; only for nodes and pods.
    keeps_whole: Callable[[Any], bool] | None = None

    @property
    def kind(self) -> str:
        return self.named or self.struct.__name__

    @cached_property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @cached_property
    def path(self) -> str:
        """The path that lists the kind in all namespaces."""
        return f"/{'apis' if self.group else 'api'}/{self.api_version}/{self.plural}"

    @property
    def versions(self) -> tuple[Self, ...]:
        """The kind in each version that is read, newest first."""
        return (self, *(replace(self, version=version, older_versions=()) for version in self.older_versions))

    def key_of(self, *, uid: str, name: str) -> str:
        """The key of an object on the bus: its uid, because names are reused; without a namespace, its name."""
        return uid if self.is_namespaced else name


POD: Final = Kind(name="pod", struct=Pod, served=ReportedPod, plural="pods")
NODE: Final = Kind(name="node", struct=Node, plural="nodes", is_namespaced=False)
NAMESPACE: Final = Kind(name="namespace", struct=Namespace, plural="namespaces", is_namespaced=False)
LEASE: Final = Kind(name="lease", struct=Lease, group="coordination.k8s.io", plural="leases")
PRIORITY_CLASS: Final = Kind(
    name="priorityclass",
    struct=PriorityClass,
    group="scheduling.k8s.io",
    plural="priorityclasses",
    is_namespaced=False,
)
SERVICE: Final = Kind(name="service", struct=Service, plural="services")
REPLICATION_CONTROLLER: Final = Kind(
    name="replicationcontroller", struct=ReplicationController, plural="replicationcontrollers"
)
REPLICA_SET: Final = Kind(name="replicaset", struct=ReplicaSet, group="apps", plural="replicasets")
STATEFUL_SET: Final = Kind(name="statefulset", struct=StatefulSet, group="apps", plural="statefulsets")
PERSISTENT_VOLUME: Final = Kind(name="pv", struct=PersistentVolume, plural="persistentvolumes", is_namespaced=False)
PERSISTENT_VOLUME_CLAIM: Final = Kind(name="pvc", struct=PersistentVolumeClaim, plural="persistentvolumeclaims")
STORAGE_CLASS: Final = Kind(
    name="storageclass", struct=StorageClass, group="storage.k8s.io", plural="storageclasses", is_namespaced=False
)
CSI_NODE: Final = Kind(name="csinode", struct=CSINode, group="storage.k8s.io", plural="csinodes", is_namespaced=False)
CSI_DRIVER: Final = Kind(
    name="csidriver", struct=CSIDriver, group="storage.k8s.io", plural="csidrivers", is_namespaced=False
)
CSI_STORAGE_CAPACITY: Final = Kind(
    name="csistoragecapacity", struct=CSIStorageCapacity, group="storage.k8s.io", plural="csistoragecapacities"
)
VOLUME_ATTACHMENT: Final = Kind(
    name="volumeattachment",
    struct=VolumeAttachment,
    group="storage.k8s.io",
    plural="volumeattachments",
    is_namespaced=False,
)
POD_DISRUPTION_BUDGET: Final = Kind(
    name="poddisruptionbudget", struct=PodDisruptionBudget, group="policy", plural="poddisruptionbudgets"
)

DEVICE_CLASS: Final = Kind(
    name="deviceclass",
    struct=DeviceClass,
    group="resource.k8s.io",
    plural="deviceclasses",
    is_namespaced=False,
    is_optional=True,
)
RESOURCE_SLICE: Final = Kind(
    name="resourceslice",
    struct=ResourceSlice,
    group="resource.k8s.io",
    plural="resourceslices",
    is_namespaced=False,
    is_optional=True,
)
RESOURCE_CLAIM: Final = Kind(
    name="resourceclaim",
    struct=ResourceClaim,
    group="resource.k8s.io",
    plural="resourceclaims",
    is_optional=True,
)
RESOURCE_CLAIM_TEMPLATE: Final = Kind(
    name="resourceclaimtemplate",
    struct=ResourceClaimTemplate,
    group="resource.k8s.io",
    plural="resourceclaimtemplates",
    is_optional=True,
)

POD_GROUP: Final = Kind(
    name="podgroup",
    struct=UpstreamPodGroup,
    named="PodGroup",
    group="scheduling.k8s.io",
    version="v1beta1",
    older_versions=("v1alpha2",),
    plural="podgroups",
    is_optional=True,
    is_rare=True,
)
COSCHEDULING_POD_GROUP: Final = Kind(
    name="coschedulingpodgroup",
    struct=CoschedulingPodGroup,
    named="PodGroup",
    group="scheduling.x-k8s.io",
    version="v1alpha1",
    plural="podgroups",
    is_optional=True,
    is_rare=True,
)

# An object that only plugins read, in Snapshot.objects.
PluginObject = (
    Service
    | ReplicationController
    | ReplicaSet
    | StatefulSet
    | PersistentVolume
    | PersistentVolumeClaim
    | StorageClass
    | CSINode
    | CSIDriver
    | CSIStorageCapacity
    | VolumeAttachment
    | PodDisruptionBudget
    | DeviceClass
    | ResourceSlice
    | ResourceClaim
    | UpstreamPodGroup
    | CoschedulingPodGroup
)

_PLUGIN_KINDS: Final[tuple[Kind[PluginObject], ...]] = (
    SERVICE,
    REPLICATION_CONTROLLER,
    REPLICA_SET,
    STATEFUL_SET,
    PERSISTENT_VOLUME,
    PERSISTENT_VOLUME_CLAIM,
    STORAGE_CLASS,
    CSI_NODE,
    CSI_DRIVER,
    CSI_STORAGE_CAPACITY,
    VOLUME_ATTACHMENT,
    POD_DISRUPTION_BUDGET,
    DEVICE_CLASS,
    RESOURCE_SLICE,
    RESOURCE_CLAIM,
    POD_GROUP,
    COSCHEDULING_POD_GROUP,
)
# The kinds that plugins read beyond pods, nodes and namespaces, by name.
PLUGIN_KINDS: Final[Mapping[str, Kind[PluginObject]]] = {kind.name: kind for kind in _PLUGIN_KINDS}

# Names of the kinds that an API server may lack, or keep from berth.
OPTIONAL_KINDS: Final = tuple(kind.name for kind in _PLUGIN_KINDS if kind.is_optional)
# Those of them without which no pod gets devices.
DEVICE_KINDS: Final = (DEVICE_CLASS.name, RESOURCE_SLICE.name, RESOURCE_CLAIM.name)

# The kinds that watcher and binder follow. Nodes come first, so that a pod seldom appears before its node.
WATCHED_KINDS: Final[tuple[Kind[Any], ...]] = (NODE, NAMESPACE, *_PLUGIN_KINDS, POD)
