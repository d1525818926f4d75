"""Reads the bus for a new leader, and derives each pod's former state: never tried, in flight, or decided.

PENDING is read before RANKED and RANKED before DECISIONS (docs/protocol.md, 3), so that a message that moves meanwhile
is found at its later stage. The caller must follow DECISIONS before it begins.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from berth.api.meta import ObjectMeta
from berth.api.pod import Pod
from berth.bus.interface import Session, StoredMessage
from berth.bus.topology import DECISIONS, PENDING, RANKED
from berth.errors import DecodeError
from berth.messages.attempts import DecisionSummary, Pending, Ranked
from berth.messages.encoding import decode
from berth.messages.groupattempts import GroupPending, GroupRanked, decode_group, group_named
from berth.messages.subjects import Attempt, PodSubject, all_of
from berth_watcher.events import DecisionReceived, FoundDecision, FoundInFlight, StreamsRead
from berth_watcher.queue.queuedpod import QueuedPod


async def read_streams(session: Session, subjects: Mapping[str, PodSubject]) -> StreamsRead:
    """Find the messages of these pods. ``subjects`` are their decision subjects, by uid.

    Raises:
        TemporaryError: the bus does not answer.
    """
    in_flight: dict[str, FoundInFlight] = {}
    async for stored in session.scan(PENDING, all_of("pending")):
        _keep_newest(in_flight, _decoded(stored))
    async for stored in session.scan(RANKED, all_of("ranked")):
        _keep_newest(in_flight, _decoded(stored))
    decisions = await _last_decisions(session, subjects)
    return StreamsRead(in_flight={uid: each for uid, each in in_flight.items() if uid in subjects}, decisions=decisions)


async def last_decision(session: Session, subject: PodSubject) -> tuple[DecisionSummary, StoredMessage] | None:
    """The last Decision of a subject, decoded and as stored; ``None`` if it is missing or cannot be decoded."""
    stored = await session.last(DECISIONS, str(subject))
    decision = _decision(stored) if stored is not None else None
    return (decision, stored) if stored is not None and decision is not None else None


async def holds(session: Session, stream: str, subject: PodSubject, attempt: Attempt) -> bool:
    stored = await session.last(stream, str(subject))
    found = _decoded(stored) if stored else None
    return found is not None and found.attempt == attempt


@dataclass(frozen=True, slots=True, kw_only=True)
class FormerState:
    """A pod's state under the former leader, by its highest attempt."""

    attempt: Attempt | None = None  # the latest one; None if the pod was never tried
    in_flight: Pod | None = None  # as that attempt's message has it; None without message, or if it is decided
    members: tuple[Attempt, ...] = ()  # of a group: the attempts of its members
    failures: int = 0  # consecutive attempts before it that ended in back-off
    has_slot: bool = True  # whether it uses a slot of the window: not after `waiting`
    final_decision: FoundDecision | None = None  # of that attempt


def former_state(uid: str, found: FoundInFlight | None, last: FoundDecision | None) -> FormerState:
    """Combine a pod's message in PENDING or RANKED with the last Decision of its subject."""
    decided = _attempt_of(uid, last)
    if found is not None and (decided is None or decided.order < found.attempt.order):
        return FormerState(attempt=found.attempt, in_flight=found.pod, members=found.members, failures=found.failures)
    if decided is None or last is None:
        return FormerState()
    failures = last.decision.failures
    if last.decision.outcome.final:
        return FormerState(attempt=decided, failures=failures, final_decision=last)
    same = found if found is not None and found.attempt == decided else None
    pod, members = (None, ()) if same is None else (same.pod, same.members)
    return FormerState(attempt=decided, failures=failures, in_flight=pod, members=members, has_slot=False)


@dataclass(slots=True)
class TakeoverState:
    """Progress of a takeover, and Decisions received meanwhile."""

    last_difference: int | None = None  # mirror change that the queue waits for; None until the bucket is read
    streams: StreamsRead | None = None
    streams_read_at: float = 0.0  # monotonic
    decisions: list[DecisionReceived] = field(default_factory=list)
    left: deque[QueuedPod] = field(default_factory=deque)  # pods not yet continued: one slice is too short for 200,000

    def may_start_queue(self, settled: int) -> bool:
        """Whether the bus has been read and every difference is stored (docs/protocol.md, 3).

        Earlier, pods would be ranked on a part of the cluster.
        """
        return self.streams is not None and self.last_difference is not None and self.last_difference <= settled

    def last_decision(self, uid: str) -> FoundDecision | None:
        found = self.streams.decisions.get(uid) if self.streams is not None else None
        return found if found is not None and found.decision.uid == uid else None

    def former_state(self, uid: str) -> FormerState:
        streams = self.streams or StreamsRead()
        return former_state(uid, streams.in_flight.get(uid), streams.decisions.get(uid))


def _attempt_of(uid: str, last: FoundDecision | None) -> Attempt | None:
    """The Decision's attempt; ``None`` if the Decision is about another pod of the same name."""
    if last is None or last.decision.uid != uid:
        return None
    try:
        return Attempt.parse(last.decision.attempt)
    except DecodeError:
        return None


def _decoded(stored: StoredMessage) -> FoundInFlight | None:
    """The decoded message; ``None`` if it cannot be decoded: its consumer makes a dead letter of it."""
    try:
        subject = PodSubject.parse(stored.subject)
        is_pending = subject.stage == "pending"
        if group_named(subject.namespace, subject.pod) is not None:
            return _group_found(stored.data, subject, is_pending=is_pending)
        message: Pending | Ranked = decode(stored.data, Pending) if is_pending else decode(stored.data, Ranked)
        return FoundInFlight(attempt=Attempt.parse(message.attempt), pod=message.pod, failures=message.failures)
    except DecodeError:
        return None


def _group_found(data: bytes, subject: PodSubject, *, is_pending: bool) -> FoundInFlight:
    """Raises as :func:`decode_group`."""
    message: GroupPending | GroupRanked
    message = decode_group(data, GroupPending) if is_pending else decode_group(data, GroupRanked)
    attempt = Attempt.parse(message.attempt)
    pod = Pod(metadata=ObjectMeta(name=subject.pod, namespace=subject.namespace, uid=attempt.uid))
    members = tuple(message.bundle.attempts(attempt.term))
    return FoundInFlight(attempt=attempt, pod=pod, members=members, failures=message.failures)


def _keep_newest(newest: dict[str, FoundInFlight], found: FoundInFlight | None) -> None:
    if found is None:
        return
    known = newest.get(found.attempt.uid)
    if known is None or known.attempt.order < found.attempt.order:
        newest[found.attempt.uid] = found


async def _last_decisions(session: Session, subjects: Mapping[str, PodSubject]) -> dict[str, FoundDecision]:
    # By uid, with one request per subject: the stream holds the Decisions of all pods of the last hour.
    decisions: dict[str, FoundDecision] = {}
    uids = {str(subject): uid for uid, subject in subjects.items()}
    async for stored in session.last_of_each(DECISIONS, list(uids)):
        decision = _decision(stored)
        if decision is not None:
            age = (datetime.now(UTC) - stored.time).total_seconds()
            found = FoundDecision(decision=decision, time=stored.time, age_seconds=max(0.0, age))
            decisions[uids[stored.subject]] = found
    return decisions


def _decision(stored: StoredMessage) -> DecisionSummary | None:
    try:
        return decode(stored.data, DecisionSummary)
    except DecodeError:
        return None
