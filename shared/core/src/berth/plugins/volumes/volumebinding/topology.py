"""The nodes from which a PersistentVolume is accessible: its node affinity, translated under CSI migration.

Only labels count: kube-scheduler evaluates the affinity without the node's name, so terms on the name match every node.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol

import msgspec
import numpy as np

from berth.api.meta import SelectorRequirement
from berth.api.pod import NodeSelector, NodeSelectorTerm
from berth.api.selectors import NodeTerm, NodeTerms, Requirement, compile_node_selector
from berth.api.volumes import CSINode, PersistentVolume
from berth.cluster.columns import ABSENT
from berth.cluster.nodes import NodeInfo, Nodes
from berth.framework.status import Mask
from berth.plugins.matching import terms_mask
from berth.plugins.volumes.csimigration import (
    BETA_ZONE,
    ZONE,
    ZONE_SEPARATOR,
    Driver,
    driver_of,
    is_migrated,
    translation_error,
)

BETA_REGION: Final = "failure-domain.beta.kubernetes.io/region"
REGION: Final = "topology.kubernetes.io/region"
_INVALID: Final = "invalid"


class NodeSet(Protocol):
    """A set of nodes, for one node and for all."""

    def includes(self, node: NodeInfo) -> bool: ...

    def mask(self, nodes: Nodes) -> Mask: ...


@dataclass(frozen=True, slots=True)
class OnlyNode:
    name: str

    def includes(self, node: NodeInfo) -> bool:
        return node.name == self.name

    def mask(self, nodes: Nodes) -> Mask:
        return nodes.named(self.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeTopology:
    """Nodes given by terms on their labels: with access to a volume, or eligible for provisioning."""

    terms: NodeTerms | None  # None for all nodes.
    driver: Driver | None = None  # the CSI driver that replaces the volume's in-tree plugin on migrated nodes
    migrated_terms: NodeTerms | None = None  # the terms on migrated nodes, None for all of them
    translation_error: str = ""  # why the volume cannot be translated for the driver; empty if it can

    def includes(self, node: NodeInfo) -> bool:
        terms = self.migrated_terms if self._is_migrated(node) else self.terms
        return terms is None or terms.matches(node.name, node.labels)

    def is_untranslatable(self, node: NodeInfo) -> bool:
        """Whether the node's driver cannot use the volume because it cannot be translated."""
        return bool(self.translation_error) and self._is_migrated(node)

    def untranslatable_mask(self, nodes: Nodes) -> Mask:
        if self.driver is None or not self.translation_error:
            return np.zeros(len(nodes), dtype=np.bool_)
        return _migrated_rows(self.driver, nodes)

    def mask(self, nodes: Nodes) -> Mask:
        mask = _mask(self.terms, nodes)
        if self.driver is None or self.terms == self.migrated_terms:
            return mask
        return np.where(_migrated_rows(self.driver, nodes), _mask(self.migrated_terms, nodes), mask)

    def _is_migrated(self, node: NodeInfo) -> bool:
        return self.driver is not None and is_migrated(self.driver, node.snapshot.objects(CSINode).named(node.name))


ALL_NODES: Final = VolumeTopology(terms=None)
NO_NODES: Final = VolumeTopology(terms=NodeTerms(()))


def node_affinity_of(volume: PersistentVolume) -> VolumeTopology:
    """The volume's own node affinity, by which unbound volumes are chosen."""
    return VolumeTopology(terms=_terms(_required(volume)))


def translated_node_affinity_of(volume: PersistentVolume) -> VolumeTopology:
    """The node affinity as the node's driver evaluates it, by which bound volumes are checked."""
    found = driver_of(volume)
    if found is None:
        return node_affinity_of(volume)
    driver, source = found
    affinity = translated_node_selector(volume, driver.topology_key) if driver.topology_key else _required(volume)
    error = translation_error(driver, source, volume.metadata.labels or {})
    return replace(node_affinity_of(volume), driver=driver, migrated_terms=_terms(affinity), translation_error=error)


def topologies_by_node(topologies: Mapping[VolumeTopology, int], nodes: Nodes) -> list[tuple[int, ...]]:
    """Per node the numbers of the topologies that include it. Local volumes are looked up by label value."""
    included: list[list[int]] = [[] for _ in range(len(nodes))]
    by_value: dict[str, dict[str, list[int]]] = {}
    for topology, number in topologies.items():
        for position in _positions(topology, nodes, by_value):
            included[position].append(number)
    return [tuple(numbers) for numbers in included]


