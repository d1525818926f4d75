"""What a new leader finds on the bus, looked through in the one order in which nothing is missed (PROTOCOL 3).

PENDING, then RANKED, then DECISIONS: a message that moves on meanwhile is met later. Whoever calls this has been
following DECISIONS since before it began.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime

from berth.api.errors import DecodeError
from berth.api.messages import Decision, Pending, Ranked, decode
from berth.api.subjects import Attempt, PodSubject, all_of
from berth.bus.interface import Session, StoredMessage
from berth.bus.topology import DECISIONS, PENDING, RANKED
from berth_watcher.events import FoundDecision, FoundInFlight, StagesRead


async def look_through(session: Session, subjects: Mapping[str, PodSubject], *, at_once: int) -> StagesRead:
    """Where the pods of these uids stand; ``subjects`` are those of their Decisions.

    Raises:
        TemporaryError: the bus does not answer.
    """
    in_flight: dict[str, FoundInFlight] = {}
    async for stored in session.scan(PENDING, all_of("pending")):
        _keep_newest(in_flight, _found(stored))
    async for stored in session.scan(RANKED, all_of("ranked")):
        _keep_newest(in_flight, _found(stored))
    decisions = await _last_decisions(session, subjects, at_once)
    return StagesRead(in_flight={uid: each for uid, each in in_flight.items() if uid in subjects}, decisions=decisions)


async def last_decision(session: Session, subject: PodSubject) -> tuple[Decision, StoredMessage] | None:
    """The last Decision of a subject that can be read, and how it is stored."""
    stored = await session.last(DECISIONS, str(subject))
    if stored is None:
        return None
    try:
        return decode(stored.data, Decision), stored
    except DecodeError:
        return None


async def holds(session: Session, stream: str, subject: PodSubject, attempt: Attempt) -> bool:
    """Whether a work queue has this attempt."""
    stored = await session.last(stream, str(subject))
    found = _found(stored) if stored else None
    return found is not None and found.attempt == attempt


def _found(stored: StoredMessage) -> FoundInFlight | None:
    """The attempt of a message; ``None`` for what cannot be read: whoever takes it from the queue puts it aside."""
    try:
        is_pending = PodSubject.parse(stored.subject).stage == "pending"
        message: Pending | Ranked = decode(stored.data, Pending) if is_pending else decode(stored.data, Ranked)
        return FoundInFlight(attempt=Attempt.parse(message.attempt), pod=message.pod)
    except DecodeError:
        return None


def _keep_newest(found: dict[str, FoundInFlight], each: FoundInFlight | None) -> None:
    if each is None:
        return
    known = found.get(each.attempt.uid)
    if known is None or known.attempt.order < each.attempt.order:
        found[each.attempt.uid] = each


async def _last_decisions(
    session: Session, subjects: Mapping[str, PodSubject], at_once: int
) -> dict[str, FoundDecision]:
    """The last Decision of each pod's subject: asked for one by one, since the stream holds an hour of everybody's."""
    found: dict[str, FoundDecision] = {}
    todo = iter(subjects.items())
    async with asyncio.TaskGroup() as tasks:
        for _ in range(at_once):
            tasks.create_task(_read_decisions(session, todo, found))
    return found


async def _read_decisions(
    session: Session, todo: Iterable[tuple[str, PodSubject]], found: dict[str, FoundDecision]
) -> None:
    for uid, subject in todo:
        last = await last_decision(session, subject)
        if last is not None:
            decision, stored = last
            age = (datetime.now(UTC) - stored.time).total_seconds()
            found[uid] = FoundDecision(decision=decision, time=stored.time, age_seconds=max(0.0, age))
