"""The order of messages and attempts: by stream, with pauses, one at a time while the API server does not answer.

Every pause ends by the clock, so that no attempt depends on an event that may never come. Pure, the clock is injected.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from itertools import count
from typing import Final

from berth.clock import Backoff
from berth.framework.status import Status
from berth.lifecycle.tries import MOST_TRIES
from berth_binder.attempts.attempt import BindingAttempt, PluginSteps
from berth_binder.decisions.verdict import Verdict, failed
from berth_binder.events import (
    NO_ANSWER,
    ClaimKey,
    ClearTries,
    CountTry,
    Held,
    RequestAnswer,
    SetAside,
    TryCounted,
)
from berth_binder.settings import CoreSettings

UNANSWERED: Final = "the API server has not answered yet"
UNSEEN: Final = "waiting for the API server: the watch has not shown the writes before the Binding yet"
BY_EXTENDER: Final = "waiting for an extender to bind it"
ABOUT_EVICTIONS: Final = "waiting for extenders' answer about evictions"
AFTER_EXCEPTION: Final = "trying again after an exception"
LONG_AGO: Final = 0.0  # a due time that means now
FIRST: Final = 0  # a place before all sequences


def _without_verdict(answer: RequestAnswer) -> str:
    if answer.status == NO_ANSWER:
        return UNANSWERED
    return f"the API server answered {answer.status}: {answer.reason}"


def waits_for(status: Status) -> str:
    """The text for users about a plugin that answered WAIT."""
    return f"waiting for {status.plugin}: {', '.join(status.reasons) or 'no reason given'}"


class RankedQueue:
    """Messages in stream order. A redelivered message takes its old place; equal sequences stay in order of arrival."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Held]] = []
        self._arrivals = count()
        self.first = frozenset[int]()  # sequences of messages that go before all others
        self._first_until = 0.0

    def put_first(self, sequences: frozenset[int], until: float) -> None:
        """These messages go before all others, which wait for them at most until this time."""
        self.first, self._first_until = sequences, until

    def push(self, delivery: Held) -> None:
        place = delivery.sequence if delivery.sequence not in self.first else FIRST
        heapq.heappush(self._heap, (place, next(self._arrivals), delivery))

    def pop(self) -> Held:
        """Remove and return the first message. Raises IndexError if the queue is empty."""
        delivery = heapq.heappop(self._heap)[2]
        if self.first:
            self.first -= {delivery.sequence}
        return delivery

    @property
    def waits_until(self) -> float:
        """The time until which the first message waits for those that go before it; LONG_AGO: it does not."""
        is_behind = self.first and self._heap and self._heap[0][0] != FIRST
        return self._first_until if is_behind else LONG_AGO

    def __len__(self) -> int:
        return len(self._heap)

    def __iter__(self) -> Iterator[Held]:
        return (delivery for _, _, delivery in self._heap)


class Deadlines:
    """Attempts by due time. Finding the first is fast among thousands."""

    def __init__(self) -> None:
        self._entries: dict[str, tuple[float, int, BindingAttempt]] = {}
        self._heap: list[tuple[float, int, BindingAttempt]] = []
        self._arrivals = count()

    def set(self, attempt: BindingAttempt, time: float) -> None:
        """Set the due time of an attempt; it replaces an earlier one of its uid."""
        entry = (time, next(self._arrivals), attempt)
        self._entries[attempt.uid] = entry
        heapq.heappush(self._heap, entry)

    def remove(self, uid: str) -> None:
        self._entries.pop(uid, None)

    def first(self) -> float | None:
        while self._heap and self._entries.get(self._heap[0][2].uid) is not self._heap[0]:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def pop(self, now: float) -> BindingAttempt | None:
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
    """Paused attempts. When several pauses are over, the first in the stream goes on first."""

    def __init__(self) -> None:
        self._pauses = Deadlines()
        self._over: list[tuple[int, int, BindingAttempt]] = []
        self._arrivals = count()

    def add(self, attempt: BindingAttempt) -> None:
        self._pauses.set(attempt, attempt.due)

    def end_pause(self, attempt: BindingAttempt) -> None:
        if attempt.uid in self._pauses:
            self._pauses.remove(attempt.uid)
            self._go_on(attempt)

    def remove(self, attempt: BindingAttempt) -> None:
        self._pauses.remove(attempt.uid)
        self._over = [entry for entry in self._over if entry[2] is not attempt]
        heapq.heapify(self._over)

    def end_pauses(self, now: float) -> None:
        while (attempt := self._pauses.pop(now)) is not None:
            self._go_on(attempt)

    def _go_on(self, attempt: BindingAttempt) -> None:
        heapq.heappush(self._over, (attempt.sequence, next(self._arrivals), attempt))

    @property
    def any_over(self) -> bool:
        return bool(self._over)

    def pop(self) -> BindingAttempt:
        """Remove and return the first attempt whose pause is over. Raises IndexError if there is no such attempt."""
        return heapq.heappop(self._over)[2]

    def first(self) -> float | None:
        return self._pauses.first()

    def __len__(self) -> int:
        return len(self._pauses) + len(self._over)


