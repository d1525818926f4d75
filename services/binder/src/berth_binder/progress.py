"""What goes on when: attempts that pause, what is due, a silent API server, and whether messages are examined at all.

Nothing here waits for an event that may never come: every pause has an end on the clock. Pure, the clock handed in.
"""

from __future__ import annotations

import heapq
from itertools import count

from berth.kube.clock import Backoff
from berth_binder.attempt import BindingAttempt


class Deadlines:
    """Attempts by the time at which something is due for each. The first is found at once, also among thousands."""

    def __init__(self) -> None:
        self._entries: dict[str, tuple[float, int, BindingAttempt]] = {}
        self._heap: list[tuple[float, int, BindingAttempt]] = []
        self._arrivals = count()

    def set(self, attempt: BindingAttempt, time: float) -> None:
        """Set the time of an attempt; a former one of its uid no longer counts."""
        entry = (time, next(self._arrivals), attempt)
        self._entries[attempt.uid] = entry
        heapq.heappush(self._heap, entry)

    def remove(self, uid: str) -> None:
        self._entries.pop(uid, None)

    def first(self) -> float | None:
        """The earliest time; ``None`` when nothing is due."""
        while self._heap and self._entries.get(self._heap[0][2].uid) is not self._heap[0]:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def pop(self, now: float) -> BindingAttempt | None:
        """Remove and return an attempt whose time has come, the earliest first."""
        first = self.first()
        if first is None or first > now:
            return None
        attempt = heapq.heappop(self._heap)[2]
        del self._entries[attempt.uid]
        return attempt

    def __contains__(self, uid: str) -> bool:
        return uid in self._entries

    def __len__(self) -> int:
        return len(self._entries)


class PausedAttempts:
    """Attempts that are paused. Of those whose pause is over, the first in the stream goes on first."""

    def __init__(self) -> None:
        self._pauses = Deadlines()
        self._over: list[tuple[int, int, BindingAttempt]] = []
        self._arrivals = count()

    def add(self, attempt: BindingAttempt) -> None:
        """Pause the attempt until its ``due``."""
        self._pauses.set(attempt, attempt.due)

    def end_pauses(self, now: float) -> None:
        """Note whose pause is over."""
        while (attempt := self._pauses.pop(now)) is not None:
            heapq.heappush(self._over, (attempt.sequence, next(self._arrivals), attempt))

    @property
    def any_over(self) -> bool:
        """Whether the pause of an attempt is over that has not gone on yet."""
        return bool(self._over)

    def pop(self) -> BindingAttempt:
        """Remove and return the first whose pause is over. Raises IndexError when there is none."""
        return heapq.heappop(self._over)[2]

    def first(self) -> float | None:
        """When the next pause ends, of those that are not over."""
        return self._pauses.first()

    def __len__(self) -> int:
        return len(self._pauses) + len(self._over)


class ApiSilence:
    """Whether the API server answers. While it does not, messages are examined one at a time, after a back-off each.

    The back-off is a time and never a wait for an answer: what is paused may settle without any request, and then no
    answer would come.
    """

    def __init__(self, limit: int, backoff: Backoff) -> None:
        """``limit``: so many requests in a row left open are a silence."""
        self._limit = limit
        self._backoff = backoff
        self._open_in_a_row = 0
        self._probes = 0
        self._next_probe = 0.0

    @property
    def is_silent(self) -> bool:
        return self._open_in_a_row >= self._limit

    def answered(self, now: float, *, is_open: bool) -> None:
        """A request was answered, or left open."""
        if not is_open:
            self._open_in_a_row = self._probes = 0
            return
        self._open_in_a_row += 1
        if self._open_in_a_row == self._limit:
            self.probed(now)

    def probed(self, now: float) -> None:
        """A message that was examined during the silence has led to a request."""
        self._probes += 1
        self._next_probe = now + self._backoff.after(self._probes)

    @property
    def may_examine_from(self) -> float:
        """The time from which on a message may be examined; in the past while the API server answers."""
        return self._next_probe if self.is_silent else 0.0


class Examinations:
    """Since when messages wait and none was examined."""

    def __init__(self) -> None:
        self.count = 0
        """Messages examined so far."""
        self.missing_since: float | None = None
        """``None``: none waits, or the last was examined just now."""
        self._counted = 0

    def note(self, now: float, *, waiting: int) -> None:
        """After each event: so many messages wait."""
        if not waiting:
            self.missing_since = None
        elif self.missing_since is None or self.count > self._counted:
            self.missing_since = now
        self._counted = self.count
