"""One leadership of the binder: takes over, then hands events to the core and carries out its effects."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager, AsyncExitStack, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, TypeVar

import msgspec

from berth.bus.interface import (
    BusLostError,
    Deliveries,
    Delivery,
    MissingError,
    PubAck,
    Session,
    UnansweredError,
)
from berth.bus.orphans import CHECK_SECONDS, OrphanCheck
from berth.bus.stages import StagedMessage, decision_message, publish_dead_letter
from berth.bus.topology import COMMITS, RANKED
from berth.bus.tries import clear_tries, count_try
from berth.cluster.buckets import LiveDataReader
from berth.errors import BerthError, DecodeError, TemporaryError
from berth.extenders.client import Extenders
from berth.framework.profile import Profile
from berth.kube.client import KubeClient
from berth.kube.informers import Informers
from berth.leader.session import LeaderSession
from berth.leader.term import CONTROL, number_in_control, term_key
from berth.lifecycle.livedata import follow_live
from berth.lifecycle.process import Process, run_until
from berth.lifecycle.sessions import Refusals, UndecodableReporter
from berth.messages.attempts import DeadLetter, Decision, Outcome, Ranked, UnknownSchemaError, attempt_of, decode
from berth.messages.livedata import LiveSource
from berth.messages.subjects import Attempt, Epoch, key
from berth.observability.health import Progress
from berth.observability.logging import get_logger, verbose
from berth.observability.metrics import GaugeName, Meter, result_of
from berth.observability.traceparent import TRACEPARENT, trace_id_of
from berth.observability.tracing import Span
from berth.settings.settings import V_RESULT, V_STEP
from berth_binder.apicalls import ApiRequests
from berth_binder.cache import Cache, ForeignBindings
from berth_binder.core import BinderCore
from berth_binder.eventrecorder import EventRecorder
from berth_binder.events import (
    Ack,
    ClearTries,
    CountTry,
    DecisionStored,
    Effect,
    Event,
    LogError,
    Nak,
    PodShown,
    PublishDecision,
    RankedDelivery,
    RecordEvent,
    RejectRanked,
    SetAside,
    TimerFired,
    TryCounted,
)
from berth_binder.settings import BinderSettings
from berth_binder.takeover import HigherFences, Takeover

log = get_logger()

T = TypeVar("T")

GAUGES_SECONDS: Final = 1.0
"""Between two updates of the gauges; Prometheus scrapes less often."""
FOREIGN_SECONDS: Final = 60.0
"""Between two warnings about Bindings of others."""
PROGRESS_SECONDS: Final = 1.0
"""Between two checks whether messages are examined."""
RETRY_SECONDS: Final = 0.2
"""Before a publish without an answer is repeated; its message id prevents duplicates."""
GAUGES: Final[tuple[GaugeName, ...]] = ("berth_reservations", "berth_bindings_in_flight", "scheduler_cache_size")
"""Set by the leader only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BinderParts:
    """What lives as long as the process and is used by every leadership."""

    process: Process
    client: KubeClient
    cache: Cache
    informers: Informers
    recorder: EventRecorder
    progress: Progress
    profiles: dict[str, Profile]
    config: str
    """Digest of the configuration."""
    settings: BinderSettings
    extenders: Extenders
    stats: dict[str, object] = field(default_factory=dict)
    """The leader's figures for NATS's service protocol; empty while it does not lead."""


