"""Room that scorers have proposed to make for pods, before the mirror shows that a node is kept for them.

Without it, important pods that come together would all be sent to the one node that is best for each of them. A
proposal, own or a peer's, counts as a nomination until the binder says that nothing comes of it, until the mirror shows
the pod, or for 30 s after the last word.


Proposals: what scorers have proposed and nobody has seen bound yet, so that any number of them places as one does.

A proposal, own or a peer's, is kept by uid and counts as a pod on its first node (PROTOCOL 4). It ends with a final
Decision other than ``bound`` of that or a higher attempt, or 30 s after the last word (RANKED or ``waiting``).
``waiting`` and ``bound`` move it to the Decision's node; ``bound`` ends when the mirror shows the pod, or when the
mirror's pods are known to be complete up to more than 5 s after the Decision and lack it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from berth.api.messages import Decision, Outcome, Ranked
from berth.api.pod import Pod
from berth.api.subjects import Attempt
from berth.cluster.snapshot import Snapshot


@dataclass(slots=True, kw_only=True)
class NominationProposal:
    """A node that may come to be kept for a pod."""

    pod: Pod
    attempt: Attempt
    node: str
    lapses: float
    """When it ends unless somebody says more, in the seconds of the clock handed in."""


class NominationProposals:
    """Keeps them as nominations in a Snapshot, over those that the mirror shows."""

    def __init__(self, snapshot: Snapshot, lapse_seconds: float) -> None:
        self._snapshot = snapshot
        self._lapse = lapse_seconds
        self._by_uid: dict[str, NominationProposal] = {}
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
            room = NominationProposal(pod=message.pod, attempt=attempt, node=node, lapses=now + self._lapse)
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


LAPSE: Final = timedelta(seconds=30)
"""How long a proposal counts after its last word: longer than a Lease (15 s), so that it outlives a takeover."""

MIRROR_GRACE: Final = timedelta(seconds=5)
"""How much later than a ``bound`` Decision the pods' watermark must be before the pod's absence is believed."""

_REMEMBERED: Final = 20_000
"""Decisions remembered in case their RANKED comes later: more than half a minute of any throughput measured."""


@dataclass(slots=True, kw_only=True)
class Proposal:
    """One pod that counts on a node though the mirror does not show it there."""

    pod: Pod
    attempt: Attempt
    node: str
    lapses: float
    """When it ends unless somebody says more, in the seconds of the clock handed in; a bound one does not lapse."""
    bound_at: datetime | None = None
    """When NATS stored the ``bound`` Decision."""


class Proposals:
    """Keeps the proposals and their places in a Snapshot. The clock is handed in as ``now``, monotonic seconds."""

    def __init__(self, snapshot: Snapshot, *, lapse: timedelta = LAPSE) -> None:
        self._snapshot = snapshot
        self._lapse = lapse.total_seconds()
        self.rooms = NominationProposals(snapshot, self._lapse)
        self._by_uid: dict[str, Proposal] = {}
        self._decided: OrderedDict[str, tuple[Attempt, Decision, datetime]] = OrderedDict()
        self._mirrored: set[str] = set()

    def __len__(self) -> int:
        return len(self._by_uid)

    def ranked(self, message: Ranked, now: float) -> None:
        """A RANKED was published, by this scorer or a peer."""
        attempt = Attempt.parse(message.attempt)
        self._rank_room(message, attempt, now)
        known = self._by_uid.get(attempt.uid)
        if known is not None and (known.bound_at is not None or attempt.order < known.attempt.order):
            return
        self._end(attempt.uid)
        if not message.candidates or attempt.uid in self._mirrored:
            return
        self._count(message.pod, attempt, message.candidates[0].node, now)
        self._recall(attempt, now)

    def decided(self, decision: Decision, stored_at: datetime, now: float) -> None:
        """A Decision was published."""
        attempt = Attempt.parse(decision.attempt)
        self._remember(attempt, decision, stored_at)
        self.rooms.decided(decision, attempt, now)
        self._follow(attempt, decision, stored_at, now)

    def mirrored(self, uid: str) -> None:
        """The mirror shows the pod bound: its place is the mirror's from here on."""
        self.rooms.unmirrored(uid)
        self._mirrored.add(uid)
        self._by_uid.pop(uid, None)

    def unmirrored(self, uid: str) -> None:
        """The mirror does not show the pod any more."""
        self.rooms.unmirrored(uid)
        self._mirrored.discard(uid)

    def complete_up_to(self, watermark: datetime) -> None:
        """The mirror's pods are complete up to here: a bound pod that it lacks since long enough is not there."""
        late = [
            uid
            for uid, proposal in self._by_uid.items()
            if proposal.bound_at is not None and watermark - proposal.bound_at > MIRROR_GRACE
        ]
        for uid in late:
            self._end(uid)

    def expire(self, now: float) -> None:
        """End what has lapsed."""
        self.rooms.expire(now)
        for uid in [
            uid for uid, proposal in self._by_uid.items() if proposal.bound_at is None and proposal.lapses <= now
        ]:
            self._end(uid)

    def withdraw(self, uid: str) -> None:
        """The pod is about to be ranked again: its own proposal must not count against it. A bound one stays."""
        self.rooms.end(uid)
        known = self._by_uid.get(uid)
        if known is not None and known.bound_at is None:
            self._end(uid)

    def open(self) -> Iterator[Proposal]:
        """Those that are not bound."""
        return (proposal for proposal in self._by_uid.values() if proposal.bound_at is None)

    def _rank_room(self, message: Ranked, attempt: Attempt, now: float) -> None:
        self.rooms.ranked(message, attempt, now)
        heard = self._decided.get(attempt.uid)
        if heard is not None and heard[0].order >= attempt.order:
            self.rooms.decided(heard[1], heard[0], now)

    def _count(self, pod: Pod, attempt: Attempt, node: str, now: float) -> Proposal:
        proposal = Proposal(pod=pod, attempt=attempt, node=node, lapses=now + self._lapse)
        self._by_uid[attempt.uid] = proposal
        self._snapshot.place(pod, node)
        return proposal

    def _recall(self, attempt: Attempt, now: float) -> None:
        heard = self._decided.get(attempt.uid)
        if heard is not None and heard[0].order >= attempt.order:
            self._follow(heard[0], heard[1], heard[2], now)

    def _remember(self, attempt: Attempt, decision: Decision, stored_at: datetime) -> None:
        before = self._decided.pop(attempt.uid, None)
        if before is not None and before[0].order > attempt.order:
            self._decided[attempt.uid] = before
            return
        self._decided[attempt.uid] = (attempt, decision, stored_at)
        if len(self._decided) > _REMEMBERED:
            self._decided.popitem(last=False)

    def _follow(self, attempt: Attempt, decision: Decision, stored_at: datetime, now: float) -> None:
        proposal = self._by_uid.get(attempt.uid)
        if proposal is None or attempt.order < proposal.attempt.order:
            return
        if decision.outcome is Outcome.BOUND:
            self._move(proposal, decision.node)
            proposal.bound_at = stored_at
        elif decision.outcome is Outcome.WAITING:
            self._move(proposal, decision.node)
            proposal.lapses = now + self._lapse
        elif proposal.bound_at is None:
            self._end(attempt.uid)

    def _move(self, proposal: Proposal, node: str) -> None:
        if node and node != proposal.node:
            proposal.node = node
            self._snapshot.place(proposal.pod, node)

    def _end(self, uid: str) -> None:
        if self._by_uid.pop(uid, None) is not None:
            self._snapshot.remove_pod(uid)
