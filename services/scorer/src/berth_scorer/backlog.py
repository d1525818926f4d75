"""What a scorer holds: messages that it has taken and not answered, in the order in which they may be ranked.

Counting, where it outlives the process, how often ranking one pod has begun and not ended (PROTOCOL 6).

A hang in C or a crash ends the process and leaves the count in KV ``control``; the fourth is the pod's failure.
Waiting, naks and a NATS that does not answer count nothing.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from berth.api.messages import Pending, Positions
from berth.api.subjects import key
from berth.bus.interface import Delivery, Session, WrongLastSequenceError

SUSPECT_DELIVERIES = 4
"""From this delivery on a message is under suspicion of ending its scorer, and is ranked alone (PROTOCOL 6)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingDelivery:
    """A PENDING in hand. ``taken_at`` in the seconds of the clock handed in."""

    delivery: Delivery
    pending: Pending
    taken_at: float

    @property
    def suspect(self) -> bool:
        """Whether it came so often that it may be what ends scorers."""
        return self.delivery.delivered >= SUSPECT_DELIVERIES


class Backlog:
    """Messages in hand: those whose positions the view has reached come first, in their order; none waits too long."""

    def __init__(self, *, patience: timedelta) -> None:
        self._patience = patience.total_seconds()
        self._ready: deque[PendingDelivery] = deque()
        self._waiting: deque[PendingDelivery] = deque()

    def __len__(self) -> int:
        return len(self._ready) + len(self._waiting)

    def take(self, held: PendingDelivery, positions: Positions) -> None:
        """Put a message in hand, on a view at these positions."""
        (self._ready if positions.covers(held.pending.after) else self._waiting).append(held)

    def next(self, positions: Positions, now: float) -> PendingDelivery | None:
        """The next to be ranked, taken out; ``None`` when none is due."""
        self._promote(positions, now)
        return self._ready.popleft() if self._ready else None

    def due_in(self, now: float) -> float | None:
        """Seconds until the first that waits for positions is ranked on an older view; ``None`` when none waits."""
        return max(0.0, self._waiting[0].taken_at + self._patience - now) if self._waiting else None

    def empty(self) -> list[PendingDelivery]:
        """Everything, taken out."""
        everything = [*self._ready, *self._waiting]
        self._ready.clear()
        self._waiting.clear()
        return everything

    def _promote(self, positions: Positions, now: float) -> None:
        still = [held for held in self._waiting if not self._due(held, positions, now)]
        if len(still) < len(self._waiting):
            self._ready.extend(held for held in self._waiting if self._due(held, positions, now))
            self._waiting = deque(still)

    def _due(self, held: PendingDelivery, positions: Positions, now: float) -> bool:
        return positions.covers(held.pending.after) or now - held.taken_at >= self._patience


class TryCounter:
    """The counts under ``try.<attempt>``."""

    LIMIT: Final = 4
    """The count at which the pod is the cause."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def count(self, attempt: str) -> bool:
        """Count a beginning; whether that makes it too many."""
        name = key("try", attempt)
        while True:
            entry = await self._session.get("control", name)
            begun = 1 + (int(entry.data) if entry is not None and entry.data else 0)
            try:
                await self._session.put(
                    "control", name, str(begun).encode(), expected=entry.sequence if entry is not None else 0
                )
            except WrongLastSequenceError:
                continue
            return begun >= self.LIMIT

    async def clear(self, attempt: str) -> None:
        """It has ended, with RANKED stored."""
        await self._session.purge("control", key("try", attempt))
