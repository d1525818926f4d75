"""The one queue through which everything reaches the core, in order.

What the watcher counts (names and meanings: ``berth.process.metrics``).

The trace of a pod: one from its first sight to its Binding, whoever leads meanwhile, so it is told by its uid.

Does what the core asks for: each effect in a task of its own, answered with an event.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter, deque
from collections.abc import Coroutine, Iterable
from typing import Any, Final

from berth.api.errors import BerthError, PermanentError, TemporaryError
from berth.api.messages import Decision
from berth.api.pod import Pod
from berth.api.subjects import Attempt
from berth.bus.interface import (
    BusLostError,
    MissingError,
    Session,
    StoredMessage,
    UnansweredError,
    WrongLastSequenceError,
)
from berth.bus.stages import publish_dead_letter, publish_pending
from berth.bus.topology import CLUSTER, DECISIONS, PENDING, RANKED
from berth.kube.client import KubeClient
from berth.kube.pods import get_pod
from berth.leader.session import LeaderSession
from berth.process.lifecycle import Process
from berth.process.logging import get_logger, verbose
from berth.process.metrics import GaugeName, Meter, result_of
from berth.process.tracing import TRACEPARENT
from berth_watcher.core import Figures
from berth_watcher.events import (
    CountScheduled,
    Effect,
    Event,
    KeyLookedUp,
    KeyRefused,
    KeyWritten,
    LookedUp,
    LookUpAttempt,
    LookUpKey,
    PodRead,
    PublishDeadLetter,
    PublishPending,
    PublishRefused,
    PurgeKey,
    ReadPod,
    StepDown,
    Warn,
    WriteKey,
)
from berth_watcher.takeover import holds, last_decision


class Inbox:
    """Events that wait for the core. ``put`` never waits."""

    def __init__(self) -> None:
        self._events: deque[Event] = deque()
        self._filled = asyncio.Event()

    def put(self, *events: Event) -> None:
        """Add events."""
        self.put_all(events)

    def put_all(self, events: Iterable[Event]) -> None:
        """Add events."""
        self._events.extend(events)
        self._filled.set()

    def take(self, most: int) -> list[Event]:
        """The next events, in order; empty when there are none."""
        taken = [self._events.popleft() for _ in range(min(most, len(self._events)))]
        if not self._events:
            self._filled.clear()
        return taken

    async def wait(self, seconds: float | None) -> None:
        """Until something is there, or so long at most."""
        if self._events:
            await asyncio.sleep(0)  # others want their turn too
            return
        try:
            async with asyncio.timeout(seconds):
                await self._filled.wait()
        except TimeoutError:
            return


MANY_ATTEMPTS: Final = 15
"""From here on attempts are not told apart in labels."""

GAUGES: Final[tuple[GaugeName, ...]] = (
    "scheduler_pending_pods",
    "scheduler_unschedulable_pods",
    "berth_mirror_objects",
    "berth_mirror_unsettled_keys",
    "berth_in_flight_pods",
    "berth_window_pods",
)
"""What only the one who leads can say."""


def count_published(metrics: Meter, published: PublishPending) -> None:
    """Count an attempt that PENDING has stored, and how long its pod had waited for its turn."""
    metrics.count("berth_messages_published_total", stream=PENDING)
    if published.waited_seconds is not None:
        metrics.observe("berth_stage_duration_seconds", published.waited_seconds, stage="queue")


def count_scheduled(metrics: Meter, scheduled: CountScheduled) -> None:
    """Count a pod that is where it wanted to be."""
    attempts = str(scheduled.attempts) if scheduled.attempts < MANY_ATTEMPTS else f"{MANY_ATTEMPTS}+"
    metrics.observe("scheduler_pod_scheduling_sli_duration_seconds", scheduled.seconds, attempts=attempts)
    metrics.observe("scheduler_pod_scheduling_attempts", scheduled.attempts)


def count_decision(metrics: Meter, said: Decision, stored: StoredMessage) -> None:
    """Count how long an attempt took, as told by the times at which NATS stored its messages: one clock for all."""
    if not said.outcome.final or said.asked_at is None:
        return
    result = result_of(said.outcome)
    if result is not None:
        seconds = (stored.time - said.asked_at).total_seconds()
        metrics.observe("scheduler_scheduling_attempt_duration_seconds", seconds, result=result, profile=said.profile)
    if said.ranked_at is not None:
        ranking, committing = said.ranked_at - said.asked_at, stored.time - said.ranked_at
        metrics.observe("berth_stage_duration_seconds", ranking.total_seconds(), stage="rank")
        metrics.observe("berth_stage_duration_seconds", committing.total_seconds(), stage="commit")


def count_heard(metrics: Meter, decisions: int) -> None:
    """Count messages read from DECISIONS."""
    metrics.count("berth_messages_received_total", decisions, stream=DECISIONS)


class Gauges:
    """What one leadership shows of how things stand; ``clear`` it when it is over."""

    def __init__(self, metrics: Meter) -> None:
        self._metrics = metrics
        self._refusing: set[tuple[str, str]] = set()
        self._entered: Counter[tuple[str, str]] = Counter()

    def show(self, figures: Figures) -> None:
        """Set everything, and count who came to a queue since the last time."""
        metrics = self._metrics
        for queue, pods in figures.pending.items():
            metrics.set("scheduler_pending_pods", pods, queue=queue)
        for kind, objects in figures.objects.items():
            metrics.set("berth_mirror_objects", objects, kind=kind)
        self._show_refused(figures)
        self._count_entered(figures)
        metrics.set("berth_mirror_unsettled_keys", figures.mirror_behind)
        metrics.set("berth_in_flight_pods", figures.in_flight)
        metrics.set("berth_window_pods", figures.window)

    def clear(self) -> None:
        """Somebody else leads, or nobody: what this process says would be old, and counted twice."""
        for name in GAUGES:
            self._metrics.clear(name)

    def _show_refused(self, figures: Figures) -> None:
        for plugin, profile in self._refusing - figures.refused.keys():
            self._metrics.set("scheduler_unschedulable_pods", 0, plugin=plugin, profile=profile)
        for (plugin, profile), pods in figures.refused.items():
            self._metrics.set("scheduler_unschedulable_pods", pods, plugin=plugin, profile=profile)
        self._refusing = set(figures.refused)

    def _count_entered(self, figures: Figures) -> None:
        for (queue, event), pods in figures.entered.items():
            more = pods - self._entered[queue, event]
            if more:
                self._metrics.count("scheduler_queue_incoming_pods_total", more, queue=queue, event=event)
                self._entered[queue, event] = pods


def trace_of(uid: str) -> str:
    """The ``traceparent`` under which every attempt of the pod begins."""
    digest = hashlib.blake2b(uid.encode(), digest_size=24).hexdigest()
    return f"00-{digest[:32]}-{digest[32:]}-00"


log = get_logger()


AGAIN_SECONDS: Final = 0.2
"""Before what got no answer is asked again."""

V_POD: Final = 4
"""klog's verbosity for a line a pod."""


