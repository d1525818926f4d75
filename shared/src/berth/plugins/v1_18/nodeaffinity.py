"""NodeAffinity: nodeSelector and required terms decide where a pod may run, preferred terms where it would rather.

Filter: as today's plugin of that name. Score: of preferred terms only expressions on labels count, those on the node's
name (matchFields) do not; a term without any expression on labels holds nowhere. As in kube-scheduler 1.18.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from berth.api.selectors import NodeTerm, WeightedTerm
from berth.framework.state import CycleState
from berth.plugins import nodeaffinity
from berth.plugins.nodeaffinityargs import NodeAffinityArgs


class NodeAffinity(nodeaffinity.NodeAffinity):
    """Filters by required terms, scores by the labels that preferred ones name."""

    def preferred(self, state: CycleState) -> Sequence[WeightedTerm]:
        """The preferred terms without what they say of names."""
        return [WeightedTerm(w.weight, NodeTerm(w.term.labels)) for w in super().preferred(state) if w.term.labels]


def _build(args: Any) -> NodeAffinity:
    return NodeAffinity(args or NodeAffinityArgs())


FACTORY: Final = replace(nodeaffinity.FACTORY, build=_build)
