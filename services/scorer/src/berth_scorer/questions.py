"""Questions to HTTP extenders about one pod, or about a member of each class of a group (ADR 25). Pure.

Other pods are ranked between question and answer, so nodes may become feasible meanwhile: extenders are then asked
again, ``MOST_ROUNDS`` times at most.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from berth.cluster.nodes import node_info
from berth.framework.extending import Extension
from berth.messages.attempts import Pending
from berth.ranking.ranker import Ranker
from berth.ranking.view import View
from berth_scorer.events import AskExtenders, PendingDelivery

MOST_ROUNDS: Final = 3  # questions about nodes in one attempt
NOT_ASKED: Final = Extension(asked=frozenset(), left=frozenset())


@dataclass(slots=True)
class Questions:
    """The dialogue about one pod. ``search``: ask about as many nodes as the profile's percentage asks for."""

    held: PendingDelivery
    pending: Pending
    search: bool = True
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
            feasible = ranker.to_extend(self.pending, view, search=False).nodes
            if self.rounds >= MOST_ROUNDS or self.extension.is_final_for(feasible):
                return None
        self.rounds += 1
        return self._about_nodes(ranker, view)

    def _about_nodes(self, ranker: Ranker, view: View) -> AskExtenders | None:
        to_extend = ranker.to_extend(self.pending, view, search=self.search)
        if not to_extend.nodes:
            return None
        infos = [node_info(view.snapshot, name) for name in to_extend.all]
        nodes = {info.name: info.node for info in infos if info is not None}
        return AskExtenders(held=self.held, pod=self.pending.pod, to_extend=to_extend, nodes=nodes)


class GroupQuestions:
    """The dialogue about a group: one after the other about each of these members."""

    def __init__(self, held: PendingDelivery, members: Iterable[Pending]) -> None:
        self.held: Final = held
        self.answers: Final[dict[str, Extension]] = {}  # by uid of a member
        self._left = deque(Questions(held, member, search=False) for member in members)

    def on_answer(self, answer: Extension) -> None:
        self._left[0].on_answer(answer)

    def next(self, ranker: Ranker, view: View) -> AskExtenders | None:
        """Run plugins to find the next question; ``None`` if the group can be planned."""
        while self._left:
            if (question := self._left[0].next(ranker, view)) is not None:
                return question
            asked = self._left.popleft()
            if (answer := asked.answer) is not None:
                self.answers[asked.pending.pod.uid] = answer
        return None
