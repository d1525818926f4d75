"""Looks up a pod's last Decision on the bus, and its eviction."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

import msgspec

from berth.api.pod import Pod
from berth.api.podgroups import GroupKey, group_of
from berth.bus.interface import Session
from berth.bus.stages import OUTCOME
from berth.bus.topology import CLUSTER, DECISIONS, PENDING, RANKED
from berth.decoding import decode_json
from berth.errors import DecodeError
from berth.messages.attempts import Decision, Outcome, Pending, Preemption, Ranked
from berth.messages.encoding import decode
from berth.messages.mirror import decode_entry, watermark_key
from berth.messages.subjects import PREFIX, key
from berth_cli.options import NotFoundError, PodName
from berth_cli.rendering import ago, duration
from berth_cli.services import what_stops

# Number of Decisions, of all pods, searched for the eviction of a pod; this takes one or two seconds.
LOOK_BACK: Final = 20_000
# A watermark this much newer than a Decision includes its pod.
MIRRORED_WITHIN: Final = timedelta(seconds=5)
_POD_KIND: Final = "pod"  # in the bucket; berth.api.kinds has it too, and imports all kinds
_POD: Final = msgspec.json.Decoder(Pod)


@dataclass(frozen=True, slots=True, kw_only=True)
class EvictionRecord:
    """An eviction for ``pod``, at a time on NATS's clock."""

    pod: PodName
    uid: str
    preemption: Preemption
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainedDecision:
    """A Decision with its time and the time of reading, both on NATS's clock.

    ``preemption`` is the last preemption for the pod; ``evicted_for`` is the preemption that evicted the pod.
    ``has_left``: the pod was bound and is deleted. ``is_recorded``: the time of reading is the end of a recording.
    ``group``: the one that the pod names.
    """

    decision: Decision
    at: datetime
    now: datetime
    preemption: EvictionRecord | None = None
    evicted_for: EvictionRecord | None = None
    has_left: bool = False
    is_recorded: bool = False
    group: GroupKey | None = None

    @property
    def is_on_its_node(self) -> bool:
        """Whether the pod was bound, and is neither evicted nor deleted as far as known."""
        return self.decision.outcome is Outcome.BOUND and not self.has_left and self.evicted_for is None

    def since(self, then: datetime) -> str:
        if not self.is_recorded:
            return ago(then, self.now)
        return f"{duration(max(0.0, (self.now - then).total_seconds()))} before the end of the recording"


async def last_decision(session: Session, name: PodName) -> ExplainedDecision:
    """The pod's last Decision.

    Raises:
        NotFoundError: there is no Decision; the text has the pod's stage, if it is on the bus.
        DecodeError: the Decision cannot be decoded.
    """
    stored = await session.last(DECISIONS, name.filter("decision"))
    if stored is None:
        raise await _no_decision(session, name)
    decision = decode(stored.data, Decision)
    return ExplainedDecision(
        decision=decision,
        at=stored.time,
        now=(await session.state(DECISIONS)).now,
        preemption=await preemption_for(session, decision),
        evicted_for=await eviction_of(session, decision, stored.sequence),
        has_left=decision.outcome is Outcome.BOUND and await _has_left(session, decision.uid, stored.time),
        group=await group_of_placed(session, decision.uid),
    )


async def check_it_is_the_last(session: Session, decided: ExplainedDecision) -> None:
    """Check that no later pod of the name is under way: StatefulSets reuse names.

    Raises:
        NotFoundError: a later pod has no Decision yet; the text is as in :func:`last_decision`.
    """
    decision = decided.decision
    name = PodName(namespace=decision.namespace, name=decision.pod)
    stages: tuple[tuple[str, str, type[Pending | Ranked]], ...] = (
        (PENDING, "pending", Pending),
        (RANKED, "ranked", Ranked),
    )
    for stream, stage, kind in stages:
        stored = await session.last(stream, name.filter(stage))
        if stored is None or stored.time <= decided.at:
            continue
        with suppress(DecodeError):
            if decode(stored.data, kind).pod.uid != decision.uid:
                raise await _no_decision(session, name)