class EffectRunner:
    """The hands of one leadership. What a lost connection leaves undone is made good by the next takeover."""

    def __init__(  # noqa: PLR0913 - what it works on, and whom it answers
        self,
        *,
        session: Session,
        client: KubeClient,
        leadership: LeaderSession,
        process: Process,
        inbox: Inbox,
        tasks: asyncio.TaskGroup,
        writes_at_once: int,
    ) -> None:
        self._session = session
        self._client = client
        self._leadership = leadership
        self._process = process
        self._inbox = inbox
        self._tasks = tasks
        self._writing = asyncio.Semaphore(writes_at_once)

    def perform(self, effects: Iterable[Effect]) -> None:
        """Start effects, in order: publishes reach the connection in the order in which they were asked for."""
        for effect in effects:
            work = self._work(effect)
            if work is not None:
                self._tasks.create_task(work)

    def _work(self, effect: Effect) -> Coroutine[Any, Any, None] | None:  # noqa: PLR0911 - one line an effect
        match effect:
            case PublishPending():
                return self._publish(effect)
            case WriteKey() | PurgeKey():
                return self._write(effect)
            case LookUpKey():
                return self._look_up_key(effect)
            case LookUpAttempt():
                return self._look_up_attempt(effect)
            case ReadPod():
                return self._read_pod(effect)
            case PublishDeadLetter():
                return self._bury(effect)
            case CountScheduled():
                count_scheduled(self._process.metrics, effect)
                return None
            case Warn():
                log.warning(effect.sentence, **effect.fields)
                return None
            case StepDown():
                self._leadership.report_higher(effect.term, seen_in=effect.reason)
                return None

    async def _publish(self, effect: PublishPending) -> None:
        """An answer that does not come is not asked for again: a repeat could replace the attempt after this one."""
        message = effect.message
        with self._process.tracing.span("enqueue", parent=trace_of(message.pod.uid)) as span:
            span.note("pod", message.pod.key)
            try:
                await publish_pending(self._session, message, headers={TRACEPARENT: span.traceparent})
            except UnansweredError as error:
                log.warning("publishing a pod", pod=message.pod.key, attempt=message.attempt, cause=str(error))
                return
            except PermanentError as error:
                self._inbox.put(PublishRefused(attempt=Attempt.parse(message.attempt), reason=str(error)))
                return
            if verbose(V_POD):
                log.info("published", pod=message.pod.key, attempt=message.attempt, trace_id=span.trace_id)
        count_published(self._process.metrics, effect)

    async def _write(self, effect: WriteKey | PurgeKey) -> None:
        async with self._writing:
            try:
                if isinstance(effect, WriteKey):
                    sequence = await self._session.put(CLUSTER, effect.key, effect.data, expected=effect.expected)
                else:
                    sequence = await self._session.purge(CLUSTER, effect.key, expected=effect.expected)
            except WrongLastSequenceError:
                self._inbox.put(KeyRefused(key=effect.key))
            except UnansweredError as error:
                log.warning("writing the mirror", key=effect.key, cause=str(error))
                self._inbox.put(KeyRefused(key=effect.key))
            else:
                self._inbox.put(KeyWritten(key=effect.key, sequence=sequence))

    async def _look_up_key(self, effect: LookUpKey) -> None:
        while True:
            try:
                entry = await self._session.get(CLUSTER, effect.key)
            except UnansweredError:
                await asyncio.sleep(AGAIN_SECONDS)
            else:
                self._inbox.put(KeyLookedUp(key=effect.key, entry=entry))
                return

    async def _look_up_attempt(self, effect: LookUpAttempt) -> None:
        """In the order in which a message moves. Without an answer the core asks again ten seconds later."""
        try:
            for stage, stream in (("pending", PENDING), ("ranked", RANKED)):
                if await holds(self._session, stream, effect.subject(stage), effect.attempt):
                    self._inbox.put(LookedUp(attempt=effect.attempt, held=True))
                    return
            last = await last_decision(self._session, effect.subject("decision"))
        except UnansweredError:
            return
        decision, time = (last[0], last[1].time) if last else (None, None)
        self._inbox.put(LookedUp(attempt=effect.attempt, held=False, decision=decision, time=time))

    async def _read_pod(self, effect: ReadPod) -> None:
        """Without an answer the core asks again ten seconds later."""
        try:
            pod = await get_pod(self._client, effect.namespace, effect.name)
        except BerthError as error:
            log.warning("reading a pod", pod=f"{effect.namespace}/{effect.name}", uid=effect.uid, cause=str(error))
            return
        self._inbox.put(PodRead(uid=effect.uid, pod=_same_uid(pod, effect.uid)))

    async def _bury(self, effect: PublishDeadLetter) -> None:
        self._process.metrics.count("berth_dead_letters_total", cause="failed")
        while True:
            try:
                await publish_dead_letter(self._session, effect.letter)
            except (BusLostError, MissingError):
                raise
            except TemporaryError:
                await asyncio.sleep(AGAIN_SECONDS)
            else:
                return


def _same_uid(pod: Pod | None, uid: str) -> Pod | None:
    return pod if pod is not None and pod.metadata.uid == uid else None
