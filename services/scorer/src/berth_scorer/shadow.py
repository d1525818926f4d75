"""A shadow: ranks what live scorers have ranked, by its own configuration, compares, and binds nothing (ADR 35).

It reads as a user who may only look, and takes no message from anybody: it reads the copies that RANKED publishes of
what it stores. A live ranking has the pod and the positions that it was made on, so the shadow ranks the same pod on
the same view. What comes faster than it ranks is skipped and counted; no scorer and no binder ever waits for it.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from importlib.metadata import version
from typing import Final

from berth.bus.interface import Bus, BusLostError, Entry, Session, StoredMessage
from berth.bus.topology import CLUSTER
from berth.cluster.buckets import LiveDataReader
from berth.errors import BerthError, DecodeError
from berth.framework.cycle import check
from berth.lifecycle.process import Process, run_until
from berth.lifecycle.sessions import UndecodableReporter, serve_each_session
from berth.messages.attempts import DecisionSummary, Pending, Positions, Ranked, attempt_of, decode, encode
from berth.messages.shadow import (
    MOST_COMPARISON_BYTES,
    SHADOW_SERVICE,
    ShadowComparison,
    ShadowResult,
    SkipReason,
)
from berth.observability.health import Condition
from berth.observability.logging import get_logger
from berth.ranking.alignedview import AlignedView, Applied
from berth.ranking.comparison import (
    AwaitedDecisions,
    ShadowCounts,
    best_node,
    compare,
    refusing_plugins,
    why_not_compared,
)
from berth.ranking.ranker import Ranker
from berth.ranking.view import View
from berth_scorer.core import HEARTBEAT_SECONDS
from berth_scorer.following import follow
from berth_scorer.service import SLICE_SECONDS

log = get_logger()

MOST_WAITING: Final = 64
"""Rankings that wait to be made; what comes on top of them is skipped. As many as a scorer holds."""
MOST_KEPT: Final = 4096
"""Messages that have arrived and are not looked at yet. The oldest of more are dropped."""
LONGEST_WAIT_SECONDS: Final = 1.0
"""After which a live ranking is too old to be compared: a shadow is never further behind."""
BROADCASTS_A_SECOND: Final = 20
"""Differences that are broadcast; of more, people read none, and the numbers have all of them."""
OTHER_PLUGINS: Final = "(others)"


async def serve_shadow(process: Process, bus: Bus, ranker: Ranker, name: str) -> None:
    """Compare until the process stops. Each session has a new view; the numbers go on."""
    condition = process.health.condition("shadow", "waiting for NATS")
    counts = ShadowCounts()

    async def serve(session: Session) -> None:
        shadow = Shadow(session, ranker, process, name, counts)
        # It does not announce itself: its configuration differs on purpose, and nobody is to be warned of it.
        await session.register(
            f"berth-{SHADOW_SERVICE}",
            identity=process.identity,
            version=version("berth-scorer"),
            stats=shadow.stats,
            metadata={"shadow": name},
        )
        await run_until(shadow.run(condition), process.stopping, session.lost)

    await serve_each_session(bus, name="shadow", process=process, condition=condition, serve=serve)


@dataclass(slots=True)
class _ArrivedRanking:
    """A live ranking that has arrived."""

    stored: StoredMessage
    arrived_at: float
    decoded: Ranked | None = None
    """Once it was the first that waits."""

    def live(self) -> Ranked:
        """What it says.

        Raises:
            DecodeError: it cannot be decoded.
        """
        if self.decoded is None:
            live = decode(self.stored.data, Ranked)
            attempt_of(live)
            self.decoded = live
        return self.decoded


class Shadow:
    """One shadow on one session."""

    def __init__(self, session: Session, ranker: Ranker, process: Process, name: str, counts: ShadowCounts) -> None:
        self.name = name
        self._session = session
        self._ranker = ranker
        self._clock = process.clock
        self._now = process.clock.now
        self._metrics = process.metrics
        self._health = process.health
        self._undecodable = UndecodableReporter(process.metrics)
        self._lifetime = process.settings.numbers.proposal
        self._position_wait = process.settings.numbers.position_wait.total_seconds()
        self._counts = counts
        self._view = View(proposal_lifetime=self._lifetime)
        self._aligned = AlignedView(self._view)
        self._awaited = AwaitedDecisions()
        self._waiting: deque[_ArrivedRanking] = deque()
        self._last_ranked = 0
        self._is_reading = False
        self._changed = asyncio.Event()
        self._to_send: deque[ShadowComparison] = deque(maxlen=BROADCASTS_A_SECOND)
        self._sent_in_second = 0
        self._send = asyncio.Event()

    def stats(self) -> dict[str, object]:
        """What ``nats micro stats`` shows, and ``berth top`` and the console read."""
        return {
            "readiness": self._health.summary(),
            "shadow": self._counts.figures(self.name),
            "held": len(self._waiting),
            "awaited": len(self._awaited),
            "view_age_seconds": self._view.age_seconds(),
        }

    async def run(self, condition: Condition) -> None:
        """Build the view, then compare until cancelled."""
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
            self._note(self._aligned.release(self._now()))
            self._is_reading = True
            tasks.create_task(self._follow_rankings(), name="compare")
            tasks.create_task(self._heartbeat(), name="heartbeat")
            tasks.create_task(self._broadcast(), name="broadcast")
            condition.ready()

    # --- the view

    def on_mirror(self, entries: Sequence[Entry], position: int) -> None:
        """Hold them until a live ranking has counted them."""
        self._aligned.add_mirror(entries, position, self._now())
        self._arrived()

    def on_decisions(self, batch: Sequence[StoredMessage], position: int) -> None:
        """Hold them until a live ranking has counted them."""
        self._aligned.add_decisions(batch, position, self._now())
        self._arrived()

    def on_live_data(self, bucket: str, position: int) -> None:
        """The view is as far."""
        self._view.reached(bucket, position)

    def _arrived(self) -> None:
        """Until the first live ranking nothing is held."""
        if self._is_reading:
            self._changed.set()
        else:
            self._note(self._aligned.release(self._now()))

    def _note(self, applied: Applied) -> None:
        """Warn of what cannot be decoded, and conclude the comparisons whose Decision was read."""
        for problem in applied.problems:
            self._undecodable.report(CLUSTER, problem)
        for stored in applied.decisions if len(self._awaited) else ():
            try:
                decided = self._awaited.decided(decode(stored.data, DecisionSummary))
            except DecodeError:  # the view has reported it
                continue
            if decided is not None:
                self._conclude(decided)

    def count_ranked(self, stored: StoredMessage) -> None:
        """Take it into the view."""
        problem = self._view.apply_ranked(stored.data, stored.sequence, self._now())
        if problem:
            self._undecodable.report(stored.subject, problem)

    # --- live rankings

    def on_ranked(self, stored: StoredMessage) -> None:
        """Let it wait to be compared; rankings from before the view was built count, and are not compared."""
        if not self._is_reading:
            self.count_ranked(stored)
            self._last_ranked = max(stored.sequence, self._last_ranked)
            return
        missed = stored.sequence - self._last_ranked - 1
        if self._last_ranked and missed > 0:
            self._skip(SkipReason.MISSED, missed)
        self._last_ranked = max(stored.sequence, self._last_ranked)
        if len(self._waiting) >= MOST_KEPT:
            self._waiting.popleft()
            self._skip(SkipReason.BUSY)
        self._waiting.append(_ArrivedRanking(stored, self._now()))
        self._changed.set()

    async def _follow_rankings(self) -> None:
        """Compare one pod after the other, in the order of the stream; other tasks run between slices."""
        slice_ends = self._now() + SLICE_SECONDS
        while True:
            now = self._now()
            if now >= slice_ends:
                await asyncio.sleep(0)
                now = self._now()
                slice_ends = now + SLICE_SECONDS
            self._note(self._aligned.let_go(now, is_idle=not self._waiting))
            due_at = self._handle_first(now)
            if due_at is not None:
                await self._wait(due_at)
                slice_ends = self._now() + SLICE_SECONDS

    def _handle_first(self, now: float) -> float | None:
        """Handle the oldest live ranking if it is due; returns until when to wait for something to do, if anything."""
        if not self._waiting:
            return self._aligned.due_at() or float("inf")
        first = self._waiting[0]
        is_late = len(self._waiting) > MOST_WAITING or now - first.arrived_at > LONGEST_WAIT_SECONDS
        try:
            live = first.live()
        except DecodeError as error:
            self._waiting.popleft()
            self._undecodable.report(first.stored.subject, str(error))
            self._skip(SkipReason.MISSED)
            return None
        waits_until = first.arrived_at + self._position_wait
        if not is_late and now < waits_until and not self._aligned.has_arrived(live.positions):
            return waits_until
        self._waiting.popleft()
        self._handle(first.stored, live, now, is_late=is_late)
        return None

    async def _wait(self, until: float) -> None:
        self._changed.clear()
        timer = None
        if until != float("inf"):
            delay = max(0.0, until - self._now())
            timer = asyncio.get_running_loop().call_later(delay, self._changed.set)
        try:
            await self._changed.wait()
        finally:
            if timer is not None:
                timer.cancel()

    def _handle(self, stored: StoredMessage, live: Ranked, now: float, *, is_late: bool) -> None:
        """Compare it, and count it in the view as every scorer does: the next ranking is made on what happened."""
        self._note(self._aligned.advance_to(live, now))
        asked_at = min(live.asked_at, stored.time) if live.asked_at is not None else stored.time
        self._view.advance_clock(asked_at)
        reason = why_not_compared(live, self._ranker.profiles.get(live.profile))
        if is_late:
            reason = reason or SkipReason.BUSY
        if reason is None:
            self._await_decision(live, self._rank(live, now), now)
        else:
            self._skip(reason)
        self._view.count_peer(live, stored.sequence, now)

    def _rank(self, live: Ranked, now: float) -> Ranked:
        pending = Pending(
            config=live.config,
            attempt=live.attempt,
            profile=live.profile,
            pod=live.pod,
            failures=live.failures,
            after=Positions(),
        )
        began = time.perf_counter()
        try:
            own = self._ranker.answer(pending, self._view, now, also=best_node(live))
        except Exception as exc:  # an exception of a plugin is this ranking's failure, not the shadow's
            log.exception("ranking failed", attempt=live.attempt)
            own = self._ranker.give_up(pending, f"ranking raised {type(exc).__name__}: {exc}")
        self._metrics.observe("berth_shadow_ranking_duration_seconds", time.perf_counter() - began)
        return own

    def _await_decision(self, live: Ranked, own: Ranked, now: float) -> None:
        node, refusal = best_node(live), None
        if node and not own.error and all(each.node != node for each in own.candidates):
            refusal = check(live.pod, node, self._view.snapshot, self._ranker.profiles[live.profile])
        comparison = compare(live, own, shadow=self.name, refusal=refusal)
        for side, plugin in refusing_plugins(comparison, live):
            named = plugin if self._counts.count_refusal(side, plugin) else OTHER_PLUGINS
            self._metrics.count("berth_shadow_refusals_total", by=side, plugin=named)
        if dropped := self._awaited.add(comparison, now):
            self._skip(SkipReason.UNDECIDED, dropped)

    def _skip(self, reason: SkipReason, count: int = 1) -> None:
        self._counts.skipped[reason] += count
        self._metrics.count("berth_shadow_skipped_total", count, reason=reason)

    # --- results

    def _conclude(self, comparison: ShadowComparison) -> None:
        self._counts.count(comparison)
        self._metrics.count("berth_shadow_comparisons_total", result=comparison.result, profile=comparison.profile)
        if comparison.points_apart is not None:
            self._metrics.observe("berth_shadow_points_apart", comparison.points_apart, profile=comparison.profile)
        if comparison.result is not ShadowResult.EQUAL:
            self._to_send.append(comparison)
            self._send.set()

    async def _broadcast(self) -> None:
        """Tell people of differences, the newest ones of too many. Nothing waits for that, and nobody has to listen."""
        while True:
            await self._send.wait()
            self._send.clear()
            while self._to_send and self._sent_in_second < BROADCASTS_A_SECOND:
                self._sent_in_second += 1
                comparison = self._to_send.popleft()
                data = encode(comparison)
                if len(data) > MOST_COMPARISON_BYTES:
                    log.warning("a difference is too large to be shown", subject=comparison.subject, bytes=len(data))
                    continue
                try:
                    await self._session.broadcast(comparison.subject, data)
                except BusLostError:
                    raise
                except BerthError as error:
                    log.warning("a difference is not shown", subject=comparison.subject, reason=str(error))

    async def _heartbeat(self) -> None:
        while True:
            await self._clock.sleep(HEARTBEAT_SECONDS)
            now = self._now()
            self._view.expire(now)
            if overdue := self._awaited.expire(now):
                self._skip(SkipReason.UNDECIDED, overdue)
            self._sent_in_second = 0
            if self._to_send:
                self._send.set()
