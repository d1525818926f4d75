"""A shadow: ranks the pods of live scorers by its own configuration, and compares; it does not bind (ADR 35).

The shadow has only read permissions and consumes no message: it reads the copies that RANKED republishes. A live
ranking carries the pod and its positions, so the shadow ranks the same pod on the same view. Rankings that arrive
faster are skipped and counted.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from importlib.metadata import version
from typing import Any, Final

from berth.bus.interface import Bus, BusLostError, Session, StoredMessage
from berth.bus.topology import COMPARED
from berth.cluster.buckets import LiveDataReader
from berth.errors import BerthError
from berth.lifecycle.coreloop import CoreLoop
from berth.lifecycle.process import Process, run_until
from berth.lifecycle.sessions import UndecodableReporter, serve_each_session
from berth.messages.encoding import encode
from berth.messages.shadow import MOST_COMPARISON_BYTES, SHADOW_SERVICE
from berth.observability.health import Condition
from berth.observability.logging import get_logger
from berth.ranking.comparison import ShadowCounts
from berth.ranking.ranker import Ranker
from berth_scorer.events import LogFailure, ReportUndecodable
from berth_scorer.following import follow
from berth_scorer.service import SLICE_SECONDS
from berth_scorer.shadowcore import (
    Broadcast,
    CountComparison,
    CountRefusal,
    CountSkipped,
    LiveRankingArrived,
    ObserveShadowRanking,
    ShadowCore,
    ShadowEffect,
    ShadowEvent,
    ViewBuilt,
)

log = get_logger()

OTHER_PLUGINS: Final = "(others)"  # label of plugins beyond MOST_PLUGINS


async def serve_shadow(process: Process, bus: Bus, ranker: Ranker, name: str) -> None:
    """Compare until the process stops. Each session has a new view; the counts go on."""
    condition = process.health.condition("shadow", "waiting for NATS")
    counts = ShadowCounts()

    async def serve(session: Session) -> None:
        shadow = Shadow(session, ranker, process, name, counts)
        # Not announced: its configuration differs on purpose, and must not cause a warning about a mismatch.
        await session.register(
            f"berth-{SHADOW_SERVICE}",
            identity=process.identity,
            version=version("berth-scorer"),
            stats=shadow.stats,
            metadata={"shadow": name},
        )
        await run_until(shadow.run(condition), process.stopping, session.lost)

    await serve_each_session(
        bus, name="shadow", process=process, condition=condition, serve=serve, only=COMPARED["shadow"]
    )


class Shadow:
    """One shadow on one session."""

    def __init__(self, session: Session, ranker: Ranker, process: Process, name: str, counts: ShadowCounts) -> None:
        self.name = name
        self._session = session
        self._ranker = ranker
        self._metrics = process.metrics
        self._health = process.health
        self._undecodable = UndecodableReporter(process.metrics)
        self._counts = counts
        self._lifetime = process.settings.numbers.proposal
        self._core = ShadowCore(
            ranker=ranker,
            name=name,
            stopwatch=time.perf_counter,
            proposal_lifetime=self._lifetime,
            position_wait=process.settings.numbers.position_wait,
        )
        self._loop = CoreLoop[ShadowEvent, ShadowEffect](
            self._core, self._carry_out, clock=process.clock, slice_seconds=SLICE_SECONDS
        )

    def stats(self) -> dict[str, object]:
        """The figures that ``nats micro stats``, ``berth top`` and the console show."""
        return {
            "readiness": self._health.summary(),
            "shadow": self._counts.figures(self.name),
            "held": self._core.waiting,
            "awaited": self._core.awaited,
            "view_age_seconds": self._core.view.age_seconds(),
        }

    async def run(self, condition: Condition) -> None:
        """Build the view, then compare until cancelled."""
        try:
            async with AsyncExitStack() as stack, asyncio.TaskGroup() as tasks:
                condition.waiting("reading the mirror")
                tasks.create_task(self._loop.run(), name="core")
                await follow(
                    self._session,
                    self._loop.inbox.put,
                    self._on_ranked,
                    LiveDataReader(self._core.view.snapshot.live, self._ranker.live_sources),
                    lifetime=self._lifetime,
                    undecodable=self._undecodable,
                    stack=stack,
                    tasks=tasks,
                )
                self._loop.inbox.put(ViewBuilt())
                await self._loop.until(lambda: not self._loop.inbox)
                condition.ready()
        finally:
            await self._loop.tasks.settle(0.0)

    def _on_ranked(self, stored: StoredMessage) -> None:
        self._loop.inbox.put(LiveRankingArrived(stored=stored))

    def _carry_out(self, effect: ShadowEffect) -> Coroutine[Any, Any, None] | None:
        match effect:
            case CountSkipped(reason=reason, count=count):
                self._counts.skipped[reason] += count
                self._metrics.count("berth_shadow_skipped_total", count, reason=reason)
            case CountRefusal(side=side, plugin=plugin):
                named = plugin if self._counts.count_refusal(side, plugin) else OTHER_PLUGINS
                self._metrics.count("berth_shadow_refusals_total", by=side, plugin=named)
            case CountComparison():
                self._count(effect)
            case ObserveShadowRanking(seconds=seconds):
                self._metrics.observe("berth_shadow_ranking_duration_seconds", seconds)
            case LogFailure():
                log.error(effect.text, attempt=effect.attempt, exc_info=effect.error)
            case ReportUndecodable():
                self._undecodable.report(effect.subject, effect.reason)
            case Broadcast():
                return self._broadcast(effect)
        return None

    def _count(self, effect: CountComparison) -> None:
        comparison = effect.comparison
        self._counts.count(comparison)
        self._metrics.count("berth_shadow_comparisons_total", result=comparison.result, profile=comparison.profile)
        if comparison.points_apart is not None:
            self._metrics.observe("berth_shadow_points_apart", comparison.points_apart, profile=comparison.profile)

    async def _broadcast(self, effect: Broadcast) -> None:
        subject, data = effect.comparison.subject, encode(effect.comparison)
        if len(data) > MOST_COMPARISON_BYTES:
            log.warning("a difference is too large to be shown", subject=subject, bytes=len(data))
            return
        try:
            await self._session.broadcast(subject, data)
        except BusLostError:
            raise
        except BerthError as error:
            log.warning("a difference is not shown", subject=subject, reason=str(error))
