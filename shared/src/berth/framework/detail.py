"""What a cycle says of every node, for people: filled in on request, since only the best nodes travel on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from berth.framework.refusals import Refusals
from berth.framework.scoring import Scored


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRefusal:
    """Why a plugin refuses a node."""

    plugin: str
    node: str
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeScore:
    """What a plugin adds to a node's total: its points after NormalizeScore, times its weight."""

    plugin: str
    node: str
    score: int


@dataclass(slots=True)
class Detail:
    """Every refusal and every score of one cycle. A node that is the only feasible one is not scored."""

    refusals: list[NodeRefusal] = field(default_factory=list)
    scores: list[NodeScore] = field(default_factory=list)

    def take_refusals(self, refusals: Refusals, names: Sequence[str]) -> None:
        """``names``: the node of each row."""
        self.refusals.extend(
            NodeRefusal(plugin=refusal.status.plugin, node=names[row], reasons=refusal.status.reasons)
            for refusal in refusals.refused
            for row in refusal.rows.tolist()
        )

    def take_scores(self, scored: Scored, names: Sequence[str]) -> None:
        """``names``: the feasible nodes, in the order of the scores."""
        self.scores.extend(
            NodeScore(plugin=plugin, node=name, score=points)
            for plugin, column in scored.parts.items()
            for name, points in zip(names, column.tolist(), strict=True)
        )
