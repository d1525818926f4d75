"""Pods in a Snapshot: their equivalence classes, and the placed and nominated pods per node.

Values derived from a spec are computed once for all pods with an equal spec. Equal parts of pods are kept once too: at
50,000 pods of 400 workloads a pod takes 0.8 KB instead of 4.3 KB.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import IntFlag, auto
from functools import cached_property
from typing import Final, TypeVar
from weakref import WeakValueDictionary

import msgspec

from berth.api.meta import ObjectMeta
from berth.api.pod import Affinity, NodeAffinity, Pod, PodResourceClaim, PodSpec, Toleration, Volume
from berth.api.podgroups import GroupKey, group_of
from berth.api.podlimits import MOST_BYTES, MOST_VOLUMES, is_within_limits, refusal
from berth.api.resources import Requests, may_be_served, pod_requests
from berth.api.selectors import (
    AffinityTerms,
    NodeTerm,
    NodeTerms,
    WeightedNodeTerm,
    compile_affinity_terms,
    compile_node_labels,
    compile_node_selector,
    compile_preferred,
)
from berth.cluster.columns import HostPort, host_ports
from berth.cluster.topologycounts import LabelGroup

_encode = msgspec.json.Encoder().encode


class Trait(IntFlag):
    """Properties of a pod, or of the Snapshot, without which some plugins have nothing to do (``Plugin.only_for``)."""

    # In the spec without volumes: equal for all pods of an equivalence class.
    NODE_NAME = auto()
    NODE_AFFINITY = auto()  # nodeSelector or node affinity
    NODE_FEATURES = auto()  # fields that need a feature of the kubelet
    HOST_PORTS = auto()
    POD_AFFINITY = auto()  # or anti-affinity
    TOPOLOGY_SPREAD = auto()  # constraints of its own
    RESOURCE_CLAIMS = auto()
    EXTENDED_RESOURCES = auto()  # which DeviceClasses may serve
    SCHEDULING_GATES = auto()
    # Beside the class.
    VOLUMES = auto()  # of a type that plugins read
    SELECTED = auto()  # it has an owner, or its namespace has a Service
    PLACED_AFFINITY = auto()  # some placed pod has affinity or anti-affinity
    GROUPED = auto()  # it names a PodGroup
    # In the nodes: equal for all pods until a node changes.
    CORDONED_NODE = auto()  # some node is unschedulable


# The traits that follow from the nodes.
TRAITS_OF_NODES: Final = Trait.CORDONED_NODE
# The traits that follow from an equivalence class.
TRAITS_OF_CLASS: Final = (
    Trait.NODE_NAME
    | Trait.NODE_AFFINITY
    | Trait.NODE_FEATURES
    | Trait.HOST_PORTS
    | Trait.POD_AFFINITY
    | Trait.TOPOLOGY_SPREAD
    | Trait.RESOURCE_CLAIMS
    | Trait.EXTENDED_RESOURCES
    | Trait.SCHEDULING_GATES
)


# Stands for the resource claims of a pod in its class.
_SOME_CLAIMS: Final = [PodResourceClaim()]


class EquivalenceClasses:
    """Interns classes and drops those without references."""

    def __init__(self) -> None:
        self._classes: WeakValueDictionary[bytes, EquivalenceClass] = WeakValueDictionary()
        self._last: tuple[PodSpec, EquivalenceClass] | None = None

    def __len__(self) -> int:
        return len(self._classes)

    def of(self, pod: Pod, *, placed: bool = False) -> EquivalenceClass:
        """The class of a pod, without the node's name of a placed pod."""
        spec, last, of_daemon_set = pod.spec, self._last, _is_of_daemon_set(pod)
        is_last = last is not None and last[0] is spec and last[1].of_daemon_set == of_daemon_set
        if last is not None and is_last and not (placed and spec.node_name):
            return last[1]  # A pod is ranked, then placed: its spec is encoded once.
        found = self._intern(spec, placed=placed, of_daemon_set=of_daemon_set)
        if not placed:
            self._last = (spec, found)
        return found

    def _intern(self, spec: PodSpec, *, placed: bool, of_daemon_set: bool) -> EquivalenceClass:
        if (
            spec.volumes is not None
            or spec.resource_claims is not None
            or spec.scheduling_group is not None
            or (placed and spec.node_name)
        ):
            node_name = "" if placed else spec.node_name
            # Pods of a workload may name their own claims each.
            claims = _SOME_CLAIMS if spec.resource_claims else None
            spec = msgspec.structs.replace(
                spec, volumes=None, resource_claims=claims, scheduling_group=None, node_name=node_name
            )
        key = _encode(spec) + _OF_DAEMON_SET if of_daemon_set else _encode(spec)
        known = self._classes.get(key)
        if known is None:
            known = self._classes[key] = EquivalenceClass(key, spec, of_daemon_set=of_daemon_set)
        return known


