"""Pod, trimmed to the fields that plugins read, and the predicates that watcher and binder share.

These are: bound, finished, gated, changed, time of binding, being preempted.
"""

from __future__ import annotations

import hashlib
from datetime import datetime
from typing import Final

import msgspec

from berth.api.meta import (
    NOT_KEPT,
    Int32,
    Int64,
    LabelSelector,
    Name,
    ObjectMeta,
    OwnerReference,
    SelectorRequirement,
    Trimmed,
)

_encode: Final = msgspec.json.Encoder(order="deterministic").encode

# Resource name to quantity as written (500m, 1Gi, 2); berth.api.resources reads them.
Quantities = dict[str, str | int | float]


class ContainerPort(Trimmed, frozen=True, kw_only=True):
    """A port of a container; only host ports matter to scheduling."""

    container_port: Int32 = 0
    host_port: Int32 = 0
    host_ip: str = msgspec.field(default="", name="hostIP")
    protocol: str = "TCP"


class ResourceRequirements(Trimmed, frozen=True, kw_only=True):
    """Requests and limits of a container or a whole pod."""

    requests: Quantities | None = None
    limits: Quantities | None = None


class ContainerRestartRule(Trimmed, frozen=True, kw_only=True):
    """What the kubelet does when the container exits in a certain way."""

    action: str = ""


class Container(Trimmed, frozen=True, kw_only=True):
    """A container. An init container with restartPolicy Always is a sidecar."""

    name: str = ""
    image: str = ""
    resources: ResourceRequirements | None = None
    ports: list[ContainerPort] | None = None
    restart_policy: str | None = None
    restart_policy_rules: list[ContainerRestartRule] | None = None


class Toleration(Trimmed, frozen=True, kw_only=True):
    """Taints that the pod tolerates. An empty key with Exists tolerates all."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""


class NodeSelectorTerm(Trimmed, frozen=True, kw_only=True):
    """Expressions on labels and fields that must all hold; an empty term selects nothing."""

    match_expressions: list[SelectorRequirement] | None = None
    match_fields: list[SelectorRequirement] | None = None


class NodeSelector(Trimmed, frozen=True, kw_only=True):
    """Terms of which one must hold."""

    node_selector_terms: list[NodeSelectorTerm] | None = None


class PreferredNodeTerm(Trimmed, frozen=True, kw_only=True):
    """A node preference of weight 1..100."""

    weight: Int32
    preference: NodeSelectorTerm


class NodeAffinity(Trimmed, frozen=True, kw_only=True):
    """Required and preferred nodes."""

    required_during_scheduling_ignored_during_execution: NodeSelector | None = None
    preferred_during_scheduling_ignored_during_execution: list[PreferredNodeTerm] | None = None


class PodAffinityTerm(Trimmed, frozen=True, kw_only=True):
    """Pods (by labels, in namespaces), and the topology in which the pod is to be with them or away from them."""

    topology_key: str = ""
    label_selector: LabelSelector | None = None
    namespaces: list[str] | None = None
    namespace_selector: LabelSelector | None = None
    match_label_keys: list[str] | None = None
    mismatch_label_keys: list[str] | None = None


class WeightedPodAffinityTerm(Trimmed, frozen=True, kw_only=True):
    """A pod preference of weight 1..100."""

    weight: Int32
    pod_affinity_term: PodAffinityTerm


class PodAffinity(Trimmed, frozen=True, kw_only=True):
    """Required and preferred terms, for affinity and anti-affinity alike."""

    required_during_scheduling_ignored_during_execution: list[PodAffinityTerm] | None = None
    preferred_during_scheduling_ignored_during_execution: list[WeightedPodAffinityTerm] | None = None


class Affinity(Trimmed, frozen=True, kw_only=True):
    node_affinity: NodeAffinity | None = None
    pod_affinity: PodAffinity | None = None
    pod_anti_affinity: PodAffinity | None = None


class TopologySpreadConstraint(Trimmed, frozen=True, kw_only=True):
    """How evenly the pods of a selector are spread over a topology."""

    max_skew: Int32
    topology_key: str
    when_unsatisfiable: str
    label_selector: LabelSelector | None = None
    min_domains: Int32 | None = None
    node_affinity_policy: str | None = None
    node_taints_policy: str | None = None
    match_label_keys: list[str] | None = None


class GCEPersistentDisk(Trimmed, frozen=True, kw_only=True):
    pd_name: str = ""
    read_only: bool = False


class AWSElasticBlockStore(Trimmed, frozen=True, kw_only=True):
    """A disk of AWS: ``vol-...`` or ``aws://<zone>/vol-...``."""

    volume_id: str = msgspec.field(default="", name="volumeID")


