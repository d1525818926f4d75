"""What a cycle says of every node, for people: filled in on request, since only the best nodes travel on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from berth.framework.refusals import Refusals
from berth.framework.scoring import Scored
from berth.framework.status import Status


@dataclass(slots=True)
class Detail:
    """Every refusal and every score of one cycle.

    ``refused`` says by node who refused it and why; ``scores`` has by plugin and node the points after NormalizeScore,
    times the plugin's weight. A node that is the only feasible one is not scored.
    """

    refused: dict[str, Status] = field(default_factory=dict)
    scores: dict[str, dict[str, int]] = field(default_factory=dict)

    def take_refusals(self, refusals: Refusals, names: Sequence[str]) -> None:
        """``names``: the node of each row."""
        rows = ((row, refusal.status) for refusal in refusals.refused for row in refusal.rows.tolist())
        self.refused.update({names[row]: status for row, status in sorted(rows, key=lambda pair: pair[0])})

    def take_scores(self, scored: Scored, names: Sequence[str]) -> None:
        """``names``: the feasible nodes, in the order of the scores."""
        for plugin, column in scored.parts.items():
            self.scores[plugin] = dict(zip(names, column.tolist(), strict=True))
