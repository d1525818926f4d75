"""What a scorer counts (names and meanings: ``berth.process.metrics``).

The shell of the scorer: reads the bus into the view, takes PENDING, answers with RANKED, acknowledges.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from contextlib import AsyncExitStack
from datetime import timedelta
from importlib.metadata import version
from typing import Final

from berth.api.errors import DecodeError, TemporaryError
from berth.api.messages import Pending, Ranked, UnknownSchemaError, attempt_of, decode
from berth.api.subjects import all_of
from berth.bus.interface import BucketReader, Bus, Delivery, Session, StreamReader
from berth.bus.topology import PENDING
from berth.cluster.buckets import LiveDataReader
from berth.framework.plugincalls import Timing
from berth.framework.profile import Profile
from berth.process.health import Condition
from berth.process.lifecycle import Process
from berth.process.logging import get_logger
from berth.process.metrics import Meter, point_of, status_of
from berth.process.sessions import follow_live, sessions
from berth.process.tasks import run_until
from berth.process.tracing import TRACEPARENT
from berth_scorer.backlog import Backlog, PendingDelivery, TryCounter
from berth_scorer.outbox import Outbox
from berth_scorer.ranker import Ranker
from berth_scorer.view import View

PLUGINS_EVERY: Final = 11
"""Of so many pods one has its plugins timed, as kube-scheduler does with a tenth of them: it takes 37 µs, which is 10 %
of a cycle at 5,000 nodes. A prime, so that pods of kinds that take turns are all met."""


def count_ranking(metrics: Meter, message: Ranked, profile: Profile, timing: Timing, seconds: float) -> None:
    """Count a ranking, and what it took, whole and by extension point."""
    metrics.observe("scheduler_scheduling_algorithm_duration_seconds", seconds)
    if message.view_age_seconds is not None:
        metrics.observe("berth_view_age_seconds", message.view_age_seconds)
    if profile.post_filters and "PostFilter" in timing.points:
        metrics.count("scheduler_preemption_attempts_total")
    for point, took in timing.points.items():
        metrics.observe(
            "scheduler_framework_extension_point_duration_seconds",
            took.seconds,
            extension_point=point_of(point),
            status=status_of(took.code),
            profile=message.profile,
        )
    for (plugin, point), took in timing.plugins.items():
        metrics.observe(
            "scheduler_plugin_execution_duration_seconds",
            took.seconds,
            plugin=plugin,
            extension_point=point_of(point),
            status=status_of(took.code),
        )


def show(metrics: Meter, view: View, *, held: int) -> None:
    """Set what is shown of how things stand."""
    metrics.set("berth_held_pods", held)
    metrics.set("berth_proposals", len(view.proposals))
    metrics.set("scheduler_cache_size", view.snapshot.node_count, type="nodes")
    metrics.set("scheduler_cache_size", view.snapshot.pod_count, type="pods")
    metrics.set("scheduler_cache_size", len(view.proposals), type="assumed_pods")
    for kind, complete_at in view.complete.items():
        metrics.set("berth_mirror_complete_timestamp_seconds", complete_at.timestamp(), kind=kind)


log = get_logger()


VERSION: Final = version("berth-scorer")

DECISIONS_READ: Final = timedelta(minutes=1)
"""How far back DECISIONS is read at the start: twice a proposal, so that none is taken for open that was decided."""

HEARTBEAT: Final = timedelta(seconds=1)
"""Between two ``in_progress`` for everything held: a third of the ack_wait."""

STRANGER_DELAY: Final = timedelta(seconds=2)
"""When a message of an unknown schema or profile is offered again: somebody else may know it."""

TRIES: Final = 5
"""How often one process tries to rank a pod before it gives up on it."""


async def serve(process: Process, bus: Bus, answering: Ranker) -> None:
    """Rank until told to stop. Each session has a scorer of its own, made from nothing: a store may be another one."""
    condition = process.health.condition("scorer", "waiting for NATS")
    async for session in sessions(bus, name="scorer", process=process):
        scorer = Scorer(session, answering, process)
        try:
            await session.register("berth-scorer", identity=process.identity, version=VERSION, stats=scorer.stats)
            await run_until(scorer.run(condition), process.stopping, session.lost)
            await scorer.finish()
        except* TemporaryError as lost:
            log.warning("starting anew on another connection", reason=str(lost.exceptions[0]))
        condition.waiting("waiting for NATS")


class Scorer:
    """One scorer on one session."""

    def __init__(self, session: Session, answering: Ranker, process: Process) -> None:
        self._session = session
        self._answering = answering
        self._metrics = process.metrics
        self._size = process.settings.numbers.scorer_hold
        self._view = View()
        self._hold = Backlog(patience=process.settings.numbers.position_wait)
        self._outbox = Outbox(session, process.metrics)
        self._tracing = process.tracing
        self._suspicion = TryCounter(session)
        self._awake = asyncio.Event()
        self._answered = 0

    def stats(self) -> dict[str, object]:
        """What `nats micro stats` shows."""
        return {
            "answered": self._answered,
            "held": len(self._outbox),
            "proposals": len(self._view.proposals),
            "view_age_seconds": self._view.age_seconds(),
        }

    async def run(self, condition: Condition) -> None:
        """Build the view, then rank until cancelled; what is under way when that happens comes again elsewhere."""
        async with AsyncExitStack() as stack, asyncio.TaskGroup() as tasks:
            condition.waiting("reading the mirror")
            await self._build_view(stack, tasks)
            tasks.create_task(self._take(), name="take")
            tasks.create_task(self._heartbeat(), name="heartbeat")
            tasks.create_task(self._work(), name="work")
            condition.ready()

    async def _build_view(self, stack: AsyncExitStack, tasks: asyncio.TaskGroup) -> None:
        """The mirror to its end, what is ranked and not decided, and the last minute's Decisions; then everything new.

        Listening to RANKED begins before it is looked through, so that nothing falls between.
        """
        await self._session.subscribe(all_of("ranked"), self._on_ranked)
        cluster = await stack.enter_async_context(self._session.read_bucket("cluster"))
        tasks.create_task(self._follow_cluster(cluster), name="cluster")
        await cluster.caught_up.wait()
        heard = LiveDataReader(self._view.snapshot.live, self._answering.live_sources)
        await follow_live(self._session, heard, stack, tasks, self._reached)
        async for stored in self._session.scan("RANKED", all_of("ranked")):
            self._complain(self._view.hear_ranked(stored.data, time.monotonic()), stored.subject)
        decisions = await stack.enter_async_context(self._session.read_stream("DECISIONS", since=DECISIONS_READ))
        tasks.create_task(self._follow_decisions(decisions), name="decisions")
        await decisions.caught_up.wait()

    async def _follow_cluster(self, following: BucketReader) -> None:
        async for batch in following.batches():
            for problem in self._view.mirror(batch, following.position):
                self._complain(problem, "cluster")
            self._awake.set()

    def _reached(self, bucket: str, position: int) -> None:
        self._view.reached(bucket, position)
        self._awake.set()

    async def _follow_decisions(self, following: StreamReader) -> None:
        async for batch in following.batches():
            for problem in self._view.hear_decisions(batch, following.position, time.monotonic()):
                self._complain(problem, "DECISIONS")
            self._awake.set()

    def _on_ranked(self, subject: str, data: bytes, headers: Mapping[str, str]) -> None:
        del headers
        self._complain(self._view.hear_ranked(data, time.monotonic()), subject)

    async def _take(self) -> None:
        async with self._session.consume("PENDING", "scorer", max_unacked=self._size) as deliveries:
            async for delivery in deliveries:
                await self._take_one(delivery)

    async def _take_one(self, delivery: Delivery) -> None:
        try:
            pending = decode(delivery.data, Pending)
            attempt_of(pending)
        except UnknownSchemaError:
            delivery.nak(STRANGER_DELAY)
        except DecodeError as exc:
            log.warning("putting a message aside", subject=delivery.subject, reason=str(exc))
            await self._outbox.put_aside(delivery, str(exc))
        else:
            self._keep(delivery, pending)

    def _keep(self, delivery: Delivery, pending: Pending) -> None:
        if pending.profile not in self._answering.profiles:
            delivery.nak(STRANGER_DELAY)
            return
        self._view.heard_at(delivery.time)
        self._metrics.count("berth_messages_received_total", stream=PENDING)
        self._outbox.hold(delivery)
        held = PendingDelivery(delivery=delivery, pending=pending, taken_at=time.monotonic())
        self._hold.take(held, self._view.positions)
        self._awake.set()

    async def _work(self) -> None:
        """Rank what is due, one pod at a time, giving the loop to the others in between."""
        while True:
            held = self._hold.next(self._view.positions, time.monotonic())
            if held is None:
                await self._rest()
            elif held.suspect:
                await self._work_alone(held)
            else:
                self._outbox.send(held, *self._answer(held))
                await asyncio.sleep(0)

    async def _rest(self) -> None:
        self._awake.clear()
        try:
            async with asyncio.timeout(self._hold.due_in(time.monotonic())):
                await self._awake.wait()
        except TimeoutError:
            return

    async def _work_alone(self, held: PendingDelivery) -> None:
        """A suspect: everything else is out of the way, and this try is counted where it outlives the process."""
        await self._outbox.emptied()
        if await self._suspicion.count(held.pending.attempt):
            reason = f"ranking ended {TryCounter.LIMIT - 1} scorers before this one"
            self._outbox.send_letter(held.delivery, reason, held.pending.attempt)
            message, headers = self._answering.give_up(held.pending, reason), held.delivery.headers
        else:
            message, headers = self._answer(held)
        await self._outbox.publish(held, message, headers)
        await self._suspicion.clear(held.pending.attempt)

    def _answer(self, held: PendingDelivery) -> tuple[Ranked, Mapping[str, str]]:
        """The ranking and the headers that it goes on with."""
        with self._tracing.span("rank", parent=held.delivery.headers.get(TRACEPARENT)) as span:
            span.note("attempt", held.pending.attempt)
            return self._rank(held), {TRACEPARENT: span.traceparent}

    def _rank(self, held: PendingDelivery) -> Ranked:
        """An exception counts for the pod, five in a row are its failure and leave a dead letter."""
        reason = ""
        for _ in range(TRIES):
            timing, began = Timing(time.perf_counter), time.perf_counter()
            try:
                message = self._timed(held, timing)
            except Exception as exc:  # whatever a rank raises is the pod's, never the scorer's
                reason = f"ranking raised {type(exc).__name__}: {exc}"
                log.exception("ranking failed", attempt=held.pending.attempt)
            else:
                self._count(message, timing, time.perf_counter() - began)
                return message
        self._outbox.send_letter(held.delivery, reason, held.pending.attempt)
        return self._answering.give_up(held.pending, reason)

    def _timed(self, held: PendingDelivery, timing: Timing) -> Ranked:
        """The ranking; of some pods each plugin is timed too."""
        now, pending = time.monotonic(), held.pending
        self._metrics.observe("berth_hold_duration_seconds", now - held.taken_at)
        if self._answered % PLUGINS_EVERY:
            return self._answering.answer(pending, self._view, now, timing)
        profile = self._answering.profiles[pending.profile]
        profile.time_plugins(timing)
        try:
            return self._answering.answer(pending, self._view, now, timing)
        finally:
            profile.time_plugins(None)

    def _count(self, message: Ranked, timing: Timing, seconds: float) -> None:
        self._answered += 1
        count_ranking(self._metrics, message, self._answering.profiles[message.profile], timing, seconds)

    async def _heartbeat(self) -> None:
        while True:
            await asyncio.sleep(HEARTBEAT.total_seconds())
            self._view.proposals.expire(time.monotonic())
            show(self._metrics, self._view, held=len(self._outbox))
            self._outbox.keep_alive()

    async def finish(self) -> None:
        """Give back what is not ranked, wait for what is being published."""
        for held in self._hold.empty():
            self._outbox.release(held.delivery)
        await self._outbox.emptied(within=HEARTBEAT)

    def _complain(self, problem: str, where: str) -> None:
        if problem:
            log.warning("left something out of the view", subject=where, reason=problem)
