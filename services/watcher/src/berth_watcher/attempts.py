"""Pods in flight: their attempts, the window that limits them, and attempts that a service holds up.

A pod is in flight until a final Decision of its latest attempt arrives, or the API shows it bound, gone or changed.

The window limits the pods in flight, so that an important pod waits for a window and not for the whole queue. A pod
whose message a look-up finds in PENDING waits for a scorer, in RANKED for the binder; this is reported once per
profile.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from berth.api.pod import Pod, is_bound, is_finished, name_of, priority_of
from berth.api.podgroups import MOST_MEMBERS
from berth.api.podlimits import MOST_BYTES, cycle_milliseconds
from berth.errors import DecodeError
from berth.lifecycle.peers import HELD_SECONDS
from berth.messages.attempts import MOST_CLASSES, DeadLetter, DecisionSummary, Outcome, Pending
from berth.messages.bundles import Bundle, bundled
from berth.messages.groupattempts import GroupPending
from berth.messages.subjects import Attempt, Term
from berth_watcher.events import (
    CONSUMERS,
    AttemptLookedUp,
    CountScheduled,
    Effect,
    LookUpAttempt,
    Note,
    PublishDeadLetter,
    PublishGroup,
    PublishPending,
    Service,
    StepDown,
    Warn,
    WorkQueue,
)
from berth_watcher.queue.groups import GroupEntry
from berth_watcher.queue.queuedpod import EventClock, QueuedPod, Stage
from berth_watcher.queue.schedulingqueue import SchedulingQueue
from berth_watcher.settings import AttemptSettings
from berth_watcher.takeover import FormerState

# Consecutive lost attempts of a pod after which it is given up as an error.
MAX_LOST_ATTEMPTS: Final = 3

# Look-up intervals for which PENDING may hold an attempt on which a scorer works, until its pod is published again, by
# the number of attempts given up before: 10 s, 20 s, 40 s, then 80 s each, because a slow extender needs them.
WORKED_ON_LOOK_UPS: Final = (1, 2, 4, 8)

# Seconds between look-ups of an attempt on which a scorer works: with the time for which its last announcement counts,
# the ten seconds after which an attempt that no scorer works on is followed by the next.
WORKED_ON_LOOK_UP_SECONDS: Final = 10.0 - HELD_SECONDS

# Upper bound of the failures read from a message, which others may write. More do not lengthen the back-off.
MAX_FAILURES: Final = 60


class Attempts:
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
        self._held: dict[str, _Held] = {}  # by uid, pods whose latest attempts a work queue has held
        self._retried: dict[str, QueuedPod] = {}  # by uid, those in flight whose attempt before this one failed
        # Sequence of the bucket cluster at which the takeover's mirror is stored; every scorer must have read it.
        self.takeover_position = 0
        self.progress = 0  # publishes and look-ups: a counter of progress

    @property
    def not_stored(self) -> int:
        """Pods in flight whose message the bus has not stored: they wait like active pods."""
        return len(self._not_stored)

    @property
    def is_draining(self) -> bool:
        return self.window.is_closed

    def slots(self, profile: str, now: float) -> tuple[int, int]:
        return self.window.used()[profile], self.window.sizes(now)[profile]

    def waits_for(self, uid: str) -> str:
        """The service that should have taken the pod's message; empty if the pod waits for no service."""
        return self.stalled.waits_for(uid)

    def acquire(self, queued: QueuedPod) -> int:
        """Acquire the pod's slots in the window; returns their number."""
        slots = slots_of(queued)
        if queued.failures:
            self._retried[queued.uid] = queued
        self.window.acquire(queued.uid, queued.profile, slots)
        return slots

    def release(self, queued: QueuedPod) -> Sequence[Effect]:
        """Release the pod's slots after a final Decision or ``waiting``, which has no time limit."""
        self.window.release(queued.uid)
        self._retried.pop(queued.uid, None)
        return self.stalled.ended(queued.uid)

    def retries_before(self, queued: QueuedPod) -> bool:
        """Whether one of higher priority in its profile is in flight whose attempt before had failed."""
        priority = priority_of(queued.pod)
        return any(
            each.profile == queued.profile and priority_of(each.pod) > priority for each in self._retried.values()
        )

    def end(self, queued: QueuedPod) -> Sequence[Effect]:
        self._not_stored.discard(queued.uid)
        self._held.pop(queued.uid, None)
        return self.release(queued)

    def publish(self, queued: QueuedPod, *, waited: float | None = None) -> list[Effect]:
        """The caller has acquired the pod's slots."""
        attempt = _next_attempt(queued, self._term)
        too_much = queued.refusal
        message = Pending(
            config=self._settings.config,
            attempt=str(attempt),
            profile=queued.profile,
            pod=name_of(queued.pod) if too_much else queued.pod,
            error=too_much or queued.failure,
            failures=queued.failures,
            after=queued.positions_after(self.takeover_position),
            suspect=self._on_next_attempt(queued.uid),
        )
        self.progress += 1
        queued.attempt, queued.published, queued.epoch = attempt, queued.pod, 0
        self._not_stored.discard(queued.uid)
        queued.at_front = False
        return [PublishPending(message=message, waited_seconds=waited)]

    def publish_group(
        self, entry: GroupEntry, members: Sequence[QueuedPod], *, waited: float | None = None
    ) -> list[Effect]:
        """Publish a group with these of its members. The caller has acquired their slots."""
        attempt = _next_attempt(entry, self._term)
        for member in members:
            member.attempt, member.published, member.epoch = _next_attempt(member, self._term), member.pod, 0
            if member.first_active_at is None:
                member.first_active_at = entry.first_active_at
        numbers = {str(member.uid): member.attempt.n for member in members if member.attempt is not None}
        bundle = bundled([member.pod for member in members], numbers)
        error = entry.failure or _refusal_of(members, bundle)
        message = GroupPending(
            config=self._settings.config,
            attempt=str(attempt),
            profile=entry.profile,
            group=entry.form,
            bundle=Bundle(classes=[], members=[]) if error else bundle,
            need=entry.need,
            bound=entry.bound[:MOST_MEMBERS],
            failures=entry.failures,
            after=entry.positions_after(self.takeover_position),
            error=error,
            suspect=self._on_next_attempt(entry.uid),
        )
        self.progress += 1
        entry.attempt, entry.published, entry.epoch = attempt, entry.pod, 0
        self._not_stored.discard(entry.uid)
        entry.at_front = False
        return [PublishGroup(message=message, waited_seconds=waited)]

    def restore_members(self, attempts: Iterable[Attempt], queue: SchedulingQueue) -> None:
        """Continue with the numbers of a group's message: by them its members' Decisions are known."""
        for attempt in attempts:
            member = queue.get(attempt.uid)
            if member is not None and (member.attempt is None or member.attempt.order < attempt.order):
                member.attempt, member.published = attempt, member.pod

    def restore(self, queued: QueuedPod, state: FormerState) -> list[Effect]:
        """Continue with the numbers of the former leader."""
        queued.attempt, queued.published = state.attempt, state.in_flight
        queued.failures = min(state.failures, MAX_FAILURES)
        if state.attempt is None or state.attempt.term <= self._term:
            return []
        return [StepDown(reason=f"attempt {str(state.attempt)!r}", term=state.attempt.term)]

    def look_up(self, queued: QueuedPod, attempt: Attempt) -> list[Effect]:
        meta = queued.pod.metadata
        self.progress += 1
        return [LookUpAttempt(attempt=attempt, profile=queued.profile, namespace=meta.namespace, pod=meta.name)]

    def on_held(self, queued: QueuedPod, found: AttemptLookedUp) -> Sequence[Effect]:
        if found.held_by is None or queued.epoch:  # after waiting, it waits for volumes or a Permit plugin
            return ()
        held = self._held.setdefault(queued.uid, _Held())
        if held.since is None:
            held.since = self._clock.now - self._settings.look_up_seconds
        held.by, held.is_worked_on = found.held_by, found.is_worked_on
        return self.stalled.found(queued, found.held_by, self._settings.look_up_seconds)

    def give_slot_back(self, queued: QueuedPod) -> bool:
        """Whether the latest attempt was held for so long that the next one must follow; then its slots are free."""
        # A scorer can have a message redelivered in a hundred years, and no consumer's setting bounds that.
        held = self._held.get(queued.uid)
        if held is None or held.since is None:
            return False
        if held.by == "pending" and held.is_worked_on:
            look_ups = WORKED_ON_LOOK_UPS[min(held.given_up, len(WORKED_ON_LOOK_UPS) - 1)]
            if self._clock.now - held.since < look_ups * self._settings.look_up_seconds:
                return False
        held.given_up, held.since = held.given_up + 1, None
        self.window.release(queued.uid)
        return True

    def seconds_to_look_up(self, queued: QueuedPod) -> float:
        held, seconds = self._held.get(queued.uid), self._settings.look_up_seconds
        return min(WORKED_ON_LOOK_UP_SECONDS, seconds) if held is not None and held.is_worked_on else seconds

    def _on_next_attempt(self, uid: str) -> bool:
        """Whether the attempt before it stayed in PENDING: it may have ended the scorers that ranked it."""
        held = self._held.get(uid)
        if held is None:
            return False
        held.since = None
        return held.by == "pending" and held.given_up > 0

    def on_lost(self, queued: QueuedPod) -> str:
        """The message of the latest attempt is lost. Returns why to give the pod up; empty for another attempt."""
        if queued.uid not in self._not_stored:
            queued.lost_attempts += 1
        if queued.lost_attempts < MAX_LOST_ATTEMPTS:
            return ""
        lost = f"looking for attempt {str(queued.attempt)!r}: neither PENDING nor RANKED nor DECISIONS has it"
        return f"{lost}; {MAX_LOST_ATTEMPTS} attempts got lost in a row"

    def on_not_stored(self, queued: QueuedPod) -> None:
        # A full bus is no failure of the pod: this attempt does not count as lost.
        self._not_stored.add(queued.uid)

    def give_up(self, queued: QueuedPod, reason: str) -> list[Effect]:
        """Report an error without a Decision: a dead letter and a warning."""
        subject, attempt = str(queued.subject("pending")), str(queued.attempt)
        dead_letter = DeadLetter(subject=subject, reason=reason, service="watcher", attempt=attempt)
        warning = Warn(
            message="giving up an attempt", fields={"pod": queued.pod.key, "uid": queued.uid, "reason": reason}
        )
        queued.lost_attempts, queued.outcome, queued.message = 0, Outcome.ERROR, reason
        return [PublishDeadLetter(dead_letter=dead_letter), warning, *self.release(queued)]

    def count_scheduled(self, queued: QueuedPod, pod: Pod) -> list[Effect]:
        """Count a bound pod if the Binding is berth's: its attempt is in flight or was decided ``bound``."""
        decided = queued.stage is Stage.AWAITING_WATCH and queued.outcome is Outcome.BOUND
        with_group = queued.stage is Stage.GROUPED and queued.published is not None
        ours = decided or with_group or queued.stage is Stage.IN_FLIGHT
        if is_bound(pod) and ours and queued.attempt is not None and queued.first_active_at is not None:
            seconds = self._clock.now - queued.first_active_at
            return [CountScheduled(pod=pod, attempts=queued.attempt.n, seconds=seconds)]
        return []


