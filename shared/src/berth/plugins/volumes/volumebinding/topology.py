"""From which nodes a PersistentVolume can be reached: its node affinity, as the node's drivers read it.

Only labels count: kube-scheduler asks without the node's name, so that terms on it hold for every node.
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
    """Nodes, one by one and all at once."""

    def includes(self, node: NodeInfo) -> bool:
        """Whether the node is one of them."""
        ...

    def mask(self, nodes: Nodes) -> Mask:
        """The same for all nodes."""
        ...


@dataclass(frozen=True, slots=True)
class OnlyNode:
    """The node of this name."""

    name: str

    def includes(self, node: NodeInfo) -> bool:
        """Whether it is this one."""
        return node.name == self.name

    def mask(self, nodes: Nodes) -> Mask:
        """The same for all nodes."""
        return nodes.named(self.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeTopology:
    """``plain``: terms on labels, None for everywhere. ``migrated``: the same on nodes where ``driver`` took over.

    ``flaw``: what the driver would not understand of the volume, empty for nothing.
    """

    plain: NodeTerms | None
    driver: Driver | None = None
    migrated: NodeTerms | None = None
    flaw: str = ""

    def includes(self, node: NodeInfo) -> bool:
        """Whether a node can have the volume."""
        terms = self.migrated if self._is_taken_over(node) else self.plain
        return terms is None or terms.matches(node.name, node.labels)

    def is_flawed(self, node: NodeInfo) -> bool:
        """Whether the volume is left to a driver there that does not understand it."""
        return bool(self.flaw) and self._is_taken_over(node)

    def flawed(self, nodes: Nodes) -> Mask:
        """The same for all nodes."""
        if self.driver is None or not self.flaw:
            return np.zeros(len(nodes), dtype=np.bool_)
        return _migrated_rows(self.driver, nodes)

    def mask(self, nodes: Nodes) -> Mask:
        """The same for all nodes."""
        plain = _mask(self.plain, nodes)
        if self.driver is None or self.plain == self.migrated:
            return plain
        return np.where(_migrated_rows(self.driver, nodes), _mask(self.migrated, nodes), plain)

    def _is_taken_over(self, node: NodeInfo) -> bool:
        return self.driver is not None and is_migrated(self.driver, node.snapshot.objects(CSINode).named(node.name))


ALL_NODES: Final = VolumeTopology(plain=None)
NO_NODES: Final = VolumeTopology(plain=NodeTerms(()))


def node_affinity_of(volume: PersistentVolume) -> VolumeTopology:
    """As the volume says: how volumes are chosen that are not bound yet."""
    return VolumeTopology(plain=_terms(_required(volume)))


def translated_node_affinity_of(volume: PersistentVolume) -> VolumeTopology:
    """As the node's drivers read it: how volumes are looked at that are bound."""
    found = driver_of(volume)
    if found is None:
        return node_affinity_of(volume)
    driver, source = found
    affinity = translated_node_selector(volume, driver.topology_key) if driver.topology_key else _required(volume)
    flaw = translation_error(driver, source, volume.metadata.labels or {})
    return replace(node_affinity_of(volume), driver=driver, migrated=_terms(affinity), flaw=flaw)


def topologies_by_node(reaches: Mapping[VolumeTopology, int], nodes: Nodes) -> list[tuple[int, ...]]:
    """For each node the numbers of those that include it. Volumes of one host each are found without looking at all."""
    reached: list[list[int]] = [[] for _ in range(len(nodes))]
    by_value: dict[str, dict[str, list[int]]] = {}
    for reach, number in reaches.items():
        for place in _positions(reach, nodes, by_value):
            reached[place].append(number)
    return [tuple(numbers) for numbers in reached]


def _positions(reach: VolumeTopology, nodes: Nodes, by_value: dict[str, dict[str, list[int]]]) -> Iterable[int]:
    """The places in ``nodes`` of those that the reach includes."""
    wanted = _only_requirement(reach)
    if wanted is None:
        return np.flatnonzero(reach.mask(nodes)).tolist()
    if wanted.key not in by_value:
        by_value[wanted.key] = _by_value(wanted.key, nodes)
    return sorted(place for value in wanted.values for place in by_value[wanted.key].get(value, ()))


