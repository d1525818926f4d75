"""For which nodes a volume can be made for a claim: the class's provisioner, its topologies, the room that there is.

Volumes for the claims of a pod that wait for their first consumer: which would be taken on a node, which made.

The smallest volume that is large enough is taken, claim after claim from the smallest on; for others one is made.
What follows from claims and volumes alone is found once for a pod; a node adds from where it can reach what.


What a pod's claims ask of nodes, and what is said of a node that cannot give it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from berth.api.quantity import QuantityError, value
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

NO_PROVISIONER: Final = "kubernetes.io/no-provisioner"
"""The provisioner of classes whose volumes are made by hand."""


@dataclass(frozen=True, slots=True)
class Provisioning:
    """``topology``: the nodes for which the class makes volumes; ``room``: those for which it has enough of it."""

    topology: NodeSet
    room: NodeSet


def provisioning_of(claim: PersistentVolumeClaim, snapshot: Snapshot) -> Provisioning:
    """Where a volume can be made for the claim."""
    storage_class = snapshot.objects(StorageClass).named(claim.class_name)
    if storage_class is None or storage_class.provisioner in ("", NO_PROVISIONER):
        return Provisioning(NO_NODES, NO_NODES)
    return Provisioning(_topology(storage_class.allowed_topologies), _with_capacity(claim, storage_class, snapshot))


def claimed_bytes(claim: PersistentVolumeClaim) -> int:
    """How much is claimed; nothing when that cannot be read."""
    return _bytes((claim.spec.resources.requests or {}).get(STORAGE))


def volume_bytes(volume: PersistentVolume) -> int:
    """How much a volume holds."""
    return _bytes((volume.spec.capacity or {}).get(STORAGE))


def maximum_volume_bytes(capacity: CSIStorageCapacity) -> int | None:
    """The largest volume that can be made, in bytes; None when nothing is said."""
    said = capacity.maximum_volume_size if capacity.maximum_volume_size is not None else capacity.capacity
    return None if said is None else _bytes(said)


def _bytes(quantity: str | float | None) -> int:
    try:
        return 0 if quantity is None else value(quantity)
    except QuantityError:
        return 0


def _topology(terms: Sequence[TopologyTerm] | None) -> NodeSet:
    if not terms:
        return ALL_NODES
    return VolumeTopology(plain=NodeTerms(tuple(_term(term) for term in terms if term.match_label_expressions)))


def _term(term: TopologyTerm) -> NodeTerm:
    labels = term.match_label_expressions or ()
    return NodeTerm(tuple(Requirement(label.key, "In", frozenset(label.values or ())) for label in labels))


def _with_capacity(claim: PersistentVolumeClaim, storage_class: StorageClass, snapshot: Snapshot) -> NodeSet:
    """Everywhere, unless the class's driver says how much there is."""
    driver = snapshot.objects(CSIDriver).named(storage_class.provisioner)
    if STORAGE not in (claim.spec.resources.requests or {}) or driver is None or not driver.spec.storage_capacity:
        return ALL_NODES
    wanted, name = claimed_bytes(claim), storage_class.metadata.name
    capacities = [c for c in snapshot.objects(CSIStorageCapacity) if c.storage_class_name == name]
    enough = [c for c in capacities if (limit := maximum_volume_bytes(c)) is not None and limit >= wanted]
    return VolumeTopology(
        plain=NodeTerms(tuple(NodeTerm(compile_label_selector(c.node_topology).requirements) for c in enough))
    )


SELECTED_NODE: Final = "volume.kubernetes.io/selected-node"
"""An annotation of claims: the node for which a volume is being made."""


AVAILABLE: Final = "Available"


FILESYSTEM: Final = "Filesystem"
"""What a volume and a claim are that do not say."""


FITS: Final = 0


NO_VOLUME: Final = 1


NO_SPACE: Final = 2


@dataclass(frozen=True, slots=True)
class PodVolumes:
    """What a node can do for the pod: ``taken`` volumes, claims that have one ``made``; or why not (``problem``)."""

    problem: int = FITS
    taken: tuple[tuple[PersistentVolumeClaim, PersistentVolume], ...] = ()
    made: tuple[PersistentVolumeClaim, ...] = ()


ReachedGroups = tuple[int, ...]
"""Numbers of groups of volumes: those of one group are reached from the same nodes."""


Answers = tuple[bool, ...]
"""Answers to the questions of all wishes, three a wish."""


_ELIGIBLE, _TOPOLOGY, _CAPACITY = range(3)


@dataclass(frozen=True, slots=True, kw_only=True)
class _UnboundClaim:
    """A claim that waits, and the places in the pool of the volumes that it could take, the smallest first.

    ``promised`` are kept for just this claim: the first of them is taken or none. ``others`` are the rest by group.
    ``questions``: whether a volume may be made for the node at all, is made for such nodes, and has room there.
    """

    claim: PersistentVolumeClaim
    questions: tuple[NodeSet, NodeSet, NodeSet]
    promised: tuple[int, ...] = ()
    others: Mapping[int, Sequence[int]] = field(default_factory=dict)

    @property
    def is_being_made(self) -> bool:
        """Whether its volume is being made already, for a node that was selected."""
        return self.questions[_ELIGIBLE] is not ALL_NODES

    def problem(self, yes: Answers) -> int:
        """Why no volume can be made for the claim; ``yes`` are the answers to its own questions."""
        if not yes[_TOPOLOGY]:
            return NO_VOLUME
        return FITS if yes[_CAPACITY] else NO_SPACE


