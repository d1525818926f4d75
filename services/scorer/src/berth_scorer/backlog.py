"""PENDING messages that wait in the scorer, in the order in which they are ranked. Pure."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Hashable
from datetime import timedelta
from typing import Final

from berth.messages.attempts import Positions
from berth_scorer.events import PendingDelivery

MOST_WAIT_SECONDS: Final = 30.0
"""For the positions of a message, however the view moves. The largest mirror is read in less. Positions that no reader
ever reaches are those of a store that has lost its last writes."""


class Turns:
    """Messages by arrival. Among those of one rank that came one after the other, one of each namespace is next.

    So a pod of another namespace waits for one pod of each, and not for all that the scorer holds of a namespace with
    thousands (docs/adr/0020). A message never passes one of another rank: the watcher has brought those in order.
    """

    def __init__(self) -> None:
        self._rows: deque[tuple[Hashable, OrderedDict[str, deque[PendingDelivery]]]] = deque()
        """Rank, and its messages by namespace; the namespace whose turn it is comes first."""
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def append(self, item: PendingDelivery) -> None:
        if not self._rows or self._rows[-1][0] != item.rank:
            self._rows.append((item.rank, OrderedDict()))
        self._rows[-1][1].setdefault(item.pending.pod.metadata.namespace, deque()).append(item)
        self._count += 1

    def popleft(self) -> PendingDelivery:
        _, row = self._rows[0]
        namespace, items = next(iter(row.items()))
        item = items.popleft()
        if items:
            row.move_to_end(namespace)
        else:
            del row[namespace]
        if not row:
            self._rows.popleft()
        self._count -= 1
        return item


class Backlog:
    """Orders messages: first those whose positions the view has reached, in turns of namespaces.

    A message waits for its positions as long as the view moves towards them, and ``position_wait`` longer: a large
    mirror is read to its end first, and a source that stands still holds no pod up. It waits for ``MOST_WAIT_SECONDS``
    at most. ``now`` is in monotonic seconds.
    """

    def __init__(self, *, position_wait: timedelta) -> None:
        self._position_wait = position_wait.total_seconds()
        self._ready = Turns()
        self._waiting: deque[PendingDelivery] = deque()
        self._positions = Positions()
        self._advanced_at: dict[str, float] = {}
        """When the view was last seen to have read more of each source."""

    def __len__(self) -> int:
        return len(self._ready) + len(self._waiting)

    def add(self, item: PendingDelivery, positions: Positions) -> None:
        """Add a message, with the view at these positions."""
        if positions.covers(item.pending.after):
            self._ready.append(item)
        else:
            self._follow(positions, item.taken_at)
            self._waiting.append(item)

    def pop(self, positions: Positions, now: float) -> PendingDelivery | None:
        """Remove and return the next message to rank; ``None`` when none is due."""
        self._promote(positions, now)
        return self._ready.popleft() if self._ready else None

    @property
    def is_ready(self) -> bool:
        """Whether a message may be ranked at once."""
        return bool(self._ready)

    def due(self) -> float | None:
        """When the first waiting message is ranked on an older view, by the time of ``pop``; ``None``: none waits."""
        return min((self._due(item) for item in self._waiting), default=None)

    def clear(self) -> None:
        """Forget every message."""
        self._ready = Turns()
        self._waiting.clear()

    def _promote(self, positions: Positions, now: float) -> None:
        if not self._waiting:
            return
        self._follow(positions, now)
        waiting, self._waiting = self._waiting, deque()
        for item in waiting:
            due = positions.covers(item.pending.after) or self._due(item) <= now
            (self._ready if due else self._waiting).append(item)

    def _follow(self, positions: Positions, now: float) -> None:
        for source in Positions.__struct_fields__:
            if getattr(positions, source) > getattr(self._positions, source):
                self._advanced_at[source] = now
        self._positions = positions

    def _due(self, item: PendingDelivery) -> float:
        """When it is ranked on a view that has not reached its positions."""
        wanted = item.pending.after
        lacking = (
            self._advanced_at.get(source, item.taken_at)
            for source in Positions.__struct_fields__
            if getattr(wanted, source) > getattr(self._positions, source)
        )
        return min(max((item.taken_at, *lacking)) + self._position_wait, item.taken_at + MOST_WAIT_SECONDS)
