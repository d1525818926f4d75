"""A client with a scorer's credential that keeps pods from nodes, within its rights on the bus; then it leaves.

It publishes to RANKED and settles messages of PENDING, as scorers may. What it does must end with it
(docs/adr/0051-work-in-a-queue-has-an-end.md).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Final

import msgspec

from berth.api.pod import Pod
from berth.bus.interface import Delivery, Session
from berth.bus.stages import publish_ranked
from berth.bus.topology import CLUSTER, PENDING, bucket_prefix, bucket_stream
from berth.messages.attempts import Pending, Preemption, Ranked, Rejection, Victim, decode, decode_entry
from simulation.bus import Endpoint

A_CENTURY: Final = timedelta(days=36500)
TAKEN_AT_ONCE: Final = 64
"""As many messages as a scorer holds."""
Deed = Callable[[Session, Delivery], Awaitable[None]]


async def put_off(_session: Session, delivery: Delivery) -> None:
    """Have the message redelivered in a hundred years."""
    delivery.nak(A_CENTURY)


async def hold(_session: Session, delivery: Delivery) -> None:
    """Claim to work on it, until the connection ends."""
    while True:
        delivery.in_progress()
        await asyncio.sleep(1.0)


async def rank_for_another_profile(session: Session, delivery: Delivery) -> None:
    """Answer with a profile that no binder has, also in the pod itself."""
    pending = decode(delivery.data, Pending)
    spec = msgspec.structs.replace(pending.pod.spec, scheduler_name="another")
    forged = msgspec.structs.replace(pending.pod, spec=spec)
    for pod in (pending.pod, forged):
        ranked = Ranked(attempt=pending.attempt, profile="another", pod=pod, scorer="hostile", message="no room")
        await publish_ranked(session, ranked)
    delivery.ack()


async def propose_evictions(session: Session, delivery: Delivery) -> None:
    """Say that the pod fits nowhere, and that evicting a pod would help."""
    pending = decode(delivery.data, Pending)
    async for stored in session.scan(bucket_stream(CLUSTER), f"{bucket_prefix(CLUSTER)}pod.>"):
        if not stored.data:
            continue
        pod = msgspec.convert(msgspec.json.decode(decode_entry(stored.data).object), Pod, strict=False)
        victim = Victim(uid=pod.uid, namespace=pod.metadata.namespace, name=pod.metadata.name)
        ranked = Ranked(
            attempt=pending.attempt,
            profile=pending.profile,
            pod=pending.pod,
            scorer="hostile",
            message="no room",
            view_age_seconds=0.0,
            rejections=[Rejection(plugin="NodeResourcesFit", reason="no room", nodes=1)],
            preemption=Preemption(node=pod.spec.node_name or "n1", victims=[victim]),
        )
        await publish_ranked(session, ranked)
        break
    delivery.ack()


async def say_nothing(_session: Session, delivery: Delivery) -> None:
    """Acknowledge it without a ranking."""
    delivery.ack()


DEEDS: Final[tuple[Deed, ...]] = (put_off, hold, rank_for_another_profile, propose_evictions, say_nothing)


async def be_hostile(bus: Endpoint, chance: random.Random, stolen: set[str]) -> None:
    """Take messages of PENDING until the process ends; ``stolen`` gets their attempts."""
    deed = chance.choice(DEEDS)
    session = await bus.connect(name="hostile")
    async with (
        asyncio.TaskGroup() as tasks,
        session.consume(PENDING, "scorer", max_unacked=TAKEN_AT_ONCE) as deliveries,
    ):
        async for delivery in deliveries:
            stolen.add(decode(delivery.data, Pending).attempt)
            tasks.create_task(deed(session, delivery))