def _positions(topology: VolumeTopology, nodes: Nodes, by_value: dict[str, dict[str, list[int]]]) -> Iterable[int]:
    wanted = _only_requirement(topology)
    if wanted is None:
        return np.flatnonzero(topology.mask(nodes)).tolist()
    if wanted.key not in by_value:
        by_value[wanted.key] = _by_value(wanted.key, nodes)
    return sorted(position for value in wanted.values for position in by_value[wanted.key].get(value, ()))


def _only_requirement(topology: VolumeTopology) -> Requirement | None:
    """``label In values``, if the topology has just that requirement."""
    terms = topology.terms.terms if topology.terms is not None and topology.driver is None else ()
    if len(terms) != 1 or terms[0].names or len(terms[0].labels) != 1:
        return None
    return terms[0].labels[0] if terms[0].labels[0].operator == "In" else None


def _by_value(key: str, nodes: Nodes) -> dict[str, list[int]]:
    codes, column = nodes.label(key)
    positions: dict[str, list[int]] = {}
    for position, code in enumerate(codes.tolist()):
        if code != ABSENT:
            positions.setdefault(column.values[code], []).append(position)
    return positions


def _mask(terms: NodeTerms | None, nodes: Nodes) -> Mask:
    return np.ones(len(nodes), dtype=np.bool_) if terms is None else terms_mask(terms, nodes)


def _migrated_rows(driver: Driver, nodes: Nodes) -> Mask:
    snapshot = nodes.snapshot
    csi_nodes = snapshot.objects(CSINode).in_namespace("")
    rows = (snapshot.rows.of(node.metadata.name) for node in csi_nodes if is_migrated(driver, node))
    return np.isin(nodes.rows, [row for row in rows if row is not None])


def _required(volume: PersistentVolume) -> NodeSelector | None:
    return volume.spec.node_affinity.required if volume.spec.node_affinity is not None else None


def _terms(selector: NodeSelector | None) -> NodeTerms | None:
    if selector is None:
        return None
    return NodeTerms(tuple(_nameless(term) for term in compile_node_selector(selector).terms))


def _nameless(term: NodeTerm) -> NodeTerm:
    return NodeTerm(term.labels, tuple(r for r in term.names if r.operator == _INVALID))


def translated_node_selector(volume: PersistentVolume, key: str) -> NodeSelector | None:
    """The node affinity with the driver's topology key in place of Kubernetes' zone label.

    Without a zone in the affinity, the zones of the volume's labels are added.
    """
    selector, labels = _required(volume), volume.metadata.labels or {}
    zone = _zone_label(selector, labels)
    if _has_values(selector, zone):
        selector = _with_renamed_key(selector, zone, key)
    elif zone in labels:
        selector = _with_zones(selector, key, labels[zone].split(ZONE_SEPARATOR))
    if zone == BETA_ZONE and _has_values(selector, BETA_REGION):
        selector = _with_renamed_key(selector, BETA_REGION, REGION)
    return selector


def _zone_label(selector: NodeSelector | None, labels: Mapping[str, str]) -> str:
    """The zone label of the volume: from the affinity, else from its labels; the current name before the beta name."""
    keys = {expression.key for expression in _expressions(selector)}
    candidates = [(name, where) for where in (keys, labels) for name in (ZONE, BETA_ZONE)]
    return next((name for name, where in candidates if name in where), ZONE)


def _expressions(selector: NodeSelector | None) -> Iterable[SelectorRequirement]:
    terms = (selector.node_selector_terms if selector is not None else None) or ()
    return (expression for term in terms for expression in term.match_expressions or ())


def _has_values(selector: NodeSelector | None, key: str) -> bool:
    return any(expression.values for expression in _expressions(selector) if expression.key == key)


def _with_renamed_key(selector: NodeSelector | None, key: str, name: str) -> NodeSelector:
    return _each_term(selector, lambda expressions: [_renamed(expression, key, name) for expression in expressions])


def _renamed(expression: SelectorRequirement, key: str, name: str) -> SelectorRequirement:
    return msgspec.structs.replace(expression, key=name) if expression.key == key else expression


def _with_zones(selector: NodeSelector | None, key: str, zones: Sequence[str]) -> NodeSelector | None:
    names = sorted({zone.strip() for zone in zones} - {""})
    if not names:
        return selector
    inside = SelectorRequirement(key=key, operator="In", values=names)
    return _each_term(selector, lambda expressions: [*expressions, inside])


def _each_term(
    selector: NodeSelector | None, change: Callable[[list[SelectorRequirement]], list[SelectorRequirement]]
) -> NodeSelector:
    terms = (selector.node_selector_terms if selector is not None else None) or [NodeSelectorTerm()]
    changed = [msgspec.structs.replace(term, match_expressions=change(term.match_expressions or [])) for term in terms]
    return NodeSelector(node_selector_terms=changed)
