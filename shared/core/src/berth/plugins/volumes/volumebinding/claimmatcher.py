"""Finds volumes on nodes for a pod's unbound claims that wait for their first consumer.

Static: the smallest suitable volume that is accessible from the node is taken, claim after claim from the smallest.
Dynamic: otherwise a volume is provisioned. Results that depend only on claims and volumes are computed once per pod.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from berth.api.resources import QuantityError, value
from berth.api.selectors import (
    MATCHES_EVERYTHING,
    LabelMatcher,
    NodeTerm,
    NodeTerms,
    Requirement,
    compile_label_selector,
)
from berth.api.volumes import (
    STORAGE,
    CSIDriver,
    CSIStorageCapacity,
    PersistentVolume,
    PersistentVolumeClaim,
    StorageClass,
    TopologyTerm,
)
from berth.cluster.nodes import NodeInfo, Nodes
from berth.cluster.snapshot import Snapshot
from berth.plugins.volumes.volumebinding.topology import (
    ALL_NODES,
    NO_NODES,
    NodeSet,
    OnlyNode,
    VolumeTopology,
    node_affinity_of,
    topologies_by_node,
)

# Annotation of claims: the node for which a volume is being provisioned.
SELECTED_NODE: Final = "volume.kubernetes.io/selected-node"
NO_PROVISIONER: Final = "kubernetes.io/no-provisioner"  # provisioner of classes with hand-made volumes
AVAILABLE: Final = "Available"
FILESYSTEM: Final = "Filesystem"  # the default volumeMode
FITS: Final = 0
NO_VOLUME: Final = 1
NO_SPACE: Final = 2


@dataclass(frozen=True, slots=True)
class PodVolumeBindings:
    """The bindings of the pod's claims on a node; or the ``problem`` that prevents them."""

    problem: int = FITS
    static_bindings: tuple[tuple[PersistentVolumeClaim, PersistentVolume], ...] = ()
    dynamic_provisions: tuple[PersistentVolumeClaim, ...] = ()


ReachedGroups = tuple[int, ...]  # groups of volumes accessible from the same nodes
Answers = tuple[bool, ...]  # membership of a node in the claims' node sets, three sets a claim
_ELIGIBLE, _TOPOLOGY, _CAPACITY = range(3)


@dataclass(frozen=True, slots=True, kw_only=True)
class _UnboundClaim:
    """A claim, and the indices in the pool of suitable volumes, smallest first."""

    claim: PersistentVolumeClaim
    # nodes where the claim may be bound at all, in the topology of its class, and with enough capacity
    node_sets: tuple[NodeSet, NodeSet, NodeSet]
    prebound: tuple[int, ...] = ()  # volumes reserved for this claim: only the first free one is taken
    others: Mapping[int, Sequence[int]] = field(default_factory=dict)  # the other suitable volumes by group

    def problem(self, answers: Answers) -> int:
        """Why no volume can be provisioned for the claim on a node; ``answers`` for its own node sets."""
        if not answers[_TOPOLOGY]:
            return NO_VOLUME
        return FITS if answers[_CAPACITY] else NO_SPACE


