"""The scorer as a service: reads the bus into the view, takes PENDING, publishes RANKED, acknowledges."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import timedelta
from typing import Final, TypeVar

import msgspec

from berth.api.config.configuration import ExtenderConfiguration
from berth.api.node import Node
from berth.api.pod import Pod
from berth.bus.interface import (
    Bus,
    BusLostError,
    Delivery,
    Entry,
    MissingError,
    Session,
    StoredMessage,
)
from berth.bus.topology import CLUSTER, DECISIONS, PENDING, SCORER, TRIES
from berth.bus.tries import BegunTries, TryCounter
from berth.cluster.buckets import LiveDataReader
from berth.cluster.nodes import node_info
from berth.errors import BerthError, DecodeError, TemporaryError
from berth.extenders.client import Extenders
from berth.extenders.wire import ExtenderError
from berth.framework.cycle import ToExtend
from berth.framework.extending import Extension
from berth.framework.interface import Nomination
from berth.framework.plugincalls import ONE_TIME, PluginFailure, SortKey, Timing, default_sort_key, run_sort_key
from berth.framework.profile import Profile
from berth.lifecycle.process import Process, run_until
from berth.lifecycle.sessions import Refusals, UndecodableReporter, present, serve_each_session
from berth.messages.attempts import Pending, Ranked, UnknownSchemaError, attempt_of, decode
from berth.messages.subjects import key
from berth.observability.health import Condition
from berth.observability.logging import get_logger, verbose
from berth.observability.metrics import Meter, point_of
from berth.observability.traceparent import TRACEPARENT, trace_id_of
from berth.observability.tracing import Span
from berth.ranking.ranker import Ranker
from berth.ranking.view import View
from berth.settings.settings import V_STEP
from berth_scorer.backlog import RETRY_DELAY, Backlog, Outbox, PendingDelivery
from berth_scorer.following import follow

log = get_logger()

T = TypeVar("T")

HEARTBEAT: Final = timedelta(seconds=1)
"""Between two ``in_progress`` for everything held: a third of the ack_wait."""

UNKNOWN_DELAY: Final = timedelta(seconds=2)
"""When a message of an unknown schema or profile is redelivered: another scorer may support it."""

SLICE_SECONDS: Final = 0.01
"""How long pods are ranked before other tasks have their turn: the first of several that came together is published so
much later. Published one by one, each would cost a write here, and a wake-up of NATS and of the binder."""

MAX_TRIES: Final = 5
"""How often one process tries to rank a pod before it answers with an error."""

MAX_QUESTIONS: Final = 3
"""How often extenders are asked in one attempt when the feasible nodes change under the question."""

NOBODY_ASKED: Final = Extension(asked=frozenset(), left=frozenset())

PLUGINS_EVERY: Final = 11
"""Plugins are timed for one pod of this many; kube-scheduler times a tenth. Timing takes 37 µs, which is 10 % of a
cycle at 5,000 nodes. A prime number, so that all kinds of pods are timed when they alternate."""


async def serve(process: Process, bus: Bus, ranker: Ranker, extenders: Sequence[ExtenderConfiguration] = ()) -> None:
    """Rank until the process stops. Each session has a new scorer, since the store may be another one."""
    async with Extenders(extenders, process.metrics) as asked:
        await _serve(process, bus, ranker, asked)


async def _serve(process: Process, bus: Bus, ranker: Ranker, extenders: Extenders) -> None:
    condition = process.health.condition("scorer", "waiting for NATS")
    begun = BegunTries()

    async def score(session: Session) -> None:
        scorer = Scorer(session, ranker, process, begun, extenders)
        async with present(session, process, stats=scorer.stats):
            await run_until(scorer.run(condition), process.stopping, session.lost)
            await scorer.finish()

    await serve_each_session(bus, name="scorer", process=process, condition=condition, serve=score)


class TriedTooOftenError(Exception):
    """The plugins of a suspect are what ends scorers."""


class Scorer:
    """One scorer on one session."""

    def __init__(
        self, session: Session, ranker: Ranker, process: Process, begun: BegunTries, extenders: Extenders
    ) -> None:
        self._session = session
        self._ranker = ranker
        self._extenders = extenders
        self._asking: dict[int, PendingDelivery] = {}
        """Pods about which extenders are being asked, by their messages' sequence."""
        self._alone = asyncio.Lock()
        """Held while a try of a suspect counts. Nothing else is ranked then, since that could end the process too."""
        self._metrics = process.metrics
        self._undecodable = UndecodableReporter(process.metrics)
        self._peers = process.peers
        self._clock = process.clock
        self._now = process.clock.now
        self._tracing = process.tracing
        self._lifetime = process.settings.numbers.proposal
        self._max_unacked = process.settings.numbers.scorer_hold
        self._view = View(proposal_lifetime=self._lifetime)
        self._backlog = Backlog(position_wait=process.settings.numbers.position_wait)
        self._outbox = Outbox(session, process.metrics)
        self._tries = TryCounter(session, begun, TRIES)
        self._changed = asyncio.Event()
        self._answered = 0

    def stats(self) -> dict[str, object]:
        """What ``nats micro stats`` shows."""
        return {
            "answered": self._answered,
            "held": len(self._outbox),
            "proposals": len(self._view.proposals),
            "view_age_seconds": self._view.age_seconds(),
        }

    async def run(self, condition: Condition) -> None:
        """Build the view, then rank until cancelled; what is not acknowledged then is redelivered to others."""
        async with AsyncExitStack() as stack, asyncio.TaskGroup() as tasks:
            condition.waiting("reading the mirror")
            await follow(
                self._session,
                self,
                LiveDataReader(self._view.snapshot.live, self._ranker.live_sources),
                lifetime=self._lifetime,
                undecodable=self._undecodable,
                stack=stack,
                tasks=tasks,
            )
            tasks.create_task(self._consume(), name="consume")
            tasks.create_task(self._heartbeat(), name="heartbeat")
            tasks.create_task(self._rank_backlog(tasks), name="rank")
            tasks.create_task(self._settle_tries(), name="tries")
            condition.ready()

    async def finish(self) -> None:
        """Return what is not ranked, and wait for what is being published."""
        for item in (*self._backlog.clear(), *self._asking.values()):
            self._outbox.release(item.delivery)
        await self._outbox.wait_empty(within=HEARTBEAT)

    # --- the view

    def on_mirror(self, entries: Sequence[Entry], position: int) -> None:
        """Take them into the view."""
        for problem in self._view.apply_mirror(entries, position):
            self._warn(problem, CLUSTER)
        self._view_moved()

    def on_decisions(self, batch: Sequence[StoredMessage], position: int) -> None:
        """Take them into the view."""
        for problem in self._view.apply_decisions(batch, position, self._now()):
            self._warn(problem, DECISIONS)
        self._view_moved()

    def on_live_data(self, bucket: str, position: int) -> None:
        """The view is as far."""
        self._view.reached(bucket, position)
        self._view_moved()

    def on_ranked(self, stored: StoredMessage) -> None:
        """Take a peer's into the view; this scorer's own counts there already."""
        if self._outbox.sent.has(stored.subject, stored.data):
            self._view.counted_ranked(stored.sequence)
        else:
            self.count_ranked(stored)

    def count_ranked(self, stored: StoredMessage) -> None:
        """Take it into the view."""
        self._warn(self._view.apply_ranked(stored.data, stored.sequence, self._now()), stored.subject)

    def _warn(self, problem: str, subject: str) -> None:
        if problem:
            self._undecodable.report(subject, problem)

    # --- taking PENDING

    async def _consume(self) -> None:
        async with self._session.consume(PENDING, SCORER, max_unacked=self._max_unacked) as deliveries:
            async for delivery in deliveries:
                await self._take(delivery)

    async def _take(self, delivery: Delivery) -> None:
        try:
            pending = decode(delivery.data, Pending)
            attempt_of(pending)
        except UnknownSchemaError:
            delivery.nak(UNKNOWN_DELAY)
        except DecodeError as exc:
            log.warning("a message becomes a dead letter", subject=delivery.subject, reason=str(exc))
            await self._outbox.reject(delivery, str(exc))
        else:
            self._add(delivery, pending)

    def _add(self, delivery: Delivery, pending: Pending) -> None:
        self._peers.read("watcher", pending.config, pending.profile, self._now())
        profile = self._ranker.profiles.get(pending.profile)
        if profile is None:
            delivery.nak(UNKNOWN_DELAY)
            return
        self._view.received(delivery.sequence, delivery.time)
        self._metrics.count("berth_messages_received_total", stream=PENDING)
        if verbose(V_STEP):
            about = {"pod": pending.pod.key, "uid": pending.pod.uid, "attempt": pending.attempt}
            log.info("pod received", **about, trace_id=trace_id_of(delivery.headers), delivered=delivery.delivered)
        if not self._outbox.hold(delivery):
            return
        item = PendingDelivery(delivery=delivery, pending=pending, taken_at=self._now(), rank=rank_of(profile, pending))
        self._backlog.add(item, self._view.positions)
        self._changed.set()

    # --- ranking

    async def _rank_backlog(self, tasks: asyncio.TaskGroup) -> None:
        """Rank what is due, one pod after the other; other tasks run between slices, and extenders are asked meanwhile.

        What is published in a slice goes out together.
        """
        slice_ends = self._now() + SLICE_SECONDS
        while True:
            now = self._now()
            if now >= slice_ends:
                await asyncio.sleep(0)
                now = self._now()
                slice_ends = now + SLICE_SECONDS
            if self._alone.locked():
                async with self._alone:
                    pass
            item = self._backlog.pop(self._view.positions, now)
            if item is None:
                await self._wait()
                slice_ends = self._now() + SLICE_SECONDS
            elif self._is_to_be_extended(item):
                self._asking[item.delivery.sequence] = item
                tasks.create_task(self._rank_extended(item), name=f"extend {item.pending.attempt}")
            elif item.suspect:
                await self._rank_suspect(item)
            else:
                self._outbox.send(item, *self._answer(item))

    async def _wait(self) -> None:
        """Wait for a message, or, while messages wait for positions, for more of the view, or until one is due."""
        self._changed.clear()
        due = self._backlog.due_in(self._now())
        # Not asyncio.timeout, which takes 8 µs: this waits once a pod.
        timer = None if due is None else asyncio.get_running_loop().call_later(due, self._changed.set)
        try:
            await self._changed.wait()
        finally:
            if timer is not None:
                timer.cancel()

    def _view_moved(self) -> None:
        if self._backlog:
            self._changed.set()

    async def _rank_suspect(self, item: PendingDelivery) -> None:
        """Rank it alone. A NATS that does not answer is not the pod's failure: the message is redelivered."""
        try:
            await self._rank_alone(*await self._extended(item))
        except (BusLostError, MissingError):
            raise
        except TemporaryError as error:
            log.warning("ranking a suspect again later", attempt=item.pending.attempt, reason=str(error))
            self._asking.pop(item.delivery.sequence, None)
            self._outbox.release(item.delivery, RETRY_DELAY)

    async def _settle_tries(self) -> None:
        """Take back what NATS did not answer; the session may be another one than that of the tries."""
        refusals = Refusals("cannot take back a count of tries")
        while True:
            await self._clock.sleep(HEARTBEAT.total_seconds())
            with refusals.logged_once():
                await self._tries.settle()

    async def _rank_alone(self, item: PendingDelivery, extension: Extension | None) -> None:
        """Rank and publish a suspect."""
        async with self._alone:
            name = key("attempt", item.pending.attempt)
            if await self._may_try(item):
                message, headers = self._answer(item, extension)
            else:
                reason = f"ranking ended {TryCounter.LIMIT - 1} scorers before this one"
                self._outbox.send_dead_letter(item.delivery, reason, item.pending.attempt)
                message, headers = self._ranker.give_up(item.pending, reason), item.delivery.headers
            self._asking.pop(item.delivery.sequence, None)
            try:
                await self._outbox.publish(item, message, headers)
            except TemporaryError:
                await self._tries.take_back(name)
                raise
            await self._tries.clear(name)

    async def _may_try(self, item: PendingDelivery) -> bool:
        """Count a try of a suspect in KV ``tries``, once everything else is published."""
        await self._outbox.wait_empty()
        return await self._tries.count(key("attempt", item.pending.attempt)) < TryCounter.LIMIT

    # --- extenders

    def _is_to_be_extended(self, item: PendingDelivery) -> bool:
        return not item.pending.error and self._extenders.are_interested_in(item.pending.pod)

    async def _rank_extended(self, item: PendingDelivery) -> None:
        if item.suspect:
            await self._rank_suspect(item)
            return
        extended, extension = await self._extended(item)
        async with self._alone:
            self._asking.pop(item.delivery.sequence, None)
            self._outbox.send(extended, *self._answer(extended, extension))

    async def _extended(self, item: PendingDelivery) -> tuple[PendingDelivery, Extension | None]:
        """The message and what extenders say; their failure is an error of the pod."""
        if not self._is_to_be_extended(item):
            return item, None
        try:
            return item, await self._ask_extenders(item)
        except BerthError:  # of NATS, where the tries of a suspect are counted
            raise
        except TriedTooOftenError:  # it is given up in its next try
            return item, None
        except ExtenderError as error:
            reason = str(error)
        except Exception as exc:  # a bug is this pod's failure, not the scorer's
            log.exception("asking extenders failed", attempt=item.pending.attempt)
            reason = f"asking extenders raised {type(exc).__name__}"
        return replace(item, pending=msgspec.structs.replace(item.pending, error=reason)), None

    async def _ask_extenders(self, item: PendingDelivery) -> Extension | None:
        """What they say about the nodes that are feasible; again when only others are feasible by then."""
        pending, extension = item.pending, NOBODY_ASKED
        for _ in range(MAX_QUESTIONS):
            to_extend, nodes = await self._try(item, lambda: self._nodes_to_extend(pending))
            if to_extend.nodes:
                extension = await self._extenders.ask(pending.pod, to_extend, nodes)
            if not extension.left and self._extenders.are_asked_about_evictions(pending.pod):
                extension = await self._ask_about_evictions(item, extension)
            feasible = await self._try(item, lambda: self._ranker.to_extend(pending, self._view, search=False).nodes)
            if extension.is_final_for(feasible):
                break
        return None if extension.says_nothing else extension

    def _nodes_to_extend(self, pending: Pending) -> tuple[ToExtend, dict[str, Node]]:
        to_extend = self._ranker.to_extend(pending, self._view)
        infos = [node_info(self._view.snapshot, name) for name in to_extend.all]
        return to_extend, {info.name: info.node for info in infos if info is not None}

    async def _ask_about_evictions(self, item: PendingDelivery, extension: Extension) -> Extension:
        candidates, victims = await self._try(item, lambda: self._evictions(item.pending, extension))
        if not candidates:
            return extension
        evictions = await self._extenders.ask_about_evictions(item.pending.pod, candidates, victims)
        return replace(extension, evictions=evictions)

    def _evictions(self, pending: Pending, extension: Extension) -> tuple[list[Nomination], dict[str, Pod]]:
        candidates = self._ranker.evictions(pending, self._view, extension)
        placed = [self._view.snapshot.placed(uid) for each in candidates for uid in each.victims]
        return candidates, {each.pod.uid: each.pod for each in placed if each is not None}

    async def _try(self, item: PendingDelivery, run: Callable[[], T]) -> T:
        """Run plugins before a question; those of a suspect alone, and counted only as long as they run.

        Raises:
            TriedTooOftenError: they are what ends scorers.
        """
        async with self._alone:
            if not item.suspect:
                return run()
            if not await self._may_try(item):
                raise TriedTooOftenError
            try:
                return run()
            finally:
                await self._tries.take_back(key("attempt", item.pending.attempt))

    def _answer(self, item: PendingDelivery, extension: Extension | None = None) -> tuple[Ranked, Mapping[str, str]]:
        """The ranking and its headers."""
        with self._tracing.span("rank", parent=item.delivery.headers.get(TRACEPARENT)) as span:
            span.note("attempt", item.pending.attempt)
            return self._rank(item, extension, span), {TRACEPARENT: span.traceparent}

    def _rank(self, item: PendingDelivery, extension: Extension | None, span: Span) -> Ranked:
        """After ``MAX_TRIES`` exceptions in a row the answer is an error, with a dead letter."""
        if item.pending.error:
            return self._ranker.give_up(item.pending, item.pending.error)
        reason = ""
        for _ in range(MAX_TRIES):
            timing, began = Timing(time.perf_counter), time.perf_counter()
            try:
                message = self._rank_timed(item, timing, extension)
            except Exception as exc:  # an exception of a plugin is the pod's failure, not the scorer's
                reason = f"ranking raised {type(exc).__name__}: {exc}"
                log.exception("ranking failed", attempt=item.pending.attempt)
            else:
                self._count(message, timing, time.perf_counter() - began)
                if span.is_recorded:
                    self._export_points(timing, span)
                return message
        self._outbox.send_dead_letter(item.delivery, reason, item.pending.attempt)
        return self._ranker.give_up(item.pending, reason)

    def _rank_timed(self, item: PendingDelivery, timing: Timing, extension: Extension | None) -> Ranked:
        """The ranking; for some pods each plugin is timed too."""
        now, pending = self._now(), item.pending
        self._metrics.observe("berth_hold_duration_seconds", now - item.taken_at)
        if self._answered % PLUGINS_EVERY:
            return self._ranker.answer(pending, self._view, now, timing, extension)
        profile = self._ranker.profiles[pending.profile]
        profile.time_plugins(timing)
        try:
            return self._ranker.answer(pending, self._view, now, timing, extension)
        finally:
            profile.time_plugins(None)

    # --- metrics and heartbeat

    def _export_points(self, timing: Timing, parent: Span) -> None:
        """A span for each extension point of a cycle."""
        for point, (seconds, code, began) in timing.points.items():
            notes = {"status": code.label}
            self._tracing.past(point, parent.traceparent, began=began, seconds=seconds, notes=notes)

    def _count(self, message: Ranked, timing: Timing, seconds: float) -> None:
        self._answered += 1
        count_ranking(self._metrics, message, self._ranker.profiles[message.profile], timing, seconds)

    async def _heartbeat(self) -> None:
        while True:
            await self._clock.sleep(HEARTBEAT.total_seconds())
            self._view.expire(self._now())
            set_gauges(self._metrics, self._view, held=len(self._outbox))
            self._outbox.send_in_progress()


