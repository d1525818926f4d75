"""Proposals: rankings that the mirror does not show yet. Counting them lets many scorers place as one would.

When they begin, move and end: docs/protocol.md, 4.6. A proposed preemption counts as a nomination in the same way,
because otherwise all important pods that arrive together would go to the same best node.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final, NamedTuple

import msgspec

from berth.api.devices import Allocations, DeviceClass
from berth.api.pod import Pod
from berth.cluster.devices.ledger import DeviceLedger
from berth.cluster.devices.pools import DevicePools
from berth.cluster.snapshot import Snapshot
from berth.messages.attempts import DecisionSummary, Outcome, Ranked, RankedSummary
from berth.messages.groupattempts import GroupRanked
from berth.messages.subjects import Attempt

# Life of a proposal after its last message with the default Lease: longer than that, so that it outlives a takeover.
LIFETIME: Final = timedelta(seconds=30)

# Minimum distance of the watermark of pods to a `bound` Decision before the pod's absence counts.
MIRROR_GRACE: Final = timedelta(seconds=5)

# Proposals and nominations without a Decision, and bytes of their messages, beyond which the oldest end: ten times what
# the windows of ten profiles have in flight. A hostile scorer may write any number of pods that do not exist.
MOST_UNDECIDED: Final = 8192
MOST_UNDECIDED_BYTES: Final = 16 * 1024 * 1024

# Decisions remembered in case their RANKED arrives later: more than half a minute at any measured throughput.
_REMEMBERED: Final = 20_000

# Age at which a remembered Decision is forgotten: a RANKED with a lost acknowledgement is settled by the next delivery
# within a minute. A Decision takes 1.2 KiB, so 20,000 take 23 MiB, reached at 25 pods/s in a quarter of an hour.
_REMEMBERED_FOR: Final = timedelta(minutes=2)


@dataclass(slots=True, kw_only=True)
class Proposal:
    """A pod counted on a node although the mirror does not show it there."""

    pod: Pod
    attempt: Attempt
    node: str
    expires: float  # monotonic seconds; ignored once bound
    devices: Allocations = field(default_factory=dict)  # by claim, as far as this pod's ranking allocates it
    bound_at: datetime | None = None  # time of the ``bound`` Decision in NATS
    # The binder holds room for the pod while it waits. Like a bound pod's, its end is an event that requeues others.
    is_held: bool = False
    of_group: Attempt | None = None  # the attempt of its group, whose Decision ends it too


@dataclass(slots=True)
class _DecisionKept:
    attempt: Attempt
    decision: DecisionSummary
    stored_at: datetime
    # Removal of the pod from the mirror: a redelivered message, ranked again, must not count then.
    removed_at: datetime | None = None


class _Undecided(NamedTuple):
    """The last RANKED of a pod."""

    scorer: str
    size: int  # bytes
    expires: float  # monotonic seconds


class Proposals:
    """The proposals, counted in a Snapshot. ``now`` is in monotonic seconds."""

    def __init__(self, snapshot: Snapshot, *, lifetime: timedelta = LIFETIME) -> None:
        self._snapshot = snapshot
        self._ledger = DeviceLedger.of(snapshot)
        DevicePools.of(snapshot)  # they are made as slices are read, not all at once for the first pod with a claim
        snapshot.objects(DeviceClass).follow(_load_cel)
        self._lifetime = lifetime.total_seconds()
        self.nominations = NominationProposals(snapshot, self._lifetime)
        self._by_uid: dict[str, Proposal] = {}
        self._undecided: dict[str, _Undecided] = {}  # by uid, in order of arrival
        self._undecided_bytes = 0
        self._undecided_of: Counter[str] = Counter()  # by scorer, how many
        self._decided: OrderedDict[str, _DecisionKept] = OrderedDict()
        self._mirrored: set[str] = set()
        self._grouped: dict[str, set[str]] = {}  # by uid of a PodGroup, the members among the proposals
        # By uid, removals of pods not shown as bound: their Decision may still come.
        self._removed: OrderedDict[str, datetime] = OrderedDict()

    def __len__(self) -> int:
        return len(self._by_uid)

    def ranked(self, message: Ranked | RankedSummary, now: float, size: int = 0) -> list[str]:
        """Count a RANKED of this scorer or a peer; ``size``: its bytes. Returns uids whose proposals end for it."""
        attempt = Attempt.parse(message.attempt)
        self._rank(message, attempt, now)
        if self._earlier_decision(attempt) is not None:
            self._is_decided(attempt.uid)
            return []
        return self._bound_undecided(attempt.uid, message.scorer, size, now)

    def ranked_group(self, message: GroupRanked, now: float, size: int = 0) -> list[str]:
        """Count a RANKED of a group: each member on its node. Returns uids whose proposals end for it."""
        attempt, rankings = Attempt.parse(message.attempt), message.rankings()
        earlier = self._earlier_decision(attempt)
        if earlier is not None and earlier.decision.outcome.final:
            rankings = [msgspec.structs.replace(each, candidates=[]) for each in rankings]
        share = size // max(1, len(rankings))
        ended: list[str] = []
        for each in rankings:
            if not each.candidates:  # no Decision will name it
                self._rank(each, Attempt.parse(each.attempt), now)
                continue
            ended += self.ranked(each, now, share)
            proposal = self._by_uid.get(each.pod.uid)
            if proposal is not None and str(proposal.attempt) == each.attempt:
                proposal.of_group = attempt
                self._grouped.setdefault(attempt.uid, set()).add(each.pod.uid)
        return ended

    def others_propose(self, scorer: str) -> bool:
        """Whether a ranking of another scorer waits for its Decision."""
        return len(self._undecided) > self._undecided_of[scorer]

    def _bound_undecided(self, uid: str, scorer: str, size: int, now: float) -> list[str]:
        self._is_decided(uid)
        self._undecided[uid] = _Undecided(scorer, size, expires=now + self._lifetime)
        self._undecided_of[scorer] += 1
        self._undecided_bytes += size
        ended: list[str] = []
        while len(self._undecided) > MOST_UNDECIDED or self._undecided_bytes > MOST_UNDECIDED_BYTES:
            oldest = next(iter(self._undecided))
            self.withdraw(oldest)
            ended.append(oldest)
        return ended

    def _is_decided(self, uid: str) -> None:
        if (undecided := self._undecided.pop(uid, None)) is not None:
            self._undecided_bytes -= undecided.size
            self._undecided_of[undecided.scorer] -= 1
            if not self._undecided_of[undecided.scorer]:
                del self._undecided_of[undecided.scorer]

    def _rank(self, message: Ranked | RankedSummary, attempt: Attempt, now: float) -> None:
        self._rank_nomination(message, attempt, now)
        known = self._by_uid.get(attempt.uid)
        if known is not None and (known.bound_at is not None or attempt.order < known.attempt.order):
            return
        self._end(attempt.uid)
        if not message.candidates or attempt.uid in self._mirrored:
            return
        self._add(message, attempt, now)
        self._apply_earlier_decision(attempt, now)

    def decided(self, decision: DecisionSummary, stored_at: datetime, now: float) -> None:
        attempt = Attempt.parse(decision.attempt)
        self._remember(attempt, decision, stored_at)
        self._is_decided(attempt.uid)
        self.nominations.decided(decision, attempt, now)
        self._apply(attempt, decision, stored_at, now)
        if attempt.uid in self._grouped:
            self._apply_to_members(attempt, decision.outcome, now)

    def mirrored(self, uid: str) -> None:
        """The mirror shows the pod bound: the Snapshot counts it from there."""
        self.nominations.bound(uid)
        self._mirrored.add(uid)
        proposal = self._by_uid.pop(uid, None)
        if proposal is not None:
            self._leave_group(proposal)
            self._forget_devices(proposal)

    def unmirrored(self, uid: str, removed_at: datetime) -> None:
        """The mirror removed the pod or its nomination. An open proposal still counts.

        A bound one ends: the pod was bound and deleted before this view read it, and no event would requeue the pods
        that it keeps out.
        """
        self.nominations.unmirrored(uid)
        if uid not in self._mirrored:
            self._removed[uid] = removed_at
            if len(self._removed) > _REMEMBERED:
                self._removed.popitem(last=False)
        if (decided := self._decided.get(uid)) is not None:
            decided.removed_at = removed_at
        self._mirrored.discard(uid)
        proposal = self._by_uid.get(uid)
        if proposal is None:
            return
        if proposal.bound_at is not None:
            self._end(uid)
        else:
            self.count(proposal)

    def complete_up_to(self, watermark: datetime) -> None:
        """End bound proposals that the mirror, complete up to this time, does not show."""
        while self._removed and (watermark - next(iter(self._removed.values()))).total_seconds() > self._lifetime:
            self._removed.popitem(last=False)
        missing = [
            uid
            for uid, proposal in self._by_uid.items()
            if proposal.bound_at is not None and watermark - proposal.bound_at > MIRROR_GRACE
        ]
        for uid in missing:
            self._end(uid)

    def expire(self, now: float) -> list[str]:
        """End proposals without a message for their lifetime; returns the pods' uids."""
        found = [uid for uid, proposal in self._by_uid.items() if proposal.bound_at is None and proposal.expires <= now]
        for uid in found:
            self._end(uid)
        found += self.nominations.expire(now)
        while self._undecided and next(iter(self._undecided.values())).expires <= now:
            self._is_decided(next(iter(self._undecided)))
        return found

    def withdraw(self, uid: str) -> None:
        """End an unbound proposal, because it has expired or its pod is ranked again."""
        self._is_decided(uid)
        self.nominations.end(uid)
        known = self._by_uid.get(uid)
        if known is not None and known.bound_at is None:
            self._end(uid)

    def unbound(self) -> Iterator[Proposal]:
        return (proposal for proposal in self._by_uid.values() if proposal.bound_at is None)

    def uncertain(self) -> Iterator[Proposal]:
        """Proposals that may end without an event: all but held ones."""
        return (proposal for proposal in self._by_uid.values() if not proposal.is_held)

    def have_devices(self) -> bool:
        """Whether a proposal that may end without an event holds devices."""
        return any(proposal.devices for proposal in self.uncertain())

    def __iter__(self) -> Iterator[Proposal]:
        return iter(self._by_uid.values())

    def _rank_nomination(self, message: Ranked | RankedSummary, attempt: Attempt, now: float) -> None:
        self.nominations.ranked(message, attempt, now)
        if (earlier := self._earlier_decision(attempt)) is not None:
            self.nominations.decided(earlier.decision, earlier.attempt, now)

    def _add(self, message: Ranked | RankedSummary, attempt: Attempt, now: float) -> None:
        proposal = self._by_uid[attempt.uid] = Proposal(
            pod=message.pod,
            attempt=attempt,
            node=message.candidates[0].node,
            expires=now + self._lifetime,
            devices=message.devices,
        )
        self.count(proposal)

    def count(self, proposal: Proposal) -> None:
        """Count the proposal in the Snapshot."""
        self._snapshot.place(proposal.pod, proposal.node)
        for claim, allocation in proposal.devices.items():
            self._ledger.assume(claim, allocation, proposal.attempt.uid)

    def leave_out(self, proposal: Proposal) -> None:
        """Exclude the proposal from the Snapshot."""
        self._snapshot.remove_pod(proposal.attempt.uid)
        if proposal.devices:
            self._forget_devices(proposal)

    def _forget_devices(self, proposal: Proposal) -> None:
        for claim in proposal.devices:
            self._ledger.forget(claim, proposal.attempt.uid)

    def _apply_earlier_decision(self, attempt: Attempt, now: float) -> None:
        """Apply a Decision that arrived before its RANKED."""
        if (earlier := self._earlier_decision(attempt)) is not None:
            self._apply(earlier.attempt, earlier.decision, earlier.stored_at, now)

    def _earlier_decision(self, attempt: Attempt) -> _DecisionKept | None:
        """The Decision of this attempt or a later one that arrived before its RANKED."""
        earlier = self._decided.get(attempt.uid)
        return earlier if earlier is not None and earlier.attempt.order >= attempt.order else None

    def _remember(self, attempt: Attempt, decision: DecisionSummary, stored_at: datetime) -> None:
        before = self._decided.pop(attempt.uid, None)
        if before is not None and before.attempt.term > attempt.term:
            # Within a term the last one counts: docs/protocol.md, 8.4.
            self._decided[attempt.uid] = before
            return
        removed_at = before.removed_at if before is not None else None
        self._decided[attempt.uid] = _DecisionKept(attempt, decision, stored_at, removed_at)
        while len(self._decided) > _REMEMBERED or self._is_forgotten(next(iter(self._decided)), stored_at):
            self._decided.popitem(last=False)

    def _is_forgotten(self, uid: str, now: datetime) -> bool:
        return now - self._decided[uid].stored_at > _REMEMBERED_FOR

    def _apply(self, attempt: Attempt, decision: DecisionSummary, stored_at: datetime, now: float) -> None:
        proposal = self._by_uid.get(attempt.uid)
        if proposal is None or attempt.order < proposal.attempt.order:
            return
        if decision.outcome is Outcome.BOUND:
            self._move(proposal, decision)
            proposal.bound_at, proposal.is_held = stored_at, False
            removed_at = self._removal_of(attempt.uid)
            if removed_at is not None and removed_at > stored_at:
                self._end(attempt.uid)
        elif decision.outcome is Outcome.WAITING:
            self._move(proposal, decision)
            proposal.expires, proposal.is_held = now + self._lifetime, proposal.bound_at is None
        elif proposal.bound_at is None:
            self._end(attempt.uid)

    def _apply_to_members(self, attempt: Attempt, outcome: Outcome, now: float) -> None:
        """Apply a group's Decision to its members without a Decision of their own."""
        for uid in [*self._grouped[attempt.uid]]:
            proposal = self._by_uid[uid]
            of_group = proposal.of_group
            if proposal.bound_at is not None or of_group is None or of_group.order > attempt.order:
                continue
            if outcome.final:
                self._is_decided(uid)
                self._end(uid)
            else:
                proposal.expires, proposal.is_held = now + self._lifetime, True

    def _removal_of(self, uid: str) -> datetime | None:
        """When the mirror removed the pod; from here on kept with its Decision."""
        removed_at, decided = self._removed.pop(uid, None), self._decided.get(uid)
        if decided is None:
            return removed_at
        decided.removed_at = removed_at or decided.removed_at
        return decided.removed_at

    def _move(self, proposal: Proposal, decision: DecisionSummary) -> None:
        if not decision.node or (decision.node == proposal.node and not decision.devices):
            return
        self._forget_devices(proposal)
        proposal.node, proposal.devices = decision.node, decision.devices
        self.count(proposal)

    def _end(self, uid: str) -> None:
        proposal = self._by_uid.pop(uid, None)
        if proposal is not None:
            self._leave_group(proposal)
            self.leave_out(proposal)

    def _leave_group(self, proposal: Proposal) -> None:
        if proposal.of_group is None:
            return
        members = self._grouped[proposal.of_group.uid]
        members.discard(proposal.attempt.uid)
        if not members:
            del self._grouped[proposal.of_group.uid]


