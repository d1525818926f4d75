"""The arguments of NodeAffinity and what is wrong with them."""

from __future__ import annotations

from berth.api.pod import NodeAffinity as Affinity
from berth.api.pod import NodeSelectorTerm
from berth.api.selectors import is_valid_term
from berth.plugins.factory import Args


class NodeAffinityArgs(Args, frozen=True, kw_only=True):
    """``addedAffinity``: a node affinity that every pod of the profile has beside its own."""

    added_affinity: Affinity | None = None


def validate(args: NodeAffinityArgs, path: str) -> list[str]:
    """Every term of addedAffinity must be one that can be compiled, every weight 1..100."""
    added = args.added_affinity or Affinity()
    required = added.required_during_scheduling_ignored_during_execution
    preferred = added.preferred_during_scheduling_ignored_during_execution or []
    where = f"{path}.addedAffinity"
    terms: list[tuple[str, NodeSelectorTerm]] = [
        (f"{where}.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[{i}]", term)
        for i, term in enumerate((required.node_selector_terms if required else None) or [])
    ]
    terms += [
        (f"{where}.preferredDuringSchedulingIgnoredDuringExecution[{i}].preference", term.preference)
        for i, term in enumerate(preferred)
    ]
    problems = [
        f"{place}: want expressions with valid operators and values" for place, t in terms if not is_valid_term(t)
    ]
    return problems + [
        f"{where}.preferredDuringSchedulingIgnoredDuringExecution[{i}].weight: want 1..100, got {term.weight}"
        for i, term in enumerate(preferred)
        if not 1 <= term.weight <= 100  # noqa: PLR2004 - the range stands in the message
    ]
