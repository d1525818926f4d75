"""The scorer's view: a Snapshot made of the mirror and the proposals, and the positions up to which it was made."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime

import msgspec

from berth.api.errors import DecodeError
from berth.api.messages import Decision, Positions, Ranked, decode
from berth.bus.interface import Entry, StoredMessage
from berth.cluster.buckets import KindComplete, MirroredSnapshot, PodNominated, PodPlaced, PodRemoved
from berth.cluster.snapshot import Snapshot
from berth_scorer.proposals import Proposals


class View:
    """What a scorer knows. Everything here is pure: messages in, a Snapshot to rank on out; the clock is handed in."""

    def __init__(self) -> None:
        self.snapshot = Snapshot()
        self.proposals = Proposals(self.snapshot)
        self.positions = Positions()
        self.undecodable = 0
        self._mirror = MirroredSnapshot(self.snapshot)
        self._heard: datetime | None = None
        self._complete: dict[str, datetime] = {}

    def mirror(self, entries: Iterable[Entry], position: int) -> list[str]:
        """Entries of the bucket ``cluster``, in order, and the position reached with them; returns what was wrong."""
        wrong = [problem for entry in entries if (problem := self._mirror_one(entry))]
        self.positions = msgspec.structs.replace(self.positions, cluster=max(position, self.positions.cluster))
        return wrong

    @property
    def complete(self) -> Mapping[str, datetime]:
        """By kind, up to when everything of it has been read, by NATS's clock."""
        return self._complete

    def reached(self, bucket: str, position: int) -> None:
        """Everything of a bucket of live data up to here is in the Snapshot."""
        self.positions = msgspec.structs.replace(self.positions, **{bucket: position})

    def hear_decisions(self, stored: Iterable[StoredMessage], position: int, now: float) -> list[str]:
        """Messages of DECISIONS, in order; returns what was wrong."""
        wrong = [problem for message in stored if (problem := self._decided_one(message, now))]
        self.positions = msgspec.structs.replace(self.positions, decisions=max(position, self.positions.decisions))
        return wrong

    def hear_ranked(self, data: bytes, now: float) -> str:
        """A RANKED that passed by, or that lies in its stream; returns what was wrong with it."""
        try:
            self.proposals.ranked(decode(data, Ranked), now)
        except DecodeError as exc:
            self.undecodable += 1
            return str(exc)
        return ""

    def heard_at(self, time: datetime) -> None:
        """A message that NATS stored at this time has been read: the view's clock, which is the server's."""
        if self._heard is None or time > self._heard:
            self._heard = time
            self.snapshot.live.observe_time(time.timestamp())

    def age_seconds(self) -> float | None:
        """How far the kind that was complete longest ago lies behind the newest message read; ``None`` before any was.

        Both times are NATS's own, so that no client's clock has a say.
        """
        if self._heard is None or not self._complete:
            return None
        return max(0.0, (self._heard - min(self._complete.values())).total_seconds())

    @contextmanager
    def without_open_proposals(self) -> Iterator[None]:
        """The Snapshot as if nobody had proposed anything that is not bound."""
        lifted = list(self.proposals.open())
        for proposal in lifted:
            self.snapshot.remove_pod(proposal.pod.uid)
        self.proposals.rooms.lift()
        try:
            yield
        finally:
            self.proposals.rooms.put_back()
            for proposal in lifted:
                self.snapshot.place(proposal.pod, proposal.node)

    def _mirror_one(self, entry: Entry) -> str:
        self.heard_at(entry.time)
        try:
            news = self._mirror.apply(entry.key, entry.data)
        except DecodeError as exc:
            self.undecodable += 1
            return str(exc)
        match news:
            case PodPlaced(uid=uid):
                self.proposals.mirrored(uid)
            case PodNominated(pod=pod):
                self.proposals.rooms.mirrored(pod)
            case PodRemoved(uid=uid):
                self.proposals.unmirrored(uid)
            case KindComplete(kind=kind):
                self._complete[kind] = entry.time
                if kind == "pod":
                    self.proposals.complete_up_to(entry.time)
        return ""

    def _decided_one(self, message: StoredMessage, now: float) -> str:
        self.heard_at(message.time)
        try:
            self.proposals.decided(decode(message.data, Decision), message.time, now)
        except DecodeError as exc:
            self.undecodable += 1
            return str(exc)
        return ""