@dataclass(slots=True, kw_only=True)
class NominationProposal:
    pod: Pod
    attempt: Attempt
    node: str
    expires: float  # monotonic seconds


class NominationProposals:
    """Proposed nominations, counted in a Snapshot in place of the same pods' mirrored ones."""

    def __init__(self, snapshot: Snapshot, lifetime_seconds: float) -> None:
        self._snapshot = snapshot
        self._lifetime = lifetime_seconds
        self._by_uid: dict[str, NominationProposal] = {}
        self._mirrored: dict[str, Pod] = {}

    def __len__(self) -> int:
        return len(self._by_uid)

    def ranked(self, message: Ranked | RankedSummary, attempt: Attempt, now: float) -> None:
        """Count a RANKED: a proposed preemption, or the end of an earlier one."""
        known = self._by_uid.get(attempt.uid)
        if known is not None and attempt.order < known.attempt.order:
            return
        self.end(attempt.uid)
        if message.preemption is not None and not message.proposals_counted:
            node = message.preemption.node
            proposal = NominationProposal(pod=message.pod, attempt=attempt, node=node, expires=now + self._lifetime)
            self._by_uid[attempt.uid] = proposal
            self._snapshot.nominate(proposal.pod, node)

    def decided(self, decision: DecisionSummary, attempt: Attempt, now: float) -> None:
        proposal = self._by_uid.get(attempt.uid)
        if proposal is None or attempt.order < proposal.attempt.order:
            return
        if decision.outcome is Outcome.PREEMPTING and self._is_mirrored(attempt.uid, decision.node):
            self.end(attempt.uid)  # of a repeated attempt: the mirror shows the nomination, and will show its end
        elif decision.outcome is Outcome.PREEMPTING:
            proposal.node, proposal.expires = decision.node, now + self._lifetime
            self._snapshot.nominate(proposal.pod, proposal.node)
        elif decision.outcome is Outcome.WAITING:
            proposal.expires = now + self._lifetime
        else:
            self.end(attempt.uid)

    def mirrored(self, pod: Pod) -> None:
        """The mirror shows the pod's nominated node, which replaces the proposal."""
        self._mirrored[pod.uid] = pod
        self._by_uid.pop(pod.uid, None)

    def bound(self, uid: str) -> None:
        """The mirror shows the pod on a node."""
        self._mirrored.pop(uid, None)
        self._by_uid.pop(uid, None)

    def unmirrored(self, uid: str) -> None:
        """The mirror removed the pod or its nomination. An open proposal still counts."""
        self._mirrored.pop(uid, None)
        proposal = self._by_uid.get(uid)
        if proposal is not None:
            self._snapshot.nominate(proposal.pod, proposal.node)

    def expire(self, now: float) -> list[str]:
        """End proposals without a message for their lifetime; returns the pods' uids."""
        found = [uid for uid, proposal in self._by_uid.items() if proposal.expires <= now]
        for uid in found:
            self.end(uid)
        return found

    def end(self, uid: str) -> None:
        """End a proposal: the mirrored nomination counts again."""
        if self._by_uid.pop(uid, None) is not None:
            self._restore_mirrored(uid)

    def suspend(self) -> None:
        """Exclude all proposals from the Snapshot until :meth:`resume`."""
        for uid in self._by_uid:
            self._restore_mirrored(uid)

    def resume(self) -> None:
        for proposal in self._by_uid.values():
            self._snapshot.nominate(proposal.pod, proposal.node)

    def _is_mirrored(self, uid: str, node: str) -> bool:
        pod = self._mirrored.get(uid)
        return pod is not None and pod.status.nominated_node_name == node

    def _restore_mirrored(self, uid: str) -> None:
        pod = self._mirrored.get(uid)
        if pod is None:
            self._snapshot.end_nomination(uid)
        else:
            self._snapshot.nominate(pod, pod.status.nominated_node_name)


def _load_cel(*_: object) -> None:
    """Called with every class. The first one loads CEL, so that the first pod with a claim need not wait for it."""
    from berth.cel.selector import load  # noqa: PLC0415 - 10 MB, and most clusters have no class

    load()