class BinderRunner:
    """The I/O of one epoch."""

    def __init__(self, parts: BinderParts, session: Session, leadership: LeaderSession) -> None:
        self._parts = parts
        self._session = session
        self._leadership = leadership
        self._client = parts.client.checking(leadership.check)
        self._now = parts.process.clock.now
        self._metrics = parts.process.metrics
        self._core = BinderCore(
            cache=parts.cache,
            profiles=parts.profiles,
            epoch=Epoch(leadership.number),
            config=parts.config,
            settings=parts.settings.core,
            checking=self._traced_check if parts.process.tracing.is_exporting else nullcontext,
        )
        self._publisher = DecisionPublisher(session, self._metrics)
        self._left = 0
        """The last message of RANKED that a former leader left when it ended."""
        self._tasks = asyncio.TaskGroup()
        self._running = 0
        self._ended = asyncio.Event()
        """Set when a request or a task ends."""
        self._published: deque[tuple[PublishDecision, BerthError | None]] = deque()
        """Decisions that are stored, or with why they are not, and that the core does not know of yet."""
        self._shown: deque[str] = deque()
        """The uids of pods that the watch has shown and attempts wait for."""
        self._changed = asyncio.Event()
        """Set when there are such Decisions or pods, or something else is due next."""
        self._due: float | None = None
        self._logged: set[str] = set()
        self._watchers_term = 0
        """The highest term of a watcher that ``control`` was seen to have."""
        self._fences = HigherFences(leadership, parts.cache, parts.process.clock)
        self._requests = ApiRequests(
            self._client,
            epoch=leadership.number,
            clock=parts.process.clock,
            metrics=self._metrics,
            binding_timeout=parts.settings.binding_timeout,
            extenders=parts.extenders,
            check=leadership.check,
            confirm=self._fences.confirm,
            needs_node=parts.cache.needs_node,
            on_answer=self._handle,
            on_end=self._ended.set,
            log_once=self._log_once,
            tracing=parts.process.tracing,
            parent_of=self._parent_of,
        )

    async def run(self) -> None:
        """Lead until the leadership is lost or the process stops.

        Raises:
            BerthError, or a group of them: why the leadership ended.
        """
        ends = (self._leadership.lost, self._session.lost)
        taken_over = await run_until(self._takeover().run(), *ends, self._parts.process.stopping)
        if taken_over is not None:
            self._left = taken_over.left
            consuming = self._session.consume(RANKED, taken_over.consumer, max_unacked=self._parts.settings.max_unacked)
            try:
                await run_until(self._consume(consuming, taken_over.consumer), *ends)
            finally:
                await self._settle()

    def _takeover(self) -> Takeover:
        parts = self._parts
        return Takeover(
            session=self._session,
            leadership=self._leadership,
            client=self._client,
            cache=parts.cache,
            informers=parts.informers,
            schedulers=parts.profiles.keys(),
        )

    async def _consume(self, consuming: AbstractAsyncContextManager[Deliveries], consumer: str) -> None:
        async with AsyncExitStack() as stack, consuming as deliveries, self._tasks as tasks:
            self._parts.cache.tell(self._pod_shown)
            stack.callback(self._parts.cache.tell, None)
            live = await follow_live(
                self._session,
                self._live_data(),
                stack,
                tasks,
                lambda *_: None,
                UndecodableReporter(self._metrics),
            )
            receiving = self._create(self._receive(deliveries), "receive")
            lasting = [
                self._create(work, name)
                for name, work in (
                    ("keep alive", self._keep_alive()),
                    ("clock", self._follow_clock()),
                    ("gauges", self._set_gauges()),
                    ("progress", self._check_progress()),
                    ("foreign bindings", self._report_foreign_bindings()),
                    ("orphans", self._check_for_orphans(OrphanCheck(self._session, RANKED, consumer))),
                    ("requests", self._requests.failed()),
                )
            ]
            try:
                await self._parts.process.stopping.wait()
                receiving.cancel()
                await self._finish()
            finally:
                self._requests.end_leadership()
            for task in (*lasting, *live):
                task.cancel()

    def _live_data(self) -> LiveDataReader:
        """The reader of the live data that filters use beside the cluster's objects."""
        sources = frozenset[LiveSource]().union(*(p.live_sources_of_filters for p in self._parts.profiles.values()))
        return LiveDataReader(self._parts.cache.snapshot.live, sources)

    async def _finish(self) -> None:
        """Start nothing new, and wait for what is under way as long as the settings allow."""
        self._core.close()
        try:
            async with asyncio.timeout(self._parts.settings.finish.total_seconds()):
                while self._running or self._requests.under_way:
                    self._ended.clear()
                    await self._ended.wait()
        except TimeoutError:
            log.warning("stopping with requests under way: the next binder reads their results")

    async def _settle(self) -> None:
        """Wait for the answers of the API server. When no request is left open, the next leader need not fence."""
        if await self._requests.settle() and not self._core.has_open_requests:
            self._leadership.settled()

    # Events.

    def _handle(self, event: Event) -> None:
        """Pass an event to the core and carry out its effects."""
        for effect in self._core.handle(event, self._now()):
            self._carry_out(effect)
        self._parts.recorder.bindings_wait = self._core.backlog > 0
        if self._core.due() != self._due:
            self._changed.set()

    async def _receive(self, deliveries: Deliveries) -> None:
        async for delivery in deliveries:
            self._metrics.count("berth_messages_received_total", stream=RANKED)
            await self._take(delivery)

    async def _take(self, delivery: Delivery) -> None:
        self._parts.cache.snapshot.live.observe_time(delivery.time.timestamp())
        try:
            ranked = decode(delivery.data, Ranked)
            attempt = attempt_of(ranked)
        except UnknownSchemaError:
            delivery.nak(self._parts.settings.unknown_schema_delay)
        except DecodeError as error:
            self._start(self._publisher.reject_unusable(delivery, str(error)))
        else:
            await self._take_attempt(ranked, attempt, delivery)

    async def _take_attempt(self, ranked: Ranked, attempt: Attempt, delivery: Delivery) -> None:
        """An attempt of a term that no watcher has had is nobody's: the pod's real ones would look older than it."""
        try:
            is_known = attempt.term <= self._watchers_term or await self._is_known(attempt.term)
        except UnansweredError:
            delivery.nak(self._parts.settings.unknown_schema_delay)
            return
        if not is_known:
            reason = f"attempt {str(attempt)!r}: the last term of a watcher is {self._watchers_term}"
            self._start(self._publisher.reject_unusable(delivery, reason))
        else:
            self._parts.process.peers.read("scorer", ranked.config, ranked.profile, self._now())
            if verbose(V_STEP):
                about = {"pod": ranked.pod.key, "uid": ranked.pod.uid, "attempt": ranked.attempt}
                log.info("pod received", **about, trace_id=trace_id_of(delivery.headers), delivered=delivery.delivered)
            event = RankedDelivery(
                ranked=ranked,
                attempt=attempt,
                sequence=delivery.sequence,
                delivery=delivery,
                is_suspect=delivery.sequence <= self._left,
            )
            self._handle(event)

    async def _is_known(self, term: int) -> bool:
        """Whether a watcher has that term: it is in ``control`` before anything is published in it."""
        entry = await self._session.get(CONTROL, term_key("watcher"))
        if entry is None:  # a new store, in which no watcher has led yet
            return True
        try:
            self._watchers_term = number_in_control(entry, "watcher")
        except DecodeError:  # the watcher says so, and cannot lead until it is mended
            return True
        return term <= self._watchers_term

    async def _follow_clock(self) -> None:
        """Tell the core what has come outside of messages, and send it ``TimerFired`` when something is due."""
        while True:
            self._due = due = self._core.due()
            await self._wait_until(due)
            while self._shown:
                self._handle(PodShown(uid=self._shown.popleft()))
            while self._published:
                self._take_published(*self._published.popleft())
            if due is not None and self._now() >= due:
                self._handle(TimerFired())

    async def _wait_until(self, due: float | None) -> None:
        """Wait until then, or until something has changed."""
        if self._published or self._shown:
            await asyncio.sleep(0)
            return
        self._changed.clear()
        # Not asyncio.timeout, which takes 8 µs: this waits twice a pod.
        timer = None
        if due is not None:
            timer = asyncio.get_running_loop().call_later(max(0.0, due - self._now()), self._changed.set)
        try:
            await self._changed.wait()
        finally:
            if timer is not None:
                timer.cancel()

    def _pod_shown(self, uid: str) -> None:
        self._shown.append(uid)
        self._changed.set()

    def _take_published(self, effect: PublishDecision, error: BerthError | None) -> None:
        self._running -= 1
        self._ended.set()
        if error is None:
            self._handle(DecisionStored(decision=effect.decision))
        else:
            self._start(self._publish_again(effect))

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

    def _report_foreign_bindings(self) -> Coroutine[Any, Any, None]:
        parts = self._parts
        return report_foreign_bindings(parts.cache.foreign_bindings, parts.profiles, parts.process)

    async def _check_progress(self) -> None:
        """Give up the Lease when messages wait and none is examined: whatever keeps this binder, another may go on."""
        progress = self._parts.progress
        progress.begin()
        while True:
            await self._parts.process.clock.sleep(PROGRESS_SECONDS)
            await self._fences.ask()
            reason = progress.check(self._describe_stall, waiting=self._core.backlog, begun=self._core.examined)
            if reason is not None:
                self._metrics.count("berth_stalls_total", role="binder")
                self._leadership.end(reason)

    async def _check_for_orphans(self, check: OrphanCheck) -> None:
        """Give up the Lease when the consumer does not deliver what RANKED holds: the next epoch has a new one."""
        refusals = Refusals("cannot check whether RANKED is delivered")
        while True:
            await self._parts.process.clock.sleep(CHECK_SECONDS)
            with refusals.logged_once():
                if problem := await check.find():
                    self._metrics.count("berth_orphans_found_total", stream=RANKED)
                    self._leadership.end(problem)

    def _describe_stall(self) -> str:
        core = self._core
        return f"{core.backlog} messages of RANKED wait, with {core.in_flight} requests to the API server under way"

    def _traced_check(self, held: RankedDelivery) -> AbstractContextManager[Span]:
        return self._parts.process.tracing.span("check", parent=held.delivery.headers.get(TRACEPARENT))

    def _parent_of(self, uid: str) -> str | None:
        """The trace that the pod's message is in."""
        held = self._core.latest(uid)
        return held.delivery.headers.get(TRACEPARENT) if held is not None else None

    # Effects.

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case Ack():
                effect.held.delivery.ack()
            case Nak():
                effect.held.delivery.nak(effect.delay)
            case RejectRanked():
                self._start(self._publisher.reject_unusable(effect.held.delivery, effect.reason))
            case SetAside():
                effect.held.delivery.set_aside()
            case RecordEvent():
                self._parts.recorder.record(effect.decision, self._parts.cache.pod(effect.pod.uid) or effect.pod)
            case LogError():
                self._log_once(effect.text)
            case CountTry():
                self._start(self._count_try(effect))
            case ClearTries():
                self._start(self._clear_tries(effect))
            case PublishDecision():
                self._publish(effect)
            case _:
                self._requests.start(effect)

    def _create(self, work: Coroutine[Any, Any, None], name: str | None = None) -> asyncio.Task[None]:
        """Start a task of the group. When it fails, the group takes no further ones."""
        task = self._tasks.create_task(work, name=name)
        task.add_done_callback(self._created_ended)
        return task

    def _created_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            self._requests.end_leadership()

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        self._running += 1
        self._create(work).add_done_callback(self._task_ended)

    def _task_ended(self, _task: asyncio.Task[None]) -> None:
        self._running -= 1
        self._ended.set()

    def _publish(self, effect: PublishDecision) -> None:
        if effect.dead_letter:
            self._start(self._publish_failure(effect))
            return
        self._running += 1
        self._publisher.publish_soon(effect, partial(self._on_published, effect))

    def _on_published(self, effect: PublishDecision, error: BerthError | None) -> None:
        """Called from the connection's reader, where nothing may raise."""
        self._published.append((effect, error))
        self._changed.set()

    async def _publish_failure(self, effect: PublishDecision) -> None:
        await self._publisher.publish_failure(effect)
        self._handle(DecisionStored(decision=effect.decision))

    async def _publish_again(self, effect: PublishDecision) -> None:
        await asyncio.sleep(RETRY_SECONDS)
        await self._publisher.publish(effect)
        self._handle(DecisionStored(decision=effect.decision))

    async def _count_try(self, effect: CountTry) -> None:
        tries = await self._until_answered(lambda: count_try(self._session, COMMITS, key("pod", effect.uid)))
        self._handle(TryCounted(uid=effect.uid, tries=tries))

    async def _clear_tries(self, effect: ClearTries) -> None:
        """Not after the leadership: what has held up this loop for so long that the Lease was lost counts."""
        self._leadership.check()
        await self._until_answered(lambda: clear_tries(self._session, COMMITS, key("pod", effect.uid)))

    async def _until_answered(self, work: Callable[[], Awaitable[T]]) -> T:
        """Try again while NATS does not answer. Raises BusLostError: the leadership is over."""
        while True:
            try:
                return await work()
            except (BusLostError, MissingError):
                raise
            except TemporaryError as error:
                log.warning("counting what is begun again later", reason=str(error))
                await self._parts.process.clock.sleep(PROGRESS_SECONDS)

    def _log_once(self, text: str) -> None:
        if text not in self._logged:
            self._logged.add(text)
            log.error(text)


