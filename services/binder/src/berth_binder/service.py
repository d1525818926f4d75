"""The binder's service. Its cache is current as long as the process runs; it binds pods while it leads."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from contextlib import AbstractAsyncContextManager, AbstractContextManager, AsyncExitStack, nullcontext
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any, Final

from berth.api.config.configuration import KubeSchedulerConfiguration
from berth.api.kinds import NODE, PLUGIN_KINDS, RESOURCE_CLAIM
from berth.bus.interface import (
    Bus,
    Deliveries,
    Delivery,
    Session,
    UnansweredError,
)
from berth.bus.topology import RANKED
from berth.cluster.buckets import LiveDataReader
from berth.cluster.podgroups import KINDS
from berth.errors import DecodeError
from berth.extenders.client import Extenders
from berth.framework.profile import Profile
from berth.kube.client import KubeClient
from berth.kube.informers import Informers
from berth.kube.listwatch import ReflectorEvent, Undecodable
from berth.leader.checks import LeaderChecks, OrphanCheck
from berth.leader.clients import cluster_informers
from berth.leader.loop import lead_until_stopped
from berth.leader.session import CONTROL, LeaderSession, number_in_control, term_key
from berth.lifecycle.coreloop import CoreLoop, Inbox
from berth.lifecycle.livedata import follow_live
from berth.lifecycle.process import Process, run_until
from berth.lifecycle.sessions import UndecodableReporter
from berth.messages.attempts import Ranked, attempt_of
from berth.messages.encoding import UnknownSchemaError, decode
from berth.messages.groupattempts import GROUP_SUBJECT, GroupRanked, decode_group, group_named
from berth.messages.livedata import LiveSource
from berth.messages.subjects import TRACEPARENT, Attempt, Epoch, PodSubject, trace_id_of
from berth.observability.health import Progress
from berth.observability.logging import get_logger
from berth.observability.tracing import Span
from berth.profiles.configuration import profiles_of
from berth.settings.settings import V_STEP
from berth_binder.apicalls import SETTLE_SECONDS, ApiRequests, HigherFences, clear_nomination, evict_members
from berth_binder.attempts.strays import Strays
from berth_binder.cache import Cache
from berth_binder.core import BinderCore
from berth_binder.decisions.groupreports import GroupReports
from berth_binder.decisions.partialgroups import PartialGroup, lacking
from berth_binder.effects import BinderEffects, DecisionPublisher
from berth_binder.eventrecorder.budget import EventBudget
from berth_binder.eventrecorder.recorder import EventRecorder
from berth_binder.events import (
    ClearNomination,
    Event,
    GroupDelivery,
    GroupReport,
    GroupState,
    Held,
    PodShown,
    RankedDelivery,
    RequestAnswer,
    RequestFailed,
)
from berth_binder.metrics import (
    GAUGES_SECONDS,
    clear_gauges,
    report_device_conflicts,
    report_foreign_bindings,
    set_gauges,
)
from berth_binder.settings import BinderSettings
from berth_binder.takeover import Takeover

log = get_logger()

# Seconds in which pending Events are still sent at the stop; the rest is dropped.
LAST_EVENTS_SECONDS: Final = 1.0
# Between two questions for the highest term. A message of a higher one is redelivered after the delay, so that a flood
# of made-up terms costs no question for each.
TERMS_SECONDS: Final = 0.1
TERMS_DELAY: Final = timedelta(seconds=0.2)
# Interval of the check for fences of higher epochs.
FENCES_SECONDS: Final = 1.0
GROUPS_SECONDS: Final = 1.0  # between two looks at groups that have changed


@dataclass(frozen=True, slots=True, kw_only=True)
class Clients:
    bus: Bus
    api: KubeClient
    # For Events and conditions, with connections and a rate (qps) of their own, so that they delay no Binding.
    events: KubeClient


@dataclass(frozen=True, slots=True, kw_only=True)
class BinderParts:
    process: Process
    client: KubeClient
    cache: Cache
    informers: Informers
    recorder: EventRecorder
    progress: Progress
    profiles: dict[str, Profile]
    config: str  # digest of the configuration
    settings: BinderSettings
    extenders: Extenders
    # The leader's figures for NATS's service protocol; empty on a standby.
    stats: dict[str, object] = field(default_factory=dict)


async def serve(
    clients: Clients, process: Process, configuration: KubeSchedulerConfiguration, settings: BinderSettings
) -> None:
    process.health.condition("leadership", "waiting to lead as binder")  # before the bus alone makes it ready
    profiles = dict(profiles_of(configuration, process.settings.numbers.plugin_deadline))
    cache, client = Cache(schedulers=profiles.keys()), clients.api
    called = [extender for extender in configuration.extenders if extender.bind_verb or extender.filters]
    filtering = [extender for extender in called if extender.filter_verb]
    extenders = Extenders(called, process.metrics, keeps_connections=False)
    parts = BinderParts(
        process=process,
        client=client,
        cache=cache,
        informers=cluster_informers(client, partial(observe, cache), process, filtering, whole=(NODE,)),
        recorder=EventRecorder(clients.events, process, EventBudget(settings.events)),
        progress=Progress(process.health, process.clock, limit=settings.stalled),
        profiles=profiles,
        config=configuration.digest,
        settings=settings,
        extenders=extenders,
    )
    async with extenders, asyncio.TaskGroup() as tasks:
        background = [
            tasks.create_task(parts.informers.run(), name="informers"),
            tasks.create_task(parts.recorder.run(), name="event recorder"),
        ]
        await lead_until_stopped(
            clients.bus,
            client,
            process,
            role="binder",
            serve=lambda session, leadership: BinderEpoch(parts, session, leadership).run(),
            stats=lambda: {"pods": cache.pod_count, "reservations": len(cache.assumed_pods), **parts.stats},
        )
        await parts.recorder.finish(LAST_EVENTS_SECONDS)
        for task in background:
            task.cancel()


def observe(cache: Cache, event: ReflectorEvent[Any]) -> None:
    """Pass an informer's event to the cache, and log unreadable objects."""
    cache.observe(event)
    problems = cache.snapshot.problems
    while problems:
        log.warning("an object has unusable values", reason=problems.popleft())
    if isinstance(event, Undecodable):
        log.warning("cannot decode an object", kind=event.kind, object=event.name, reason=event.reason)


