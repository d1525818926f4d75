"""The room that the binder holds for pods that wait, from their first ``waiting`` Decision to its end.

Scorers count such a pod as bound, so the end of a wait without a Binding is an event like the deletion of a bound pod.
No object of the API server shows it, so the final Decision gives the position.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import msgspec

from berth.api.pod import Pod, is_bound, is_finished
from berth.errors import DecodeError
from berth.messages.attempts import DecisionSummary, Outcome
from berth.messages.subjects import Attempt

# Seconds after its deletion for which a pod may still be said to wait: more than a watch's delay. There may be no
# Decision: the message is deleted when no pod needs it (docs/adr/0058), or a scorer acknowledges it without an answer.
LEFT_SECONDS: Final = 30.0


@dataclass(slots=True)
class _HeldRoom:
    pod: Pod
    node: str
    attempt: Attempt
    is_bound: bool = False  # by a Decision; the watch has not shown it yet

    def is_about(self, decision: DecisionSummary) -> bool:
        attempt = _attempt_of(decision)
        return attempt is not None and attempt.order >= self.attempt.order

    def placed(self) -> Pod:
        """The pod as plugins see one that is bound to the node."""
        return msgspec.structs.replace(self.pod, spec=msgspec.structs.replace(self.pod.spec, node_name=self.node))


def _attempt_of(decision: DecisionSummary) -> Attempt | None:
    """``None`` for text that is no attempt: anybody with the right to publish may write it."""
    try:
        return Attempt.parse(decision.attempt)
    except DecodeError:
        return None


class HeldRooms:
    """By uid. Each method returns the pod, as if it were bound to its node, if its room there is free now."""

    def __init__(self) -> None:
        self._rooms: dict[str, _HeldRoom] = {}
        # Deleted while an attempt was under way, of which a Decision may still come; each with the time, oldest first.
        self._left: dict[str, tuple[float, Pod]] = {}

    def __len__(self) -> int:
        return len(self._rooms) + len(self._left)

    def decided(self, decision: DecisionSummary, pod: Pod | None) -> Pod | None:
        """A Decision; ``pod``: its pod, if it is still in the queue."""
        if not decision.outcome.final:
            return self._hold(decision, pod)
        self._left.pop(decision.uid, None)
        held = self._rooms.get(decision.uid)
        if held is None or not held.is_about(decision):
            return None
        if decision.outcome is Outcome.BOUND:
            held.is_bound = True
            return self._move(held, decision.node)
        del self._rooms[decision.uid]
        return held.placed()

    def held(self, uid: str) -> Pod | None:
        """The pod as if it were bound to the node where it waits; ``None`` if it does not wait."""
        held = self._rooms.get(uid)
        return None if held is None else held.placed()

    def left(self, pod: Pod, now: float) -> None:
        """A pod whose attempt is under way is deleted: ``waiting`` may still come, and then the end of the wait."""
        if pod.uid not in self._rooms and pod.uid not in self._left:
            self._left[pod.uid] = now, pod

    def forget_left(self, now: float) -> None:
        """Forget deleted pods whose Decision has not come in time."""
        while self._left:
            uid, (at, _) = next(iter(self._left.items()))
            if now - at < LEFT_SECONDS:
                return
            del self._left[uid]

    def shown(self, uid: str, pod: Pod | None) -> Pod | None:
        """The watch shows a change of the pod. Until the Decision a deleted pod still holds its room in scorers."""
        held = self._rooms.get(uid)
        if held is None:
            return None
        if pod is not None and is_bound(pod):
            del self._rooms[uid]
            return None if pod.spec.node_name == held.node else held.placed()
        if held.is_bound and (pod is None or is_finished(pod)):
            del self._rooms[uid]
            return held.placed()
        return None

    def _hold(self, decision: DecisionSummary, pod: Pod | None) -> Pod | None:
        held, attempt = self._rooms.get(decision.uid), _attempt_of(decision)
        _, left = self._left.get(decision.uid, (0.0, None))
        pod = pod or left or (held.pod if held else None)
        if pod is None or attempt is None or not decision.node or (held and not held.is_about(decision)):
            return None
        self._rooms[decision.uid] = _HeldRoom(pod, decision.node, attempt)
        return None if held is None or held.node == decision.node else held.placed()

    def _move(self, held: _HeldRoom, node: str) -> Pod | None:
        if not node or node == held.node:
            return None
        freed, held.node = held.placed(), node
        return freed