def _next_attempt(queued: QueuedPod, term: Term) -> Attempt:
    return queued.attempt.next(term) if queued.attempt else Attempt(uid=queued.uid, term=term, n=1)


def _refusal_of(members: Iterable[QueuedPod], bundle: Bundle) -> str:
    """Why a group cannot be planned; empty if it can."""
    if len(bundle.classes) > MOST_CLASSES:
        kinds = len(bundle.classes)
        return f"the group has more kinds of pods than a plan can take: {kinds} (at most {MOST_CLASSES})"
    return next((f"{member.pod.key}: {member.refusal}" for member in members if member.refusal), "")


@dataclass(slots=True)
class _Held:
    """Attempts in a row of one pod that a work queue held for too long, and for how long it holds the latest one."""

    given_up: int = 0
    since: float | None = None  # monotonic; None until a look-up has found the latest attempt there
    by: WorkQueue = "pending"
    is_worked_on: bool = False


def is_news(queued: QueuedPod, decision: DecisionSummary) -> bool:
    """Whether a Decision counts: it is about the latest attempt, and the first one or by a binder of a higher epoch."""
    if str(queued.attempt) != decision.attempt or decision.epoch < queued.epoch:
        return False
    return queued.stage is Stage.IN_FLIGHT or decision.epoch > queued.epoch


