"""Takes each waiting pod from the queue to PENDING, and back by the Decision of its latest attempt.

A pod is in flight until a final Decision of its latest attempt arrives, or until the API shows it bound, gone or
changed. An attempt of which no message is found any more is followed by the next one (docs/protocol.md, 3).

The window limits the pods in flight, so that an important pod waits for a window and not for the queue. A pod that a
work queue still holds when its attempt is looked up waits for a service: for a scorer in PENDING, for the binder in
RANKED. That is reported once, until no pod of the profile waits for that service any more.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Container, Iterable, Mapping
from datetime import datetime
from typing import Final

from berth.api.messages import DeadLetter, DecisionSummary, Outcome, Pending
from berth.api.pod import Pod, changed, is_bound, is_gone_while_unbound, name_of
from berth.api.podlimits import cycle_milliseconds, refusal
from berth.api.subjects import Attempt, Term
from berth.framework.events import pod_update_actions
from berth.framework.plugincalls import PluginFailure
from berth.framework.status import SUCCESS, Status
from berth_watcher.events import (
    CONSUMERS,
    AttemptLookedUp,
    CountScheduled,
    DecisionReceived,
    Effect,
    LookUpAttempt,
    Note,
    PodRead,
    PublishDeadLetter,
    PublishNotStored,
    PublishPending,
    PublishRefused,
    ReadPod,
    Service,
    StepDown,
    StreamsRead,
    Warn,
    WorkQueue,
)
from berth_watcher.hints import QueuePlugins
from berth_watcher.queue import (
    DO_NOT_ASK_SECONDS,
    WAITING_FOR_EVENT,
    EventClock,
    QueuedPod,
    SchedulingQueue,
    Stage,
    Timestamp,
)
from berth_watcher.requeue import Requeue
from berth_watcher.settings import AttemptSettings
from berth_watcher.store import label_of_own_update
from berth_watcher.takeover import FormerState, former_state

MAX_LOST_ATTEMPTS: Final = 3
"""Consecutive attempts of a pod that were lost: the third one counts as an error of the pod."""

MAX_FAILURES: Final = 60
"""More do not lengthen the back-off. The number comes from a message that others may write."""

WATCH_SECONDS: Final = 10.0
"""After which a pod is read from the API that the binder decided on and that the watch still shows unbound."""


class Attempts:
    """Publishes the attempts of one term and handles what becomes of them. Effects go to ``emit``."""

    def __init__(  # noqa: PLR0913 - an attempt needs all these parts of the core
        self,
        *,
        term: Term,
        clock: EventClock,
        queue: SchedulingQueue,
        requeue: Requeue,
        plugins: QueuePlugins,
        profiles: Mapping[str, object],
        settings: AttemptSettings,
        emit: Callable[[Effect], None],
    ) -> None:
        self._term = term
        self._clock = clock
        self._queue = queue
        self._requeue = requeue
        self._plugins = plugins
        self._profiles = profiles
        self._settings = settings
        self._emit = emit
        self.window = InFlightWindow(settings.window_floor, profiles)
        self.stalled = StalledAttempts(profiles)
        self._not_stored: set[str] = set()
        self.running = False
        """Whether the takeover is complete. Nothing is published before."""
        self._takeover_position = 0
        self._starting: deque[QueuedPod] = deque()
        self.looked_at = 0
        """How often a pod was published or its attempt looked up."""

    def start(self, streams: StreamsRead, *, position: int, since_read: float) -> None:
        """The mirror is stored: continue every pod from the state that the former leader left.

        Call it again until ``running``: a slice is not enough for 200,000 pods. ``position`` is that of ``cluster``,
        which every scorer must have read. The streams were read ``since_read`` seconds ago.
        """
        self._takeover_position = position
        if not self.is_starting:
            self._starting.extend(self._recovering())
        while self._starting:
            queued = self._starting.popleft()
            if self._queue.get(queued.uid) is queued and queued.stage is Stage.RECOVERING:
                self._continue(queued, streams, since_read)
            if self._starting and not self._clock.may_continue():
                return
        self.running = True
        for queued in self._recovering():  # those that were added or changed meanwhile
            self._continue(queued, streams, since_read)

    @property
    def is_starting(self) -> bool:
        """Whether pods are left that :meth:`start` must continue."""
        return bool(self._starting)

    def _recovering(self) -> list[QueuedPod]:
        return [pod for pod in self._queue.pods() if pod.stage is Stage.RECOVERING]

    def _continue(self, queued: QueuedPod, streams: StreamsRead, since_read: float) -> None:
        state = former_state(queued.uid, streams.in_flight.get(queued.uid), streams.decisions.get(queued.uid))
        self._restore(queued, state, since_read)

    @property
    def not_stored(self) -> int:
        """Pods in flight whose message the bus has not stored: they wait as much as active ones do."""
        return len(self._not_stored)

    def on_pod(self, pod: Pod) -> None:
        """The watch shows a pod."""
        queued = self._queue.get(pod.metadata.uid)
        if not self._is_ours(pod):
            if queued is not None:
                self._count_scheduled(queued, pod)
                self._remove(queued)
        elif queued is None:
            self._add(pod)
        else:
            self._update(queued, pod)

    def on_pod_deleted(self, uid: str) -> None:
        """The watch shows that a pod does not exist any more."""
        queued = self._queue.get(uid)
        if queued is not None:
            self._remove(queued)

    def count_decision(self, event: DecisionReceived) -> None:
        """Count a Decision of this moment, of whatever attempt: their rate decides the size of the window."""
        if event.decision.outcome.final:
            self.window.count_decision(event.decision.profile, self._clock.now)

    def on_decision(self, event: DecisionReceived) -> None:
        """Only Decisions of the latest attempt count. Of two, that of the higher epoch counts, then the first."""
        decision = event.decision
        queued = self._queue.get(decision.uid)
        if queued is None or str(queued.attempt) != decision.attempt:
            return
        in_flight = queued.stage is Stage.IN_FLIGHT
        if decision.epoch < queued.epoch or (not in_flight and decision.epoch == queued.epoch):
            return
        if decision.outcome.final:
            self._conclude(queued, decision, event.time)
        elif in_flight:
            queued.epoch = decision.epoch
            self._leave_window(queued)
            self._await_decision(queued)

    def on_looked_up(self, event: AttemptLookedUp) -> None:
        """Without message or final Decision the attempt is lost: the next one follows, or after the third an error."""
        queued = self._in_flight(event.attempt)
        if queued is None:
            return
        if event.held_by is not None:
            if not queued.epoch:  # after ``waiting`` it waits for its volumes or a Permit plugin, and for no service
                self._report(self.stalled.found(queued, event.held_by, self._settings.look_up_seconds))
            return
        decision = event.decision
        if decision is not None and decision.attempt == str(event.attempt) and decision.outcome.final:
            self._conclude(queued, decision, event.time or self._clock.timestamp().wall)
            return
        if queued.uid not in self._not_stored:
            queued.lost_attempts += 1
        if queued.lost_attempts < MAX_LOST_ATTEMPTS:
            self._publish(queued)
        else:
            lost = f"looking for attempt {str(queued.attempt)!r}: it is in none of PENDING, RANKED and DECISIONS"
            self._give_up(queued, f"{lost}; {MAX_LOST_ATTEMPTS} attempts got lost in a row")

    def on_publish_not_stored(self, event: PublishNotStored) -> None:
        """A bus that stores nothing is no failure of the pod: the attempt does not count as lost."""
        queued = self._in_flight(event.attempt)
        if queued is not None:
            self._not_stored.add(queued.uid)

    def on_publish_refused(self, event: PublishRefused) -> None:
        """An attempt that the bus will never store is an error of its pod."""
        queued = self._in_flight(event.attempt)
        if queued is not None:
            self._give_up(queued, event.reason)

    def on_pod_read(self, event: PodRead) -> None:
        """The API's answer for a pod that the binder has decided ``gone`` or ``bound``."""
        queued = self._queue.get(event.uid)
        if queued is None or queued.stage is not Stage.AWAITING_WATCH:
            return
        if event.pod is None or not self._is_ours(event.pod):
            return  # it is gone or bound: the watch will show that
        queued.pod = event.pod
        self._requeue.on_still_unbound(queued)

    def requeue(self, pods: Iterable[QueuedPod]) -> None:
        """An event may help these unschedulable or gated pods."""
        for queued in pods:
            if queued.stage is Stage.GATED:
                self._enqueue(queued)
            else:
                self._requeue.requeue(queued)

    def run_timers(self) -> None:
        """Handle the pods whose timer has gone off."""
        for queued in self._queue.pop_due():
            if queued.stage is Stage.IN_FLIGHT and queued.attempt is not None:
                self._look_up(queued, queued.attempt)
            elif queued.stage is Stage.AWAITING_WATCH:
                self._read_pod(queued)
            elif queued.failure:
                self._enqueue(queued)
            else:
                self._requeue.on_timer(queued)
            if not self._clock.may_continue():
                return

    def publish_active(self) -> None:
        """Publish active pods in order while their profile's window has a free slot.

        Where no pod is active and most of the window is free, back-offs end early (docs/protocol.md, 3).
        """
        if not self.running:
            return
        free = self.window.free(self._clock.now)
        self._publish_in_order(free)
        while self._requeue.end_back_off(self.window.free_for_early(self._clock.now)):
            self._publish_in_order(free)

    def _publish_in_order(self, free: dict[str, int]) -> None:
        while (queued := self._queue.pop(free)) is not None:
            free[queued.profile] -= slots_of(queued.pod)
            self._acquire(queued)
            self._publish(queued, waited=self._clock.now - (queued.active_since or self._clock.now))

    def _is_ours(self, pod: Pod) -> bool:
        return waits(pod, self._profiles)

    def _in_flight(self, attempt: Attempt) -> QueuedPod | None:
        """The pod of an attempt, if the attempt is in flight and the latest."""
        queued = self._queue.get(attempt.uid)
        if queued is None or queued.stage is not Stage.IN_FLIGHT or queued.attempt != attempt:
            return None
        return queued

    def _add(self, pod: Pod) -> None:
        queued = QueuedPod(pod=pod, timestamp=_created(pod) or self._clock.timestamp().wall)
        self._queue.add(queued)
        self._enqueue(queued)

    def _enqueue(self, queued: QueuedPod) -> None:
        """Make a pod active, unless a PreEnqueue plugin rejects it."""
        queued.failure, status = refusal(queued.pod), SUCCESS
        if queued.failure:
            queued.do_not_ask_until = self._clock.now + DO_NOT_ASK_SECONDS
        else:
            status = self._pre_enqueue(queued)
        if status.is_success:
            queued.unschedulable_plugins, queued.message = frozenset(), ""
            self._queue.move(queued, Stage.ACTIVE if self.running else Stage.RECOVERING)
        else:
            queued.unschedulable_plugins, queued.message = frozenset({status.plugin}), "; ".join(status.reasons)
            self._queue.move(queued, Stage.GATED)

    def _pre_enqueue(self, queued: QueuedPod) -> Status:
        try:
            return self._plugins.pre_enqueue(queued.pod)
        except PluginFailure as failure:
            queued.record_failure(failure, self._clock.now)
            return SUCCESS

    def _update(self, queued: QueuedPod, pod: Pod) -> None:
        before, queued.pod = queued.pod, pod
        if queued.failure and changed(before, pod):
            queued.do_not_ask_until = 0.0
        if queued.stage in WAITING_FOR_EVENT:
            queued.incoming_event = label_of_own_update(pod_update_actions(before, pod))
        if queued.stage is Stage.GATED:
            self._enqueue(queued)
        elif queued.stage is Stage.IN_FLIGHT:
            if queued.published is not None and changed(queued.published, pod):
                self._publish(queued)
        elif queued.stage is Stage.UNSCHEDULABLE and changed(before, pod):
            self._requeue.requeue(queued)
        elif queued.stage is Stage.BACKOFF and queued.failure:
            self._requeue.back_off(queued)

    def _count_scheduled(self, queued: QueuedPod, pod: Pod) -> None:
        """Count a bound pod, if the Binding is ours: its attempt is in flight, or was decided ``bound``."""
        decided = queued.stage is Stage.AWAITING_WATCH and queued.outcome is Outcome.BOUND
        ours = decided or queued.stage is Stage.IN_FLIGHT
        if is_bound(pod) and ours and queued.attempt is not None and queued.first_active_at is not None:
            self._emit(CountScheduled(attempts=queued.attempt.n, seconds=self._clock.now - queued.first_active_at))

    def _remove(self, queued: QueuedPod) -> None:
        self._not_stored.discard(queued.uid)
        self._leave_window(queued)
        self._requeue.on_removed(queued)
        self._queue.remove(queued)

    def _acquire(self, queued: QueuedPod) -> None:
        self.window.acquire(queued.uid, queued.profile, slots_of(queued.pod))

    def _leave_window(self, queued: QueuedPod) -> None:
        self.window.release(queued.uid)
        self._report(self.stalled.ended(queued.uid))

    def _report(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            self._emit(effect)

    def _publish(self, queued: QueuedPod, *, waited: float | None = None) -> None:
        """Publish the next attempt. The caller takes the slot in the window."""
        previous = queued.attempt
        attempt = previous.next(self._term) if previous else Attempt(uid=queued.uid, term=self._term, n=1)
        too_much = refusal(queued.pod)
        message = Pending(
            config=self._settings.config,
            attempt=str(attempt),
            profile=queued.profile,
            pod=name_of(queued.pod) if too_much else queued.pod,
            error=too_much or queued.failure,
            failures=queued.failures,
            after=queued.positions_after(self._takeover_position),
        )
        self.looked_at += 1
        queued.attempt, queued.published, queued.epoch = attempt, queued.pod, 0
        self._not_stored.discard(queued.uid)
        self._report(self.stalled.ended(queued.uid))
        queued.at_front = False
        self._await_decision(queued)
        self._emit(PublishPending(message=message, waited_seconds=waited))

    def _await_decision(self, queued: QueuedPod) -> None:
        self._queue.move(queued, Stage.IN_FLIGHT, due=self._clock.now + self._settings.look_up_seconds)

    def _conclude(self, queued: QueuedPod, decision: DecisionSummary, time: datetime, age_seconds: float = 0.0) -> None:
        """Handle a final Decision, which was stored at ``time``, by its outcome (docs/protocol.md, 5)."""
        self._not_stored.discard(queued.uid)
        decided_at = Timestamp(monotonic=self._clock.now - age_seconds, wall=time)
        self._leave_window(queued)
        queued.record_decision(decision)
        match decision.outcome:
            case Outcome.UNSCHEDULABLE | Outcome.PREEMPTING:
                self._requeue.on_unschedulable(queued, decision, decided_at)
            case Outcome.CONFLICT:
                self._requeue.on_conflict(queued, decision, decided_at)
            case Outcome.ERROR:
                self._requeue.on_error(queued, decided_at)
            case Outcome.GONE:
                self._queue.move(queued, Stage.AWAITING_WATCH)
                self._read_pod(queued)
            case _:
                self._queue.move(queued, Stage.AWAITING_WATCH, due=self._clock.now + WATCH_SECONDS)

    def _look_up(self, queued: QueuedPod, attempt: Attempt) -> None:
        meta = queued.pod.metadata
        self.looked_at += 1
        self._emit(LookUpAttempt(attempt=attempt, profile=queued.profile, namespace=meta.namespace, pod=meta.name))
        self._queue.set_timer(queued, self._clock.now + self._settings.look_up_seconds)

    def _read_pod(self, queued: QueuedPod) -> None:
        meta = queued.pod.metadata
        self._emit(ReadPod(uid=queued.uid, namespace=meta.namespace, name=meta.name))
        self._queue.set_timer(queued, self._clock.now + WATCH_SECONDS)

    def _give_up(self, queued: QueuedPod, reason: str) -> None:
        """An error without a Decision: a dead letter and a warning, and the pod backs off."""
        subject, attempt = str(queued.subject("pending")), str(queued.attempt)
        dead_letter = DeadLetter(subject=subject, reason=reason, service="watcher", attempt=attempt)
        self._emit(PublishDeadLetter(dead_letter=dead_letter))
        self._emit(Warn(message=reason, fields={"pod": queued.pod.key, "uid": queued.uid}))
        self._leave_window(queued)
        queued.lost_attempts, queued.outcome, queued.message = 0, Outcome.ERROR, reason
        self._requeue.on_error(queued, self._clock.timestamp())

    def _restore(self, queued: QueuedPod, state: FormerState, since_read: float) -> None:
        queued.attempt = state.attempt
        if state.attempt is not None and state.attempt.term > self._term:
            self._emit(StepDown(reason=f"attempt {str(state.attempt)!r}", term=state.attempt.term))
        queued.failures = min(state.failures, MAX_FAILURES)
        if state.final_decision is not None:
            last = state.final_decision
            self._conclude(queued, last.decision, last.time, last.age_seconds + since_read)
        elif state.in_flight is not None:
            self._resume(queued, state.in_flight, has_slot=state.has_slot)
        else:
            self._queue.move(queued, Stage.ACTIVE)

    def _resume(self, queued: QueuedPod, published: Pod, *, has_slot: bool) -> None:
        """Leave a pod in flight; after ``waiting`` it has no slot in the window."""
        queued.published = published
        if has_slot:
            self._acquire(queued)
        if changed(published, queued.pod):
            self._publish(queued)
        else:
            self._await_decision(queued)


def waits(pod: Pod, profiles: Container[str]) -> bool:
    """Whether the pod is to be scheduled by one of the profiles: unbound, not being deleted and not finished."""
    return not pod.spec.node_name and pod.spec.scheduler_name in profiles and not is_gone_while_unbound(pod)


def _created(pod: Pod) -> datetime | None:
    text = pod.metadata.creation_timestamp
    try:
        return datetime.fromisoformat(text) if text else None
    except ValueError:
        return None


SHARE_OF_A_SECOND: Final = 4
"""The window holds a quarter of the last second's Decisions, so that an urgent pod waits for at most a quarter second
of work."""


def slots_of(pod: Pod) -> int:
    """One, and one more for each millisecond that the pod's selectors add to a cycle.

    Another's pod waits for what is in flight: 64 pods at the limits would keep a scorer busy for seconds.
    """
    return 1 if refusal(pod) else 1 + cycle_milliseconds(pod)


EARLY_SHARE: Final = 4
"""Back-offs end early while less than a quarter of the window is in use."""


class InFlightWindow:
    """Slots for pods in flight, of each profile: as many as the floor, or a quarter second of work if that is more.

    Each profile has its own, so that one which no scorer knows holds up no other. A pod that keeps a scorer busy for
    longer has more than one, so that few such pods are in flight at once.
    """

    def __init__(self, floor: int, profiles: Iterable[str]) -> None:
        self._floor = floor
        self._slots_of: dict[str, tuple[str, int]] = {}
        """Profile and slots of each pod in flight."""
        self._used = dict.fromkeys(profiles, 0)
        self._rates = {profile: DecisionRate() for profile in self._used}

    def used(self) -> dict[str, int]:
        """Slots in use, by profile."""
        return self._used.copy()

    def sizes(self, now: float) -> dict[str, int]:
        """All slots, by profile."""
        return {
            profile: max(self._floor, rate.in_last_second(now) // SHARE_OF_A_SECOND)
            for profile, rate in self._rates.items()
        }

    def free(self, now: float) -> dict[str, int]:
        """Never negative, although a takeover may find more pods in flight than there are slots.

        A pod goes when one slot is free, however many it takes, so that none waits for ever.
        """
        return {profile: max(0, size - self._used[profile]) for profile, size in self.sizes(now).items()}

    def free_for_early(self, now: float) -> dict[str, int]:
        """The same for pods whose back-off ends early: they leave most slots to pods that become active meanwhile."""
        sizes = self.sizes(now)
        return {profile: max(0, size // EARLY_SHARE - self._used[profile]) for profile, size in sizes.items()}

    def acquire(self, uid: str, profile: str, slots: int = 1) -> None:
        """Take slots for a pod, unless it has some."""
        if uid not in self._slots_of:
            self._slots_of[uid] = profile, slots
            self._used[profile] += slots

    def release(self, uid: str) -> None:
        """Free the pod's slots, if it has any."""
        profile, slots = self._slots_of.pop(uid, ("", 0))
        if slots:
            self._used[profile] -= slots

    def count_decision(self, profile: str, now: float) -> None:
        """A final Decision was received. Their rate decides the size of the window."""
        rate = self._rates.get(profile)
        if rate is not None:
            rate.count(now)


class DecisionRate:
    """How many Decisions were received in the last second."""

    def __init__(self) -> None:
        self._counts: deque[tuple[float, int]] = deque()
        self._sum = 0

    def count(self, now: float) -> None:
        if self._counts and self._counts[-1][0] == now:
            self._counts[-1] = (now, self._counts[-1][1] + 1)
        else:
            self._counts.append((now, 1))
        self._sum += 1

    def in_last_second(self, now: float) -> int:
        while self._counts and self._counts[0][0] <= now - 1.0:
            self._sum -= self._counts.popleft()[1]
        return self._sum


class StalledAttempts:
    """Attempts that a work queue held for longer than an attempt takes, and the service that each waits for."""

    def __init__(self, profiles: Iterable[str]) -> None:
        self._waits_for: dict[str, tuple[str, Service]] = {}
        self._pods = Counter({(profile, service): 0 for profile in profiles for service in CONSUMERS.values()})

    def pods(self) -> dict[tuple[str, Service], int]:
        """How many pods wait, by profile and service."""
        return dict(self._pods)

    def found(self, pod: QueuedPod, held_by: WorkQueue, seconds: float) -> list[Warn | Note]:
        """A work queue still holds the pod's latest attempt, ``seconds`` after it was published at least."""
        waits_for = (pod.profile, CONSUMERS[held_by])
        if self._waits_for.get(pod.uid) == waits_for:
            return []
        ended = self.ended(pod.uid)
        self._waits_for[pod.uid] = waits_for
        self._pods[waits_for] += 1
        return [*ended, _warning(pod, held_by, seconds)] if self._pods[waits_for] == 1 else ended

    def ended(self, uid: str) -> list[Warn | Note]:
        """The attempt is decided, replaced or gone."""
        waits_for = self._waits_for.pop(uid, None)
        if waits_for is None:
            return []
        self._pods[waits_for] -= 1
        profile, service = waits_for
        message = f"no pod of profile {profile!r} waits for the {service} any more"
        return [] if self._pods[waits_for] else [Note(message=message, fields={"profile": profile})]


def _warning(pod: QueuedPod, held_by: WorkQueue, seconds: float) -> Warn:
    profile, service = pod.profile, CONSUMERS[held_by]
    wanted = "the binder" if service == "binder" else f"a scorer whose configuration has the profile {profile!r}"
    message = f"pods wait for {wanted}: {held_by.upper()} has held an attempt for more than {seconds:g} s"
    return Warn(message=message, fields={"profile": profile, "waits_for": service, "pod": pod.pod.key})