class AzureDisk(Trimmed, frozen=True, kw_only=True):
    disk_name: str = ""
    disk_uri: str = msgspec.field(default="", name="diskURI")


class Cinder(Trimmed, frozen=True, kw_only=True):
    """A disk of OpenStack."""

    volume_id: str = msgspec.field(default="", name="volumeID")


class PortworxVolume(Trimmed, frozen=True, kw_only=True):
    volume_id: str = msgspec.field(default="", name="volumeID")


class RBD(Trimmed, frozen=True, kw_only=True):
    """An image of a Ceph cluster, which its monitors identify."""

    monitors: list[str] | None = None
    pool: str = "rbd"
    image: str = ""
    read_only: bool = False


class ISCSI(Trimmed, frozen=True, kw_only=True):
    """An iSCSI disk, identified by its qualified name."""

    iqn: str = ""
    read_only: bool = False


class CSISource(Trimmed, frozen=True, kw_only=True):
    """A volume of a CSI driver; an inline volume has no handle."""

    driver: str = ""
    volume_handle: str = ""


class ClaimSource(Trimmed, frozen=True, kw_only=True):
    """A volume that is a PersistentVolumeClaim."""

    claim_name: str
    read_only: bool = False


class EphemeralSource(Trimmed, frozen=True, kw_only=True):
    """A claim created for the pod and deleted with it, ``<pod>-<volume>``; its requests are in the claim."""


class Volume(Trimmed, frozen=True, kw_only=True):
    """A volume of the pod, without sources that no plugin reads."""

    name: str = ""
    persistent_volume_claim: ClaimSource | None = None
    ephemeral: EphemeralSource | None = None
    gce_persistent_disk: GCEPersistentDisk | None = None
    aws_elastic_block_store: AWSElasticBlockStore | None = None
    azure_disk: AzureDisk | None = None
    cinder: Cinder | None = None
    portworx_volume: PortworxVolume | None = None
    rbd: RBD | None = None
    iscsi: ISCSI | None = None
    csi: CSISource | None = None
    image: dict[str, object] | None = None


class PodSchedulingGate(Trimmed, frozen=True, kw_only=True):
    """A gate; a pod with gates is not scheduled."""

    name: str = ""


class PodResourceClaim(Trimmed, frozen=True, kw_only=True):
    """A claim on a dynamic resource."""

    name: str = ""
    resource_claim_name: str | None = None
    resource_claim_template_name: str | None = None


class PodSchedulingGroup(Trimmed, frozen=True, kw_only=True):
    """The PodGroup of ``scheduling.k8s.io`` that the pod belongs to. Never changes."""

    pod_group_name: Name = ""


# A preemptionPolicy: the pod evicts no others.
PREEMPT_NEVER: Final = "Never"
# Kubernetes' schedulerName for a pod without one; kube-scheduler's default profile.
DEFAULT_SCHEDULER: Final = "default-scheduler"


