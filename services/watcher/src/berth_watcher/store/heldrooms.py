"""The room that the binder holds for pods that wait, from their first ``waiting`` Decision to its end.

Scorers count such a pod as bound, so the end of a wait without a Binding is an event like the deletion of a bound pod.
No object of the API server shows it: its position is that of the final Decision.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from berth.api.pod import Pod, is_bound
from berth.messages.attempts import DecisionSummary, Outcome
from berth.messages.subjects import Attempt


@dataclass(slots=True)
class _HeldRoom:
    pod: Pod
    node: str
    attempt: Attempt
    is_bound: bool = False  # by a Decision; the watch has not shown it yet

    def freed(self) -> Pod:
        """The pod as plugins see a pod that leaves its node."""
        return msgspec.structs.replace(self.pod, spec=msgspec.structs.replace(self.pod.spec, node_name=self.node))


class HeldRooms:
    """By uid. Each method returns the pod, as if it were bound to its node, if its room there is free now."""

    def __init__(self) -> None:
        self._rooms: dict[str, _HeldRoom] = {}

    def __len__(self) -> int:
        return len(self._rooms)

    def decided(self, decision: DecisionSummary, pod: Pod | None) -> Pod | None:
        """A Decision; ``pod``: its pod, if it is still in the queue."""
        held = self._rooms.get(decision.uid)
        if held is None and decision.outcome is not Outcome.WAITING:
            return None
        attempt = Attempt.parse(decision.attempt)
        if held is not None and attempt.order < held.attempt.order:
            return None
        if not decision.outcome.final:
            return self._hold(attempt, pod or (held.pod if held else None), decision.node)
        if held is None:
            return None
        if decision.outcome is Outcome.BOUND:
            held.is_bound = True
            return self._move(held, decision.node)
        del self._rooms[decision.uid]
        return held.freed()

    def shown(self, uid: str, pod: Pod | None) -> Pod | None:
        """The watch shows a change of the pod. Until the Decision a deleted pod still holds its room in scorers."""
        held = self._rooms.get(uid)
        if held is None:
            return None
        if pod is not None and is_bound(pod):
            del self._rooms[uid]
            return None if pod.spec.node_name == held.node else held.freed()
        if pod is None and held.is_bound:
            del self._rooms[uid]
            return held.freed()
        return None

    def _hold(self, attempt: Attempt, pod: Pod | None, node: str) -> Pod | None:
        held = self._rooms.get(attempt.uid)
        if pod is None or not node:
            return None
        self._rooms[attempt.uid] = _HeldRoom(pod, node, attempt)
        return None if held is None or held.node == node else held.freed()

    def _move(self, held: _HeldRoom, node: str) -> Pod | None:
        if not node or node == held.node:
            return None
        freed, held.node = held.freed(), node
        return freed