class ClaimMatcher:
    """Finds volumes for the unbound claims of one pod in one Snapshot."""

    def __init__(self, claims: Sequence[PersistentVolumeClaim], snapshot: Snapshot) -> None:
        self._pool: list[PersistentVolume] = []
        self._group_of: list[int] = []
        self._topologies: dict[VolumeTopology, int] = {}
        provisioning = [claim for claim in claims if _selected_node(claim) is not None]
        waiting = sorted((claim for claim in claims if _selected_node(claim) is None), key=claimed_bytes)
        self._claims = [
            *(_UnboundClaim(claim=claim, node_sets=_node_sets(claim, snapshot)) for claim in provisioning),
            *(self._with_volumes(claim, snapshot) for claim in waiting),
        ]

    def on_node(self, node: NodeInfo) -> PodVolumeBindings:
        reached = tuple(group for topology, group in self._topologies.items() if topology.includes(node))
        return self._match(reached, tuple(node_set.includes(node) for node_set in self._node_sets()))

    def problems(self, nodes: Nodes) -> npt.NDArray[np.int64]:
        """int64[nodes]: the problem on each node; computed once for nodes with access to the same volumes."""
        answers = np.array([node_set.mask(nodes) for node_set in self._node_sets()], dtype=np.bool_).T.tolist()
        known: dict[tuple[ReachedGroups, Answers], int] = {}
        problems = []
        for kind in zip(topologies_by_node(self._topologies, nodes), map(tuple, answers), strict=True):
            if kind not in known:
                known[kind] = self._match(*kind).problem
            problems.append(known[kind])
        return np.array(problems, dtype=np.int64)

    def _node_sets(self) -> Iterator[NodeSet]:
        return (node_set for claim in self._claims for node_set in claim.node_sets)

    def _with_volumes(self, claim: PersistentVolumeClaim, snapshot: Snapshot) -> _UnboundClaim:
        volumes = [volume for volume in snapshot.objects(PersistentVolume) if _suits(volume, claim)]
        volumes.sort(key=lambda volume: (volume_bytes(volume), volume.metadata.name))
        selector, others = _selector(claim), defaultdict[int, list[int]](list)
        for index in [self._add(volume) for volume in volumes if _is_available(volume, claim, selector)]:
            others[self._group_of[index]].append(index)
        prebound = tuple(self._add(volume) for volume in volumes if is_prebound(volume, claim))
        return _UnboundClaim(claim=claim, node_sets=_node_sets(claim, snapshot), prebound=prebound, others=others)

    def _add(self, volume: PersistentVolume) -> int:
        self._pool.append(volume)
        self._group_of.append(self._topologies.setdefault(node_affinity_of(volume), len(self._topologies)))
        return len(self._pool) - 1

    def _match(self, reached: ReachedGroups, answers: Answers) -> PodVolumeBindings:
        """The volumes for a node with access to these groups, by the node's node sets."""
        by_claim = [answers[3 * number : 3 * number + 3] for number in range(len(self._claims))]
        if not all(of_claim[_ELIGIBLE] for of_claim in by_claim):
            return PodVolumeBindings(NO_VOLUME)
        static: dict[str, tuple[PersistentVolumeClaim, PersistentVolume]] = {}
        dynamic: list[tuple[_UnboundClaim, Answers]] = []
        for unbound, of_claim in zip(self._claims, by_claim, strict=True):
            volume = self._smallest(unbound, reached, static)
            if volume is None:
                dynamic.append((unbound, of_claim))
            else:
                static[volume.metadata.name] = (unbound.claim, volume)
        problem = next(filter(None, (unbound.problem(of_claim) for unbound, of_claim in dynamic)), FITS)
        if problem:
            return PodVolumeBindings(problem)
        return PodVolumeBindings(FITS, tuple(static.values()), tuple(unbound.claim for unbound, _ in dynamic))

    def _smallest(
        self, unbound: _UnboundClaim, reached: ReachedGroups, taken: Container[str]
    ) -> PersistentVolume | None:
        prebound = self._first_free(unbound.prebound, taken)
        if prebound is not None:
            return self._pool[prebound] if self._group_of[prebound] in reached else None
        firsts = (self._first_free(unbound.others[group], taken) for group in reached if group in unbound.others)
        best = min((first for first in firsts if first is not None), default=None)
        return None if best is None else self._pool[best]

    def _first_free(self, indices: Sequence[int], taken: Container[str]) -> int | None:
        return next((index for index in indices if self._pool[index].metadata.name not in taken), None)


def is_prebound(volume: PersistentVolume, claim: PersistentVolumeClaim) -> bool:
    """Whether the volume's claimRef has this claim, by name and by uid if it has one."""
    reference, meta = volume.spec.claim_ref, claim.metadata
    if reference is None or (reference.namespace, reference.name) != (meta.namespace, meta.name):
        return False
    return reference.uid in ("", meta.uid)