class DecisionPublisher:
    """Publishes on one session: when that is lost the leadership ends, and the message is delivered again."""

    def __init__(self, session: Session, metrics: Meter) -> None:
        self._session = session
        self._metrics = metrics

    def publish_soon(self, effect: PublishDecision, on_end: Callable[[BerthError | None], None]) -> None:
        """Publish a Decision; ``on_end`` is called once, when it is stored or with why it is not known to be."""

        def on_answer(answer: PubAck | BerthError) -> None:
            if isinstance(answer, BerthError):
                on_end(answer)
            else:
                self._on_stored(effect)
                on_end(None)

        try:
            staged = self._staged(effect)
        except BerthError as error:
            on_end(error)
        else:
            staged.publish_soon(self._session, on_answer)

    async def publish(self, effect: PublishDecision) -> None:
        """Publish a Decision, and wait until it is stored.

        Raises:
            BusLostError, MissingError: the connection or the stream is lost.
        """
        await _until_stored(lambda: self._staged(effect).publish(self._session))
        self._on_stored(effect)

    async def publish_failure(self, effect: PublishDecision) -> None:
        """The same, after the dead letter of a message that failed for good."""
        decision = effect.decision
        await self._publish_dead_letter(effect.held.delivery, decision.message, decision.attempt, cause="failed")
        await self.publish(effect)

    async def reject_unusable(self, delivery: Delivery, reason: str) -> None:
        """Publish a dead letter of a message that cannot be used, then acknowledge it.

        Raises:
            BusLostError, MissingError: the connection or the stream is lost.
        """
        log.warning("cannot use a message, wrote a dead letter", subject=delivery.subject, reason=reason)
        await self._publish_dead_letter(delivery, reason, cause="undecodable")
        delivery.ack()

    async def _publish_dead_letter(self, delivery: Delivery, reason: str, attempt: str = "", *, cause: str) -> None:
        self._metrics.count("berth_dead_letters_total", cause=cause)
        payload = delivery.data.decode(errors="replace")
        letter = DeadLetter(subject=delivery.subject, reason=reason, service="binder", attempt=attempt, payload=payload)
        await _until_stored(lambda: publish_dead_letter(self._session, letter))

    def _staged(self, effect: PublishDecision) -> StagedMessage:
        delivery = effect.held.delivery
        timed = msgspec.structs.replace(effect.decision, ranked_at=delivery.time)
        return decision_message(self._session, timed, delivery.headers)

    def _on_stored(self, effect: PublishDecision) -> None:
        count_decision(self._metrics, effect.decision)
        if verbose(V_RESULT):
            log_decision(effect.decision, effect.held.delivery.headers)


