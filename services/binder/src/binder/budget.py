"""When an announcement may go out: behind every Binding, a few at once, so many a second.

They are never in the way (PROTOCOL 5). The oldest is dropped when too many wait. Pure: the clock is handed in.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from berth.api.messages import Decision
from berth.api.pod import Pod
from binder.announcements import ConditionNote, EventNote, condition_of, event_of, events_of_victims

Note = EventNote | ConditionNote


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetSettings:
    """How much is said."""

    per_second: float = 1000.0
    """Requests a second, above 0. An Event costs the API server about 1 ms of CPU: this is one core of it at most."""
    burst: int = 200
    """Requests that may go out at once after a quiet time, 1 or more."""
    queued: int = 10_000
    """Announcements that may wait, 1 or more: about 30 MB of pods. The oldest is dropped for a new one."""
    at_once: int = 16
    """On the wire at once while no Binding waits."""
    at_once_behind_bindings: int = 8
    """On the wire at once while Bindings wait: in a long drain Events must go on too, or all come at its end."""
    series: int = 10_000
    """Waiting pods whose last Event is remembered, so that a repeat is counted in it and does not make another."""


class Budget:
    """Announcements that wait, and whether one may go."""

    def __init__(self, settings: BudgetSettings | None = None) -> None:
        self._settings = settings or BudgetSettings()
        self._waiting: OrderedDict[tuple[str, str], Note] = OrderedDict()
        self._told: OrderedDict[tuple[str, str, str], EventNote] = OrderedDict()
        self._tokens = float(self._settings.burst)
        self._filled_at: float | None = None
        self._on_wire = 0
        self.dropped = 0
        """How many announcements were dropped for want of room."""

    def offer(self, said: Decision, pod: Pod) -> None:
        """Tell people of this Decision when there is room. A newer word on a pod takes the place of one that waits."""
        condition = condition_of(said, pod)
        if condition is not None and condition.changes_anything:
            self._queue((pod.uid, "condition"), condition)
        event = event_of(said, pod)
        if event is not None:
            self._queue((pod.uid, event.reason), event)
        for victim in events_of_victims(said, pod):
            self._queue((victim.pod.uid, victim.reason), victim)

    def next(self, now: float, *, bindings_wait: bool) -> Note | None:
        """The announcement that may go out now; whoever takes it says ``done`` after its answer."""
        limit = self._settings.at_once_behind_bindings if bindings_wait else self._settings.at_once
        self._fill(now)
        if not self._waiting or self._on_wire >= limit or self._tokens < 1:
            return None
        self._tokens -= 1
        self._on_wire += 1
        _, note = self._waiting.popitem(last=False)
        return self._counted(note) if isinstance(note, EventNote) else note

    def done(self) -> None:
        """One is answered."""
        self._on_wire -= 1

    def forget(self, event: EventNote) -> None:
        """The Event is not there (any more): the next of its kind is told anew."""
        self._told.pop(event.key, None)

    def due(self, now: float) -> float | None:
        """When the rate allows the next one; ``None`` when nothing waits for that."""
        if not self._waiting or self._tokens >= 1:
            return None
        return now + (1 - self._tokens) / self._settings.per_second

    @property
    def is_busy(self) -> bool:
        """Whether anything waits or is on the wire."""
        return bool(self._waiting) or self._on_wire > 0

    @property
    def waiting(self) -> int:
        """How many wait."""
        return len(self._waiting)

    def _queue(self, key: tuple[str, str], note: Note) -> None:
        if key not in self._waiting and len(self._waiting) >= self._settings.queued:
            self._waiting.popitem(last=False)
            self.dropped += 1
        self._waiting[key] = note

    def _counted(self, event: EventNote) -> EventNote:
        """The Event itself, or the next of a series that was begun."""
        told = self._told.pop(event.key, None)
        event = event if told is None else told.repeated()
        if event.type == "Warning":
            self._told[event.key] = event
        if len(self._told) > self._settings.series:
            self._told.popitem(last=False)
        return event

    def _fill(self, now: float) -> None:
        if self._filled_at is not None:
            gained = (now - self._filled_at) * self._settings.per_second
            self._tokens = min(float(self._settings.burst), self._tokens + gained)
        self._filled_at = now
