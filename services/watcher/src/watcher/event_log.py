"""What happened while attempts were in flight, so that no event that may help is lost between two looks.

A Decision was made on positions: an event counts as seen by the scorer once the mirror's write of it is known to lie
at or below them, and as missed otherwise. What is not known counts as missed: a try too many beats a pod that sleeps.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from berth.framework.events import ClusterEvent

LONGEST: Final = 2048
"""Events remembered. More than happen in a second of a busy cluster; a Decision older than all of them counts as one
that missed something."""


@dataclass(slots=True, kw_only=True)
class _Record:
    event: ClusterEvent
    old: object
    new: object
    change: int
    stored_by: int | None
    """A sequence of the source at or below which the event is stored; ``None`` while that is not known."""


class EventLog:
    """The events of one source (``cluster``, ``bandwidth``, ``facts``) in order."""

    def __init__(self, *, longest: int = LONGEST) -> None:
        self._longest = longest
        self._records: deque[_Record] = deque()
        self._unstored: deque[_Record] = deque()
        self._blind_change: int | None = None
        self._forgotten = 0
        """Decisions made on positions below this one may have missed what is not in the log."""

    def begin(self, change: int, position: int) -> None:
        """Nothing is known of what happened before: below a position, and up to a change that is not yet stored."""
        self._blind_change, self._forgotten = change, position

    def record(
        self, event: ClusterEvent, old: object, new: object, *, change: int = 0, sequence: int | None = None
    ) -> None:
        """An event: of a change that the mirror is about to store, or one that stands at a sequence already."""
        record = _Record(event=event, old=old, new=new, change=change, stored_by=sequence)
        self._records.append(record)
        if sequence is None:
            self._unstored.append(record)
        while len(self._records) > self._longest and self._records[0].stored_by is not None:
            self._forgotten = max(self._forgotten, self._records.popleft().stored_by or 0)

    def settled(self, change: int, position: int) -> None:
        """Everything up to a change is stored, at or below a position."""
        while self._unstored and self._unstored[0].change <= change:
            self._unstored.popleft().stored_by = position
        if self._blind_change is not None and self._blind_change <= change:
            self._blind_change, self._forgotten = None, max(self._forgotten, position)

    def is_blind(self, position: int) -> bool:
        """Whether a view at this position may have missed what is not in the log."""
        return self._blind_change is not None or position < self._forgotten

    def since(self, position: int) -> Iterator[tuple[ClusterEvent, object, object, int]]:
        """The events that a view at this position is not known to have seen, newest first, with their change."""
        for record in reversed(self._records):
            if record.stored_by is not None and record.stored_by <= position:
                return
            yield record.event, record.old, record.new, record.change
