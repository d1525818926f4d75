"""The kinds and paths of the simulated API server: ``berth.api.kinds`` and events.

Each kind gets the server's part: field selectors, the behaviour of writes, the form of bookmarks.
"""

import dataclasses
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

from berth.api import kinds as api
from berth.api.kinds import Kind

FieldPath = tuple[str, ...]  # path of a field in an object


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SimulatedKind:
    group: str = ""  # API group; empty: the core group
    version: str = "v1"
    plural: str
    name: str  # `kind` of its objects
    short_names: tuple[str, ...] = ()
    namespaced: bool = True
    # Writes to the object do not change its status; writes to /status change only the status.
    has_status: bool = False
    has_generation: bool = False  # metadata.generation counts the changes of the spec
    has_scale: bool = False  # /scale reads and writes spec.replicas
    is_graceful: bool = False  # a DELETE may leave the object with a deletionTimestamp for a while (pods)
    creates_on_update: bool = False  # a PUT of a missing object creates it
    updates_need_version: bool = False  # a PUT without metadata.resourceVersion is rejected
    # Labels for field selectors besides metadata.name and metadata.namespace.
    fields: Mapping[str, FieldPath] = dataclasses.field(default_factory=dict)
    # Fields in kube-apiserver's bookmarks besides metadata: `"containers":null` trips strict decoders.
    bookmark: bytes = b""
    # Why the kind has no objects: lists are empty, and a create is refused with this sentence.
    why_none: str = ""
    stored_as: str = ""  # plural of the core kind whose objects this kind shows in another form (events)

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def resource(self) -> str:
        """The name in error messages: `leases.coordination.k8s.io`."""
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


def _served(kind: Kind[Any], **behaviour: Any) -> SimulatedKind:
    return SimulatedKind(
        group=kind.group,
        version=kind.version,
        plural=kind.plural,
        name=kind.kind,
        namespaced=kind.is_namespaced,
        **behaviour,
    )