async def _until_stored(publish: Callable[[], Awaitable[object]]) -> None:
    while True:
        try:
            await publish()
        except (BusLostError, MissingError):
            raise
        except TemporaryError:  # that NATS stores nothing is said once, for all pods
            await asyncio.sleep(RETRY_SECONDS)
        else:
            return


PLACED_NOWHERE: Final = frozenset({Outcome.UNSCHEDULABLE, Outcome.PREEMPTING, Outcome.ERROR})


def log_decision(decision: Decision, headers: Mapping[str, str]) -> None:
    """One line about a stored Decision: at V_RESULT when the pod is bound or cannot be placed, else at V_STEP."""
    about = {
        "pod": f"{decision.namespace}/{decision.pod}",
        "uid": decision.uid,
        "attempt": decision.attempt,
        "trace_id": trace_id_of(headers),
        "node": decision.node,
    }
    if decision.outcome is Outcome.BOUND:
        log.info("pod bound", **about)
    elif decision.outcome in PLACED_NOWHERE:
        log.info("pod cannot be placed", **about, outcome=decision.outcome.value, reason=decision.message)
    elif verbose(V_STEP):
        reason = decision.message or decision.reason
        log.info("attempt decided", **about, outcome=decision.outcome.value, reason=reason)


def count_decision(metrics: Meter, decision: Decision) -> None:
    """Count a stored Decision; the outcomes that kube-scheduler has also under its own metric names."""
    metrics.count("berth_decisions_total", outcome=decision.outcome.value, profile=decision.profile)
    metrics.count("berth_messages_published_total", stream="DECISIONS")
    if decision.outcome is Outcome.CONFLICT:
        metrics.count("berth_conflicts_total", reason=decision.reason)
    if decision.preemption is not None and decision.preemption.victims:
        metrics.observe("scheduler_preemption_victims", len(decision.preemption.victims))
    result = result_of(decision.outcome)
    if result is not None:
        metrics.count("scheduler_schedule_attempts_total", result=result, profile=decision.profile)


