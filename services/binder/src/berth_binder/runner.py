"""One leadership of the binder: takes over, then carries out what the core asks for until it is told or has to stop."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass
from typing import Any, Final

from berth.api.errors import DecodeError
from berth.api.livedata import LiveSource
from berth.api.messages import Ranked, UnknownSchemaError, attempt_of, decode
from berth.api.subjects import Epoch
from berth.bus.interface import Consumption, Delivery, Session
from berth.bus.topology import RANKED
from berth.cluster.buckets import LiveDataReader
from berth.framework.profile import Profile
from berth.kube.client import KubeClient
from berth.kube.informers import Informers
from berth.leader.session import LeaderSession
from berth.process.lifecycle import Process
from berth.process.logging import get_logger
from berth.process.sessions import follow_live
from berth.process.tasks import run_until
from berth_binder import apicalls
from berth_binder.apicalls import demote, evict, post_binding, read_pod
from berth_binder.cache import Cache
from berth_binder.core import BinderCore
from berth_binder.decisions import Publishing, clear, count_binding, show
from berth_binder.effects import (
    Ack,
    Demote,
    Effect,
    Evict,
    GetPod,
    LogWarning,
    Nak,
    Post,
    Publish,
    RankedMessage,
    RecordEvent,
    Request,
    WriteVolumes,
)
from berth_binder.eventrecorder import EventRecorder
from berth_binder.progress import ViewState
from berth_binder.settings import BinderSettings
from berth_binder.takeover import Takeover

log = get_logger()

GAUGES_SECONDS: Final = 1.0
"""Between two settings of gauges; nobody scrapes more often."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BinderParts:
    """What lives as long as the process and serves each leadership."""

    process: Process
    client: KubeClient
    cache: Cache
    informers: Informers
    recorder: EventRecorder
    profiles: dict[str, Profile]
    config: str
    """Digest of the configuration."""
    settings: BinderSettings


