"""The scorer's view: a Snapshot made of the mirror and the proposals, and the positions that it has reached."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timedelta

import msgspec

from berth.api.decoding import decoding
from berth.api.errors import DecodeError
from berth.api.messages import Decision, Positions, Ranked, decode
from berth.bus.interface import Entry, StoredMessage
from berth.cluster.buckets import KindComplete, MirroredSnapshot, PodNominated, PodPlaced, PodRemoved
from berth.cluster.snapshot import Snapshot
from berth_scorer.proposals import LIFETIME, Proposals


class View:
    """Messages in, a Snapshot to rank on out. No I/O; ``now`` is in monotonic seconds."""

    def __init__(self, *, proposal_lifetime: timedelta = LIFETIME) -> None:
        self.snapshot = Snapshot()
        self.proposals = Proposals(self.snapshot, lifetime=proposal_lifetime)
        self.positions = Positions()
        self.undecodable = 0
        self._mirror = MirroredSnapshot(self.snapshot)
        self._server_time: datetime | None = None
        self._complete: dict[str, datetime] = {}

    def apply_mirror(self, entries: Iterable[Entry], position: int) -> list[str]:
        """Apply entries of the bucket ``cluster``, in order; returns what could not be decoded."""
        problems = [problem for entry in entries if (problem := self._apply_entry(entry))]
        self.positions = msgspec.structs.replace(self.positions, cluster=max(position, self.positions.cluster))
        return problems

    def apply_decisions(self, stored: Iterable[StoredMessage], position: int, now: float) -> list[str]:
        """Apply messages of DECISIONS, in order; returns what could not be decoded."""
        problems = [problem for message in stored if (problem := self._apply_decision(message, now))]
        self.positions = msgspec.structs.replace(self.positions, decisions=max(position, self.positions.decisions))
        return problems

    def apply_ranked(self, data: bytes, now: float) -> str:
        """Apply a RANKED message of any scorer; returns why it could not be decoded, or nothing."""
        try:
            with decoding("a ranking"):
                self.proposals.ranked(decode(data, Ranked), now)
        except DecodeError as exc:
            self.undecodable += 1
            return str(exc)
        return ""

    def reached(self, bucket: str, position: int) -> None:
        """The Snapshot has everything of a bucket of live data up to this position."""
        self.positions = msgspec.structs.replace(self.positions, **{bucket: position})

    def advance_clock(self, time: datetime) -> None:
        """A message that NATS stored at this time was read: the view's clock is the server's."""
        if self._server_time is None or time > self._server_time:
            self._server_time = time
            self.snapshot.live.observe_time(time.timestamp())

    @property
    def complete(self) -> Mapping[str, datetime]:
        """By kind, up to when everything of it has been read, by NATS's clock."""
        return self._complete

    def age_seconds(self) -> float | None:
        """How far the least recently completed kind is behind the newest message read; ``None`` before any was.

        Both times are NATS's own, so no client's clock matters.
        """
        if self._server_time is None or not self._complete:
            return None
        return max(0.0, (self._server_time - min(self._complete.values())).total_seconds())

    @contextmanager
    def without_proposals(self) -> Iterator[None]:
        """The Snapshot without proposals, except those with a ``bound`` Decision."""
        removed = list(self.proposals.unbound())
        for proposal in removed:
            self.snapshot.remove_pod(proposal.pod.uid)
        self.proposals.nominations.suspend()
        try:
            yield
        finally:
            self.proposals.nominations.resume()
            for proposal in removed:
                self.snapshot.place(proposal.pod, proposal.node)

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
                self.proposals.unmirrored(uid)
            case KindComplete(kind=kind):
                self._complete[kind] = entry.time
                if kind == "pod":
                    self.proposals.complete_up_to(entry.time)
        return ""

    def _apply_decision(self, message: StoredMessage, now: float) -> str:
        self.advance_clock(message.time)
        try:
            with decoding("a Decision"):
                self.proposals.decided(decode(message.data, Decision), message.time, now)
        except DecodeError as exc:
            self.undecodable += 1
            return str(exc)
        return ""
