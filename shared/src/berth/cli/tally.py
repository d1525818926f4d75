"""Counting what passes on the bus: how many messages of each stage, by whom, with what outcome."""

from __future__ import annotations

from collections import Counter

from berth.api.errors import DecodeError
from berth.api.messages import Decision, Outcome, Pending, Ranked, decode, decoder
from berth.api.subjects import PodSubject


class Tally:
    """The counts so far. Feed it every message of ``berth.>``."""

    def __init__(self) -> None:
        self.stages: Counter[str] = Counter()
        self.scorers: Counter[str] = Counter()
        self.outcomes: Counter[Outcome] = Counter()
        self.nodes: Counter[str] = Counter()
        self.bound: set[str] = set()
        self.unreadable = 0
        self._pending = decoder(Pending)
        self._ranked = decoder(Ranked)
        self._decision = decoder(Decision)

    def hear(self, subject: str, data: bytes) -> None:
        """Count one message; what cannot be read is counted as such."""
        try:
            self._count(PodSubject.parse(subject).stage, data)
        except DecodeError:
            self.unreadable += 1

    def _count(self, stage: str, data: bytes) -> None:
        if stage == "ranked":
            self.scorers[decode(data, self._ranked).scorer] += 1
        elif stage == "decision":
            self._count_decision(decode(data, self._decision))
        else:
            decode(data, self._pending)
        self.stages[stage] += 1

    def _count_decision(self, decision: Decision) -> None:
        self.outcomes[decision.outcome] += 1
        if decision.outcome is Outcome.BOUND and decision.uid not in self.bound:
            self.bound.add(decision.uid)
            self.nodes[decision.node] += 1

    def spread(self) -> str:
        """Fewest and most pods that a node got, of those that got any."""
        return f"{min(self.nodes.values())}..{max(self.nodes.values())}" if self.nodes else "none"
