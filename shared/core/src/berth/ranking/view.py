"""A scorer's view: a Snapshot of the mirror and the proposals, with the positions it has reached."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Final

import msgspec

from berth.bus.interface import Entry, StoredMessage
from berth.cluster.buckets import KindComplete, MirroredSnapshot, PodNominated, PodPlaced, PodRemoved
from berth.cluster.podgroups import PodGroups
from berth.cluster.snapshot import Snapshot
from berth.decoding import decoding
from berth.errors import DecodeError
from berth.messages.attempts import DecisionSummary, Positions, Ranked, RankedSummary, Received, check_attempt
from berth.messages.encoding import UnknownSchemaError, decode
from berth.messages.groupattempts import GroupRanked, decode_group
from berth.ranking.proposals import LIFETIME, Proposals

# Expired proposals named in one ranking: 40 KiB of a message. Older ones are left out, because a scorer that ranks
# nothing while no binder decides would collect all proposals of its peers.
EXPIRED_NAMED: Final = 1000


class View:
    """Messages in, a Snapshot out. No I/O; ``now`` is in monotonic seconds."""

    def __init__(self, *, proposal_lifetime: timedelta = LIFETIME) -> None:
        self.snapshot = Snapshot()
        self.proposals = Proposals(self.snapshot, lifetime=proposal_lifetime)
        self.positions = Positions()
        self.undecodable = 0
        self._mirror = MirroredSnapshot(self.snapshot)
        self.groups = PodGroups.of(self.snapshot)  # without their pods
        self._ranked = self._missed = self._pending = 0
        self._expired: deque[str] = deque(maxlen=EXPIRED_NAMED)  # since the last ranking
        self._server_time: datetime | None = None
        self._complete: dict[str, datetime] = {}
        self._all_complete_at: datetime | None = None  # the minimum over all kinds

    def apply_mirror(self, entries: Iterable[Entry], position: int) -> list[str]:
        """Apply entries of the bucket ``cluster``, in order; returns reports of undecodable ones."""
        problems = [problem for entry in entries if (problem := self._apply_entry(entry))]
        self.positions = msgspec.structs.replace(self.positions, cluster=max(position, self.positions.cluster))
        return problems

    def apply_decisions(self, stored: Iterable[StoredMessage], position: int, now: float) -> list[str]:
        """Apply messages of DECISIONS, in order; returns reports of undecodable ones."""
        problems = [problem for message in stored if (problem := self._apply_decision(message, now))]
        self.positions = msgspec.structs.replace(self.positions, decisions=max(position, self.positions.decisions))
        return problems

    def apply_ranked(self, data: bytes, sequence: int, now: float) -> str:
        """Apply a RANKED message of a peer; returns a report if it is undecodable."""
        try:
            with decoding("a ranking"):
                try:
                    message = decode(data, RankedSummary)
                except UnknownSchemaError:  # of a group
                    self.count_peer(decode_group(data, GroupRanked), sequence, now, len(data))
                    return ""
                check_attempt(message)  # else it would never end: a proposal ends by its attempt's pod
                self.count_peer(message, sequence, now, len(data))
        except DecodeError as exc:
            self.counted_ranked(sequence)
            self.undecodable += 1
            return str(exc)
        return ""

    def count_peer(self, message: Ranked | RankedSummary | GroupRanked, sequence: int, now: float, size: int) -> None:
        self.counted_ranked(sequence)
        if isinstance(message, GroupRanked):
            self._expired += self.proposals.ranked_group(message, now, size)
        else:
            self._expired += self.proposals.ranked(message, now, size)

    def counted_ranked(self, sequence: int) -> None:
        """The RANKED message of this sequence counts, a peer's or this scorer's own."""
        self._ranked = max(sequence, self._ranked)

    def missed_ranked(self, sequence: int) -> None:
        """The RANKED message of this sequence did not arrive."""
        self._missed = sequence

    def received(self, sequence: int, time: datetime) -> None:
        """A PENDING message was received; ``time``: stored by NATS."""
        self._pending = max(sequence, self._pending)
        self.advance_clock(time)

    def expire(self, now: float) -> None:
        self._expired += self.proposals.expire(now)

    def take_received(self) -> Received:
        """The Snapshot's contents besides the positions, for the next ranking."""
        received = Received(
            ranked=self._ranked, missed=self._missed, pending=self._pending, expired=list(self._expired)
        )
        self._expired.clear()
        return received

    def reached(self, bucket: str, position: int) -> None:
        """The Snapshot has all live data of ``bucket`` up to this position."""
        self.positions = msgspec.structs.replace(self.positions, **{bucket: position})

    def advance_clock(self, time: datetime) -> None:
        """Set the view's clock to NATS's, from the time of a stored message."""
        if self._server_time is None or time > self._server_time:
            self._server_time = time
            self.snapshot.live.observe_time(time.timestamp())

    @property
    def complete(self) -> Mapping[str, datetime]:
        """By kind, the time by NATS's clock up to which the mirror is complete."""
        return self._complete

    def age_seconds(self) -> float | None:
        """Age of the least recently completed kind, compared with the newest message; ``None`` before both exist.

        Both times are NATS's own, so that clients' clocks do not matter.
        """
        if self._server_time is None or self._all_complete_at is None:
            return None
        return max(0.0, (self._server_time - self._all_complete_at).total_seconds())

    @contextmanager
    def without_proposals(self, *, bound: bool) -> Iterator[None]:
        """Exclude unbound proposals from the Snapshot; with ``bound``, all but held ones."""
        removed = list(self.proposals.uncertain() if bound else self.proposals.unbound())
        for proposal in removed:
            self.proposals.leave_out(proposal)
        self.proposals.nominations.suspend()
        try:
            yield
        finally:
            self.proposals.nominations.resume()
            for proposal in removed:
                self.proposals.count(proposal)

    def _apply_entry(self, entry: Entry) -> str:
        self.advance_clock(entry.time)
        try:
            change = self._mirror.apply(entry.key, entry.data)
        except DecodeError as exc:
            self.undecodable += 1
            return str(exc)
        match change:
            case PodPlaced(uid=uid):
                self.proposals.mirrored(uid)
            case PodNominated(pod=pod):
                self.proposals.nominations.mirrored(pod)
            case PodRemoved(uid=uid):
                self.proposals.unmirrored(uid, entry.time)
            case KindComplete(kind=kind):
                self._complete[kind] = entry.time
                self._all_complete_at = min(self._complete.values())
                if kind == "pod":
                    self.proposals.complete_up_to(entry.time)
        return ""

    def _apply_decision(self, message: StoredMessage, now: float) -> str:
        self.advance_clock(message.time)
        try:
            with decoding("a Decision"):
                self.proposals.decided(decode(message.data, DecisionSummary), message.time, now)
        except DecodeError as exc:
            self.undecodable += 1
            return str(exc)
        return ""