class PodSpec(Trimmed, frozen=True, kw_only=True):
    scheduler_name: str = DEFAULT_SCHEDULER
    node_name: str = ""
    priority: Int32 | None = None
    priority_class_name: str = ""
    preemption_policy: str | None = None
    containers: list[Container] | None = None
    init_containers: list[Container] | None = None
    overhead: Quantities | None = None
    resources: ResourceRequirements | None = None
    node_selector: dict[str, str] | None = None
    affinity: Affinity | None = None
    tolerations: list[Toleration] | None = None
    topology_spread_constraints: list[TopologySpreadConstraint] | None = None
    scheduling_gates: list[PodSchedulingGate] | None = None
    resource_claims: list[PodResourceClaim] | None = None
    scheduling_group: PodSchedulingGroup | None = None
    volumes: list[Volume] | None = None
    host_network: bool = False
    host_users: bool | None = None
    termination_grace_period_seconds: Int64 | None = None


POD_SCHEDULED: Final = "PodScheduled"
DISRUPTION_TARGET: Final = "DisruptionTarget"
RESIZE_PENDING: Final = "PodResizePending"
# Condition by which a new binder voids its predecessor's Bindings (docs/protocol.md, 5). Its message is the epoch.
CONDITION_FENCE: Final = "berth/fence"
# All types of conditions by which berth decides: a pod with many conditions keeps these alone.
READ_CONDITIONS: Final = frozenset({POD_SCHEDULED, DISRUPTION_TARGET, RESIZE_PENDING, CONDITION_FENCE})


class PodCondition(Trimmed, frozen=True, kw_only=True):
    """A condition of the pod, such as PodScheduled or berth's fence."""

    type: str
    status: str = ""
    reason: str = ""
    message: str = ""
    last_transition_time: str | None = None
    observed_generation: int = 0  # the pod's generation that the condition is about


class PodResourceClaimStatus(Trimmed, frozen=True, kw_only=True):
    """The claim made for an entry of the pod; without a name none is needed."""

    name: str = ""
    resource_claim_name: str | None = None


class ContainerExtendedResourceRequest(Trimmed, frozen=True, kw_only=True):
    """The request of the pod's extended claim that serves a resource of a container."""

    container_name: str = ""
    resource_name: str = ""
    request_name: str = ""


class PodExtendedResourceClaimStatus(Trimmed, frozen=True, kw_only=True):
    request_mappings: list[ContainerExtendedResourceRequest] | None = None
    resource_claim_name: str = ""


class PodFailure(Trimmed, frozen=True, kw_only=True):
    """The pod failed on its node or cannot start there: the kubelet's reason, and since when (RFC 3339)."""

    reason: str
    at: str


class PodStatus(Trimmed, frozen=True, kw_only=True):
    """The state of the pod, as reported by kubelet and scheduler. ``failure`` is berth's reading of the report."""

    phase: str = ""
    nominated_node_name: str = ""
    start_time: str | None = None
    conditions: list[PodCondition] | None = None
    resource_claim_statuses: list[PodResourceClaimStatus] | None = None
    extended_resource_claim_status: PodExtendedResourceClaimStatus | None = None
    failure: PodFailure | None = None


class Pod(Trimmed, frozen=True, kw_only=True):
    """A pod. Decoding the API's bytes trims it; on the bus it is written the same way.

    ``whole`` is a pending pod's complete JSON for extenders. Only berth writes it, as the last field, because quotes of
    a message leave it out.
    """

    metadata: ObjectMeta
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()
    whole: msgspec.Raw = NOT_KEPT

    @property
    def uid(self) -> str:
        return self.metadata.uid

    @property
    def key(self) -> str:
        """``namespace/name``."""
        return f"{self.metadata.namespace}/{self.metadata.name}"


TERMINAL_PHASES = frozenset({"Succeeded", "Failed"})


def is_bound(pod: Pod) -> bool:
    """Whether the pod uses resources of a node: nodeName is set and the pod is not finished (docs/protocol.md, 1.6)."""
    return bool(pod.spec.node_name) and pod.status.phase not in TERMINAL_PHASES


def is_finished(pod: Pod) -> bool:
    """A pod in a terminal phase counts as deleted."""
    return pod.status.phase in TERMINAL_PHASES


def is_gone_while_unbound(pod: Pod) -> bool:
    """Whether an unbound pod can no longer be placed: terminating (a Binding is answered with 409), or finished."""
    return not pod.spec.node_name and (pod.metadata.deletion_timestamp is not None or is_finished(pod))


