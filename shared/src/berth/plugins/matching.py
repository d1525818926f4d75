"""Node selectors, node affinity and tolerations, evaluated for all nodes at once.

Node labels are columns of codes. So an expression is evaluated once for each value that occurs, and the result is
looked up by code for every node.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from berth.api.node import first_untolerated
from berth.api.pod import Toleration
from berth.api.selectors import NodeTerm, NodeTerms, Requirement
from berth.cluster.columns import ABSENT, LabelColumn, TaintSet
from berth.cluster.nodes import Nodes
from berth.cluster.pods import EquivalenceClass
from berth.framework.status import Mask


def required_mask(pod_class: EquivalenceClass, nodes: Nodes) -> Mask:
    """Which nodes a class's nodeSelector and required node affinity allow."""
    fits: Mask = np.ones(len(nodes), dtype=np.bool_)
    if pod_class.node_labels is not None:
        fits &= term_mask(pod_class.node_labels, nodes)
    if pod_class.required_nodes is not None:
        fits &= terms_mask(pod_class.required_nodes, nodes)
    return fits


def terms_mask(terms: NodeTerms, nodes: Nodes) -> Mask:
    """Which nodes satisfy one of the terms."""
    mask: Mask = np.zeros(len(nodes), dtype=np.bool_)
    for term in terms.terms:
        mask |= term_mask(term, nodes)
    return mask


def term_mask(term: NodeTerm, nodes: Nodes) -> Mask:
    """Which nodes satisfy every expression of the term."""
    mask: Mask = np.ones(len(nodes), dtype=np.bool_)
    for requirement in term.labels:
        mask &= _label_mask(requirement, nodes)
    for requirement in term.names:
        mask &= _name_mask(requirement, nodes)
    return mask


def has_label(key: str, value: str, nodes: Nodes) -> Mask:
    """Which nodes have the label with exactly this value."""
    codes, column = nodes.label(key)
    code = column.code_of(value)
    return np.zeros(len(nodes), dtype=np.bool_) if code is None else np.equal(codes, code)


def untolerated_mask(tolerations: Sequence[Toleration], nodes: Nodes) -> Mask:
    """Which nodes have a NoSchedule or NoExecute taint that none of the tolerations tolerates."""
    return by_taints(nodes, lambda taints: first_untolerated(taints, tolerations) is not None).astype(np.bool_)


def by_taints(nodes: Nodes, value_of: Callable[[TaintSet], int]) -> npt.NDArray[np.int64]:
    """int64[nodes]: ``value_of`` each node's taints; called once for each different list of taints."""
    numbers, sets = nodes.taints, nodes.taint_sets
    if len(numbers) < len(sets):
        return np.array([value_of(sets[number]) for number in numbers.tolist()], dtype=np.int64)
    return np.array([value_of(taints) for taints in sets], dtype=np.int64)[numbers]


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
            return _evaluated_table(requirement, column)[codes]


def _value_table(requirement: Requirement, column: LabelColumn) -> Mask:
    """bool by code: whether the value is one of the requirement's. The last element is for ABSENT, which is -1."""
    table: Mask = np.zeros(len(column.values) + 1, dtype=np.bool_)
    table[[code for value in requirement.values if (code := column.code_of(value)) is not None]] = True
    return table


def _evaluated_table(requirement: Requirement, column: LabelColumn) -> Mask:
    """The same by evaluating each value: for Gt and Lt."""
    return np.array([requirement.holds(value) for value in [*column.values, None]], dtype=np.bool_)


def _name_mask(requirement: Requirement, nodes: Nodes) -> Mask:
    """An expression on metadata.name has exactly one value, or matches no node."""
    if requirement.operator not in ("In", "NotIn"):
        return np.zeros(len(nodes), dtype=np.bool_)
    (name,) = requirement.values
    return nodes.named(name) if requirement.operator == "In" else ~nodes.named(name)
