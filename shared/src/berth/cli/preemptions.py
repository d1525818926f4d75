"""Whom a pod's room cost, and for whom a pod had to go: what the Decisions tell of evictions."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Final

import msgspec

from berth.api.errors import DecodeError
from berth.api.messages import Decision, Outcome, Preemption, decode, decoder
from berth.api.mirror import decode_entry
from berth.api.pod import Pod
from berth.api.subjects import PREFIX, key
from berth.bus.port import Session
from berth.bus.stages import OUTCOME
from berth.bus.topology import CLUSTER, DECISIONS
from berth.cli.podname import PodName

LOOK_BACK: Final = 20_000
"""Decisions, of all pods, that are searched for whoever had a pod evicted: a second or two of reading."""
_DECISION: Final = decoder(Decision)
_POD: Final = msgspec.json.Decoder(Pod)


@dataclass(frozen=True, slots=True, kw_only=True)
class Eviction:
    """A preemption that was carried out: for which pod, what it cost, and when, by NATS's clock."""

    pod: PodName
    uid: str
    preemption: Preemption
    at: datetime


async def room_made(session: Session, decision: Decision) -> Eviction | None:
    """The last time that pods were evicted for the pod of a Decision."""
    name = PodName(namespace=decision.namespace, name=decision.pod)
    return await _last(session, name.filter("decision"), 0, lambda made: made.uid == decision.uid)


async def eviction_of(session: Session, decision: Decision, after: int) -> Eviction | None:
    """For whom the pod was evicted that a Decision of this sequence has bound.

    None where it has not gone, and where none of the last Decisions says so.
    """
    if decision.outcome is not Outcome.BOUND or await _stays(session, decision.uid):
        return None
    after = max(after, (await session.state(DECISIONS)).last_sequence - LOOK_BACK)
    return await _last(session, f"{PREFIX}.decision.>", after, lambda made: _is_victim(decision.uid, made))


def _is_victim(uid: str, of: Decision) -> bool:
    return of.preemption is not None and any(victim.uid == uid for victim in of.preemption.victims)


async def _stays(session: Session, uid: str) -> bool:
    """Whether the mirror shows the pod, and not on its way out."""
    entry = await session.get(CLUSTER, key("pod", uid))
    if entry is None or entry.data is None:
        return False
    try:
        return _POD.decode(decode_entry(entry.data).object).metadata.deletion_timestamp is None
    except (DecodeError, msgspec.MsgspecError):
        return True


async def _last(session: Session, subject: str, after: int, is_meant: Callable[[Decision], bool]) -> Eviction | None:
    found = None
    async for at, made in _preempting(session, subject, after):
        if made.preemption is not None and made.preemption.victims and is_meant(made):
            name = PodName(namespace=made.namespace, name=made.pod)
            found = Eviction(pod=name, uid=made.uid, preemption=made.preemption, at=at)
    return found


async def _preempting(session: Session, subject: str, after: int) -> AsyncIterator[tuple[datetime, Decision]]:
    """The Decisions of this outcome, which a header tells, so that the others need not be decoded."""
    async for stored in session.look_through(DECISIONS, subject, after=after):
        if stored.headers.get(OUTCOME) == Outcome.PREEMPTING:
            try:
                yield stored.time, decode(stored.data, _DECISION)
            except DecodeError:
                continue