class ApiSilence:
    """Whether the API server answers. If not, messages are examined one at a time, with a back-off after each.

    The back-off is a time, never a wait for an answer: paused attempts may settle without a request, and then no answer
    would come.
    """

    def __init__(self, limit: int, backoff: Backoff) -> None:
        """``limit``: the API server is silent after this many requests in a row without a usable answer."""
        self._limit = limit
        self._backoff = backoff
        self._open_in_a_row = 0
        self._probes = 0
        self._next_probe = 0.0

    @property
    def is_silent(self) -> bool:
        return self._open_in_a_row >= self._limit

    def answered(self, now: float, *, is_open: bool) -> None:
        """Count an answer; ``is_open``: it was missing, or the pod is still undecided."""
        if not is_open:
            self._open_in_a_row = self._probes = 0
            return
        self._open_in_a_row += 1
        if self._open_in_a_row == self._limit:
            self.probed(now)

    def probed(self, now: float) -> None:
        """A message examined during the silence has led to a request."""
        self._probes += 1
        self._next_probe = now + self._backoff.after(self._probes)

    @property
    def may_examine_from(self) -> float:
        """The time from which a message may be examined; 0 while the API server answers."""
        return self._next_probe if self.is_silent else 0.0


class BindingQueue:
    """Messages in stream order, alternating with attempts whose pause is over."""

    def __init__(self, settings: CoreSettings) -> None:
        self._settings = settings
        self.ranked = RankedQueue()
        self.paused = PausedAttempts()
        self.silence = ApiSilence(settings.max_in_flight, settings.backoff)
        # By attempt that has ever paused and is undecided, when ``waiting`` is published next.
        self.waiting = Deadlines()
        # Whether the last turn was a paused attempt's; then a message is next.
        self._has_resumed_last = False

    def next(self, now: float) -> Held | BindingAttempt | None:
        """Remove and return the next message or attempt. Call ``paused.end_pauses`` before."""
        may_examine = bool(self.ranked) and now >= self._may_examine_from
        if self.paused.any_over and not (may_examine and self._has_resumed_last):
            self._has_resumed_last = True
            return self.paused.pop()
        if may_examine:
            self._has_resumed_last = False
            return self.ranked.pop()
        return None

    def due(self, *, may_start: bool) -> float | None:
        """When the next turn or ``waiting`` is due; ``None``: not before the next event."""
        due = self.waiting.first()
        if not may_start:
            return due
        if self.paused.any_over:
            return LONG_AGO
        if (ends := self.paused.first()) is not None and (due is None or ends < due):
            due = ends
        if self.ranked and (due is None or self._may_examine_from < due):
            due = self._may_examine_from
        return due

    @property
    def _may_examine_from(self) -> float:
        of_silence = self.silence.may_examine_from
        return max(of_silence, self.ranked.waits_until) if self.ranked.first else of_silence

    # Pauses.

    def wait_for_watch(self, attempt: BindingAttempt, now: float) -> None:
        attempt.has_waited_for_watch = True
        attempt.due = now + self._settings.unseen_wait.total_seconds()
        self.paused.add(attempt)

    def back_off(self, attempt: BindingAttempt, answer: RequestAnswer | None, now: float) -> list[SetAside]:
        """Pause after an answer without a verdict, or (``None``) after an exception."""
        attempt.failures += 1
        pause = self._settings.backoff.after(attempt.failures, None if answer is None else answer.retry_after)
        if attempt.uid not in self.waiting:
            self.waiting.set(attempt, now + self._settings.waiting_interval.total_seconds())
        return self._pause(attempt, now + pause, AFTER_EXCEPTION if answer is None else _without_verdict(answer))

    def wait_for_plugin(
        self, attempt: BindingAttempt, steps: PluginSteps, status: Status, now: float
    ) -> list[SetAside]:
        """Pause until the plugin is called again; the interval grows with the number of paused attempts."""
        return self._pause(attempt, min(now + self._interval, steps.waits_until), waits_for(status))

    @property
    def _interval(self) -> float:
        """Seconds until a paused attempt is looked at again; more with the number of paused ones."""
        return max(self._settings.plugin_interval, self._settings.plugin_step * len(self.paused)).total_seconds()

    def wait_for_extender(self, attempt: BindingAttempt, now: float, waits_for: str = BY_EXTENDER) -> None:
        """Publish ``waiting`` if the extender that binds the pod, or what else it waits for, takes longer."""
        attempt.waits_for = waits_for
        if attempt.uid not in self.waiting:
            self.waiting.set(attempt, now + self._settings.plugin_interval.total_seconds())

    def wait_for_writes(self, attempt: BindingAttempt, now: float) -> list[SetAside]:
        """Pause until the watches have shown the pod's writes, which mostly takes some milliseconds."""
        self.wait_for_extender(attempt, now, UNSEEN)
        return self._pause(attempt, now + self._interval, UNSEEN)

    def wait_to_ask(self, attempt: BindingAttempt, now: float) -> list[SetAside]:
        """Pause the attempt, because extenders are asked about the most pods allowed at once."""
        self.wait_for_extender(attempt, now, ABOUT_EVICTIONS)
        return self._pause(attempt, now + self._interval, ABOUT_EVICTIONS)

    def wait_for_answer(self, attempt: BindingAttempt, now: float) -> list[SetAside]:
        """Pause the attempt until ``go_on`` is called."""
        self.wait_for_extender(attempt, now, ABOUT_EVICTIONS)
        return attempt.pause(now, ABOUT_EVICTIONS)

    def go_on(self, attempt: BindingAttempt, now: float) -> None:
        attempt.pause(now, attempt.waits_for)
        self.paused.add(attempt)

    def published_waiting(self, attempt: BindingAttempt, now: float) -> None:
        attempt.repeats += 1
        attempt.is_waiting = True
        self.waiting.set(attempt, now + self._settings.waiting_interval.total_seconds())

    def _pause(self, attempt: BindingAttempt, due: float, waits_for: str) -> list[SetAside]:
        aside = attempt.pause(due, waits_for)
        self.paused.add(attempt)
        return aside


