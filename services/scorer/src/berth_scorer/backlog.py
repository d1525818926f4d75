"""PENDING messages that the scorer has taken and not ranked yet, in the order in which they may be ranked.

Also counts, in KV ``control``, how often scorers have begun to rank a pod without finishing (docs/protocol.md, 6): a
crash or a hang in C ends the process and leaves the count, and the fourth one is the pod's failure.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from berth.api.messages import Pending, Positions
from berth.api.subjects import key
from berth.bus.interface import Delivery, Session, WrongLastSequenceError

SUSPECT_DELIVERIES: Final = 4
"""From this delivery on, a message may be the one that ends scorers. It is ranked alone (docs/protocol.md, 6)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingDelivery:
    """A PENDING message and its delivery. ``taken_at`` in monotonic seconds."""

    delivery: Delivery
    pending: Pending
    taken_at: float

    @property
    def suspect(self) -> bool:
        """Whether it was delivered so often that ranking it may be what ends scorers."""
        return self.delivery.delivered >= SUSPECT_DELIVERIES


class Backlog:
    """Orders messages: first those whose positions the view has reached, by arrival; none waits longer than the limit.

    ``now`` is in monotonic seconds.
    """

    def __init__(self, *, position_wait: timedelta) -> None:
        self._position_wait = position_wait.total_seconds()
        self._ready: deque[PendingDelivery] = deque()
        self._waiting: deque[PendingDelivery] = deque()

    def __len__(self) -> int:
        return len(self._ready) + len(self._waiting)

    def add(self, item: PendingDelivery, positions: Positions) -> None:
        """Add a message, with the view at these positions."""
        (self._ready if positions.covers(item.pending.after) else self._waiting).append(item)

    def pop(self, positions: Positions, now: float) -> PendingDelivery | None:
        """Remove and return the next message to rank; ``None`` when none is due."""
        self._promote(positions, now)
        return self._ready.popleft() if self._ready else None

    def due_in(self, now: float) -> float | None:
        """Seconds until the first waiting message is ranked on an older view; ``None`` when none waits."""
        return max(0.0, self._waiting[0].taken_at + self._position_wait - now) if self._waiting else None

    def clear(self) -> list[PendingDelivery]:
        everything = [*self._ready, *self._waiting]
        self._ready.clear()
        self._waiting.clear()
        return everything

    def _promote(self, positions: Positions, now: float) -> None:
        still_waiting = [item for item in self._waiting if not self._is_due(item, positions, now)]
        if len(still_waiting) < len(self._waiting):
            self._ready.extend(item for item in self._waiting if self._is_due(item, positions, now))
            self._waiting = deque(still_waiting)

    def _is_due(self, item: PendingDelivery, positions: Positions, now: float) -> bool:
        return positions.covers(item.pending.after) or now - item.taken_at >= self._position_wait


class TryCounter:
    """Counts, under ``try.<attempt>`` in KV ``control``, the rankings that were begun and not finished.

    Waiting, naks and a NATS server that does not answer are not counted.
    """

    LIMIT: Final = 4
    """The count at which the pod is the cause."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def count(self, attempt: str) -> bool:
        """Count one more; true when the limit is reached."""
        name = key("try", attempt)
        while True:
            entry = await self._session.get("control", name)
            tries = 1 + (int(entry.data) if entry is not None and entry.data else 0)
            try:
                await self._session.put(
                    "control", name, str(tries).encode(), expected=entry.sequence if entry is not None else 0
                )
            except WrongLastSequenceError:
                continue
            return tries >= self.LIMIT

    async def clear(self, attempt: str) -> None:
        """Remove the count: the ranking is finished and RANKED is stored."""
        await self._session.purge("control", key("try", attempt))