class BinderEpoch:
    """One leadership: takes over, then runs the core."""

    def __init__(self, parts: BinderParts, session: Session, leadership: LeaderSession) -> None:
        self._parts = parts
        self._session = session
        self._leadership = leadership
        self._client = parts.client.checking(leadership.check)
        self._metrics = parts.process.metrics
        self._strays = Strays()
        self._core = BinderCore(
            cache=parts.cache,
            profiles=parts.profiles,
            epoch=Epoch(leadership.number),
            config=parts.config,
            settings=parts.settings.core,
            checking=self._traced_check if parts.process.tracing.is_exporting else nullcontext,
            strays=self._strays,
        )
        self._inbox = Inbox[Event]()
        self._publisher = DecisionPublisher(session, parts.process, parts.cache)
        self._fences = HigherFences(leadership, parts.cache, parts.process.clock)
        self._requests = ApiRequests(
            self._client,
            parts.process,
            leadership,
            fences=self._fences,
            cache=parts.cache,
            extenders=parts.extenders,
            binding_timeout=parts.settings.binding_timeout,
            inbox=self._inbox,
        )
        self._effects = BinderEffects(
            parts.process,
            leadership,
            session,
            requests=self._requests,
            publisher=self._publisher,
            recorder=parts.recorder,
            cache=parts.cache,
            extenders=parts.extenders,
            inbox=self._inbox,
        )
        self._requests.traceparent_of = self._traceparent_of
        self._loop = CoreLoop(
            self._core,
            self._effects.carry_out,
            clock=parts.process.clock,
            slice_seconds=parts.settings.slice.total_seconds(),
            inbox=self._inbox,
        )
        self._logs_steps = parts.process.settings.log.verbosity >= V_STEP
        # Sequence of the last message of RANKED that a crashed former leader left.
        self._left = 0
        # Sequence of the last message that was stored before this epoch took over.
        self._stored = 0
        self._are_claims_fenced = False
        self._is_late = False  # whether it has waited for requests as long as a stop may take
        # The highest term of a watcher seen in ``control``.
        self._watchers_term = 0
        self._asks_for_terms_from = 0.0  # on the process's clock
        self._older_stores = 0

    async def run(self) -> None:
        """Lead until the leadership is lost or the process stops.

        Raises:
            BerthError, or a group of them: why the leadership ended.
        """
        parts, ends = self._parts, (self._leadership.lost, self._session.lost)
        takeover = Takeover(
            session=self._session,
            leadership=self._leadership,
            client=self._client,
            cache=parts.cache,
            informers=parts.informers,
            schedulers=parts.profiles.keys(),
        )
        self._older_stores = parts.cache.older_stores  # of a LIST during the takeover too
        taken_over = await run_until(takeover.run(), *ends, parts.process.stopping)
        if taken_over is None:
            return
        self._left, self._stored = taken_over.left, taken_over.stored
        self._core.examine_first(taken_over.begun, parts.process.clock.now())
        self._are_claims_fenced = taken_over.are_claims_fenced
        if not self._are_claims_fenced:
            parts.informers.once_read(RESOURCE_CLAIM, self._end_for_claims)
        consuming = self._session.consume(RANKED, taken_over.consumer, max_unacked=parts.settings.max_unacked)
        try:
            await run_until(self._consume(consuming, taken_over.consumer), *ends)
        finally:
            await self._settle()

    async def _consume(self, consuming: AbstractAsyncContextManager[Deliveries], consumer: str) -> None:
        parts = self._parts
        async with AsyncExitStack() as stack, consuming as deliveries, asyncio.TaskGroup() as tasks:
            stack.push_async_callback(self._loop.tasks.settle, 0)
            stack.push_async_callback(self._effects.questions.settle, 0)
            parts.cache.notify(lambda uid: self._inbox.put(PodShown(uid=uid)))
            stack.callback(parts.cache.notify, None)
            parts.recorder.defer_to(lambda: self._core.backlog > 0)
            stack.callback(parts.recorder.defer_to, None)
            live = await follow_live(
                self._session,
                self._live_data(),
                stack,
                tasks,
                lambda *_: None,
                UndecodableReporter(self._metrics),
            )
            receiving = tasks.create_task(self._receive(deliveries), name="receive")
            lasting = [tasks.create_task(work, name=name) for name, work in self._lasting(consumer)]
            await parts.process.stopping.wait()
            receiving.cancel()
            await self._finish()
            for task in (*lasting, *live):
                task.cancel()

    def _lasting(self, consumer: str) -> Iterable[tuple[str, Coroutine[Any, Any, None]]]:
        parts, core = self._parts, self._core
        checks = LeaderChecks(process=parts.process, leadership=self._leadership, role="binder")
        yield "core", self._loop.run()
        yield "keep alive", self._keep_alive()
        yield "gauges", self._set_gauges()
        yield "fences", self._ask_about_fences()
        yield "store", self._end_with_the_store()
        yield "foreign bindings", report_foreign_bindings(parts.cache.foreign_bindings, parts.profiles, parts.process)
        yield "device conflicts", report_device_conflicts(parts.cache, parts.process)
        yield "groups", self._report_groups()
        yield (
            "progress",
            checks.check_progress(
                parts.progress, self._describe_stall, waiting=lambda: core.backlog, begun=lambda: core.examined
            ),
        )
        orphans = OrphanCheck(self._session, RANKED, consumer)
        yield "orphans", checks.check_orphans(self._session, orphans, self._end_for_orphans)

    async def _report_groups(self) -> None:
        parts = self._parts
        reports = GroupReports(parts.cache)
        try:
            while True:
                now = parts.process.clock.now()
                for report in reports.report(now):
                    parts.recorder.record_state(report)
                    if report.state is GroupState.GATED:
                        await self._clear_nominations(report)
                self._metrics.set("berth_group_partial", len(reports.partial))
                begun = self._core.begun_groups()
                if parts.settings.evicts_partial_groups:
                    await self._evict(reports.partial.to_evict(now, begun, self._core.is_group_tried))
                await parts.process.clock.sleep(GROUPS_SECONDS)
        finally:
            reports.close()

    async def _clear_nominations(self, report: GroupReport) -> None:
        """No attempt follows while the gate is closed: the room of its victims is nobody's until then."""
        for pod in report.pods:
            if pod.status.nominated_node_name:
                await clear_nomination(self._client, ClearNomination(pod=pod))

    async def _evict(self, found: PartialGroup | None) -> None:
        """Evict what is bound of a group that does not become whole, while it is not."""
        if found is None:
            return
        parts, group = self._parts, found.group
        members_of, about = parts.cache.members_of, f"evicting its {len(found.bound)} bound members"
        message = f"{about}: {lacking(group, members_of(group.key))}"
        parts.recorder.record_state(GroupReport(GroupState.EVICTED, group, [], message))
        log.warning("evicting a group of which only a part is bound", group=str(group.key), reason=message)
        problem = await evict_members(self._client, found.bound, lambda: members_of(group.key).need(group) > 0)
        if problem:
            log.warning("cannot evict a group", group=str(group.key), reason=problem)

    def _live_data(self) -> LiveDataReader:
        sources = frozenset[LiveSource]().union(*(p.live_sources_of_filters for p in self._parts.profiles.values()))
        return LiveDataReader(self._parts.cache.snapshot.live, sources)

    async def _finish(self) -> None:
        """Wait for requests in flight, as long as the settings allow."""
        self._core.close()
        try:
            async with asyncio.timeout(self._parts.settings.finish.total_seconds()):
                await self._loop.until(self._is_idle)
        except TimeoutError:
            self._is_late = True
            log.warning("stopping with unanswered requests: the next binder reads their results")

    def _is_idle(self) -> bool:
        is_busy = self._requests.under_way or self._publisher.under_way or self._loop.tasks or self._inbox
        return not (is_busy or self._core.is_posting_group)

    async def _settle(self) -> None:
        """Wait for the answers of the API server. If no request is left open, the next leader need not fence.

        Nor of a former leader: its writes to claims that cannot be read are not fenced.
        """
        seconds = 0.0 if self._is_late else SETTLE_SECONDS
        all_answered = await self._requests.settle(seconds) and self._are_claims_fenced
        if self._core.is_posting_group:  # its message is looked for only where it may have open requests
            return
        if all_answered and not self._core.has_open_requests and not any(map(_leaves_open, self._inbox.drain())):
            self._leadership.settled()

    # RANKED.

    async def _receive(self, deliveries: Deliveries) -> None:
        async for delivery in deliveries:
            self._metrics.count("berth_messages_received_total", stream=RANKED)
            await self._take(delivery)

    async def _take(self, delivery: Delivery) -> None:
        """Examine the message of a known pod; of strays, the others, a few a second (docs/protocol.md, 5.9)."""
        parts = self._parts
        parts.cache.snapshot.live.observe_time(delivery.time.timestamp())
        if GROUP_SUBJECT in delivery.subject:
            await self._take_group(delivery)
            return
        waiting = parts.cache.uid_at(delivery.subject)
        read = _read(delivery.data) if self._may_have_pod(delivery, waiting) else None
        is_stray = read is None or not self._has_pod(delivery, waiting, read)
        if is_stray and not self._strays.may_be_examined(parts.process.clock.now()):
            self._metrics.count("berth_strays_dropped_total")
            delivery.ack()
            return
        match read or _read(delivery.data):
            case UnknownSchemaError() as error:
                self._loop.tasks.start(self._publisher.put_off(delivery, str(error)))
            case DecodeError() as error:
                self._loop.tasks.start(self._publisher.reject_unusable(delivery, str(error)))
            case ranked, attempt:
                await self._take_attempt(ranked, attempt, delivery, is_stray=is_stray)

    def _may_have_pod(self, delivery: Delivery, waiting: str | None) -> bool:
        """Whether it is worth decoding; most of a flood is not.

        A stream holds so few messages that all that a former leader left can be decoded.
        ``waiting``: uid of the pod that waits under its subject.
        """
        return waiting is not None or self._was_left(delivery) or self._is_held(delivery)

    def _has_pod(self, delivery: Delivery, waiting: str | None, read: DecodeError | tuple[Ranked, Attempt]) -> bool:
        """Whether the pod waits, or the core holds the message.

        The pod may be bound if a former leader left the message: its Decision may be missing.
        """
        match read:
            case UnknownSchemaError():
                return waiting is not None
            case DecodeError():
                return False
            case _, attempt:
                return attempt.uid == waiting or self._was_bound(delivery, attempt) or self._is_held(delivery)

    def _was_bound(self, delivery: Delivery, attempt: Attempt) -> bool:
        return self._was_left(delivery) and self._parts.cache.bound_node(attempt.uid) is not None

    def _was_left(self, delivery: Delivery) -> bool:
        return delivery.sequence <= self._stored

    def _is_held(self, delivery: Delivery) -> bool:
        """Whether the core has it from an earlier delivery, so that it must not be acknowledged yet."""
        return delivery.delivered > 1 and any(held.sequence == delivery.sequence for held in self._core.held())

    async def _take_group(self, delivery: Delivery) -> None:
        """The same for a message about a group: of groups that no pod names, some a second are examined."""
        parts = self._parts
        try:
            subject = PodSubject.parse(delivery.subject)
            key = group_named(subject.namespace, subject.pod)
            is_stray = key is None or not parts.cache.groups.pods(key)
            if is_stray and not self._is_held(delivery) and not self._strays.may_be_examined(parts.process.clock.now()):
                self._metrics.count("berth_strays_dropped_total")
                delivery.ack()
                return
            ranked = decode_group(delivery.data, GroupRanked)
            attempt = Attempt.parse(ranked.attempt)
        except UnknownSchemaError as error:
            self._loop.tasks.start(self._publisher.put_off(delivery, str(error)))
        except DecodeError as error:
            self._loop.tasks.start(self._publisher.reject_unusable(delivery, str(error)))
        else:
            await self._take_attempt(ranked, attempt, delivery, is_stray=is_stray)

    async def _take_attempt(
        self, ranked: Ranked | GroupRanked, attempt: Attempt, delivery: Delivery, *, is_stray: bool
    ) -> None:
        """Take the message, or reject a term that no watcher has had: the pod's real attempts would look older."""
        if attempt.term > self._watchers_term and self._parts.process.clock.now() < self._asks_for_terms_from:
            delivery.nak(TERMS_DELAY)
            return
        try:
            is_known = attempt.term <= self._watchers_term or await self._is_known(attempt.term)
        except UnansweredError:
            delivery.nak(self._parts.settings.unanswered_delay)
            return
        if not is_known:
            reason = f"attempt {str(attempt)!r}: the last term of a watcher is {self._watchers_term}"
            self._loop.tasks.start(self._publisher.reject_unusable(delivery, reason))
        else:
            self._parts.process.peers.read("scorer", ranked.config, ranked.profile, self._parts.process.clock.now())
            if self._logs_steps:
                self._log_received(ranked, delivery)
            self._inbox.put(self._event_of(ranked, attempt, delivery, is_stray=is_stray))

    def _event_of(
        self, ranked: Ranked | GroupRanked, attempt: Attempt, delivery: Delivery, *, is_stray: bool
    ) -> RankedDelivery | GroupDelivery:
        sequence, is_suspect = delivery.sequence, delivery.sequence <= self._left
        if isinstance(ranked, GroupRanked):
            if ranked.group.dialect in self._parts.cache.groups.absent:  # its definition is new to this binder
                self._loop.tasks.start(self._parts.informers.seek(PLUGIN_KINDS[KINDS[ranked.group.dialect]]))
            return GroupDelivery(
                ranked=ranked, attempt=attempt, sequence=sequence, delivery=delivery, is_suspect=is_suspect
            )
        return RankedDelivery(
            ranked=ranked,
            attempt=attempt,
            sequence=sequence,
            delivery=delivery,
            is_suspect=is_suspect,
            is_stray=is_stray,
        )

    def _log_received(self, ranked: Ranked | GroupRanked, delivery: Delivery) -> None:
        about = {"attempt": ranked.attempt, "trace_id": trace_id_of(delivery.headers), "delivered": delivery.delivered}
        if isinstance(ranked, GroupRanked):
            log.info("group received", group=str(ranked.group.key), **about)
        else:
            log.info("pod received", pod=ranked.pod.key, uid=ranked.pod.uid, **about)

    async def _is_known(self, term: int) -> bool:
        """Whether a watcher has had the term: ``control`` has it before any message."""
        entry = await self._session.get(CONTROL, term_key("watcher"))
        if entry is None:  # a new store, in which no watcher has led yet
            return True
        self._asks_for_terms_from = self._parts.process.clock.now() + TERMS_SECONDS
        try:
            self._watchers_term = number_in_control(entry, "watcher")
        except DecodeError:  # the watcher logs it, and cannot lead before it is repaired
            return True
        return term <= self._watchers_term

    async def _keep_alive(self) -> None:
        while True:
            await self._parts.process.clock.sleep(self._parts.settings.keep_alive.total_seconds())
            for held in self._core.held():
                held.delivery.in_progress()

    async def _set_gauges(self) -> None:
        try:
            while True:
                set_gauges(self._metrics, self._parts.cache, in_flight=self._core.in_flight)
                self._parts.stats.update(unexamined=self._core.backlog, requests=self._core.in_flight)
                await self._parts.process.clock.sleep(GAUGES_SECONDS)
        finally:
            self._parts.stats.clear()
            clear_gauges(self._metrics)

    async def _ask_about_fences(self) -> None:
        while True:
            await self._parts.process.clock.sleep(FENCES_SECONDS)
            await self._fences.ask()

    async def _end_with_the_store(self) -> None:
        """Give up the Lease once the API server has an older store: what is awaited of the former may never come."""
        while self._parts.cache.older_stores == self._older_stores:
            await self._parts.process.clock.sleep(FENCES_SECONDS)
        self._leadership.end("the API server has an older store, restored from a backup")

    async def _end_for_orphans(self, problem: str) -> None:
        """Give up the Lease if the consumer does not deliver stored messages: the next epoch creates a new one."""
        self._leadership.end(problem)

    def _end_for_claims(self) -> None:
        """Give up the Lease once claims can be read: writes of a former leader to them are not fenced yet."""
        self._leadership.end("claims can be read now, and are to be fenced")

    def _describe_stall(self) -> str:
        core = self._core
        return f"{core.backlog} messages of RANKED wait, with {core.in_flight} requests to the API server under way"

    def _traced_check(self, held: Held) -> AbstractContextManager[Span]:
        return self._parts.process.tracing.span("check", parent=held.delivery.headers.get(TRACEPARENT))

    def _traceparent_of(self, uid: str) -> str | None:
        held = self._core.latest(uid)
        return held.delivery.headers.get(TRACEPARENT) if held is not None else None


def _read(data: bytes) -> DecodeError | tuple[Ranked, Attempt]:
    try:
        ranked = decode(data, Ranked)
        return ranked, attempt_of(ranked)
    except DecodeError as error:
        return error


def _leaves_open(event: Event) -> bool:
    """Whether an answer still in the inbox leaves open if its request is carried out."""
    return isinstance(event, RequestFailed) or (isinstance(event, RequestAnswer) and event.is_open)