async def _no_decision(session: Session, name: PodName) -> NotFoundError:
    return NotFoundError(f"looking for a Decision on pod {str(name)!r}: {await _stage_of(session, name)}")


async def _stage_of(session: Session, name: PodName) -> str:
    for stream, stage, waits in ((PENDING, "pending", "to be ranked"), (RANKED, "ranked", "to be bound")):
        stored = await session.last(stream, name.filter(stage))
        if stored is not None:
            since = ago(stored.time, (await session.state(stream)).now)
            stuck = await what_stops(session)
            return f"there is none yet: it waits {waits}, published {since}{f': {stuck}' if stuck else ''}"
    if stuck := await what_stops(session):
        return f"there is none: {stuck}"
    return "there is none, and no message of the pod is on the bus (Decisions are kept for an hour)"


async def preemption_for(session: Session, decision: Decision) -> EvictionRecord | None:
    name = PodName(namespace=decision.namespace, name=decision.pod)
    return await _last(session, name.filter("decision"), 0, lambda made: made.uid == decision.uid)


async def eviction_of(session: Session, decision: Decision, after: int) -> EvictionRecord | None:
    """The preemption that evicted the pod after the Decision of this sequence bound it.

    ``None`` while the pod exists, and if no recent Decision evicted it.
    """
    if decision.outcome is not Outcome.BOUND or await _exists(session, decision.uid):
        return None
    after = max(after, (await session.state(DECISIONS)).last_sequence - LOOK_BACK)
    return await _last(session, f"{PREFIX}.decision.>", after, lambda made: _is_victim(decision.uid, made))


def _is_victim(uid: str, of: Decision) -> bool:
    return of.preemption is not None and any(victim.uid == uid for victim in of.preemption.victims)


async def _exists(session: Session, uid: str) -> bool:
    """Whether the mirror has the pod, and the pod is not being deleted."""
    try:
        pod = await mirrored_pod(session, uid)
    except DecodeError:
        return True
    return pod is not None and pod.metadata.deletion_timestamp is None


async def group_of_placed(session: Session, uid: str) -> GroupKey | None:
    """The group that a pod of the mirror names."""
    with suppress(DecodeError):
        pod = await mirrored_pod(session, uid)
        return None if pod is None else group_of(pod)
    return None


async def mirrored_pod(session: Session, uid: str) -> Pod | None:
    """The mirror's pod, which is placed or nominated.

    Raises:
        DecodeError: it cannot be decoded.
    """
    entry = await session.get(CLUSTER, key(_POD_KIND, uid))
    if entry is None or entry.data is None:
        return None
    return decode_json(_POD, decode_entry(entry.data).object, "a mirrored pod")


async def _has_left(session: Session, uid: str, bound_at: datetime) -> bool:
    """Whether a mirror with all pods bound by then lacks the pod (docs/protocol.md, 4)."""
    entry = await session.get(CLUSTER, key(_POD_KIND, uid))
    if entry is not None:  # without data, the entry marks the pod's removal
        return entry.data is None
    complete = await session.get(CLUSTER, watermark_key(_POD_KIND))
    return complete is not None and complete.time > bound_at + MIRRORED_WITHIN


async def _last(
    session: Session, subject: str, after: int, matches: Callable[[Decision], bool]
) -> EvictionRecord | None:
    found = None
    async for at, made in _preempting(session, subject, after):
        if made.preemption is not None and made.preemption.victims and matches(made):
            name = PodName(namespace=made.namespace, name=made.pod)
            found = EvictionRecord(pod=name, uid=made.uid, preemption=made.preemption, at=at)
    return found


async def _preempting(session: Session, subject: str, after: int) -> AsyncIterator[tuple[datetime, Decision]]:
    """The preempting Decisions. Headers have the outcome, so the others are not decoded."""
    async for stored in session.scan(DECISIONS, subject, after=after):
        if stored.headers.get(OUTCOME) == Outcome.PREEMPTING:
            try:
                yield stored.time, decode(stored.data, Decision)
            except DecodeError:
                continue
