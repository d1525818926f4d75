"""The arguments of NodeAffinity and what is wrong with them."""

from __future__ import annotations

from typing import Final

from berth.api.meta import SelectorRequirement
from berth.api.pod import NodeAffinity as Affinity
from berth.api.pod import NodeSelectorTerm
from berth.api.selectors import is_valid_term
from berth.plugins.factory import Args
from berth.plugins.labelargs import key_problems, value_problems

_EXPRESSION: Final = (
    "In or NotIn with values, Exists or DoesNotExist without any, or Gt or Lt with one value, a whole number"
)
_OF_VALUES: Final = ("In", "NotIn")
_KINDS: Final = ("required", "preferred")
_MAX_WEIGHT: Final = 100
_FIELD: Final = "metadata.name with In or NotIn and one value"


class NodeAffinityArgs(Args, frozen=True, kw_only=True):
    """``addedAffinity``: a node affinity that every pod of the profile has beside its own."""

    added_affinity: Affinity | None = None


def validate(args: NodeAffinityArgs, path: str) -> list[str]:
    """Every expression of addedAffinity must be one that can hold, every weight 1..100."""
    added = args.added_affinity or Affinity()
    required = added.required_during_scheduling_ignored_during_execution
    preferred = added.preferred_during_scheduling_ignored_during_execution or []
    must, would = (f"{path}.addedAffinity.{kind}DuringSchedulingIgnoredDuringExecution" for kind in _KINDS)
    terms = [
        (f"{must}.nodeSelectorTerms[{i}]", term)
        for i, term in enumerate((required.node_selector_terms if required else None) or [])
    ]
    terms += [(f"{would}[{i}].preference", term.preference) for i, term in enumerate(preferred)]
    problems = [problem for place, term in terms for problem in _problems_of(term, place)]
    return problems + [
        f"{would}[{i}].weight: want 1..100, got {term.weight}"
        for i, term in enumerate(preferred)
        if not 1 <= term.weight <= _MAX_WEIGHT
    ]


def _problems_of(term: NodeSelectorTerm, path: str) -> list[str]:
    problems = []
    for i, expression in enumerate(term.match_expressions or ()):
        place = f"{path}.matchExpressions[{i}]"
        problems += key_problems(expression.key, f"{place}.key")
        if expression.operator in _OF_VALUES:
            values = enumerate(expression.values or ())
            problems += [problem for j, value in values for problem in value_problems(value, f"{place}.values[{j}]")]
        if not is_valid_term(NodeSelectorTerm(match_expressions=[expression])):
            problems.append(f"{place}: want {_EXPRESSION}, got {_written(expression)}")
    return problems + [
        f"{path}.matchFields[{i}]: want {_FIELD}, got {field.key!r} with {_written(field)}"
        for i, field in enumerate(term.match_fields or ())
        if not is_valid_term(NodeSelectorTerm(match_fields=[field]))
    ]


def _written(expression: SelectorRequirement) -> str:
    return f"{expression.operator!r} with {expression.values or []}"
