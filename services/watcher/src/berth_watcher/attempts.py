"""What is in flight: the attempts of each pod, how many may be in flight, and which of them a service holds up.

A pod is in flight until a final Decision of its latest attempt arrives, or until the API shows it bound, gone or
changed. An attempt of which no message is found any more is followed by the next one (docs/protocol.md, 3).

The window limits the pods in flight, so that an important pod waits for a window and not for the queue. A pod that a
work queue still holds when its attempt is looked up waits for a service: for a scorer in PENDING, for the binder in
RANKED. That is reported once, until no pod of the profile waits for that service any more.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Sequence
from typing import Final

from berth.api.pod import Pod, is_bound, name_of
from berth.api.podlimits import MOST_BYTES, cycle_milliseconds
from berth.messages.attempts import DeadLetter, DecisionSummary, Outcome, Pending
from berth.messages.subjects import Attempt, Term
from berth_watcher.events import (
    CONSUMERS,
    CountScheduled,
    Effect,
    LookUpAttempt,
    Note,
    PublishDeadLetter,
    PublishPending,
    Service,
    StepDown,
    Warn,
    WorkQueue,
)
from berth_watcher.queue.queuedpod import EventClock, QueuedPod, Stage
from berth_watcher.settings import AttemptSettings
from berth_watcher.takeover import FormerState

MAX_LOST_ATTEMPTS: Final = 3
"""Consecutive attempts of a pod that were lost: the third one counts as an error of the pod."""

MAX_FAILURES: Final = 60
"""More do not lengthen the back-off. The number comes from a message that others may write."""


class Attempts:
    """The attempts of one term, from PENDING to their Decision."""

    def __init__(
        self,
        *,
        term: Term,
        clock: EventClock,
        profiles: Iterable[str],
        settings: AttemptSettings,
    ) -> None:
        self._term = term
        self._clock = clock
        self._settings = settings
        self.window = InFlightWindow(settings.window_floor, profiles)
        self.stalled = StalledAttempts(profiles)
        self._not_stored: set[str] = set()
        self.takeover_position = 0
        """Of ``cluster``, which every scorer must have read: the mirror of the takeover is stored there."""
        self.looked_at = 0
        """How often a pod was published or its attempt looked up."""

    @property
    def not_stored(self) -> int:
        """Pods in flight whose message the bus has not stored: they wait as much as active ones do."""
        return len(self._not_stored)

    @property
    def is_draining(self) -> bool:
        return self.window.is_closed

    def slots(self, profile: str, now: float) -> tuple[int, int]:
        """Of the profile's window: those in use, and all."""
        return self.window.used()[profile], self.window.sizes(now)[profile]

    def waits_for(self, uid: str) -> str:
        """The service that should have taken the pod's message; empty for none."""
        return self.stalled.waits_for(uid)

    def acquire(self, queued: QueuedPod) -> int:
        """Take the pod's slots in the window; returns how many they are."""
        slots = slots_of(queued)
        self.window.acquire(queued.uid, queued.profile, slots)
        return slots

    def release(self, queued: QueuedPod) -> Sequence[Effect]:
        """The pod leaves the window: decided, or after ``waiting`` without a limit of time."""
        self.window.release(queued.uid)
        return self.stalled.ended(queued.uid)

    def end(self, queued: QueuedPod) -> Sequence[Effect]:
        """The latest attempt is decided, or the pod is bound or gone."""
        self._not_stored.discard(queued.uid)
        return self.release(queued)

    def publish(self, queued: QueuedPod, *, waited: float | None = None) -> list[Effect]:
        """Publish the next attempt. It must have its slots in the window."""
        previous = queued.attempt
        attempt = previous.next(self._term) if previous else Attempt(uid=queued.uid, term=self._term, n=1)
        too_much = queued.refusal
        message = Pending(
            config=self._settings.config,
            attempt=str(attempt),
            profile=queued.profile,
            pod=name_of(queued.pod) if too_much else queued.pod,
            error=too_much or queued.failure,
            failures=queued.failures,
            after=queued.positions_after(self.takeover_position),
        )
        self.looked_at += 1
        queued.attempt, queued.published, queued.epoch = attempt, queued.pod, 0
        self._not_stored.discard(queued.uid)
        queued.at_front = False
        return [*self.stalled.ended(queued.uid), PublishPending(message=message, waited_seconds=waited)]

    def restore(self, queued: QueuedPod, state: FormerState) -> list[Effect]:
        """Go on with the numbers that the former leader left."""
        queued.attempt, queued.published = state.attempt, state.in_flight
        queued.failures = min(state.failures, MAX_FAILURES)
        if state.attempt is None or state.attempt.term <= self._term:
            return []
        return [StepDown(reason=f"attempt {str(state.attempt)!r}", term=state.attempt.term)]

    def look_up(self, queued: QueuedPod, attempt: Attempt) -> list[Effect]:
        meta = queued.pod.metadata
        self.looked_at += 1
        return [LookUpAttempt(attempt=attempt, profile=queued.profile, namespace=meta.namespace, pod=meta.name)]

    def on_held(self, queued: QueuedPod, held_by: WorkQueue) -> Sequence[Effect]:
        """A work queue still holds the message of the latest attempt."""
        if queued.epoch:  # after ``waiting`` it waits for its volumes or a Permit plugin, and for no service
            return ()
        return self.stalled.found(queued, held_by, self._settings.look_up_seconds)

    def on_lost(self, queued: QueuedPod) -> str:
        """No message of the latest attempt is found. Returns why the pod is given up; empty for another attempt."""
        if queued.uid not in self._not_stored:
            queued.lost_attempts += 1
        if queued.lost_attempts < MAX_LOST_ATTEMPTS:
            return ""
        lost = f"looking for attempt {str(queued.attempt)!r}: it is in none of PENDING, RANKED and DECISIONS"
        return f"{lost}; {MAX_LOST_ATTEMPTS} attempts got lost in a row"

    def on_not_stored(self, queued: QueuedPod) -> None:
        """A bus that stores nothing is no failure of the pod: the attempt does not count as lost."""
        self._not_stored.add(queued.uid)

    def give_up(self, queued: QueuedPod, reason: str) -> list[Effect]:
        """An error without a Decision: a dead letter and a warning."""
        subject, attempt = str(queued.subject("pending")), str(queued.attempt)
        dead_letter = DeadLetter(subject=subject, reason=reason, service="watcher", attempt=attempt)
        warning = Warn(message=reason, fields={"pod": queued.pod.key, "uid": queued.uid})
        queued.lost_attempts, queued.outcome, queued.message = 0, Outcome.ERROR, reason
        return [PublishDeadLetter(dead_letter=dead_letter), warning, *self.release(queued)]

    def count_scheduled(self, queued: QueuedPod, pod: Pod) -> list[Effect]:
        """Count a bound pod, if the Binding is ours: its attempt is in flight, or was decided ``bound``."""
        decided = queued.stage is Stage.AWAITING_WATCH and queued.outcome is Outcome.BOUND
        ours = decided or queued.stage is Stage.IN_FLIGHT
        if is_bound(pod) and ours and queued.attempt is not None and queued.first_active_at is not None:
            seconds = self._clock.now - queued.first_active_at
            return [CountScheduled(pod=pod, attempts=queued.attempt.n, seconds=seconds)]
        return []


