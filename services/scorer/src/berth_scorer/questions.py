"""Questions to HTTP extenders about one pod (ADR 25). Pure.

Other pods are ranked between question and answer, so nodes may become feasible meanwhile: extenders are then asked
again, ``MOST_ROUNDS`` times at most.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from berth.cluster.nodes import node_info
from berth.framework.extending import Extension
from berth.ranking.ranker import Ranker
from berth.ranking.view import View
from berth_scorer.events import AskExtenders, PendingDelivery

MOST_ROUNDS: Final = 3  # questions about nodes in one attempt
NOT_ASKED: Final = Extension(asked=frozenset(), left=frozenset())


@dataclass(slots=True)
class Questions:
    """The dialogue about one pod."""

    held: PendingDelivery
    extension: Extension = NOT_ASKED
    rounds: int = 0

    @property
    def answer(self) -> Extension | None:
        """The extenders' answers for the ranking; ``None`` if empty."""
        return None if self.extension.is_empty else self.extension

    def on_answer(self, answer: Extension) -> None:
        self.extension = answer

    def next(self, ranker: Ranker, view: View) -> AskExtenders | None:
        """Run plugins to find the next question; ``None`` if the pod can be ranked."""
        if self.rounds:
            feasible = ranker.to_extend(self.held.pending, view, search=False).nodes
            if self.rounds >= MOST_ROUNDS or self.extension.is_final_for(feasible):
                return None
        self.rounds += 1
        return self._about_nodes(ranker, view)

    def _about_nodes(self, ranker: Ranker, view: View) -> AskExtenders | None:
        to_extend = ranker.to_extend(self.held.pending, view)
        if not to_extend.nodes:
            return None
        infos = [node_info(view.snapshot, name) for name in to_extend.all]
        nodes = {info.name: info.node for info in infos if info is not None}
        return AskExtenders(held=self.held, to_extend=to_extend, nodes=nodes)
