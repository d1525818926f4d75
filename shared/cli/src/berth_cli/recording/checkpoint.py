"""What a recording may begin with at any moment: the mirror, and of each queue and log what still counts.

A recorder that begins reads it from NATS. One that keeps segments has it in memory: PENDING and RANKED are gone from
NATS once they are settled, and what was ranked a moment ago counts on its node in every scorer's view.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import chain
from operator import attrgetter
from typing import Final

from berth.api.kinds import POD
from berth.bus.topology import BANDWIDTH, CLUSTER, DECISIONS, FACTS, PENDING, RANKED
from berth.errors import DecodeError
from berth.messages.attempts import DecisionSummary, Outcome, decode, watermark_key
from berth.messages.subjects import key
from berth.ranking.view import LIFETIME
from berth_cli.recording.file import Recorded, Source

_RECENT: Final = timedelta(seconds=15)
"""How long a message counts after what came of it: a scorer may be that far behind the recorder."""
_LAST_WORD: Final = LIFETIME + timedelta(seconds=10)
"""How long a pod counts on its node that was ranked, after the last word about it. When its proposal expires, the next
ranking of each scorer says so: those of ``_RECENT`` are there."""
_ASKED_FOR: Final = timedelta(hours=1)
"""How long a pod counts that no scorer ranks."""
_MARKERS: Final = timedelta(hours=1)
"""How long NATS keeps the marker of a key that was removed."""
_MIRRORED_WITHIN: Final = timedelta(seconds=5)
"""A pod that was bound longer ago than this before ``watermark.pod``, and that the mirror lacks, is gone
(docs/protocol.md, 4)."""
_LOOK: Final = timedelta(seconds=5)
"""Between two looks for what counts no more. A ranking takes 5 kB."""
_BUCKETS: Final[tuple[Source, ...]] = (CLUSTER, BANDWIDTH, FACTS)
_STREAMS: Final[tuple[Source, ...]] = (PENDING, RANKED, DECISIONS)
_NEVER: Final = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class _PodMessages:
    """The last messages about a pod, whose attempt has no outcome yet or whose Binding the mirror does not show."""

    pending: Recorded | None = None
    ranked: Recorded | None = None
    decision: Recorded | None = None
    bound: str = ""
    """The uid, once it is bound."""

    @property
    def last(self) -> datetime:
        """When the last word about it was stored."""
        return max(record.time for record in self.records())

    def records(self) -> Iterator[Recorded]:
        for record in (self.pending, self.ranked, self.decision):
            if record is not None:
                yield record


class Checkpoint:
    """Every record of a recording goes in, in the order of each source; what counts comes out."""

    def __init__(self) -> None:
        self._entries: dict[Source, dict[str, Recorded]] = {source: {} for source in _BUCKETS}
        """By key, in the order of their sequences."""
        self._recent: dict[Source, deque[Recorded]] = {source: deque() for source in _STREAMS}
        self._attempts: dict[str, _PodMessages] = {}
        """By profile, namespace and name, as subjects have them."""
        self._now = _NEVER
        self._looked = _NEVER

    def add(self, record: Recorded) -> None:
        self._now = max(self._now, record.time)
        if record.source in self._entries:
            there = self._entries[record.source]
            there.pop(record.subject, None)  # a new value goes to the end
            there[record.subject] = record
            return
        self._recent[record.source].append(record)
        self._follow(record)
        if self._now - self._looked > _LOOK:
            self._forget_messages()

    def records(self) -> list[Recorded]:
        """What a recording begins with now, of each source in the order of its sequences."""
        self._forget_messages()
        self._forget_markers()
        found: list[Recorded] = []
        for source in _STREAMS:
            still = (each for one in self._attempts.values() for each in one.records() if each.source == source)
            by_sequence = {record.sequence: record for record in chain(still, self._recent[source])}
            found.extend(sorted(by_sequence.values(), key=attrgetter("sequence")))
        for source in _BUCKETS:
            found.extend(self._entries[source].values())
        return found

    def _follow(self, record: Recorded) -> None:
        pod = record.subject.split(".", 2)[-1]
        if record.source == PENDING:
            self._attempts[pod] = _PodMessages(pending=record)
        elif record.source == RANKED:
            pending = self._attempts.get(pod, _NOTHING).pending
            if pending is None or record.time >= pending.time:  # else it is of an attempt before
                self._attempts[pod] = _PodMessages(pending=pending, ranked=record)
        else:
            self._decide(pod, record)

    def _decide(self, pod: str, record: Recorded) -> None:
        attempted = self._attempts.get(pod, _NOTHING)
        asked = max((each.time for each in (attempted.pending, attempted.ranked) if each), default=_NEVER)
        if record.time < asked:  # of an attempt before
            return
        try:
            decision = decode(record.payload or b"", DecisionSummary)
        except DecodeError:
            return
        if decision.outcome in {Outcome.WAITING, Outcome.PREEMPTING}:
            self._attempts[pod] = replace(attempted, decision=record)
        elif decision.outcome is Outcome.BOUND:
            self._attempts[pod] = replace(attempted, decision=record, bound=decision.uid)
        else:
            self._attempts.pop(pod, None)

    def _forget_messages(self) -> None:
        self._looked = self._now
        for recent in self._recent.values():
            while recent and self._now - recent[0].time > _RECENT:
                recent.popleft()
        self._attempts = {pod: one for pod, one in self._attempts.items() if self._still_counts(one)}

    def _forget_markers(self) -> None:
        for there in self._entries.values():
            for name in [name for name, one in there.items() if self._is_old_marker(one)]:
                del there[name]

    def _is_old_marker(self, entry: Recorded) -> bool:
        return self._now - entry.time > _MARKERS and entry.payload is None

    def _still_counts(self, attempted: _PodMessages) -> bool:
        if attempted.bound:
            return not self._shows(attempted.bound, attempted.last)
        return self._now - attempted.last <= (_LAST_WORD if attempted.ranked or attempted.decision else _ASKED_FOR)

    def _shows(self, uid: str, bound_at: datetime) -> bool:
        """Whether the mirror shows what became of a pod that was bound."""
        mirror = self._entries[CLUSTER]
        complete = mirror.get(watermark_key(POD.name))
        is_known = key(POD.name, uid) in mirror
        return is_known or (complete is not None and complete.time - bound_at > _MIRRORED_WITHIN)


_NOTHING: Final = _PodMessages()