async def report_foreign_bindings(seen: ForeignBindings, profiles: Iterable[str], process: Process) -> None:
    """Count what others bind from now on, and warn about it, at most once a minute.

    It stops nothing: a tenant may be allowed to bind the pods of a namespace (docs/adr/0027).
    """
    counted, warned, warned_at = seen.counts.copy(), seen.counts.total(), -FOREIGN_SECONDS
    for profile in profiles:
        process.metrics.count("berth_foreign_bindings_total", 0, profile=profile)
    while True:
        for profile, more in (seen.counts - counted).items():
            process.metrics.count("berth_foreign_bindings_total", more, profile=profile)
        counted, now = seen.counts.copy(), process.clock.now()
        if counted.total() > warned and now - warned_at >= FOREIGN_SECONDS:
            pod, node = seen.last
            log.warning(
                "others bind pods of berth's profiles: two schedulers of the same pods give the same room away",
                pods=counted.total() - warned,
                pod=pod,
                node=node,
            )
            warned, warned_at = counted.total(), now
        await process.clock.sleep(GAUGES_SECONDS)


def set_gauges(metrics: Meter, cache: Cache, *, in_flight: int) -> None:
    metrics.set("berth_reservations", len(cache.assumed_pods))
    metrics.set("berth_bindings_in_flight", in_flight)
    metrics.set("scheduler_cache_size", cache.snapshot.node_count, type="nodes")
    metrics.set("scheduler_cache_size", cache.snapshot.pod_count, type="pods")
    metrics.set("scheduler_cache_size", len(cache.assumed_pods), type="assumed_pods")


def clear_gauges(metrics: Meter) -> None:
    """Clear them at the end of a leadership: another binder leads, or none."""
    for name in GAUGES:
        metrics.clear(name)
