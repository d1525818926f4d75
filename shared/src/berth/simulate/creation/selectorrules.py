"""Selectors as the API server takes them: of labels, and of nodes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from berth.api.meta import LabelSelector, SelectorRequirement
from berth.api.pod import NodeSelectorTerm
from berth.api.selectors import NAME_FIELD
from berth.simulate.creation.namerules import is_label_key, refused_labels

_HAS_VALUES: Final[Mapping[str, bool]] = {"In": True, "NotIn": True, "Exists": False, "DoesNotExist": False}
"""The operators, and whether values come with them."""
_COMPARING: Final = ("Gt", "Lt")


def refused_selector(selector: LabelSelector | None, path: str) -> Iterator[str]:
    """What is wrong with a label selector."""
    if selector is None:
        return
    yield from refused_labels(selector.match_labels, f"{path}.matchLabels")
    for at, requirement in enumerate(selector.match_expressions or ()):
        yield from _refused_requirement(requirement, f"{path}.matchExpressions[{at}]", tuple(_HAS_VALUES))


def refused_node_term(term: NodeSelectorTerm, path: str) -> Iterator[str]:
    """What is wrong with a term that nodes must match."""
    for at, requirement in enumerate(term.match_expressions or ()):
        below = f"{path}.matchExpressions[{at}]"
        yield from _refused_requirement(requirement, below, (*_HAS_VALUES, *_COMPARING))
    for at, requirement in enumerate(term.match_fields or ()):
        yield from _refused_field(requirement, f"{path}.matchFields[{at}]")


def _refused_requirement(of: SelectorRequirement, path: str, operators: tuple[str, ...]) -> Iterator[str]:
    if not is_label_key(of.key):
        yield f"{path}.key: want the key of a label, got {of.key!r}"
    values = of.values or []
    if of.operator not in operators:
        yield f"{path}.operator: want {', '.join(operators)}, got {of.operator!r}"
    elif of.operator in _COMPARING:
        if len(values) != 1:
            yield f"{path}.values: want one number with {of.operator}, got {values!r}"
    elif _HAS_VALUES[of.operator] != bool(values):
        wanted = "at least one value" if _HAS_VALUES[of.operator] else "no values"
        yield f"{path}.values: want {wanted} with {of.operator}, got {values!r}"


def _refused_field(of: SelectorRequirement, path: str) -> Iterator[str]:
    if of.key != NAME_FIELD:
        yield f"{path}.key: want {NAME_FIELD}, the only field that selects nodes, got {of.key!r}"
    if of.operator not in ("In", "NotIn"):
        yield f"{path}.operator: want In, NotIn, got {of.operator!r}"
    elif len(of.values or ()) != 1:
        yield f"{path}.values: want one name, got {of.values or []!r}"
