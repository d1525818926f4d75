"""What is in flight: how many pods of each profile may be, and which of them a service holds up.

The window limits the pods in flight, so that an important pod waits for a window and not for the queue. A pod that a
work queue still holds when its attempt is looked up waits for a service: for a scorer in PENDING, for the binder in
RANKED. That is reported once, until no pod of the profile waits for that service any more.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping
from typing import Final, Literal

from berth.api.pod import Pod
from berth.api.podlimits import cycle_milliseconds, refusal
from berth_watcher.events import Note, Warn
from berth_watcher.queue import QueuedPod

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


WorkQueue = Literal["pending", "ranked"]
Service = Literal["scorer", "binder"]
CONSUMERS: Final[Mapping[WorkQueue, Service]] = {"pending": "scorer", "ranked": "binder"}
"""The service that takes the messages of each work queue."""


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
