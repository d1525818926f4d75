"""For which nodes a volume can be made for a claim: the class's provisioner, its topologies, the room that there is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from berth.api.quantity import QuantityError, value
from berth.api.selectors import NodeTerm, Requirement, Terms, compile_label_selector
from berth.api.storage import CSIDriver, CSIStorageCapacity, StorageClass, TopologyTerm
from berth.api.volumes import STORAGE, PersistentVolume, PersistentVolumeClaim
from berth.cluster.snapshot import Snapshot
from berth.plugins.volumereach import EVERYWHERE, NOWHERE, Reach, Where

NO_PROVISIONER: Final = "kubernetes.io/no-provisioner"
"""The provisioner of classes whose volumes are made by hand."""


@dataclass(frozen=True, slots=True)
class Provisioning:
    """``topology``: the nodes for which the class makes volumes; ``room``: those for which it has enough of it."""

    topology: Where
    room: Where


def provisioning_of(claim: PersistentVolumeClaim, snapshot: Snapshot) -> Provisioning:
    """Where a volume can be made for the claim."""
    storage_class = snapshot.objects(StorageClass).named(claim.class_name)
    if storage_class is None or storage_class.provisioner in ("", NO_PROVISIONER):
        return Provisioning(NOWHERE, NOWHERE)
    return Provisioning(_topology(storage_class.allowed_topologies), _room(claim, storage_class, snapshot))


def claimed_bytes(claim: PersistentVolumeClaim) -> int:
    """How much is claimed; nothing when that cannot be read."""
    return _bytes((claim.spec.resources.requests or {}).get(STORAGE))


def volume_bytes(volume: PersistentVolume) -> int:
    """How much a volume holds."""
    return _bytes((volume.spec.capacity or {}).get(STORAGE))


def limit_of(capacity: CSIStorageCapacity) -> int | None:
    """The largest volume that can be made, in bytes; None when nothing is said."""
    said = capacity.maximum_volume_size if capacity.maximum_volume_size is not None else capacity.capacity
    return None if said is None else _bytes(said)


def _bytes(quantity: str | float | None) -> int:
    try:
        return 0 if quantity is None else value(quantity)
    except QuantityError:
        return 0


def _topology(terms: Sequence[TopologyTerm] | None) -> Where:
    if not terms:
        return EVERYWHERE
    return Reach(plain=Terms(tuple(_term(term) for term in terms if term.match_label_expressions)))


def _term(term: TopologyTerm) -> NodeTerm:
    labels = term.match_label_expressions or ()
    return NodeTerm(tuple(Requirement(label.key, "In", frozenset(label.values or ())) for label in labels))


def _room(claim: PersistentVolumeClaim, storage_class: StorageClass, snapshot: Snapshot) -> Where:
    """Everywhere, unless the class's driver says how much there is."""
    driver = snapshot.objects(CSIDriver).named(storage_class.provisioner)
    if STORAGE not in (claim.spec.resources.requests or {}) or driver is None or not driver.spec.storage_capacity:
        return EVERYWHERE
    wanted, name = claimed_bytes(claim), storage_class.metadata.name
    capacities = [c for c in snapshot.objects(CSIStorageCapacity) if c.storage_class_name == name]
    enough = [c for c in capacities if (limit := limit_of(c)) is not None and limit >= wanted]
    return Reach(plain=Terms(tuple(NodeTerm(compile_label_selector(c.node_topology).requirements) for c in enough)))
