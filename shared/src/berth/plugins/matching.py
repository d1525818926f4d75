"""Compiled node selectors asked about all nodes at once: a table says which of a column's interned values match."""

from __future__ import annotations

import numpy as np

from berth.api.selectors import NodeTerm, Requirement, Terms
from berth.cluster.labels import ABSENT, LabelColumn
from berth.cluster.nodes import Nodes
from berth.framework.verdicts import Mask


def has_label(key: str, value: str, nodes: Nodes) -> Mask:
    """Which nodes have the label with exactly this value."""
    codes, column = nodes.label(key)
    code = column.code_of(value)
    return np.zeros(len(nodes), dtype=np.bool_) if code is None else np.equal(codes, code)


def terms_mask(terms: Terms, nodes: Nodes) -> Mask:
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
            return _asked_table(requirement, column)[codes]


def _value_table(requirement: Requirement, column: LabelColumn) -> Mask:
    """Code to whether the value is among those named; the last place is for ABSENT, which is -1."""
    table: Mask = np.zeros(len(column.values) + 1, dtype=np.bool_)
    table[[code for value in requirement.values if (code := column.code_of(value)) is not None]] = True
    return table


def _asked_table(requirement: Requirement, column: LabelColumn) -> Mask:
    """The same, each value looked at: for comparisons."""
    return np.array([requirement.holds(value) for value in [*column.values, None]], dtype=np.bool_)


def _name_mask(requirement: Requirement, nodes: Nodes) -> Mask:
    """An expression on metadata.name has exactly one value, or never holds."""
    if requirement.operator not in ("In", "NotIn"):
        return np.zeros(len(nodes), dtype=np.bool_)
    (name,) = requirement.values
    return nodes.named(name) if requirement.operator == "In" else ~nodes.named(name)
