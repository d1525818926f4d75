"""The scorer's service: builds the view, and feeds the core from the bus."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, AsyncExitStack, suppress
from datetime import timedelta
from typing import Final

from berth.api.config.configuration import ExtenderConfiguration
from berth.bus.interface import (
    Bus,
    Delivery,
    Session,
    StoredMessage,
)
from berth.bus.topology import COMPARED, PENDING, SCORER
from berth.cluster.buckets import LiveDataReader
from berth.errors import BerthError, DecodeError
from berth.extenders.client import Extenders
from berth.lifecycle.coreloop import CoreLoop, Inbox
from berth.lifecycle.process import Process, run_until
from berth.lifecycle.sessions import present, serve_each_session
from berth.messages.attempts import Pending, attempt_of
from berth.messages.encoding import UnknownSchemaError, decode
from berth.messages.groupattempts import GroupPending, decode_group
from berth.messages.subjects import TRACEPARENT, trace_id_of
from berth.observability.health import Condition
from berth.observability.logging import get_logger
from berth.observability.tracing import Span
from berth.ranking.ranker import Ranker
from berth.settings.settings import V_STEP
from berth_scorer.core import ScorerCore
from berth_scorer.effects import ScorerEffects
from berth_scorer.events import (
    CopiesMissed,
    Event,
    OwnRankingRead,
    PeerRankingRead,
    PendingDelivery,
    PendingReceived,
)
from berth_scorer.following import follow

log = get_logger()

# Until a message of an unknown schema or profile is redelivered, perhaps to a scorer that supports it.
UNKNOWN_DELAY: Final = timedelta(seconds=2)
# Length of a slice, by which the first answer of a batch may be delayed. Publishing one by one would cost a write per
# answer and wake up NATS and the binder each time.
SLICE_SECONDS: Final = 0.01
FINISH_SECONDS: Final = 1.0  # wait of a stopping scorer for its last PubAcks


async def serve(process: Process, bus: Bus, ranker: Ranker, extenders: Sequence[ExtenderConfiguration] = ()) -> None:
    """Rank until the process stops. Each session has a new scorer, because its store may be another one."""
    condition = process.health.condition("scorer", "waiting for NATS")
    async with Extenders(extenders, process.metrics) as asked:

        async def score(session: Session) -> None:
            scorer = Scorer(session, ranker, process, asked)
            async with present(session, process, stats=scorer.stats, held=scorer.held_for_long):
                await run_until(scorer.run(condition), process.stopping, session.lost)
                await scorer.finish()

        await serve_each_session(
            bus, name="scorer", process=process, condition=condition, serve=score, only=COMPARED["scorer"]
        )


class Scorer:
    """One scorer on one session."""

    def __init__(self, session: Session, ranker: Ranker, process: Process, extenders: Extenders) -> None:
        self._session = session
        self._ranker = ranker
        self._process = process
        self._metrics = process.metrics
        self._last_copy = 0  # sequence in RANKED
        numbers = process.settings.numbers
        self._core = ScorerCore(
            ranker=ranker,
            stopwatch=time.perf_counter,
            spanning=self._span,
            proposal_lifetime=numbers.proposal,
            position_wait=numbers.position_wait,
        )
        inbox = Inbox[Event]()
        self._effects = ScorerEffects(
            process, session, profiles=ranker.profiles, view=self._core.view, extenders=extenders, put=inbox.put
        )
        self._loop = CoreLoop(
            self._core, self._effects.carry_out, clock=process.clock, slice_seconds=SLICE_SECONDS, inbox=inbox
        )
        self._logs_steps = process.settings.log.verbosity >= V_STEP

    def stats(self) -> dict[str, object]:
        """The figures that ``nats micro stats`` shows."""
        return {
            "answered": self._core.rankings,
            "held": self._core.held,
            "proposals": len(self._core.view.proposals),
            "view_age_seconds": self._core.view.age_seconds(),
        }

    def held_for_long(self) -> list[str]:
        """The attempts that the scorer announces."""
        return self._core.held_for_long(self._process.clock.now())

    async def run(self, condition: Condition) -> None:
        """Build the view, then rank until cancelled."""
        view, numbers = self._core.view, self._process.settings.numbers
        async with AsyncExitStack() as stack, asyncio.TaskGroup() as tasks:
            condition.waiting("reading the mirror")
            tasks.create_task(self._loop.run(), name="core")
            await follow(
                self._session,
                self._loop.inbox.put,
                self._on_ranked,
                LiveDataReader(view.snapshot.live, self._ranker.live_sources),
                lifetime=numbers.proposal,
                undecodable=self._effects.undecodable,
                stack=stack,
                tasks=tasks,
            )
            await self._loop.until(lambda: not self._loop.inbox)  # no message waits here while the mirror is read
            tasks.create_task(self._consume(numbers.scorer_hold), name="consume")
            condition.ready()

    async def finish(self) -> None:
        """Nak the unranked messages, and wait for the PubAcks of the others."""
        self._loop.start(self._core.close())
        with suppress(TimeoutError, BerthError):  # on a lost connection, whose messages are redelivered anyway
            async with asyncio.timeout(FINISH_SECONDS):
                while not self._core.is_idle or self._loop.inbox:
                    await self._loop.inbox.wait(None)
                    self._loop.step()
        await self._loop.tasks.settle(0.0)

    def _on_ranked(self, stored: StoredMessage) -> None:
        before, self._last_copy = self._last_copy, stored.sequence
        if before and (missed := stored.sequence - before - 1) > 0:
            self._loop.inbox.put(CopiesMissed(sequence=stored.sequence - 1, count=missed))
        is_own = self._effects.publisher.sent.has(stored.subject, stored.data)
        self._loop.inbox.put(OwnRankingRead(sequence=stored.sequence) if is_own else PeerRankingRead(stored=stored))

    async def _consume(self, max_unacked: int) -> None:
        async with self._session.consume(PENDING, SCORER, max_unacked=max_unacked) as deliveries:
            async for delivery in deliveries:
                await self._take(delivery)

    async def _take(self, delivery: Delivery) -> None:
        try:
            pending = _decoded(delivery.data)
        except UnknownSchemaError:
            delivery.nak(UNKNOWN_DELAY)
        except DecodeError as error:
            log.warning("a message becomes a dead letter", subject=delivery.subject, reason=str(error))
            await self._effects.publisher.publish_dead_letter(delivery, str(error), "", cause="undecodable")
            delivery.ack()
        else:
            self._process.peers.read("watcher", pending.config, pending.profile, self._process.clock.now())
            if pending.profile in self._ranker.profiles:
                self._receive(delivery, pending)
            else:
                delivery.nak(UNKNOWN_DELAY)

    def _receive(self, delivery: Delivery, pending: Pending | GroupPending) -> None:
        self._metrics.count("berth_messages_received_total", stream=PENDING)
        if self._logs_steps:
            about = {"attempt": pending.attempt, "trace_id": trace_id_of(delivery.headers)}
            if isinstance(pending, GroupPending):
                who = {"group": str(pending.group.key), "uid": pending.group.uid}
                log.info("group received", **who, **about, delivered=delivery.delivered)
            else:
                who = {"pod": pending.pod.key, "uid": pending.pod.uid}
                log.info("pod received", **who, **about, delivered=delivery.delivered)
        self._loop.inbox.put(PendingReceived(delivery=delivery, pending=pending))

    def _span(self, held: PendingDelivery) -> AbstractContextManager[Span]:
        return self._process.tracing.span("rank", parent=held.delivery.headers.get(TRACEPARENT))


def _decoded(data: bytes) -> Pending | GroupPending:
    """Decode PENDING.

    Raises:
        UnknownSchemaError: of neither schema.
        DecodeError: malformed in any other way.
    """
    try:
        pending = decode(data, Pending)
    except UnknownSchemaError:
        return decode_group(data, GroupPending)
    attempt_of(pending)
    return pending