# The window has the Decisions of 1/4 s, so that an urgent pod waits for at most that much work.
SHARE_OF_A_SECOND: Final = 4


def slots_of(queued: QueuedPod) -> int:
    """One for each member of a group; for a pod one, and more for what its selectors and extenders cost."""
    if isinstance(queued, GroupEntry):
        return len(queued.members)
    if queued.refusal:
        return 1
    # One more for each millisecond that the selectors add to a cycle, and for each 64 KiB sent to extenders: 64 pods at
    # the limits would keep a scorer busy for seconds, and 64 pods of 1.5 MB fill PENDING, which all profiles share.
    return 1 + cycle_milliseconds(queued.pod) + len(queued.pod.whole) // MOST_BYTES


# Back-offs end early while less than 1/4 of the window is in use.
EARLY_SHARE: Final = 4


class InFlightWindow:
    """Slots for pods in flight, by profile: the floor, or a quarter second of Decisions if that is more.

    Each profile has its own window, so that a profile without a scorer blocks no other. Pods that keep a scorer busy
    for longer take more slots.
    """

    def __init__(self, floor: int, profiles: Iterable[str]) -> None:
        self._floor = floor
        self._slots_of: dict[str, tuple[str, int]] = {}  # profile and slots of each pod in flight, by uid
        self._used = dict.fromkeys(profiles, 0)
        self._rates = {profile: DecisionRate() for profile in self._used}
        self.is_closed = False  # if true (draining), no slot is free

    def used(self) -> dict[str, int]:
        return self._used.copy()

    def sizes(self, now: float) -> dict[str, int]:
        return {
            profile: max(self._floor, rate.in_last_second(now) // SHARE_OF_A_SECOND)
            for profile, rate in self._rates.items()
        }

    def free(self, now: float) -> dict[str, int]:
        """Free slots by profile. Zero if a takeover found more pods in flight than there are slots.

        A pod goes into flight when one slot is free, however many it takes, so that large pods do not starve.
        """
        if self.is_closed:
            return dict.fromkeys(self._used, 0)
        return {profile: max(0, size - self._used[profile]) for profile, size in self.sizes(now).items()}

    def free_for_early(self, now: float) -> dict[str, int]:
        """Free slots for pods whose back-off ends early: most of the window is left to active pods.

        Rounded up, so that a window with fewer than four slots has one too.
        """
        if self.is_closed:
            return dict.fromkeys(self._used, 0)
        sizes = self.sizes(now)
        return {profile: max(0, -(-size // EARLY_SHARE) - self._used[profile]) for profile, size in sizes.items()}

    def acquire(self, uid: str, profile: str, slots: int = 1) -> None:
        """Take slots for a pod, unless it has slots already."""
        if uid not in self._slots_of:
            self._slots_of[uid] = profile, slots
            self._used[profile] += slots

    def release(self, uid: str) -> None:
        profile, slots = self._slots_of.pop(uid, ("", 0))
        if slots:
            self._used[profile] -= slots

    def count_decision(self, profile: str, now: float) -> None:
        """Count a final Decision: their rate sets the size of the window."""
        rate = self._rates.get(profile)
        if rate is not None:
            rate.count(now)


class DecisionRate:
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
    """Attempts that a work queue holds for longer than an attempt takes, by the service that should take them."""

    def __init__(self, profiles: Iterable[str]) -> None:
        self._waits_for: dict[str, tuple[str, Service]] = {}
        self._pods = Counter({(profile, service): 0 for profile in profiles for service in CONSUMERS.values()})

    def pods(self) -> dict[tuple[str, Service], int]:
        return dict(self._pods)

    def waits_for(self, uid: str) -> str:
        """The consumer that the pod's message waits for; may be empty."""
        return self._waits_for.get(uid, ("", ""))[1]

    def found(self, pod: QueuedPod, held_by: WorkQueue, seconds: float) -> list[Warn | Note]:
        """A look-up found the attempt in a work queue, at least ``seconds`` after its publish."""
        waits_for = (pod.profile, CONSUMERS[held_by])
        if self._waits_for.get(pod.uid) == waits_for:
            return []
        ended = self.ended(pod.uid)
        self._waits_for[pod.uid] = waits_for
        self._pods[waits_for] += 1
        return [*ended, _warning(pod, held_by, seconds)] if self._pods[waits_for] == 1 else ended

    def ended(self, uid: str) -> list[Warn | Note]:
        waits_for = self._waits_for.pop(uid, None)
        if waits_for is None:
            return []
        self._pods[waits_for] -= 1
        profile, service = waits_for
        if self._pods[waits_for]:
            return []
        return [Note(message="pods no longer wait for a service", fields={"profile": profile, "waits_for": service})]


def _warning(pod: QueuedPod, held_by: WorkQueue, seconds: float) -> Warn:
    profile, service = pod.profile, CONSUMERS[held_by]
    wanted = "the binder" if service == "binder" else f"a scorer whose configuration has the profile {profile!r}"
    reason = f"{held_by.upper()} has held the attempt for more than {seconds:g} s, {wanted} must take it"
    fields = {"profile": profile, "waits_for": service, "pod": pod.pod.key, "reason": reason}
    return Warn(message="pods wait for a service", fields=fields)


# Seconds after its deletion for which a pod may still be said to wait: more than a watch's delay. There may be no
# Decision: the message is deleted when no pod needs it (docs/adr/0058), or a scorer acknowledges it without an answer.
LEFT_SECONDS: Final = 30.0


@dataclass(slots=True)
class _HeldRoom:
    pod: Pod
    node: str
    attempt: Attempt
    is_bound: bool = False  # by a Decision; the watch has not shown it yet

    def is_about(self, decision: DecisionSummary) -> bool:
        attempt = _attempt_of(decision)
        return attempt is not None and attempt.order >= self.attempt.order

    def placed(self) -> Pod:
        """The pod as plugins see one that is bound to the node."""
        return msgspec.structs.replace(self.pod, spec=msgspec.structs.replace(self.pod.spec, node_name=self.node))


def _attempt_of(decision: DecisionSummary) -> Attempt | None:
    """The Decision's attempt; ``None`` for text that is no attempt: any client may write it."""
    try:
        return Attempt.parse(decision.attempt)
    except DecodeError:
        return None


class HeldRooms:
    """The room that the binder holds for pods that wait, by uid.

    Scorers count such a pod as bound, so the end of a wait without a Binding is an event like the deletion of a bound
    pod. No object of the API server shows it, so the final Decision gives the position. Each method returns the pod, as
    if it were bound to its node, if its room there is free now.
    """

    def __init__(self) -> None:
        self.rooms: dict[str, _HeldRoom] = {}
        # Deleted while an attempt was under way, of which a Decision may still come; each with the time, oldest first.
        self.deleted: dict[str, tuple[float, Pod]] = {}

    def __len__(self) -> int:
        return len(self.rooms) + len(self.deleted)

    def decided(self, decision: DecisionSummary, pod: Pod | None) -> Pod | None:
        """Take in a Decision; ``pod``: its pod, if it is still in the queue."""
        if not decision.outcome.final:
            return self._hold(decision, pod)
        self.deleted.pop(decision.uid, None)
        held = self.rooms.get(decision.uid)
        if held is None or not held.is_about(decision):
            return None
        if decision.outcome is Outcome.BOUND:
            held.is_bound = True
            return self._move(held, decision.node)
        del self.rooms[decision.uid]
        return held.placed()

    def held(self, uid: str) -> Pod | None:
        """The pod as if it were bound to the node where it waits; ``None`` if it does not wait."""
        held = self.rooms.get(uid)
        return None if held is None else held.placed()

    def left(self, pod: Pod, now: float) -> None:
        """Note a deletion during an attempt: ``waiting`` may still come, and then the end of the wait."""
        if pod.uid not in self.rooms and pod.uid not in self.deleted:
            self.deleted[pod.uid] = now, pod

    def forget_deleted(self, now: float) -> None:
        """Forget deleted pods whose Decision has not come in time."""
        while self.deleted:
            uid, (at, _) = next(iter(self.deleted.items()))
            if now - at < LEFT_SECONDS:
                return
            del self.deleted[uid]

    def shown(self, uid: str, pod: Pod | None) -> Pod | None:
        """Take in the API's state of a pod. A deleted pod holds its room in scorers until the Decision."""
        held = self.rooms.get(uid)
        if held is None:
            return None
        if pod is not None and is_bound(pod):
            del self.rooms[uid]
            return None if pod.spec.node_name == held.node else held.placed()
        if held.is_bound and (pod is None or is_finished(pod)):
            del self.rooms[uid]
            return held.placed()
        return None

    def _hold(self, decision: DecisionSummary, pod: Pod | None) -> Pod | None:
        held, attempt = self.rooms.get(decision.uid), _attempt_of(decision)
        _, left = self.deleted.get(decision.uid, (0.0, None))
        pod = pod or left or (held.pod if held else None)
        if pod is None or attempt is None or not decision.node or (held and not held.is_about(decision)):
            return None
        self.rooms[decision.uid] = _HeldRoom(pod, decision.node, attempt)
        return None if held is None or held.node == decision.node else held.placed()

    def _move(self, held: _HeldRoom, node: str) -> Pod | None:
        if not node or node == held.node:
            return None
        freed, held.node = held.placed(), node
        return freed
