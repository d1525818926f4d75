"""Room that scorers have proposed to make for pods, before the mirror shows that a node is kept for them.

Without it, important pods that come together would all be sent to the one node that is best for each of them. A
proposal, own or a peer's, counts as a nomination until the binder says that nothing comes of it, until the mirror shows
the pod, or for 30 s after the last word.
"""

from __future__ import annotations

from dataclasses import dataclass

from berth.api.identity import Attempt
from berth.api.messages import Decision, Outcome, Ranked
from berth.api.pod import Pod
from berth.cluster.snapshot import Snapshot


@dataclass(slots=True, kw_only=True)
class Room:
    """A node that may come to be kept for a pod."""

    pod: Pod
    attempt: Attempt
    node: str
    lapses: float
    """When it ends unless somebody says more, in the seconds of the clock handed in."""


class Rooms:
    """Keeps them as nominations in a Snapshot, over those that the mirror shows."""

    def __init__(self, snapshot: Snapshot, lapse_seconds: float) -> None:
        self._snapshot = snapshot
        self._lapse = lapse_seconds
        self._by_uid: dict[str, Room] = {}
        self._mirrored: dict[str, Pod] = {}

    def __len__(self) -> int:
        return len(self._by_uid)

    def ranked(self, message: Ranked, attempt: Attempt, now: float) -> None:
        """A RANKED was published: it proposes room, or the pod needs none any more."""
        known = self._by_uid.get(attempt.uid)
        if known is not None and attempt.order < known.attempt.order:
            return
        self.end(attempt.uid)
        if message.preemption is not None and not message.proposals_counted:
            node = message.preemption.node
            room = Room(pod=message.pod, attempt=attempt, node=node, lapses=now + self._lapse)
            self._by_uid[attempt.uid] = room
            self._snapshot.nominate(room.pod, node)

    def decided(self, decision: Decision, attempt: Attempt, now: float) -> None:
        """A Decision was published."""
        room = self._by_uid.get(attempt.uid)
        if room is None or attempt.order < room.attempt.order:
            return
        if decision.outcome is Outcome.PREEMPTING:
            room.node, room.lapses = decision.node, now + self._lapse
            self._snapshot.nominate(room.pod, room.node)
        elif decision.outcome is Outcome.WAITING:
            room.lapses = now + self._lapse
        else:
            self.end(attempt.uid)

    def mirrored(self, pod: Pod) -> None:
        """The mirror shows which node is kept for the pod: that is what counts."""
        self._mirrored[pod.uid] = pod
        self._by_uid.pop(pod.uid, None)

    def unmirrored(self, uid: str) -> None:
        """The mirror shows the pod on a node, or not any more."""
        self._mirrored.pop(uid, None)
        self._by_uid.pop(uid, None)

    def expire(self, now: float) -> None:
        """End what has lapsed."""
        for uid in [uid for uid, room in self._by_uid.items() if room.lapses <= now]:
            self.end(uid)

    def end(self, uid: str) -> None:
        """Nothing comes of the proposal: what the mirror shows of the pod counts again."""
        if self._by_uid.pop(uid, None) is not None:
            self._show(uid)

    def lift(self) -> None:
        """Leave all of them out, until they are put back."""
        for uid in self._by_uid:
            self._show(uid)

    def put_back(self) -> None:
        """Count them again."""
        for room in self._by_uid.values():
            self._snapshot.nominate(room.pod, room.node)

    def _show(self, uid: str) -> None:
        pod = self._mirrored.get(uid)
        if pod is None:
            self._snapshot.end_nomination(uid)
        else:
            self._snapshot.nominate(pod, pod.status.nominated_node_name)