class BinderRunner:
    """The shell of one epoch."""

    def __init__(self, parts: BinderParts, session: Session, leadership: LeaderSession) -> None:
        self._parts = parts
        self._session = session
        self._leadership = leadership
        self._now = parts.process.clock.now
        self._metrics = parts.process.metrics
        self._core = BinderCore(
            cache=parts.cache,
            profiles=parts.profiles,
            stand=ViewState(epoch=Epoch(leadership.number), config=parts.config),
            settings=parts.settings.core,
        )
        self._publishing = Publishing(session, self._metrics)
        self._tasks = asyncio.TaskGroup()
        self._under_way = 0
        self._changed = asyncio.Event()
        self._due: float | None = None
        self._complaints: set[str] = set()

    async def run(self) -> None:
        """Lead until the leadership is lost or the process stops.

        Raises:
            BerthError, or a group of them: leading is over for this reason.
        """
        ends = (self._leadership.lost, self._session.lost)
        consumer = await run_until(self._takeover().run(), *ends, self._parts.process.stopping)
        if consumer is not None:
            consuming = self._session.consume(RANKED, consumer, max_unacked=self._parts.settings.hold)
            await run_until(self._commit(consuming), *ends)

    def _takeover(self) -> Takeover:
        parts = self._parts
        return Takeover(
            session=self._session,
            leadership=self._leadership,
            client=parts.client,
            cache=parts.cache,
            informers=parts.informers,
            schedulers=parts.profiles.keys(),
        )

    async def _commit(self, consuming: AbstractAsyncContextManager[Consumption]) -> None:
        async with AsyncExitStack() as stack, consuming as consumption, self._tasks as tasks:
            live = await follow_live(self._session, self._heard_data(), stack, tasks, lambda *_: None)
            receiving = tasks.create_task(self._receive(consumption), name="receive")
            lasting = [
                tasks.create_task(work, name=name)
                for name, work in (
                    ("keep alive", self._keep_alive()),
                    ("clock", self._follow_clock()),
                    ("gauges", self._show()),
                )
            ]
            await self._parts.process.stopping.wait()
            receiving.cancel()
            await self._finish()
            for task in (*lasting, *live):
                task.cancel()

    def _heard_data(self) -> LiveDataReader:
        """What the filters read beside the cluster's objects."""
        sources = frozenset[LiveSource]().union(*(p.live_sources_of_filters for p in self._parts.profiles.values()))
        return LiveDataReader(self._parts.cache.snapshot.live, sources)

    async def _finish(self) -> None:
        """Take nothing new; what is on the wire is seen to its end, as far as there is time."""
        self._core.close()
        try:
            async with asyncio.timeout(self._parts.settings.finish.total_seconds()):
                while self._under_way:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            log.warning("stopping with requests under way: the next binder reads what became of them")

    # Messages.

    async def _receive(self, consumption: Consumption) -> None:
        async for delivery in consumption:
            self._metrics.count("berth_messages_received_total", stream=RANKED)
            self._take(delivery)

    def _take(self, delivery: Delivery) -> None:
        self._parts.cache.snapshot.live.heard_at(delivery.time.timestamp())
        held = RankedMessage(sequence=delivery.sequence, delivery=delivery)
        try:
            effects = self._core.take(_read(delivery), held, self._now())
        except UnknownSchemaError:
            delivery.nak(self._parts.settings.unknown_schema_delay)
        except DecodeError as error:
            self._start(self._publishing.put_aside(delivery, str(error)))
        else:
            self._carry_on(effects)

    async def _keep_alive(self) -> None:
        while True:
            await self._parts.process.clock.sleep(self._parts.settings.keep_alive.total_seconds())
            for held in self._core.held():
                held.delivery.in_progress()

    async def _show(self) -> None:
        """Set the gauges, seldom enough to cost nothing."""
        try:
            while True:
                show(self._metrics, self._parts.cache, on_wire=self._core.on_wire)
                await self._parts.process.clock.sleep(GAUGES_SECONDS)
        finally:
            clear(self._metrics)

    async def _follow_clock(self) -> None:
        """Let the core do what is due by the clock alone."""
        while True:
            self._due = due = self._core.due()
            self._changed.clear()
            try:
                async with asyncio.timeout(None if due is None else max(0.0, due - self._now())):
                    await self._changed.wait()
            except TimeoutError:
                self._carry_on([])

    # Effects.

    def _carry_on(self, effects: Sequence[Effect]) -> None:
        """Carry out effects, and whatever may be started now that something has happened."""
        for effect in (*effects, *self._core.advance(self._now())):
            self._perform(effect)
        self._parts.recorder.bindings_wait = self._core.backlog > 0
        if self._core.due() != self._due:
            self._changed.set()

    def _perform(self, effect: Effect) -> None:
        match effect:
            case Ack():
                effect.held.delivery.ack()
            case Nak():
                effect.held.delivery.nak(effect.delay)
            case RecordEvent():
                self._announce(effect)
            case LogWarning():
                self._complain(effect.text)
            case _:
                self._start(self._request(effect))

    def _request(self, effect: Request) -> Coroutine[Any, Any, None]:
        match effect:
            case Post():
                return self._post(effect)
            case GetPod():
                return self._read(effect)
            case Evict():
                return self._evict(effect)
            case Demote():
                return self._demote(effect)
            case WriteVolumes():
                return self._write(effect)
            case Publish():
                return self._publish(effect)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        self._under_way += 1
        self._tasks.create_task(work).add_done_callback(self._ended)

    def _ended(self, _task: asyncio.Task[None]) -> None:
        self._under_way -= 1
        self._changed.set()

    async def _post(self, post: Post) -> None:
        self._see_that_we_lead()
        began = self._now()
        answer = await post_binding(self._parts.client, post, self._parts.settings.binding_timeout)
        count_binding(self._metrics, answer, self._now() - began, profile=post.pod.spec.scheduler_name)
        self._carry_on(self._core.answered(post.pod.uid, answer, self._now()))

    async def _read(self, read: GetPod) -> None:
        reading = await read_pod(self._parts.client, read)
        self._carry_on(self._core.read(read.pod.uid, reading, self._now()))

    async def _evict(self, effect: Evict) -> None:
        answer = await evict(self._parts.client, effect, self._see_that_we_lead)
        if answer.pod is not None:
            log.info("evicted pods", **_about(effect), status=answer.status)
        else:
            log.warning("could not evict pods", **_about(effect), status=answer.status, reason=answer.message)
        self._carry_on(self._core.evicted(effect.pod.uid, answer, self._now()))

    async def _write(self, write: WriteVolumes) -> None:
        written = await apicalls.write_before_binding(self._parts.client, write, self._see_that_we_lead)
        log.info("wrote what comes before a Binding", pod=write.pod.key, uid=write.pod.uid, status=written.status)
        self._carry_on(self._core.written(write.pod.uid, written, self._now()))

    async def _demote(self, effect: Demote) -> None:
        self._see_that_we_lead()
        answer = await demote(self._parts.client, effect)
        if answer.missing_right:
            self._complain(answer.missing_right)

    async def _publish(self, publish: Publish) -> None:
        await self._publishing.decide(publish)
        self._carry_on(self._core.published(publish.decision))

    def _announce(self, effect: RecordEvent) -> None:
        self._parts.recorder.record(effect.decision, self._parts.cache.pod(effect.pod.uid) or effect.pod)

    def _complain(self, text: str) -> None:
        if text not in self._complaints:
            self._complaints.add(text)
            log.error(text)

    def _see_that_we_lead(self) -> None:
        """By the clock, and by what the watch has shown; asked right before each POST."""
        self._leadership.report_higher(self._parts.cache.highest_fence, seen_in="a fence")
        self._leadership.check()


def _read(delivery: Delivery) -> Ranked:
    """The message, if it is one that the core can work with.

    Raises:
        DecodeError: it is not.
    """
    ranked = decode(delivery.data, Ranked)
    attempt_of(ranked)
    return ranked


def _about(effect: Evict) -> dict[str, object]:
    names = [victim.key for victim in effect.victims]
    return {"pod": effect.pod.key, "uid": effect.pod.uid, "node": effect.node, "victims": names}