def rank_of(profile: Profile, pending: Pending) -> tuple[str, SortKey]:
    """Equal for pods that the profile's QueueSort plugin puts at one place but for their time."""
    try:
        return pending.profile, run_sort_key(profile.queue_sort, pending.pod, ONE_TIME)
    except PluginFailure:  # the watcher has said so, and put the pod where its priority puts it
        return pending.profile, default_sort_key(pending.pod, ONE_TIME)


def count_ranking(metrics: Meter, message: Ranked, profile: Profile, timing: Timing, seconds: float) -> None:
    """Count a ranking and observe its duration, in all and by extension point and plugin."""
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
            status=took.code.label,
            profile=message.profile,
        )
    for (plugin, point), took in timing.plugins.items():
        metrics.observe(
            "scheduler_plugin_execution_duration_seconds",
            took.seconds,
            plugin=plugin,
            extension_point=point_of(point),
            status=took.code.label,
        )


def set_gauges(metrics: Meter, view: View, *, held: int) -> None:
    """Set the gauges of the messages held, the proposals and the view."""
    metrics.set("berth_held_pods", held)
    metrics.set("berth_proposals", len(view.proposals))
    metrics.set("scheduler_cache_size", view.snapshot.node_count, type="nodes")
    metrics.set("scheduler_cache_size", view.snapshot.pod_count, type="pods")
    metrics.set("scheduler_cache_size", len(view.proposals), type="assumed_pods")
    for kind, complete_at in view.complete.items():
        metrics.set("berth_mirror_complete_timestamp_seconds", complete_at.timestamp(), kind=kind)
