"""A pod's last Decision, with what earlier and others' Decisions add to it."""

from __future__ import annotations

from berth.api.messages import Decision, decode, decoder
from berth.bus.port import Session
from berth.bus.topology import DECISIONS, PENDING, RANKED
from berth.cli.asking import NoSuchThingError
from berth.cli.podname import PodName
from berth.cli.preemptions import eviction_of, room_made
from berth.cli.reasons import Decided
from berth.cli.shown import ago


async def last_decision(session: Session, name: PodName) -> Decided:
    """The pod's last Decision.

    Raises:
        NoSuchThingError: there is none; the text says where the pod is instead, as far as the bus knows.
        DecodeError: it cannot be read.
    """
    stored = await session.last(DECISIONS, name.filter("decision"))
    if stored is None:
        raise NoSuchThingError(f"looking for a Decision on pod {str(name)!r}: {await _where_it_is(session, name)}")
    decision = decode(stored.data, decoder(Decision))
    return Decided(
        decision=decision,
        at=stored.time,
        now=(await session.state(DECISIONS)).now,
        room_made=await room_made(session, decision),
        evicted=await eviction_of(session, decision, stored.sequence),
    )


async def _where_it_is(session: Session, name: PodName) -> str:
    for stream, stage, waits in ((PENDING, "pending", "to be ranked"), (RANKED, "ranked", "to be bound")):
        stored = await session.last(stream, name.filter(stage))
        if stored is not None:
            since = ago(stored.time, (await session.state(stream)).now)
            return f"there is none yet: it waits {waits}, asked for {since}"
    return (
        "there is none, and nothing on the bus waits (Decisions are kept for an hour; is it a pod of berth's? Is it "
        "gated? Then name the cluster with --kubeconfig)"
    )