def is_gated(pod: Pod) -> bool:
    return bool(pod.spec.scheduling_gates)


def priority_of(pod: Pod) -> int:
    """An absent priority is 0."""
    return pod.spec.priority or 0


def changed(seen: Pod, now: Pod) -> bool:
    """Whether a pod differs from the ranked one in anything that scheduling reads (docs/protocol.md, 1.8).

    Conditions, nominatedNodeName and resourceVersion are left out, because berth writes them itself.
    """
    return _scheduling_fields(seen) != _scheduling_fields(now)


def digest_of(pod: Pod) -> str:
    """A text of 16 characters that differs where ``changed`` says so: a group's messages have it for each member."""
    return hashlib.blake2b(_encode(_scheduling_fields(pod)), digest_size=8).hexdigest()


def _scheduling_fields(pod: Pod) -> tuple[object, ...]:
    meta, status = pod.metadata, pod.status
    return (
        meta.name,
        meta.namespace,
        meta.uid,
        meta.deletion_timestamp,
        meta.labels or None,
        meta.annotations or None,
        meta.owner_references or None,
        pod.spec,
        status.phase,
    )


def name_of(pod: Pod) -> Pod:
    """The fields that an error about the pod needs, for a pod too large for a message."""
    metadata = pod.metadata
    named = ObjectMeta(
        name=metadata.name,
        namespace=metadata.namespace,
        uid=metadata.uid,
        resource_version=metadata.resource_version,
    )
    return Pod(metadata=named, spec=PodSpec(scheduler_name=pod.spec.scheduler_name))


def controller_of(pod: Pod) -> OwnerReference | None:
    """The object whose controller made the pod, such as a ReplicaSet."""
    return next((owner for owner in pod.metadata.owner_references or () if owner.controller), None)


_ON_ONE_NODE: Final = frozenset({"DaemonSet", "Node"})  # kinds of controllers; a static pod's is the Node


def workload_of(pod: Pod) -> str:
    """The uid of the pod's controller; empty if there is none, or if each of its pods has one possible node."""
    owner = controller_of(pod)
    return "" if owner is None or owner.kind in _ON_ONE_NODE else owner.uid


# Unix seconds of a Binding of unknown time: never recent.
LONG_AGO: Final = 0.0


def bound_at(pod: Pod) -> float:
    """Unix seconds at which the API server took the Binding; else of the pod's start or creation; else LONG_AGO."""
    return unix_seconds(bound_by_condition(pod) or pod.status.start_time or pod.metadata.creation_timestamp)


def bound_at_text(pod: Pod) -> str | None:
    """The time of the Binding at the API server, else of the creation, as RFC 3339 text, as in the mirror."""
    return bound_by_condition(pod) or pod.metadata.creation_timestamp


def unix_seconds(text: str | None) -> float:
    """Unix seconds of an RFC 3339 time; LONG_AGO for any other text."""
    try:
        return datetime.fromisoformat(text or "").timestamp()
    except (ValueError, OverflowError):
        return LONG_AGO


def bound_by_condition(pod: Pod) -> str | None:
    """The time at which the API server took the Binding, if the pod shows it."""
    for condition in pod.status.conditions or ():
        if condition.type == POD_SCHEDULED and condition.status == "True" and condition.last_transition_time:
            return condition.last_transition_time
    return None


PREEMPTION_BY_SCHEDULER: Final = "PreemptionByScheduler"


def disruption_condition(pod: Pod) -> PodCondition | None:
    return next((each for each in pod.status.conditions or () if each.type == DISRUPTION_TARGET), None)


def is_marked_for_preemption(pod: Pod) -> bool:
    condition = disruption_condition(pod)
    return condition is not None and condition.status == "True" and condition.reason == PREEMPTION_BY_SCHEDULER


def is_being_preempted(pod: Pod) -> bool:
    """Whether the pod is terminating because a scheduler evicted it."""
    return pod.metadata.deletion_timestamp is not None and is_marked_for_preemption(pod)