class ClaimMatcher:
    """The search for the claims of one pod, on one state."""

    def __init__(self, claims: Sequence[PersistentVolumeClaim], snapshot: Snapshot) -> None:
        self._pool: list[PersistentVolume] = []
        self._group_of: list[int] = []
        self._reaches: dict[VolumeTopology, int] = {}
        being_made = [claim for claim in claims if _selected_node(claim) is not None]
        waiting = sorted((claim for claim in claims if _selected_node(claim) is None), key=claimed_bytes)
        self._wishes = [
            *(_UnboundClaim(claim=claim, questions=_node_sets(claim, snapshot)) for claim in being_made),
            *(self._wish(claim, snapshot) for claim in waiting),
        ]

    def on_node(self, node: NodeInfo) -> PodVolumes:
        """What the node can do."""
        reached = tuple(group for reach, group in self._reaches.items() if reach.includes(node))
        return self._plan(reached, tuple(where.includes(node) for where in self._questions()))

    def problems(self, nodes: Nodes) -> npt.NDArray[np.int64]:
        """int64[nodes]: the problem of each node's plan. Nodes that reach the same volumes are looked at once."""
        yes = np.array([where.mask(nodes) for where in self._questions()], dtype=np.bool_).T.tolist()
        known: dict[tuple[ReachedGroups, Answers], int] = {}
        problems = []
        for kind in zip(topologies_by_node(self._reaches, nodes), map(tuple, yes), strict=True):
            if kind not in known:
                known[kind] = self._plan(*kind).problem
            problems.append(known[kind])
        return np.array(problems, dtype=np.int64)

    def _questions(self) -> Iterator[NodeSet]:
        return (question for wish in self._wishes for question in wish.questions)

    def _wish(self, claim: PersistentVolumeClaim, snapshot: Snapshot) -> _UnboundClaim:
        """With the volumes that suit the claim, wherever they can be reached from."""
        volumes = [volume for volume in snapshot.objects(PersistentVolume) if _suits(volume, claim)]
        volumes.sort(key=lambda volume: (volume_bytes(volume), volume.metadata.name))
        selector, others = _selector(claim), defaultdict[int, list[int]](list)
        for place in [self._place(volume) for volume in volumes if _is_available(volume, claim, selector)]:
            others[self._group_of[place]].append(place)
        promised = tuple(self._place(volume) for volume in volumes if is_prebound(volume, claim))
        return _UnboundClaim(claim=claim, questions=_node_sets(claim, snapshot), promised=promised, others=others)

    def _place(self, volume: PersistentVolume) -> int:
        self._pool.append(volume)
        self._group_of.append(self._reaches.setdefault(node_affinity_of(volume), len(self._reaches)))
        return len(self._pool) - 1

    def _plan(self, reached: ReachedGroups, yes: Answers) -> PodVolumes:
        """What follows for a node that reaches these groups, from its answers to all questions."""
        answers = [yes[3 * number : 3 * number + 3] for number in range(len(self._wishes))]
        if not all(answer[_ELIGIBLE] for answer in answers):
            return PodVolumes(NO_VOLUME)
        taken: dict[str, tuple[PersistentVolumeClaim, PersistentVolume]] = {}
        made: list[tuple[_UnboundClaim, Answers]] = []
        for wish, answer in zip(self._wishes, answers, strict=True):
            volume = self._pick(wish, reached, taken)
            if volume is None:
                made.append((wish, answer))
            else:
                taken[volume.metadata.name] = (wish.claim, volume)
        problem = next(filter(None, (wish.problem(answer) for wish, answer in made)), FITS)
        if problem:
            return PodVolumes(problem)
        return PodVolumes(FITS, tuple(taken.values()), tuple(wish.claim for wish, _ in made))

    def _pick(self, wish: _UnboundClaim, reached: ReachedGroups, taken: Container[str]) -> PersistentVolume | None:
        promised = self._first_free(wish.promised, taken)
        if promised is not None:
            return self._pool[promised] if self._group_of[promised] in reached else None
        firsts = (self._first_free(wish.others[group], taken) for group in reached if group in wish.others)
        best = min((first for first in firsts if first is not None), default=None)
        return None if best is None else self._pool[best]

    def _first_free(self, places: Sequence[int], taken: Container[str]) -> int | None:
        return next((place for place in places if self._pool[place].metadata.name not in taken), None)


def is_prebound(volume: PersistentVolume, claim: PersistentVolumeClaim) -> bool:
    """Whether the volume is kept for the claim, or for whoever has its name."""
    promise, meta = volume.spec.claim_ref, claim.metadata
    if promise is None or (promise.namespace, promise.name) != (meta.namespace, meta.name):
        return False
    return promise.uid in ("", meta.uid)


def _selected_node(claim: PersistentVolumeClaim) -> str | None:
    return (claim.metadata.annotations or {}).get(SELECTED_NODE)


def _node_sets(claim: PersistentVolumeClaim, snapshot: Snapshot) -> tuple[NodeSet, NodeSet, NodeSet]:
    node, provisioning = _selected_node(claim), provisioning_of(claim, snapshot)
    return (ALL_NODES if node is None else OnlyNode(node), provisioning.topology, provisioning.room)


def _selector(claim: PersistentVolumeClaim) -> LabelMatcher:
    return MATCHES_EVERYTHING if claim.spec.selector is None else compile_label_selector(claim.spec.selector)


def _suits(volume: PersistentVolume, claim: PersistentVolumeClaim) -> bool:
    """Whether the volume is of the claim's class and form, large enough and nobody else's."""
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