def _suits(volume: PersistentVolume, claim: PersistentVolumeClaim) -> bool:
    """Whether the volume has the claim's class and modes, is large enough and not reserved for another claim."""
    has, wants = volume.spec, claim.spec
    return (
        volume.class_name == claim.class_name
        and (has.claim_ref is None or is_prebound(volume, claim))
        and volume_bytes(volume) >= claimed_bytes(claim)
        and (has.volume_mode or FILESYSTEM) == (wants.volume_mode or FILESYSTEM)
        and (has.volume_attributes_class_name or "") == (wants.volume_attributes_class_name or "")
        and volume.metadata.deletion_timestamp is None
    )


def _is_available(volume: PersistentVolume, claim: PersistentVolumeClaim, selector: LabelMatcher) -> bool:
    return (
        volume.spec.claim_ref is None
        and volume.status.phase == AVAILABLE
        and selector.matches(volume.metadata.labels or {})
        and set(claim.spec.access_modes or ()) <= set(volume.spec.access_modes or ())
    )


def _selector(claim: PersistentVolumeClaim) -> LabelMatcher:
    return MATCHES_EVERYTHING if claim.spec.selector is None else compile_label_selector(claim.spec.selector)


def _selected_node(claim: PersistentVolumeClaim) -> str | None:
    return (claim.metadata.annotations or {}).get(SELECTED_NODE)


def _node_sets(claim: PersistentVolumeClaim, snapshot: Snapshot) -> tuple[NodeSet, NodeSet, NodeSet]:
    node, provisioning = _selected_node(claim), provisioning_of(claim, snapshot)
    return (ALL_NODES if node is None else OnlyNode(node), provisioning.topology, provisioning.capacity)


@dataclass(frozen=True, slots=True)
class Provisioning:
    """The nodes in the ``topology`` of the class, and the nodes with enough ``capacity``."""

    topology: NodeSet
    capacity: NodeSet


def provisioning_of(claim: PersistentVolumeClaim, snapshot: Snapshot) -> Provisioning:
    storage_class = snapshot.objects(StorageClass).named(claim.class_name)
    if storage_class is None or storage_class.provisioner in ("", NO_PROVISIONER):
        return Provisioning(NO_NODES, NO_NODES)
    return Provisioning(_topology(storage_class.allowed_topologies), _with_capacity(claim, storage_class, snapshot))


def _topology(terms: Sequence[TopologyTerm] | None) -> NodeSet:
    if not terms:
        return ALL_NODES
    return VolumeTopology(terms=NodeTerms(tuple(_term(term) for term in terms if term.match_label_expressions)))


def _term(term: TopologyTerm) -> NodeTerm:
    labels = term.match_label_expressions or ()
    return NodeTerm(tuple(Requirement(label.key, "In", frozenset(label.values or ())) for label in labels))


def _with_capacity(claim: PersistentVolumeClaim, storage_class: StorageClass, snapshot: Snapshot) -> NodeSet:
    """All nodes, unless the driver of the class publishes its capacity."""
    driver = snapshot.objects(CSIDriver).named(storage_class.provisioner)
    if STORAGE not in (claim.spec.resources.requests or {}) or driver is None or not driver.spec.storage_capacity:
        return ALL_NODES
    wanted, name = claimed_bytes(claim), storage_class.metadata.name
    capacities = [c for c in snapshot.objects(CSIStorageCapacity) if c.storage_class_name == name]
    enough = [c for c in capacities if (limit := maximum_volume_bytes(c)) is not None and limit >= wanted]
    return VolumeTopology(
        terms=NodeTerms(tuple(NodeTerm(compile_label_selector(c.node_topology).requirements) for c in enough))
    )


def claimed_bytes(claim: PersistentVolumeClaim) -> int:
    return _bytes((claim.spec.resources.requests or {}).get(STORAGE))


def volume_bytes(volume: PersistentVolume) -> int:
    return _bytes((volume.spec.capacity or {}).get(STORAGE))


def maximum_volume_bytes(capacity: CSIStorageCapacity) -> int | None:
    """The largest volume that can be provisioned, in bytes; None if unknown."""
    reported = capacity.maximum_volume_size if capacity.maximum_volume_size is not None else capacity.capacity
    return None if reported is None else _bytes(reported)


def _bytes(quantity: str | float | None) -> int:
    try:
        return 0 if quantity is None else value(quantity)
    except QuantityError:
        return 0