_OF_DAEMON_SET: Final = b"DaemonSet"  # behind the JSON of a spec


def _is_of_daemon_set(pod: Pod) -> bool:
    return any(owner.kind == "DaemonSet" for owner in pod.metadata.owner_references or ())


class EquivalenceClass:
    """A spec, whether a DaemonSet owns its pods, and the values derived from it.

    Names, uids, labels, the node, volumes, the pod group and the names of resource claims are not part of a class.
    """

    def __init__(self, key: bytes, spec: PodSpec, *, of_daemon_set: bool = False) -> None:
        self.key = key
        self.spec = spec
        self.of_daemon_set = of_daemon_set
        self._affinity_terms: dict[str, AffinityTerms] = {}

    def affinity_terms(self, namespace: str) -> AffinityTerms:
        """Compiled pod affinity and anti-affinity of the pods of a namespace."""
        known = self._affinity_terms.get(namespace)
        if known is None:
            known = self._affinity_terms[namespace] = compile_affinity_terms(self.spec.affinity, namespace)
        return known

    def refusal(self, pod: Pod) -> str:
        """Why pods of this class are refused; empty if they are not. Parts are counted once per class."""
        volumes = pod.spec.volumes
        within = (
            self._is_within_limits
            and len(volumes or ()) <= MOST_VOLUMES
            and len(self.key) + len(_encode(pod.metadata)) + len(_encode(volumes)) <= MOST_BYTES
        )
        return "" if within else refusal(pod)

    @cached_property
    def _is_within_limits(self) -> bool:
        # Limits of the parts that belong to the class.
        return is_within_limits(self.spec)

    @cached_property
    def traits(self) -> int:
        """The pods' traits in ``TRAITS_OF_CLASS``, as a number: operations on an IntFlag cost a microsecond."""
        spec, affinity = self.spec, self.spec.affinity or Affinity()
        containers = (*(spec.containers or ()), *(spec.init_containers or ()))
        found = {
            Trait.NODE_NAME: spec.node_name,
            Trait.NODE_AFFINITY: spec.node_selector or affinity.node_affinity,
            Trait.NODE_FEATURES: spec.host_users is False or any(each.restart_policy_rules for each in containers),
            Trait.HOST_PORTS: self.host_ports,
            Trait.POD_AFFINITY: affinity.pod_affinity or affinity.pod_anti_affinity,
            Trait.TOPOLOGY_SPREAD: spec.topology_spread_constraints,
            Trait.RESOURCE_CLAIMS: spec.resource_claims,
            Trait.EXTENDED_RESOURCES: any(map(may_be_served, self.requests.amounts)),
            Trait.SCHEDULING_GATES: spec.scheduling_gates,
        }
        return sum(int(trait) for trait, has in found.items() if has)

    @cached_property
    def requests(self) -> Requests:
        return pod_requests(self.spec)

    @cached_property
    def container_requests(self) -> Requests:
        """The requests of the containers alone, without ``spec.resources``."""
        spec = self.spec
        return self.requests if spec.resources is None else pod_requests(msgspec.structs.replace(spec, resources=None))

    @property
    def tolerations(self) -> tuple[Toleration, ...]:
        return tuple(self.spec.tolerations or ())

    @cached_property
    def host_ports(self) -> tuple[HostPort, ...]:
        return host_ports(self.spec)

    @cached_property
    def node_labels(self) -> NodeTerm | None:
        """Compiled nodeSelector, or None."""
        return compile_node_labels(self.spec.node_selector) if self.spec.node_selector else None

    @cached_property
    def required_nodes(self) -> NodeTerms | None:
        """Compiled required node affinity, or None."""
        required = self._node_affinity.required_during_scheduling_ignored_during_execution
        return compile_node_selector(required) if required is not None else None

    def allows(self, name: str, labels: Mapping[str, str]) -> bool:
        """Whether nodeSelector and required node affinity match a node."""
        selector, required = self.node_labels, self.required_nodes
        return (selector is None or selector.matches(name, labels)) and (
            required is None or required.matches(name, labels)
        )

    @cached_property
    def preferred_nodes(self) -> tuple[WeightedNodeTerm, ...]:
        """Compiled preferred node affinity."""
        return compile_preferred(self._node_affinity.preferred_during_scheduling_ignored_during_execution)

    @property
    def _node_affinity(self) -> NodeAffinity:
        return (self.spec.affinity or Affinity()).node_affinity or NodeAffinity()


T = TypeVar("T")