def _only_requirement(reach: VolumeTopology) -> Requirement | None:
    """``label In values``, if the reach asks for just that."""
    terms = reach.plain.terms if reach.plain is not None and reach.driver is None else ()
    if len(terms) != 1 or terms[0].names or len(terms[0].labels) != 1:
        return None
    return terms[0].labels[0] if terms[0].labels[0].operator == "In" else None


def _by_value(key: str, nodes: Nodes) -> dict[str, list[int]]:
    codes, column = nodes.label(key)
    places: dict[str, list[int]] = {}
    for place, code in enumerate(codes.tolist()):
        if code != ABSENT:
            places.setdefault(column.values[code], []).append(place)
    return places


def translated_node_selector(volume: PersistentVolume, key: str) -> NodeSelector | None:
    """The affinity with the driver's own label of zones in place of Kubernetes'.

    A volume that names no zone there is in those of its labels.
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


def _required(volume: PersistentVolume) -> NodeSelector | None:
    return volume.spec.node_affinity.required if volume.spec.node_affinity is not None else None


def _terms(selector: NodeSelector | None) -> NodeTerms | None:
    if selector is None:
        return None
    return NodeTerms(tuple(_nameless(term) for term in compile_node_selector(selector).terms))


def _nameless(term: NodeTerm) -> NodeTerm:
    return NodeTerm(term.labels, tuple(r for r in term.names if r.operator == _INVALID))


def _mask(terms: NodeTerms | None, nodes: Nodes) -> Mask:
    return np.ones(len(nodes), dtype=np.bool_) if terms is None else terms_mask(terms, nodes)


def _migrated_rows(driver: Driver, nodes: Nodes) -> Mask:
    snapshot = nodes.snapshot
    csi_nodes = snapshot.objects(CSINode).in_namespace("")
    rows = (snapshot.rows.of(node.metadata.name) for node in csi_nodes if is_migrated(driver, node))
    return np.isin(nodes.rows, [row for row in rows if row is not None])


def _zone_label(selector: NodeSelector | None, labels: Mapping[str, str]) -> str:
    """Under which name the volume speaks of zones: the affinity's first, then the labels', the new name first."""
    keys = {expression.key for expression in _expressions(selector)}
    places = [(name, where) for where in (keys, labels) for name in (ZONE, BETA_ZONE)]
    return next((name for name, where in places if name in where), ZONE)


def _expressions(selector: NodeSelector | None) -> Iterable[SelectorRequirement]:
    terms = (selector.node_selector_terms if selector is not None else None) or ()
    return (expression for term in terms for expression in term.match_expressions or ())


def _has_values(selector: NodeSelector | None, key: str) -> bool:
    return any(expression.values for expression in _expressions(selector) if expression.key == key)


def _with_renamed_key(selector: NodeSelector | None, key: str, name: str) -> NodeSelector:
    return _each_term(selector, lambda given: [_renamed(expression, key, name) for expression in given])


def _renamed(expression: SelectorRequirement, key: str, name: str) -> SelectorRequirement:
    return msgspec.structs.replace(expression, key=name) if expression.key == key else expression


def _with_zones(selector: NodeSelector | None, key: str, zones: Sequence[str]) -> NodeSelector | None:
    names = sorted({zone.strip() for zone in zones} - {""})
    if not names:
        return selector
    inside = SelectorRequirement(key=key, operator="In", values=names)
    return _each_term(selector, lambda given: [*given, inside])


def _each_term(
    selector: NodeSelector | None, change: Callable[[list[SelectorRequirement]], list[SelectorRequirement]]
) -> NodeSelector:
    terms = (selector.node_selector_terms if selector is not None else None) or [NodeSelectorTerm()]
    changed = [msgspec.structs.replace(term, match_expressions=change(term.match_expressions or [])) for term in terms]
    return NodeSelector(node_selector_terms=changed)
