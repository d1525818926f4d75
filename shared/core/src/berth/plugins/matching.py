"""Node selectors and node affinity, evaluated for all nodes at once.

Node labels are columns of codes: an expression is evaluated once per distinct value, and the result is looked up by
code for every node.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Final

import numpy as np

from berth.api.selectors import NodeTerm, NodeTerms, Requirement, whole_number
from berth.cluster.columns import ABSENT, LabelColumn
from berth.cluster.nodes import Nodes
from berth.cluster.pods import EquivalenceClass
from berth.cluster.snapshot import Snapshot
from berth.framework.status import Mask


class EligibleNodes:
    """Nodes that the node affinity and the tolerations of an equivalence class allow, kept for recent classes.

    Filter and all topology spread constraints read it. Only changed nodes are evaluated again.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._masks: OrderedDict[tuple[str, EquivalenceClass], _KeptMask] = OrderedDict()

    @classmethod
    def of(cls, snapshot: Snapshot) -> EligibleNodes:
        """A Snapshot's masks, which live as long as it does."""
        return snapshot.derived("eligible nodes", lambda: cls(snapshot))

    def allowed(self, pod_class: EquivalenceClass) -> Mask:
        """bool[rows], read-only: nodes that nodeSelector and required node affinity allow."""
        return self._kept("affinity", pod_class, required_mask)

    def tolerated(self, pod_class: EquivalenceClass) -> Mask:
        """bool[rows], read-only: nodes without an untolerated NoSchedule or NoExecute taint."""
        return self._kept("taints", pod_class, lambda each, nodes: ~nodes.untolerated(each.tolerations))

    def _kept(
        self, what: str, pod_class: EquivalenceClass, evaluate: Callable[[EquivalenceClass, Nodes], Mask]
    ) -> Mask:
        snapshot, key = self._snapshot, (what, pod_class)
        kept = self._masks.get(key)
        if kept is None:
            kept = self._masks[key] = _KeptMask()
            if len(self._masks) > _MAX_MASKS:
                self._masks.popitem(last=False)
        else:
            self._masks.move_to_end(key)
        changed = snapshot.changed_since(kept.version) if len(kept.mask) >= snapshot.size else None
        if changed is None:
            kept.mask = np.zeros(snapshot.columns.capacity, dtype=np.bool_)
            kept.mask[: snapshot.size] = evaluate(pod_class, Nodes(snapshot))
        elif changed.nodes:
            rows = np.fromiter(changed.nodes, dtype=np.intp, count=len(changed.nodes))
            kept.mask[rows] = evaluate(pod_class, Nodes(snapshot, rows))
        kept.version = snapshot.version
        return kept.mask[: snapshot.size]


class _KeptMask:
    def __init__(self) -> None:
        self.mask: Mask = np.zeros(0, dtype=np.bool_)  # bool[capacity]
        self.version = -1


_MAX_MASKS: Final = 512  # kept masks, of a byte per node


def required_mask(pod_class: EquivalenceClass, nodes: Nodes) -> Mask:
    fits: Mask = np.ones(len(nodes), dtype=np.bool_)
    if pod_class.node_labels is not None:
        fits &= term_mask(pod_class.node_labels, nodes)
    if pod_class.required_nodes is not None:
        fits &= terms_mask(pod_class.required_nodes, nodes)
    return fits


def terms_mask(terms: NodeTerms, nodes: Nodes) -> Mask:
    mask: Mask = np.zeros(len(nodes), dtype=np.bool_)
    for term in terms.terms:
        mask |= term_mask(term, nodes)
    return mask


def term_mask(term: NodeTerm, nodes: Nodes) -> Mask:
    mask: Mask = np.ones(len(nodes), dtype=np.bool_)
    for requirement in term.labels:
        mask &= _label_mask(requirement, nodes)
    for requirement in term.names:
        mask &= _name_mask(requirement, nodes)
    return mask


def has_label(key: str, value: str, nodes: Nodes) -> Mask:
    codes, column = nodes.label(key)
    code = column.code_of(value)
    return np.zeros(len(nodes), dtype=np.bool_) if code is None else np.equal(codes, code)


def _label_mask(requirement: Requirement, nodes: Nodes) -> Mask:
    codes, column = nodes.label(requirement.key)
    match requirement.operator:
        case "Exists":
            return np.not_equal(codes, ABSENT)
        case "DoesNotExist":
            return np.equal(codes, ABSENT)
        case "In":
            return _value_table(requirement, column)[codes]
        case "NotIn":
            return ~_value_table(requirement, column)[codes]
        case _:
            return _compared_table(requirement, column)[codes]


def _value_table(requirement: Requirement, column: LabelColumn) -> Mask:
    """bool by code: whether the value is one of the requirement's. The last element is for ABSENT, which is -1."""
    table: Mask = np.zeros(len(column.values) + 1, dtype=np.bool_)
    table[[code for value in requirement.values if (code := column.code_of(value)) is not None]] = True
    return table


def _compared_table(requirement: Requirement, column: LabelColumn) -> Mask:
    """The same for Gt and Lt, and for an invalid expression, which never holds."""
    table: Mask = np.zeros(len(column.values) + 1, dtype=np.bool_)
    if requirement.operator in ("Gt", "Lt"):
        bound, (numbers, is_whole) = whole_number(next(iter(requirement.values))), column.whole_numbers
        if bound is not None:
            table[:-1] = is_whole & (numbers > bound if requirement.operator == "Gt" else numbers < bound)
    return table


def _name_mask(requirement: Requirement, nodes: Nodes) -> Mask:
    """An expression on metadata.name has exactly one value, or matches no node."""
    if requirement.operator not in ("In", "NotIn"):
        return np.zeros(len(nodes), dtype=np.bool_)
    (name,) = requirement.values
    return nodes.named(name) if requirement.operator == "In" else ~nodes.named(name)