class ClaimTurns:
    """Pods in flight by the ResourceClaims that they write; writes to one claim wait for each other.

    ``behind``: pods that wait for another one's write.
    """

    def __init__(self) -> None:
        self.behind: set[str] = set()
        self._lines: dict[ClaimKey, dict[str, None]] = {}  # uids in order
        self._claims: dict[str, AbstractSet[ClaimKey]] = {}

    def join(self, uid: str, claims: AbstractSet[ClaimKey]) -> None:
        if any(claim in self._lines for claim in claims):
            self.behind.add(uid)
        self._claims[uid] = claims
        for claim in claims:
            self._lines.setdefault(claim, {})[uid] = None

    def leave(self, uid: str) -> None:
        self.behind.discard(uid)
        for claim in self._claims.pop(uid, ()):
            line = self._lines[claim]
            del line[uid]
            if not line:
                del self._lines[claim]
            elif self._is_first(first := next(iter(line))):
                self.behind.discard(first)

    @property
    def is_empty(self) -> bool:
        return not self._lines and not self._claims

    def _is_first(self, uid: str) -> bool:
        return all(next(iter(self._lines[claim])) == uid for claim in self._claims[uid])


class RequestsInFlight:
    """The pods with a request in flight, at most one a pod; by uid."""

    def __init__(self) -> None:
        self.uids: set[str] = set()
        # Pods that an extender binds. They take no place, so that a slow extender delays no other Binding.
        self.at_extender: set[str] = set()
        # Nor do pods that wait for another pod's write of the same claim: up to 256 may share one.
        self._claim_turns = ClaimTurns()

    def begin(self, uid: str, claims: AbstractSet[ClaimKey]) -> None:
        """``claims``: that the request writes."""
        self.uids.add(uid)
        self._claim_turns.join(uid, claims)

    def end(self, uid: str) -> None:
        self.uids.discard(uid)
        self.at_extender.discard(uid)
        self._claim_turns.leave(uid)

    @property
    def at_api_server(self) -> int:
        return len(self.uids) - len(self.at_extender) - len(self._claim_turns.behind)


class Suspects:
    """Pods that a former binder left when it ended: one of them may have ended it (docs/protocol.md, 6); by uid.

    Each suspect is counted in a bucket before it goes on. A suspect with an earlier count goes on alone, so that the
    next crash is its own; after several it is given up.
    """

    def __init__(self) -> None:
        self._counting: str | None = None
        self._counted: set[str] = set()  # their counts are stored
        self._next_alone: str | None = None
        self.alone: str | None = None  # the pod that goes on alone

    @property
    def hold_up_others(self) -> bool:
        return self._counting is not None or self._next_alone is not None or self.alone is not None

    def is_counted(self, uid: str) -> bool:
        return uid in self._counted

    def count(self, uid: str) -> CountTry:
        """Count the pod; no pod is started before the count is stored."""
        self._counting = uid
        return CountTry(uid=uid)

    def counted(self, event: TryCounted) -> bool:
        """The count is stored. Returns whether it was awaited."""
        if self._counting != event.uid:
            return False
        self._counting = None
        self._counted.add(event.uid)
        return True

    def put_off(self, uid: str) -> None:
        """Postpone the pod until no other request is in flight."""
        self._next_alone = uid

    def take_alone(self) -> str | None:
        """Remove and return the postponed pod, alone until it is cleared. Call it with no request in flight."""
        uid, self._next_alone = self._next_alone, None
        self.alone = uid or self.alone
        return uid

    def clear(self, uid: str) -> list[ClearTries]:
        """The pod is decided or paused, so this binder has survived it: remove the count."""
        if self.alone == uid:
            self.alone = None
        if uid not in self._counted:
            return []
        self._counted.discard(uid)
        return [ClearTries(uid=uid)]


def given_up(pod: str, tries: int) -> Verdict | None:
    """The verdict on a pod (``namespace/name``) that has ended too many binders; ``None``: it may go on."""
    if tries < MOST_TRIES:
        return None
    return failed(f"committing {pod!r} ended {MOST_TRIES - 1} binders before this one", reason="tries")