def is_news(queued: QueuedPod, decision: DecisionSummary) -> bool:
    """Only Decisions of the latest attempt count. Of two, that of the higher epoch counts, then the first."""
    if str(queued.attempt) != decision.attempt or decision.epoch < queued.epoch:
        return False
    return queued.stage is Stage.IN_FLIGHT or decision.epoch > queued.epoch


SHARE_OF_A_SECOND: Final = 4
"""The window holds a quarter of the last second's Decisions, so that an urgent pod waits for at most a quarter second
of work."""


def slots_of(queued: QueuedPod) -> int:
    """One, and one more for each millisecond that the pod's selectors add to a cycle, and each 64 KiB for extenders.

    Another's pod waits for what is in flight: 64 pods at the limits would keep a scorer busy for seconds, and 64 whole
    pods of 1.5 MB fill PENDING, which has the pods of all profiles.
    """
    if queued.refusal:
        return 1
    return 1 + cycle_milliseconds(queued.pod) + len(queued.pod.whole) // MOST_BYTES


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
        self.is_closed = False
        """While the pipeline is drained no slot is free."""

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
        if self.is_closed:
            return dict.fromkeys(self._used, 0)
        return {profile: max(0, size - self._used[profile]) for profile, size in self.sizes(now).items()}

    def free_for_early(self, now: float) -> dict[str, int]:
        """The same for pods whose back-off ends early: they leave most slots to pods that become active meanwhile.

        Rounded up: nothing in flight is less than a quarter of any window, also of one with fewer than four slots.
        """
        if self.is_closed:
            return dict.fromkeys(self._used, 0)
        sizes = self.sizes(now)
        return {profile: max(0, -(-size // EARLY_SHARE) - self._used[profile]) for profile, size in sizes.items()}

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

    def waits_for(self, uid: str) -> str:
        """The service that a pod's attempt waits for; empty for none."""
        return self._waits_for.get(uid, ("", ""))[1]

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