PODS = _served(
    api.POD,
    short_names=("po",),
    has_status=True,
    has_generation=True,
    is_graceful=True,
    fields=_POD_FIELDS,
    bookmark=b',"spec":{"containers":null},"status":{}',
)
NODES = _served(
    api.NODE,
    short_names=("no",),
    has_status=True,
    fields={"spec.unschedulable": ("spec", "unschedulable")},
    bookmark=_NODE_BOOKMARK,
)
NAMESPACES = _served(
    api.NAMESPACE,
    short_names=("ns",),
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
LEASES = _served(
    api.LEASE,
    creates_on_update=True,
    updates_need_version=True,
    bookmark=b',"spec":{}',
)
PRIORITY_CLASSES = _served(api.PRIORITY_CLASS, short_names=("pc",))
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

PERSISTENT_VOLUMES = _served(
    api.PERSISTENT_VOLUME,
    short_names=("pv",),
    has_status=True,
    bookmark=SPEC_AND_STATUS,
)
PERSISTENT_VOLUME_CLAIMS = _served(
    api.PERSISTENT_VOLUME_CLAIM,
    short_names=("pvc",),
    has_status=True,
    bookmark=b',"spec":{"resources":{}},"status":{}',
)
SERVICES = _served(
    api.SERVICE,
    short_names=("svc",),
    has_status=True,
    bookmark=b',"spec":{},"status":{"loadBalancer":{}}',
)
POD_DISRUPTION_BUDGETS = _served(
    api.POD_DISRUPTION_BUDGET,
    short_names=("pdb",),
    has_status=True,
    has_generation=True,
    bookmark=_BUDGET_BOOKMARK,
)
STORAGE_CLASSES = _served(
    api.STORAGE_CLASS,
    short_names=("sc",),
    bookmark=b',"provisioner":""',
)

REPLICATION_CONTROLLERS = _served(
    api.REPLICATION_CONTROLLER,
    short_names=("rc",),
    has_status=True,
    has_generation=True,
    has_scale=True,
    bookmark=b',"spec":{},"status":{"replicas":0}',
)
REPLICA_SETS = _served(
    api.REPLICA_SET,
    short_names=("rs",),
    has_status=True,
    has_generation=True,
    has_scale=True,
    bookmark=_REPLICA_SET_BOOKMARK,
)
STATEFUL_SETS = _served(
    api.STATEFUL_SET,
    short_names=("sts",),
    has_status=True,
    has_generation=True,
    has_scale=True,
    bookmark=_STATEFUL_SET_BOOKMARK,
)
DEPLOYMENTS = SimulatedKind(
    group="apps",
    plural="deployments",
    name="Deployment",
    short_names=("deploy",),
    has_status=True,
    has_generation=True,
    has_scale=True,
    bookmark=b',"spec":{"selector":null,"template":{"metadata":{},"spec":{"containers":null}},"strategy":{}},"status":{}',
)
JOBS = SimulatedKind(
    group="batch",
    plural="jobs",
    name="Job",
    has_status=True,
    has_generation=True,
    fields={"status.successful": ("status", "succeeded")},
    bookmark=b',"spec":{"template":{"metadata":{},"spec":{"containers":null}}},"status":{}',
)

RESOURCE_CLAIMS = _served(
    api.RESOURCE_CLAIM, has_status=True, bookmark=b',"spec":{"devices":{"requests":null}},"status":{}'
)
RESOURCE_CLAIM_TEMPLATES = _served(
    api.RESOURCE_CLAIM_TEMPLATE, bookmark=b',"spec":{"metadata":{},"spec":{"devices":{"requests":null}}}'
)
RESOURCE_SLICES = _served(
    api.RESOURCE_SLICE,
    has_generation=True,
    fields={"spec.driver": ("spec", "driver"), "spec.nodeName": ("spec", "nodeName")},
    bookmark=b',"spec":{"driver":"","pool":{"name":"","generation":0,"resourceSliceCount":0}}',
)
DEVICE_CLASSES = _served(api.DEVICE_CLASS, has_generation=True, bookmark=b',"spec":{}')

# Release 1.36 serves v1alpha2; the other dialect is a custom resource.
POD_GROUPS = _served(
    api.POD_GROUP.versions[-1], has_status=True, has_generation=True, bookmark=b',"spec":{"schedulingPolicy":{}}'
)
COSCHEDULING_POD_GROUPS = _served(api.COSCHEDULING_POD_GROUP, short_names=("pg",), has_status=True, has_generation=True)

RBAC: Final = "rbac.authorization.k8s.io"
_NETWORKING = "networking.k8s.io"
_ROLE_REFERENCE = b',"roleRef":{"apiGroup":"","kind":"","name":""}'
CONFIG_MAPS = SimulatedKind(plural="configmaps", name="ConfigMap", short_names=("cm",))
SECRETS = SimulatedKind(plural="secrets", name="Secret")
# Kinds that people's files have beside their workloads: stored, and read by nothing here.
WITHOUT_EFFECT: Final[tuple[SimulatedKind, ...]] = (
    CONFIG_MAPS,
    SECRETS,
    SimulatedKind(plural="serviceaccounts", name="ServiceAccount", short_names=("sa",)),
    SimulatedKind(
        group=_NETWORKING,
        plural="ingresses",
        name="Ingress",
        short_names=("ing",),
        has_status=True,
        has_generation=True,
        bookmark=b',"spec":{},"status":{"loadBalancer":{}}',
    ),
    SimulatedKind(
        group=_NETWORKING,
        plural="networkpolicies",
        name="NetworkPolicy",
        short_names=("netpol",),
        has_generation=True,
        bookmark=b',"spec":{"podSelector":{}}',
    ),
    SimulatedKind(group=RBAC, plural="roles", name="Role", bookmark=b',"rules":null'),
    SimulatedKind(group=RBAC, plural="rolebindings", name="RoleBinding", bookmark=_ROLE_REFERENCE),
    SimulatedKind(group=RBAC, plural="clusterroles", name="ClusterRole", namespaced=False, bookmark=b',"rules":null'),
    SimulatedKind(
        group=RBAC, plural="clusterrolebindings", name="ClusterRoleBinding", namespaced=False, bookmark=_ROLE_REFERENCE
    ),
)

KINDS: tuple[SimulatedKind, ...] = (
    PODS,
    NODES,
    NAMESPACES,
    SERVICES,
    EVENTS,
    PERSISTENT_VOLUMES,
    PERSISTENT_VOLUME_CLAIMS,
    REPLICATION_CONTROLLERS,
    REPLICA_SETS,
    STATEFUL_SETS,
    DEPLOYMENTS,
    JOBS,
    LEASES,
    NEW_EVENTS,
    STORAGE_CLASSES,
    _served(api.CSI_NODE, bookmark=b',"spec":{"drivers":null}'),
    _served(api.CSI_DRIVER, bookmark=b',"spec":{}'),
    _served(api.CSI_STORAGE_CAPACITY, bookmark=b',"storageClassName":""'),
    _served(
        api.VOLUME_ATTACHMENT,
        has_status=True,
        bookmark=b',"spec":{"attacher":"","source":{},"nodeName":""},"status":{"attached":false}',
    ),
    POD_DISRUPTION_BUDGETS,
    PRIORITY_CLASSES,
    RESOURCE_CLAIMS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_SLICES,
    DEVICE_CLASSES,
    POD_GROUPS,
    COSCHEDULING_POD_GROUPS,
    *WITHOUT_EFFECT,
)


def _workload(group: str, plural: str, name: str, *short_names: str) -> SimulatedKind:
    why_none = f"the simulated cluster has no controller for a {name}: create a Deployment, StatefulSet, Job or pods"
    return SimulatedKind(group=group, plural=plural, name=name, short_names=short_names, why_none=why_none)


# Kinds that people create or list but that have no effect here: each says so.
ABSENT_KINDS: Final[tuple[SimulatedKind, ...]] = (
    _workload("apps", "daemonsets", "DaemonSet", "ds"),
    _workload("batch", "cronjobs", "CronJob", "cj"),
    SimulatedKind(
        group="autoscaling",
        plural="horizontalpodautoscalers",
        name="HorizontalPodAutoscaler",
        short_names=("hpa",),
        why_none="the simulated cluster measures no load, so a HorizontalPodAutoscaler has nothing to scale by: use "
        "`kubectl scale`",
    ),
    SimulatedKind(
        plural="limitranges",
        name="LimitRange",
        short_names=("limits",),
        why_none="the simulated cluster applies no LimitRanges: write requests and limits into the pods",
    ),
    SimulatedKind(
        plural="resourcequotas",
        name="ResourceQuota",
        short_names=("quota",),
        why_none="the simulated cluster applies no ResourceQuotas: it admits every pod",
    ),
    SimulatedKind(
        group="node.k8s.io",
        plural="runtimeclasses",
        name="RuntimeClass",
        namespaced=False,
        why_none="the simulated cluster applies no RuntimeClasses: write overhead and node selector into the pods",
    ),
)
SERVED_KINDS: Final = (*KINDS, *ABSENT_KINDS)

BY_ADDRESS: Mapping[tuple[str, str, str], SimulatedKind] = {
    (kind.group, kind.version, kind.plural): kind for kind in SERVED_KINDS
}
BY_NAME: Mapping[tuple[str, str], SimulatedKind] = {(kind.api_version, kind.name): kind for kind in KINDS}

_GROUP_VERSIONS = frozenset((kind.group, kind.version) for kind in SERVED_KINDS)


class UnknownResourceError(LookupError):
    """A known group and version, an unknown resource; a text says why it is not simulated."""


_NO_CONTAINERS: Final = "no container runs in the simulated cluster: "
# Why subresources that people ask for are refused.
_NOT_SIMULATED: Final[Mapping[str, str]] = {
    "pods/log": f"{_NO_CONTAINERS}there are no logs",
    "pods/exec": f"{_NO_CONTAINERS}there is none to run a command in",
    "pods/attach": f"{_NO_CONTAINERS}there is none to attach to",
    "pods/portforward": f"{_NO_CONTAINERS}there are no ports to forward",
    "pods/proxy": f"{_NO_CONTAINERS}none answers requests",
    "pods/ephemeralcontainers": f"{_NO_CONTAINERS}there is none to debug",
    "nodes/proxy": "the simulated cluster's nodes have no kubelet that answers",
    "services/proxy": f"{_NO_CONTAINERS}none answers requests",
    "serviceaccounts/token": "the simulated API server serves everybody: no token is needed",
}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """A parsed path; absent parts are empty strings."""

    kind: SimulatedKind
    namespace: str = ""
    name: str = ""
    subresource: str = ""

    @property
    def resource(self) -> str:
        return f"{self.kind.plural}/{self.subresource}" if self.subresource else self.kind.plural

    @property
    def key(self) -> tuple[str, str]:
        return self.namespace, self.name


PATHS: Final = 4096  # cached routes: paths of collections and of recent objects recur


@lru_cache(maxsize=PATHS)
def parse_path(path: str) -> Route | None:
    """Parse a path below /api or /apis; None for an unknown group and version.

    Raises:
        UnknownResourceError: the group and version exist, the resource does not exist.
    """
    parts = path.strip("/").split("/")
    if parts[:2] == ["api", "v1"]:
        group, version, rest = "", "v1", parts[2:]
    elif parts[0] == "apis" and len(parts) > 3:  # apis, group, version, resource
        group, version, rest = parts[1], parts[2], parts[3:]
    else:
        return None
    if (group, version) not in _GROUP_VERSIONS or not rest:
        return None
    return _resource(group, version, rest)


def _resource(group: str, version: str, rest: list[str]) -> Route:
    namespace = ""
    if rest[0] == "namespaces" and len(rest) > 2 and (group or rest[2] != "status"):  # a kind in it
        namespace, rest = rest[1], rest[2:]
    if rest[0] == "bindings" and namespace and not group and len(rest) == 1:
        return Route(kind=PODS, namespace=namespace, subresource="binding")
    kind = BY_ADDRESS.get((group, version, rest[0]))
    if kind is not None and len(rest) > 2 and (why := _NOT_SIMULATED.get(f"{kind.plural}/{rest[2]}")):
        raise UnknownResourceError(why)
    if kind is None or len(rest) > 3 or (namespace and not kind.namespaced):  # kind, name, subresource
        raise UnknownResourceError
    name, subresource = (*rest[1:], "", "")[:2]
    if kind.namespaced and name and not namespace:
        raise UnknownResourceError
    if subresource and not _has_subresource(kind, subresource):
        raise UnknownResourceError
    return Route(kind=kind, namespace=namespace, name=name, subresource=subresource)


def _has_subresource(kind: SimulatedKind, subresource: str) -> bool:
    if subresource == "status":
        return kind.has_status or kind is NAMESPACES
    if subresource == "scale":
        return kind.has_scale
    return subresource == "binding" and kind is PODS