class PlacedPod(msgspec.Struct, frozen=True, kw_only=True):
    """A pod counted on a row. A Struct, because there is one per pod of the cluster.

    ``bound_at``: Unix seconds of its binding; ``None`` for an assumed or proposed pod.
    """

    pod: Pod
    row: int
    pod_class: EquivalenceClass
    group: LabelGroup
    bound_at: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NominatedPod:
    """A pod with a nominated node: cycles of pods of the same or a lower priority count it there."""

    pod: Pod
    node: str


class PodVolumes:
    """The placed pods with volumes; pods without volumes cost nothing."""

    def __init__(self) -> None:
        self._on_row: dict[int, dict[str, Pod]] = {}
        self._counts: Counter[int] = Counter()
        self._users: Counter[tuple[str, str]] = Counter()

    def copied(self) -> PodVolumes:
        copy = PodVolumes()
        copy._on_row = {row: pods.copy() for row, pods in self._on_row.items()}
        copy._counts, copy._users = self._counts.copy(), self._users.copy()
        return copy

    def count(self, pod: Pod, row: int, by: int) -> None:
        """Add a pod to a row (1) or remove it (-1)."""
        if not pod.spec.volumes:
            return
        self._counts[row] += by * len(pod.spec.volumes)
        if by > 0:
            self._on_row.setdefault(row, {})[pod.uid] = pod
        else:
            self._leave(pod.uid, row)
        for volume in pod.spec.volumes:
            if volume.persistent_volume_claim is not None:
                self._use((pod.metadata.namespace, volume.persistent_volume_claim.claim_name), by)

    def on_row(self, row: int) -> Collection[Pod]:
        return self._on_row.get(row, {}).values()

    def count_on(self, row: int) -> int:
        """The number of their volumes; a volume of several pods counts several times."""
        return self._counts[row]

    @property
    def rows(self) -> Collection[int]:
        return self._on_row.keys()

    def is_used(self, namespace: str, claim: str) -> bool:
        """Whether a placed pod uses the claim; claims of ephemeral volumes do not count."""
        return (namespace, claim) in self._users

    def _leave(self, uid: str, row: int) -> None:
        there = self._on_row.get(row, {})
        there.pop(uid, None)
        if not there:
            self._on_row.pop(row, None)
            del self._counts[row]

    def _use(self, claim: tuple[str, str], by: int) -> None:
        self._users[claim] += by
        if self._users[claim] <= 0:
            del self._users[claim]


def deduplicated(pod: Pod, pod_class: EquivalenceClass, group: LabelGroup) -> Pod:
    """The pod with parts equal to its class's spec or its group's last metadata replaced by those objects.

    The node's name is left out, and volumes that no plugin reads (tokens, configuration).
    """
    metadata = _metadata(pod.metadata, group)
    group.last = metadata
    return msgspec.structs.replace(pod, metadata=metadata, spec=_spec(pod.spec, pod_class))


def _metadata(own: ObjectMeta, group: LabelGroup) -> ObjectMeta:
    last = group.last
    if last is None:
        return own
    return msgspec.structs.replace(
        own,
        namespace=last.namespace,
        creation_timestamp=_either(own.creation_timestamp, last.creation_timestamp),
        labels=_either(own.labels, last.labels),
        annotations=_either(own.annotations, last.annotations),
        owner_references=_either(own.owner_references, last.owner_references),
    )


def _spec(own: PodSpec, pod_class: EquivalenceClass) -> PodSpec:
    volumes = [volume for volume in own.volumes or () if has_source(volume)]
    if not volumes and not own.resource_claims and own.scheduling_group is None:
        return pod_class.spec
    return msgspec.structs.replace(
        pod_class.spec,
        volumes=volumes or None,
        resource_claims=own.resource_claims,
        scheduling_group=own.scheduling_group,
    )


def has_source(volume: Volume) -> bool:
    """Whether some plugin reads its type of source; other types are not decoded."""
    return volume != Volume(name=volume.name)


def _either(own: T, other: T) -> T:
    """The second if both are equal, so that only one is kept."""
    return other if own == other else own


_NO_ROWS: Final[Mapping[int, int]] = {}


class GroupMembers:
    """By group, the number of its placed pods on each row; terminating ones do not count."""

    def __init__(self) -> None:
        self._rows: dict[GroupKey, dict[int, int]] = {}

    def copied(self) -> GroupMembers:
        copy = GroupMembers()
        copy._rows = {key: rows.copy() for key, rows in self._rows.items()}
        return copy

    def rows(self, key: GroupKey) -> Mapping[int, int]:
        return self._rows.get(key, _NO_ROWS)

    def count(self, pod: Pod, row: int, by: int) -> None:
        """Add a pod to a row (1) or remove it (-1)."""
        key = group_of(pod)
        if key is None or pod.metadata.deletion_timestamp is not None:
            return
        rows = self._rows.setdefault(key, {})
        rows[row] = rows.get(row, 0) + by
        if not rows[row]:
            del rows[row]
            if not rows:
                del self._rows[key]
