"""Recorded histories in which nodes are earmarked for groups, and their earmarks end."""

from __future__ import annotations

from random import Random
from typing import Any
from uuid import NAMESPACE_DNS, uuid5

from berth.api.podgroups import Dialect
from berth.messages.earmarks import EARMARK, Earmark
from berth.messages.subjects import key
from harness.worlds.recorded_groups import RecordedGroups


class RecordedEarmarks(RecordedGroups):
    """As the history of the same seed without them, but for what they keep out."""

    def __init__(self, seed: int, **options: Any) -> None:
        super().__init__(seed, **options)
        self._chance = Random(seed)

    def read(self) -> None:
        chance = self._chance.random()
        if chance < 0.05:
            self._earmark(f"gang-{self._groups}")
        elif chance < 0.08:
            self.mirror(key(EARMARK, "berth"), None)
        super().read()

    def _earmark(self, name: str) -> None:
        nodes = sorted(self._chance.sample([f"n{number}" for number in range(self._nodes)], self._nodes // 2))
        earmark = Earmark(
            dialect=Dialect.COSCHEDULING,
            namespace="default",
            name=name,
            uid=str(uuid5(NAMESPACE_DNS, name)),
            profile="berth",
            nodes=nodes,
            until=self.now.isoformat(timespec="seconds"),
        )
        self.mirror(key(EARMARK, "berth"), earmark)
