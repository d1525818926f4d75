"""Questions to HTTP extenders about one pod (ADR 25). Pure.

Other pods are ranked between question and answer, so nodes may become feasible meanwhile: extenders are then asked
again, ``MOST_ROUNDS`` times at most.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Protocol

from berth.api.pod import Pod
from berth.cluster.nodes import node_info
from berth.framework.extending import Evictions, Extension
from berth.ranking.ranker import Ranker
from berth.ranking.view import View
from berth_scorer.events import AskAboutEvictions, AskExtenders, PendingDelivery

MOST_ROUNDS: Final = 3  # questions about nodes in one attempt
NOT_ASKED: Final = Extension(asked=frozenset(), left=frozenset())


class Interests(Protocol):
    """Which pods concern the extenders."""

    def are_interested_in(self, pod: Pod) -> bool:
        """Whether an extender must be asked about the pod's nodes."""
        ...

    def are_asked_about_evictions(self, pod: Pod) -> bool:
        """Whether an extender may veto evictions for the pod."""
        ...


Question = AskExtenders | AskAboutEvictions


@dataclass(slots=True)
class Questions:
    """The dialogue about one pod."""

    held: PendingDelivery
    extension: Extension = NOT_ASKED
    rounds: int = 0
    is_asked: bool = False  # about nodes, in this round

    @property
    def answer(self) -> Extension | None:
        """The extenders' answers for the ranking; ``None`` if empty."""
        return None if self.extension.is_empty else self.extension

    def on_answer(self, answer: Extension | Evictions) -> None:
        self.extension = answer if isinstance(answer, Extension) else replace(self.extension, evictions=answer)

    def next(self, ranker: Ranker, view: View, interests: Interests) -> Question | None:
        """Run plugins to find the next question; ``None`` if the pod can be ranked."""
        while True:
            if not self.is_asked:
                self.rounds += 1
                self.is_asked = True
                if (question := self._about_nodes(ranker, view)) is not None:
                    return question
            if (about_evictions := self._about_evictions(ranker, view, interests)) is not None:
                return about_evictions
            feasible = ranker.to_extend(self.held.pending, view, search=False).nodes
            if self.rounds >= MOST_ROUNDS or self.extension.is_final_for(feasible):
                return None
            self.is_asked = False

    def _about_nodes(self, ranker: Ranker, view: View) -> AskExtenders | None:
        to_extend = ranker.to_extend(self.held.pending, view)
        if not to_extend.nodes:
            return None
        infos = [node_info(view.snapshot, name) for name in to_extend.all]
        nodes = {info.name: info.node for info in infos if info is not None}
        return AskExtenders(held=self.held, to_extend=to_extend, nodes=nodes)

    def _about_evictions(self, ranker: Ranker, view: View, interests: Interests) -> AskAboutEvictions | None:
        is_settled = self.extension.left or self.extension.evictions is not None
        if is_settled or not interests.are_asked_about_evictions(self.held.pending.pod):
            return None
        candidates = ranker.evictions(self.held.pending, view, self.extension)
        if not candidates:
            return None
        placed = [view.snapshot.placed(uid) for each in candidates for uid in each.victims]
        victims = {each.pod.uid: each.pod for each in placed if each is not None}
        return AskAboutEvictions(held=self.held, candidates=candidates, victims=victims)
